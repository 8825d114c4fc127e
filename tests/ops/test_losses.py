"""Losses: values, edges, gradients of both orders, labels, errors."""

import itertools

import numpy as np
import pytest
import scipy.special

import numgrad
from numgrad import memory
from tests.checks import assert_close, check_gradients, layouts

RNG = np.random.default_rng(0)
INF = np.inf


def expected_nll(scores, target, weight, ignore, reduction):
    """Element by element, as the definition says."""
    scores = np.moveaxis(scores, 1, -1) if scores.ndim > 1 else scores
    losses, weights = np.zeros(target.shape), np.zeros(target.shape)
    for index in np.ndindex(target.shape):
        label = target[index]
        if label != ignore:
            weights[index] = 1 if weight is None else weight[label]
            losses[index] = -weights[index] * scores[index][label]
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / weights.sum()


CASES = [  # shapes of x and target
    ((4,), ()),
    ((5, 4), (5,)),
    ((5, 4, 3), (5, 3)),
    ((2, 4, 3, 2), (2, 3, 2)),
]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("shape", "labels"), CASES)
def test_cross_entropy(shape, labels, reduction):
    rng = np.random.default_rng(1)
    x, target = rng.standard_normal(shape), rng.integers(0, 4, labels)
    weight = rng.random(4) + 0.5
    scores = scipy.special.log_softmax(x, axis=1 if x.ndim > 1 else 0)
    t = numgrad.tensor(target)
    for w, ignore in itertools.product((None, weight), (-100, 2)):
        if ignore == 2 and labels == () and target == 2:
            continue  # all ignored: test_values.py
        named = {"weight": None if w is None else numgrad.tensor(w), "ignore_index": ignore}
        for a in layouts(x, None).values():
            got = numgrad.cross_entropy(numgrad.from_numpy(a), t, reduction=reduction, **named)
            expected = np.asarray(expected_nll(scores, target, w, ignore, reduction))
            assert_close(got.numpy(), expected, 1e-13, "cross_entropy")
        got = numgrad.nll_loss(numgrad.tensor(scores), t, reduction=reduction, **named)
        assert_close(got.numpy(), expected, 1e-13, "nll_loss")
        check_gradients(
            lambda x: numgrad.cross_entropy(x, t, reduction=reduction, **_typed(named, x.dtype)),
            [x],
            "cross_entropy",
        )


def _typed(named, dtype):
    weight = named["weight"]
    return {**named, "weight": None if weight is None else weight.to(dtype)}


def test_labels():
    x = numgrad.zeros(2, 5, requires_grad=True)
    for bad in (-1, -4, 5, 100):
        for function in (numgrad.cross_entropy, numgrad.nll_loss):
            with pytest.raises(IndexError, match=f"got {bad}; Target {bad} is out of bounds"):
                function(x, numgrad.tensor([1, bad]))
    with pytest.raises(TypeError, match="int64 labels for target"):
        numgrad.cross_entropy(x, numgrad.tensor([1.0, 2.0]))
    for shape in ((3,), (2, 5), (2, 1), ()):
        with pytest.raises(ValueError, match="for target"):
            numgrad.cross_entropy(x, numgrad.zeros(*shape, dtype="int64"))
    with pytest.raises(TypeError, match="expected a Tensor for target"):
        numgrad.cross_entropy(x, [1, 2])
    with pytest.raises(TypeError, match="expected a Tensor for x"):
        numgrad.cross_entropy(np.zeros((2, 5)), numgrad.tensor([1, 2]))
    assert x.grad is None
    for dtype in ("uint8", "int32"):
        labels = numgrad.tensor([1, 2], dtype=dtype)
        assert numgrad.cross_entropy(x, labels).item() == pytest.approx(np.log(5))


