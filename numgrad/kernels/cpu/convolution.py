"""Convolution on the CPU as implicit matrix products: no matrix of patches is ever made.

A convolution is ``out = w @ patches`` for each group: rows are output channels, columns are output
pixels, and the depth runs over input channels and taps. It is done a *chunk* of pixels at a time.
What a chunk reads is copied with its padding into a *frame* that stays in L2
(``numgrad.kernels.cpu.patches``), or x is the frame itself; products read it through a table of
displacements (``indirect``), or, where many output channels pay for it, what a tile of pixels reads
is packed first. The gradient of the weight is the product ``patches @ gᵀ``; that of the input is
again a convolution (``numgrad.kernels.convolution``).

The order in which an element's products are added depends on shapes alone: the result has the same
bits for any number of workers.
"""

import numpy as np
from numba import njit

from ..native import load_i64, stack, store_i64
from . import slots
from . import vector as v
from .indirect import (
    product_keeping,
    product_narrow,
    product_packed,
    product_placed,
    product_placed_narrow,
    product_strided,
)
from .patches import (
    chunk_of,
    cut_tile,
    epilogue_of,
    pack_tile,
    part_of,
    read_frame,
    store_even_some,
    write_table,
)
from .subroutine import subroutine
from .tile import DIRECT_ROWS, EPILOGUE_BYTES, MR, VECTORS, finish, pack
from .vector import for_this_cpu

BLOCK_ROWS = 2 * DIRECT_ROWS
"""Rows of sums that are kept for a tile of rows of w: two of the smaller tiles."""
SQUARE_BYTES = 16 * 64
"""A square of float32, a vector wide."""
KEEPS = v.INSTRUCTION_SET == "avx512"
"""Whether the first tile of rows leaves the packed panel behind: masks are registers there."""
CUTS_BYTES = 8 * (3 * VECTORS + 1)
RUN_BYTES = 16 * VECTORS * 16
"""Two numbers a run of a tile: no tile has more columns than this has room for."""


# ---------------------------------------------------------------------------------------- packing w


@njit(inline="always")
def _flat_stride(args):
    """The stride of w along channels and taps taken as one axis, or 0 if they do not form one."""
    taps_h, taps_w = load_i64(args, slots.TAPS_H), load_i64(args, slots.TAPS_W)
    w_c, w_r, w_s = load_i64(args, slots.W_C), load_i64(args, slots.W_R), load_i64(args, slots.W_S)
    if taps_h * taps_w == 1:
        return w_c
    if taps_w == 1:
        w_s = w_r
    elif taps_h > 1 and w_r != taps_w * w_s:
        return 0
    if load_i64(args, slots.DEPTH) > 1 and w_c != taps_h * taps_w * w_s:
        return 0
    return w_s


@njit(inline="always")
def _first_row(args, tile):
    """The first row of a tile of rows of w: large ones come first."""
    large = load_i64(args, slots.LARGE)
    return v.least(tile, large) * MR + v.greatest(tile - large, 0) * DIRECT_ROWS


@njit(inline="always")
def _panel_at(t, args, group, tile, k):
    """Where the panel of a tile of rows is in packed w; k places of channels and taps."""
    large, tiles = load_i64(args, slots.LARGE), load_i64(args, slots.ROW_TILES)
    most, few = k * MR + v.lanes(t), k * DIRECT_ROWS + v.lanes(t)
    at = v.least(tile, large) * most + v.greatest(tile - large, 0) * few
    return at + group * (large * most + (tiles - large) * few)


@njit(inline="always")
def _rows_of(args, item):
    """Of a panel of w: its group, its tile of rows, how many rows that has and how many of them
    exist, and where the first begins in w."""
    panels = load_i64(args, slots.ROW_TILES)
    group = item // panels
    tile = item - group * panels
    i = _first_row(args, tile)
    width = _first_row(args, tile + 1) - i
    start = group * load_i64(args, slots.W_GROUP) + i * load_i64(args, slots.W_ROW)
    return group, tile, width, v.least(width, load_i64(args, slots.ROWS) - i), start


