"""What a checkpoint file holds, as data: storages, tensors on them, and the object around these.

Every reader of a format gives a `Contents`, whose tensors are `Spec`s; nothing of their elements
has been read. A `Loader` then makes the Tensors. Whatever a `Spec` refers to lies inside the file.
"""

import math
import sys
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard

import numpy as np

from ..graph import dtypes
from ..graph.storage import DATA, PARAMETER, allocate, category
from ..graph.value import make
from ..ops.creation import Size
from ..tensor import Tensor
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
SMALL_BYTES = 1 << 20
"""An expanded tensor may have more bytes than its file, up to these."""
MAX_DIMENSIONS = 32  # of NumPy 1
MAX_DEPTH = 100
"""Lists, tuples and dicts inside one another."""
SMALL_MEETINGS, MEETINGS_A_BYTE = 200_000_000, 200
"""Of keys with others in the dicts of a file; see `KeyBudget`."""
SECRET = (str, bytes)
"""Types whose hashes nobody outside of this process knows."""
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
    def dtype_in_file(self) -> "np.dtype[Any]":
        """The dtype of the elements in the file; uint16 for the bits of a bfloat16."""
        return DTYPES[self.code]

    @property
    def itemsize(self) -> int:
        """Bytes an element takes in the file."""
        return 1 if self.code == RAW else self.dtype_in_file.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes all elements take in the file."""
        return self.numel * self.itemsize

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The dtype that the elements of a Tensor have once read."""
        wider: Any = WIDENED.get(self.code)
        return self.dtype_in_file if wider is None else wider


@dataclass(eq=False, slots=True)
class Spec:
    """A tensor on a storage of the file; offset and strides count elements.

    ``kind``: "array" for a NumPy array, which comes from a safetensors file: it fills a storage of
    its own.
    """

    stored: Stored
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    kind: Literal["tensor", "parameter", "array"] = "tensor"
    requires_grad: bool = False

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The dtype once read: NumPy's arrays are widened only where NumPy has no such dtype."""
        widened = self.kind != "array" or self.stored.code == "BF16"
        return self.stored.dtype if widened else self.stored.dtype_in_file


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


def natural(value: Any) -> TypeGuard[int]:
    """Whether a value is an int, not a bool, and not negative."""
    return type(value) is int and value >= 0


def axes(source: Source, where: str, what: str, lengths: Any) -> tuple[int, ...]:
    """The numbers of a shape or of strides, if they can be such.

    Raises:
        CheckpointError: they are not non-negative integers, too many, or too large.
    """
    if isinstance(lengths, (tuple, list)) and len(lengths) > MAX_DIMENSIONS:
        raise source.error(where, f"{len(lengths)} axes, more than {MAX_DIMENSIONS}")
    if not isinstance(lengths, (tuple, list)) or not all(map(natural, lengths)):
        raise source.error(where, f"the {what} is no non-negative integers: {short(lengths)}")
    if any(length > MAX_BYTES >> 4 for length in lengths):  # in bytes, once widened
        raise source.error(where, f"the {what} overflows: {short(lengths)}")
    return tuple(lengths)


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
    shape = axes(source, where, "shape", shape)
    strides = axes(source, where, "strides", strides)
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
    nbytes = math.prod(n for n in shape if n) * stored.itemsize  # Python's integers never overflow
    if nbytes > MAX_BYTES >> 4:
        raise source.error(where, f"the shape overflows: {short(shape)}")
    if numel and nbytes > max(source.size, SMALL_BYTES):  # strides of 0 make much of little
        raise source.error(
            where,
            f"a tensor of shape {shape}, larger than the file of {source.size} bytes; save a "
            ".contiguous() copy of it, or what it was expanded from",
        )
    if stored.view is not None:
        stored, first = stored.view
        offset += first
    return Spec(stored, offset, shape, strides)


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
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def place_of(path: tuple[Any, ...]) -> str:
    """The place in a file's object that keys lead to, as errors name it."""
    return "object" + "".join(f"[{short(key)}]" for key in path)


