"""A training step: a multi-layer perceptron, ResNet-18 whole and frozen; optimisers alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.test_network import network
from numgrad.cli.speed.cases import Case

GROUPS = ("train", "optim")


@pytest.mark.parametrize("hidden", [32, 512])
@pytest.mark.parametrize("optimiser", ["SGD", "Adam"])
def test_step(benchmark: Any, library: Any, optimiser: str, hidden: int) -> None:
    t = library
    rng = np.random.default_rng(0)
    x = t.tensor(rng.standard_normal((64, 64)).astype(np.float32))
    labels = t.tensor(rng.integers(0, 10, 64))
    model = network(t, hidden)
    rule = getattr(t.optim, optimiser)(model.parameters(), lr=0.01)

    def step() -> Any:
        rule.zero_grad()
        loss = t.nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        rule.step()
        return loss

    before = step().item()
    assert benchmark(step).item() < before


def test_case(timed: Callable[[Case, str], None], case: Case, variant: str) -> None:
    timed(case, variant)