@njit(inline="always")
def _pack_weights(t, args, lo, hi, worker):
    w, w_row, w_c = load_i64(args, slots.W), load_i64(args, slots.W_ROW), load_i64(args, slots.W_C)
    w_r, w_s = load_i64(args, slots.W_R), load_i64(args, slots.W_S)
    taps_h, taps_w = load_i64(args, slots.TAPS_H), load_i64(args, slots.TAPS_W)
    depth, target = load_i64(args, slots.DEPTH), load_i64(args, slots.PACKED)
    k = depth * taps_h * taps_w
    flat = _flat_stride(args)
    for item in range(lo, hi):
        group, tile, width, count, start = _rows_of(args, item)
        at = _panel_at(t, args, group, tile, k)
        if flat:
            pack(t, w, start, w_row, flat, count, k, width, target, at)
        else:
            for c in range(depth):
                for r in range(taps_h):
                    for s in range(taps_w):
                        source = start + c * w_c + r * w_r + s * w_s
                        for q in range(count):
                            v.put(target, at + q, v.get(t, w, source + q * w_row))
                        at += width


@for_this_cpu
def pack_weights_float32(args, lo, hi, worker):
    """Panels of w for ``convolution_float32``: ``[p][row]`` for the rows of a tile and each place p
    of channels and taps, at ``packed``, with one vector between them.

    Items are the panels, ``row_tiles`` of each group. Strides of w: any; fastest where
    channels and taps are contiguous. What lies in rows that do not exist is not defined.
    """
    _pack_weights(np.float32(0), args, lo, hi, worker)


@for_this_cpu
def pack_weights_float64(args, lo, hi, worker):
    """As :func:`pack_weights_float32`, in float64."""
    _pack_weights(np.float64(0), args, lo, hi, worker)


# ----------------------------------------------------------------------------------- writing out


@subroutine
def _finish_pixels(t, args, tile, width, rows, group, k, p, columns, epilogue):
    """Write a tile: channels from ``k`` of the group, ``columns`` pixels from ``p`` on, which may
    lie in several rows and images of out."""
    oh, ow = load_i64(args, slots.OUT_HEIGHT), load_i64(args, slots.OUT_WIDTH)
    out_h, out_w = load_i64(args, slots.OUT_H), load_i64(args, slots.OUT_W)
    residual_h, residual_w = load_i64(args, slots.RESIDUAL_H), load_i64(args, slots.RESIDUAL_W)
    size = v.itemsize(t)
    area = oh * ow
    n = p // area
    place = p - n * area
    length, run = ow, ow
    if out_h == ow * out_w and (
        load_i64(args, slots.RESIDUAL) == 0 or residual_h == ow * residual_w
    ):  # the rows of an image are one
        run = area
    channel = group * load_i64(args, slots.ROWS) + k
    q = 0
    while q < columns:
        i = place // run
        j = place - i * run
        length = v.least(run - j, columns - q)
        at = (
            n * load_i64(args, slots.OUT_N)
            + channel * load_i64(args, slots.OUT_C)
            + i * out_h
            + j * out_w
        )
        out, out_c = load_i64(args, slots.OUT), load_i64(args, slots.OUT_C)
        if epilogue == 0 and out_w == 2:
            for r in range(rows):
                for c in range(0, length, v.lanes(t)):
                    value = v.load(t, tile, q + r * width + c)
                    store_even_some(out, at + r * out_c + 2 * c, value, length - c)
        elif epilogue == 0 and out_w == 1 and length == 2 * v.lanes(t):
            for r in range(rows):
                v.store(out, at + r * out_c, v.load(t, tile, r * width))
                second = v.load(t, tile, r * width + v.lanes(t))
                v.store(out, at + r * out_c + v.lanes(t), second)
        else:
            beside = n * load_i64(args, slots.RESIDUAL_N)
            beside += channel * load_i64(args, slots.RESIDUAL_C) + i * residual_h + j * residual_w
            finish(
                t, tile + q * size, width, rows, length, out, at, out_c, out_w, 0, epilogue,
                channel, beside,
            )  # fmt: skip
        q += length
        place += length
        if place == area:
            place = 0
            n += 1


