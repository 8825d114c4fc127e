"""Stride-1 3×3 convolution on the CPU by Winograd's F(4×4, 3×3), NCHW in and out.

Inputs and weights are transformed, multiplied position by position as small matrix products over
channels, and transformed back (``winograd_tile``). Channels are vectors: rows of an image are
transposed, a vector of channels by a vector of columns at a time, on the way in and on the way out.

A *unit* is a segment of a row of tiles in one image, a *panel* two vectors of output channels.
There are two orders, of the same bits, since an element's products are added in order of channels:

* many tiles: a worker takes *blocks* of units, transforms them and goes through all panels, so that
  what it reads stays in its cache;
* few tiles, or weights too large to be kept transformed: all inputs first, channel by channel, then
  panel by panel, each with its weights, which are transformed as they come if need be: some
  channels at a time into the workspace, or, where tiles are few, in registers.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from ..native import load_i64, stack
from . import vector as v
from .subroutine import subroutine
from .tile import pack
from .vector import for_this_cpu
from .winograd_tile import (
    COLUMNS,
    POSITIONS,
    ROWS,
    TILE,
    input_transform,
    output_transform,
    product_large,
    product_middle,
    product_small,
    product_streamed,
    weight_transform,
)

PACK, WEIGHTS, BLOCKS, INPUTS, PANELS = range(5)
"""The steps: what an item of a launch is."""

WEIGHT_CHANNELS = 64
"""Channels whose weights are transformed at a time where they are not kept."""
STREAMED_TILES = 8
"""Tiles up to which that is done in registers, for each vector of channels when it is wanted: what
is added to their products stays in L1."""


class Slots(NamedTuple):
    """The int64 slots, in order. Strides count elements; columns of x and out are contiguous."""

    step: int
    channels: int
    outputs: int
    """Output channels."""
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
    w: int
    w_output: int
    w_channel: int
    w_tap: int
    """1, or -1 if the taps are in reverse order (and ``w`` is the address of the last)."""
    out: int
    out_n: int
    out_c: int
    out_h: int
    scale: int
    """Addresses of a vector over output channels, or 0."""
    shift: int
    residual: int
    """Address of a tensor of out's shape, or 0, and its strides; columns are contiguous."""
    residual_n: int
    residual_c: int
    residual_h: int
    clamp: int
    """Address of the least and the greatest result, or 0."""
    weights: int
    """Address of all transformed weights, (panel, position, channel, 2 vectors), or 0."""
    taps: int
    """Address of all taps, (panel, channel, tap, 2 vectors), or 0."""
    inputs: int
    """Address of the transformed inputs that INPUTS made for all workers; 0: PANELS transforms them
    itself, once a range, at the start of the worker's workspace. Unused by BLOCKS."""
    input_block: int
    """Elements from one vector of channels of them to the next, and from a position to the next."""
    input_position: int
    product_column: int
    """The same for products: from one vector of a panel to the next, and between positions."""
    product_position: int
    segment: int
    segments: int
    """Tiles of a unit, and units of a row of tiles."""
    tile_rows: int
    units: int
    """Units of a block."""
    first_unit: int
    last_unit: int
    """The units of this launch."""
    workspace: int
    workspace_bytes: int
    """Of each worker; worker w owns the w-th part."""
    products: int
    """Bytes from there to the products, the strip of pixels, the weights."""
    strip: int
    own_weights: int


(
    STEP, CHANNELS, OUTPUTS, HEIGHT, WIDTH, OUT_HEIGHT, OUT_WIDTH, PADDING_H, PADDING_W,
    X, X_N, X_C, X_H, W, W_OUTPUT, W_CHANNEL, W_TAP, OUT, OUT_N, OUT_C, OUT_H,
    SCALE, SHIFT, RESIDUAL, RESIDUAL_N, RESIDUAL_C, RESIDUAL_H, CLAMP,
    WEIGHTS_AT, TAPS, INPUTS_AT, INPUT_BLOCK, INPUT_POSITION, PRODUCT_COLUMN, PRODUCT_POSITION,
    SEGMENT_TILES, SEGMENTS, TILE_ROWS, UNITS, FIRST_UNIT, LAST_UNIT, WORKSPACE,
    WORKSPACE_BYTES, PRODUCTS_AT, STRIP_AT, OWN_WEIGHTS,
) = range(len(Slots._fields))  # fmt: skip

