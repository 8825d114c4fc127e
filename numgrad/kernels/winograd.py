"""Launching convolutions by Winograd's minimal filtering: when it applies, and in which order.

It takes a quarter of the multiplications of the definition and rounds more. It applies to 3×3 taps
of stride 1 in float32, one group, and enough channels; ``enabled`` switches it off.
"""

from collections.abc import Callable, Hashable
from typing import Any, Protocol

import numpy as np

from . import launch
from . import winograd_plan as plans
from .cpu import winograd as kernels
from .cpu import winograd_weight as weight_kernels
from .cpu.tile import part_bytes
from .cpu.winograd import BLOCKS, INPUTS, PACK, PANELS, WEIGHTS
from .launch import UINT8, Workspace

enabled = True
_EPILOGUE = kernels.SCALE, kernels.SHIFT, kernels.RESIDUAL, kernels.CLAMP

MIN_CHANNELS = 16
MIN_SIDE = 4
"""Least channels on both sides, and least rows and columns of the result."""
FLOAT32 = np.dtype(np.float32)


class Kept(Protocol):
    """What is derived from a weight, from an earlier call or made by ``fill``.

    ``kind`` tells what it is, and of which view of the weight's memory.
    """

    def __call__(
        self, kind: Hashable, elements: int, fill: Callable[[np.ndarray], None]
    ) -> np.ndarray:
        """``elements`` of float32."""

    def if_lasting(
        self, kind: Hashable, elements: int, fill: Callable[[np.ndarray], None]
    ) -> np.ndarray | None:
        """The same, or None where it would serve this call alone."""


def applies(out: np.ndarray, x: np.ndarray, w: np.ndarray, stride: Any, dilation: Any) -> bool:
    """Whether the convolution of x (n, c, h, w) with w (groups, k, c, r, s) may go this way."""
    return (
        enabled
        and w.shape[0] == 1
        and w.shape[3:] == (3, 3)
        and tuple(stride) == tuple(dilation) == (1, 1)
        and out.dtype == FLOAT32
        and min(w.shape[1:3]) >= MIN_CHANNELS
        and min(out.shape[2:]) >= MIN_SIDE
        and out.strides[3] == x.strides[3] == 4
        and w.strides[-1] in (4, -4)
        and w.strides[-2] == 3 * w.strides[-1]
    )


def convolve(
    out: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    padding: tuple[int, int],
    workspace: Workspace,
    kept: Kept | None = None,
    *,
    scale: np.ndarray | None = None,
    shift: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    clamp: np.ndarray | None = None,
) -> None:
    """As ``numgrad.kernels.convolution.convolve`` with stride and dilation 1, where `applies`."""
    beside = None if residual is None else residual.strides
    threads = launch.get_num_threads()
    layout = plans.layout(
        x.shape, x.strides, w.shape, w.strides, out.shape, out.strides, beside, padding, threads
    )
    address, args = launch.address, layout.args.copy()
    args[kernels.X], args[kernels.OUT], args[kernels.W] = address(x), address(out), address(w)
    launch.put_addresses(args, _EPILOGUE, (scale, shift, residual, clamp))
    weights = _weights(layout, args, kept, workspace)
    memory = workspace((layout.nbytes,), UINT8)
    start = address(memory)
    args[kernels.WORKSPACE] = start + layout.shared
    if layout.shared:
        args[kernels.INPUTS_AT] = start
    if layout.in_blocks:
        _run(layout, BLOCKS, args, layout.items)
        return
    plan = layout.plan
    for first in range(0, plan.all_units, layout.part):
        args[kernels.FIRST_UNIT] = first
        args[kernels.LAST_UNIT] = min(first + layout.part, plan.all_units)
        if layout.shared:
            _run(layout, INPUTS, args, plan.blocks)
        _run(layout, PANELS, args, plan.panels)
    del weights  # not before: only its address went into args


def _run(layout: plans.Layout, step: int, args: np.ndarray, items: int) -> None:
    """One launch."""
    args[kernels.STEP] = step
    launch.ranged(kernels.winograd_float32, args, items, workers=layout.workers)


def _weights(
    layout: plans.Layout, args: np.ndarray, kept: Kept | None, workspace: Workspace
) -> Any:
    """Put the transformed weights into the slots, or where they are transformed in parts the
    packed taps, if these last; whoever uses the slots keeps what is returned."""
    plan, made = layout.plan, None
    view = int(args[kernels.W]), *layout.view
    if not layout.transformed:
        fill = _filling(layout, args, kernels.TAPS, PACK, workspace)
        if kept is not None:
            made = kept.if_lasting(("taps", *view), plan.tap_elements, fill)
        if made is not None:
            args[kernels.TAPS] = launch.address(made)
        return made
    fill = _filling(layout, args, kernels.WEIGHTS_AT, WEIGHTS, workspace)
    if kept is None:
        made = workspace((plan.weight_elements,), FLOAT32)
        fill(made)
    else:
        made = kept(("Winograd", *view), plan.weight_elements, fill)
    args[kernels.WEIGHTS_AT] = launch.address(made)
    return made


def _filling(
    layout: plans.Layout, args: np.ndarray, slot: int, step: int, workspace: Workspace
) -> Callable[[np.ndarray], None]:
    """What makes the weights, or the taps."""

    def fill(target: np.ndarray) -> None:
        own, nbytes = args.copy(), part_bytes(4 * kernels.RAW_ELEMENTS)
        memory = workspace((nbytes * layout.workers,), UINT8)
        own[slot], own[kernels.WORKSPACE] = launch.address(target), launch.address(memory)
        own[kernels.WORKSPACE_BYTES] = nbytes
        _run(layout, step, own, layout.plan.panels)

    return fill


def weight_gradient_applies(
    out: np.ndarray, x: np.ndarray, g: np.ndarray, stride: Any, dilation: Any, groups: int
) -> bool:
    """Whether the gradient out (k, c / groups, r, s) of a weight may be calculated this way."""
    return (
        enabled
        and groups == 1
        and out.shape[2:] == (3, 3)
        and tuple(stride) == tuple(dilation) == (1, 1)
        and out.dtype == FLOAT32
        and min(out.shape[:2]) >= MIN_CHANNELS
        and min(g.shape[2:]) >= MIN_SIDE
        and g.shape[0] > 0
        and g.strides[3] == x.strides[3] == 4
    )


def weight_gradient(
    out: np.ndarray,
    x: np.ndarray,
    g: np.ndarray,
    padding: tuple[int, int],
    workspace: Workspace,
) -> None:
    """As ``numgrad.kernels.convolution.weight_gradient``, where `weight_gradient_applies`."""
    layout = plans.weight_layout(
        x.shape, x.strides, g.shape, g.strides, padding, launch.get_num_threads()
    )
    address, args = launch.address, layout.args.copy()
    memory = workspace((layout.nbytes,), UINT8)
    start = address(memory)
    args[weight_kernels.X], args[weight_kernels.G] = address(x), address(g)
    args[weight_kernels.W], args[weight_kernels.INPUTS] = address(out), start
    args[weight_kernels.GRADIENTS] = start + layout.gradients
    args[weight_kernels.WORKSPACE] = start + layout.own
    for first in range(0, layout.units, layout.part):
        args[weight_kernels.FIRST_UNIT] = first
        args[weight_kernels.LAST_UNIT] = min(first + layout.part, layout.units)
        args[weight_kernels.ADD_OUT] = first > 0
        for step, items in layout.steps:
            args[weight_kernels.STEP] = step
            kernel = weight_kernels.winograd_weight_float32
            launch.ranged(kernel, args, items, workers=layout.workers)
