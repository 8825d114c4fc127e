"""Faults that were found by trying to break things: each stands for its kind."""

import math

import pytest

import numgrad
from numgrad import Function, GradError, ones, tensor, zeros


def test_allclose_of_infinities():
    assert not tensor([1.0]).allclose(tensor([math.inf]))
    assert not tensor([math.inf]).allclose(tensor([-math.inf]))
    assert tensor([math.inf]).allclose(tensor([math.inf]))


def test_view_of_a_base_that_was_squeezed_says_so():
    x = zeros(2, 1, 3)
    v = x[0]
    x.squeeze_(1)
    x.add_(ones(2, 3, requires_grad=True))
    with pytest.raises(GradError, match="make the view again after squeeze_"):
        v * 2


class Identity(Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g


@pytest.mark.parametrize("leaf", [True, False])
def test_in_place_on_an_input_that_a_function_returned(leaf):
    x = ones(3, requires_grad=True)
    y = Identity.apply(x if leaf else x * 1)
    with pytest.raises(GradError, match="is a view and is being modified inplace"):
        y.mul_(5)
    assert x.tolist() == [1, 1, 1]
    with numgrad.no_grad():
        y.clone().mul_(5)
    y.sum().backward()
    assert x.grad.tolist() == [1, 1, 1]
