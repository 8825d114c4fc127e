"""Layers of convolution: attributes, first values, sizes, what they keep, what they refuse."""

import copy
import math

import numpy as np
import pytest

import numgrad
from numgrad import memory, nn
from numgrad.graph.errors import RangeError, ShapeError
from numgrad.nn import functional as F
from numgrad.variable import Parameter, Variable
from tests.checks import assert_close, check_gradients


def test_attributes():
    layer = nn.Conv2d(4, 6, (3, 2), stride=2, padding=(1, 0), dilation=[1, 2], groups=2)
    assert (layer.in_channels, layer.out_channels, layer.groups) == (4, 6, 2)
    assert (layer.kernel_size, layer.stride, layer.padding) == ((3, 2), (2, 2), (1, 0))
    assert (layer.dilation, layer.output_padding, layer.transposed) == ((1, 2), (0, 0), False)
    assert layer.padding_mode == "zeros"
    assert layer.weight.shape == (6, 2, 3, 2) and layer.bias.shape == (6,)
    assert isinstance(layer.weight, Parameter) and layer.weight.requires_grad
    assert list(layer.state_dict()) == ["weight", "bias"]
    bare = nn.Conv1d(2, 3, 5, bias=False, dtype="float64")
    assert bare.bias is None and list(bare.state_dict()) == ["weight"]
    assert bare.weight.shape == (3, 2, 5) and bare.weight.dtype == numgrad.float64
    back = nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2)
    assert back.weight.shape == (4, 3, 3, 3) and back.bias.shape == (6,)
    assert back.transposed and back.output_padding == (1, 1)


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (nn.Conv1d(2, 3, 5), "Conv1d(2, 3, kernel_size=(5,), stride=(1,))"),
        (
            nn.Conv2d(4, 6, (3, 2), 2, 1, 2, 2, False, "reflect"),
            "Conv2d(4, 6, kernel_size=(3, 2), stride=(2, 2), padding=(1, 1), dilation=(2, 2), "
            "groups=2, bias=False, padding_mode=reflect)",
        ),
        (
            nn.Conv2d(4, 6, 3, padding="same"),
            "Conv2d(4, 6, kernel_size=(3, 3), stride=(1, 1), padding=same)",
        ),
        (
            nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1),
            "ConvTranspose1d(4, 6, kernel_size=(3,), stride=(2,), padding=(1,), "
            "output_padding=(1,))",
        ),
        (
            nn.ConvTranspose2d(1, 1, 2, 1, 0, 0, 1, True, 2),
            "ConvTranspose2d(1, 1, kernel_size=(2, 2), stride=(1, 1), dilation=(2, 2))",
        ),
    ],
)
def test_repr(layer, text):
    assert repr(layer) == text


def test_first_values():
    """Uniform in ±1 / sqrt(fan_in); of a transposed layer fan_in is that of its weight's shape."""
    numgrad.manual_seed(0)
    for layer, fan_in in (
        (nn.Conv2d(30, 200, 3), 270),
        (nn.Conv2d(60, 200, 3, groups=2), 270),
        (nn.Conv1d(40, 500, 5), 200),
        (nn.ConvTranspose2d(200, 30, 3), 270),
        (nn.ConvTranspose1d(50, 400, 5, groups=2), 1000),
    ):
        for p in (layer.weight, layer.bias):
            v, bound = p.detach().numpy(), 1 / math.sqrt(fan_in)
            assert np.abs(v).max() <= bound
            if p is layer.weight:
                assert abs(v.std() - bound / math.sqrt(3)) < 0.03 * bound
                assert abs(v.mean()) < 0.03 * bound
        before = layer.weight.detach().clone()
        layer.reset_parameters()
        assert (layer.weight != before).any() and layer.weight.requires_grad


LAYERS = [
    (lambda: nn.Conv1d(2, 3, 3, stride=2, padding=1), (2, 2, 7), (2, 3, 4)),
    (lambda: nn.Conv1d(2, 3, 3), (2, 7), (3, 5)),
    (lambda: nn.Conv2d(2, 3, 3, padding="same"), (2, 2, 5, 4), (2, 3, 5, 4)),
    (lambda: nn.Conv2d(2, 4, (2, 3), (1, 2), groups=2), (2, 5, 6), (4, 4, 2)),
    (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (1, 2, 4, 4), (1, 3, 4, 4)),
    (
        lambda: nn.Conv2d(2, 3, (2, 4), padding="same", padding_mode="circular"),
        (1, 2, 4, 5),
        (1, 3, 4, 5),
    ),
    (lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1), (2, 2, 3), (2, 3, 8)),
    (lambda: nn.ConvTranspose2d(2, 3, 4, stride=2, padding=1), (2, 3, 2), (3, 6, 4)),
]


