"""Convolution on the CPU where a group has one input channel: no matrix products, but a sum over
the taps for each vector of output pixels.

Slots and geometry are those of ``numgrad.kernels.cpu.slots``.
"""

import numpy as np
from numba import njit

from ..native import load_i64, stack
from . import slots
from . import vector as v
from .patches import ceil_of, epilogue_of
from .tile import EPILOGUE_BYTES, finish
from .vector import for_this_cpu

DIRECT_CHUNK = 256
"""Columns of a row that are written at a time."""
DIRECT_BYTES = 8 * DIRECT_CHUNK


@njit(inline="always")
def _x_lanes(t, x, at, step, first, last, buffer):
    """A vector of x: lane i is ``x[at + i * step]`` for first <= i < last, else 0."""
    if step == 1:
        value = v.load_between(t, x, at, first, last)
    elif step == 2:
        value = v.load_even_between(t, x, at, first, last)
    else:
        for i in range(v.lanes(t)):
            element = t
            if first <= i and i < last:
                element = v.get(t, x, at + i * step)
            v.put(buffer, i, element)
        value = v.load(t, buffer, 0)
    return value


@njit(inline="always")
def _depthwise(t, args, lo, hi, worker):
    size = v.lanes(t)
    sums, buffer = stack(DIRECT_BYTES), stack(64)
    epilogue = epilogue_of(args, stack(EPILOGUE_BYTES))
    rows, channels = (
        load_i64(args, slots.ROWS),
        load_i64(args, slots.GROUPS) * load_i64(args, slots.ROWS),
    )
    oh, ow = load_i64(args, slots.OUT_HEIGHT), load_i64(args, slots.OUT_WIDTH)
    height, width = load_i64(args, slots.HEIGHT), load_i64(args, slots.WIDTH)
    taps_h, taps_w = load_i64(args, slots.TAPS_H), load_i64(args, slots.TAPS_W)
    stride_h, stride_w = load_i64(args, slots.STRIDE_H), load_i64(args, slots.STRIDE_W)
    dilation_h, dilation_w = load_i64(args, slots.DILATION_H), load_i64(args, slots.DILATION_W)
    padding_h, padding_w = load_i64(args, slots.PADDING_H), load_i64(args, slots.PADDING_W)
    x, x_h, x_w = load_i64(args, slots.X), load_i64(args, slots.X_H), load_i64(args, slots.X_W)
    w, w_r, w_s = load_i64(args, slots.W), load_i64(args, slots.W_R), load_i64(args, slots.W_S)
    residual_h, residual_w = load_i64(args, slots.RESIDUAL_H), load_i64(args, slots.RESIDUAL_W)
    for item in range(lo, hi):
        n = item // channels
        k = item - n * channels
        group = k // rows
        plane = n * load_i64(args, slots.X_N) + group * load_i64(args, slots.X_C)
        weights = group * load_i64(args, slots.W_GROUP) + (k - group * rows) * load_i64(
            args, slots.W_ROW
        )
        for i in range(oh):
            for j0 in range(0, ow, DIRECT_CHUNK):
                count = v.least(DIRECT_CHUNK, ow - j0)
                for q in range(0, count, size):
                    j = j0 + q
                    value = v.splat(t)
                    for r in range(taps_h):
                        ih = i * stride_h + r * dilation_h - padding_h
                        if ih >= 0 and ih < height:
                            for s in range(taps_w):
                                iw = s * dilation_w - padding_w + j * stride_w
                                first, last = ceil_of(-iw, stride_w), ceil_of(width - iw, stride_w)
                                # Lanes past the row are not stored: they need not be read.
                                last = v.least(last, ow - j)
                                at = plane + ih * x_h + iw * x_w
                                lane = _x_lanes(t, x, at, stride_w * x_w, first, last, buffer)
                                factor = v.splat(v.get(t, w, weights + r * w_r + s * w_s))
                                value = v.multiply_add(factor, lane, value)
                    v.store(sums, q, value)
                at = n * load_i64(args, slots.OUT_N) + k * load_i64(args, slots.OUT_C)
                beside = n * load_i64(args, slots.RESIDUAL_N) + k * load_i64(args, slots.RESIDUAL_C)
                finish(
                    t, sums, DIRECT_CHUNK, 1, count, load_i64(args, slots.OUT),
                    at + i * load_i64(args, slots.OUT_H) + j0 * load_i64(args, slots.OUT_W),
                    0, load_i64(args, slots.OUT_W), 0, epilogue, k,
                    beside + i * residual_h + j0 * residual_w,
                )  # fmt: skip


