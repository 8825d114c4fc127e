"""Creation and conversion, and which dtype results have."""

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import numgrad
from tests_compare.checks import agree, count, dtype_of, function, tensor

DTYPES = ("float32", "float64", "int32", "int64", "uint8", "bool")


def of(t: Any, name: str) -> Any:
    return getattr(t, name)


CREATED: list[tuple[str, Any]] = [
    ("tensor(1)", lambda t: t.tensor(1)),
    ("tensor(1.5)", lambda t: t.tensor(1.5)),
    ("tensor(True)", lambda t: t.tensor(True)),
    ("tensor of ints", lambda t: t.tensor([1, 2, 3])),
    ("tensor of floats", lambda t: t.tensor([[1.0, 2.0], [3.0, 4.0]])),
    ("tensor of both", lambda t: t.tensor([1, 2.5])),
    ("tensor of bools", lambda t: t.tensor([True, False])),
    ("tensor of nothing", lambda t: t.tensor([])),
    ("tensor of empty rows", lambda t: t.tensor([[], []])),
    ("tensor of tuples", lambda t: t.tensor(((1, 2), (3, 4)))),
    ("tensor of an array", lambda t: t.tensor(np.arange(3, dtype=np.int32))),
    ("tensor, dtype", lambda t: t.tensor([1.9, -1.9, 0.0], dtype=t.int64)),
    ("tensor, bool", lambda t: t.tensor([1.9, 0.0], dtype=t.bool)),
    ("as_tensor", lambda t: t.as_tensor([1, 2])),
    ("from_numpy", lambda t: t.from_numpy(np.arange(6.0).reshape(2, 3))),
    ("zeros", lambda t: t.zeros(2, 3)),
    ("zeros of a tuple", lambda t: t.zeros((2, 3), dtype=t.int32)),
    ("zeros of nothing", lambda t: t.zeros(0, 3)),
    ("zeros, 0-dim", lambda t: t.zeros(())),
    ("ones", lambda t: t.ones(2, dtype=t.float64)),
    ("full", lambda t: t.full((2, 2), 7)),
    ("full of a float", lambda t: t.full((2, 2), 7.5)),
    ("full of a bool", lambda t: t.full((2,), True)),
    ("full, dtype", lambda t: t.full((2,), 2, dtype=t.float64)),
    ("zeros_like", lambda t: t.zeros_like(t.ones(2, 3, dtype=t.int64))),
    ("ones_like", lambda t: t.ones_like(t.zeros(2), dtype=t.float64)),
    ("full_like", lambda t: t.full_like(t.zeros(2), 0.5)),
    ("arange", lambda t: t.arange(5)),
    ("arange of a float", lambda t: t.arange(2.5)),
    ("arange from", lambda t: t.arange(2, 9, 3)),
    ("arange down", lambda t: t.arange(5, 0, -2)),
    ("arange by 0.1", lambda t: t.arange(0, 1, 0.1)),
    ("arange by 0.3", lambda t: t.arange(1, 2.5, 0.3, dtype=t.float64)),
    ("arange of nothing", lambda t: t.arange(0)),
    ("arange, dtype", lambda t: t.arange(4, dtype=t.float32)),
    ("linspace", lambda t: t.linspace(-1, 1, 7)),
    ("linspace of one", lambda t: t.linspace(3, 5, 1)),
    ("linspace, dtype", lambda t: t.linspace(0, 1, 11, dtype=t.float64)),
    ("eye", lambda t: t.eye(3)),
    ("eye(2, 4)", lambda t: t.eye(2, 4, dtype=t.int64)),
    ("new_zeros", lambda t: t.ones(1, dtype=t.float64).new_zeros(2, 3)),
    ("new_ones", lambda t: t.ones(1, dtype=t.int32).new_ones((2,))),
    ("new_full", lambda t: t.ones(1, dtype=t.int32).new_full((2,), 3)),
    ("new_tensor", lambda t: t.ones(1).new_tensor([1, 2])),
    ("FloatTensor", lambda t: t.FloatTensor([1, 2])),
    ("LongTensor", lambda t: t.LongTensor([[1, 2]])),
    ("DoubleTensor", lambda t: t.DoubleTensor([1])),
    ("ByteTensor", lambda t: t.ByteTensor([1, 0])),
    ("IntTensor", lambda t: t.IntTensor([1, -1])),
    ("BoolTensor", lambda t: t.BoolTensor([True, False])),
    ("Tensor", lambda t: t.Tensor([1, 2])),
]


@pytest.mark.parametrize(("name", "call"), CREATED, ids=[name for name, _ in CREATED])
def test_creation(name: str, call: Any) -> None:
    agree("creation", "forward", name, call(numgrad), call(torch))


def test_empty_has_shape_and_dtype() -> None:
    for call in (
        lambda t: t.empty(2, 3),
        lambda t: t.empty((0,), dtype=t.int64),
        lambda t: t.empty_like(t.ones(2, dtype=t.bool)),
        lambda t: t.ones(1, dtype=t.uint8).new_empty(2, 2),
        lambda t: t.FloatTensor(2, 3),
        lambda t: t.Tensor(2, 3),
    ):
        ours, theirs = call(numgrad), call(torch)
        assert (tuple(ours.shape), dtype_of(ours)) == (tuple(theirs.shape), dtype_of(theirs))


