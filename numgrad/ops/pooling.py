"""Pooling: the maximum or the mean of windows that move over the last one or two axes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.errors import RangeError, expected
from ..graph.storage import allocate
from ..kernels import launch
from ..kernels.cpu import pooling as kernels
from ..kernels.cpu.windows import Slots
from .attributes import LARGEST, integer
from .kernel_calls import fill, workspace
from .primitive import primitive
from .reduction import mean_over
from .windows import Windows, adaptive, check_operand, moving

LINE = 2048
"""Columns that a kernel folds at a time: two lines of them and their places stay in cache."""


# ---------------------------------------------------------------------------------- kernel calls


def planes_of(x: np.ndarray, axes: int) -> np.ndarray:
    """x of 1 or 2 axes with windows, with or without a batch, as (n, c, h, w)."""
    if axes == 1:
        x = x[..., None, :]
    return x if x.ndim == 4 else x[None]


def _run(
    name: str,
    windows: Windows,
    result: np.ndarray,
    operand: np.ndarray,
    places: np.ndarray | None = None,
    shape: Sequence[int] | None = None,
    divisor: int | None = None,
    by_plane: bool = False,
) -> None:
    """Launch a pooling kernel; ``shape`` is that with the windows, if it is not the operand's."""
    if result.size == 0:
        return
    axes = len(windows.size)
    x = planes_of(operand, axes)
    size = two_axes(tuple(operand.shape if shape is None else shape)[-axes:])
    count = two_axes(windows.size)
    if count[0] * count[1] == 0:
        fill(result, 0)
        return
    stride, step = two_axes(windows.stride), windows.stride[-1]
    if windows.adaptive:
        tile = min(count[1], max(1, LINE * count[1] // size[1]))
        columns = tile * size[1] // count[1] + 3
    else:
        tile = min(count[1], max(1, LINE // step))
        columns = (tile - 1) * step + (windows.kernel[-1] - 1) * windows.dilation[-1] + 1
    item = operand.itemsize
    per_worker = 2 * columns * item + max(2 * tile * item, 4 * (columns + tile))
    per_worker = -(-per_worker // 64) * 64
    parallel = max(result.size, operand.size) >= launch.PARALLEL_MIN
    workers = launch.get_num_threads() if parallel else 1
    buffers = workspace((per_worker * workers,), dtypes.uint8)
    x_n, x_c, x_h, x_w = x.strides
    kh, kw = two_axes(windows.kernel)
    padding_h, padding_w = two_axes(windows.padding, 0)
    dilation_h, dilation_w = two_axes(windows.dilation)
    slots = Slots(
        out=launch.address(result),
        x=launch.address(x),
        places=launch.address_or_0(places),
        wide=int(places is not None and places.dtype != dtypes.uint8),
        c=x.shape[1],
        x_n=x_n,
        x_c=x_c,
        x_h=x_h,
        x_w=x_w,
        h=size[0],
        w=size[1],
        oh=count[0],
        ow=count[1],
        kh=kh,
        kw=kw,
        stride_h=stride[0],
        stride_w=stride[1],
        padding_h=padding_h,
        padding_w=padding_w,
        dilation_h=dilation_h,
        dilation_w=dilation_w,
        adaptive=int(windows.adaptive),
        buffers=launch.address(buffers),
        buffer_bytes=per_worker,
        tile=tile,
        columns=columns,
        divisor=-int(windows.include_pad) if divisor is None else divisor,
        own_divisor=int(divisor is not None),
    )
    planes = x.shape[0] * x.shape[1]
    items = planes if by_plane else planes * count[0]
    launch.ranged(getattr(kernels, name), slots, items, workers=workers)


def two_axes(numbers: tuple[int, ...], first: int = 1) -> tuple[int, ...]:
    """One number an axis, for two axes."""
    return numbers if len(numbers) == 2 else (first, *numbers)


def _place_dtype(windows: Windows) -> np.dtype:
    return dtypes.uint8 if windows.cells <= kernels.SMALL else dtypes.int32


# ------------------------------------------------------------------------------------------ maxima


def _infer(x: Any, windows: Windows) -> Any:
    return (*x.shape[: -len(windows.size)], *windows.size), x.dtype


def _max_gradient(g: Any, places: Any, x_shape: Any, windows: Windows) -> Any:
    return add_places(g, places, shape=x_shape, windows=windows)


@primitive(
    infer=_infer,
    aux=("places",),
    dx=_max_gradient,
    reference="numgrad.kernels.reference.pooling:max_pool",
)
def max_pool(out, x, *, windows, record):
    """The largest element of each window. Its gradient goes to that element alone: a byte an output
    element says which it was (four bytes where a window has more than 256 cells)."""
    if not record:
        _run(f"max_pool_{x.dtype.name}", windows, out, x)
        return None
    places, storage = allocate(out.shape, _place_dtype(windows))
    _run(f"max_pool_places_{x.dtype.name}", windows, out, x, places)
    return {"places": (places, storage)}


@primitive(
    infer=lambda x, windows: [_infer(x, windows), (_infer(x, windows)[0], dtypes.int64)],
    outs=("out", "indices"),
    aux=("places",),
    dx=lambda g_out, places, x_shape, windows: _max_gradient(g_out, places, x_shape, windows),
    reference="numgrad.kernels.reference.pooling:max_pool_indexed",
)
def max_pool_indexed(out, indices, x, *, windows, record):
    """``max_pool``, and where in its plane each maximum is: the index ``row * w + column``."""
    dtype = _place_dtype(windows)
    if record:
        places, storage = allocate(out.shape, dtype)
    else:
        places, storage = workspace(out.shape, dtype), None
    _run(f"max_pool_places_{x.dtype.name}", windows, out, x, places)
    _run("flat_places", windows, indices, x, places)
    return {"places": (places, storage)} if record else None


def _take_gradient(g: Any, places: Any, x_shape: Any, windows: Windows) -> Any:
    return add_places(g, places, shape=x_shape, windows=windows)


@primitive(
    infer=lambda x, places, windows: _infer(x, windows),
    constant=("places",),
    dx=_take_gradient,
    reference="numgrad.kernels.reference.pooling:take_places",
)
def take_places(out, x, places, *, windows):
    """The element of each window at a place within it."""
    _run(f"take_places_{x.dtype.name}", windows, out, x, places)


@primitive(
    infer=lambda v, places, shape, windows: (shape, v.dtype),
    constant=("places",),
    dv=lambda g, places, windows: take_places(g, places, windows=windows),
    reference="numgrad.kernels.reference.pooling:add_places",
)
def add_places(out, v, places, *, shape, windows):
    """Zeros of ``shape`` with ``v`` added at a place within each window: adjoint of
    ``take_places``."""
    _run(f"add_places_{v.dtype.name}", windows, out, v, places, shape, by_plane=True)


# ---------------------------------------------------------------------------------------- averages


def _avg_gradient(g: Any, x_shape: Any, windows: Windows, divisor: Any) -> Any:
    return avg_pool_adjoint(g, shape=x_shape, windows=windows, divisor=divisor)


@primitive(
    infer=lambda x, windows, divisor: _infer(x, windows),
    dx=_avg_gradient,
    reference="numgrad.kernels.reference.pooling:avg_pool",
)
def avg_pool(out, x, *, windows, divisor):
    """The sum of each window, over ``divisor`` or over how many of its cells count."""
    _run(f"avg_pool_{x.dtype.name}", windows, out, x, divisor=divisor)


@primitive(
    infer=lambda g, shape, windows, divisor: (shape, g.dtype),
    dg=lambda g, windows, divisor: avg_pool(g, windows=windows, divisor=divisor),
    reference="numgrad.kernels.reference.pooling:avg_pool_adjoint",
)
def avg_pool_adjoint(out, g, *, shape, windows, divisor):
    """Each window's ``g`` over its divisor, added to all its cells: adjoint of ``avg_pool``."""
    _run(
        f"avg_pool_adjoint_{g.dtype.name}",
        windows,
        out,
        g,
        shape=shape,
        divisor=divisor,
        by_plane=True,
    )


# --------------------------------------------------------------------------------- public functions


def _max(
    op: str,
    axes: int,
    x: Any,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    return_indices: bool,
) -> Any:
    check_operand(op, x, axes, axes + 1, "fiu")
    windows = moving(op, x, axes, kernel_size, stride, padding, dilation, ceil_mode)
    if windows.cells > LARGEST:  # places are int32
        what = "windows of fewer than 2**31 cells"
        raise RangeError(expected(op, what, "kernel_size", windows.kernel, "use less"))
    return (max_pool_indexed if return_indices else max_pool)(x, windows=windows)


def max_pool1d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest of each window over the last axis of x, (n, c, l) or (c, l).

    See :func:`max_pool2d`.
    """
    return _max(
        "max_pool1d", 1, x, kernel_size, stride, padding, dilation, ceil_mode, return_indices
    )


def max_pool2d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest of each window over the last two axes of x, (n, c, h, w) or (c, h, w).

    Args:
        x: numbers of any dtype.
        kernel_size, stride, padding, dilation: an integer or one for each axis; stride is
            kernel_size if left out. Padding is ``-inf``, at most half of kernel_size.
        ceil_mode: whether a last window that does not fit is cut, rather than left out.
        return_indices: whether to return ``(out, indices)``: the index ``row * w + column`` of each
            maximum in its plane, int64.

    The gradient of a window goes to its first maximum; a nan is larger than everything.

    Raises:
        ShapeError: x has no such axes or is empty, or the windows do not fit.
        DtypeError: x is bool.
        RangeError: an attribute is out of range, or not one for each axis.
        TypeError: an attribute is no integer.
    """
    return _max(
        "max_pool2d", 2, x, kernel_size, stride, padding, dilation, ceil_mode, return_indices
    )


def _average(
    op: str,
    axes: int,
    x: Any,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: Any = None,
) -> Any:
    check_operand(op, x, axes, axes + 1)
    if divisor is not None:
        divisor = integer(op, "divisor_override", divisor)
        if not 0 < abs(divisor) <= LARGEST:
            what = "an integer below 2**31 that is not 0"
            raise RangeError(expected(op, what, "divisor_override", divisor, "leave it out"))
    include = bool(count_include_pad)
    windows = moving(op, x, axes, kernel_size, stride, padding, 1, ceil_mode, include)
    return avg_pool(x, windows=windows, divisor=divisor)


def avg_pool1d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:
    """The mean of each window over the last axis of x, (n, c, l) or (c, l).

    See :func:`avg_pool2d`.
    """
    return _average("avg_pool1d", 1, x, kernel_size, stride, padding, ceil_mode, count_include_pad)


def avg_pool2d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Any:
    """The mean of each window over the last two axes of x, (n, c, h, w) or (c, h, w).

    Args:
        x: floats.
        kernel_size, stride, padding: an integer or one for each axis; stride is kernel_size if left
            out. Padding is 0, at most half of kernel_size.
        ceil_mode: whether a last window that does not fit is cut, rather than left out.
        count_include_pad: whether the cells in the padding count in the divisor. What a window
            reaches beyond the padding never does.
        divisor_override: the divisor, whatever the number of cells.

    Raises:
        ShapeError: x has no such axes or is empty, or the windows do not fit.
        DtypeError: x is not floating.
        RangeError: an attribute is out of range, or not one for each axis.
        TypeError: an attribute is no integer.
    """
    return _average(
        "avg_pool2d",
        2,
        x,
        kernel_size,
        stride,
        padding,
        ceil_mode,
        count_include_pad,
        divisor_override,
    )


def _adaptive_average(op: str, axes: int, x: Any, output_size: Any) -> Any:
    check_operand(op, x, axes, axes)
    windows = adaptive(op, x, axes, output_size)
    if windows.size == (1,) * axes:
        over = tuple(range(x.dim() - axes, x.dim()))
        return mean_over(x, axes=over, keepdim=True)
    return avg_pool(x, windows=windows, divisor=None)


def adaptive_avg_pool1d(x: Any, output_size: Any) -> Any:
    """The means of ``output_size`` windows that share out the last axis of x, (n, c, l) or (c, l).

    See :func:`adaptive_avg_pool2d`.
    """
    return _adaptive_average("adaptive_avg_pool1d", 1, x, output_size)


def adaptive_avg_pool2d(x: Any, output_size: Any) -> Any:
    """The means of ``output_size`` windows that share out the last two axes of x.

    Window i of m over n cells has those from ``i * n // m`` to ``ceil((i + 1) * n / m)``; windows
    overlap where m does not divide n.

    Args:
        x: floats, (n, c, h, w) or (c, h, w).
        output_size: an integer, or two; None keeps the length of an axis.

    Raises:
        ShapeError: x has no such axes or is empty.
        DtypeError: x is not floating.
        RangeError: output_size is negative, or not one for each axis.
        TypeError: output_size is no integer.
    """
    return _adaptive_average("adaptive_avg_pool2d", 2, x, output_size)


def _adaptive_max(op: str, axes: int, x: Any, output_size: Any, return_indices: bool) -> Any:
    check_operand(op, x, axes, None)
    windows = adaptive(op, x, axes, output_size)
    return (max_pool_indexed if return_indices else max_pool)(x, windows=windows)


def adaptive_max_pool1d(x: Any, output_size: Any, return_indices: bool = False) -> Any:
    """The largest of ``output_size`` windows that share out the last axis of x, (n, c, l) or
    (c, l); with ``return_indices`` also where they are. See :func:`adaptive_avg_pool2d`."""
    return _adaptive_max("adaptive_max_pool1d", 1, x, output_size, return_indices)


def adaptive_max_pool2d(x: Any, output_size: Any, return_indices: bool = False) -> Any:
    """The largest of ``output_size`` windows that share out the last two axes of x; with
    ``return_indices`` also where they are. See :func:`adaptive_avg_pool2d`."""
    return _adaptive_max("adaptive_max_pool2d", 2, x, output_size, return_indices)
