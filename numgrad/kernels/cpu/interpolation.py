"""Nearest interpolation: rows and columns taken by tables, and the adjoint.

Both kernels see (n, c, h, w), taken apart into ``n * c`` planes, and share their slots:

    0 result, 1 operand, 2 rows, 3 columns (int64: the source of each row and column of the large
    side, not falling), 4 c, 5..8 strides of the operand along n, c, h, w in bytes, 9 h, 10 w,
    11 oh, 12 ow.

(h, w) is the plane that is taken from, (oh, ow) the one that is made. Results are contiguous,
operands may have any strides. A kernel's card is the docstring of the function in its factory.
"""

from typing import Any

import numpy as np

from ..native import as_int64, copy_bytes, item_size, items_at, load_i64
from ..store import Handwritten, named
from .windows import plane_offset


def _nearest(name: str, word: Any) -> Handwritten:
    def nearest(args, lo, hi, worker):
        """out[p, i, j] = x[p, rows[i], columns[j]], for rows p * oh + i.

        Slots as the module says. Items are rows of out; a row like the one before is copied from
        it. Reads an item and 8 bytes, writes an item an item of a new row. Not checked: tables.
        """
        rows, columns = as_int64(load_i64(args, 2)), as_int64(load_i64(args, 3))
        x, x_h, x_w = load_i64(args, 1), load_i64(args, 7), load_i64(args, 8)
        oh, ow = load_i64(args, 11), load_i64(args, 12)
        for item in range(lo, hi):
            i = item % oh
            to = load_i64(args, 0) + item * ow * item_size(word)
            if item > lo and i > 0 and rows[i] == rows[i - 1]:
                copy_bytes(to, to - ow * item_size(word), ow * item_size(word))
                continue
            out = items_at(load_i64(args, 0), item * ow * item_size(word), word)
            offset = plane_offset(args, item // oh) + rows[i] * x_h
            if x_w == item_size(word):
                row = items_at(x, offset, word)
                for j in range(ow):
                    out[j] = row[columns[j]]
            else:
                for j in range(ow):
                    out[j] = items_at(x, offset + columns[j] * x_w, word)[0]

    return named(name, nearest)


def _nearest_adjoint(name: str, dtype: Any) -> Handwritten:
    def nearest_adjoint(args, lo, hi, worker):
        """out[p] = zeros (h, w) with g[p, i, j] added at (rows[i], columns[j]), for planes p.

        Slots as the module says, the operand being g. Items are planes; each is added in order,
        the columns of one source first. Reads each item of g once. Not checked: tables.
        """
        rows, columns = as_int64(load_i64(args, 2)), as_int64(load_i64(args, 3))
        g, g_h, g_w = load_i64(args, 1), load_i64(args, 7), load_i64(args, 8)
        h, w = load_i64(args, 9), load_i64(args, 10)
        oh, ow = load_i64(args, 11), load_i64(args, 12)
        for p in range(lo, hi):
            whole = items_at(load_i64(args, 0), p * h * w * item_size(dtype), dtype)
            for k in range(h * w):
                whole[k] = 0
            for i in range(oh):
                out = items_at(load_i64(args, 0), (p * h + rows[i]) * w * item_size(dtype), dtype)
                offset = plane_offset(args, p) + i * g_h
                j = 0
                while j < ow:
                    k = columns[j]
                    total = items_at(g, offset + j * g_w, dtype)[0]
                    j += 1
                    while j < ow and columns[j] == k:
                        total += items_at(g, offset + j * g_w, dtype)[0]
                        j += 1
                    out[k] += total

    return named(name, nearest_adjoint)


nearest_1 = _nearest("nearest_1", np.uint8)
nearest_4 = _nearest("nearest_4", np.int32)
nearest_8 = _nearest("nearest_8", np.int64)
nearest_adjoint_float32 = _nearest_adjoint("nearest_adjoint_float32", np.float32)
nearest_adjoint_float64 = _nearest_adjoint("nearest_adjoint_float64", np.float64)
