"""Losses of regression and classification, and how they are reduced."""

from collections.abc import Sequence
from typing import Any

from ..graph.errors import DtypeError, RangeError, ShapeError, expected, shown, warn_user
from ..graph.mode import composite
from ..kernels import scalar as s
from .declare import NUMBERS, elementwise, floating
from .elementwise import mul, ne, square, sub, where
from .indexing import check_index, gather_along
from .movement import permute, reshape, to_dtype, unsqueeze
from .primitive import tensor_operand
from .reduction import mean, sum
from .softmax import log_softmax

# ------------------------------------------------------------------------------------------ entries

_LEAST_LOG = -100
"""What binary cross-entropy counts as the logarithm of 0, as PyTorch does."""


def _bounded(logarithm: Any) -> Any:
    return s.maximum(logarithm, _LEAST_LOG)


@elementwise(
    dx=lambda g, x, y: g * (x - y) / s.maximum(x * (1 - x), 1e-12),
    dy=lambda g, x: g * (_bounded(s.log1p(-x)) - _bounded(s.log(x))),
    dtype=floating,
    domain=(0.1, 0.9),
    edges=(0.0, 1.0),
    reference="numgrad.kernels.reference.losses:bernoulli_loss",
)
def bernoulli_loss(x, y):
    """``-y log(x) - (1 - y) log(1 - x)``, each logarithm at least -100."""
    return (y - 1) * _bounded(s.log1p(-x)) - y * _bounded(s.log(x))


def _softplus(x: Any) -> Any:
    """``log(1 + exp(x))``; exp never overflows."""
    return s.maximum(x, 0) + s.log1p(s.exp(-s.absolute(x)))


@elementwise(
    dx=lambda g, x, y: g * (s.sigmoid(x) - y),
    dy=lambda g, x: -g * x,
    dtype=floating,
    domain=(0.1, 0.9),
    edges=(0.0, 120.0, -120.0),
    reference="numgrad.kernels.reference.losses:logit_loss",
)
def logit_loss(x, y):
    """``-y log(p) - (1 - y) log(1 - p)`` for ``p = sigmoid(x)``, without overflow."""
    return s.where(x > 0, 1 - y, -y) * x + s.log1p(s.exp(-s.absolute(x)))


@elementwise(
    dx=lambda g, x, y, positive: g * (1 - y - (1 + (positive - 1) * y) * s.sigmoid(-x)),
    dy=lambda g, x, positive: g * ((positive - 1) * _softplus(-x) - x),
    dpositive=lambda g, x, y: g * y * _softplus(-x),
    dtype=floating,
    domain=(0.1, 0.9),
    edges=(0.0, 120.0, -120.0),
    reference="numgrad.kernels.reference.losses:weighted_logit_loss",
)
def weighted_logit_loss(x, y, positive):
    """``-positive y log(p) - (1 - y) log(1 - p)`` for ``p = sigmoid(x)``, without overflow."""
    bend = s.log1p(s.exp(-s.absolute(x)))
    return s.where(x > 0, 1 - y, -positive * y) * x + (1 + (positive - 1) * y) * bend


def _smooth_slope(d: Any, beta: Any) -> Any:
    return s.where(d >= beta, 1, s.where(d <= -beta, -1, d / beta))


@elementwise(
    dx=lambda g, x, y, beta: g * _smooth_slope(x - y, beta),
    dy=lambda g, x, y, beta: g * _smooth_slope(y - x, beta),
    dtype=floating,
    reference="numgrad.kernels.reference.losses:smooth_distance",
)
def smooth_distance(x, y, beta=1.0):
    """``(x - y)**2 / (2 beta)`` where ``|x - y| < beta``, else ``|x - y| - beta / 2``."""
    d = s.absolute(x - y)
    return s.where(d < beta, 0.5 * d * d / beta, d - 0.5 * beta)


def _huber_slope(d: Any, delta: Any) -> Any:
    return s.where(d >= delta, delta, s.where(d <= -delta, -delta, d))


