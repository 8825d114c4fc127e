"""Padding in plain NumPy. ``pads`` is ((before, after), …) for each of the last axes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Pads = tuple[tuple[int, int], ...]

MODES: dict[str, Any] = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _all(x: Array, pads: Pads) -> list[tuple[int, int]]:
    return [(0, 0)] * (x.ndim - len(pads)) + list(pads)


def pad_constant(x: Array, *, pads: Pads, value: float) -> Array:
    return np.pad(x, _all(x, pads), constant_values=value)


def pad_edges(x: Array, *, pads: Pads, mode: str) -> Array:
    return np.pad(x, _all(x, pads), MODES[mode])


def fold_edges(g: Array, *, pads: Pads, mode: str) -> Array:
    """Each element of g added where ``pad_edges`` takes it from."""
    inner = [n - before - after for n, (before, after) in zip(g.shape, _all(g, pads), strict=True)]
    places = np.arange(int(np.prod(inner))).reshape(inner)
    out = np.zeros(places.size, g.dtype)
    np.add.at(out, pad_edges(places, pads=pads, mode=mode), g)
    return out.reshape(inner)
