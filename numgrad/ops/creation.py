"""Creation and conversion: tensors from data, from NumPy, from sizes."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.above import above
from ..graph.device import CPU, canonical, device
from ..graph.errors import expected, shown
from ..graph.storage import DATA, adopt, allocate_on, category, local
from ..graph.value import Value, make
from ..kernels.cuda import runtime
from .declare import NUMBERS
from .kernel_calls import copy_into, fill, to_host, upload
from .movement import sizes_of, to_device


class Size(tuple[int, ...]):
    """A shape, as ``x.size()`` gives it: a tuple that prints as PyTorch's does."""

    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self)

    def __repr__(self) -> str:
        return f"numgrad.Size({list(self)})"


def check_device(op: str, where: Any) -> device:
    """The device that ``where`` (a device, a text, the number of a GPU, None) means.

    Raises:
        RuntimeError: a CUDA device that is not there; says what is missing.
    """
    found = canonical(where)
    if found is not CPU:
        runtime.module(op)
        count = runtime.device_count()
        if (found.index or 0) >= count:
            raise RuntimeError(
                expected(op, f"one of {count} CUDA devices", "device", found, "use cuda:0")
            )
    return found


def uninitialised(op: str, size: Sequence[Any], dtype: np.dtype[Any], where: device = CPU) -> Any:
    """A tensor whose elements are whatever was in memory; ``size`` is ``(2, 3)`` or ``((2, 3),)``,
    ``where`` a device that :func:`check_device` gave.

    Raises:
        ValueError: a negative length. TypeError: one that is no integer.
    """
    shape = sizes_of(op, size)
    if min(shape, default=0) < 0:
        raise ValueError(expected(op, "non-negative lengths", "size", shape, "check the sizes"))
    local.account.op = op
    with category(DATA):
        array, storage = allocate_on(where, shape, dtype)
    return make(array, storage)


def with_grad(x: Any, requires_grad: bool) -> Any:
    """A new ``x``, which requires a gradient if ``requires_grad``."""
    if requires_grad:
        x.requires_grad_(requires_grad)
    return x


def legacy(args: Sequence[Any], dtype: Any, device: Any = None, requires_grad: bool = False) -> Any:
    """What ``Tensor(…)`` and ``FloatTensor(…)`` mean: sizes, a Size, or data."""
    sizes = all(isinstance(a, (int, np.integer)) and not isinstance(a, bool) for a in args)
    if sizes or (len(args) == 1 and isinstance(args[0], Size)):
        return empty(*(args or (0,)), dtype=dtype, device=device, requires_grad=requires_grad)
    if len(args) != 1:
        raise TypeError(
            expected("Tensor", "sizes, or data as one argument", "data", args, "put it in a list")
        )
    return tensor(args[0], dtype=dtype, device=device, requires_grad=requires_grad)


def _float_or(dtype: Any, op: str) -> np.dtype[Any]:
    """The dtype asked for, or the default float."""
    return dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype, op)


def dtype_like(op: str, x: Any, dtype: Any) -> np.dtype[Any]:
    """The dtype asked for, or that of the tensor ``x``."""
    if not isinstance(x, Value):
        raise TypeError(expected(op, "a Tensor", "x", shown(x), "use numgrad.tensor(…)"))
    return x.dtype if dtype is None else dtypes.as_dtype(dtype, op)


def tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
    """A new tensor with a copy of ``data``: a number, nested lists, an array or a Tensor.

    Without ``dtype``, Python floats give the default dtype, integers int64, bools bool; arrays keep
    theirs.

    Raises:
        ValueError: ragged lists. TypeError: elements that are no numbers, or a dtype numgrad lacks.
    """
    if device is None and isinstance(data, Value):
        device = data.device
    where = check_device("tensor", device)
    wanted = None if dtype is None else dtypes.as_dtype(dtype, "tensor")
    array = _as_array(data, wanted)
    out = uninitialised("tensor", (array.shape,), wanted or array.dtype, where)
    if where is CPU:
        copy_into(out.array, array)
    else:
        upload(out.array, array.astype(out.dtype))
    return with_grad(out, requires_grad)


