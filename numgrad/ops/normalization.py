"""Normalisation by the mean and the deviation of channels: batch-norm.

Where the statistics are those of x they are aux results of the forward pass, and constants to the
fused backward kernels, whose formulas account for them. Under ``create_graph`` they are what they
are in truth, functions of x: the entries say which (``derived``).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.apply import check_writable, writing
from ..graph.errors import DtypeError, ShapeError, expected, shown
from ..graph.storage import Storage, allocate
from ..graph.value import alias, make
from ..kernels import launch
from ..kernels.cpu import normalization as kernels
from ..kernels.launch import address_or_0 as at
from .declare import NUMBERS
from .elementwise import rsqrt, square
from .kernel_calls import compute, contiguous_array, fill, workspace
from .movement import reshape
from .primitive import primitive, tensor_operand
from .reduction import mean_over, sum_over

F64 = dtypes.float64

# ------------------------------------------------------------------------------------ bad operands


def check_floating(op: str, x: Any) -> None:
    """Raise unless x is of floats."""
    if x.dtype.kind != "f":
        raise DtypeError(
            expected(op, "a floating dtype", "x", shown(x), "convert it with .float()")
        )


def check_beside(op: str, name: str, value: Any, shape: tuple[int, ...], x: Any) -> None:
    """Raise unless an operand that may be missing has that shape, and x's dtype."""
    if value is None:
        return
    if value.shape != shape:
        way = f"x is {shown(x)}: check its layout"
        raise ShapeError(expected(op, f"shape {shape}", name, shown(value), way))
    if value.dtype != x.dtype:
        way = f"x is {shown(x)}: convert one of them"
        raise DtypeError(expected(op, f"dtype {x.dtype}", name, shown(value), way))


def check_channels(op: str, x: Any, **values: Any) -> None:
    """Raise unless x is (n, c, …) of floats, and each of ``values`` None or (c,) of x's dtype."""
    check_floating(op, x)
    if len(x.shape) < 2:
        way = "add an axis for the batch with unsqueeze(0)"
        raise ShapeError(expected(op, "a tensor (n, c, …)", "x", shown(x), way))
    shapes = {name: value.shape for name, value in values.items() if value is not None}
    agreed = set(shapes.values())
    if len(shapes) > 1 and len(agreed) == 1:
        (shape,) = agreed
        if len(shape) == 1 and shape != (x.shape[1],):  # x is the odd one out
            way = f"{', '.join(shapes)} have {shape[0]}, one a channel: check the layer before"
            raise ShapeError(expected(op, f"{shape[0]} channels", "x", shown(x), way))
    for name, value in values.items():
        check_beside(op, name, value, (x.shape[1],), x)


def number_eps(op: str, eps: Any, training: bool = False) -> float:
    """eps as a float. Raises unless it is a number that is not negative, nor 0 in training."""
    if not isinstance(eps, NUMBERS) or not (eps > 0 if training else eps >= 0):
        what = "a positive number" if training else "a number from 0 on"
        raise ValueError(expected(op, what, "eps", repr(eps), "use for instance 1e-5"))
    return float(eps)


def number_momentum(op: str, momentum: Any) -> float:
    """momentum, by which running statistics move, as a float. Raises unless it is a number."""
    if not isinstance(momentum, NUMBERS):
        way = "for a cumulative average pass 1 / number of batches"
        raise TypeError(expected(op, "a number", "momentum", shown(momentum), way))
    return float(momentum)


# ------------------------------------------------------------------------------------ kernel calls


def _strides(x: np.ndarray) -> tuple[np.ndarray, int, int]:
    """x (n, c, …), copied unless the planes (or the channels, if planes are one element) are
    contiguous, and the strides of n and c in elements."""
    if not x.flags.c_contiguous and not _fits(x):
        x = contiguous_array(x)
    size = x.itemsize
    return x, x.strides[0] // size, x.strides[1] // size


def _fits(x: np.ndarray) -> bool:
    size, step = x.itemsize, x.itemsize
    for n, stride in zip(x.shape[:1:-1], x.strides[:1:-1], strict=True):
        if n != 1:
            if stride != step:
                return False
            step *= n
    if step == size and x.shape[1] != 1 and x.strides[1] != size:
        return False
    return x.strides[0] % size == 0 and x.strides[1] % size == 0


def filled(values: np.ndarray | None, n: int, dtype: np.dtype, missing: float) -> np.ndarray:
    """n contiguous values; if there are none, ``missing`` for each."""
    if values is not None:
        return contiguous_array(values)
    out = workspace((n,), dtype)
    fill(out, missing)
    return out


