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
    C_CONTIGUOUS,
    DATA,
    DIMS,
    FLAGS,
    ND,
    STRIDES,
    call_block,
    copy_bytes,
    copy_word_1,
    copy_word_4,
    copy_word_8,
    count_elements,
    fill_block,
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
    # A loop that writes to the memory it reads from is not vectorised (LLVM tests for overlap when
    # the kernel starts): an output in place goes through the buffer, too.
    for j in range(load_i64(frame, OUTPUTS)):
        for i in range(load_i64(frame, OUTPUTS), count):
            if load_i64(frame, MODE + i) == DIRECT and load_i64(frame, POINTER + i) == load_i64(
                frame, POINTER + j
            ):
                store_i64(frame, MODE + j, GATHER)


@njit(error_model="numpy")
def _copy_strided(target, target_stride, source, source_stride, size, n):
    if target_stride == size and source_stride == size:
        copy_bytes(target, source, n * size)
    elif size == 4:
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
        target, target_stride = buffer + done * size, size
        source, source_stride = address, inner_stride
        if scatter:
            target, target_stride, source, source_stride = source, source_stride, target, size
        _copy_strided(target, target_stride, source, source_stride, size, run)
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
            fill_block(buffer, source, size, min(BLOCK, hi - lo))
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


BLOCKS_OBJECTS = 3
"""Slots of the frame of ``blocks``: the address of the block kernel, the packed sizes, the answer,
then the address of each array object."""
BLOCKS_MAX = 31
"""Operands that ``blocks`` takes: the sizes are two bits each."""


@kernel()
def blocks(frame, lo, hi, worker):
    """A small call of ``hi`` operands, each C-contiguous and of output 0's size, or of one element.

    Slots: see ``BLOCKS_OBJECTS``; operand j has elements of ``1 << (sizes >> 2 j & 3)`` bytes.
    Answers 0, or 1 where an operand is neither: nothing has been done then. Reads every input once
    and writes every output once. Not checked: dtypes, ``hi <= BLOCKS_MAX``, that outputs overlap
    inputs only as the very same elements (output 0 then goes through a buffer, see ``geometry``).
    """
    pointers, steps, buffers = stack(_POINTERS), stack(_POINTERS), stack(_BUFFERS)
    sizes = load_i64(frame, 1)
    first = load_i64(load_i64(frame, BLOCKS_OBJECTS) + DATA, 0)
    n = count_elements(load_i64(frame, BLOCKS_OBJECTS))
    store_i64(frame, 2, 1)
    in_place = False
    for j in range(hi):
        array = load_i64(frame, BLOCKS_OBJECTS + j)
        data, size = load_i64(array + DATA, 0), 1 << (sizes >> 2 * j & 3)
        elements = count_elements(array)
        if not load_i32(array, FLAGS) & C_CONTIGUOUS or (elements != n and elements != 1):
            return
        if elements != n:
            buffer = buffers + j * _BUFFER_BYTES
            fill_block(buffer, data, size, min(n, BLOCK))
            data, size = buffer, 0
        elif j > 0 and data == first:
            in_place = True
        store_i64(pointers, j, data)
        store_i64(steps, j, size)
    if in_place:
        store_i64(pointers, 0, buffers)
        store_i64(steps, 0, 0)
    start = 0
    while start < n:
        length = min(n - start, BLOCK)
        call_block(load_i64(frame, 0), pointers, length)
        if in_place:
            size = 1 << (sizes & 3)
            copy_bytes(first + start * size, buffers, length * size)
        for j in range(hi):
            store_i64(pointers, j, load_i64(pointers, j) + length * load_i64(steps, j))
        start += length
    store_i64(frame, 2, 0)
