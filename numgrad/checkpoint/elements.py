"""The elements of tensors: from a file into memory, as Tensors, and back into bytes."""

import sys
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.storage import DATA, PARAMETER, allocate, category
from ..graph.value import make
from ..tensor import Tensor
from ..variable import Parameter
from .contents import NAMES, WIDENED, Spec, Stored
from .source import Source

CHUNK = 1 << 20
"""Elements that are widened at a time."""


class Loader:
    """Makes Tensors of Specs: one block of memory for each storage of the file."""

    def __init__(self, source: Source, place: Callable[[Any], Any] | None = None) -> None:
        """``place`` gets each storage as a 1-d tensor and returns it, where it shall be."""
        self._source, self._place = source, place
        self._storages: dict[int, Any] = {}
        self.widened: Counter[str] = Counter()
        """How many tensors of each code came in a wider dtype."""

    def make(self, spec: Spec) -> Any:
        """The Tensor, Parameter or ndarray, a new one at each call.

        Raises:
            CheckpointError: its bytes cannot be read, or are not what the file says they are.
        """
        try:
            return self._make(spec)
        except MemoryError:
            raise self._source.error(spec.stored.where, "not enough memory for it") from None

    def _make(self, spec: Spec) -> Any:
        stored = spec.stored
        if spec.kind == "array":
            array = np.empty(spec.shape, spec.dtype)
            read_elements(self._source, stored, array.reshape(-1))
            return array
        check_dtype(self._source, stored)
        if stored.code in WIDENED:
            self.widened[stored.code] += 1
        whole = self._storages.get(id(stored))
        if whole is None:
            with category(PARAMETER if spec.kind == "parameter" else DATA):
                array, storage = allocate((stored.numel,), stored.dtype)
            read_elements(self._source, stored, array)
            whole = make(array, storage)
            if self._place is not None:
                whole = self._place(whole)
            self._storages[id(stored)] = whole
        tensor = make(_view(whole.array, spec), whole.storage, group=whole.group)
        if spec.kind == "parameter":
            group = tensor.group
            tensor = Parameter(tensor, requires_grad=spec.requires_grad)
            tensor.group = group
        elif spec.requires_grad:
            tensor.requires_grad_()
        return tensor


def check_dtype(source: Source, stored: Stored) -> None:
    """Refuse elements of a dtype that no dtype of numgrad can hold."""
    if stored.dtype not in dtypes.ALL:
        raise source.error(
            stored.where, f"unsupported dtype {NAMES[stored.code]}; numgrad has none to hold it"
        )


def _view(array: Any, spec: Spec) -> Any:
    itemsize = array.itemsize
    strides = tuple(step * itemsize for step in spec.strides)
    if isinstance(array, np.ndarray):
        if not array.size:
            return np.ndarray(spec.shape, array.dtype, array)
        return np.ndarray(spec.shape, array.dtype, array, spec.offset * itemsize, strides)
    return array[spec.offset :].see(np.lib.stride_tricks.as_strided, spec.shape, strides)


def read_elements(source: Source, stored: Stored, out: np.ndarray | None) -> None:
    """Read a whole storage and check it.

    Args:
        source: the file.
        stored: the storage.
        out: gets the elements; contiguous, one axis, of their dtype once read or of that in the
            file. None to keep nothing of them.

    Raises:
        CheckpointError: the bytes are not there, their CRC is wrong, or a boolean is neither.
    """
    direct = out is not None and out.dtype == stored.dtype_in_file
    buffer = np.empty(0 if direct else min(CHUNK, stored.numel), stored.dtype_in_file)
    crc = stored.crc_before
    for first in range(0, stored.numel, CHUNK):
        part = None if out is None else out[first : first + CHUNK]
        raw = part if part is not None and direct else buffer[: stored.numel - first]
        view = raw.view(np.uint8).data
        source.read_into(stored.start + first * stored.itemsize, view, stored.where)
        if stored.crc is not None:
            crc = zlib.crc32(view, crc)
        if stored.swap != (sys.byteorder == "big"):
            raw.byteswap(inplace=True)
        if stored.code == "BOOL" and raw.view(np.uint8).max() > 1:
            raise source.error(stored.where, "a boolean that is neither 0 nor 1")
        if part is None or raw is part:
            continue
        if stored.code == "BF16":
            bits = part.view(np.uint32)
            bits[...] = raw
            bits <<= 16
        else:
            part[...] = raw
    if stored.crc is not None and crc != stored.crc:
        raise source.error(stored.where, "its CRC is wrong: the bytes were damaged")


def data_bytes(value: Any) -> memoryview:
    """The bytes of a Tensor's or an array's elements as files have them: C order, little endian.

    They are copied only where they are not so in memory. Memory that was never written to may hold
    booleans that are neither 0 nor 1, which no reader takes.
    """
    array = np.ascontiguousarray(value.detach().cpu().array if isinstance(value, Tensor) else value)
    array = array.reshape(-1)
    if array.dtype.kind == "b":
        array = array.view(np.uint8) != 0
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return array.view(np.uint8).data
