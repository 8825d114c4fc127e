"""In-place methods: every one that Tensor has, on a copy, so that gradients flow through it."""

from typing import Any

import numpy as np
import pytest
import torch

import numgrad
from numgrad.graph.op import OPS
from tests_compare.checks import FLOATS, Case, agree, check, tensor

NOT_ARITHMETIC = {
    "requires_grad_": "a flag: no values",
    "detach_": "history alone: no values; test_graph.py",
    **dict.fromkeys(("resize_", "resize_as_"), "shapes and what is kept: test_resize"),
    **dict.fromkeys(("uniform_", "normal_", "bernoulli_", "random_"), "random: test_random.py"),
}

UNARY = (
    *("neg_", "abs_", "sign_", "reciprocal_", "square_", "exp_", "expm1_", "log_", "log1p_"),
    *("sqrt_", "rsqrt_", "tanh_", "sigmoid_", "erf_", "relu_", "floor_", "ceil_", "trunc_"),
    *("round_", "zero_"),
)
BINARY = ("add_", "sub_", "mul_", "div_", "floor_divide_", "remainder_", "pow_", "copy_")

TRUTH = ("eq_", "ne_", "lt_", "le_", "gt_", "ge_", "logical_and_", "logical_or_", "logical_xor_")

ONE = [[(3, 4)], [()], [(0,)]]
TWO = [[(3, 4), (3, 4)], [(3, 4), (4,)], [(3, 4), ()], [(2, 3, 4), (3, 1)]]
THREE = [[(3, 4), (4,), (3, 1)], [(3, 4), (), (3, 4)]]

# PyTorch: floor_divide has no derivative, nor has the derivative of remainder.
ORDERS = {"floor_divide_": 0, "remainder_": 1, "squeeze_": 0, "unsqueeze_": 0}
ORDERS |= dict.fromkeys((*TRUTH, "logical_not_"), 0)  # no gradient: 0 and 1


def domain(method: str) -> Any:
    op = OPS.get(method[:-1])
    return op.domain if op is not None else (-3.0, 3.0)


def case(method: str, *args: Any, shapes: Any = TWO, **named: Any) -> Case:
    """``x.clone().method_(*tensors, *args, **named)``."""
    label = method + "".join(f" {a}" for a in args) + "".join(f" {k}={v}" for k, v in named.items())
    return Case(
        method,
        lambda t, x, *ys: getattr(x.clone(), method)(*ys, *args, **named),
        shapes,
        ops=[],
        gradients=ORDERS.get(method, 2),
        domain=domain(method),
        label=label,
    )


CASES = [
    *[case(method, shapes=ONE) for method in UNARY],
    *[case(method) for method in (*BINARY, *TRUTH)],
    case("logical_not_", shapes=ONE),
    *[case(method, 2.5, shapes=ONE) for method in BINARY if method != "copy_"],
    case("fill_", 0.25, shapes=ONE),
    case("add_", alpha=0.3),
    case("sub_", alpha=0.3),
    case("lerp_", 0.3),
    case("lerp_", shapes=THREE),
    case("addcmul_", shapes=THREE),
    case("addcmul_", value=0.3, shapes=THREE),
    case("clamp_", -1, 1, shapes=ONE),
    case("clamp_", min=-1, shapes=ONE),
    case("clip_", -1, 1, shapes=ONE),
    case("clamp_min_", 0.0, shapes=ONE),
    case("clamp_max_", 0.0, shapes=ONE),
    # Of constants: numgrad refuses to change the shape of a computed value (use squeeze(…)).
    case("squeeze_", shapes=[[(3, 1, 4)], [(1,)]]),
    case("squeeze_", 1, shapes=[[(3, 1, 4)]]),
    case("unsqueeze_", 1, shapes=[[(3, 4)]]),
    Case(
        "addcdiv_",
        lambda t, x, y, z: x.clone().addcdiv_(y, z, value=0.3),
        THREE,
        ops=["add_quotient"],
        domain=(0.5, 3.0),
    ),
    Case(
        "masked_fill_",
        lambda t, x: x.clone().masked_fill_(x > 0, 0.25),
        ONE,
        ops=["where"],
    ),
    Case("+=", lambda t, x, y: _augmented("__iadd__", x, y), TWO, ops=["add"]),
    Case("-=", lambda t, x, y: _augmented("__isub__", x, y), TWO, ops=["sub"]),
    Case("*=", lambda t, x, y: _augmented("__imul__", x, y), TWO, ops=["mul"]),
    Case("/=", lambda t, x, y: _augmented("__itruediv__", x, y), TWO, ops=["div"], domain=(0.5, 3)),
    # Writes through views, and several in a row.
    Case("mul_ of a row", lambda t, x, y: _of_row(x, y), [[(3, 4), (4,)]], ops=["mul"]),
    Case("add_ of x.t()", lambda t, x, y: _of_transpose(x, y), [[(3, 4), (4, 3)]], ops=["add"]),
    Case("copy_ of a column", lambda t, x, y: _of_column(x, y), [[(3, 4), (3,)]], ops=["assign"]),
    Case("mul_ twice", lambda t, x: x.clone().mul_(2).add_(1).mul_(3), ONE, ops=["mul", "add"]),
    Case("x.add_(x[0])", lambda t, x: _overlap(x), [[(3, 4)]], ops=["add"]),
]


