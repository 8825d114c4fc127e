"""ResNet-18 to 152: torchvision's names and shapes, parameter counts, first values, a forward."""

import numpy as np
import pytest

import numgrad as ng
import numgrad.nn as nn
from numgrad import models
from tests.models import shapes


def described(model):
    return [(name, tuple(value.shape)) for name, value in model.state_dict().items()]


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.fixture(scope="module")
def resnet18():
    ng.manual_seed(0)
    return models.resnet18()


def test_resnet18(resnet18):
    expected = shapes.resnet_basic((2, 2, 2, 2))
    assert len(expected) == 122
    assert described(resnet18) == expected
    assert count(resnet18) == 11_689_512


def test_resnet34():
    model = models.resnet34()
    assert described(model) == shapes.resnet_basic((3, 4, 6, 3))
    assert count(model) == 21_797_672


def test_resnet50():
    model = models.resnet50()
    expected = shapes.resnet_bottleneck((3, 4, 6, 3))
    assert len(expected) == 320
    assert described(model) == expected
    assert count(model) == 25_557_032
    # The 3 × 3 convolution has the stride.
    block = model.layer2[0]
    assert (block.conv1.stride, block.conv2.stride) == ((1, 1), (2, 2))
    assert block.downsample[0].stride == (2, 2)


@pytest.mark.parametrize(
    ("make", "layers", "entries", "parameters"),
    [
        (models.resnet101, (3, 4, 23, 3), 626, 44_549_160),
        (models.resnet152, (3, 8, 36, 3), 932, 60_192_808),
    ],
)
def test_deep(make, layers, entries, parameters):
    model = make()
    expected = shapes.resnet_bottleneck(layers)
    assert len(expected) == entries
    assert described(model) == expected
    assert count(model) == parameters


def test_first_values(resnet18):
    for module in resnet18.modules():
        if isinstance(module, nn.Conv2d):
            planes, _, size, _ = module.weight.shape
            std = np.sqrt(2 / (planes * size * size))
            values = module.weight.detach().numpy()
            # The deviation of an estimate from n values is std / sqrt(2 n).
            assert abs(values.std() / std - 1) < 5 / np.sqrt(2 * values.size)
            assert abs(values.mean()) < 5 * std / np.sqrt(values.size)
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all() and (module.bias == 0).all()


@pytest.mark.parametrize("make", [models.resnet18, models.resnet50])
def test_zero_init_residual(make):
    model = make(zero_init_residual=True, num_classes=3)
    last = "bn3" if make is models.resnet50 else "bn2"
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            zero = name.startswith("layer") and name.endswith(last)
            assert (module.weight == (0 if zero else 1)).all(), name


def test_num_classes():
    model = models.resnet18(num_classes=7).eval()
    assert model.fc.weight.shape == (7, 512)
    with ng.no_grad():
        assert model(ng.randn(2, 3, 32, 32)).shape == (2, 7)


def test_block_by_hand():
    """A block of two identity convolutions, batch-norm at its start in eval mode: 2 relu(x)."""
    block = models.resnet.BasicBlock(4, 4).eval()
    for bn in (block.bn1, block.bn2):
        bn.running_var.fill_(1 - bn.eps)
    nn.init.dirac_(block.conv1.weight)
    nn.init.dirac_(block.conv2.weight)
    x = ng.randn(2, 4, 5, 5)
    before = x.clone()
    with ng.no_grad():
        out = block(x)
    assert (x == before).all()  # `out += identity` and the ReLU in place leave the input alone
    expected = np.maximum(before.numpy() + np.maximum(before.numpy(), 0), 0)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5)


def test_training_step():
    """All parameters get a gradient, statistics move, the loss falls."""
    ng.manual_seed(0)
    model = models.resnet18(num_classes=4)
    x, labels = ng.randn(4, 3, 32, 32), ng.tensor([0, 1, 2, 3])
    optimizer = ng.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        assert all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert model.bn1.num_batches_tracked.item() == 4
    assert (model.bn1.running_mean != 0).any()
