"""Losses as layers."""

from ..ops.softmax import reduction_of
from ..tensor import Tensor
from . import functional as F
from .module import Module


class _Loss(Module):
    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        self.reduction = reduction_of(size_average, reduce, reduction)


class _WeightedLoss(Module):
    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        self.reduction = reduction_of(size_average, reduce, reduction)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index


class MSELoss(_Loss):
    """``(x - y)²``, reduced: its mean, its sum, or itself with ``none``.

    Raises:
        ValueError: reduction is unknown.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape to a scalar, or to that shape with ``none``."""
        return F.mse_loss(input, target, reduction=self.reduction)


class L1Loss(_Loss):
    """``|x - y|``, reduced: its mean, its sum, or itself with ``none``.

    Raises:
        ValueError: reduction is unknown.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape to a scalar, or to that shape with ``none``."""
        return F.l1_loss(input, target, reduction=self.reduction)


class NLLLoss(_WeightedLoss):
    """``-w[y] · x[y]`` for log-probabilities x and class numbers y; see `functional.nll_loss`.

    Raises:
        ValueError: reduction is unknown.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """(n, c) and int64 (n,) to a scalar, or to (n,) with ``none``."""
        return F.nll_loss(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )


class CrossEntropyLoss(_WeightedLoss):
    """`NLLLoss` of the log-softmax: the input are scores of any scale.

    Raises:
        ValueError: reduction is unknown.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """(n, c) and int64 (n,) to a scalar, or to (n,) with ``none``."""
        return F.cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )
