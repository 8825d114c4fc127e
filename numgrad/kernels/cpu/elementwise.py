"""The strided driver of elementwise kernels: any layout in, contiguous blocks to the kernel.

A generated elementwise kernel only ever sees contiguous blocks (``native.BLOCK_SIGNATURE``). This
module cuts an n-dimensional, strided, broadcast operation into such blocks: an operand that is
contiguous in the block is passed in place, any other is gathered into (or scattered from) a buffer
on the worker's stack. One compiled loop a kernel thus serves every layout, and it is always the
vectorised one.

The *frame* (int64 slots) describes one call; ``pack`` (``numgrad.kernels.launch``) fills the slots
up to ``OBJECTS``, ``geometry`` the rest:

========== ================================================================================
KERNEL     address of the block kernel
COUNT      operands k <= MAX_OPERANDS, outputs first
OUTPUTS    number of outputs
NDIM       axes left after collapsing; SHAPE holds their lengths, outermost first
TOTAL      number of elements
OBJECTS+j  address of operand j's array object
POINTER+j  address of its first element
SIZE+j     bytes an element
MODE+j     DIRECT (contiguous), CONSTANT (all strides 0), GATHER (anything else)
STRIDE     + j * MAX_NDIM: byte strides, broadcast axes have stride 0
========== ================================================================================
"""

from numba import njit

from ..native import (
    call_block,
    copy_word_1,
    copy_word_4,
    copy_word_8,
    load_i32,
    load_i64,
    stack,
    store_i64,
)
from ..store import kernel

MAX_OPERANDS = 32
MAX_NDIM = 32
BLOCK = 512
"""Elements a block: 32 operands of 8 bytes stay within 128 KiB of stack, three within L1."""

KERNEL, COUNT, OUTPUTS, NDIM, TOTAL = 0, 1, 2, 3, 4
OBJECTS = 8
POINTER = OBJECTS + MAX_OPERANDS
SIZE = POINTER + MAX_OPERANDS
MODE = SIZE + MAX_OPERANDS
SHAPE = MODE + MAX_OPERANDS
STRIDE = SHAPE + MAX_NDIM
FRAME_SLOTS = STRIDE + MAX_OPERANDS * MAX_NDIM

DIRECT, CONSTANT, GATHER = 0, 1, 2

HEADER = object.__basicsize__
"""Bytes before the first field of an array object; the fields are NumPy's stable C layout."""
DATA, ND, DIMS, STRIDES = HEADER, HEADER + 8, HEADER + 16, HEADER + 24

_BUFFER_BYTES = BLOCK * 8
_BUFFERS = MAX_OPERANDS * _BUFFER_BYTES
_POINTERS = MAX_OPERANDS * 8


@kernel()
def geometry(frame, lo, hi, worker):
    """Read the array objects of a frame, broadcast them to output 0, collapse axes, set modes.

    Operands: array objects at ``OBJECTS``; output 0 has the full shape. Strides: any.
    Not checked: that shapes broadcast, ``ndim <= MAX_NDIM``, dtypes.
    """
    count = load_i64(frame, COUNT)
    first = load_i64(frame, OBJECTS)
    ndim = load_i32(first, ND)
    dims = load_i64(first + DIMS, 0)
    total = 1
    for axis in range(ndim):
        total *= load_i64(dims, axis)
    store_i64(frame, TOTAL, total)
    # Axes are taken from the outermost in; an axis is merged into the one before it when every
    # operand steps over it as if both were one.
    kept = 0
    for axis in range(ndim):
        length = load_i64(dims, axis)
        if length == 1:
            continue
        for j in range(count):
            obj = load_i64(frame, OBJECTS + j)
            own = axis - (ndim - load_i32(obj, ND))
            stride = 0
            if own >= 0 and load_i64(load_i64(obj + DIMS, 0), own) != 1:
                stride = load_i64(load_i64(obj + STRIDES, 0), own)
            store_i64(frame, STRIDE + j * MAX_NDIM + kept, stride)
        merge = kept > 0
        if merge:
            for j in range(count):
                at = STRIDE + j * MAX_NDIM + kept
                if load_i64(frame, at - 1) != load_i64(frame, at) * length:
                    merge = False
        if merge:
            store_i64(frame, SHAPE + kept - 1, load_i64(frame, SHAPE + kept - 1) * length)
            for j in range(count):
                at = STRIDE + j * MAX_NDIM + kept
                store_i64(frame, at - 1, load_i64(frame, at))
        else:
            store_i64(frame, SHAPE + kept, length)
            kept += 1
    if kept == 0:
        store_i64(frame, SHAPE, 1)
        for j in range(count):
            store_i64(frame, STRIDE + j * MAX_NDIM, load_i64(frame, SIZE + j))
        kept = 1
    store_i64(frame, NDIM, kept)
    for j in range(count):
        store_i64(frame, POINTER + j, load_i64(load_i64(frame, OBJECTS + j) + DATA, 0))
        at = STRIDE + j * MAX_NDIM
        contiguous, constant = True, True
        expected = load_i64(frame, SIZE + j)
        for axis in range(kept - 1, -1, -1):
            stride = load_i64(frame, at + axis)
            contiguous = contiguous and stride == expected
            constant = constant and stride == 0
            expected *= load_i64(frame, SHAPE + axis)
        mode = GATHER
        if contiguous:
            mode = DIRECT
        elif constant:
            mode = CONSTANT
        store_i64(frame, MODE + j, mode)


