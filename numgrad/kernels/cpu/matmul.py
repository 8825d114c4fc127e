"""Matrix products on the CPU: ``out[b] = x[b] @ y[b] (+ bias) (+ out[b])``, any strides.

Floats follow Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008), in
the form of BLIS: blocks of ``y`` (KC × NC) are packed into panels of NR columns, blocks of ``x``
(MC × KC) into panels of MR rows, and a micro-kernel keeps an MR × NR tile of ``out`` in registers.
Transposed operands differ in packing only. Where rows of ``y`` are contiguous the first tile of a
panel reads them in place and writes the panel, so that packing costs no pass of its own. Whole
tiles without an epilogue go from the registers to ``out``, others through :func:`finish`. With few
columns, or few rows and contiguous columns of ``y``, inner products along ``k`` leave no lane idle.

Which order an element's products are added in depends on m, n, k and the strides of the operands
alone, never on the items a worker is given: the result has the same bits for any number of workers.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import njit

from ..native import load_i64, stack, store_i64
from ..store import kernel
from . import vector as v
from .row_products import CHUNK, CHUNK_BYTES, row_product
from .subroutine import subroutine
from .tile import (
    DIRECT_ROWS,
    DOT_COLUMNS,
    DOT_ROWS,
    EPILOGUE_BYTES,
    KC,
    MC,
    MR,
    NC,
    TILE_BYTES,
    VECTORS,
    dots,
    finish,
    pack,
    part_bytes,
    tile_direct_keeping,
    tile_direct_to,
    tile_narrow_to,
    tile_packed_keeping,
    tile_packed_to,
    up,
    write_epilogue,
)
from .vector import for_this_cpu


class Slots(NamedTuple):
    """The int64 slots of a product, in order. Strides count elements and may be 0 or negative."""

    m: int
    n: int
    k: int
    x: int
    x_row: int
    x_column: int
    y: int
    y_row: int
    y_column: int
    out: int
    out_row: int
    out_column: int
    batch: int
    x_batch: int
    y_batch: int
    out_batch: int
    bias: int
    """Address of n elements added to every row, or 0."""
    beta: int
    """1: add to what ``out`` holds; 0: overwrite it, whatever it holds."""
    workspace: int
    workspace_bytes: int
    """Bytes of workspace for each worker, as :func:`plan` says; worker w owns the w-th part."""
    items: int
    """The number of items :func:`plan` says."""


DIRECT_VECTORS = 16
"""Vectors of columns up to which rows of x, no more than DIRECT_MOST, are read in place where they
would not fit on the stack when packed: getting workspace costs more than that saves."""
DIRECT_MOST = 2 * MC
FEW = 12
"""Columns, or rows, up to which inner products along contiguous operands are quicker."""
ITEM = 16
"""Rows or columns in one item."""
STACK_BYTES = 147456
"""Workspace up to this size is on the kernel's own stack."""
PARALLEL_MIN = 1 << 20
"""Multiplications above which a product is worth several threads, where an element that is read or
written counts as ELEMENT_COST of them."""
ELEMENT_COST = 8


class Plan(NamedTuple):
    """How a product is split."""

    items: int
    workspace_bytes: int
    """For each worker, whatever the strides; integers need none."""
    parallel: bool
    """Whether it is worth several threads."""
    rows_bytes: int
    """Workspace where rows of out are contiguous."""
    in_place_bytes: int
    """Workspace where rows of out and of x are contiguous."""


