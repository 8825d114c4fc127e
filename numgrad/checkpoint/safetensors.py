"""The safetensors layout: an 8-byte header length, a JSON header, the tensors' bytes.

::

    uint64 n, little endian
    n bytes of JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, …,
                      "__metadata__": {"key": "text", …}}
    the tensors, C-contiguous and little endian; offsets count from here

The JSON starts with ``{`` and may be padded with spaces at its end. Sorted by offset the tensors
cover the rest of the file without a hole, an overlap or a byte left over.

This module knows records and bytes, no Tensor. Everything a header says is checked against the size
of the file before anything is allocated for it.

Source: https://github.com/huggingface/safetensors, "Format".
"""

import json
import math
import sys
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np

from .errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000
MAX_DIMENSIONS = 32  # of NumPy 1
MAX_BYTES = 2**62  # so that no product of a shape overflows
MAX_DIGITS = 4000  # of an integer; Python itself refuses 4301
ALIGNMENT = 64  # of the first tensor in a file written here

DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "I16": np.dtype(np.int16),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "BF16": np.dtype(np.uint16),  # the upper half of a float32, which it becomes when read
    "U16": np.dtype(np.uint16),
    "U32": np.dtype(np.uint32),
    "U64": np.dtype(np.uint64),
}
CODES = {dtype: code for code, dtype in DTYPES.items() if code != "BF16"}


