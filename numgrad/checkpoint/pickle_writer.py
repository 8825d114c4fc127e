"""Writing pickles of data alone: the opcodes of protocol 2 that ``torch.load(weights_only=True)``
reads, for the kinds of objects that a checkpoint may hold.

Python's pickle module is not used: it would ask objects how they want to be made, and write the
names of functions for that. Here an object is either of a kind that the format has, or refused. The
same object always gives the same bytes.
"""

import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..graph import dtypes
from ..graph.device import device as Device
from ..graph.errors import shown
from ..ops.creation import Size
from ..tensor import Tensor
from ..variable import Parameter
from .contents import CODES, unreadable
from .elements import data_bytes
from .limits import (
    MAX_DEPTH,
    MAX_DIMENSIONS,
    MAX_ITEMS,
    MAX_OPCODES,
    MAX_PICKLE_BYTES,
    MAX_SAVED_INTEGER_BYTES,
    MAX_TENSOR_NAME,
    KeyBudget,
)
from .structure import check_keys, plain_key, refused

STORAGES = {
    dtypes.float32: "FloatStorage",
    dtypes.float64: "DoubleStorage",
    dtypes.int32: "IntStorage",
    dtypes.int64: "LongStorage",
    dtypes.uint8: "ByteStorage",
    dtypes.bool_: "BoolStorage",
}
"""PyTorch's names of storages, in the module ``torch``."""

KINDS = "a tensor, array, dict, list, tuple, number, text, bytes, bool or None"


class Place(NamedTuple):
    """Where a tensor lies: a storage's key and number of elements; offset and strides on it, in
    elements."""

    key: str
    numel: int
    offset: int
    strides: tuple[int, ...]


# ---------------------------------------------------------------------------------- what is written


class Plain:
    """A copy of an object in which every item is of exactly the kind it is written as.

    ``obj``: made of None, bool, int, float, complex, str, bytes, bytearray, Size, device, dtype,
    ndarray, Tensor, list, tuple, dict, OrderedDict and Counter. What stood at several places is
    one object there, too.
    ``tensors``: the Tensors in it, each once, in order.

    Args:
        obj: the object.
        any_names: let the path of keys that leads to a tensor have any characters.

    Raises:
        TypeError: it holds something else, or an object inside itself; the text names the place.
    """

    def __init__(self, obj: Any, any_names: bool = False) -> None:
        self.tensors: list[Any] = []
        self._any_names = any_names
        self._done: dict[int, tuple[Any, Any, int, int]] = {}  # holds the items: ids stay theirs
        self._keys = KeyBudget()
        self.obj = self._walk(obj, ())[0]

    def _walk(self, item: Any, path: tuple[Any, ...]) -> tuple[Any, int, int]:
        """The copy, how many items it has, and how many levels."""
        known = self._done.get(id(item))
        if known is not None:
            _check_depth(len(path) + known[3])
            return known[1:]
        if isinstance(item, (dict, list, tuple)):
            made, count, height = self._container(item, path)
        else:
            made, count, height = _leaf(item, path), 1, 0
        if isinstance(made, (Tensor, np.ndarray)) and not self._any_names:
            _check_names(path)
        if isinstance(made, Tensor):
            self.tensors.append(made)
        elif made is None or isinstance(made, (bool, int, float, str)):
            return made, count, height
        self._done[id(item)] = item, made, count, height
        return made, count, height

    def _container(self, item: Any, path: tuple[Any, ...]) -> tuple[Any, int, int]:
        _check_depth(len(path) + 1)
        count, height = 1, 1
        copies: list[tuple[Any, Any]] = []
        for key, value in item.items() if isinstance(item, dict) else enumerate(item):
            plain = key
            if isinstance(item, dict):
                plain = plain_key(key, path)
                check_keys(self._keys, id(item), len(copies), plain, path)
            copy, n, levels = self._walk(value, (*path, key))
            height = max(height, levels + 1)
            if isinstance(item, Counter) and type(copy) not in (int, float):
                raise refused((*path, key), "a number, as it is a count", shown(value))
            copies.append((plain, copy))
            count += n
        if count > MAX_ITEMS:
            raise refused(path, f"at most {MAX_ITEMS} items", "more, counting repeated ones")
        if isinstance(item, (list, tuple)):
            kind = next(kind for kind in (list, Size, tuple) if isinstance(item, kind))
            return kind(copy for _, copy in copies), count, height
        if isinstance(item, Counter):
            return Counter(dict(copies)), count, height
        made = OrderedDict(copies) if isinstance(item, OrderedDict) else dict(copies)
        return made, count, height


def _check_depth(levels: int) -> None:
    if levels > MAX_DEPTH:
        raise refused((), f"at most {MAX_DEPTH} levels", "more, or an object inside itself")


