"""What the convolution kernels share: reading the patches of an image, and their epilogue.

The *patch* of an output pixel is what it reads: an element for each input channel and tap.
"""

from numba import njit

from ..native import load_i64
from . import slots
from . import vector as v
from .tile import write_epilogue
from .vector import subroutine


@njit(inline="always")
def epilogue_of(args, target):
    """The epilogue of the slots, put at ``target``: its address, or 0."""
    return write_epilogue(
        target,
        load_i64(args, slots.SCALE),
        load_i64(args, slots.SHIFT),
        0,
        load_i64(args, slots.RESIDUAL),
        load_i64(args, slots.RESIDUAL_C),
        load_i64(args, slots.RESIDUAL_W),
        load_i64(args, slots.CLAMP),
    )


@njit(inline="always")
def ceil_of(a, stride):
    """``ceil(a / stride)``; division is slow, and the usual strides need none."""
    if stride == 1:
        return a
    if stride == 2:
        return (a + 1) >> 1
    return (a + stride - 1) // stride


@subroutine
def read_patches(t, args, group, c0, c1, p, count, target, at, width):
    """Rows of patches: for each channel and tap, what ``count`` pixels from ``p`` on read.

    ``target[at + ((c - c0) * taps + tap) * width + q]`` belongs to pixel p + q; the other lanes of
    the rows are not written.
    """
    size = v.lanes(t)
    oh, ow = load_i64(args, slots.OUT_HEIGHT), load_i64(args, slots.OUT_WIDTH)
    height, x_width = load_i64(args, slots.HEIGHT), load_i64(args, slots.WIDTH)
    taps_h, taps_w = load_i64(args, slots.TAPS_H), load_i64(args, slots.TAPS_W)
    stride_h, stride_w = load_i64(args, slots.STRIDE_H), load_i64(args, slots.STRIDE_W)
    dilation_h, dilation_w = load_i64(args, slots.DILATION_H), load_i64(args, slots.DILATION_W)
    padding_h, padding_w = load_i64(args, slots.PADDING_H), load_i64(args, slots.PADDING_W)
    x, x_n, x_c = load_i64(args, slots.X), load_i64(args, slots.X_N), load_i64(args, slots.X_C)
    x_h, x_w = load_i64(args, slots.X_H), load_i64(args, slots.X_W)
    step = stride_w * x_w
    channels, below = c1 - c0, taps_h * taps_w * width
    area = v.greatest(oh * ow, 1)
    n0 = p // area
    i0 = (p - n0 * area) // v.greatest(ow, 1)
    j0 = p - n0 * area - i0 * ow
    first_channel = (group * load_i64(args, slots.DEPTH) + c0) * x_c
    for r in range(taps_h):
        for s in range(taps_w):
            offset = s * dilation_w - padding_w
            first, last = ceil_of(-offset, stride_w), ceil_of(x_width - offset, stride_w)
            n, i, j, q = n0, i0, j0, 0
            while q < count:  # a run of pixels in one row of out
                length = v.least(ow - j, count - q)
                ih = i * stride_h + r * dilation_h - padding_h
                lo, hi = v.greatest(first - j, 0), v.least(last - j, length)
                if ih < 0 or ih >= height:
                    hi = 0
                source = n * x_n + first_channel + ih * x_h + (j * stride_w + offset) * x_w
                there = at + (r * taps_w + s) * width + q
                if step == 1:
                    for b in range(0, length, size):
                        for c in range(channels):
                            value = v.load_between(t, x, source + c * x_c + b, lo - b, hi - b)
                            v.store_some(target, there + c * below + b, value, length - b)
                elif step == 2:
                    for b in range(0, length, size):
                        for c in range(channels):
                            begin = source + c * x_c + 2 * b
                            value = v.load_even_between(t, x, begin, lo - b, hi - b)
                            v.store_some(target, there + c * below + b, value, length - b)
                else:
                    for c in range(channels):
                        for b in range(length):
                            element = t
                            if lo <= b and b < hi:
                                element = v.get(t, x, source + c * x_c + b * step)
                            v.put(target, there + c * below + b, element)
                q += length
                j = 0
                i += 1
                if i == oh:
                    i = 0
                    n += 1
