"""Normalisation: mean and deviation of channels or of rows, and the gradients of what uses them.

All statistics are float64 sums whatever the element. The variance is that of deviations from the
mean (two passes over a block that fits the cache), and blocks are merged as in Chan, Golub and
LeVeque, "Algorithms for computing the sample variance" (1983): large means cancel nothing. What is
summed is the difference from the first element, so that equal elements give exactly their value and
a variance of 0. An element is calculated in float64 and rounded once.

There is a family for each shape of a problem, the last axis always being contiguous:

* ``planes``: x (n, c, s), one mean a channel c. Items are channels.
* ``columns``: x (n, c), one mean a channel. Items are tiles of TILE channels.
* ``rows`` (``row_normalization.py``): x (n, groups, channels, s), one mean a (sample, group), one
  weight a (group, channel): group-norm, and with ``groups = s = 1`` layer-norm.

Strides count elements and may be 0 or negative. An item is done by one worker in an order that the
shape decides, so the bits do not depend on the number of workers.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from ..native import as_float64, inline, load_i64, stack
from ..store import Handwritten, named
from .vector import (
    add,
    for_this_cpu,
    get,
    lanes,
    least,
    load,
    load_some,
    multiply,
    multiply_add,
    put,
    splat,
    store,
    store_some,
)

# Sums are vectors only if they may be reordered; nan and infinities keep their meaning.
summing = njit(error_model="numpy", forceinline=True, fastmath={"reassoc", "nsz", "contract"})

F64 = np.float64
BLOCK = 1 << 15
"""Elements of a channel whose two passes are made before the next block's."""
TILE = 64
"""Channels of one item of ``columns``."""
TILE_BYTES = 8 * TILE


class Planes(NamedTuple):
    """Slots of ``planes_forward`` and ``columns_forward`` (there s is 1 and channels adjoin)."""

    out: int
    x: int
    weight: int
    bias: int
    mean: int
    """Address of c float64 for the means; so are inverse, and variance unless it is 0."""
    inverse: int
    variance: int
    n: int
    c: int
    s: int
    x_n: int
    x_c: int
    out_n: int
    out_c: int
    eps: int
    """The bits of a float64."""


class PlanesBackward(NamedTuple):
    """Slots of ``planes_backward`` and ``columns_backward``; dx, dweight, dbias may be 0."""

    dx: int
    dweight: int
    dbias: int
    g: int
    x: int
    """0 where neither dweight nor a dx that is not ``fixed`` is wanted; then mean is not read."""
    weight: int
    mean: int
    inverse: int
    n: int
    c: int
    s: int
    g_n: int
    g_c: int
    x_n: int
    x_c: int
    dx_n: int
    dx_c: int
    fixed: int
    """1: mean and inverse are constants; 0: they are those of x."""


class Affine(NamedTuple):
    """Slots of ``affine_channels``."""

    out: int
    x: int
    weight: int
    """Address of c elements, or 0 for ones."""
    bias: int
    """Address of c elements, or 0 for zeros."""
    mean: int
    """Address of c elements, or 0: then nothing is added."""
    variance: int
    n: int
    c: int
    s: int
    x_n: int
    x_c: int
    out_n: int
    out_c: int
    eps: int
    """The bits of a float64."""


class Fold(NamedTuple):
    """Slots of ``fold_statistics``."""

    centre: int
    inverse: int
    mean: int
    variance: int
    eps: int
    """The bits of a float64."""


# --------------------------------------------------------------------------- contiguous elements


@summing
def sum_deviations(dtype, x, start, n, shift):
    """The sum of ``x - shift``."""
    total = 0.0
    for j in range(n):
        total += F64(get(dtype(0), x, start + j)) - shift
    return total


@summing
def sum_squares(dtype, x, start, n, mean):
    """The sum of ``(x - mean)²``."""
    total = 0.0
    for j in range(n):
        d = F64(get(dtype(0), x, start + j)) - mean
        total += d * d
    return total


@summing
def sum_products(dtype, g, g_start, x, x_start, n, mean):
    """The sums of ``g`` and of ``g (x - mean)``."""
    plain = 0.0
    weighted = 0.0
    for j in range(n):
        v = F64(get(dtype(0), g, g_start + j))
        plain += v
        weighted += v * (F64(get(dtype(0), x, x_start + j)) - mean)
    return plain, weighted


