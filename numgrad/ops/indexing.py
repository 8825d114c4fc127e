"""Indexing: rows and elements by integer and boolean tensors, and their adjoints."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.apply import check_same_device, make, no_kernel
from ..graph.device import CPU
from ..graph.errors import DtypeError, ShapeError, expected, shown
from ..graph.mode import composite
from ..graph.storage import WORKSPACE, allocate, category
from ..graph.value import Value
from ..kernels import launch
from ..kernels.cpu import indexing as kernels
from .declare import broadcast_shapes
from .elementwise import where
from .kernel_calls import contiguous_array, copy_into, fill, workspace
from .movement import (
    axis_of,
    expand,
    permute,
    reshape,
    slice_of,
    to_dtype,
    view_as,
)
from .primitive import primitive, tensor_operand

INT64 = dtypes.int64

# ------------------------------------------------------------------------------------------- rows


def _rows(kernel: Any, arrays: Sequence[np.ndarray], numbers: Sequence[int], items: int) -> None:
    args = [*(launch.address(a) for a in arrays), *numbers]
    launch.ranged(kernel, args, items, parallel=arrays[1].size >= launch.PARALLEL_MIN)


def _take_rows_gradient(g: Any, index: Any, x_shape: Any) -> Any:
    return add_rows(g, index, rows=x_shape[0])


@primitive(
    infer=lambda x, index: ((index.shape[0], x.shape[1]), x.dtype),
    constant=("index",),
    dx=_take_rows_gradient,
    reference="numgrad.kernels.reference.indexing:take_rows",
)
def take_rows(out, x, index):
    """``out[i] = x[index[i]]`` for x (rows, columns) and index (n,)."""
    if out.size:
        x = contiguous_array(x)
        kernel = getattr(kernels, f"take_rows_{x.itemsize}")
        numbers = [x.shape[1], x.strides[0]]
        _rows(kernel, (out, x, contiguous_array(index)), numbers, out.shape[0])


@primitive(
    infer=lambda v, index, rows: ((rows, v.shape[1]), v.dtype),
    constant=("index",),
    dv=lambda g, index: take_rows(g, index),
    reference="numgrad.kernels.reference.indexing:add_rows",
)
def add_rows(out, v, index, *, rows):
    """Zeros (rows, columns) with ``out[index[i]] += v[i]``: repeated rows add, in order."""
    fill(out, 0)
    if v.size:
        v = contiguous_array(v)
        kernel = getattr(kernels, f"add_rows_{v.dtype.name}")
        numbers = [v.shape[0], out.strides[0], v.strides[0]]
        _rows(kernel, (out, v, contiguous_array(index)), numbers, v.shape[1])


# ---------------------------------------------------------------------------------------- elements


def _kept_gradient(g: Any, index: Any, v_shape: Any) -> Any:
    return put_elements(g, _zeros(v_shape, g.dtype), index)


@primitive(
    infer=lambda x, v, index: (x.shape, x.dtype),
    constant=("index",),
    dx=_kept_gradient,
    dv=lambda g, index, v_shape: _written_gradient(g, index, v_shape),
    reference="numgrad.kernels.reference.indexing:put_elements",
)
def put_elements(out, x, v, index):
    """x with the elements at the flat places ``index`` replaced by ``v``; the last of a repeated
    place wins."""
    whole = out if out.flags.c_contiguous else workspace(out.shape, out.dtype)
    if out is not x or whole is not out:
        copy_into(whole, x)
    if v.size:
        v = contiguous_array(v)
        kernel = getattr(kernels, f"put_rows_{v.itemsize}")
        numbers = [v.size, v.itemsize, v.itemsize]
        _rows(kernel, (whole, v, contiguous_array(index)), numbers, 1)
    if whole is not out:
        copy_into(out, whole)


def _written_gradient(g: Any, index: Any, shape: tuple[int, ...]) -> Any:
    """``g`` at the places written to; 0 for a value that a later one of the same place replaced."""
    taken = take_rows(reshape(g, g.numel(), 1), reshape(index, index.numel()))
    places = index.array.reshape(-1)
    _, from_end = np.unique(places[::-1], return_index=True)
    if from_end.size != places.size:
        last = np.zeros((places.size, 1), np.bool_)
        last[places.size - 1 - from_end] = True
        taken = where(_temporary(last), taken, 0)
    return reshape(taken, shape)


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    from .creation import zeros

    return zeros(shape, dtype=dtype)


def _gather_gradient(g: Any, index: Any, x_shape: Any, axis: int) -> Any:
    return scatter_along(g, index, shape=x_shape, axis=axis)


@primitive(
    infer=lambda x, index, axis: (index.shape, x.dtype),
    constant=("index",),
    dx=_gather_gradient,
    reference="numpy:take_along_axis",
)
def gather_along(out, x, index, *, axis):
    """``out[…, j, …] = x[…, index[…, j, …], …]`` along ``axis``; the other axes are equal."""
    _along(f"take_along_{x.itemsize}", out, x, index, axis, x.shape)


@primitive(
    infer=lambda v, index, shape, axis: (shape, v.dtype),
    constant=("index",),
    dv=lambda g, index, axis: gather_along(g, index, axis=axis),
    reference="numgrad.kernels.reference.indexing:scatter_along",
)
def scatter_along(out, v, index, *, shape, axis):
    """Zeros of ``shape`` with ``out[…, index[…, j, …], …] += v[…, j, …]``; repeats add in order."""
    fill(out, 0)
    _along(f"add_along_{v.dtype.name}", out, v, index, axis, shape)


def _along(
    name: str, out: np.ndarray, x: np.ndarray, index: np.ndarray, axis: int, shape: Sequence[int]
) -> None:
    if index.size == 0:
        return
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    arrays = (out, contiguous_array(x), contiguous_array(index))
    _rows(getattr(kernels, name), arrays, [shape[axis], index.shape[axis], inner], outer * inner)


def check_index(op: str, index: Any, limit: int, name: str = "index", beside: Any = None) -> Any:
    """``index`` into ``beside`` as int64, without negative places.

    Raises:
        DeviceError: it is on another device than ``beside``.
        TypeError: not an integer tensor.
        IndexError: a place outside ``[-limit, limit)``.
    """
    if not isinstance(index, Value) or index.dtype.kind not in "iu":
        raise DtypeError(expected(op, "an int64 tensor", name, shown(index), "use .long()"))
    places = _on_host(op, name, index, beside)
    if places.size and (places.min() < -limit or places.max() >= limit):
        bad = int(places.min()) if places.min() < -limit else int(places.max())
        raise IndexError(
            f"{op}: expected {name} in [{-limit}, {limit - 1}], got {bad}; index {bad} is out of "
            f"bounds for an axis of size {limit}"
        )
    if index.dtype == dtypes.int64 and not (places.size and places.min() < 0):
        return index
    result = make(*allocate(places.shape, INT64))  # it may be kept for the backward pass
    result.array[...] = places
    negative = np.less(result.array, 0, out=workspace(places.shape, dtypes.bool_))
    np.add(result.array, limit, out=result.array, where=negative)
    return result


def _on_host(op: str, name: str, x: Any, beside: Any = None) -> np.ndarray:
    """The elements of an operand that is read before anything runs.

    Raises:
        DeviceError: it is on another device than ``beside``.
        NotImplementedError: it is on a GPU.
    """
    if x.device is not CPU:
        check_same_device(op, (beside, x), ("x", name))
        raise no_kernel(op, name, x.device)
    array: np.ndarray = x.array
    return array


def _temporary(array: np.ndarray) -> Any:
    """A mask or places (as int64) for the length of one call, counted as workspace."""
    with category(WORKSPACE):
        result = make(*allocate(array.shape, array.dtype if array.dtype.kind == "b" else INT64))
    result.array[...] = array
    return result


def gather(x: Any, dim: int, index: Any) -> Any:
    """``out[i][j] = x[index[i][j]][j]`` for ``dim=0``, and so on; index has as many axes as x."""
    axis = axis_of("gather", dim, tensor_operand("gather", x).dim())
    places = check_index("gather", index, x.shape[axis], beside=x)
    if places.dim() != x.dim():
        raise ShapeError(
            expected("gather", f"{x.dim()} axes", "index", shown(index), "unsqueeze it")
        )
    lead = tuple(slice(None) if i == axis else slice(0, n) for i, n in enumerate(places.shape))
    for i, (n, m) in enumerate(zip(places.shape, x.shape, strict=True)):
        if i != axis and n > m:
            raise ShapeError(
                expected(
                    "gather",
                    f"at most {x.shape} outside axis {axis}",
                    "index",
                    shown(index),
                    "cut it",
                )
            )
    return gather_along(slice_of(x, index=lead), places, axis=axis)


def index_select(x: Any, dim: int, index: Any) -> Any:
    """The slices of x along ``dim`` at the places of a 1-D ``index``."""
    axis = axis_of("index_select", dim, tensor_operand("index_select", x).dim())
    if isinstance(index, Value) and len(index.shape) > 1:
        raise ShapeError(
            expected("index_select", "one axis", "index", shown(index), "index with x[…] instead")
        )
    places = check_index("index_select", index, x.shape[axis] if x.dim() else 1, beside=x)
    if x.dim() == 0:
        return x.clone()
    return getitem(x, (*[slice(None)] * axis, reshape(places, -1)))


def nonzero(x: Any) -> Any:
    """Places of non-zero elements, int64 (count, ndim), in row-major order."""
    _on_host("nonzero", "x", tensor_operand("nonzero", x))
    mask = contiguous_array(x.array if x.dtype == dtypes.bool_ else (x != 0).array)
    flat = _true_places(mask)
    out = make(*allocate((flat.size, mask.ndim), INT64, "nonzero"))
    _unravel(flat, mask.shape, [out.array[:, axis] for axis in range(mask.ndim)])
    return out


def _unravel(flat: np.ndarray, shape: Sequence[int], outs: Sequence[np.ndarray]) -> None:
    """The place along each axis of row-major places, which are used up."""
    for n, out in zip(reversed(shape), reversed(outs), strict=True):
        np.divmod(flat, n, out=(flat, out))


def _true_places(mask: np.ndarray) -> np.ndarray:
    mask = contiguous_array(mask)
    count = np.zeros(1, np.int64)
    launch.ranged(
        kernels.count_true, [launch.address(count), launch.address(mask)], mask.size, parallel=False
    )
    places = workspace((int(count[0]),), INT64)
    args = [launch.address(places), launch.address(mask), int(count[0])]
    launch.ranged(kernels.write_true_indices, args, mask.size, parallel=False)
    return places


# ------------------------------------------------------------------------------------ x[...] syntax


def _normalised(x: Any, index: Any) -> list[Any]:
    """The parts of an index, its ellipsis expanded, masks replaced by places."""
    parts = list(index) if isinstance(index, tuple) else [index]
    parts = [_as_part(p) for p in parts]
    used = sum(_width(p) for p in parts)
    ellipses = [i for i, p in enumerate(parts) if p is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError(expected("index", "at most one ...", "index", index, "leave one out"))
    if used > x.dim():
        raise IndexError(
            f"index: expected at most {x.dim()} indices for x, got {used}; too many indices for "
            f"tensor of dimension {x.dim()}"
        )
    if ellipses:
        at = ellipses[0]
        parts[at : at + 1] = [slice(None)] * (x.dim() - used)
    else:
        parts += [slice(None)] * (x.dim() - used)
    return parts


def _as_part(part: Any) -> Any:
    if part is None or part is Ellipsis or isinstance(part, (slice, Value, bool, np.bool_)):
        return part
    if isinstance(part, (int, np.integer)):
        return int(part)
    if isinstance(part, (list, np.ndarray, range, tuple)):
        array = np.asarray(part)
        if array.size == 0 and array.dtype.kind == "f":
            array = array.astype(np.int64)
        if array.dtype.kind in "iub":
            return _temporary(array)
    if hasattr(part, "__index__"):
        return part.__index__()
    raise TypeError(
        expected(
            "index",
            "integers, slices, None, ..., int64 or bool tensors",
            "index",
            shown(part),
            "convert it",
        )
    )


def _is_mask(part: Any) -> bool:
    return isinstance(part, Value) and part.dtype in (dtypes.bool_, dtypes.uint8)


def _width(part: Any) -> int:
    """How many axes of x a part of an index uses up."""
    if part is None or part is Ellipsis or isinstance(part, (bool, np.bool_)):
        return 0
    if _is_mask(part):
        return int(part.dim())
    return 1


def _split(x: Any, index: Any) -> tuple[tuple[Any, ...], list[tuple[int, np.ndarray]]]:
    """``(basic index, [(axis of the result of it, places)])``."""
    basic: list[Any] = []
    advanced: list[tuple[int, np.ndarray]] = []
    axis = 0  # of x
    out_axis = 0  # of the basic view
    for part in _normalised(x, index):
        if part is None:
            basic.append(None)
            out_axis += 1
        elif isinstance(part, (bool, np.bool_)):
            basic.append(None)
            advanced.append((out_axis, np.zeros(int(part), np.int64)))
            out_axis += 1
        elif isinstance(part, slice):
            basic.append(_checked_slice(part))
            axis += 1
            out_axis += 1
        elif isinstance(part, int):
            n = x.shape[axis]
            if not -n <= part < n:
                raise IndexError(
                    f"index: expected a place in [{-n}, {n - 1}] for axis {axis}, got {part}; "
                    f"index {part} is out of bounds for dimension {axis} with size {n}"
                )
            basic.append(part % n)
            axis += 1
        elif _is_mask(part):
            if part.shape != x.shape[axis : axis + part.dim()]:
                raise IndexError(
                    f"index: expected a mask of shape {x.shape[axis : axis + part.dim()]}, got "
                    f"{part.shape}; The shape of the mask {part.shape} at index {axis} does not "
                    f"match the shape of the indexed tensor {x.shape}"
                )
            mask = _on_host("index", "mask", part, x).view(np.bool_)
            flat = _true_places(mask)
            shape = mask.shape or (1,)
            if not mask.ndim:
                basic.append(None)
            along = [workspace(flat.shape, INT64) for _ in shape]
            _unravel(flat, shape, along)
            for places in along:
                advanced.append((out_axis, places))
                if mask.ndim:
                    basic.append(slice(None))
                    axis += 1
                out_axis += 1
        else:
            basic.append(slice(None))
            advanced.append((out_axis, check_index("index", part, x.shape[axis], beside=x).array))
            axis += 1
            out_axis += 1
    return tuple(basic), advanced


def _checked_slice(part: slice) -> slice:
    bounds = []
    for bound in (part.start, part.stop, part.step):
        if bound is not None and not hasattr(bound, "__index__"):
            raise TypeError(
                expected("index", "integers in a slice", "index", repr(bound), "use int()")
            )
        bounds.append(None if bound is None else bound.__index__())
    if bounds[2] is not None and bounds[2] <= 0:
        raise ValueError(
            expected("index", "a slice step greater than zero", "index", part, "use .flip(dim)")
        )
    return slice(*bounds)


@composite
def getitem(x: Any, index: Any) -> Any:
    """``x[index]``: integers, slices, None and ... give a view; int64 and bool tensors a copy."""
    if type(index) is int and index == 0 and x.dim() == 0 and not x.contagious:
        raise IndexError(
            "index: expected no index for a 0-dim tensor, got 0; invalid index of a 0-dim tensor: "
            "use tensor.item() to convert it to a number"
        )
    basic, advanced = _split(x, index)
    y = slice_of(x, index=basic)
    if not advanced:
        return y
    axes = [axis for axis, _ in advanced]
    places = _broadcast([p for _, p in advanced])
    rest = [axis for axis in range(y.dim()) if axis not in axes]
    sizes = [y.shape[axis] for axis in axes]
    flat = make(*allocate(places[0].shape, INT64))
    flat.array[...] = places[0]
    for size, p in zip(sizes[1:], places[1:], strict=True):
        np.multiply(flat.array, size, out=flat.array)
        np.add(flat.array, p, out=flat.array)
    rows = reshape(permute(y, *axes, *rest), math.prod(sizes), math.prod(y.shape[a] for a in rest))
    taken = take_rows(rows, reshape(flat, -1))
    out = reshape(taken, *flat.shape, *(y.shape[a] for a in rest))
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    if adjacent and axes[0]:
        k = flat.dim()
        before = list(range(k, k + axes[0]))
        out = permute(out, *before, *range(k), *range(k + axes[0], out.dim()))
    return out


def _broadcast(places: Sequence[np.ndarray]) -> list[np.ndarray]:
    try:
        return list(np.broadcast_arrays(*places))
    except ValueError:
        shapes = [p.shape for p in places]
        raise IndexError(
            expected(
                "index", "index tensors that broadcast together", "index", shapes, "reshape them"
            )
        ) from None


def setitem(x: Any, index: Any, value: Any) -> None:
    """``x[index] = value``, broadcast and converted; on the graph as any in-place operation."""
    from .creation import tensor
    from .movement import copy_

    basic, advanced = _split(x, index)
    if not advanced:
        target = slice_of(x, index=basic)
        if isinstance(value, Value) and len(value.shape) > max(target.dim(), 1):
            value = view_as(value, shape=_without_lead(value.shape, target.dim()))
        copy_(target, value)
        return
    flat = _written_places(x.shape, basic, advanced)
    if not isinstance(value, Value):
        value = tensor(value, dtype=x.dtype)
    value = to_dtype(value, x.dtype)
    if value.dim() > flat.dim():
        value = view_as(value, shape=_without_lead(value.shape, flat.dim()))
    put_elements.in_place(x, expand(value, *flat.shape), flat)


def _written_places(
    shape: tuple[int, ...], basic: tuple[Any, ...], advanced: Sequence[tuple[int, np.ndarray]]
) -> Any:
    """The row-major places of ``x[basic][advanced]`` in x: as many as are written, no more."""
    # One byte seen as a tensor of this shape: basic indexing tells the strides and where it begins.
    steps = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    whole = np.lib.stride_tricks.as_strided(np.empty(1, np.int8), shape, steps)
    view = whole[basic if Ellipsis in basic else (*basic, Ellipsis)]
    begin = view.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    axes = [axis for axis, _ in advanced]
    together = np.broadcast_shapes(*(p.shape for p in _broadcast([p for _, p in advanced])))
    rest = [axis for axis in range(view.ndim) if axis not in axes]
    lead = axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
    before, after = rest[:lead], rest[lead:]
    lengths = (*(view.shape[a] for a in before), *together, *(view.shape[a] for a in after))
    flat = make(*allocate(lengths, INT64))
    flat.array[...] = begin
    for axis, p in advanced:
        offsets = np.multiply(p, view.strides[axis], out=workspace(p.shape, INT64))
        np.add(flat.array, offsets.reshape(p.shape + (1,) * len(after)), out=flat.array)
    for axis in rest:
        offsets = workspace((view.shape[axis],), INT64)
        offsets[...] = view.strides[axis]
        offsets[:1] = 0
        np.cumsum(offsets, out=offsets)
        right = len(rest) - 1 - rest.index(axis) + (len(together) if axis in before else 0)
        np.add(flat.array, offsets.reshape((-1,) + (1,) * right), out=flat.array)
    return flat


def _without_lead(shape: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    lead = shape[: len(shape) - ndim]
    if any(n != 1 for n in lead):
        raise ShapeError(
            expected("index", f"a value of at most {ndim} axes", "value", shape, "squeeze it")
        )
    return shape[len(shape) - ndim :]


def masked_select(x: Any, mask: Any) -> Any:
    """The elements of x where ``mask`` (broadcast) is True, 1-D."""
    tensor_operand("masked_select", x)
    if not _is_mask(mask):
        raise DtypeError(
            expected("masked_select", "a bool tensor", "mask", shown(mask), "compare x")
        )
    shape = broadcast_shapes("masked_select", (x, mask), ("x", "mask"))
    return getitem(expand(x, *shape), expand(mask, *shape))
