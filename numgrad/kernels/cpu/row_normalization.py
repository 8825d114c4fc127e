"""Normalisation of rows: one mean and one deviation for each group of channels of a sample.

See ``normalization.py`` for how sums are made.
"""

from typing import Any, NamedTuple

import numpy as np

from ..native import as_float64, load_i64
from ..store import Handwritten, named
from .normalization import (
    F64,
    sum_deviations,
    sum_products,
    sum_squares,
    summing,
    write_affine,
    write_gradient,
)
from .vector import get, put


class Rows(NamedTuple):
    """Slots of ``rows_forward``."""

    out: int
    x: int
    weight: int
    bias: int
    mean: int
    """Address of n * groups float64; so is inverse."""
    inverse: int
    groups: int
    channels: int
    s: int
    x_n: int
    out_n: int
    eps: int
    """The bits of a float64."""


class RowsBackward(NamedTuple):
    """Slots of ``rows_backward``; dx, weights and biases may be 0."""

    dx: int
    weights: int
    """Address of (chunks, groups * channels) float64: sums over the samples of a chunk."""
    biases: int
    g: int
    x: int
    weight: int
    mean: int
    inverse: int
    n: int
    groups: int
    channels: int
    s: int
    g_n: int
    x_n: int
    dx_n: int
    chunk: int
    """Samples in a chunk."""


@summing
def sum_weighted_products(dtype, g, g_start, x, x_start, weight, w_start, n, mean):
    """The sums of ``w g`` and of ``w g (x - mean)``."""
    plain = 0.0
    weighted = 0.0
    for j in range(n):
        v = F64(get(dtype(0), g, g_start + j)) * F64(get(dtype(0), weight, w_start + j))
        plain += v
        weighted += v * (F64(get(dtype(0), x, x_start + j)) - mean)
    return plain, weighted


def _rows_forward(name: str, dtype: Any) -> Handwritten:
    def rows_forward(args, lo, hi, worker):
        """out[i, k, c, j] = (x[i, k, c, j] - mean[i, k]) inverse[i, k] weight[k, c] + bias[k, c].

        mean[i, k] and the variance are those of x[i, k], inverse is 1 / sqrt(var + eps). Slots:
        :class:`Rows`. Items are i * groups + k. A sample is contiguous; strides of n: any. Reads
        an item three times (twice from cache), writes an item an item. Not checked:
        channels * s >= 1, overlap.
        """
        out, x = load_i64(args, 0), load_i64(args, 1)
        weight, bias = load_i64(args, 2), load_i64(args, 3)
        means, inverses = load_i64(args, 4), load_i64(args, 5)
        groups, channels, s = load_i64(args, 6), load_i64(args, 7), load_i64(args, 8)
        x_n, out_n = load_i64(args, 9), load_i64(args, 10)
        eps = as_float64(args)[11]
        count = channels * s
        for item in range(lo, hi):
            sample, first = item // groups, item % groups * channels
            start, to = sample * x_n + first * s, sample * out_n + first * s
            shift = F64(get(dtype(0), x, start))
            mean = shift + sum_deviations(dtype, x, start, count, shift) / F64(count)
            variance = sum_squares(dtype, x, start, count, mean) / F64(count)
            inverse = 1 / np.sqrt(variance + eps)
            put(means, item, mean)
            put(inverses, item, inverse)
            if s == 1:
                for j in range(channels):
                    v = (F64(get(dtype(0), x, start + j)) - mean) * inverse
                    w = F64(get(dtype(0), weight, first + j))
                    put(out, to + j, dtype(v * w + F64(get(dtype(0), bias, first + j))))
                continue
            for c in range(channels):
                scale = inverse * F64(get(dtype(0), weight, first + c))
                b = F64(get(dtype(0), bias, first + c))
                write_affine(dtype, out, to + c * s, x, start + c * s, s, mean, scale, b)

    return named(name, rows_forward)


