"""Random ops by their distribution: samples of both libraries, and each against the law itself."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

import numgrad
import numgrad.distributions
from tests_compare.checks import FLOATS, array_of, compare, count, dtype_of, ops_that_run, tensor

N = 200_000
# The largest of some fifty distances of samples from one law exceeds this about once in 10**7 runs;
# the seeds are fixed.
SIGNIFICANCE = 1e-9


@pytest.fixture(autouse=True)
def seeds() -> None:
    numgrad.manual_seed(1234)
    torch.manual_seed(1234)


def same_law(name: str, call: Any, law: Any = None) -> None:
    """Samples of both are of one distribution (Kolmogorov and Smirnov), and ours of ``law``."""
    ours, theirs = call(numgrad), call(torch)
    assert (tuple(ours.shape), dtype_of(ours)) == (tuple(theirs.shape), dtype_of(theirs)), name
    a, b = array_of(ours).ravel(), array_of(theirs).ravel()
    # The distance that one in 1 / SIGNIFICANCE pairs of samples exceeds.
    limit = math.sqrt(-math.log(SIGNIFICANCE / 2) / 2 * (1 / a.size + 1 / b.size))
    distance = scipy.stats.ks_2samp(a, b, method="asymp").statistic
    assert distance < limit, f"{name}: distance {distance} of the samples, limit {limit}"
    count("random", "KS distance", dtype_of(ours), name, float(distance))
    for moment in (np.mean, np.var):
        x, y = moment(a.astype(float)), moment(b.astype(float))
        spread = 7 * moment_deviation(b.astype(float), moment) * math.sqrt(1 / a.size + 1 / b.size)
        assert abs(x - y) <= spread + 1e-12, f"{name}: {moment.__name__} {x}, PyTorch's {y}"
    if law is not None:
        exact = scipy.stats.kstest(a.astype(float), law).statistic
        assert exact < math.sqrt(-math.log(SIGNIFICANCE / 2) / 2 / a.size), f"{name}: {exact}"


def moment_deviation(x: np.ndarray, moment: Any) -> float:
    centred = x - x.mean()
    return float(centred.std() if moment is np.mean else (centred**2).std())


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_and_normal(dtype: str) -> None:
    def of(t: Any) -> Any:
        return getattr(t, dtype)

    uniform, normal = scipy.stats.uniform, scipy.stats.norm
    same_law("rand", lambda t: t.rand(N, dtype=of(t)), uniform.cdf)
    same_law("randn", lambda t: t.randn(N, dtype=of(t)), normal.cdf)
    same_law("rand_like", lambda t: t.rand_like(t.zeros(N, dtype=of(t))), uniform.cdf)
    same_law("randn_like", lambda t: t.randn_like(t.zeros(N, dtype=of(t))), normal.cdf)
    same_law("uniform_", lambda t: t.empty(N, dtype=of(t)).uniform_(-1, 3), uniform(-1, 4).cdf)
    same_law("normal_", lambda t: t.empty(N, dtype=of(t)).normal_(2, 3), normal(2, 3).cdf)
    same_law("bernoulli_", lambda t: t.empty(N, dtype=of(t)).bernoulli_(0.3))
    same_law("bernoulli", lambda t: t.bernoulli(t.full((N,), 0.7, dtype=of(t))))
    same_law("rand of a matrix", lambda t: t.rand(500, 100).t(), uniform.cdf)


def test_normal_of_tensors() -> None:
    same_law("normal of numbers", lambda t: t.normal(1.0, 2.0, (N,)), scipy.stats.norm(1, 2).cdf)
    same_law(
        "normal of means", lambda t: t.normal(t.full((N,), 3.0), 0.5), scipy.stats.norm(3, 0.5).cdf
    )
    same_law("normal of both", lambda t: t.normal(t.full((N,), 3.0), t.full((N,), 2.0)))


def test_integers() -> None:
    same_law("randint(7)", lambda t: t.randint(7, (N,)))
    same_law("randint(-3, 9)", lambda t: t.randint(-3, 9, (N,)))
    same_law("randint, int32", lambda t: t.randint(0, 5, (N,), dtype=t.int32))
    same_law("random_(10)", lambda t: t.zeros(N, dtype=t.int64).random_(10))
    same_law("random_(2, 10)", lambda t: t.zeros(N).random_(2, 10))
    for low, high in ((0, 7), (-3, 9)):
        drawn = array_of(numgrad.randint(low, high, (N,)))
        expected = N / (high - low)
        counts = np.bincount(drawn - low, minlength=high - low)
        chi = float(((counts - expected) ** 2 / expected).sum())
        assert scipy.stats.chi2.sf(chi, high - low - 1) > SIGNIFICANCE


def test_permutations() -> None:
    """Each element is equally often at each place."""
    n, trials = 6, 3000
    table = np.zeros((n, n))
    for _ in range(trials):
        order = array_of(numgrad.randperm(n))
        assert sorted(order) == list(range(n))
        table[np.arange(n), order] += 1
    chi = float(((table - trials / n) ** 2 / (trials / n)).sum())
    assert scipy.stats.chi2.sf(chi, (n - 1) ** 2) > SIGNIFICANCE
    ours, theirs = numgrad.randperm(5), torch.randperm(5)
    assert dtype_of(ours) == dtype_of(theirs)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_dropout(p: float, dtype: str) -> None:
    """The share of zeros, the scale of the rest, and a gradient with the same mask."""
    with ops_that_run() as ran:
        for t in (numgrad, torch):
            x = tensor(t, np.ones(N, dtype), True)
            y = t.nn.functional.dropout(x, p, True)
            kept = array_of(y) != 0
            spread = 6 * math.sqrt(p * (1 - p) / N)
            assert abs(kept.mean() - (1 - p)) <= spread
            if kept.any():
                np.testing.assert_allclose(array_of(y)[kept], 1 / (1 - p), rtol=1e-6)
            (y * 3).sum().backward()
            np.testing.assert_allclose(array_of(x.grad), 3 * array_of(y), rtol=1e-6)
            assert t.nn.functional.dropout(x, p, False) is x
            assert t.nn.functional.dropout(x, p, True).requires_grad
    assert "dropout_at" in ran or p == 0
    count("random", "share of zeros", dtype, f"dropout({p})", 0.0)
    if 0 < p < 1:
        same_law(
            f"dropout({p})",
            lambda t: t.nn.functional.dropout(tensor(t, np.ones(N, dtype)), p),
        )


def test_a_second_call_draws_other_numbers_and_a_seed_repeats() -> None:
    for t in (numgrad, torch):
        t.manual_seed(5)
        a, b = array_of(t.rand(10)), array_of(t.rand(10))
        t.manual_seed(5)
        assert (array_of(t.rand(10)) == a).all() and (a != b).all()
        state = t.get_rng_state()
        c = array_of(t.randn(10))
        t.set_rng_state(state)
        assert (array_of(t.randn(10)) == c).all()
        g, h = (t.Generator().manual_seed(7) for _ in range(2))
        assert (array_of(t.rand(9, generator=g)) == array_of(t.rand(9, generator=h))).all()
        t.manual_seed(9)
        assert t.initial_seed() == 9


# ------------------------------------------------------------------------------------ distributions


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal_distribution(dtype: str) -> None:
    rng = np.random.default_rng(1)
    operands = [
        rng.standard_normal(4).astype(dtype),
        rng.uniform(0.5, 2, (3, 1)).astype(dtype),
        rng.standard_normal((2, 3, 4)).astype(dtype),
    ]
    for method in ("log_prob", "cdf"):

        def call(t: Any, loc: Any, scale: Any, value: Any) -> Any:
            return getattr(t.distributions.Normal(loc, scale), method)(value)

        compare("distribution", f"Normal.{method}", call, operands)

    def entropy(t: Any, loc: Any, scale: Any) -> Any:
        normal = t.distributions.Normal(loc, scale)
        return normal.entropy(), normal.mean, normal.variance, normal.stddev

    compare("distribution", "Normal.entropy", entropy, operands[:2])

    def sampled(t: Any) -> Any:
        return t.distributions.Normal(tensor(t, operands[0]), tensor(t, operands[1])).sample(
            (5000,)
        )

    same_law("Normal.sample", sampled)

    for t in (numgrad, torch):
        loc, scale = (tensor(t, x, True) for x in operands[:2])
        z = t.distributions.Normal(loc, scale).rsample((7,))
        assert z.requires_grad and not t.distributions.Normal(loc, scale).sample().requires_grad
        z.sum().backward()
        # dz/dloc = 1; dz/dscale = (z - loc) / scale.
        np.testing.assert_allclose(array_of(loc.grad), 7 * 3.0, rtol=1e-5)
        noise = ((array_of(z) - operands[0]) / operands[1]).sum((0, 2)).reshape(3, 1)
        np.testing.assert_allclose(array_of(scale.grad), noise, rtol=2e-3, atol=1e-4)
