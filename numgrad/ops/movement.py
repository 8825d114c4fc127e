"""Movement: views (shape, order and selection of axes) and the ops that copy into a new order."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.apply import above
from ..graph.errors import DtypeError, ShapeError, expected, shown
from ..graph.mode import composite
from ..graph.storage import allocate_on
from ..graph.value import Value
from .declare import NUMBERS
from .elementwise import assign
from .kernel_calls import copy_into, fill, to_host, upload
from .primitive import primitive, tensor_operand, view


def axis_of(op: str, axis: Any, ndim: int, name: str = "dim") -> int:
    """``axis`` counted from 0.

    Raises:
        TypeError: not an integer.
        IndexError: outside ``[-ndim, ndim)``.
    """
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
        raise TypeError(expected(op, "an integer", name, repr(axis), "pass one axis"))
    room = max(ndim, 1)
    if not -room <= axis < room:
        raise IndexError(
            f"{op}: expected {name} in [{-room}, {room - 1}], got {axis}; Dimension out of range "
            f"for a tensor of {ndim} axes"
        )
    return int(axis) + room if axis < 0 else int(axis)


def axes_of(op: str, axes: Any, ndim: int, name: str = "dim") -> tuple[int, ...]:
    """Axes counted from 0, all of them for None or ``()``; each at most once."""
    if axes is None or (isinstance(axes, (tuple, list)) and not axes):
        return tuple(range(ndim))
    given = axes if isinstance(axes, (tuple, list)) else (axes,)
    found = tuple(axis_of(op, axis, ndim, name) for axis in given)
    if len(set(found)) != len(found):
        raise ValueError(expected(op, "each axis once", name, axes, "leave out the repeated one"))
    return tuple(sorted(axis for axis in found if axis < ndim))


def sizes_of(op: str, sizes: Sequence[Any]) -> tuple[int, ...]:
    """``f(2, 3)`` and ``f((2, 3))`` alike as ``(2, 3)``."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = sizes[0]
    for n in sizes:
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
            raise TypeError(
                expected(op, "integers", "size", repr(n), "pass the length of each axis")
            )
    return tuple(int(n) for n in sizes)


def resolve_shape(op: str, shape: Sequence[Any], numel: int) -> tuple[int, ...]:
    """``shape`` with its -1 worked out for ``numel`` elements."""
    sizes = list(sizes_of(op, shape))
    unknown = [i for i, n in enumerate(sizes) if n == -1]
    known = math.prod(n for n in sizes if n != -1)
    valid = len(unknown) <= 1 and all(n >= -1 for n in sizes)
    if valid and unknown and known and numel % known == 0:
        sizes[unknown[0]] = numel // known
        return tuple(sizes)
    if not valid or unknown or known != numel:
        raise ShapeError(
            f"{op}: expected a shape of {numel} elements, got {tuple(sizes)}; shape {tuple(sizes)} "
            f"is invalid for input of size {numel}"
        )
    return tuple(sizes)


# ------------------------------------------------------------------------------------------- views


@view(dx=lambda g, x_shape: reshape(g, x_shape), reference="numpy:reshape")
def view_as(x, *, shape):
    """The same elements in another shape, sharing memory."""
    result = x.view()
    try:
        result.shape = shape
    except AttributeError:
        raise ShapeError(
            f"view: expected a shape compatible with the strides of x {x.shape}, got {shape}; view "
            "size is not compatible with input tensor's size and stride: use .reshape(…) instead"
        ) from None
    return result


@view(
    dx=lambda g, axes: permute(g, tuple(int(a) for a in np.argsort(axes))),
    reference="numpy:transpose",
)
def permute_axes(x, *, axes):
    """Axes in another order: axis i of the result is axis ``axes[i]`` of x."""
    return x.transpose(axes)


@view(dx=lambda g, x_shape: above.sum_to(g, x_shape), reference="numpy:broadcast_to")
def expand_to(x, *, shape):
    """x repeated along new axes and axes of length 1, without a copy (stride 0)."""
    result = np.lib.stride_tricks.as_strided(
        x,
        shape,
        (0,) * (len(shape) - x.ndim)
        + tuple(
            0 if n == 1 and m != 1 else stride
            for n, m, stride in zip(x.shape, shape[len(shape) - x.ndim :], x.strides, strict=True)
        ),
    )
    return result


