"""Elementwise functions: forward and both orders, over shapes, strides, broadcasting and edges."""

import math
from typing import Any

import numpy as np
import pytest

from numgrad.graph.op import OPS
from tests_compare.checks import FLOATS, Case, check, function

UNARY = [[(3, 4)], [()], [(0, 3)], [(1037,)], [(130, 270)]]
BINARY = [
    [(3, 4), (3, 4)],
    [(3, 1), (4,)],
    [(), (2, 3)],
    [(2, 3, 4), (3, 1)],
    [(0, 3), (1,)],
    [(130, 270), (270,)],
]
TERNARY = [[(3, 4), (3, 4), (3, 4)], [(2, 1, 4), (3, 1), ()], [(0,), (1,), (0,)]]

INF, NAN = math.inf, math.nan
EDGES = np.array(
    [-INF, -90.0, -6.0, -1.0, -0.5, -0.0, 0.0, 1e-20, 0.5, 1.0, 1.5, 6.0, 90.0, INF, NAN]
)
TIES = (
    np.array([-1.0, 0.0, 0.0, 1.0, 1.0, 2.0, NAN]),
    np.array([-1.0, 0.0, 1.0, 0.0, 1.0, NAN, 2.0]),
)


def unary(name: str, edges: Any = EDGES, call: Any = None, **described: Any) -> list[Case]:
    """Cases of a function of one tensor: as it lies, transposed, and at edges (first order)."""
    call = call or (lambda t, x: function(t, name)(x))
    domain = OPS[described.get("ops", [name])[0]].domain
    described = {"domain": domain, **described}
    first_order = {**described, "gradients": min(described.get("gradients", 2), 1)}
    return [
        Case(name, call, UNARY, **described),
        Case(name, lambda t, x: call(t, x.t()), [[(5, 3)]], label=f"{name} of x.t()", **described),
        Case(
            name,
            lambda t, x: call(t, x[1:, ::2]),
            [[(5, 6)]],
            label=f"{name} of x[1:, ::2]",
            **described,
        ),
        Case(name, call, (), [[edges]], **first_order, label=f"{name} at edges"),
    ]


def binary(name: str, edges: Any = TIES, call: Any = None, **described: Any) -> list[Case]:
    """Cases of a function of two tensors: broadcast, transposed, with numbers, at edges."""
    call = call or (lambda t, x, y: function(t, name)(x, y))
    domain = OPS[described.get("ops", [name])[0]].domain
    described = {"domain": domain, **described}
    first_order = {**described, "gradients": min(described.get("gradients", 2), 1)}
    return [
        Case(name, call, BINARY, **described),
        Case(
            name,
            lambda t, x, y: call(t, x.t(), y[::2]),
            [[(5, 3), (6, 5)]],
            label=f"{name} of x.t() and y[::2]",
            **described,
        ),
        Case(name, call, (), [edges], **first_order, label=f"{name} at edges"),
    ]


def with_number(name: str, *numbers: Any, **described: Any) -> list[Case]:
    """Cases of a function of a tensor and a Python number."""

    def of(number: Any) -> Case:
        return Case(
            name,
            lambda t, x: function(t, name)(x, number),
            [[(3, 4)], [()]],
            label=f"{name} of x and {number}",
            domain=OPS[name].domain,
            **described,
        )

    return [of(number) for number in numbers]


NO_GRADIENT = {"gradients": 0}
GRID = (
    np.arange(-9.0, 10.0).repeat(19),
    np.tile(np.where(np.arange(-9, 10) == 0, 0.5, np.arange(-9.0, 10)), 19),
)
BASES = np.array([0.0, 0.0, 2.0, 1.0, 3.0, 0.5]), np.array([1.0, 2.0, 0.0, 5.0, -1.0, INF])