@njit(error_model="numpy")
def _copy_strided(target, target_stride, source, source_stride, size, n):
    if size == 4:
        for i in range(n):
            copy_word_4(target + i * target_stride, source + i * source_stride)
    elif size == 8:
        for i in range(n):
            copy_word_8(target + i * target_stride, source + i * source_stride)
    else:
        for i in range(n):
            copy_word_1(target + i * target_stride, source + i * source_stride)


@njit(error_model="numpy")
def _move_block(frame, j, start, n, buffer, scatter):
    """Copy elements [start, start + n) of operand j to ``buffer`` (or back), run by run."""
    size = load_i64(frame, SIZE + j)
    ndim = load_i64(frame, NDIM)
    strides = STRIDE + j * MAX_NDIM
    inner = load_i64(frame, SHAPE + ndim - 1)
    inner_stride = load_i64(frame, strides + ndim - 1)
    done = 0
    while done < n:
        index = start + done
        column = index % inner
        rest = index // inner
        address = load_i64(frame, POINTER + j) + column * inner_stride
        for axis in range(ndim - 2, -1, -1):
            length = load_i64(frame, SHAPE + axis)
            address += (rest % length) * load_i64(frame, strides + axis)
            rest //= length
        run = min(inner - column, n - done)
        if scatter:
            _copy_strided(address, inner_stride, buffer + done * size, size, size, run)
        else:
            _copy_strided(buffer + done * size, size, address, inner_stride, size, run)
        done += run


@kernel()
def run(frame, lo, hi, worker):
    """Elements [lo, hi) of the call a frame describes.

    Reads every input once and writes every output once, in blocks of ``BLOCK`` elements; operands
    in mode DIRECT in place. Outputs must not overlap inputs except as the very same elements.
    """
    address = load_i64(frame, KERNEL)
    count = load_i64(frame, COUNT)
    outputs = load_i64(frame, OUTPUTS)
    pointers = stack(_POINTERS)
    buffers = stack(_BUFFERS)
    direct = True
    for j in range(count):
        mode = load_i64(frame, MODE + j)
        direct = direct and mode == DIRECT
        buffer = buffers + j * _BUFFER_BYTES
        store_i64(pointers, j, buffer)
        if mode == CONSTANT:
            source = load_i64(frame, POINTER + j)
            size = load_i64(frame, SIZE + j)
            _copy_strided(buffer, size, source, 0, size, min(BLOCK, hi - lo))
    start = lo
    while start < hi:
        n = hi - start if direct else min(BLOCK, hi - start)
        for j in range(count):
            mode = load_i64(frame, MODE + j)
            if mode == DIRECT:
                offset = start * load_i64(frame, SIZE + j)
                store_i64(pointers, j, load_i64(frame, POINTER + j) + offset)
            elif mode == GATHER and j >= outputs:
                _move_block(frame, j, start, n, buffers + j * _BUFFER_BYTES, False)
        call_block(address, pointers, n)
        for j in range(outputs):
            if load_i64(frame, MODE + j) != DIRECT:
                _move_block(frame, j, start, n, buffers + j * _BUFFER_BYTES, True)
        start += n
