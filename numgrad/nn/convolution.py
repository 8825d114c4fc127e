"""Layers that convolve over one or two spatial axes."""

import itertools
from collections.abc import Sequence
from typing import Any

from ..graph.errors import RangeError, ShapeError, expected, shown
from ..ops.attributes import FORMS, Lengths, length, lengths
from ..ops.convolution import same_padding, transposed_size
from ..ops.creation import empty
from ..tensor import Tensor
from ..variable import Parameter
from . import functional as F
from . import init
from .module import Module

PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class _Convolution(Module):
    """What the four layers share: attributes, parameters and how they are shown."""

    axes: int
    """How many spatial axes there are."""
    transposed = False
    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: str | tuple[int, ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]
    groups: int
    padding_mode: str
    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Lengths,
        stride: Lengths,
        padding: str | Lengths,
        output_padding: Lengths,
        dilation: Lengths,
        groups: int,
        bias: bool,
        padding_mode: str,
        device: Any,
        dtype: Any,
    ) -> None:
        super().__init__()
        name, n = type(self).__name__, self.axes
        self.in_channels = length(name, "in_channels", in_channels, 0)
        self.out_channels = length(name, "out_channels", out_channels, 0)
        self.groups = length(name, "groups", groups, 1)
        for which in ("in_channels", "out_channels"):
            if getattr(self, which) % self.groups:
                way_out = "change groups"
                what = f"a number that {self.groups} groups divide"
                raise RangeError(expected(name, what, which, getattr(self, which), way_out))
        self.kernel_size = lengths(name, "kernel_size", kernel_size, n, 1)
        self.stride = lengths(name, "stride", stride, n, 1)
        self.dilation = lengths(name, "dilation", dilation, n, 1)
        self.output_padding = lengths(name, "output_padding", output_padding, n, 0)
        self.padding = self._checked_padding(padding)
        modes = PADDING_MODES[:1] if self.transposed else PADDING_MODES
        if padding_mode not in modes:
            what, way_out = f"one of {', '.join(map(repr, modes))}", "use functional.pad"
            raise RangeError(expected(name, what, "padding_mode", repr(padding_mode), way_out))
        self.padding_mode = padding_mode
        first, second = self.out_channels, self.in_channels
        if self.transposed:
            first, second = second, first
        shape = (first, second // self.groups, *self.kernel_size)
        self.weight = Parameter(empty(shape, dtype=dtype, device=device))
        if bias:
            self.bias = Parameter(empty((self.out_channels,), dtype=dtype, device=device))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def _checked_padding(self, padding: str | Lengths) -> str | tuple[int, ...]:
        name = type(self).__name__
        if not isinstance(padding, str) or self.transposed:
            return lengths(name, "padding", padding, self.axes, 0)
        if padding not in ("same", "valid"):
            what, way_out = "integers, 'valid' or 'same'", "use one of them"
            raise RangeError(expected(name, what, "padding", repr(padding), way_out))
        if padding == "same":
            same_padding(name, self.stride, self.dilation, self.kernel_size)
        return padding

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        init.default_linear_(self.weight, self.bias)

    def extra_repr(self) -> str:
        zeros, ones = (0,) * self.axes, (1,) * self.axes
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        text += f", stride={self.stride}"
        if self.padding != zeros:
            text += f", padding={self.padding}"
        if self.dilation != ones:
            text += f", dilation={self.dilation}"
        if self.output_padding != zeros:
            text += f", output_padding={self.output_padding}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode}"
        return text


class _Conv(_Convolution):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Lengths,
        stride: Lengths = 1,
        padding: str | Lengths = 0,
        dilation: Lengths = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            0,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def _padded(self, input: Tensor) -> tuple[Tensor, str | Lengths]:
        """The input, and the padding with zeros that is left to do."""
        if self.padding_mode == "zeros":
            return input, self.padding
        if self.padding == "same":
            name = type(self).__name__
            before, after = same_padding(name, self.stride, self.dilation, self.kernel_size)
        elif self.padding == "valid":
            before = after = (0,) * self.axes
        else:
            before = after = self.padding  # type: ignore[assignment]
        pairs = zip(before[::-1], after[::-1], strict=True)
        return F.pad(input, tuple(itertools.chain(*pairs)), self.padding_mode), 0


class Conv1d(_Conv):
    """Cross-correlation of sequences: (n, in_channels, l) to (n, out_channels, ol), or both without
    n.

    Arguments, attributes and errors are those of `Conv2d`, with one spatial axis.
    """

    axes = 1

    def forward(self, input: Tensor) -> Tensor:
        """(n, in_channels, l) to (n, out_channels, ol)."""
        x, padding = self._padded(input)
        return F.conv1d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class Conv2d(_Conv):
    """Cross-correlation of images: (n, in_channels, h, w) to (n, out_channels, oh, ow), or both
    without n. The formula stands at `numgrad.conv2d`.

    Args:
        in_channels, out_channels: channels of the input and of the result.
        kernel_size: an integer, or one for each spatial axis, as the next three.
        stride: how far apart the places are at which the kernel is laid.
        padding: zeros around the input; ``'same'`` for as many as keep its size, ``'valid'`` for
            none.
        dilation: how far apart the elements are that the kernel reads.
        groups: into how many groups channels are split; with ``in_channels`` of them it is
            depthwise.
        bias: whether there is one.
        padding_mode: what stands in the padding: ``'zeros'``, or the input ``'reflect'``-ed at the
            edge, its edge (``'replicate'``), or its other end (``'circular'``).
        device, dtype: of the parameters.

    Attributes:
        weight: (out_channels, in_channels / groups, \\*kernel_size), uniform in ±1 / sqrt(fan_in)
            at first, fan_in = in_channels / groups times the elements of the kernel.
        bias: (out_channels,) or None, from the same distribution.

    Raises:
        ShapeError: the input has other channels, or is smaller than the kernel.
        RangeError: groups do not divide the channels; a length is out of range, or not one for
            each axis. TypeError: one is no integer.
    """

    axes = 2

    def forward(self, input: Tensor) -> Tensor:
        """(n, in_channels, h, w) to (n, out_channels, oh, ow)."""
        x, padding = self._padded(input)
        return F.conv2d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class _ConvTranspose(_Convolution):
    transposed = True
    padding: tuple[int, ...]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Lengths,
        stride: Lengths = 1,
        padding: Lengths = 0,
        output_padding: Lengths = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Lengths = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            output_padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def _extra(self, input: Tensor, output_size: int | Sequence[int] | None) -> tuple[int, ...]:
        """The output_padding that gives a spatial size (batch and channels may stand before it)."""
        if output_size is None:
            return self.output_padding
        name, n = type(self).__name__, self.axes
        if input.dim() not in (n + 1, n + 2):
            raise ShapeError(expected(name, FORMS[n], "x", shown(input), "unsqueeze or reshape it"))
        wanted = output_size
        if isinstance(wanted, (tuple, list)) and len(wanted) == input.dim():
            wanted = wanted[-n:]
        wanted = lengths(name, "output_size", wanted, n, 0, one=False)
        least = transposed_size(
            input.shape[-n:], self.kernel_size, self.stride, self.padding, self.dilation, (0,) * n
        )
        most = tuple(h + s - 1 for h, s in zip(least, self.stride, strict=True))
        if not all(a <= h <= b for a, h, b in zip(least, wanted, most, strict=True)):
            what = f"sizes from {least} to {most}"
            way_out = f"x is {shown(input)}"
            raise RangeError(expected(name, what, "output_size", wanted, way_out))
        return tuple(h - a for h, a in zip(wanted, least, strict=True))


class ConvTranspose1d(_ConvTranspose):
    """The adjoint of `Conv1d`: (n, in_channels, l) to (n, out_channels, ol), or both without n.

    Arguments, attributes and errors are those of `ConvTranspose2d`, with one spatial axis.
    """

    axes = 1

    def forward(self, input: Tensor, output_size: int | Sequence[int] | None = None) -> Tensor:
        """(n, in_channels, l) to (n, out_channels, ol), ol the ``output_size`` if given."""
        return F.conv_transpose1d(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self._extra(input, output_size),
            self.groups,
            self.dilation,
        )


class ConvTranspose2d(_ConvTranspose):
    """The adjoint of `Conv2d`: (n, in_channels, h, w) to (n, out_channels, oh, ow), or both without
    n. The formula stands at `numgrad.conv_transpose2d`.

    Args:
        in_channels, out_channels: channels of the input and of the result.
        kernel_size, stride, padding, dilation, groups: those of the `Conv2d` from out_channels to
            in_channels that it is the adjoint of.
        output_padding: how much longer the result is at its end; less than stride or dilation.
        bias: whether there is one.
        padding_mode: ``'zeros'``.
        device, dtype: of the parameters.

    Attributes:
        weight: (in_channels, out_channels / groups, \\*kernel_size), uniform in ±1 / sqrt(fan_in)
            at first, fan_in = out_channels / groups times the elements of the kernel.
        bias: (out_channels,) or None, from the same distribution.

    Raises:
        ShapeError: the input has other channels, or the result would be empty.
        RangeError: groups do not divide the channels; a length is out of range, or not one for
            each axis; no input gives the ``output_size`` asked for. TypeError: a length is no
            integer.
    """

    axes = 2

    def forward(self, input: Tensor, output_size: int | Sequence[int] | None = None) -> Tensor:
        """(n, in_channels, h, w) to (n, out_channels, oh, ow); ``output_size``, (oh, ow) or one
        number for both, takes the place of output_padding."""
        return F.conv_transpose2d(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self._extra(input, output_size),
            self.groups,
            self.dilation,
        )
