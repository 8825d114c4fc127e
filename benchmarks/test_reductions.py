"""Reductions: over all, over rows, over columns."""

from typing import Any

import numpy as np
import pytest


@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("name", ["sum", "amax", "var", "logsumexp"])
def test_reduction(benchmark: Any, library: Any, name: str, dim: int | None) -> None:
    values = np.random.default_rng(0).standard_normal((1000, 1000)).astype(np.float32)
    x, function = library.tensor(values), getattr(library, name)
    axes = (0, 1) if dim is None else dim
    wide = values.astype(np.float64)
    exact = {
        "sum": lambda: wide.sum(dim),
        "amax": lambda: wide.max(dim),
        "var": lambda: wide.var(dim, ddof=1),
        "logsumexp": lambda: np.log(np.exp(wide).sum(dim)),
    }[name]()
    out = benchmark(lambda: function(x, axes))
    np.testing.assert_allclose(out.numpy(), exact, rtol=1e-4, atol=1e-2)


def test_softmax(benchmark: Any, library: Any) -> None:
    values = np.random.default_rng(0).standard_normal((1000, 1000)).astype(np.float32)
    x = library.tensor(values)
    exact = np.exp(values) / np.exp(values).sum(1, keepdims=True)
    out = benchmark(lambda: library.softmax(x, 1))
    np.testing.assert_allclose(out.numpy(), exact, rtol=1e-4)
