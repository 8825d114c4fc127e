"""Calls of the few kernels that several entries share: copy and conversion, fill."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..graph import storage
from ..kernels import emit, launch, native, reduce, store
from ..kernels.scalar import Sym

_copies: dict[Any, store.Kernel] = {}


def copy_into(out: np.ndarray, x: np.ndarray) -> None:
    """``out[...] = x``: any layouts, x broadcast and converted to the dtype of out."""
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
    out = workspace(x.shape, x.dtype)
    copy_into(out, x)
    return out


def workspace(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Uninitialised memory for the length of one call, counted as workspace."""
    with storage.category(storage.WORKSPACE):
        return storage.allocate(shape, dtype)[0]


def reduce_into(
    out: np.ndarray,
    reduction: reduce.Reduction,
    x: np.ndarray,
    axes: Any,
    centre: np.ndarray | None = None,
    divisor: float = 1.0,
) -> None:
    """``out = reduction of x over axes``; see :func:`numgrad.kernels.reduce.reduce`."""
    reduce.reduce(
        reduction,
        x,
        axes,
        out,
        copy=contiguous_array,
        workspace=workspace,
        centre=centre,
        divisor=divisor,
    )


_computed: dict[Any, store.Kernel] = {}


def compute(title: str, function: Callable[..., Any], out: np.ndarray, *arrays: np.ndarray) -> None:
    """``out = function(*arrays)`` for a function of scalars, computed in the first one's dtype."""
    key = (title, out.dtype, *(a.dtype for a in arrays))
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
        text = emit.block(title, dtype, inputs, [(function(*values), out.dtype)])
        kernel = _computed[key] = store.generated(text, native.BLOCK_SIGNATURE)
    launch.elementwise(kernel, (out, *arrays))
