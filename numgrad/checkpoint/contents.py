"""What a checkpoint file holds, as data: storages, tensors on them, and the object around these.

Every reader of a format gives a `Contents`, whose tensors are `Spec`s; nothing of their elements
has been read. A `Loader` then makes the Tensors. Whatever a `Spec` refers to lies inside the file.
"""

import math
import sys
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..graph import dtypes
from ..graph.storage import DATA, PARAMETER, allocate, category
from ..graph.value import make
from ..ops.creation import Size
from ..variable import Parameter
from .source import Source

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
"""Elements in files, by the names that safetensors has for them."""

CODES = {dtype: code for code, dtype in DTYPES.items() if code != "BF16"}

WIDENED = {
    "F16": dtypes.float32,
    "BF16": dtypes.float32,
    "I8": dtypes.int32,
    "I16": dtypes.int32,
    "U16": dtypes.int32,
    "U32": dtypes.int64,
}
"""Dtypes that numgrad has not, and those that hold all their values. U64 has no such."""

NAMES = {
    **{code: dtype.name for code, dtype in DTYPES.items()},
    "BF16": "bfloat16",
}
"""What people call the dtypes."""

RAW = "RAW"
"""The code of a storage of bytes whose elements the tensor on it will tell."""

MAX_BYTES = 2**62
"""Of an array: no product of lengths overflows."""
SMALL_BYTES = 4096
"""An expanded tensor may have more bytes than its file, up to these."""
MAX_DIMENSIONS = 32  # of NumPy 1
MAX_DEPTH = 100
"""Lists, tuples and dicts inside one another."""
MAX_KEY = 1 << 60
"""Of integers as keys of dicts: larger ones could be chosen to have all the same hash, and then a
dict takes quadratic time."""
MAX_NAME = 1000
"""Characters of a part of a tensor's name."""
MAX_ITEMS = 10_000_000
"""Items in all, those that stand at several places counted at each."""
CHUNK = 1 << 20
"""Elements that are widened at a time."""


