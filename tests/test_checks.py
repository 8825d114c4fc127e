"""The gradient checker finds what is planted for it."""

import numpy as np
import pytest

import numgrad
from tests import checks
from tests.checks import assert_close, check_gradients

X = np.array([[0.3, -1.2, 2.0], [0.7, 1.1, -0.4]])


@numgrad.elementwise(dx=lambda g: 2.001 * g)
def wrong_twice(x):
    return 2 * x


class Square(numgrad.Function):
    """Its first derivative is right, and has a wrong one itself."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * wrong_twice(x)


class Detached(numgrad.Function):
    """Its first derivative is right and has lost its history."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x.detach()


@pytest.fixture(autouse=True)
def _keep_count():
    before = set(checks.performed)
    yield
    checks.performed.clear()
    checks.performed.update(before)


def test_wrong_first_derivative():
    with pytest.raises(AssertionError, match="order-1 gradient"):
        check_gradients(wrong_twice, [X], "planted", orders=(1,))
    assert ("planted", "float64", 1) not in checks.performed


@pytest.mark.parametrize("function", [Square.apply, Detached.apply])
def test_wrong_second_derivative(function):
    check_gradients(function, [X], "planted", orders=(1,))
    assert ("planted", "float64", 1) in checks.performed
    with pytest.raises(AssertionError, match="order-2 gradient"):
        check_gradients(function, [X], "planted", orders=(2,))
    assert ("planted", "float64", 2) not in checks.performed


def test_wrong_element():
    """One wrong element of many, in one of two operands."""

    class Wrong(numgrad.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * 3 + y * 2

        @staticmethod
        def backward(ctx, g):
            factor = np.full(100, 2.0)
            factor[37] = 2.001
            return g * 3, g * numgrad.tensor(factor)

    x, y = np.linspace(-1, 1, 100), np.linspace(0, 1, 100)
    with pytest.raises(AssertionError, match="order-1 gradient"):
        check_gradients(Wrong.apply, [x, y], "planted", orders=(1,), float32=False)


def test_right_derivative():
    check_gradients(lambda x: x * x * x, [X], "cube")
    wanted = {("cube", d, order) for d in ("float32", "float64") for order in (1, 2)}
    assert wanted <= checks.performed


def test_assert_close():
    x = np.array([1.0, np.nan, np.inf, -np.inf])
    assert_close(x, x, 0)
    for bad in ([1.1, np.nan, np.inf, -np.inf], [1, 0, np.inf, -np.inf], [1, np.nan, 5, -np.inf]):
        with pytest.raises(AssertionError):
            assert_close(np.array(bad), x, 1e-6)
    with pytest.raises(AssertionError):
        assert_close(np.array([np.nan]), np.array([1.0]), 1)
    with pytest.raises(AssertionError):
        assert_close(np.ones((2, 1)), np.ones((1, 2)), 1)


def test_layouts():
    x = np.arange(24.0).reshape(2, 3, 4)
    found = checks.layouts(x, None)
    assert len({a.strides for a in found.values()}) >= 5
    for name, a in found.items():
        np.testing.assert_array_equal(a, x, name)
        assert not np.shares_memory(a, x)
