"""The gradient of the weight of a stride-1 3×3 convolution by Winograd's F(4×4, 3×3).

It is the adjoint of ``winograd``: with the transformed inputs V and the transformed gradients
``A g Aᵀ`` of all tiles, ``dw = Gᵀ (Σ_tiles A g Aᵀ ⊗ V) G``, position by position a product over
tiles. Units are those of ``winograd``; a *part* is some of them, of which all is transformed at a
time, channel by channel, and then multiplied, a *group* of output channels and a panel of input
channels at a time.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from ..native import load_i64, stack
from . import vector as v
from .subroutine import subroutine
from .vector import for_this_cpu
from .winograd import PIXEL_SQUARE, place_of, read_pixels
from .winograd_tile import (
    COLUMNS,
    GRADIENT_ROWS,
    POSITIONS,
    TILE,
    gradient_transform,
    input_transform,
    product_over_tiles,
    weight_gradient_transform,
)

TRANSFORM, MULTIPLY = range(2)
"""The steps of a part."""

GROUP = 4
"""Vectors of output channels in a group."""
DEPTH = 256
"""Tiles that are added up at a time: those of a panel stay in L1."""


class Slots(NamedTuple):
    """The int64 slots, in order. Strides count elements; columns of x and g are contiguous."""

    step: int
    channels: int
    outputs: int
    height: int
    width: int
    out_height: int
    out_width: int
    padding_h: int
    padding_w: int
    x: int
    x_n: int
    x_c: int
    x_h: int
    g: int
    g_n: int
    g_c: int
    g_h: int
    w: int
    """Address of the C-contiguous gradient of the weight, (outputs, channels, 3, 3)."""
    add_out: int
    """1: add to what is there, from earlier parts."""
    segment: int
    segments: int
    tile_rows: int
    first_unit: int
    last_unit: int
    """The units of the part."""
    tiles: int
    """Their tiles, rounded up to whole vectors; those that do not exist are zeros."""
    inputs: int
    """Address of transformed inputs: (panel, tile, 2 pixels) a position."""
    input_position: int
    """Elements from one position to the next."""
    gradients: int
    """Address of transformed gradients: (vector of outputs, tile, pixel) a position."""
    gradient_position: int
    workspace: int
    workspace_bytes: int
    """Of each worker; worker w owns the w-th part."""


(
    STEP, CHANNELS, OUTPUTS, HEIGHT, WIDTH, OUT_HEIGHT, OUT_WIDTH, PADDING_H, PADDING_W,
    X, X_N, X_C, X_H, G, G_N, G_C, G_H, W, ADD_OUT, SEGMENT, SEGMENTS, TILE_ROWS,
    FIRST_UNIT, LAST_UNIT, TILES, INPUTS, INPUT_POSITION, GRADIENTS, GRADIENT_POSITION,
    WORKSPACE, WORKSPACE_BYTES,
) = range(len(Slots._fields))  # fmt: skip

SUMS_ELEMENTS = POSITIONS * (GROUP * COLUMNS * v.lanes_of(4) + 1) * v.lanes_of(4)
"""Of a worker: sums of a group and a panel at all positions."""


@subroutine
def _transform(t, args, block, of_gradient, strip):
    """Transform one vector of channels of x, or of g, in all tiles of the part."""
    size = v.lanes(t)
    segment, segments = load_i64(args, SEGMENT), load_i64(args, SEGMENTS)
    tile_rows, tiles = load_i64(args, TILE_ROWS), load_i64(args, TILES)
    u0, u1 = load_i64(args, FIRST_UNIT), load_i64(args, LAST_UNIT)
    if of_gradient:
        source, s_n, s_c = load_i64(args, G), load_i64(args, G_N), load_i64(args, G_C)
        s_h, height, columns = (
            load_i64(args, G_H),
            load_i64(args, OUT_HEIGHT),
            load_i64(args, OUT_WIDTH),
        )
        present = load_i64(args, OUTPUTS) - block * size
        up_, left, halo = 0, 0, 0
        target, position = load_i64(args, GRADIENTS), load_i64(args, GRADIENT_POSITION)
        base, step = block * tiles * size, size
    else:
        source, s_n, s_c = load_i64(args, X), load_i64(args, X_N), load_i64(args, X_C)
        s_h, height, columns = load_i64(args, X_H), load_i64(args, HEIGHT), load_i64(args, WIDTH)
        present = load_i64(args, CHANNELS) - block * size
        up_, left, halo = load_i64(args, PADDING_H), load_i64(args, PADDING_W), 2
        target, position = load_i64(args, INPUTS), load_i64(args, INPUT_POSITION)
        panel = block // COLUMNS
        base = (panel * tiles * COLUMNS + block - panel * COLUMNS) * size
        step = COLUMNS * size
    width = (TILE * segment + 2 + size - 1) // size * size
    for u in range(u0, u1):
        n, row, column = place_of(u, segment, segments, tile_rows)
        read_pixels(
            t, source, n * s_n + block * size * s_c, s_c, s_h, height, columns, present,
            row - up_, TILE + halo, column - left, width, strip,
        )  # fmt: skip
        for j in range(segment):
            at, to = j * TILE * size, base + ((u - u0) * segment + j) * step
            if of_gradient:
                gradient_transform(t, strip, at, target, to, width * size, position)
            else:
                input_transform(t, strip, at, target, to, width * size, position)
    for j in range((u1 - u0) * segment, tiles):
        for p in range(POSITIONS):
            v.store(target, p * position + base + j * step, v.splat(t))


@subroutine
def _multiply(t, args, group, panel, sums):
    """The products of a group and a panel: ``sums[position, vector, row, pixel]``."""
    size = v.lanes(t)
    tiles = load_i64(args, TILES)
    vectors = (load_i64(args, OUTPUTS) + size - 1) // size
    inputs, gradients = load_i64(args, INPUTS), load_i64(args, GRADIENTS)
    position = (GROUP * COLUMNS * size + 1) * size
    for d in range(0, tiles, DEPTH):
        depth = v.least(DEPTH, tiles - d) // size
        for p in range(POSITIONS):
            b = p * load_i64(args, INPUT_POSITION) + (panel * tiles + d) * COLUMNS * size
            for i in range(v.least(GROUP, vectors - group * GROUP)):
                a = p * load_i64(args, GRADIENT_POSITION)
                a += ((group * GROUP + i) * tiles + d) * size
                for r in range(0, size, GRADIENT_ROWS):
                    to = p * position + (i * COLUMNS * size + r) * size
                    product_over_tiles(
                        t, gradients, a + r, 0, depth, inputs, b, sums, to, size * size, d
                    )


@subroutine
def _write(t, args, group, panel, sums):
    """The gradients of a group's weights for a panel, from their sums."""
    size = v.lanes(t)
    taps, rows = stack(PIXEL_SQUARE), stack(PIXEL_SQUARE)
    channels, outputs = load_i64(args, CHANNELS), load_i64(args, OUTPUTS)
    w, add_out = load_i64(args, W), load_i64(args, ADD_OUT)
    position = (GROUP * COLUMNS * size + 1) * size
    first = group * GROUP * size
    for k in range(first, v.least(first + GROUP * size, outputs)):
        vector = (k - first) // size
        for j in range(COLUMNS):
            c0 = (panel * COLUMNS + j) * size
            at = (vector * COLUMNS * size + j * size + k - first - vector * size) * size
            weight_gradient_transform(t, sums, at, taps, 0, position)
            for s in range(0, 9, size):  # a vector of taps for each channel
                v.transpose(t, taps, s * size, size, v.least(size, 9 - s), rows, 0, size)
                for c in range(v.least(size, channels - c0)):
                    value = v.load(t, rows, c * size)
                    to = (k * channels + c0 + c) * 9 + s
                    if add_out:
                        value = v.add(value, v.load_some(t, w, to, 9 - s))
                    v.store_some(w, to, value, 9 - s)