@view(
    dx=lambda g, x_shape, index: slice_scatter(g, x_shape, index),
    reference="numgrad.kernels.reference.indexing:slice_of",
)
def slice_of(x, *, index):
    """Basic indexing: integers, slices with positive step and new axes; a view."""
    return x[index if Ellipsis in index else (*index, Ellipsis)]


def _scattered_gradient(g: Any, v_shape: Any, chain: Sequence[Any]) -> Any:
    return view_scatter(g, above.zeros((v_shape, g.dtype), g.device), chain=chain)


@primitive(
    infer=lambda x, v, chain: (x.shape, x.dtype),
    dx=_scattered_gradient,
    dv=lambda g, chain: replay(g, chain),
    reference="numgrad.kernels.reference.indexing:view_scatter",
    cuda=True,
)
def view_scatter(out, x, v, *, chain):
    """x with the elements that a chain of views selects replaced by ``v``."""
    copy_into(out, x)
    target = out
    for op, attrs, _ in chain:
        target = op.see(target, attrs)
    copy_into(target, v)


def replay(x: Any, chain: Sequence[Any]) -> Any:
    """The view of ``x`` that a chain of view operations leads to."""
    for op, attrs, _ in chain:
        x = op(x, **attrs)
    return x


@primitive(
    infer=lambda x, shape, index: (shape, x.dtype),
    dx=lambda g, index: slice_of(g, index=index),
    reference="numgrad.kernels.reference.indexing:scatter_slice",
    cuda=True,
)
def scatter_slice(out, x, *, shape, index):
    """Zeros of ``shape`` with ``x`` at ``index``: the adjoint of basic indexing."""
    fill(out, 0)
    copy_into(out[index if Ellipsis in index else (*index, Ellipsis)], x)


def slice_scatter(x: Any, shape: tuple[int, ...], index: Any) -> Any:
    """Zeros of ``shape`` with ``x`` at the basic ``index``."""
    return scatter_slice(x, shape=shape, index=index)


# ------------------------------------------------------------------------------- functions of views


def reshape(x: Any, *shape: Any) -> Any:
    """The same elements in another shape: a view where strides allow it, else a copy.

    One length may be -1. Raises ShapeError when the number of elements differs.
    """
    target = resolve_shape("reshape", shape, tensor_operand("reshape", x).numel())
    if target == x.shape:
        return view_as(x, shape=target)
    try:
        return view_as(x, shape=target)
    except ShapeError:
        return view_as(contiguous(x), shape=target)


def view_shape(x: Any, *shape: Any) -> Any:
    """The same elements in another shape, sharing memory. Raises ShapeError if it cannot."""
    tensor_operand("view", x)
    if len(shape) == 1 and isinstance(shape[0], np.dtype):
        raise DtypeError(expected("view", "a shape", "size", shape[0], "use .to(dtype) to convert"))
    return view_as(x, shape=resolve_shape("view", shape, x.numel()))


