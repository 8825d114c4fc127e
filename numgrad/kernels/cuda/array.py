"""Arrays in device memory: what a value on a GPU has instead of an ndarray.

They have shape, strides and dtype as ndarrays have, and every view of them; their elements are only
reached by kernels, and by copies that are asked for.
"""

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import runtime

as_strided = np.lib.stride_tricks.as_strided

WAY_OUT = "copy it to the host with .cpu() first"


class Flags(NamedTuple):
    """What is asked of ``ndarray.flags``."""

    c_contiguous: bool
    writeable: bool = True


class DeviceArray:
    """Elements of a block of device memory: ``shape``, ``strides`` (bytes), ``dtype``, and
    ``offset``, the byte of ``block`` at which the first element lies.

    Views are those of NumPy: a view function is run on an ndarray of the same geometry, whose
    elements nobody reads. NumPy functions that would read elements raise TypeError.
    """

    __slots__ = ("block", "dtype", "offset", "shape", "strides")

    block: runtime.Block
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    def __init__(
        self,
        block: runtime.Block,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self.block, self.offset = block, offset
        self.shape, self.strides, self.dtype = shape, strides, dtype

    # ------------------------------------------------------------------------------- as an ndarray

    @property
    def index(self) -> int:
        """The number of the device."""
        return self.block.index

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def flags(self) -> Flags:
        """Whether it is C-contiguous; it may always be written to."""
        return Flags(self._geometry().flags.c_contiguous)

    @property
    def T(self) -> "DeviceArray":
        """The axes in reverse order."""
        return self.transpose()

    def _geometry(self) -> np.ndarray:
        return as_strided(np.empty(1, self.dtype), self.shape, self.strides)

    def see(self, function: Callable[..., np.ndarray], *args: Any, **named: Any) -> "DeviceArray":
        """The view of this array that a NumPy view function gives: ``see(np.transpose, axes)``."""
        plain = self._geometry()
        result = function(plain, *args, **named)
        offset = self.offset + _address(result) - _address(plain)
        return DeviceArray(self.block, offset, result.shape, result.strides, self.dtype)

    def transpose(self, *axes: Any) -> "DeviceArray":
        """Axes in another order."""
        return self.see(lambda x: x.transpose(*axes))

    def reshape(self, *shape: Any) -> "DeviceArray":
        """The same elements in another shape. Raises AttributeError where that needs a copy."""

        def reshaped(x: np.ndarray) -> np.ndarray:
            x = x.view()
            x.shape = shape[0] if len(shape) == 1 else shape
            return x

        return self.see(reshaped)

    def __getitem__(self, index: Any) -> "DeviceArray":
        index = index if isinstance(index, tuple) else (index,)
        if not any(part is Ellipsis for part in index):
            index = (*index, Ellipsis)  # else a lone element would be read
        return self.see(operator.getitem, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        from .launch import copy  # which needs this module: the one import that waits

        copy(self[index], value)

    def __len__(self) -> int:
        return self.shape[0]

    # ------------------------------------------------------------------------------------- the host

    def to_host(self) -> np.ndarray:
        """A copy of the elements as an ndarray."""
        source = self
        if not self.flags.c_contiguous:
            source = empty(self.shape, self.dtype, self.index)
            source[...] = self
        out = np.empty(self.shape, self.dtype)
        runtime.read(source.block, source.offset, out)
        return out

    def item(self) -> Any:
        """The only element as a Python number."""
        return self.to_host().item()

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers."""
        return self.to_host().tolist()

    def place(self) -> tuple[Any, int]:
        """What tells two arrays of one geometry apart: the block and where they begin in it."""
        return self.block, self.offset

    def overlaps(self, other: "DeviceArray") -> bool:
        """Whether some byte may belong to both."""
        if self.block is not other.block or not (self.size and other.size):
            return False
        (a, b), (c, d) = self._bounds(), other._bounds()
        return a < d and c < b

    def _bounds(self) -> tuple[int, int]:
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low = self.offset + sum(s for s in steps if s < 0)
        return low, self.offset + sum(s for s in steps if s > 0) + self.itemsize

    # --------------------------------------------------------------------------------------- NumPy

    def __array_function__(self, function: Any, types: Any, args: Any, named: Any) -> Any:
        if function in (np.broadcast_to, np.flip, np.transpose) and args and args[0] is self:
            return self.see(function, *args[1:], **named)
        raise self._refused(function.__name__)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        raise self._refused(ufunc.__name__)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise self._refused("asarray")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.refused(name)

    def refused(self, name: str) -> NotImplementedError:
        """The error for something that only works with memory of the host."""
        return NotImplementedError(
            f"{name}: expected memory of the host, got {self!r}; {WAY_OUT}: there is no CUDA kernel"
        )

    def _refused(self, name: str) -> TypeError:
        return TypeError(f"numpy.{name}: expected memory of the host, got {self!r}; {WAY_OUT}")

    def __repr__(self) -> str:
        return f"DeviceArray of shape {self.shape} and dtype {self.dtype} on cuda:{self.index}"


def _address(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], index: int) -> DeviceArray:
    """Uninitialised C-contiguous memory of device ``index``."""
    strides = []
    step = dtype.itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    nbytes = math.prod(shape) * dtype.itemsize
    return DeviceArray(runtime.Block(nbytes, index), 0, shape, tuple(reversed(strides)), dtype)


def from_host(array: np.ndarray, out: DeviceArray) -> None:
    """``out[...] = array`` for an ndarray of the shape and dtype of ``out``."""
    target = out if out.flags.c_contiguous else empty(out.shape, out.dtype, out.index)
    runtime.write(target.block, target.offset, np.ascontiguousarray(array))
    if target is not out:
        out[...] = target
