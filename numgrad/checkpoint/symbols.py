"""What an interpreted pickle holds beside data: names, texts of Python 2, unfinished objects.

`allowlist` has the list of names; `finish` there turns all of these into data, or refuses them.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from .contents import NAMES, Spec, make_spec, natural, short, unreadable
from .errors import CheckpointError
from .limits import MAX_ARRAY_BYTES, MAX_DIMENSIONS, MAX_STORAGE_KEY
from .source import Source

FLOATS = ("F16", "BF16", "F32", "F64")
"""Codes of elements whose tensors may require a gradient."""


class Machine(Protocol):
    """What a function of the list sees of the interpreter."""

    source: Source

    @property
    def place(self) -> str:
        """What is being read, in errors."""

    def error(self, reason: str) -> CheckpointError:
        """An error at that place."""

    def set_items(self, target: Any, items: list[Any]) -> None:
        """Put keys and values, in turns, into a dict, if the keys may be such."""


class Global(NamedTuple):
    """A name of the list: ``make(machine, args)`` is run where the pickle calls it."""

    full: str
    make: Callable[[Any, tuple[Any, ...]], Any] | None = None
    new: bool = False
    """Whether the pickle may make it without calling it, too (NEWOBJ)."""
    storage: str | None = None
    """The code of the elements, of a class of storages; RAW where the tensor tells it."""
    dtype: str | None = None
    """The code, of a dtype; its name in PyTorch where files have no tensors of it here."""
    tensor: str | None = None
    """The code of the elements, of a class of tensors."""


class Text(str):
    """A text of Python 2: UTF-8 or else Latin-1, and the bytes it was."""

    raw: bytes
    plain: str

    @classmethod
    def of(cls, raw: bytes) -> "Text":
        """The text that bytes of Python 2 are."""
        try:
            text = cls(raw.decode("utf-8"))
        except UnicodeDecodeError:
            text = cls(raw.decode("latin-1"))
        text.raw, text.plain = raw, str(text)
        return text


class StorageId(NamedTuple):
    """How the zip and the stream format refer to a storage; ``view``: (key, offset, numel)."""

    code: str
    key: str
    numel: int
    view: tuple[str, int, int] | None


def storage_id(source: Source, where: str, pid: Any) -> StorageId:
    """``('storage', class, key, location, numel[, view])``, checked. The location is not used.

    Raises:
        CheckpointError: it is something else; whole modules, which have such, too, are named.
    """

    def wrong(what: str, value: Any) -> CheckpointError:
        return source.error(where, f"a reference to a storage {what}: {short(value)}")

    if type(pid) is not tuple or len(pid) not in (5, 6):
        raise wrong("that is no tuple of five", pid)
    kind, cls, key, _, numel = pid[:5]
    if kind != "storage":
        raise wrong("of another kind", kind)
    if type(cls) is not Global or cls.storage is None:
        raise wrong("of no class of storages", cls.full if type(cls) is Global else cls)
    if (
        not isinstance(key, str)
        or not 0 < len(key) <= MAX_STORAGE_KEY
        or any(c == "/" or unreadable(c) for c in key)
    ):
        raise wrong("whose key is no plain name", key)
    if not natural(numel):
        raise wrong("whose size is no non-negative integer", numel)
    view = pid[5] if len(pid) == 6 else None
    if view is not None:
        if (
            type(view) is not tuple
            or len(view) != 3
            or not isinstance(view[0], str)
            or not natural(view[1])
            or not natural(view[2])
        ):
            raise wrong("whose view is no (key, offset, size)", view)
        view = (str(view[0]), view[1], view[2])
    return StorageId(cls.storage, str(key), numel, view)


# ---------------------------------------------------------- checks that several names share


def no_hooks(machine: Machine, hooks: Any) -> None:
    """Refuse a tensor that has hooks."""
    if hooks is not None and (type(hooks) not in (dict, OrderedDict) or hooks):
        raise machine.error("a tensor with hooks, which are code")


def tensor_spec(machine: Machine, storage: Any, offset: Any, size: Any, stride: Any) -> Spec:
    """A tensor as its arguments describe it; see `make_spec`."""
    return make_spec(machine.source, machine.place, storage, offset, size, stride)


def on_tensor(machine: Machine, data: Any) -> Any:
    """What a Parameter is made of, if it is a tensor."""
    if not isinstance(data, (Spec, EarlyTensor)):
        raise machine.error(f"a Parameter of {short(data)}, which is no tensor")
    return data


def may_require_grad(machine: Machine, data: Any, requires_grad: Any) -> bool:
    """The flag, if it is one, and the tensor has a floating dtype where it is set."""
    if type(requires_grad) is not bool:
        raise machine.error(f"requires_grad is {short(requires_grad)}, no boolean")
    code = data.code if isinstance(data, EarlyTensor) else data.stored.code
    if requires_grad and code not in FLOATS:
        raise machine.error(f"a tensor of {code} that requires a gradient")
    return requires_grad


def from_bytes(
    machine: Machine, data: Any, dtype: "np.dtype[Any]", shape: tuple[int, ...], order: Any
) -> np.ndarray:
    """An array of plain numbers from the bytes of a pickle, which must be just as many."""
    raw = data.raw if isinstance(data, Text) else data
    if type(raw) not in (bytes, bytearray):
        raise machine.error("a NumPy array of objects; only numbers are read")
    nbytes = math.prod(shape) * dtype.itemsize
    if len(raw) != nbytes or math.prod(n for n in shape if n) > MAX_ARRAY_BYTES // dtype.itemsize:
        raise machine.error(
            f"a NumPy array of shape {short(shape)} and {dtype} in {len(raw)} bytes"
        )
    if dtype.kind == "b" and raw.translate(None, b"\0\1"):
        raise machine.error("a boolean that is neither 0 nor 1")
    flat = np.frombuffer(raw, dtype).astype(dtype.newbyteorder("="))  # a copy: one may write to it
    return flat.reshape(shape, order=order)


def array_of(machine: Machine, data: Any, dtype: Any, shape: Any, order: str) -> np.ndarray:
    """The same of a dtype and a shape that were not looked at yet."""
    if type(shape) is not tuple or not all(map(natural, shape)) or len(shape) > MAX_DIMENSIONS:
        raise machine.error(f"a NumPy array of shape {short(shape)}")
    if type(dtype) is not NumpyDtype:
        raise machine.error("a NumPy array without a plain dtype")
    return from_bytes(machine, data, dtype.dtype, shape, order)


# --------------------------------------------------- objects that BUILD gives their state


class Built:
    """An object that a pickle makes first and gives its state afterwards."""

    def build(self, machine: Machine, state: Any) -> None:
        """Take the state. Raises CheckpointError for one that is not as it must be."""
        raise NotImplementedError

    def finish(self) -> Any:
        """The Spec or the ndarray; None if there was no state."""
        raise NotImplementedError


class EarlyTensor(Built):
    """``torch.FloatTensor()``, whose state is ``(storage, offset, size, stride)``."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.spec: Spec | None = None

    def build(self, machine: Machine, state: Any) -> None:
        """Take the storage and the geometry."""
        if type(state) is not tuple or len(state) != 4 or self.spec is not None:
            raise machine.error("a tensor whose state is no (storage, offset, size, stride)")
        self.spec = tensor_spec(machine, *state)
        if self.spec.stored.code != self.code:
            raise machine.error(
                f"a tensor of {NAMES[self.code]} on a storage of {NAMES[self.spec.stored.code]}"
            )

    def finish(self) -> Any:
        """The tensor."""
        return self.spec


