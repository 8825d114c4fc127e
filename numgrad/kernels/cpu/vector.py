"""Explicit LLVM vectors for handwritten CPU kernels, as wide as the instruction set in use.

A kernel written with these is generic over its element: the *witness* ``t`` that most functions
take is a zero of the element's type (``np.float32(0)``), there for its type. ``base`` is the int64
address of a whole operand and ``index`` counts elements from there, so that every address is one
``inttoptr`` and one ``getelementptr`` (see ``numgrad.kernels.native``). Nothing is checked: neither
bounds nor alignment, which may be that of a single element everywhere.

The instruction set is ``NUMGRAD_CPU`` (``avx512``, ``avx2`` or ``plain``), else the best this CPU
has. It is read once, when this module is imported. ``plain`` means 128-bit vectors and no more,
which every x86-64 and every AArch64 has.
"""

import os
import platform

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from ..store import Handwritten, named

I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
BYTES = {"avx512": 64, "avx2": 32, "plain": 16}


def _detected() -> str:
    import llvmlite.binding as llvm
    from numba.core import config

    named = getattr(
        config, "CPU_FEATURES", None
    )  # what Numba compiles for, if not for this very CPU
    features = llvm.get_host_cpu_features().flatten() if named is None else named
    has = {part[1:] for part in features.split(",") if part.startswith("+")}
    if "avx512f" in has:
        return "avx512"
    return "avx2" if {"avx2", "fma"} <= has else "plain"


def _instruction_set() -> str:
    asked = os.environ.get("NUMGRAD_CPU") or _detected()
    if asked not in BYTES:
        raise ValueError(f"NUMGRAD_CPU: expected one of {sorted(BYTES)}, got {asked!r}")
    return asked


INSTRUCTION_SET = _instruction_set()
# Without FMA in hardware llvm.fma calls libm a lane at a time; AArch64 always has it.
FUSED = INSTRUCTION_SET != "plain" or platform.machine().lower() in ("aarch64", "arm64")


def lanes_of(itemsize: int) -> int:
    """How many elements of ``itemsize`` bytes one vector holds."""
    return BYTES[INSTRUCTION_SET] // itemsize


def for_this_cpu(function) -> Handwritten:
    """Declare a kernel under a name of its own for each instruction set: they are cached apart."""
    return named(f"{function.__name__}_{INSTRUCTION_SET}", function)


class Vector(types.Type):
    """One vector register of ``element``."""

    def __init__(self, element: types.Float) -> None:
        self.element = element
        super().__init__(f"Vector({element}, {INSTRUCTION_SET})")


def element_type(element: types.Float) -> ir.Type:
    return ir.FloatType() if element.bitwidth == 32 else ir.DoubleType()


def vector_type(element: types.Float) -> ir.VectorType:
    return ir.VectorType(element_type(element), lanes_of(element.bitwidth // 8))


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, vector_type(fe_type.element))


# ------------------------------------------------------------------- pieces for code generators


def i64(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def pointer(builder, base, type_):
    """``base`` as a pointer to ``type_``: the one ``inttoptr`` of an operand."""
    return builder.inttoptr(base, type_.as_pointer())


def load_vector(builder, pointer_, type_, align: int):
    value = builder.load(builder.bitcast(pointer_, type_.as_pointer()))
    value.align = align
    return value


def store_vector(builder, value, pointer_, align: int):
    builder.store(value, builder.bitcast(pointer_, value.type.as_pointer())).align = align


def splat_value(builder, scalar, type_):
    nothing = ir.Constant(type_, ir.Undefined)
    one = builder.insert_element(nothing, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, nothing, lane_numbers([0] * type_.count))


def lane_numbers(numbers) -> ir.Constant:
    return ir.Constant(ir.VectorType(I32, len(numbers)), list(numbers))


def zero_vector(type_) -> ir.Constant:
    return ir.Constant(type_, [0.0] * type_.count)


def overloaded_name(type_: ir.VectorType) -> str:
    """The suffix LLVM gives an intrinsic for ``type_``: ``v16f32``."""
    return f"v{type_.count}f{32 if type_.element == ir.FloatType() else 64}"


def multiply_add_value(builder, a, b, c):
    """``a * b + c``, fused where the hardware can; never contracted at LLVM's discretion."""
    if not FUSED:
        return builder.fadd(builder.fmul(a, b), c)
    signature = ir.FunctionType(a.type, [a.type] * 3)
    name = f"llvm.fma.{overloaded_name(a.type)}"
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), [a, b, c])


