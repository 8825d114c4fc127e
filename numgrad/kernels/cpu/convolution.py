"""Convolution on the CPU as implicit matrix products: no matrix of patches is ever made.

A convolution is ``out = w @ patches`` for each image and group: rows are output channels, columns
are output pixels, and the depth runs over input channels and taps. It is blocked as in
``numgrad.kernels.cpu.matmul``; the panels of patches are filled straight from the image, a block of
channels and a strip of pixels at a time (M. Dukhan, "The indirect convolution algorithm", 2019,
discusses the alternatives). The gradient of the weight is the product ``g @ patches.T``; that of
the input is again a convolution (``numgrad.kernels.convolution``).

The order in which an element's products are added depends on shapes alone: the result has the same
bits for any number of workers.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from ..native import load_i64, stack
from . import slots
from . import vector as v
from .patches import epilogue_of, read_patches
from .tile import (
    DIRECT_ROWS,
    EPILOGUE_BYTES,
    MR,
    TILE_BYTES,
    VECTORS,
    finish,
    pack,
    tile_direct,
    tile_narrow,
    tile_packed,
)
from .vector import for_this_cpu, subroutine

DEPTH_BLOCK = 384
"""Products of one element that are added in registers at a time, rounded to whole channels."""
ROW_BLOCK = 16 * MR
"""Rows of w that are packed at a time; they stay in L2."""
PANEL_ELEMENTS = 384 * DEPTH_BLOCK
"""Patches that are packed at a time; they stay in L2."""
STRIP_ROWS = 16
PIXEL_BLOCK = 256
"""Pixels that the gradient of a weight adds up in registers at a time."""
PATCH_ROWS = 288
"""Rows of patches that it holds at a time, rounded to whole channels."""
PATCH_WIDTH = PIXEL_BLOCK + 16
"""Elements from one such row to the next: not a power of two, which would share cache sets."""


VECTOR_SLACK = 64
"""Packing writes up to one vector past a panel."""


class Plan(NamedTuple):
    """How a convolution is split: the slots of the same names."""

    workspace_bytes: int
    offset_1: int
    offset_2: int
    channels: int
    chunk: int
    strips: int
    by_pixels: int


def plan(rows: int, depth: int, taps: int, pixels: int, itemsize: int) -> Plan:
    """The plan of a convolution by ``convolution_*``; items are ``groups * strips``."""
    nr = VECTORS * v.lanes_of(itemsize)
    by_pixels = pixels >= rows
    strips = -(-pixels // nr) if by_pixels else -(-rows // STRIP_ROWS)
    # The blocks of the depth are whole channels, and of nearly equal size.
    blocks = -(-depth // max(1, DEPTH_BLOCK // max(taps, 1)))
    channels = -(-depth // max(blocks, 1)) or 1
    block = channels * taps
    chunk = max(1, PANEL_ELEMENTS // max(block, DEPTH_BLOCK) // nr) * nr
    panels = _parts(_up(min(rows, ROW_BLOCK), MR) * block * itemsize)
    patches = _parts(block * min(chunk, _up(pixels, nr)) * itemsize)
    return Plan(panels + patches, panels, 0, channels, chunk, strips, int(by_pixels))


def plan_weight(rows: int, depth: int, taps: int, itemsize: int) -> Plan:
    """The plan of ``convolution_weight_*``; items are the channels of x."""
    nr = VECTORS * v.lanes_of(itemsize)
    channels = max(1, min(depth, PATCH_ROWS // taps))
    gradient = _parts(_up(rows, MR) * PIXEL_BLOCK * itemsize)
    patches = gradient + _parts(channels * taps * PATCH_WIDTH * itemsize)
    whole = patches + _parts(PIXEL_BLOCK * nr * itemsize)
    return Plan(whole, gradient, patches, channels, PIXEL_BLOCK, depth, 0)


def _up(value: int, multiple: int) -> int:
    return (value + multiple - 1) // multiple * multiple


def _parts(nbytes: int) -> int:
    """The bytes of a part of the workspace: whole cache lines, with room for one vector more."""
    return _up(nbytes + VECTOR_SLACK, 64)


# ---------------------------------------------------------------------------------------- packing w


@subroutine
def _pack_weights(t, args, group, i, count, c0, c1, flat, target, at):
    """A panel of w: ``target[at + p * MR + q] = w[group, i + q]`` at place p of channels and taps.

    ``flat`` is the stride of p where there is one, else 0.
    """
    w, w_row, w_c = load_i64(args, slots.W), load_i64(args, slots.W_ROW), load_i64(args, slots.W_C)
    w_r, w_s = load_i64(args, slots.W_R), load_i64(args, slots.W_S)
    taps_h, taps_w = load_i64(args, slots.TAPS_H), load_i64(args, slots.TAPS_W)
    start = group * load_i64(args, slots.W_GROUP) + i * w_row + c0 * w_c
    if flat:
        pack(t, w, start, w_row, flat, count, (c1 - c0) * taps_h * taps_w, MR, target, at)
    else:
        p = at
        for c in range(c1 - c0):
            for r in range(taps_h):
                for s in range(taps_w):
                    source = start + c * w_c + r * w_r + s * w_s
                    for q in range(count):
                        v.put(target, p + q, v.get(t, w, source + q * w_row))
                    p += MR


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


# ----------------------------------------------------------------------------------- writing out


@subroutine
def _finish_pixels(t, args, tile, width, rows, group, k, p, columns, add_out, epilogue):
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
        beside = n * load_i64(args, slots.RESIDUAL_N) + channel * load_i64(args, slots.RESIDUAL_C)
        finish(
            t, tile + q * size, width, rows, length, load_i64(args, slots.OUT), at,
            load_i64(args, slots.OUT_C), out_w, add_out, epilogue, channel,
            beside + i * residual_h + j * residual_w,
        )  # fmt: skip
        q += length
        place += length
        if place == area:
            place = 0
            n += 1


# ------------------------------------------------------------------------------------ convolution


@subroutine
def _convolution_block(t, args, group, k0, k1, p0, p1, workspace, epilogue):
    """Rows [k0, k1) and pixels [p0, p1) of one group."""
    nr = VECTORS * v.lanes(t)
    tile = stack(TILE_BYTES)
    depth = load_i64(args, slots.DEPTH)
    taps = load_i64(args, slots.TAPS_H) * load_i64(args, slots.TAPS_W)
    w, w_row = load_i64(args, slots.W), load_i64(args, slots.W_ROW)
    flat = _flat_stride(args)
    direct = flat == 1 and p1 - p0 <= 2 * nr
    channels, chunk = load_i64(args, slots.CHANNELS), load_i64(args, slots.CHUNK)
    panels = workspace + load_i64(args, slots.OFFSET_1)
    for pc in range(p0, p1, chunk):
        pe = v.least(pc + chunk, p1)
        for c0 in range(0, v.greatest(depth, 1), channels):
            c1 = v.least(c0 + channels, depth)
            kc = (c1 - c0) * taps
            now = epilogue if c1 == depth else 0
            for ic in range(k0, k1, ROW_BLOCK):
                ie = v.least(ic + ROW_BLOCK, k1)
                if not direct:
                    for i in range(ic, ie, MR):
                        count = v.least(MR, ie - i)
                        at = (i - ic) * kc
                        _pack_weights(t, args, group, i, count, c0, c1, flat, workspace, at)
                for p in range(pc, pe, nr):
                    columns = v.least(nr, pe - p)
                    b_at = (p - pc) * kc
                    if ic == k0:
                        read_patches(t, args, group, c0, c1, p, columns, panels, b_at, nr)
                    for i in range(ic, ie, MR):
                        stop = v.least(i + MR, ie)
                        panel = (i - ic) * kc
                        r = i
                        while r < stop:
                            rows = stop - r
                            a, a_at, along, step = workspace, panel + r - i, 1, MR
                            if direct:
                                a_at = group * load_i64(args, slots.W_GROUP) + r * w_row + c0 * taps
                                a, along, step = w, w_row, 1
                            if columns <= v.lanes(t):
                                rows = v.least(rows, DIRECT_ROWS)
                                tile_narrow(
                                    t, a, a_at, along, step, rows, panels, b_at, nr, kc, tile
                                )
                            elif direct or rows <= DIRECT_ROWS:
                                rows = v.least(rows, DIRECT_ROWS)
                                tile_direct(
                                    t, a, a_at, along, step, rows, panels, b_at, nr, kc, tile
                                )
                            else:
                                tile_packed(
                                    t, a, a_at, along, step, rows, panels, b_at, nr, kc, tile
                                )
                            _finish_pixels(
                                t, args, tile, nr, rows, group, r, p, columns, c0 > 0, now
                            )
                            r += rows


@njit(inline="always")
def _convolution(t, args, lo, hi, worker):
    nr = VECTORS * v.lanes(t)
    epilogue = epilogue_of(args, stack(EPILOGUE_BYTES))
    workspace = load_i64(args, slots.WORKSPACE) + worker * load_i64(args, slots.WORKSPACE_BYTES)
    strips, rows = load_i64(args, slots.STRIPS), load_i64(args, slots.ROWS)
    pixels = (
        load_i64(args, slots.IMAGES)
        * load_i64(args, slots.OUT_HEIGHT)
        * load_i64(args, slots.OUT_WIDTH)
    )
    while lo < hi:
        group = lo // strips
        stop = v.least(hi, (group + 1) * strips)
        first, last = lo - group * strips, stop - group * strips
        k0, k1, p0, p1 = 0, rows, 0, pixels
        if load_i64(args, slots.BY_PIXELS):
            p0, p1 = first * nr, v.least(last * nr, pixels)
        else:
            k0, k1 = first * STRIP_ROWS, v.least(last * STRIP_ROWS, rows)
        _convolution_block(t, args, group, k0, k1, p0, p1, workspace, epilogue)
        lo = stop


@for_this_cpu
def convolution_float32(args, lo, hi, worker):
    """``out[n, k, i, j] = e(sum_{c, r, s} w[k, c, r, s] * x[n, c, i·stride + r·dilation - padding, …])``
    with the epilogue ``e(a) = clamp(a · scale[k] + shift[k] + residual[n, k, i, j])``, float32.

    Args: the address of the int64 :class:`~numgrad.kernels.cpu.slots.Slots`, the last of them from
    :func:`plan`. Items are ``groups * strips``; any split into ranges gives the same bits.

    Strides: any, for every operand. Fastest where x has stride 1 or 2 from one output column to the
    next, where channels and taps of w are contiguous, and where the columns of out are contiguous.
    No element of out may be reached twice.

    Not checked: addresses, shapes, overlap of out with anything. depth or taps may be 0: then the
    sum is 0. Without pixels or rows there are no items.

    Reads x once for each tap and strip of rows, w once for each block of pixels of a worker, out
    again for every DEPTH_BLOCK products; writes out as often.

    Rounding: products are added in order of (c, r, s), by FMA where there is one, in partial sums
    of up to DEPTH_BLOCK.
    """  # noqa: E501
    _convolution(np.float32(0), args, lo, hi, worker)


@for_this_cpu
def convolution_float64(args, lo, hi, worker):
    """As :func:`convolution_float32`, in float64."""
    _convolution(np.float64(0), args, lo, hi, worker)


# --------------------------------------------------------------------------- gradient of the weight


@subroutine
def _pack_gradient(t, args, group, k, count, p, pixels, target, at):
    """A panel of out (here: the incoming gradient): ``target[at + q * MR + i]`` is channel k + i of
    the group at pixel p + q."""
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
        pack(t, g, start, g_c, g_w, count, length, MR, target, at + q * MR)
        q += length


@subroutine
def _weight_block(t, args, group, c0, c1, workspace):
    """The channels [c0, c1) of one group's dw."""
    nr = VECTORS * v.lanes(t)
    tile = stack(TILE_BYTES)
    rows = load_i64(args, slots.ROWS)
    taps = load_i64(args, slots.TAPS_H) * load_i64(args, slots.TAPS_W)
    w, w_row = load_i64(args, slots.W), load_i64(args, slots.W_ROW)
    pixels = (
        load_i64(args, slots.IMAGES)
        * load_i64(args, slots.OUT_HEIGHT)
        * load_i64(args, slots.OUT_WIDTH)
    )
    start = group * load_i64(args, slots.W_GROUP) + c0 * taps
    columns = (c1 - c0) * taps
    patches = workspace + load_i64(args, slots.OFFSET_1)
    panel = workspace + load_i64(args, slots.OFFSET_2)
    for p in range(0, v.greatest(pixels, 1), PIXEL_BLOCK):
        kc = v.least(PIXEL_BLOCK, pixels - p)
        for i in range(0, rows, MR):
            _pack_gradient(t, args, group, i, v.least(MR, rows - i), p, kc, workspace, i * kc)
        read_patches(t, args, group, c0, c1, p, kc, patches, 0, PATCH_WIDTH)
        for q in range(0, columns, nr):
            count = v.least(nr, columns - q)
            pack(t, patches, q * PATCH_WIDTH, PATCH_WIDTH, 1, count, kc, nr, panel, 0)
            for i in range(0, rows, MR):
                stop = v.least(i + MR, rows)
                r = i
                while r < stop:
                    todo = stop - r
                    a_at = i * kc + r - i
                    if count <= v.lanes(t):
                        todo = v.least(todo, DIRECT_ROWS)
                        tile_narrow(t, workspace, a_at, 1, MR, todo, panel, 0, nr, kc, tile)
                    elif todo <= DIRECT_ROWS:
                        tile_direct(t, workspace, a_at, 1, MR, todo, panel, 0, nr, kc, tile)
                    else:
                        tile_packed(t, workspace, a_at, 1, MR, todo, panel, 0, nr, kc, tile)
                    finish(
                        t, tile, nr, todo, count, w, start + r * w_row + q, w_row, 1,
                        p > 0, 0, 0, 0,
                    )  # fmt: skip
                    r += todo


