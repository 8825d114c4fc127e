"""The kernels of normalisation by address: formulas, strides, items in any split."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numgrad.kernels import launch
from numgrad.kernels.cpu import normalization as channels
from numgrad.kernels.cpu import row_normalization as rows
from numgrad.kernels.cpu import vector
from tests.checks import assert_close

ROOT = Path(__file__).parents[3]
DTYPES = ("float32", "float64")
TOLERANCE = {"float32": 3e-7, "float64": 1e-12}
EPS = 1e-3
F64 = np.float64


def run(kernel, args, items, split=None):
    """All items in one range, or in ``split`` ranges on two workers; None for a missing operand."""
    slots = [launch.address_or_0(a) if not isinstance(a, int) else a for a in args]
    if split:
        launch.ranged(kernel, slots, items, workers=2, unit=max(items // split, 1))
    else:
        launch.ranged(kernel, slots, items, parallel=False)


def strided(rng, dtype, n, c, s, inner_last=True):
    """x (n, c, s) whose last axis (or c, where s is 1) is contiguous; n and c lie anyhow."""
    big = rng.standard_normal((n + 1, 2 * c, s)).astype(dtype)
    x = big[:n, ::2] if inner_last else big[:n, :c]
    return x[::-1] if n > 1 and rng.integers(2) else x


def steps(**arrays):
    """The strides of n and c in elements, under the names of their slots."""
    return {
        f"{name}_{axis}": x.strides[i] // x.itemsize
        for name, x in arrays.items()
        for i, axis in enumerate("nc")
    }


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
    slots = channels.Planes(
        out=out,
        x=x,
        weight=weight,
        bias=bias,
        mean=mean,
        inverse=inverse,
        variance=variance,
        n=n,
        c=c,
        s=s,
        eps=launch.bits(EPS),
        **steps(x=x, out=out),
    )
    run(forward, slots, items)
    m, r = moments(x, (0, 2))
    w, b = weight.reshape(1, c, 1), bias.reshape(1, c, 1)
    assert_close(out, (x - m) * r * w.astype(F64) + b, tolerance, family)
    assert_close(mean, m.ravel(), 1e-14, "mean", 1)
    assert_close(inverse, r.ravel(), 1e-12, "inverse")
    assert_close(variance, x.astype(F64).var((0, 2)), 1e-13, "variance")
    again, out = out, np.empty_like(out)
    run(forward, slots._replace(out=out, variance=None), items, split=3)
    np.testing.assert_array_equal(out, again)

    dx, dz = expected_gradients(g, x, w, m, r, (0, 2), fixed)
    backward = getattr(channels, f"{family}_backward_{dtype}")
    found = {
        "dx": np.full((n, c, s), np.nan, dtype),
        "dweight": np.full(c, np.nan, dtype),
        "dbias": np.full(c, np.nan, dtype),
    }
    slots = channels.PlanesBackward(
        **found,
        g=g,
        x=x,
        weight=weight,
        mean=mean,
        inverse=inverse,
        n=n,
        c=c,
        s=s,
        fixed=int(fixed),
        **steps(g=g, x=x, dx=found["dx"]),
    )
    run(backward, slots, items)
    wanted = {"dx": dx, "dweight": dz.sum((0, 2)), "dbias": g.astype(F64).sum((0, 2))}
    for name, got in found.items():
        assert_close(got, wanted[name], 20 * tolerance, f"{family} {name}", 1)
    for name, got in found.items():  # one at a time: the same bits; x only where it is needed
        needs_x = name == "dweight" or (name == "dx" and not fixed)
        alone = np.empty_like(got)
        missing = dict.fromkeys(found) | {name: alone, "x": x if needs_x else None}
        run(backward, slots._replace(**missing), items, split=2)
        np.testing.assert_array_equal(alone, got)


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks(dtype):
    """Channels of several blocks, whose means lie far apart."""
    rng = np.random.default_rng(2)
    n, c, s = 5, 2, channels.BLOCK // 2
    x = (rng.standard_normal((n, c, s)) + 100 * np.arange(n)[:, None, None]).astype(dtype)
    x[:, 1] = x[0, 0, 0]
    mean, inverse, variance = np.empty(c), np.empty(c), np.empty(c)
    out, ones, zeros = np.empty_like(x), np.ones(c, dtype), np.zeros(c, dtype)
    slots = channels.Planes(
        out=out,
        x=x,
        weight=ones,
        bias=zeros,
        mean=mean,
        inverse=inverse,
        variance=variance,
        n=n,
        c=c,
        s=s,
        eps=launch.bits(EPS),
        **steps(x=x, out=out),
    )
    run(getattr(channels, f"planes_forward_{dtype}"), slots, c)
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
    slots = rows.Rows(
        out=out,
        x=x,
        weight=weight,
        bias=bias,
        mean=mean,
        inverse=inverse,
        groups=groups,
        channels=c,
        s=s,
        x_n=x_n,
        out_n=inner,
        eps=launch.bits(EPS),
    )
    run(forward, slots, n * groups)
    m, r = moments(x, (2, 3))
    assert_close(out, (x - m) * r * w.astype(F64) + b, tolerance, "rows")
    assert_close(mean, m[:, :, 0, 0], 1e-14, "mean", 1)
    assert_close(inverse, r[:, :, 0, 0], 1e-12, "inverse")
    again = np.empty_like(out)
    run(forward, slots._replace(out=again), n * groups, split=3)
    np.testing.assert_array_equal(again, out)

    dx, dz = expected_gradients(g, x, w, m, r, (2, 3))
    chunk = int(rng.integers(1, n + 1))
    parts = -(-n // chunk)
    found = {
        "dx": np.full_like(out, np.nan),
        "weights": np.full((parts, groups * c), np.nan),
        "biases": np.full((parts, groups * c), np.nan),
    }
    slots = rows.RowsBackward(
        **found,
        g=g,
        x=x,
        weight=weight,
        mean=mean,
        inverse=inverse,
        n=n,
        groups=groups,
        channels=c,
        s=s,
        g_n=g_n,
        x_n=x_n,
        dx_n=inner,
        chunk=chunk,
    )
    backward = getattr(rows, f"rows_backward_{dtype}")
    run(backward, slots, parts * groups)
    assert_close(found["dx"], dx, 20 * tolerance, "rows backward", 1)
    for name, answer in (("weights", dz), ("biases", g.astype(F64))):
        assert_close(found[name].sum(0), answer.sum((0, 3)).ravel(), 1e-11, name, 1)
    for name, got in found.items():
        alone = dict.fromkeys(found) | {name: np.empty_like(got)}
        run(backward, slots._replace(**alone), parts * groups, split=2)
        np.testing.assert_array_equal(alone[name], got)


KNOWN = [(4, 70, 1), (3, 5, 1), (2, 5, 33), (1, 3, 2), (2, 3, 49)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", KNOWN)
def test_known_statistics(dtype, shape):
    rng = np.random.default_rng(4)
    n, c, s = shape
    x = strided(rng, dtype, n, c, s, s > 1)
    weight, bias, mean = (rng.standard_normal(c).astype(dtype) for _ in range(3))
    variance = rng.uniform(0.5, 2, c).astype(dtype)
    centre, inverse = np.empty(c), np.empty(c)
    eps = launch.bits(EPS)
    fold = getattr(channels, f"fold_statistics_{dtype}")
    slots = channels.Fold(centre=centre, inverse=inverse, mean=mean, variance=variance, eps=eps)
    run(fold, slots, c)
    r = 1 / np.sqrt(variance.astype(F64) + EPS)
    assert_close(centre, mean.astype(F64), 0)
    assert_close(inverse, r, 1e-14)
    affine = getattr(channels, f"affine_channels_{dtype}")
    items = -(-c // channels.TILE) if s == 1 else n * c
    for w, b, m in [(weight, bias, mean), (weight, None, None), (None, None, mean)]:
        out = np.empty((n, c, s), dtype)
        slots = channels.Affine(
            out=out, x=x, weight=w, bias=b, mean=m, variance=variance, n=n, c=c, s=s, eps=eps,
            **steps(x=x, out=out),
        )  # fmt: skip
        run(affine, slots, items, split=2)
        scale = r if w is None else w * r
        shift = 0 if m is None else (0 if b is None else b) - m * scale
        expected = x * scale.reshape(1, c, 1) + np.broadcast_to(shift, c).reshape(1, c, 1)
        assert_close(out, expected, TOLERANCE[dtype], 4)


@pytest.mark.parametrize("instruction_set", ["avx2", "plain"])
def test_known_statistics_of_other_instruction_sets(instruction_set):
    if instruction_set == "avx2" and vector.INSTRUCTION_SET == "plain":
        pytest.skip("needs AVX2")
    environment = {**os.environ, "NUMGRAD_CPU": instruction_set, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{instruction_set}\n"


if __name__ == "__main__":
    for dtype, shape in itertools.product(DTYPES, KNOWN):
        test_known_statistics(dtype, shape)
    print(vector.INSTRUCTION_SET)
