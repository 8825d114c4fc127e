"""Launching convolutions: arrays of any strides in, one or a few kernel launches out.

``convolve``, its adjoint in x (``convolve_transposed``) and its adjoint in w (``weight_gradient``)
are a closed family: the derivative of each, of any order, is made of the others.
"""

import functools
import math

import numpy as np

from . import convolution_plan as plans
from . import launch, winograd
from .cpu import convolution, depthwise, transposed
from .cpu import slots as places
from .cpu.slots import Slots
from .launch import UINT8, Workspace

Pair = tuple[int, int]
Kept = winograd.Kept

PARALLEL_MIN = 1 << 20
"""Multiplications above which a convolution is worth several threads."""
DTYPES = {4: "float32", 8: "float64"}
"""By bytes of an element: the name NumPy would build anew each time."""
FUSED_ROWS = 16
"""Input channels a group from which all phases of a gradient are one launch."""
PACKING = {
    f"{kernel}_{dtype}": f"{pack}_{dtype}"
    for kernel, pack in (("convolution", "pack_weights"), ("transposed", "pack_transposed"))
    for dtype in ("float32", "float64")
}
DEPTHWISE_ROWS = 4
"""Output channels a group up to which groups of one input channel have kernels of their own."""


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
    if out.size and _fuses(out, w, stride, dilation, groups):
        _convolve_phases(out, g, turned, stride, padding, workspace, kept, shift)
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
    rows, depth = w.shape[1:3]
    taps = math.prod(w.shape[3:])
    slots = _geometry(g, x, w, stride, padding, dilation)
    parallel = g.size * depth * taps >= PARALLEL_MIN
    if depth == 1 and rows <= DEPTHWISE_ROWS:
        kernel = getattr(depthwise, f"depthwise_weight_{DTYPES[out.itemsize]}")
        launch.ranged(kernel, Slots(*slots), groups * rows, parallel=parallel)
        return
    kernel = f"convolution_weight_{DTYPES[out.itemsize]}"
    shape = plans.Shape(*slots[: len(plans.Shape._fields)])
    in_place, x_strides = _in_place(slots, shape)
    plan = plans.plan_weight(shape, in_place, x_strides, out.itemsize)
    _launch(kernel, slots, (), plan, 0, groups * plan.parts, parallel, workspace)


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


def _fuses(out: np.ndarray, w: np.ndarray, stride: Pair, dilation: Pair, groups: int) -> bool:
    """Whether all phases may be one launch of ``transposed_*``, and had better be."""
    return (
        stride in ((1, 2), (2, 2))
        and dilation == (1, 1)
        and out.strides[3] == out.itemsize
        and w.flags.c_contiguous
        and w.shape[0] > 0
        and w.shape[1] >= FUSED_ROWS
    )


