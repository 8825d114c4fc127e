"""Softmax and the losses of classification and regression."""

from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.errors import DtypeError, ShapeError, expected, shown, warn_user
from ..graph.mode import composite
from ..kernels import scalar as s
from .elementwise import exp, ne, square, sub, where
from .indexing import check_index, gather_along
from .kernel_calls import compute, reduce_into, workspace
from .movement import axis_of, permute, reshape, to_dtype, unsqueeze
from .primitive import primitive, tensor_operand
from .reduction import AMAX, EXPONENTIALS, mean, sum


def _centre_and_total(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Maximum along ``axis`` and the sum of ``exp(x - maximum)``, both kept as an axis of 1."""
    shape = tuple(1 if i == axis else n for i, n in enumerate(x.shape))
    centre, total = workspace(shape, x.dtype), workspace(shape, x.dtype)
    axes = (axis,) if x.ndim else ()
    reduce_into(centre, AMAX, x, axes)
    reduce_into(total, EXPONENTIALS, x, axes, centre)
    return centre, total


def _inner(g: Any, out: Any, axis: int) -> Any:
    return sum(g * out, axis, keepdim=True)


@primitive(
    infer=lambda x, axis: (x.shape, x.dtype),
    dx=lambda g, out, axis: out * (g - _inner(g, out, axis)),
    reference="scipy.special:softmax",
)
def softmax_along(out, x, *, axis):
    """``exp(x) / sum(exp(x))`` along ``axis``, about the maximum so that nothing overflows."""
    centre, total = _centre_and_total(x, axis)
    compute("softmax", lambda x, c, t: s.exp(x - c) / t, out, x, centre, total)


@primitive(
    infer=lambda x, axis: (x.shape, x.dtype),
    dx=lambda g, out, axis: g - exp(out) * sum(g, axis, keepdim=True),
    reference="scipy.special:log_softmax",
)
def log_softmax_along(out, x, *, axis):
    """``x - log(sum(exp(x)))`` along ``axis``."""
    centre, total = _centre_and_total(x, axis)
    compute("log_softmax", lambda x, c, t: x - c - s.log(t), out, x, centre, total)


def _axis(op: str, x: Any, dim: Any) -> int:
    if dim is None:
        dim = 0 if x.dim() in (0, 1, 3) else 1
        warn_user(
            f"Implicit dimension choice for {op} has been deprecated. Change the call to include "
            "dim=X as an argument."
        )
    return axis_of(op, dim, x.dim())


def _floating(op: str, x: Any, dtype: Any) -> Any:
    tensor_operand(op, x)
    if dtype is not None:
        x = to_dtype(x, dtypes.as_dtype(dtype, op))
    if x.dtype.kind != "f":
        raise DtypeError(
            expected(op, "a floating dtype", "x", shown(x), "convert it with .float()")
        )
    return x


def softmax(x: Any, dim: Any = None, dtype: Any = None) -> Any:
    """``exp(x) / sum(exp(x))`` along ``dim``; without it the old implicit axis, with a warning."""
    x = _floating("softmax", x, dtype)
    return softmax_along(x, axis=_axis("softmax", x, dim))


def log_softmax(x: Any, dim: Any = None, dtype: Any = None) -> Any:
    """``log(softmax(x))`` along ``dim``, computed stably."""
    x = _floating("log_softmax", x, dtype)
    return log_softmax_along(x, axis=_axis("log_softmax", x, dim))


# ------------------------------------------------------------------------------------------- losses


def reduction_of(size_average: Any, reduce: Any, reduction: str) -> str:
    """``"mean"``, ``"sum"`` or ``"none"``, also from the old ``size_average`` and ``reduce``."""
    if size_average is not None or reduce is not None:
        size_average = True if size_average is None else size_average
        reduce = True if reduce is None else reduce
        reduction = ("mean" if size_average else "sum") if reduce else "none"
        warn_user(
            f"size_average and reduce args will be deprecated, please use reduction='{reduction}' "
            "instead.",
        )
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(
            expected(
                "loss", "'mean', 'sum' or 'none'", "reduction", repr(reduction), "use one of them"
            )
        )
    return reduction


def reduced(loss: Any, reduction: str) -> Any:
    """The losses, their mean, or their sum."""
    return loss if reduction == "none" else mean(loss) if reduction == "mean" else sum(loss)


@composite
def mse_loss(
    x: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Any:
    """Squared error, ``mean((x - target)**2)`` (or ``sum``, or none).

    Warns if the shapes differ: broadcasting them is almost always a mistake.
    """
    reduction = reduction_of(size_average, reduce, reduction)
    return reduced(square(_difference("mse_loss", x, target)), reduction)


@composite
def l1_loss(
    x: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Any:
    """Absolute error, ``mean(|x - target|)`` (or ``sum``, or none).

    Warns if the shapes differ: broadcasting them is almost always a mistake.
    """
    reduction = reduction_of(size_average, reduce, reduction)
    return reduced(_difference("l1_loss", x, target).abs(), reduction)


def _difference(op: str, x: Any, target: Any) -> Any:
    """``x - target``, with a warning if that broadcasts."""
    tensor_operand(op, x)
    tensor_operand(op, target, "target")
    if x.shape != target.shape:
        warn_user(
            f"Using a target size ({target.shape}) that is different to the input size ({x.shape})."
            " This will likely lead to incorrect results due to broadcasting. Please ensure they "
            "have the same size.",
        )
    return sub(x, target)


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
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    """Negative log-likelihood of the labels, ``-weight[target] * x[target]``.

    x holds log-probabilities, (n, classes) or (n, classes, d1, …); target the int64 labels, (n,) or
    (n, d1, …). The mean is over the weights of the labels that are not ``ignore_index``; nan if all
    are ignored (their gradient is 0).

    Raises:
        IndexError: a label outside ``[0, classes)`` that is not ``ignore_index``.
    """
    reduction = reduction_of(size_average, reduce, reduction)
    shape = target.shape if hasattr(target, "shape") else ()
    rows, labels = _classes_last("nll_loss", x, target)
    classes = rows.shape[1]
    kept = ne(labels, ignore_index)
    safe = where(kept, labels, 0)
    if weight is not None and weight.shape != (classes,):
        raise ShapeError(
            expected("nll_loss", f"shape ({classes},)", "weight", shown(weight), "one a class")
        )
    places = safe.array
    if places.size and (places.min() < 0 or places.max() >= classes):
        bad = int(places.min()) if places.min() < 0 else int(places.max())
        raise IndexError(
            f"nll_loss: expected labels in [0, {classes - 1}] for target, got {bad}; Target {bad} "
            "is out of bounds: check the number of classes"
        )
    picked = reshape(
        gather_along(rows, unsqueeze(check_index("nll_loss", safe, classes), 1), axis=1), -1
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
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    """``nll_loss(log_softmax(x, 1), target)``: x holds unnormalised scores, (n, classes, …)."""
    reduction = reduction_of(size_average, reduce, reduction)
    _classes_last("cross_entropy", x, target)
    scores = log_softmax(x, 1 if x.dim() > 1 else 0)
    return nll_loss(scores, target, weight, None, ignore_index, None, reduction)
