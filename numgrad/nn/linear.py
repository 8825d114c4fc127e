"""Layers that multiply with a matrix."""

from typing import Any

import numpy as np

from ..graph.errors import expected
from ..ops.creation import empty
from ..tensor import Tensor
from ..variable import Parameter
from . import functional as F
from . import init
from .module import Module


class Linear(Module):
    """``y = x @ weight.T + bias``.

    Args:
        in_features: length of the last axis of x, (…, in_features).
        out_features: length of the last axis of y, (…, out_features).
        bias: whether there is one.
        device, dtype: of the parameters.

    Attributes:
        weight: (out_features, in_features), uniform in ±1 / sqrt(in_features) at first.
        bias: (out_features,) or None, from the same distribution.

    Raises:
        ShapeError: the last axis of x is not in_features long.
        ValueError: a length is negative. TypeError: one is no integer.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        _length("in_features", in_features)
        _length("out_features", out_features)
        self.in_features, self.out_features = in_features, out_features
        shape = out_features, in_features
        self.weight = Parameter(empty(shape, dtype=dtype, device=device))
        if bias:
            self.bias: Parameter | None = Parameter(
                empty((out_features,), dtype=dtype, device=device)
            )
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        init.default_linear_(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """(…, in_features) to (…, out_features)."""
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}"


def _length(name: str, n: Any) -> None:
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise TypeError(expected("Linear", "an integer", name, repr(n), "pass the axis' length"))
    if n < 0:
        raise ValueError(
            expected("Linear", "a length of 0 or more", name, n, "pass the axis' length")
        )


class Identity(Module):
    """Returns its input; a place to put another layer later. Arguments are ignored."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        """The input."""
        return input
