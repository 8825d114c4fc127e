"""Convolutions: functions, gradients of both orders, layers with the same parameters, bad input."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import numgrad
import numgrad.nn
from tests_compare import test_errors
from tests_compare.checks import FLOATS, Case, agree, array_of, check, compare, count, tensor
from tests_compare.test_layers import module, through

# PyTorch copies the input where the padding is odd; numgrad does not.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")

ARE = ["convolution", "convolution_transposed", "convolution_weight"]

# shapes of input, weight and bias, and the other arguments
CONV1D: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 9), (4, 3, 3), {}),
    ((3, 9), (4, 3, 3), {"padding": 1}),
    ((2, 4, 11), (6, 2, 4), {"stride": 3, "padding": 2, "dilation": 2, "groups": 2}),
    ((2, 3, 8), (4, 3, 4), {"padding": "same"}),
    ((2, 3, 8), (4, 3, 3), {"padding": "same", "dilation": (2,)}),
    ((2, 3, 8), (4, 3, 3), {"padding": "valid", "stride": 2}),
    ((2, 5, 1), (3, 5, 1), {}),
]
CONV2D: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 7, 6), (4, 3, 3, 3), {}),
    ((2, 3, 7, 6), (4, 3, 3, 3), {"padding": 1}),
    ((3, 7, 6), (4, 3, 3, 3), {"padding": (0, 2)}),
    ((2, 3, 9, 8), (4, 3, 3, 3), {"stride": 2, "padding": 1}),
    ((1, 3, 17, 19), (8, 3, 7, 7), {"stride": 2, "padding": 3}),
    ((2, 8, 5, 6), (6, 8, 1, 1), {}),
    ((2, 8, 5, 6), (6, 8, 1, 1), {"stride": 2}),
    ((2, 4, 6, 7), (6, 2, 3, 2), {"groups": 2, "padding": (1, 0)}),
    ((2, 5, 6, 7), (5, 1, 3, 3), {"groups": 5, "padding": 1}),
    ((2, 5, 7, 7), (10, 1, 3, 3), {"groups": 5, "padding": 1, "stride": 2}),
    ((2, 3, 9, 9), (4, 3, 3, 2), {"dilation": (2, 3)}),
    ((2, 3, 9, 9), (4, 3, 2, 4), {"dilation": (3, 1), "stride": (1, 3), "padding": (2, 1)}),
    ((2, 3, 5, 6), (4, 3, 2, 4), {"padding": "same"}),
    ((2, 3, 5, 6), (4, 3, 3, 4), {"padding": "same", "dilation": (2, 3)}),
    ((2, 3, 5, 6), (4, 3, 2, 2), {"padding": "valid", "stride": (2, 1)}),
    ((1, 1, 1, 1), (1, 1, 1, 1), {"padding": 3}),
    ((1, 1, 2, 2), (1, 1, 5, 5), {"padding": 4, "stride": 5}),
    ((2, 16, 13, 14), (24, 16, 3, 3), {"padding": 1}),
    ((1, 33, 9, 10), (17, 33, 3, 3), {"padding": 1}),
]
TRANSPOSED1D: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 4, 5), (4, 3, 3), {}),
    ((4, 5), (4, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    ((2, 4, 5), (4, 3, 2), {"dilation": 3, "output_padding": 2}),
    ((2, 4, 5), (4, 3, 3), {"stride": 3, "groups": 2}),
]
TRANSPOSED2D: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 4, 4, 5), (4, 3, 3, 2), {}),
    ((4, 4, 5), (4, 3, 3, 2), {"padding": (1, 0)}),
    ((2, 4, 4, 5), (4, 3, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    ((2, 4, 4, 5), (4, 3, 4, 4), {"stride": 2, "padding": 1}),
    ((2, 4, 4, 5), (4, 1, 2, 2), {"stride": (2, 3), "groups": 4}),
    (
        (2, 4, 3, 3),
        (4, 3, 2, 3),
        {"stride": (2, 1), "padding": 1, "dilation": (1, 3), "output_padding": (1, 2), "groups": 2},
    ),
    ((1, 2, 2, 2), (2, 1, 3, 3), {"stride": 4, "output_padding": 3}),
]


def made(name: str, runs: Any, bias: bool) -> list[Case]:
    """A case a set of arguments; the operands are input, weight and perhaps bias."""
    cases = []
    for shape, weight, named in runs:
        channels = weight[1] * named.get("groups", 1) if "transpose" in name else weight[0]
        cases.append(
            Case(
                name,
                lambda t, *operands, named=named: getattr(t, name)(*operands, **named),
                [[shape, weight, (channels,)] if bias else [shape, weight]],
                ops=ARE,
                label=f"{name} {shape}, {weight}{', bias' * bias} {named or ''}",
                domain=(-1.0, 1.0),
            )
        )
    return cases


CASES = [
    *[
        case
        for name, runs in (
            ("conv1d", CONV1D),
            ("conv2d", CONV2D),
            ("conv_transpose1d", TRANSPOSED1D),
            ("conv_transpose2d", TRANSPOSED2D),
        )
        for bias in (False, True)
        for case in made(name, runs, bias)
    ],
    Case(
        "conv2d",
        lambda t, x, w, b: t.conv2d(x[:, :, ::2, 1:], w.transpose(2, 3), b[::2], padding=1),
        [[(2, 3, 9, 7), (4, 3, 2, 3), (8,)]],
        ops=ARE,
        label="conv2d of views",
    ),
    Case(
        "conv2d",
        lambda t, x, w: t.conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1)),
        [[(2, 6, 5, 3), (2, 3, 3, 4)]],
        ops=ARE,
        label="conv2d of channels last",
    ),
    Case(
        "conv2d",
        lambda t, x, w: t.conv2d(x.expand(3, 2, 5, 5), w.expand(4, 2, 3, 3), stride=2),
        [[(2, 5, 5), (4, 1, 3, 3)]],
        ops=ARE,
        label="conv2d of expanded",
    ),
    Case(
        "conv2d",
        lambda t, x, w: t.conv2d(x, w, padding=1).permute(3, 1, 0, 2),
        [[(2, 3, 5, 4), (4, 3, 3, 3)]],
        ops=ARE,
        label="conv2d with a permuted gradient",
    ),
    Case(
        "conv2d",
        lambda t, x, w, b: t.conv2d(x, w, b, stride=2).sum((0, 2, 3)),
        [[(2, 3, 5, 4), (4, 3, 3, 3), (4,)]],
        ops=ARE,
        label="conv2d with an expanded gradient",
    ),
    Case(
        "conv_transpose2d",
        lambda t, x, w: t.conv_transpose2d(x[..., ::2], w.transpose(0, 1), stride=2),
        [[(2, 3, 4, 5), (4, 3, 3, 2)]],
        ops=ARE,
        label="conv_transpose2d of views",
    ),
    Case(
        "conv2d",
        lambda t, x, w: t.conv2d(x, w, padding=1),
        [[(0, 3, 5, 4), (4, 3, 3, 3)]],
        ops=ARE,
        label="conv2d of an empty batch",
    ),
    Case(
        "conv_transpose2d",
        lambda t, x, w: t.conv_transpose2d(x, w),
        [[(0, 3, 5, 4), (3, 2, 3, 3)]],
        ops=ARE,
        label="conv_transpose2d of an empty batch",
    ),
    Case(
        "conv2d",
        lambda t, x, w, v: t.conv2d(t.tanh(t.conv2d(x, w, padding=1)), v, stride=2),
        [[(2, 3, 6, 6), (5, 3, 3, 3), (2, 5, 3, 3)]],
        ops=ARE,
        label="conv2d twice",
        domain=(-0.6, 0.6),
    ),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolution(case: Case, dtype: str) -> None:
    check(case, "convolution", dtype)


# ------------------------------------------------------------------------------------------- layers

LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "Conv1d": (lambda nn: nn.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 9)),
    "Conv1d, groups": (lambda nn: nn.Conv1d(4, 6, 3, groups=2, bias=False), (4, 9)),
    "Conv1d, same": (lambda nn: nn.Conv1d(4, 6, 4, padding="same", dilation=2), (2, 4, 9)),
    "Conv2d": (lambda nn: nn.Conv2d(3, 5, 3, padding=1), (2, 3, 6, 7)),
    "Conv2d, rectangular": (
        lambda nn: nn.Conv2d(4, 6, (3, 2), (1, 2), (2, 0), (1, 2), 2, bias=False),
        (2, 4, 6, 7),
    ),
    "Conv2d, depthwise": (lambda nn: nn.Conv2d(4, 4, 3, groups=4, stride=2), (2, 4, 7, 7)),
    "Conv2d, same": (lambda nn: nn.Conv2d(3, 5, (2, 3), padding="same"), (3, 5, 6)),
    "Conv2d, valid": (lambda nn: nn.Conv2d(3, 5, (2, 3), padding="valid"), (1, 3, 5, 6)),
    **{
        f"Conv{n}d, {mode}, {padding}": (
            lambda nn, n=n, mode=mode, padding=padding: getattr(nn, f"Conv{n}d")(
                3, 4, (2, 3)[-n:], padding=padding, padding_mode=mode
            ),
            (2, 3, 5, 6)[: n + 2],
        )
        for n in (1, 2)
        for mode in ("reflect", "replicate", "circular")
        for padding in ((2, 1)[-n:], "same", "valid")
    },
    "ConvTranspose1d": (
        lambda nn: nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        (2, 4, 5),
    ),
    "ConvTranspose2d": (lambda nn: nn.ConvTranspose2d(4, 3, 4, stride=2, padding=1), (2, 4, 3, 4)),
    "ConvTranspose2d, no bias": (
        lambda nn: nn.ConvTranspose2d(4, 2, (3, 2), (3, 1), dilation=(1, 2), bias=False),
        (4, 3, 4),
    ),
    "networks": (
        lambda nn: nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, groups=4, padding=1, bias=False),
            nn.Conv2d(4, 2, 1),
            nn.Tanh(),
            nn.ConvTranspose2d(2, 3, 2, stride=2),
        ),
        (2, 3, 8, 8),
    ),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str, dtype: str) -> None:
    """Outputs, and gradients of the input and of all parameters in both orders."""
    make, shape = LAYERS[name]
    parameters = [array_of(p) for p in module(torch, make, dtype).parameters()]
    x = np.random.default_rng(5).standard_normal(shape).astype(dtype)
    compare("layer", name, through(make, dtype), [x, *parameters])


@pytest.mark.parametrize("name", LAYERS)
def test_layer_is_shown_and_named_alike(name: str) -> None:
    make, _ = LAYERS[name]
    ours, theirs = make(numgrad.nn), make(torch.nn)
    assert repr(ours) == repr(theirs)
    assert {k: tuple(v.shape) for k, v in ours.state_dict().items()} == {
        k: tuple(v.shape) for k, v in theirs.state_dict().items()
    }
    for attribute in (
        *("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation"),
        *("transposed", "output_padding", "groups", "padding_mode"),
    ):
        if not name.startswith("net"):
            assert getattr(ours, attribute) == getattr(theirs, attribute), attribute


@pytest.mark.parametrize("name", LAYERS)
def test_first_values_have_the_same_bounds(name: str) -> None:
    make, _ = LAYERS[name]
    numgrad.manual_seed(0)
    torch.manual_seed(0)
    largest = []
    for t in (numgrad, torch):
        drawn = [make(t.nn) for _ in range(200)]
        largest.append(
            {
                key: max(float(np.abs(array_of(m.state_dict()[key])).max()) for m in drawn)
                for key in drawn[0].state_dict()
            }
        )
    ours, theirs = largest
    for key, bound in theirs.items():
        assert abs(ours[key] / bound - 1) < 0.03, (name, key, ours[key], bound)


@pytest.mark.parametrize("size", [(5, 7), (6, 8), [6, 7], (2, 3, 6, 7), (2, 9, 5, 8)])
def test_output_size(size: Any) -> None:
    def make(nn: Any) -> Any:
        return nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1)

    x = np.random.default_rng(6).standard_normal((2, 4, 3, 4)).astype("float32")
    ours, theirs = (
        module(t, make, "float32")(tensor(t, x), output_size=size) for t in (numgrad, torch)
    )
    agree("layer", "forward", f"ConvTranspose2d(output_size={size})", ours, theirs)


# ---------------------------------------------------------------------------------------- bad input


def z(t: Any, *shape: int, dtype: str = "float32") -> Any:
    return tensor(t, np.zeros(shape, dtype))


X, W = (2, 4, 5, 5), (4, 4, 3, 3)


def conv(t: Any, x: Any = X, w: Any = W, *b: int, **named: Any) -> Any:
    return t.conv2d(z(t, *x), z(t, *w), z(t, *b) if b else None, **named)


def transposed(t: Any, x: Any = X, w: Any = W, *b: int, **named: Any) -> Any:
    return t.conv_transpose2d(z(t, *x), z(t, *w), z(t, *b) if b else None, **named)


BAD: dict[str, Any] = {
    "channels": lambda t: conv(t, (2, 3, 5, 5)),
    "channels without a batch": lambda t: conv(t, (3, 5, 5)),
    "two axes": lambda t: conv(t, (5, 5)),
    "five axes": lambda t: conv(t, (1, 2, 4, 5, 5)),
    "weight of three axes": lambda t: conv(t, X, (4, 4, 3)),
    "conv1d of four axes": lambda t: t.conv1d(z(t, *X), z(t, 4, 4, 3)),
    "conv1d, weight": lambda t: t.conv1d(z(t, 2, 4, 5), z(t, *W)),
    "kernel": lambda t: conv(t, X, (4, 4, 6, 3)),
    "kernel, padded": lambda t: conv(t, X, (4, 4, 3, 8), padding=1),
    "kernel, dilated": lambda t: conv(t, dilation=3),
    "no output channels": lambda t: conv(t, X, (0, 4, 3, 3)),
    "an empty kernel": lambda t: conv(t, X, (4, 4, 0, 3)),
    "an empty image": lambda t: conv(t, (2, 4, 0, 5), W, padding=2),
    "bias": lambda t: conv(t, X, W, 3),
    "bias of one": lambda t: conv(t, X, W, 1),
    "bias of two axes": lambda t: conv(t, X, W, 4, 1),
    "groups, channels": lambda t: conv(t, (2, 3, 5, 5), (4, 1, 3, 3), groups=2),
    "groups, outputs": lambda t: conv(t, X, (3, 2, 3, 3), groups=2),
    "groups of 0": lambda t: conv(t, groups=0),
    "groups of -1": lambda t: conv(t, groups=-1),
    "stride 0": lambda t: conv(t, stride=0),
    "stride -1": lambda t: conv(t, stride=(1, -1)),
    "stride of three": lambda t: conv(t, stride=(1, 1, 1)),
    "stride 1.0": lambda t: conv(t, stride=1.0),
    "dilation 0": lambda t: conv(t, dilation=0),
    "dilation -2": lambda t: conv(t, dilation=-2),
    "padding -1": lambda t: conv(t, padding=-1),
    "padding of three": lambda t: conv(t, padding=(1, 1, 1)),
    "padding, a word": lambda t: conv(t, padding="full"),
    "same, strided": lambda t: conv(t, padding="same", stride=2),
    "a list": lambda t: t.conv2d([1.0], z(t, *W)),
    "float64 weight": lambda t: t.conv2d(z(t, *X), z(t, *W, dtype="float64")),
    "float64 bias": lambda t: t.conv2d(z(t, *X), z(t, *W), z(t, 4, dtype="float64")),
    "int64 image": lambda t: t.conv2d(z(t, *X, dtype="int64"), z(t, *W)),
    "bool": lambda t: t.conv2d(z(t, *X, dtype="bool"), z(t, *W, dtype="bool")),
    "transposed, channels": lambda t: transposed(t, (2, 3, 5, 5)),
    "transposed, axes": lambda t: transposed(t, (5, 5)),
    "transposed, weight": lambda t: transposed(t, X, (4, 4, 3)),
    "transposed, bias": lambda t: transposed(t, X, (4, 2, 3, 3), 4),
    "transposed, groups": lambda t: transposed(t, groups=3),
    "transposed, groups of 0": lambda t: transposed(t, groups=0),
    "transposed, stride": lambda t: transposed(t, stride=0),
    "transposed, padding": lambda t: transposed(t, padding=-1),
    "transposed, output_padding": lambda t: transposed(t, stride=2, output_padding=2),
    "transposed, output_padding -1": lambda t: transposed(t, stride=2, output_padding=-1),
    "transposed, size": lambda t: transposed(t, (2, 4, 1, 1), W, padding=3),
    "transposed, padding same": lambda t: transposed(t, padding="same"),
    "Conv2d, groups": lambda t: t.nn.Conv2d(4, 3, 2, groups=2),
    "Conv2d, groups and input": lambda t: t.nn.Conv2d(3, 4, 2, groups=2),
    "Conv2d, groups 0": lambda t: t.nn.Conv2d(4, 4, 2, groups=0),
    "Conv2d, kernel -1": lambda t: t.nn.Conv2d(4, 4, -1),
    "Conv2d, channels": lambda t: t.nn.Conv2d(-4, 4, 1),
    "Conv2d, float channels": lambda t: t.nn.Conv2d(4.0, 4, 1),
    "Conv2d, a word": lambda t: t.nn.Conv2d(4, 4, 2, padding="full"),
    "Conv2d, same": lambda t: t.nn.Conv2d(4, 4, 2, padding="same", stride=2),
    "Conv2d, padding_mode": lambda t: t.nn.Conv2d(4, 4, 2, padding_mode="ones"),
    "Conv2d, input": lambda t: t.nn.Conv2d(4, 4, 2)(z(t, 2, 3, 5, 5)),
    "Conv2d, stride 0": lambda t: t.nn.Conv2d(4, 4, 2, stride=0)(z(t, *X)),
    "ConvTranspose2d, groups": lambda t: t.nn.ConvTranspose2d(4, 3, 2, groups=2),
    "ConvTranspose2d, mode": lambda t: t.nn.ConvTranspose2d(4, 4, 2, padding_mode="reflect"),
    "output_size, too large": lambda t: t.nn.ConvTranspose2d(4, 3, 3, stride=2)(
        z(t, *X), output_size=(13, 12)
    ),
    "output_size, too small": lambda t: t.nn.ConvTranspose2d(4, 3, 3, stride=2)(
        z(t, *X), output_size=(10, 11)
    ),
    "output_size of one": lambda t: t.nn.ConvTranspose2d(4, 3, 3)(z(t, *X), output_size=(7,)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    with pytest.raises(Exception) as theirs:
        BAD[name](torch)
    with pytest.raises(Exception) as ours:
        BAD[name](numgrad)
    wanted = test_errors.family(theirs.type)
    assert isinstance(ours.value, wanted), f"{name}: {ours.value!r}, PyTorch: {theirs.value!r}"
    assert ours.type.__module__.split(".")[0] in ("builtins", "numgrad"), ours.type
    count("error", wanted.__name__, "-", f"convolution: {name}", 0.0)


def test_no_input_channels() -> None:
    """A sum over no channels is 0, so the result is the bias; PyTorch's has no channels either."""
    shapes = ((2, 0, 5, 4), (4, 0, 3, 2))
    bias = [1.0, -2.0, 3.0, 4.0]
    theirs = torch.conv2d(torch.zeros(shapes[0]), torch.zeros(shapes[1]), torch.tensor(bias))
    ours = numgrad.conv2d(numgrad.zeros(shapes[0]), numgrad.zeros(shapes[1]), numgrad.tensor(bias))
    assert theirs.shape == (2, 0, 3, 3) and ours.shape == (2, 4, 3, 3)
    assert (ours == numgrad.tensor(bias).reshape(4, 1, 1)).all()


def test_integers() -> None:
    """PyTorch convolves int64 (not bool or uint8); here that is an error: convert them."""
    x, w = (np.ones(s, np.int64) for s in ((1, 1, 3, 3), (1, 1, 2, 2)))
    assert torch.conv2d(torch.tensor(x), torch.tensor(w)).dtype == torch.int64
    with pytest.raises(TypeError, match="floating dtype"):
        numgrad.conv2d(numgrad.tensor(x), numgrad.tensor(w))


def test_frozen_operands() -> None:
    """The gradients that are wanted do not depend on which others are."""
    rng = np.random.default_rng(8)
    arrays = [rng.standard_normal(s) for s in ((2, 3, 5, 5), (4, 3, 3, 3), (4,))]
    for wanted in itertools.product((False, True), repeat=3):
        if not any(wanted):
            continue
        found = []
        for t in (numgrad, torch):
            operands = [tensor(t, a, need) for a, need in zip(arrays, wanted, strict=True)]
            (t.conv2d(*operands, padding=1) ** 2).sum().backward()
            found.append([x.grad for x in operands])
        for ours, theirs in zip(*found, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                agree("convolution", "gradient", f"conv2d, wanted {wanted}", ours, theirs)