@inline
def write_affine(dtype, out, to, x, start, n, mean, scale, shift):
    """``out = (x - mean) scale + shift``."""
    for j in range(n):
        v = (F64(get(dtype(0), x, start + j)) - mean) * scale + shift
        put(out, to + j, dtype(v))


@inline
def write_gradient(dtype, dx, to, g, g_start, x, x_start, n, mean, a, b, c):
    """``dx = a g + b (x - mean) + c``."""
    for j in range(n):
        d = F64(get(dtype(0), x, x_start + j)) - mean
        put(dx, to + j, dtype(a * F64(get(dtype(0), g, g_start + j)) + (b * d + c)))


# ----------------------------------------------------------------------------------------- planes


def _planes_forward(name: str, dtype: Any) -> Handwritten:
    def planes_forward(args, lo, hi, worker):
        """out[i, c, j] = (x[i, c, j] - mean[c]) * weight[c] / sqrt(var[c] + eps) + bias[c].

        mean[c] and var[c] are those of x[:, c, :], var divided by n * s; ``inverse`` becomes
        1 / sqrt(var + eps). Slots: :class:`Planes`. Items are channels. Strides of n and c: any.
        Reads an item twice from memory (a block of BLOCK elements once more from cache), writes an
        item an item. Not checked: n * s >= 1, overlap.
        """
        out, x = load_i64(args, 0), load_i64(args, 1)
        weight, bias = load_i64(args, 2), load_i64(args, 3)
        means, inverses, variances = load_i64(args, 4), load_i64(args, 5), load_i64(args, 6)
        n, s = load_i64(args, 7), load_i64(args, 9)
        x_n, x_c = load_i64(args, 10), load_i64(args, 11)
        out_n, out_c = load_i64(args, 12), load_i64(args, 13)
        eps = as_float64(args)[14]
        per_block = max(BLOCK // s, 1)
        for c in range(lo, hi):
            mean, squares, done = 0.0, 0.0, 0.0
            for first in range(0, n, per_block):
                last = min(first + per_block, n)
                shift = F64(get(dtype(0), x, first * x_n + c * x_c))
                total = 0.0
                for i in range(first, last):
                    total += sum_deviations(dtype, x, i * x_n + c * x_c, s, shift)
                count = F64((last - first) * s)
                own = shift + total / count
                total = 0.0
                for i in range(first, last):
                    total += sum_squares(dtype, x, i * x_n + c * x_c, s, own)
                if first == 0:
                    mean, squares, done = own, total, count
                else:
                    apart, done = own - mean, done + count
                    mean += apart * (count / done)
                    squares += total + apart * apart * ((done - count) * (count / done))
            variance = squares / done
            inverse = 1 / np.sqrt(variance + eps)
            put(means, c, mean)
            put(inverses, c, inverse)
            if variances != 0:
                put(variances, c, variance)
            scale, shift = inverse * F64(get(dtype(0), weight, c)), F64(get(dtype(0), bias, c))
            for i in range(n):
                to, start = i * out_n + c * out_c, i * x_n + c * x_c
                write_affine(dtype, out, to, x, start, s, mean, scale, shift)

    return named(name, planes_forward)


def _planes_backward(name: str, dtype: Any) -> Handwritten:
    def planes_backward(args, lo, hi, worker):
        """The gradients of ``planes_forward``; N = n * s, d = x - mean, r = inverse:

        dbias[c] = sum g, dweight[c] = r sum g d,
        dx = weight r (g - sum g / N - d r² sum g d / N), or weight r g where ``fixed``.

        Slots: :class:`PlanesBackward`. Items are channels. Strides of n and c: any. Reads g and x
        twice from memory (once if dx is not wanted), writes an item an item of dx. Not checked:
        n * s >= 1, overlap.
        """
        dx, dweight, dbias = load_i64(args, 0), load_i64(args, 1), load_i64(args, 2)
        g, x, weight = load_i64(args, 3), load_i64(args, 4), load_i64(args, 5)
        means, inverses = load_i64(args, 6), load_i64(args, 7)
        n, s = load_i64(args, 8), load_i64(args, 10)
        g_n, g_c = load_i64(args, 11), load_i64(args, 12)
        x_n, x_c = load_i64(args, 13), load_i64(args, 14)
        dx_n, dx_c = load_i64(args, 15), load_i64(args, 16)
        fixed = load_i64(args, 17)
        for c in range(lo, hi):
            inverse = get(0.0, inverses, c)
            scale = inverse * F64(get(dtype(0), weight, c))
            mean, plain, weighted = 0.0, 0.0, 0.0
            if x != 0:
                mean = get(0.0, means, c)
                for i in range(n):
                    a, b = sum_products(dtype, g, i * g_n + c * g_c, x, i * x_n + c * x_c, s, mean)
                    plain += a
                    weighted += b
            elif dbias != 0:
                for i in range(n):
                    plain += sum_deviations(dtype, g, i * g_n + c * g_c, s, 0.0)
            if dbias != 0:
                put(dbias, c, dtype(plain))
            if dweight != 0:
                put(dweight, c, dtype(weighted * inverse))
            if dx == 0:
                continue
            if fixed != 0:
                for i in range(n):
                    to, start = i * dx_n + c * dx_c, i * g_n + c * g_c
                    write_affine(dtype, dx, to, g, start, s, 0.0, scale, 0.0)
                continue
            slope = -scale * inverse * inverse * weighted / F64(n * s)
            constant = -scale * plain / F64(n * s)
            for i in range(n):
                to, g_at, x_at = i * dx_n + c * dx_c, i * g_n + c * g_c, i * x_n + c * x_c
                write_gradient(
                    dtype, dx, to, g, g_at, x, x_at, s, mean, scale, slope, constant
                )  # fmt: skip

    return named(name, planes_backward)


# ---------------------------------------------------------------------------------------- columns


def _columns_forward(name: str, dtype: Any) -> Handwritten:
    def columns_forward(args, lo, hi, worker):
        """out[i, c] = (x[i, c] - mean[c]) * weight[c] / sqrt(var[c] + eps) + bias[c].

        Slots: :class:`Planes` with s = x_c = out_c = 1. Items are tiles of TILE channels. Strides
        of n: any. Reads an item three times, writes an item an item. Not checked: n >= 1, overlap.
        """
        out, x = load_i64(args, 0), load_i64(args, 1)
        weight, bias = load_i64(args, 2), load_i64(args, 3)
        means, inverses, variances = load_i64(args, 4), load_i64(args, 5), load_i64(args, 6)
        n, c = load_i64(args, 7), load_i64(args, 8)
        x_n, out_n = load_i64(args, 10), load_i64(args, 12)
        eps = as_float64(args)[14]
        mean, total, scale = stack(TILE_BYTES), stack(TILE_BYTES), stack(TILE_BYTES)
        for tile in range(lo, hi):
            first = tile * TILE
            width = min(TILE, c - first)
            for j in range(width):
                put(total, j, 0.0)
            for i in range(n):
                at = i * x_n + first
                for j in range(width):
                    d = F64(get(dtype(0), x, at + j)) - F64(get(dtype(0), x, first + j))
                    put(total, j, get(0.0, total, j) + d)
            for j in range(width):
                put(mean, j, F64(get(dtype(0), x, first + j)) + get(0.0, total, j) / F64(n))
                put(total, j, 0.0)
            for i in range(n):
                at = i * x_n + first
                for j in range(width):
                    d = F64(get(dtype(0), x, at + j)) - get(0.0, mean, j)
                    put(total, j, get(0.0, total, j) + d * d)
            for j in range(width):
                variance = get(0.0, total, j) / F64(n)
                inverse = 1 / np.sqrt(variance + eps)
                put(means, first + j, get(0.0, mean, j))
                put(inverses, first + j, inverse)
                if variances != 0:
                    put(variances, first + j, variance)
                put(scale, j, inverse * F64(get(dtype(0), weight, first + j)))
            for i in range(n):
                at, to = i * x_n + first, i * out_n + first
                for j in range(width):
                    d = F64(get(dtype(0), x, at + j)) - get(0.0, mean, j)
                    y = d * get(0.0, scale, j) + F64(get(dtype(0), bias, first + j))
                    put(out, to + j, dtype(y))

    return named(name, columns_forward)


def _columns_backward(name: str, dtype: Any) -> Handwritten:
    def columns_backward(args, lo, hi, worker):
        """The gradients of ``columns_forward``, by the formulas of ``planes_backward``.

        Slots: :class:`PlanesBackward` with s and the strides of c 1. Items are tiles of TILE
        channels. Strides of n: any. Reads g and x twice (once if dx is not wanted), writes an item
        an item of dx. Not checked: n >= 1, overlap.
        """
        dx, dweight, dbias = load_i64(args, 0), load_i64(args, 1), load_i64(args, 2)
        g, x, weight = load_i64(args, 3), load_i64(args, 4), load_i64(args, 5)
        means, inverses = load_i64(args, 6), load_i64(args, 7)
        n, c = load_i64(args, 8), load_i64(args, 9)
        g_n, x_n, dx_n = load_i64(args, 11), load_i64(args, 13), load_i64(args, 15)
        fixed = load_i64(args, 17)
        plain, weighted, scale = stack(TILE_BYTES), stack(TILE_BYTES), stack(TILE_BYTES)
        for tile in range(lo, hi):
            first = tile * TILE
            width = min(TILE, c - first)
            for j in range(width):
                put(plain, j, 0.0)
                put(weighted, j, 0.0)
                w = F64(get(dtype(0), weight, first + j))
                put(scale, j, get(0.0, inverses, first + j) * w)
            if x != 0:
                for i in range(n):
                    g_at, x_at = i * g_n + first, i * x_n + first
                    for j in range(width):
                        v = F64(get(dtype(0), g, g_at + j))
                        d = F64(get(dtype(0), x, x_at + j)) - get(0.0, means, first + j)
                        put(plain, j, get(0.0, plain, j) + v)
                        put(weighted, j, get(0.0, weighted, j) + v * d)
            elif dbias != 0:
                for i in range(n):
                    at = i * g_n + first
                    for j in range(width):
                        put(plain, j, get(0.0, plain, j) + F64(get(dtype(0), g, at + j)))
            for j in range(width):
                inverse = get(0.0, inverses, first + j)
                if dbias != 0:
                    put(dbias, first + j, dtype(get(0.0, plain, j)))
                if dweight != 0:
                    put(dweight, first + j, dtype(get(0.0, weighted, j) * inverse))
                put(plain, j, -get(0.0, scale, j) * get(0.0, plain, j) / F64(n))
                slope = -get(0.0, scale, j) * inverse * inverse * get(0.0, weighted, j) / F64(n)
                put(weighted, j, slope)
            if dx == 0:
                continue
            for i in range(n):
                g_at, to = i * g_n + first, i * dx_n + first
                if fixed != 0:
                    for j in range(width):
                        v = get(0.0, scale, j) * F64(get(dtype(0), g, g_at + j))
                        put(dx, to + j, dtype(v))
                    continue
                x_at = i * x_n + first
                for j in range(width):
                    d = F64(get(dtype(0), x, x_at + j)) - get(0.0, means, first + j)
                    rest = get(0.0, weighted, j) * d + get(0.0, plain, j)
                    v = get(0.0, scale, j) * F64(get(dtype(0), g, g_at + j)) + rest
                    put(dx, to + j, dtype(v))

    return named(name, columns_backward)


# ------------------------------------------------------------------------------ known statistics


@njit(error_model="numpy", inline="always")
def _known_scale(dtype, args, c):
    """weight / sqrt(variance + eps) of channel c, rounded by nobody yet."""
    weight, eps = load_i64(args, 2), as_float64(args)[13]
    inverse = 1 / np.sqrt(F64(get(dtype(0), load_i64(args, 5), c)) + eps)
    return inverse if weight == 0 else F64(get(dtype(0), weight, c)) * inverse


@njit(error_model="numpy", inline="always")
def _known_shift(dtype, args, c, scale):
    """bias - mean * scale of channel c."""
    bias, mean = load_i64(args, 3), load_i64(args, 4)
    shift = 0.0 if bias == 0 else F64(get(dtype(0), bias, c))
    return shift - F64(get(dtype(0), mean, c)) * scale


@njit(error_model="numpy", inline="always")
def _affine_channels(dtype, args, lo, hi, worker):
    out, x = load_i64(args, 0), load_i64(args, 1)
    shifted, n, channels = load_i64(args, 4) != 0, load_i64(args, 6), load_i64(args, 7)
    s = load_i64(args, 8)
    x_n, x_c = load_i64(args, 9), load_i64(args, 10)
    out_n, out_c = load_i64(args, 11), load_i64(args, 12)
    if s == 1:
        scales, shifts = stack(TILE_BYTES), stack(TILE_BYTES)
        for tile in range(lo, hi):
            first = tile * TILE
            width = least(TILE, channels - first)
            for j in range(width):
                scale = _known_scale(dtype, args, first + j)
                put(scales, j, dtype(scale))
                put(shifts, j, dtype(0))
                if shifted:
                    put(shifts, j, dtype(_known_shift(dtype, args, first + j, scale)))
            for i in range(n):
                at, to = i * x_n + first, i * out_n + first
                for j in range(0, width, lanes(dtype(0))):
                    v = multiply(
                        load_some(dtype(0), x, at + j, width - j), load(dtype(0), scales, j)
                    )
                    if shifted:
                        v = add(v, load(dtype(0), shifts, j))
                    store_some(out, to + j, v, width - j)
        return
    whole = s - s % lanes(dtype(0))
    for item in range(lo, hi):
        i, c = item // channels, item % channels
        wide = _known_scale(dtype, args, c)
        at, to = i * x_n + c * x_c, i * out_n + c * out_c
        scale = splat(dtype(wide))
        if shifted:
            shift = splat(dtype(_known_shift(dtype, args, c, wide)))
            for j in range(0, whole, lanes(dtype(0))):
                store(out, to + j, multiply_add(load(dtype(0), x, at + j), scale, shift))
            if whole < s:
                v = multiply_add(load_some(dtype(0), x, at + whole, s - whole), scale, shift)
                store_some(out, to + whole, v, s - whole)
        else:
            for j in range(0, whole, lanes(dtype(0))):
                store(out, to + j, multiply(load(dtype(0), x, at + j), scale))
            if whole < s:
                v = multiply(load_some(dtype(0), x, at + whole, s - whole), scale)
                store_some(out, to + whole, v, s - whole)


@for_this_cpu
def affine_channels_float32(args, lo, hi, worker):
    """out[i, c, j] = x[i, c, j] * scale[c] + shift[c], in the element's own type.

    scale = weight / sqrt(variance + eps) and shift = bias - mean * scale, each calculated in
    float64 and rounded once; without mean there is no shift. Slots: :class:`Affine`. Items are
    planes, i * c + the number of the channel; with s = 1 they are tiles of TILE channels, and
    channels adjoin. Other strides: any. Reads an item and writes an item an item. Not checked:
    overlap.
    """
    _affine_channels(np.float32, args, lo, hi, worker)


@for_this_cpu
def affine_channels_float64(args, lo, hi, worker):
    """As :func:`affine_channels_float32`, in float64."""
    _affine_channels(np.float64, args, lo, hi, worker)


def _fold_statistics(name: str, dtype: Any) -> Handwritten:
    def fold_statistics(args, lo, hi, worker):
        """centre = mean and inverse = 1 / sqrt(variance + eps) as float64.

        Slots: :class:`Fold`. Items are channels. All contiguous. Reads two items and writes two.
        Not checked: overlap.
        """
        centres, inverses = load_i64(args, 0), load_i64(args, 1)
        means, variances = load_i64(args, 2), load_i64(args, 3)
        eps = as_float64(args)[4]
        for c in range(lo, hi):
            put(centres, c, F64(get(dtype(0), means, c)))
            put(inverses, c, 1 / np.sqrt(F64(get(dtype(0), variances, c)) + eps))

    return named(name, fold_statistics)


planes_forward_float32 = _planes_forward("planes_forward_float32", np.float32)
planes_forward_float64 = _planes_forward("planes_forward_float64", np.float64)
planes_backward_float32 = _planes_backward("planes_backward_float32", np.float32)
planes_backward_float64 = _planes_backward("planes_backward_float64", np.float64)
columns_forward_float32 = _columns_forward("columns_forward_float32", np.float32)
columns_forward_float64 = _columns_forward("columns_forward_float64", np.float64)
columns_backward_float32 = _columns_backward("columns_backward_float32", np.float32)
columns_backward_float64 = _columns_backward("columns_backward_float64", np.float64)
fold_statistics_float32 = _fold_statistics("fold_statistics_float32", np.float32)
fold_statistics_float64 = _fold_statistics("fold_statistics_float64", np.float64)
