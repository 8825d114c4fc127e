"""Layers that drop elements at random."""

from ..tensor import Tensor
from . import functional as F
from .module import Module


class Dropout(Module):
    """In training mode, zero each element with probability p and divide the others by 1 - p.

    Raises:
        ValueError: p is not in [0, 1].

    Notes: N. Srivastava et al., "Dropout: a simple way to prevent neural networks from
        overfitting" (JMLR 2014).
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype."""
        return F.dropout(input, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"
