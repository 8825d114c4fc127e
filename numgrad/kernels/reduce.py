"""Reductions: kernel source from a map, a combination and an identity, and how they are launched.

An array is seen as ``(outer, length, inner)`` with byte strides; ``length`` is reduced. Every
kernel keeps ``LANES`` accumulators and combines them pairwise at the end, so the order of additions
depends on the shape alone: not on vector width, not on threads. A long axis is cut into chunks that
are reduced to partial results first.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import emit, launch, native, store
from .scalar import Sym

LANES = 128
CHUNK = 1 << 15
"""Elements of a chunk when a whole axis is reduced: 128 KiB of float32."""
SMALLER = 8
"""How much smaller a first stage must make an array whose reduced axes lie apart. Below it, a copy
of the array needs no more memory than its accumulators, which are twice as wide as float32."""
FEW_ITEMS = 16
"""Below so many independent results a long axis is worth cutting, so that threads share it."""


@dataclasses.dataclass(frozen=True)
class Reduction:
    """What one reduction computes: ``finish(combine over i of map(x[i], centre), divisor)``.

    ``map`` runs in dtype ``map_dtype``, accumulation in ``accumulate``; both are functions of a
    dtype. ``finish`` (optional) takes the accumulated value and ``divisor``.
    """

    name: str
    identity: Callable[[np.dtype], Any]
    combine: Callable[[Any, Any], Any]
    map: Callable[[Any, Any], Any]
    accumulate: Callable[[np.dtype], np.dtype]
    map_dtype: Callable[[np.dtype], np.dtype]
    centred: bool = False
    finish: Callable[[Any, Any], Any] | None = None


_TEMPLATE = """
@njit(error_model="numpy", forceinline=True)
def value(x, centre):
{value}


@njit(error_model="numpy", forceinline=True)
def join(total, other):
{join}


@njit(error_model="numpy", forceinline=True)
def finish(total, divisor):
{finish}


def kernel(args, lo, hi, worker):
    out = as_{out}(load_i64(args, 0))
    x = load_i64(args, 1)
    centre = as_{map}(load_i64(args, 2))
    length, inner = load_i64(args, 3), load_i64(args, 4)
    outer_stride, stride, inner_stride = load_i64(args, 5), load_i64(args, 6), load_i64(args, 7)
    chunk, chunks = load_i64(args, 8), load_i64(args, 9)
    divisor = as_float64(args)[10]
    lanes = as_{accumulate}(stack({lane_bytes}))
    tiles = (inner + {lanes} - 1) // {lanes}
    for item in range(lo, hi):
        tile = item % tiles
        part = item // tiles % chunks
        row = item // tiles // chunks
        start = part * chunk
        n = min(chunk, length - start)
        first = tile * {lanes}
        base = x + row * outer_stride + start * stride + first * inner_stride
        place = (row * chunks + part) * inner + first
        width = min({lanes}, max(n, 1)) if inner == 1 else min({lanes}, inner - first)
        for j in range(width):
            lanes[j] = {accumulate_type}({identity})
        if inner == 1:
            c = {centre_row}
            if stride == {itemsize}:
                p = as_{dtype}(base)
                whole = n // {lanes} * {lanes}
                for i in range(0, whole, {lanes}):
                    for j in range({lanes}):
                        lanes[j] = join(lanes[j], value(p[i + j], c))
                for j in range(n - whole):
                    lanes[j] = join(lanes[j], value(p[whole + j], c))
            else:
                j = 0
                for i in range(n):
                    lanes[j] = join(lanes[j], value(as_{dtype}(base + i * stride)[0], c))
                    j = j + 1 if j + 1 < width else 0
            while width > 1:
                half = (width + 1) // 2
                for j in range(width - half):
                    lanes[j] = join(lanes[j], lanes[half + j])
                width = half
            out[place] = finish(lanes[0], divisor)
        else:
            for i in range(n):
                if inner_stride == {itemsize}:
                    p = as_{dtype}(base + i * stride)
                    for j in range(width):
                        lanes[j] = join(lanes[j], value(p[j], {centre_column}))
                else:
                    for j in range(width):
                        q = as_{dtype}(base + i * stride + j * inner_stride)
                        lanes[j] = join(lanes[j], value(q[0], {centre_column}))
            for j in range(width):
                out[place + j] = finish(lanes[j], divisor)
