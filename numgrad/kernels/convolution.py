"""Launching convolutions: arrays of any strides in, one or a few kernel launches out.

``convolve``, its adjoint in x (``convolve_transposed``) and its adjoint in w (``weight_gradient``)
are a closed family: the derivative of each, of any order, is made of the others.
"""

import math

import numpy as np

from . import convolution_layout as layouts
from . import launch, winograd
from .cpu import slots
from .launch import UINT8, Workspace

Pair = tuple[int, int]
Kept = winograd.Kept

FUSED_ROWS = 16
"""Input channels a group from which all phases of a gradient are one launch."""
_EPILOGUE = slots.SCALE, slots.SHIFT, slots.RESIDUAL, slots.CLAMP


def convolve(
    out: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    workspace: Workspace,
    kept: Kept | None = None,
    **epilogue: np.ndarray | None,
) -> None:
    """``out[n, k, i, j] = sum w[k, c, r, s] · x[n, c, i·sh + r·dh - ph, j·sw + s·dw - pw]`` over
    c of k's group, r and s.

    x is (n, c, h, w), 0 outside; w (k, c / groups, r, s); out (n, k, …) is overwritten. All are
    float32 or all float64, of any strides. ``epilogue`` is applied as the result is written:
    ``clamp(· · scale[k] + shift[k] + residual[n, k, i, j])`` with contiguous ``scale`` and
    ``shift`` (k,), ``residual`` of out's shape, and ``clamp`` of two elements. ``kept`` gives what
    is derived from w and lasts between calls.
    """
    w = _grouped(w, groups)
    _convolve(out, x, w, stride, padding, dilation, workspace, kept, **epilogue)


def convolve_transposed(
    out: np.ndarray,
    g: np.ndarray,
    w: np.ndarray,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    workspace: Workspace,
    kept: Kept | None = None,
    shift: np.ndarray | None = None,
) -> None:
    """The adjoint of :func:`convolve` in x: out (n, c, h, w) from g (n, k, …), overwritten.

    ``out[n, c, a, b] = sum g[n, k, i, j] · w[k, c, r, s]`` over all (k, r, s, i, j) with
    ``i·sh + r·dh - ph = a`` and ``j·sw + s·dw - pw = b`` ``(+ shift[c])``.

    Places of out that agree modulo the stride use the same taps: each such phase is a plain
    convolution of g with those taps in reverse order.
    """
    turned = _grouped(w, groups).transpose(0, 2, 1, 3, 4)
    if out.size and _fuses(out, w, stride, dilation):
        threads = launch.get_num_threads()
        layout = layouts.of_phases(*_forms(out, g, turned), out.itemsize, stride, padding, threads)
        _run(layout, out, g, turned, workspace, kept, shift=shift)
        return
    down = _phases(out.shape[2], stride[0], padding[0], dilation[0], w.shape[2])
    across = _phases(out.shape[3], stride[1], padding[1], dilation[1], w.shape[3])
    if len(down) * len(across) < min(stride[0], out.shape[2]) * min(stride[1], out.shape[3]):
        # To some places no tap gets: there is the shift alone.
        none = turned[:, :, :0, :1, :1]
        _convolve(out, g, none, (1, 1), (0, 0), (1, 1), workspace, kept, shift=shift)
    for a, (rows, padding_h, dilation_h) in down.items():
        for b, (columns, padding_w, dilation_w) in across.items():
            _convolve(
                out[:, :, a :: stride[0], b :: stride[1]],
                g,
                turned[:, :, :, rows, columns],
                (1, 1),
                (padding_h, padding_w),
                (dilation_h, dilation_w),
                workspace,
                kept,
                shift=shift,
            )


def weight_gradient(
    out: np.ndarray,
    x: np.ndarray,
    g: np.ndarray,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    workspace: Workspace,
) -> None:
    """The adjoint of :func:`convolve` in w: C-contiguous out (k, c / groups, r, s), overwritten.

    ``out[k, c, r, s] = sum_{n,i,j} g[n, k, i, j] · x[n, c, i·sh + r·dh - ph, j·sw + s·dw - pw]``;
    x and g of any strides.
    """
    if out.size == 0:
        return
    if winograd.weight_gradient_applies(out, x, g, stride, dilation, groups):
        winograd.weight_gradient(out, x, g, padding, workspace)
        return
    w = _grouped(out, groups)
    threads = launch.get_num_threads()
    layout = layouts.of_weight(*_forms(g, x, w), g.itemsize, stride, padding, dilation, threads)
    _run(layout, g, x, w, workspace)


