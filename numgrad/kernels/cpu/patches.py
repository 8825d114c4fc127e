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
from .tile import write_epilogue


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
    step, frame_c = stride_w * x_w, load_i64(args, slots.FRAME_C)
    x_c, lines_all = load_i64(args, slots.X_C), load_i64(args, slots.FRAME_ROWS)
    for n in range(images):
        plane = (n0 + n) * load_i64(args, slots.X_N) + first * x_c
        for a in range(down):
            for b in range(across):
                left = j0 * stride_w + b - padding_w
                lo, hi = ceil_of(-left, stride_w), ceil_of(width - left, stride_w)
                hi = v.least(hi, filled)
                there = n * load_i64(args, slots.FRAME_N) + (a * across + b) * lines_all * pitch
                for y in range(lines):
                    ih = (i0 + y) * stride_h + a - padding_h
                    at, source = there + y * pitch, plane + ih * x_h + left * x_w
                    last = hi if ih >= 0 and ih < height else 0
                    # Channels last: what depends on the place alone is computed once.
                    if step == 1:
                        for q in range(0, filled, size):
                            for c in range(channels):
                                value = v.load_between(t, x, source + c * x_c + q, lo - q, last - q)
                                v.store_some(target, at + c * frame_c + q, value, filled - q)
                    elif step == 2:
                        for q in range(0, filled, size):
                            for c in range(channels):
                                value = v.load_even_between(
                                    t, x, source + c * x_c + 2 * q, lo - q, last - q
                                )
                                v.store_some(target, at + c * frame_c + q, value, filled - q)
                    else:
                        for c in range(channels):
                            for q in range(filled):
                                element = t
                                if lo <= q and q < last:
                                    element = v.get(t, x, source + c * x_c + q * step)
                                v.put(target, at + c * frame_c + q, element)
    end = images * load_i64(args, slots.FRAME_N)
    for q in range(0, 2 * size, size):  # products read on: not what may be slow to multiply
        v.store(target, end + q, v.splat(t))


@subroutine
def pack_tile(t, args, frame, at, place, rows, columns, count, table, k, width, runs, target, to):
    """A panel of patches: ``target[to + p * width + q]`` is what pixel ``place + q`` of a chunk of
    ``rows`` by ``columns`` reads at place p of channels and taps, for q < ``count`` and p < k.

    ``at`` is where the frame starts, ``runs`` memory for two numbers a pixel. Writes up to one
    vector past the panel, and reads nothing but what belongs to these pixels.
    """
    size = v.lanes(t)
    pitch = load_i64(args, slots.FRAME_PITCH)
    line = place // columns
    j = place - line * columns
    n = line // rows
    i = line - n * rows
    q, found = 0, 0
    while q < count:
        length = v.least(columns - j, count - q)
        start = at + n * load_i64(args, slots.FRAME_N) + i * pitch + j
        store_i64(runs, 2 * found, start - q)
        store_i64(runs, 2 * found + 1, q + length)
        found += 1
        q += length
        j = 0
        i += 1
        if i == rows:
            i = 0
            n += 1
    if found == 1 and count == width and width == 2 * size:
        start = load_i64(runs, 0)
        for p in range(k):
            source, there = start + load_i64(table, p), to + p * width
            v.store(target, there, v.load(t, frame, source))
            v.store(target, there + size, v.load(t, frame, source + size))
    else:
        for p in range(k):
            source, there, q = load_i64(table, p), to + p * width, 0
            for run in range(found):
                start, stop = source + load_i64(runs, 2 * run), load_i64(runs, 2 * run + 1)
                while q < stop:
                    value = v.load_some(t, frame, start + q, stop - q)
                    v.store(target, there + q, value)
                    q += size
                q = stop
            while q < width:  # not what was there, which may be slow to multiply
                v.store(target, there + q, v.splat(t))
                q += size
