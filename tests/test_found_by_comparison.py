"""What side-by-side runs with PyTorch found wrong: each a test of its kind, without PyTorch."""

import math

import numpy as np
import pytest

import numgrad
from numgrad.nn import functional as F

NAN = math.nan


def gradients(call, *values):
    leaves = [numgrad.tensor(np.array(v, np.float64)).requires_grad_() for v in values]
    call(*leaves).sum().backward()
    return [leaf.grad.tolist() for leaf in leaves]


@pytest.mark.parametrize("shape", [(0, 3), (0, 1), (2, 0)])
def test_gradients_of_nothing_accumulate(shape):
    """An expanded view without elements overlaps nothing: adding to it is allowed."""
    x = numgrad.zeros(shape, requires_grad=True)
    y = numgrad.ones(1, requires_grad=True)
    (x * y + x * 2 + y).sum().backward()
    assert x.grad.shape == shape and y.grad.tolist() == [0]


def test_clamp_in_place_of_nothing():
    x = numgrad.zeros(0, requires_grad=True)
    x.clone().clamp_(-1, 1).sum().backward()
    assert x.grad.shape == (0,)


@pytest.mark.parametrize(
    "call",
    [numgrad.relu, numgrad.relu6, numgrad.hardtanh, F.elu, lambda x: x.clone().relu_()],
    ids=["relu", "relu6", "hardtanh", "elu", "relu_"],
)
def test_activations_pass_the_gradient_at_nan(call):
    (dx,) = gradients(call, [NAN, 0.5, -8.0])
    assert dx[:2] == [1, 1] and abs(dx[2]) < 1e-3


def test_extremes_pass_the_gradient_at_nan():
    for call in (numgrad.maximum, numgrad.minimum):
        assert gradients(call, [NAN, 1.0, 2.0], [0.0, NAN, 2.0]) == [[1, 1, 0.5], [1, 1, 0.5]]


def test_prod_of_nothing():
    assert gradients(lambda x: numgrad.prod(x, 1), np.zeros((0, 3))) == [[]]
    assert gradients(lambda x: numgrad.prod(x, 1), np.zeros((3, 0))) == [[[], [], []]]


@pytest.mark.parametrize("shape", [(2, 0, 4), (0, 3, 0), (3, 2, 0), (0, 2, 3)])
def test_sums_of_nothing(shape):
    """Axes of an array without elements need not merge: this recursed without end."""
    x = np.zeros(shape)
    for axes in [(0,), (1,), (2,), (0, 2), (0, 1, 2)]:
        total = numgrad.tensor(x).sum(axes)
        np.testing.assert_array_equal(total.numpy(), x.sum(axes))


def test_any_and_all_of_uint8_stay_uint8():
    x = numgrad.tensor([0, 3], dtype=numgrad.uint8)
    assert (x.any().dtype, x.any().item()) == (numgrad.uint8, 1)
    assert (x.all().dtype, x.all().item()) == (numgrad.uint8, 0)
    assert (x != 0).any().dtype == numgrad.bool


def test_an_index_without_axes_adds_none():
    x = numgrad.arange(6).reshape(2, 3)
    assert x[numgrad.tensor(1)].tolist() == [3, 4, 5]
    assert x[:, numgrad.tensor(1)].tolist() == [1, 4]
    assert x[numgrad.tensor(1), numgrad.tensor(2)].shape == ()


def test_weights_have_the_shape_of_the_classes():
    x, labels = numgrad.zeros(2, 4), numgrad.tensor([1, 2])
    for weight in (numgrad.ones(3), numgrad.ones(5), numgrad.ones(4, 1)):
        with pytest.raises(ValueError, match=r"nll_loss: expected shape \(4,\) for weight"):
            F.cross_entropy(x, labels, weight=weight)


def test_masked_select_of_shapes_that_do_not_broadcast():
    with pytest.raises(RuntimeError, match=r"masked_select: expected a shape that broadcasts"):
        numgrad.masked_select(numgrad.zeros(3), numgrad.zeros(2) > 0)


def test_logsigmoid_is_exact_beyond_the_threshold_of_softplus():
    x = np.array([-60.0, -25.0, -21.0, 21.0, 25.0, 60.0])
    exact = np.where(x > 0, -np.log1p(np.exp(-x)), x - np.log1p(np.exp(x)))
    np.testing.assert_allclose(F.logsigmoid(numgrad.tensor(x)).numpy(), exact, rtol=1e-13)


def test_a_scalar_prints_as_its_number():
    assert f"{numgrad.tensor(2.5)} {numgrad.tensor(3)} {numgrad.tensor(2.5):.2f}" == "2.5 3 2.50"
