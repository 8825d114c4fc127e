"""Saving and loading state dicts: tensors in the safetensors layout, the rest as metadata."""

import io
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, BinaryIO, cast

import numpy as np

from ..graph import dtypes
from ..ops.creation import empty
from ..tensor import Tensor
from .atomic import replacing
from .errors import CheckpointError
from .safetensors import Record, data_bytes, make_header, read_data, read_header
from .structure import Flattener, unflatten

VERSION = 1
"""Of the layout written here; a reader refuses a higher one."""

VERSION_KEY = "numgrad_format"
STRUCTURE_KEY = "numgrad_structure"

WIDENED = {
    "F16": dtypes.float32,
    "I8": dtypes.int32,
    "I16": dtypes.int32,
    "U16": dtypes.int32,
    "U32": dtypes.int64,
}
"""Dtypes that numgrad has not, and those that hold all their values. U64 has no such."""


def save(obj: Any, file: "str | os.PathLike[str] | BinaryIO") -> None:
    """Save tensors, and the dicts and lists they are in, as a safetensors file.

    Args:
        obj: a state dict of a module or an optimizer, or any nesting of dict, list and tuple with
            tensors, NumPy arrays, numbers, strings, bools and None.
        file: a path, or a file open for writing bytes.

    Raises:
        TypeError: obj holds something else; the text names the place.
        OSError: the folder is missing, the disk is full …; an older file at the path is whole.

    Any reader of safetensors can read the tensors: those of a flat state dict by the same names,
    others by their path (``optimizer.state.0.exp_avg``). What else there is stands as JSON in the
    metadata under ``numgrad_structure``; ``numgrad_format`` is the version of this layout.

    Values are saved, relations are not: gradients, ``requires_grad`` and hooks are left out, a
    `Parameter` comes back as a `Tensor`, tensors that share memory are saved one by one and share
    none when loaded, and a view is saved as a contiguous tensor of its own.

    A file at a path is replaced whole: whatever happens, it holds the old bytes or the new ones.
    """
    flattener = Flattener()
    structure = flattener.flatten(obj)
    metadata = {"format": "numgrad", VERSION_KEY: str(VERSION), STRUCTURE_KEY: structure}
    # Longest items first, so that each tensor lies at a multiple of its item's size.
    tensors = sorted(flattener.tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    header = make_header([(name, t.dtype, tuple(t.shape)) for name, t in tensors], metadata)

    def write(out: BinaryIO) -> None:
        out.write(header)
        for _, tensor in tensors:
            array = tensor.detach().cpu().array if isinstance(tensor, Tensor) else tensor
            out.write(data_bytes(array))

    if hasattr(file, "write"):
        write(cast(BinaryIO, file))
    else:
        with replacing(file) as out:
            write(out)


def load(file: "str | os.PathLike[str] | BinaryIO") -> Any:
    """Load what `save` wrote, or the tensors of any safetensors file.

    Args:
        file: a path, or a file open for reading bytes; read from its position to its end.

    Returns:
        The saved object. Of a file that numgrad did not write: an OrderedDict of its tensors in the
        order of the header. Tensors of dtypes that numgrad has not come in one that holds all their
        values: float16 and bfloat16 as float32, int8, int16 and uint16 as int32, uint32 as int64.

    Raises:
        CheckpointError: the file is not a whole and correct safetensors file. Nothing in a file
            raises another error, runs code, or allocates more than its size justifies.
        OSError: the file cannot be opened.
    """
    if hasattr(file, "read"):
        return _load_open(cast(BinaryIO, file))
    path = os.fspath(file)
    with open(path, "rb") as opened:
        return _load(opened, os.fstat(opened.fileno()).st_size, str(path))


def _load_open(file: BinaryIO) -> Any:
    path = str(getattr(file, "name", "file"))
    try:
        data = file.read()
    except OSError as error:
        raise CheckpointError(path, "start of file", f"reading failed: {error}") from error
    if not isinstance(data, bytes):
        raise TypeError(
            f"load: expected a file of bytes for file, got one that reads {type(data).__name__}; "
            'open it with mode "rb"'
        )
    return _load(io.BytesIO(data), len(data), path)


def _load(file: BinaryIO, size: int, path: str) -> Any:
    records, metadata = read_header(file, size, path)

    def reader(record: Record) -> Callable[[str], Any]:
        return lambda kind: _read(file, record, kind, path)

    readers = {record.name: reader(record) for record in records}
    if VERSION_KEY in metadata:
        version = metadata[VERSION_KEY]
        if not (version.isascii() and version.isdecimal() and len(version) < 10 and int(version)):
            raise CheckpointError(path, "metadata", f"{version!r:.100} is no version")
        if int(version) > VERSION:
            raise CheckpointError(
                path,
                "metadata",
                f"written by a newer numgrad (layout {version}, this one reads up to {VERSION}); "
                "upgrade numgrad",
            )
        if STRUCTURE_KEY not in metadata:
            raise CheckpointError(path, "metadata", f"{STRUCTURE_KEY} is missing")
        return unflatten(metadata[STRUCTURE_KEY], readers, path)
    return OrderedDict((name, read("tensor")) for name, read in readers.items())


def _read(file: BinaryIO, record: Record, kind: str, path: str) -> Any:
    where = f"tensor {record.name!r:.200}"
    try:
        if kind == "array":
            array = np.empty(record.shape, record.dtype)
            read_data(file, record, array, path)
            return array
        dtype = WIDENED.get(record.code, record.dtype)
        tensor = empty(record.shape, dtype=dtype)
        if dtype == record.dtype:
            read_data(file, record, tensor.array, path)
        else:
            array = np.empty(record.shape, record.dtype)
            read_data(file, record, array, path)
            tensor.array[...] = array
        return tensor
    except MemoryError:
        raise CheckpointError(path, where, "not enough memory for it") from None
    except (TypeError, ValueError) as error:  # a dtype or a shape that numgrad has not
        raise CheckpointError(path, where, str(error)) from error