@pytest.mark.parametrize(("make", "x", "y"), LAYERS)
def test_forward(make, x, y):
    """Shapes, and the gradients of the input and of all parameters."""
    layer = make().double()
    arrays = [np.random.default_rng(0).standard_normal(x)]
    arrays += [p.detach().numpy().copy() for p in layer.parameters()]
    assert layer(numgrad.tensor(arrays[0])).shape == y

    def call(x, *values):
        own = copy.deepcopy(layer)
        for (name, _), value in zip(layer.named_parameters(), values, strict=True):
            del own._parameters[name]
            object.__setattr__(own, name, value)
        return own(x)

    check_gradients(call, arrays, type(layer).__name__)


def test_functions_are_what_layers_call():
    numgrad.manual_seed(1)
    x = numgrad.randn(2, 4, 6, 7)
    layer = nn.Conv2d(4, 6, 3, 2, 1, 1, 2)
    got = F.conv2d(x, layer.weight, layer.bias, 2, 1, 1, 2)
    assert (got == layer(x)).all()
    back = nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2, True, 1)
    got = F.conv_transpose2d(x, back.weight, back.bias, 2, 1, 1, 2, 1)
    assert (got == back(x)).all()
    assert F.conv1d(x[:, :, 0], layer.weight[:, :, 0], None, 1, 0, 1, 2).shape == (2, 6, 5)
    assert F.conv_transpose1d(x[:, :, 0], back.weight[:, :, 0], groups=2).shape == (2, 6, 9)


def test_padding_modes():
    """The padding is that of `functional.pad`, before a convolution without any."""
    x = numgrad.arange(24.0).reshape(1, 2, 3, 4)
    for mode in ("reflect", "replicate", "circular"):
        layer = nn.Conv2d(2, 3, 2, padding=(1, 2), padding_mode=mode)
        expected = F.conv2d(F.pad(x, (2, 2, 1, 1), mode), layer.weight, layer.bias)
        assert (layer(x) == expected).all()
        layer = nn.Conv2d(2, 3, (2, 3), padding="same", padding_mode=mode)
        expected = F.conv2d(F.pad(x, (1, 1, 0, 1), mode), layer.weight, layer.bias)
        assert (layer(x) == expected).all() and layer(x).shape == (1, 3, 3, 4)


def test_output_size():
    layer = nn.ConvTranspose2d(2, 3, 3, stride=(2, 3), padding=1)
    x = numgrad.randn(1, 2, 3, 3)
    assert layer(x).shape == (1, 3, 5, 7)
    for size in ((5, 7), (6, 8), [5, 9], (1, 3, 6, 9)):
        out = layer(x, output_size=size)
        assert out.shape[2:] == tuple(size)[-2:]
        least = F.pad(layer(x), (0, 0, 0, 0))
        assert_close(out[:, :, :4, :6].detach().numpy(), least[:, :, :4, :6].detach().numpy(), 1e-6)
    assert layer(x[0], [6, 8]).shape == (3, 6, 8)
    down = nn.Conv2d(3, 2, 3, stride=(2, 3), padding=1)  # the sizes that it makes 3 by 3
    assert down(layer(x, (6, 9))).shape == x.shape
    assert nn.ConvTranspose1d(2, 3, 3, stride=2)(x[0, :, 0], 8).shape == (3, 8)
    for size in ((5,), (5, 7, 1)):
        with pytest.raises(RangeError, match="one integer or 2 for output_size"):
            layer(x, size)
    with pytest.raises(TypeError, match=r"integers for output_size, got \[5.0, 7.0\]"):
        layer(x, [5.0, 7.0])
    for size in ((4, 7), (7, 8), (5, 10)):
        with pytest.raises(RangeError, match=r"sizes from \(5, 7\) to \(6, 9\) for output_size"):
            layer(x, size)
    with pytest.raises(ShapeError, match=r"\(n, c, h, w\) or \(c, h, w\) for x"):
        layer(numgrad.ones(3, 3), (5, 7))


def test_training_step():
    """A layer learns the kernel that made its targets."""
    numgrad.manual_seed(2)
    wanted, layer = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(1, 2, 3, padding=1)
    x = numgrad.randn(8, 1, 8, 8)
    with numgrad.no_grad():
        target = wanted(x)
    optimizer = numgrad.optim.SGD(layer.parameters(), lr=0.2)
    for _ in range(60):
        optimizer.zero_grad()
        F.mse_loss(layer(x), target).backward()
        optimizer.step()
    assert_close(layer.weight.detach().numpy(), wanted.weight.detach().numpy(), 1e-2)


