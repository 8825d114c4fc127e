"""Launching CUDA kernels: how many threads, which device, which arguments.

The same names and argument order as ``numgrad.kernels.launch``.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import emit
from ..counters import launches
from ..scalar import Sym
from . import runtime
from .array import DeviceArray
from .elementwise import Kernel, broadcast_strides, collapse

THREADS = 256
"""Threads of a block in elementwise kernels."""
BLOCKS_MAX = 132 * 8
"""Blocks of an elementwise launch: a grid-stride loop does the rest."""
SIMULATED_THREADS, SIMULATED_BLOCKS = 4, 2


def index_type(extent: int) -> Any:
    """int32 where all of ``extent`` elements can be reached with it, else int64."""
    return np.int32 if extent < 2**31 - THREADS * BLOCKS_MAX else np.int64


def elementwise(kernel: Kernel, arrays: Sequence[Any], outputs: int = 1) -> None:
    """Run an elementwise kernel: ``arrays`` are the outputs, then the inputs, broadcast to output
    0. Inputs may be 0-d ndarrays: numbers.

    The caller guarantees dtypes, that shapes broadcast, one device, and that outputs overlap inputs
    only as the very same elements.
    """
    out: DeviceArray = arrays[0]
    n = out.size
    if n == 0:
        return
    numbers = tuple(isinstance(a, np.ndarray) for a in arrays[outputs:])
    on_device = [a for a in arrays if not isinstance(a, np.ndarray)]
    lengths, steps = collapse(out.shape, [broadcast_strides(a, out.shape) for a in on_device])
    extent = max([n, *(a.block.nbytes // a.itemsize for a in on_device)])
    integer = index_type(extent)
    args: list[Any] = [integer(n), *map(integer, lengths[1:])]
    rows = iter(steps)
    for array in arrays:
        if isinstance(array, np.ndarray):
            args.append(array[()] if array.dtype.kind != "b" else np.uint8(array))
            continue
        args += [array.block.typed(array.dtype), integer(array.offset // array.itemsize)]
        args += map(integer, next(rows))
    compiled = kernel.variant(len(lengths), numbers, integer.__name__)
    threads, most = (THREADS, BLOCKS_MAX)
    if runtime.simulated():
        threads, most = SIMULATED_THREADS, SIMULATED_BLOCKS
    launches.add()
    runtime.launch(compiled, out.index, min(math.ceil(n / threads), most), threads, args)


_copies: dict[Any, Kernel] = {}


def copy(out: DeviceArray, x: Any) -> None:
    """``out[...] = x``: any layouts, x (of the device, or one number) broadcast and converted."""
    if isinstance(x, np.ndarray) and x.ndim:
        raise TypeError(f"copy: expected memory of {out!r}'s device for x, got an ndarray; move it")
    dtype = x.dtype
    key = dtype, out.dtype
    kernel = _copies.get(key)
    if kernel is None:
        source = Sym("input", ("x",), dtype == emit.BOOL)
        kernel = _copies[key] = Kernel(
            f"copy {dtype} to {out.dtype}", dtype, [("x", dtype)], [(source, out.dtype)]
        )
    elementwise(kernel, (out, x))
