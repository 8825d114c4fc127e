"""Calls of the few kernels that several entries share: copy and conversion, fill."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..graph import storage
from ..kernels import emit, launch, native, reduce, store
from ..kernels.cuda import array as device_arrays
from ..kernels.cuda import elementwise as cuda_elementwise
from ..kernels.cuda import launch as cuda_launch
from ..kernels.cuda import reduce as cuda_reduce
from ..kernels.cuda.array import DeviceArray
from ..kernels.scalar import Sym

_copies: dict[Any, store.Kernel] = {}


def copy_into(out: np.ndarray, x: np.ndarray) -> None:
    """``out[...] = x``: any layouts, x broadcast and converted to the dtype of out; both on one
    device, or out on a GPU and x a number."""
    if type(out) is DeviceArray:
        out[...] = x
        return
    if type(x) is DeviceArray:
        raise x.refused("copy")
    key = (x.dtype, out.dtype)
    kernel = _copies.get(key)
    if kernel is None:
        source = Sym("input", ("x",), x.dtype == emit.BOOL)
        text = emit.block(
            f"copy {key[0]} to {key[1]}", x.dtype, [("x", x.dtype)], [(source, out.dtype)]
        )
        kernel = _copies[key] = store.generated(text, native.BLOCK_SIGNATURE)
    launch.elementwise(kernel, (out, x))


def fill(out: np.ndarray, value: Any) -> None:
    """``out[...] = value``."""
    with np.errstate(over="ignore"):  # beyond the largest float32 it is infinite
        number = np.array(value, out.dtype)
    copy_into(out, number)


def contiguous_array(x: np.ndarray) -> np.ndarray:
    """``x``, copied if it is not C-contiguous."""
    if x.flags.c_contiguous:
        return x
    out = workspace(x.shape, x.dtype, x)
    copy_into(out, x)
    return out


def workspace(shape: tuple[int, ...], dtype: np.dtype[Any], beside: Any = None) -> np.ndarray:
    """Uninitialised memory for the length of one call, counted as workspace; on the device of the
    array ``beside``."""
    with storage.category(storage.WORKSPACE):
        if type(beside) is DeviceArray:
            array: np.ndarray = storage.allocate_beside(beside, shape, dtype)[0]
            return array
        return storage.allocate(shape, dtype)[0]


def to_host(x: Any) -> np.ndarray:
    """The elements of an array as an ndarray: itself, or a copy of device memory."""
    return x.to_host() if type(x) is DeviceArray else x


def upload(out: Any, x: np.ndarray) -> None:
    """``out[...] = x`` for an ndarray of the same shape and dtype, whatever the device of out."""
    if type(out) is DeviceArray:
        device_arrays.from_host(x, out)
    else:
        copy_into(out, x)


def reduce_into(
    out: np.ndarray,
    reduction: reduce.Reduction,
    x: np.ndarray,
    axes: Any,
    centre: np.ndarray | None = None,
    divisor: float = 1.0,
) -> None:
    """``out = reduction of x over axes``; see :func:`numgrad.kernels.reduce.reduce`."""
    on_device = type(out) is DeviceArray
    run: Any = cuda_reduce.reduce if on_device else reduce.reduce
    run(
        reduction,
        x,
        axes,
        out,
        copy=contiguous_array,
        workspace=functools.partial(workspace, beside=x) if on_device else workspace,
        centre=centre,
        divisor=divisor,
    )


_computed: dict[Any, Any] = {}


def compute(title: str, function: Callable[..., Any], out: np.ndarray, *arrays: np.ndarray) -> None:
    """``out = function(*arrays)`` for a function of scalars, computed in the first one's dtype."""
    on_device = type(out) is DeviceArray
    key = (on_device, title, out.dtype, *(a.dtype for a in arrays))
    kernel = _computed.get(key)
    if kernel is None:
        dtype = arrays[0].dtype
        names = list(inspect.signature(function).parameters)
        symbols = [
            Sym("input", (name,), a.dtype == emit.BOOL)
            for name, a in zip(names, arrays, strict=True)
        ]
        values = [
            x if a.dtype == dtype or x.is_bool else Sym("number", (x,))
            for x, a in zip(symbols, arrays, strict=True)
        ]
        inputs = [(name, a.dtype) for name, a in zip(names, arrays, strict=True)]
        outputs = [(function(*values), out.dtype)]
        if on_device:
            kernel = cuda_elementwise.Kernel(title, dtype, inputs, outputs)
        else:
            text = emit.block(title, dtype, inputs, outputs)
            kernel = store.generated(text, native.BLOCK_SIGNATURE)
        _computed[key] = kernel
    (cuda_launch if on_device else launch).elementwise(kernel, (out, *arrays))
