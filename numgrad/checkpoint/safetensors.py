"""The safetensors layout: an 8-byte header length, a JSON header, the tensors' bytes.

::

    uint64 n, little endian
    n bytes of JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, …,
                      "__metadata__": {"key": "text", …}}
    the tensors, C-contiguous and little endian; offsets count from here

The JSON starts with ``{`` and may be padded with spaces at its end. Sorted by offset the tensors
cover the rest of the file without a hole, an overlap or a byte left over.

Everything a header says is checked against the size of the file before anything is allocated.

Source: https://github.com/huggingface/safetensors, "Format".
"""

import json
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from .atomic import write_all
from .contents import (
    CODES,
    DTYPES,
    Contents,
    Spec,
    Stored,
    axes,
    contiguous_strides,
    make_spec,
    natural,
    short,
    unreadable,
)
from .elements import data_bytes
from .limits import MAX_JSON_HEADER_BYTES
from .source import Source
from .strict_json import parse_json
from .structure import Flattener, unflatten

FORMAT = "safetensors"
ALIGNMENT = 64  # of the first tensor in a file written here

VERSION = 1
"""Of the layout that numgrad writes; a reader refuses a higher one."""
VERSION_KEY = "numgrad_format"
STRUCTURE_KEY = "numgrad_structure"


# ----------------------------------------------------------------------------------------- reading


def read(source: Source) -> Contents:
    """The tensors of a file, in the order of the header, or what numgrad saved around them.

    The object is an OrderedDict; in a file that numgrad wrote it is the object that was saved.

    Raises:
        CheckpointError: the header is not what the format asks for.
    """
    length = int.from_bytes(source.read(0, 8, "start of file"), "little")
    if length > MAX_JSON_HEADER_BYTES:
        raise source.error(
            "header",
            f"a header of {length} bytes, more than the {MAX_JSON_HEADER_BYTES} allowed; "
            "it may be no safetensors file",
        )
    if length > source.size - 8:
        raise source.error(
            "header",
            f"a header of {length} bytes in a file of {source.size}; it may be cut off",
        )
    text = source.read(8, length, "header")
    if not text.startswith(b"{"):
        raise source.error("header", "it does not start with {; no safetensors file")
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise source.error("header", f"not UTF-8: {error.reason}") from None
    header = parse_json(decoded, source.path, "header")  # a dict: the text starts with {
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise source.error("metadata", "not an object of strings")
    found = OrderedDict(
        (name, _spec(source, name, entry, 8 + length)) for name, entry in header.items()
    )
    _check_cover(source, found, 8 + length)
    if VERSION_KEY not in metadata:
        return Contents(FORMAT, found)
    structure = _structure(source, metadata)
    return Contents(f"{FORMAT}, written by numgrad", unflatten(structure, found, source.path))


def _structure(source: Source, metadata: dict[str, str]) -> str:
    version = metadata[VERSION_KEY]
    if not (version.isascii() and version.isdecimal() and len(version) < 10 and int(version)):
        raise source.error("metadata", f"{version!r:.100} is no version")
    if int(version) > VERSION:
        raise source.error(
            "metadata",
            f"written by a newer numgrad (layout {version}, this one reads up to {VERSION}); "
            "upgrade numgrad",
        )
    if STRUCTURE_KEY not in metadata:
        raise source.error("metadata", f"{STRUCTURE_KEY} is missing")
    return metadata[STRUCTURE_KEY]


def _spec(source: Source, name: str, entry: Any, data_start: int) -> Spec:
    where = f"tensor {name!r:.200}"
    size = source.size - data_start
    if any(map(unreadable, name)):
        raise source.error(where, "a control character or half a surrogate in the name")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise source.error(where, "not an object of dtype, shape and data_offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        raise source.error(where, f"unsupported dtype {short(code)}")
    shape = axes(source, where, "shape", shape)
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(natural, offsets)):
        raise source.error(where, f"the offsets are no two positions: {offsets!r:.100}")
    begin, end = offsets
    if begin > end:
        raise source.error(where, f"it ends at {short(end)}, before its begin at {short(begin)}")
    if end > size:
        raise source.error(where, f"it ends at {short(end)}, after the last of {size} bytes")
    stored = Stored(code, math.prod(shape), where, data_start + begin)
    if stored.nbytes != end - begin:
        raise source.error(
            where,
            f"{code} of shape {short(shape)} takes {short(stored.nbytes)} bytes, "
            f"the offsets give it {end - begin}",
        )
    return make_spec(source, where, stored, 0, shape, contiguous_strides(shape))


def _check_cover(source: Source, found: dict[str, Spec], data_start: int) -> None:
    position = data_start
    storages = [spec.stored for spec in found.values()]
    for stored in sorted(storages, key=lambda s: (s.start, s.nbytes)):
        if stored.start != position:
            what = "overlaps the tensor before it" if stored.start < position else "follows a hole"
            raise source.error(stored.where, f"it {what}")
        position += stored.nbytes
    if position != source.size:
        left = source.size - position
        raise source.error("end of file", f"{left} bytes belong to no tensor")


# ----------------------------------------------------------------------------------------- writing


def prepared(obj: Any) -> Callable[[BinaryIO], None]:
    """What writes an object that was found fit for safetensors.

    Raises:
        TypeError: it holds something that cannot be saved; the text names the place.
        ValueError: it holds too many names and texts.
    """
    from .pickle_writer import Plain  # not needed to read

    flattener = Flattener()
    structure = flattener.flatten(Plain(obj, any_names=True).obj)
    metadata = {"format": "numgrad", VERSION_KEY: str(VERSION), STRUCTURE_KEY: structure}
    # Longest items first, so that each tensor lies at a multiple of its item's size.
    tensors = sorted(flattener.tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    header = make_header([(name, t.dtype, tuple(t.shape)) for name, t in tensors], metadata)

    def write(out: BinaryIO) -> None:
        write_all(out, header)
        for _, tensor in tensors:
            write_all(out, data_bytes(tensor))

    return write


def make_header(
    tensors: list[tuple[str, "np.dtype[Any]", tuple[int, ...]]], metadata: dict[str, str]
) -> bytes:
    """Length and header of a file that holds the tensors in the order given.

    Padded with spaces so that the first tensor starts at a multiple of 64 bytes.

    Raises:
        ValueError: it is larger than any that is read.
    """
    header: dict[str, Any] = {"__metadata__": metadata}
    position = 0
    for name, dtype, shape in tensors:
        end = position + math.prod(shape) * dtype.itemsize
        header[name] = {
            "dtype": CODES[dtype],
            "shape": list(shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    if len(text) > MAX_JSON_HEADER_BYTES:
        raise ValueError(
            f"save: expected a header of up to {MAX_JSON_HEADER_BYTES} bytes for obj, "
            f"got {len(text)}; save fewer names and texts in one file"
        )
    return len(text).to_bytes(8, "little") + text
