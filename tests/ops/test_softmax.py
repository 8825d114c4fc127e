"""Softmax: values, edges, gradients of both orders, errors."""

import itertools

import numpy as np
import pytest
import scipy.special

import numgrad
from numgrad import memory
from tests.checks import assert_close, check_gradients, layouts

F64 = np.dtype("float64")
FUNCTIONS = {
    "softmax": (numgrad.softmax, scipy.special.softmax),
    "log_softmax": (numgrad.log_softmax, scipy.special.log_softmax),
}
each_function = pytest.mark.parametrize("name", FUNCTIONS)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 4, 5)) * 3


# ------------------------------------------------------------------------------------------ softmax


@each_function
def test_forward(name):
    function, reference = FUNCTIONS[name]
    for dtype, tolerance in (("float32", 1e-6), ("float64", 1e-14)):
        x = X.astype(dtype)
        for axis, a in itertools.product((0, 1, 2, -1), layouts(x, None).values()):
            got = function(numgrad.from_numpy(a), axis)
            assert got.dtype == x.dtype
            expected = reference(x.astype(np.float64), axis=axis)
            assert_close(got.numpy(), expected, tolerance, f"{name} along {axis}")
    whole = numgrad.tensor([1, 2])
    with pytest.raises(TypeError, match="a floating dtype for x"):
        function(whole, 0)
    assert function(whole, 0, dtype="float64").dtype == F64


@each_function
def test_edges(name):
    function, reference = FUNCTIONS[name]
    inf = np.inf
    rows = np.array(
        [
            [1.0, -inf, 1.0],
            [0.0, 50.0, -50.0],
            [1e4, 1e4 + 1, -1e4],
            [-1e4, -1e4, -1e4],
            [1.0, np.nan, 2.0],
        ]
    )
    for dtype in ("float32", "float64"):
        x = rows.astype(dtype)
        expected = reference(x.astype(np.float64), axis=1)
        got = function(numgrad.tensor(x), 1).numpy()
        assert_close(got[:4], expected[:4], 1e-6, name)
        assert np.isnan(got[4]).all()
    for row in ([-inf, -inf], [inf, 1.0]):
        assert np.isnan(function(numgrad.tensor(row), 0).numpy()).any()
    t = numgrad.tensor(rows[:4], requires_grad=True)
    function(t, 1)[:, 0].sum().backward()
    assert np.isfinite(t.grad.numpy()).all()


@each_function
def test_shapes(name):
    function = FUNCTIONS[name][0]
    assert function(numgrad.zeros(0, 3), 1).shape == (0, 3)
    assert function(numgrad.zeros(3, 0), 1).shape == (3, 0)
    assert function(numgrad.zeros(0, 3), 0).shape == (0, 3)
    scalar = function(numgrad.tensor(3.0), 0)
    assert scalar.shape == () and scalar.item() == (1.0 if name == "softmax" else 0.0)
    long = RNG.standard_normal((3, 50_000))
    for a, axis in ((long, 1), (long.T.copy(), 0)):
        expected = FUNCTIONS[name][1](a, axis=axis)
        np.testing.assert_allclose(function(numgrad.tensor(a), axis).numpy(), expected, rtol=1e-12)
    with pytest.raises(IndexError):
        function(numgrad.zeros(2, 3), 2)
    with pytest.raises(TypeError, match="expected a Tensor"):
        function([1.0], 0)


@each_function
def test_implicit_axis(name):
    """The old choice of an axis, with its warning: 0 for 0, 1 and 3 axes, else 1."""
    function = FUNCTIONS[name][0]
    for shape, axis in (((3,), 0), ((2, 3), 1), ((2, 3, 2), 0), ((2, 3, 2, 2), 1)):
        x = numgrad.tensor(RNG.standard_normal(shape))
        with pytest.warns(UserWarning, match="Implicit dimension choice"):
            got = function(x)
        np.testing.assert_array_equal(got.numpy(), function(x, axis).numpy())


@each_function
def test_gradient(name):
    function = FUNCTIONS[name][0]
    for axis in (0, 1, -1):
        check_gradients(lambda t: function(t, axis), [X / 3], name)


@each_function
def test_saves_only(name):
    x = numgrad.tensor(X, requires_grad=True)
    with memory.track() as m:
        out = FUNCTIONS[name][0](x, 1)
    assert (m.nodes, m.saved_tensors, m.saved_bytes) == (1, 1, out.array.nbytes)
    with memory.track() as m, numgrad.no_grad():
        FUNCTIONS[name][0](x, 1)
    assert (m.nodes, m.saved_tensors) == (0, 0)