@subroutine
def _finish_positions(t, args, tile, rows, group, k, p, columns, at, count, epilogue):
    """Write a tile whose columns are ``count`` places of the frame from ``at`` on, in a chunk with
    rows of ``columns`` pixels whose first is ``p``: those between rows are left out."""
    nr, pitch = VECTORS * v.lanes(t), load_i64(args, slots.FRAME_PITCH)
    i = at // pitch
    j = at - i * pitch
    q = 0
    while q < count:
        length = v.least(columns - j, count - q)
        if length > 0:
            where = p + i * load_i64(args, slots.OUT_WIDTH) + j
            _finish_pixels(
                t, args, tile + q * v.itemsize(t), nr, rows, group, k, where, length, epilogue
            )
        q += pitch - j
        j = 0
        i += 1


# ------------------------------------------------------------------------------------ convolution


@njit(inline="always")
def _straight(args, p, count, columns):
    """Where in out, for image 0 on, ``count`` pixels from p on lie side by side, or -1. ``columns``
    is how many of the row of p there may be."""
    oh, ow = load_i64(args, slots.OUT_HEIGHT), load_i64(args, slots.OUT_WIDTH)
    out_h, area = load_i64(args, slots.OUT_H), oh * ow
    n = p // area
    place = p - n * area
    run = area if out_h == ow and columns == ow else ow
    i = place // run
    j = place - i * run
    if load_i64(args, slots.OUT_W) != 1 or j + count > run:
        return -1
    return n * load_i64(args, slots.OUT_N) + i * out_h + j


@subroutine
def _products(
    t, args, group, tile, inner, todo, p, kc, b, b_at, table, columns, out, out_at, out_row,
    sums, at, add, cuts, panel,
):  # fmt: skip
    """Sums of kc products, from ``p`` on, of rows ``inner`` and on of a tile: to ``out[out_at]``,
    added to what is at ``sums[at]`` if ``add``. With ``cuts``, those of a tile, what is read is
    written to ``panel``."""
    a, along, step, row = load_i64(args, slots.PACKED), 1, MR, _first_row(args, tile)
    if a:
        k = load_i64(args, slots.TAPS_H) * load_i64(args, slots.TAPS_W)
        k *= load_i64(args, slots.DEPTH)
        step = _first_row(args, tile + 1) - row
        a_at = _panel_at(t, args, group, tile, k) + inner + p * step
    else:
        a, along, step = load_i64(args, slots.W), load_i64(args, slots.W_ROW), 1
        a_at = group * load_i64(args, slots.W_GROUP) + (row + inner) * along + p
    if kc <= 0:
        for q in range(0, todo * VECTORS * v.lanes(t), v.lanes(t)):
            v.store(sums, at + q, v.splat(t))
    elif cuts:
        product_keeping(
            t, a, a_at, along, step, todo, b, b_at, table, kc, cuts, panel, out, out_at, out_row,
            sums, at, add,
        )  # fmt: skip
    elif columns <= v.lanes(t):
        product_narrow(
            t, a, a_at, along, step, todo, b, b_at, table, kc, 0, 0, out, out_at, out_row,
            sums, at, add,
        )  # fmt: skip
    elif todo <= DIRECT_ROWS:
        product_strided(
            t, a, a_at, along, step, todo, b, b_at, table, kc, 0, 0, out, out_at, out_row,
            sums, at, add,
        )  # fmt: skip
    else:
        product_packed(
            t, a, a_at, along, step, todo, b, b_at, table, kc, 0, 0, out, out_at, out_row,
            sums, at, add,
        )  # fmt: skip