@functools.lru_cache(1024)
def plan(m: int, n: int, k: int, batch: int, itemsize: int) -> Plan:
    """How a product is split.

    An item is a strip of at most 16 rows or columns of the longer side of one matrix of the batch,
    or the whole matrix where the batch is large. Give every worker one contiguous range of items:
    what a strip needs of the other operand is packed once a range.
    """
    if not m * n * batch:
        return Plan(0, 0, False, 0, 0)
    items = batch if batch >= 64 else batch * -(-max(m, n) // ITEM)
    nr = VECTORS * v.lanes_of(itemsize)
    depth = up(min(k, KC), 16)
    if min(m, n) == 1:
        rows = either = _workspace_bytes(k * itemsize)
    else:
        rows, columns = [
            _workspace_bytes(_block_elements(*shape, depth, nr) * itemsize)
            for shape in ((m, n), (n, m))
        ]
        either = max(rows, columns)
    work = m * n * k + ELEMENT_COST * (m * k + k * n + m * n)
    parallel = batch * work >= PARALLEL_MIN
    few = n <= DIRECT_VECTORS * v.lanes_of(itemsize) and m <= DIRECT_MOST
    in_place = min(m, n) > 1 and (few or n <= 2 * nr)
    return Plan(items, either, parallel, rows, 0 if in_place else rows)


def _workspace_bytes(nbytes):
    """What of it the caller brings."""
    size = part_bytes(nbytes)
    return 0 if size <= STACK_BYTES else size


def _block_elements(m, n, depth, nr):
    columns = nr if m <= MC else up(min(n, NC), nr)
    return depth * (min(m, MC) + MR + columns) + 2 * 16


# ------------------------------------------------------------------------------------- blocks


@subroutine
def _gemm_block(
    t, k, i0, i1, j0, j1, x, x0, x_row, x_column, y, y0, y_row, y_column,
    out, o0, out_row, out_column, epilogue, bias_row, bias_column, beta, workspace,
):  # fmt: skip
    """Rows [i0, i1) and columns [j0, j1) of one product."""
    size = v.lanes(t)
    nr = VECTORS * size
    tile = stack(TILE_BYTES)
    bytes_ = v.itemsize(t)
    depths = v.greatest(1, (k + KC - 1) // KC)
    depth = ((k + depths - 1) // depths + 15) // 16 * 16
    rows = i1 - i0
    # `plan` gives bytes by these conditions: what is packed fits the stack, or x stays in place.
    room = rows <= MC and (depth * (rows + MR + nr) + 32) * bytes_ < STACK_BYTES
    direct_x = not room and j1 - j0 <= DIRECT_VECTORS * size and rows <= DIRECT_MOST
    direct_x = x_column == 1 and (direct_x or j1 - j0 <= 2 * nr)
    block = DIRECT_MOST if direct_x else MC
    single = i1 - i0 <= block
    panels_y = workspace
    if not direct_x:
        panels_y += (depth * (v.least(i1 - i0, MC) + MR) + 16) * bytes_
        panels_y = (panels_y + 63) // 64 * 64
    for jc in range(j0, j1, NC):
        je = v.least(jc + NC, j1)
        for p0 in range(0, v.greatest(k, 1), v.greatest(depth, 1)):
            kc = v.least(depth, k - p0)
            add_out = beta or p0 > 0
            now = epilogue if p0 + depth >= k else 0
            for ic in range(i0, i1, block):
                ie = v.least(ic + block, i1)
                # Rows from ``low`` on are done in tiles of DIRECT_ROWS, so that few are empty.
                low = ic
                if not direct_x:
                    low, fewest = ie, (ie - ic + MR - 1) // MR * MR
                    for count in range(1, MR):
                        rest = v.greatest(ie - ic - count * DIRECT_ROWS, 0)
                        rows = count * DIRECT_ROWS + (rest + MR - 1) // MR * MR
                        if rows < fewest:
                            low, fewest = ic + rest, rows
                low_at = (low - ic + MR - 1) // MR * MR
                if not direct_x:
                    i, at = ic, 0
                    while i < ie:
                        high, stop = MR, low
                        if i >= low:
                            high, stop = DIRECT_ROWS, ie
                        rows = v.least(high, stop - i)
                        pack(
                            t, x, x0 + i * x_row + p0 * x_column, x_row, x_column,
                            rows, kc, high, workspace, at * kc,
                        )  # fmt: skip
                        i += rows
                        at += high
                for j in range(jc, je, nr):
                    columns = v.least(nr, je - j)
                    panel = 0 if single else (j - jc) * kc
                    b, b_at, b_row = panels_y, panel, nr
                    keeps = 0
                    if ic == i0:
                        if y_column == 1 and columns == nr:
                            # The first tile packs what it reads.
                            b, b_at, b_row = y, y0 + p0 * y_row + j, y_row
                            keeps = 1
                        else:
                            pack(
                                t, y, y0 + p0 * y_row + j * y_column, y_column, y_row,
                                columns, kc, nr, panels_y, panel,
                            )  # fmt: skip
                    i = ic
                    while i < ie:
                        high, first, stop, at = MR, ic, low, 0
                        if i >= low:
                            high, first, stop, at = DIRECT_ROWS, low, ie, low_at
                        start = i - (i - first) % high
                        at += start - first
                        rows = v.least(start + high, stop) - i
                        if columns <= size:
                            rows = v.least(rows, DIRECT_ROWS)
                        if direct_x:
                            a, a_at, along, step = x, x0 + i * x_row + p0 * x_column, x_row, 1
                        else:
                            a, a_at, along, step = workspace, at * kc + i - start, 1, high
                        out_at = o0 + i * out_row + j * out_column
                        c, c_at, c_row, add = tile, 0, nr, 0
                        whole = rows == high and columns == nr and out_column == 1 and now == 0
                        if whole:
                            c, c_at, c_row, add = out, out_at, out_row, add_out
                        if columns <= size:
                            tile_narrow_to(
                                t, a, a_at, along, step, rows, b, b_at, b_row, kc,
                                c, c_at, c_row, add, tile, 0, 0,
                            )  # fmt: skip
                        elif high == DIRECT_ROWS:
                            if keeps:
                                tile_direct_keeping(
                                    t, a, a_at, along, step, rows, b, b_at, b_row, kc,
                                    c, c_at, c_row, add, panels_y, panel, nr,
                                )  # fmt: skip
                            else:
                                tile_direct_to(
                                    t, a, a_at, along, step, rows, b, b_at, b_row, kc,
                                    c, c_at, c_row, add, tile, 0, 0,
                                )  # fmt: skip
                        elif keeps:
                            tile_packed_keeping(
                                t, a, a_at, along, step, rows, b, b_at, b_row, kc,
                                c, c_at, c_row, add, panels_y, panel, nr,
                            )  # fmt: skip
                        else:
                            tile_packed_to(
                                t, a, a_at, along, step, rows, b, b_at, b_row, kc,
                                c, c_at, c_row, add, tile, 0, 0,
                            )  # fmt: skip
                        if not whole:
                            finish(
                                t, tile, nr, rows, columns, out, out_at, out_row, out_column,
                                add_out, now, i * bias_row + j * bias_column, 0,
                            )  # fmt: skip
                        i += rows
                        if keeps:
                            b, b_at, b_row, keeps = panels_y, panel, nr, 0


@subroutine
def _dots_block(
    t, k, i0, i1, j0, j1, x, x0, x_row, x_column, y, y0, y_row, y_column,
    out, o0, out_row, out_column, epilogue, bias_row, bias_column, beta, workspace,
):  # fmt: skip
    """The same where rows of x are contiguous: inner products, for few columns, or few rows and
    contiguous columns of y. Nothing is packed but columns of y that are not contiguous."""
    size = v.lanes(t)
    nr = VECTORS * size
    tile = stack(TILE_BYTES)
    for p0 in range(0, k, KC):
        kc = v.least(KC, k - p0)
        add_out = beta or p0 > 0
        now = epilogue if p0 + KC >= k else 0
        for j in range(j0, j1, nr):
            columns = v.least(nr, j1 - j)
            b, b_at, b_column = y, y0 + p0 * y_row + j * y_column, y_column
            if y_row != 1:
                pack(t, y, b_at, y_row, y_column, kc, columns, KC, workspace, 0)
                b, b_at, b_column = workspace, 0, KC
            for i in range(i0, i1, DOT_ROWS):
                rows = v.least(DOT_ROWS, i1 - i)
                for c in range(0, columns, DOT_COLUMNS):
                    dots(
                        t, x, x0 + i * x_row + p0, x_row, rows, b, b_at + c * b_column, b_column,
                        v.least(DOT_COLUMNS, columns - c), kc, tile, c, nr,
                    )  # fmt: skip
                finish(
                    t, tile, nr, rows, columns, out, o0 + i * out_row + j * out_column,
                    out_row, out_column, add_out, now, i * bias_row + j * bias_column, 0,
                )  # fmt: skip


# ------------------------------------------------------------------------------------ integers


@subroutine
def _integer_block(
    t, k, i0, i1, j0, j1, x, x0, x_row, x_column, y, y0, y_row, y_column,
    out, o0, out_row, out_column, bias, bias_row, bias_column, beta, workspace,
):  # fmt: skip
    """Rows [i0, i1) and columns [j0, j1) of one product of integers.

    Sums are of int64 for every element type: cut to fewer bits they are what they would have been.
    """
    sums = stack(CHUNK_BYTES)
    for i in range(i0, i1):
        for c in range(j0, j1, CHUNK):
            count = v.least(CHUNK, j1 - c)
            for j in range(count):
                store_i64(sums, j, 0)
            for p in range(k):
                factor = v.get_integer(t, x, x0 + i * x_row + p * x_column)
                at = y0 + p * y_row + c * y_column
                if y_column == 1:
                    for j in range(count):
                        value = v.get_integer(t, y, at + j)
                        store_i64(sums, j, load_i64(sums, j) + factor * value)
                else:
                    for j in range(count):
                        value = v.get_integer(t, y, at + j * y_column)
                        store_i64(sums, j, load_i64(sums, j) + factor * value)
            for j in range(count):
                value = load_i64(sums, j)
                place = o0 + i * out_row + (c + j) * out_column
                if bias:
                    value += v.get_integer(t, bias, i * bias_row + (c + j) * bias_column)
                if beta:
                    value += v.get_integer(t, out, place)
                v.put_integer(t, out, place, value)


# ------------------------------------------------------------------------------------- kernels


def _driver(row, block, few, floats):
    """The body of a kernel: read the slots, find the strips of the items, do them."""

    @njit(inline="always")
    def run(t, args, lo, hi, worker):
        m, n, k = load_i64(args, 0), load_i64(args, 1), load_i64(args, 2)
        x, x_row, x_column = load_i64(args, 3), load_i64(args, 4), load_i64(args, 5)
        y, y_row, y_column = load_i64(args, 6), load_i64(args, 7), load_i64(args, 8)
        out, out_row, out_column = load_i64(args, 9), load_i64(args, 10), load_i64(args, 11)
        batch = load_i64(args, 12)
        x_batch, y_batch, out_batch = load_i64(args, 13), load_i64(args, 14), load_i64(args, 15)
        bias, beta = load_i64(args, 16), load_i64(args, 17)
        workspace_bytes = load_i64(args, 19)
        workspace = stack(STACK_BYTES)
        if workspace_bytes:
            workspace = load_i64(args, 18) + worker * workspace_bytes
        items = load_i64(args, 20) // batch
        bias_row, bias_column = 0, 1
        if m > 1 and (n == 1 or (out_row == 1 and out_column != 1)):
            m, n = n, m
            x, y = y, x
            x_batch, y_batch = y_batch, x_batch
            x_row, x_column, y_row, y_column = y_column, y_row, x_column, x_row
            out_row, out_column = out_column, out_row
            bias_row, bias_column = 1, 0
        if floats:
            bias = write_epilogue(stack(EPILOGUE_BYTES), 0, bias, bias_column, 0, 0, 1, 0)
        side = v.greatest(m, n)
        # Not by what belongs to this worker: its sums must be those of any other.
        dots = floats and x_column == 1 and k > 0 and k % v.lanes(t) == 0
        dots = dots and (n <= FEW if m >= n else m <= FEW and y_row == 1)
        while lo < hi:
            b = lo // items
            stop = v.least(hi, (b + 1) * items)
            first, last = 0, side
            if items > 1:
                first, last = (lo - b * items) * ITEM, v.least((stop - b * items) * ITEM, side)
            i0, i1, j0, j1 = 0, m, 0, n
            if m >= n:
                i0, i1 = first, last
            else:
                j0, j1 = first, last
            if m == 1:
                row(
                    t, k, i0, i1, j0, j1, x, b * x_batch, x_row, x_column,
                    y, b * y_batch, y_row, y_column, out, b * out_batch, out_row, out_column,
                    bias, bias_row, bias_column, beta, workspace,
                )  # fmt: skip
            elif dots:
                few(
                    t, k, i0, i1, j0, j1, x, b * x_batch, x_row, x_column,
                    y, b * y_batch, y_row, y_column, out, b * out_batch, out_row, out_column,
                    bias, bias_row, bias_column, beta, workspace,
                )  # fmt: skip
            else:
                block(
                    t, k, i0, i1, j0, j1, x, b * x_batch, x_row, x_column,
                    y, b * y_batch, y_row, y_column, out, b * out_batch, out_row, out_column,
                    bias, bias_row, bias_column, beta, workspace,
                )  # fmt: skip
            lo = stop

    return run


_floats = _driver(row_product, _gemm_block, _dots_block, True)
_integers = _driver(_integer_block, _integer_block, _integer_block, False)


@for_this_cpu
def gemm_float32(args, lo, hi, worker):
    """``out[b, i, j] = sum_p x[b, i, p] * y[b, p, j] (+ bias[j]) (+ out[b, i, j])``, float32.

    Args: the address of the int64 :class:`Slots`. Items are those of :func:`plan`, and so are the
    bytes of workspace a worker needs: which of the three depends on whether rows of x and of out
    are contiguous, and 0 means that the kernel's own stack will do. Any split of [0, items) into
    ranges gives the same bits.

    Strides: any, for each of x, y and out: 0, negative, of the batch too. Fastest where one of the
    two strides of each operand is 1. No element of out may be reached twice.

    Not checked: addresses, shapes, that out overlaps neither x, y nor bias, that the workspace is
    there and no other worker's. k may be 0; where m, n or the batch is 0 there are no items.

    Reads the strip's rows or columns of one operand once (of x, once for every 2048 of n, or once a
    panel of columns where it is read in place), the other operand once a range, and out with beta 1
    or where k > KC. Writes out once for every KC of k.

    Rounding: products are added in order of p, by FMA where there is one, in partial sums of up to
    KC; where m or n is 1 all in order, and where m or n is no more than FEW and k is whole vectors
    of contiguous operands, each lane of a vector for itself.
    The error is within that of any order: ``(k + 2) · eps/2 · (|x| @ |y| + |bias| + |out|)``.
    """
    _floats(np.float32(0), args, lo, hi, worker)


@for_this_cpu
def gemm_float64(args, lo, hi, worker):
    """As :func:`gemm_float32`, in float64."""
    _floats(np.float64(0), args, lo, hi, worker)


@kernel()
def matmul_int32(args, lo, hi, worker):
    """``out[b] = x[b] @ y[b] (+ bias) (+ out[b])`` modulo 2³², int32.

    Slots, items and what is not checked are as for :func:`gemm_float32`; there is no workspace.
    """
    _integers(np.int32(0), args, lo, hi, worker)


@kernel()
def matmul_int64(args, lo, hi, worker):
    """As :func:`matmul_int32`, modulo 2⁶⁴."""
    _integers(np.int64(0), args, lo, hi, worker)


@kernel()
def matmul_uint8(args, lo, hi, worker):
    """As :func:`matmul_int32`, modulo 2⁸."""
    _integers(np.uint8(0), args, lo, hi, worker)


KERNELS = {
    "float32": gemm_float32,
    "float64": gemm_float64,
    "int32": matmul_int32,
    "int64": matmul_int64,
    "uint8": matmul_uint8,
}
"""The kernel of each element type."""
