"""NumPy twins of ``numgrad.kernels.cpu.indexing``: one function for all dtypes of a kernel.

The same order of additions, so the same bits. Arrays have the canonical shapes: (rows, inner) for
rows, (outer, axis, inner) along an axis. ``put`` and ``add`` change ``out``.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Index = NDArray[np.int64]


def _take_rows(x: Array, index: Index) -> Array:
    return x[index]


def _put_rows(out: Array, v: Array, index: Index) -> None:
    for i, row in enumerate(index):
        out[row] = v[i]


def _add_rows(out: Array, v: Array, index: Index) -> None:
    for i, row in enumerate(index):
        out[row] += v[i]


def _take_along(x: Array, index: Index) -> Array:
    return np.take_along_axis(x, index, axis=1)


def _add_along(out: Array, v: Array, index: Index) -> None:
    outer, inner = np.ogrid[: v.shape[0], : v.shape[2]]
    for j in range(v.shape[1]):  # no cell twice at one j
        out[outer, index[:, j], inner] += v[:, j]


def _argmax(x: Array) -> tuple[Array, Index]:
    """(values, places); NumPy, too, takes the first of equals and the first nan."""
    places = np.argmax(x, axis=1)
    return np.take_along_axis(x, places[:, None], axis=1)[:, 0], places


def _argmin(x: Array) -> tuple[Array, Index]:
    places = np.argmin(x, axis=1)
    return np.take_along_axis(x, places[:, None], axis=1)[:, 0], places


def count_true(mask: Array) -> int:
    return int(np.count_nonzero(mask))


def write_true_indices(mask: Array) -> Index:
    return np.flatnonzero(mask)


take_rows_1 = take_rows_4 = take_rows_8 = _take_rows
put_rows_1 = put_rows_4 = put_rows_8 = _put_rows
add_rows_float32 = add_rows_float64 = add_rows_int32 = add_rows_int64 = _add_rows
take_along_1 = take_along_4 = take_along_8 = _take_along
add_along_float32 = add_along_float64 = add_along_int32 = add_along_int64 = _add_along
argmax_float32 = argmax_float64 = argmax_int32 = argmax_int64 = argmax_uint8 = argmax_bool = _argmax
argmin_float32 = argmin_float64 = argmin_int32 = argmin_int64 = argmin_uint8 = argmin_bool = _argmin
