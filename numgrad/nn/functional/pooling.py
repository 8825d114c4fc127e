"""Pooling: the maximum or the mean of windows."""

from typing import Any

from ...ops import pooling as ops
from ...ops.attributes import Lengths
from ...tensor import Tensor


def max_pool1d(
    input: Tensor,
    kernel_size: Lengths,
    stride: Lengths | None = None,
    padding: Lengths = 0,
    dilation: Lengths = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest of each window over the last axis of (n, c, l) or (c, l). See `max_pool2d`."""
    return ops.max_pool1d(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool2d(
    input: Tensor,
    kernel_size: Lengths,
    stride: Lengths | None = None,
    padding: Lengths = 0,
    dilation: Lengths = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest of each window over the last two axes of (n, c, h, w) or (c, h, w).

    Args:
        input: numbers of any dtype but bool.
        kernel_size, stride, padding, dilation: of the windows; stride is kernel_size if left out.
            Padding is ``-inf``, at most half of kernel_size.
        ceil_mode: whether a last window that does not fit is cut, rather than left out.
        return_indices: whether to return also where each maximum is: ``row * w + column``, int64.

    Output lengths are ``floor((h + 2·padding - dilation·(kernel_size - 1) - 1) / stride) + 1``.
    The gradient of a window goes to its first maximum; a nan is larger than everything.

    Raises:
        ShapeError: the input has no such axes or is empty, or the windows do not fit.
        DtypeError: the input is bool.
        RangeError: an argument is out of range, or not one for each axis.
        TypeError: an argument is no integer.
    """
    return ops.max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def avg_pool1d(
    input: Tensor,
    kernel_size: Lengths,
    stride: Lengths | None = None,
    padding: Lengths = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window over the last axis of (n, c, l) or (c, l). See `avg_pool2d`."""
    return ops.avg_pool1d(input, kernel_size, stride, padding, ceil_mode, count_include_pad)


def avg_pool2d(
    input: Tensor,
    kernel_size: Lengths,
    stride: Lengths | None = None,
    padding: Lengths = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window over the last two axes of (n, c, h, w) or (c, h, w).

    Args:
        input: floats.
        kernel_size, stride, padding: of the windows; stride is kernel_size if left out. Padding is
            0, at most half of kernel_size.
        ceil_mode: whether a last window that does not fit is cut, rather than left out.
        count_include_pad: whether cells in the padding count in the divisor. What a window reaches
            beyond the padding never does.
        divisor_override: the divisor, whatever the number of cells.

    Raises:
        ShapeError: the input has no such axes or is empty, or the windows do not fit.
        DtypeError: the input is not of floats.
        RangeError: an argument is out of range, or not one for each axis.
        TypeError: an argument is no integer.
    """
    return ops.avg_pool2d(
        input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def adaptive_avg_pool1d(input: Tensor, output_size: Lengths) -> Tensor:
    """The means of ``output_size`` windows that share out the last axis of (n, c, l) or (c, l)."""
    return ops.adaptive_avg_pool1d(input, output_size)


def adaptive_avg_pool2d(input: Tensor, output_size: int | tuple[int | None, ...]) -> Tensor:
    """The means of windows that share out the last two axes of (n, c, h, w) or (c, h, w).

    Window i of m over n cells has those from ``floor(i·n / m)`` to ``ceil((i + 1)·n / m)``.
    ``output_size`` is one number or two; None keeps the length of an axis.

    Raises:
        ShapeError: the input has no such axes or is empty.
        DtypeError: the input is not of floats.
        RangeError: output_size is negative, or not one for each axis.
        TypeError: output_size is no integer.
    """
    return ops.adaptive_avg_pool2d(input, output_size)


def adaptive_max_pool1d(input: Tensor, output_size: Lengths, return_indices: bool = False) -> Any:
    """The largest of ``output_size`` windows that share out the last axis of (n, c, l) or (c, l),
    and with ``return_indices`` where they are."""
    return ops.adaptive_max_pool1d(input, output_size, return_indices)


def adaptive_max_pool2d(
    input: Tensor, output_size: int | tuple[int | None, ...], return_indices: bool = False
) -> Any:
    """The largest of windows that share out the last two axes, as `adaptive_avg_pool2d` does; with
    ``return_indices`` also where they are, ``row * w + column``.

    Raises:
        ShapeError: the input has no such axes or is empty.
        DtypeError: the input is bool.
        RangeError: output_size is negative, or not one for each axis.
        TypeError: output_size is no integer.
    """
    return ops.adaptive_max_pool2d(input, output_size, return_indices)