def _augmented(method: str, x: Any, y: Any) -> Any:
    return getattr(x.clone(), method)(y)


def _of_row(x: Any, y: Any) -> Any:
    z = x * 2
    z[1].mul_(y)
    return z


def _of_transpose(x: Any, y: Any) -> Any:
    z = x * 2
    z.t().add_(y)
    return z * z


def _of_column(x: Any, y: Any) -> Any:
    z = x * 2
    z[:, 1].copy_(y)
    z[:, 1:3].mul_(3)
    return z


def _overlap(x: Any) -> Any:
    z = x * 2
    z.add_(z[0].clone())
    return z


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_in_place(case: Case, dtype: str) -> None:
    check(case, "in place", dtype)


def test_every_in_place_method_is_compared() -> None:
    methods = {name for name in dir(numgrad.Tensor) if name.endswith("_") and name[0] != "_"}
    compared = {case.name for case in CASES}
    assert methods - compared - set(NOT_ARITHMETIC) == set()


@pytest.mark.parametrize("dtype", FLOATS)
def test_resize(dtype: str) -> None:
    """The elements that are kept, and the shapes; the others are whatever was there."""
    a = np.arange(6.0).reshape(2, 3).astype(dtype)
    for shape in ((3, 2), (4,), (2, 1, 2), (5, 3), (6,), (2, 3), (0, 3), ()):
        for resize in (
            lambda t, x, shape=shape: x.resize_(*shape) if shape else x.resize_(()),
            lambda t, x, shape=shape: x.resize_as_(t.zeros(shape)),
        ):
            found = [tensor(t, a) for t in (numgrad, torch)]
            for t, x in zip((numgrad, torch), found, strict=True):
                assert resize(t, x) is x and tuple(x.shape) == shape
            kept = [x.reshape(-1)[:6] for x in found]
            agree("in place", "forward", f"resize_{shape}", *kept)
    for t in (numgrad, torch):
        with pytest.raises(RuntimeError, match=r"^cannot resize variables that require grad"):
            t.ones(2, requires_grad=True).resize_(3)


@pytest.mark.parametrize("dtype", FLOATS)
def test_out(dtype: str) -> None:
    """``out=``: the result in a given tensor."""
    rng = np.random.default_rng(5)
    x, y = (rng.uniform(0.5, 3, (3, 4)).astype(dtype) for _ in range(2))
    calls: list[tuple[str, Any]] = [
        *((n, lambda t, a, b, out, n=n: getattr(t, n)(a, b, out=out)) for n in OUT_OF_TWO),
        *((n, lambda t, a, b, out, n=n: getattr(t, n)(a, out=out)) for n in OUT_OF_ONE),
        ("clamp", lambda t, a, b, out: t.clamp(a, 1.0, 2.0, out=out)),
    ]
    for name, call in calls:
        outs = [t.zeros(3, 4, dtype=getattr(t, dtype)) for t in (numgrad, torch)]
        for t, out in zip((numgrad, torch), outs, strict=True):
            assert call(t, tensor(t, x), tensor(t, y), out) is out
        agree("in place", "forward", f"{name}(out=)", *outs)


OUT_OF_TWO = ("add", "sub", "mul", "div", "pow", "maximum", "minimum")
OUT_OF_ONE = ("exp", "log", "sqrt", "tanh", "sigmoid", "erf", "abs", "neg", "floor")