CASES = [
    *binary("add"),
    *binary("sub"),
    *binary("mul"),
    *binary("div", (np.array([1.0, -1.0, 2.0, INF]), np.array([2.0, 0.0, INF, 2.0]))),
    *binary("floor_divide", GRID, **NO_GRADIENT),
    # PyTorch has no second derivative of remainder by its divisor, and none of number % tensor.
    *binary("remainder", GRID, gradients=1),
    *binary("pow", BASES),
    *binary("maximum"),
    *binary("minimum"),
    *with_number("add", 2, 0.5, True),
    *with_number("sub", 2, 0.5),
    *with_number("mul", 3, -0.5),
    *with_number("div", 3, 0.25),
    *with_number("remainder", 2, 0.75),
    *with_number("pow", 0, 1, 3, -1, 0.5, 2.5),
    Case("pow", lambda t, x: 2.0**x, [[(3, 4)]], label="2.0 ** x"),
    Case("pow", lambda t, x: x**2, [[(3, 4)]], [[EDGES]], ["square"], label="x ** 2", gradients=1),
    Case("div", lambda t, x: 1.5 / x, [[(3, 4)]], domain=(0.5, 3.0), label="1.5 / x"),
    Case("sub", lambda t, x: 1.5 - x, [[(3, 4)]], label="1.5 - x"),
    Case(
        "remainder",
        lambda t, x: 7.5 % x,
        [[(3, 4)]],
        domain=(1.0, 9.0),
        label="7.5 % x",
        **NO_GRADIENT,
    ),
    *[
        case
        for name in (
            *("neg", "abs", "sign", "reciprocal", "square", "exp", "expm1", "log", "log1p"),
            *("sqrt", "rsqrt", "tanh", "sigmoid", "erf", "floor", "ceil", "trunc", "round"),
            *("relu", "relu6", "leaky_relu", "elu", "softplus", "silu", "hardtanh"),
        )
        for case in unary(name)
    ],
    # PyTorch's float32 gelu(inf) is nan (its float64 one is inf): see test_differences.py.
    *unary("gelu", EDGES[EDGES != INF]),
    *[
        case
        for name, label, attrs in (
            ("leaky_relu", "leaky_relu(0.3)", (0.3,)),
            ("elu", "elu(0.5)", (0.5,)),
            ("softplus", "softplus(2, 3)", (2.0, 3.0)),
            ("hardtanh", "hardtanh(-0.5, 2)", (-0.5, 2.0)),
        )
        for case in unary(
            name, call=lambda t, x, name=name, attrs=attrs: function(t, name)(x, *attrs)
        )[:1]
    ],
    *unary("clamp", call=lambda t, x: t.clamp(x, -1, 1.5), ops=["clamp_min", "clamp_max"]),
    *unary("clamp", call=lambda t, x: t.clamp(x, min=0), ops=["clamp_min"])[:1],
    *unary("clamp", call=lambda t, x: t.clamp(x, max=0), ops=["clamp_max"])[:1],
    *binary("clamp", call=lambda t, x, low: t.clamp(x, min=low), ops=["clamp_min"])[:2],
    *binary("clamp", call=lambda t, x, high: t.clamp(x, max=high), ops=["clamp_max"])[:2],
    Case(
        "clamp",
        lambda t, x, low, high: t.clamp(x, low, high),
        [[(3, 4), (4,), (3, 1)]],
        domain=[(-3.0, 3.0), (-2.0, -1.0), (1.0, 2.0)],
        ops=["clamp_min", "clamp_max"],
        label="clamp between tensors",
    ),
    Case("where", lambda t, x, y: t.where(x > y, x, y), BINARY),
    Case("where", lambda t, x: t.where(x > 0, x, 0.5), [[(3, 4)]], label="where(c, x, 0.5)"),
    Case("where", lambda t, x: x.where(x > 0, x * 2), [[(3, 4)]], label="x.where(c, y)"),
    Case(
        "masked_fill",
        lambda t, x: x.masked_fill(x > 0, 0.25),
        [[(3, 4)]],
        ops=["where"],
    ),
    Case("add_scaled", lambda t, x, y: t.add(x, y, alpha=0.7), BINARY, label="add(alpha=0.7)"),
    Case("add_scaled", lambda t, x, y: t.sub(x, y, alpha=3), BINARY, label="sub(alpha=3)"),
    Case("add_product", lambda t, x, y, z: t.addcmul(x, y, z), TERNARY, label="addcmul"),
    Case(
        "add_product",
        lambda t, x, y, z: t.addcmul(x, y, z, value=-0.3),
        TERNARY,
        label="addcmul(value=-0.3)",
    ),
    Case(
        "add_quotient",
        lambda t, x, y, z: t.addcdiv(x, y, z, value=1.3),
        TERNARY,
        domain=(0.5, 3.0),
        label="addcdiv(value=1.3)",
    ),
    Case("lerp", lambda t, x, y, z: t.lerp(x, y, z), TERNARY),
    Case("lerp", lambda t, x, y: t.lerp(x, y, 0.3), BINARY, label="lerp by 0.3"),
    Case("guard", lambda t, x: t.exp(x), [[(3, 4)]], label="guard, in the second pass of exp"),
    *[
        Case(
            name, lambda t, x, y, name=name: function(t, name)(x, y), BINARY, [TIES], **NO_GRADIENT
        )
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    ],
    *[
        Case(
            name,
            lambda t, x, name=name: function(t, name)(x, 0),
            [[(3, 4)]],
            [[EDGES]],
            **NO_GRADIENT,
            label=f"{name} of x and 0",
        )
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    ],
    *[
        Case(name, lambda t, x, y, name=name: function(t, name)(x, y), (), [TIES], **NO_GRADIENT)
        for name in ("logical_and", "logical_or", "logical_xor")
    ],
    *[
        Case(
            name, lambda t, x, name=name: function(t, name)(x), [[(3, 4)]], [[EDGES]], **NO_GRADIENT
        )
        for name in ("logical_not", "isnan", "isinf", "isfinite")
    ],
    *[
        Case(
            "div",
            lambda t, x, y, mode=mode: t.div(x, y, rounding_mode=mode),
            (),
            [GRID],
            ops=ops,
            **NO_GRADIENT,
            label=f"div(rounding_mode={mode!r})",
        )
        for mode, ops in (("floor", ["floor_divide"]), ("trunc", ["trunc"]))
    ],
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_elementwise(case: Case, dtype: str) -> None:
    check(case, "elementwise", dtype)