def test_requires_grad_of_new_tensors() -> None:
    for call in (
        lambda t, flag: t.zeros(2, requires_grad=flag),
        lambda t, flag: t.full((2,), 1.0, requires_grad=flag),
        lambda t, flag: t.tensor([1.0], requires_grad=flag),
        lambda t, flag: t.eye(2, requires_grad=flag),
        lambda t, flag: t.arange(2.0, requires_grad=flag),
        lambda t, flag: t.randn(2, requires_grad=flag),
    ):
        for flag in (True, False):
            assert call(numgrad, flag).requires_grad == call(torch, flag).requires_grad == flag


def test_conversions() -> None:
    """Every dtype to every dtype, through every spelling."""
    values = np.array([[-2.7, -1.0, -0.5], [0.0, 0.5, 1.0], [2.5, 100.0, 254.9]])
    for source, target in itertools.product(DTYPES, DTYPES):
        floats = source.startswith("float")
        negative_to_uint8 = floats and target == "uint8"  # undefined in C
        x = (np.abs(values) if negative_to_uint8 or source == "uint8" else values).astype(source)
        for name, call in (
            ("to", lambda t, x: x.to(of(t, target))),
            ("type", lambda t, x: x.type(of(t, target))),
            ("method", lambda t, x: getattr(x, METHODS[target])()),
        ):
            ours, theirs = (call(t, tensor(t, x)) for t in (numgrad, torch))
            agree("creation", "forward", f"{source} {name} {target}", ours, theirs)


METHODS = {
    "float32": "float",
    "float64": "double",
    "int32": "int",
    "int64": "long",
    "uint8": "byte",
    "bool": "bool",
}


def test_python_values() -> None:
    for array in (np.array(2.5), np.array([3], np.int64), np.array(True), np.array([[1.5, 2.0]])):
        ours, theirs = tensor(numgrad, array), tensor(torch, array)
        assert ours.tolist() == theirs.tolist()
        assert ours.shape == theirs.shape and ours.dim() == theirs.dim()
        assert ours.numel() == theirs.numel() and ours.element_size() == theirs.element_size()
        if array.size == 1:
            assert ours.item() == theirs.item() and type(ours.item()) is type(theirs.item())
            assert (float(ours), int(ours), bool(ours)) == (
                float(theirs),
                int(theirs),
                bool(theirs),
            )
            assert f"{ours}" == f"{theirs}" or array.ndim


# ---------------------------------------------------------------------------------------- promotion

BINARY = (
    *("add", "sub", "mul", "div", "floor_divide", "remainder", "pow", "maximum", "minimum"),
    *("eq", "lt", "logical_and", "where"),
)
OPERATORS = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: x / y,
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
    "**": lambda x, y: x**y,
    "==": lambda x, y: x == y,
    "<": lambda x, y: x < y,
    "&": lambda x, y: x & y,
    "|": lambda x, y: x | y,
    "^": lambda x, y: x ^ y,
}

NUMBERS = ("int", "float", "bool number")
ON_BOOL = "arithmetic on bool gives int64, as 1 - mask did when masks were uint8"
WITH_NUMBERS = "any operand of an elementwise function may be a number"
LOGICAL = "numgrad has no bitwise operations: & | ^ are the logical ones of masks (bool, uint8)"


def more_than_pytorch(name: str, *kinds: str) -> str:
    """Why numgrad may compute what PyTorch refuses, or ""."""
    if any(kind.startswith("bool") for kind in kinds) and name not in ("add", "mul", "+", "*"):
        return ON_BOOL
    if any(kind in NUMBERS for kind in kinds):
        return WITH_NUMBERS
    return ""


