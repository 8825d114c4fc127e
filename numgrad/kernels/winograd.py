"""Launching convolutions by Winograd's minimal filtering: when it applies, and in which order.

It takes a quarter of the multiplications of the definition and rounds more. It applies to 3×3 taps
of stride 1 in float32, one group, and enough channels; ``enabled`` switches it off.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from . import launch
from .cpu import winograd as kernels
from .cpu import winograd_weight as weight_kernels
from .cpu.tile import part_bytes, up
from .cpu.vector import lanes_of
from .cpu.winograd import BLOCKS, INPUTS, PACK, PANELS, WEIGHTS, Plan, Slots
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

    def __call__(self, kind: str, elements: int, fill: Callable[[np.ndarray], None]) -> np.ndarray:
        """``elements`` of float32."""

    def if_lasting(
        self, kind: str, elements: int, fill: Callable[[np.ndarray], None]
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
    images, channels, height, width = x.shape
    outputs, out_height, out_width = out.shape[1:]
    plan = kernels.plan(images, channels, outputs, out_height, out_width)
    slots = dict.fromkeys(Slots._fields, 0)  # their order stays, whatever is set when
    slots.update(
        images=images, channels=channels, outputs=outputs, height=height, width=width,
        out_height=out_height, out_width=out_width, padding_h=padding[0], padding_w=padding[1],
        segment=plan.segment, segments=plan.segments, tile_rows=plan.tile_rows,
    )  # fmt: skip
    slots.update(**_operand("x", x), **_operand("out", out))
    if residual is not None:
        slots.update(_operand("residual", residual))
    slots["w"] = launch.address(w)
    slots["w_output"], slots["w_channel"] = w.strides[0] // 4, w.strides[1] // 4
    slots["w_tap"] = w.strides[3] // 4
    for name, vector in (("scale", scale), ("shift", shift), ("clamp", clamp)):
        slots[name] = launch.address_or_0(vector)
    workers = _workers(out.size, channels)
    # The same weight is also wanted the other way round, for the gradient of the input.
    view = f"{slots['w']} {w.shape} {w.strides}"
    call = _Call(plan, slots, workers, workspace, view)
    call.weights(kept)
    # The one reads all weights once a block, the other all inputs once a panel.
    if slots["weights"] and plan.all_units * plan.segment > outputs:
        call.by_blocks()
    else:
        call.by_panels()


def _operand(name: str, array: np.ndarray) -> dict[str, int]:
    """The slots of an array with contiguous columns: its address, and strides in elements."""
    strides = zip("nch", array.strides, strict=False)
    return {name: launch.address(array), **{f"{name}_{axis}": s // 4 for axis, s in strides}}


def _workers(outputs: int, channels: int) -> int:
    """How many threads so many outputs are worth: 36 products a channel for 16 of them."""
    return launch.get_num_threads() if outputs * channels * 9 // 4 >= PARALLEL_MIN else 1


class _Call:
    """The launches of one convolution."""

    def __init__(
        self, plan: Plan, slots: dict[str, int], workers: int, workspace: Workspace, view: str
    ) -> None:
        self.plan, self.slots, self.workers, self.workspace = plan, slots, workers, workspace
        self.view = view

    def launch(self, step: int, items: int, *sizes: int, shared: int = 0) -> None:
        """One step. ``sizes`` are the elements of each part of a worker's workspace, ``shared``
        those of what all workers have."""
        places = [0]
        for size in sizes:
            places.append(places[-1] + part_bytes(4 * size))
        first = up(4 * shared, 64)
        memory = self.workspace((first + places[-1] * self.workers,), UINT8)
        slots = self.slots
        slots["workspace"], slots["workspace_bytes"] = launch.address(memory) + first, places[-1]
        for name, place in zip(("products", "strip", "own_weights"), places[1:], strict=False):
            slots[name] = place
        if step == PANELS:
            slots["inputs"] = launch.address(memory)
            self._run(INPUTS, self.plan.blocks)
        self._run(step, items)

    def _run(self, step: int, items: int) -> None:
        self.slots["step"] = step
        args = tuple(self.slots.values())
        launch.ranged(kernels.winograd_float32, args, items, workers=self.workers)

    def weights(self, kept: Kept | None) -> None:
        """Transform the weights, or where that is better done in parts pack them, if it lasts."""
        size = self.plan.weight_elements
        few = self.plan.all_units * self.plan.segment <= FEW_TILES
        if 4 * size > (STREAMED_BYTES if few else KEPT_BYTES):
            made = None
            if kept is not None:
                size, fill = self.plan.tap_elements, self._filling("taps")
                made = kept.if_lasting(f"taps of {self.view}", size, fill)
            self.taps = made
            self.slots["taps"] = launch.address_or_0(made)
            return
        fill = self._filling("weights")
        if kept is None:
            self.transformed = self.workspace((size,), FLOAT32)
            fill(self.transformed)
        else:
            self.transformed = kept(f"Winograd of {self.view}", size, fill)
        self.slots["weights"] = launch.address(self.transformed)

    def _filling(self, name: str) -> Callable[[np.ndarray], None]:
        """What makes the weights, or the taps."""

        def fill(target: np.ndarray) -> None:
            self.slots[name] = launch.address(target)
            step = WEIGHTS if name == "weights" else PACK
            self.launch(step, self.plan.panels, kernels.RAW_ELEMENTS)

        return fill

    def _strides(self, units: int) -> tuple[int, int]:
        """Set the strides of transformed inputs and of products; the elements of both."""
        slots, plan = self.slots, self.plan
        slots["input_block"], slots["input_position"] = plan.input_strides(units)
        slots["product_column"], slots["product_position"] = plan.product_strides(units)
        return POSITIONS * slots["input_position"], POSITIONS * slots["product_position"]

    def by_blocks(self) -> None:
        """Blocks of units, each through all panels."""
        plan = self.plan
        units = plan.units
        while units > 1 and self._uneven(-(-plan.all_units // units)):
            units -= 1
        inputs, products = self._strides(units)
        self.slots["units"] = units
        strip = plan.strip_elements(units)
        self.launch(BLOCKS, -(-plan.all_units // units), inputs, products, strip)

    def _uneven(self, blocks: int) -> bool:
        return blocks < EVEN_BLOCKS * self.workers and blocks % self.workers != 0

    def by_panels(self) -> None:
        """All inputs, then panel by panel."""
        plan = self.plan
        inputs, products = self._strides(plan.all_units)
        strip = max(plan.strip_elements(plan.tile_rows), kernels.RAW_ELEMENTS)
        own = 0 if self.slots["weights"] else kernels.OWN_ELEMENTS
        self.launch(PANELS, plan.panels, 0, products, strip, own, shared=inputs)


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
    lanes = lanes_of(4)
    images, outputs, out_height, out_width = g.shape
    channels, height, width = x.shape[1:]
    plan = kernels.plan(images, channels, outputs, out_height, out_width)
    panels, vectors = -(-channels // (COLUMNS * lanes)), -(-outputs // lanes)
    a_unit = POSITIONS * lanes * (panels * COLUMNS + vectors) * plan.segment
    units = max(1, PART_BYTES // (4 * a_unit), PART_TILES // plan.segment)
    units = min(plan.all_units, units)
    tiles = up(units * plan.segment, lanes)
    input_position = (panels * tiles * COLUMNS + 1) * lanes
    gradient_position = (vectors * tiles + 1) * lanes
    inputs = workspace((POSITIONS * input_position,), FLOAT32)
    gradients = workspace((POSITIONS * gradient_position,), FLOAT32)
    workers = _workers(g.size, channels)
    nbytes = part_bytes(4 * max(plan.strip_elements(1), weight_kernels.SUMS_ELEMENTS))
    memory = workspace((nbytes * workers,), UINT8)
    slots = dict(
        channels=channels, outputs=outputs, height=height, width=width, out_height=out_height,
        out_width=out_width, padding_h=padding[0], padding_w=padding[1], w=launch.address(out),
        segment=plan.segment, segments=plan.segments, tile_rows=plan.tile_rows, tiles=tiles,
        inputs=launch.address(inputs), input_position=input_position,
        gradients=launch.address(gradients), gradient_position=gradient_position,
        workspace=launch.address(memory), workspace_bytes=nbytes,
    )  # fmt: skip
    slots.update(**_operand("x", x), **_operand("g", g))
    steps = (
        (weight_kernels.TRANSFORM, panels * COLUMNS + vectors),
        (weight_kernels.MULTIPLY, -(-vectors // weight_kernels.GROUP) * panels),
    )
    for first in range(0, plan.all_units, units):
        last = min(first + units, plan.all_units)
        slots.update(first_unit=first, last_unit=last, add_out=int(first > 0))
        for step, items in steps:
            args = weight_kernels.Slots(step=step, **slots)
            launch.ranged(weight_kernels.winograd_weight_float32, args, items, workers=workers)
