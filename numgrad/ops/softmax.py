"""Softmax and its logarithm."""

from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.errors import DtypeError, expected, shown, warn_user
from ..kernels import scalar as s
from .elementwise import exp
from .kernel_calls import compute, reduce_into, workspace
from .movement import axis_of, to_dtype
from .primitive import primitive, tensor_operand
from .reduction import AMAX, EXPONENTIALS, sum


def _centre_and_total(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Maximum along ``axis`` and the sum of ``exp(x - maximum)``, both kept as an axis of 1."""
    shape = tuple(1 if i == axis else n for i, n in enumerate(x.shape))
    centre, total = workspace(shape, x.dtype, x), workspace(shape, x.dtype, x)
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
    cuda=True,
)
def softmax_along(out, x, *, axis):
    """``exp(x) / sum(exp(x))`` along ``axis``, about the maximum so that nothing overflows."""
    centre, total = _centre_and_total(x, axis)
    compute("softmax", lambda x, c, t: s.exp(x - c) / t, out, x, centre, total)


@primitive(
    infer=lambda x, axis: (x.shape, x.dtype),
    dx=lambda g, out, axis: g - exp(out) * sum(g, axis, keepdim=True),
    reference="scipy.special:log_softmax",
    cuda=True,
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
