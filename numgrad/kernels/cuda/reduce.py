"""Reductions on the GPU, from the same maps, combinations and identities as on the CPU.

One block of threads an output element: each thread combines every LANES-th element, then the block
combines in a tree in shared memory. A long axis with few outputs is cut into chunks that are
reduced to partial results first. The order depends on the shape alone: always the same bits.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import emit
from ..counters import launches
from ..reduce import Reduction, as_outer_length_inner
from ..scalar import Sym
from . import functions, runtime
from .array import DeviceArray
from .elementwise import Writer

LANES, SIMULATED_LANES = 128, 4
"""Threads of a block; a power of two."""
CHUNK = 1 << 14
"""Elements that one block reduces where there are few outputs."""
FEW_OUTPUTS = 512

_TEMPLATE = '''"""{title}"""
def kernel(
    out, x, x_at, centre, centre_at, length, inner, outer_stride, stride, inner_stride,
    chunk, chunks, divisor,
):
    lanes = cuda.shared.array({lanes}, {shared})
    item = int64(cuda.blockIdx.x)
    t = int64(cuda.threadIdx.x)
    column = item % inner
    part = item // inner % chunks
    row = item // inner // chunks
    start = part * chunk
    n = min(chunk, length - start)
    base = x_at + row * outer_stride + column * inner_stride + start * stride
    lanes[t] = {shared}({identity})
    for i in range(t, n, {lanes}):
        v = {load}
        centre_value = {centre}
{value}
        total = lanes[t]{truth}
        other = {value_result}{truth}
{join}
        lanes[t] = {join_result}
    cuda.syncthreads()
    half = {lanes} // 2
    while half > 0:
        if t < half:
            total = lanes[t]{truth}
            other = lanes[t + half]{truth}
{join_tree}
            lanes[t] = {join_result}
        cuda.syncthreads()
        half = half // 2
    if t == 0:
        total = lanes[0]{truth}
        d = {accumulate}(divisor)
{finish}
        out[(row * chunks + part) * inner + column] = {finish_result}
'''


def _written(
    writer: Writer, value: Any, dtype: np.dtype[Any], prefix: str, indent: int
) -> tuple[str, str]:
    """``(lines, result)``, the names of intermediate values beginning with ``prefix``."""
    result = emit.stored(writer, value, dtype)
    lines = "\n".join(" " * indent + line for line in writer.lines)
    return (
        re.sub(r"\bv(\d+)\b", rf"{prefix}\1", lines),
        re.sub(r"\bv(\d+)\b", rf"{prefix}\1", result),
    )


def source(
    reduction: Reduction,
    dtype: np.dtype[Any],
    out: np.dtype[Any],
    mapped: bool,
    final: bool,
    lanes: int,
) -> str:
    """Source of the kernel that reduces ``dtype`` to ``out``.

    ``mapped``: apply the map (not to partial results); ``final``: apply ``finish``. Args: flat
    device arrays and places of first elements, then int64 lengths and strides in elements. Writes
    ``out[row, part, column]``, contiguous; reads every element of x once.
    """
    accumulate = reduction.accumulate(dtype) if mapped else dtype
    map_dtype = reduction.map_dtype(dtype) if mapped else dtype
    x = Sym("input", ("v",), map_dtype == emit.BOOL)
    centre = Sym("input", ("centre_value",), map_dtype == emit.BOOL)
    truth = accumulate == emit.BOOL
    total, other = (Sym("input", (name,), truth) for name in ("total", "other"))
    finishes = final and reduction.finish is not None
    finished = reduction.finish(total, Sym("input", ("d",))) if finishes else total  # type: ignore[misc]
    mapped_value = reduction.map(x, centre) if mapped else x
    value, value_result = _written(Writer(map_dtype), mapped_value, accumulate, "m", 8)
    combined = reduction.combine(total, other)
    join, join_result = _written(Writer(accumulate), combined, accumulate, "j", 8)
    join_tree, _ = _written(Writer(accumulate), combined, accumulate, "j", 12)
    finish, finish_result = _written(Writer(accumulate), finished, out, "f", 8)
    loaded = "x[base + i * stride]"
    load = (
        f"{loaded} != uint8(0)"
        if dtype == emit.BOOL and map_dtype == emit.BOOL
        else f"{emit.type_name(map_dtype)}({loaded})"
    )
    zero = "False" if map_dtype == emit.BOOL else f"{map_dtype.name}(0)"
    centred = reduction.centred and mapped
    return _TEMPLATE.format(
        title=f"{reduction.name} {dtype} to {out}",
        lanes=lanes,
        shared="uint8" if truth else accumulate.name,
        accumulate=emit.type_name(accumulate),
        identity=reduction.identity(accumulate),
        load=load,
        centre="centre[centre_at + row * inner + column]" if centred else zero,
        truth=" != uint8(0)" if truth else "",
        value=value,
        value_result=value_result,
        join=join,
        join_result=join_result,
        join_tree=join_tree,
        finish=finish,
        finish_result=finish_result,
    )


_kernels: dict[Any, Any] = {}


def _kernel(
    reduction: Reduction, dtype: np.dtype[Any], out: np.dtype[Any], mapped: bool, final: bool
) -> Any:
    key = reduction.name, dtype, out, mapped, final
    found = _kernels.get(key)
    if found is None:
        namespace = functions.namespace()
        runtime.define(source(reduction, dtype, out, mapped, final, _lanes()), namespace)
        found = _kernels[key] = runtime.compile(namespace["kernel"])
    return found


def _lanes() -> int:
    return SIMULATED_LANES if runtime.simulated() else LANES


def _launch(
    kernel: Any,
    out: DeviceArray,
    x: DeviceArray,
    centre: DeviceArray | None,
    lengths: tuple[int, int, int],
    strides: Sequence[int],
    chunk: int,
    chunks: int,
    divisor: float,
) -> None:
    outer, length, inner = lengths
    size = x.itemsize
    middle = out if centre is None else centre
    args = [
        out.block.typed(out.dtype)[out.offset // out.itemsize :],
        x.block.typed(x.dtype),
        np.int64(x.offset // size),
        middle.block.typed(middle.dtype),
        np.int64(middle.offset // middle.itemsize),
        *(np.int64(n) for n in (length, inner, *(s // size for s in strides), chunk, chunks)),
        np.float64(divisor),
    ]
    launches.add()
    runtime.launch(kernel, out.index, outer * chunks * inner, _lanes(), args)


def reduce(
    reduction: Reduction,
    x: DeviceArray,
    axes: Sequence[int],
    out: DeviceArray,
    *,
    copy: Callable[[DeviceArray], DeviceArray],
    workspace: Callable[[tuple[int, ...], np.dtype[Any]], DeviceArray],
    centre: DeviceArray | None = None,
    divisor: float = 1.0,
) -> None:
    """Reduce ``axes`` of ``x`` into ``out`` (C-contiguous, its elements in the order of the kept
    axes). ``centre`` (C-contiguous, an element for each of out) goes to the map."""
    if out.size == 0:
        return
    x, lengths, strides = as_outer_length_inner(x, axes, copy)  # type: ignore[arg-type,assignment]
    outer, length, inner = lengths
    if x.size == 0:
        outer, length, inner = out.size, 0, 1
    cut = outer * inner < FEW_OUTPUTS and length >= 2 * CHUNK
    chunk, chunks = (CHUNK, -(-length // CHUNK)) if cut else (max(length, 1), 1)
    wide = reduction.accumulate(x.dtype)
    target = workspace((outer, chunks, inner), wide) if cut else out
    kernel = _kernel(reduction, x.dtype, target.dtype, True, not cut)
    lengths = outer, length, inner
    _launch(kernel, target, x, centre, lengths, strides, chunk, chunks, divisor)
    if cut:
        size = target.itemsize
        rows = (chunks * inner * size, inner * size, size)
        kernel = _kernel(reduction, target.dtype, out.dtype, False, True)
        _launch(kernel, out, target, None, (outer, chunks, inner), rows, chunks, 1, divisor)