def prefetch_value(builder, pointer_, write=False):
    """Ask for the cache line at ``pointer_``, which may be any address at all; to be written to."""
    signature = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    fetch = cgutils.get_or_insert_function(builder.module, signature, "llvm.prefetch.p0")
    how, all_levels, data = (ir.Constant(I32, i) for i in (int(write), 3, 1))
    builder.call(fetch, [builder.bitcast(pointer_, I8.as_pointer()), how, all_levels, data])


def _lanes_between(builder, type_, first, last):
    """A mask of the lanes from ``first`` to before ``last``, which may lie outside the vector."""
    wide = ir.VectorType(I64, type_.count)
    numbers = ir.Constant(wide, list(range(type_.count)))
    below = builder.icmp_signed("<", numbers, splat_value(builder, last, wide))
    if isinstance(first, ir.Constant):
        return below
    return builder.and_(
        builder.icmp_signed(">=", numbers, splat_value(builder, first, wide)), below
    )


def _masked(builder, kind, type_):
    mask = ir.VectorType(ir.IntType(1), type_.count)
    name = f"llvm.masked.{kind}.{overloaded_name(type_)}.p0"
    where = type_.as_pointer()
    signature = (
        ir.FunctionType(type_, [where, I32, mask, type_])
        if kind == "load"
        else ir.FunctionType(ir.VoidType(), [type_, where, I32, mask])
    )
    return cgutils.get_or_insert_function(builder.module, signature, name)


def transpose_values(builder, rows):
    """Transpose a square of vectors by exchanging ever smaller blocks between pairs of rows."""
    count = rows[0].type.count
    distance = count // 2
    while distance:
        low = [i - distance + count if i & distance else i for i in range(count)]
        high = [i + count if i & distance else i + distance for i in range(count)]
        for i in range(count):
            if not i & distance:
                a, b = rows[i], rows[i + distance]
                rows[i] = builder.shuffle_vector(a, b, lane_numbers(low))
                rows[i + distance] = builder.shuffle_vector(a, b, lane_numbers(high))
        distance //= 2
    return rows


# --------------------------------------------------------------------------------- intrinsics


def _smaller_or_larger(operator):
    def choose(typingctx, a, b):
        def codegen(context, builder, signature, args):
            return builder.select(builder.icmp_signed(operator, *args), *args)

        return types.int64(types.int64, types.int64), codegen

    return intrinsic(choose)


# ``min`` and ``max`` of integers without the compile time of Numba's.
least, greatest = _smaller_or_larger("<"), _smaller_or_larger(">")


