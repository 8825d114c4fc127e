"""Losses as layers."""

from ..ops.losses import REDUCTIONS, check_reduction
from ..tensor import Tensor
from . import functional as F
from .functional.loss import reduction_of
from .module import Module


class _Loss(Module):
    allowed: tuple[str, ...] = REDUCTIONS

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        self.reduction = reduction_of(size_average, reduce, reduction)
        check_reduction(type(self).__name__, self.reduction, self.allowed)


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
        check_reduction(type(self).__name__, self.reduction)
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


class SmoothL1Loss(_Loss):
    """``(x - y)² / (2 · beta)`` where ``|x - y| < beta``, else ``|x - y| - beta / 2``, reduced.

    Raises:
        ValueError: reduction is unknown.
    """

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        beta: float = 1.0,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape to a scalar, or to that shape with ``none``."""
        return F.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class HuberLoss(_Loss):
    """``(x - y)² / 2`` where ``|x - y| ≤ delta``, else ``delta · (|x - y| - delta / 2)``, reduced.

    Raises:
        ValueError: reduction is unknown.
    """

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.delta = delta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape to a scalar, or to that shape with ``none``."""
        return F.huber_loss(input, target, reduction=self.reduction, delta=self.delta)


class BCELoss(_Loss):
    """Binary cross-entropy of probabilities; see `functional.binary_cross_entropy`.

    Raises:
        ValueError: reduction is unknown.
    """

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape to a scalar, or to that shape with ``none``."""
        return F.binary_cross_entropy(input, target, self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(_Loss):
    """`BCELoss` of the sigmoid; see `functional.binary_cross_entropy_with_logits`.

    Raises:
        ValueError: reduction is unknown.
    """

    weight: Tensor | None
    pos_weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape to a scalar, or to that shape with ``none``."""
        return F.binary_cross_entropy_with_logits(
            input, target, self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )


class KLDivLoss(_Loss):
    """Kullback-Leibler divergence of log-probabilities; see `functional.kl_div`.

    Raises:
        ValueError: reduction is unknown.
    """

    allowed = (*REDUCTIONS, "batchmean")

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        log_target: bool = False,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape to a scalar, or to that shape with ``none``."""
        return F.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


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

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, size_average, ignore_index, reduce, reduction)
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """(n, c) and int64 (n,) to a scalar, or to (n,) with ``none``."""
        return F.cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )
