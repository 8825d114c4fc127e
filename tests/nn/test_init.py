"""First values: bounds, deviations, and that no graph sees the writing."""

import math

import numpy as np
import pytest

from numgrad.nn import init
from numgrad.ops.creation import ones, zeros
from numgrad.variable import Parameter, Variable


def values(x):
    return x.detach().numpy()


def bounded(x, bound):
    v = values(x)
    assert np.abs(v).max() <= bound and abs(v.std() - bound / math.sqrt(3)) < 0.03 * bound
    assert abs(v.mean()) < 0.03 * bound


def deviating(x, std):
    v = values(x)
    assert abs(v.std() - std) < 0.03 * std and abs(v.mean()) < 0.03 * std
    assert np.abs(v).max() > 2.5 * std


SHAPE = (120, 50, 2, 1)  # fan in 100, fan out 240


def test_constants():
    for fill, expected in (
        (init.zeros_, 0),
        (init.ones_, 1),
        (lambda x: init.constant_(x, 2.5), 2.5),
        (lambda x: init.constant(x, -1), -1),
    ):
        x = Parameter(zeros(3, 2))
        assert fill(x) is x and (values(x) == expected).all() and x.requires_grad and x.is_leaf
        assert x.grad_fn is None


def test_uniform_and_normal():
    x = Parameter(zeros(100, 100))
    version = x._version
    assert init.uniform_(x, 2, 4) is x and x._version > version
    v = values(x)
    assert v.min() >= 2 and v.max() < 4 and abs(v.mean() - 3) < 0.05
    v = values(init.uniform(x))
    assert v.min() >= 0 and v.max() < 1
    v = values(init.normal_(x, 5, 0.5))
    assert abs(v.mean() - 5) < 0.03 and abs(v.std() - 0.5) < 0.03
    deviating(init.normal(x), 1)


def test_eye():
    for shape in ((3, 3), (2, 4), (4, 2)):
        assert np.array_equal(values(init.eye_(Parameter(ones(*shape)))), np.eye(*shape))
    with pytest.raises(ValueError, match=r"eye_: expected two axes for tensor, got shape \(3,\)"):
        init.eye_(ones(3))


@pytest.mark.parametrize("old", [False, True])
def test_xavier(old):
    uniform = init.xavier_uniform if old else init.xavier_uniform_
    normal = init.xavier_normal if old else init.xavier_normal_
    x = Parameter(zeros(*SHAPE))
    bounded(uniform(x), math.sqrt(6 / 340))
    bounded(uniform(x, gain=3), 3 * math.sqrt(6 / 340))
    deviating(normal(x, 2), 2 * math.sqrt(2 / 340))


@pytest.mark.parametrize("old", [False, True])
def test_kaiming(old):
    uniform = init.kaiming_uniform if old else init.kaiming_uniform_
    normal = init.kaiming_normal if old else init.kaiming_normal_
    x = Variable(zeros(*SHAPE))
    bounded(uniform(x), math.sqrt(6 / 100))
    bounded(uniform(x, a=math.sqrt(5)), 1 / math.sqrt(100))
    bounded(uniform(x, mode="fan_out", nonlinearity="relu"), math.sqrt(6 / 240))
    deviating(normal(x, nonlinearity="linear"), 1 / math.sqrt(100))
    empty = zeros(0, 3)
    assert uniform(empty) is empty and normal(empty) is empty


def test_kaiming_errors():
    for call in (init.kaiming_uniform_, init.kaiming_normal_):
        with pytest.raises(ValueError, match="expected fan_in or fan_out for mode, got 'fan'"):
            call(zeros(2, 2), mode="fan")
        with pytest.raises(ValueError, match="fan in and fan out are not defined"):
            call(zeros(2))
        with pytest.raises(ValueError, match="for nonlinearity, got 'step'"):
            call(zeros(2, 2), nonlinearity="step")


def test_gains():
    for name, param, gain in (
        ("linear", None, 1),
        ("conv2d", None, 1),
        ("sigmoid", None, 1),
        ("tanh", None, 5 / 3),
        ("relu", None, math.sqrt(2)),
        ("selu", None, 0.75),
        ("leaky_relu", None, math.sqrt(2 / (1 + 0.01**2))),
        ("leaky_relu", 0.2, math.sqrt(2 / 1.04)),
    ):
        assert init.calculate_gain(name, param) == pytest.approx(gain)
    with pytest.raises(ValueError, match="negative_slope x not a valid number"):
        init.calculate_gain("leaky_relu", "x")
