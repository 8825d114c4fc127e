"""What the convolution kernels share: reading the patches of an image, and their epilogue.

The *patch* of an output pixel is what it reads: an element for each input channel and tap.
"""

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from ..native import load_i64, store_i64
from . import slots
from . import vector as v
from .subroutine import subroutine
from .tile import VECTORS, write_epilogue


@njit(inline="always")
def epilogue_of(args, target):
    """The epilogue of the slots, put at ``target``: its address, or 0."""
    return write_epilogue(
        target,
        load_i64(args, slots.SCALE),
        load_i64(args, slots.SHIFT),
        0,
        load_i64(args, slots.RESIDUAL),
        load_i64(args, slots.RESIDUAL_C),
        load_i64(args, slots.RESIDUAL_W),
        load_i64(args, slots.CLAMP),
    )


@njit(inline="always")
def ceil_of(a, stride):
    """``ceil(a / stride)``; division is slow, and the usual strides need none."""
    if stride == 1:
        return a
    if stride == 2:
        return (a + 1) >> 1
    return (a + stride - 1) // stride


@intrinsic
def store_even_some(typingctx, base, index, value, count):
    """``base[index + 2 * i] = value[i]`` for the first ``count`` lanes; nothing else is written."""

    def codegen(context, builder, signature, args):
        base_, index_, value_, count_ = args
        lanes, t = value_.type.count, value.element
        start = builder.gep(v.pointer(builder, base_, v.element_type(t)), [index_])
        for half in range(2):
            numbers = [(half * lanes + i) // 2 for i in range(lanes)]
            spread = builder.shuffle_vector(value_, value_, v.lane_numbers(numbers))
            # Lanes between have numbers that no count reaches.
            wanted = [n if i % 2 == 0 else 1 << 40 for i, n in enumerate(numbers)]
            wide = ir.VectorType(v.I64, lanes)
            mask = builder.icmp_signed(
                "<", ir.Constant(wide, wanted), v.splat_value(builder, count_, wide)
            )
            place = builder.gep(start, [v.i64(half * lanes)])
            builder.call(
                v._masked(builder, "store", value_.type),
                [
                    spread,
                    builder.bitcast(place, value_.type.as_pointer()),
                    ir.Constant(v.I32, t.bitwidth // 8),
                    mask,
                ],
            )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, value, types.int64), codegen


@intrinsic
def split_between(typingctx, t, base, index, first, last, target, at, odd, count):
    """``target[at + i] = base[index + 2 * i]`` and, if ``odd``, ``target[at + odd + i] =
    base[index + 2 * i + 1]``, for a vector of i, of which ``count`` are written.

    Of ``base[index + ...]`` only places ``first`` to before ``last`` are read, others are 0.
    """

    def codegen(context, builder, signature, args):
        _, base_, index_, first_, last_, target_, at_, odd_, count_ = args
        type_, align = v.vector_type(t), t.bitwidth // 8
        start = builder.gep(v.pointer(builder, base_, v.element_type(t)), [index_])
        there = builder.gep(v.pointer(builder, target_, v.element_type(t)), [at_])
        halves = []
        for half in range(2):
            skipped = v.i64(half * type_.count)
            mask = v._lanes_between(
                builder, type_, builder.sub(first_, skipped), builder.sub(last_, skipped)
            )
            place = builder.gep(start, [skipped])
            halves.append(v._masked_load(builder, type_, place, align, mask))
        mask = v._lanes_between(builder, type_, v.i64(0), count_)

        def store(part, place):
            numbers = v.lane_numbers(range(part, 2 * type_.count, 2))
            builder.call(
                v._masked(builder, "store", type_),
                [
                    builder.shuffle_vector(*halves, numbers),
                    builder.bitcast(place, type_.as_pointer()),
                    ir.Constant(v.I32, align),
                    mask,
                ],
            )

        store(0, there)
        with builder.if_then(builder.icmp_signed("!=", odd_, v.i64(0))):
            store(1, builder.gep(there, [odd_]))
        return context.get_dummy_value()

    return types.void(t, *[types.int64] * 8), codegen


@njit(inline="always")
def chunk_of(args, chunk):
    """The first image, row and column of a chunk of out, and how many of each it has."""
    oh, ow = load_i64(args, slots.OUT_HEIGHT), load_i64(args, slots.OUT_WIDTH)
    images, rows = load_i64(args, slots.CHUNK_IMAGES), load_i64(args, slots.CHUNK_ROWS)
    columns = load_i64(args, slots.CHUNK_COLUMNS)
    across, down = (ow + columns - 1) // columns, (oh + rows - 1) // rows
    line = chunk // across
    n = line // down
    i, j = (line - n * down) * rows, (chunk - line * across) * columns
    n *= images
    images = v.least(images, load_i64(args, slots.IMAGES) - n)
    return n, i, j, images, v.least(rows, oh - i), v.least(columns, ow - j)


@njit(inline="always")
def part_of(args, lo, hi):
    """Of the items [lo, hi), those of the first group and chunk: its group, its chunk, the tiles
    [t0, t1) of rows, and the item where they end."""
    parts, chunks = load_i64(args, slots.PARTS), load_i64(args, slots.CHUNKS)
    tiles = load_i64(args, slots.PART_TILES)
    block = lo // parts
    stop = v.least(hi, (block + 1) * parts)
    group = block // chunks
    t0 = (lo - block * parts) * tiles
    t1 = v.least((stop - block * parts) * tiles, load_i64(args, slots.ROW_TILES))
    return group, block - group * chunks, t0, t1, stop


@subroutine
def write_table(args, target):
    """For each channel and tap, how far from the place of a pixel in the frame its element is."""
    taps_h, taps_w = load_i64(args, slots.TAPS_H), load_i64(args, slots.TAPS_W)
    stride_h, stride_w = load_i64(args, slots.STRIDE_H), load_i64(args, slots.STRIDE_W)
    dilation_h, dilation_w = load_i64(args, slots.DILATION_H), load_i64(args, slots.DILATION_W)
    planes, pitch = load_i64(args, slots.FRAME_W), load_i64(args, slots.FRAME_PITCH)
    plane, channel = load_i64(args, slots.FRAME_ROWS) * pitch, load_i64(args, slots.FRAME_C)
    p = 0
    for c in range(load_i64(args, slots.FRAME_CHANNELS)):
        for r in range(taps_h):
            down = r * dilation_h // stride_h
            a = r * dilation_h - down * stride_h
            for s in range(taps_w):
                across = s * dilation_w // stride_w
                b = s * dilation_w - across * stride_w
                place = (a * planes + b) * plane + down * pitch + across
                store_i64(target, p, c * channel + place)
                p += 1


@subroutine
def read_frame(t, args, first, channels, n0, images, i0, rows, j0, columns, target):
    """Copy what a chunk of out reads, from channel ``first`` of x on: the *frame*.

    It is ``[image][channel][a][b][row][column]``: planes (a, b) hold the places of x, with its
    padding, that are a and b modulo the stride. What a tap reads for neighbouring pixels lies side
    by side in one plane. Writes up to one vector past the frame.
    """
    size = v.lanes(t)
    height, width = load_i64(args, slots.HEIGHT), load_i64(args, slots.WIDTH)
    stride_h, stride_w = load_i64(args, slots.STRIDE_H), load_i64(args, slots.STRIDE_W)
    padding_h, padding_w = load_i64(args, slots.PADDING_H), load_i64(args, slots.PADDING_W)
    x, x_h, x_w = load_i64(args, slots.X), load_i64(args, slots.X_H), load_i64(args, slots.X_W)
    down, across = load_i64(args, slots.FRAME_H), load_i64(args, slots.FRAME_W)
    pitch = load_i64(args, slots.FRAME_PITCH)
    lines = load_i64(args, slots.FRAME_ROWS) - load_i64(args, slots.CHUNK_ROWS) + rows
    filled = pitch - load_i64(args, slots.CHUNK_COLUMNS) + columns
    step, plane = stride_w * x_w, load_i64(args, slots.FRAME_ROWS) * pitch
    left = j0 * stride_w - padding_w
    for m in range(images * channels * down):
        n = m // (channels * down)
        c = m // down - n * channels
        a = m - (n * channels + c) * down
        source = (n0 + n) * load_i64(args, slots.X_N) + (first + c) * load_i64(args, slots.X_C)
        top = i0 * stride_h + a - padding_h
        source += top * x_h + left * x_w
        at = n * load_i64(args, slots.FRAME_N) + c * load_i64(args, slots.FRAME_C)
        at += a * across * plane
        # Lines [y0, y1) lie in x.
        y0 = v.least(v.greatest(ceil_of(-top, stride_h), 0), lines)
        y1 = v.greatest(v.least(ceil_of(height - top, stride_h), lines), y0)
        for y in range(lines - (y1 - y0)):
            there = y if y < y0 else y + y1 - y0
            for b in range(across):
                for q in range(0, filled, size):
                    v.store_some(target, at + b * plane + there * pitch + q, v.splat(t), filled - q)
        source, at = source + y0 * stride_h * x_h, at + y0 * pitch
        # A vector of each line in turn: which of its lanes lie in x is the same for all.
        if step == 1:
            for q in range(0, filled, size):
                lo, hi, rest = -left - q, width - left - q, filled - q
                for y in range(y1 - y0):
                    value = v.load_between(t, x, source + y * stride_h * x_h + q, lo, hi)
                    v.store_some(target, at + y * pitch + q, value, rest)
        elif step == 2 and x_w == 1:
            odd = plane if across == 2 else 0
            for q in range(0, filled, size):
                lo, hi, rest = -left - 2 * q, width - left - 2 * q, filled - q
                for y in range(y1 - y0):
                    split_between(
                        t, x, source + y * stride_h * x_h + 2 * q, lo, hi, target,
                        at + y * pitch + q, odd, rest,
                    )  # fmt: skip
        else:
            for b in range(across):
                lo = ceil_of(-left - b, stride_w)
                hi = v.least(ceil_of(width - left - b, stride_w), filled)
                for y in range(y1 - y0):
                    for q in range(filled):
                        element = t
                        if lo <= q and q < hi:
                            where = source + y * stride_h * x_h + b * x_w + q * step
                            element = v.get(t, x, where)
                        v.put(target, at + b * plane + y * pitch + q, element)
    end = images * load_i64(args, slots.FRAME_N)
    for q in range(0, 2 * size, size):  # products read on: not what may be slow to multiply
        v.store(target, end + q, v.splat(t))


@njit(inline="always")
def _find_runs(args, at, place, rows, columns, count, runs):
    """Put for each run of ``count`` pixels that lie side by side, from ``place`` of a chunk on, how
    far its elements are from the place of the pixel in a tile, and where it ends; how many."""
    pitch = load_i64(args, slots.FRAME_PITCH)
    line = place // columns
    j = place - line * columns
    n = line // rows
    i = line - n * rows
    q, found = 0, 0
    while q < count:
        length = v.least(columns - j, count - q)
        start = at + n * load_i64(args, slots.FRAME_N) + i * pitch + j - q
        if found and load_i64(runs, 2 * found - 2) == start:
            found -= 1  # rows that follow one another are one run
        store_i64(runs, 2 * found, start)
        q += length
        store_i64(runs, 2 * found + 1, q)
        found += 1
        j = 0
        i += 1
        if i == rows:
            i = 0
            n += 1
    return found


@subroutine
def cut_tile(t, args, at, place, rows, columns, runs, cuts):
    """What ``indirect.product_keeping`` has to know to read a whole tile, at ``cuts``: three
    numbers a vector, and then whether this tile can be read like that. The rest is as in
    ``pack_tile``."""
    size = v.lanes(t)
    found = _find_runs(args, at, place, rows, columns, VECTORS * size, runs)
    run, possible = 0, 1
    for j in range(VECTORS):
        q = j * size
        while load_i64(runs, 2 * run + 1) <= q:
            run += 1
        cut = v.least(load_i64(runs, 2 * run + 1) - q, size)
        first = load_i64(runs, 2 * run) + q
        store_i64(cuts, 3 * j, first)
        store_i64(cuts, 3 * j + 1, first)
        store_i64(cuts, 3 * j + 2, cut)
        if cut < size:
            # More than two places, or of memory that must not be read beyond a run.
            if load_i64(runs, 2 * run + 3) < q + size or load_i64(args, slots.IN_PLACE):
                possible = 0
            store_i64(cuts, 3 * j + 1, load_i64(runs, 2 * run + 2) + q)
    store_i64(cuts, 3 * VECTORS, possible if found else 0)


@subroutine
def pack_tile(t, args, frame, at, place, rows, columns, count, table, k, width, runs, target, to):
    """A panel of patches: ``target[to + p * width + q]`` is what pixel ``place + q`` of a chunk of
    ``rows`` by ``columns`` reads at place p of channels and taps, for q < ``count`` and p < k.

    ``at`` is where the frame starts, ``runs`` memory for two numbers a pixel. Writes up to one
    vector past the panel, and reads nothing but what belongs to these pixels, or to the frame.
    """
    size, safe = v.lanes(t), 1 - load_i64(args, slots.IN_PLACE)
    found = _find_runs(args, at, place, rows, columns, count, runs)
    if found == 1 and count == width and width == 2 * size:
        start = load_i64(runs, 0)
        for p in range(k):
            source, there = start + load_i64(table, p), to + p * width
            v.store(target, there, v.load(t, frame, source))
            v.store(target, there + size, v.load(t, frame, source + size))
    else:
        q = 0
        for run in range(found):
            start, stop = load_i64(runs, 2 * run), load_i64(runs, 2 * run + 1)
            while q < stop:
                # A frame may be read on: the next run overwrites what does not belong to this one.
                valid, rest = size if safe else stop - q, width - q
                for p in range(k):
                    value = v.load_some(t, frame, start + load_i64(table, p) + q, valid)
                    v.store_some(target, to + p * width + q, value, rest)
                q += size
            q = stop
        while q < width:  # not what was there, which may be slow to multiply
            for p in range(k):
                v.store_some(target, to + p * width + q, v.splat(t), width - q)
            q += size
