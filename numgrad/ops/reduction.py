"""Reductions over any axes, and extremes with their indices."""

import builtins
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..graph import dtypes
from ..graph.apply import above
from ..graph.errors import DtypeError, expected, shown
from ..graph.value import Value
from ..kernels import launch
from ..kernels import scalar as s
from ..kernels.cpu import indexing
from ..kernels.reduce import Reduction
from .declare import NUMBERS
from .elementwise import eq, exp, lt, maximum, minimum, mul, ne, sqrt, where
from .indexing import scatter_along
from .kernel_calls import compute, contiguous_array, reduce_into, workspace
from .movement import axes_of, axis_of, expand, reshape, to_dtype
from .primitive import primitive, tensor_operand

F64 = dtypes.float64

# ------------------------------------------------------------------------------------------ kernels


def _wide(dtype: np.dtype) -> np.dtype:
    """Accumulate floats in float64 and integers in int64."""
    return F64 if dtype.kind == "f" else dtypes.int64


def _own(dtype: np.dtype) -> np.dtype:
    return dtype


def _lowest(dtype: np.dtype) -> str:
    if dtype.kind == "f":
        return "-np.inf"
    return "False" if dtype == dtypes.bool_ else str(np.iinfo(dtype).min)


def _highest(dtype: np.dtype) -> str:
    if dtype.kind == "f":
        return "np.inf"
    return "True" if dtype == dtypes.bool_ else str(np.iinfo(dtype).max)


SUM = Reduction("sum", lambda d: "0", lambda a, b: a + b, lambda x, c: x, _wide, _own)
MEAN = Reduction(
    "mean",
    lambda d: "0",
    lambda a, b: a + b,
    lambda x, c: x,
    _wide,
    _own,
    finish=lambda total, divisor: total / divisor,
)
PROD = Reduction("prod", lambda d: "1", lambda a, b: a * b, lambda x, c: x, _wide, _own)
AMAX = Reduction("amax", _lowest, s.maximum, lambda x, c: x, _own, _own)
AMIN = Reduction("amin", _highest, s.minimum, lambda x, c: x, _own, _own)
ANY = Reduction(
    "any", lambda d: "False", lambda a, b: a | b, lambda x, c: x != 0, lambda d: dtypes.bool_, _own
)
ALL = Reduction(
    "all", lambda d: "True", lambda a, b: a & b, lambda x, c: x != 0, lambda d: dtypes.bool_, _own
)
SQUARES = Reduction(
    "sum of squares about a centre",
    lambda d: "0",
    lambda a, b: a + b,
    lambda x, c: (x - c) * (x - c),
    lambda d: F64,
    lambda d: F64,
    centred=True,
    finish=lambda total, divisor: total / divisor,
)
EXPONENTIALS = Reduction(
    "sum of exponentials about a centre",
    lambda d: "0",
    lambda a, b: a + b,
    lambda x, c: s.exp(x - c),
    lambda d: F64,
    _own,
    centred=True,
)

# -------------------------------------------------------------------------------------- infer steps


