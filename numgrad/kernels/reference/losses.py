"""NumPy twins of the elementwise entries of the losses."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def bernoulli_loss(x: Array, y: Array) -> Any:
    return (y - 1) * np.maximum(np.log1p(-x), -100) - y * np.maximum(np.log(x), -100)


def logit_loss(x: Array, y: Array) -> Any:
    return np.where(x > 0, (1 - y) * x, -y * x) + np.log1p(np.exp(-np.abs(x)))


def weighted_logit_loss(x: Array, y: Array, positive: Array) -> Any:
    straight = np.where(x > 0, (1 - y) * x, -positive * y * x)
    return straight + (1 + (positive - 1) * y) * np.log1p(np.exp(-np.abs(x)))


def smooth_distance(x: Array, y: Array, beta: float = 1.0) -> Any:
    d = np.abs(x - y)
    return np.where(d < beta, d**2 / (2 * beta), d - beta / 2)


def huber_distance(x: Array, y: Array, delta: float = 1.0) -> Any:
    d = np.abs(x - y)
    return np.where(d <= delta, d**2 / 2, delta * (d - delta / 2))


def divergence(x: Array, y: Array) -> Any:
    return np.where(y == 0, 0, y * np.log(y)) - y * x


def log_divergence(x: Array, y: Array) -> Any:
    return np.exp(y) * (y - x)
