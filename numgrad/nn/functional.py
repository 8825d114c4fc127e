"""Functions with the signatures of ``torch.nn.functional``."""

import math
from typing import Any

from .. import ops
from ..ops.softmax import reduction_of
from ..tensor import Tensor

# --------------------------------------------------------------------------------------- layers


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``input @ weight.T + bias``: (…, in) with (out, in) and (out,) gives (…, out)."""
    return ops.linear(input, weight, bias)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero each element with probability p and divide the others by 1 - p, when ``training``.

    Raises:
        ValueError: p is not in [0, 1].

    Notes: N. Srivastava et al., "Dropout: a simple way to prevent neural networks from
        overfitting" (JMLR 2014).
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0:
        return input
    return ops.dropout(input, p, inplace=inplace)


# ----------------------------------------------------------------------------------- activations


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """``max(x, 0)``."""
    return ops.relu.in_place(input) if inplace else ops.relu(input)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """``min(max(x, 0), 6)``."""
    return ops.relu6.in_place(input) if inplace else ops.relu6(input)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """``x`` where positive, else ``negative_slope · x``."""
    if inplace:
        return ops.leaky_relu.in_place(input, negative_slope)
    return ops.leaky_relu(input, negative_slope)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """``x`` where positive, else ``alpha · (exp(x) - 1)``."""
    return ops.elu.in_place(input, alpha) if inplace else ops.elu(input, alpha)


def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """``x`` cut to ``[min_val, max_val]``."""
    if inplace:
        return ops.hardtanh.in_place(input, min_val, max_val)
    return ops.hardtanh(input, min_val, max_val)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """``log(1 + exp(beta · x)) / beta``, and ``x`` itself where ``beta · x > threshold``."""
    return ops.softplus(input, beta, threshold)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """``x · sigmoid(x)``."""
    return ops.silu.in_place(input) if inplace else ops.silu(input)


def gelu(input: Tensor) -> Tensor:
    """``x · Φ(x)``, Φ the distribution function of the standard normal."""
    return ops.gelu(input)


def tanh(input: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return ops.tanh(input)


def sigmoid(input: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``."""
    return ops.sigmoid(input)


def logsigmoid(input: Tensor) -> Tensor:
    """``log(sigmoid(x))``, as ``-softplus(-x)``."""
    # No threshold: beyond it softplus is cut to its asymptote.
    return -ops.softplus(ops.neg(input), 1.0, math.inf)


def softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """``exp(x) / sum(exp(x))`` over the axis ``dim``, computed in ``dtype`` if given.

    Without ``dim`` it warns and takes axis 0 of tensors with 0, 1 or 3 axes, else axis 1.
    ``_stacklevel`` is taken for old calls by position and not used: warnings name the user's line.

    Raises:
        IndexError: there is no such axis.
    """
    return ops.softmax(input, dim, dtype)


def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """``x - log(sum(exp(x)))`` over the axis ``dim``, which is chosen as by `softmax`.

    Raises:
        IndexError: there is no such axis.
    """
    return ops.log_softmax(input, dim, dtype)


# ---------------------------------------------------------------------------------------- losses


def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``(x - y)²``, reduced: its mean, its sum, or itself with ``none``.

    Raises:
        ShapeError: the shapes do not broadcast. Different shapes that do so warn.
        ValueError: reduction is unknown.
    """
    return ops.mse_loss(input, target, reduction=reduction_of(size_average, reduce, reduction))


def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``|x - y|``, reduced: its mean, its sum, or itself with ``none``.

    Raises:
        ShapeError: the shapes do not broadcast.
        ValueError: reduction is unknown.
    """
    return ops.l1_loss(input, target, reduction=reduction_of(size_average, reduce, reduction))


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``-w[y] · x[y]`` for log-probabilities x and class numbers y.

    Args:
        input: float (n, c), (c,) or (n, c, …): log-probabilities.
        target: int64 (n,), () or (n, …): class numbers from 0 to c - 1.
        weight: float (c,): a factor a class, 1 if None.
        ignore_index: targets of this number count for nothing.
        reduction: ``none``; ``sum``; ``mean``, the sum over the sum of the weights that counted.

    Raises:
        ShapeError: the shapes do not fit.
        DtypeError: target is not of integers.
        IndexError: a target is no class.
        ValueError: reduction is unknown.
    """
    reduction = reduction_of(size_average, reduce, reduction)
    return ops.nll_loss(input, target, weight, ignore_index=ignore_index, reduction=reduction)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`nll_loss` of `log_softmax`: input are scores of any scale. See there for the rest."""
    reduction = reduction_of(size_average, reduce, reduction)
    return ops.cross_entropy(input, target, weight, ignore_index=ignore_index, reduction=reduction)