def _rows_backward(name: str, dtype: Any) -> Handwritten:
    def rows_backward(args, lo, hi, worker):
        """The gradients of ``rows_forward``; N = channels * s, d = x - mean, r = inverse:

        dx = r (w g - sum w g / N - d r² sum w g d / N), sums over the item;
        biases[chunk, k, c] = sum g and weights[chunk, k, c] = sum g d r over the chunk's samples.

        Slots: :class:`RowsBackward`. Items are chunk * groups + k. A sample is contiguous; strides
        of n: any. Reads g and x from memory once, writes an item an item of dx. Not checked:
        channels * s >= 1, overlap.
        """
        dx, weights, biases = load_i64(args, 0), load_i64(args, 1), load_i64(args, 2)
        g, x, weight = load_i64(args, 3), load_i64(args, 4), load_i64(args, 5)
        means, inverses = load_i64(args, 6), load_i64(args, 7)
        n, groups = load_i64(args, 8), load_i64(args, 9)
        channels, s = load_i64(args, 10), load_i64(args, 11)
        g_n, x_n, dx_n = load_i64(args, 12), load_i64(args, 13), load_i64(args, 14)
        chunk = load_i64(args, 15)
        count = F64(channels * s)
        for item in range(lo, hi):
            part, first = item // groups, item % groups * channels
            into = part * groups * channels + first
            for c in range(channels):
                if weights != 0:
                    put(weights, into + c, 0.0)
                if biases != 0:
                    put(biases, into + c, 0.0)
            for i in range(part * chunk, min(part * chunk + chunk, n)):
                mean = get(0.0, means, i * groups + item % groups)
                inverse = get(0.0, inverses, i * groups + item % groups)
                g_at, x_at = i * g_n + first * s, i * x_n + first * s
                plain, weighted = 0.0, 0.0
                if s == 1:
                    if dx != 0:
                        plain, weighted = sum_weighted_products(
                            dtype, g, g_at, x, x_at, weight, first, channels, mean
                        )
                    if weights != 0:
                        for c in range(channels):
                            d = (F64(get(dtype(0), x, x_at + c)) - mean) * inverse
                            v = F64(get(dtype(0), g, g_at + c)) * d
                            put(weights, into + c, get(0.0, weights, into + c) + v)
                    if biases != 0:
                        for c in range(channels):
                            v = F64(get(dtype(0), g, g_at + c))
                            put(biases, into + c, get(0.0, biases, into + c) + v)
                else:
                    for c in range(channels):
                        w = F64(get(dtype(0), weight, first + c))
                        a, b = sum_products(dtype, g, g_at + c * s, x, x_at + c * s, s, mean)
                        plain += w * a
                        weighted += w * b
                        if weights != 0:
                            put(weights, into + c, get(0.0, weights, into + c) + b * inverse)
                        if biases != 0:
                            put(biases, into + c, get(0.0, biases, into + c) + a)
                if dx == 0:
                    continue
                to = i * dx_n + first * s
                slope = -inverse * inverse * inverse * weighted / count
                constant = -inverse * plain / count
                if s == 1:
                    for c in range(channels):
                        w = inverse * F64(get(dtype(0), weight, first + c))
                        d = F64(get(dtype(0), x, x_at + c)) - mean
                        v = w * F64(get(dtype(0), g, g_at + c)) + (slope * d + constant)
                        put(dx, to + c, dtype(v))
                    continue
                for c in range(channels):
                    w = inverse * F64(get(dtype(0), weight, first + c))
                    write_gradient(
                        dtype, dx, to + c * s, g, g_at + c * s, x, x_at + c * s, s, mean, w, slope,
                        constant,
                    )  # fmt: skip

    return named(name, rows_backward)


rows_forward_float32 = _rows_forward("rows_forward_float32", np.float32)
rows_forward_float64 = _rows_forward("rows_forward_float64", np.float64)
rows_backward_float32 = _rows_backward("rows_backward_float32", np.float32)
rows_backward_float64 = _rows_backward("rows_backward_float64", np.float64)