LOSSES = {
    "mse_loss": (numgrad.mse_loss, lambda x, y: (x - y) ** 2),
    "l1_loss": (numgrad.l1_loss, lambda x, y: np.abs(x - y)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_regression_losses(name):
    function, reference = LOSSES[name]
    x, y = RNG.standard_normal((2, 3, 4))
    for reduction in ("mean", "sum", "none"):
        expected = reference(x, y)
        expected = expected if reduction == "none" else getattr(np, reduction)(expected)
        got = function(numgrad.tensor(x), numgrad.tensor(y), reduction=reduction)
        assert_close(got.numpy(), np.asarray(expected), 1e-14, name)
        check_gradients(lambda a, b: function(a, b, reduction=reduction), [x, y], name)
    weight = RNG.random((3, 4)) + 0.5
    losses = reference(x, y) * weight
    wanted = {"mean": losses.sum() / weight.sum(), "sum": losses.sum(), "none": losses}
    for reduction, expected in wanted.items():
        got = function(
            numgrad.tensor(x), numgrad.tensor(y), reduction, weight=numgrad.tensor(weight)
        )
        assert_close(got.numpy(), np.asarray(expected), 1e-14, f"{name}, weight")
    with pytest.raises(numgrad.ShapeError, match=r"expected shape \(3, 4\) for weight"):
        function(numgrad.tensor(x), numgrad.tensor(y), weight=numgrad.ones(4))
    with pytest.raises(ValueError, match=f"{name}: expected 'mean', 'sum' or 'none' for reduction"):
        function(numgrad.tensor(x), numgrad.tensor(y), reduction="max")
    with pytest.raises(TypeError, match="expected a Tensor"):
        function(numgrad.tensor(x), y)
    with (
        pytest.raises(ValueError, match="broadcasts"),
        pytest.warns(UserWarning, match="different to the input size"),
    ):
        function(numgrad.tensor(x), numgrad.ones(7, dtype="float64"))


@pytest.mark.parametrize("name", [*LOSSES, "cross_entropy", "nll_loss"])
def test_old_reduction_arguments(name):
    function = getattr(numgrad.nn.functional, name)
    x = numgrad.tensor(RNG.standard_normal((3, 4)))
    y = numgrad.tensor([0, 1, 3]) if name not in LOSSES else numgrad.ones(3, 4, dtype="float64")
    for old, new in (
        ({"size_average": True}, "mean"),
        ({"size_average": False}, "sum"),
        ({"reduce": False}, "none"),
        ({"reduce": True}, "mean"),
        ({"size_average": False, "reduce": True}, "sum"),
    ):
        with pytest.warns(UserWarning, match=f"reduction='{new}'"):
            got = function(x, y, **old)
        np.testing.assert_array_equal(got.numpy(), function(x, y, reduction=new).numpy())


# ---------------------------------------------------------------------------------- smoothed labels


def smoothed(x, target, weight, ignore, reduction, smoothing):
    """The cross entropy against ``(1 - e)`` of the label and ``e / classes`` of each class."""
    scores = scipy.special.log_softmax(x, axis=1)
    classes = x.shape[1]
    w = np.ones(classes) if weight is None else weight
    flat, labels = np.moveaxis(scores, 1, -1).reshape(-1, classes), target.reshape(-1)
    losses, counts = np.zeros(len(labels)), np.zeros(len(labels))
    for i, label in enumerate(labels):
        if label != ignore:
            wanted = np.full(classes, smoothing / classes)
            wanted[label] += 1 - smoothing
            losses[i], counts[i] = -(wanted * w * flat[i]).sum(), w[label]
    if reduction == "none":
        return losses.reshape(target.shape)
    return losses.sum() if reduction == "sum" else losses.sum() / counts.sum()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_label_smoothing(reduction):
    rng = np.random.default_rng(2)
    weight = rng.random(4) + 0.5
    for (shape, labels), w, ignore in itertools.product(CASES[1:], (None, weight), (-100, 2)):
        x, target = rng.standard_normal(shape), rng.integers(0, 4, labels)
        t = numgrad.tensor(target)
        named = {"weight": None if w is None else numgrad.tensor(w), "ignore_index": ignore}

        def call(x, named=named, t=t):
            return numgrad.cross_entropy(
                x, t, reduction=reduction, label_smoothing=0.3, **_typed(named, x.dtype)
            )

        expected = np.asarray(smoothed(x, target, w, ignore, reduction, 0.3))
        assert_close(call(numgrad.tensor(x)).numpy(), expected, 1e-13, "label_smoothing")
        if shape == (5, 4):
            check_gradients(call, [x], "cross_entropy")
    for bad in (-0.1, 1.5, "0"):
        with pytest.raises(ValueError, match="for label_smoothing"):
            numgrad.cross_entropy(numgrad.tensor(x), t, label_smoothing=bad)


def test_class_probabilities():
    """A floating target of x's shape; a label is the probability 1 of its class."""
    rng = np.random.default_rng(3)
    for shape in ((4,), (5, 4), (5, 4, 3)):
        axis = 1 if len(shape) > 1 else 0
        x, y = rng.standard_normal(shape), scipy.special.softmax(rng.standard_normal(shape), axis)
        losses = -(y * scipy.special.log_softmax(x, axis)).sum(axis)
        for reduction in ("mean", "sum", "none"):
            got = numgrad.cross_entropy(numgrad.tensor(x), numgrad.tensor(y), reduction=reduction)
            expected = losses if reduction == "none" else getattr(np, reduction)(losses)
            assert_close(got.numpy(), np.asarray(expected), 1e-13, "probabilities")
        check_gradients(numgrad.cross_entropy, [x, y], "cross_entropy")
    x, labels = numgrad.tensor(rng.standard_normal((6, 4))), numgrad.tensor([0, 1, 2, 3, 0, 1])
    hot = numgrad.tensor(np.eye(4)[labels.numpy()])
    weight = numgrad.tensor([0.5, 1.0, 2.0, 3.0], dtype="float64")
    for named in ({}, {"label_smoothing": 0.2}, {"weight": weight}):
        a, b = (numgrad.cross_entropy(x, y, reduction="sum", **named) for y in (labels, hot))
        assert_close(a.numpy(), b.numpy(), 1e-14, str(named))
    with pytest.raises(ValueError, match="ignore_index is not supported for floating point target"):
        numgrad.cross_entropy(x, hot, ignore_index=1)
    with pytest.raises(ValueError, match=r"shape \(4,\) for weight"):
        numgrad.cross_entropy(x, hot, weight=numgrad.ones(3))


# ---------------------------------------------------------------------------- binary cross entropy


def bce(x, y):
    return -scipy.special.xlogy(y, x) - scipy.special.xlog1py(1 - y, -x)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_binary_cross_entropy(reduction):
    rng = np.random.default_rng(4)
    z, y, w = rng.standard_normal((3, 4, 5))
    x, y, w = scipy.special.expit(z), scipy.special.expit(y), w**2
    p = rng.random(5) + 0.5
    losses = bce(x, y)
    for weight in (None, w, w[:1], w[0], w[:, :1]):
        factor = None if weight is None else numgrad.tensor(weight)
        expected = losses if weight is None else losses * weight
        expected = expected if reduction == "none" else getattr(np, reduction)(expected)
        tensors = [numgrad.tensor(a) for a in (x, y, z)]
        got = numgrad.binary_cross_entropy(*tensors[:2], factor, reduction=reduction)
        assert_close(got.numpy(), np.asarray(expected), 1e-13, "bce")
        got = numgrad.binary_cross_entropy_with_logits(
            tensors[2], tensors[1], factor, reduction=reduction
        )
        assert_close(got.numpy(), np.asarray(expected), 1e-13, "bce with logits")
    positive = -p * y * np.log(x) - (1 - y) * np.log1p(-x)
    expected = positive if reduction == "none" else getattr(np, reduction)(positive)

    def with_positive(z, y, p):
        return numgrad.binary_cross_entropy_with_logits(z, y, reduction=reduction, pos_weight=p)

    got = with_positive(*(numgrad.tensor(a) for a in (z, y, p)))
    assert_close(got.numpy(), np.asarray(expected), 1e-13, "pos_weight")
    if reduction != "sum":
        check_gradients(with_positive, [z, y, p], "weighted_logit_loss")
        for name, first in (
            ("binary_cross_entropy", x),
            ("binary_cross_entropy_with_logits", z),
        ):
            function = getattr(numgrad, name)
            check_gradients(
                lambda a, b, w, f=function: f(a, b, w, reduction=reduction), [first, y, w], name
            )


def test_stable_logits():
    """Scores far from 0: the loss is the score, its gradient the probability minus the target."""
    for dtype in ("float32", "float64"):
        x = numgrad.tensor([0.0, -120.0, 120.0, 1e4, -1e4, 88.0], dtype=dtype, requires_grad=True)
        y = numgrad.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 0.5], dtype=dtype)
        expected = [np.log(2), 120.0, 0.0, 1e4, 0.0, 44.0]
        for named in ({}, {"pos_weight": numgrad.ones(1, dtype=dtype)}):
            x.grad = None
            out = numgrad.binary_cross_entropy_with_logits(x, y, reduction="none", **named)
            np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-6, atol=1e-30)
            out.sum().backward()
            np.testing.assert_allclose(x.grad.numpy(), [0.5, -1, 0, 1, 0, 0.5], atol=1e-7)
            pair = numgrad.binary_cross_entropy_with_logits(x[:2], y[:2], **named)
            assert pair.item() == pytest.approx(60.3466, rel=1e-5)


