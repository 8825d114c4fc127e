"""Intrinsics every CPU kernel is written with: addresses, typed pointers, calls by address.

Two binary interfaces exist (see ``docs/architecture.md``):

* a *block kernel* ``(pointers, n)``: ``pointers`` is the address of one address an operand, each
  operand being ``n`` contiguous elements;
* a *ranged kernel* ``(args, lo, hi, worker)``: ``args`` is the address of int64 slots whose meaning
  the kernel documents, ``[lo, hi)`` the items to do, ``worker`` the number of who does them.

Addresses are int64. An address becomes a pointer by one ``inttoptr`` followed by ``getelementptr``;
integer arithmetic on addresses in between is only done by whole operands, never inside a hot loop,
because LLVM loses the provenance of pointers rebuilt from integers.
"""

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import NativeValue, intrinsic, models, register_model, unbox

I8 = ir.IntType(8)
I64 = ir.IntType(64)

BLOCK_SIGNATURE = types.void(types.int64, types.int64)
RANGED_SIGNATURE = types.void(types.int64, types.int64, types.int64, types.int64)


HEADER = object.__basicsize__
"""Bytes before the first field of an array object; the fields are NumPy's stable C layout."""
DATA, ND, DIMS, STRIDES, FLAGS = HEADER, HEADER + 8, HEADER + 16, HEADER + 24, HEADER + 48
C_CONTIGUOUS = 1
"""The bit of ``FLAGS``."""


class ArrayObject(types.Type):
    """A NumPy array passed as the address of its Python object: nothing is checked or converted."""

    def __init__(self) -> None:
        super().__init__("ArrayObject")


array_object = ArrayObject()


@register_model(ArrayObject)
class _ArrayObjectModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, I64)


@unbox(ArrayObject)
def _unbox_array_object(typ, obj, c):
    return NativeValue(c.builder.ptrtoint(obj, I64))


@intrinsic
def object_address(typingctx, obj):
    """The address of the array's Python object."""

    def codegen(context, builder, signature, args):
        return args[0]

    return types.int64(obj), codegen


inline = njit(error_model="numpy", forceinline=True)
"""A helper of kernels that LLVM takes into each of them: what is not inlined does not vectorise."""


def _element(builder, address, offset, type_):
    pointer = builder.inttoptr(address, I8.as_pointer())
    return builder.bitcast(builder.gep(pointer, [offset]), type_.as_pointer())


@intrinsic
def load_i64(typingctx, address, index):
    """``((int64*)address)[index]``."""

    def codegen(context, builder, signature, args):
        offset = builder.mul(args[1], ir.Constant(I64, 8))
        return builder.load(_element(builder, args[0], offset, I64))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def store_i64(typingctx, address, index, value):
    """``((int64*)address)[index] = value``."""

    def codegen(context, builder, signature, args):
        offset = builder.mul(args[1], ir.Constant(I64, 8))
        builder.store(args[2], _element(builder, args[0], offset, I64))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def load_i32(typingctx, address, offset_bytes):
    """``*(int32*)(address + offset_bytes)``, widened."""

    def codegen(context, builder, signature, args):
        value = builder.load(_element(builder, args[0], args[1], ir.IntType(32)))
        return builder.sext(value, I64)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def count_elements(typingctx, array):
    """The number of elements of the array whose object is at ``array``."""

    def codegen(context, builder, signature, args):
        def field(offset, type_):
            return builder.load(_element(builder, args[0], ir.Constant(I64, offset), type_))

        total = cgutils.alloca_once_value(builder, ir.Constant(I64, 1))
        dims = builder.inttoptr(field(DIMS, I64), I64.as_pointer())
        with cgutils.for_range(builder, field(ND, ir.IntType(32))) as loop:
            length = builder.load(builder.gep(dims, [loop.index]))
            builder.store(builder.mul(builder.load(total), length), total)
        return builder.load(total)

    return types.int64(types.int64), codegen


def _pointer_to(element):
    pointer = types.CPointer(element)

    @intrinsic
    def as_pointer(typingctx, address):
        def codegen(context, builder, signature, args):
            return builder.inttoptr(args[0], context.get_value_type(pointer))

        return pointer(types.int64), codegen

    return as_pointer