LARGE, MIDDLE, SMALL = ROWS
PIXEL_SQUARE = 4 * 16 * 16
"""Bytes of a square of elements, a vector wide, of the widest vectors."""
PIXEL = 4 * 16
_LANES = v.lanes_of(4)
RAW_ELEMENTS = 9 * _LANES * COLUMNS * _LANES + _LANES
"""Taps of a vector of channels for a panel."""
OWN_ELEMENTS = POSITIONS * (WEIGHT_CHANNELS * COLUMNS + 1) * _LANES


# ----------------------------------------------------------------------------------------- weights


@njit(inline="always")
def _weight_position(t, blocks):
    """Elements from one position of so many vectors of channels to the next: one vector more, since
    a power of two would have all positions share a set of the cache."""
    size = v.lanes(t)
    return (blocks * COLUMNS * size + 1) * size


@subroutine
def _pack_taps(t, args, panel, c, target):
    """The taps of one vector of channels from c on: ``target[channel, tap, 2 vectors of outputs]``.
    Outputs that do not exist are undefined; channels are zeros, since what their inputs are
    multiplied by must be finite."""
    size = v.lanes(t)
    width = COLUMNS * size
    w, w_channel = load_i64(args, W), load_i64(args, W_CHANNEL)
    w_output = load_i64(args, W_OUTPUT)
    first = panel * width
    count = v.least(width, load_i64(args, OUTPUTS) - first)
    present = v.greatest(v.least(size, load_i64(args, CHANNELS) - c), 0)
    # Of a row of taps in reverse order the first in memory is the last.
    start = first * w_output + c * w_channel - (8 if load_i64(args, W_TAP) < 0 else 0)
    if w_channel == 9:
        pack(t, w, start, w_output, 1, count, 9 * present, width, target, 0)
    else:
        for q in range(present):
            at = start + q * w_channel
            pack(t, w, at, w_output, 1, count, 9, width, target, 9 * q * width)
    for q in range(9 * present * width, 9 * size * width, size):
        v.store(target, q, v.splat(t))


