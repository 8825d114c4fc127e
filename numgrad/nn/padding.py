"""Layers that pad the last one or two axes."""

from ..ops.attributes import Lengths
from ..tensor import Tensor
from . import functional as F
from .module import Module


class _Pad(Module):
    """Pads ``axes`` axes; ``padding`` is one number, or (before, after) of the last axis and then
    of the one before it."""

    axes = 1
    mode = "constant"

    def __init__(self, padding: Lengths) -> None:
        super().__init__()
        if isinstance(padding, (tuple, list)):
            self.padding = tuple(padding)
        else:
            self.padding = (padding,) * (2 * self.axes)

    def forward(self, input: Tensor) -> Tensor:
        """The input with longer axes."""
        return F.pad(input, self.padding, self.mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    def __init__(self, padding: Lengths, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        """The input with longer axes."""
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPad):
    """``value`` before and behind the last axis."""


class ConstantPad2d(_ConstantPad):
    """``value`` around the last two axes: padding is one number, or (left, right, top, bottom)."""

    axes = 2


class ZeroPad1d(_Pad):
    """Zeros before and behind the last axis."""


class ZeroPad2d(_Pad):
    """Zeros around the last two axes: padding is one number, or (left, right, top, bottom)."""

    axes = 2


class ReflectionPad1d(_Pad):
    """The last axis mirrored at its ends, which are not repeated: (n, c, l) or (c, l)."""

    mode = "reflect"


class ReflectionPad2d(_Pad):
    """The last two axes mirrored at their edges, which are not repeated: (n, c, h, w) or
    (c, h, w); padding is one number, or (left, right, top, bottom)."""

    axes, mode = 2, "reflect"


class ReplicationPad1d(_Pad):
    """The ends of the last axis repeated: (n, c, l) or (c, l)."""

    mode = "replicate"


class ReplicationPad2d(_Pad):
    """The edges of the last two axes repeated: (n, c, h, w) or (c, h, w); padding is one number,
    or (left, right, top, bottom)."""

    axes, mode = 2, "replicate"


class CircularPad1d(_Pad):
    """The last axis going round: (n, c, l) or (c, l)."""

    mode = "circular"


class CircularPad2d(_Pad):
    """The last two axes going round: (n, c, h, w) or (c, h, w); padding is one number, or (left,
    right, top, bottom)."""

    axes, mode = 2, "circular"