@dataclass(eq=False, slots=True)
class Stored:
    """A run of elements in a file: ``numel`` of ``code``, from byte ``start`` on.

    ``swap``: they are big-endian. ``crc``: the CRC-32 of their bytes, where the file tells it;
    ``crc_before`` that of bytes before them that count in it, too.
    ``view``: another storage and the element of it that is this one's first; tensors are put on
    that storage, so that what shares memory in the file does so when it is read.
    """

    code: str
    numel: int
    where: str
    start: int = -1
    swap: bool = False
    crc: int | None = None
    crc_before: int = 0
    view: "tuple[Stored, int] | None" = None

    @property
    def itemsize(self) -> int:
        """Bytes an element takes in the file."""
        return 1 if self.code == RAW else DTYPES[self.code].itemsize

    @property
    def nbytes(self) -> int:
        """Bytes all elements take in the file."""
        return self.numel * self.itemsize

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The dtype that the elements have once read."""
        wider: Any = WIDENED.get(self.code)
        return DTYPES[self.code] if wider is None else wider


@dataclass(eq=False, slots=True)
class Spec:
    """A tensor on a storage of the file; offset and strides count elements.

    ``kind``: "tensor", "parameter", or "array" for a NumPy array, which is never widened.
    """

    stored: Stored
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    kind: str = "tensor"
    requires_grad: bool = False


@dataclass(eq=False, slots=True)
class Contents:
    """A file that was understood: the format's name, the object, and what to tell the user."""

    format: str
    obj: Any
    notes: list[str] = field(default_factory=list)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a C-contiguous tensor."""
    strides: list[int] = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def natural(value: Any) -> bool:
    """Whether a value is an int, not a bool, and not negative."""
    return type(value) is int and value >= 0


def make_spec(
    source: Source, where: str, stored: Any, offset: Any, shape: Any, strides: Any
) -> Spec:
    """A tensor as a file describes it, if it lies inside its storage.

    Raises:
        CheckpointError: it does not, or what describes it has the wrong types.
    """
    if not isinstance(stored, Stored):
        raise source.error(where, f"a tensor on no storage: {short(stored)}")
    if stored.code == RAW:
        raise source.error(where, "a tensor without a dtype on a storage without one")
    for what, lengths in (("shape", shape), ("strides", strides)):
        if isinstance(lengths, (tuple, list)) and len(lengths) > MAX_DIMENSIONS:
            raise source.error(where, f"{len(lengths)} axes, more than {MAX_DIMENSIONS}")
        if not isinstance(lengths, (tuple, list)) or not all(map(natural, lengths)):
            raise source.error(where, f"the {what} is no non-negative integers: {short(lengths)}")
        if any(length > MAX_BYTES >> 4 for length in lengths):  # in bytes, once widened
            raise source.error(where, f"the {what} overflows: {short(lengths)}")
    if not natural(offset):
        raise source.error(where, f"the offset is no non-negative integer: {short(offset)}")
    if len(shape) != len(strides):
        raise source.error(where, f"{len(shape)} axes but {len(strides)} strides")
    numel = math.prod(shape)
    if not numel:
        offset = 0  # that of x[2:, 3:] of a tensor (2, 3) is 9, behind the end of its storage
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides)) if numel else -1
    if last >= stored.numel:
        raise source.error(
            where,
            f"a tensor that reaches element {last} of a storage of {stored.numel}",
        )
    # Strides of 0 make large tensors of few elements. Python's integers do not overflow.
    allowed = max(source.size, SMALL_BYTES) if numel else MAX_BYTES >> 4
    if math.prod(n for n in shape if n) * stored.itemsize > allowed:
        raise source.error(
            where, f"a tensor of shape {tuple(shape)}, larger than the file of {source.size} bytes"
        )
    if stored.view is not None:
        stored, first = stored.view
        offset += first
    return Spec(stored, offset, tuple(shape), tuple(strides))


def unreadable(c: str) -> bool:
    """Whether a character may not stand in a name: control characters and half surrogates."""
    return c < " " or c == "\x7f" or "\ud800" <= c <= "\udfff"


def short(value: Any) -> str:
    """A value of a file, in a few characters, however large it is."""
    if isinstance(value, (str, bytes)):
        return repr(value[:100])
    if isinstance(value, int):
        return (
            str(value) if value.bit_length() < 200 else f"an integer of {value.bit_length()} bits"
        )
    if isinstance(value, (list, tuple)) and len(value) <= 8 and all(type(v) is int for v in value):
        return "(" + ", ".join(map(short, value)) + ")"
    return f"a {type(value).__name__}"


# ---------------------------------------------------------------------------------- walking objects


class Named(NamedTuple):
    """A tensor of a file and the path of keys that leads to it."""

    path: tuple[Any, ...]
    spec: Spec


def rebuild(obj: Any, leaf: Callable[[Any, tuple[Any, ...]], Any], fail: Any) -> Any:
    """A copy of nested lists, tuples and dicts with ``leaf(item, path)`` in place of other items.

    What stands at several places is one object in the copy, too.

    Raises:
        ``fail(path, reason)``: it is nested too deeply, contains itself, or has too many items.
    """
    done: dict[int, tuple[Any, int]] = {}  # by id: all items live as long as obj
    open_: set[int] = set()

    def walk(item: Any, path: tuple[Any, ...]) -> tuple[Any, int]:
        """The copy, and how many items it has."""
        kind = type(item)
        if kind in PLAIN:
            return item, 1
        if kind not in CONTAINERS:
            known = done.get(id(item))
            if known is None:
                known = done[id(item)] = leaf(item, path), 1
            return known
        known = done.get(id(item))
        if known is not None:
            return known
        if id(item) in open_:
            raise fail(path, "it contains itself")
        if len(path) >= MAX_DEPTH:
            raise fail(path[:3], f"more than {MAX_DEPTH} levels")
        open_.add(id(item))
        count, copies = 1, []
        pairs = item.items() if isinstance(item, dict) else enumerate(item)
        for key, value in pairs:
            copy, n = (value, 1) if type(value) in PLAIN else walk(value, (*path, key))
            copies.append((key, copy))
            count += n
        if count > MAX_ITEMS:
            raise fail(path, f"more than {MAX_ITEMS} items, counting repeated ones")
        open_.discard(id(item))
        made = kind(copies) if kind in (dict, OrderedDict) else _other(kind, copies)
        done[id(item)] = made, count
        return made, count

    return walk(obj, ())[0]


CONTAINERS = (list, tuple, dict, OrderedDict, Counter, Size)
PLAIN = (type(None), bool, int, float, str, bytes)


def _other(kind: Any, copies: list[tuple[Any, Any]]) -> Any:
    if kind is Counter:
        return Counter(dict(copies))
    return kind(copy for _, copy in copies)


def specs(obj: Any) -> Iterator[Named]:
    """The tensors of an object that a reader gave, in order, each once, with its first path."""
    found: dict[int, Named] = {}

    def leaf(item: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(item, Spec):
            found.setdefault(id(item), Named(path, item))
        return item

    rebuild(obj, leaf, lambda path, reason: ValueError(reason))
    return iter(found.values())


# ------------------------------------------------------------------------------ making the Tensors


class Loader:
    """Makes Tensors of Specs: one block of memory for each storage of the file."""

    def __init__(self, source: Source, place: Callable[[Any], Any] | None = None) -> None:
        """``place`` gets each storage as a 1-d tensor and returns it, where it shall be."""
        self._source, self._place = source, place
        self._storages: dict[int, Any] = {}
        self._specs: dict[int, Any] = {}
        self.widened: Counter[str] = Counter()
        """How many tensors of each code came in a wider dtype."""

    def make(self, spec: Spec) -> Any:
        """The Tensor, Parameter or ndarray.

        Raises:
            CheckpointError: its bytes cannot be read, or are not what the file says they are.
        """
        made = self._specs.get(id(spec))
        if made is None:
            try:
                made = self._make(spec)
            except MemoryError:
                raise self._source.error(spec.stored.where, "not enough memory for it") from None
            self._specs[id(spec)] = made
        return made

    def _make(self, spec: Spec) -> Any:
        stored = spec.stored
        if spec.kind == "array":
            array = np.empty(
                spec.shape, stored.dtype if stored.code == "BF16" else stored_dtype(stored)
            )
            read_elements(self._source, stored, array.reshape(-1))
            return array
        check_dtype(self._source, stored)
        if stored.dtype != DTYPES[stored.code] or stored.code == "BF16":
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


def stored_dtype(stored: Stored) -> "np.dtype[Any]":
    """The dtype of the elements in the file."""
    return DTYPES[stored.code]


def _view(array: Any, spec: Spec) -> Any:
    itemsize = array.itemsize
    strides = tuple(step * itemsize for step in spec.strides)
    if isinstance(array, np.ndarray):
        if not array.size:
            return np.ndarray(spec.shape, array.dtype, array)
        return np.ndarray(spec.shape, array.dtype, array, spec.offset * itemsize, strides)
    return array[spec.offset :].see(np.lib.stride_tricks.as_strided, spec.shape, strides)


def read_elements(source: Source, stored: Stored, out: np.ndarray) -> None:
    """Read a whole storage into ``out``, contiguous, of its dtype once read or of that in the file.

    Raises:
        CheckpointError: the bytes are not there, their CRC is wrong, or a boolean is neither.
    """
    raw_dtype = stored_dtype(stored)
    crc = stored.crc_before
    step = stored.numel if out.dtype == raw_dtype and stored.code != "BF16" else CHUNK
    for first in range(0, stored.numel, max(step, 1)):
        part = out[first : first + step]
        raw = part if step == stored.numel else np.empty(len(part), raw_dtype)
        crc = _read_part(source, stored, first, raw, crc)
        if stored.code == "BF16":
            bits = part.view(np.uint32)
            bits[...] = raw
            bits <<= 16
        elif raw is not part:
            part[...] = raw
    _check_crc(source, stored, crc)


def check_elements(source: Source, stored: Stored) -> None:
    """Read a whole storage and keep nothing of it. Errors are those of `read_elements`."""
    crc = stored.crc_before
    for first in range(0, stored.numel, CHUNK):
        raw = np.empty(min(CHUNK, stored.numel - first), stored_dtype(stored))
        crc = _read_part(source, stored, first, raw, crc)
    _check_crc(source, stored, crc)


def _read_part(source: Source, stored: Stored, first: int, raw: np.ndarray, crc: int) -> int:
    """Fill ``raw`` with the elements from ``first`` on; the CRC up to there goes on with them."""
    view = raw.view(np.uint8).data
    source.read_into(stored.start + first * stored.itemsize, view, stored.where)
    if stored.crc is not None:
        crc = zlib.crc32(view, crc)
    if stored.swap != (sys.byteorder == "big"):
        raw.byteswap(inplace=True)
    if stored.code == "BOOL" and raw.view(np.uint8).max() > 1:
        raise source.error(stored.where, "a boolean that is neither 0 nor 1")
    return crc


def _check_crc(source: Source, stored: Stored, crc: int) -> None:
    if stored.crc is not None and crc != stored.crc:
        raise source.error(stored.where, "its CRC is wrong: the bytes were damaged")