def make_aux(shape: tuple[int, ...], record: bool) -> tuple[np.ndarray, Storage | None]:
    """float64 for a statistic and its storage, or workspace if no backward pass will read it."""
    return allocate(shape, F64) if record else (workspace(shape, F64), None)


def _by_channel(name: str, args: Sequence[int], x: np.ndarray) -> None:
    """Launch a kernel whose items are channels, or tiles of them where a plane is one element."""
    c = x.shape[1]
    flat = x.size == x.shape[0] * c
    family = "columns" if flat else "planes"
    kernel = getattr(kernels, f"{family}_{name}_{x.dtype.name}")
    items = -(-c // kernels.TILE) if flat else c
    launch.ranged(kernel, args, items, parallel=x.size >= launch.PARALLEL_MIN)


def _channel_gradients(
    g: Any, x: Any, weight: Any, mean: np.ndarray, inverse: np.ndarray, fixed: bool, wanted: Any
) -> list[Any]:
    """``[dx, dweight, dbias]`` where wanted, in one launch; x may be None if only a fixed dx or
    dbias is."""
    c = g.shape[1]
    made = [
        allocate(shape, g.dtype) if want else None
        for shape, want in zip((g.shape, (c,), (c,)), wanted, strict=True)
    ]
    results = [None if pair is None else make(*pair) for pair in made]
    dx, dweight, dbias = [None if pair is None else pair[0] for pair in made]
    if math.prod(g.shape) == 0:
        for array in (dweight, dbias):
            if array is not None:
                fill(array, 0)
        return results
    g_array, g_n, g_c = _strides(g.array)
    x_array, x_n, x_c = (None, 0, 0) if x is None else _strides(x.array)
    weights = filled(None if weight is None else weight.array, c, g.dtype, 1)
    n, s = g.shape[0], math.prod(g.shape[2:])
    args = kernels.PlanesBackward(
        dx=at(dx),
        dweight=at(dweight),
        dbias=at(dbias),
        g=at(g_array),
        x=at(x_array),
        weight=at(weights),
        mean=at(mean),
        inverse=at(inverse),
        n=n,
        c=c,
        s=s,
        g_n=g_n,
        g_c=g_c,
        x_n=x_n,
        x_c=x_c,
        dx_n=c * s,
        dx_c=s,
        fixed=int(fixed),
    )
    _by_channel("backward", args, g_array)
    return results


# -------------------------------------------------------------------- channels, by their statistics


def _other_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (0, *range(2, len(shape)))


def _channelwise(values: Any, ndim: int) -> Any:
    """One value a channel, with axes of 1 beside that of the channels."""
    return reshape(values, 1, -1, *[1] * (ndim - 2))


def centred_gradient(g: Any, z: Any, inverse: Any, axes: tuple[int, ...]) -> Any:
    """The gradient of x where ``z = (x - mean) * inverse`` and g is that of z."""
    mean = mean_over(g, axes=axes, keepdim=True)
    slope = mean_over(g * z, axes=axes, keepdim=True)
    return inverse * (g - mean - z * slope)


def _infer_channels(
    x: Any, running_mean: Any, running_var: Any, weight: Any, bias: Any, eps: Any
) -> Any:
    channels, dtype = x.shape[1:2], x.dtype
    for value in (weight, bias, running_mean, running_var):
        if value is not None and (value.shape != channels or value.dtype is not dtype):
            break
    else:  # quickly, what nearly every call is
        if channels and dtype.kind == "f":
            return x.shape, dtype
    check_channels(
        "batch_norm",
        x,
        weight=weight,
        bias=bias,
        running_mean=running_mean,
        running_var=running_var,
    )
    return x.shape, x.dtype


def _infer_batch(
    x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: Any, eps: Any
) -> Any:
    answer = _infer_channels(x, running_mean, running_var, weight, bias, eps)
    if x.shape[0] * math.prod(x.shape[2:]) == 1:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {x.shape}"
        )
    return answer


def _batch_dx(g: Any, x: Any, weight: Any, mean: Any, inverse: Any) -> Any:
    scaled = g if weight is None else g * _channelwise(weight, x.dim())
    return centred_gradient(scaled, (x - mean) * inverse, inverse, _other_axes(x.shape))


def _batch_gradients(
    g: Any, x: Any, weight: Any, mean: Any, inverse: Any, needs: Sequence[bool]
) -> list[Any]:
    if not needs[0] and not needs[1]:
        found = [None, None, _sum_channels(g)]
    else:
        found = _channel_gradients(g, x, weight, mean.array, inverse.array, False, needs[:3])
    return [*found, None, None]


