"""Gathering, scattering, extremes and true places against their NumPy twins."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from numba import njit

from numgrad.kernels import native
from numgrad.kernels.cpu import indexing
from numgrad.kernels.reference import indexing as reference

WORDS = {"1": np.uint8, "4": np.float32, "8": np.float64}
SUMMED = ["float32", "float64", "int32", "int64"]
COMPARED = [*SUMMED, "uint8", "bool"]
ROWS = [(1, 1, 1), (7, 1, 20), (7, 3, 20), (50, 64, 90), (5, 131, 7), (4, 5, 0), (4, 0, 6)]
CANONICAL = [  # outer, axis, inner, count
    (1, 1, 1, 1), (3, 5, 1, 8), (3, 5, 4, 2), (2, 90, 37, 60), (20, 3, 1, 1), (4, 6, 5, 0),
    (0, 3, 4, 2), (3, 4, 0, 2),
]  # fmt: skip
EXTREMES = [
    (1, 1, 1), (3, 2, 1), (4, 63, 1), (3, 64, 1), (2, 65, 1), (2, 1000, 1), (5, 7, 6), (2, 9, 300),
    (1, 4, 513), (0, 4, 5), (4, 3, 0),
]  # fmt: skip


@njit
def launch(address, args, lo, hi):
    native.call_ranged(address, args, lo, hi, 0)


def run(name, items, *slots, cuts=()):
    """Run a kernel on its items, whole or in the ranges between ``cuts``, the last range first."""
    slots = [s.ctypes.data if isinstance(s, np.ndarray) else int(s) for s in slots]
    args = np.array(slots, np.int64)
    edges = [0, *(cut for cut in cuts if cut < items), items]
    for lo, hi in reversed(list(itertools.pairwise(edges))):
        launch(getattr(indexing, name).address, args.ctypes.data, lo, hi)


def values(shape, dtype, seed=0):
    """Few different numbers (ties), whose float sums depend on the order of addition."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return (rng.integers(-9, 9, shape) / 7 * 10.0 ** rng.integers(-3, 3, shape)).astype(dtype)
    return rng.integers(0 if np.dtype(dtype).kind in "bu" else -9, 9, shape).astype(dtype)


def places(shape, high, seed=1):
    return np.random.default_rng(seed).integers(0, high, shape)


def spaced(x, gap=3):
    """The same numbers with rows further apart: (view with the stride, stride in bytes)."""
    wide = np.zeros((x.shape[0], x.shape[1] + gap), x.dtype)
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]], wide.strides[0]


@pytest.mark.parametrize("width", WORDS)
def test_take_rows(width):
    name = f"take_rows_{width}"
    for rows, inner, n in ROWS:
        x, index = values((rows, inner), WORDS[width]), places(n, rows)
        expected = getattr(reference, name)(x, index)
        for source, stride in [(x, inner * x.itemsize), spaced(x), (x[::-1], -inner * x.itemsize)]:
            for cuts in [(), (1, 5)]:
                out = np.empty_like(expected)
                run(name, n, out, source, index, inner, stride, cuts=cuts)
                np.testing.assert_array_equal(out, source[index])
        np.testing.assert_array_equal(x[index], expected)


@pytest.mark.parametrize("width", WORDS)
def test_put_rows(width):
    name = f"put_rows_{width}"
    for rows, inner, n in ROWS:
        out, index = values((rows, inner), WORDS[width]), places(n, rows)
        v = np.arange(n * inner).reshape(n, inner).astype(out.dtype)
        expected = out.copy()
        getattr(reference, name)(expected, v, index)
        for cuts in [(), (1, 2, 40)]:
            got, stride = spaced(out)
            run(name, inner, got, v, index, n, stride, v.strides[0] if n else 0, cuts=cuts)
            np.testing.assert_array_equal(got, expected)
            assert not got.base[:, inner:].any()
        one_row = out.copy()
        run(name, inner, one_row, v, index, n, inner * out.itemsize, 0)
        if n and inner:
            out[index] = v[0]
        np.testing.assert_array_equal(one_row, out)


@pytest.mark.parametrize("dtype", SUMMED)
def test_add_rows(dtype):
    name = f"add_rows_{dtype}"
    for rows, inner, n in ROWS:
        out, v = values((rows, inner), dtype), values((n, inner), dtype, 5)
        index = places(n, rows)
        expected = out.copy()
        getattr(reference, name)(expected, v, index)
        for cuts in [(), (1, 2, 40)]:
            got, stride = spaced(out)
            run(name, inner, got, v, index, n, stride, inner * v.itemsize, cuts=cuts)
            np.testing.assert_array_equal(got, expected)
            assert not got.base[:, inner:].any()


def test_add_rows_wraps():
    for dtype in (np.int32, np.int64):
        out, top = np.zeros((1, 2), dtype), np.iinfo(dtype).max
        v, index = np.array([[top, 1], [1, 1]], dtype), np.zeros(2, np.int64)
        size = out.itemsize
        run(f"add_rows_{np.dtype(dtype)}", 2, out, v, index, 2, 2 * size, 2 * size)
        assert out.tolist() == [[np.iinfo(dtype).min, 2]]


