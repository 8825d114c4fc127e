"""The kernels of normalisation by address: formulas, strides, items in any split."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numgrad.kernels import launch
from numgrad.kernels.cpu import normalization as channels
from numgrad.kernels.cpu import row_normalization as rows
from tests.checks import assert_close

DTYPES = ("float32", "float64")
TOLERANCE = {"float32": 3e-7, "float64": 1e-12}
EPS = 1e-3
F64 = np.float64


def bits(x):
    return int(np.float64(x).view(np.int64))


def run(kernel, args, items, split=None):
    """All items in one range, or in ``split`` ranges on two workers."""
    slots = [launch.address(a) if isinstance(a, np.ndarray) else a for a in args]
    if split:
        launch.ranged(kernel, slots, items, workers=2, unit=max(items // split, 1))
    else:
        launch.ranged(kernel, slots, items, parallel=False)


def strided(rng, dtype, n, c, s, inner_last=True):
    """x (n, c, s) whose last axis (or c, where s is 1) is contiguous; n and c lie anyhow."""
    big = rng.standard_normal((n + 1, 2 * c, s)).astype(dtype)
    x = big[:n, ::2] if inner_last else big[:n, :c]
    return x[::-1] if n > 1 and rng.integers(2) else x


def steps(x):
    return [x.strides[0] // x.itemsize, x.strides[1] // x.itemsize]


def moments(x, axes):
    wide = x.astype(F64)
    mean = wide.mean(axes, keepdims=True)
    return mean, 1 / np.sqrt(wide.var(axes, keepdims=True) + EPS)


def expected_gradients(g, x, weight, mean, inverse, axes, fixed=False):
    g, x, weight = g.astype(F64), x.astype(F64), weight.astype(F64)
    z = (x - mean) * inverse
    scaled = g * weight
    if fixed:
        return inverse * scaled, g * z
    along = scaled.mean(axes, keepdims=True), (scaled * z).mean(axes, keepdims=True)
    return inverse * (scaled - along[0] - z * along[1]), g * z


SIZES = st.tuples(st.integers(1, 6), st.integers(1, 150), st.sampled_from([1, 2, 7, 16, 33, 70]))


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25, deadline=None)
@given(SIZES, st.integers(0, 2**32 - 1), st.booleans())
def test_channels(dtype, sizes, seed, fixed):
    n, c, s = sizes
    rng, tolerance = np.random.default_rng(seed), TOLERANCE[dtype]
    x, g = (strided(rng, dtype, n, c, s, s > 1) for _ in range(2))
    weight, bias = (rng.standard_normal(c).astype(dtype) for _ in range(2))
    family = "columns" if s == 1 else "planes"
    items = -(-c // channels.TILE) if s == 1 else c
    out = np.full((n, c, s), np.nan, dtype)
    mean, inverse, variance = (np.full(c, np.nan) for _ in range(3))
    forward = getattr(channels, f"{family}_forward_{dtype}")
    args = [out, x, weight, bias, mean, inverse, variance, n, c, s, *steps(x), *steps(out)]
    run(forward, [*args, bits(EPS)], items)
    m, r = moments(x, (0, 2))
    w, b = weight.reshape(1, c, 1), bias.reshape(1, c, 1)
    assert_close(out, (x - m) * r * w.astype(F64) + b, tolerance, family)
    assert_close(mean, m.ravel(), 1e-14, "mean", 1)
    assert_close(inverse, r.ravel(), 1e-12, "inverse")
    assert_close(variance, x.astype(F64).var((0, 2)), 1e-13, "variance")
    again, out = out, np.empty_like(out)
    run(forward, [out, *args[1:6], 0, *args[7:], bits(EPS)], items, split=3)
    np.testing.assert_array_equal(out, again)

    dx, dz = expected_gradients(g, x, w, m, r, (0, 2), fixed)
    backward = getattr(channels, f"{family}_backward_{dtype}")
    found = np.full((n, c, s), np.nan, dtype), *(np.full(c, np.nan, dtype) for _ in range(2))
    tail = [g, x, weight, mean, inverse, n, c, s, *steps(g), *steps(x), *steps(out), int(fixed)]
    run(backward, [*found, *tail], items)
    wanted = dx, dz.sum((0, 2)), g.astype(F64).sum((0, 2))
    for got, answer in zip(found, wanted, strict=True):
        assert_close(got, answer, 20 * tolerance, f"{family} backward", 1)
    for i in range(3):  # one at a time: the same bits; x only where it is needed
        alone = [np.empty_like(a) if i == j else 0 for j, a in enumerate(found)]
        needs_x = i == 1 or (i == 0 and not fixed)
        rest = [g, x if needs_x else 0, *tail[2:]]
        run(backward, [*alone, *rest], items, split=2)
        np.testing.assert_array_equal(alone[i], found[i])


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks(dtype):
    """Channels of several blocks, whose means lie far apart."""
    rng = np.random.default_rng(2)
    n, c, s = 5, 2, channels.BLOCK // 2
    x = (rng.standard_normal((n, c, s)) + 100 * np.arange(n)[:, None, None]).astype(dtype)
    x[:, 1] = x[0, 0, 0]
    mean, inverse, variance = np.empty(c), np.empty(c), np.empty(c)
    out, ones, zeros = np.empty_like(x), np.ones(c, dtype), np.zeros(c, dtype)
    args = [out, x, ones, zeros, mean, inverse, variance, n, c, s, *steps(x), *steps(out)]
    run(getattr(channels, f"planes_forward_{dtype}"), [*args, bits(EPS)], c)
    assert_close(mean, x.mean((0, 2), dtype=F64), 1e-14)
    assert_close(variance, x.astype(F64).var((0, 2)), 1e-13)
    assert variance[1] == 0 and mean[1] == x[0, 0, 0] and not out[:, 1].any()


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25, deadline=None)
@given(
    st.tuples(
        st.integers(1, 7), st.integers(1, 3), st.integers(1, 40), st.sampled_from([1, 3, 20])
    ),
    st.integers(0, 2**32 - 1),
)
def test_rows(dtype, sizes, seed):
    n, groups, c, s = sizes
    rng, tolerance = np.random.default_rng(seed), TOLERANCE[dtype]
    inner = groups * c * s
    x, g = (
        rng.standard_normal((n, 2 * inner)).astype(dtype)[:, :inner].reshape(n, groups, c, s)
        for _ in range(2)
    )
    weight, bias = (rng.standard_normal(groups * c).astype(dtype) for _ in range(2))
    w, b = (v.reshape(1, groups, c, 1) for v in (weight, bias))
    out = np.full((n, groups, c, s), np.nan, dtype)
    mean, inverse = np.empty((n, groups)), np.empty((n, groups))
    x_n, g_n = (a.strides[0] // a.itemsize for a in (x, g))
    forward = getattr(rows, f"rows_forward_{dtype}")
    args = [x, weight, bias, mean, inverse, groups, c, s, x_n, inner, bits(EPS)]
    run(forward, [out, *args], n * groups)
    m, r = moments(x, (2, 3))
    assert_close(out, (x - m) * r * w.astype(F64) + b, tolerance, "rows")
    assert_close(mean, m[:, :, 0, 0], 1e-14, "mean", 1)
    assert_close(inverse, r[:, :, 0, 0], 1e-12, "inverse")
    again = np.empty_like(out)
    run(forward, [again, *args], n * groups, split=3)
    np.testing.assert_array_equal(again, out)

    dx, dz = expected_gradients(g, x, w, m, r, (2, 3))
    chunk = int(rng.integers(1, n + 1))
    parts = -(-n // chunk)
    found = np.full_like(out, np.nan), *(np.full((parts, groups * c), np.nan) for _ in range(2))
    tail = [g, x, weight, mean, inverse, n, groups, c, s, g_n, x_n, inner, chunk]
    backward = getattr(rows, f"rows_backward_{dtype}")
    run(backward, [*found, *tail], parts * groups)
    assert_close(found[0], dx, 20 * tolerance, "rows backward", 1)
    for got, answer in zip(found[1:], (dz, g.astype(F64)), strict=True):
        assert_close(got.sum(0), answer.sum((0, 3)).ravel(), 1e-11, "rows backward", 1)
    for i in range(3):
        alone = [np.empty_like(a) if i == j else 0 for j, a in enumerate(found)]
        run(backward, [*alone, *tail], parts * groups, split=2)
        np.testing.assert_array_equal(alone[i], found[i])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 70, 1), (3, 5, 1), (2, 5, 33), (1, 3, 2)])
def test_known_statistics(dtype, shape):
    rng = np.random.default_rng(4)
    n, c, s = shape
    x = strided(rng, dtype, n, c, s, s > 1)
    weight, bias, mean = (rng.standard_normal(c).astype(dtype) for _ in range(3))
    variance = rng.uniform(0.5, 2, c).astype(dtype)
    scale, shift = np.empty(c, dtype), np.empty(c, dtype)
    centre, inverse = np.empty(c), np.empty(c)
    fold = getattr(channels, f"fold_statistics_{dtype}")
    run(fold, [scale, shift, centre, inverse, weight, bias, mean, variance, bits(EPS)], c)
    r = 1 / np.sqrt(variance.astype(F64) + EPS)
    eps = TOLERANCE[dtype]
    assert_close(scale, weight * r, eps)
    assert_close(shift, bias - mean * (weight * r), eps)
    assert_close(centre, mean.astype(F64), 0)
    assert_close(inverse, r, 1e-14)
    run(fold, [0, 0, 0, inverse, weight, 0, mean, variance, bits(EPS)], c)
    affine = getattr(channels, f"affine_channels_{dtype}")
    out = np.empty((n, c, s), dtype)
    items = n if s == 1 else n * c
    for added in (shift, None):
        tail = [c, s, *steps(x), *steps(out)]
        run(affine, [out, x, scale, 0 if added is None else added, *tail], items, split=2)
        expected = x * scale.reshape(1, c, 1).astype(F64)
        assert_close(out, expected + (0 if added is None else added.reshape(1, c, 1)), eps)
