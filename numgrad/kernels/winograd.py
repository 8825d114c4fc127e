"""Launching convolutions by Winograd's minimal filtering: when it applies, and in which order.

It takes a quarter of the multiplications of the definition and rounds more. It applies to 3×3 taps
of stride 1 in float32, one group, and enough channels; ``enabled`` switches it off.
"""

import functools
import itertools
import math
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import numpy as np

from . import launch
from .cpu import winograd as kernels
from .cpu import winograd_weight as weight_kernels
from .cpu.tile import part_bytes, up
from .cpu.vector import lanes_of
from .cpu.winograd import BLOCKS, INPUTS, PACK, PANELS, WEIGHTS, Slots
from .cpu.winograd_tile import COLUMNS, POSITIONS
from .launch import UINT8, Workspace

enabled = True

MIN_CHANNELS = 16
MIN_SIDE = 4
"""Least channels on both sides, and least rows and columns of the result."""
KEPT_BYTES = 16 << 20
"""Transformed weights above this size are made anew in each call, in parts that stay in cache;
their taps are kept in the order in which they are wanted."""
STREAMED_BYTES, FEW_TILES = 4 << 20, 32
"""The same above this size where tiles are so few that reading the weights takes the time."""
PANELS_BYTES = 16 << 20
"""Transformed inputs that are held at a time where panels follow."""
OWN_INPUTS = 2
"""Workers up to which each transforms all inputs for its panels: that takes less than to fetch them
from each other's caches."""
EVEN_BLOCKS = 4
"""Blocks a worker from which on it does not matter whether all workers get equally many."""
PARALLEL_MIN = 9 << 19
"""Multiplications above which several threads are worth it."""
PART_BYTES, PART_TILES = 4 << 20, 112
"""Transformed inputs and gradients that the gradient of a weight holds at a time: what a cache
holds, or more where each part would do little more than add to a large gradient."""
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
    layout = _layout(
        x.shape, x.strides, w.shape, w.strides, out.shape, out.strides, beside, padding, threads
    )
    address, args = launch.address, layout.args.copy()
    args[kernels.X], args[kernels.OUT], args[kernels.W] = address(x), address(out), address(w)
    if scale is not None:
        args[kernels.SCALE] = address(scale)
    if shift is not None:
        args[kernels.SHIFT] = address(shift)
    if residual is not None:
        args[kernels.RESIDUAL] = address(residual)
    if clamp is not None:
        args[kernels.CLAMP] = address(clamp)
    weights = layout.weights(args, kept, workspace)
    memory = workspace((layout.nbytes,), UINT8)
    start = address(memory)
    args[kernels.WORKSPACE] = start + layout.shared
    if layout.shared:
        args[kernels.INPUTS_AT] = start
    if layout.in_blocks:
        layout.run(BLOCKS, args, layout.items)
        return
    plan = layout.plan
    for first in range(0, plan.all_units, layout.part):
        args[kernels.FIRST_UNIT] = first
        args[kernels.LAST_UNIT] = min(first + layout.part, plan.all_units)
        if layout.shared:
            layout.run(INPUTS, args, plan.blocks)
        layout.run(PANELS, args, plan.panels)
    del weights  # not before: only its address went into args