def test_logarithms_of_zero_are_bounded():
    for dtype in ("float32", "float64"):
        x = numgrad.tensor([0.0, 1.0, 0.0, 1.0], dtype=dtype, requires_grad=True)
        y = numgrad.tensor([1.0, 0.0, 0.0, 1.0], dtype=dtype)
        out = numgrad.binary_cross_entropy(x, y, reduction="none")
        assert out.tolist() == [100, 100, 0, 0]
        out.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), [-1e12, 1e12, 0, 0], rtol=1e-6)


def test_binary_errors():
    half, one = numgrad.full((2,), 0.5), numgrad.ones(2)
    for bad in (-0.1, 1.5, np.nan):
        x = numgrad.tensor([0.5, bad])
        for name, pair in (("x", (x, one)), ("target", (half, x))):
            with pytest.raises(RuntimeError, match=f"values in .0, 1. for {name}"):
                numgrad.binary_cross_entropy(*pair)
            with pytest.raises(ValueError, match="should be between 0 and 1"):
                numgrad.binary_cross_entropy(*pair)
    for function in (numgrad.binary_cross_entropy, numgrad.binary_cross_entropy_with_logits):
        with pytest.raises(ValueError, match="must be the same as input size"):
            function(half, numgrad.ones(1))
        for shape in ((3,), (4, 2), (1, 1, 2)):
            with pytest.raises(ValueError, match="for weight, got Tensor"):
                function(half, one, numgrad.ones(*shape))
        with pytest.raises(TypeError, match="a Tensor for target"):
            function(half, [1.0, 1.0])
        empty = numgrad.zeros(0, 3, requires_grad=True)
        out = function(empty, numgrad.zeros(0, 3), reduction="sum")
        out.backward()
        assert out.item() == 0 and empty.grad.shape == (0, 3)
        assert np.isnan(function(empty, numgrad.zeros(0, 3)).item())
    with pytest.raises(ValueError, match="for pos_weight, got Tensor"):
        numgrad.binary_cross_entropy_with_logits(half, one, pos_weight=numgrad.ones(3))