as_float32 = _pointer_to(types.float32)
as_float64 = _pointer_to(types.float64)
as_int32 = _pointer_to(types.int32)
as_int64 = _pointer_to(types.int64)
as_uint8 = _pointer_to(types.uint8)
as_bool = _pointer_to(types.uint8)  # a bool is a byte of 0 or 1; other bytes read as True


@intrinsic
def items_at(typingctx, address, offset_bytes, dtype):
    """The pointer to items of ``dtype`` (a NumPy dtype's class) at ``address + offset_bytes``."""
    pointer = types.CPointer(dtype.dtype)

    def codegen(context, builder, signature, args):
        base = builder.inttoptr(args[0], I8.as_pointer())
        return builder.bitcast(builder.gep(base, [args[1]]), context.get_value_type(pointer))

    return pointer(types.int64, types.int64, dtype), codegen


@intrinsic
def item_size(typingctx, dtype):
    """The bytes of an item of ``dtype``, a constant."""

    def codegen(context, builder, signature, args):
        size = context.get_abi_sizeof(context.get_data_type(dtype.dtype))
        return ir.Constant(I64, size)

    return types.int64(dtype), codegen


def _call(builder, address, values):
    function = ir.FunctionType(ir.VoidType(), [I64] * len(values))
    builder.call(builder.inttoptr(address, function.as_pointer()), values)


@intrinsic
def call_block(typingctx, address, pointers, n):
    """Call the block kernel at ``address``."""

    def codegen(context, builder, signature, args):
        _call(builder, args[0], args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def call_ranged(typingctx, address, args_address, lo, hi, worker):
    """Call the ranged kernel at ``address``."""

    def codegen(context, builder, signature, args):
        _call(builder, args[0], args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


@intrinsic(prefer_literal=True)
def stack(typingctx, nbytes):
    """The address of ``nbytes`` (a literal) of 64-byte aligned stack, allocated once a call."""
    if not isinstance(nbytes, types.IntegerLiteral):
        return None
    size = nbytes.literal_value

    def codegen(context, builder, signature, args):
        with builder.goto_entry_block():
            slot = builder.alloca(ir.ArrayType(I8, size))
            slot.align = 64
        return builder.ptrtoint(slot, I64)

    return types.int64(nbytes), codegen


# Numba's own functions of these names hold ctypes pointers, which keep a kernel from being cached.
# The symbols are there once Numba's threads have been started.
@intrinsic
def get_thread_mask(typingctx):
    """How many of Numba's threads a parallel loop of this thread may use."""

    def codegen(context, builder, signature, args):
        function = ir.FunctionType(I64, [])  # as Numba declares it in a parallel loop
        name = "get_num_threads"
        mask = builder.call(cgutils.get_or_insert_function(builder.module, function, name), [])
        return builder.trunc(mask, ir.IntType(32))

    return types.int32(), codegen


@intrinsic
def set_thread_mask(typingctx, n):
    """Let a parallel loop of this thread use ``n`` of Numba's threads: 1 to all of them."""

    def codegen(context, builder, signature, args):
        function = ir.FunctionType(ir.VoidType(), [ir.IntType(32)])
        name = "set_num_threads"
        builder.call(cgutils.get_or_insert_function(builder.module, function, name), args)
        return context.get_dummy_value()

    return types.void(types.int32), codegen


def _copy_words(width):
    word = ir.IntType(8 * width)

    @intrinsic
    def copy_word(typingctx, target, source):
        def codegen(context, builder, signature, args):
            pointer = word.as_pointer()
            value = builder.load(builder.inttoptr(args[1], pointer))
            builder.store(value, builder.inttoptr(args[0], pointer))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return copy_word


@intrinsic
def copy_bytes(typingctx, target, source, nbytes):
    """``memcpy(target, source, nbytes)``: the two must not overlap."""

    def codegen(context, builder, signature, args):
        pointers = [builder.inttoptr(address, I8.as_pointer()) for address in args[:2]]
        cgutils.raw_memcpy(builder, *pointers, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


copy_word_1, copy_word_4, copy_word_8 = _copy_words(1), _copy_words(4), _copy_words(8)


@njit(error_model="numpy")
def fill_block(target, source, size, n):
    """Repeat the element of ``size`` bytes at ``source`` ``n >= 1`` times from ``target`` on."""
    copy_bytes(target, source, size)
    done, end = size, n * size
    while done < end:
        length = min(done, end - done)
        copy_bytes(target + done, target, length)
        done += length
