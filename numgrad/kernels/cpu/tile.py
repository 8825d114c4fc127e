"""Pieces of blocked products: micro-kernels on packed panels, packing, and the epilogue.

After Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008), in the form
of BLIS. A *tile* is MR rows × NR columns of the result; a *panel* is what a tile reads of one
operand, packed ``[k][MR]`` or ``[k][NR]``. NR is ``VECTORS`` vectors of the element. The witness
``t`` is that of ``numgrad.kernels.cpu.vector``.
"""

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from ..native import load_i64, store_i64
from . import vector as v
from .subroutine import subroutine
from .vector import INSTRUCTION_SET

# Rows × vectors of the tile held in registers, and rows of the tile that reads x unpacked. AVX-512
# has 32 registers: 28 sums, two vectors of y, one broadcast. The others have 16: 12 or 8 sums. The
# unpacked tile needs a general register a row, and eight sums to hide the latency of an FMA.
MR, DIRECT_ROWS = {"avx512": (14, 8), "avx2": (6, 4), "plain": (4, 4)}[INSTRUCTION_SET]
# Rows × columns of a tile of inner products: 24 sums, four vectors of y, one of x; else 8 sums.
DOT_ROWS, DOT_COLUMNS = (6 if INSTRUCTION_SET == "avx512" else 2), 4
VECTORS = 2
VECTOR_BYTES = v.BYTES[INSTRUCTION_SET]
TILE_BYTES = MR * VECTORS * VECTOR_BYTES
# A panel of y, KC × NR, stays in L1 or streams from L2; a block of x, MC × KC, stays in L2; a block
# of y, KC × NC, in L3.
KC, NC = 320, 2048
MC = 16 * MR
AHEAD = 24
"""How many rows of y ahead of the sums are asked for."""


VECTOR_SLACK = 64
"""Packing writes up to one vector past a panel, and products read up to a tile past a frame."""


def up(value: int, multiple: int) -> int:
    """``value`` rounded up to a multiple."""
    return (value + multiple - 1) // multiple * multiple


def part_bytes(nbytes: int) -> int:
    """The bytes of a part of a workspace: whole cache lines, with room for one vector more."""
    return up(nbytes + VECTOR_SLACK, 64)


# ------------------------------------------------------------------------------ micro-kernels