def _leaf(item: Any, path: tuple[Any, ...]) -> Any:
    if isinstance(item, np.generic) and item.dtype.kind in "biuf":
        item = item.item()
    if item is None or isinstance(item, bool):
        return item
    if isinstance(item, int):
        if item.bit_length() >= 8 * MAX_SAVED_INTEGER_BYTES:
            what = f"an integer of up to {MAX_SAVED_INTEGER_BYTES} bytes"
            raise refused(path, what, f"one of {item.bit_length()} bits")
        return int(item)
    if isinstance(item, str):
        return str.__str__(item)  # str() of an Enum is another text
    if isinstance(item, (float, complex)):
        return float(item) if isinstance(item, float) else complex(item)
    if isinstance(item, (bytes, bytearray)):
        return bytes(item) if isinstance(item, bytes) else bytearray(item)
    if isinstance(item, np.dtype):
        if item not in dtypes.ALL:
            raise refused(path, "a dtype that numgrad has", item)
        return item
    if isinstance(item, (Tensor, np.ndarray)):
        if item.dtype.newbyteorder("=") not in CODES:
            raise refused(path, "a dtype of bools, integers or floats", item.dtype)
        if len(item.shape) > MAX_DIMENSIONS:
            raise refused(path, f"up to {MAX_DIMENSIONS} axes", len(item.shape))
        return _plain_array(item, path) if isinstance(item, np.ndarray) else item
    if isinstance(item, Device):
        return item
    if hasattr(item, "state_dict"):
        raise refused(path, "data", f"{type(item).__name__}", "save its state_dict()")
    raise refused(path, KINDS, shown(item))


def _plain_array(array: np.ndarray, path: tuple[Any, ...]) -> np.ndarray:
    if isinstance(array, np.ma.MaskedArray):
        raise refused(path, "an array without a mask", "a masked one", "fill it, save the mask too")
    return np.asarray(array, array.dtype.newbyteorder("="))


def _check_names(path: tuple[Any, ...]) -> None:
    for key in path:
        if isinstance(key, str) and any(map(unreadable, key)):
            what = "a tensor's name without control characters and half surrogates"
            raise refused(path, what, repr(path[-1]))
        if isinstance(key, str) and len(key) > MAX_TENSOR_NAME:
            raise refused(path, f"a tensor's name of up to {MAX_TENSOR_NAME} characters", len(key))


# ------------------------------------------------------------------------------------- the opcodes


def pickle_of(obj: Any, place: Callable[[Any], Place]) -> bytes:
    """The pickle of what `Plain` made; ``place`` tells where a Tensor's elements lie.

    Raises:
        ValueError: it is too large to be read again.
    """
    writer = _Writer(place)
    writer.add(b"\x80\x02")
    writer.write(obj)
    writer.add(b".")
    if writer.steps > MAX_OPCODES:
        raise ValueError(
            f"save: expected names, numbers and texts in up to {MAX_OPCODES} steps for obj, got "
            f"{writer.steps}; put numbers in tensors"
        )
    if len(writer.out) > MAX_PICKLE_BYTES:
        raise ValueError(
            f"save: expected up to {MAX_PICKLE_BYTES} bytes of names, numbers, texts and arrays "
            f"for obj, got {len(writer.out)}; save large arrays as tensors (numgrad.from_numpy), "
            "or to a name that ends in .safetensors"
        )
    return bytes(writer.out)