# ---------------------------------------------------------------------------------- walking objects


class KeyBudget:
    """Bounds the time that the dicts of a file take to fill, however their keys were chosen.

    Hashes of numbers can be chosen so that each key meets all the others. Those of texts and bytes
    cannot, and integers that count up from 0 meet nobody: only other keys are counted. A file of
    ``nbytes`` may have dicts of 20,000 such integers, a large one of more; of larger integers,
    whose hashes may be equal, and of floats and tuples of numbers a seventh.
    """

    def __init__(self, nbytes: int = 0) -> None:
        self._left = SMALL_MEETINGS + MEETINGS_A_BYTE * nbytes
        self._loose: dict[int, int] = {}

    def allows(self, owner: int, size: int, key: Any) -> bool:
        """Whether a dict, by its id, may get a key after ``size`` others."""
        if type(key) in SECRET or (type(key) is int and 0 <= key <= size):
            return True
        if type(key) is tuple and all(type(k) in SECRET for k in key):
            return True
        loose = self._loose.get(owner, 0)
        self._loose[owner] = loose + 1
        small = type(key) is int and -(1 << 60) < key < 1 << 60
        self._left -= loose if small else 50 * loose  # keys of one hash are compared, too
        return self._left >= 0


def rebuild(obj: Any, leaf: Callable[[Any, tuple[Any, ...]], Any], fail: Any) -> Any:
    """A copy of nested lists, tuples and dicts with ``leaf(item, path)`` in place of other items.

    What stands at several places is one object in the copy, too. Parts of plain data alone are not
    copied: they are the same objects in both.

    Raises:
        ``fail(path, reason)``: it is nested too deeply, contains itself, or has too many items.
    """
    done: dict[int, tuple[Any, int, int]] = {}  # by id: all items live as long as obj
    open_: set[int] = set()

    def walk(item: Any, path: tuple[Any, ...]) -> tuple[Any, int, int]:
        """The copy, how many items it has, and how many levels."""
        kind = type(item)
        known = done.get(id(item))
        if known is not None:
            if len(path) + known[2] > MAX_DEPTH:
                raise fail(path[:3], f"more than {MAX_DEPTH} levels")
            return known
        if kind not in CONTAINERS:
            known = done[id(item)] = leaf(item, path), 1, 0
            return known
        if id(item) in open_:
            raise fail(path, "it contains itself")
        if len(path) >= MAX_DEPTH:
            raise fail(path[:3], f"more than {MAX_DEPTH} levels")
        values = item.values() if isinstance(item, dict) else item
        if PLAIN.issuperset(map(type, values)):  # nothing to put in the place of anything
            known = done[id(item)] = item, len(item) + 1, 1
            return known
        open_.add(id(item))
        count, height, copies = 1, 1, []
        pairs = item.items() if isinstance(item, dict) else enumerate(item)
        for key, value in pairs:
            if type(value) in PLAIN:
                copies.append((key, value))
                count += 1
                continue
            known = done.get(id(value))
            if known is None or len(path) + 1 + known[2] > MAX_DEPTH:
                known = walk(value, (*path, key))
            copy, n, levels = known
            copies.append((key, copy))
            count += n
            height = max(height, levels + 1)
        if count > MAX_ITEMS:
            raise fail(path, f"more than {MAX_ITEMS} items, counting repeated ones")
        open_.discard(id(item))
        made = kind(copies) if kind in (dict, OrderedDict) else _other(kind, copies)
        known = done[id(item)] = made, count, height
        return known

    if type(obj) in PLAIN:
        return obj
    return walk(obj, ())[0]


CONTAINERS = (list, tuple, dict, OrderedDict, Counter, Size)
PLAIN = frozenset((type(None), bool, int, float, str, bytes))


def _other(kind: Any, copies: list[tuple[Any, Any]]) -> Any:
    if kind is Counter:
        return Counter(dict(copies))
    return kind(copy for _, copy in copies)


# ------------------------------------------------------------------------------ making the Tensors


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
