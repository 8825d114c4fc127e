"""Micro-kernels that find one operand through a table of displacements.

In a *frame*, a copy of a part of an image with its padding, what a tap reads for a row of output
pixels is a vector at a constant displacement, so that no matrix of patches is needed (M. Dukhan,
"The indirect convolution algorithm", 2019, does so with pointers). Rows, vectors and the witness
``t`` are those of ``numgrad.kernels.cpu.tile``.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from . import vector as v
from .tile import DIRECT_ROWS, MR, VECTORS

PACKED, STRIDED, PLACED, KEEPING = "packed", "strided", "placed", "keeping"
"""Where the scalars of row i are: next to each other, ``along`` apart, at ``table[i]``; next to
each other, while vectors of b come from two places each and are written to a panel."""


class Loop:
    """A counted loop under construction, with values that go from one turn to the next."""

    def __init__(self, function, builder, count, values):
        self.builder, self.count = builder, count
        before, self.body = builder.block, function.append_basic_block("loop")
        builder.branch(self.body)
        builder.position_at_end(self.body)
        self.index = builder.phi(v.I64)
        self.index.add_incoming(v.i64(0), before)
        self.values = []
        for value in values:
            phi = builder.phi(value.type)
            phi.add_incoming(value, before)
            self.values.append(phi)

    def end(self, function, values):
        """Close it: ``values`` are those of the turn that has just been made."""
        builder = self.builder
        following = builder.add(self.index, v.i64(1))
        self.index.add_incoming(following, builder.block)
        for phi, value in zip(self.values, values, strict=True):
            phi.add_incoming(value, builder.block)
        done = function.append_basic_block("done")
        builder.cbranch(builder.icmp_signed("<", following, self.count), self.body, done)
        builder.position_at_end(done)


def _row_offsets(builder, rows, kind, along, valid, table):
    """Where the scalar of each row is. Rows that do not exist are read as the last one that does:
    their sums are not used."""
    if kind in (PACKED, KEEPING):
        return [v.i64(i) for i in range(rows)]
    last = builder.sub(valid, v.i64(1))
    numbers = [
        builder.select(builder.icmp_signed("<", v.i64(i), last), v.i64(i), last)
        for i in range(rows)
    ]
    if kind == STRIDED:
        return [builder.mul(i, along) for i in numbers]
    return [builder.load(builder.gep(table, [i])) for i in numbers]


def _function(module, element, rows, vectors, kind):
    """``c[i, j] (+)= sum over p``; a function of its own, so that registers are allotted for this
    loop alone."""
    name = f"numgrad_indirect_{rows}x{vectors}_{element}_{kind}"
    if name in module.globals:
        return module.globals[name]
    e, type_ = v.element_type(element), v.vector_type(element)
    size, lanes = element.bitwidth // 8, type_.count
    at = e.as_pointer()
    signature = ir.FunctionType(
        ir.VoidType(),
        [at, *[v.I64] * 3, at, v.I64.as_pointer(), *[v.I64] * 3, at, v.I64, at, v.I64],
    )
    function = ir.Function(module, signature, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    a0, along, step, valid, b0, table, k, runs, jump, c, c_row, sums_at, add = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    offsets = _row_offsets(builder, rows, kind, along, valid, table)
    zero = v.zero_vector(type_)
    sums = [zero] * (rows * vectors)
    if kind == KEEPING:
        cuts = builder.inttoptr(runs, v.I64.as_pointer())
        cuts = [builder.load(builder.gep(cuts, [v.i64(i)])) for i in range(3 * vectors)]
        wide = ir.VectorType(v.I64, lanes)
        numbers = ir.Constant(wide, list(range(lanes)))
        masks = [
            builder.icmp_signed(">=", numbers, v.splat_value(builder, cut, wide))
            for cut in cuts[2::3]
        ]
        panel = builder.inttoptr(jump, at)

    def two_runs(b, j):
        """Vector j, whose first lanes come from one place and the others from another."""
        value = v.load_vector(builder, builder.gep(b, [cuts[3 * j]]), type_, size)
        place = builder.bitcast(builder.gep(b, [cuts[3 * j + 1]]), type_.as_pointer())
        arguments = [place, ir.Constant(v.I32, size), masks[j], value]
        return builder.call(v._masked(builder, "load", type_), arguments)

    def products(a, b, sums, kept=None):
        y = [
            two_runs(b, j)
            if kept
            else v.load_vector(builder, builder.gep(b, [v.i64(j * lanes)]), type_, size)
            for j in range(vectors)
        ]
        for j in range(vectors if kept else 0):
            v.store_vector(builder, y[j], builder.gep(kept, [v.i64(j * lanes)]), size)
        added = []
        for i in range(rows):
            x = v.splat_value(builder, builder.load(builder.gep(a, [offsets[i]])), type_)
            for j in range(vectors):
                added.append(v.multiply_add_value(builder, x, y[j], sums[i * vectors + j]))
        return added

    if kind == PLACED:
        outer = Loop(function, builder, runs, [a0, b0, *sums])
        inner = Loop(function, builder, k, outer.values)
        a, b, *sums = inner.values
        sums = products(a, b, sums)
        a, b = builder.gep(a, [step]), builder.gep(b, [v.i64(VECTORS * lanes)])
        inner.end(function, [a, b, *sums])
        outer.end(function, [builder.gep(a, [jump]), b, *sums])
    else:
        step = step if kind == STRIDED else v.i64(rows)
        kept = [panel] if kind == KEEPING else []
        loop = Loop(function, builder, k, [a0, *kept, *sums])
        a, *sums = loop.values
        kept = [sums.pop(0)] if kept else []
        b = builder.gep(b0, [builder.load(builder.gep(table, [loop.index]))])
        sums = products(a, b, sums, *kept)
        kept = [builder.gep(place, [v.i64(VECTORS * lanes)]) for place in kept]
        loop.end(function, [builder.gep(a, [step]), *kept, *sums])

    rows_of_c = [builder.gep(c, [builder.mul(v.i64(i), c_row)]) for i in range(rows)]
    places = [builder.gep(row, [v.i64(j * lanes)]) for row in rows_of_c for j in range(vectors)]
    before = [
        builder.gep(sums_at, [v.i64((i * VECTORS + j) * lanes)])
        for i in range(rows)
        for j in range(vectors)
    ]
    more, once = function.append_basic_block("more"), function.append_basic_block("once")
    builder.cbranch(builder.icmp_signed("!=", add, v.i64(0)), more, once)
    builder.position_at_end(more)
    for place, there, value in zip(places, before, sums, strict=True):
        there = v.load_vector(builder, there, type_, size)
        v.store_vector(builder, builder.fadd(there, value), place, size)
    builder.ret_void()
    builder.position_at_end(once)
    for place, value in zip(places, sums, strict=True):
        v.store_vector(builder, value, place, size)
    builder.ret_void()
    return function


def _product(rows, vectors, kind):
    @intrinsic
    def product(
        typingctx, t, a, a_at, along, step, valid, b, b_at, table, k, runs, jump, c, c_at, c_row,
        sums, sums_at, add,
    ):  # fmt: skip
        def codegen(context, builder, signature, args):
            _, a_, a_at_, along_, step_, valid_, b_, b_at_, table_, *rest = args
            *rest, c_, c_at_, c_row_, sums_, sums_at_, add_ = rest
            e = v.element_type(t)
            function = _function(builder.module, t, rows, vectors, kind)
            builder.call(
                function,
                [
                    builder.gep(v.pointer(builder, a_, e), [a_at_]),
                    along_,
                    step_,
                    valid_,
                    builder.gep(v.pointer(builder, b_, e), [b_at_]),
                    v.pointer(builder, table_, v.I64),
                    *rest,
                    builder.gep(v.pointer(builder, c_, e), [c_at_]),
                    c_row_,
                    builder.gep(v.pointer(builder, sums_, e), [sums_at_]),
                    add_,
                ],
            )
            return context.get_dummy_value()

        return types.void(t, *[types.int64] * 17), codegen

    return product


# ``c[i, j] = sum(a[i, p] * b[table[p] + j] for p in range(k))``, k > 0, and what is in ``sums`` if
# ``add``. Rows of c are ``c_row`` apart, those of sums VECTORS vectors.
product_packed = _product(MR, VECTORS, PACKED)
# The same, where ``runs`` is the address of three numbers a vector, and ``jump`` that of a panel to
# which the vectors of b are written, as they are multiplied: lanes from the third number on come
# from ``b[second + lane]``, those before from ``b[first + lane]``, behind which b may be read.
product_keeping = _product(MR, VECTORS, KEEPING)
product_strided = _product(DIRECT_ROWS, VECTORS, STRIDED)
product_narrow = _product(DIRECT_ROWS, 1, STRIDED)
# ``c[i, j] = sum(a[table[i] + p] * b[p, j])`` over ``runs`` runs of k places, after each of which
# a goes on by ``jump`` more; b is packed.
product_placed = _product(DIRECT_ROWS, VECTORS, PLACED)
product_placed_narrow = _product(DIRECT_ROWS, 1, PLACED)