def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Axes ``start_dim`` to ``end_dim`` merged into one."""
    tensor_operand("flatten", x)
    start, end = axis_of("flatten", start_dim, x.dim()), axis_of("flatten", end_dim, x.dim())
    if start > end:
        raise ShapeError(
            expected("flatten", "start_dim <= end_dim", "dims", (start_dim, end_dim), "swap them")
        )
    if x.dim() == 0:
        return reshape(x, 1)
    merged = math.prod(x.shape[start : end + 1])
    return reshape(x, *x.shape[:start], merged, *x.shape[end + 1 :])


def permute(x: Any, *dims: Any) -> Any:
    """Axes in another order; ``dims`` names each axis once."""
    tensor_operand("permute", x)
    given = sizes_of("permute", dims)
    axes = tuple(axis_of("permute", d, x.dim(), "dims") for d in given)
    if sorted(axes) != list(range(x.dim())):
        raise ShapeError(
            expected("permute", f"each of {x.dim()} axes once", "dims", given, "name every axis")
        )
    return permute_axes(x, axes=axes)


def transpose(x: Any, dim0: int, dim1: int) -> Any:
    """Two axes exchanged."""
    tensor_operand("transpose", x)
    a, b = axis_of("transpose", dim0, x.dim()), axis_of("transpose", dim1, x.dim())
    if x.dim() == 0:
        return permute_axes(x, axes=())
    axes = list(range(x.dim()))
    axes[a], axes[b] = axes[b], axes[a]
    return permute_axes(x, axes=tuple(axes))


def t(x: Any) -> Any:
    """The transpose of a matrix; vectors and scalars stay as they are."""
    if tensor_operand("t", x).dim() > 2:
        raise ShapeError(expected("t", "at most 2 axes", "x", shown(x), "use transpose or permute"))
    return transpose(x, 0, 1) if x.dim() == 2 else view_as(x, shape=x.shape)


def matrix_transpose(x: Any) -> Any:
    """The last two axes exchanged."""
    if tensor_operand("mT", x).dim() < 2:
        raise ShapeError(expected("mT", "at least 2 axes", "x", shown(x), "unsqueeze it"))
    return transpose(x, -2, -1)


def expand(x: Any, *sizes: Any) -> Any:
    """x repeated without a copy along new leading axes and axes of length 1; -1 keeps a length."""
    tensor_operand("expand", x)
    given = sizes_of("expand", sizes)
    lead = len(given) - x.dim()
    own = (1,) * max(lead, 0) + tuple(x.shape)
    target = tuple(
        n if s == -1 and i >= lead else s for i, (s, n) in enumerate(zip(given, own, strict=False))
    )
    if lead < 0 or any(n not in (1, m) or m < 0 for n, m in zip(own, target, strict=True)):
        raise ShapeError(
            expected(
                "expand", f"sizes that {x.shape} expands to", "sizes", given, "only axes of 1 grow"
            )
        )
    return expand_to(x, shape=target)


def broadcast_to(x: Any, shape: Any) -> Any:
    """x expanded to ``shape``."""
    return expand(tensor_operand("broadcast_to", x), *sizes_of("broadcast_to", (shape,)))


def squeeze(x: Any, dim: Any = None) -> Any:
    """Axes of length 1 taken away: all of them, or ``dim`` (one or several) if it has length 1."""
    tensor_operand("squeeze", x)
    dropped = range(x.dim()) if dim is None else axes_of("squeeze", dim, x.dim())
    shape = tuple(n for i, n in enumerate(x.shape) if n != 1 or i not in dropped)
    return view_as(x, shape=shape)


def unsqueeze(x: Any, dim: int) -> Any:
    """A new axis of length 1 at ``dim``."""
    at = axis_of("unsqueeze", dim, tensor_operand("unsqueeze", x).dim() + 1)
    return view_as(x, shape=(*x.shape[:at], 1, *x.shape[at:]))


def narrow(x: Any, dim: int, start: int, length: int) -> Any:
    """Elements ``start`` to ``start + length`` of axis ``dim``, a view."""
    axis = axis_of("narrow", dim, tensor_operand("narrow", x).dim())
    _integers("narrow", start=start, length=length)
    n = x.shape[axis] if x.dim() else 0
    begin = start + n if start < 0 else start
    if not (0 <= begin <= n and 0 <= length <= n - begin):
        raise IndexError(
            expected(
                "narrow", f"a range within {n}", "start, length", (start, length), "shorten it"
            )
        )
    return slice_of(x, index=(*[slice(None)] * axis, slice(begin, begin + length)))


def select(x: Any, dim: int, index: int) -> Any:
    """Element ``index`` of axis ``dim``, a view without that axis."""
    axis = axis_of("select", dim, tensor_operand("select", x).dim())
    _integers("select", index=index)
    n = x.shape[axis] if x.dim() else 0
    if not -n <= index < n:
        raise IndexError(
            f"select: expected index in [{-n}, {n - 1}], got {index}; index {index} is out of "
            f"bounds for dimension {axis} with size {n}"
        )
    return slice_of(x, index=(*[slice(None)] * axis, int(index) % n))


def chunk(x: Any, chunks: int, dim: int = 0) -> tuple[Any, ...]:
    """x cut into at most ``chunks`` parts along ``dim``."""
    n = _length("chunk", x, dim)
    _positive("chunk", chunks, "chunks")
    return split(x, max(-(-n // chunks), 1), dim)


def split(x: Any, size: Any, dim: int = 0) -> tuple[Any, ...]:
    """x cut along ``dim`` into parts of ``size``, or of the sizes in a list."""
    n = _length("split", x, dim)
    if isinstance(size, (list, tuple)):
        sizes = list(sizes_of("split", size))
    else:
        _positive("split", size, "size")
        sizes = [size] * (n // size) + [n % size] * (n % size > 0 or n == 0)
    if sum(sizes) != n or min(sizes, default=0) < 0:
        raise ShapeError(expected("split", f"sizes that sum to {n}", "size", size, "change them"))
    starts = np.cumsum([0, *sizes])
    return tuple(
        narrow(x, dim, int(start), length) for start, length in zip(starts, sizes, strict=False)
    )


def _length(op: str, x: Any, dim: int) -> int:
    if tensor_operand(op, x).dim() == 0:
        raise ShapeError(expected(op, "a tensor with axes", "x", shown(x), "unsqueeze it"))
    return int(x.shape[axis_of(op, dim, x.dim())])


def _integers(op: str, **given: Any) -> None:
    for name, n in given.items():
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
            raise TypeError(expected(op, "an integer", name, repr(n), "use int()"))


def _positive(op: str, n: Any, name: str) -> None:
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
        raise ValueError(expected(op, "a positive integer", name, repr(n), "pass 1 or more"))


# ------------------------------------------------------------------------------------------ copies


@primitive(infer=lambda x: (x.shape, x.dtype), dx=lambda g: g, reference="numpy:copy", cuda=True)
def clone(out, x):
    """A copy, C-contiguous."""
    copy_into(out, x)


@primitive(
    infer=lambda x, dtype: (x.shape, dtype),
    dx=lambda g, x_shape: g,
    reference="numpy:asarray",
    cuda=True,
)
def cast(out, x, *, dtype):
    """x as another dtype; floats are cut towards 0 for integers, anything non-zero is True."""
    copy_into(out, x)


def _flip_gradient(g: Any, axes: tuple[int, ...]) -> Any:
    return flip_axes(g, axes=axes)


@primitive(
    infer=lambda x, axes: (x.shape, x.dtype),
    dx=_flip_gradient,
    reference="numpy:flip",
    cuda=True,
)
def flip_axes(out, x, *, axes):
    """x with the order along ``axes`` reversed, a copy."""
    copy_into(out, np.flip(x, axes))


def flip(x: Any, *dims: Any) -> Any:
    """x with the order along ``dims`` reversed."""
    tensor_operand("flip", x)
    return flip_axes(x, axes=axes_of("flip", sizes_of("flip", dims), x.dim(), "dims"))


def contiguous(x: Any) -> Any:
    """x itself if it is C-contiguous, else a copy that is."""
    return x if x.array.flags.c_contiguous else clone(x)


def to_dtype(x: Any, dtype: Any) -> Any:
    """x itself if it has the dtype, else a converted copy."""
    return x if x.dtype == dtype else cast(x, dtype=dtype)


def _moved_back(g: Any, device: Any, source: Any) -> Any:
    return moved(g, device=source, source=device)


@primitive(infer=None, dx=_moved_back, reference="numpy:copy", cuda=True, register=False)
def moved(x, *, device, source):
    """x on another device than ``source``, where it is; C-contiguous."""
    array, storage = allocate_on(device, x.shape, x.dtype)
    if device.type == "cuda":
        upload(array, to_host(x))
    else:
        copy_into(array, to_host(x))
    return [(array, storage)]


def to_device(x: Any, device: Any) -> Any:
    """x itself if it is on the device, which is one that ``graph.device.canonical`` gave, else a
    copy that is."""
    return x if x.device is device else moved(x, device=device, source=x.device)


def _infer_cat(inputs: Sequence[Any], axis: int) -> Any:
    first = inputs[0]
    for i, x in enumerate(inputs):
        same = x.dim() == first.dim() and all(
            n == m for k, (n, m) in enumerate(zip(x.shape, first.shape, strict=True)) if k != axis
        )
        if not same:
            raise ShapeError(
                expected(
                    "cat",
                    f"shapes equal to {first.shape} except in axis {axis}",
                    f"tensors[{i}]",
                    shown(x),
                    "reshape it",
                )
            )
    length = sum(x.shape[axis] for x in inputs)
    return (*first.shape[:axis], length, *first.shape[axis + 1 :]), first.dtype


def _cat_gradients(g: Any, tensors_shape: Any, axis: int) -> list[Any]:
    starts = np.cumsum([0, *(shape[axis] for shape in tensors_shape)])
    return [
        narrow(g, axis, int(start), shape[axis])
        for start, shape in zip(starts, tensors_shape, strict=False)
    ]


@primitive(
    infer=_infer_cat,
    dtensors=_cat_gradients,
    variadic=True,
    reference="numpy:concatenate",
    cuda=True,
)
def concatenate(out, tensors, *, axis):
    """Tensors joined along an axis."""
    start = 0
    for x in tensors:
        stop = start + x.shape[axis]
        place = (*[slice(None)] * axis, slice(start, stop))
        copy_into(out[place], x)
        start = stop


@composite
def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Tensors joined along an axis; dtypes are promoted. Empty 1-D ones are passed over."""
    items = _sequence("cat", tensors)
    items = [x for x in items if x.shape != (0,)] or items[:1]
    axis = axis_of("cat", dim, items[0].dim())
    if items[0].dim() == 0:
        raise ShapeError(
            expected("cat", "tensors with axes", "tensors", shown(items[0]), "use stack")
        )
    dtype = dtypes.result_type((x.dtype, 0) for x in items)
    return concatenate([to_dtype(x, dtype) for x in items], axis=axis)


