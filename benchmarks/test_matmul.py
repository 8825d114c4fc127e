"""Matrix products: squares, a batch, and the thin shapes of layers."""

from typing import Any

import numpy as np
import pytest

SHAPES = [
    ((16, 16), (16, 16)),
    ((128, 128), (128, 128)),
    ((512, 512), (512, 512)),
    ((1024, 1024), (1024, 1024)),
    ((64, 784), (784, 256)),
    ((1, 1024), (1024, 1024)),
    ((32, 64, 64), (32, 64, 64)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=lambda s: "x".join(map(str, s[0])) + f"x{s[1][-1]}")
def test_matmul(benchmark: Any, library: Any, shapes: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    x, y = library.tensor(a), library.tensor(b)
    out = benchmark(lambda: x @ y)
    np.testing.assert_allclose(out.numpy(), a @ b, rtol=1e-3, atol=1e-3)


def test_transposed(benchmark: Any, library: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((512, 512)).astype(np.float32) for _ in range(2))
    x, y = library.tensor(a), library.tensor(b)
    out = benchmark(lambda: x.t() @ y)
    np.testing.assert_allclose(out.numpy(), a.T @ b, rtol=1e-3, atol=1e-3)
