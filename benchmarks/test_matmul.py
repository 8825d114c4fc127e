"""Matrix products: the grid of ``numgrad bench speed``, and what is too small for it or batched."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from numgrad.cli.speed.cases import Case

GROUPS = ("matmul",)
SHAPES = [((16, 16), (16, 16)), ((64, 64), (64, 64)), ((32, 64, 64), (32, 64, 64))]


@pytest.mark.parametrize("shapes", SHAPES, ids=lambda s: "x".join(map(str, s[0])) + f"x{s[1][-1]}")
def test_matmul(benchmark: Any, library: Any, shapes: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    x, y = library.tensor(a), library.tensor(b)
    out = benchmark(lambda: x @ y)
    np.testing.assert_allclose(out.numpy(), a @ b, rtol=1e-3, atol=1e-3)


def test_case(timed: Callable[[Case, str], None], case: Case, variant: str) -> None:
    timed(case, variant)
