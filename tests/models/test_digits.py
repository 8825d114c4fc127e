"""The digits network: shapes, layers, and that it learns."""

from itertools import pairwise

import pytest

import numgrad as ng
import numgrad.nn as nn
from numgrad.data import split_digits
from numgrad.models import DigitsMLP
from numgrad.optim import Adam


def widths(model):
    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    return [(m.in_features, m.out_features) for m in linears]


@pytest.mark.parametrize(
    "hidden", [(), (7,), (128, 128, 128)], ids=lambda hidden: "-".join(map(str, hidden)) or "none"
)
def test_layers(hidden):
    model = DigitsMLP(hidden)
    sizes = [64, *hidden, 10]
    assert widths(model) == list(pairwise(sizes))
    assert sum(isinstance(m, nn.ReLU) for m in model.modules()) == len(hidden)
    assert not any(isinstance(m, nn.Dropout) for m in model.modules())
    assert model(ng.zeros(3, 64)).shape == (3, 10)
    parameters = sum((n + 1) * m for n, m in pairwise(sizes))
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_dropout():
    ng.manual_seed(0)
    model = DigitsMLP((32, 32), dropout=0.5)
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout)] == [0.5, 0.5]
    x = ng.ones(4, 64)
    assert (model(x) != model(x)).any()
    model.eval()
    assert (model(x) == model(x)).all()
    # The names of parameters do not depend on hidden layers alone: a file fits its own dropout.
    assert list(model.state_dict()) == [
        f"layers.{i}.{name}" for i in (0, 3, 6) for name in ("weight", "bias")
    ]


def test_learns():
    ng.manual_seed(0)
    images, labels, test_images, test_labels = (ng.tensor(array) for array in split_digits())
    model = DigitsMLP()
    optimizer, criterion = Adam(model.parameters(), lr=2e-3), nn.CrossEntropyLoss()

    def accuracy():
        with ng.no_grad():
            return (model(test_images).argmax(1) == test_labels).sum().item() / len(test_labels)

    assert accuracy() < 0.3
    for _ in range(6):
        order = ng.randperm(len(images))
        for at in range(0, len(images), 64):
            chosen = order[at : at + 64]
            optimizer.zero_grad()
            criterion(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
    assert accuracy() > 0.93