@njit(inline="always")
def _weight(t, args, lo, hi, worker):
    size = v.lanes(t)
    workspace = load_i64(args, WORKSPACE) + worker * load_i64(args, WORKSPACE_BYTES)
    panels = (load_i64(args, CHANNELS) + COLUMNS * size - 1) // (COLUMNS * size)
    for item in range(lo, hi):
        if load_i64(args, STEP) == TRANSFORM:
            of_inputs = panels * COLUMNS
            block = item if item < of_inputs else item - of_inputs
            _transform(t, args, block, item >= of_inputs, workspace)
        else:
            group = item // panels
            _multiply(t, args, group, item - group * panels, workspace)
            _write(t, args, group, item - group * panels, workspace)


@for_this_cpu
def winograd_weight_float32(args, lo, hi, worker):
    """``w[k, c, r, s] (+)= Σ g[n, k, i, j] · x[n, c, i + r - padding, j + s - padding]`` over the
    tiles of a part, 3×3 taps, float32: the gradient of a weight.

    Args: the address of the int64 :class:`Slots`. Items of TRANSFORM are the vectors of channels of
    whole panels of x, then the vectors of g; those of MULTIPLY are groups times panels. Any split
    into ranges gives the same bits.

    Strides: any, with contiguous columns of x and g; w is C-contiguous.

    Not checked: addresses, shapes, that w overlaps nothing.

    Rounding: tiles of a part are added in order, in float32, by FMA where there is one, and parts
    in order to w; see :func:`numgrad.kernels.cpu.winograd.winograd_float32` for what is not finite.
    """
    _weight(np.float32(0), args, lo, hi, worker)
