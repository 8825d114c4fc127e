"""Activations with parameters of their own."""

from typing import Any

from ..graph.errors import DtypeError, ShapeError, expected, shown
from ..graph.mode import composite
from ..kernels import scalar as s
from .declare import elementwise, floating
from .movement import reshape
from .primitive import tensor_operand


@elementwise(
    dx=lambda g, x, slope: s.where(x > 0, g, g * slope),
    dslope=lambda g, x: s.where(x > 0, 0, g * x),
    dtype=floating,
    edges=(0.0,),
    reference="numgrad.kernels.reference.elementwise:leaky_relu",
)
def sloped(x, slope):
    """``x`` where positive, else ``slope * x``, with a slope that can be learned."""
    return s.where(x > 0, x, slope * x)


@composite
def prelu(x: Any, weight: Any) -> Any:
    """``x`` where positive, else ``weight * x``: one weight, or one a channel (axis 1).

    Raises:
        ShapeError: weight has two axes or more, or neither 1 value nor one a channel.
        DtypeError: the dtypes differ or are not floating.

    Notes: K. He, X. Zhang, S. Ren, J. Sun, "Delving deep into rectifiers" (ICCV 2015), eq. 1.
    """
    tensor_operand("prelu", x)
    tensor_operand("prelu", weight, "weight")
    if weight.dim() > 1:
        raise ShapeError(
            expected("prelu", "a 0-dim or 1-dim tensor", "weight", shown(weight), "flatten it")
        )
    channels = x.shape[1] if x.dim() > 1 else 1
    if weight.numel() != 1 and (weight.numel() != channels or x.dim() == 0):
        raise ShapeError(
            expected(
                "prelu",
                f"1 value or {channels}, one a channel of x {x.shape},",
                "weight",
                shown(weight),
                "a channel is a place along axis 1",
            )
        )
    if weight.dtype != x.dtype or x.dtype.kind != "f":
        raise DtypeError(
            expected(
                "prelu",
                f"the floating dtype of x, {x.dtype},",
                "weight",
                shown(weight),
                "convert one",
            )
        )
    if x.dim() > 2 or weight.dim() > x.dim():
        weight = reshape(weight, (weight.numel(), *[1] * (x.dim() - 2))[: x.dim()])
    return sloped(x, weight)
