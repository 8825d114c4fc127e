"""The plain twin of ``numgrad.kernels.cpu.matmul``."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def matmul(x: Array, y: Array, bias: Array | None = None, out: Array | None = None) -> Array:
    """``x @ y (+ bias) (+ out)`` of (…, m, k) and (…, k, n), in the element type of ``x``.

    Floats are summed in float64 and rounded once; integers wrap around.
    """
    exact: Any = np.float64 if np.issubdtype(x.dtype, np.floating) else x.dtype
    result: Array = np.matmul(x.astype(exact), y.astype(exact))
    if bias is not None:
        result = result + bias.astype(exact)
    if out is not None:
        result = result + out.astype(exact)
    return result.astype(x.dtype)


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """``x @ weight.T (+ bias)`` of (m, k) and (n, k), in the element type of ``x``."""
    return matmul(x, weight.T, bias)
