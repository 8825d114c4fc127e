"""How convolutions are split into chunks and items, and what workspace they need."""

from typing import NamedTuple

from .cpu import vector as v
from .cpu.convolution import BLOCK_ROWS, KEEPS
from .cpu.tile import DIRECT_ROWS, MR, VECTOR_SLACK, VECTORS, part_bytes, up

DEPTH_BLOCK = 200
"""Products of one element that are added in registers at a time."""
FRAME_BYTES = 640 << 10
"""Bytes of a frame, if rows of out allow: it stays in L2."""
CHUNK_BYTES = 1280 << 10
"""Bytes of a frame and of the sums held beside it."""
DIRECT_ROWS_MOST = MR if KEEPS else 5 * MR
"""Rows of w up to which patches need not be packed."""
MOST_TILES = 64
"""Most tiles of pixels whose products are computed before w is read again."""
TOGETHER_DEPTH, TOGETHER_BYTES = 160, 512 << 10
"""Packed tiles of pixels are as many, if a sum has so few products and they take no more memory:
out is written in longer runs, and what a tile reads of w stays in L1."""
ITEMS = 16
"""Least items of a convolution, if it has as many tiles: what threads share."""
NARROW_TILE = 0.75
"""What a tile costs, of a whole one, that is half as wide or less."""
UNPACKED_PIXELS = 64
"""Pixels up to which w is not packed, if its channels and taps are contiguous."""
WEIGHT_PIXELS = 512
"""Pixels that the gradient of a weight adds up in registers at a time, if a row has no more."""
SUMS_BYTES = 256 << 10
"""Bytes of sums it holds at a time."""


class Plan(NamedTuple):
    """How a convolution is split: the slots of the same names, from ``workspace_bytes`` on."""

    workspace_bytes: int
    frames: int
    panels: int
    packed: int
    chunk_images: int
    chunk_rows: int
    chunk_columns: int
    chunks: int
    large: int
    row_tiles: int
    parts: int
    part_tiles: int
    tiles: int
    sums: int
    direct: int
    in_place: int
    frame_h: int
    frame_w: int
    frame_rows: int
    frame_pitch: int
    frame_c: int
    frame_n: int
    frame_channels: int


class Shape(NamedTuple):
    """The slots that say shapes, from ``images`` to ``dilation_w``."""

    images: int
    groups: int
    rows: int
    depth: int
    height: int
    width: int
    out_height: int
    out_width: int
    taps_h: int
    taps_w: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int


def packed_bytes(plan: Plan, shape: Shape, taps: int, itemsize: int) -> int:
    """The bytes of w, with ``taps``, packed by ``pack_weights_*`` or ``pack_transposed_*``."""
    k = shape.depth * taps
    rows = plan.large * MR + (plan.row_tiles - plan.large) * DIRECT_ROWS
    panels = rows * k * itemsize + plan.row_tiles * v.BYTES[v.INSTRUCTION_SET]
    return shape.groups * panels + VECTOR_SLACK


