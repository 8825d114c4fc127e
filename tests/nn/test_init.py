"""First values: bounds, deviations, and that no graph sees the writing."""

import math

import numpy as np
import pytest
import scipy.stats

from numgrad import Generator, get_rng_state
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


def test_fan_out_of_a_convolution():
    """As networks write it: fan out counts the output channels times the kernel."""
    x = Parameter(zeros(64, 16, 3, 3))
    deviating(init.kaiming_normal_(x, mode="fan_out", nonlinearity="relu"), math.sqrt(2 / 576))
    bounded(init.kaiming_uniform_(x, mode="fan_out"), math.sqrt(6 / 576))


def test_orthogonal():
    for shape in ((20, 20), (8, 30), (30, 8), (6, 3, 2, 2), (40, 3, 3, 3)):
        x = Parameter(zeros(*shape, dtype="float64"))
        assert init.orthogonal_(x, 2) is x and x.is_leaf and x.requires_grad
        w = values(x).reshape(shape[0], -1)
        product = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
        assert np.allclose(product, 4 * np.eye(len(product)), atol=1e-13)
    signs = np.sign([values(init.orthogonal(zeros(1, 1)))[0, 0] for _ in range(60)])
    assert set(signs) == {-1, 1}
    assert init.orthogonal_(zeros(0, 3)).shape == (0, 3)
    with pytest.raises(ValueError, match="orthogonal_: expected two axes or more for tensor"):
        init.orthogonal_(zeros(3))


@pytest.mark.parametrize(
    ("mean", "std", "a", "b"),
    [(0, 1, -2, 2), (0, 0.02, -2, 2), (0, 1, 0.5, 3), (1, 2, -1, 0), (0, 1, 2, 9), (0, 1, -5, -3)],
)
@pytest.mark.filterwarnings("ignore:mean is more than 2 std")
def test_trunc_normal(mean, std, a, b):
    x = Parameter(zeros(200, 100, dtype="float64"))
    assert init.trunc_normal_(x, mean, std, a, b) is x and x.is_leaf
    v = values(x).ravel()
    assert v.min() >= a and v.max() <= b
    law = scipy.stats.truncnorm((a - mean) / std, (b - mean) / std, mean, std)
    assert scipy.stats.kstest(v, law.cdf).statistic < math.sqrt(math.log(2e9) / 2 / v.size)


def test_trunc_normal_far_from_the_mean():
    with pytest.warns(UserWarning, match="mean is more than 2 std from"):
        v = values(init.trunc_normal_(zeros(1000), 0, 1, 30, 1e9))
    assert v.min() >= 30 and 30.02 < v.mean() < 30.05
    for a, b, std in ((1, 1, 1), (2, 1, 1), (0, 1, 0)):
        with pytest.raises(ValueError, match="expected a < b and std > 0"):
            init.trunc_normal_(zeros(3), 0, std, a, b)


def test_dirac():
    for shape, groups in (
        ((4, 4, 3), 1),
        ((6, 2, 3, 3), 1),
        ((6, 3, 5, 4), 2),
        ((2, 3, 1, 3, 3), 1),
    ):
        x = init.dirac_(Parameter(ones(*shape)), groups)
        expected = np.zeros(shape)
        each = shape[0] // groups
        for i in range(shape[0]):
            if i % each < shape[1]:
                expected[(i, i % each, *(k // 2 for k in shape[2:]))] = 1
        assert np.array_equal(values(x), expected)
    for bad in ((3, 3), (2, 2, 1, 1, 1, 1)):
        with pytest.raises(ValueError, match="three to five axes"):
            init.dirac_(zeros(*bad))
    with pytest.raises(ValueError, match="a divisor of 4 for groups, got 3"):
        init.dirac_(zeros(4, 4, 3), 3)


def test_sparse():
    v = values(init.sparse_(Parameter(zeros(50, 40)), 0.33, std=2))
    assert ((v == 0).sum(0) == 17).all() and abs(v[v != 0].std() - 2) < 0.2
    assert len({tuple(column) for column in (v == 0).T}) > 30
    with pytest.raises(ValueError, match="sparse_: expected two axes"):
        init.sparse_(zeros(3), 0.1)


def test_generator():
    """The same numbers from the same state, and the default one is left alone."""
    for fill in (
        init.uniform_,
        init.normal_,
        init.xavier_uniform_,
        init.xavier_normal_,
        init.kaiming_uniform_,
        init.kaiming_normal_,
        init.orthogonal_,
        init.trunc_normal_,
    ):
        state = get_rng_state()
        a, b = (values(fill(zeros(5, 4), generator=Generator().manual_seed(3))) for _ in range(2))
        assert np.array_equal(a, b) and np.abs(a).max() > 0, fill
        assert np.array_equal(np.asarray(get_rng_state()), np.asarray(state))
