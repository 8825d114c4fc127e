"""Pooling in plain NumPy, over any number of axes: a loop over the windows.

``windows`` has the tuples ``kernel``, ``stride``, ``padding``, ``dilation`` and ``size`` (how many
windows there are), an entry for each of the last axes, and flags ``adaptive`` and ``include_pad``.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Place = tuple[int, ...]


def _along(axis: int, i: int, n: int, windows: Any) -> list[tuple[int, int]]:
    """(number in the window, index) of the cells of window i along an axis of length n."""
    if windows.adaptive:
        start, stop = i * n // windows.size[axis], -(-(i + 1) * n // windows.size[axis])
        return [(r, start + r) for r in range(stop - start)]
    first = i * windows.stride[axis] - windows.padding[axis]
    cells = [(r, first + r * windows.dilation[axis]) for r in range(windows.kernel[axis])]
    return [(r, at) for r, at in cells if 0 <= at < n]


def _cells(shape: Place, windows: Any) -> Iterator[tuple[Any, list[tuple[int, Any]]]]:
    """The index of each window, and (place, index) of its cells inside of ``shape``, in order."""
    for window in np.ndindex(*windows.size):
        axes = [
            _along(k, i, n, windows) for k, (i, n) in enumerate(zip(window, shape, strict=True))
        ]
        found = []
        for cell in itertools.product(*axes):
            place = 0
            for (r, _), size in zip(cell, windows.kernel, strict=True):
                place = place * size + r
            found.append((place, (Ellipsis, *(at for _, at in cell))))
        yield (Ellipsis, *window), found


def _spatial(x: Array, windows: Any) -> Place:
    return x.shape[x.ndim - len(windows.size) :]


def _lead(x: Array, windows: Any) -> Place:
    return x.shape[: x.ndim - len(windows.size)]


def max_pool(x: Array, *, windows: Any) -> Array:
    return max_pool_places(x, windows=windows)[0]


def max_pool_places(x: Array, *, windows: Any) -> tuple[Array, Array]:
    """(maxima, their places): the first of equals, and the last nan."""
    out = np.empty((*_lead(x, windows), *windows.size), x.dtype)
    places = np.empty(out.shape, np.int64)
    for window, cells in _cells(_spatial(x, windows), windows):
        values = np.stack([x[at] for _, at in cells])
        nan = np.isnan(values)
        last = len(cells) - 1 - np.argmax(nan[::-1], axis=0)
        best = np.where(nan.any(0), last, np.argmax(values, axis=0))
        out[window] = np.take_along_axis(values, best[None], 0)[0]
        places[window] = np.array([place for place, _ in cells])[best]
    return out, places


def max_pool_indexed(x: Array, *, windows: Any) -> tuple[Array, Array]:
    """(maxima, their flat indices in the plane)."""
    out, places = max_pool_places(x, windows=windows)
    return out, flat_places(places, shape=x.shape, windows=windows)


def flat_places(places: Array, *, shape: Place, windows: Any) -> Array:
    spatial = shape[len(shape) - len(windows.size) :]
    flat = np.empty(places.shape, np.int64)
    for window, cells in _cells(spatial, windows):
        table = {place: int(np.ravel_multi_index(at[1:], spatial)) for place, at in cells}
        chosen = places[window]
        flat[window] = np.array([table[int(k)] for k in chosen.flat]).reshape(chosen.shape)
    return flat


def take_places(x: Array, places: Array, *, windows: Any) -> Array:
    out = np.empty(places.shape, x.dtype)
    flat = flat_places(places, shape=x.shape, windows=windows)
    spatial = _spatial(x, windows)
    for index in np.ndindex(*out.shape):
        lead = index[: len(index) - len(windows.size)]
        at = (*lead, *np.unravel_index(flat[index], spatial))
        out[index] = x[at]
    return out


def add_places(v: Array, places: Array, *, shape: Place, windows: Any) -> Array:
    out = np.zeros(shape, v.dtype)
    flat = flat_places(places, shape=shape, windows=windows)
    spatial = shape[len(shape) - len(windows.size) :]
    for index in np.ndindex(*v.shape):  # in order
        lead = index[: len(index) - len(windows.size)]
        at = (*lead, *np.unravel_index(flat[index], spatial))
        out[at] += v[index]
    return out


def _divisor(window: Any, cells: int, shape: Place, windows: Any, divisor: int | None) -> int:
    if divisor is not None:
        return divisor
    if not windows.include_pad:
        return cells
    product = 1
    for axis, (i, n) in enumerate(zip(window[1:], shape, strict=True)):
        first = i * windows.stride[axis] - windows.padding[axis]
        product *= min(first + windows.kernel[axis], n + windows.padding[axis]) - first
    return product


def avg_pool(x: Array, *, windows: Any, divisor: int | None) -> Array:
    out = np.zeros((*_lead(x, windows), *windows.size), x.dtype)
    for window, cells in _cells(_spatial(x, windows), windows):
        total = np.sum([x[at] for _, at in cells], axis=0)
        out[window] = total / _divisor(window, len(cells), _spatial(x, windows), windows, divisor)
    return out


def avg_pool_adjoint(g: Array, *, shape: Place, windows: Any, divisor: int | None) -> Array:
    out = np.zeros(shape, g.dtype)
    spatial = shape[len(shape) - len(windows.size) :]
    for window, cells in _cells(spatial, windows):
        for _, at in cells:
            out[at] += g[window] / _divisor(window, len(cells), spatial, windows, divisor)
    return out