def _window(stride: int, padding: int, taps: int) -> tuple[list[list[tuple[int, int]]], int, int]:
    """For an axis and each phase, (tap, place in the window) of its taps; where the window starts,
    before the place itself, and its length."""
    phases = [[r for r in range(taps) if (a + padding - r) % stride == 0] for a in range(stride)]
    reached = [[(a + padding - r) // stride for r in phase] for a, phase in enumerate(phases)]
    least = min(min(places, default=0) for places in reached)
    greatest = max(max(places, default=0) for places in reached)
    placed = [
        [(r, place - least) for r, place in zip(phase, places, strict=True)]
        for phase, places in zip(phases, reached, strict=True)
    ]
    return placed, -least, greatest - least + 1


@functools.lru_cache(1024)
def _windows(stride: Pair, padding: Pair, taps: Pair) -> tuple[tuple[int, ...], Pair, Pair]:
    """What follows the slots of ``transposed_*`` from the number of phases on; the padding and
    taps of the window."""
    down, padding_h, taps_h = _window(stride[0], padding[0], taps[0])
    across, padding_w, taps_w = _window(stride[1], padding[1], taps[1])
    firsts, places, numbers = [0], [], []
    for rows in down:
        for columns in across:
            for r, i in reversed(rows):  # by places in the window
                for s, j in reversed(columns):
                    places.append(i * taps_w + j)
                    numbers.append(r * taps[1] + s)
            firsts.append(len(places))
    more = (len(down) * len(across), *firsts, *places, *numbers)
    return more, (padding_h, padding_w), (taps_h, taps_w)


def _convolve_phases(
    out: np.ndarray,
    g: np.ndarray,
    turned: np.ndarray,
    stride: Pair,
    padding: Pair,
    workspace: Workspace,
    kept: Kept | None,
    shift: np.ndarray | None,
) -> None:
    """All phases of ``convolve_transposed`` in one launch; w is (groups, c of a group, k, r, s)."""
    more, window_padding, window = _windows(stride, padding, turned.shape[3:])
    height, width = out.shape[2:]
    size = -(-height // stride[0]), -(-width // stride[1])
    sizes = (g.shape[0], *turned.shape[:3], *g.shape[2:], *size, *window)
    slots = (
        *sizes, 1, 1, 1, 1, *window_padding, *_operand(g), *_operand(turned), *_operand(out),
    )  # fmt: skip
    shape = plans.Shape(*slots[: len(plans.Shape._fields)])
    in_place, x_strides = _in_place(slots, shape)
    taps, itemsize = math.prod(turned.shape[3:]), out.itemsize
    plan = plans.plan_transposed(shape, in_place, x_strides, itemsize, more[0], taps)
    packed = plans.packed_bytes(plan, shape, taps, itemsize)
    items = shape.groups * plan.chunks * plan.parts
    parallel = out.size * shape.depth * taps // math.prod(stride) >= PARALLEL_MIN
    epilogue = (0, launch.address_or_0(shift), *(0,) * 6)
    _launch(
        f"transposed_{DTYPES[itemsize]}", slots, epilogue, plan, packed, items, parallel,
        workspace, kept if itemsize == 4 else None, (height, width, *more),
    )  # fmt: skip


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
        epilogue = {"scale": scale, "shift": shift, "residual": residual, "clamp": clamp}
        winograd.convolve(out, x, w[0], padding, workspace, kept, **epilogue)
        return
    groups, rows, depth, *taps = w.shape
    pointwise = taps == [1, 1] and stride == (1, 1) and padding == (0, 0)
    if pointwise and out.shape[2:] == x.shape[2:]:
        out, x, residual = _rows_joined(out, x, residual)
    slots = _geometry(out, x, w, stride, padding, dilation)
    beside = (0,) * 5 if residual is None else _operand(residual)
    address_or_0 = launch.address_or_0
    finishing = (address_or_0(scale), address_or_0(shift), *beside, address_or_0(clamp))
    parallel = out.size * depth * math.prod(taps) >= PARALLEL_MIN
    if depth == 1 and rows <= DEPTHWISE_ROWS:
        kernel = getattr(depthwise, f"depthwise_{DTYPES[out.itemsize]}")
        args = Slots(*slots, *finishing)
        launch.ranged(kernel, args, out.shape[0] * out.shape[1], parallel=parallel)
        return
    name, itemsize = DTYPES[out.itemsize], out.itemsize
    shape = plans.Shape(*slots[: len(plans.Shape._fields)])
    in_place, x_strides = _in_place(slots, shape)
    once = out.shape[0] * out.shape[2] * out.shape[3] <= plans.UNPACKED_PIXELS
    packs = not (once and w[0, 0].flags.c_contiguous)
    plan = plans.plan(shape, in_place, x_strides, itemsize, packs)
    packed = plans.packed_bytes(plan, shape, math.prod(taps), itemsize) if packs else 0
    items = groups * plan.chunks * plan.parts
    keep = kept if itemsize == 4 else None
    _launch(f"convolution_{name}", slots, finishing, plan, packed, items, parallel, workspace, keep)


def _launch(
    kernel: str,
    slots: tuple[int, ...],
    epilogue: tuple[int, ...],
    plan: plans.Plan,
    packed: int,
    items: int,
    parallel: bool,
    workspace: Workspace,
    kept: Kept | None = None,
    more: tuple[int, ...] = (),
) -> None:
    """Run a kernel that needs a workspace, after packing w into ``packed`` bytes if not 0."""
    workers = min(launch.get_num_threads(), items) if parallel else 1
    own = packed if kept is None else 0
    memory = workspace((plan.workspace_bytes * workers + own,), UINT8)
    first = launch.address(memory)
    args = [*slots, *(epilogue or (0,) * 8), first, *plan, *more]
    kernels = transposed if more else convolution
    if packed:
        pack = getattr(kernels, PACKING[kernel])
        panels = args[places.GROUPS] * plan.row_tiles
        view = (
            kernel, *args[places.GROUPS : places.HEIGHT], *args[places.TAPS_H : places.STRIDE_H],
            *args[places.W : places.OUT], *more[2:],
        )  # fmt: skip

        def fill(array: np.ndarray) -> None:
            args[places.PACKED] = launch.address(array)
            launch.ranged(pack, args, panels, workers=workers)

        if kept is None:
            array = memory[plan.workspace_bytes * workers :]
            fill(array)
        else:
            array = kept(view, packed // 4, fill)
        args[places.PACKED] = launch.address(array)
    launch.ranged(getattr(kernels, kernel), args, items, workers=workers)


def _rows_joined(
    out: np.ndarray, x: np.ndarray, residual: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The arrays with an image as one row, if that is a view of each: a 1×1 convolution does not
    look beyond its pixel."""
    arrays = [out, x] if residual is None else [out, x, residual]
    if any(a.strides[2] != a.shape[3] * a.strides[3] for a in arrays):
        return out, x, residual
    out, x, *rest = (a.reshape(*a.shape[:2], 1, -1) for a in arrays)
    return out, x, rest[0] if rest else None


def _geometry(
    out: np.ndarray, x: np.ndarray, w: np.ndarray, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[int, ...]:
    """The slots that say shapes and strides; ``out`` may be the gradient of a result."""
    sizes = (x.shape[0], *w.shape[:3], *x.shape[2:], *out.shape[2:], *w.shape[3:])
    return (
        *sizes, *stride, *dilation, *padding, *_operand(x), *_operand(w), *_operand(out),
    )  # fmt: skip


def _operand(array: np.ndarray) -> tuple[int, ...]:
    """The slots of an array: its address, and its strides in elements."""
    size = array.itemsize
    return launch.address(array), *[stride // size for stride in array.strides]


def _in_place(slots: tuple[int, ...], shape: plans.Shape) -> tuple[bool, tuple[int, int, int]]:
    """Whether a convolution may read x where it is, row by row, and the strides that then count."""
    padding = slots[len(shape) : len(shape) + 2]
    _, x_n, x_c, x_h, x_w = slots[len(shape) + 2 : len(shape) + 7]
    fits = (
        shape.out_height + (shape.taps_h - 1) * shape.dilation_h <= shape.height
        and shape.out_width + (shape.taps_w - 1) * shape.dilation_w <= shape.width
    )
    if fits and x_w == 1 and padding == (0, 0) and shape.stride_h == shape.stride_w == 1:
        return True, (x_n, x_c, x_h)
    return False, (0, 0, 0)
