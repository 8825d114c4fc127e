"""Layers of pooling, padding and upsampling: what they compute, keep and show."""

import copy

import numpy as np
import pytest

import numgrad
import numgrad.nn.functional as F
from numgrad import Variable, memory, nn

X = np.random.default_rng(0).standard_normal((2, 3, 9, 8)).astype("float32")
LAYERS = {  # name: (layer, the function of a tensor, how it shows itself)
    "MaxPool1d": (
        nn.MaxPool1d(3, 2, 1),
        lambda x: F.max_pool1d(x[0], 3, 2, 1),
        "MaxPool1d(kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=False)",
    ),
    "MaxPool2d": (
        nn.MaxPool2d((3, 2), ceil_mode=True),
        lambda x: F.max_pool2d(x, (3, 2), None, 0, 1, True),
        "MaxPool2d(kernel_size=(3, 2), stride=(3, 2), padding=0, dilation=1, ceil_mode=True)",
    ),
    "AvgPool1d": (
        nn.AvgPool1d(3),
        lambda x: F.avg_pool1d(x[0], 3),
        "AvgPool1d(kernel_size=(3,), stride=(3,), padding=(0,))",
    ),
    "AvgPool2d": (
        nn.AvgPool2d(3, 2, 1, True, False, 5),
        lambda x: F.avg_pool2d(x, 3, 2, 1, True, False, 5),
        "AvgPool2d(kernel_size=3, stride=2, padding=1)",
    ),
    "AdaptiveAvgPool1d": (
        nn.AdaptiveAvgPool1d(5),
        lambda x: F.adaptive_avg_pool1d(x[0], 5),
        "AdaptiveAvgPool1d(output_size=5)",
    ),
    "AdaptiveAvgPool2d": (
        nn.AdaptiveAvgPool2d((1, 1)),
        lambda x: x.mean((-2, -1), keepdim=True),
        "AdaptiveAvgPool2d(output_size=(1, 1))",
    ),
    "AdaptiveMaxPool1d": (
        nn.AdaptiveMaxPool1d(5),
        lambda x: F.adaptive_max_pool1d(x[0], 5),
        "AdaptiveMaxPool1d(output_size=5)",
    ),
    "AdaptiveMaxPool2d": (
        nn.AdaptiveMaxPool2d((None, 1)),
        lambda x: x.max(3, keepdim=True)[0],
        "AdaptiveMaxPool2d(output_size=(None, 1))",
    ),
    "ZeroPad1d": (nn.ZeroPad1d((1, 2)), lambda x: F.pad(x[0], (1, 2)), "ZeroPad1d((1, 2))"),
    "ZeroPad2d": (nn.ZeroPad2d(2), lambda x: F.pad(x, (2,) * 4), "ZeroPad2d((2, 2, 2, 2))"),
    "ConstantPad1d": (
        nn.ConstantPad1d(1, -1.5),
        lambda x: F.pad(x[0], (1, 1), value=-1.5),
        "ConstantPad1d(padding=(1, 1), value=-1.5)",
    ),
    "ConstantPad2d": (
        nn.ConstantPad2d((1, 0, 2, 3), 4),
        lambda x: F.pad(x, (1, 0, 2, 3), value=4),
        "ConstantPad2d(padding=(1, 0, 2, 3), value=4)",
    ),
    "ReflectionPad1d": (
        nn.ReflectionPad1d(3),
        lambda x: F.pad(x[0], (3, 3), "reflect"),
        "ReflectionPad1d((3, 3))",
    ),
    "ReflectionPad2d": (
        nn.ReflectionPad2d((1, 0, 2, 3)),
        lambda x: F.pad(x, (1, 0, 2, 3), "reflect"),
        "ReflectionPad2d((1, 0, 2, 3))",
    ),
    "ReplicationPad1d": (
        nn.ReplicationPad1d(3),
        lambda x: F.pad(x[0], (3, 3), "replicate"),
        "ReplicationPad1d((3, 3))",
    ),
    "ReplicationPad2d": (
        nn.ReplicationPad2d((1, 0, 2, 3)),
        lambda x: F.pad(x, (1, 0, 2, 3), "replicate"),
        "ReplicationPad2d((1, 0, 2, 3))",
    ),
    "CircularPad1d": (
        nn.CircularPad1d(3),
        lambda x: F.pad(x[0], (3, 3), "circular"),
        "CircularPad1d((3, 3))",
    ),
    "CircularPad2d": (
        nn.CircularPad2d((1, 0, 2, 3)),
        lambda x: F.pad(x, (1, 0, 2, 3), "circular"),
        "CircularPad2d((1, 0, 2, 3))",
    ),
    "Upsample": (
        nn.Upsample(scale_factor=2),
        lambda x: F.interpolate(x, scale_factor=2),
        "Upsample(scale_factor=2.0, mode='nearest')",
    ),
    "UpsamplingNearest2d": (
        nn.UpsamplingNearest2d((4, 11)),
        lambda x: F.interpolate(x, (4, 11)),
        "UpsamplingNearest2d(size=(4, 11), mode='nearest')",
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name):
    layer, function, shown = LAYERS[name]
    x = numgrad.tensor(X, requires_grad=True)
    own = x[0] if name.endswith("1d") else x
    out, expected = copy.deepcopy(layer)(own), function(x)
    np.testing.assert_array_equal(out.detach().numpy(), expected.detach().numpy())
    assert out.requires_grad and repr(layer) == shown
    assert not list(layer.parameters()) and not layer.state_dict()
    with memory.track() as m:
        out = layer(Variable(own.data, volatile=True))
    assert (m.nodes, m.saved_bytes) == (0, 0) and out.volatile and type(out) is Variable


def test_indices_of_the_layers():
    x = numgrad.tensor(X)
    for layer in (nn.MaxPool2d(2, return_indices=True), nn.AdaptiveMaxPool2d(3, True)):
        out, indices = layer(x)
        flat = x.reshape(2, 3, -1).gather(2, indices.reshape(2, 3, -1))
        assert flat.tolist() == out.reshape(2, 3, -1).tolist()
        assert indices.dtype == numgrad.int64 and not indices.requires_grad


def test_other_modes_are_refused_when_used():
    layer = nn.Upsample(scale_factor=2, mode="bilinear")
    for factor in ("a", (2, None)):
        with pytest.raises(TypeError, match="Upsample: expected numbers for scale_factor"):
            nn.Upsample(scale_factor=factor)
    with pytest.raises(NotImplementedError, match="expected 'nearest' for mode, got 'bilinear'"):
        layer(numgrad.tensor(X))