@pytest.mark.parametrize("width", WORDS)
def test_take_along(width):
    name = f"take_along_{width}"
    for outer, axis, inner, count in CANONICAL:
        x, index = values((outer, axis, inner), WORDS[width]), places((outer, count, inner), axis)
        expected = getattr(reference, name)(x, index)
        for cuts in [(), (1, 2, 5, 50, 51)]:
            out = np.empty_like(expected)
            run(name, outer * inner, out, x, index, axis, count, inner, cuts=cuts)
            np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", SUMMED)
def test_add_along(dtype):
    name = f"add_along_{dtype}"
    for outer, axis, inner, count in CANONICAL:
        out, v = values((outer, axis, inner), dtype), values((outer, count, inner), dtype, 5)
        index = places((outer, count, inner), axis)
        expected = out.copy()
        getattr(reference, name)(expected, v, index)
        for cuts in [(), (1, 2, 5, 50, 51)]:
            got = out.copy()
            run(name, outer * inner, got, v, index, axis, count, inner, cuts=cuts)
            np.testing.assert_array_equal(got, expected)


def check_extremes(name, x, cuts=(), want=(True, True)):
    """Compare a kernel with its twin on a canonical x of any strides, with poisoned outputs."""
    outer, _, inner = x.shape
    best, where = np.full((outer, inner), 77).astype(x.dtype), np.full((outer, inner), -7)
    slots = [best if want[0] else 0, where if want[1] else 0, x, x.shape[1], inner, *x.strides]
    run(name, outer * inner, *slots, cuts=cuts)
    expected_best, expected_where = getattr(reference, name)(x)
    if want[0]:
        np.testing.assert_array_equal(best, expected_best)
    if want[1]:
        np.testing.assert_array_equal(where, expected_where)


@pytest.mark.parametrize("dtype", COMPARED)
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_extremes(kind, dtype):
    name = f"{kind}_{dtype}"
    for shape in EXTREMES:
        x = values(shape, dtype)
        # contiguous axis, contiguous inner, neither, reversed, broadcast
        outer, axis, inner = shape
        last = np.ascontiguousarray(x.transpose(0, 2, 1)).transpose(0, 2, 1)
        apart = np.zeros((outer, axis, inner, 2), x.dtype)
        apart[..., 0] = x
        for view in (x, last, apart[..., 0], x[:, ::-1], last[:, ::-1, ::-1]):
            for cuts in [(), (1, 2, 250, 257, 300)]:
                check_extremes(name, view, cuts)
        check_extremes(name, np.broadcast_to(x[:1], (3 if outer else 0, axis, inner)))
        check_extremes(name, x, want=(True, False))
        check_extremes(name, x, want=(False, True))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_extremes_of_nan_and_inf(kind, dtype):
    rng = np.random.default_rng(3)
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], dtype)
    for shape in [(40, 7, 1), (10, 300, 1), (3, 5, 300), (6, 6, 6)]:
        x = values(shape, dtype)
        few = np.where(rng.random(shape) < 0.01, rng.choice(special, shape), x)
        for y in (few, rng.choice(special, shape), rng.choice(special[2:], shape)):
            check_extremes(f"{kind}_{dtype}", y)
            check_extremes(f"{kind}_{dtype}", y.transpose(2, 1, 0))


@pytest.mark.parametrize("dtype", COMPARED)
def test_extremes_at_each_place(dtype):
    """One item sticks out, at every place of a lane that spans several blocks."""
    n = 150
    x = np.eye(n, dtype=dtype)[:, :, None]
    check_extremes(f"argmax_{dtype}", x)
    check_extremes(f"argmin_{dtype}", (1 - x.astype(np.int8)).astype(dtype))
    if dtype.startswith(("int", "uint")):
        ends = np.tile(np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype), 50)
        check_extremes(f"argmax_{dtype}", ends[None, :, None])
        check_extremes(f"argmin_{dtype}", ends[None, ::-1, None])


def test_true_indices():
    rng = np.random.default_rng(4)
    for n in (0, 1, 7, 64, 1000, 4099):
        for share in (0.0, 0.01, 0.5, 1.0):
            for mask in (rng.random(n) < share, ((rng.random(n) < share) * 6).astype(np.uint8)):
                count = np.full(1, -1)
                run("count_true", n, count, mask)
                assert count[0] == reference.count_true(mask)
                out = np.full(count[0] + 2, -5)
                run("write_true_indices", n, out, mask, count[0])
                np.testing.assert_array_equal(out[:-2], reference.write_true_indices(mask))
                assert (out[-2:] == -5).all()


def test_second_process_compiles_nothing(tmp_path):
    """Kernels made by one factory have cache entries of their own, found by the next process."""
    code = (
        "from numgrad.kernels import store; from numgrad.kernels.cpu import indexing as k\n"
        "for kernel in (k.put_rows_1, k.put_rows_4, k.add_rows_int32, k.add_rows_int64): "
        "kernel.address\n"
        "print(store.stats.compiled, store.stats.hits)"
    )
    environment = {**os.environ, "NUMGRAD_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", code]
    seen = [subprocess.check_output(command, env=environment, text=True) for _ in range(2)]
    assert [line.split() for line in seen] == [["4", "0"], ["0", "4"]]
