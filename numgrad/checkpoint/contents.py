"""What a checkpoint file holds, as data: storages, tensors on them, and the object around these.

Every reader of a format gives a `Contents`, whose tensors are `Spec`s; nothing of their elements
has been read. `elements` then makes the Tensors. Whatever a `Spec` refers to lies inside the file.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard

import numpy as np

from ..graph import dtypes
from .limits import MAX_ARRAY_BYTES, MAX_DIMENSIONS, SMALL_EXPANSION_BYTES
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
    if any(length > MAX_ARRAY_BYTES >> 4 for length in lengths):  # in bytes, once widened
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
    if nbytes > MAX_ARRAY_BYTES >> 4:
        raise source.error(where, f"the shape overflows: {short(shape)}")
    # Strides of 0 make much of little.
    if numel and nbytes > max(source.size, SMALL_EXPANSION_BYTES):
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
