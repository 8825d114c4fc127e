"""Matrix products, softmax, losses and dropout's frame: the ops between elementwise and layers."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

import numgrad
from tests_compare.checks import FLOATS, Case, agree, check, compare, function, tensor

INF = math.inf

# Shapes that matmul takes: vectors, matrices, batches, broadcast batches, and none of anything.
PAIRS = [
    [(4,), (4,)],
    [(3, 4), (4,)],
    [(4,), (4, 2)],
    [(3, 4), (4, 2)],
    [(5, 3, 4), (4, 2)],
    [(5, 3, 4), (5, 4, 2)],
    [(3, 4), (5, 4, 2)],
    [(5, 3, 4), (4,)],
    [(4,), (5, 4, 2)],
    [(2, 1, 3, 4), (5, 4, 2)],
    [(2, 5, 3, 4), (1, 5, 4, 2)],
    [(0, 4), (4, 2)],
    [(3, 0), (0, 2)],
    [(3, 4), (4, 0)],
    [(1, 1), (1, 1)],
]
# Around the edges of micro-kernels and blocks, and enough for two threads.
SIZES = [(1, 65, 9), (7, 17, 33), (48, 64, 65), (65, 130, 129), (200, 33, 257), (130, 301, 70)]

CASES = [
    Case("matmul", lambda t, x, y: x @ y, PAIRS, ops=["product"]),
    Case(
        "matmul",
        lambda t, x, y: t.matmul(x, y),
        [[(m, k), (k, n)] for m, k, n in SIZES],
        ops=["product"],
        label="matmul by size",
        domain=(-1.0, 1.0),
    ),
    *[
        Case(
            "matmul",
            lambda t, x, y, a=a, b=b: t.matmul(x.t() if a else x, y.t() if b else y),
            [
                [(k, m) if a else (m, k), (n, k) if b else (k, n)]
                for m, k, n in ((3, 4, 2), (65, 130, 129))
            ],
            ops=["product"],
            label=f"matmul{' x.t()' * a}{' y.t()' * b}",
            domain=(-1.0, 1.0),
        )
        for a, b in ((True, False), (False, True), (True, True))
    ],
    Case(
        "matmul",
        lambda t, x, y: t.matmul(x[::2, 1:], y[:, ::3]),
        [[(7, 5), (4, 9)]],
        ops=["product"],
        label="matmul of x[::2, 1:], y[:, ::3]",
    ),
    Case(
        "matmul",
        lambda t, x, y: t.matmul(x.expand(5, 3, 4), y.permute(0, 2, 1)),
        [[(3, 4), (5, 2, 4)]],
        ops=["product"],
        label="matmul of expanded and permuted",
    ),
    Case("mm", lambda t, x, y: t.mm(x, y), [[(3, 4), (4, 2)]], ops=["product"]),
    Case(
        "bmm", lambda t, x, y: t.bmm(x, y), [[(5, 3, 4), (5, 4, 2)], [(0, 3, 4), (0, 4, 2)]], ops=[]
    ),
    Case("mv", lambda t, x, y: t.mv(x, y), [[(3, 4), (4,)]], ops=["product"]),
    Case("dot", lambda t, x, y: t.dot(x, y), [[(4,), (4,)], [(0,), (0,)]], ops=[]),
    Case(
        "linear",
        lambda t, x, w, b: t.nn.functional.linear(x, w, b),
        [
            [(5, 4), (3, 4), (3,)],
            [(4,), (3, 4), (3,)],
            [(2, 5, 4), (3, 4), (3,)],
            [(0, 4), (3, 4), (3,)],
            [(70, 130), (65, 130), (65,)],
        ],
        domain=(-1.0, 1.0),
        ops=["affine"],
        label="linear with bias",
    ),
    Case(
        "linear",
        lambda t, x, w: t.nn.functional.linear(x, w),
        [[(5, 4), (3, 4)], [(4,), (3, 4)], [(2, 5, 4), (3, 4)]],
        ops=[],
    ),
    *[
        Case(
            "addmm",
            lambda t, m, x, y, named=named: t.addmm(m, x, y, **named),
            [[(3, 2), (3, 4), (4, 2)], [(2,), (3, 4), (4, 2)]],
            ops=["product"],
            label=f"addmm {named}",
        )
        for named in ({}, {"beta": 0.5}, {"alpha": -2.0}, {"beta": 0.3, "alpha": 0.7})
    ],
    *[
        Case(
            name,
            lambda t, x, name=name, dim=dim: function(t, name)(x, dim),
            [[(3, 4, 5)], [(2, 1, 3)]],
            ops=[f"{name}_along"],
            label=f"{name} over {dim}",
        )
        for name in ("softmax", "log_softmax")
        for dim in (0, 1, -1)
    ],
    *[
        case
        for name in ("softmax", "log_softmax")
        for case in (
            Case(
                name,
                lambda t, x, name=name: function(t, name)(x, 0),
                [[(5,)], [()], [(0,)], [(0, 3)]],
                ops=[],
                label=f"{name} of few",
            ),
            Case(
                name,
                lambda t, x, name=name: function(t, name)(x, 1),
                [[(70, 1000)]],
                ops=[f"{name}_along"],
                label=f"{name} of (70, 1000)",
            ),
            Case(
                name,
                lambda t, x, name=name: function(t, name)(x.t(), 0),
                [[(3, 4)]],
                ops=[f"{name}_along"],
                label=f"{name} of x.t()",
            ),
            Case(
                name,
                lambda t, x, name=name: function(t, name)(x, 0, dtype=t.float64),
                [[(4,)]],
                ops=[f"{name}_along"],
                label=f"{name}(dtype=float64)",
                gradients=1,
            ),
            Case(
                name,
                lambda t, x, name=name: function(t, name)(x, 0),
                (),
                [
                    [np.array([1.0, -INF, 1.0])],
                    [np.array([0.0, 50.0, -50.0])],
                    [np.array([1e4, -1e4])],
                    [np.array([INF, 0.0])],
                    [np.array([-INF, -INF])],
                ],
                ops=[f"{name}_along"],
                label=f"{name} at edges",
                gradients=1,
            ),
        )
    ],
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_product(case: Case, dtype: str) -> None:
    check(case, "product", dtype)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_integer_products(dtype: str) -> None:
    rng = np.random.default_rng(1)
    for a, b in PAIRS:
        x, y = (rng.integers(0, 9, s).astype(dtype) for s in (a, b))
        ours, theirs = (t.matmul(tensor(t, x), tensor(t, y)) for t in (numgrad, torch))
        agree("product", "forward", f"matmul {a} {b} of {dtype}", ours, theirs)


# ------------------------------------------------------------------------------------------- losses

REDUCTIONS = ("mean", "sum", "none")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ["mse_loss", "l1_loss"])
def test_regression_losses(name: str, reduction: str, dtype: str) -> None:
    rng = np.random.default_rng(2)
    for shape in ((3, 4), (), (5,), (130, 270)):
        operands = [np.asarray(rng.standard_normal(shape)).astype(dtype) for _ in range(2)]

        def call(t: Any, x: Any, y: Any) -> Any:
            return function(t, name)(x, y, reduction=reduction)

        compare("loss", f"{name}({reduction})", call, operands)


# (shape of the scores, shape of the labels)
LABELLED = [
    ((5,), ()),
    ((6, 5), (6,)),
    ((3, 5, 4), (3, 4)),
    ((2, 5, 3, 2), (2, 3, 2)),
    ((300, 100), (300,)),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ["nll_loss", "cross_entropy"])
def test_classification_losses(name: str, reduction: str, dtype: str) -> None:
    rng = np.random.default_rng(3)
    for (shape, labels), weighted, ignore in itertools.product(LABELLED, (False, True), (None, 1)):
        classes = shape[1] if len(shape) > 1 else shape[0]
        x = rng.standard_normal(shape).astype(dtype)
        target = np.asarray(rng.integers(0, classes, labels))
        if not labels:
            target[...] = 2  # one ignored label alone gives nan: below
        weight = rng.uniform(0.5, 2.0, classes).astype(dtype)
        named: dict[str, Any] = {"reduction": reduction}
        if ignore is not None:
            named["ignore_index"] = ignore

        def call(t: Any, x: Any) -> Any:
            factors = tensor(t, weight) if weighted else None
            return function(t, name)(x, tensor(t, target), weight=factors, **named)

        label = f"{name}({reduction}{', weight' * weighted}{', ignore_index' * (ignore == 1)})"
        compare("loss", label, call, [x])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["nll_loss", "cross_entropy"])
def test_all_labels_ignored(name: str, dtype: str) -> None:
    x = np.random.default_rng(4).standard_normal((3, 5)).astype(dtype)
    for reduction in REDUCTIONS:

        def call(t: Any, x: Any) -> Any:
            labels = tensor(t, np.full(3, -100))
            return function(t, name)(x, labels, reduction=reduction)

        compare("loss", f"{name}({reduction}) of ignored labels", call, [x], gradients=1)


@pytest.mark.parametrize("old", [(False, None), (None, False), (True, True), (False, True)])
def test_old_reductions(old: Any) -> None:
    """``size_average`` and ``reduce``: the same results and a warning from both."""
    rng = np.random.default_rng(5)
    operands = [rng.standard_normal((4, 3)) for _ in range(2)]

    def call(t: Any, x: Any, y: Any) -> Any:
        with pytest.warns(UserWarning, match="size_average and reduce"):
            return t.nn.functional.mse_loss(x, y, *old)

    compare("loss", f"mse_loss{old}", call, operands)


@pytest.mark.parametrize("dtype", FLOATS)
def test_losses_at_edges(dtype: str) -> None:
    for values, label in (([100.0, 0.0, -100.0], 2), ([1e4, -1e4, 0.0], 1), ([0.0, -INF, 0.0], 0)):

        def call(t: Any, x: Any) -> Any:
            return t.nn.functional.cross_entropy(x, tensor(t, np.array([label])))

        compare("loss", f"cross_entropy of {values}", call, [np.array([values]).astype(dtype)], 1)
