"""NumPy twins of the elementwise entries that NumPy and SciPy have no function for."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def power(x: Array, y: Array) -> Any:
    """Integers to negative powers are rounded towards 0, as in PyTorch."""
    if np.result_type(x, y).kind not in "iu":
        return np.power(x, y)
    exact = np.power(x, np.maximum(y, 0))
    unit = np.where(x == 1, 1, np.where(x == -1, 1 - 2 * (y % 2), 0))
    return np.where(y < 0, unit, exact).astype(exact.dtype)


def sign(x: Array) -> Any:
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype) if x.dtype.kind != "b" else x


def rsqrt(x: Array) -> Any:
    return 1 / np.sqrt(x)


def relu(x: Array) -> Any:
    return np.maximum(x, 0)


def relu6(x: Array) -> Any:
    return np.clip(x, 0, 6)


def leaky_relu(x: Array, negative_slope: float = 0.01) -> Any:
    return np.where(x > 0, x, negative_slope * x)


def elu(x: Array, alpha: float = 1.0) -> Any:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return np.where(beta * x > threshold, x, np.logaddexp(0, beta * x) / beta)


def silu(x: Array) -> Any:
    return x * np.exp(-np.logaddexp(0, -x))


def gelu(x: Array) -> Any:
    return x * 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


def hardtanh(x: Array, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    return np.clip(x, min_val, max_val)


def guard(x: Array, y: Array) -> Any:
    return np.where((y == 0) & ~np.isfinite(x), 0, x)


def assign(x: Array, y: Array) -> Any:
    return np.broadcast_to(y, np.broadcast_shapes(np.shape(x), np.shape(y)))


def add_scaled(x: Array, y: Array, alpha: float = 1) -> Any:
    return x + alpha * y


def addcmul(x: Array, y: Array, z: Array, value: float = 1) -> Any:
    return x + value * (y * z)


def addcdiv(x: Array, y: Array, z: Array, value: float = 1) -> Any:
    return x + value * (y / z)


def lerp(x: Array, y: Array, weight: Array) -> Any:
    """From the nearer end, so that weights 0 and 1 give x and y."""
    return np.where(np.abs(weight) < 0.5, x + weight * (y - x), y - (1 - weight) * (y - x))