def _sum_channels(g: Any) -> Any:
    return sum_over(g, axes=_other_axes(g.shape), keepdim=False)


def _batch_inverse(x: Any, mean: Any, eps: float) -> Any:
    return rsqrt(mean_over(square(x - mean), axes=_other_axes(x.shape), keepdim=True) + eps)


@primitive(
    infer=_infer_batch,
    aux=("mean", "inverse"),
    constant=("running_mean", "running_var"),
    dx=_batch_dx,
    dweight=lambda g, x, mean, inverse: _sum_channels(g * ((x - mean) * inverse)),
    dbias=lambda g: _sum_channels(g),
    fused=_batch_gradients,
    derived={
        "mean": lambda x: mean_over(x, axes=_other_axes(x.shape), keepdim=True),
        "inverse": _batch_inverse,
    },
    reference="numgrad.kernels.reference.normalization:normalize_batch",
)
def normalize_batch(
    out,
    x,
    weight=None,
    bias=None,
    running_mean=None,
    running_var=None,
    *,
    momentum,
    eps,
    record,
):
    """x (n, c, …) less the mean of each channel, over its deviation, times weight, plus bias. Moves
    the running statistics, whose writes are the caller's to note."""
    c = x.shape[1]
    (mean, mean_owner), (inverse, inverse_owner) = make_aux((c,), record), make_aux((c,), record)
    aux = {"mean": (mean, mean_owner), "inverse": (inverse, inverse_owner)} if record else None
    if x.size == 0:
        if record:
            fill(mean, 0)
            fill(inverse, 0)
        return aux
    count = x.size // c
    variance = None if running_var is None else workspace((c,), F64)
    x, x_n, x_c = _strides(x)
    weight, bias = filled(weight, c, x.dtype, 1), filled(bias, c, x.dtype, 0)
    s = count // x.shape[0]
    args = kernels.Planes(
        out=at(out),
        x=at(x),
        weight=at(weight),
        bias=at(bias),
        mean=at(mean),
        inverse=at(inverse),
        variance=at(variance),
        n=x.shape[0],
        c=c,
        s=s,
        x_n=x_n,
        x_c=x_c,
        out_n=c * s,
        out_c=s,
        eps=launch.bits(eps),
    )
    _by_channel("forward", args, x)
    move_running(running_mean, mean, momentum, 1)
    move_running(running_var, variance, momentum, count / max(count - 1, 1))
    return aux


def move_running(
    running: np.ndarray | None, value: np.ndarray | None, momentum: float, factor: float
) -> None:
    """``running = (1 - momentum) * running + momentum * factor * value``."""
    if running is not None and value is not None:
        keep, take = np.array(1 - momentum, F64), np.array(momentum * factor, F64)
        compute("running", lambda r, v, k, t: r * k + v * t, running, running, value, keep, take)


# ---------------------------------------------------------------- channels, by known statistics


def _scale(weight: Any, running_var: Any, eps: float, ndim: int) -> Any:
    inverse = rsqrt(running_var + eps)
    return _channelwise(inverse if weight is None else inverse * weight, ndim)


def _channels_dweight(g: Any, x: Any, running_mean: Any, running_var: Any, eps: float) -> Any:
    centred = x - _channelwise(running_mean, x.dim())
    return _sum_channels(g * centred) * rsqrt(running_var + eps)


def _channels_gradients(
    g: Any,
    x: Any,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    eps: float,
    needs: Sequence[bool],
) -> list[Any]:
    wanted = [needs[0], needs[3], needs[4]]
    if not needs[0] and not needs[3]:
        return [None, None, None, None, _sum_channels(g)]
    x = x if needs[3] else None
    variance = running_var.array
    if x is None and not needs[4]:  # a frozen layer: as in the forward pass, and as quick
        dx, storage = allocate(g.shape, g.dtype)
        own = None if weight is None else weight.array
        _scale_and_shift(dx, g.array, None, variance, own, None, eps)
        return [make(dx, storage), None, None, None, None]
    mean, inverse = (workspace(running_var.shape, F64) for _ in range(2))
    centre = None if running_mean is None else running_mean.array
    _fold(variance if centre is None else centre, variance, eps, centre=mean, inverse=inverse)
    dx, dweight, dbias = _channel_gradients(g, x, weight, mean, inverse, True, wanted)
    return [dx, None, None, dweight, dbias]