def test_frozen_and_volatile_keep_nothing():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2, 2))
    x = numgrad.ones(2, 3, 6, 6)
    with memory.track() as m:
        out = net(x)
    assert m.nodes == 3 and m.saved_bytes >= 2 * 4 * 36 * 4
    for value, context in (
        (Variable(x, volatile=True), numgrad.enable_grad()),
        (x, numgrad.no_grad()),
    ):
        with memory.track() as m, context:
            y = net(value)
        assert (m.nodes, m.saved_tensors) == (0, 0)
        assert (y == out).all()
    net.requires_grad_(False)
    with memory.track() as m:
        y = net(x)
    assert (m.nodes, m.saved_tensors, y.requires_grad) == (0, 0, False)
    head = nn.Conv2d(2, 5, 1)
    with memory.track() as m:
        loss = head(net(x)).sum()
    assert (m.nodes, m.saved_bytes) == (2, y.numel() * 4)
    loss.backward()
    assert all(p.grad is None for p in net.parameters())


def test_states_go_over():
    one, other = (nn.Sequential(nn.Conv2d(2, 3, 3), nn.ConvTranspose2d(3, 1, 2)) for _ in "ab")
    assert list(one.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    other.load_state_dict(one.state_dict())
    x = numgrad.randn(1, 2, 5, 5)
    assert (one(x) == other(x)).all()


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: nn.Conv2d(3, 4, 2, groups=2), RangeError, "Conv2d: .* divide for in_channels"),
        (lambda: nn.Conv2d(4, 3, 2, groups=2), RangeError, "2 groups divide for out_channels"),
        (lambda: nn.ConvTranspose1d(4, 3, 2, groups=2), RangeError, "divide for out_channels"),
        (lambda: nn.Conv2d(4, 4, 2, groups=0), RangeError, "for groups, got 0"),
        (lambda: nn.Conv2d(4, 4, 0), RangeError, "positive integers .* for kernel_size"),
        (lambda: nn.Conv2d(4, 4, (1, 2, 3)), RangeError, "one integer or 2 for kernel_size"),
        (lambda: nn.Conv1d(4, 4, (1, 2)), RangeError, "one integer for kernel_size"),
        (lambda: nn.Conv2d(-1, 4, 1), RangeError, "for in_channels, got -1"),
        (lambda: nn.Conv2d(4.0, 4, 1), TypeError, "an integer for in_channels, got 4.0"),
        (lambda: nn.Conv2d(4, 4, 1, stride=0), RangeError, "for stride, got 0"),
        (lambda: nn.Conv2d(4, 4, 1, dilation=-1), RangeError, "for dilation, got -1"),
        (lambda: nn.Conv2d(4, 4, 1, padding=-1), RangeError, "for padding, got -1"),
        (lambda: nn.Conv2d(4, 4, 1, padding="full"), RangeError, "'valid' or 'same' for padding"),
        (lambda: nn.Conv2d(4, 4, 1, 2, padding="same"), RangeError, "stride 1 with padding="),
        (lambda: nn.Conv2d(4, 4, 1, padding_mode="ones"), RangeError, "'zeros', 'reflect'"),
        (
            lambda: nn.ConvTranspose2d(4, 4, 1, padding_mode="reflect"),
            RangeError,
            "one of 'zeros' for padding_mode, got 'reflect'",
        ),
        (lambda: nn.ConvTranspose2d(4, 4, 1, padding="same"), TypeError, "integers for padding"),
        (lambda: nn.ConvTranspose2d(4, 4, 1, output_padding=-1), RangeError, "output_padding"),
        (lambda: nn.Conv2d(4, 4, 1)(numgrad.ones(1, 3, 2, 2)), ShapeError, "4 channels for x"),
        (lambda: nn.Conv2d(4, 4, 1)(numgrad.ones(4, 4)), ShapeError, "n, c, h, w"),
        (lambda: nn.Conv2d(4, 4, 3)(numgrad.ones(1, 4, 2, 2)), ShapeError, "a kernel that fits"),
        (lambda: nn.Conv2d(4, 4, 1).double()(numgrad.ones(1, 4, 2, 2)), TypeError, "float32"),
    ],
)
def test_errors(make, kind, text):
    with pytest.raises(kind, match=text):
        make()
