"""Linear, dropout and the activations, with the signatures of ``torch.nn.functional``."""

import math
from typing import Any

from ... import ops
from ...ops.declare import NUMBERS
from ...ops.primitive import tensor_operand
from ...ops.random import dropout_channels
from ...tensor import Tensor

# --------------------------------------------------------------------------------------- layers


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``input @ weight.T + bias``: (…, in) with (out, in) and (out,) gives (…, out)."""
    return ops.linear(input, weight, bias)


def check_probability(op: str, p: Any) -> None:
    """Raise ValueError unless p is a number in [0, 1]."""
    if not isinstance(p, NUMBERS) or not 0 <= p <= 1:
        raise ValueError(
            f"{op}: expected a probability in [0, 1] for p, got {p!r}; dropout probability has to "
            "be between 0 and 1"
        )


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero each element with probability p and divide the others by 1 - p, when ``training``.

    Raises:
        ValueError: p is not in [0, 1].

    Notes: N. Srivastava et al., "Dropout: a simple way to prevent neural networks from
        overfitting" (JMLR 2014).
    """
    check_probability("dropout", p)
    if not training or p == 0:
        return input
    return ops.dropout(input, p, inplace=inplace)


def dropout2d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Zero each channel with probability p and divide the others by 1 - p, when ``training``.

    Args:
        input: (n, c, h, w); (n, c, l) works too, and (n, c) with a warning.

    Raises:
        ValueError: p is not in [0, 1].
        ShapeError: input has fewer axes than two.

    Notes: J. Tompson et al., "Efficient object localization using convolutional networks"
        (CVPR 2015).
    """
    check_probability("dropout2d", p)
    if not training or p == 0:
        return input
    return dropout_channels(input, p, inplace)


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


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """``x`` where positive, else ``weight · x``.

    Args:
        input: floating, of any shape; its channels are its axis 1.
        weight: one value, or one a channel.

    Raises:
        ShapeError: weight has more axes than one, or not as many values as there are channels.
        DtypeError: the dtypes differ.

    Notes: K. He, X. Zhang, S. Ren, J. Sun, "Delving deep into rectifiers" (ICCV 2015), eq. 1.
    """
    return ops.prelu(input, weight)


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
    return -ops.softplus(ops.neg(tensor_operand("logsigmoid", input)), 1.0, math.inf)


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


def relu_(input: Tensor) -> Tensor:
    """`relu` in place."""
    return relu(input, inplace=True)


def leaky_relu_(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """`leaky_relu` in place."""
    return leaky_relu(input, negative_slope, inplace=True)


def elu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """`elu` in place."""
    return elu(input, alpha, inplace=True)


def hardtanh_(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """`hardtanh` in place."""
    return hardtanh(input, min_val, max_val, inplace=True)
