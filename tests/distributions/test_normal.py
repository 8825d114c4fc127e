"""The normal distribution against its formulas, and samples against its moments."""

import math

import numpy as np
import pytest

from numgrad.distributions import Normal
from numgrad.ops.creation import ones, tensor, zeros

LOC = np.array([[0.0], [2.0]])
SCALE = np.array([0.5, 1.0, 3.0])
VALUES = np.random.RandomState(0).randn(2, 3) * 2


def log_density(x, loc, scale):
    return np.log(np.exp(-((x - loc) ** 2) / (2 * scale**2)) / (scale * math.sqrt(2 * math.pi)))


def make():
    return Normal(tensor(LOC), tensor(SCALE))


def test_formulas():
    normal = make()
    assert normal.batch_shape == (2, 3) and normal.event_shape == ()
    got = normal.log_prob(tensor(VALUES)).numpy()
    assert got.dtype == np.float64 and np.allclose(got, log_density(VALUES, LOC, SCALE))
    phi = np.vectorize(lambda z: 0.5 * math.erfc(-z / math.sqrt(2)))
    assert np.allclose(normal.cdf(tensor(VALUES)).numpy(), phi((VALUES - LOC) / SCALE), atol=1e-7)
    entropy = np.broadcast_to(0.5 * np.log(2 * math.pi * math.e * SCALE**2), (2, 3))
    assert np.allclose(normal.entropy().numpy(), entropy)


def test_properties():
    normal = make()
    for name, expected in (
        ("loc", LOC),
        ("mean", LOC),
        ("mode", LOC),
        ("scale", SCALE),
        ("std", SCALE),
        ("stddev", SCALE),
        ("variance", SCALE**2),
    ):
        assert np.array_equal(getattr(normal, name).numpy(), np.broadcast_to(expected, (2, 3)))


def test_density_has_area_one():
    x = np.linspace(-20, 20, 4001)
    density = np.exp(Normal(tensor(0.5).double(), tensor(2.0).double()).log_prob(tensor(x)).numpy())
    assert density.sum() * 0.01 == pytest.approx(1, abs=1e-9)


def test_numbers():
    normal = Normal(1, 2.0)
    assert normal.batch_shape == () and normal.loc.dtype == "float32"
    assert normal.log_prob(1).item() == pytest.approx(-math.log(2 * math.sqrt(2 * math.pi)))
    assert normal.cdf(1.0).item() == 0.5 and repr(normal) == "Normal(loc: 1.0, scale: 2.0)"
    assert Normal(0, tensor([1.0, 2.0]).double()).loc.dtype == "float64"
    assert repr(Normal(zeros(2), ones(2))) == "Normal(loc: (2,), scale: (2,))"


def test_samples():
    normal = make()
    x = normal.sample((20_000,))
    assert x.shape == (20_000, 2, 3) and not x.requires_grad
    values = x.numpy()
    assert (np.abs(values.mean(0) - LOC) < 0.03 * SCALE).all()
    assert (np.abs(values.std(0) / SCALE - 1) < 0.03).all()
    assert normal.sample().shape == (2, 3) and normal.sample_n(4).shape == (4, 2, 3)
    assert normal.sample((2, 5)).shape == (2, 5, 2, 3) and Normal(0, 1).sample((3,)).shape == (3,)
    assert not np.array_equal(normal.sample().numpy(), normal.sample().numpy())
    with pytest.raises(
        TypeError, match=r"expected a tuple of lengths for sample_shape, got 3; pass \(3,\)"
    ):
        normal.sample(3)


def test_gradients():
    loc, scale = tensor(LOC, requires_grad=True), tensor(SCALE, requires_grad=True)
    normal = Normal(loc, scale)
    assert not normal.sample().requires_grad
    x = normal.rsample((7,))
    noise = (x.detach().numpy() - LOC) / SCALE
    x.sum().backward()
    assert np.allclose(loc.grad.numpy(), 21) and np.allclose(scale.grad.numpy(), noise.sum((0, 1)))
    loc.grad = scale.grad = None
    Normal(loc, scale).log_prob(tensor(VALUES)).sum().backward()
    z = (VALUES - LOC) / SCALE
    assert np.allclose(loc.grad.numpy(), (z / SCALE).sum(1, keepdims=True))
    assert np.allclose(scale.grad.numpy(), ((z**2 - 1) / SCALE).sum(0))


@pytest.mark.parametrize(
    ("loc", "scale", "error", "text"),
    [
        (0, 0, ValueError, "Normal: expected numbers > 0 for scale, got 0.0"),
        (zeros(2), tensor([1.0, -1.0]), ValueError, "expected numbers > 0 for scale, got -1.0"),
        (0, math.nan, ValueError, "expected numbers > 0 for scale"),
        (math.nan, 1, ValueError, "expected no nan for loc"),
        (zeros(2), ones(3), ValueError, r"broadcasts with loc \(2,\) for scale"),
        ("a", 1, TypeError, "expected a tensor or a number for loc"),
        (True, 1, TypeError, "expected a tensor or a number for loc"),
        (0, tensor([1, 2]), TypeError, "expected a floating-point dtype for scale"),
    ],
)
def test_argument_errors(loc, scale, error, text):
    with pytest.raises(error, match=text):
        Normal(loc, scale)


def test_value_errors():
    with pytest.raises(ValueError, match="expected no nan for value"):
        Normal(0, 1).log_prob(math.nan)
    assert math.isnan(Normal(0, 1, validate_args=False).log_prob(math.nan).item())
    assert Normal(0, -1, validate_args=False).scale.item() == -1
    with pytest.raises(ValueError):
        make().log_prob(ones(4).double())
