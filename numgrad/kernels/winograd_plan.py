"""How convolutions by Winograd's filtering are cut up: sizes, workspace, and the slots but for
addresses. What follows from shapes and strides is found once and kept."""

import functools
import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from .cpu import vector as v
from .cpu import winograd as kernels
from .cpu import winograd_weight as weight_kernels
from .cpu.tile import part_bytes, up
from .cpu.winograd_tile import COLUMNS, POSITIONS, SPAN, TILE

SEGMENT = 28
"""Most tiles of a row in one unit."""
BLOCK = 28
"""Tiles that a worker transforms at a time: their channels and a panel of weights stay in L2."""
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


class Plan(NamedTuple):
    """Sizes that follow from the shapes; element counts unless they say bytes."""

    blocks: int
    """Vectors of input channels."""
    panels: int
    segment: int
    segments: int
    tile_rows: int
    all_units: int
    units: int
    """Units of a block, at most."""
    weight_elements: int
    tap_elements: int

    def tiles(self, units: int) -> int:
        """Tiles of so many units, with room for a whole product at the end."""
        return units * self.segment + kernels.LARGE

    def input_strides(self, units: int) -> tuple[int, int]:
        """``(input_block, input_position)``; one vector more, so that not all begin in one set of
        a cache."""
        lanes = v.lanes_of(4)
        block = (self.tiles(units) + 1) * lanes
        return block, self.blocks * block + lanes

    def product_strides(self, units: int) -> tuple[int, int]:
        """``(product_column, product_position)``."""
        lanes = v.lanes_of(4)
        column = (self.tiles(units) + 1) * lanes
        return column, COLUMNS * column + lanes

    def strip_elements(self, units: int) -> int:
        """The pixels that so many units of one image read; also room for what a row of them
        writes."""
        lanes = v.lanes_of(4)
        rows = TILE * units + 2 if self.segments == 1 else SPAN
        return (rows * self.strip_width() + lanes) * lanes

    def strip_width(self) -> int:
        """Pixels in a row of a strip."""
        return up(TILE * self.segment + 2, v.lanes_of(4))


