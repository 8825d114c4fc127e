"""LeNet-5: layers, sizes, what it refuses."""

import pytest

import numgrad as ng
from numgrad import models
from numgrad.models.lenet import LeNet


@pytest.mark.parametrize("size", [28, 32])
def test_layers(size):
    model = models.lenet(size=size)
    assert [(n, tuple(p.shape)) for n, p in model.named_parameters()] == [
        ("conv1.weight", (6, 1, 5, 5)),
        ("conv1.bias", (6,)),
        ("conv2.weight", (16, 6, 5, 5)),
        ("conv2.bias", (16,)),
        ("fc1.weight", (120, 400)),
        ("fc1.bias", (120,)),
        ("fc2.weight", (84, 120)),
        ("fc2.bias", (84,)),
        ("fc3.weight", (10, 84)),
        ("fc3.bias", (10,)),
    ]
    assert sum(p.numel() for p in model.parameters()) == 61_706
    x = ng.randn(3, 1, size, size)
    out = model(x)
    assert out.shape == (3, 10)
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_border():
    """A picture of 28 × 28 gives what it gives with two zeros around in the net for 32 × 32."""
    small, large = models.lenet(size=28), models.lenet(size=32)
    large.load_state_dict(small.state_dict())
    x = ng.randn(2, 1, 28, 28)
    padded = ng.zeros(2, 1, 32, 32)
    padded[:, :, 2:30, 2:30] = x
    with ng.no_grad():
        assert abs(small(x) - large(padded)).max().item() < 1e-5


def test_options_and_errors():
    model = LeNet(num_classes=3, in_channels=2, size=32)
    assert model(ng.zeros(1, 2, 32, 32)).shape == (1, 3)
    with pytest.raises(ValueError, match=r"LeNet: expected 28 or 32 for size, got 30; resize"):
        LeNet(size=30)