def outcome(call: Any) -> Any:
    """The result of a call, or the exception it raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except Exception as failure:
        return failure


def operand(t: Any, kind: str) -> Any:
    """``float32``: a vector; ``float32 ()``: a 0-dim tensor; ``int``: a Python number."""
    if kind in ("int", "float", "bool number"):
        return {"int": 3, "float": 2.5, "bool number": True}[kind]
    dtype, _, scalar = kind.partition(" ")
    values = [0, 1, 1, 0] if dtype == "bool" else [1, 2, 5, 7]
    return tensor(t, np.array(2 if scalar else values).astype(dtype))


KINDS = (*DTYPES, *(f"{dtype} ()" for dtype in DTYPES), "int", "float", "bool number")


def same_outcome(label: str, call: Any, more: str = "", less: str = "") -> None:
    """Both libraries give equal results, or both raise; numgrad may do ``more`` or ``less``."""
    ours, theirs = outcome(lambda: call(numgrad)), outcome(lambda: call(torch))
    if less and isinstance(ours, TypeError):
        count("promotion", "error", "-", label, 0.0)
        return
    if isinstance(theirs, Exception):
        assert isinstance(ours, Exception) or more, (
            f"{label}: PyTorch raises {theirs!r}, got {ours}"
        )
        count("promotion", "error", "-", label, 0.0)
        return
    assert not isinstance(ours, Exception), f"{label}: {ours!r}, PyTorch gives {theirs}"
    agree("promotion", "forward", label, ours, theirs)


@pytest.mark.parametrize("name", BINARY)
def test_promotion_of_functions(name: str) -> None:
    for a, b in itertools.product(KINDS, KINDS):
        if a in ("int", "float", "bool number") and (b not in DTYPES or name != "where"):
            continue

        def call(t: Any) -> Any:
            x, y = operand(t, a), operand(t, b)
            if name == "where":
                return t.where(tensor(t, np.array([True, False, True, False])), x, y)
            return function(t, name)(x, y)

        if name == "pow" and a.startswith("bool") and b == "bool number":
            continue  # PyTorch gives bool, and refuses bool ** bool; here both are int64
        same_outcome(f"{name} of {a}, {b}", call, more_than_pytorch(name, a, b))


@pytest.mark.parametrize("sign", OPERATORS)
def test_promotion_of_operators(sign: str) -> None:
    for a, b in itertools.product(KINDS, KINDS):
        if all(kind in ("int", "float", "bool number") for kind in (a, b)):
            continue
        if sign == "**" and a.startswith("bool") and b == "bool number":
            continue  # as in test_promotion_of_functions
        logical = sign in ("&", "|", "^")
        if logical and any(kind.startswith("uint8") for kind in (a, b)):
            continue  # of masks, 0 and 1: test_masks_of_uint8
        same_outcome(
            f"{a} {sign} {b}",
            lambda t: OPERATORS[sign](operand(t, a), operand(t, b)),
            more_than_pytorch(sign, a, b),
            LOGICAL if logical and not (a.startswith("bool") and b.startswith("bool")) else "",
        )


def test_masks_of_uint8() -> None:
    masks = np.array([0, 1, 1, 0], np.uint8), np.array([0, 0, 1, 1], np.uint8)
    for sign in ("&", "|", "^"):
        same_outcome(
            f"uint8 {sign} uint8", lambda t: OPERATORS[sign](*(tensor(t, mask) for mask in masks))
        )
    same_outcome("~ of bool", lambda t: ~tensor(t, np.array([True, False])))


UNARY = (
    *("neg", "abs", "sign", "square", "exp", "log1p", "sqrt", "tanh", "sigmoid", "erf", "floor"),
    *("ceil", "round", "trunc", "relu", "reciprocal", "logical_not", "isnan", "isfinite", "clone"),
    *("sum", "prod", "mean", "amax", "any", "all", "argmax", "expm1", "log", "rsqrt"),
)


@pytest.mark.parametrize("name", UNARY)
def test_dtypes_of_functions_of_one(name: str) -> None:
    for dtype in DTYPES:
        same_outcome(
            f"{name} of {dtype}",
            lambda t: function(t, name)(operand(t, dtype)),
            more_than_pytorch(name, dtype),
        )


IN_PLACE = {
    "add_": lambda x, y: x.add_(y),
    "mul_": lambda x, y: x.mul_(y),
    "div_": lambda x, y: x.div_(y),
    "copy_": lambda x, y: x.copy_(y),
    "[:2] =": lambda x, y: (x.__setitem__(slice(0, 4), y), x)[1],
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_promotion_in_place(name: str) -> None:
    for a, b in itertools.product(DTYPES, KINDS):
        if name in ("copy_", "[:2] =") and a == "uint8" and b.startswith("float"):
            continue  # what a negative float becomes as uint8 is undefined in C
        if name == "copy_" and b in ("int", "float", "bool number"):
            continue  # a number is filled, not copied
        same_outcome(f"{a} {name} {b}", lambda t: IN_PLACE[name](operand(t, a), operand(t, b)))


@pytest.mark.parametrize("name", ["cat", "stack"])
def test_promotion_of_joined(name: str) -> None:
    for a, b in itertools.product(DTYPES, DTYPES):
        same_outcome(
            f"{name} of {a}, {b}", lambda t: function(t, name)([operand(t, a), operand(t, b)])
        )


def test_default_dtype() -> None:
    for t in (numgrad, torch):
        t.set_default_dtype(t.float64)
    try:
        for name, call in (
            ("tensor(1.5)", lambda t: t.tensor(1.5)),
            ("zeros", lambda t: t.zeros(2)),
            ("int / int", lambda t: t.tensor([1]) / 2),
            ("exp of int", lambda t: t.exp(t.tensor([1]))),
            ("int * 0.5", lambda t: t.tensor([1]) * 0.5),
            ("float32 * 0.5", lambda t: t.tensor([1.0], dtype=t.float32) * 0.5),
            ("arange(1.0)", lambda t: t.arange(1.0)),
        ):
            agree("promotion", "forward", f"default float64: {name}", call(numgrad), call(torch))
    finally:
        for t in (numgrad, torch):
            t.set_default_dtype(t.float32)
