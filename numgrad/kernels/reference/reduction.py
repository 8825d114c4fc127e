"""NumPy twins of reductions that NumPy has no single function for."""

import numpy as np


def _along(places, x, axis, keepdim):
    kept = np.expand_dims(places, axis)
    values = np.take_along_axis(x, kept, axis)
    return (values, kept) if keepdim else (values.squeeze(axis), places)


def max_along(x, axis, keepdim):
    return _along(np.argmax(x, axis), x, axis, keepdim)


def min_along(x, axis, keepdim):
    return _along(np.argmin(x, axis), x, axis, keepdim)
