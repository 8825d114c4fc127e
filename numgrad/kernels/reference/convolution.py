"""NumPy twins of ``numgrad.kernels.convolution``: the same names and arguments, without workspace.

A sum over the taps of the kernel: for each, the outputs it reaches and the inputs they read are two
slices, and a product over the channels joins them. Sums are of float64 and rounded once.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Pair = tuple[int, int]


def _along(tap: int, out: int, x: int, stride: int, padding: int, dilation: int) -> Any:
    """Along one axis: the outputs whose input for this tap is not padding, and those inputs."""
    offset = tap * dilation - padding
    inside = [i for i in range(out) if 0 <= i * stride + offset < x]
    if not inside:
        return slice(0, 0), slice(0, 0)
    first, last = inside[0], inside[-1]
    return (
        slice(first, last + 1),
        slice(first * stride + offset, last * stride + offset + 1, stride),
    )


def _taps(
    out: tuple[int, ...],
    x: tuple[int, ...],
    w: tuple[int, ...],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> Iterator[tuple[int, int, Any, Any]]:
    """``(r, s, where in out, where in x)`` for each tap; all three shapes end in two axes."""
    for r in range(w[-2]):
        rows = _along(r, out[-2], x[-2], stride[0], padding[0], dilation[0])
        for s in range(w[-1]):
            columns = _along(s, out[-1], x[-1], stride[1], padding[1], dilation[1])
            yield r, s, (..., rows[0], columns[0]), (..., rows[1], columns[1])


def _grouped(array: Array, axis: int, groups: int) -> Array:
    """As float64, with a new axis of the groups in front of ``axis``."""
    shape = array.shape
    return array.astype(np.float64).reshape(
        *shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :]
    )


def convolve(
    out: Array,
    x: Array,
    w: Array,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    shift: Array | None = None,
) -> None:
    """``out[n, k, i, j] = sum of x[n, c, i·sh + r·dh - ph, j·sw + s·dw - pw] · w[k, c, r, s]``
    over c of k's group, r and s, zeros outside x, ``+ shift[k]``."""
    a, b = _grouped(x, 1, groups), _grouped(w, 0, groups)
    total = np.zeros((out.shape[0], groups, b.shape[1], *out.shape[2:]))
    for r, s, here, there in _taps(out.shape, x.shape, w.shape, stride, padding, dilation):
        total[here] += np.einsum("ngcij,gkc->ngkij", a[there], b[..., r, s])
    result = total.reshape(out.shape)
    out[...] = result if shift is None else result + shift.astype(np.float64)[:, None, None]


def convolve_transposed(
    out: Array,
    g: Array,
    w: Array,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    shift: Array | None = None,
) -> None:
    """The adjoint of `convolve` in x: each ``g[n, k, i, j] · w[k, c, r, s]`` is added to the
    ``out[n, c, …]`` that it came from, ``+ shift[c]``."""
    a, b = _grouped(g, 1, groups), _grouped(w, 0, groups)
    total = np.zeros((out.shape[0], groups, b.shape[2], *out.shape[2:]))
    for r, s, there, here in _taps(g.shape, out.shape, w.shape, stride, padding, dilation):
        total[here] += np.einsum("ngkij,gkc->ngcij", a[there], b[..., r, s])
    result = total.reshape(out.shape)
    out[...] = result if shift is None else result + shift.astype(np.float64)[:, None, None]


def weight_gradient(
    out: Array,
    x: Array,
    g: Array,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> None:
    """The adjoint of `convolve` in w: ``out[k, c, r, s]`` is the sum over n, i and j of
    ``g[n, k, i, j]`` times the x that tap (r, s) reads for it."""
    a, b = _grouped(x, 1, groups), _grouped(g, 1, groups)
    total = np.zeros((groups, b.shape[2], *out.shape[1:]))
    for r, s, there, here in _taps(g.shape, x.shape, out.shape, stride, padding, dilation):
        total[..., r, s] = np.einsum("ngcij,ngkij->gkc", a[here], b[there])
    out[...] = total.reshape(out.shape)
