"""Filling parameters with their first values, in place.

Every function returns its tensor and takes no part in a graph. The names without an underscore at
the end are those of PyTorch 0.3.

Sources: X. Glorot, Y. Bengio, "Understanding the difficulty of training deep feedforward neural
networks" (AISTATS 2010), eq. 16; K. He, X. Zhang, S. Ren, J. Sun, "Delving deep into rectifiers"
(ICCV 2015), eq. 10 and 14.
"""

import math
from typing import Any

from ..graph.mode import no_grad
from ..tensor import Tensor

__all__ = [
    "calculate_gain",
    "constant",
    "constant_",
    "eye",
    "eye_",
    "kaiming_normal",
    "kaiming_normal_",
    "kaiming_uniform",
    "kaiming_uniform_",
    "normal",
    "normal_",
    "ones_",
    "uniform",
    "uniform_",
    "xavier_normal",
    "xavier_normal_",
    "xavier_uniform",
    "xavier_uniform_",
    "zeros_",
]

_GAINS = {
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d", "sigmoid"), 1.0),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), 1.0),
    "tanh": 5 / 3,
    "relu": math.sqrt(2),
    "selu": 0.75,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor for the standard deviation that suits what follows a layer.

    1 for linear, conv and sigmoid; 5/3 for tanh; sqrt(2) for relu; 3/4 for selu;
    sqrt(2 / (1 + param²)) for leaky_relu, whose ``param`` is its slope, 0.01 if None.

    Raises:
        ValueError: nonlinearity is none of these, or the slope no number.
    """
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, (int, float)):
            raise ValueError(f"negative_slope {param} not a valid number")
        return math.sqrt(2 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        names = ", ".join([*_GAINS, "leaky_relu"])
        raise ValueError(
            f"calculate_gain: expected one of {names} for nonlinearity, got {nonlinearity!r}; "
            "pass 'linear' for a gain of 1"
        )
    return _GAINS[nonlinearity]


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Fill with numbers uniform in [a, b)."""
    with no_grad():
        return tensor.uniform_(a, b)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Fill with numbers from the normal distribution of ``mean`` and ``std``."""
    with no_grad():
        return tensor.normal_(mean, std)


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with ``val``."""
    with no_grad():
        return tensor.fill_(val)


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with 0."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Fill with 1."""
    return constant_(tensor, 1.0)


def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix (n, m) with 1 on the diagonal and 0 elsewhere.

    Raises:
        ValueError: the tensor has not two axes.
    """
    if len(tensor.shape) != 2:
        raise ValueError(
            "eye_: expected two axes for tensor, got shape "
            f"{tuple(tensor.shape)}; view it as a matrix"
        )
    with no_grad():
        tensor.zero_()
        for i in range(min(tensor.shape)):
            tensor[i, i] = 1
    return tensor


def _fans(tensor: Tensor, what: str) -> tuple[int, int]:
    """``(fan_in, fan_out)``: how many weights meet in an output, and leave an input."""
    shape = tuple(tensor.shape)
    if len(shape) < 2:
        raise ValueError(
            f"{what}: expected two axes or more for tensor, got shape {shape}; "
            "fan in and fan out are not defined for it: use uniform_ or normal_"
        )
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Fill with numbers uniform in [-a, a), a = gain · sqrt(6 / (fan_in + fan_out)).

    Raises:
        ValueError: the tensor has fewer than two axes.
    """
    bound = gain * math.sqrt(6 / sum(_fans(tensor, "xavier_uniform_")))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Fill with normal numbers of mean 0 and std = gain · sqrt(2 / (fan_in + fan_out)).

    Raises:
        ValueError: the tensor has fewer than two axes.
    """
    std = gain * math.sqrt(2 / sum(_fans(tensor, "xavier_normal_")))
    return normal_(tensor, 0.0, std)


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str, what: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(
            f"{what}: expected fan_in or fan_out for mode, got {mode!r}; fan_in keeps the "
            "variance of results, fan_out that of gradients"
        )
    fan_in, fan_out = _fans(tensor, what)
    fan = fan_in if mode == "fan_in" else fan_out
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def kaiming_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """Fill with numbers uniform in [-b, b), b = gain · sqrt(3 / fan).

    Args:
        tensor: filled in place.
        a: the slope of leaky_relu for negative numbers.
        mode: which fan counts, ``fan_in`` or ``fan_out``.
        nonlinearity: whose gain is taken; see `calculate_gain`.

    Raises:
        ValueError: the tensor has fewer than two axes; mode or nonlinearity is unknown.
    """
    if 0 in tensor.shape:
        return tensor
    std = _kaiming_std(tensor, a, mode, nonlinearity, "kaiming_uniform_")
    bound = math.sqrt(3) * std
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """Fill with normal numbers of mean 0 and std = gain / sqrt(fan).

    Arguments and errors are those of `kaiming_uniform_`.
    """
    if 0 in tensor.shape:
        return tensor
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity, "kaiming_normal_"))


def default_linear_(weight: Tensor, bias: Any) -> None:
    """What `Linear` and the convolutions start from: both uniform in ±1 / sqrt(fan_in).

    For the weight that is ``kaiming_uniform_(weight, a=sqrt(5))``, as PyTorch writes it.
    """
    kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        fan_in, _ = _fans(weight, "reset_parameters")
        bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
        uniform_(bias, -bound, bound)


uniform, normal, constant, eye = uniform_, normal_, constant_, eye_
xavier_uniform, xavier_normal = xavier_uniform_, xavier_normal_
kaiming_uniform, kaiming_normal = kaiming_uniform_, kaiming_normal_
