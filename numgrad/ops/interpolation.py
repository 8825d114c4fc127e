"""Interpolation: the last axes of a tensor made longer or shorter."""

import math
from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.errors import DtypeError, RangeError, ShapeError, expected, shown
from ..kernels import launch
from ..kernels.cpu import interpolation as kernels
from .attributes import LARGEST, for_axes, lengths
from .declare import NUMBERS
from .kernel_calls import workspace
from .pooling import planes_of, two_axes
from .primitive import primitive, tensor_operand

Scales = tuple[float | None, ...]


def sources(n: int, m: int, scale: float | None) -> np.ndarray:
    """Which of n elements each of m takes: ``floor(i * n / m)``, or ``floor(i / scale)``.

    In single precision whatever the dtype, as PyTorch's backward pass has it, and so that a tensor
    takes the same elements in both.
    """
    places: np.ndarray = np.arange(m)
    if m == n:
        return places
    if m == 2 * n:
        return places >> 1
    step = np.float32(1 / scale) if scale is not None else np.float32(n) / np.float32(m)
    chosen = np.floor(places.astype(np.float32) * step).astype(np.int64)
    return np.minimum(chosen, n - 1)


def _run(
    name: str,
    result: np.ndarray,
    operand: np.ndarray,
    from_: tuple[int, ...],
    to: tuple[int, ...],
    scales: Scales,
    by_plane: bool,
) -> None:
    """Launch a kernel; ``from_`` and ``to`` are the lengths of the last axes, x's and out's."""
    if result.size == 0:
        return
    size, count = two_axes(from_), two_axes(to)
    tables = workspace((count[0] + count[1],), dtypes.int64)
    rows, columns = tables[: count[0]], tables[count[0] :]
    scale = (None, *scales)[-2:]
    rows[...] = sources(size[0], count[0], scale[0])
    columns[...] = sources(size[1], count[1], scale[1])
    x = planes_of(operand, len(from_))
    args = [launch.address(a) for a in (result, x, rows, columns)]
    args += [x.shape[1], *x.strides, *size, *count]
    planes = x.shape[0] * x.shape[1]
    launch.ranged(
        getattr(kernels, name),
        args,
        planes if by_plane else planes * count[0],
        parallel=max(result.size, operand.size) >= launch.PARALLEL_MIN,
    )


def _nearest_gradient(g: Any, x_shape: Any, scales: Scales) -> Any:
    return nearest_adjoint(g, shape=x_shape, scales=scales)


@primitive(
    infer=lambda x, size, scales: ((*x.shape[: -len(size)], *size), x.dtype),
    dx=_nearest_gradient,
    reference="numgrad.kernels.reference.interpolation:nearest",
)
def nearest(out, x, *, size, scales):
    """The last axes of x at ``size``, each element that of the nearest place before it."""
    axes = len(size)
    _run(f"nearest_{x.itemsize}", out, x, x.shape[-axes:], size, scales, False)


@primitive(
    infer=lambda g, shape, scales: (shape, g.dtype),
    dg=lambda g, g_shape, scales: nearest(g, size=g_shape[-len(scales) :], scales=scales),
    reference="numgrad.kernels.reference.interpolation:nearest_adjoint",
)
def nearest_adjoint(out, g, *, shape, scales):
    """Each element of ``g`` added where ``nearest`` takes it from: its adjoint."""
    axes = len(scales)
    name = f"nearest_adjoint_{g.dtype.name}"
    _run(name, out, g, shape[-axes:], g.shape[-axes:], scales, True)


def interpolate(
    x: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """The last axes of x made longer or shorter: (n, c, l) or (n, c, h, w).

    Args:
        x: float32, float64 or uint8.
        size: the new lengths, an integer or one for each axis.
        scale_factor: instead of it: length ``floor(n * scale_factor)``, a number or one for each.
        mode: ``nearest``: out[i] = x[floor(i / scale_factor)], or with ``size``
            x[floor(i * n / size)].
        recompute_scale_factor: whether scale_factor is only used for the new lengths, and places
            follow from them.
        align_corners, antialias: for modes that there are not.

    Raises:
        ShapeError: x has no elements.
        DtypeError: x has another dtype.
        RangeError: not exactly one of size and scale_factor, not one for each axis, a length that
            is not positive, or an argument that the mode does not take.
        TypeError: size is not of integers, or scale_factor not of numbers.
        NotImplementedError: another mode, or x with more or fewer axes.
    """
    if mode != "nearest":
        raise NotImplementedError(
            expected("interpolate", "'nearest'", "mode", repr(mode), "no other mode is there yet")
        )
    axes = tensor_operand("interpolate", x).dim() - 2
    if axes not in (1, 2):
        form = "(n, c, l) or (n, c, h, w)"
        raise NotImplementedError(expected("interpolate", form, "x", shown(x), "reshape it"))
    if align_corners is not None or antialias:
        what = "align_corners" if align_corners is not None else "antialias"
        raise RangeError(
            expected("interpolate", f"no {what} with mode 'nearest'", what, True, "leave it out")
        )
    if (size is None) == (scale_factor is None):
        given = "neither" if size is None else "both"
        raise RangeError(
            expected("interpolate", "one of them", "size, scale_factor", given, "pass one")
        )
    if recompute_scale_factor and size is not None:
        raise RangeError(
            expected(
                "interpolate",
                "no recompute_scale_factor with a size",
                "recompute_scale_factor",
                True,
                "leave it out",
            )
        )
    if x.dtype.kind != "f" and x.dtype != dtypes.uint8:
        raise DtypeError(
            expected("interpolate", "a floating dtype or uint8", "x", shown(x), "use .float()")
        )
    if 0 in x.shape[1:]:
        what = "elements in all axes but the batch"
        raise ShapeError(expected("interpolate", what, "x", shown(x), "pad it"))
    scales: Scales = (None,) * axes
    sizes: tuple[int, ...] = ()
    if size is not None:
        sizes = lengths("interpolate", "size", size, axes, 1, one=False)
    else:
        name, kinds = "scale_factor", NUMBERS
        factors = for_axes(
            "interpolate", name, scale_factor, axes, kinds=kinds, noun="number", one=False
        )
        if all(abs(f) <= LARGEST for f in factors):  # neither infinite nor a nan
            factors = tuple(float(f) for f in factors)
            sizes = tuple(math.floor(n * f) for n, f in zip(x.shape[2:], factors, strict=True))
        if not (sizes and all(1 <= n <= LARGEST for n in sizes)):
            what = "factors that give lengths from 1 to below 2**31"
            way_out = f"x is {shown(x)}"
            raise RangeError(expected("interpolate", what, name, repr(scale_factor), way_out))
        if not recompute_scale_factor:
            scales = factors
    return nearest(x, size=sizes, scales=scales)