def _fold(
    mean: np.ndarray, variance: np.ndarray, eps: float, centre: np.ndarray, inverse: np.ndarray
) -> None:
    """Launch ``fold_statistics``."""
    mean, variance = contiguous_array(mean), contiguous_array(variance)
    args = kernels.Fold(
        centre=at(centre),
        inverse=at(inverse),
        mean=at(mean),
        variance=at(variance),
        eps=launch.bits(eps),
    )
    kernel = getattr(kernels, f"fold_statistics_{variance.dtype.name}")
    launch.ranged(kernel, args, variance.size, parallel=False)


def _scale_and_shift(
    out: np.ndarray,
    x: np.ndarray,
    mean: np.ndarray | None,
    variance: np.ndarray,
    weight: np.ndarray | None,
    bias: np.ndarray | None,
    eps: float,
) -> None:
    """``out = x * scale + shift`` a channel; without mean it has no shift at all."""
    if out.size == 0:
        return
    n, c = x.shape[:2]
    s = x.size // (n * c)
    x, x_n, x_c = _strides(x)
    of_channels = [None if a is None else contiguous_array(a) for a in (weight, bias, mean)]
    variance = contiguous_array(variance)
    places = [at(a) for a in (out, x, *of_channels, variance)]
    # In the order of the slots: by name it takes as long as a launch, which counts at batch 1.
    args = kernels.Affine._make((*places, n, c, s, x_n, x_c, c * s, s, launch.bits(eps)))
    kernel = _AFFINE[x.dtype]
    items = -(-c // kernels.TILE) if s == 1 else n * c
    launch.ranged(kernel, args, items, parallel=x.size >= launch.PARALLEL_MIN)


_AFFINE = {
    dtypes.float32: kernels.affine_channels_float32,
    dtypes.float64: kernels.affine_channels_float64,
}


@primitive(
    infer=_infer_channels,
    constant=("running_mean", "running_var"),
    dx=lambda g, weight, running_var, eps: g * _scale(weight, running_var, eps, g.dim()),
    dweight=_channels_dweight,
    dbias=lambda g: _sum_channels(g),
    fused=_channels_gradients,
    deferrable=True,
    reference="numgrad.kernels.reference.normalization:normalize_channels",
)
def normalize_channels(out, x, running_mean, running_var, weight=None, bias=None, *, eps):
    """``x * scale + shift`` a channel, ``scale = weight / sqrt(running_var + eps)`` and
    ``shift = bias - running_mean * scale``: one pass. The gradient of x needs no x."""
    _scale_and_shift(out, x, running_mean, running_var, weight, bias, eps)


# ---------------------------------------------------------------------------------- the functions


def statistics(op: str, name: str, value: Any, written: bool) -> Any:
    """Running statistics as a constant without flags: they belong to no graph."""
    if value is None:
        return None
    tensor_operand(op, value, name)
    if written:
        check_writable(op, value)
    plain = not (value._requires_grad or value._volatile or value.contagious)
    if plain and value._base is None:  # nothing that would have to be asked of a base
        return value
    if value.requires_grad or value.volatile or value.contagious:
        return alias(value, False, value.group)
    return value


def batch_norm(
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` for each channel of x (n, c, …).

    In training, mean and variance are those of x, and the running statistics, if there are any,
    move: ``running = (1 - momentum) * running + momentum * new``, with the unbiased variance. They
    are written below the graph, also for a volatile x. Else they are used and not moved.

    Raises:
        ShapeError: x has fewer than 2 axes, or another operand is not (c,).
        DtypeError: x is of integers, or another operand of another dtype.
        ValueError: in training, there is one value a channel, or eps is not positive.
        RuntimeError: not in training, and running statistics are missing.

    Notes: S. Ioffe, C. Szegedy, "Batch normalization" (ICML 2015).
    """
    op = "batch_norm"
    tensor_operand(op, x)
    eps = number_eps(op, eps, bool(training))
    mean = statistics(op, "running_mean", running_mean, bool(training))
    var = statistics(op, "running_var", running_var, bool(training))
    if not training:
        if mean is None or var is None:
            raise RuntimeError(
                "Expected running_mean and running_var to be defined when training=False "
                f"({op} got {'no' if mean is None else 'a'} running_mean, "
                f"{'no' if var is None else 'a'} running_var; pass both, or training=True)"
            )
        return normalize_channels(x, mean, var, weight, bias, eps=eps)
    if mean is not None or var is not None:
        momentum = number_momentum(op, momentum)
    operands, attrs = (x, weight, bias, mean, var), {"momentum": momentum, "eps": eps}
    normalize_batch.check(*operands, **attrs)  # what is refused has written nothing
    moved = [r for r in (running_mean, running_var) if r is not None and math.prod(x.shape)]
    with writing(op, moved):
        return normalize_batch(*operands, **attrs)
