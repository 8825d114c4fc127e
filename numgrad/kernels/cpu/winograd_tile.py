"""Pieces of Winograd's minimal filtering F(4×4, 3×3): the three transforms, and products of tiles.

S. Winograd, "Arithmetic Complexity of Computations" (SIAM, 1980); A. Lavin and S. Gray, "Fast
Algorithms for Convolutional Neural Networks" (2016). A tile of 4×4 outputs of a 3×3 correlation is
``Aᵀ [(G w Gᵀ) ⊙ (Bᵀ d B)] A`` of its 6×6 inputs d: 36 products where the definition has 144.

The points here are 0, ±3/4, ±3/2 and ∞. The usual 0, ±1, ±2 and ∞ lose four times as much to
rounding (on the choice of points: B. Barabasz, A. Anderson, K. Soodhalter and D. Gregg, "Error
Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks", 2020).

A *position* is one of the 36 places of a transformed tile. Every vector holds one value of as many
channels as there are lanes; a *pixel* here is such a vector.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from . import vector as v
from .indirect import Loop
from .vector import INSTRUCTION_SET

TILE = 4
"""Rows and columns of outputs in a tile."""
SPAN = TILE + 2
POSITIONS = SPAN * SPAN
NEAR, FAR = 0.75, 1.5
"""The points that are neither 0 nor ∞, each with both signs."""
COLUMNS = 2
"""Vectors of output channels in a panel."""
ROWS = {"avx512": (14, 8, 4), "avx2": (6, 4, 2), "plain": (6, 4, 2)}[INSTRUCTION_SET]
"""Tiles that a product takes at a time: as many as registers hold sums for, and fewer."""
STREAM_CHANNELS = {"avx512": 4, "avx2": 2, "plain": 2}[INSTRUCTION_SET]
"""Channels whose weights, of a panel at three positions, registers hold."""
_UNROLLED = 4
"""Channels between two tests of the loop of a product."""


# --------------------------------------------------------------------------------------- functions


def _function(module, name, arguments, write, result=None):
    """An LLVM function of its own, so that registers are allotted for it alone and it is compiled
    once; ``write(builder, arguments)`` fills it."""
    if name in module.globals:
        return module.globals[name]
    signature = ir.FunctionType(ir.VoidType(), arguments)
    function = ir.Function(module, signature, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    write(builder, function.args)
    builder.ret_void()
    return function


def _vectors(builder, start, type_, distance, count):
    """``count`` vectors, ``distance`` elements apart."""
    return [
        v.load_vector(builder, _moved(builder, start, distance, i), type_, 4) for i in range(count)
    ]


def _expect(builder, places):
    """Have lines that lie in many rows of the cache come while their values are calculated."""
    for place in places:
        v.prefetch_value(builder, place, write=True)


def _moved(builder, start, distance, times):
    if isinstance(distance, int):
        return builder.gep(start, [v.i64(distance * times)])
    return builder.gep(start, [builder.mul(distance, v.i64(times))])


class _Algebra:
    """Sums of vectors with small factors, in few instructions."""

    def __init__(self, builder, type_):
        self.builder, self.type = builder, type_

    def number(self, value):
        return ir.Constant(self.type, [float(value)] * self.type.count)

    def plus(self, a, b):
        return self.builder.fadd(a, b)

    def minus(self, a, b):
        return self.builder.fsub(a, b)

    def times(self, factor, a):
        return self.builder.fmul(self.number(factor), a)

    def plus_times(self, a, factor, b):
        """``a + factor * b``."""
        return v.multiply_add_value(self.builder, self.number(factor), b, a)


def _input_row(k, d):
    """``Bᵀ d`` of six vectors."""
    d0, d1, d2, d3, d4, d5 = d
    both, ends = NEAR**2 + FAR**2, NEAR**2 * FAR**2
    near_even, near_odd = k.plus_times(d4, -(FAR**2), d2), k.plus_times(d3, -(FAR**2), d1)
    far_even, far_odd = k.plus_times(d4, -(NEAR**2), d2), k.plus_times(d3, -(NEAR**2), d1)
    return [
        k.plus_times(k.plus_times(d4, -both, d2), ends, d0),
        k.plus_times(near_even, NEAR, near_odd),
        k.plus_times(near_even, -NEAR, near_odd),
        k.plus_times(far_even, FAR, far_odd),
        k.plus_times(far_even, -FAR, far_odd),
        k.plus_times(k.plus_times(d5, -both, d3), ends, d1),
    ]


def _output_row(k, m):
    """``Aᵀ m`` of six vectors: four."""
    m0, m1, m2, m3, m4, m5 = m
    near, near_odd = k.plus(m1, m2), k.minus(m1, m2)
    far, far_odd = k.plus(m3, m4), k.minus(m3, m4)
    return [
        k.plus(m0, k.plus(near, far)),
        k.plus_times(k.times(NEAR, near_odd), FAR, far_odd),
        k.plus_times(k.times(NEAR**2, near), FAR**2, far),
        k.plus_times(k.plus_times(m5, NEAR**3, near_odd), FAR**3, far_odd),
    ]


def _weight_row(k, w):
    """``G w`` of three vectors: six."""
    w0, w1, w2 = w
    near, far = 2 * NEAR**2 * (NEAR**2 - FAR**2), 2 * FAR**2 * (FAR**2 - NEAR**2)
    near_even = k.plus_times(k.times(NEAR**2 / near, w2), 1 / near, w0)
    far_even = k.plus_times(k.times(FAR**2 / far, w2), 1 / far, w0)
    return [
        k.times(1 / (NEAR**2 * FAR**2), w0),
        k.plus_times(near_even, NEAR / near, w1),
        k.plus_times(near_even, -NEAR / near, w1),
        k.plus_times(far_even, FAR / far, w1),
        k.plus_times(far_even, -FAR / far, w1),
        w2,
    ]


def _gradient_row(k, g):
    """``A g`` of four vectors: six."""
    g0, g1, g2, g3 = g
    near_even, near_odd = k.plus_times(g0, NEAR**2, g2), k.plus_times(g1, NEAR**2, g3)
    far_even, far_odd = k.plus_times(g0, FAR**2, g2), k.plus_times(g1, FAR**2, g3)
    return [
        g0,
        k.plus_times(near_even, NEAR, near_odd),
        k.plus_times(near_even, -NEAR, near_odd),
        k.plus_times(far_even, FAR, far_odd),
        k.plus_times(far_even, -FAR, far_odd),
        g3,
    ]


def _weight_gradient_row(k, u):
    """``Gᵀ u`` of six vectors: three."""
    u0, u1, u2, u3, u4, u5 = u
    near, far = 2 * NEAR**2 * (NEAR**2 - FAR**2), 2 * FAR**2 * (FAR**2 - NEAR**2)
    near_even, near_odd = k.plus(u1, u2), k.minus(u1, u2)
    far_even, far_odd = k.plus(u3, u4), k.minus(u3, u4)
    ends = k.plus_times(k.times(1 / far, far_even), 1 / near, near_even)
    squares = k.plus_times(u5, FAR**2 / far, far_even)
    return [
        k.plus_times(ends, 1 / (NEAR**2 * FAR**2), u0),
        k.plus_times(k.times(FAR / far, far_odd), NEAR / near, near_odd),
        k.plus_times(squares, NEAR**2 / near, near_even),
    ]


def _both_ways(k, rows, one_way):
    """A transform applied to the columns of a square of vectors, then to its rows."""
    columns = [one_way(k, [row[j] for row in rows]) for j in range(len(rows[0]))]
    return [one_way(k, [column[i] for column in columns]) for i in range(len(columns[0]))]


# -------------------------------------------------------------------------------------- transforms


def _transform(name, distances, write):
    """An intrinsic ``(t, source, at, target, to, *distances)`` that calls a function of its own."""

    def codegen(context, builder, signature, args):
        t = signature.args[0]
        e = v.element_type(t)
        at = e.as_pointer()
        arguments = [at, at] + [v.I64] * distances
        function = _function(
            builder.module,
            f"numgrad_winograd_{name}_{t}",
            arguments,
            lambda inner, values: write(inner, v.vector_type(t), *values),
        )
        _, source, start, target, to, *rest = args
        builder.call(
            function,
            [
                builder.gep(v.pointer(builder, source, e), [start]),
                builder.gep(v.pointer(builder, target, e), [to]),
                *rest,
            ],
        )
        return context.get_dummy_value()

    return codegen


def _to_positions(builder, type_, rows, one_way, target, position):
    """Transform a square of pixels into 36."""
    for i, values in enumerate(_both_ways(_Algebra(builder, type_), rows, one_way)):
        for j, value in enumerate(values):
            v.store_vector(builder, value, _moved(builder, target, position, i * SPAN + j), 4)


def _of_positions(builder, type_, source, position):
    """36 pixels, as a square."""
    return [
        _vectors(builder, _moved(builder, source, position, i * SPAN), type_, position, SPAN)
        for i in range(SPAN)
    ]


def _write_input(builder, type_, source, target, row, position):
    _expect(builder, (_moved(builder, target, position, p) for p in range(POSITIONS)))
    rows = [
        _vectors(builder, _moved(builder, source, row, i), type_, type_.count, SPAN)
        for i in range(SPAN)
    ]
    _to_positions(builder, type_, rows, _input_row, target, position)


_input = _transform("input", 2, _write_input)


@intrinsic
def input_transform(typingctx, t, source, at, target, to, row, position):
    """``Bᵀ d B``: 6×6 pixels at ``source[at]``, rows ``row`` elements apart, to 36 pixels
    ``position`` elements apart."""
    return types.void(t, *[types.int64] * 6), _input


def _write_output(builder, type_, source, target, position, row, scale, shift):
    k = _Algebra(builder, type_)
    e = type_.element
    rows = _of_positions(builder, type_, source, position)
    factor = v.load_vector(builder, v.pointer(builder, scale, e), type_, 4)
    term = v.load_vector(builder, v.pointer(builder, shift, e), type_, 4)
    for i, values in enumerate(_both_ways(k, rows, _output_row)):
        for j, value in enumerate(values):
            place = builder.gep(_moved(builder, target, row, i), [v.i64(j * type_.count)])
            value = v.multiply_add_value(builder, value, factor, term)
            v.store_vector(builder, value, place, 4)


_output = _transform("output", 4, _write_output)


@intrinsic
def output_transform(typingctx, t, source, at, target, to, position, row, scale, shift):
    """``Aᵀ m A · scale + shift``: 36 pixels ``position`` elements apart, to 4×4 pixels with rows
    ``row`` elements apart; ``scale`` and ``shift`` are addresses of one pixel each."""
    return types.void(t, *[types.int64] * 8), _output


def _write_weight(builder, type_, source, target, tap, position):
    _expect(builder, (_moved(builder, target, position, p) for p in range(POSITIONS)))
    rows = [_vectors(builder, _moved(builder, source, tap, 3 * i), type_, tap, 3) for i in range(3)]
    _to_positions(builder, type_, rows, _weight_row, target, position)


_weight = _transform("weight", 2, _write_weight)


@intrinsic
def weight_transform(typingctx, t, source, at, target, to, tap, position):
    """``G w Gᵀ``: 3×3 pixels ``tap`` elements apart (which may be negative), to 36 pixels
    ``position`` elements apart."""
    return types.void(t, *[types.int64] * 6), _weight


def _write_gradient(builder, type_, source, target, row, position):
    _expect(builder, (_moved(builder, target, position, p) for p in range(POSITIONS)))
    rows = [
        _vectors(builder, _moved(builder, source, row, i), type_, type_.count, TILE)
        for i in range(TILE)
    ]
    _to_positions(builder, type_, rows, _gradient_row, target, position)


_gradient = _transform("gradient", 2, _write_gradient)


@intrinsic
def gradient_transform(typingctx, t, source, at, target, to, row, position):
    """``A g Aᵀ``, the adjoint of the output's transform: 4×4 pixels with rows ``row`` elements
    apart, to 36 pixels ``position`` elements apart."""
    return types.void(t, *[types.int64] * 6), _gradient


def _write_weight_gradient(builder, type_, source, target, position):
    k = _Algebra(builder, type_)
    rows = _of_positions(builder, type_, source, position)
    for i, values in enumerate(_both_ways(k, rows, _weight_gradient_row)):
        for j, value in enumerate(values):
            place = builder.gep(target, [v.i64((3 * i + j) * type_.count)])
            v.store_vector(builder, value, place, 4)


_weight_gradient = _transform("weight_gradient", 1, _write_weight_gradient)


@intrinsic
def weight_gradient_transform(typingctx, t, source, at, target, to, position):
    """``Gᵀ u G``, the adjoint of the weight's transform: 36 pixels ``position`` elements apart, to
    3×3 pixels in a run."""
    return types.void(t, *[types.int64] * 5), _weight_gradient


# ---------------------------------------------------------------------------------------- products


def _write_product(
    builder, type_, rows, over_tiles, x, x_block, blocks, y, out, out_column, add_out
):
    """See :func:`product` and :func:`product_over_tiles`."""
    function, lanes = builder.function, type_.count
    row, step = (1, lanes) if over_tiles else (lanes, 1)
    load = function.append_basic_block("load")
    loop, done = function.append_basic_block("loop"), function.append_basic_block("done")
    start = function.append_basic_block("start")
    tiles = [
        [builder.gep(out, [v.i64(i * lanes)]) for i in range(rows)],
        [builder.gep(out, [builder.add(out_column, v.i64(i * lanes))]) for i in range(rows)],
    ]
    zero, entry = v.zero_vector(type_), builder.block
    builder.cbranch(builder.icmp_signed("!=", add_out, v.i64(0)), load, start)

    builder.position_at_end(load)
    there = [[v.load_vector(builder, place, type_, 4) for place in column] for column in tiles]
    builder.branch(start)

    builder.position_at_end(start)
    first = []
    for column in there:
        first.append([])
        for value in column:
            phi = builder.phi(type_)
            phi.add_incoming(zero, entry)
            phi.add_incoming(value, load)
            first[-1].append(phi)
    _expect(builder, tiles[0] + tiles[1])
    builder.branch(loop)

    builder.position_at_end(loop)
    pointer = x.type
    a, b = builder.phi(pointer), builder.phi(pointer)
    channel, left = builder.phi(v.I64), builder.phi(v.I64)
    sums = [[builder.phi(type_) for _ in range(rows)] for _ in range(COLUMNS)]
    added = sums
    for p in range(_UNROLLED):
        weights = [
            v.load_vector(builder, builder.gep(b, [v.i64((p * COLUMNS + j) * lanes)]), type_, 4)
            for j in range(COLUMNS)
        ]
        new = [[] for _ in range(COLUMNS)]
        for i in range(rows):
            value = builder.load(builder.gep(a, [v.i64(i * row + p * step)]))
            value = v.splat_value(builder, value, type_)
            for j in range(COLUMNS):
                new[j].append(v.multiply_add_value(builder, value, weights[j], added[j][i]))
        added = new
    following = builder.add(channel, v.i64(_UNROLLED))
    over = builder.icmp_signed("==", following, v.i64(lanes))
    # A block of channels is done, and the next one lies elsewhere; tiles lie in one run.
    jump = v.i64(_UNROLLED * lanes)
    if not over_tiles:
        jump = builder.sub(x_block, v.i64(lanes - _UNROLLED))
    along = jump if over_tiles else builder.select(over, jump, v.i64(_UNROLLED))
    remaining = builder.sub(left, builder.select(over, v.i64(1), v.i64(0)))
    for phi, initial, update in (
        (a, x, builder.gep(a, [along])),
        (b, y, builder.gep(b, [v.i64(_UNROLLED * COLUMNS * lanes)])),
        (channel, v.i64(0), builder.select(over, v.i64(0), following)),
        (left, blocks, remaining),
        *((sums[j][i], first[j][i], added[j][i]) for j in range(COLUMNS) for i in range(rows)),
    ):
        phi.add_incoming(initial, start)
        phi.add_incoming(update, loop)
    builder.cbranch(builder.icmp_signed(">", remaining, v.i64(0)), loop, done)

    builder.position_at_end(done)
    for column, values in zip(tiles, added, strict=True):
        for place, value in zip(column, values, strict=True):
            v.store_vector(builder, value, place, 4)


def _product(rows, over_tiles=False):
    def product(typingctx, t, x, x_at, x_block, blocks, y, y_at, out, at, out_column, add_out):
        def codegen(context, builder, signature, args):
            _, x_, x_at_, x_block_, blocks_, y_, y_at_, out_, at_, out_column_, add_ = args
            e = v.element_type(t)
            pointer = e.as_pointer()
            function = _function(
                builder.module,
                f"numgrad_winograd_product_{rows}_{over_tiles}_{t}",
                [pointer, v.I64, v.I64, pointer, pointer, v.I64, v.I64],
                lambda inner, values: _write_product(
                    inner, v.vector_type(t), rows, over_tiles, *values
                ),
            )
            places = [
                builder.gep(v.pointer(builder, base, e), [index])
                for base, index in ((x_, x_at_), (y_, y_at_), (out_, at_))
            ]
            builder.call(
                function, [places[0], x_block_, blocks_, places[1], places[2], out_column_, add_]
            )
            return context.get_dummy_value()

        return types.void(t, *[types.int64] * 10), codegen

    product.__doc__ = (_OVER_TILES if over_tiles else _OVER_CHANNELS).format(rows=rows)
    return intrinsic(product)


_OVER_CHANNELS = """``out[j, i] (+)= Σ x[i, c] · y[c, j]`` for {rows} tiles i.

    Channel c of tile i is element ``(c // lanes) * x_block + i * lanes + c % lanes`` of x, for
    ``blocks`` (≥ 1) blocks of channels; y is (c, 2 pixels); pixel j of tile i is at
    ``out[j * out_column + i * lanes]``.
    """
_OVER_TILES = """``out[j, i] (+)= Σ x[c, i] · y[c, j]`` for {rows} channels i of a pixel of x.

    x is (c, 1 pixel) and y (c, 2 pixels) for ``blocks`` (≥ 1) times ``lanes`` tiles c; ``x_block``
    is not used; pixel j of channel i is at ``out[j * out_column + i * lanes]``.
    """
product_large, product_middle, product_small = (_product(rows) for rows in ROWS)
GRADIENT_ROWS = {"avx512": 8, "avx2": 4, "plain": 4}[INSTRUCTION_SET]
"""Channels that :func:`product_over_tiles` takes at a time: they divide those of a pixel."""
product_over_tiles = _product(GRADIENT_ROWS, over_tiles=True)


def _write_streamed(builder, type_, taps, tap, x, x_position, tiles, out, column, position):
    """See :func:`product_streamed`."""
    function, lanes, k = builder.function, type_.count, _Algebra(builder, type_)
    vectors, next_channel = STREAM_CHANNELS * COLUMNS, 9 * COLUMNS * lanes
    halfway = builder.alloca(ir.ArrayType(type_.element, SPAN * vectors * 3 * lanes))
    halfway.align = 64
    halfway = builder.bitcast(halfway, type_.element.as_pointer())
    groups = Loop(function, builder, v.i64(lanes // STREAM_CHANNELS), [taps, x])
    taps, x = groups.values
    for q in range(vectors):  # one way: ``halfway[i, vector, j]`` is row i, column j
        channel, of_panel = divmod(q, COLUMNS)
        start = builder.gep(taps, [v.i64(channel * next_channel + of_panel * lanes)])
        ahead = builder.gep(start, [v.i64(STREAM_CHANNELS * next_channel)])
        for i in range(9):  # what comes next, while this is used: it is read but once
            v.prefetch_value(builder, builder.gep(ahead, [v.i64(i * COLUMNS * lanes)]))
        rows = [
            _vectors(builder, _moved(builder, start, tap, 3 * i), type_, tap, 3) for i in range(3)
        ]
        for j in range(3):
            for i, value in enumerate(_weight_row(k, [row[j] for row in rows])):
                place = builder.gep(halfway, [v.i64(((i * vectors + q) * 3 + j) * lanes)])
                v.store_vector(builder, value, place, 4)
    down = Loop(function, builder, v.i64(SPAN), [halfway, x, out])
    source, x_row, out_row = down.values
    for first in range(0, SPAN, 3):  # the other way, half a row at a time
        positions, weights = range(first, first + 3), []
        for q in range(vectors):
            row = _vectors(builder, builder.gep(source, [v.i64(3 * q * lanes)]), type_, lanes, 3)
            weights.append(_weight_row(k, row))
        along = Loop(function, builder, tiles, [x_row, out_row])
        x_tile, out_tile = along.values
        for p in positions:
            place = _moved(builder, out_tile, position, p)
            places = [_moved(builder, place, column, j) for j in range(COLUMNS)]
            sums = [v.load_vector(builder, place, type_, 4) for place in places]
            for c in range(STREAM_CHANNELS):
                value = builder.gep(_moved(builder, x_tile, x_position, p), [v.i64(c)])
                value = v.splat_value(builder, builder.load(value), type_)
                for j in range(COLUMNS):
                    weight = weights[c * COLUMNS + j][p]
                    sums[j] = v.multiply_add_value(builder, value, weight, sums[j])
            for place, total in zip(places, sums, strict=True):
                v.store_vector(builder, total, place, 4)
        tile = v.i64(lanes)
        along.end(function, [builder.gep(x_tile, [tile]), builder.gep(out_tile, [tile])])
    down.end(
        function,
        [
            builder.gep(source, [v.i64(3 * vectors * lanes)]),
            _moved(builder, x_row, x_position, SPAN),
            _moved(builder, out_row, position, SPAN),
        ],
    )
    following = STREAM_CHANNELS * next_channel, STREAM_CHANNELS
    groups.end(
        function,
        [builder.gep(base, [v.i64(n)]) for base, n in zip((taps, x), following, strict=True)],
    )


@intrinsic
def product_streamed(
    typingctx, t, taps, at, x, x_at, out, out_at, tap, x_position, tiles, column, position
):
    """``out[p, j, i] += Σ x[p, i, c] · (G w Gᵀ)[p, c, j]`` for all positions p, one vector of
    channels c, the two vectors j of a panel and ``tiles`` (≥ 1) tiles i.

    The taps are (c, tap, 2 pixels), ``tap`` elements apart (which may be negative). Tiles of x and
    of out are pixels in a run, ``x_position`` and ``position`` elements from one position to the
    next; j is ``column`` elements of out. The transformed weights are never written.
    """

    def codegen(context, builder, signature, args):
        t, (_, *places, tap_, x_position_, tiles_, column_, position_) = signature.args[0], args
        e = v.element_type(t)
        pointer, i = e.as_pointer(), v.I64
        function = _function(
            builder.module,
            f"numgrad_winograd_streamed_{t}",
            [pointer, i, pointer, i, i, pointer, i, i],
            lambda inner, values: _write_streamed(inner, v.vector_type(t), *values),
        )
        taps_, x_, out_ = (
            builder.gep(v.pointer(builder, base, e), [index])
            for base, index in zip(places[::2], places[1::2], strict=True)
        )
        builder.call(function, [taps_, tap_, x_, x_position_, tiles_, out_, column_, position_])
        return context.get_dummy_value()

    return types.void(t, *[types.int64] * 11), codegen
