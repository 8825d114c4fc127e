"""Pooling over windows: extremes with their places, sums, and the adjoints of both.

All kernels see (n, c, h, w), taken apart into ``n * c`` planes, and share their slots, which
`windows.Slots` names.

(h, w) is the plane with the windows, (oh, ow) that of the window results. Window i covers the rows
``i * stride - padding + r * dilation`` for ``0 <= r < kh``; an adaptive one those from
``i * h // oh`` to ``ceil((i + 1) * h / oh)``. A *place* is the number ``r * kw + s`` of a cell
within its window. Results are contiguous, operands may have any strides.

Windows overlap, and their rows are far apart: so a kernel first folds the rows of a row of windows
into one line, contiguous and in cache, with columns for the padding at both ends, and then folds
the columns of that. Only ``tile`` windows are done at a time, so that a line stays in cache.

A kernel's card is the docstring of the function inside its factory.
"""

from typing import Any

import numpy as np

from ..native import as_int32, as_int64, as_uint8, inline, item_size, items_at, load_i64, stack
from ..store import Handwritten, kernel, named
from .windows import (
    cell_count,
    cells_inside,
    columns_of,
    contiguous_row,
    first_cell,
    plane_offset,
)

SMALL = 256
"""Cells up to which a place is one byte."""
TABLE_BYTES = 8 * SMALL


# ------------------------------------------------------------------------------------------ maxima


@inline
def _max_across(out, line, count, kw, dilation, step):
    for j in range(count):
        out[j] = line[j * step]
    for s in range(1, kw):
        for j in range(count):
            v, top = line[j * step + s * dilation], out[j]
            out[j] = v if (v > top) | (v != v) else top


