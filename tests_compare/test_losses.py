"""Losses, PReLU and channel dropout against PyTorch: every reduction, weight, edge and error."""

import itertools
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import numgrad
from tests_compare.checks import FLOATS, Case, agree, check, compare, count, tensor

INF = math.inf
REDUCTIONS = ("mean", "sum", "none")
PROBABILITY = (0.02, 0.98)


def fixed(*values: float, like: Any) -> Any:
    """A constant tensor of the library and the dtype of ``like``."""
    t = torch if isinstance(like, torch.Tensor) else numgrad
    made = tensor(t, np.array(values))
    return made.to(like.dtype)


CASES = [
    *[
        Case(
            "binary_cross_entropy",
            lambda t, x, y, r=r: t.nn.functional.binary_cross_entropy(x, y, reduction=r),
            [[(3, 4), (3, 4)], [(), ()], [(300, 130), (300, 130)]],
            ops=["bernoulli_loss"],
            label=f"binary_cross_entropy({r})",
            domain=PROBABILITY,
            gradients=1,  # PyTorch adds 1e-12 to denominators in those of the second order
        )
        for r in REDUCTIONS
    ],
    Case(
        "binary_cross_entropy",
        lambda t, x, y: t.nn.functional.binary_cross_entropy(
            x, y, fixed(0.5, 2.0, 1.0, 3.0, like=x), reduction="none"
        ),
        [[(3, 4), (3, 4)]],
        ops=["bernoulli_loss"],
        label="binary_cross_entropy, weight",
        domain=PROBABILITY,
        gradients=1,
    ),
    Case(
        "binary_cross_entropy",
        lambda t, x: t.nn.functional.binary_cross_entropy(
            x, fixed(0.0, 1.0, 1.0, 0.0, 0.5, like=x), reduction="none"
        ),
        (),
        [[np.array([0.0, 1.0, 0.0, 1.0, 0.5])]],
        ops=["bernoulli_loss"],
        label="binary_cross_entropy at 0 and 1",
        gradients=0,  # in float64 PyTorch's 1e-12 is that of float32
    ),
    *[
        Case(
            "binary_cross_entropy_with_logits",
            lambda t, x, y, r=r: t.nn.functional.binary_cross_entropy_with_logits(
                x, y, reduction=r
            ),
            [[(3, 4), (3, 4)], [(), ()], [(300, 130), (300, 130)]],
            ops=["logit_loss"],
            label=f"binary_cross_entropy_with_logits({r})",
            domain=((-5.0, 5.0), PROBABILITY),
        )
        for r in REDUCTIONS
    ],
    *[
        Case(
            "binary_cross_entropy_with_logits",
            lambda t, x, y, p, w, r=r: t.nn.functional.binary_cross_entropy_with_logits(
                x, y, w.detach(), reduction=r, pos_weight=p.detach()
            ),
            [[(3, 4), (3, 4), (4,), (3, 4)], [(3, 4), (3, 4), (3, 1), (1,)]],
            ops=["weighted_logit_loss"],
            label=f"binary_cross_entropy_with_logits({r}), weights",
            domain=((-5.0, 5.0), PROBABILITY, (0.5, 3.0), (0.5, 3.0)),
        )
        for r in REDUCTIONS
    ],
    Case(
        "binary_cross_entropy_with_logits",
        lambda t, x, y: t.nn.functional.binary_cross_entropy_with_logits(x, y),
        (),
        [
            [np.array([0.0, -120.0]), np.array([0.0, 1.0])],
            [np.array([1e4, -1e4]), np.array([1.0, 1.0])],
        ],
        ops=["logit_loss"],
        label="binary_cross_entropy_with_logits at edges",
    ),
    *[
        Case(
            "smooth_l1_loss",
            lambda t, x, y, r=r, b=b: t.nn.functional.smooth_l1_loss(x, y, reduction=r, beta=b),
            [[(3, 4), (3, 4)], [(), ()], [(300, 130), (300, 130)]],
            ops=["smooth_distance"] if b else [],
            label=f"smooth_l1_loss({r}, beta={b})",
        )
        for r in REDUCTIONS
        for b in (1.0, 0.4, 0.0)
    ],
    *[
        Case(
            "huber_loss",
            lambda t, x, y, r=r, d=d: t.nn.functional.huber_loss(x, y, reduction=r, delta=d),
            [[(3, 4), (3, 4)], [(), ()]],
            ops=["huber_distance"],
            label=f"huber_loss({r}, delta={d})",
        )
        for r in REDUCTIONS
        for d in (1.0, 0.4)
    ],
    *[
        Case(
            name,
            lambda t, x, y, w, name=name, r=r: getattr(t.nn.functional, name)(
                x, y, reduction=r, weight=w
            ),
            [[(3, 4), (3, 4), (3, 4)]],
            ops=["sub"],
            label=f"{name}({r}), weight",
            domain=((-3.0, 3.0), (-3.0, 3.0), (0.5, 3.0)),
        )
        for name in ("mse_loss", "l1_loss")
        for r in REDUCTIONS
    ],
    Case(
        "huber_loss",
        lambda t, x, y, w: t.nn.functional.huber_loss(x, y, weight=w),
        [[(3, 4), (3, 4), (3, 4)]],
        ops=["huber_distance"],
        label="huber_loss, weight",
    ),
    *[
        Case(
            name,
            lambda t, x, name=name: getattr(t.nn.functional, name)(
                x, fixed(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, like=x), reduction="none"
            ),
            (),
            [[np.array([0.0, 1.0, -1.0, 3.0, INF, math.nan])]],
            ops=[op],
            label=f"{name} at corners",
            gradients=1,
        )
        for name, op in (("huber_loss", "huber_distance"), ("smooth_l1_loss", "smooth_distance"))
    ],
    *[
        Case(
            "kl_div",
            lambda t, x, y, r=r, log=log: t.nn.functional.kl_div(x, y, reduction=r, log_target=log),
            [[(3, 4), (3, 4)], [(3, 4), (4,)], [(2, 3, 4), (2, 3, 4)], [(), ()]],
            ops=["log_divergence" if log else "divergence"],
            label=f"kl_div({r}, log_target={log})",
            domain=((-3.0, 0.0), (-3.0, 0.0) if log else PROBABILITY),
        )
        for r in (*REDUCTIONS, "batchmean")
        for log in (False, True)
    ],
    Case(
        "kl_div",
        lambda t, x: t.nn.functional.kl_div(x, fixed(0.0, 1.0, 0.3, like=x), reduction="sum"),
        [[(3,)]],
        ops=["divergence"],
        label="kl_div of probability 0",
    ),
    Case(
        "prelu",
        lambda t, x, w: t.prelu(x, w),
        [
            [(3, 4), (4,)],
            [(3, 4), (1,)],
            [(2, 3, 4, 5), (3,)],
            [(2, 3, 5), (1,)],
            [(5,), (1,)],
            [(), (1,)],
            [(3, 4), ()],
            [(0, 3, 2), (3,)],
        ],
        ops=["sloped"],
    ),
    Case(
        "prelu",
        lambda t, x, w: t.prelu(x, w),
        (),
        [[np.array([0.0, -0.0, 1.0, -2.0, math.nan]), np.array([0.25])]],
        ops=["sloped"],
        label="prelu at 0",
        gradients=1,
    ),
    Case(
        "prelu",
        lambda t, x, w: t.prelu(x.permute(0, 2, 1), w),
        [[(2, 5, 3), (3,)]],
        ops=["sloped"],
        label="prelu of permuted",
    ),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
def test_loss(case: Case, dtype: str) -> None:
    check(case, "loss", dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_smoothed_labels(reduction: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    shapes = (((5,), ()), ((6, 5), (6,)), ((3, 5, 4), (3, 4)), ((2, 5, 3, 2), (2, 3, 2)))
    for (shape, labels), weighted, ignore in itertools.product(shapes, (False, True), (-100, 1)):
        x = rng.standard_normal(shape).astype(dtype)
        target = np.asarray(rng.integers(0, 5, labels))
        if not labels:
            target[...] = 2
        weight = rng.uniform(0.5, 2.0, 5).astype(dtype)

        def call(t: Any, x: Any) -> Any:
            return t.nn.CrossEntropyLoss(
                tensor(t, weight) if weighted else None,
                ignore_index=ignore,
                reduction=reduction,
                label_smoothing=0.2,
            )(x, tensor(t, target))

        compare("loss", f"smoothed cross_entropy({reduction})", call, [x])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_class_probabilities(reduction: str, dtype: str) -> None:
    rng = np.random.default_rng(2)
    shapes = ((5,), (6, 5), (3, 5, 4), (0, 5))
    for shape, weighted, smoothing in itertools.product(shapes, (False, True), (0.0, 0.2)):
        x = rng.standard_normal(shape).astype(dtype)
        y = rng.dirichlet(np.ones(5), shape[:1] + shape[2:] if len(shape) > 1 else ())
        y = np.moveaxis(y, -1, 1 if len(shape) > 1 else 0).astype(dtype)
        weight = rng.uniform(0.5, 2.0, 5).astype(dtype)

        def call(t: Any, x: Any, y: Any) -> Any:
            return t.nn.functional.cross_entropy(
                x,
                y,
                tensor(t, weight) if weighted else None,
                reduction=reduction,
                label_smoothing=smoothing,
            )

        compare("loss", f"cross_entropy({reduction}) of probabilities", call, [x, y])


WEIGHT = np.array([0.5, 1.0, 2.0, 3.0])
LAYERS: list[tuple[str, dict[str, Any]]] = [
    ("SmoothL1Loss", {"beta": 0.3}),
    ("HuberLoss", {"delta": 0.3}),
    ("BCELoss", {}),
    ("BCELoss", {"weight": WEIGHT}),
    ("BCEWithLogitsLoss", {}),
    ("BCEWithLogitsLoss", {"weight": WEIGHT, "pos_weight": WEIGHT}),
    ("KLDivLoss", {}),
    ("KLDivLoss", {"log_target": True}),
]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
def test_loss_layers(reduction: str) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((5, 4)), rng.uniform(*PROBABILITY, (5, 4))
    p = rng.uniform(*PROBABILITY, (5, 4))
    for name, arguments in LAYERS:
        first = p if name == "BCELoss" else x

        def layer(t: Any) -> Any:
            given = {
                k: tensor(t, v) if isinstance(v, np.ndarray) else v for k, v in arguments.items()
            }
            return getattr(t.nn, name)(reduction=reduction, **given)

        orders = 1 if name == "BCELoss" else 2
        compare("loss", f"{name}({reduction})", lambda t, x, y: layer(t)(x, y), [first, y], orders)
        assert list(layer(numgrad).state_dict()) == list(layer(torch).state_dict())


def v(t: Any, *values: float) -> Any:
    return tensor(t, np.array(values, np.float32))


def ones(t: Any, *shape: int) -> Any:
    return tensor(t, np.ones(shape, np.float32))


BAD: list[tuple[str, Any]] = [
    ("bce, input 1.5", lambda t, F: F.binary_cross_entropy(v(t, 1.5), v(t, 1))),
    ("bce, input nan", lambda t, F: F.binary_cross_entropy(v(t, math.nan), v(t, 1))),
    ("bce, target 2", lambda t, F: F.binary_cross_entropy(v(t, 0.5), v(t, 2))),
    ("bce of shapes", lambda t, F: F.binary_cross_entropy(ones(t, 2), ones(t, 1))),
    ("bce, weight", lambda t, F: F.binary_cross_entropy(ones(t, 2), ones(t, 2), ones(t, 3))),
    ("logits of shapes", lambda t, F: F.binary_cross_entropy_with_logits(ones(t, 2), ones(t, 1))),
    (
        "logits, weight",
        lambda t, F: F.binary_cross_entropy_with_logits(ones(t, 2), ones(t, 2), ones(t, 4, 2)),
    ),
    (
        "logits, pos_weight",
        lambda t, F: F.binary_cross_entropy_with_logits(
            ones(t, 2), ones(t, 2), pos_weight=ones(t, 3)
        ),
    ),
    ("smooth_l1, beta -1", lambda t, F: F.smooth_l1_loss(ones(t, 2), ones(t, 2), beta=-1.0)),
    ("huber, delta 0", lambda t, F: F.huber_loss(ones(t, 2), ones(t, 2), delta=0.0)),
    ("mse, weight", lambda t, F: F.mse_loss(ones(t, 2), ones(t, 2), weight=ones(t, 1))),
    ("l1, weight", lambda t, F: F.l1_loss(ones(t, 2), ones(t, 2), weight=ones(t, 1))),
    ("huber, weight", lambda t, F: F.huber_loss(ones(t, 2), ones(t, 2), weight=ones(t, 1))),
    ("kl_div, reduction", lambda t, F: F.kl_div(ones(t, 2), ones(t, 2), reduction="max")),
    ("kl_div of shapes", lambda t, F: F.kl_div(ones(t, 2), ones(t, 3), reduction="sum")),
    (
        "label_smoothing 1.5",
        lambda t, F: F.cross_entropy(
            ones(t, 2, 3), tensor(t, np.array([1, 2])), label_smoothing=1.5
        ),
    ),
    (
        "ignore_index of probabilities",
        lambda t, F: F.cross_entropy(ones(t, 2, 3), ones(t, 2, 3), ignore_index=1),
    ),
    ("probabilities of shapes", lambda t, F: F.cross_entropy(ones(t, 2, 3), ones(t, 2, 4))),
    ("nll_loss of probabilities", lambda t, F: F.nll_loss(ones(t, 2, 3), ones(t, 2, 3))),
    ("prelu, 2 weights of 3", lambda t, F: F.prelu(ones(t, 2, 3), ones(t, 2))),
    ("prelu of a vector", lambda t, F: F.prelu(ones(t, 3), ones(t, 3))),
    ("prelu of ()", lambda t, F: F.prelu(ones(t), ones(t, 2))),
    ("prelu, a matrix", lambda t, F: F.prelu(ones(t, 3), ones(t, 1, 1))),
    ("prelu of dtypes", lambda t, F: F.prelu(ones(t, 3), tensor(t, np.ones(1)))),
    ("prelu of integers", lambda t, F: F.prelu(tensor(t, np.array([1])), ones(t, 1))),
    ("prelu, a number", lambda t, F: F.prelu(ones(t, 3), 0.5)),
    ("dropout2d, p 2", lambda t, F: F.dropout2d(ones(t, 1, 2, 3, 3), 2.0)),
    ("dropout2d of a vector", lambda t, F: F.dropout2d(ones(t, 3))),
    ("unflatten", lambda t, F: t.nn.Unflatten(1, (2, 2))(ones(t, 1, 5))),
]


@pytest.mark.parametrize(("name", "call"), BAD, ids=[b[0] for b in BAD])
def test_errors(name: str, call: Any) -> None:
    """Where PyTorch raises, numgrad raises what the same ``except`` catches."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception) as theirs:
            call(torch, torch.nn.functional)
        with pytest.raises(theirs.type):
            call(numgrad, numgrad.nn.functional)
    count("error", theirs.type.__name__, "", name, 0.0)


def test_warnings() -> None:
    for call, text in (
        (lambda t, F: F.kl_div(ones(t, 2), ones(t, 2)), "reduction: 'mean' divides"),
        (lambda t, F: F.smooth_l1_loss(ones(t, 2, 1), ones(t, 2)), "Using a target size"),
        (lambda t, F: F.huber_loss(ones(t, 2, 1), ones(t, 2)), "Using a target size"),
        (lambda t, F: F.dropout2d(ones(t, 2, 3)), "dropout2d: Received a 2-D input"),
        (
            lambda t, F: F.binary_cross_entropy(ones(t, 2), ones(t, 2), size_average=False),
            "size_average and reduce args will be deprecated, please use reduction='sum'",
        ),
    ):
        for t in (numgrad, torch):
            with pytest.warns(UserWarning, match=text):
                call(t, t.nn.functional)


def test_channel_dropout() -> None:
    """The same frame: nothing when evaluating, whole channels at the same rate when training."""
    x = np.random.default_rng(4).uniform(1, 2, (50, 60, 3, 2))
    for t in (numgrad, torch):
        t.manual_seed(1)
        layer = t.nn.Dropout2d(0.3)
        out = layer(tensor(t, x)).numpy() / x
        channels = out.reshape(3000, 6)
        assert np.allclose(channels, channels[:, :1])
        dropped = (channels[:, 0] == 0).mean()
        assert abs(dropped - 0.3) < 0.04
        assert np.allclose(channels[channels[:, 0] > 0], 1 / 0.7)
        agree("layer", "forward", "Dropout2d.eval()", layer.eval()(tensor(t, x)), tensor(torch, x))
