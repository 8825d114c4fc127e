"""Pooling, padding and nearest interpolation: functions, layers and bad input in both libraries."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import numgrad
import numgrad.nn
from tests_compare import test_errors
from tests_compare.checks import FLOATS, Case, array_of, check, compare, tensor

INF, NAN = np.inf, np.nan
IMAGES = [(2, 3, 7, 6), (3, 9, 8), (0, 2, 5, 5)]
SIGNALS = [(2, 3, 9), (3, 8), (0, 2, 5)]


def case(name: str, ops: list[str], shapes: Any, *args: Any, **named: Any) -> Case:
    """A case of the function ``name`` of ``nn.functional``."""

    def call(t: Any, x: Any) -> Any:
        return getattr(t.nn.functional, name)(x, *args, **named)

    given = ", ".join([*map(repr, args), *(f"{k}={v!r}" for k, v in named.items())])
    return Case(name, call, [[shape] for shape in shapes], ops=ops, label=f"{name}({given})")


MAX, AVERAGE = ["max_pool", "add_places"], ["avg_pool", "avg_pool_adjoint"]
INDEXED = ["max_pool_indexed", "add_places"]
SECOND = ["take_places"]

CASES = [
    case("max_pool2d", [*MAX, *SECOND], IMAGES, 2),
    case("max_pool2d", MAX, IMAGES, 3, 2, 1),
    case("max_pool2d", MAX, IMAGES, (3, 2), (1, 3), (1, 0)),
    case("max_pool2d", MAX, IMAGES, 3, 1, 1),
    case("max_pool2d", MAX, IMAGES, 2, 1, 1, (2, 1)),
    case("max_pool2d", MAX, IMAGES, 3, 2, 1, ceil_mode=True),
    case("max_pool2d", MAX, IMAGES, 2, 3, ceil_mode=True),
    case("max_pool2d", INDEXED, IMAGES, 3, 2, 1, return_indices=True),
    case("max_pool2d", INDEXED, IMAGES, (2, 3), None, 1, 1, True, True),
    case("max_pool2d", INDEXED, [(1, 1, 20, 19)], (17, 16), 1, return_indices=True),
    case("max_pool1d", MAX, SIGNALS, 2),
    case("max_pool1d", MAX, SIGNALS, 3, 2, 1),
    case("max_pool1d", MAX, SIGNALS, (3,), 1, 1, 2, True),
    case("max_pool1d", INDEXED, SIGNALS, 3, 2, 1, return_indices=True),
    case("avg_pool2d", AVERAGE, IMAGES, 2),
    case("avg_pool2d", AVERAGE, IMAGES, 3, 2, 1),
    case("avg_pool2d", AVERAGE, IMAGES, 3, 1, 1, False, False),
    case("avg_pool2d", AVERAGE, IMAGES, 3, 2, 1, ceil_mode=True),
    case("avg_pool2d", AVERAGE, IMAGES, (2, 3), (3, 2), (1, 0), True, False),
    case("avg_pool2d", AVERAGE, IMAGES, 2, divisor_override=3),
    case("avg_pool2d", AVERAGE, IMAGES, 3, 2, 1, divisor_override=-2),
    case("avg_pool1d", AVERAGE, SIGNALS, 2),
    case("avg_pool1d", AVERAGE, SIGNALS, 3, 2, 1, True),
    case("avg_pool1d", AVERAGE, SIGNALS, 3, 1, 1, False, False),
    case("adaptive_avg_pool2d", ["mean_over"], IMAGES, 1),
    case("adaptive_avg_pool2d", AVERAGE, IMAGES, (3, 4)),
    case("adaptive_avg_pool2d", AVERAGE, IMAGES, (None, 2)),
    case("adaptive_avg_pool2d", AVERAGE, IMAGES, 11),
    case("adaptive_avg_pool2d", AVERAGE, [(2, 3, 8, 6)], (4, 3)),
    case("adaptive_avg_pool1d", AVERAGE, SIGNALS, 4),
    case("adaptive_avg_pool1d", ["mean_over"], SIGNALS, 1),
    case("adaptive_max_pool2d", MAX, IMAGES, 1),
    case("adaptive_max_pool2d", MAX, IMAGES, (3, 4)),
    case("adaptive_max_pool2d", INDEXED, IMAGES, (None, 2), return_indices=True),
    case("adaptive_max_pool2d", INDEXED, IMAGES, 11, return_indices=True),
    case("adaptive_max_pool1d", MAX, SIGNALS, 4),
    case("adaptive_max_pool1d", INDEXED, SIGNALS, 3, True),
    case("pad", ["pad_constant"], [(2, 3), (4,)], (1, 2)),
    case("pad", ["pad_constant"], [(2, 3, 4)], (1, 0, 0, 2), value=1.5),
    case("pad", ["pad_constant"], [(2, 3, 4), (0, 3, 2)], (1, 1, 1, 1, 1, 1), "constant", -INF),
    case("pad", ["pad_constant", "slice_of"], [(3, 5)], (-1, 2, 1, -2)),
    case("pad", ["slice_of"], [(3, 5)], (-2, -3)),
    case("pad", ["clone"], [(3, 5)], (0, 0)),
    *[
        case("pad", ["pad_edges", "fold_edges"], shapes, pads, mode)
        for mode in ("reflect", "replicate", "circular")
        for pads, shapes in (
            ((1, 2), [(2, 3), (2, 3, 4), (0, 2, 3)]),
            ((2, 1, 1, 0), [(2, 3, 4), (2, 2, 3, 3)]),
            ((1, 1, 0, 1, 1, 0), [(2, 3, 4, 3)]),
        )
    ],
    case("pad", ["pad_edges", "slice_of"], [(2, 3, 4)], (3, -2, -1, 1), "reflect"),
    case("pad", ["pad_edges", "slice_of"], [(2, 3, 4)], (5, -2, -3, 1), "replicate"),
    case("pad", ["pad_edges", "slice_of"], [(2, 3, 4)], (-1, 2), "circular"),
    *[
        case("interpolate", ["nearest", "nearest_adjoint"], shapes, **named)
        for shapes, named in (
            ([(2, 3, 4, 5), (2, 3, 4), (0, 2, 3, 3)], {"scale_factor": 2}),
            ([(2, 3, 4, 5), (2, 3, 4)], {"size": 7}),
            ([(2, 3, 4, 5)], {"size": (9, 2)}),
            ([(2, 3, 4, 5)], {"scale_factor": (3, 0.5)}),
            ([(2, 3, 4, 5), (2, 3, 7)], {"scale_factor": 1.6}),
            (
                [(2, 3, 4, 5), (2, 3, 7)],
                {"scale_factor": 1.6, "recompute_scale_factor": True},
            ),
            ([(2, 3, 4, 5)], {"scale_factor": (1.7, 2.0), "mode": "nearest"}),
        )
    ],
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_pooling(case: Case, dtype: str) -> None:
    check(case, "pooling", dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_ties_infinities_and_nan(dtype: str) -> None:
    """The same maximum is chosen, at every kind of window."""
    rng = np.random.default_rng(5)
    windows: list[tuple[str, tuple[Any, ...]]] = [
        ("max_pool2d", (3, 2, 1)),
        ("max_pool2d", (2, 1)),
        ("max_pool2d", (3, 3, 1, 1, True)),
        ("adaptive_max_pool2d", ((4, 3),)),
    ]
    for values, (name, args) in itertools.product(((0, 1, 2), (-INF, -1), (NAN, 0, 1)), windows):
        x = rng.choice(values, (2, 2, 8, 7)).astype(dtype)

        def call(t: Any, x: Any, name: str = name, args: Any = args) -> Any:
            return getattr(t.nn.functional, name)(x, *args, return_indices=True)

        ours, theirs = (call(t, tensor(t, x)) for t in (numgrad, torch))
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(array_of(a), array_of(b))


def test_random_windows() -> None:
    """Sizes, divisors and places of many windows; where PyTorch refuses, so does numgrad."""
    rng = np.random.default_rng(6)
    refused = 0
    for _ in range(400):
        x = rng.standard_normal((2, *rng.integers(1, 12, 2)))
        kernel, stride = rng.integers(1, 6, 2).tolist(), rng.integers(1, 5, 2).tolist()
        padding = [int(rng.integers(0, k // 2 + 1)) for k in kernel]
        flags = [bool(flag) for flag in rng.integers(0, 2, 2)]
        found: list[list[np.ndarray] | None] = []
        for t in (numgrad, torch):
            F, operand = t.nn.functional, tensor(t, x)
            try:
                maxima = F.max_pool2d(
                    operand, kernel, stride, padding, 1, flags[0], return_indices=True
                )
                found.append(
                    [
                        array_of(y)
                        for y in (*maxima, F.avg_pool2d(operand, kernel, stride, padding, *flags))
                    ]
                )
            except RuntimeError:
                found.append(None)
        assert (found[0] is None) == (found[1] is None), (x.shape, kernel, stride, padding, flags)
        if found[0] is None or found[1] is None:
            refused += 1
            continue
        for a, b in zip(found[0], found[1], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13)
    assert 20 < refused < 300


def test_integers() -> None:
    x = np.random.default_rng(7).integers(0, 9, (2, 3, 7, 6))
    for dtype in ("int64", "int32", "uint8"):
        results = [
            t.nn.functional.max_pool2d(tensor(t, x.astype(dtype)), 3, 2, 1, return_indices=True)
            for t in (numgrad, torch)
        ]
        for a, b in zip(*results, strict=True):
            np.testing.assert_array_equal(array_of(a), array_of(b))
            assert array_of(a).dtype == array_of(b).dtype


def test_sources_of_many_sizes() -> None:
    """Which elements are taken. PyTorch's float64 forward pass rounds otherwise than its backward
    pass does, so the counts are compared: how often each element is taken, by its gradient."""
    rng = np.random.default_rng(8)
    for _ in range(300):
        n, m, factor = int(rng.integers(1, 200)), int(rng.integers(1, 400)), rng.uniform(1, 3)
        for named in ({"size": m}, {"scale_factor": float(factor)}):
            found = []
            for t in (numgrad, torch):
                x = tensor(t, np.ones((1, 1, n)), True)
                t.nn.functional.interpolate(x, **named).sum().backward()
                found.append(array_of(x.grad))
            np.testing.assert_array_equal(*found)


# ------------------------------------------------------------------------------------------- layers

IMAGE, SIGNAL = (2, 3, 9, 8), (2, 3, 9)
LAYERS: dict[str, tuple[list[Any], tuple[int, ...]]] = {
    "MaxPool1d": ([lambda nn: nn.MaxPool1d(3, 2, 1), lambda nn: nn.MaxPool1d((2,))], SIGNAL),
    "MaxPool2d": (
        [
            lambda nn: nn.MaxPool2d(2),
            lambda nn: nn.MaxPool2d(3, 2, 1, ceil_mode=True),
            lambda nn: nn.MaxPool2d((3, 2), (2, 1), (1, 0), (1, 2), True),
        ],
        IMAGE,
    ),
    "AvgPool1d": (
        [lambda nn: nn.AvgPool1d(3), lambda nn: nn.AvgPool1d(3, 2, 1, True, False)],
        SIGNAL,
    ),
    "AvgPool2d": (
        [
            lambda nn: nn.AvgPool2d(2),
            lambda nn: nn.AvgPool2d((3, 2), 2, 1, True, False),
            lambda nn: nn.AvgPool2d(3, divisor_override=4),
        ],
        IMAGE,
    ),
    "AdaptiveAvgPool1d": ([lambda nn: nn.AdaptiveAvgPool1d(4)], SIGNAL),
    "AdaptiveAvgPool2d": (
        [lambda nn: nn.AdaptiveAvgPool2d((1, 1)), lambda nn: nn.AdaptiveAvgPool2d((None, 3))],
        IMAGE,
    ),
    "AdaptiveMaxPool1d": ([lambda nn: nn.AdaptiveMaxPool1d(4, True)], SIGNAL),
    "AdaptiveMaxPool2d": (
        [lambda nn: nn.AdaptiveMaxPool2d(1), lambda nn: nn.AdaptiveMaxPool2d((2, 3), True)],
        IMAGE,
    ),
    "ZeroPad1d": ([lambda nn: nn.ZeroPad1d(2), lambda nn: nn.ZeroPad1d((1, -2))], SIGNAL),
    "ZeroPad2d": ([lambda nn: nn.ZeroPad2d(2), lambda nn: nn.ZeroPad2d((1, 0, -2, 3))], IMAGE),
    "ConstantPad1d": ([lambda nn: nn.ConstantPad1d(2, 3.5)], SIGNAL),
    "ConstantPad2d": (
        [lambda nn: nn.ConstantPad2d(2, 3.5), lambda nn: nn.ConstantPad2d((1, 0, 2, 3), -1)],
        IMAGE,
    ),
    "ReflectionPad1d": ([lambda nn: nn.ReflectionPad1d((1, 3))], SIGNAL),
    "ReflectionPad2d": (
        [lambda nn: nn.ReflectionPad2d(2), lambda nn: nn.ReflectionPad2d((1, 0, 2, 3))],
        IMAGE,
    ),
    "ReplicationPad1d": ([lambda nn: nn.ReplicationPad1d(3)], SIGNAL),
    "ReplicationPad2d": (
        [lambda nn: nn.ReplicationPad2d(2), lambda nn: nn.ReplicationPad2d((1, 0, 2, 3))],
        IMAGE,
    ),
    "CircularPad1d": ([lambda nn: nn.CircularPad1d(3)], SIGNAL),
    "CircularPad2d": ([lambda nn: nn.CircularPad2d((1, 0, 2, 3))], IMAGE),
    "Upsample": (
        [
            lambda nn: nn.Upsample(scale_factor=2),
            lambda nn: nn.Upsample((5, 20)),
            lambda nn: nn.Upsample(scale_factor=(1.5, 3)),
        ],
        IMAGE,
    ),
    "UpsamplingNearest2d": (
        [lambda nn: nn.UpsamplingNearest2d(scale_factor=2), lambda nn: nn.UpsamplingNearest2d(7)],
        IMAGE,
    ),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str, dtype: str) -> None:
    """Outputs, gradients of both orders, names in the state dict, and how it prints itself."""
    makes, shape = LAYERS[name]
    for make in makes:
        ours, theirs = make(numgrad.nn), make(torch.nn)
        assert repr(ours) == repr(theirs)
        assert list(ours.state_dict()) == list(theirs.state_dict()) == []
        x = np.random.default_rng(9).standard_normal(shape).astype(dtype)
        compare("layer", name, lambda t, x, make=make: make(t.nn)(x), [x])


# ------------------------------------------------------------------------------------------- errors


def _f(t: Any) -> Any:
    return t.nn.functional


v = test_errors.v

BAD: list[tuple[str, Any]] = [
    ("max_pool2d, kernel 0", lambda t: _f(t).max_pool2d(v(t, 1, 4, 4), 0)),
    ("max_pool2d, kernel -1", lambda t: _f(t).max_pool2d(v(t, 1, 4, 4), -1)),
    ("max_pool2d, kernel 5", lambda t: _f(t).max_pool2d(v(t, 1, 4, 4), 5)),
    ("max_pool2d, kernel 2.0", lambda t: _f(t).max_pool2d(v(t, 1, 4, 4), 2.0)),
    ("max_pool2d, kernel of 3", lambda t: _f(t).max_pool2d(v(t, 1, 4, 4), (2, 2, 2))),
    ("max_pool2d, stride 0", lambda t: _f(t).max_pool2d(v(t, 1, 4, 4), 2, 0)),
    ("max_pool2d, stride -1", lambda t: _f(t).max_pool2d(v(t, 1, 4, 4), 2, -1)),
    ("max_pool2d, padding 2", lambda t: _f(t).max_pool2d(v(t, 1, 4, 4), 2, 1, 2)),
    ("max_pool2d, padding -1", lambda t: _f(t).max_pool2d(v(t, 1, 4, 4), 2, 1, -1)),
    ("max_pool2d, dilation 0", lambda t: _f(t).max_pool2d(v(t, 1, 4, 4), 2, dilation=0)),
    ("max_pool2d, dilation 4", lambda t: _f(t).max_pool2d(v(t, 1, 4, 4), 2, dilation=4)),
    ("max_pool2d of 2 axes", lambda t: _f(t).max_pool2d(v(t, 4, 4), 2)),
    ("max_pool2d of 5 axes", lambda t: _f(t).max_pool2d(v(t, 1, 1, 1, 4, 4), 2)),
    ("max_pool2d of no channels", lambda t: _f(t).max_pool2d(v(t, 2, 0, 4, 4), 2)),
    ("max_pool2d of no rows", lambda t: _f(t).max_pool2d(v(t, 2, 1, 0, 4), 2)),
    ("max_pool2d of bools", lambda t: _f(t).max_pool2d(v(t, 1, 4, 4, dtype="bool"), 2)),
    ("max_pool1d, kernel of 2", lambda t: _f(t).max_pool1d(v(t, 1, 4), (2, 2))),
    ("max_pool1d, kernel 5", lambda t: _f(t).max_pool1d(v(t, 1, 4), 5)),
    ("max_pool1d, stride 0", lambda t: _f(t).max_pool1d(v(t, 1, 4), 2, 0)),
    ("max_pool1d, padding 2", lambda t: _f(t).max_pool1d(v(t, 1, 4), 2, 1, 2)),
    ("max_pool1d of 4 axes", lambda t: _f(t).max_pool1d(v(t, 1, 1, 4, 4), 2)),
    ("avg_pool2d, kernel 5", lambda t: _f(t).avg_pool2d(v(t, 1, 4, 4), 5)),
    ("avg_pool2d, stride 0", lambda t: _f(t).avg_pool2d(v(t, 1, 4, 4), 2, 0)),
    ("avg_pool2d, padding 2", lambda t: _f(t).avg_pool2d(v(t, 1, 4, 4), 2, 1, 2)),
    ("avg_pool2d, divisor 0", lambda t: _f(t).avg_pool2d(v(t, 1, 4, 4), 2, divisor_override=0)),
    ("avg_pool2d, divisor 1.5", lambda t: _f(t).avg_pool2d(v(t, 1, 4, 4), 2, divisor_override=1.5)),
    ("avg_pool2d of int32", lambda t: _f(t).avg_pool2d(v(t, 1, 4, 4, dtype="int32"), 2)),
    ("avg_pool1d of 4 axes", lambda t: _f(t).avg_pool1d(v(t, 1, 1, 4, 4), 2)),
    ("adaptive_avg_pool2d to -1", lambda t: _f(t).adaptive_avg_pool2d(v(t, 1, 4, 4), -1)),
    ("adaptive_avg_pool2d to 3", lambda t: _f(t).adaptive_avg_pool2d(v(t, 1, 4, 4), (2, 2, 2))),
    ("adaptive_avg_pool2d of ints", lambda t: _f(t).adaptive_avg_pool2d(v(t, 1, 4, 4).long(), 2)),
    ("adaptive_avg_pool2d, 2 axes", lambda t: _f(t).adaptive_avg_pool2d(v(t, 4, 4), 2)),
    ("adaptive_avg_pool2d to 2.0", lambda t: _f(t).adaptive_avg_pool2d(v(t, 1, 4, 4), 2.0)),
    ("adaptive_avg_pool1d to None", lambda t: _f(t).adaptive_avg_pool1d(v(t, 1, 4), None)),
    ("adaptive_max_pool2d to -1", lambda t: _f(t).adaptive_max_pool2d(v(t, 1, 4, 4), -1)),
    ("adaptive_max_pool2d, 2 axes", lambda t: _f(t).adaptive_max_pool2d(v(t, 4, 4), 2)),
    ("pad of 1", lambda t: _f(t).pad(v(t, 3), (1,))),
    ("pad of too many", lambda t: _f(t).pad(v(t, 3), (1, 1, 1, 1))),
    ("pad by floats", lambda t: _f(t).pad(v(t, 3), (1.0, 1))),
    ("pad by a number", lambda t: _f(t).pad(v(t, 3), 1)),
    ("pad, nothing left", lambda t: _f(t).pad(v(t, 3), (-2, -2))),
    ("pad, no such mode", lambda t: _f(t).pad(v(t, 1, 3), (1, 1), "mirror")),
    ("pad, value and mode", lambda t: _f(t).pad(v(t, 1, 3), (1, 1), "reflect", 2)),
    ("pad, reflect 3", lambda t: _f(t).pad(v(t, 1, 3), (3, 0), "reflect")),
    ("pad, circular 4", lambda t: _f(t).pad(v(t, 1, 3), (4, 0), "circular")),
    ("pad, axes of a mode", lambda t: _f(t).pad(v(t, 1, 1, 1, 3), (1, 0), "replicate")),
    ("pad, value a string", lambda t: _f(t).pad(v(t, 3), (1, 1), value="a")),
    ("pad, value inf of ints", lambda t: _f(t).pad(v(t, 3).long(), (1, 1), value=INF)),
    ("interpolate to nothing", lambda t: _f(t).interpolate(v(t, 1, 1, 4))),
    ("interpolate, both", lambda t: _f(t).interpolate(v(t, 1, 1, 4), 3, 2)),
    ("interpolate to 0", lambda t: _f(t).interpolate(v(t, 1, 1, 4), 0)),
    ("interpolate by 0.1", lambda t: _f(t).interpolate(v(t, 1, 1, 4), scale_factor=0.1)),
    ("interpolate to 2 of 1", lambda t: _f(t).interpolate(v(t, 1, 1, 4), (3, 3))),
    ("interpolate by 2 of 1", lambda t: _f(t).interpolate(v(t, 1, 1, 4), scale_factor=(3, 3))),
    ("interpolate to 2.5", lambda t: _f(t).interpolate(v(t, 1, 1, 4), 2.5)),
    ("interpolate by 'a'", lambda t: _f(t).interpolate(v(t, 1, 1, 4), scale_factor="a")),
    ("interpolate, 2 axes", lambda t: _f(t).interpolate(v(t, 1, 4), 3)),
    ("interpolate, no such mode", lambda t: _f(t).interpolate(v(t, 1, 1, 4), 3, mode="mirror")),
    ("interpolate, corners", lambda t: _f(t).interpolate(v(t, 1, 1, 4), 3, align_corners=True)),
    ("interpolate, antialias", lambda t: _f(t).interpolate(v(t, 1, 1, 4), 3, antialias=True)),
    ("interpolate of ints", lambda t: _f(t).interpolate(v(t, 1, 1, 4).long(), 3)),
]


@pytest.mark.parametrize("name, call", BAD, ids=[name for name, _ in BAD])
def test_error(name: str, call: Any) -> None:
    test_errors.test_error(name, call)