def test_binary_saves():
    """A constant target is kept for the gradient of x; of what no gradient is wanted, nothing."""
    x, y = numgrad.full((8,), 0.5, requires_grad=True), numgrad.ones(8)
    for function in (numgrad.binary_cross_entropy, numgrad.binary_cross_entropy_with_logits):
        with memory.track() as m:
            out = function(x, y)
        assert (m.nodes, m.saved_bytes) == (2, 64) and out.requires_grad
        with memory.track() as m:
            out = function(numgrad.Variable(x, volatile=True), y, weight=y)
        assert (m.nodes, m.saved_tensors) == (0, 0) and out.volatile


# --------------------------------------------------------------------------- smooth L1 and Huber


def test_smooth_l1_and_huber():
    rng = np.random.default_rng(5)
    x, y = rng.uniform(-3, 3, (2, 4, 6))
    d = np.abs(x - y)
    for width in (0.5, 1.0, 2.5):
        smooth = np.where(d < width, d**2 / (2 * width), d - width / 2)
        for reduction in ("mean", "sum", "none"):
            for losses, call in (
                (
                    smooth,
                    lambda a, b, r, w=width: numgrad.smooth_l1_loss(a, b, reduction=r, beta=w),
                ),
                (smooth * width, lambda a, b, r, w=width: numgrad.huber_loss(a, b, r, w)),
            ):
                expected = losses if reduction == "none" else getattr(np, reduction)(losses)
                got = call(numgrad.tensor(x), numgrad.tensor(y), reduction)
                assert_close(got.numpy(), np.asarray(expected), 1e-13, f"{width} {reduction}")
                check_gradients(lambda a, b, c=call, r=reduction: c(a, b, r), [x, y], "smooth_l1")
    a, b = numgrad.tensor(x), numgrad.tensor(y)
    assert_close(
        numgrad.smooth_l1_loss(a, b, beta=0).numpy(), numgrad.l1_loss(a, b).numpy(), 0, "beta 0"
    )
    w = rng.random((4, 6))
    got = numgrad.huber_loss(a, b, weight=numgrad.tensor(w))
    np.testing.assert_allclose(
        got.item(), (w * np.where(d <= 1, d**2 / 2, d - 0.5)).mean(), rtol=1e-14
    )


