"""Softmax and the losses: values, edges, gradients of both orders, labels, errors."""

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


# ------------------------------------------------------------------------------------------- losses


def expected_nll(scores, target, weight, ignore, reduction):
    """Element by element, as the definition says."""
    scores = np.moveaxis(scores, 1, -1) if scores.ndim > 1 else scores
    losses, weights = np.zeros(target.shape), np.zeros(target.shape)
    for index in np.ndindex(target.shape):
        label = target[index]
        if label != ignore:
            weights[index] = 1 if weight is None else weight[label]
            losses[index] = -weights[index] * scores[index][label]
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / weights.sum()


CASES = [  # shapes of x and target
    ((4,), ()),
    ((5, 4), (5,)),
    ((5, 4, 3), (5, 3)),
    ((2, 4, 3, 2), (2, 3, 2)),
]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("shape", "labels"), CASES)
def test_cross_entropy(shape, labels, reduction):
    rng = np.random.default_rng(1)
    x, target = rng.standard_normal(shape), rng.integers(0, 4, labels)
    weight = rng.random(4) + 0.5
    scores = scipy.special.log_softmax(x, axis=1 if x.ndim > 1 else 0)
    t = numgrad.tensor(target)
    for w, ignore in itertools.product((None, weight), (-100, 2)):
        if ignore == 2 and labels == () and target == 2:
            continue  # all ignored: test_values.py
        named = {"weight": None if w is None else numgrad.tensor(w), "ignore_index": ignore}
        for a in layouts(x, None).values():
            got = numgrad.cross_entropy(numgrad.from_numpy(a), t, reduction=reduction, **named)
            expected = np.asarray(expected_nll(scores, target, w, ignore, reduction))
            assert_close(got.numpy(), expected, 1e-13, "cross_entropy")
        got = numgrad.nll_loss(numgrad.tensor(scores), t, reduction=reduction, **named)
        assert_close(got.numpy(), expected, 1e-13, "nll_loss")
        check_gradients(
            lambda x: numgrad.cross_entropy(x, t, reduction=reduction, **_typed(named, x.dtype)),
            [x],
            "cross_entropy",
        )


def _typed(named, dtype):
    weight = named["weight"]
    return {**named, "weight": None if weight is None else weight.to(dtype)}


def test_labels():
    x = numgrad.zeros(2, 5, requires_grad=True)
    for bad in (-1, -4, 5, 100):
        for function in (numgrad.cross_entropy, numgrad.nll_loss):
            with pytest.raises(IndexError, match=f"got {bad}; Target {bad} is out of bounds"):
                function(x, numgrad.tensor([1, bad]))
    with pytest.raises(TypeError, match="int64 labels for target"):
        numgrad.cross_entropy(x, numgrad.tensor([1.0, 2.0]))
    for shape in ((3,), (2, 5), (2, 1), ()):
        with pytest.raises(ValueError, match="for target"):
            numgrad.cross_entropy(x, numgrad.zeros(*shape, dtype="int64"))
    with pytest.raises(TypeError, match="expected a Tensor for target"):
        numgrad.cross_entropy(x, [1, 2])
    with pytest.raises(TypeError, match="expected a Tensor for x"):
        numgrad.cross_entropy(np.zeros((2, 5)), numgrad.tensor([1, 2]))
    assert x.grad is None
    for dtype in ("uint8", "int32"):
        labels = numgrad.tensor([1, 2], dtype=dtype)
        assert numgrad.cross_entropy(x, labels).item() == pytest.approx(np.log(5))


LOSSES = {
    "mse_loss": (numgrad.mse_loss, lambda x, y: (x - y) ** 2),
    "l1_loss": (numgrad.l1_loss, lambda x, y: np.abs(x - y)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_regression_losses(name):
    function, reference = LOSSES[name]
    x, y = RNG.standard_normal((2, 3, 4))
    for reduction in ("mean", "sum", "none"):
        expected = reference(x, y)
        expected = expected if reduction == "none" else getattr(np, reduction)(expected)
        got = function(numgrad.tensor(x), numgrad.tensor(y), reduction=reduction)
        assert_close(got.numpy(), np.asarray(expected), 1e-14, name)
        check_gradients(lambda a, b: function(a, b, reduction=reduction), [x, y], name)
    with pytest.raises(ValueError, match="'mean', 'sum' or 'none' for reduction"):
        function(numgrad.tensor(x), numgrad.tensor(y), reduction="max")
    with pytest.raises(TypeError, match="expected a Tensor"):
        function(numgrad.tensor(x), y)
    with (
        pytest.raises(ValueError, match="broadcasts"),
        pytest.warns(UserWarning, match="different to the input size"),
    ):
        function(numgrad.tensor(x), numgrad.ones(7, dtype="float64"))


@pytest.mark.parametrize("name", [*LOSSES, "cross_entropy", "nll_loss"])
def test_old_reduction_arguments(name):
    function = getattr(numgrad, name)
    x = numgrad.tensor(RNG.standard_normal((3, 4)))
    y = numgrad.tensor([0, 1, 3]) if name not in LOSSES else numgrad.ones(3, 4, dtype="float64")
    for old, new in (
        ({"size_average": True}, "mean"),
        ({"size_average": False}, "sum"),
        ({"reduce": False}, "none"),
        ({"reduce": True}, "mean"),
        ({"size_average": False, "reduce": True}, "sum"),
    ):
        with pytest.warns(UserWarning, match=f"reduction='{new}'"):
            got = function(x, y, **old)
        np.testing.assert_array_equal(got.numpy(), function(x, y, reduction=new).numpy())