@for_this_cpu
def depthwise_float32(args, lo, hi, worker):
    """As :func:`convolution_float32` where ``depth`` is 1: every output channel reads one of x.

    Items are the ``images * groups * rows`` planes of out; there is no workspace. Strides: any;
    fastest as there. Taps of rows outside of x are left out of the sum, so an infinite weight there
    gives no nan.

    Reads x once for each tap, w once a plane, writes out once. Products are added in order of
    (r, s).
    """
    _depthwise(np.float32(0), args, lo, hi, worker)


@for_this_cpu
def depthwise_float64(args, lo, hi, worker):
    """As :func:`depthwise_float32`, in float64."""
    _depthwise(np.float64(0), args, lo, hi, worker)


@njit(inline="always")
def _depthwise_weight(t, args, lo, hi, worker):
    size = v.lanes(t)
    x_buffer, g_buffer = stack(64), stack(64)
    rows = load_i64(args, slots.ROWS)
    oh, ow = load_i64(args, slots.OUT_HEIGHT), load_i64(args, slots.OUT_WIDTH)
    height, width = load_i64(args, slots.HEIGHT), load_i64(args, slots.WIDTH)
    stride_h, stride_w = load_i64(args, slots.STRIDE_H), load_i64(args, slots.STRIDE_W)
    dilation_h, dilation_w = load_i64(args, slots.DILATION_H), load_i64(args, slots.DILATION_W)
    padding_h, padding_w = load_i64(args, slots.PADDING_H), load_i64(args, slots.PADDING_W)
    x, x_h, x_w = load_i64(args, slots.X), load_i64(args, slots.X_H), load_i64(args, slots.X_W)
    g, g_h, g_w = (
        load_i64(args, slots.OUT),
        load_i64(args, slots.OUT_H),
        load_i64(args, slots.OUT_W),
    )
    for k in range(lo, hi):
        group = k // rows
        weights = group * load_i64(args, slots.W_GROUP) + (k - group * rows) * load_i64(
            args, slots.W_ROW
        )
        for r in range(load_i64(args, slots.TAPS_H)):
            for s in range(load_i64(args, slots.TAPS_W)):
                sum_ = 0.0
                for n in range(load_i64(args, slots.IMAGES)):
                    plane = n * load_i64(args, slots.X_N) + group * load_i64(args, slots.X_C)
                    value = v.splat(t)
                    for i in range(oh):
                        ih = i * stride_h + r * dilation_h - padding_h
                        if ih >= 0 and ih < height:
                            for j in range(0, ow, size):
                                iw = s * dilation_w - padding_w + j * stride_w
                                first, last = ceil_of(-iw, stride_w), ceil_of(width - iw, stride_w)
                                last = v.least(last, ow - j)
                                at = plane + ih * x_h + iw * x_w
                                lane = _x_lanes(t, x, at, stride_w * x_w, first, last, x_buffer)
                                at = n * load_i64(args, slots.OUT_N) + k * load_i64(
                                    args, slots.OUT_C
                                )
                                at += i * g_h + j * g_w
                                factor = _x_lanes(t, g, at, g_w, 0, ow - j, g_buffer)
                                value = v.multiply_add(factor, lane, value)
                    sum_ += v.total(value)
                at = weights + r * load_i64(args, slots.W_R) + s * load_i64(args, slots.W_S)
                v.put(load_i64(args, slots.W), at, v.rounded(t, sum_))


@for_this_cpu
def depthwise_weight_float32(args, lo, hi, worker):
    """As :func:`convolution_weight_float32` where ``depth`` is 1, w of any strides.

    Items are the ``groups * rows`` channels of out; there is no workspace. Reads out and x once for
    each tap. Each lane adds the pixels of one image, images are added in float64.
    """
    _depthwise_weight(np.float32(0), args, lo, hi, worker)


@for_this_cpu
def depthwise_weight_float64(args, lo, hi, worker):
    """As :func:`depthwise_weight_float32`, in float64."""
    _depthwise_weight(np.float64(0), args, lo, hi, worker)