def test_smooth_l1_corners():
    x = numgrad.tensor([0.0, 1.0, -1.0, 3.0], requires_grad=True)
    zero = numgrad.zeros(4)
    numgrad.smooth_l1_loss(x, zero, reduction="sum").backward()
    assert x.grad.tolist() == [0, 1, -1, 1]
    x.grad = None
    numgrad.huber_loss(x, zero, "sum", 2.0).backward()
    assert x.grad.tolist() == [0, 1, -1, 2]
    for bad in (-1, np.nan, "1"):
        with pytest.raises(RuntimeError, match="0 or more for beta"):
            numgrad.smooth_l1_loss(x, zero, beta=bad)
        with pytest.raises(ValueError, match="more than 0 for delta"):
            numgrad.huber_loss(x, zero, delta=bad)
    with pytest.raises(ValueError, match="more than 0 for delta"):
        numgrad.huber_loss(x, zero, delta=0)
    with pytest.raises(ValueError, match=r"shape \(4,\) for weight"):
        numgrad.huber_loss(x, zero, weight=numgrad.ones(1))
    for function in (numgrad.smooth_l1_loss, numgrad.huber_loss):
        with pytest.warns(UserWarning, match="different to the input size"):
            function(x, numgrad.zeros(1))


# ---------------------------------------------------------------------------------- divergence


def test_kl_div():
    rng = np.random.default_rng(6)
    x, logs = (scipy.special.log_softmax(rng.standard_normal((4, 5)), 1) for _ in range(2))
    y = np.exp(logs)
    losses = y * (logs - x)
    for reduction in ("batchmean", "sum", "none", "mean"):
        if reduction == "mean":
            with pytest.warns(UserWarning, match="'batchmean' divides only by the batch size"):
                got = numgrad.kl_div(numgrad.tensor(x), numgrad.tensor(y))
            assert_close(got.numpy(), np.asarray(losses.mean()), 1e-13, "kl_div")
            continue
        expected = {"batchmean": losses.sum() / 4, "sum": losses.sum(), "none": losses}[reduction]
        for target, log_target in ((y, False), (logs, True)):

            def call(a, b, log_target=log_target, reduction=reduction):
                return numgrad.kl_div(a, b, reduction=reduction, log_target=log_target)

            got = call(numgrad.tensor(x), numgrad.tensor(target))
            assert_close(got.numpy(), np.asarray(expected), 1e-13, f"kl_div {reduction}")
            far = rng.uniform(0.4, 1.0, y.shape)  # near 0 its derivatives are too steep to check
            check_gradients(call, [x, far], "kl_div")
    with pytest.raises(ValueError, match="'batchmean' for reduction, got 'max'"):
        numgrad.kl_div(numgrad.tensor(x), numgrad.tensor(y), reduction="max")
    with pytest.raises(ValueError, match="broadcasts"):
        numgrad.kl_div(numgrad.tensor(x), numgrad.ones(3), reduction="sum")


def test_divergence_of_zero_probability():
    x = numgrad.tensor([-1.0, -2.0], requires_grad=True)
    y = numgrad.tensor([0.0, 1.0], requires_grad=True)
    out = numgrad.kl_div(x, y, reduction="sum")
    assert out.item() == 2
    out.backward()
    assert x.grad.tolist() == [0, -1] and y.grad.tolist() == [1, 3]