def kept_shape(shape: Sequence[int], axes: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    """The shape after reducing ``axes``."""
    if keepdim:
        return tuple(1 if i in axes else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def spread(g: Any, shape: tuple[int, ...], axes: Sequence[int]) -> Any:
    """``g``, reduced over ``axes``, seen in the full shape again (a view)."""
    return expand(reshape(g, *kept_shape(shape, axes, True)), *shape)


def _infer_wide(x: Any, axes: Any, keepdim: bool) -> Any:
    return kept_shape(x.shape, axes, keepdim), x.dtype if x.dtype.kind == "f" else dtypes.int64


def _infer_own(x: Any, axes: Any, keepdim: bool) -> Any:
    return kept_shape(x.shape, axes, keepdim), x.dtype


def _infer_bool(x: Any, axes: Any, keepdim: bool) -> Any:
    # uint8 stays uint8, as in PyTorch: it was the dtype of masks before there was bool.
    dtype = dtypes.uint8 if x.dtype == dtypes.uint8 else dtypes.bool_
    return kept_shape(x.shape, axes, keepdim), dtype


def _extent(shape: Sequence[int], axes: Sequence[int]) -> int:
    return math.prod(shape[a] for a in axes)


# ------------------------------------------------------------------------------------------ entries


@primitive(
    infer=_infer_wide,
    dx=lambda g, x_shape, axes: spread(g, x_shape, axes),
    reference="numpy:sum",
    cuda=True,
)
def sum_over(out, x, *, axes, keepdim):
    """Sum over ``axes``; floats accumulate in float64, integers in int64."""
    reduce_into(out, SUM, x, axes)


@primitive(
    infer=_infer_wide,
    dx=lambda g, x_shape, axes: spread(g / _extent(x_shape, axes), x_shape, axes),
    reference="numpy:mean",
    cuda=True,
)
def mean_over(out, x, *, axes, keepdim):
    """Mean over ``axes``."""
    reduce_into(out, MEAN, x, axes, divisor=float(_extent(x.shape, axes)) or math.nan)


def _prod_gradient(g: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """``g`` times the product of the *other* factors: exclusive products from both sides, so that
    zero factors need no division."""
    kept = [a for a in range(x.dim()) if a not in axes]
    order = (*kept, *axes)
    moved = x.permute(order)
    rows = reshape(moved, *[x.shape[a] for a in kept], _extent(x.shape, axes))
    n = rows.shape[-1]
    others = _exclusive_products(rows) if n else rows
    others = reshape(others, *moved.shape).permute([order.index(a) for a in range(x.dim())])
    return spread(g, x.shape, axes) * others


def _exclusive_products(rows: Any) -> Any:
    """Along the last axis, for each element the product of all others (a tree: log n steps)."""
    n = rows.shape[-1]
    if n == 1:
        return where(lt(rows, rows), rows, 1)  # 1 also beside nan, and still a function of rows
    half = n // 2
    left, right = rows[..., :half], rows[..., half:]
    whole_left = prod(left, -1, keepdim=True)
    whole_right = prod(right, -1, keepdim=True)
    from .movement import cat

    return cat(
        [_exclusive_products(left) * whole_right, _exclusive_products(right) * whole_left], -1
    )


@primitive(infer=_infer_wide, dx=_prod_gradient, reference="numpy:prod", cuda=True)
def prod_over(out, x, *, axes, keepdim):
    """Product over ``axes``."""
    reduce_into(out, PROD, x, axes)


def _shared_gradient(g: Any, x: Any, out: Any, axes: tuple[int, ...]) -> Any:
    """``g`` shared equally among the elements that attain the extreme (nan ones for nan)."""
    top = spread(out, x.shape, axes)
    hit = eq(x, top) | (x != x)
    share = to_dtype(hit, x.dtype)
    return where(hit, spread(g, x.shape, axes), 0) / sum(share, axes, keepdim=True)


@primitive(infer=_infer_own, dx=_shared_gradient, reference="numpy:amax", cuda=True)
def amax_over(out, x, *, axes, keepdim):
    """Largest over ``axes``; ties share the gradient."""
    reduce_into(out, AMAX, x, axes)


@primitive(infer=_infer_own, dx=_shared_gradient, reference="numpy:amin", cuda=True)
def amin_over(out, x, *, axes, keepdim):
    """Smallest over ``axes``; ties share the gradient."""
    reduce_into(out, AMIN, x, axes)


@primitive(infer=_infer_bool, dx=None, reference="numpy:any", cuda=True)
def any_over(out, x, *, axes, keepdim):
    """Whether any element over ``axes`` is non-zero."""
    reduce_into(out, ANY, x, axes)


@primitive(infer=_infer_bool, dx=None, reference="numpy:all", cuda=True)
def all_over(out, x, *, axes, keepdim):
    """Whether all elements over ``axes`` are non-zero."""
    reduce_into(out, ALL, x, axes)


def _var_gradient(g: Any, x: Any, axes: tuple[int, ...], correction: float) -> Any:
    divisor = builtins.max(_extent(x.shape, axes) - correction, 0)
    factor = 2.0 / divisor if divisor else math.inf  # nan: 0 x inf, as the variance itself
    return spread(g, x.shape, axes) * (x - mean(x, axes, keepdim=True)) * factor


@primitive(
    infer=lambda x, axes, keepdim, correction: _infer_own(x, axes, keepdim),
    dx=_var_gradient,
    reference="numpy:var",
    cuda=True,
)
def var_over(out, x, *, axes, keepdim, correction):
    """Variance over ``axes``, divided by ``n - correction``: two passes, in float64."""
    _variance_into(out, x, axes, correction)


def _variance_into(out: np.ndarray, x: np.ndarray, axes: Any, correction: float) -> None:
    n = _extent(x.shape, axes)
    centre = workspace(out.shape, F64, out)
    reduce_into(centre, MEAN, x, axes, divisor=float(n) or math.nan)
    reduce_into(out, SQUARES, x, axes, centre, float(builtins.max(n - correction, 0)))


def _std_gradient(g: Any, x: Any, out: Any, axes: tuple[int, ...], correction: float) -> Any:
    """0 where all elements are equal."""
    divisor = builtins.max(_extent(x.shape, axes) - correction, 0)
    constant = eq(out, 0)
    slope = where(constant, 0, g / where(constant, 1, out)) * (1 / divisor if divisor else math.inf)
    return spread(slope, x.shape, axes) * (x - mean(x, axes, keepdim=True))


@primitive(
    infer=lambda x, axes, keepdim, correction: _infer_own(x, axes, keepdim),
    dx=_std_gradient,
    reference="numpy:std",
    cuda=True,
)
def std_over(out, x, *, axes, keepdim, correction):
    """The root of :func:`var_over`, taken in float64: the square of an element needs not be a
    float32."""
    variance = workspace(out.shape, F64, out)
    _variance_into(variance, x, axes, correction)
    compute("root", lambda v: s.sqrt(v), out, variance)


@primitive(
    infer=_infer_own,
    dx=lambda g, x, out, axes: spread(g, x.shape, axes) * exp(_shifted(x, out, axes)),
    reference="scipy.special:logsumexp",
    cuda=True,
)
def logsumexp_over(out, x, *, axes, keepdim):
    """``log(sum(exp(x)))`` over ``axes``, about the maximum so that nothing overflows."""
    centre = workspace(out.shape, x.dtype, out)
    total = workspace(out.shape, F64, out)
    reduce_into(centre, AMAX, x, axes)
    reduce_into(total, EXPONENTIALS, x, axes, centre)
    log_plus(out, total, centre)


def _shifted(x: Any, out: Any, axes: Sequence[int]) -> Any:
    """``x - out``; where all of x was -inf (out is -inf) it is -inf: exp then gives 0, not nan."""
    top = spread(out, x.shape, axes)
    return where(eq(top, -math.inf), -math.inf, x - top)


def log_plus(out: np.ndarray, total: np.ndarray, centre: np.ndarray) -> None:
    """``out = log(total) + centre`` in float64; ``centre`` itself where it is infinite."""
    compute(
        "log of total plus centre",
        lambda total, centre: s.where(s.isfinite(centre), s.log(total) + centre, centre),
        out,
        total,
        centre,
    )


# ----------------------------------------------------------------------- extremes with their places


def _infer_extreme(x: Any, axis: int, keepdim: bool) -> Any:
    shape = kept_shape(x.shape, (axis,) if x.shape else (), keepdim)
    return [(shape, x.dtype), (shape, dtypes.int64)]


def _extreme_gradient(g_values: Any, indices: Any, x_shape: Any, axis: int) -> Any:
    if not x_shape:
        return g_values
    kept = kept_shape(x_shape, (axis,), True)
    return scatter_along(
        reshape(g_values, *kept), reshape(indices, *kept), shape=x_shape, axis=axis
    )


def _run_extreme(kind: str, values: Any, indices: Any, x: np.ndarray, axis: int) -> None:
    if (values is not None and values.size == 0) or indices.size == 0:
        return
    x = contiguous_array(x).reshape(x.shape or (1,))
    size = x.itemsize
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    length: int = x.shape[axis]
    kernel = getattr(indexing, f"arg{kind}_{x.dtype.name}")
    args = [launch.address(values) if values is not None else 0, launch.address(indices)]
    args += [launch.address(x), length, inner, length * inner * size, inner * size, size]
    launch.ranged(kernel, args, outer * inner, parallel=x.size >= launch.PARALLEL_MIN)


@primitive(
    infer=_infer_extreme,
    outs=("values", "indices"),
    dx=_extreme_gradient,
    reference="numgrad.kernels.reference.reduction:max_along",
)
def max_along(values, indices, x, *, axis, keepdim):
    """Largest along ``axis`` and the index of its first occurrence."""
    _run_extreme("max", values, indices, x, axis)


@primitive(
    infer=_infer_extreme,
    outs=("values", "indices"),
    dx=_extreme_gradient,
    reference="numgrad.kernels.reference.reduction:min_along",
)
def min_along(values, indices, x, *, axis, keepdim):
    """Smallest along ``axis`` and the index of its first occurrence."""
    _run_extreme("min", values, indices, x, axis)


@primitive(
    infer=lambda x, axis, keepdim: _infer_extreme(x, axis, keepdim)[1],
    dx=None,
    reference="numpy:argmax",
)
def argmax_along(out, x, *, axis, keepdim):
    """Index of the first largest element along ``axis``."""
    _run_extreme("max", None, out, x, axis)


@primitive(
    infer=lambda x, axis, keepdim: _infer_extreme(x, axis, keepdim)[1],
    dx=None,
    reference="numpy:argmin",
)
def argmin_along(out, x, *, axis, keepdim):
    """Index of the first smallest element along ``axis``."""
    _run_extreme("min", None, out, x, axis)


# --------------------------------------------------------------------------------- public functions


def _floating(op: str, x: Any) -> Any:
    if tensor_operand(op, x).dtype.kind != "f":
        raise DtypeError(
            expected(op, "a floating dtype", "x", shown(x), "convert it with .float() first")
        )
    return x


def _nonempty(op: str, x: Any, axes: Sequence[int]) -> None:
    if _extent(x.shape, axes) == 0 and math.prod(kept_shape(x.shape, axes, False)) != 0:
        raise IndexError(
            expected(
                op, "at least one element to reduce", "x", shown(x), "an empty axis has no extreme"
            )
        )


def sum(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Sum over ``dim`` (an axis, several, or all). Integers and bools give int64."""
    tensor_operand("sum", x)
    if dtype is not None:
        x = to_dtype(x, dtypes.as_dtype(dtype, "sum"))
    result = sum_over(x, axes=axes_of("sum", dim, x.dim()), keepdim=bool(keepdim))
    return result if dtype is None else to_dtype(result, dtypes.as_dtype(dtype, "sum"))


def mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Mean over ``dim``; nan over no elements. Raises TypeError for integers."""
    tensor_operand("mean", x)
    if dtype is not None:
        x = to_dtype(x, dtypes.as_dtype(dtype, "mean"))
    return mean_over(
        _floating("mean", x), axes=axes_of("mean", dim, x.dim()), keepdim=bool(keepdim)
    )


def prod(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Product over ``dim`` or all elements."""
    tensor_operand("prod", x)
    return prod_over(x, axes=axes_of("prod", dim, x.dim()), keepdim=bool(keepdim))


def amax(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Largest over ``dim``; ties share the gradient. Raises IndexError over no elements."""
    axes = axes_of("amax", dim, tensor_operand("amax", x).dim())
    _nonempty("amax", x, axes)
    return amax_over(x, axes=axes, keepdim=bool(keepdim))


def amin(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Smallest over ``dim``; ties share the gradient. Raises IndexError over no elements."""
    axes = axes_of("amin", dim, tensor_operand("amin", x).dim())
    _nonempty("amin", x, axes)
    return amin_over(x, axes=axes, keepdim=bool(keepdim))


def any(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether any element is non-zero."""
    tensor_operand("any", x)
    return any_over(x, axes=axes_of("any", dim, x.dim()), keepdim=bool(keepdim))


def all(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether all elements are non-zero."""
    tensor_operand("all", x)
    return all_over(x, axes=axes_of("all", dim, x.dim()), keepdim=bool(keepdim))


def var(
    x: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
) -> Any:
    """Variance over ``dim``, divided by ``n - 1`` (``unbiased``) or ``n - correction``."""
    return var_over(x, **_spread_options("var", x, dim, unbiased, keepdim, correction))


def _spread_options(
    op: str, x: Any, dim: Any, unbiased: bool, keepdim: bool, correction: Any
) -> dict[str, Any]:
    if isinstance(dim, bool):  # x.var(False): the old positional form
        dim, unbiased = None, dim
    axes = axes_of(op, dim, _floating(op, x).dim())
    if correction is None:
        correction = 1 if unbiased else 0
    return {"axes": axes, "keepdim": bool(keepdim), "correction": correction}


def std(
    x: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
) -> Any:
    """Standard deviation, ``sqrt(var)``; the gradient of a constant vector is 0."""
    return std_over(x, **_spread_options("std", x, dim, unbiased, keepdim, correction))


def root(x: Any, p: float = 2.0) -> Any:
    """``x ** (1/p)`` with derivative 0 at 0: for the root of a sum of powers."""
    zero = eq(x, 0)
    positive = where(zero, 1, x)
    return where(zero, x * 0, sqrt(positive) if p == 2 else positive ** (1.0 / p))


def length_of(tensors: Sequence[Any]) -> float:
    """The 2-norm of all tensors as one vector, in float64: a launch each and no graph."""
    total, zero = workspace((1,), F64), np.zeros(1)
    squares = []
    for x in tensors:
        if x.is_cuda:
            squares.append(float(sum(mul(x, x))))
        else:
            reduce_into(total, SQUARES, x.array, range(x.dim()), zero)
            squares.append(float(total[0]))
    return math.sqrt(math.fsum(squares)) if np.isfinite(squares).all() else builtins.sum(squares)


def norm(x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
    """p-norm over ``dim``, ``sum(|x|**p) ** (1/p)``; the gradient at 0 is 0. p may be infinite: the
    largest (or smallest) ``|x|``; and 0: the number of elements that are not 0."""
    _floating("norm", x)
    if p in (2, "fro"):
        return root(sum(mul(x, x), dim, keepdim))
    if p == 1:
        return sum(x.abs(), dim, keepdim)
    if p == math.inf:
        return amax(x.abs(), dim, keepdim)
    if p == -math.inf:
        return amin(x.abs(), dim, keepdim)
    if not isinstance(p, NUMBERS):
        raise TypeError(expected("norm", "a number", "p", repr(p), "use 2"))
    if p == 0:
        return sum(to_dtype(ne(x, 0), x.dtype), dim, keepdim)
    total = sum(x.abs() ** p, dim, keepdim)
    return root(total, float(p)) if p > 0 else total ** (1.0 / p)


def logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    """``log(sum(exp(x)))`` over ``dim``; -inf over -inf alone, with gradient 0. Integers are made
    the default float."""
    if tensor_operand("logsumexp", x).dtype.kind != "f":
        x = to_dtype(x, dtypes.get_default_dtype())
    axes = axes_of("logsumexp", dim, x.dim())
    return logsumexp_over(x, axes=axes, keepdim=bool(keepdim))


class Extreme(NamedTuple):
    """What ``max`` and ``min`` along an axis give."""

    values: Any
    indices: Any


def _extreme(
    op: str, whole: Any, along: Any, pairwise: Any, x: Any, dim: Any, keepdim: bool
) -> Any:
    tensor_operand(op, x)
    if isinstance(dim, Value):
        return pairwise(x, dim)
    if dim is None:
        return whole(x)
    axis = axis_of(op, dim, x.dim())
    _nonempty(op, x, (axis,) if x.dim() else ())
    return Extreme(*along(x, axis=axis, keepdim=bool(keepdim)))


def max(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Largest of all, ``(values, indices)`` along ``dim``, or elementwise against a tensor."""
    return _extreme("max", amax, max_along, maximum, x, dim, keepdim)


def min(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Smallest of all, ``(values, indices)`` along ``dim``, or elementwise against a tensor."""
    return _extreme("min", amin, min_along, minimum, x, dim, keepdim)


def _arg(op: str, along: Any, x: Any, dim: Any, keepdim: bool) -> Any:
    tensor_operand(op, x)
    if dim is None:
        _nonempty(op, x, range(x.dim()))
        if x.numel() == 0:
            raise IndexError(expected(op, "at least one element", "x", shown(x), "check for empty"))
        place = along(reshape(x, -1), axis=0, keepdim=False)
        return reshape(place, (1,) * x.dim()) if keepdim else place
    axis = axis_of(op, dim, x.dim())
    _nonempty(op, x, (axis,) if x.dim() else ())
    return along(x, axis=axis, keepdim=bool(keepdim))


def argmax(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Index of the largest: of the flattened tensor, or along ``dim``."""
    return _arg("argmax", argmax_along, x, dim, keepdim)


def argmin(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Index of the smallest: of the flattened tensor, or along ``dim``."""
    return _arg("argmin", argmin_along, x, dim, keepdim)


def sum_to(x: Any, shape: tuple[int, ...]) -> Any:
    """x summed over the axes that broadcasting ``shape`` to x's shape added or stretched."""
    lead = x.dim() - len(shape)
    axes = tuple(range(lead)) + tuple(
        i for i, n in enumerate(shape, lead) if n == 1 and x.shape[i] != 1
    )
    if axes:
        x = sum_over(x, axes=axes, keepdim=True)
    return reshape(x, *shape) if x.shape != shape and shape else _to_scalar(x, shape)


def _to_scalar(x: Any, shape: tuple[int, ...]) -> Any:
    return above.reshape(x, shape) if x.shape != shape else x


above.sum_to = sum_to