@subroutine
def _convolution_block(t, args, group, chunk, t0, t1, workspace, epilogue):
    """Tiles [t0, t1) of the rows of one group, and one chunk of pixels."""
    nr, runs, cuts = VECTORS * v.lanes(t), stack(RUN_BYTES), stack(CUTS_BYTES)
    rows_all, width = load_i64(args, slots.ROWS), load_i64(args, slots.OUT_WIDTH)
    depth, channels = load_i64(args, slots.DEPTH), load_i64(args, slots.FRAME_CHANNELS)
    taps = load_i64(args, slots.TAPS_H) * load_i64(args, slots.TAPS_W)
    pitch = load_i64(args, slots.FRAME_PITCH)
    n0, i0, j0, images, rows, columns = chunk_of(args, chunk)
    first = (n0 * load_i64(args, slots.OUT_HEIGHT) + i0) * width + j0
    panel, sums = workspace + load_i64(args, slots.PANELS), workspace + load_i64(args, slots.SUMS)
    ordered = workspace + 8 * channels * taps  # what a table says where a tile is packed
    in_place, direct = load_i64(args, slots.IN_PLACE), load_i64(args, slots.DIRECT)
    packed = load_i64(args, slots.PACKED)
    places = images * rows * columns
    if direct:
        places = (rows - 1) * pitch + columns
    together = load_i64(args, slots.TILES) * nr
    held = 0
    if channels < depth:  # the sums of all tiles wait for the next block of channels
        held = BLOCK_ROWS * nr
    for c0 in range(0, v.greatest(depth, 1), v.greatest(channels, 1)):
        c1 = v.least(c0 + channels, depth)
        kc, channel = (c1 - c0) * taps, group * depth + c0
        frame, start = workspace + load_i64(args, slots.FRAMES), 0
        if in_place:
            frame, start = load_i64(args, slots.X), n0 * load_i64(args, slots.X_N)
            start += i0 * load_i64(args, slots.X_H) + j0 + channel * load_i64(args, slots.X_C)
        else:
            read_frame(t, args, channel, c1 - c0, n0, images, i0, rows, j0, columns, frame)
        for q0 in range(0, places, together):
            q1 = v.least(q0 + together, places)
            for tile in range(t0, t1):
                row = _first_row(args, tile)
                tile_rows = v.least(_first_row(args, tile + 1), rows_all) - row
                for q in range(q0, q1, nr):
                    count = v.least(nr, places - q)
                    b, b_at, table, keeps = frame, start + q, workspace, 0
                    # What is read in place must not be read beyond its end.
                    if not direct or (in_place and count < nr):
                        if tile == t0 and KEEPS and packed and not direct and kc > 0:
                            if count == nr and _first_row(args, tile + 1) - row == MR:
                                cut_tile(t, args, start, q, rows, columns, runs, cuts)
                                keeps = load_i64(cuts, 3 * VECTORS)
                        here = 0 if direct else (q - q0) * kc
                        if keeps:
                            b_at, keeps = 0, cuts
                        else:
                            if tile == t0 or direct:
                                pack_tile(
                                    t, args, frame, start, q, rows, columns, count, workspace, kc,
                                    nr, runs, panel, here,
                                )  # fmt: skip
                            b, b_at, table = panel, here, ordered
                    place = -1  # where all of the tile may go without a detour
                    if c1 == depth and count == nr and kc > 0 and epilogue == 0:
                        if not direct:
                            place = _straight(args, first + q, nr, columns)
                        elif q % pitch + nr <= columns:
                            line = q // pitch
                            place = _straight(args, first + line * width + q % pitch, nr, 0)
                    at = (q // nr * (t1 - t0) + tile - t0) * held
                    inner = 0
                    while inner < tile_rows:
                        todo = tile_rows - inner
                        if count <= v.lanes(t):
                            todo = v.least(todo, DIRECT_ROWS)
                        out, out_at, out_row = sums, at, nr
                        if place >= 0 and (todo == DIRECT_ROWS or todo == MR):
                            out, out_row = load_i64(args, slots.OUT), load_i64(args, slots.OUT_C)
                            out_at = place + (group * rows_all + row + inner) * out_row
                        _products(
                            t, args, group, tile, inner, todo, c0 * taps, kc, b, b_at, table,
                            count, out, out_at, out_row, sums, at, c0, keeps,
                            panel + (q - q0) * kc * v.itemsize(t),
                        )  # fmt: skip
                        # At once: writing goes on during the next products.
                        if c1 == depth and out == sums:
                            part = sums + at * v.itemsize(t)
                            if direct:
                                _finish_positions(
                                    t, args, part, todo, group, row + inner, first, columns, q,
                                    count, epilogue,
                                )  # fmt: skip
                            else:
                                _finish_pixels(
                                    t, args, part, nr, todo, group, row + inner, first + q,
                                    count, epilogue,
                                )  # fmt: skip
                        at += todo * nr
                        inner += todo


@njit(inline="always")
def _convolution(t, args, lo, hi, worker):
    epilogue = epilogue_of(args, stack(EPILOGUE_BYTES))
    workspace = load_i64(args, slots.WORKSPACE) + worker * load_i64(args, slots.WORKSPACE_BYTES)
    k = (
        load_i64(args, slots.FRAME_CHANNELS)
        * load_i64(args, slots.TAPS_H)
        * load_i64(args, slots.TAPS_W)
    )
    write_table(args, workspace)
    for p in range(k):
        store_i64(workspace, k + p, p * VECTORS * v.lanes(t))
    while lo < hi:
        group, chunk, t0, t1, lo = part_of(args, lo, hi)
        _convolution_block(t, args, group, chunk, t0, t1, workspace, epilogue)


@for_this_cpu
def convolution_float32(args, lo, hi, worker):
    """``out[n, k, i, j] = e(sum_{c, r, s} w[k, c, r, s] * x[n, c, i·stride + r·dilation - padding, …])``
    with the epilogue ``e(a) = clamp(a · scale[k] + shift[k] + residual[n, k, i, j])``, float32.

    Args: the address of the int64 :class:`~numgrad.kernels.cpu.slots.Slots`, the last of them from
    ``convolution_plan.plan``. Items are ``groups * chunks * parts``; any split into ranges gives the same bits.

    Strides: any, for every operand; without ``packed``, channels and taps of w are contiguous.
    Fastest where x has stride 1 or 2 from one output column to the next, and where the columns of
    out are contiguous. No element of out may be reached twice.

    Not checked: addresses, shapes, overlap of out with anything; that x may be read in place.
    depth or taps may be 0: then the sum is 0. Without pixels or rows there are no items.

    Reads x once a chunk of each group, w once for every ``tiles`` tiles of pixels; writes out once.

    Rounding: products are added in order of (c, r, s), by FMA where there is one, in partial sums
    of a block of channels.
    """  # noqa: E501
    _convolution(np.float32(0), args, lo, hi, worker)


@for_this_cpu
def convolution_float64(args, lo, hi, worker):
    """As :func:`convolution_float32`, in float64."""
    _convolution(np.float64(0), args, lo, hi, worker)


# --------------------------------------------------------------------------- gradient of the weight


@subroutine
def _pack_gradient(t, args, group, k, count, p, pixels, target, at):
    """A panel of out (here: the incoming gradient): ``target[at + q * NR + i]`` is channel k + i of
    the group at pixel p + q."""
    nr = VECTORS * v.lanes(t)
    oh, ow = load_i64(args, slots.OUT_HEIGHT), load_i64(args, slots.OUT_WIDTH)
    g, g_c = load_i64(args, slots.OUT), load_i64(args, slots.OUT_C)
    g_h, g_w = load_i64(args, slots.OUT_H), load_i64(args, slots.OUT_W)
    area = v.greatest(oh * ow, 1)
    run = area if g_h == ow * g_w else ow
    channel = group * load_i64(args, slots.ROWS) + k
    q = 0
    while q < pixels:
        n = (p + q) // area
        place = p + q - n * area
        i = place // run
        j = place - i * run
        length = v.least(run - j, pixels - q)
        start = n * load_i64(args, slots.OUT_N) + channel * g_c + i * g_h + j * g_w
        pack(t, g, start, g_c, g_w, count, length, nr, target, at + q * nr)
        q += length


@subroutine
def _add_chunk(t, args, group, chunk, r0, r1, workspace, sums):
    """Add one chunk of pixels to the sums of rows [r0, r1) of channels and taps of a group."""
    nr, lanes = VECTORS * v.lanes(t), v.lanes(t)
    rows, pitch = load_i64(args, slots.ROWS), load_i64(args, slots.FRAME_PITCH)
    taps = load_i64(args, slots.TAPS_H) * load_i64(args, slots.TAPS_W)
    n, i, j, images, lines, columns = chunk_of(args, chunk)
    first = (n * load_i64(args, slots.OUT_HEIGHT) + i) * load_i64(args, slots.OUT_WIDTH) + j
    pixels = lines * columns
    panels = workspace + load_i64(args, slots.PANELS)
    frame, start = workspace + load_i64(args, slots.FRAMES), 0
    c0 = r0 // taps
    channel = group * load_i64(args, slots.DEPTH) + c0
    if load_i64(args, slots.IN_PLACE):
        frame = load_i64(args, slots.X)
        start = n * load_i64(args, slots.X_N) + channel * load_i64(args, slots.X_C)
        start += i * load_i64(args, slots.X_H) + j
    else:
        channels = (r1 - 1) // taps + 1 - c0
        read_frame(t, args, channel, channels, n, images, i, lines, j, columns, frame)
    for k in range(0, rows, nr):
        _pack_gradient(t, args, group, k, v.least(nr, rows - k), first, pixels, panels, k * pixels)
    for r in range(r0, r1, DIRECT_ROWS):
        todo, table = v.least(DIRECT_ROWS, r1 - r), workspace + 8 * (r - c0 * taps)
        for k in range(0, rows, nr):
            at = k * (r1 - r0 + DIRECT_ROWS) + (r - r0) * nr
            if rows - k <= lanes:
                product_placed_narrow(
                    t, frame, start, 0, 1, todo, panels, k * pixels, table, columns, lines,
                    pitch - columns, sums, at, nr, sums, at, 1,
                )  # fmt: skip
            else:
                product_placed(
                    t, frame, start, 0, 1, todo, panels, k * pixels, table, columns, lines,
                    pitch - columns, sums, at, nr, sums, at, 1,
                )  # fmt: skip


@subroutine
def _weight_block(t, args, group, r0, r1, workspace):
    """Rows [r0, r1) of channels and taps of one group's dw."""
    nr, size = VECTORS * v.lanes(t), v.lanes(t)
    rows = load_i64(args, slots.ROWS)
    sums, square = workspace + load_i64(args, slots.SUMS), stack(SQUARE_BYTES)
    below = r1 - r0 + DIRECT_ROWS  # rows of a panel of sums: whole tiles, from any end
    for q in range(0, (rows + nr - 1) // nr * nr * below, size):
        v.store(sums, q, v.splat(t))
    for chunk in range(load_i64(args, slots.CHUNKS)):
        _add_chunk(t, args, group, chunk, r0, r1, workspace, sums)
    w, w_row = load_i64(args, slots.W), load_i64(args, slots.W_ROW)
    start = group * load_i64(args, slots.W_GROUP)
    for k in range(0, rows, size):
        panel = k // nr * nr
        for r in range(r0, r1, size):
            at = panel * below + (r - r0) * nr + k - panel
            v.transpose(t, sums, at, nr, v.least(size, r1 - r), square, 0, size)
            for q in range(v.least(size, rows - k)):
                value = v.load(t, square, q * size)
                v.store_some(w, start + (k + q) * w_row + r, value, r1 - r)


@njit(inline="always")
def _weight(t, args, lo, hi, worker):
    parts, block = load_i64(args, slots.PARTS), load_i64(args, slots.TILES)
    k = load_i64(args, slots.DEPTH) * load_i64(args, slots.TAPS_H) * load_i64(args, slots.TAPS_W)
    workspace = load_i64(args, slots.WORKSPACE) + worker * load_i64(args, slots.WORKSPACE_BYTES)
    write_table(args, workspace)
    while lo < hi:
        group = lo // parts
        first = lo - group * parts
        last = v.least(v.least(first + block, parts), hi - group * parts)
        r1 = v.least(last * DIRECT_ROWS, k)
        _weight_block(t, args, group, first * DIRECT_ROWS, r1, workspace)
        lo = group * parts + last


@for_this_cpu
def convolution_weight_float32(args, lo, hi, worker):
    """``w[k, c, r, s] = sum_{n, i, j} out[n, k, i, j] * x[n, c, i·stride + r·dilation - padding, …]``,
    float32: the gradient of a weight from that of the result, which stands in the slots of ``out``.

    Args: the address of the int64 :class:`~numgrad.kernels.cpu.slots.Slots`, the last of them from
    ``convolution_plan.plan_weight``; the epilogue is not used. Items are the ``groups * parts``, DIRECT_ROWS
    channels and taps each.

    Strides: any for x and out; channels and taps of w are contiguous. Fastest where the columns of
    out are, and those of x that neighbours read are 1 or 2 apart.

    Not checked: addresses, shapes, that w overlaps nothing, that x may be read in place. Without
    pixels the sums are 0.

    Reads out once for every ``tiles`` items of a worker, x once for the channels of these; writes w
    once.

    Rounding: products are added in order of (n, i, j), in partial sums of a chunk.
    """  # noqa: E501
    _weight(np.float32(0), args, lo, hi, worker)


@for_this_cpu
def convolution_weight_float64(args, lo, hi, worker):
    """As :func:`convolution_weight_float32`, in float64."""
    _weight(np.float64(0), args, lo, hi, worker)
