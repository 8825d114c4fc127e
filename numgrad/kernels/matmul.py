"""Launching matrix products: arrays in, one launch of the kernel of their element type."""

import functools
from typing import Any

import numpy as np

from . import launch
from .counters import launches
from .cpu import matmul as kernels
from .launch import UINT8, Workspace

# The geometry is read from the array objects by compiled code: in Python it takes longer than a
# small product.
_PRODUCT = '''"""Put a product into slots and run it; if address is 0, into a frame and no more."""
from numgrad.kernels.native import (
    DATA, DIMS, ND, STRIDES, call_ranged, load_i32, load_i64, object_address, stack, store_i64
)

def kernel(address, frame, out, x, y, bias, shift, memory, workspace_bytes, items):
    args = stack({nbytes})
    if address == 0:
        args = load_i64(object_address(frame) + DATA, 0)
'''
_OPERAND = """
    array = object_address({name})
    axes = load_i32(array, ND)
    strides, dims = load_i64(array + STRIDES, 0), load_i64(array + DIMS, 0)
"""
_END = """
    if address:
        call_ranged(address, args, 0, items, 0)
"""


def _text() -> str:
    """The source of the entry; slots are numbered as the kernel's."""
    lines = [_PRODUCT.format(nbytes=8 * _SLOTS)]

    def put(slot: str, value: str) -> None:
        lines.append(f"    store_i64(args, {kernels.Slots._fields.index(slot)}, {value})\n")

    for name in ("x", "y", "out"):
        lines.append(_OPERAND.format(name=name))
        put(name, "load_i64(array + DATA, 0)")
        put(f"{name}_row", "load_i64(strides, axes - 2) >> shift")
        put(f"{name}_column", "load_i64(strides, axes - 1) >> shift")
        put(f"{name}_batch", "load_i64(strides, 0) >> shift if axes > 2 else 0")
        if name == "x":
            put("k", "load_i64(dims, axes - 1)")
    put("m", "load_i64(dims, axes - 2)")
    put("n", "load_i64(dims, axes - 1)")
    put("batch", "load_i64(dims, 0) if axes > 2 else 1")
    put("beta", "0")
    put("workspace", "memory")
    for slot in ("bias", "workspace_bytes", "items"):
        put(slot, slot)
    return "".join([*lines, _END])


def _signature() -> Any:
    from numba import types

    from .native import array_object as array

    i = types.int64
    return types.void(i, array, array, array, array, *[i] * 5)


_SLOTS = len(kernels.Slots._fields)
_INT64 = np.dtype(np.int64)
_KERNELS = {
    np.dtype(name): (kernel, np.dtype(name).itemsize.bit_length() - 1)
    for name, kernel in kernels.KERNELS.items()
}
"""The kernel of each dtype, and how far a stride in bytes is shifted to count elements."""


@functools.lru_cache(1024)
def _plan(shape: tuple[int, ...], k: int, shift: int) -> kernels.Plan:
    """The plan of a product of ``shape`` (a batch axis or none)."""
    batch = shape[0] if len(shape) == 3 else 1
    return kernels.plan(shape[-2], shape[-1], k, batch, 1 << shift)


def product(
    out: np.ndarray, x: np.ndarray, y: np.ndarray, bias: np.ndarray | None, workspace: Workspace
) -> None:
    """``out = x @ y (+ bias)`` of matrices, or of batches of them of one length: one launch.

    Any strides; ``bias`` (n,) is contiguous. All are of one dtype. An empty out is left alone.
    """
    dtype = out.dtype
    kernel, shift = _KERNELS[dtype]
    items, each, parallel, rows, in_place = _plan(out.shape, x.shape[-1], shift)
    if not items:
        return
    if each and out.strides[-1] == dtype.itemsize:
        each = in_place if x.strides[-1] == dtype.itemsize else rows
    if dtype.kind != "f":
        each = 0
    workers = min(launch.get_num_threads(), items) if parallel else 1
    fill = launch.entries.get("product") or launch.entry("product", _text, _signature, nogil=True)
    where = 0 if bias is None else launch.address(bias)
    memory = workspace((each * workers,), UINT8) if each else None
    place = 0 if memory is None else launch.address(memory)
    if workers == 1:  # the slots are on the stack; the frame is not looked at
        fill(kernel.loaded or kernel.address, out, out, x, y, where, shift, place, each, items)
        launches.add()
    else:
        slots = np.empty(_SLOTS, _INT64)
        fill(0, slots, out, x, y, where, shift, place, each, items)
        launch.ranged(kernel, slots, items, workers=workers)
