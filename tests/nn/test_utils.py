"""Bounds on gradients and parameters as a vector: values, memory, counters, errors."""

import math

import numpy as np
import pytest

import numgrad
import numgrad.nn as nn
from numgrad import Variable, memory
from numgrad.kernels import store
from numgrad.nn import utils
from numgrad.variable import Parameter

RNG = np.random.default_rng(0)
SHAPES = ((3, 4), (5,), (2, 3, 2, 2), ())


def parameters(dtype="float64", scale=1.0):
    found = [Parameter(numgrad.zeros(*s, dtype=dtype)) for s in SHAPES]
    for p in found:
        p.grad = numgrad.tensor(scale * RNG.standard_normal(p.shape), dtype=dtype)
    found.append(Parameter(numgrad.zeros(3)))  # one without gradient
    return found


def vector(found):
    return np.concatenate([p.grad.numpy().ravel() for p in found if p.grad is not None])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("p", [2, 2.0, 1, 3, math.inf, "inf", 0.5])
def test_norm(p, dtype):
    tolerance = 1e-6 if dtype == "float32" else 1e-13
    for limit in (0.3, 1e6):
        found = parameters(dtype)
        before = vector(found).astype(np.float64)
        expected = np.linalg.norm(before, float(p))
        grads = [q.grad for q in found]
        norm = utils.clip_grad_norm_(iter(found), limit, p)
        assert norm.shape == () and norm.dtype == dtype and norm.grad_fn is None
        assert norm.item() == pytest.approx(expected, rel=tolerance)
        factor = min(limit / (expected + 1e-6), 1)
        np.testing.assert_allclose(vector(found), before * factor, rtol=10 * tolerance)
        assert all(a is b.grad for a, b in zip(grads, found, strict=True))


def test_norm_of_one_of_none_and_by_its_old_name():
    p = parameters()[0]
    expected = np.linalg.norm(p.grad.numpy())
    with pytest.warns(UserWarning, match="deprecated in favor of"):
        norm = utils.clip_grad_norm(p, 0.5)
    assert norm.item() == pytest.approx(expected)
    assert np.linalg.norm(p.grad.numpy()) == pytest.approx(0.5, rel=1e-5)
    for empty in ([], [Parameter(numgrad.ones(2))], iter(())):
        assert utils.clip_grad_norm_(empty, 1.0).item() == 0


def test_norm_of_what_is_not_finite():
    for bad in (np.inf, -np.inf, np.nan):
        for p in (2, 1, math.inf):
            found = parameters()
            found[1].grad[2] = bad
            before = vector(found)
            with pytest.raises(RuntimeError, match="is non-finite, so it cannot be clipped"):
                utils.clip_grad_norm_(found, 1.0, p, error_if_nonfinite=True)
            np.testing.assert_array_equal(vector(found), before)
            norm = utils.clip_grad_norm_(found, 1.0, p)
            assert not math.isfinite(norm.item())
            after = vector(found)
            if np.isnan(bad):
                assert np.isnan(after).all()
            else:
                assert np.isnan(after).sum() == 1 and (after[np.isfinite(after)] == 0).all()


def test_norm_does_not_overflow():
    p = Parameter(numgrad.zeros(4))
    p.grad = numgrad.full((4,), 1e30)
    assert utils.clip_grad_norm_(p, 1.0).item() == pytest.approx(2e30)
    np.testing.assert_allclose(p.grad.numpy(), 0.5, rtol=1e-6)


def test_norm_launches_two_kernels_a_gradient_and_makes_no_graph():
    found = parameters("float32", scale=10)
    utils.clip_grad_norm_(found, 1.0)
    compiled = store.stats.compiled
    with memory.track() as m:
        utils.clip_grad_norm_(found, 0.123)
    assert m.launches <= 2 * len(SHAPES) + 1
    assert (m.nodes, store.stats.compiled) == (0, compiled)
    with memory.track() as m:
        utils.clip_grad_norm_(found, 1e9)
    assert m.launches <= len(SHAPES) + 1  # nothing to scale


@pytest.mark.parametrize(
    "clip", [lambda p: utils.clip_grad_norm_(p, 0.1), lambda p: utils.clip_grad_value_(p, 0.1)]
)
def test_a_gradient_that_is_in_use_counts_as_changed(clip):
    p, w = Parameter(numgrad.zeros(2)), numgrad.ones(2, requires_grad=True)
    p.grad = numgrad.tensor([3.0, 4.0])
    loss = (w * p.grad).sum()
    clip(p)
    with pytest.raises(numgrad.GradError, match="modified by an inplace operation"):
        loss.backward()


def test_gradients_with_a_graph_or_of_old_variables():
    x = Variable(numgrad.tensor([3.0, 4.0]), requires_grad=True)
    (x * x).sum().backward(create_graph=True)
    assert x.grad.requires_grad
    assert utils.clip_grad_norm_([x], 1.0).item() == pytest.approx(10)
    np.testing.assert_allclose(x.grad.data.numpy(), [0.6, 0.8], rtol=1e-5)


def test_value():
    found = parameters()
    found[1].grad[0] = np.nan
    before = vector(found)
    assert utils.clip_grad_value_(found, 0.4) is None
    np.testing.assert_array_equal(vector(found), np.clip(before, -0.4, 0.4))
    utils.clip_grad_value_(found[0], 0)
    assert (found[0].grad.numpy() == 0).all()


def test_vector():
    layer = nn.Linear(3, 2)
    flat = utils.parameters_to_vector(layer.parameters())
    values = [p.detach().numpy().ravel() for p in layer.parameters()]
    np.testing.assert_array_equal(flat.detach().numpy(), np.concatenate(values))
    flat.sum().backward()
    assert (layer.weight.grad.numpy() == 1).all() and (layer.bias.grad.numpy() == 1).all()
    new = numgrad.tensor(np.arange(8.0), dtype="float32")
    utils.vector_to_parameters(new, layer.parameters())
    assert layer.weight.tolist() == [[0, 1, 2], [3, 4, 5]] and layer.bias.tolist() == [6, 7]
    assert layer.weight.is_leaf and layer.weight.requires_grad
    with numgrad.no_grad():
        new.zero_()
    assert (layer.weight.detach().numpy() == 0).all()  # they share memory
    for op, call in (
        ("clip_grad_norm_", lambda bad: utils.clip_grad_norm_(bad, 1.0)),
        ("clip_grad_value_", lambda bad: utils.clip_grad_value_(bad, 1.0)),
        ("parameters_to_vector", utils.parameters_to_vector),
        ("vector_to_parameters", lambda bad: utils.vector_to_parameters(new, bad)),
    ):
        for bad in (layer, 3, [layer.weight, 3]):
            with pytest.raises(TypeError, match=f"^{op}: expected tensors for parameters, got"):
                call(bad)
    with pytest.raises(TypeError, match="a Tensor for vec"):
        utils.vector_to_parameters([1.0], layer.parameters())
    for bad in (numgrad.ones(7), numgrad.ones(2, 4)):
        with pytest.raises(ValueError, match=r"shape \(8,\) for vec"):
            utils.vector_to_parameters(bad, layer.parameters())