"""


def _body(writer: emit.Writer, value: Any, dtype: np.dtype, head: Sequence[str] = ()) -> str:
    result = emit.stored(writer, value, dtype)
    return "\n".join(f"    {line}" for line in [*head, *writer.lines, f"return {result}"])


def _symbol(name: str, dtype: np.dtype) -> Sym:
    return Sym("input", (name,), dtype == emit.BOOL)


def source(reduction: Reduction, dtype: np.dtype, out: np.dtype, mapped: bool, final: bool) -> str:
    """Source of the ranged kernel that reduces ``dtype`` to ``out``.

    ``mapped``: apply the map (not to partial results); ``final``: apply ``finish``.
    """
    accumulate = reduction.accumulate(dtype) if mapped else dtype
    map_dtype = reduction.map_dtype(dtype) if mapped else dtype
    x, centre = _symbol("v", map_dtype), _symbol("centre", map_dtype)
    total, other = _symbol("total", accumulate), _symbol("other", accumulate)
    mapper, joiner, finisher = (emit.Writer(d) for d in (map_dtype, accumulate, accumulate))
    finishes = final and reduction.finish is not None
    finished = reduction.finish(total, Sym("input", ("d",))) if finishes else total  # type: ignore[misc]
    centred = reduction.centred and mapped
    zero = f"{map_dtype.name}(0)" if map_dtype != emit.BOOL else "uint8(0)"
    text = _TEMPLATE.format(
        value=_body(
            mapper,
            reduction.map(x, centre) if mapped else x,
            accumulate,
            ["v = x != 0" if map_dtype == emit.BOOL else f"v = {emit.type_name(map_dtype)}(x)"],
        ),
        join=_body(joiner, reduction.combine(total, other), accumulate),
        finish=_body(finisher, finished, out, [f"d = {emit.type_name(accumulate)}(divisor)"]),
        out=out.name,
        map=map_dtype.name,
        accumulate=accumulate.name,
        accumulate_type="uint8" if accumulate == emit.BOOL else accumulate.name,
        dtype=dtype.name,
        lane_bytes=LANES * 8,
        lanes=LANES,
        identity=reduction.identity(accumulate),
        itemsize=dtype.itemsize,
        centre_row="centre[row]" if centred else zero,
        centre_column="centre[row * inner + first + j]" if centred else zero,
    )
    helpers = {**mapper.helpers, **joiner.helpers, **finisher.helpers}
    return emit.prelude(f"{reduction.name} {dtype} to {out}", list(helpers)) + text


_kernels: dict[Any, store.Kernel] = {}


def _kernel(
    reduction: Reduction, dtype: np.dtype, out: np.dtype, mapped: bool, final: bool
) -> store.Kernel:
    key = (reduction.name, dtype, out, mapped, final)
    found = _kernels.get(key)
    if found is None:
        text = source(reduction, dtype, out, mapped, final)
        found = _kernels[key] = store.generated(text, native.RANGED_SIGNATURE)
    return found


def _groups(x: np.ndarray, axes: Sequence[int]) -> list[tuple[bool, int, int]]:
    """``(reduced, length, stride)`` of x's axes, neighbours that are one axis in memory merged."""
    groups: list[tuple[bool, int, int]] = []
    for axis, (n, stride) in enumerate(zip(x.shape, x.strides, strict=True)):
        if n == 1:
            continue
        reduced = axis in axes
        if groups and groups[-1][0] == reduced and groups[-1][2] == n * stride:
            groups[-1] = reduced, groups[-1][1] * n, stride
        else:
            groups.append((reduced, n, stride))
    return groups


def _is_plain(groups: Sequence[tuple[bool, int, int]]) -> bool:
    """Whether the groups are (outer, length, inner), some of them missing."""
    pattern = [reduced for reduced, _, _ in groups]
    return pattern in ([], [True], [False], [False, True], [True, False], [False, True, False])


def as_outer_length_inner(
    x: np.ndarray, axes: Sequence[int], copy: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, tuple[int, int, int], tuple[int, int, int]]:
    """``(array, lengths, byte strides)`` of x seen as (outer, length, inner), ``axes`` reduced.

    ``copy`` makes a C-contiguous copy; it is used when the axes do not merge into three.
    """
    if x.size == 0:  # its strides mean nothing: axes need not merge
        kept = math.prod(n for axis, n in enumerate(x.shape) if axis not in axes)
        return x, (kept, math.prod(x.shape[axis] for axis in axes), 1), (0, 0, 0)
    groups = _groups(x, axes)
    if not _is_plain(groups):
        others = [axis for axis in range(x.ndim) if axis not in axes]
        moved = copy(x.transpose([*others, *axes]))
        return as_outer_length_inner(moved, range(len(others), x.ndim), copy)
    size = x.itemsize
    parts = {"outer": (1, 0), "length": (1, size), "inner": (1, size)}
    for i, (reduced, n, stride) in enumerate(groups):
        name = "length" if reduced else "outer" if i == 0 else "inner"
        parts[name] = (n, stride)
    if groups and not any(reduced for reduced, _, _ in groups):
        parts["length"] = (1, size)
    outer, length, inner = parts["outer"], parts["length"], parts["inner"]
    if length[1] == size and inner[0] > 1 and outer[0] == 1 and inner[1] != size:
        outer, inner = inner, (1, size)
    return x, (outer[0], length[0], inner[0]), (outer[1], length[1], inner[1])


