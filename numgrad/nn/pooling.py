"""Pooling layers."""

from typing import Any

from ..ops.attributes import Lengths
from ..tensor import Tensor
from . import functional as F
from .module import Module


class _MaxPool(Module):
    def __init__(
        self,
        kernel_size: Lengths,
        stride: Lengths | None = None,
        padding: Lengths = 0,
        dilation: Lengths = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def _arguments(self) -> tuple[Any, ...]:
        windows = (self.kernel_size, self.stride, self.padding, self.dilation)
        return (*windows, self.ceil_mode, self.return_indices)

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """The largest of each window: (n, c, l) or (c, l). See `MaxPool2d`."""

    def forward(self, input: Tensor) -> Any:
        """``(…, c, l)`` to ``(…, c, ol)``; with ``return_indices`` also where the maxima are."""
        return F.max_pool1d(input, *self._arguments())


class MaxPool2d(_MaxPool):
    """The largest of each window: (n, c, h, w) or (c, h, w).

    Args:
        kernel_size, stride, padding, dilation: of the windows, a number or one for each axis;
            stride is kernel_size if left out. Padding is ``-inf``, at most half of kernel_size.
        return_indices: whether to return also where each maximum is.
        ceil_mode: whether a last window that does not fit is cut, rather than left out.

    See `functional.max_pool2d` for what it raises.
    """

    def forward(self, input: Tensor) -> Any:
        """``(…, c, h, w)`` to ``(…, c, oh, ow)``; with ``return_indices`` also where the maxima
        are."""
        return F.max_pool2d(input, *self._arguments())


class AvgPool1d(Module):
    """The mean of each window: (n, c, l) or (c, l). See `AvgPool2d`."""

    def __init__(
        self,
        kernel_size: Lengths,
        stride: Lengths | None = None,
        padding: Lengths = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size = _single(kernel_size)
        self.stride = self.kernel_size if stride is None else _single(stride)
        self.padding = _single(padding)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        """``(…, c, l)`` to ``(…, c, ol)``."""
        return F.avg_pool1d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


def _single(value: Lengths) -> tuple[int, ...]:
    """As a tuple of one, which is how PyTorch keeps and shows it."""
    return (value,) if not isinstance(value, (tuple, list)) else tuple(value)


class AvgPool2d(Module):
    """The mean of each window: (n, c, h, w) or (c, h, w).

    Args:
        kernel_size, stride, padding: of the windows, a number or one for each axis; stride is
            kernel_size if left out. Padding is 0, at most half of kernel_size.
        ceil_mode: whether a last window that does not fit is cut, rather than left out.
        count_include_pad: whether cells in the padding count in the divisor.
        divisor_override: the divisor, whatever the number of cells.

    See `functional.avg_pool2d` for what it raises.
    """

    def __init__(
        self,
        kernel_size: Lengths,
        stride: Lengths | None = None,
        padding: Lengths = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding, self.ceil_mode = padding, ceil_mode
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override

    def forward(self, input: Tensor) -> Tensor:
        """``(…, c, h, w)`` to ``(…, c, oh, ow)``."""
        return F.avg_pool2d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _Adaptive(Module):
    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_Adaptive):
    """The means of ``output_size`` windows that share out the last axis: (n, c, l) or (c, l)."""

    def forward(self, input: Tensor) -> Tensor:
        """``(…, c, l)`` to ``(…, c, output_size)``."""
        return F.adaptive_avg_pool1d(input, self.output_size)


class AdaptiveAvgPool2d(_Adaptive):
    """The means of windows that share out the last two axes: (n, c, h, w) or (c, h, w).

    ``output_size`` is one number or two; None keeps the length of an axis.
    """

    def forward(self, input: Tensor) -> Tensor:
        """``(…, c, h, w)`` to ``(…, c, *output_size)``."""
        return F.adaptive_avg_pool2d(input, self.output_size)


class _AdaptiveMax(_Adaptive):
    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices


class AdaptiveMaxPool1d(_AdaptiveMax):
    """The largest of ``output_size`` windows that share out the last axis: (n, c, l) or (c, l)."""

    def forward(self, input: Tensor) -> Any:
        """``(…, c, l)`` to ``(…, c, output_size)``."""
        return F.adaptive_max_pool1d(input, self.output_size, self.return_indices)


class AdaptiveMaxPool2d(_AdaptiveMax):
    """The largest of windows that share out the last two axes: (n, c, h, w) or (c, h, w).

    ``output_size`` is one number or two; None keeps the length of an axis.
    """

    def forward(self, input: Tensor) -> Any:
        """``(…, c, h, w)`` to ``(…, c, *output_size)``."""
        return F.adaptive_max_pool2d(input, self.output_size, self.return_indices)
