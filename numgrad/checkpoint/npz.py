"""The ``.npz`` archives of NumPy: a zip archive of ``.npy`` files, an array each.

A ``.npy`` file begins with ``\\x93NUMPY``, two bytes of version, the length of the header (two
bytes in version 1, else four) and the header: a dict in Python's syntax with ``descr``,
``fortran_order`` and ``shape``, and spaces. Then come the elements. The header is matched, never
evaluated.

Source: NumPy, ``numpy.lib.format``; the archive as in `torch_zip`.
"""

import math
import re
import zlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from ..graph.errors import shown
from ..tensor import Tensor
from .contents import (
    CODES,
    DTYPES,
    Contents,
    Spec,
    Stored,
    contiguous_strides,
    make_spec,
    short,
    unreadable,
)
from .elements import data_bytes
from .limits import MAX_NPY_HEADER_BYTES
from .source import Source
from .structure import refused
from .torch_zip import Record, read_archive

FORMAT = "NumPy archive (.npz)"
MAGIC = b"\x93NUMPY"
SUFFIX = ".npy"

FIELD = re.compile(
    r"\s*(['\"])(descr|fortran_order|shape)\1\s*:"
    r"\s*((['\"])[^'\"\\]*\4|True|False|\(\s*(?:[0-9]+L?\s*(?:,\s*|(?=\))))*\))\s*(?:,|$)",
    re.ASCII,
)
"""A name of the header with its value: a text, a boolean, a tuple of integers."""

TYPES = {dtype.str[1:]: code for dtype, code in CODES.items()}


def read(source: Source) -> Contents:
    """An OrderedDict of the arrays as tensors, by their names without ``.npy``.

    Raises:
        CheckpointError: the archive is damaged or compressed, or an array is none of numbers.
    """
    found: OrderedDict[str, Spec] = OrderedDict()
    for record in read_archive(source):
        if not record.name.endswith(SUFFIX.encode()):
            raise source.error(record.where, "it is no .npy file; a NumPy archive has no others")
        try:
            name = record.name.decode("utf-8").removesuffix(SUFFIX)
        except UnicodeDecodeError:
            raise source.error(record.where, "its name is not UTF-8") from None
        if any(map(unreadable, name)):
            raise source.error(record.where, "a control character in its name")
        found[name] = _spec(source, record)
    return Contents(FORMAT, found)


def _spec(source: Source, record: Record) -> Spec:
    def fail(reason: str) -> Exception:
        return source.error(record.where, reason)

    start = source.read(record.start, min(record.size, 12), record.where)
    if not start.startswith(MAGIC) or len(start) < 12:
        raise fail("it is no .npy file")
    version = start[6]
    if version not in (1, 2, 3) or start[7]:
        raise fail(f"version {version}.{start[7]} of the .npy format, which is not known")
    first = 10 if version == 1 else 12
    length = int.from_bytes(start[8:first], "little")
    if length > MAX_NPY_HEADER_BYTES:
        raise fail(f"a header of {length} bytes, more than {MAX_NPY_HEADER_BYTES}")
    if first + length > record.size:
        raise fail(f"a header of {length} bytes in a record of {record.size}")
    head = source.read(record.start, first + length, record.where)
    fields = _fields(head[first:])
    if fields is None:
        raise fail("its header is no dict of descr, fortran_order and shape alone")
    descr, fortran, shape = fields
    code = TYPES.get(descr[1:])
    if "O" in descr:
        raise fail("an array of Python objects, which are code; save an array of numbers")
    if code is None or (descr[0] != "|" if DTYPES[code].itemsize == 1 else descr[0] not in "<>"):
        raise fail(f"unsupported dtype {short(descr)}")
    where = f"array {short(record.name.decode('utf-8').removesuffix(SUFFIX))}"
    stored = Stored(
        code,
        math.prod(shape),
        where,
        start=record.start + len(head),
        swap=descr[0] == ">",
        crc=record.crc,
        crc_before=zlib.crc32(head),
    )
    if stored.nbytes != record.size - len(head):
        raise fail(
            f"{code} of shape {short(shape)} takes {short(stored.nbytes)} bytes, "
            f"it has {record.size - len(head)}"
        )
    strides = contiguous_strides(shape[::-1])[::-1] if fortran else contiguous_strides(shape)
    return make_spec(source, where, stored, 0, shape, strides)


def _fields(header: bytes) -> tuple[str, bool, tuple[int, ...]] | None:
    """The values of ``descr``, ``fortran_order`` and ``shape``."""
    try:
        text = header.decode("utf-8").strip()
    except UnicodeDecodeError:
        return None
    if len(text) < 2 or text[0] != "{" or text[-1] != "}":
        return None
    text = text[1:-1].strip()
    found: dict[str, str] = {}
    position = 0
    while position < len(text):
        field = FIELD.match(text, position)
        if field is None or field[2] in found:
            return None
        found[field[2]] = field[3]
        position = field.end()
    if len(found) != 3:
        return None
    descr, order, shape = found["descr"], found["fortran_order"], found["shape"]
    lengths = re.findall("[0-9]+", shape)
    if descr[0] not in "'\"" or order not in ("True", "False") or shape[0] != "(":
        return None
    # More digits than these overflow anyway, and more of them take Python long to read.
    if len(lengths) == 1 and "," not in shape:  # a number in brackets
        return None
    if len(descr) < 3 or any(len(length) > 30 for length in lengths):
        return None
    return descr[1:-1], order == "True", tuple(map(int, lengths))


# ----------------------------------------------------------------------------------------- writing


def prepared(obj: Any) -> Callable[[BinaryIO], None]:
    """What writes a dict of tensors and arrays; nothing else fits into such a file.

    Raises:
        TypeError: the object is something else.
    """
    from .pickle_writer import Plain  # not needed to read

    if not isinstance(obj, dict) or not obj:  # an empty archive has no bytes to be known by
        raise _refused((), "a dict with a tensor", shown(obj))
    arrays: list[tuple[str, Any]] = []
    for name, value in Plain(obj, any_names=True).obj.items():
        if not isinstance(name, str) or any(map(unreadable, name)):
            raise _refused((name,), "a name without control characters", short(name))
        if not isinstance(value, (Tensor, np.ndarray)):
            raise _refused((name,), "a tensor or an array", shown(value))
        arrays.append((name, value))

    def write(out: BinaryIO) -> None:
        from .torch_zip_writer import Archive

        archive = Archive(out)
        for name, value in arrays:
            head, data = _head(value.dtype, tuple(value.shape)), data_bytes(value)
            archive.add(name + SUFFIX, len(head) + len(data), [head, data])
        archive.close()

    return write


def _refused(path: tuple[Any, ...], what: str, value: Any) -> TypeError:
    way_out = "leave it out, or save as .pth or .safetensors"
    return refused(path, f"{what} in an .npz file", value, way_out)


def _head(dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> bytes:
    descr = dtype.newbyteorder("<").str
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}"
    # As NumPy: the elements begin at a multiple of 64 bytes of the .npy file.
    text += " " * (-(len(MAGIC) + 4 + len(text) + 1) % 64) + "\n"
    return MAGIC + b"\x01\x00" + len(text).to_bytes(2, "little") + text.encode("ascii")
