"""Intrinsics every CPU kernel is written with: addresses, typed pointers, calls by address.

Two binary interfaces exist (see ``docs/architecture.md``):

* a *block kernel* ``(pointers, n)``: ``pointers`` is the address of one address an operand, each
  operand being ``n`` contiguous elements;
* a *ranged kernel* ``(args, lo, hi, worker)``: ``args`` is the address of int64 slots whose meaning
  the kernel documents, ``[lo, hi)`` the items to do, ``worker`` the number of the worker doing them.

Addresses are int64. An address becomes a pointer by one ``inttoptr`` followed by ``getelementptr``;
integer arithmetic on addresses in between is only done by whole operands, never inside a hot loop,
because LLVM loses the provenance of pointers rebuilt from integers.
"""

from llvmlite import ir
from numba import types
from numba.extending import NativeValue, intrinsic, models, register_model, unbox

I8 = ir.IntType(8)
I64 = ir.IntType(64)

BLOCK_SIGNATURE = types.void(types.int64, types.int64)
RANGED_SIGNATURE = types.void(types.int64, types.int64, types.int64, types.int64)


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


copy_word_1, copy_word_4, copy_word_8 = _copy_words(1), _copy_words(4), _copy_words(8)
