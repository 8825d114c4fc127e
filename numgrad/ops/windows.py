"""Where the windows of a pooling lie, worked out and checked from its arguments."""

from typing import Any, NamedTuple

import numpy as np

from ..graph.errors import DtypeError, ShapeError, expected, shown
from .primitive import tensor_operand


class Windows(NamedTuple):
    """Where windows lie: one number for each of the last axes.

    ``size`` is how many there are. Adaptive windows i of m over n cells cover the cells from
    ``i * n // m`` to ``ceil((i + 1) * n / m)``; their ``kernel`` is the longest of them.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    size: tuple[int, ...]
    adaptive: bool = False
    include_pad: bool = False
    """Whether cells in the padding count for an average."""

    @property
    def cells(self) -> int:
        """The places of a window."""
        return int(np.prod(self.kernel))


def numbers_for(op: str, value: Any, name: str, axes: int) -> tuple[int, ...]:
    """A number, or one for each axis, as one for each axis."""
    given = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    for n in given:
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
            raise TypeError(expected(op, "integers", name, repr(value), "pass an int or a tuple"))
    if len(given) not in (1, axes):
        what = "an integer" if axes == 1 else f"an integer or {axes} of them"
        raise ShapeError(expected(op, what, name, repr(value), "pass one for each axis"))
    return tuple(int(n) for n in given) * (axes if len(given) == 1 else 1)


def check_operand(op: str, x: Any, axes: int, nonempty: int | None, kinds: str = "f") -> None:
    """Raise unless x is (c, …) or (n, c, …), its last ``nonempty`` axes (None: all but the first)
    have elements, and it is of a dtype that ``op`` takes."""
    ndim = tensor_operand(op, x).dim()
    if ndim not in (axes + 1, axes + 2):
        form = "(c, w) or (n, c, w)" if axes == 1 else "(c, h, w) or (n, c, h, w)"
        raise ShapeError(expected(op, form, "x", shown(x), "add or join axes"))
    if 0 in x.shape[1 if nonempty is None else ndim - nonempty :]:
        raise ShapeError(expected(op, "elements in all axes but the batch", "x", shown(x), "check"))
    if x.dtype.kind not in kinds:
        what = "a floating dtype" if kinds == "f" else "numbers"
        raise DtypeError(expected(op, what, "x", shown(x), "convert it with .float() first"))


def _each(op: str, numbers: tuple[int, ...], name: str, least: int) -> None:
    if min(numbers) < least:
        what = "a positive integer" if least else "0 or a positive integer"
        raise ShapeError(expected(op, what, name, numbers, f"{name} is at least {least}"))


def moving(
    op: str,
    x: Any,
    axes: int,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    include_pad: bool = False,
) -> Windows:
    """The windows of x of one size, ``stride`` apart."""
    kernel = numbers_for(op, kernel_size, "kernel_size", axes)
    own = stride is None or (isinstance(stride, (tuple, list)) and not stride)
    strides = kernel if own else numbers_for(op, stride, "stride", axes)
    pads = numbers_for(op, padding, "padding", axes)
    dilations = numbers_for(op, dilation, "dilation", axes)
    _each(op, kernel, "kernel_size", 1)
    _each(op, strides, "stride", 1)
    _each(op, pads, "padding", 0)
    _each(op, dilations, "dilation", 1)
    if any(p > k // 2 for p, k in zip(pads, kernel, strict=True)):
        raise ShapeError(
            expected(op, f"at most half of kernel_size {kernel}", "padding", pads, "use pad")
        )
    sizes = []
    spatial = x.shape[x.dim() - axes :]
    for n, k, s, p, d in zip(spatial, kernel, strides, pads, dilations, strict=True):
        count = (n + 2 * p - d * (k - 1) - 1 + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode and (count - 1) * s >= n + p:
            count -= 1  # the last window would begin in the padding on the right
        sizes.append(count)
    if min(sizes) < 1:
        raise ShapeError(
            f"{op}: expected windows that fit into x {x.shape}, got kernel_size {kernel} "
            f"(padding {pads}, dilation {dilations}): the output size {tuple(sizes)} is too small; "
            "use a smaller kernel_size or more padding"
        )
    windows = Windows(kernel, strides, pads, dilations, tuple(sizes), include_pad=include_pad)
    _each_has_cells(op, x, windows)
    return windows


def _each_has_cells(op: str, x: Any, windows: Windows) -> None:
    """Raise if a window lies in the padding alone, which only a dilated one can."""
    spatial = x.shape[x.dim() - len(windows.size) :]
    for axis, (n, d) in enumerate(zip(spatial, windows.dilation, strict=True)):
        for i in range(windows.size[axis]) if d > 1 else ():
            first = i * windows.stride[axis] - windows.padding[axis]
            inside = -(-max(0, -first) // d) * d + first  # the first cell that is not before x
            if inside >= min(n, first + (windows.kernel[axis] - 1) * d + 1):
                raise ShapeError(
                    expected(
                        op,
                        f"windows that all meet x {x.shape}",
                        "kernel_size, dilation",
                        (windows.kernel, windows.dilation),
                        "use a smaller dilation",
                    )
                )


def adaptive(op: str, x: Any, axes: int, output_size: Any) -> Windows:
    """``output_size`` windows that share out x; None keeps the length of an axis."""
    spatial = x.shape[x.dim() - axes :]
    given = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * axes
    sizes = tuple(n if m is None and axes > 1 else m for n, m in zip(spatial, given, strict=False))
    if len(given) != axes:
        raise ShapeError(
            expected(op, f"{axes} integers", "output_size", repr(output_size), "one for each axis")
        )
    sizes = numbers_for(op, sizes, "output_size", axes)
    _each(op, sizes, "output_size", 0)
    if all(m > 0 and n % m == 0 for n, m in zip(spatial, sizes, strict=True)):
        kernel = tuple(n // m for n, m in zip(spatial, sizes, strict=True))
        return Windows(kernel, kernel, (0,) * axes, (1,) * axes, sizes)
    kernel = tuple(
        max((-(-(i + 1) * n // m) - i * n // m for i in range(m)), default=1)
        for n, m in zip(spatial, sizes, strict=True)
    )
    return Windows(kernel, kernel, (0,) * axes, (1,) * axes, sizes, adaptive=True)
