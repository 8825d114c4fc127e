"""What convolutions of one geometry have in common: kernel, slots but for addresses, workspace.

Everything here follows from shapes, strides (in bytes) and the number of threads, and is kept.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from . import convolution_plan as plans
from .cpu import convolution, depthwise, transposed
from .cpu import slots as names
from .cpu.slots import Slots
from .store import Handwritten

Ints = tuple[int, ...]
Pair = tuple[int, int]

PARALLEL_MIN = 1 << 20
"""Multiplications above which a convolution is worth several threads."""
DEPTHWISE_ROWS = 4
"""Output channels a group up to which groups of one input channel have kernels of their own."""
DTYPES = {4: "float32", 8: "float64"}
"""By bytes of an element."""


class Layout(NamedTuple):
    """How a convolution is launched."""

    kernel: Handwritten
    args: np.ndarray
    """Its slots; addresses are 0."""
    items: int
    workers: int
    workspace_bytes: int = 0
    """Of all workers."""
    pack: Handwritten | None = None
    """What packs w before, of which there are ``panels``, into ``packed_bytes``."""
    panels: int = 0
    packed_bytes: int = 0
    view: Ints = ()
    """What, beside its address, tells one packing of a weight from another."""


@functools.lru_cache(1024)
def of_convolution(
    out: Ints,
    out_strides: Ints,
    x: Ints,
    x_strides: Ints,
    w: Ints,
    w_strides: Ints,
    residual_strides: Ints | None,
    itemsize: int,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    threads: int,
) -> Layout:
    """Of ``convolution_*``, or ``depthwise_*``; w is (groups, k of a group, c of a group, r, s)."""
    rows, depth, *taps = w[1:]
    beside = residual_strides or (0,) * 4
    if taps == [1, 1] and stride == (1, 1) and padding == (0, 0) and out[2:] == x[2:]:
        # A 1×1 convolution does not look beyond its pixel: an image may be one row.
        strided = [out_strides, x_strides, *([beside] if residual_strides else [])]
        if all(s[2] == out[3] * s[3] for s in strided):
            out, x = (*out[:2], 1, out[2] * out[3]), (*x[:2], 1, x[2] * x[3])
    slots = _geometry(
        out, out_strides, x, x_strides, w, w_strides, itemsize, stride, padding, dilation
    )
    epilogue = 0, 0, 0, *[s // itemsize for s in beside], 0
    parallel = math.prod(out) * depth * math.prod(taps) >= PARALLEL_MIN
    if depth == 1 and rows <= DEPTHWISE_ROWS:
        kernel = getattr(depthwise, f"depthwise_{DTYPES[itemsize]}")
        args = np.array(Slots(*slots, *epilogue), np.int64)
        return Layout(kernel, args, out[0] * out[1], threads if parallel else 1)
    once = out[0] * out[2] * out[3] <= plans.UNPACKED_PIXELS
    packs = not (once and _contiguous(w[2:], w_strides[2:], itemsize))
    shape, in_place, frame_strides = _frame(slots)
    plan = plans.plan(shape, in_place, frame_strides, itemsize, packs)
    return _layout("convolution", slots, epilogue, plan, itemsize, packs, parallel, threads)


@functools.lru_cache(1024)
def of_phases(
    out: Ints,
    out_strides: Ints,
    g: Ints,
    g_strides: Ints,
    w: Ints,
    w_strides: Ints,
    itemsize: int,
    stride: Pair,
    padding: Pair,
    threads: int,
) -> Layout:
    """Of ``transposed_*``; w is (groups, c of a group, k of a group, r, s)."""
    more, window_padding, window = _windows(stride, padding, (w[3], w[4]))
    size = -(-out[2] // stride[0]), -(-out[3] // stride[1])
    seen = (*out[:2], *size), (*w[:3], *window)
    slots = _geometry(
        seen[0], out_strides, g, g_strides, seen[1], w_strides, itemsize, (1, 1), window_padding,
        (1, 1),
    )  # fmt: skip
    shape, in_place, frame_strides = _frame(slots)
    taps = w[3] * w[4]
    plan = plans.plan_transposed(shape, in_place, frame_strides, itemsize, more[0], taps)
    parallel = math.prod(out) * shape.depth * taps // math.prod(stride) >= PARALLEL_MIN
    after = (out[2], out[3], *more)
    return _layout(
        "transposed", slots, (0,) * 8, plan, itemsize, True, parallel, threads, after, taps
    )


@functools.lru_cache(1024)
def of_weight(
    g: Ints,
    g_strides: Ints,
    x: Ints,
    x_strides: Ints,
    w: Ints,
    w_strides: Ints,
    itemsize: int,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    threads: int,
) -> Layout:
    """Of ``convolution_weight_*``, or ``depthwise_weight_*``; w is the gradient that is made."""
    groups, rows, depth, *taps = w
    slots = _geometry(g, g_strides, x, x_strides, w, w_strides, itemsize, stride, padding, dilation)
    parallel = math.prod(g) * depth * math.prod(taps) >= PARALLEL_MIN
    if depth == 1 and rows <= DEPTHWISE_ROWS:
        kernel = getattr(depthwise, f"depthwise_weight_{DTYPES[itemsize]}")
        args = np.array(Slots(*slots), np.int64)
        return Layout(kernel, args, groups * rows, threads if parallel else 1)
    shape, in_place, frame_strides = _frame(slots)
    plan = plans.plan_weight(shape, in_place, frame_strides, itemsize)
    workers = min(threads, groups * plan.parts) if parallel else 1
    args = np.array([*slots, *(0,) * 9, *plan], np.int64)
    kernel = getattr(convolution, f"convolution_weight_{DTYPES[itemsize]}")
    return Layout(kernel, args, groups * plan.parts, workers, plan.workspace_bytes * workers)


# ----------------------------------------------------------------------------------------- pieces


def _layout(
    family: str,
    slots: Ints,
    epilogue: Ints,
    plan: plans.Plan,
    itemsize: int,
    packs: bool,
    parallel: bool,
    threads: int,
    more: Ints = (),
    taps: int | None = None,
) -> Layout:
    """Of a kernel that has a plan and may want w packed."""
    kernels = transposed if more else convolution
    args = np.array([*slots, *epilogue, 0, *plan, *more], np.int64)
    shape = _frame(slots)[0]
    items = shape.groups * plan.chunks * plan.parts
    workers = min(threads, items) if parallel else 1
    kernel = getattr(kernels, f"{family}_{DTYPES[itemsize]}")
    layout = Layout(kernel, args, items, workers, plan.workspace_bytes * workers)
    if not packs:
        return layout
    name = "pack_transposed" if more else "pack_weights"
    view = (
        len(more), *slots[names.GROUPS : names.HEIGHT], *slots[names.TAPS_H : names.STRIDE_H],
        *slots[names.W_GROUP : names.OUT], *more[2:],
    )  # fmt: skip
    taps = shape.taps_h * shape.taps_w if taps is None else taps
    return layout._replace(
        pack=getattr(kernels, f"{name}_{DTYPES[itemsize]}"),
        panels=shape.groups * plan.row_tiles,
        packed_bytes=plans.packed_bytes(plan, shape, taps, itemsize),
        view=view,
    )


def _geometry(
    out: Ints,
    out_strides: Ints,
    x: Ints,
    x_strides: Ints,
    w: Ints,
    w_strides: Ints,
    itemsize: int,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> Ints:
    """The slots that say shapes and strides; ``out`` may be the gradient of a result."""
    sizes = (x[0], *w[:3], *x[2:], *out[2:], *w[3:])
    operands = [
        (0, *[s // itemsize for s in strides]) for strides in (x_strides, w_strides, out_strides)
    ]
    return (*sizes, *stride, *dilation, *padding, *operands[0], *operands[1], *operands[2])


def _frame(slots: Ints) -> tuple[plans.Shape, bool, tuple[int, int, int]]:
    """The shape of a convolution, whether it may read x where it is, row by row, and the strides
    that then count."""
    shape = plans.Shape(*slots[: len(plans.Shape._fields)])
    padding = slots[len(shape) : len(shape) + 2]
    x_n, x_c, x_h, x_w = slots[names.X_N : names.X_W + 1]
    fits = (
        shape.out_height + (shape.taps_h - 1) * shape.dilation_h <= shape.height
        and shape.out_width + (shape.taps_w - 1) * shape.dilation_w <= shape.width
    )
    if fits and x_w == 1 and padding == (0, 0) and shape.stride_h == shape.stride_w == 1:
        return shape, True, (x_n, x_c, x_h)
    return shape, False, (0, 0, 0)


def _contiguous(shape: Ints, strides: Ints, itemsize: int) -> bool:
    """Whether axes are one run of elements."""
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and stride != itemsize:
            return False
        itemsize *= n
    return True


def _window(stride: int, padding: int, taps: int) -> tuple[list[list[tuple[int, int]]], int, int]:
    """For an axis and each phase, (tap, place in the window) of its taps; where the window starts,
    before the place itself, and its length."""
    phases = [[r for r in range(taps) if (a + padding - r) % stride == 0] for a in range(stride)]
    reached = [[(a + padding - r) // stride for r in phase] for a, phase in enumerate(phases)]
    all_reached = [place for places in reached for place in places]
    least, greatest = min(all_reached), max(all_reached)
    placed = [
        [(r, place - least) for r, place in zip(phase, places, strict=True)]
        for phase, places in zip(phases, reached, strict=True)
    ]
    return placed, -least, greatest - least + 1


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
