"""A forward without a graph: a multi-layer perceptron, ResNet-18."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from numgrad.cli.speed.cases import Case

GROUPS = ("infer",)


def network(t: Any, hidden: int) -> Any:
    nn = t.nn
    return nn.Sequential(
        nn.Linear(64, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )


@pytest.mark.parametrize("hidden", [32, 512])
def test_forward(benchmark: Any, library: Any, hidden: int) -> None:
    t = library
    x = t.tensor(np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32))
    model = network(t, hidden)
    with t.no_grad():
        out = benchmark(lambda: model(x))
    assert not out.requires_grad and tuple(out.shape) == (64, 10)


def test_case(timed: Callable[[Case, str], None], case: Case, variant: str) -> None:
    timed(case, variant)
