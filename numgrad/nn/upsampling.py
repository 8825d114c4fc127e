"""Layers that make the last one or two axes longer or shorter."""

from typing import Any

from ..graph.errors import expected
from ..tensor import Tensor
from . import functional as F
from .module import Module


def _floats(op: str, scale_factor: Any) -> Any:
    try:
        if isinstance(scale_factor, (tuple, list)):
            return tuple(float(factor) for factor in scale_factor)
        return float(scale_factor) if scale_factor else None
    except (TypeError, ValueError):
        way_out = "pass one, or one for each axis"
        raise TypeError(
            expected(op, "numbers", "scale_factor", repr(scale_factor), way_out)
        ) from None


class Upsample(Module):
    """The last axes of (n, c, l) or (n, c, h, w) made longer or shorter.

    Args:
        size: the new lengths, one for each axis or one for all.
        scale_factor: instead of it, lengths ``floor(n · scale_factor)``.
        mode, align_corners, recompute_scale_factor: see `functional.interpolate`, also for what it
            raises; only ``nearest`` is there.
    """

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.size, self.scale_factor = size, _floats(type(self).__name__, scale_factor)
        self.mode, self.align_corners = mode, align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        """The input with its last axes at their new lengths."""
        return F.interpolate(
            input,
            self.size,
            self.scale_factor,
            self.mode,
            self.align_corners,
            self.recompute_scale_factor,
        )

    def extra_repr(self) -> str:
        given = "size" if self.scale_factor is None else "scale_factor"
        return f"{given}={getattr(self, given)!r}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """`Upsample` with mode ``nearest``, of (n, c, h, w)."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor)