class EarlyParameter(Built):
    """A Parameter or a Variable as PyTorch up to 0.4 pickled them.

    State: ``(requires_grad, volatile, hooks)``, or
    ``(data, grad, hooks, requires_grad, volatile)``.
    """

    def __init__(self, kind: Literal["tensor", "parameter"], data: Any = None) -> None:
        self.kind, self.data, self.requires_grad = kind, data, kind == "parameter"

    def build(self, machine: Machine, state: Any) -> None:
        """Take the flags, and the data if they are not there yet."""
        if type(state) is tuple and len(state) == 5:
            if self.data is not None:
                raise machine.error("a Parameter with data twice")
            self.data, _, hooks, requires_grad, volatile = state
        elif type(state) is tuple and len(state) == 3:
            requires_grad, volatile, hooks = state
        else:
            raise machine.error("a Parameter whose state is none that PyTorch wrote")
        if type(requires_grad) is not bool or type(volatile) is not bool:
            raise machine.error("a Parameter whose flags are no booleans")
        no_hooks(machine, hooks)
        self.data = on_tensor(machine, self.data)
        self.requires_grad = may_require_grad(machine, self.data, requires_grad)

    def finish(self) -> Any:
        """The tensor, of this kind."""
        data = self.data.finish() if isinstance(self.data, Built) else self.data
        if not isinstance(data, Spec):
            return None
        return replace(data, kind=self.kind, requires_grad=self.requires_grad)


class NumpyDtype(Built):
    """``numpy.dtype("f4")``, whose state has the byte order."""

    def __init__(self, dtype: "np.dtype[Any]") -> None:
        self.dtype = dtype

    def build(self, machine: Machine, state: Any) -> None:
        """Take the byte order; whatever else a state may have belongs to structured dtypes."""
        plain = type(state) is tuple and 8 <= len(state) <= 9 and state[2:5] == (None, None, None)
        if not plain or state[1] not in ("<", ">", "|", "="):
            raise machine.error("a NumPy dtype that is no plain number")
        if state[1] == ">":
            self.dtype = self.dtype.newbyteorder(">")

    def finish(self) -> Any:
        """The dtype, native."""
        return self.dtype.newbyteorder("=")


class NumpyArray(Built):
    """An ndarray, whose state is ``(1, shape, dtype, Fortran order, bytes)``."""

    def __init__(self, array: "np.ndarray | None" = None) -> None:
        self.array = array

    def build(self, machine: Machine, state: Any) -> None:
        """Take shape, dtype and bytes, which must fit each other."""
        if type(state) is not tuple or len(state) != 5 or self.array is not None:
            raise machine.error("a NumPy array whose state is none that NumPy wrote")
        _, shape, dtype, fortran, data = state
        if type(fortran) is not bool:
            raise machine.error("a NumPy array whose state is none that NumPy wrote")
        self.array = array_of(machine, data, dtype, shape, "F" if fortran else "C")

    def finish(self) -> Any:
        """The array."""
        return self.array
