"""Creation and conversion: tensors from data, from NumPy, from sizes."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.apply import above, make
from ..graph.device import CPU, device
from ..graph.errors import expected, shown
from ..graph.storage import ACTIVATION, DATA, adopt, allocate, category, local
from ..graph.value import Value
from .declare import NUMBERS
from .kernel_calls import copy_into, fill
from .movement import sizes_of


def check_device(op: str, where: Any) -> None:
    """Raise unless ``where`` is the CPU.

    Raises:
        RuntimeError: a CUDA device: there are no kernels for it yet.
    """
    if where is not None and device(where) != CPU:
        raise RuntimeError(
            expected(
                op, "'cpu'", "device", str(where), "numgrad has no CUDA kernels yet: stay on cpu"
            )
        )


def _new(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    # What is created outside any special region is the user's data, not an activation.
    with category(DATA if local.category == ACTIVATION else local.category):
        array, storage = allocate(shape, dtype)
    return make(array, storage)


def _flagged(x: Any, requires_grad: bool) -> Any:
    if requires_grad:
        x.requires_grad_(True)
    return x


def _shape(op: str, size: Sequence[Any]) -> tuple[int, ...]:
    shape = sizes_of(op, size)
    if min(shape, default=0) < 0:
        raise ValueError(expected(op, "non-negative lengths", "size", shape, "check the sizes"))
    return shape


def tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
    """A new tensor with a copy of ``data``: a number, nested lists, an array or a Tensor.

    Without ``dtype``, Python floats give the default dtype, integers int64, bools bool; arrays keep
    theirs.

    Raises:
        ValueError: ragged lists. TypeError: elements that are not numbers, or a dtype numgrad lacks.
    """
    check_device("tensor", device)
    wanted = None if dtype is None else dtypes.as_dtype(dtype, "tensor")
    array = _as_array(data, wanted)
    out = _new(array.shape, wanted or array.dtype)
    copy_into(out.array, array)
    return _flagged(out, requires_grad)


def _as_array(data: Any, wanted: Any) -> np.ndarray:
    if isinstance(data, Value):
        return data.array
    if isinstance(data, np.ndarray) or isinstance(data, np.generic):
        array = np.asarray(data)
    else:
        plain = _plain(data)
        try:
            array = np.array(plain)
        except ValueError as error:
            raise ValueError(
                expected("tensor", "lists of equal lengths", "data", shown(data), str(error))
            ) from None
        if array.dtype.kind == "f":
            array = array.astype(dtypes.get_default_dtype() if wanted is None else wanted)
        elif array.size == 0 and not isinstance(data, (int, float)):
            array = array.astype(dtypes.get_default_dtype())
    if array.dtype.kind == "O" or array.dtype.kind in "USVmMc":
        raise TypeError(
            expected(
                "tensor",
                "numbers",
                "data",
                shown(data),
                "numgrad holds float, int and bool elements",
            )
        )
    if array.dtype not in dtypes.ALL or not array.dtype.isnative:
        if wanted is None and array.dtype.newbyteorder("=") not in dtypes.ALL:
            names = ", ".join(d.name for d in dtypes.ALL)
            raise TypeError(
                f"tensor: expected one of {names} for dtype, got {array.dtype}; pass dtype="
            )
        array = array.astype(wanted or array.dtype.newbyteorder("="))
    return array


def _plain(data: Any) -> Any:
    """Nested lists with tensors in them as nested lists of numbers."""
    if isinstance(data, Value):
        return data.array.tolist()
    if isinstance(data, (list, tuple)):
        return [_plain(item) for item in data]
    return data


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Any:
    """``data`` as a tensor, without a copy where it is a Tensor or an array of the right dtype."""
    check_device("as_tensor", device)
    if isinstance(data, Value):
        return data if dtype is None else above.cast(data, dtypes.as_dtype(dtype, "as_tensor"))
    if isinstance(data, np.ndarray) and data.flags.writeable:
        if data.dtype in dtypes.ALL and (dtype is None or dtypes.as_dtype(dtype) == data.dtype):
            return from_numpy(data)
    return tensor(data, dtype=dtype)


def from_numpy(array: np.ndarray) -> Any:
    """A tensor that shares memory with ``array``: writing to one changes the other.

    Raises:
        TypeError: not an array, or a dtype numgrad lacks. ValueError: a read-only array.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(
            expected("from_numpy", "an ndarray", "array", shown(array), "use tensor(…)")
        )
    if array.dtype not in dtypes.ALL or not array.dtype.isnative:
        names = ", ".join(d.name for d in dtypes.ALL)
        raise TypeError(
            f"from_numpy: expected one of {names} for dtype, got {array.dtype}; use array.astype(…)"
        )
    if not array.flags.writeable:
        raise ValueError(
            expected("from_numpy", "a writable array", "array", "a read-only one", "pass a copy")
        )
    if type(array) is not np.ndarray:
        array = array.view(np.ndarray)
    if any(s % array.itemsize for s in array.strides) or not array.flags.aligned:
        raise ValueError(
            expected(
                "from_numpy", "aligned elements", "array", f"strides {array.strides}", "pass a copy"
            )
        )
    return make(array, adopt(array))


