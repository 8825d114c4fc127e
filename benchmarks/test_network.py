"""One training step, and one forward without a graph: a multi-layer perceptron, ResNet-18."""

import importlib
from typing import Any

import numpy as np
import pytest


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


@pytest.mark.parametrize("hidden", [32, 512])
def test_forward(benchmark: Any, library: Any, hidden: int) -> None:
    t = library
    x = t.tensor(np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32))
    model = network(t, hidden)
    with t.no_grad():
        out = benchmark(lambda: model(x))
    assert not out.requires_grad and tuple(out.shape) == (64, 10)


# The floors are for 224 × 224; here pictures are small enough for many rounds.
SIZE = 96


def resnet18(t: Any) -> Any:
    """ResNet-18 of numgrad, or the same one of PyTorch."""
    if t.__name__ == "numgrad":
        return importlib.import_module("numgrad.models").resnet18()
    return importlib.import_module("tests_compare.torch_networks").resnet18()


@pytest.mark.parametrize("batch", [1, 8])
def test_resnet18_forward(benchmark: Any, library: Any, batch: int) -> None:
    t = library
    x = t.tensor(np.random.default_rng(0).standard_normal((batch, 3, SIZE, SIZE)), dtype=t.float32)
    model = resnet18(t).eval()
    with t.no_grad():
        out = benchmark(lambda: model(x))
    assert not out.requires_grad and tuple(out.shape) == (batch, 1000)


def test_resnet18_step(benchmark: Any, library: Any) -> None:
    t = library
    rng = np.random.default_rng(0)
    x = t.tensor(rng.standard_normal((8, 3, SIZE, SIZE)), dtype=t.float32)
    labels = t.tensor(rng.integers(0, 1000, 8))
    model = resnet18(t)
    rule = t.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> Any:
        rule.zero_grad()
        loss = t.nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        rule.step()
        return loss

    before = step().item()
    assert benchmark(step).item() < before