@composite
def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Tensors of one shape joined along a new axis."""
    items = _sequence("stack", tensors)
    for i, x in enumerate(items):
        if x.shape != items[0].shape:
            raise ShapeError(
                expected(
                    "stack", f"shape {items[0].shape}", f"tensors[{i}]", shown(x), "reshape it"
                )
            )
    return cat([unsqueeze(x, dim) for x in items], axis_of("stack", dim, items[0].dim() + 1))


def _sequence(op: str, tensors: Any) -> list[Any]:
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise TypeError(
            expected(op, "a non-empty list of Tensors", "tensors", shown(tensors), "pass [x, y, …]")
        )
    for i, x in enumerate(tensors):
        tensor_operand(op, x, f"tensors[{i}]")
    return list(tensors)


def copy_(x: Any, source: Any, non_blocking: bool = False) -> Any:
    """Write ``source``, broadcast and converted, into ``x``."""
    source = as_written("copy_", x, source)
    if isinstance(source, Value):
        source = to_device(source, x.device)
    # One element goes into one element, whatever the shapes: () and (1,) alike.
    one = isinstance(source, Value) and math.prod(source.shape) == math.prod(x.shape) == 1
    if one and source.shape != x.shape:
        source = view_as(source, shape=x.shape)
    return assign.in_place(x, source)


def as_written(op: str, x: Any, value: Any) -> Any:
    """``value``, a number or a Tensor, in the dtype of ``x``: floats are cut towards 0."""
    tensor_operand(op, x)
    if isinstance(value, Value):
        return to_dtype(value, x.dtype)
    if isinstance(value, NUMBERS) and x.dtype.kind != "f":
        return bool(value) if x.dtype == dtypes.bool_ else int(value)
    return value


above.cast = to_dtype
above.reshape = lambda x, shape: reshape(x, *shape) if shape else view_as(x, shape=())
above.copy = clone
above.to_device = to_device
above.view_scatter = view_scatter
