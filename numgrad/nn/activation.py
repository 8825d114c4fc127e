"""Activations as layers."""

from typing import Any

from ..ops.creation import empty
from ..tensor import Tensor
from ..variable import Parameter
from . import functional as F
from .init import constant_
from .module import Module


class _InPlace(Module):
    """An activation without parameters that can overwrite its input."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class ReLU(_InPlace):
    """``max(x, 0)``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype."""
        return F.relu(input, self.inplace)


class ReLU6(_InPlace):
    """``min(max(x, 0), 6)``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype."""
        return F.relu6(input, self.inplace)


class SiLU(_InPlace):
    """``x · sigmoid(x)``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype."""
        return F.silu(input, self.inplace)


class LeakyReLU(Module):
    """``x`` where positive, else ``negative_slope · x``."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope, self.inplace = negative_slope, inplace

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype."""
        return F.leaky_relu(input, self.negative_slope, self.inplace)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}" + ", inplace=True" * self.inplace


class PReLU(Module):
    """``x`` where positive, else ``weight · x``, with one weight or one a channel (axis 1).

    Args:
        num_parameters: 1, or the number of channels.
        init: the first value of the weights.

    Notes: K. He, X. Zhang, S. Ren, J. Sun, "Delving deep into rectifiers" (ICCV 2015), eq. 1.
    """

    weight: Parameter

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(empty((num_parameters,), dtype=dtype, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Give the weights their first value."""
        constant_(self.weight, self.init)

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype."""
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class ELU(Module):
    """``x`` where positive, else ``alpha · (exp(x) - 1)``."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha, self.inplace = alpha, inplace

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype."""
        return F.elu(input, self.alpha, self.inplace)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}" + ", inplace=True" * self.inplace


class Hardtanh(Module):
    """``x`` cut to ``[min_val, max_val]``.

    Raises:
        ValueError: min_val is not below max_val.
    """

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        if not min_val < max_val:
            raise ValueError(
                f"Hardtanh: expected max_val > {min_val} for max_val, got {max_val}; swap them"
            )
        self.min_val, self.max_val, self.inplace = min_val, max_val, inplace

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype."""
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace)

    def extra_repr(self) -> str:
        bounds = f"min_val={self.min_val}, max_val={self.max_val}"
        return bounds + ", inplace=True" * self.inplace


class Softplus(Module):
    """``log(1 + exp(beta · x)) / beta``, and ``x`` itself where ``beta · x > threshold``."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype."""
        return F.softplus(input, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class GELU(Module):
    """``x · Φ(x)``, Φ the distribution function of the standard normal."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype."""
        return F.gelu(input)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype."""
        return F.tanh(input)


class Sigmoid(Module):
    """``1 / (1 + exp(-x))``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype."""
        return F.sigmoid(input)


class LogSigmoid(Module):
    """``log(sigmoid(x))``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype."""
        return F.logsigmoid(input)


class Softmax(Module):
    """``exp(x) / sum(exp(x))`` over the axis ``dim``; without it as `functional.softmax`."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype."""
        return F.softmax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Module):
    """``x - log(sum(exp(x)))`` over the axis ``dim``; without it as `functional.softmax`."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype."""
        return F.log_softmax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"
