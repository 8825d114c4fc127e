"""Losses, with the signatures of ``torch.nn.functional``."""

from ... import ops
from ...graph.errors import warn_user
from ...tensor import Tensor


def reduction_of(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """``reduction``, or what the old ``size_average`` and ``reduce`` say, with a warning."""
    if size_average is None and reduce is None:
        return reduction
    size_average = True if size_average is None else size_average
    reduce = True if reduce is None else reduce
    reduction = ("mean" if size_average else "sum") if reduce else "none"
    warn_user(
        f"size_average and reduce args will be deprecated, please use reduction='{reduction}' "
        "instead.",
    )
    return reduction


def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """``(x - y)²``, reduced: its mean, its sum, or itself with ``none``.

    Args:
        weight: of the shape of input: a factor for each element; the mean is over their sum.

    Raises:
        ShapeError: the shapes do not broadcast. Different shapes that do so warn.
        ValueError: reduction is unknown.
    """
    reduction = reduction_of(size_average, reduce, reduction)
    return ops.mse_loss(input, target, reduction, weight)


def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """``|x - y|``, reduced: its mean, its sum, or itself with ``none``.

    Args:
        weight: of the shape of input: a factor for each element; the mean is over their sum.

    Raises:
        ShapeError: the shapes do not broadcast.
        ValueError: reduction is unknown.
    """
    reduction = reduction_of(size_average, reduce, reduction)
    return ops.l1_loss(input, target, reduction, weight)


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """``(x - y)² / (2 · beta)`` where ``|x - y| < beta``, else ``|x - y| - beta / 2``, reduced.

    Raises:
        ShapeError: the shapes do not broadcast. Different shapes that do so warn.
        RangeError: beta is negative. ValueError: reduction is unknown.

    Notes: R. Girshick, "Fast R-CNN" (ICCV 2015), eq. 3, for beta 1.
    """
    reduction = reduction_of(size_average, reduce, reduction)
    return ops.smooth_l1_loss(input, target, reduction=reduction, beta=beta)


def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    """``(x - y)² / 2`` where ``|x - y| ≤ delta``, else ``delta · (|x - y| - delta / 2)``, reduced.

    Args:
        input, target: tensors of one shape.
        reduction: ``none``, ``sum`` or ``mean``.
        delta: above 0.
        weight: of the shape of input: a factor for each element.

    Raises:
        ShapeError: the shapes do not broadcast. Different shapes that do so warn.
        RangeError: delta is not above 0. ValueError: reduction is unknown.

    Notes: P. J. Huber, "Robust estimation of a location parameter" (1964).
    """
    return ops.huber_loss(input, target, reduction, delta, weight)


def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``-w · (y · log(x) + (1 - y) · log(1 - x))`` of probabilities x and targets y, reduced.

    A logarithm counts as at least -100, so that the loss stays finite.

    Args:
        input, target: tensors of one shape, in [0, 1].
        weight: of a shape that broadcasts to theirs.

    Raises:
        ShapeError: the shapes differ.
        RangeError: an element is outside [0, 1]. ValueError: reduction is unknown.
    """
    reduction = reduction_of(size_average, reduce, reduction)
    return ops.binary_cross_entropy(input, target, weight, reduction=reduction)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """`binary_cross_entropy` of ``sigmoid(x)``, computed stably for scores x of any size.

    Args:
        input, target: tensors of one shape; the targets are in [0, 1].
        weight: of a shape that broadcasts to theirs: a factor for each loss.
        pos_weight: the same: a factor for the part of the loss with y.

    Raises:
        ShapeError: the shapes differ, or a weight does not broadcast.
        ValueError: reduction is unknown.
    """
    reduction = reduction_of(size_average, reduce, reduction)
    return ops.binary_cross_entropy_with_logits(
        input, target, weight, reduction=reduction, pos_weight=pos_weight
    )


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """Kullback-Leibler divergence ``y · (log(y) - x)`` of log-probabilities x, reduced.

    With ``log_target`` the target too is a logarithm: ``exp(y) · (y - x)``.

    Args:
        input, target: tensors whose shapes broadcast.
        reduction: ``batchmean``, the sum over the number of rows, which is the divergence; ``mean``
            over all elements, which warns; ``sum``; ``none``.

    Raises:
        ShapeError: the shapes do not broadcast.
        ValueError: reduction is unknown.
    """
    reduction = reduction_of(size_average, reduce, reduction)
    return ops.kl_div(input, target, reduction=reduction, log_target=log_target)


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``-w[y] · x[y]`` for log-probabilities x and class numbers y.

    Args:
        input: float (n, c), (c,) or (n, c, …): log-probabilities.
        target: int64 (n,), () or (n, …): class numbers from 0 to c - 1.
        weight: float (c,): a factor a class, 1 if None.
        ignore_index: targets of this number count for nothing.
        reduction: ``none``; ``sum``; ``mean``, the sum over the sum of the weights that counted.

    Raises:
        ShapeError: the shapes do not fit.
        DtypeError: target is not of integers.
        IndexError: a target is no class.
        ValueError: reduction is unknown.
    """
    reduction = reduction_of(size_average, reduce, reduction)
    return ops.nll_loss(input, target, weight, ignore_index=ignore_index, reduction=reduction)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """`nll_loss` of `log_softmax`: input are scores of any scale. See there for the rest.

    Args:
        target: class numbers, or a float tensor of the shape of input: probabilities of classes.
        label_smoothing: in [0, 1]: how much of each label is spread over all classes.

    Raises:
        RangeError: label_smoothing is outside [0, 1]; an ignore_index with probabilities.
    """
    reduction = reduction_of(size_average, reduce, reduction)
    return ops.cross_entropy(
        input,
        target,
        weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
