"""Normalisation by the mean and the deviation of rows: layer-norm, group-norm, instance-norm.

As in ``normalization.py``: fused backward kernels, and statistics derived from x under
``create_graph``.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.apply import writing
from ..graph.errors import ShapeError, expected, shown
from ..graph.mode import no_grad
from ..graph.storage import allocate
from ..graph.value import Value, make
from ..kernels import launch
from ..kernels.cpu import row_normalization as kernels
from ..kernels.launch import address_or_0 as at
from .elementwise import rsqrt, square
from .kernel_calls import contiguous_array, fill, reduce_into, workspace
from .movement import reshape
from .normalization import (
    batch_norm,
    centred_gradient,
    check_beside,
    check_channels,
    check_floating,
    filled,
    make_aux,
    move_running,
    number_eps,
    number_momentum,
    statistics,
)
from .primitive import primitive, tensor_operand
from .reduction import SUM, mean_over, sum_over

F64 = dtypes.float64
CHUNKS = 32
"""Parts of a batch whose sums for weight and bias are made apart, so that threads share them."""


def _infer_rows(
    x: Any, weight: Any, bias: Any, axis: int, groups: int, channels: int, eps: float
) -> Any:
    return x.shape, x.dtype


def _as_rows(x: Any, axis: int, groups: int, channels: int) -> Any:
    """x as (n, groups, channels, s)."""
    n = math.prod(x.shape[:axis])
    return reshape(x, n, groups, channels, math.prod(x.shape[axis:]) // (groups * channels))


def _rows_dx(
    g: Any,
    x: Any,
    weight: Any,
    mean: Any,
    inverse: Any,
    axis: int,
    groups: int,
    channels: int,
) -> Any:
    rows, scaled = _as_rows(x, axis, groups, channels), _as_rows(g, axis, groups, channels)
    if weight is not None:
        scaled = scaled * reshape(weight, 1, groups, channels, 1)
    dx = centred_gradient(scaled, (rows - mean) * inverse, inverse, (2, 3))
    return reshape(dx, *x.shape)


def _rows_dweight(
    g: Any,
    x: Any,
    mean: Any,
    inverse: Any,
    weight_shape: tuple[int, ...],
    axis: int,
    groups: int,
    channels: int,
) -> Any:
    z = (_as_rows(x, axis, groups, channels) - mean) * inverse
    found = sum_over(z * _as_rows(g, axis, groups, channels), axes=(0, 3), keepdim=False)
    return reshape(found, *weight_shape)


def _rows_dbias(g: Any, bias_shape: tuple[int, ...], axis: int, groups: int, channels: int) -> Any:
    found = sum_over(_as_rows(g, axis, groups, channels), axes=(0, 3), keepdim=False)
    return reshape(found, *bias_shape)


def _rows_mean(x: Any, axis: int, groups: int, channels: int) -> Any:
    return mean_over(_as_rows(x, axis, groups, channels), axes=(2, 3), keepdim=True)


def _rows_inverse(x: Any, mean: Any, axis: int, groups: int, channels: int, eps: float) -> Any:
    centred = square(_as_rows(x, axis, groups, channels) - mean)
    return rsqrt(mean_over(centred, axes=(2, 3), keepdim=True) + eps)


def _samples(x: np.ndarray, axis: int) -> tuple[np.ndarray, int]:
    """x, copied unless its samples are contiguous and lie in one stride, and that stride."""
    size = x.itemsize
    inner = math.prod(x.shape[axis:])
    if x.flags.c_contiguous:
        return x, inner
    step = size
    for n, stride in zip(x.shape[: axis - 1 : -1], x.strides[: axis - 1 : -1], strict=True):
        if n != 1 and stride != step:
            return contiguous_array(x), inner
        step *= n
    lead = [(n, d) for n, d in zip(x.shape[:axis], x.strides[:axis], strict=True) if n != 1]
    last = lead[-1][1] if lead else 0
    step = last
    for n, stride in reversed(lead):
        if stride != step:
            return contiguous_array(x), inner
        step *= n
    if last % size:
        return contiguous_array(x), inner
    return x, last // size


def _rows_gradients(
    g: Any,
    x: Any,
    weight: Any,
    mean: Any,
    inverse: Any,
    weight_shape: Any,
    bias_shape: Any,
    axis: int,
    groups: int,
    channels: int,
    needs: Sequence[bool],
) -> list[Any]:
    if not needs[0] and not needs[1]:
        return [None, None, _rows_dbias(g, bias_shape, axis, groups, channels)]
    made = [
        allocate(shape, g.dtype) if need else None
        for shape, need in zip((x.shape, weight_shape, bias_shape), needs, strict=True)
    ]
    dx, dweight, dbias = [None if pair is None else pair[0] for pair in made]
    c, n = groups * channels, math.prod(g.shape[:axis])
    apart = dweight is not None or dbias is not None
    chunk = max(-(-n // CHUNKS), 1) if apart else 1
    parts = -(-n // chunk)
    weights, biases = (
        None if array is None else workspace((parts, c), F64) for array in (dweight, dbias)
    )
    if math.prod(g.shape):
        (g_array, g_n), (x_array, x_n) = _samples(g.array, axis), _samples(x.array, axis)
        own = filled(None if weight is None else weight.array, c, g.dtype, 1)
        inner = g_array.size // n
        args = kernels.RowsBackward(
            dx=at(dx),
            weights=at(weights),
            biases=at(biases),
            g=at(g_array),
            x=at(x_array),
            weight=at(own),
            mean=at(mean.array),
            inverse=at(inverse.array),
            n=n,
            groups=groups,
            channels=channels,
            s=inner // c,
            g_n=g_n,
            x_n=x_n,
            dx_n=inner,
            chunk=chunk,
        )
        kernel = getattr(kernels, f"rows_backward_{g.dtype.name}")
        parallel = g_array.size >= launch.PARALLEL_MIN
        launch.ranged(kernel, args, parts * groups, parallel=parallel)
    for array, sums in ((dweight, weights), (dbias, biases)):
        if array is not None and sums is not None:
            if math.prod(g.shape):
                reduce_into(array.reshape(-1), SUM, sums, (0,))
            else:
                fill(array, 0)
    return [None if pair is None else make(*pair) for pair in made]


@primitive(
    infer=_infer_rows,
    aux=("mean", "inverse"),
    dx=_rows_dx,
    dweight=_rows_dweight,
    dbias=_rows_dbias,
    fused=_rows_gradients,
    derived={"mean": _rows_mean, "inverse": _rows_inverse},
    reference="numgrad.kernels.reference.normalization:normalize_rows",
)
def normalize_rows(out, x, weight=None, bias=None, *, axis, groups, channels, eps, record):
    """The axes from ``axis`` on are (groups, channels, s): each group of a sample less its mean,
    over its deviation, times the weight and plus the bias of each (group, channel)."""
    c, n = groups * channels, math.prod(x.shape[:axis])
    (mean, mean_owner), (inverse, inverse_owner) = (make_aux((n, groups), record) for _ in range(2))
    aux = {"mean": (mean, mean_owner), "inverse": (inverse, inverse_owner)} if record else None
    if x.size:
        x, x_n = _samples(x, axis)
        weight, bias = filled(weight, c, x.dtype, 1), filled(bias, c, x.dtype, 0)
        inner = x.size // n
        args = kernels.Rows(
            out=at(out),
            x=at(x),
            weight=at(weight),
            bias=at(bias),
            mean=at(mean),
            inverse=at(inverse),
            groups=groups,
            channels=channels,
            s=inner // c,
            x_n=x_n,
            out_n=inner,
            eps=launch.bits(eps),
        )
        kernel = getattr(kernels, f"rows_forward_{x.dtype.name}")
        launch.ranged(kernel, args, n * groups, parallel=x.size >= launch.PARALLEL_MIN)
    return aux


# ---------------------------------------------------------------------------------- the functions


def lengths_of(op: str, normalized_shape: Any) -> tuple[int, ...]:
    """The lengths of the axes that layer-norm takes together, as a tuple.

    Raises:
        TypeError: normalized_shape is neither an integer nor a sequence of integers.
        ValueError: it is empty, or a length is negative.
    """
    given = normalized_shape if isinstance(normalized_shape, Sequence) else (normalized_shape,)
    what, way = "an integer or a sequence of integers", "use x.shape[-1:]"
    if isinstance(given, str) or not all(
        isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in given
    ):
        raise TypeError(expected(op, what, "normalized_shape", shown(normalized_shape), way))
    shape = tuple(int(n) for n in given)
    if not shape or min(shape) < 0:
        raise ValueError(
            expected(op, "lengths from 0 on, one or more,", "normalized_shape", shape, way)
        )
    return shape


def layer_norm(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """``(x - mean) / sqrt(var + eps) * weight + bias``, mean and variance those of the last axes,
    which have the shape ``normalized_shape``, as weight and bias have.

    Raises:
        ShapeError: the last axes, weight or bias have another shape.
        DtypeError: x is of integers, or weight or bias of another dtype.
        TypeError: normalized_shape is not of integers.
        ValueError: normalized_shape is empty; eps is negative.

    Notes: J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer normalization" (2016).
    """
    op = "layer_norm"
    check_floating(op, tensor_operand(op, x))
    eps = number_eps(op, eps)
    shape = lengths_of(op, normalized_shape)
    if x.shape[-len(shape) :] != shape:
        what = f"last axes {shape} (normalized_shape)"
        raise ShapeError(expected(op, what, "x", shown(x), "pass the shape of x's last axes"))
    for name, value in (("weight", weight), ("bias", bias)):
        check_beside(op, name, value, shape, x)
    axis = len(x.shape) - len(shape)
    channels = max(math.prod(shape), 1)
    return normalize_rows(x, weight, bias, axis=axis, groups=1, channels=channels, eps=eps)


def group_norm(
    x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` for x (n, c, …), mean and variance those of
    each of ``num_groups`` groups of channels of a sample; weight and bias are (c,).

    Raises:
        ShapeError: x has fewer than 2 axes, num_groups does not divide c, or weight or bias is not
            (c,).
        DtypeError: x is of integers, or weight or bias of another dtype.
        ValueError: num_groups is not positive, a group is a single value, or eps is negative.

    Notes: Y. Wu, K. He, "Group normalization" (ECCV 2018).
    """
    op = "group_norm"
    check_channels(op, tensor_operand(op, x), weight=weight, bias=bias)
    eps = number_eps(op, eps)
    if not isinstance(num_groups, (int, np.integer)) or num_groups is True or num_groups < 1:
        way = "pass a divisor of the number of channels"
        raise ValueError(expected(op, "a positive integer", "num_groups", repr(num_groups), way))
    num_groups = int(num_groups)
    n, c = x.shape[:2]
    if c % num_groups:
        what = f"channels that {num_groups} groups divide"
        raise ShapeError(expected(op, what, "x", shown(x), "change num_groups"))
    if n * c // num_groups * math.prod(x.shape[2:]) == 1:
        size = (n * c // num_groups, num_groups, *x.shape[2:])
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {size}"
        )
    channels = max(c // num_groups, 1)
    return normalize_rows(x, weight, bias, axis=1, groups=num_groups, channels=channels, eps=eps)


def instance_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` for each channel of each sample of x
    (n, c, …). With ``use_input_stats`` mean and variance are its own, and the running statistics,
    if there are any, move by their averages over the batch; else the running ones are used.

    Raises:
        ValueError: a channel of a sample is a single value; eps is negative.
        ShapeError, DtypeError, RuntimeError: as by :func:`batch_norm`.

    Notes: D. Ulyanov, A. Vedaldi, V. Lempitsky, "Instance normalization" (2016).
    """
    op = "instance_norm"
    if not use_input_stats:
        return batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    mean = statistics(op, "running_mean", running_mean, True)
    var = statistics(op, "running_var", running_var, True)
    values = {"weight": weight, "bias": bias, "running_mean": mean, "running_var": var}
    check_channels(op, tensor_operand(op, x), **values)
    eps = number_eps(op, eps)
    if mean is not None or var is not None:
        momentum = number_momentum(op, momentum)
    count = math.prod(x.shape[2:])
    if count == 1:
        raise ValueError(
            f"Expected more than 1 spatial element when training, got input size {x.shape}"
        )
    c = x.shape[1]
    if math.prod(x.shape):
        _move_averages(x, running_mean, running_var, momentum)
    return normalize_rows(x, weight, bias, axis=1, groups=max(c, 1), channels=1, eps=eps)


def _move_averages(x: Value, running_mean: Any, running_var: Any, momentum: float) -> None:
    """Move the running statistics of instance-norm."""
    with no_grad():
        spatial = tuple(range(2, len(x.shape)))
        mean = mean_over(x, axes=spatial, keepdim=True)
        if running_mean is not None:
            new = mean_over(reshape(mean, *x.shape[:2]), axes=(0,), keepdim=False)
            with writing("instance_norm", [running_mean]):
                move_running(running_mean.array, new.array, momentum, 1)
        if running_var is not None:
            count = math.prod(x.shape[2:])
            new = mean_over(square(x - mean), axes=(0, *spatial), keepdim=False)
            with writing("instance_norm", [running_var]):
                move_running(running_var.array, new.array, momentum, count / (count - 1))