@elementwise(
    dx=lambda g, x, y, delta: g * _huber_slope(x - y, delta),
    dy=lambda g, x, y, delta: g * _huber_slope(y - x, delta),
    dtype=floating,
    reference="numgrad.kernels.reference.losses:huber_distance",
)
def huber_distance(x, y, delta=1.0):
    """``(x - y)**2 / 2`` where ``|x - y| <= delta``, else ``delta (|x - y| - delta / 2)``."""
    d = s.absolute(x - y)
    return s.where(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta))


@elementwise(
    dx=lambda g, y: -g * y,
    dy=lambda g, x, y: g * (s.where(y == 0, 0, s.log(y) + 1) - x),
    dtype=floating,
    domain=(0.3, 2.0),
    edges=(0.0,),
    reference="numgrad.kernels.reference.losses:divergence",
)
def divergence(x, y):
    """``y (log(y) - x)``, with ``0 log(0) = 0``."""
    return s.where(y == 0, 0, y * s.log(y)) - y * x


@elementwise(
    dx=lambda g, y: -g * s.exp(y),
    dy=lambda g, x, y: g * s.exp(y) * (y - x + 1),
    dtype=floating,
    reference="numgrad.kernels.reference.losses:log_divergence",
)
def log_divergence(x, y):
    """``exp(y) (y - x)``: `divergence` of the exponential of y."""
    return s.exp(y) * (y - x)


# --------------------------------------------------------------------------------------- reductions


REDUCTIONS = ("mean", "sum", "none")


def check_reduction(op: str, reduction: Any, allowed: Sequence[str] = REDUCTIONS) -> None:
    """Raise unless ``reduction`` is one of the names."""
    if reduction not in allowed:
        names = ", ".join(repr(name) for name in allowed[:-1]) + f" or {allowed[-1]!r}"
        raise ValueError(expected(op, names, "reduction", repr(reduction), "use one of them"))


def reduced(loss: Any, reduction: str) -> Any:
    """The losses, their mean, or their sum."""
    return loss if reduction == "none" else mean(loss) if reduction == "mean" else sum(loss)


# --------------------------------------------------------------------------------------- regression


@composite
def mse_loss(x: Any, target: Any, reduction: str = "mean", weight: Any = None) -> Any:
    """Squared error, ``mean((x - target)**2)`` (or ``sum``, or none), times ``weight`` if given,
    over whose sum the mean then is.

    Warns if the shapes differ: broadcasting them is almost always a mistake.
    """
    check_reduction("mse_loss", reduction)
    loss = square(_difference("mse_loss", x, target))
    return _weighted("mse_loss", x, loss, reduction, weight)


@composite
def l1_loss(x: Any, target: Any, reduction: str = "mean", weight: Any = None) -> Any:
    """Absolute error, ``mean(|x - target|)`` (or ``sum``, or none), times ``weight`` if given,
    over whose sum the mean then is.

    Warns if the shapes differ: broadcasting them is almost always a mistake.
    """
    check_reduction("l1_loss", reduction)
    loss = _difference("l1_loss", x, target).abs()
    return _weighted("l1_loss", x, loss, reduction, weight)