class Record(NamedTuple):
    """A tensor of a file: bytes ``start`` to ``stop`` of the file."""

    name: str
    code: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The dtype that the tensor has once read."""
        return np.dtype(np.float32) if self.code == "BF16" else DTYPES[self.code]


# ------------------------------------------------------------------------------------- strict JSON


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _constant(name: str) -> NoReturn:
    raise ValueError(f"the constant {name}, which is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the name {name!r:.200} twice")
            seen.add(name)
    return result


def parse_json(text: str, path: str, where: str) -> Any:
    """JSON by the book: no name twice in an object, no NaN, no endless number or nesting."""
    try:
        return json.loads(
            text, parse_int=_integer, parse_constant=_constant, object_pairs_hook=_object
        )
    except json.JSONDecodeError as error:
        raise CheckpointError(
            path, where, f"not JSON: {error.msg} at character {error.pos}"
        ) from None
    except ValueError as error:
        raise CheckpointError(path, where, f"not acceptable JSON: {error}") from None
    except RecursionError:
        raise CheckpointError(path, where, "not acceptable JSON: nested too deeply") from None
    except MemoryError:
        raise CheckpointError(path, where, "not enough memory to read it") from None


# ----------------------------------------------------------------------------------------- reading


def read_exactly(file: BinaryIO, count: int, path: str, where: str) -> bytes:
    """The next ``count`` bytes, which the caller knows to be there."""
    try:
        data = file.read(count)
    except OSError as error:
        raise CheckpointError(path, where, f"reading failed: {error}") from error
    except MemoryError:
        raise CheckpointError(path, where, f"not enough memory for {count} bytes") from None
    if len(data) != count:
        raise CheckpointError(path, where, f"{count} bytes expected, {len(data)} read")
    return data


def _mishap(start: bytes, size: int) -> str | None:
    """What a file is if it is no checkpoint at all, from its first bytes."""
    if size == 0:
        return "the file is empty"
    text = start.lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        return "a git-lfs pointer and not the file itself; fetch that with `git lfs pull`"
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head", b"<!--")):
        return "an HTML page; the download gave a web page instead of the file"
    if start.startswith(b"PK\x03\x04"):
        return "a zip archive (torch.save writes those); a safetensors file was expected"
    if start.startswith(b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9"):
        return "a file of torch.save; a safetensors file was expected"
    if start.startswith(b"\x93NUMPY"):
        return "a NumPy array; open it with numpy.load"
    if size < 8:
        return f"the file has {size} bytes, fewer than the 8 of a header length"
    return None


def unreadable(c: str) -> bool:
    """Whether a character may not stand in a name: control characters and half surrogates."""
    return c < " " or c == "\x7f" or "\ud800" <= c <= "\udfff"


def _natural(value: Any) -> bool:
    return type(value) is int and value >= 0


def _record(name: str, entry: Any, data_start: int, size: int, path: str) -> Record:
    where = f"tensor {name!r:.200}"
    if any(map(unreadable, name)):
        raise CheckpointError(path, where, "a control character or half a surrogate in the name")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(path, where, "not an object of dtype, shape and data_offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        raise CheckpointError(path, where, f"unsupported dtype {code!r:.100}")
    if not isinstance(shape, list) or not all(map(_natural, shape)):
        raise CheckpointError(path, where, f"the shape is no list of lengths: {shape!r:.100}")
    if len(shape) > MAX_DIMENSIONS:
        raise CheckpointError(path, where, f"{len(shape)} axes, more than {MAX_DIMENSIONS}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_natural, offsets)):
        raise CheckpointError(path, where, f"the offsets are no two positions: {offsets!r:.100}")
    begin, end = offsets
    if begin > end:
        raise CheckpointError(path, where, f"it ends at {end}, before its begin at {begin}")
    if end > size - data_start:
        raise CheckpointError(
            path, where, f"it ends at {end}, after the last of {size - data_start} bytes"
        )
    itemsize = DTYPES[code].itemsize
    if math.prod(length for length in shape if length) > MAX_BYTES // itemsize:
        raise CheckpointError(path, where, f"the shape overflows: {shape!r:.100}")
    if math.prod(shape) * itemsize != end - begin:
        raise CheckpointError(
            path,
            where,
            f"{code} of shape {tuple(shape)} takes {math.prod(shape) * itemsize} bytes, "
            f"the offsets give it {end - begin}",
        )
    return Record(name, code, tuple(shape), data_start + begin, data_start + end)


def _check_cover(records: list[Record], data_start: int, size: int, path: str) -> None:
    position = data_start
    for record in sorted(records, key=lambda r: (r.start, r.stop)):
        if record.start != position:
            kind = "overlaps the tensor before it" if record.start < position else "follows a hole"
            raise CheckpointError(path, f"tensor {record.name!r:.200}", f"it {kind}")
        position = record.stop
    if position != size:
        raise CheckpointError(path, "end of file", f"{size - position} bytes belong to no tensor")


def read_header(file: BinaryIO, size: int, path: str) -> tuple[list[Record], dict[str, str]]:
    """The records in the order of the header, and the metadata, of a file of ``size`` bytes.

    ``file`` stands at its start. Every record lies inside the file.

    Raises:
        CheckpointError: the header is not what the format asks for.
    """
    start = read_exactly(file, min(size, 512), path, "start of file")
    mishap = _mishap(start, size)
    if mishap:
        raise CheckpointError(path, "start of file", mishap)
    length = int.from_bytes(start[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            path,
            "header",
            f"a header of {length} bytes, more than the {MAX_HEADER_BYTES} allowed; "
            "it may be no safetensors file",
        )
    if length > size - 8:
        raise CheckpointError(
            path, "header", f"a header of {length} bytes in a file of {size}; it may be cut off"
        )
    text = start[8 : 8 + length]
    if len(text) < length:
        text += read_exactly(file, length - len(text), path, "header")
    if not text.startswith(b"{"):
        raise CheckpointError(path, "header", "it does not start with {; no safetensors file")
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(path, "header", f"not UTF-8: {error.reason}") from None
    header = parse_json(decoded, path, "header")  # a dict: the text starts with {

    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(path, "metadata", "not an object of strings")
    data_start = 8 + length
    records = [_record(name, entry, data_start, size, path) for name, entry in header.items()]
    _check_cover(records, data_start, size, path)
    return records, metadata


def read_data(file: BinaryIO, record: Record, out: np.ndarray, path: str) -> None:
    """Read a tensor into ``out``, C-contiguous and of the record's shape and dtype.

    Raises:
        CheckpointError: the bytes are not there any more, or are no booleans where such should be.
    """
    where = f"tensor {record.name!r:.200}"
    count = record.stop - record.start
    if not count:
        return
    bfloat16 = record.code == "BF16"
    try:
        raw = np.empty(count // 2, np.uint16) if bfloat16 else out.reshape(-1)
        file.seek(record.start)
        got = _read_into(file, raw.view(np.uint8).data)
    except OSError as error:
        raise CheckpointError(path, where, f"reading failed: {error}") from error
    except MemoryError:
        raise CheckpointError(path, where, f"not enough memory for {count} bytes") from None
    if got != count:
        raise CheckpointError(path, where, f"{count} bytes expected, {got} read")
    if sys.byteorder == "big":
        raw.byteswap(inplace=True)
    if record.code == "BOOL" and raw.view(np.uint8).max() > 1:
        raise CheckpointError(path, where, "a boolean that is neither 0 nor 1")
    if bfloat16:
        bits = out.reshape(-1).view(np.uint32)
        bits[...] = raw
        bits <<= 16


def _read_into(file: BinaryIO, buffer: memoryview) -> int:
    read = getattr(file, "readinto", None)
    got = 0
    while got < len(buffer):
        if read is not None:
            count = read(buffer[got:])
        else:
            data = file.read(len(buffer) - got)
            count = len(data)
            buffer[got : got + count] = data
        if not count:
            break
        got += count
    return got


# ----------------------------------------------------------------------------------------- writing


def make_header(
    tensors: list[tuple[str, "np.dtype[Any]", tuple[int, ...]]], metadata: dict[str, str]
) -> bytes:
    """Length and header of a file that holds the tensors in the order given.

    Padded with spaces so that the first tensor starts at a multiple of 64 bytes.
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
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(
            f"save: expected a header of up to {MAX_HEADER_BYTES} bytes for obj, got {len(text)}; "
            "save fewer names and texts in one file"
        )
    return len(text).to_bytes(8, "little") + text


def data_bytes(array: np.ndarray) -> memoryview:
    """The bytes of an array as a file has them; a copy only if it is not C-contiguous."""
    array = np.ascontiguousarray(array).reshape(-1)
    if sys.byteorder == "big":
        array = array.byteswap()
    return array.view(np.uint8).data
