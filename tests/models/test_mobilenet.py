"""MobileNetV2: torchvision's names and shapes, parameter counts, widths, a forward."""

import pytest

import numgrad as ng
import numgrad.nn as nn
from numgrad import models
from numgrad.models.mobilenet import InvertedResidual, _make_divisible
from tests.models import shapes


def count(model):
    return sum(p.numel() for p in model.parameters())


def test_state_dict():
    model = models.mobilenet_v2()
    expected = shapes.mobilenet_v2()
    assert len(expected) == 314
    assert [(n, tuple(v.shape)) for n, v in model.state_dict().items()] == expected
    assert count(model) == 3_504_872
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout)] == [0.2]
    assert all(m.inplace for m in model.modules() if isinstance(m, nn.ReLU6))
    depthwise = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.groups > 1]
    assert len(depthwise) == 17
    assert all(m.groups == m.in_channels == m.out_channels for m in depthwise)


@pytest.mark.parametrize(
    ("value", "rounded"),
    # 11 → 8 would be down by more than a tenth.
    [(32, 32), (24 * 0.75, 24), (11, 16), (32 * 0.35, 16), (3, 8), (1280 * 1.4, 1792)],
)
def test_make_divisible(value, rounded):
    assert _make_divisible(value, 8) == rounded


def test_width_mult():
    model = models.mobilenet_v2(width_mult=0.5, num_classes=5, dropout=0.0)
    assert model.last_channel == 1280  # never narrower
    assert model.features[0][0].out_channels == 16
    assert model.features[17].out_channels == 160
    assert models.mobilenet_v2(width_mult=1.4).last_channel == 1792
    model.eval()
    with ng.no_grad():
        assert model(ng.randn(2, 3, 32, 32)).shape == (2, 5)


def test_shortcuts():
    """Where shapes stay: the input is added, after a convolution of zeros it passes unchanged."""
    block = InvertedResidual(8, 8, 1, 6).eval()
    nn.init.zeros_(block.conv[2].weight)
    x = ng.randn(2, 8, 4, 4)
    with ng.no_grad():
        assert (block(x) == x).all()
        assert (InvertedResidual(8, 8, 2, 6).eval()(x).shape) == (2, 8, 2, 2)
    model = models.mobilenet_v2()
    residual = [m.use_res_connect for m in model.modules() if isinstance(m, InvertedResidual)]
    assert sum(residual) == 10 and not residual[0]


def test_gradients():
    ng.manual_seed(0)
    model = models.mobilenet_v2(width_mult=0.35, num_classes=3)
    model(ng.randn(2, 3, 64, 64)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.shape == parameter.shape, name
