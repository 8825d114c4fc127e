"""Layers that drop elements at random."""

from ..tensor import Tensor
from . import functional as F
from .functional.basic import check_probability
from .module import Module


class _Dropout(Module):
    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        check_probability(type(self).__name__, p)
        self.p, self.inplace = p, inplace

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """In training mode, zero each element with probability p and divide the others by 1 - p.

    Raises:
        ValueError: p is not in [0, 1].

    Notes: N. Srivastava et al., "Dropout: a simple way to prevent neural networks from
        overfitting" (JMLR 2014).
    """

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype."""
        return F.dropout(input, self.p, self.training, self.inplace)


class Dropout2d(_Dropout):
    """In training mode, zero each channel with probability p and divide the others by 1 - p.

    Raises:
        ValueError: p is not in [0, 1].

    Notes: J. Tompson et al., "Efficient object localization using convolutional networks"
        (CVPR 2015).
    """

    def forward(self, input: Tensor) -> Tensor:
        """(n, c, h, w) or (n, c, l) to the same shape and dtype."""
        return F.dropout2d(input, self.p, self.training, self.inplace)