def plan(images: int, channels: int, outputs: int, out_height: int, out_width: int) -> Plan:
    """How a convolution is cut up."""
    lanes = v.lanes_of(4)
    across, down = -(-out_width // TILE), -(-out_height // TILE)
    segments = -(-across // SEGMENT)
    segment = -(-across // segments)
    all_units = images * down * segments
    blocks, panels = -(-channels // lanes), -(-outputs // (COLUMNS * lanes))
    units = min(max(1, BLOCK // segment), all_units)
    size = panels * POSITIONS * (blocks * COLUMNS * lanes + 1) * lanes
    taps = (panels * blocks * lanes * 9 * COLUMNS + 1) * lanes
    return Plan(blocks, panels, segment, segments, down, all_units, units, size, taps)


class Layout:
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
        self.plan = cut = plan(images, channels, outputs, out_height, out_width)
        few = cut.all_units * cut.segment <= FEW_TILES
        self.transformed = 4 * cut.weight_elements <= (STREAMED_BYTES if few else KEPT_BYTES)
        # The one order reads all weights once a block, the other all inputs once a panel.
        self.in_blocks = self.transformed and cut.all_units * cut.segment > outputs
        self.shared, self.part = 0, cut.all_units
        if self.in_blocks:
            units = self._even(cut.units)
            self.items = -(-cut.all_units // units)
            strip = cut.strip_elements(units)
        else:
            units = self.part = _part(cut)
            strip = max(cut.strip_elements(cut.tile_rows), kernels.RAW_ELEMENTS)
        input_block, input_position = cut.input_strides(units)
        product_column, product_position = cut.product_strides(units)
        sizes = [POSITIONS * input_position, POSITIONS * product_position, strip]
        tiles = units * cut.segment
        if not self.transformed and tiles <= kernels.STREAMED_TILES:
            # All positions of a vector of channels in one run: few pages are written to at a time.
            input_position = product_position = tiles * v.lanes_of(4)
            input_block = product_column = POSITIONS * input_position
            sizes[:2] = cut.blocks * input_block, COLUMNS * product_column
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
                padding_w=padding[1], last_unit=cut.all_units, units=units, segment=cut.segment,
                segments=cut.segments, tile_rows=cut.tile_rows, input_block=input_block,
                input_position=input_position, product_column=product_column,
                product_position=product_position, workspace_bytes=own, products=places[1],
                strip=places[2], own_weights=places[3], w_output=w_strides[0] // 4,
                w_channel=w_strides[1] // 4, w_tap=w_strides[3] // 4,
            ),
            **_strides("x", x_strides), **_strides("out", out_strides),
            **_strides("residual", residual_strides or (0,) * 4),
        }  # fmt: skip
        self.args = _slots(kernels.Slots, slots)

    def _even(self, units: int) -> int:
        """At most so many units a block, with which all workers get equally many of few blocks."""
        while units > 1:
            blocks = -(-self.plan.all_units // units)
            if blocks >= EVEN_BLOCKS * self.workers or blocks % self.workers == 0:
                break
            units -= 1
        return units


layout = functools.lru_cache(1024)(Layout)


def _part(cut: Plan) -> int:
    """How many units are transformed at a time where panels follow, in equal parts."""
    unit = 4 * POSITIONS * cut.blocks * v.lanes_of(4) * cut.segment
    most = max(1, PANELS_BYTES // unit)
    return -(-cut.all_units // -(-cut.all_units // most)) if cut.all_units else 1


def _strides(name: str, strides: tuple[int, ...]) -> dict[str, int]:
    """The slots of an array with contiguous columns: its strides in elements."""
    return {f"{name}_{axis}": s // 4 for axis, s in zip("nch", strides, strict=False)}


def _slots(kind: Any, values: dict[str, int]) -> np.ndarray:
    """Slots of a kernel, 0 where nothing is said."""
    return np.array([*kind(**{**dict.fromkeys(kind._fields, 0), **values})], np.int64)


def _workers(outputs: int, channels: int, threads: int) -> int:
    """How many threads so many outputs are worth: 36 products a channel for 16 of them."""
    return threads if outputs * channels * 9 // 4 >= PARALLEL_MIN else 1


class WeightLayout:
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
        lanes = v.lanes_of(4)
        images, outputs, out_height, out_width = g_shape
        channels, height, width = x_shape[1:]
        cut = plan(images, channels, outputs, out_height, out_width)
        panels, vectors = -(-channels // (COLUMNS * lanes)), -(-outputs // lanes)
        a_unit = POSITIONS * lanes * (panels * COLUMNS + vectors) * cut.segment
        part = max(1, PART_BYTES // (4 * a_unit), PART_TILES // cut.segment)
        self.units, self.part = cut.all_units, min(cut.all_units, part)
        tiles = up(self.part * cut.segment, lanes)
        input_position = (panels * tiles * COLUMNS + 1) * lanes
        gradient_position = (vectors * tiles + 1) * lanes
        self.gradients = up(4 * POSITIONS * input_position, 64)
        self.own = self.gradients + up(4 * POSITIONS * gradient_position, 64)
        self.workers = _workers(math.prod(g_shape), channels, threads)
        nbytes = part_bytes(4 * max(cut.strip_elements(1), weight_kernels.SUMS_ELEMENTS))
        self.nbytes = self.own + nbytes * self.workers
        self.steps = (
            (weight_kernels.TRANSFORM, panels * COLUMNS + vectors),
            (weight_kernels.MULTIPLY, -(-vectors // weight_kernels.GROUP) * panels),
        )
        slots = {
            **dict(
                channels=channels, outputs=outputs, height=height, width=width,
                out_height=out_height, out_width=out_width, padding_h=padding[0],
                padding_w=padding[1], segment=cut.segment, segments=cut.segments,
                tile_rows=cut.tile_rows, tiles=tiles, input_position=input_position,
                gradient_position=gradient_position, workspace_bytes=nbytes,
            ),
            **_strides("x", x_strides), **_strides("g", g_strides),
        }  # fmt: skip
        self.args = _slots(weight_kernels.Slots, slots)


weight_layout = functools.lru_cache(1024)(WeightLayout)