def _max_pool(name: str, dtype: Any, lowest: Any) -> Handwritten:
    def max_pool(args, lo, hi, worker):
        """out[p, i, j] = the largest x of the window (i, j) of plane p, for rows p * oh + i.

        A nan is larger than everything. Slots 0 to 25 (2 and 3 unused) as the module says. Items
        are rows of out. Reads each row of x kh / stride times, writes each item once. Fast where
        w is contiguous and its stride 1 or 2. Not checked: that each window has a cell inside.
        """
        h, w = load_i64(args, 9), load_i64(args, 10)
        oh, ow = load_i64(args, 11), load_i64(args, 12)
        kh, kw, step = load_i64(args, 13), load_i64(args, 14), load_i64(args, 16)
        dh, dw, adaptive = load_i64(args, 19), load_i64(args, 20), load_i64(args, 21)
        x, x_h, x_w = load_i64(args, 1), load_i64(args, 7), load_i64(args, 8)
        tile, columns = load_i64(args, 24), load_i64(args, 25)
        buffer = load_i64(args, 22) + worker * load_i64(args, 23)
        line = items_at(buffer, 0, dtype)
        spare = items_at(buffer, columns * item_size(dtype), dtype)
        j0 = 0
        while j0 < ow:
            count = min(tile, ow - j0)
            left, right = columns_of(args, j0, j0 + count)
            begin, end = max(left, 0), min(right, w)
            for k in range(begin - left):
                line[k] = lowest
            for k in range(end - left, right - left):
                line[k] = lowest
            best = items_at(buffer, (begin - left) * item_size(dtype), dtype)
            for item in range(lo, hi):
                i = item % oh
                first = first_cell(i, load_i64(args, 15), load_i64(args, 17), adaptive, h, oh)
                r0, r1 = cells_inside(first, cell_count(i, kh, adaptive, h, oh), dh, h)
                offset = plane_offset(args, item // oh) + first * x_h + begin * x_w
                for r in range(r0, r1):
                    row = contiguous_row(x, offset + r * dh * x_h, x_w, end - begin, spare, dtype)
                    if r == r0:
                        for k in range(end - begin):
                            best[k] = row[k]
                    else:
                        for k in range(end - begin):
                            v, top = row[k], best[k]
                            best[k] = v if (v > top) | (v != v) else top
                out = items_at(load_i64(args, 0), (item * ow + j0) * item_size(dtype), dtype)
                if adaptive == 0 and step == 1:
                    _max_across(out, line, count, kw, dw, 1)
                elif adaptive == 0 and step == 2:
                    _max_across(out, line, count, kw, dw, 2)
                else:
                    for j in range(count):
                        at = first_cell(j0 + j, step, load_i64(args, 18), adaptive, w, ow) - left
                        top = line[at]
                        for s in range(1, cell_count(j0 + j, kw, adaptive, w, ow)):
                            v = line[at + s * dw]
                            top = v if (v > top) | (v != v) else top
                        out[j] = top
            j0 += count

    return named(name, max_pool)


@inline
def _replaces(v, code, top, at):
    """Whether v at place ``code`` is the maximum rather than ``top`` at place ``at``: the first of
    equals, but the last nan."""
    return (v > top) | ((v == top) & (code < at)) | ((v != v) & ((top == top) | (code > at)))


@inline
def _place_across(out, places, line, codes, count, kw, dilation, step):
    for j in range(count):
        out[j] = line[j * step]
        places[j] = codes[j * step]
    for s in range(1, kw):
        for j in range(count):
            v, code = line[j * step + s * dilation], np.int32(codes[j * step + s * dilation] + s)
            top, place = out[j], places[j]  # loads that depend on a branch would not be vectors
            replace = _replaces(v, code, top, place)
            out[j] = v if replace else top
            places[j] = code if replace else place


def _max_pool_places(name: str, dtype: Any, lowest: Any) -> Handwritten:
    def max_pool_places(args, lo, hi, worker):
        """``max_pool``, and places[p, i, j] = where in its window the maximum is.

        It is the first of equals, and the last nan. Slots, items and all else as ``max_pool``; 2
        places, uint8 or (slot 3) int32, as out. Writes 1 or 4 bytes more an item.
        """
        h, w = load_i64(args, 9), load_i64(args, 10)
        oh, ow = load_i64(args, 11), load_i64(args, 12)
        kh, kw, step = load_i64(args, 13), load_i64(args, 14), load_i64(args, 16)
        dh, dw, adaptive = load_i64(args, 19), load_i64(args, 20), load_i64(args, 21)
        x, x_h, x_w = load_i64(args, 1), load_i64(args, 7), load_i64(args, 8)
        tile, columns = load_i64(args, 24), load_i64(args, 25)
        buffer = load_i64(args, 22) + worker * load_i64(args, 23)
        line = items_at(buffer, 0, dtype)
        spare = items_at(buffer, columns * item_size(dtype), dtype)
        ints = buffer + 2 * columns * item_size(dtype)
        codes, places = items_at(ints, 0, np.int32), items_at(ints, 4 * columns, np.int32)
        j0 = 0
        while j0 < ow:
            count = min(tile, ow - j0)
            left, right = columns_of(args, j0, j0 + count)
            begin, end = max(left, 0), min(right, w)
            for k in range(begin - left):
                line[k] = lowest
                codes[k] = kh * kw  # behind every cell inside, also where that is the lowest
            for k in range(end - left, right - left):
                line[k] = lowest
                codes[k] = kh * kw
            best = items_at(buffer, (begin - left) * item_size(dtype), dtype)
            best_codes = items_at(ints, 4 * (begin - left), np.int32)
            for item in range(lo, hi):
                i = item % oh
                first = first_cell(i, load_i64(args, 15), load_i64(args, 17), adaptive, h, oh)
                r0, r1 = cells_inside(first, cell_count(i, kh, adaptive, h, oh), dh, h)
                offset = plane_offset(args, item // oh) + first * x_h + begin * x_w
                for r in range(r0, r1):
                    row = contiguous_row(x, offset + r * dh * x_h, x_w, end - begin, spare, dtype)
                    code = np.int32(r * kw)
                    if r == r0:
                        for k in range(end - begin):
                            best[k] = row[k]
                            best_codes[k] = code
                    else:
                        for k in range(end - begin):
                            v, top, place = row[k], best[k], best_codes[k]
                            replace = (v > top) | (v != v)
                            best[k] = v if replace else top
                            best_codes[k] = code if replace else place
                out = items_at(load_i64(args, 0), (item * ow + j0) * item_size(dtype), dtype)
                if adaptive == 0 and step == 1:
                    _place_across(out, places, line, codes, count, kw, dw, 1)
                elif adaptive == 0 and step == 2:
                    _place_across(out, places, line, codes, count, kw, dw, 2)
                else:
                    for j in range(count):
                        at = first_cell(j0 + j, step, load_i64(args, 18), adaptive, w, ow) - left
                        top, place = line[at], codes[at]
                        for s in range(1, cell_count(j0 + j, kw, adaptive, w, ow)):
                            v, code = line[at + s * dw], np.int32(codes[at + s * dw] + s)
                            replace = _replaces(v, code, top, place)
                            top = v if replace else top
                            place = code if replace else place
                        out[j] = top
                        places[j] = place
                if load_i64(args, 3) != 0:
                    wide = items_at(load_i64(args, 2), 4 * (item * ow + j0), np.int32)
                    for j in range(count):
                        wide[j] = places[j]
                else:
                    narrow = items_at(load_i64(args, 2), item * ow + j0, np.uint8)
                    for j in range(count):
                        narrow[j] = places[j]
            j0 += count

    return named(name, max_pool_places)


max_pool_float32 = _max_pool("max_pool_float32", np.float32, -np.inf)
max_pool_float64 = _max_pool("max_pool_float64", np.float64, -np.inf)
max_pool_int32 = _max_pool("max_pool_int32", np.int32, -(2**31))
max_pool_int64 = _max_pool("max_pool_int64", np.int64, -(2**63))
max_pool_uint8 = _max_pool("max_pool_uint8", np.uint8, 0)
max_pool_places_float32 = _max_pool_places("max_pool_places_float32", np.float32, -np.inf)
max_pool_places_float64 = _max_pool_places("max_pool_places_float64", np.float64, -np.inf)
max_pool_places_int32 = _max_pool_places("max_pool_places_int32", np.int32, -(2**31))
max_pool_places_int64 = _max_pool_places("max_pool_places_int64", np.int64, -(2**63))
max_pool_places_uint8 = _max_pool_places("max_pool_places_uint8", np.uint8, 0)


# ------------------------------------------------------------------------------------------- places


@inline
def _place(args, k):
    """Place number k, of one or four bytes."""
    places = load_i64(args, 2)
    if load_i64(args, 3) != 0:
        return np.int64(as_int32(places)[k])
    return np.int64(as_uint8(places)[k])


@inline
def _cell(args, i, j, place):
    """(row, column) in the plane of a place of the window (i, j)."""
    h, w, oh, ow = load_i64(args, 9), load_i64(args, 10), load_i64(args, 11), load_i64(args, 12)
    kw, adaptive = load_i64(args, 14), load_i64(args, 21)
    row = first_cell(i, load_i64(args, 15), load_i64(args, 17), adaptive, h, oh)
    column = first_cell(j, load_i64(args, 16), load_i64(args, 18), adaptive, w, ow)
    return row + place // kw * load_i64(args, 19), column + place % kw * load_i64(args, 20)


@kernel()
def flat_places(args, lo, hi, worker):
    """out[p, i, j] = row * w + column of the place places[p, i, j], for rows p * oh + i.

    Slots: 0 out, int64; 2, 3, 9 to 21 as the module says. Items are rows of out. Reads 1 or 4
    bytes, writes 8 bytes an item. Not checked: places.
    """
    out, w = as_int64(load_i64(args, 0)), load_i64(args, 10)
    oh, ow = load_i64(args, 11), load_i64(args, 12)
    for item in range(lo, hi):
        for j in range(ow):
            k = item * ow + j
            row, column = _cell(args, item % oh, j, _place(args, k))
            out[k] = row * w + column


def _take_places(name: str, dtype: Any) -> Handwritten:
    def take_places(args, lo, hi, worker):
        """out[p, i, j] = x[p] at the place places[p, i, j] of the window, for rows p * oh + i.

        Slots 0 to 21 as the module says. Items are rows of out. Reads an item of x and 1 or 4
        bytes, writes an item an item of out. Not checked: places.
        """
        oh, ow = load_i64(args, 11), load_i64(args, 12)
        out, x = items_at(load_i64(args, 0), 0, dtype), load_i64(args, 1)
        x_h, x_w = load_i64(args, 7), load_i64(args, 8)
        for item in range(lo, hi):
            plane = plane_offset(args, item // oh)
            for j in range(ow):
                k = item * ow + j
                row, column = _cell(args, item % oh, j, _place(args, k))
                out[k] = items_at(x, plane + row * x_h + column * x_w, dtype)[0]

    return named(name, take_places)


def _add_places(name: str, dtype: Any) -> Handwritten:
    def add_places(args, lo, hi, worker):
        """out[p] = zeros (h, w) with v[p, i, j] added at places[p, i, j], for planes lo <= p < hi.

        The adjoint of ``take_places``. Slots 0 to 21 as the module says, 1 and 5 to 8 being v's.
        Items are planes, in each of which windows are added in order. Reads an item and 1 or 4
        bytes an item of v, writes an item an item of out once and one an item of v. Not checked:
        places.
        """
        h, w = load_i64(args, 9), load_i64(args, 10)
        oh, ow = load_i64(args, 11), load_i64(args, 12)
        kw, step, dh, dw = (
            load_i64(args, 14),
            load_i64(args, 16),
            load_i64(args, 19),
            load_i64(args, 20),
        )
        v, v_h, v_w = load_i64(args, 1), load_i64(args, 7), load_i64(args, 8)
        known = load_i64(args, 3) == 0 and load_i64(args, 21) == 0
        places, table = as_uint8(load_i64(args, 2)), as_int64(stack(TABLE_BYTES))
        if known:  # how far each place is from the first cell of its window
            for k in range(load_i64(args, 13) * kw):
                table[k] = k // kw * dh * w + k % kw * dw
        for p in range(lo, hi):
            out = items_at(load_i64(args, 0), p * h * w * item_size(dtype), dtype)
            for k in range(h * w):
                out[k] = 0
            for i in range(oh):
                offset, start = plane_offset(args, p) + i * v_h, (p * oh + i) * ow
                if known:
                    first = (i * load_i64(args, 15) - load_i64(args, 17)) * w - load_i64(args, 18)
                    for j in range(ow):
                        at = first + j * step + table[places[start + j]]
                        out[at] += items_at(v, offset + j * v_w, dtype)[0]
                else:
                    for j in range(ow):
                        row, column = _cell(args, i, j, _place(args, start + j))
                        out[row * w + column] += items_at(v, offset + j * v_w, dtype)[0]

    return named(name, add_places)


take_places_float32 = _take_places("take_places_float32", np.float32)
take_places_float64 = _take_places("take_places_float64", np.float64)
add_places_float32 = _add_places("add_places_float32", np.float32)
add_places_float64 = _add_places("add_places_float64", np.float64)


# ---------------------------------------------------------------------------------------- averages


@inline
def _share(args, i, axis):
    """What window i counts along axis 0 or 1: the divisor of a window is the product of both."""
    size, count, kernel_size = (
        load_i64(args, 9 + axis),
        load_i64(args, 11 + axis),
        load_i64(args, 13 + axis),
    )
    divisor, padding = load_i64(args, 26), load_i64(args, 17 + axis)
    if load_i64(args, 27) != 0:
        return divisor if axis == 0 else 1
    adaptive = load_i64(args, 21)
    first = first_cell(i, load_i64(args, 15 + axis), padding, adaptive, size, count)
    cells = cell_count(i, kernel_size, adaptive, size, count)
    if divisor != 0:
        return min(cells, size + padding - first)
    return min(first + cells, size) - max(first, 0)


@inline
def _sum_across(out, line, count, kw, step):
    for j in range(count):
        out[j] = line[j * step]
    for s in range(1, kw):
        for j in range(count):
            out[j] += line[j * step + s]


def _avg_pool(name: str, dtype: Any) -> Handwritten:
    def avg_pool(args, lo, hi, worker):
        """out[p, i, j] = sum of x over the window (i, j) of plane p / its divisor, rows p * oh + i.

        Slots 0, 1, 4 to 27 as the module says; dilation is 1. Items are rows of out. Sums rows,
        then columns, each in order. Reads each row of x kh / stride times, writes each item once.
        Fast where w is contiguous and its stride 1 or 2. Not checked: divisors that are 0.
        """
        h, w = load_i64(args, 9), load_i64(args, 10)
        oh, ow = load_i64(args, 11), load_i64(args, 12)
        kh, kw, step = load_i64(args, 13), load_i64(args, 14), load_i64(args, 16)
        adaptive = load_i64(args, 21)
        x, x_h, x_w = load_i64(args, 1), load_i64(args, 7), load_i64(args, 8)
        tile, columns = load_i64(args, 24), load_i64(args, 25)
        buffer = load_i64(args, 22) + worker * load_i64(args, 23)
        line = items_at(buffer, 0, dtype)
        spare = items_at(buffer, columns * item_size(dtype), dtype)
        shares = items_at(buffer, 2 * columns * item_size(dtype), dtype)
        j0 = 0
        while j0 < ow:
            count = min(tile, ow - j0)
            left, right = columns_of(args, j0, j0 + count)
            begin, end = max(left, 0), min(right, w)
            for k in range(begin - left):
                line[k] = 0
            for k in range(end - left, right - left):
                line[k] = 0
            for j in range(count):
                shares[j] = _share(args, j0 + j, 1)
            total = items_at(buffer, (begin - left) * item_size(dtype), dtype)
            for item in range(lo, hi):
                i = item % oh
                first = first_cell(i, load_i64(args, 15), load_i64(args, 17), adaptive, h, oh)
                r0, r1 = cells_inside(first, cell_count(i, kh, adaptive, h, oh), 1, h)
                offset = plane_offset(args, item // oh) + first * x_h + begin * x_w
                for r in range(r0, r1):
                    row = contiguous_row(x, offset + r * x_h, x_w, end - begin, spare, dtype)
                    if r == r0:
                        for k in range(end - begin):
                            total[k] = row[k]
                    else:
                        for k in range(end - begin):
                            total[k] += row[k]
                out = items_at(load_i64(args, 0), (item * ow + j0) * item_size(dtype), dtype)
                if adaptive == 0 and step == 1:
                    _sum_across(out, line, count, kw, 1)
                elif adaptive == 0 and step == 2:
                    _sum_across(out, line, count, kw, 2)
                else:
                    for j in range(count):
                        at = first_cell(j0 + j, step, load_i64(args, 18), adaptive, w, ow) - left
                        value = line[at]
                        for s in range(1, cell_count(j0 + j, kw, adaptive, w, ow)):
                            value += line[at + s]
                        out[j] = value
                share = dtype(_share(args, i, 0))
                for j in range(count):
                    out[j] = out[j] / (share * shares[j])
            j0 += count

    return named(name, avg_pool)


@inline
def _spread_by_two(line, parts, count, kw, zero):
    """line[2 * j + s] += parts[j] for 0 <= s < kw: two s at a time, which are whole vectors; of an
    odd kw the last one adds 0 to the column behind."""
    for t in range((kw + 1) // 2):
        both = 2 * t + 1 < kw
        for j in range(count):
            v = parts[j]
            line[2 * (j + t)] += v
            line[2 * (j + t) + 1] += v if both else zero


def _avg_pool_adjoint(name: str, dtype: Any) -> Handwritten:
    def avg_pool_adjoint(args, lo, hi, worker):
        """out[p] = sum over windows of g[p, i, j] / its divisor on each of its cells, for planes p.

        The adjoint of ``avg_pool``. Slots as there, 1 and 5 to 8 being g's, 0 out (h, w) a plane.
        Items are planes, in each of which rows of windows are added in order. Reads each item of g
        once, and reads and writes each row of out kh / stride times. Not checked: divisors.
        """
        h, w = load_i64(args, 9), load_i64(args, 10)
        oh, ow = load_i64(args, 11), load_i64(args, 12)
        kh, kw, step = load_i64(args, 13), load_i64(args, 14), load_i64(args, 16)
        adaptive = load_i64(args, 21)
        g, g_h, g_w = load_i64(args, 1), load_i64(args, 7), load_i64(args, 8)
        tile, columns = load_i64(args, 24), load_i64(args, 25)
        buffer = load_i64(args, 22) + worker * load_i64(args, 23)
        line = items_at(buffer, 0, dtype)
        parts = items_at(buffer, 2 * columns * item_size(dtype), dtype)
        shares = items_at(buffer, (2 * columns + tile) * item_size(dtype), dtype)
        for p in range(lo, hi):
            out = items_at(load_i64(args, 0), p * h * w * item_size(dtype), dtype)
            for k in range(h * w):
                out[k] = 0
        j0 = 0
        while j0 < ow:
            count = min(tile, ow - j0)
            left, right = columns_of(args, j0, j0 + count)
            begin, end = max(left, 0), min(right, w)
            inner = items_at(buffer, (begin - left) * item_size(dtype), dtype)
            for j in range(count):
                shares[j] = _share(args, j0 + j, 1)
            for item in range(lo * oh, hi * oh):
                p, i = item // oh, item % oh
                first = first_cell(i, load_i64(args, 15), load_i64(args, 17), adaptive, h, oh)
                r0, r1 = cells_inside(first, cell_count(i, kh, adaptive, h, oh), 1, h)
                share, offset = (
                    dtype(_share(args, i, 0)),
                    plane_offset(args, p) + i * g_h + j0 * g_w,
                )
                for j in range(count):
                    parts[j] = items_at(g, offset + j * g_w, dtype)[0] / (share * shares[j])
                for k in range(right - left):
                    line[k] = 0
                if adaptive == 0 and step == 1:
                    for s in range(kw):
                        for j in range(count):
                            line[j + s] += parts[j]
                elif adaptive == 0 and step == 2:
                    _spread_by_two(line, parts, count, kw, dtype(0))
                else:
                    for j in range(count):
                        at = first_cell(j0 + j, step, load_i64(args, 18), adaptive, w, ow) - left
                        for s in range(cell_count(j0 + j, kw, adaptive, w, ow)):
                            line[at + s] += parts[j]
                for r in range(r0, r1):
                    to = ((p * h + first + r) * w + begin) * item_size(dtype)
                    row = items_at(load_i64(args, 0), to, dtype)
                    for k in range(end - begin):
                        row[k] += inner[k]
            j0 += count

    return named(name, avg_pool_adjoint)


avg_pool_float32 = _avg_pool("avg_pool_float32", np.float32)
avg_pool_float64 = _avg_pool("avg_pool_float64", np.float64)
avg_pool_adjoint_float32 = _avg_pool_adjoint("avg_pool_adjoint_float32", np.float32)
avg_pool_adjoint_float64 = _avg_pool_adjoint("avg_pool_adjoint_float64", np.float64)
