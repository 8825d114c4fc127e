"""Nearest interpolation in plain NumPy, over the last axes that ``size`` names."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def sources(n: int, m: int, scale: float | None) -> list[int]:
    """The element that each of m takes from n, one by one, in single precision."""
    if m == n:
        return list(range(n))
    if m == 2 * n:
        return [i // 2 for i in range(m)]
    step = np.float32(1 / scale) if scale is not None else np.float32(n) / np.float32(m)
    return [min(int(np.floor(np.float32(i) * step)), n - 1) for i in range(m)]


def _index(shape: tuple[int, ...], size: Any, scales: Any) -> Any:
    lead = len(shape) - len(size)
    each = [sources(n, m, s) for n, m, s in zip(shape[lead:], size, scales, strict=True)]
    return (..., *np.ix_(*each))


def nearest(x: Array, *, size: Any, scales: Any) -> Array:
    return x[_index(x.shape, size, scales)]


def nearest_adjoint(g: Array, *, shape: tuple[int, ...], scales: Any) -> Array:
    size = g.shape[len(shape) - len(scales) :]
    out = np.zeros(shape, g.dtype)
    for row in np.ndindex(*shape[: len(shape) - len(size)]):
        np.add.at(out[row], _index(shape, size, scales)[1:], g[row])
    return out