def empty(
    *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, out: Any = None
) -> Any:
    """A tensor of the given shape with whatever was in memory."""
    check_device("empty", device)
    kind = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype, "empty")
    return _flagged(_new(_shape("empty", size), kind), requires_grad)


def full(
    size: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """A tensor filled with one value; its dtype is that of the value unless given."""
    check_device("full", device)
    if not isinstance(fill_value, NUMBERS):
        raise TypeError(
            expected("full", "a number", "fill_value", shown(fill_value), "use .item() of a tensor")
        )
    kind = dtypes.of_scalar(fill_value) if dtype is None else dtypes.as_dtype(dtype, "full")
    out = _new(_shape("full", size if isinstance(size, (list, tuple)) else (size,)), kind)
    fill(out.array, fill_value)
    return _flagged(out, requires_grad)


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
    """A tensor of zeros."""
    shape = _shape("zeros", size)
    kind = dtypes.get_default_dtype() if dtype is None else dtype
    return full(shape, 0, dtype=kind, device=device, requires_grad=requires_grad)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
    """A tensor of ones."""
    shape = _shape("ones", size)
    kind = dtypes.get_default_dtype() if dtype is None else dtype
    return full(shape, 1, dtype=kind, device=device, requires_grad=requires_grad)


def empty_like(x: Any, *, dtype: Any = None, requires_grad: bool = False) -> Any:
    """``empty`` in the shape and dtype of x."""
    return empty(x.shape, dtype=dtype or x.dtype, requires_grad=requires_grad)


def zeros_like(x: Any, *, dtype: Any = None, requires_grad: bool = False) -> Any:
    """``zeros`` in the shape and dtype of x."""
    return zeros(x.shape, dtype=dtype or x.dtype, requires_grad=requires_grad)


def ones_like(x: Any, *, dtype: Any = None, requires_grad: bool = False) -> Any:
    """``ones`` in the shape and dtype of x."""
    return ones(x.shape, dtype=dtype or x.dtype, requires_grad=requires_grad)


def full_like(x: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False) -> Any:
    """``full`` in the shape and dtype of x."""
    return full(x.shape, fill_value, dtype=dtype or x.dtype, requires_grad=requires_grad)


def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """``start, start + step, …`` below ``end`` (``arange(n)``: 0 to n-1). int64 if all are integers."""
    check_device("arange", device)
    if end is None:
        start, end = 0, start
    for name, value in (("start", start), ("end", end), ("step", step)):
        if not isinstance(value, NUMBERS):
            raise TypeError(expected("arange", "a number", name, shown(value), "use .item()"))
    if step == 0 or (end - start) / step < 0 or not math.isfinite((end - start) / step):
        raise ValueError(
            expected(
                "arange", "a step that leads from start to end", "step", step, f"{start} to {end}"
            )
        )
    floats = any(isinstance(v, (float, np.floating)) for v in (start, end, step))
    kind = dtypes.get_default_dtype() if floats else dtypes.int64
    values = start + np.arange(math.ceil((end - start) / step)) * step
    kind = kind if dtype is None else dtypes.as_dtype(dtype, "arange")
    return tensor(values.astype(kind), requires_grad=requires_grad)


def linspace(start: float, end: float, steps: int, *, dtype: Any = None) -> Any:
    """``steps`` evenly spaced numbers from ``start`` to ``end``, both included."""
    kind = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype, "linspace")
    return tensor(np.linspace(start, end, steps).astype(kind))


def eye(n: int, m: int | None = None, *, dtype: Any = None, requires_grad: bool = False) -> Any:
    """The (n, m) matrix with ones on its diagonal."""
    out = zeros(n, n if m is None else m, dtype=dtype)
    _ones_on_diagonal(out.array)
    return _flagged(out, requires_grad)


def _ones_on_diagonal(array: np.ndarray) -> None:
    n = min(array.shape)
    step = array.strides[0] + array.strides[1]
    fill(np.lib.stride_tricks.as_strided(array, (n,), (step,)), 1)


above.zeros = lambda spec: zeros(spec[0], dtype=spec[1])
