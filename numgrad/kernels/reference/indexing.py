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


# ---------------------------------------------------- twins of whole ops, of arrays of any shape


def take_rows(x: Array, index: Index) -> Array:
    return x[index]


def add_rows(v: Array, index: Index, *, rows: int) -> Array:
    out = np.zeros((rows, v.shape[1]), v.dtype)
    np.add.at(out, index, v)
    return out


def put_elements(x: Array, v: Array, index: Index) -> Array:
    out = x.copy()
    for place, value in zip(index.ravel(), v.ravel(), strict=True):  # the last one wins
        out.flat[place] = value
    return out


def scatter_along(v: Array, index: Index, *, shape: tuple[int, ...], axis: int) -> Array:
    out = np.zeros(shape, v.dtype)
    for place, value in np.ndenumerate(v):
        at = (*place[:axis], index[place], *place[axis + 1 :])
        out[at] += value
    return out


def scatter_slice(x: Array, *, shape: tuple[int, ...], index: Any) -> Array:
    out = np.zeros(shape, x.dtype)
    out[index] = x
    return out


def slice_of(x: Array, *, index: Any) -> Array:
    return x[index]


def view_scatter(x: Array, v: Array, *, chain: Any) -> Array:
    """``chain`` in terms of places: the views of x's places tell which ones v goes to."""
    places: Array = np.arange(x.size).reshape(x.shape)
    for op, attrs, _ in chain:
        places = op.see(places, attrs)
    return put_elements(x, v, places)