@subroutine
def _transform_weights(t, args, panel, c0, c1, target, raw):
    """Weights of the channels [c0, c1) for a panel: ``target[position, c - c0, 2 vectors]``.

    ``raw`` has room for the taps of one vector of channels, where they are not packed already.
    Channels that do not exist are zeros, since what their inputs are multiplied by must be finite.
    """
    size = v.lanes(t)
    width = COLUMNS * size
    channels, w_tap = load_i64(args, CHANNELS), load_i64(args, W_TAP)
    packed = load_i64(args, TAPS)
    blocks = (channels + size - 1) // size
    position = _weight_position(t, (c1 - c0) // size)
    begin = 8 * width if w_tap < 0 else 0
    for c in range(c0, c1, size):
        taps = raw
        if packed:
            taps = packed + (panel * blocks * size + c) * 9 * width * v.itemsize(t)
        else:
            _pack_taps(t, args, panel, c, raw)
        for q in range(size):
            to = (c - c0 + q) * width
            for j in range(0, width, size):
                if c + q < channels:
                    at = 9 * q * width + begin + j
                    weight_transform(t, taps, at, target, to + j, w_tap * width, position)
                else:
                    for p in range(POSITIONS):
                        v.store(target, p * position + to + j, v.splat(t))


# ------------------------------------------------------------------------------------------ inputs


@subroutine
def read_pixels(
    t, x, image, x_c, x_h, height, columns, present, first_row, rows, first, width, strip
):  # fmt: skip
    """Rows of an image as pixels of one vector of channels, of which ``present`` exist (0 or more).

    ``strip[i * width + j]`` is the pixel in row ``first_row + i`` and column ``first + j``, 0
    outside of the image, whose first channel and pixel is ``x[image]``.
    """
    size = v.lanes(t)
    square = stack(PIXEL_SQUARE)
    start = v.greatest(first, 0)
    stop = v.least(first + width, columns)
    for i in range(rows):
        y = first_row + i
        row = i * width
        if y < 0 or y >= height or stop <= start:
            for j in range(width):
                v.store(strip, (row + j) * size, v.splat(t))
        else:
            for j in range(start - first):
                v.store(strip, (row + j) * size, v.splat(t))
            at = image + y * x_h
            for q in range(start, stop, size):
                to = (row + q - first) * size
                if q + size <= columns and present >= size:
                    v.transpose(t, x, at + q, x_c, size, strip, to, size)
                else:
                    for c in range(size):
                        there = columns - q if c < present else 0
                        value = v.load_some(t, x, at + c * x_c + q, there)
                        v.store(square, c * size, value)
                    v.transpose(t, square, 0, size, size, strip, to, size)
            for j in range(stop - first, width):
                v.store(strip, (row + j) * size, v.splat(t))


@njit(inline="always")
def place_of(unit, segment, segments, tile_rows):
    """The image, row and column of out where a unit begins."""
    band = unit // segments
    n = band // tile_rows
    return n, (band - n * tile_rows) * TILE, (unit - band * segments) * segment * TILE


@njit(inline="always")
def run_length(args, unit, last):
    """How many units from ``unit`` on are read at once: rows of tiles of one image."""
    if load_i64(args, SEGMENTS) > 1:
        return 1
    rows = load_i64(args, TILE_ROWS)
    return v.least(rows - unit % rows, last - unit)


@subroutine
def _transform_inputs(t, args, u0, u1, block0, block1, target, strip):
    """The transformed tiles of the units [u0, u1), vectors of channels [block0, block1)."""
    size = v.lanes(t)
    segment, segments = load_i64(args, SEGMENT_TILES), load_i64(args, SEGMENTS)
    tile_rows = load_i64(args, TILE_ROWS)
    input_block = load_i64(args, INPUT_BLOCK)
    position = load_i64(args, INPUT_POSITION)
    width = (TILE * segment + 2 + size - 1) // size * size
    x_c = load_i64(args, X_C)
    for block in range(block0, block1):
        u = u0
        present = load_i64(args, CHANNELS) - block * size
        while u < u1:
            count = run_length(args, u, u1)
            n, row, column = place_of(u, segment, segments, tile_rows)
            first_row = row - load_i64(args, PADDING_H)
            first = column - load_i64(args, PADDING_W)
            rows = TILE * count + 2
            read_pixels(
                t, load_i64(args, X), n * load_i64(args, X_N) + block * size * x_c, x_c,
                load_i64(args, X_H), load_i64(args, HEIGHT), load_i64(args, WIDTH), present,
                first_row, rows, first, width, strip,
            )  # fmt: skip
            for i in range(count):
                for j in range(segment):
                    at = (i * TILE * width + j * TILE) * size
                    to = block * input_block + ((u + i - u0) * segment + j) * size
                    input_transform(t, strip, at, target, to, width * size, position)
            u += count


# ---------------------------------------------------------------------------------------- products


@subroutine
def _multiply(t, args, tiles, inputs, block0, block1, weights, products, add_out):
    """Products of all positions for one panel: ``products[position, vector, tile]``."""
    size = v.lanes(t)
    input_block = load_i64(args, INPUT_BLOCK)
    column = load_i64(args, PRODUCT_COLUMN)
    blocks = block1 - block0
    for p in range(POSITIONS):
        a = p * load_i64(args, INPUT_POSITION) + block0 * input_block
        b = p * _weight_position(t, blocks)
        c = p * load_i64(args, PRODUCT_POSITION)
        i = 0
        while i < tiles:
            left = tiles - i
            at, to = a + i * size, c + i * size
            if left >= LARGE - 1 and (left <= LARGE or left > 2 * MIDDLE):
                product_large(
                    t, inputs, at, input_block, blocks, weights, b, products, to, column, add_out
                )
                i += LARGE
            elif left > SMALL:
                product_middle(
                    t, inputs, at, input_block, blocks, weights, b, products, to, column, add_out
                )
                i += MIDDLE
            else:
                product_small(
                    t, inputs, at, input_block, blocks, weights, b, products, to, column, add_out
                )
                i += SMALL


@subroutine
def _multiply_streamed(t, args, panel, tiles, inputs, products, raw):
    """The same with weights that are transformed in registers and never written."""
    size = v.lanes(t)
    width, w_tap = COLUMNS * size, load_i64(args, W_TAP)
    column, position = load_i64(args, PRODUCT_COLUMN), load_i64(args, PRODUCT_POSITION)
    begin = 8 * width if w_tap < 0 else 0
    packed, blocks = load_i64(args, TAPS), (load_i64(args, CHANNELS) + size - 1) // size
    for p in range(POSITIONS):
        for j in range(COLUMNS):
            at = p * position + j * column
            for i in range(at, at + tiles * size, size):
                v.store(products, i, v.splat(t))
    for block in range(blocks):
        taps = raw
        if packed:
            taps = packed + (panel * blocks + block) * size * 9 * width * v.itemsize(t)
        else:
            _pack_taps(t, args, panel, block * size, raw)
        product_streamed(
            t, taps, begin, inputs, block * load_i64(args, INPUT_BLOCK), products, 0,
            w_tap * width, load_i64(args, INPUT_POSITION), tiles, column, position,
        )  # fmt: skip


# ----------------------------------------------------------------------------------------- outputs


@subroutine
def _write_pixels(t, args, strip, at, n, row, column, first, count, present):
    """``count`` pixels of one vector of output channels, of which ``present`` exist, to a row of
    out, with residual and clamp."""
    size = v.lanes(t)
    square = stack(PIXEL_SQUARE)
    out, out_c = load_i64(args, OUT), load_i64(args, OUT_C)
    residual, clamp = load_i64(args, RESIDUAL), load_i64(args, CLAMP)
    to = n * load_i64(args, OUT_N) + first * out_c + row * load_i64(args, OUT_H) + column
    if count >= size and present == size and residual == 0 and clamp == 0:
        v.transpose(t, strip, at, size, size, out, to, out_c)
    else:
        v.transpose(t, strip, at, size, size, square, 0, size)
        residual_c = load_i64(args, RESIDUAL_C)
        beside = n * load_i64(args, RESIDUAL_N) + first * residual_c + column
        beside += row * load_i64(args, RESIDUAL_H)
        for c in range(present):
            value = v.load(t, square, c * size)
            if residual:
                value = v.add(value, v.load_some(t, residual, beside + c * residual_c, count))
            if clamp:
                least, greatest = v.get(t, clamp, 0), v.get(t, clamp, 1)
                value = v.clamp(value, v.splat(least), v.splat(greatest))
            v.store_some(out, to + c * out_c, value, count)


@subroutine
def _transform_outputs(t, args, u0, u1, panel, products, strip):
    """The outputs of the units [u0, u1) for a panel."""
    size = v.lanes(t)
    scale, shift = stack(PIXEL), stack(PIXEL)
    segment, segments = load_i64(args, SEGMENT_TILES), load_i64(args, SEGMENTS)
    tile_rows = load_i64(args, TILE_ROWS)
    height, width = load_i64(args, OUT_HEIGHT), load_i64(args, OUT_WIDTH)
    position = load_i64(args, PRODUCT_POSITION)
    across = (TILE * segment + size - 1) // size * size
    for j in range(COLUMNS):
        channel = (panel * COLUMNS + j) * size
        present = v.least(size, load_i64(args, OUTPUTS) - channel)
        if present > 0:
            v.store(scale, 0, v.splat(v.rounded(t, 1.0)))
            v.store(shift, 0, v.splat(t))
            base = load_i64(args, SCALE)
            if base:
                v.store(scale, 0, v.load_some(t, base, channel, present))
            base = load_i64(args, SHIFT)
            if base:
                v.store(shift, 0, v.load_some(t, base, channel, present))
            for u in range(u0, u1):
                n, row, first = place_of(u, segment, segments, tile_rows)
                for i in range(segment):
                    at = j * load_i64(args, PRODUCT_COLUMN) + ((u - u0) * segment + i) * size
                    to = i * TILE * size
                    output_transform(
                        t, products, at, strip, to, position, across * size, scale, shift
                    )
                for i in range(v.least(TILE, height - row)):
                    last = v.least(TILE * segment, width - first)
                    for q in range(0, last, size):
                        at = (i * across + q) * size
                        count = v.least(last - q, size)
                        _write_pixels(
                            t, args, strip, at, n, row + i, first + q, channel, count, present
                        )


# ------------------------------------------------------------------------------------------- steps


@subroutine
def _block(t, args, u0, u1, workspace):
    """All of a block of units."""
    size = v.lanes(t)
    channels = load_i64(args, CHANNELS)
    blocks = (channels + size - 1) // size
    panels = (load_i64(args, OUTPUTS) + COLUMNS * size - 1) // (COLUMNS * size)
    products = workspace + load_i64(args, PRODUCTS_AT)
    strip = workspace + load_i64(args, STRIP_AT)
    weights = load_i64(args, WEIGHTS_AT)
    bytes_ = v.itemsize(t)
    _transform_inputs(t, args, u0, u1, 0, blocks, workspace, strip)
    for panel in range(panels):
        there = weights + panel * POSITIONS * _weight_position(t, blocks) * bytes_
        tiles = (u1 - u0) * load_i64(args, SEGMENT_TILES)
        _multiply(t, args, tiles, workspace, 0, blocks, there, products, 0)
        _transform_outputs(t, args, u0, u1, panel, products, strip)


@subroutine
def _panel(t, args, panel, workspace):
    """All of a panel, from inputs that are transformed already."""
    size = v.lanes(t)
    channels = load_i64(args, CHANNELS)
    blocks = (channels + size - 1) // size
    u0, u1 = load_i64(args, FIRST_UNIT), load_i64(args, LAST_UNIT)
    tiles = (u1 - u0) * load_i64(args, SEGMENT_TILES)
    products = workspace + load_i64(args, PRODUCTS_AT)
    strip = workspace + load_i64(args, STRIP_AT)
    inputs, weights = load_i64(args, INPUTS_AT), load_i64(args, WEIGHTS_AT)
    if inputs == 0:
        inputs = workspace
    if weights:
        there = weights + panel * POSITIONS * _weight_position(t, blocks) * v.itemsize(t)
        _multiply(t, args, tiles, inputs, 0, blocks, there, products, 0)
    elif tiles <= STREAMED_TILES:
        _multiply_streamed(t, args, panel, tiles, inputs, products, strip)
    else:
        own = workspace + load_i64(args, OWN_WEIGHTS)
        step = WEIGHT_CHANNELS // size
        for b0 in range(0, blocks, step):
            b1 = v.least(b0 + step, blocks)
            _transform_weights(t, args, panel, b0 * size, b1 * size, own, strip)
            _multiply(t, args, tiles, inputs, b0, b1, own, products, b0)
    _transform_outputs(t, args, u0, u1, panel, products, strip)


@njit(inline="always")
def _winograd(t, args, lo, hi, worker):
    size = v.lanes(t)
    step = load_i64(args, STEP)
    workspace = load_i64(args, WORKSPACE) + worker * load_i64(args, WORKSPACE_BYTES)
    blocks = (load_i64(args, CHANNELS) + size - 1) // size
    u0, u1 = load_i64(args, FIRST_UNIT), load_i64(args, LAST_UNIT)
    if step == INPUTS:
        strip = workspace + load_i64(args, STRIP_AT)
        target = load_i64(args, INPUTS_AT)
        _transform_inputs(t, args, u0, u1, lo, hi, target, strip)
    else:
        if step == PANELS and load_i64(args, INPUTS_AT) == 0:
            strip = workspace + load_i64(args, STRIP_AT)
            _transform_inputs(t, args, u0, u1, 0, blocks, workspace, strip)
        for item in range(hi - lo):
            if step == PACK:
                for c in range(0, blocks * size, size):
                    at = ((lo + item) * blocks * size + c) * 9 * COLUMNS * size
                    target = load_i64(args, TAPS) + at * v.itemsize(t)
                    _pack_taps(t, args, lo + item, c, target)
            elif step == WEIGHTS:
                panel = (lo + item) * POSITIONS * _weight_position(t, blocks)
                target = load_i64(args, WEIGHTS_AT) + panel * v.itemsize(t)
                _transform_weights(t, args, lo + item, 0, blocks * size, target, workspace)
            elif step == BLOCKS:
                units = load_i64(args, UNITS)
                first = u0 + (lo + item) * units
                _block(t, args, first, v.least(first + units, u1), workspace)
            else:
                _panel(t, args, lo + item, workspace)


@for_this_cpu
def winograd_float32(args, lo, hi, worker):
    """``out[n, k, i, j] = e(Σ_{c, r, s} w[k, c, r, s] · x[n, c, i + r - padding, j + s - padding])``,
    3×3 taps, float32, with the epilogue ``e(a) = clamp(a · scale[k] + shift[k] + residual)``.

    Args: the address of the int64 :class:`Slots`. Items are those of the step: panels (PACK,
    WEIGHTS, PANELS), blocks of units (BLOCKS), vectors of channels (INPUTS). Any split into ranges gives the
    same bits, and so do the two orders, BLOCKS or INPUTS and PANELS.

    Strides: any, with contiguous columns of x, out and residual, and taps of w in one run.

    Not checked: addresses, shapes, overlap of out with anything, that the weights are those of w.

    Reads x once (by PANELS without ``inputs`` once a range) and w once (once a call by WEIGHTS or PACK
    where that is kept), the transformed weights once a block or the transformed inputs once a panel;
    writes out once.

    Rounding: products are added in order of channels, by FMA where there is one; the transforms
    round in between, see docs/decisions.md for the errors. An input that is not finite makes whole
    tiles nan, and so may one near the largest float32.
    """  # noqa: E501
    _winograd(np.float32(0), args, lo, hi, worker)