def _stage(x: np.ndarray, axes: Sequence[int]) -> tuple[int, ...]:
    """Those of ``axes`` to reduce first where all of them together would need a copy of x; none if
    there is no such choice that makes x much smaller.

    The sum over n, h and w of (n, c, h, w) takes h and w first, then n of (n, c).
    """
    if x.size == 0 or _is_plain(_groups(x, axes)):
        return ()
    runs: list[tuple[int, ...]] = []  # axes that are next to each other
    for axis in sorted(axes):
        if runs and runs[-1][-1] == axis - 1:
            runs[-1] = (*runs[-1], axis)
        else:
            runs.append((axis,))
    runs += [(axis,) for axis in axes]  # and each alone, where they do not merge
    best: tuple[int, ...] = ()
    least = SMALLER
    for run in runs:
        length = math.prod(x.shape[axis] for axis in run)
        if length >= least and len(run) < len(axes) and _is_plain(_groups(x, run)):
            best, least = run, length + 1
    return best


def _chunks(outer: int, length: int, inner: int) -> tuple[int, int]:
    """``(chunk, chunks)`` of the reduced axis; depends on the shape alone."""
    items = outer * -(-inner // LANES)
    chunk = CHUNK if inner == 1 else max(CHUNK // min(inner, LANES), 1)
    if items >= FEW_ITEMS or length < 2 * chunk:
        return max(length, 1), 1
    return chunk, -(-length // chunk)


def reduce(
    reduction: Reduction,
    x: np.ndarray,
    axes: Sequence[int],
    out: np.ndarray,
    *,
    copy: Callable[[np.ndarray], np.ndarray],
    workspace: Callable[[tuple[int, ...], np.dtype], np.ndarray],
    centre: np.ndarray | None = None,
    divisor: float = 1.0,
) -> None:
    """Reduce ``axes`` of ``x`` into ``out`` (C-contiguous, its elements in the order of the kept
    axes). ``centre`` (C-contiguous, an element for each of out) goes to the map.

    Axes that lie apart are reduced one group after the other, in accumulators throughout; only
    where that would save nothing is x copied.
    """
    if out.size == 0:
        return
    mapped = True
    while first := _stage(x, axes):
        shape = tuple(1 if axis in first else n for axis, n in enumerate(x.shape))
        wide = reduction.accumulate(x.dtype) if mapped else x.dtype
        part = workspace(shape, wide)
        about = centre
        if centre is not None and mapped:
            kept = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
            about = copy(np.broadcast_to(centre.reshape(kept), shape))
        _one_stage(reduction, x, first, part, copy, workspace, about, 1.0, mapped, False)
        x, mapped = part, False
        axes = [axis for axis in axes if axis not in first]
    _one_stage(reduction, x, axes, out, copy, workspace, centre, divisor, mapped, True)


def _one_stage(
    reduction: Reduction,
    x: np.ndarray,
    axes: Sequence[int],
    out: np.ndarray,
    copy: Callable[[np.ndarray], np.ndarray],
    workspace: Callable[[tuple[int, ...], np.dtype], np.ndarray],
    centre: np.ndarray | None,
    divisor: float,
    mapped: bool,
    final: bool,
) -> None:
    """``reduce`` of axes that merge: with the map if ``mapped``, with the finish if ``final``."""
    x, lengths, strides = as_outer_length_inner(x, axes, copy)
    outer, length, inner = lengths
    if math.prod(x.shape) == 0:
        outer, length, inner = out.size, 0, 1
    chunk, chunks = _chunks(outer, length, inner)
    single = chunks == 1
    wide = reduction.accumulate(x.dtype) if mapped else x.dtype
    kernel = _kernel(reduction, x.dtype, out.dtype if single else wide, mapped, final and single)
    target = out if single else workspace((outer, chunks, inner), wide)
    tiles = -(-inner // LANES)
    args = [launch.address(target), launch.address(x), launch.address_or_0(centre)]
    args += [length, inner, *strides, chunk, chunks, launch.bits(divisor)]
    work = outer * length * inner
    launch.ranged(kernel, args, outer * chunks * tiles, parallel=work >= launch.PARALLEL_MIN)
    if single:
        return
    kernel = _kernel(reduction, wide, out.dtype, False, final)
    size = target.itemsize
    args = [launch.address(out), launch.address(target), 0, chunks, inner]
    args += [chunks * inner * size, inner * size, size, chunks, 1, launch.bits(divisor)]
    launch.ranged(kernel, args, outer * tiles, parallel=False)