class _Writer:
    """``out`` is the pickle so far, of ``steps`` opcodes; what was written before is referred to
    through the memo."""

    def __init__(self, place: Callable[[Any], Place]) -> None:
        self.out = bytearray()
        self.steps = 0
        self._place = place
        self._memo: dict[Any, int] = {}

    def add(self, *opcodes: bytes) -> None:
        """Write opcodes, each with its argument."""
        for opcode in opcodes:
            self.out += opcode
        self.steps += len(opcodes)

    def _recall(self, key: Any) -> bool:
        """Refer to what was remembered by the key, if there is such."""
        index = self._memo.get(key)
        if index is None:
            return False
        self.add(b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index))
        return True

    def _remember(self, key: Any) -> None:
        index = self._memo[key] = len(self._memo)
        self.add(b"q" + bytes([index]) if index < 256 else b"r" + struct.pack("<I", index))

    def write(self, item: Any) -> None:
        """Write an item of what `Plain` made."""
        if item is None:
            self.add(b"N")
        elif item is True or item is False:
            self.add(b"\x88" if item else b"\x89")
        elif type(item) is int:
            self._integer(item)
        elif type(item) is float:
            self.add(b"G" + struct.pack(">d", item))
        elif type(item) is str:
            if not self._recall(item):
                self._text(item)
                self._remember(item)
        elif not self._recall(id(item)):
            self._object(item)
            self._remember(id(item))

    def _integer(self, value: int) -> None:
        if 0 <= value < 1 << 8:
            self.add(b"K" + bytes([value]))
        elif 0 <= value < 1 << 16:
            self.add(b"M" + struct.pack("<H", value))
        elif -(1 << 31) <= value < 1 << 31:
            self.add(b"J" + struct.pack("<i", value))
        else:
            size = value.bit_length() // 8 + 1
            self.add(b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True))

    def _text(self, text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        self.add(b"X" + struct.pack("<I", len(data)) + data)

    def _name(self, module: str, name: str) -> None:
        if not self._recall((module, name)):
            self.add(f"c{module}\n{name}\n".encode())
            self._remember((module, name))

    def _call(self, module: str, name: str, *args: Any) -> None:
        """What a name gives for plain arguments."""
        self._name(module, name)
        self._tuple(args)
        self.add(b"R")

    def _tuple(self, items: tuple[Any, ...]) -> None:
        if 1 <= len(items) <= 3:
            for item in items:
                self.write(item)
            self.add(b"\x85\x86\x87"[len(items) - 1 : len(items)])
        elif items:
            self.add(b"(")
            for item in items:
                self.write(item)
            self.add(b"t")
        else:
            self.add(b")")

    def _items(self, item: "dict[Any, Any]") -> None:
        if item:
            self.add(b"(")
            for key, value in item.items():
                self.write(key)
                self.write(value)
            self.add(b"u")

    def _object(self, item: Any) -> None:
        kind = type(item)
        if kind is tuple:
            self._tuple(item)
        elif kind is list:
            self.add(b"]")
            if item:
                self.add(b"(")
                for part in item:
                    self.write(part)
                self.add(b"e")
        elif kind is dict:
            self.add(b"}")
            self._items(item)
        elif kind is OrderedDict:
            self._call("collections", "OrderedDict")
            self._items(item)
        elif kind is Counter:
            self._name("collections", "Counter")
            self.add(b"}")
            self._items(item)
            self.add(b"\x85", b"R")
        elif kind is bytes:
            self._bytes(item)
        elif kind is bytearray:
            self._call("__builtin__", "bytearray", item.decode("latin-1"), "latin-1")
        elif kind is complex:
            self._call("__builtin__", "complex", item.real, item.imag)
        elif isinstance(item, Tensor):
            self._tensor(item)
        elif isinstance(item, np.ndarray):
            self._array(item)
        elif isinstance(item, np.dtype):
            self._name("torch", item.name)
        elif isinstance(item, Device):
            parts = (item.type,) if item.index is None else (item.type, item.index)
            self._call("torch", "device", *parts)
        else:  # a Size
            self._name("torch", "Size")
            self._tuple(tuple(item))
            self.add(b"\x85", b"R")

    def _bytes(self, data: bytes) -> None:
        # Protocol 2 has no bytes: Python 3 writes them so, too.
        self._name("_codecs", "encode")
        self._text(data.decode("latin-1"))
        self.write("latin1")
        self.add(b"\x86", b"R")

    def _array(self, array: np.ndarray) -> None:
        self._name("numpy.core.multiarray", "_reconstruct")
        self._name("numpy", "ndarray")
        self.write(0)
        self.add(b"\x85")
        self._bytes(b"b")
        self.add(b"\x87", b"R")
        self.add(b"(")
        self.write(1)
        self._tuple(array.shape)
        name = array.dtype.newbyteorder("<").str
        if not self._recall(("dtype", name)):
            self._call("numpy", "dtype", name[1:], False, True)
            self._tuple((3, name[0], None, None, None, -1, -1, 0))
            self.add(b"b")
            self._remember(("dtype", name))
        self.write(False)
        self._bytes(bytes(data_bytes(array)))
        self.add(b"t", b"b")

    def _tensor(self, tensor: Any) -> None:
        if isinstance(tensor, Parameter):
            self._name("torch._utils", "_rebuild_parameter")
            self._rebuild(tensor, False)
            self.write(tensor.requires_grad)
            self._call("collections", "OrderedDict")
            self.add(b"\x87", b"R")
        else:
            self._rebuild(tensor, tensor.requires_grad)

    def _rebuild(self, tensor: Any, requires_grad: bool) -> None:
        place = self._place(tensor)
        self._name("torch._utils", "_rebuild_tensor_v2")
        self.add(b"(", b"(")
        self.write("storage")
        self._name("torch", STORAGES[tensor.dtype])
        self.write(place.key)
        self.write("cpu")
        self.write(place.numel)
        self.add(b"t", b"Q")
        self.write(place.offset)
        self._tuple(tuple(tensor.shape))
        self._tuple(place.strides)
        self.write(requires_grad)
        self._call("collections", "OrderedDict")  # no hooks
        self.add(b"t", b"R")
