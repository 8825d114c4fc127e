"""The gradient of a convolution's input on the CPU, where columns of x are two strides apart.

Places of out that agree modulo the stride, a *phase*, use the same taps of w, and are a convolution
of g (here: x) with those. All phases read the same *window* around a place of g, so that what a
tile of places reads is packed once for all of them (``numgrad.kernels.cpu.convolution`` would do a
phase at a time), and two phases that alternate in a row of out are written together.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from ..native import load_i64, stack, store_i64
from . import slots
from . import vector as v
from .convolution import (
    BLOCK_ROWS,
    CUTS_BYTES,
    KEEPS,
    RUN_BYTES,
    _first_row,
    _panel_at,
    _rows_of,
)
from .indirect import product_keeping, product_narrow, product_packed, product_strided
from .patches import chunk_of, cut_tile, pack_tile, part_of, read_frame, write_table
from .subroutine import subroutine
from .tile import DIRECT_ROWS, MR, VECTORS, pack
from .vector import for_this_cpu

OUT_ROWS = len(slots.Slots._fields)
OUT_COLUMNS, PHASES, FIRST = OUT_ROWS + 1, OUT_ROWS + 2, OUT_ROWS + 3
"""What follows the slots: the size of an image of out, the number of phases, the number of taps
before each phase and in all; then the place in the window of each tap, phase by phase; then the
place in w of each."""
PLACE_BYTES = 16 * 16


@intrinsic
def interleave_some(typingctx, base, index, a, b, count):
    """``base[index + 2 * i] = a[i]``, ``base[index + 2 * i + 1] = b[i]``: the first ``count``."""

    def codegen(context, builder, signature, args):
        base_, index_, a_, b_, count_ = args
        lanes, t = a_.type.count, a.element
        start = builder.gep(v.pointer(builder, base_, v.element_type(t)), [index_])
        for half in range(2):
            numbers = [half * lanes // 2 + i // 2 + i % 2 * lanes for i in range(lanes)]
            value = builder.shuffle_vector(a_, b_, v.lane_numbers(numbers))
            rest = builder.sub(count_, v.i64(half * lanes))
            place = builder.bitcast(
                builder.gep(start, [v.i64(half * lanes)]), value.type.as_pointer()
            )
            mask = v._lanes_between(builder, value.type, v.i64(0), rest)
            builder.call(
                v._masked(builder, "store", value.type),
                [value, place, ir.Constant(v.I32, t.bitwidth // 8), mask],
            )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, a, b, types.int64), codegen


@intrinsic
def transpose_placed(typingctx, t, source, start, along, valid, target, at, places, k, count):
    """Write the transpose of a square block, a vector wide: ``count`` lanes of row p of it at
    ``target[at + places[2 * p] + k * places[2 * p + 1]]``."""

    def codegen(context, builder, signature, args):
        _, source_, start_, along_, valid_, target_, at_, places_, k_, count_ = args
        type_, align = v.vector_type(t), t.bitwidth // 8
        first = builder.gep(v.pointer(builder, source_, v.element_type(t)), [start_])
        last = builder.sub(valid_, v.i64(1))
        rows = []
        for w in range(type_.count):
            row = builder.select(builder.icmp_signed("<", v.i64(w), last), v.i64(w), last)
            place = builder.gep(first, [builder.mul(row, along_)])
            rows.append(v.load_vector(builder, place, type_, align))
        first = builder.gep(v.pointer(builder, target_, v.element_type(t)), [at_])
        table = v.pointer(builder, places_, v.I64)
        mask = v._lanes_between(builder, type_, v.i64(0), count_)
        store = v._masked(builder, "store", type_)
        for p, row in enumerate(v.transpose_values(builder, rows)):
            base = builder.load(builder.gep(table, [v.i64(2 * p)]))
            step = builder.load(builder.gep(table, [v.i64(2 * p + 1)]))
            place = builder.gep(first, [builder.add(base, builder.mul(step, k_))])
            place = builder.bitcast(place, type_.as_pointer())
            builder.call(store, [row, place, ir.Constant(v.I32, align), mask])
        return context.get_dummy_value()

    return types.void(t, *[types.int64] * 9), codegen


# ---------------------------------------------------------------------------------------- packing w


@njit(inline="always")
def _pack_transposed(t, args, lo, hi, worker):
    w, w_row, w_c = load_i64(args, slots.W), load_i64(args, slots.W_ROW), load_i64(args, slots.W_C)
    depth, target = load_i64(args, slots.DEPTH), load_i64(args, slots.PACKED)
    phases, size = load_i64(args, PHASES), v.lanes(t)
    taps, places = load_i64(args, FIRST + phases), stack(PLACE_BYTES)
    windows = FIRST + phases + 1
    for item in range(lo, hi):
        group, tile, width, count, start = _rows_of(args, item)
        at = _panel_at(t, args, group, tile, depth * taps)
        if taps == 1:
            pack(t, w, start, w_row, w_c, count, depth, width, target, at)
        blocks = (taps + size - 1) // size if taps > 1 else 0
        for block in range(blocks * ((count + size - 1) // size)):
            q = block // blocks * size
            u0 = (block - q // size * blocks) * size
            valid = v.least(size, count - q)
            for u in range(size):  # what is no tap goes between the panels
                store_i64(places, 2 * u, depth * taps * width)
                store_i64(places, 2 * u + 1, 0)
            for f in range(phases):
                before = load_i64(args, FIRST + f)
                own = load_i64(args, FIRST + f + 1) - before
                for tap in range(own):
                    u = load_i64(args, windows + taps + before + tap) - u0
                    if 0 <= u and u < size:
                        store_i64(places, 2 * u, (before * depth + tap) * width + q)
                        store_i64(places, 2 * u + 1, own * width)
            from_ = start + q * w_row + u0
            for k in range(depth - 1):  # a square may reach beyond the last
                transpose_placed(
                    t, w, from_ + k * w_c, w_row, valid, target, at, places, k, valid
                )  # fmt: skip
            for u in range(v.least(size, taps - u0)):
                place = load_i64(places, 2 * u) + (depth - 1) * load_i64(places, 2 * u + 1)
                for r in range(valid):
                    value = v.get(t, w, from_ + (depth - 1) * w_c + r * w_row + u)
                    v.put(target, at + place + r, value)


@for_this_cpu
def pack_transposed_float32(args, lo, hi, worker):
    """Panels of w for ``transposed_float32``: ``[phase][k][tap][row]`` for the rows of a tile, k of
    the depth and the taps of a phase, at ``packed``, with one vector between them.

    Items are the panels, ``row_tiles`` of each group. w is contiguous as (depth, rows, taps) of
    all groups, with a vector or more of rows. Taps of a phase are in the order of their places in
    the window.
    """
    _pack_transposed(np.float32(0), args, lo, hi, worker)


@for_this_cpu
def pack_transposed_float64(args, lo, hi, worker):
    """As :func:`pack_transposed_float32`, in float64."""
    _pack_transposed(np.float64(0), args, lo, hi, worker)


# -------------------------------------------------------------------------------------- convolution


@subroutine
def _finish_phases(t, args, tile, rows, channel, p, columns):
    """Write the tiles of all phases, ``BLOCK_ROWS`` rows from one to the next: ``columns`` places
    from p on."""
    th, tw = load_i64(args, slots.OUT_HEIGHT), load_i64(args, slots.OUT_WIDTH)
    out, out_c, out_h = (
        load_i64(args, slots.OUT), load_i64(args, slots.OUT_C), load_i64(args, slots.OUT_H),
    )  # fmt: skip
    height, width = load_i64(args, OUT_ROWS), load_i64(args, OUT_COLUMNS)
    down, nr, shift = load_i64(args, PHASES) >> 1, VECTORS * v.lanes(t), load_i64(args, slots.SHIFT)
    n = p // (th * tw)
    i = (p - n * th * tw) // tw
    j = p - (n * th + i) * tw
    q = 0
    while q < columns:
        length = v.least(tw - j, columns - q)
        there = n * load_i64(args, slots.OUT_N) + i * down * out_h + 2 * j
        lines, valid = v.least(down, height - i * down), v.least(2 * length, width - 2 * j)
        for r in range(rows):
            for a in range(lines):
                at, source = there + (channel + r) * out_c + a * out_h, 2 * a * BLOCK_ROWS + r
                for c in range(0, length, v.lanes(t)):
                    even = v.load(t, tile, source * nr + q + c)
                    odd = v.load(t, tile, (source + BLOCK_ROWS) * nr + q + c)
                    if shift:
                        term = v.splat(v.get(t, shift, channel + r))
                        even, odd = v.add(even, term), v.add(odd, term)
                    interleave_some(out, at + 2 * c, even, odd, valid - 2 * c)
        q += length
        j = 0
        i += 1
        if i == th:
            i = 0
            n += 1


@subroutine
def _phase_products(
    t, args, group, tile, phase, c0, c1, b, tables, columns, sums, at, fresh, cuts, panel
):
    """The sums of a phase for a tile of rows at ``sums[at]``: channels [c0, c1) added to them. What
    has no taps is 0, and is already unless ``fresh``. With ``cuts`` the phase has all taps of the
    window, b is the frame with its table, and a panel is written (``indirect.product_keeping``)."""
    depth, rows = load_i64(args, slots.DEPTH), load_i64(args, slots.ROWS)
    phases = load_i64(args, PHASES)
    taps, before = load_i64(args, FIRST + phases), load_i64(args, FIRST + phase)
    own = load_i64(args, FIRST + phase + 1) - before
    row, kc = _first_row(args, tile), (c1 - c0) * own
    step, todo = _first_row(args, tile + 1) - row, v.least(_first_row(args, tile + 1), rows) - row
    a, nr = load_i64(args, slots.PACKED), VECTORS * v.lanes(t)
    a_at = _panel_at(t, args, group, tile, depth * taps) + (before * depth + c0 * own) * step
    table = tables
    if cuts == 0:
        table += 8 * load_i64(args, slots.FRAME_CHANNELS) * before
    if kc <= 0:
        if fresh:
            for q in range(0, MR * nr, v.lanes(t)):
                v.store(sums, at + q, v.splat(t))
    elif cuts:
        product_keeping(
            t, a, a_at, 1, step, todo, b, 0, table, kc, cuts, panel, sums, at, nr, sums, at, c0
        )
    elif columns <= v.lanes(t):
        for r in range(0, todo, DIRECT_ROWS):
            product_narrow(
                t, a, a_at + r, 1, step, v.least(todo - r, DIRECT_ROWS), b, 0, table, kc, 0, 0,
                sums, at + r * nr, nr, sums, at + r * nr, c0,
            )  # fmt: skip
    elif step == DIRECT_ROWS:
        product_strided(
            t, a, a_at, 1, step, todo, b, 0, table, kc, 0, 0, sums, at, nr, sums, at, c0
        )
    else:
        product_packed(t, a, a_at, 1, step, todo, b, 0, table, kc, 0, 0, sums, at, nr, sums, at, c0)


@subroutine
def _transposed_block(t, args, group, chunk, t0, t1, workspace, tables):
    """Tiles [t0, t1) of the rows of one group, and one chunk of places."""
    nr, runs, cuts = VECTORS * v.lanes(t), stack(RUN_BYTES), stack(CUTS_BYTES)
    depth, channels = load_i64(args, slots.DEPTH), load_i64(args, slots.FRAME_CHANNELS)
    taps = load_i64(args, slots.TAPS_H) * load_i64(args, slots.TAPS_W)
    n0, i0, j0, images, rows, columns = chunk_of(args, chunk)
    first = (n0 * load_i64(args, slots.OUT_HEIGHT) + i0) * load_i64(args, slots.OUT_WIDTH) + j0
    panel, sums = workspace + load_i64(args, slots.PANELS), workspace + load_i64(args, slots.SUMS)
    phases, in_place = load_i64(args, PHASES), load_i64(args, slots.IN_PLACE)
    places, held, full = images * rows * columns, 0, -1
    for f in range(phases):
        if load_i64(args, FIRST + f + 1) - load_i64(args, FIRST + f) == taps:
            full = f  # its taps are those of the window, in the same order
    if channels < depth:  # the sums of all tiles wait for the next block of channels
        held = phases * BLOCK_ROWS * nr
    for c0 in range(0, v.greatest(depth, 1), v.greatest(channels, 1)):
        c1 = v.least(c0 + channels, depth)
        channel = group * depth + c0
        frame, start = workspace + load_i64(args, slots.FRAMES), 0
        if in_place:
            frame, start = load_i64(args, slots.X), n0 * load_i64(args, slots.X_N)
            start += i0 * load_i64(args, slots.X_H) + j0 + channel * load_i64(args, slots.X_C)
        else:
            read_frame(t, args, channel, c1 - c0, n0, images, i0, rows, j0, columns, frame)
        for q in range(0, places, nr):
            count = v.least(nr, places - q)
            keeps = 0
            if KEEPS and count == nr and full >= 0 and c0 < c1:
                if _first_row(args, t0 + 1) - _first_row(args, t0) == MR:
                    cut_tile(t, args, start, q, rows, columns, runs, cuts)
                    keeps = load_i64(cuts, 3 * VECTORS)
            if keeps == 0:
                pack_tile(
                    t, args, frame, start, q, rows, columns, count, workspace, (c1 - c0) * taps, nr,
                    runs, panel, 0,
                )  # fmt: skip
            for tile in range(t0, t1):
                at = (q // nr * (t1 - t0) + tile - t0) * held
                row = _first_row(args, tile)
                todo = v.least(_first_row(args, tile + 1), load_i64(args, slots.ROWS)) - row
                channel = group * load_i64(args, slots.ROWS) + row
                if keeps and tile == t0:
                    _phase_products(
                        t, args, group, tile, full, c0, c1, frame, workspace, count, sums,
                        at + full * BLOCK_ROWS * nr, 0, cuts, panel,
                    )  # fmt: skip
                for f in range(phases):
                    if f != full or keeps == 0 or tile > t0:
                        fresh = c0 == 0 and (held or (q == 0 and tile == t0))
                        _phase_products(
                            t, args, group, tile, f, c0, c1, panel, tables, count, sums,
                            at + f * BLOCK_ROWS * nr, fresh, 0, panel,
                        )  # fmt: skip
                if c1 == depth:
                    tile_sums = sums + at * v.itemsize(t)
                    _finish_phases(t, args, tile_sums, todo, channel, first + q, count)


@njit(inline="always")
def _transposed(t, args, lo, hi, worker):
    workspace = load_i64(args, slots.WORKSPACE) + worker * load_i64(args, slots.WORKSPACE_BYTES)
    channels, phases = load_i64(args, slots.FRAME_CHANNELS), load_i64(args, PHASES)
    window = load_i64(args, slots.TAPS_H) * load_i64(args, slots.TAPS_W)
    tables = workspace + 8 * channels * window
    write_table(args, workspace)
    for f in range(phases):
        before, after = load_i64(args, FIRST + f), load_i64(args, FIRST + f + 1)
        for c in range(channels):
            for tap in range(before, after):
                place = c * window + load_i64(args, FIRST + phases + 1 + tap)
                p = channels * before + c * (after - before) + tap - before
                store_i64(tables, p, place * VECTORS * v.lanes(t))
    while lo < hi:
        group, chunk, t0, t1, lo = part_of(args, lo, hi)
        _transposed_block(t, args, group, chunk, t0, t1, workspace, tables)


@for_this_cpu
def transposed_float32(args, lo, hi, worker):
    """``out[n, c, i·stride + r - padding, 2·j + s - padding] += sum_k w[k, c, r, s] * x[n, k, i, j]``
    from 0, ``+ shift[c]``, float32.

    Args: the address of the int64 :class:`~numgrad.kernels.cpu.slots.Slots` of a convolution of x with
    the window, whose out has a place for each stride, but with the strides of all of out, and of
    what ``OUT_ROWS`` tells. Items are ``groups * chunks * parts``; any split into ranges gives the same bits.

    Strides: any for x, best with columns 1 apart; columns of out are. ``packed`` is by
    ``pack_transposed_float32``.

    Not checked: addresses, shapes, overlap of out with anything; that x may be read in place. depth
    may be 0: then the sum is 0.

    Reads x once a chunk of each group, w once for every tile of places; writes out once.

    Rounding: products are added in order of k and of places in the window, by FMA where there is
    one, in partial sums of a block of k.
    """  # noqa: E501
    _transposed(np.float32(0), args, lo, hi, worker)


@for_this_cpu
def transposed_float64(args, lo, hi, worker):
    """As :func:`transposed_float32`, in float64."""
    _transposed(np.float64(0), args, lo, hi, worker)
