"""Filling parameters with their first values, in place.

Every function returns its tensor and takes no part in a graph. The names without an underscore at
the end are those of PyTorch 0.3.

Sources: X. Glorot, Y. Bengio, "Understanding the difficulty of training deep feedforward neural
networks" (AISTATS 2010), eq. 16; K. He, X. Zhang, S. Ren, J. Sun, "Delving deep into rectifiers"
(ICCV 2015), eq. 10 and 14; A. Saxe, J. McClelland, S. Ganguli, "Exact solutions to the nonlinear
dynamics of learning in deep linear neural networks" (ICLR 2014) for orthogonal matrices;
S. Zagoruyko, N. Komodakis, "DiracNets" (2017) for the identity as a convolution; J. Martens, "Deep
learning via Hessian-free optimization" (ICML 2010) for sparse matrices.
"""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..graph.errors import warn_user
from ..graph.mode import no_grad
from ..ops.creation import from_numpy
from ..ops.random import rand, randn, randperm
from ..tensor import Tensor

__all__ = [
    "calculate_gain",
    "constant",
    "constant_",
    "dirac",
    "dirac_",
    "eye",
    "eye_",
    "kaiming_normal",
    "kaiming_normal_",
    "kaiming_uniform",
    "kaiming_uniform_",
    "normal",
    "normal_",
    "ones_",
    "orthogonal",
    "orthogonal_",
    "sparse",
    "sparse_",
    "trunc_normal_",
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


class _Skipping(threading.local):
    on = False


_skipping = _Skipping()


@contextmanager
def skipped() -> Iterator[None]:
    """Let `uniform_` and `normal_` do nothing in this thread: what modules made in here would draw
    is replaced by loaded values, and drawing those of VGG takes seconds and memory."""
    before, _skipping.on = _skipping.on, True
    try:
        yield
    finally:
        _skipping.on = before


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


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Tensor:
    """Fill with numbers uniform in [a, b)."""
    if _skipping.on:
        return tensor
    with no_grad():
        return tensor.uniform_(a, b, generator=generator)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    """Fill with numbers from the normal distribution of ``mean`` and ``std``."""
    if _skipping.on:
        return tensor
    with no_grad():
        return tensor.normal_(mean, std, generator=generator)


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


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Fill with numbers uniform in [-a, a), a = gain · sqrt(6 / (fan_in + fan_out)).

    Raises:
        ValueError: the tensor has fewer than two axes.
    """
    bound = gain * math.sqrt(6 / sum(_fans(tensor, "xavier_uniform_")))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Fill with normal numbers of mean 0 and std = gain · sqrt(2 / (fan_in + fan_out)).

    Raises:
        ValueError: the tensor has fewer than two axes.
    """
    std = gain * math.sqrt(2 / sum(_fans(tensor, "xavier_normal_")))
    return normal_(tensor, 0.0, std, generator)


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
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Any = None,
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
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Any = None,
) -> Tensor:
    """Fill with normal numbers of mean 0 and std = gain / sqrt(fan).

    Arguments and errors are those of `kaiming_uniform_`.
    """
    if 0 in tensor.shape:
        return tensor
    std = _kaiming_std(tensor, a, mode, nonlinearity, "kaiming_normal_")
    return normal_(tensor, 0.0, std, generator)


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Any = None,
) -> Tensor:
    """Fill with normal numbers of ``mean`` and ``std``, those outside [a, b] drawn anew.

    Where little of the distribution lies in [a, b], numbers uniform there are kept in proportion to
    the density instead. a and b are values, not deviations.

    Raises:
        ValueError: a is not below b, or std not above 0.
    """
    if not (a < b and std > 0):
        raise ValueError(
            f"trunc_normal_: expected a < b and std > 0, got a={a}, b={b}, std={std}; swap a and b"
        )
    if mean < a - 2 * std or mean > b + 2 * std:
        warn_user(
            "mean is more than 2 std from [a, b] in nn.init.trunc_normal_. The distribution of "
            "values may be incorrect."
        )
    share = _normal_share((b - mean) / std) - _normal_share((a - mean) / std)
    nearest = min(max(mean, a), b)
    reach = math.hypot(nearest - mean, 9 * std)  # beyond, the density is e**-40 of its peak
    low, high = max(a, mean - reach), min(b, mean + reach)
    values = np.empty(tensor.numel())
    missing = np.arange(values.size)
    while missing.size:
        n = missing.size
        if share > 0.3:
            drawn = mean + std * randn(n, dtype="float64", generator=generator).numpy()
            good = (drawn >= a) & (drawn <= b)
        else:
            drawn = low + (high - low) * rand(n, dtype="float64", generator=generator).numpy()
            exponent = ((nearest - mean) ** 2 - (drawn - mean) ** 2) / (2 * std**2)
            good = rand(n, dtype="float64", generator=generator).numpy() <= np.exp(exponent)
        values[missing[good]] = drawn[good]
        missing = missing[~good]
    return _write(tensor, values)