@njit(inline="always")
def _weight(t, args, lo, hi, worker):
    depth, block = load_i64(args, slots.DEPTH), load_i64(args, slots.CHANNELS)
    workspace = load_i64(args, slots.WORKSPACE) + worker * load_i64(args, slots.WORKSPACE_BYTES)
    while lo < hi:
        group = lo // depth
        c0 = lo - group * depth
        c1 = v.least(v.least(c0 + block, depth), hi - group * depth)
        _weight_block(t, args, group, c0, c1, workspace)
        lo = group * depth + c1


@for_this_cpu
def convolution_weight_float32(args, lo, hi, worker):
    """``w[k, c, r, s] = sum_{n, i, j} out[n, k, i, j] * x[n, c, i·stride + r·dilation - padding, …]``,
    float32: the gradient of a weight from that of the result, which stands in the slots of ``out``.

    Args: the address of the int64 :class:`~numgrad.kernels.cpu.slots.Slots`, the last of them from
    :func:`plan_weight`; the epilogue is not used. Items are the ``groups * depth`` channels of x.

    Strides: any for x and out; channels and taps of w are contiguous. Fastest where the columns of
    out and x are.

    Not checked: addresses, shapes, that w overlaps nothing. Without pixels the sums are 0.

    Reads out once for each block of PATCH_ROWS rows of patches, x once for each tap; reads and
    writes w once for every PIXEL_BLOCK pixels.

    Rounding: products are added in order of (n, i, j), in partial sums of up to PIXEL_BLOCK.
    """  # noqa: E501
    _weight(np.float32(0), args, lo, hi, worker)


@for_this_cpu
def convolution_weight_float64(args, lo, hi, worker):
    """As :func:`convolution_weight_float32`, in float64."""
    _weight(np.float64(0), args, lo, hi, worker)
