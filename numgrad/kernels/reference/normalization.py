"""The plain twin of ``numgrad.kernels.cpu.normalization``: everything in float64, rounded once."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def _channelwise(values: Array | None, ndim: int, missing: float) -> Any:
    """One value a channel, to be broadcast along axis 1."""
    if values is None:
        return missing
    return values.astype(np.float64).reshape(1, -1, *[1] * (ndim - 2))


def normalize_batch(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    *,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Array:
    """``(x - mean) / sqrt(var + eps) * weight + bias``, mean and variance those of each channel
    (axis 1). The running statistics are moved in place, with the unbiased variance."""
    axes = (0, *range(2, x.ndim))
    wide = x.astype(np.float64)
    if not x.size:
        return x.copy()
    mean, var = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
    count = x.size // x.shape[1]
    for running, value in ((running_mean, mean), (running_var, var * count / max(count - 1, 1))):
        if running is not None:
            running[...] = (1 - momentum) * running + momentum * value.reshape(-1)
    z = (wide - mean) / np.sqrt(var + eps)
    out = z * _channelwise(weight, x.ndim, 1.0) + _channelwise(bias, x.ndim, 0.0)
    return np.asarray(out).astype(x.dtype)


def normalize_channels(
    x: Array,
    running_mean: Array,
    running_var: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    eps: float = 1e-5,
) -> Array:
    """``(x - running_mean) / sqrt(running_var + eps) * weight + bias``, by channel (axis 1)."""
    wide = x.astype(np.float64)
    mean, var = (_channelwise(v, x.ndim, 0.0) for v in (running_mean, running_var))
    z = (wide - mean) / np.sqrt(var + eps)
    out = z * _channelwise(weight, x.ndim, 1.0) + _channelwise(bias, x.ndim, 0.0)
    return np.asarray(out).astype(x.dtype)


def normalize_rows(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    axis: int,
    groups: int = 1,
    channels: int,
    eps: float = 1e-5,
) -> Array:
    """The axes from ``axis`` on are (groups, channels, s): each group of a sample has a mean and a
    variance of its own, each (group, channel) a weight and a bias."""
    if not x.size:
        return x.copy()
    n = int(np.prod(x.shape[:axis]))
    wide = x.astype(np.float64).reshape(n, groups, channels, -1)
    mean, var = wide.mean((2, 3), keepdims=True), wide.var((2, 3), keepdims=True)
    z = (wide - mean) / np.sqrt(var + eps)
    for values, combine in ((weight, np.multiply), (bias, np.add)):
        if values is not None:
            z = combine(z, values.astype(np.float64).reshape(1, groups, channels, 1))
    return z.reshape(x.shape).astype(x.dtype)