# ----------------------------------------------------------------------------------------- pieces


def _grouped(w: np.ndarray, groups: int) -> np.ndarray:
    """w (k, c, r, s) as (groups, k of a group, c, r, s): a view, whatever its strides."""
    return w.reshape(groups, w.shape[0] // groups, *w.shape[1:])


def _phases(
    length: int, stride: int, padding: int, dilation: int, taps: int
) -> dict[int, tuple[slice, int, int]]:
    """For each place modulo the stride, of an axis of ``length``, that a tap reaches: its taps in
    reverse order, and the padding and dilation of the convolution with them.

    Tap r of input place i writes to ``a = i · stride + r · dilation - padding``. For one a the taps
    are every ``stride / gcd(stride, dilation)``-th from the first that solves this.
    """
    common = math.gcd(stride, dilation)
    step, spread = stride // common, dilation // common
    inverse = pow(spread, -1, step)
    found = {}
    for a in range(min(stride, length)):  # a stride may be longer than the axis
        if (a + padding) % common:
            continue
        first = (a + padding) // common * inverse % step
        if first >= taps:
            continue
        count = (taps - first + step - 1) // step
        last = first + (count - 1) * step
        reached = (a + padding - first * dilation) // stride  # by the first tap, for output 0
        stop = first - 1 if first else None
        found[a] = (slice(last, stop, -step), (count - 1) * spread - reached, spread)
    return found


def _fuses(out: np.ndarray, w: np.ndarray, stride: Pair, dilation: Pair) -> bool:
    """Whether all phases may be one launch of ``transposed_*``, and had better be."""
    return (
        stride in ((1, 2), (2, 2))
        and dilation == (1, 1)
        and out.strides[3] == out.itemsize
        and w.flags.c_contiguous
        and w.size > 0
        and w.shape[1] >= FUSED_ROWS
    )


def _convolve(
    out: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    workspace: Workspace,
    kept: Kept | None = None,
    scale: np.ndarray | None = None,
    shift: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    clamp: np.ndarray | None = None,
) -> None:
    """One launch; w is (groups, k of a group, c of a group, r, s)."""
    if out.size == 0:
        return
    if winograd.applies(out, x, w, stride, dilation):
        winograd.convolve(
            out, x, w[0], padding, workspace, kept,
            scale=scale, shift=shift, residual=residual, clamp=clamp,
        )  # fmt: skip
        return
    beside = None if residual is None else residual.strides
    threads = launch.get_num_threads()
    layout = layouts.of_convolution(
        *_forms(out, x, w), beside, out.itemsize, stride, padding, dilation, threads
    )
    _run(layout, out, x, w, workspace, kept, scale, shift, residual, clamp)


def _forms(*arrays: np.ndarray) -> list[tuple[int, ...]]:
    """Shape and strides of each."""
    return [form for array in arrays for form in (array.shape, array.strides)]


def _run(
    layout: layouts.Layout,
    out: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    workspace: Workspace,
    kept: Kept | None = None,
    scale: np.ndarray | None = None,
    shift: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    clamp: np.ndarray | None = None,
) -> None:
    """Run a kernel, after packing w if that is wanted."""
    address, args, workers = launch.address, layout.args.copy(), layout.workers
    args[slots.OUT], args[slots.X], args[slots.W] = address(out), address(x), address(w)
    launch.put_addresses(args, _EPILOGUE, (scale, shift, residual, clamp))
    nbytes, pack = layout.workspace_bytes, layout.pack
    keep = kept if out.itemsize == 4 else None  # what is kept is of float32
    memory = None
    if nbytes:
        memory = workspace((nbytes + (layout.packed_bytes if keep is None else 0),), UINT8)
        args[slots.WORKSPACE] = address(memory)
    if pack is not None:
        assert memory is not None

        def fill(array: np.ndarray) -> None:
            args[slots.PACKED] = address(array)
            launch.ranged(pack, args, layout.panels, workers=workers)

        if keep is None:
            array = memory[nbytes:]
            fill(array)
        else:
            array = keep(("packed", address(w), *layout.view), layout.packed_bytes // 4, fill)
        args[slots.PACKED] = address(array)
    launch.ranged(layout.kernel, args, layout.items, workers=workers)