@intrinsic
def lanes(typingctx, t):
    """The number of elements of a vector, a constant after inlining."""

    def codegen(context, builder, signature, args):
        return i64(lanes_of(signature.args[0].bitwidth // 8))

    return types.int64(t), codegen


@intrinsic
def itemsize(typingctx, t):
    """The bytes of an element, a constant after inlining."""

    def codegen(context, builder, signature, args):
        return i64(signature.args[0].bitwidth // 8)

    return types.int64(t), codegen


@intrinsic
def get(typingctx, t, base, index):
    """The element ``base[index]``."""

    def codegen(context, builder, signature, args):
        start = pointer(builder, args[1], context.get_value_type(t))
        return builder.load(builder.gep(start, [args[2]]))

    return t(t, types.int64, types.int64), codegen


@intrinsic
def rounded(typingctx, t, value):
    """``value``, a float64, as a number of the type of ``t``."""

    def codegen(context, builder, signature, args):
        return context.cast(builder, args[1], types.float64, t)

    return t(t, types.float64), codegen


@intrinsic
def put(typingctx, base, index, value):
    """``base[index] = value``."""

    def codegen(context, builder, signature, args):
        start = pointer(builder, args[0], args[2].type)
        builder.store(args[2], builder.gep(start, [args[1]]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, value), codegen


@intrinsic
def get_integer(typingctx, t, base, index):
    """The integer ``base[index]`` of the type of ``t``, widened to int64."""

    def codegen(context, builder, signature, args):
        start = pointer(builder, args[1], context.get_value_type(t))
        return context.cast(builder, builder.load(builder.gep(start, [args[2]])), t, types.int64)

    return types.int64(t, types.int64, types.int64), codegen


@intrinsic
def put_integer(typingctx, t, base, index, value):
    """``base[index] = value``, cut to the type of ``t``."""

    def codegen(context, builder, signature, args):
        start = pointer(builder, args[1], context.get_value_type(t))
        cut = context.cast(builder, args[3], types.int64, t)
        builder.store(cut, builder.gep(start, [args[2]]))
        return context.get_dummy_value()

    return types.void(t, types.int64, types.int64, types.int64), codegen


@intrinsic
def load(typingctx, t, base, index):
    """The vector at ``base[index]``."""

    def codegen(context, builder, signature, args):
        place = builder.gep(pointer(builder, args[1], element_type(t)), [args[2]])
        return load_vector(builder, place, vector_type(t), t.bitwidth // 8)

    return Vector(t)(t, types.int64, types.int64), codegen


def _masked_load(builder, type_, place, align, mask):
    typed = builder.bitcast(place, type_.as_pointer())
    arguments = [typed, ir.Constant(I32, align), mask, zero_vector(type_)]
    return builder.call(_masked(builder, "load", type_), arguments)


def _load_lanes(builder, t, base, index, first, last):
    """Lanes ``first`` to before ``last``: without a mask where these are all."""
    type_, align = vector_type(t), t.bitwidth // 8
    place = builder.gep(pointer(builder, base, element_type(t)), [index])
    whole = builder.and_(
        builder.icmp_signed("<=", first, i64(0)),
        builder.icmp_signed(">=", last, i64(type_.count)),
    )
    with builder.if_else(whole) as (all_of_it, some):
        with all_of_it:
            value = load_vector(builder, place, type_, align)
            from_all = builder.block
        with some:
            mask = _lanes_between(builder, type_, first, last)
            masked = _masked_load(builder, type_, place, align, mask)
            from_some = builder.block
    result = builder.phi(type_)
    result.add_incoming(value, from_all)
    result.add_incoming(masked, from_some)
    return result


@intrinsic
def load_some(typingctx, t, base, index, count):
    """The first ``count`` lanes at ``base[index]``, zeros in the others, which are not read."""

    def codegen(context, builder, signature, args):
        _, base_, index_, count_ = args
        return _load_lanes(builder, t, base_, index_, i64(0), count_)

    return Vector(t)(t, types.int64, types.int64, types.int64), codegen


@intrinsic
def load_between(typingctx, t, base, index, first, last):
    """Lanes ``first`` to before ``last`` at ``base[index]``; zeros in the others, which are not
    read: their addresses need not exist."""

    def codegen(context, builder, signature, args):
        return _load_lanes(builder, t, *args[1:])

    return Vector(t)(t, *[types.int64] * 4), codegen


@intrinsic
def load_even_between(typingctx, t, base, index, first, last):
    """As :func:`load_between`, with lane ``i`` at ``base[index + 2 * i]``."""

    def codegen(context, builder, signature, args):
        type_, align = vector_type(t), t.bitwidth // 8
        start = builder.gep(pointer(builder, args[1], element_type(t)), [args[2]])
        two = i64(2)
        lo = builder.mul(args[3], two)
        hi = builder.sub(builder.mul(args[4], two), i64(1))  # the last one's neighbour is not read
        halves = []
        for half in range(2):
            skipped = i64(half * type_.count)
            mask = _lanes_between(
                builder, type_, builder.sub(lo, skipped), builder.sub(hi, skipped)
            )
            place = builder.gep(start, [skipped])
            halves.append(_masked_load(builder, type_, place, align, mask))
        return builder.shuffle_vector(*halves, lane_numbers(range(0, 2 * type_.count, 2)))

    return Vector(t)(t, *[types.int64] * 4), codegen


@intrinsic
def store(typingctx, base, index, value):
    """Store the vector ``value`` at ``base[index]``."""

    def codegen(context, builder, signature, args):
        t = value.element
        place = builder.gep(pointer(builder, args[0], element_type(t)), [args[1]])
        store_vector(builder, args[2], place, t.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, value), codegen


@intrinsic
def store_some(typingctx, base, index, value, count):
    """Store the first ``count`` lanes of ``value`` at ``base[index]``; write nothing else."""

    def codegen(context, builder, signature, args):
        t = value.element
        type_, align = vector_type(t), t.bitwidth // 8
        place = builder.gep(pointer(builder, args[0], element_type(t)), [args[1]])
        whole = builder.icmp_signed(">=", args[3], i64(type_.count))
        with builder.if_else(whole) as (all_of_it, some):
            with all_of_it:
                store_vector(builder, args[2], place, align)
            with some:
                builder.call(
                    _masked(builder, "store", type_),
                    [
                        args[2],
                        builder.bitcast(place, type_.as_pointer()),
                        ir.Constant(I32, align),
                        _lanes_between(builder, type_, i64(0), args[3]),
                    ],
                )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, value, types.int64), codegen


@intrinsic
def splat(typingctx, value):
    """A vector with ``value`` in every lane."""

    def codegen(context, builder, signature, args):
        return splat_value(builder, args[0], vector_type(value))

    return Vector(value)(value), codegen


@intrinsic
def add(typingctx, a, b):
    """``a + b`` of two vectors."""

    def codegen(context, builder, signature, args):
        return builder.fadd(args[0], args[1])

    return a(a, b), codegen


@intrinsic
def multiply(typingctx, a, b):
    """``a * b`` of two vectors."""

    def codegen(context, builder, signature, args):
        return builder.fmul(args[0], args[1])

    return a(a, b), codegen


@intrinsic
def clamp(typingctx, value, least, greatest):
    """``value`` cut to ``[least, greatest]``, lane by lane; a nan stays one."""

    def codegen(context, builder, signature, args):
        x, low, high = args
        x = builder.select(builder.fcmp_ordered("<", x, low), low, x)
        return builder.select(builder.fcmp_ordered(">", x, high), high, x)

    return value(value, least, greatest), codegen


@intrinsic
def multiply_add(typingctx, a, b, c):
    """``a * b + c`` of three vectors: rounded once where the hardware can, else twice."""

    def codegen(context, builder, signature, args):
        return multiply_add_value(builder, *args)

    return a(a, b, c), codegen


@intrinsic
def total(typingctx, value):
    """The sum of all lanes, halves added pairwise: the same order on every machine."""

    def codegen(context, builder, signature, args):
        vector, width = args[0], args[0].type.count
        while width > 1:
            width //= 2
            low = builder.shuffle_vector(vector, vector, lane_numbers(range(width)))
            high = builder.shuffle_vector(vector, vector, lane_numbers(range(width, 2 * width)))
            vector = builder.fadd(low, high)
        return builder.extract_element(vector, ir.Constant(I32, 0))

    return value.element(value), codegen


@intrinsic
def transpose(typingctx, t, source, start, along, valid, target, at, stride):
    """Write the transpose of a square block, a vector wide, as rows ``stride`` apart.

    Lane ``w`` of row ``p`` of ``target[at]`` is ``source[start + w * along + p]``. Rows of the
    source from ``valid`` on are not read: they repeat row ``valid - 1``.
    """

    def codegen(context, builder, signature, args):
        _, source_, start_, along_, valid_, target_, at_, stride_ = args
        type_, align = vector_type(t), t.bitwidth // 8
        first = builder.gep(pointer(builder, source_, element_type(t)), [start_])
        last = builder.sub(valid_, i64(1))
        rows = []
        for w in range(type_.count):
            row = builder.select(builder.icmp_signed("<", i64(w), last), i64(w), last)
            place = builder.gep(first, [builder.mul(row, along_)])
            rows.append(load_vector(builder, place, type_, align))
        first = builder.gep(pointer(builder, target_, element_type(t)), [at_])
        for p, row in enumerate(transpose_values(builder, rows)):
            store_vector(builder, row, builder.gep(first, [builder.mul(i64(p), stride_)]), align)
        return context.get_dummy_value()

    return types.void(t, *[types.int64] * 7), codegen