@composite
def smooth_l1_loss(
    x: Any,
    target: Any,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Any:
    """``(x - target)**2 / (2 beta)`` where they are nearer than ``beta``, else
    ``|x - target| - beta / 2``; its mean (or sum, or none). With ``beta`` 0 it is `l1_loss`.

    Warns if the shapes differ. Raises RangeError for a negative ``beta``.

    Notes: R. Girshick, "Fast R-CNN" (ICCV 2015), eq. 3, for beta 1.
    """
    check_reduction("smooth_l1_loss", reduction)
    if not isinstance(beta, NUMBERS) or not beta >= 0:
        raise RangeError(expected("smooth_l1_loss", "0 or more", "beta", repr(beta), "use 1.0"))
    _pair("smooth_l1_loss", x, target)
    loss = smooth_distance(x, target, beta) if beta else sub(x, target).abs()
    return reduced(loss, reduction)


@composite
def huber_loss(
    x: Any, target: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None
) -> Any:
    """``(x - target)**2 / 2`` where they are no farther than ``delta``, else
    ``delta (|x - target| - delta / 2)``; its mean (or sum, or none), times ``weight`` if given.

    Warns if the shapes differ. Raises RangeError unless ``delta`` is above 0.

    Notes: P. J. Huber, "Robust estimation of a location parameter" (1964).
    """
    check_reduction("huber_loss", reduction)
    if not isinstance(delta, NUMBERS) or not delta > 0:
        raise RangeError(expected("huber_loss", "more than 0", "delta", repr(delta), "use 1.0"))
    _pair("huber_loss", x, target)
    loss = huber_distance(x, target, delta)
    if weight is None:
        return reduced(loss, reduction)
    _check_factors("huber_loss", weight, x)
    return reduced(mul(loss, weight), reduction)


def _check_factors(op: str, weight: Any, x: Any) -> None:
    """Raise unless ``weight`` is a Tensor of the shape of x."""
    if tensor_operand(op, weight, "weight").shape != x.shape:
        raise ShapeError(expected(op, f"shape {x.shape}", "weight", shown(weight), "expand it"))


def _weighted(op: str, x: Any, loss: Any, reduction: str, weight: Any) -> Any:
    """The losses times ``weight``, reduced; their mean is over the sum of the weights."""
    if weight is None:
        return reduced(loss, reduction)
    _check_factors(op, weight, x)
    loss = mul(loss, weight)
    return sum(loss) / sum(weight) if reduction == "mean" else reduced(loss, reduction)


def _pair(op: str, x: Any, target: Any) -> None:
    """Raise unless both are Tensors; warn if their shapes differ."""
    tensor_operand(op, x)
    tensor_operand(op, target, "target")
    if x.shape != target.shape:
        warn_user(
            f"Using a target size ({target.shape}) that is different to the input size ({x.shape})."
            " This will likely lead to incorrect results due to broadcasting. Please ensure they "
            "have the same size.",
        )


def _difference(op: str, x: Any, target: Any) -> Any:
    """``x - target``, with a warning if that broadcasts."""
    _pair(op, x, target)
    return sub(x, target)


# ------------------------------------------------------------------------------ of probabilities


def _same_shape(op: str, x: Any, target: Any) -> None:
    tensor_operand(op, x)
    tensor_operand(op, target, "target")
    if x.shape != target.shape:
        raise ShapeError(
            f"{op}: expected shape {x.shape} for target, got {shown(target)}; Target size "
            f"({target.shape}) must be the same as input size ({x.shape}): reshape one of them"
        )


def _check_factor(op: str, name: str, factor: Any, shape: tuple[int, ...]) -> None:
    """Raise unless ``factor`` is a Tensor that broadcasts to ``shape``."""
    own = tensor_operand(op, factor, name).shape
    if len(own) > len(shape) or not all(
        n in (1, m) for n, m in zip(reversed(own), reversed(shape), strict=False)
    ):
        raise ShapeError(
            expected(op, f"a shape that broadcasts to {shape}", name, shown(factor), "reshape it")
        )


@composite
def binary_cross_entropy(
    x: Any,
    target: Any,
    weight: Any = None,
    reduction: str = "mean",
) -> Any:
    """``-target log(x) - (1 - target) log(1 - x)`` of probabilities x, times ``weight`` if given;
    its mean (or sum, or none). A logarithm counts as at least -100.

    Raises:
        ShapeError: the shapes differ, or weight does not broadcast to them.
        RangeError: x or target is outside [0, 1].
    """
    op = "binary_cross_entropy"
    check_reduction(op, reduction)
    _same_shape(op, x, target)
    if weight is not None:
        _check_factor(op, "weight", weight, x.shape)
    for name, called, given in (("x", "input", x), ("target", "target", target)):
        values = given.cpu().array
        if values.size and not (values.min() >= 0 and values.max() <= 1):
            raise RangeError(
                f"{op}: expected values in [0, 1] for {name}, got some outside; all elements of "
                f"{called} should be between 0 and 1: use binary_cross_entropy_with_logits for "
                "scores"
            )
    loss = bernoulli_loss(x, target)
    return reduced(loss if weight is None else mul(loss, weight), reduction)


@composite
def binary_cross_entropy_with_logits(
    x: Any,
    target: Any,
    weight: Any = None,
    reduction: str = "mean",
    pos_weight: Any = None,
) -> Any:
    """`binary_cross_entropy` of ``sigmoid(x)``, computed stably for scores x of any size.

    ``weight`` is a factor of each loss, ``pos_weight`` one of the part with ``target``.

    Raises:
        ShapeError: the shapes differ, or a weight does not broadcast to them.
    """
    op = "binary_cross_entropy_with_logits"
    check_reduction(op, reduction)
    _same_shape(op, x, target)
    for name, factor in (("weight", weight), ("pos_weight", pos_weight)):
        if factor is not None:
            _check_factor(op, name, factor, x.shape)
    if pos_weight is None:
        loss = logit_loss(x, target)
    else:
        loss = weighted_logit_loss(x, target, pos_weight)
    return reduced(loss if weight is None else mul(loss, weight), reduction)


@composite
def kl_div(
    x: Any,
    target: Any,
    reduction: str = "mean",
    log_target: bool = False,
) -> Any:
    """Kullback-Leibler divergence from log-probabilities x, ``target (log(target) - x)``, with
    ``0 log(0) = 0``; ``exp(target) (target - x)`` with ``log_target``. Its sum over the number of
    rows (``batchmean``: that is the divergence), its mean over all elements, its sum, or none.

    Warns for ``mean``. Raises ShapeError if the shapes do not broadcast.
    """
    check_reduction("kl_div", reduction, (*REDUCTIONS, "batchmean"))
    tensor_operand("kl_div", x)
    tensor_operand("kl_div", target, "target")
    if reduction == "mean":
        warn_user(
            "reduction: 'mean' divides the total loss by both the batch size and the support size."
            "'batchmean' divides only by the batch size, and aligns with the KL div math "
            "definition."
        )
    loss = (log_divergence if log_target else divergence)(x, target)
    if reduction == "batchmean":
        return sum(loss) / x.shape[0] if x.dim() else sum(loss)
    return reduced(loss, reduction)


# ------------------------------------------------------------------------------------- of classes


def _classes_last(op: str, x: Any, target: Any) -> tuple[Any, Any]:
    """x as (n, classes) and target as (n,), from (c,), (n, c) or (n, c, d1, …)."""
    tensor_operand(op, x)
    tensor_operand(op, target, "target")
    wanted = x.shape[:1] + x.shape[2:] if x.dim() > 1 else ()
    if x.dim() == 0 or target.shape not in (wanted, (1,) if x.dim() == 1 else wanted):
        raise ShapeError(
            expected(
                op,
                f"target of shape {wanted} for x {x.shape}",
                "target",
                shown(target),
                "reshape it",
            )
        )
    if target.dtype.kind not in "iu":
        raise DtypeError(expected(op, "int64 labels", "target", shown(target), "use .long()"))
    if x.dim() > 2:
        x = reshape(permute(x, 0, *range(2, x.dim()), 1), -1, x.shape[1])
    return (unsqueeze(x, 0) if x.dim() == 1 else x), reshape(target, -1)


@composite
def nll_loss(
    x: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Any:
    """Negative log-likelihood of the labels, ``-weight[target] * x[target]``.

    x holds log-probabilities, (n, classes) or (n, classes, d1, …); target the int64 labels, (n,) or
    (n, d1, …). The mean is over the weights of the labels that are not ``ignore_index``; nan if all
    are ignored (their gradient is 0).

    Raises:
        IndexError: a label outside ``[0, classes)`` that is not ``ignore_index``.
    """
    check_reduction("nll_loss", reduction)
    shape = target.shape if hasattr(target, "shape") else ()
    rows, labels = _classes_last("nll_loss", x, target)
    classes = rows.shape[1]
    kept = ne(labels, ignore_index)
    safe = where(kept, labels, 0)
    if weight is not None:
        _check_weight("nll_loss", weight, classes)
    places = safe.cpu().array
    if places.size and (places.min() < 0 or places.max() >= classes):
        bad = int(places.min()) if places.min() < 0 else int(places.max())
        raise IndexError(
            f"nll_loss: expected labels in [0, {classes - 1}] for target, got {bad}; Target {bad} "
            "is out of bounds: check the number of classes"
        )
    picked = reshape(
        gather_along(
            rows, unsqueeze(check_index("nll_loss", safe, classes, beside=rows), 1), axis=1
        ),
        -1,
    )
    if weight is None:
        weights = to_dtype(kept, rows.dtype)
    else:
        weights = where(kept, weight[safe], 0)
    losses = where(kept, -picked * weights, 0)
    if reduction == "none":
        return reshape(losses, *shape)
    if reduction == "sum":
        return sum(losses)
    count = sum(weights)
    return sum(losses) / count


@composite
def cross_entropy(
    x: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """``nll_loss(log_softmax(x, 1), target)``: x holds unnormalised scores, (n, classes, …).

    With ``label_smoothing`` e each label counts 1 - e, and every class e / classes beside it.
    A floating target of x's shape holds a probability for each class instead of labels; its mean is
    over the rows.

    Raises:
        IndexError: a label outside ``[0, classes)`` that is not ``ignore_index``.
        RangeError: ``label_smoothing`` outside [0, 1]; ``ignore_index`` with probabilities.

    Notes: C. Szegedy et al., "Rethinking the Inception architecture" (CVPR 2016), section 7, for
        smoothed labels.
    """
    op = "cross_entropy"
    check_reduction(op, reduction)
    if not isinstance(label_smoothing, NUMBERS) or not 0 <= label_smoothing <= 1:
        raise RangeError(
            f"{op}: expected a number in [0, 1] for label_smoothing, got {label_smoothing!r}; "
            "use 0.0 for none"
        )
    tensor_operand(op, x)
    tensor_operand(op, target, "target")
    axis = 1 if x.dim() > 1 else 0
    if target.dtype.kind == "f" and target.shape == x.shape and x.dim():
        if ignore_index >= 0:
            raise RangeError(
                f"{op}: expected labels for ignore_index {ignore_index}, got {shown(target)}; "
                "ignore_index is not supported for floating point target: set weights to 0"
            )
        classes = x.shape[axis]
        if label_smoothing:
            target = target * (1 - label_smoothing) + label_smoothing / classes
        losses = _over_classes(op, mul(log_softmax(x, axis), target), weight, axis)
        return reduced(losses, reduction)
    _classes_last(op, x, target)
    scores = log_softmax(x, axis)
    loss = nll_loss(scores, target, weight, ignore_index, reduction)
    if not label_smoothing:
        return loss
    kept = ne(target, ignore_index)
    spread = where(kept, reshape(_over_classes(op, scores, weight, axis), *target.shape), 0)
    if reduction == "mean":
        counts = to_dtype(kept, x.dtype) if weight is None else weight[where(kept, target, 0)]
        spread = sum(spread) / sum(where(kept, counts, 0))
    else:
        spread = reduced(spread, reduction)
    return loss * (1 - label_smoothing) + spread * (label_smoothing / x.shape[axis])


def _over_classes(op: str, scores: Any, weight: Any, axis: int) -> Any:
    """Minus the weighted sum of ``scores`` over their classes."""
    if weight is not None:
        _check_weight(op, weight, scores.shape[axis])
        scores = mul(scores, reshape(weight, -1, *[1] * (scores.dim() - axis - 1)))
    return -sum(scores, axis)


def _check_weight(op: str, weight: Any, classes: int) -> None:
    if tensor_operand(op, weight, "weight").shape != (classes,):
        raise ShapeError(
            expected(op, f"shape ({classes},)", "weight", shown(weight), "one a class")
        )
