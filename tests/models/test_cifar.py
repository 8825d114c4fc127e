"""CIFAR ResNets: depths, parameter counts, both shortcuts."""

import numpy as np
import pytest

import numgrad as ng
import numgrad.nn as nn
from numgrad import models
from numgrad.models.cifar import CifarResNet, PadShortcut


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("make", "depth", "parameters"),
    [
        (models.cifar_resnet20, 20, 269_722),
        (models.cifar_resnet32, 32, 464_154),
        (models.cifar_resnet44, 44, 658_586),
        (models.cifar_resnet56, 56, 853_018),
    ],
)
def test_depths(make, depth, parameters):
    model = make()
    weighted = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert len(weighted) == depth
    assert count(model) == parameters
    # Option B: two projections, 32 × 16 and 64 × 32, each with a batch-norm.
    assert count(make(option="B")) == parameters + 32 * 16 + 2 * 32 + 64 * 32 + 2 * 64


@pytest.mark.parametrize("option", ["A", "B"])
def test_forward_and_gradients(option):
    ng.manual_seed(0)
    model = CifarResNet(8, num_classes=4, option=option)
    shapes = []
    for stage in (model.layer1, model.layer2, model.layer3):
        stage.register_forward_hook(lambda module, args, out: shapes.append(tuple(out.shape)))
    out = model(ng.randn(2, 3, 32, 32))
    assert shapes == [(2, 16, 32, 32), (2, 32, 16, 16), (2, 64, 8, 8)]
    assert out.shape == (2, 4)
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_shortcut_a():
    x = ng.randn(2, 3, 5, 6)
    out = PadShortcut(2, 1, 2)(x)
    expected = np.zeros((2, 6, 3, 3), np.float32)
    expected[:, 1:4] = x.numpy()[:, :, ::2, ::2]
    np.testing.assert_array_equal(out.numpy(), expected)


def test_names():
    names = list(models.cifar_resnet20(option="B").state_dict())
    assert names[0] == "conv1.weight" and names[-2:] == ["fc.weight", "fc.bias"]
    assert {"layer2.0.downsample.0.weight", "layer3.2.bn2.running_var"} <= set(names)
    assert not any(n.startswith("layer1") and "downsample" in n for n in names)


def test_errors():
    with pytest.raises(ValueError, match=r"CifarResNet: expected 6 n \+ 2.* for depth, got 18"):
        CifarResNet(18)
    with pytest.raises(ValueError, match=r"CifarResNet: expected 'A' or 'B' for option, got C"):
        CifarResNet(option="C")