class _Layout:
    """All that convolutions of one geometry have in common: the slots but for addresses, the order
    of steps, the workspace."""

    def __init__(
        self,
        x_shape: tuple[int, ...],
        x_strides: tuple[int, ...],
        w_shape: tuple[int, ...],
        w_strides: tuple[int, ...],
        out_shape: tuple[int, ...],
        out_strides: tuple[int, ...],
        residual_strides: tuple[int, ...] | None,
        padding: tuple[int, int],
        threads: int,
    ) -> None:
        images, channels, height, width = x_shape
        outputs, out_height, out_width = out_shape[1:]
        self.workers = _workers(math.prod(out_shape), channels, threads)
        # The same weight is also wanted the other way round, for the gradient of the input.
        self.view = w_shape, w_strides
        self.plan = plan = kernels.plan(images, channels, outputs, out_height, out_width)
        few = plan.all_units * plan.segment <= FEW_TILES
        self.transformed = 4 * plan.weight_elements <= (STREAMED_BYTES if few else KEPT_BYTES)
        # The one order reads all weights once a block, the other all inputs once a panel.
        self.in_blocks = self.transformed and plan.all_units * plan.segment > outputs
        self.shared, self.part = 0, plan.all_units
        if self.in_blocks:
            units = self._even(plan.units)
            self.items = -(-plan.all_units // units)
            strip = plan.strip_elements(units)
        else:
            units = self.part = _part(plan)
            strip = max(plan.strip_elements(plan.tile_rows), kernels.RAW_ELEMENTS)
        input_block, input_position = plan.input_strides(units)
        product_column, product_position = plan.product_strides(units)
        sizes = [POSITIONS * input_position, POSITIONS * product_position, strip]
        tiles = units * plan.segment
        if not self.transformed and tiles <= kernels.STREAMED_TILES:
            # All positions of a vector of channels in one run: few pages are written to at a time.
            input_position = product_position = tiles * lanes_of(4)
            input_block = product_column = POSITIONS * input_position
            sizes[:2] = plan.blocks * input_block, COLUMNS * product_column
        if not self.in_blocks and self.workers > OWN_INPUTS:
            self.shared, sizes[0] = up(4 * sizes[0], 64), 0
        if not self.transformed:
            sizes.append(kernels.OWN_ELEMENTS)
        places = [0, *itertools.accumulate(part_bytes(4 * size) for size in sizes)]
        own = places[-1]
        self.nbytes = self.shared + own * self.workers
        slots = {
            **dict(
                channels=channels, outputs=outputs, height=height, width=width,
                out_height=out_height, out_width=out_width, padding_h=padding[0],
                padding_w=padding[1], last_unit=plan.all_units, units=units, segment=plan.segment,
                segments=plan.segments, tile_rows=plan.tile_rows, input_block=input_block,
                input_position=input_position, product_column=product_column,
                product_position=product_position, workspace_bytes=own, products=places[1],
                strip=places[2], own_weights=places[3], w_output=w_strides[0] // 4,
                w_channel=w_strides[1] // 4, w_tap=w_strides[3] // 4,
            ),
            **_strides("x", x_strides), **_strides("out", out_strides),
            **_strides("residual", residual_strides or (0,) * 4),
        }  # fmt: skip
        self.args = _slots(Slots, slots)

    def _even(self, units: int) -> int:
        """At most so many units a block, with which all workers get equally many of few blocks."""
        while units > 1:
            blocks = -(-self.plan.all_units // units)
            if blocks >= EVEN_BLOCKS * self.workers or blocks % self.workers == 0:
                break
            units -= 1
        return units

    def run(self, step: int, args: np.ndarray, items: int) -> None:
        """One launch."""
        args[kernels.STEP] = step
        launch.ranged(kernels.winograd_float32, args, items, workers=self.workers)  # type: ignore[arg-type]

    def weights(self, args: np.ndarray, kept: Kept | None, workspace: Workspace) -> Any:
        """Put the transformed weights into the slots, or where they are transformed in parts the
        packed taps, if these last; whoever uses the slots keeps what is returned."""
        plan, made = self.plan, None
        view = int(args[kernels.W]), *self.view
        if not self.transformed:
            fill = self._filling(args, kernels.TAPS, PACK, workspace)
            if kept is not None:
                made = kept.if_lasting(("taps", *view), plan.tap_elements, fill)
            if made is not None:
                args[kernels.TAPS] = launch.address(made)
            return made
        fill = self._filling(args, kernels.WEIGHTS_AT, WEIGHTS, workspace)
        if kept is None:
            made = workspace((plan.weight_elements,), FLOAT32)
            fill(made)
        else:
            made = kept(("Winograd", *view), plan.weight_elements, fill)
        args[kernels.WEIGHTS_AT] = launch.address(made)
        return made

    def _filling(
        self, args: np.ndarray, slot: int, step: int, workspace: Workspace
    ) -> Callable[[np.ndarray], None]:
        """What makes the weights, or the taps."""

        def fill(target: np.ndarray) -> None:
            own, nbytes = args.copy(), part_bytes(4 * kernels.RAW_ELEMENTS)
            memory = workspace((nbytes * self.workers,), UINT8)
            own[slot], own[kernels.WORKSPACE] = launch.address(target), launch.address(memory)
            own[kernels.WORKSPACE_BYTES] = nbytes
            self.run(step, own, self.plan.panels)

        return fill


_layout = functools.lru_cache(1024)(_Layout)


def _part(plan: kernels.Plan) -> int:
    """How many units are transformed at a time where panels follow: rows of tiles of equal parts."""
    unit = 4 * POSITIONS * plan.blocks * lanes_of(4) * plan.segment
    most = max(1, PANELS_BYTES // unit)
    return -(-plan.all_units // -(-plan.all_units // most)) if plan.all_units else 1


def _strides(name: str, strides: tuple[int, ...]) -> dict[str, int]:
    """The slots of an array with contiguous columns: its strides in elements."""
    return {f"{name}_{axis}": s // 4 for axis, s in zip("nch", strides, strict=False)}


def _slots(kind: Any, values: dict[str, int]) -> np.ndarray:
    """Slots of a kernel, 0 where nothing is said."""
    return np.array([*kind(**{**dict.fromkeys(kind._fields, 0), **values})], np.int64)


def _workers(outputs: int, channels: int, threads: int) -> int:
    """How many threads so many outputs are worth: 36 products a channel for 16 of them."""
    return threads if outputs * channels * 9 // 4 >= PARALLEL_MIN else 1


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
    layout = _weight_layout(
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
            launch.ranged(kernel, args, items, workers=layout.workers)  # type: ignore[arg-type]


class _WeightLayout:
    """The same for gradients of weights."""

    def __init__(
        self,
        x_shape: tuple[int, ...],
        x_strides: tuple[int, ...],
        g_shape: tuple[int, ...],
        g_strides: tuple[int, ...],
        padding: tuple[int, int],
        threads: int,
    ) -> None:
        lanes = lanes_of(4)
        images, outputs, out_height, out_width = g_shape
        channels, height, width = x_shape[1:]
        plan = kernels.plan(images, channels, outputs, out_height, out_width)
        panels, vectors = -(-channels // (COLUMNS * lanes)), -(-outputs // lanes)
        a_unit = POSITIONS * lanes * (panels * COLUMNS + vectors) * plan.segment
        part = max(1, PART_BYTES // (4 * a_unit), PART_TILES // plan.segment)
        self.units, self.part = plan.all_units, min(plan.all_units, part)
        tiles = up(self.part * plan.segment, lanes)
        input_position = (panels * tiles * COLUMNS + 1) * lanes
        gradient_position = (vectors * tiles + 1) * lanes
        self.gradients = up(4 * POSITIONS * input_position, 64)
        self.own = self.gradients + up(4 * POSITIONS * gradient_position, 64)
        self.workers = _workers(math.prod(g_shape), channels, threads)
        nbytes = part_bytes(4 * max(plan.strip_elements(1), weight_kernels.SUMS_ELEMENTS))
        self.nbytes = self.own + nbytes * self.workers
        self.steps = (
            (weight_kernels.TRANSFORM, panels * COLUMNS + vectors),
            (weight_kernels.MULTIPLY, -(-vectors // weight_kernels.GROUP) * panels),
        )
        slots = {
            **dict(
                channels=channels, outputs=outputs, height=height, width=width,
                out_height=out_height, out_width=out_width, padding_h=padding[0],
                padding_w=padding[1], segment=plan.segment, segments=plan.segments,
                tile_rows=plan.tile_rows, tiles=tiles, input_position=input_position,
                gradient_position=gradient_position, workspace_bytes=nbytes,
            ),
            **_strides("x", x_strides), **_strides("g", g_strides),
        }  # fmt: skip
        self.args = _slots(weight_kernels.Slots, slots)


_weight_layout = functools.lru_cache(1024)(_WeightLayout)
