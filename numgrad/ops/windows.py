"""Where the windows of a pooling lie, worked out and checked from its arguments."""

from typing import Any, NamedTuple

import numpy as np

from ..graph.errors import DtypeError, RangeError, ShapeError, expected, shown
from .attributes import FORMS, INTEGERS, for_axes, lengths
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


def check_operand(op: str, x: Any, axes: int, nonempty: int | None, kinds: str = "f") -> None:
    """Raise unless x is (c, …) or (n, c, …), its last ``nonempty`` axes (None: all but the first)
    have elements, and it is of a dtype that ``op`` takes."""
    ndim = tensor_operand(op, x).dim()
    if ndim not in (axes + 1, axes + 2):
        raise ShapeError(expected(op, FORMS[axes], "x", shown(x), "unsqueeze or reshape it"))
    if 0 in x.shape[1 if nonempty is None else ndim - nonempty :]:
        what = "elements in all axes but the batch"
        raise ShapeError(expected(op, what, "x", shown(x), "pad it, or leave the call out"))
    if x.dtype.kind not in kinds:
        what = "a floating dtype" if kinds == "f" else "numbers"
        raise DtypeError(expected(op, what, "x", shown(x), "convert it with .float() first"))


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
    kernel = lengths(op, "kernel_size", kernel_size, axes, 1)
    own = stride is None or (isinstance(stride, (tuple, list)) and not stride)
    strides = kernel if own else lengths(op, "stride", stride, axes, 1)
    pads = lengths(op, "padding", padding, axes, 0)
    dilations = lengths(op, "dilation", dilation, axes, 1)
    if any(p > k // 2 for p, k in zip(pads, kernel, strict=True)):
        raise RangeError(
            expected(
                op, f"at most half of kernel_size {kernel}", "padding", pads, "use functional.pad"
            )
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
    kinds = (*INTEGERS, type(None)) if axes > 1 else INTEGERS
    given = for_axes(op, "output_size", output_size, axes, kinds=kinds, one=False)
    sizes = tuple(n if m is None else m for n, m in zip(spatial, given, strict=True))
    sizes = lengths(op, "output_size", sizes, axes, 0)
    if all(m > 0 and n % m == 0 for n, m in zip(spatial, sizes, strict=True)):
        kernel = tuple(n // m for n, m in zip(spatial, sizes, strict=True))
        return Windows(kernel, kernel, (0,) * axes, (1,) * axes, sizes)
    kernel = tuple(
        max((-(-(i + 1) * n // m) - i * n // m for i in range(m)), default=1)
        for n, m in zip(spatial, sizes, strict=True)
    )
    return Windows(kernel, kernel, (0,) * axes, (1,) * axes, sizes, adaptive=True)