def _normal_share(z: float) -> float:
    """How much of the standard normal distribution lies below z."""
    return math.erfc(-z / math.sqrt(2)) / 2


def _write(tensor: Tensor, values: np.ndarray) -> Tensor:
    """Copy numbers into a tensor of as many elements."""
    with no_grad():
        return tensor.copy_(from_numpy(values.reshape(tensor.shape)))


def orthogonal_(tensor: Tensor, gain: float = 1, generator: Any = None) -> Tensor:
    """Fill (n, m, …), seen as a matrix (n, m · …), with ``gain`` times a random one whose rows, or
    columns if there are more rows, are orthonormal.

    Raises:
        ValueError: the tensor has fewer than two axes.
    """
    if len(tensor.shape) < 2:
        raise ValueError(
            "orthogonal_: expected two axes or more for tensor, got shape "
            f"{tuple(tensor.shape)}; view it as a matrix"
        )
    if 0 in tensor.shape:
        return tensor
    n, m = tensor.shape[0], tensor.numel() // tensor.shape[0]
    drawn = randn(max(n, m), min(n, m), dtype="float64", generator=generator).numpy()
    q, r = np.linalg.qr(drawn)
    q *= np.sign(np.diag(r))  # uniform over all such matrices: F. Mezzadri (2007)
    return _write(tensor, gain * (q if n >= m else q.T))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fill the weight of a convolution (n, c, …) so that it copies its channels: 1 in the middle of
    the kernel from channel i to channel i of each group, 0 elsewhere.

    Raises:
        ValueError: the tensor has not three to five axes, or n is no multiple of groups.
    """
    shape = tuple(tensor.shape)
    if not 3 <= len(shape) <= 5:
        raise ValueError(
            f"dirac_: expected three to five axes for tensor, got shape {shape}; it is for the "
            "weights of convolutions"
        )
    if groups < 1 or shape[0] % groups:
        raise ValueError(
            f"dirac_: expected a divisor of {shape[0]} for groups, got {groups}; use those of the "
            "convolution"
        )
    values = np.zeros(shape)
    each = shape[0] // groups
    middle = tuple(k // 2 for k in shape[2:])
    for group in range(groups):
        for i in range(min(each, shape[1])):
            values[group * each + i, i][middle] = 1
    return _write(tensor, values)


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Any = None) -> Tensor:
    """Fill a matrix with normal numbers of ``std``, then set the part ``sparsity`` of each column,
    rounded up, to 0.

    Raises:
        ValueError: the tensor has not two axes.
    """
    if len(tensor.shape) != 2:
        raise ValueError(
            "sparse_: expected two axes for tensor, got shape "
            f"{tuple(tensor.shape)}; view it as a matrix"
        )
    rows, columns = tensor.shape
    values = std * randn(rows, columns, dtype="float64", generator=generator).numpy()
    for j in range(columns):
        order = randperm(rows, generator=generator).numpy()
        values[order[: math.ceil(sparsity * rows)], j] = 0
    return _write(tensor, values)


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
orthogonal, dirac, sparse = orthogonal_, dirac_, sparse_