def _row_tiles(rows: int) -> tuple[int, int]:
    """How many tiles of MR rows, and how many of any kind: as few rows too many as possible."""
    best = []
    for few in range(MR + 1):
        large = max(0, -(-(rows - few * DIRECT_ROWS) // MR))
        best.append((large * MR + few * DIRECT_ROWS, large + few, large))
    _, tiles, large = min(best)
    return large, tiles


def plan(
    shape: Shape, in_place: bool, x_strides: tuple[int, int, int], itemsize: int, packed: bool
) -> Plan:
    """The plan of a convolution by ``convolution_*``; items are ``groups * chunks * parts``. w is
    ``packed`` or read where it is.

    ``x_strides``, (n, c, h) in elements, count where x is read in place.
    """
    nr = VECTORS * v.lanes_of(itemsize)
    taps = shape.taps_h * shape.taps_w
    # The blocks of the depth are whole channels, and of nearly equal size.
    blocks = -(-shape.depth // max(1, DEPTH_BLOCK // max(taps, 1))) or 1
    channels = -(-shape.depth // blocks)
    frame = _Frame(shape, in_place, x_strides, channels)
    large, row_tiles = _row_tiles(shape.rows) if packed else (0, -(-shape.rows // DIRECT_ROWS))
    padded = large * MR + (row_tiles - large) * DIRECT_ROWS
    # Columns between rows are computed in vain; packing costs loads and stores once a tile.
    waste = frame.halo_w / max(shape.out_width, 1)
    direct = padded * waste < 4 * (1 + nr / max(shape.out_width, 1))
    direct = direct and padded <= DIRECT_ROWS_MOST
    if in_place and (shape.out_height > 1 or shape.taps_h > 1):
        direct = False
    beside = row_tiles * BLOCK_ROWS * itemsize if blocks > 1 else 0
    images, rows, columns = _chunk(shape, frame, direct, padded, beside, itemsize)
    chunks = (
        -(-shape.images // images) * -(-shape.out_height // rows) * -(-shape.out_width // columns)
    )
    wanted = -(-ITEMS // (chunks * shape.groups))
    part_tiles = -(-row_tiles // min(wanted, row_tiles))
    parts = -(-row_tiles // part_tiles)
    places = (rows - 1) * (columns + frame.halo_w) + columns if direct else images * rows * columns
    table = up(16 * channels * taps, 64)
    size = 0 if in_place else frame.bytes(images, rows, columns, itemsize)
    panels = table + part_bytes(size + nr * itemsize)
    each = nr * channels * taps * itemsize
    tiles, packed_tiles = MOST_TILES, int(in_place)  # of the frame read directly: the last, if x's
    if not direct:
        tiles = 1
        if blocks == 1 and channels * taps <= TOGETHER_DEPTH:
            tiles = max(1, min(MOST_TILES, TOGETHER_BYTES // max(1, each)))
        packed_tiles = tiles
    sums = panels + part_bytes(packed_tiles * each)
    held = -(-places // nr) * row_tiles if blocks > 1 else 1
    whole = sums + part_bytes(held * BLOCK_ROWS * nr * itemsize)
    return Plan(
        whole, table, panels, 0, images, rows, columns, chunks, large, row_tiles, parts, part_tiles,
        tiles, sums, int(direct), int(in_place),
        *frame.slots(rows, columns),
    )  # fmt: skip


def plan_transposed(
    shape: Shape,
    in_place: bool,
    x_strides: tuple[int, int, int],
    itemsize: int,
    phases: int,
    taps: int,
) -> Plan:
    """The plan of ``transposed_*``, whose taps in all are ``taps``; ``shape`` is that of the
    convolution with the window. Items are ``groups * chunks * parts``."""
    nr = VECTORS * v.lanes_of(itemsize)
    window = shape.taps_h * shape.taps_w
    blocks = -(-shape.depth // max(1, DEPTH_BLOCK // window)) or 1
    channels = -(-shape.depth // blocks)
    frame = _Frame(shape, in_place, x_strides, channels)
    large, row_tiles = _row_tiles(shape.rows)
    padded = large * MR + (row_tiles - large) * DIRECT_ROWS
    held = phases * row_tiles * BLOCK_ROWS * itemsize if blocks > 1 else 0
    images, rows, columns = _chunk(shape, frame, False, padded, held, itemsize)
    chunks = (
        -(-shape.images // images) * -(-shape.out_height // rows) * -(-shape.out_width // columns)
    )
    part_tiles = -(-row_tiles // min(-(-ITEMS // (chunks * shape.groups)), row_tiles))
    parts = -(-row_tiles // part_tiles)
    table = up(8 * channels * (window + taps), 64)
    size = 0 if in_place else frame.bytes(images, rows, columns, itemsize)
    panels = table + part_bytes(size + nr * itemsize)
    sums = panels + part_bytes(nr * channels * window * itemsize)
    tiles = -(-images * rows * columns // nr) * row_tiles if blocks > 1 else 1
    whole = sums + part_bytes(tiles * phases * BLOCK_ROWS * nr * itemsize)
    return Plan(
        whole, table, panels, 0, images, rows, columns, chunks, large, row_tiles, parts, part_tiles,
        1, sums, 0, int(in_place), *frame.slots(rows, columns),
    )  # fmt: skip


def plan_weight(
    shape: Shape, in_place: bool, x_strides: tuple[int, int, int], itemsize: int
) -> Plan:
    """The plan of ``convolution_weight_*``; items are ``groups * parts``, each DIRECT_ROWS of
    the channels and taps of x."""
    nr = VECTORS * v.lanes_of(itemsize)
    taps = shape.taps_h * shape.taps_w
    k = shape.depth * taps
    padded = up(shape.rows, nr)
    # A block of channels and taps has its sums, and the channels it touches their frame, in L2.
    block = max(DIRECT_ROWS, SUMS_BYTES // (padded * itemsize) // DIRECT_ROWS * DIRECT_ROWS)
    block = min(block, up(k, DIRECT_ROWS))
    channels = min(shape.depth, (block + taps - 2) // taps + 1)
    frame = _Frame(shape, in_place, x_strides, channels)
    columns = max(1, min(shape.out_width, WEIGHT_PIXELS))
    rows = 1 if columns < shape.out_width else max(1, WEIGHT_PIXELS // columns)
    rows = _shared(shape.out_height, rows)
    chunks = shape.images * -(-shape.out_height // rows) * -(-shape.out_width // columns)
    parts = -(-k // DIRECT_ROWS)
    table = up(8 * channels * taps, 64)
    end = table + part_bytes(
        0 if in_place else frame.bytes(1, rows, columns, itemsize) + nr * itemsize
    )
    sums = end + part_bytes(padded * rows * columns * itemsize)
    whole = sums + part_bytes((block + DIRECT_ROWS + nr) * padded * itemsize)
    return Plan(
        whole, table, end, 0, 1, rows, columns, chunks, 0, 0, parts, 1,
        block // DIRECT_ROWS, sums, 1, int(in_place), *frame.slots(rows, columns),
    )  # fmt: skip


class _Frame:
    """The geometry of frames of a convolution."""

    def __init__(
        self, shape: Shape, in_place: bool, x_strides: tuple[int, int, int], channels: int
    ) -> None:
        reach_h = (shape.taps_h - 1) * shape.dilation_h if shape.taps_h else 0
        reach_w = (shape.taps_w - 1) * shape.dilation_w if shape.taps_w else 0
        self.halo_h, self.halo_w = reach_h // shape.stride_h, reach_w // shape.stride_w
        self.planes = min(shape.stride_h, reach_h + 1), min(shape.stride_w, reach_w + 1)
        self.one_row = shape.out_height == shape.taps_h == 1
        self.channels, self.in_place, self.x_strides = channels, in_place, x_strides

    def slots(self, rows: int, columns: int) -> tuple[int, ...]:
        """The slots from ``frame_h`` on."""
        if self.in_place:
            n, c, h = self.x_strides
            if self.one_row:
                h = columns  # which is not used but to tell rows apart
            return 1, 1, 0, h, c, n, self.channels
        down, across = rows + self.halo_h, columns + self.halo_w
        channel = self.planes[0] * self.planes[1] * down * across
        return *self.planes, down, across, channel, self.channels * channel, self.channels

    def bytes(self, images: int, rows: int, columns: int, itemsize: int) -> int:
        """The bytes of the frame of a chunk, read in place or not."""
        planes = self.planes[0] * self.planes[1]
        area = (rows + self.halo_h) * (columns + self.halo_w)
        return images * self.channels * planes * area * itemsize


def _chunk(
    shape: Shape, frame: _Frame, direct: bool, padded: int, beside: int, itemsize: int
) -> tuple[int, int, int]:
    """Images, rows and columns of a chunk: whole images, or rows of one, or columns of one.
    ``padded`` is the rows of all tiles of w, ``beside`` the bytes of sums held for each pixel."""
    nr = VECTORS * v.lanes_of(itemsize)
    oh, ow = shape.out_height, shape.out_width
    tiles = shape.images * oh * ow / nr
    if frame.bytes(1, 1, ow, itemsize) > FRAME_BYTES or oh == 1:
        # Rows are long: columns, as many as fit, in at least ITEMS chunks if there are the tiles.
        each = frame.bytes(1, 1, nr, itemsize) - frame.bytes(1, 1, 0, itemsize) + nr * beside
        fit = max(1, (FRAME_BYTES - frame.bytes(1, 1, 0, itemsize)) // max(each, 1))
        share = max(1, -(-int(tiles) // ITEMS))
        if ow > nr * min(fit, share) or shape.images == 1:
            return 1, 1, min(fit, share) * nr
    whole = max(1, frame.bytes(1, oh, ow, itemsize) + oh * ow * beside)
    if not direct and 2 * whole <= CHUNK_BYTES and oh * ow < 8 * nr:
        images = min(CHUNK_BYTES // whole, max(1, -(-16 * nr // (oh * ow))), shape.images)
        return _shared(shape.images, images), oh, ow
    best, chosen = 0.0, 1
    k = shape.depth * shape.taps_h * shape.taps_w
    for rows in range(1, oh + 1):
        size = frame.bytes(1, rows, ow, itemsize) + rows * ow * beside
        if rows > 1 and size > CHUNK_BYTES:
            break
        if rows != _shared(oh, rows):
            continue  # chunks of unequal size would leave workers waiting
        blocks, rest = divmod(oh, rows)
        counts = [(blocks, rows), (1, rest)] if rest else [(blocks, rows)]
        cost = 0.0
        for times, r in counts:
            positions = (r - 1) * (ow + frame.halo_w) + ow if direct else r * ow
            tiles, rest = divmod(positions, nr)
            tiles += 1 if 2 * rest > nr else NARROW_TILE if rest else 0
            copied = frame.bytes(1, r, ow, itemsize) / itemsize
            cost += times * (tiles * k * padded + 0.2 * copied + 2000)
        if shape.images * sum(times for times, _ in counts) == 1:
            cost *= 1.05  # two workers would both make the frame
        if not best or cost <= best:
            best, chosen = cost, rows
    return 1, chosen, ow


def _shared(count: int, most: int) -> int:
    """How many of ``count`` each part has, if there are as few parts as ``most`` allows."""
    return -(-count // -(-count // most)) if count else 1
