"""Elementwise functions: the cost of a call (10), the caches (10**4), the memory (10**6)."""

from typing import Any

import numpy as np
import pytest

FUNCTIONS = ("exp", "tanh", "sigmoid")


@pytest.mark.parametrize("n", [10, 10**4, 10**6])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_unary(benchmark: Any, library: Any, name: str, n: int) -> None:
    values = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    x, function = library.tensor(values), getattr(library, name)
    exact = {"exp": np.exp, "tanh": np.tanh, "sigmoid": lambda v: 1 / (1 + np.exp(-v))}[name]
    np.testing.assert_allclose(benchmark(lambda: function(x)).numpy(), exact(values), rtol=1e-5)


@pytest.mark.parametrize("n", [10, 10**4, 10**6])
@pytest.mark.parametrize("recorded", [False, True])
def test_add(benchmark: Any, library: Any, n: int, recorded: bool) -> None:
    values = np.random.default_rng(0).standard_normal((2, n)).astype(np.float32)
    x, y = (library.tensor(v) for v in values)
    x.requires_grad_(recorded)
    out = benchmark(lambda: x + y)
    np.testing.assert_array_equal(out.detach().numpy(), values[0] + values[1])


def test_add_of_a_channel(benchmark: Any, library: Any) -> None:
    """A broadcast operand: (8, 64, 56, 56) + (64, 1, 1)."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((8, 64, 56, 56), (64, 1, 1)))
    x, y = library.tensor(a), library.tensor(b)
    np.testing.assert_array_equal(benchmark(lambda: x + y).numpy(), a + b)