def _tile_function(module, element, rows, vectors, packed, keeps):
    """``c[i, j] (+)= sum(a[i, p] * b[p, j] for p in range(k))``, the sums in registers.

    One that ``keeps`` also writes the rows of b to ``kept``, ``kept_row`` elements apart: it reads
    a matrix in place and leaves its packed panel behind, at no cost beside the sums. The rows of c
    are asked for one a step: all at once they would hold up the loads of the sums.

    A function of its own, so that registers are allotted for this loop alone.
    """
    name = f"numgrad_tile_{rows}x{vectors}_{element}_{'packed' if packed else 'direct'}"
    name += "_keeps" if keeps else ""
    if name in module.globals:
        return module.globals[name]
    e, type_ = v.element_type(element), v.vector_type(element)
    size, lanes = element.bitwidth // 8, type_.count
    at, i = e.as_pointer(), v.I64
    signature = ir.FunctionType(ir.VoidType(), [at, i, i, i, at, i, i, at, i, i, at, i])
    function = ir.Function(module, signature, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    a0, along, step, valid, b0, b_row, k, c, c_row, add, kept0, kept_row = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    if packed:
        offsets, step = [v.i64(i) for i in range(rows)], v.i64(rows)
    else:
        # Rows that do not exist are read as the last one that does: their sums are not used.
        last = builder.sub(valid, v.i64(1))
        offsets = [
            builder.mul(
                builder.select(builder.icmp_signed("<", v.i64(i), last), v.i64(i), last), along
            )
            for i in range(rows)
        ]
    ahead = builder.mul(b_row, v.i64(AHEAD))
    columns = vectors * lanes
    zero = v.zero_vector(type_)

    def steps(start, stop, carried, fetches):
        """Steps [start, stop) of the sum, from and to what is carried: a, b, kept, c and sums."""
        before = builder.block
        loop, after = function.append_basic_block("loop"), function.append_basic_block("after")
        builder.cbranch(builder.icmp_signed("<", start, stop), loop, after)
        builder.position_at_end(loop)
        p = builder.phi(v.I64)
        now = [builder.phi(value.type) for value in carried]
        a, b, kept, fetched, *sums = now
        y = []
        for j in range(vectors):
            y.append(v.load_vector(builder, builder.gep(b, [v.i64(j * lanes)]), type_, size))
            if keeps:
                v.store_vector(builder, y[j], builder.gep(kept, [v.i64(j * lanes)]), size)
        for lane in (*range(0, columns, lanes), columns - 1):  # it may lie in one line more
            if keeps:
                v.prefetch_value(builder, builder.gep(b, [builder.add(ahead, v.i64(lane))]))
            if fetches:
                v.prefetch_value(builder, builder.gep(fetched, [v.i64(lane)]))
        added = []
        for i in range(rows):
            x = v.splat_value(builder, builder.load(builder.gep(a, [offsets[i]])), type_)
            for j in range(vectors):
                added.append(v.multiply_add_value(builder, x, y[j], sums[i * vectors + j]))
        following = builder.add(p, v.i64(1))
        moved = [builder.gep(a, [step]), builder.gep(b, [b_row])]
        moved.append(builder.gep(kept, [kept_row]) if keeps else kept)
        moved.append(builder.gep(fetched, [c_row]) if fetches else fetched)
        last = [*moved, *added]
        for phi, first, update in zip(
            (p, *now), (start, *carried), (following, *last), strict=True
        ):
            phi.add_incoming(first, before)
            phi.add_incoming(update, loop)
        builder.cbranch(builder.icmp_signed("<", following, stop), loop, after)
        builder.position_at_end(after)
        results = []
        for value, update in zip(carried, last, strict=True):
            result = builder.phi(value.type)
            result.add_incoming(value, before)
            result.add_incoming(update, loop)
            results.append(result)
        return results

    least = builder.select(builder.icmp_signed("<", k, v.i64(rows)), k, v.i64(rows))
    carried = steps(v.i64(0), least, [a0, b0, kept0, c, *[zero] * (rows * vectors)], True)
    sums = steps(least, k, carried, False)[4:]
    with builder.if_else(builder.icmp_signed("!=", add, v.i64(0))) as (adds, overwrites):
        for branch, to_what_is_there in ((adds, True), (overwrites, False)):
            with branch:
                for i in range(rows):
                    row = builder.gep(c, [builder.mul(v.i64(i), c_row)])
                    for j in range(vectors):
                        place, value = builder.gep(row, [v.i64(j * lanes)]), sums[i * vectors + j]
                        if to_what_is_there:
                            there = v.load_vector(builder, place, type_, size)
                            value = builder.fadd(there, value)
                        v.store_vector(builder, value, place, size)
    builder.ret_void()
    return function


def _tile(rows, vectors, packed):
    @intrinsic
    def tile(typingctx, t, a, a_at, along, step, valid, b, b_at, b_row, k, c):
        """The sums of a tile at ``c``, rows VECTORS vectors apart."""

        def codegen(context, builder, signature, args):
            _, a_, a_at_, along_, step_, valid_, b_, b_at_, b_row_, k_, c_ = args
            e = v.element_type(t)
            function = _tile_function(builder.module, t, rows, vectors, packed, False)
            first_a = builder.gep(v.pointer(builder, a_, e), [a_at_])
            first_b = builder.gep(v.pointer(builder, b_, e), [b_at_])
            place, row = v.pointer(builder, c_, e), v.i64(VECTORS * v.vector_type(t).count)
            builder.call(
                function,
                [first_a, along_, step_, valid_, first_b, b_row_, k_, place, row]
                + [v.i64(0), place, v.i64(0)],  # what is kept is overwritten by the sums
            )
            return context.get_dummy_value()

        return types.void(t, *[types.int64] * 10), codegen

    def to_memory(keeps):
        @intrinsic
        def tile_to(
            typingctx, t, a, a_at, along, step, valid, b, b_at, b_row, k,
            c, c_at, c_row, add, kept, kept_at, kept_row,
        ):  # fmt: skip
            """The same at ``c[c_at]``, rows ``c_row`` apart, added to what is there if ``add``."""

            def codegen(context, builder, signature, args):
                e = v.element_type(t)
                function = _tile_function(builder.module, t, rows, vectors, packed, keeps)

                def place(base, index):
                    return builder.gep(v.pointer(builder, base, e), [index])

                _, a_, a_at_, along_, step_, valid_, b_, b_at_, b_row_, k_ = args[:10]
                c_, c_at_, c_row_, add_, kept_, kept_at_, kept_row_ = args[10:]
                builder.call(
                    function,
                    [place(a_, a_at_), along_, step_, valid_, place(b_, b_at_), b_row_, k_]
                    + [place(c_, c_at_), c_row_, add_, place(kept_, kept_at_), kept_row_],
                )
                return context.get_dummy_value()

            return types.void(t, *[types.int64] * 16), codegen

        return tile_to

    return tile, to_memory(False), to_memory(True)


tile_packed, tile_packed_to, tile_packed_keeping = _tile(MR, VECTORS, packed=True)
tile_direct, tile_direct_to, tile_direct_keeping = _tile(DIRECT_ROWS, VECTORS, packed=False)
tile_narrow, tile_narrow_to, _ = _tile(DIRECT_ROWS, 1, packed=False)


def _totals(builder, sums):
    """The totals of ``DOT_COLUMNS`` vectors as one vector; halves are added, as ``total`` does."""
    parts, length = list(sums), sums[0].type.count  # ``length`` lanes belong to each total

    def halves(first, second, width):
        starts = range(0, width, length)
        low = [start + i for start in starts for i in range(length // 2)]
        return [
            builder.shuffle_vector(first, second, v.lane_numbers([i + by for i in low]))
            for by in (0, length // 2)
        ]

    while len(parts) > 1:
        pairs = list(zip(parts[::2], parts[1::2], strict=True))
        width = 2 * parts[0].type.count
        if length == 1:
            numbers = v.lane_numbers(range(width))
            parts = [builder.shuffle_vector(*pair, numbers) for pair in pairs]
        else:
            parts = [builder.fadd(*halves(*pair, width)) for pair in pairs]
            length //= 2
    while length > 1:
        (whole,) = parts
        parts = [builder.fadd(*halves(whole, whole, whole.type.count))]
        length //= 2
    return parts[0]


def _dots_function(module, element):
    """``c[i, j] = sum(a[i, p] * b[j, p] for p in range(k))``, k a number of whole vectors.

    Each lane sums its share of k. Rows of a and of b that do not exist are read as the last one
    that does.
    """
    name = f"numgrad_dots_{DOT_ROWS}x{DOT_COLUMNS}_{element}"
    if name in module.globals:
        return module.globals[name]
    e, type_ = v.element_type(element), v.vector_type(element)
    size, lanes = element.bitwidth // 8, type_.count
    at, i64 = e.as_pointer(), v.I64
    signature = ir.FunctionType(ir.VoidType(), [at, i64, i64, at, i64, i64, i64, at, i64])
    function = ir.Function(module, signature, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    a, a_row, rows, b, b_row, columns, k, c, c_row = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))

    def starts(base, count, valid, stride):
        last = builder.sub(valid, v.i64(1))
        numbers = [
            builder.select(builder.icmp_signed("<", v.i64(i), last), v.i64(i), last)
            for i in range(count)
        ]
        return [builder.gep(base, [builder.mul(number, stride)]) for number in numbers]

    from_a, from_b = starts(a, DOT_ROWS, rows, a_row), starts(b, DOT_COLUMNS, columns, b_row)

    before, loop = builder.block, function.append_basic_block("loop")
    after = function.append_basic_block("after")
    builder.branch(loop)
    builder.position_at_end(loop)
    p = builder.phi(i64)
    carried = [builder.phi(type_) for _ in range(DOT_ROWS * DOT_COLUMNS)]
    sums = []

    def load(start):
        return v.load_vector(builder, builder.gep(start, [p]), type_, size)

    y = [load(start) for start in from_b]
    for r in range(DOT_ROWS):
        x = load(from_a[r])
        for j in range(DOT_COLUMNS):
            s = carried[len(sums)]
            s.add_incoming(v.zero_vector(type_), before)
            sums.append(v.multiply_add_value(builder, x, y[j], s))
            s.add_incoming(sums[-1], loop)
    following = builder.add(p, v.i64(lanes))
    p.add_incoming(v.i64(0), before)
    p.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed("<", following, k), loop, after)
    builder.position_at_end(after)
    for r in range(DOT_ROWS):
        row = builder.gep(c, [builder.mul(v.i64(r), c_row)])
        totals = _totals(builder, sums[r * DOT_COLUMNS : (r + 1) * DOT_COLUMNS])
        v.store_vector(builder, totals, row, size)
    builder.ret_void()
    return function


@intrinsic
def dots(typingctx, t, a, a_at, a_row, rows, b, b_at, b_row, columns, k, c, c_at, c_row):
    """The inner products of ``rows`` rows of a and ``columns`` rows of b, both contiguous, at
    ``c[c_at]``: whole tiles are written, whatever exists."""

    def codegen(context, builder, signature, args):
        def place(base, index):
            return builder.gep(v.pointer(builder, base, v.element_type(t)), [index])

        _, a_, a_at_, a_row_, rows_, b_, b_at_, b_row_, columns_, k_, c_, c_at_, c_row_ = args
        builder.call(
            _dots_function(builder.module, t),
            [place(a_, a_at_), a_row_, rows_, place(b_, b_at_), b_row_, columns_, k_]
            + [place(c_, c_at_), c_row_],
        )
        return context.get_dummy_value()

    return types.void(t, *[types.int64] * 12), codegen


# ------------------------------------------------------------------------------------ packing


@subroutine
def pack(t, source, start, along, step, count, k, width, target, at):
    """Pack a panel: ``target[at + p * width + w] = source[start + w * along + p * step]``.

    For w < ``count`` <= ``width`` and p < ``k``; what lies in the other lanes of the panel is not
    defined. Writes up to one vector past the panel.
    """
    size = v.lanes(t)
    if along == 1:
        if count == 2 * size and width == count:
            for p in range(k):
                s, d = start + p * step, at + p * width
                v.store(target, d, v.load(t, source, s))
                v.store(target, d + size, v.load(t, source, s + size))
        else:
            for p in range(k):
                for w in range(0, count, size):
                    value = v.load_some(t, source, start + p * step + w, count - w)
                    v.store(target, at + p * width + w, value)
    elif step == 1:
        whole = k & -size
        groups = (count + size - 1) // size
        # From the last group on: a vector that sticks out of its row spoils the start of the next.
        for group in range(groups - 1, -1, -1):
            w = group * size
            valid = v.least(size, count - w)
            for p in range(0, whole, size):
                v.transpose(
                    t,
                    source,
                    start + w * along + p,
                    along,
                    valid,
                    target,
                    at + p * width + w,
                    width,
                )
        for p in range(whole, k):
            for w in range(count):
                v.put(target, at + p * width + w, v.get(t, source, start + w * along + p))
    else:
        for p in range(k):
            for w in range(count):
                v.put(target, at + p * width + w, v.get(t, source, start + w * along + p * step))


# ----------------------------------------------------------------------------------- epilogue

# An *epilogue* is what happens to a result on its way to memory: seven int64 slots.
SCALE, SHIFT, BY_COLUMN, RESIDUAL, RESIDUAL_ROW, RESIDUAL_COLUMN, CLAMP = range(7)
EPILOGUE_BYTES = 56


@njit(inline="always")
def write_epilogue(
    target, scale, shift, by_column, residual, residual_row, residual_column, clamp
):  # fmt: skip
    """Put an epilogue at ``target``; its address, or 0 if there is nothing to do.

    ``scale`` and ``shift`` are addresses of vectors over columns if ``by_column``, else over rows;
    ``residual`` is that of a matrix like the result with strides of its own, ``clamp`` that of two
    elements (least, greatest). Each may be 0.
    """
    store_i64(target, SCALE, scale)
    store_i64(target, SHIFT, shift)
    store_i64(target, BY_COLUMN, by_column)
    store_i64(target, RESIDUAL, residual)
    store_i64(target, RESIDUAL_ROW, residual_row)
    store_i64(target, RESIDUAL_COLUMN, residual_column)
    store_i64(target, CLAMP, clamp)
    return target if scale or shift or residual or clamp else 0


@njit(inline="always")
def _of_vector(t, base, at, r, c, by_column, count):
    """What belongs to row r and the columns from c on of a vector over rows or over columns."""
    if by_column:
        return v.load_some(t, base, at + c, count)
    return v.splat(v.get(t, base, at + r))


@subroutine
def finish(
    t, tile, width, rows, columns, out, at, out_row, out_column, add_out,
    epilogue, vector_at, residual_at,
):  # fmt: skip
    """Write a tile of sums to ``out``: the one place where anything is done to a result.

    ``out[r, c] = clamp((tile[r, c] (+ out[r, c])) * scale[q] + shift[q] + residual[r, c])`` with
    ``q = vector_at + c`` by column, else ``vector_at + r``. ``epilogue`` is an address or 0;
    ``residual_at`` is the place of row 0, column 0. A nan stays one.

    The slots are read again for each vector: conditions that do not change in a loop would have
    LLVM write the loop once for each combination of them.
    """
    size = v.lanes(t)
    contiguous = out_column == 1
    if epilogue and load_i64(epilogue, RESIDUAL) and load_i64(epilogue, RESIDUAL_COLUMN) != 1:
        contiguous = False
    if contiguous:
        for r in range(rows):
            for c in range(0, columns, size):
                rest = columns - c
                place = at + r * out_row + c
                value = v.load(t, tile, r * width + c)
                if add_out:
                    value = v.add(v.load_some(t, out, place, rest), value)
                if epilogue:
                    by_column = load_i64(epilogue, BY_COLUMN)
                    base = load_i64(epilogue, SCALE)
                    if base:
                        factor = _of_vector(t, base, vector_at, r, c, by_column, rest)
                        value = v.multiply(value, factor)
                    base = load_i64(epilogue, SHIFT)
                    if base:
                        term = _of_vector(t, base, vector_at, r, c, by_column, rest)
                        value = v.add(value, term)
                    base = load_i64(epilogue, RESIDUAL)
                    if base:
                        there = residual_at + r * load_i64(epilogue, RESIDUAL_ROW) + c
                        value = v.add(value, v.load_some(t, base, there, rest))
                    base = load_i64(epilogue, CLAMP)
                    if base:
                        least, greatest = v.get(t, base, 0), v.get(t, base, 1)
                        value = v.clamp(value, v.splat(least), v.splat(greatest))
                v.store_some(out, place, value, rest)
    else:
        for r in range(rows):
            for c in range(columns):
                value = v.get(t, tile, r * width + c)
                place = at + r * out_row + c * out_column
                if add_out:
                    value = v.get(t, out, place) + value
                if epilogue:
                    q = vector_at + (c if load_i64(epilogue, BY_COLUMN) else r)
                    base = load_i64(epilogue, SCALE)
                    if base:
                        value *= v.get(t, base, q)
                    base = load_i64(epilogue, SHIFT)
                    if base:
                        value += v.get(t, base, q)
                    base = load_i64(epilogue, RESIDUAL)
                    if base:
                        there = residual_at + r * load_i64(epilogue, RESIDUAL_ROW)
                        there += c * load_i64(epilogue, RESIDUAL_COLUMN)
                        value += v.get(t, base, there)
                    base = load_i64(epilogue, CLAMP)
                    if base:
                        least, greatest = v.get(t, base, 0), v.get(t, base, 1)
                        value = least if value < least else value
                        value = greatest if value > greatest else value
                v.put(out, place, value)
