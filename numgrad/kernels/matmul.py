"""Launching matrix products: arrays in, one launch of the kernel of their element type."""

from collections.abc import Callable
from typing import Any

import numpy as np

from . import launch
from .counters import launches
from .cpu import matmul as kernels

Workspace = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]
UINT8 = np.dtype(np.uint8)

# The geometry is read from the array objects by compiled code: in Python it takes longer than a
# small product.
_PRODUCT = '''"""Put a product into the slots of its kernel, and run it here unless address is 0."""
from numgrad.kernels.native import (
    DATA, DIMS, ND, STRIDES, call_ranged, load_i32, load_i64, object_address, store_i64
)

def kernel(address, frame, out, x, y, bias, shift, memory, workspace_bytes, items):
    args = load_i64(object_address(frame) + DATA, 0)
    array = object_address(x)
    axes = load_i32(array, ND)
    strides = load_i64(array + STRIDES, 0)
    store_i64(args, 2, load_i64(load_i64(array + DIMS, 0), axes - 1))
    store_i64(args, 3, load_i64(array + DATA, 0))
    store_i64(args, 4, load_i64(strides, axes - 2) >> shift)
    store_i64(args, 5, load_i64(strides, axes - 1) >> shift)
    store_i64(args, 13, load_i64(strides, 0) >> shift if axes > 2 else 0)
    array = object_address(y)
    axes = load_i32(array, ND)
    strides = load_i64(array + STRIDES, 0)
    store_i64(args, 6, load_i64(array + DATA, 0))
    store_i64(args, 7, load_i64(strides, axes - 2) >> shift)
    store_i64(args, 8, load_i64(strides, axes - 1) >> shift)
    store_i64(args, 14, load_i64(strides, 0) >> shift if axes > 2 else 0)
    array = object_address(out)
    axes = load_i32(array, ND)
    strides, dims = load_i64(array + STRIDES, 0), load_i64(array + DIMS, 0)
    store_i64(args, 0, load_i64(dims, axes - 2))
    store_i64(args, 1, load_i64(dims, axes - 1))
    store_i64(args, 9, load_i64(array + DATA, 0))
    store_i64(args, 10, load_i64(strides, axes - 2) >> shift)
    store_i64(args, 11, load_i64(strides, axes - 1) >> shift)
    store_i64(args, 12, load_i64(dims, 0) if axes > 2 else 1)
    store_i64(args, 15, load_i64(strides, 0) >> shift if axes > 2 else 0)
    store_i64(args, 16, bias)
    store_i64(args, 17, 0)
    store_i64(args, 18, memory)
    store_i64(args, 19, workspace_bytes)
    store_i64(args, 20, items)
    if address:
        call_ranged(address, args, 0, items, 0)
'''


def _text() -> str:
    return _PRODUCT


def _signature() -> Any:
    from numba import types

    from .native import array_object as array

    i = types.int64
    return types.void(i, array, array, array, array, *[i] * 5)


_SLOTS = len(kernels.Slots._fields)
_INT64 = np.dtype(np.int64)
_KERNELS = {np.dtype(name): kernel for name, kernel in kernels.KERNELS.items()}
_new_array = np.empty


def product(
    out: np.ndarray, x: np.ndarray, y: np.ndarray, bias: np.ndarray | None, workspace: Workspace
) -> None:
    """``out = x @ y (+ bias)`` of matrices, or of batches of them of one length: one launch.

    Any strides; ``bias`` (n,) is contiguous. All are of one dtype, and out is not empty.
    """
    shape, dtype = out.shape, out.dtype
    size = dtype.itemsize
    batch = shape[0] if len(shape) == 3 else 1
    items, each, parallel = kernels.plan(shape[-2], shape[-1], x.shape[-1], batch, size)
    if dtype.kind != "f":
        each = 0
    workers = min(launch.get_num_threads(), items) if parallel else 1
    memory = workspace((each * workers,), UINT8) if each else None
    kernel = _KERNELS[dtype]
    slots = _new_array(_SLOTS, _INT64)
    launch.entry("product", _text, _signature, nogil=True)(
        kernel.address if workers == 1 else 0,
        slots,
        out,
        x,
        y,
        0 if bias is None else launch.address(bias),
        size.bit_length() - 1,
        0 if memory is None else launch.address(memory),
        each,
        items,
    )
    if workers == 1:
        launches.add()
    else:
        launch.ranged(kernel, slots, items, workers=workers)  # type: ignore[arg-type]
