"""Reductions over all, one and several axes; extremes with their indices."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import numgrad
from tests_compare.checks import FLOATS, Case, agree, check, function, tensor

SHAPES = [[(2, 3, 4)], [(5,)], [(3, 1)]]
DIMS = (None, 0, -1)
SEVERAL = ((0, 1), (0, -1), (1, 2), (0, 1, 2))
INF, NAN = math.inf, math.nan


def reduced(name: str, op: str, several: bool = True, **described: Any) -> list[Case]:
    """All of x, one axis and several, with and without ``keepdim``."""
    call = function

    def whole(t: Any, x: Any) -> Any:
        return call(t, name)(x)

    def along(dim: Any, keepdim: bool) -> Case:
        shapes = [[(2, 3, 4)]] if isinstance(dim, tuple) else SHAPES
        return Case(
            name,
            lambda t, x: call(t, name)(x, dim, keepdim=keepdim),
            shapes,
            ops=[op],
            label=f"{name} over {dim}, keepdim={keepdim}",
            **described,
        )

    dims = [0, -1, *(SEVERAL if several else ())]
    return [
        *(
            [Case(name, whole, [*SHAPES, [()]], ops=[op], **described)]
            if name not in NO_WHOLE
            else []
        ),
        *[along(dim, keepdim) for dim in dims for keepdim in (False, True)],
        Case(
            name,
            lambda t, x: call(t, name)(x.permute(2, 0, 1), 1),
            [[(2, 3, 4)]],
            ops=[op],
            label=f"{name} of x.permute(2, 0, 1)",
            **described,
        ),
        Case(
            name,
            lambda t, x: call(t, name)(x[::2, 1:].expand(3, 2, 2, 4), 2),
            [[(3, 3, 4)]],
            ops=[op],
            label=f"{name} of x[::2, 1:].expand(…)",
            **described,
        ),
    ]


NO_WHOLE = ("logsumexp",)  # its dim is required


def large(name: str, op: str, dim: Any) -> Case:
    """Enough elements for several threads and blocks."""
    return Case(
        name,
        lambda t, x: function(t, name)(x, dim),
        [[(300, 257)]],
        ops=[op],
        label=f"{name} over {dim} of (300, 257)",
    )


CASES = [
    *reduced("sum", "sum_over"),
    *reduced("mean", "mean_over"),
    *reduced("prod", "prod_over", several=False),
    *reduced("amax", "amax_over"),
    *reduced("amin", "amin_over"),
    *reduced("logsumexp", "logsumexp_over"),
    *reduced("max", "max_along", several=False)[1:],
    *reduced("min", "min_along", several=False)[1:],
    Case("max", lambda t, x: t.max(x), SHAPES, ops=["amax_over"]),
    Case("min", lambda t, x: t.min(x), SHAPES, ops=["amin_over"]),
    Case("max", lambda t, x, y: t.max(x, y), [[(3, 4), (4,)]], ops=["maximum"], label="max(x, y)"),
    Case("min", lambda t, x, y: t.min(x, y), [[(3, 4), (4,)]], ops=["minimum"], label="min(x, y)"),
    *reduced("argmax", "argmax_along", several=False),
    *reduced("argmin", "argmin_along", several=False),
    *reduced("any", "any_over", several=True, gradients=0),
    *reduced("all", "all_over", several=True, gradients=0),
    *[
        Case(
            name,
            lambda t, x, name=name, args=args, named=named: function(t, name)(x, *args, **named),
            [[(5, 3, 4)], [(4, 5, 3)]],
            ops=[f"{name}_over"],
            label=f"{name} {args} {named}",
        )
        for name in ("var", "std")
        for args, named in (
            ((), {}),
            ((0,), {}),
            ((-1,), {"keepdim": True}),
            (((0, 2),), {}),
            ((1, False), {}),
            ((), {"unbiased": False}),
            ((1,), {"correction": 0}),
            (((0, 1),), {"correction": 2, "keepdim": True}),
        )
    ],
    *[
        Case(
            "norm",
            lambda t, x, args=args, named=named: t.norm(x, *args, **named),
            [[(3, 4)], [(5, 2)]],
            ops=[],
            label=f"norm {args} {named}",
        )
        for args, named in (
            ((), {}),
            ((2, 1), {}),
            ((1,), {}),
            ((1, 0), {"keepdim": True}),
            ((INF, 1), {}),
            ((3,), {}),
            ((2.5, 1), {}),
            (("fro",), {}),
        )
    ],
    *[
        large(name, f"{name}_over", dim)
        for name in ("sum", "mean", "amax")
        for dim in (0, 1, (0, 1))
    ],
    large("logsumexp", "logsumexp_over", 1),
    large("max", "max_along", 0),
    # Values where formulas are fragile. Where PyTorch gives nan: test_differences.py.
    Case(
        "prod",
        lambda t, x: t.prod(x),
        (),
        [[np.array(v)] for v in ([0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [2.0, 0.0, 4.0], [0.0])],
        ops=["prod_over"],
        gradients=1,
        label="prod with zeros",
    ),
    Case(
        "amax",
        lambda t, x: t.amax(x),
        (),
        [[np.array([2.0, 2.0, 1.0])], [np.array([3.0, INF, INF])]],
        ops=["amax_over"],
        gradients=1,
        label="amax with ties",
    ),
    Case(
        "amin",
        lambda t, x: t.amin(x),
        (),
        [[np.array([1.0, 2.0, 1.0])], [np.array([-INF, 0.0])]],
        ops=["amin_over"],
        gradients=1,
        label="amin with ties",
    ),
    Case(
        "max",
        lambda t, x: t.max(x, 0),
        (),
        [[np.array([1.0, 2.0, 2.0])], [np.array([1.0, NAN, NAN])]],
        ops=["max_along"],
        gradients=1,
        label="max over 0 with ties",
    ),
    Case(
        "min",
        lambda t, x: t.min(x, 0),
        (),
        [[np.array([1.0, 0.0, 0.0])], [np.array([1.0, NAN, NAN])]],
        ops=["min_along"],
        gradients=1,
        label="min over 0 with ties",
    ),
    Case(
        "std",
        lambda t, x: t.std(x),
        (),
        [[np.ones(4)]],
        ops=["std_over"],
        gradients=1,
        label="std of a constant",
    ),
    Case(
        "norm", lambda t, x: t.norm(x), (), [[np.zeros(3)]], ops=[], gradients=1, label="norm of 0"
    ),
    Case(
        "logsumexp",
        lambda t, x: t.logsumexp(x, 0),
        (),
        [[np.array([-INF, 2.0])], [np.array([INF, 2.0])], [np.array([700.0, 710.0])]],
        ops=["logsumexp_over"],
        gradients=0,
        label="logsumexp at edges",
    ),
    Case(
        "sum",
        lambda t, x: t.sum(x, 1),
        [[(3, 0)], [(0, 3)]],
        ops=["sum_over"],
        label="sum of nothing",
    ),
    Case(
        "mean",
        lambda t, x: t.mean(x, 1),
        [[(3, 0)], [(0, 3)]],
        ops=["mean_over"],
        label="mean of nothing",
    ),
    Case(
        "prod",
        lambda t, x: t.prod(x, 1),
        [[(3, 0)], [(0, 3)]],
        ops=["prod_over"],
        gradients=1,
        label="prod of nothing",
    ),
    Case(
        "sum",
        lambda t, x: x.sum(dtype=t.float64),
        [[(3, 4)]],
        ops=["sum_over"],
        gradients=1,
        label="sum(dtype=float64)",
    ),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_reduction(case: Case, dtype: str) -> None:
    check(case, "reduction", dtype)


INTEGERS = ("int32", "int64", "uint8", "bool")


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ["sum", "prod", "amax", "amin", "any", "all", "argmax", "argmin"])
def test_integers(name: str, dtype: str) -> None:
    if name in ("argmax", "argmin") and dtype == "bool":
        return  # PyTorch has no kernel for it: test_errors.py
    rng = np.random.default_rng(3)
    x = rng.integers(0, 2 if dtype == "bool" else 9, (3, 4)).astype(dtype)
    for args in ((), (0,), (1, True)):
        ours, theirs = (function(t, name)(tensor(t, x), *args) for t in (numgrad, torch))
        agree("reduction", "forward", f"{name}{args} of {dtype}", ours, theirs)


def test_extremes_of_integers() -> None:
    x = np.array([[3, 1, 3], [2, 2, 0]])
    for name in ("max", "min"):
        for dtype in ("int32", "int64", "uint8"):
            for dim in (0, 1):
                ours, theirs = (
                    function(t, name)(tensor(t, x.astype(dtype)), dim) for t in (numgrad, torch)
                )
                for a, b in zip(ours, theirs, strict=True):
                    agree("reduction", "forward", f"{name} over {dim} of {dtype}", a, b)


def test_long_sums_are_as_exact() -> None:
    """10**6 x 1/255 and 2**24 + 10 ones in float32: naive accumulation loses digits."""
    for x in (np.full(10**6, 1 / 255, np.float32), np.ones(2**24 + 10, np.float32)):
        ours, theirs = (tensor(t, x).sum() for t in (numgrad, torch))
        agree("reduction", "forward", f"sum of {x.size} numbers", ours, theirs)