def _as_array(data: Any, wanted: Any) -> np.ndarray:
    if isinstance(data, Value):
        return to_host(data.array)
    if isinstance(data, (np.ndarray, np.generic)):
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
    where = check_device("as_tensor", device)
    if isinstance(data, Value):
        out = data if device is None else to_device(data, where)
        return out if dtype is None else above.cast(out, dtypes.as_dtype(dtype, "as_tensor"))
    kind = None if dtype is None else dtypes.as_dtype(dtype, "as_tensor")
    shareable = isinstance(data, np.ndarray) and data.flags.writeable and data.dtype in dtypes.ALL
    if shareable and where is CPU and (kind is None or kind == data.dtype):
        return from_numpy(data)
    return tensor(data, dtype=dtype, device=where)


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


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
    """A tensor of the given shape with whatever was in memory."""
    where = check_device("empty", device)
    return with_grad(uninitialised("empty", size, _float_or(dtype, "empty"), where), requires_grad)


def full(
    size: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """A tensor filled with one value; its dtype is that of the value unless given."""
    where = check_device("full", device)
    if not isinstance(fill_value, NUMBERS):
        raise TypeError(
            expected("full", "a number", "fill_value", shown(fill_value), "use .item() of a tensor")
        )
    kind = dtypes.of_scalar(fill_value) if dtype is None else dtypes.as_dtype(dtype, "full")
    return _filled(
        "full",
        size if isinstance(size, (list, tuple)) else (size,),
        fill_value,
        kind,
        requires_grad,
        where,
    )


def _filled(
    op: str, size: Sequence[Any], value: Any, dtype: Any, requires_grad: bool, where: device
) -> Any:
    out = uninitialised(op, size, dtype, where)
    fill(out.array, value)
    return with_grad(out, requires_grad)


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
    """A tensor of zeros."""
    where = check_device("zeros", device)
    return _filled("zeros", size, 0, _float_or(dtype, "zeros"), requires_grad, where)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
    """A tensor of ones."""
    where = check_device("ones", device)
    return _filled("ones", size, 1, _float_or(dtype, "ones"), requires_grad, where)


def empty_like(
    x: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Any:
    """``empty`` in the shape and dtype and on the device of x."""
    kind = dtype_like("empty_like", x, dtype)
    where = x.device if device is None else device
    return empty(x.shape, dtype=kind, device=where, requires_grad=requires_grad)


def zeros_like(
    x: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Any:
    """``zeros`` in the shape and dtype and on the device of x."""
    kind = dtype_like("zeros_like", x, dtype)
    where = x.device if device is None else device
    return zeros(x.shape, dtype=kind, device=where, requires_grad=requires_grad)


def ones_like(x: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
    """``ones`` in the shape and dtype and on the device of x."""
    kind = dtype_like("ones_like", x, dtype)
    where = x.device if device is None else device
    return ones(x.shape, dtype=kind, device=where, requires_grad=requires_grad)


def full_like(
    x: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """``full`` in the shape and dtype and on the device of x."""
    kind = dtype_like("full_like", x, dtype)
    where = x.device if device is None else device
    return full(x.shape, fill_value, dtype=kind, device=where, requires_grad=requires_grad)


def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """``start, start + step, …`` below ``end``; ``arange(n)``: 0 to n-1. Integers give int64."""
    where = check_device("arange", device)
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
    default = dtypes.get_default_dtype() if floats else dtypes.int64
    kind = default if dtype is None else dtypes.as_dtype(dtype, "arange")
    n = math.ceil((end - start) / step) if floats else -((start - end) // step)
    values = (start + np.arange(n) * step).astype(kind)
    return tensor(values, device=where, requires_grad=requires_grad)


def linspace(
    start: float,
    end: float,
    steps: int,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """``steps`` evenly spaced numbers from ``start`` to ``end``, both included."""
    where = check_device("linspace", device)
    for name, value in (("start", start), ("end", end)):
        if not isinstance(value, NUMBERS):
            raise TypeError(expected("linspace", "a number", name, shown(value), "use .item()"))
    n = _length("linspace", "steps", steps)
    kind = _float_or(dtype, "linspace")
    values = np.linspace(start, end, n).astype(kind)
    return tensor(values, device=where, requires_grad=requires_grad)


def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """The (n, m) matrix with ones on its diagonal."""
    where = check_device("eye", device)
    shape = _length("eye", "n", n), _length("eye", "m", n if m is None else m)
    out = zeros(shape, dtype=dtype)
    step = out.array.strides[0] + out.array.strides[1]
    fill(np.lib.stride_tricks.as_strided(out.array, (min(shape),), (step,)), 1)
    return with_grad(to_device(out, where), requires_grad)


def _length(op: str, name: str, n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 0:
        raise ValueError(expected(op, "a non-negative integer", name, shown(n), "pass a count"))
    return int(n)


above.zeros = lambda spec, device=None: zeros(spec[0], dtype=spec[1], device=device)
