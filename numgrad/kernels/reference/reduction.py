"""NumPy twins of reductions that NumPy has no single function for."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def _along(places: Array, x: Array, axis: int, keepdim: bool) -> Any:
    kept = np.expand_dims(places, axis)
    values = np.take_along_axis(x, kept, axis)
    return (values, kept) if keepdim else (values.squeeze(axis), places)


def max_along(x: Array, axis: int, keepdim: bool) -> Any:
    return _along(np.argmax(x, axis), x, axis, keepdim)


def min_along(x: Array, axis: int, keepdim: bool) -> Any:
    return _along(np.argmin(x, axis), x, axis, keepdim)
