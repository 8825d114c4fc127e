"""Small checkpoint files of all four formats, good and false, written byte by byte.

Neither PyTorch nor anything under test has a part in them. Pickles are assembled from opcodes: what
`code` knows it writes as Python's pickler would, `Raw` puts in whatever a test wants to.
"""

import io
import json
import math
import struct
import tarfile
import zipfile
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

KINDS = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "bool": "Bool",
}
CODES = {
    "float32": "F32",
    "float64": "F64",
    "float16": "F16",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "bool": "BOOL",
}
MAGIC = 0x1950A86A20F9469CFC6C
FORMATS = ("tar", "stream", "zip", "safetensors")

# ------------------------------------------------------------------------------------------ pickles


@dataclass(frozen=True)
class Global:
    """The opcode GLOBAL: a name of a module."""

    module: str
    name: str


@dataclass(eq=False)
class Reduce:
    """A call: REDUCE, or NEWOBJ if ``new``; then items by SETITEMS, a state by BUILD."""

    function: Any
    args: Any = ()
    new: bool = False
    items: Any = None
    state: Any = None


@dataclass(eq=False)
class Pid:
    """A persistent id: BINPERSID."""

    value: Any


@dataclass(eq=False)
class Text2:
    """A text that Python 2 wrote: SHORT_BINSTRING."""

    data: bytes


@dataclass(eq=False)
class Raw:
    """Opcodes as they are."""

    opcodes: bytes


class Assembler:
    """Opcodes that build an object; texts and names are put into the memo, as pickle does it."""

    def __init__(self) -> None:
        self._memo: dict[Any, int] = {}

    def code(self, obj: Any) -> bytes:
        """The opcodes of an object."""
        if isinstance(obj, (str, Global)):
            known = self._memo.get(obj)
            if known is not None:
                return b"h%c" % known if known < 256 else b"j" + struct.pack("<I", known)
            known = self._memo[obj] = len(self._memo)
            put = b"q%c" % known if known < 256 else b"r" + struct.pack("<I", known)
            if isinstance(obj, Global):
                return f"c{obj.module}\n{obj.name}\n".encode() + put
            data = obj.encode("utf-8", "surrogatepass")
            return b"X" + struct.pack("<I", len(data)) + data + put
        if isinstance(obj, OrderedDict):
            return self.code(Reduce(Global("collections", "OrderedDict"), (), items=obj.items()))
        return self._plain(obj)

    def _plain(self, obj: Any) -> bytes:
        if obj is None:
            return b"N"
        if isinstance(obj, bool):
            return b"\x88" if obj else b"\x89"
        if isinstance(obj, int):
            if 0 <= obj < 256:
                return b"K%c" % obj
            if 0 <= obj < 1 << 16:
                return b"M" + struct.pack("<H", obj)
            if -(1 << 31) <= obj < 1 << 31:
                return b"J" + struct.pack("<i", obj)
            data = obj.to_bytes(obj.bit_length() // 8 + 1, "little", signed=True)
            return b"\x8a%c" % len(data) + data
        if isinstance(obj, float):
            return b"G" + struct.pack(">d", obj)
        if isinstance(obj, tuple):
            codes = b"".join(map(self.code, obj))
            if not obj:
                return b")"
            return (
                codes + (b"", b"\x85", b"\x86", b"\x87")[len(obj)]
                if len(obj) < 4
                else (b"(" + codes + b"t")
            )
        if isinstance(obj, list):
            return b"](" + b"".join(map(self.code, obj)) + b"e" if obj else b"]"
        if isinstance(obj, dict):
            return b"}" + self._items(obj.items())
        return self._special(obj)

    def _items(self, items: Any) -> bytes:
        return b"(" + b"".join(self.code(k) + self.code(v) for k, v in items) + b"u"

    def _special(self, obj: Any) -> bytes:
        if isinstance(obj, Raw):
            return obj.opcodes
        if isinstance(obj, Text2):
            return b"U%c" % len(obj.data) + obj.data
        if isinstance(obj, Pid):
            return self.code(obj.value) + b"Q"
        assert isinstance(obj, Reduce), obj
        result = self.code(obj.function) + self.code(obj.args) + (b"\x81" if obj.new else b"R")
        if obj.items:
            result += self._items(obj.items)
        if obj.state is not None:
            result += self.code(obj.state) + b"b"
        return result


def dumps(obj: Any) -> bytes:
    """A whole pickle of protocol 2."""
    return b"\x80\x02" + Assembler().code(obj) + b"."


ORDERED = Global("collections", "OrderedDict")
PARAMETER = Global("torch.nn.parameter", "Parameter")


def steps(shape: Any) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def storage(
    key: Any, kind: Any, numel: Any, *, location: Any = "cpu", view: Any = None, short: bool = False
) -> Pid:
    """The persistent id of a storage; ``short``: as in zip files, which have no views."""
    kind = Global("torch", f"{kind}Storage") if isinstance(kind, str) else kind
    pid = ("storage", kind, key, location, numel)
    return Pid(pid if short else (*pid, view))


def v1(on: Any, offset: Any, shape: Any, strides: Any = None) -> Reduce:
    """A tensor as PyTorch wrote it before 0.4."""
    strides = steps(shape) if strides is None else strides
    return Reduce(Global("torch._utils", "_rebuild_tensor"), (on, offset, shape, strides))


def v2(on: Any, offset: Any, shape: Any, strides: Any = None, grad: Any = False) -> Reduce:
    """A tensor as PyTorch has written it since 0.4."""
    strides = steps(shape) if strides is None else strides
    args = (on, offset, shape, strides, grad, OrderedDict())
    return Reduce(Global("torch._utils", "_rebuild_tensor_v2"), args)


def early(
    on: Any, offset: Any, shape: Any, strides: Any = None, name: str = "FloatTensor"
) -> Reduce:
    """A tensor of the earliest stream files."""
    strides = steps(shape) if strides is None else strides
    return Reduce(Global("torch", name), (), state=(on, offset, shape, strides))


def parameter3(tensor: Any, *, new: bool = False) -> Reduce:
    """A parameter: made of its tensor, then its state of three."""
    return Reduce(PARAMETER, (tensor,), new, state=(True, False, OrderedDict()))


def parameter5(tensor: Any) -> Reduce:
    """A parameter: made of nothing, the tensor in its state of five."""
    return Reduce(PARAMETER, (), True, state=(tensor, None, OrderedDict(), True, False))


def parameter(tensor: Any) -> Reduce:
    """A parameter as PyTorch has written it since 1.0."""
    return Reduce(Global("torch._utils", "_rebuild_parameter"), (tensor, True, OrderedDict()))


# ------------------------------------------------------------------------------------------- stream

SYS_INFO = {
    "protocol_version": 1001,
    "little_endian": True,
    "type_sizes": {"short": 2, "int": 4, "long": 4},
}


def record(array: np.ndarray, numel: int | None = None) -> bytes:
    """Elements with their number before them, as stream and tar have them."""
    array = np.ascontiguousarray(array)
    return struct.pack("<q", array.size if numel is None else numel) + array.tobytes()


def stream(
    obj: Any,
    storages: dict[str, Any],
    *,
    magic: bytes | None = None,
    version: bytes | None = None,
    info: bytes | None = None,
    keys: Any = None,
    tail: bytes = b"",
) -> bytes:
    """A file of PyTorch 0.1.10 to 1.5. ``obj`` may be a pickle, values arrays or their records."""
    ordered = sorted(storages)
    body = [
        dumps(MAGIC) if magic is None else magic,
        dumps(1001) if version is None else version,
        dumps(SYS_INFO) if info is None else info,
        obj if isinstance(obj, bytes) else dumps(obj),
        keys if isinstance(keys, bytes) else dumps(ordered if keys is None else keys),
    ]
    for key in ordered:
        value = storages[key]
        body.append(value if isinstance(value, bytes) else record(value))
    return b"".join(body) + tail


# ---------------------------------------------------------------------------------------------- tar


def sealed(header: bytes) -> bytes:
    """A tar header with its checksum."""
    total = sum(header[:148]) + 8 * 32 + sum(header[156:])
    return header[:148] + b"%06o\0 " % total + header[156:]


def member(name: str, data: bytes, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A member of a tar file."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def archive(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """A tar file as PyTorch wrote it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


class Placed(NamedTuple):
    """A tensor in the member ``tensors``."""

    storage: Any
    shape: Any
    strides: Any = None
    offset: Any = 0
    kind: Any = "Float"


TAR_INFO = {**SYS_INFO, "protocol_version": 1000}


def tar_storages(
    storages: dict[Any, Any], views: Any = (), *, location: str = "cpu", kind: Any = None
) -> bytes:
    """The member ``storages``; values are arrays, or a kind and the bytes of a record."""
    body = [dumps(len(storages))]
    for key, value in storages.items():
        name, data = value if isinstance(value, tuple) else (None, record(value))
        name = name or kind or KINDS[value.dtype.name]
        name = Global("torch", f"{name}Storage") if isinstance(name, str) else name
        body += [dumps((key, location, name)), data]
    return b"".join(body) + (views if isinstance(views, bytes) else dumps(list(views)))


def tar_tensors(tensors: dict[Any, Placed]) -> bytes:
    """The member ``tensors``."""
    body = [dumps(len(tensors))]
    for key, t in tensors.items():
        strides = steps(t.shape) if t.strides is None else t.strides
        kind = Global("torch", f"{t.kind}Tensor") if isinstance(t.kind, str) else t.kind
        body.append(dumps((key, t.storage, kind)))
        body.append(struct.pack("<i", len(t.shape)) + b"\xde\xad\xbe\xef")  # 4 bytes of anything
        body.append(struct.pack(f"<{len(t.shape)}q", *t.shape))
        body.append(struct.pack(f"<{len(strides)}q", *strides))
        body.append(struct.pack("<q", t.offset))
    return b"".join(body)


def tar(
    obj: Any,
    storages: Any,
    tensors: Any,
    *,
    views: Any = (),
    info: bytes | None = None,
    extra: Any = (),
    **fields: Any,
) -> bytes:
    """A file of PyTorch before 0.1.10. ``obj``, ``storages`` and ``tensors`` may be bytes."""
    members = {
        "sys_info": dumps(TAR_INFO) if info is None else info,
        "pickle": obj if isinstance(obj, bytes) else dumps(obj),
        "tensors": tensors if isinstance(tensors, bytes) else tar_tensors(tensors),
        "storages": storages if isinstance(storages, bytes) else tar_storages(storages, views),
    }
    return archive([*(member(name, data, **fields) for name, data in members.items()), *extra])


# ---------------------------------------------------------------------------------------------- zip


@dataclass
class Entry:
    """A record of a zip file, and what its headers say of it."""

    name: str
    data: bytes
    method: int = 0
    flags: int = 0
    crc: int | None = None
    claimed: int | None = None
    local_name: str | None = None


def zip_bytes(entries: list[Entry], *, start: bytes = b"", comment: bytes = b"") -> bytes:
    """A zip file whose data are aligned to 64 bytes by an extra field, as PyTorch does it."""
    out, directory = [start], b""
    position = len(start)
    for e in entries:
        name, local = e.name.encode(), (e.local_name or e.name).encode()
        stored = e.data if e.method == 0 else zlib.compress(e.data)[2:-4]
        crc = zlib.crc32(e.data) if e.crc is None else e.crc
        size = len(e.data) if e.claimed is None else e.claimed
        sizes = struct.pack("<III", crc, len(stored) if e.method else size, size)
        fields = struct.pack("<HHHHH", 20, e.flags, e.method, 0, 0x5221)
        pad = -(position + 30 + len(local) + 4) % 64
        extra = struct.pack("<HH", 0x4246, pad) + b"Z" * pad
        head = b"PK\x03\x04" + fields + sizes + struct.pack("<HH", len(local), len(extra)) + local
        directory += b"PK\x01\x02\x14\x00" + fields + sizes
        directory += struct.pack("<HHHHHII", len(name), 0, 0, 0, 0, 0, position) + name
        out += [head, extra, stored]
        position += len(head) + len(extra) + len(stored)
    count = len(entries)
    end = struct.pack("<HHHHIIH", 0, 0, count, count, len(directory), position, len(comment))
    return b"".join(out) + directory + b"PK\x05\x06" + end + comment


def zip_entries(
    obj: Any, storages: dict[str, Any], *, root: str = "archive", byteorder: str | None = "little"
) -> list[Entry]:
    """The records of a file of PyTorch 1.6 and later."""
    entries = [Entry(f"{root}/data.pkl", obj if isinstance(obj, bytes) else dumps(obj))]
    if byteorder is not None:
        entries.append(Entry(f"{root}/byteorder", byteorder.encode()))
    for key, value in storages.items():
        data = value if isinstance(value, bytes) else np.ascontiguousarray(value).tobytes()
        entries.append(Entry(f"{root}/data/{key}", data))
    return [*entries, Entry(f"{root}/version", b"3\n")]


def zipped(obj: Any, storages: dict[str, Any], **how: Any) -> bytes:
    """A file of PyTorch 1.6 and later; see `zip_entries`."""
    return zip_bytes(zip_entries(obj, storages, **how))


def local_header(data: bytes, entry: str, **fields: int) -> bytes:
    """A zip file with fields of one record's own header changed."""
    places = {
        "flags": (6, "<H"),
        "method": (8, "<H"),
        "crc": (14, "<I"),
        "packed": (18, "<I"),
        "size": (22, "<I"),
    }
    at = zipfile.ZipFile(io.BytesIO(data)).getinfo(entry).header_offset
    changed = bytearray(data)
    for name, value in fields.items():
        place, layout = places[name]
        struct.pack_into(layout, changed, at + place, value)
    return bytes(changed)


def in_directory(data: bytes, place: int, value: bytes) -> bytes:
    """A zip file with a field of its directory's last entry (that of the version) changed."""
    at = data.rindex(b"PK\x01\x02") + place
    return data[:at] + value + data[at + len(value) :]


# -------------------------------------------------------------------------------- whole state dicts


def safetensors(arrays: dict[str, np.ndarray]) -> bytes:
    """A safetensors file."""
    header, position = {}, 0
    for name, array in arrays.items():
        end = position + array.nbytes
        code = CODES[array.dtype.name]
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, ensure_ascii=False).encode()
    data = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())
    return struct.pack("<Q", len(text)) + text + data


def state_dict(arrays: dict[str, np.ndarray], format: str) -> bytes:
    """Arrays, each on a storage of its own, as PyTorch wrote a state dict in that format."""
    if format == "safetensors":
        return safetensors(arrays)
    state: OrderedDict[str, Any] = OrderedDict()
    if format == "tar":
        tensors = {}
        for i, (name, array) in enumerate(arrays.items()):
            kind = KINDS[array.dtype.name]
            tensors[70000 + 2 * i] = Placed(70001 + 2 * i, array.shape, kind=kind)
            tensor = Pid(str(70000 + 2 * i))
            state[name] = parameter5(tensor) if array.dtype.kind == "f" else tensor
        return tar(state, {70001 + 2 * i: a for i, a in enumerate(arrays.values())}, tensors)
    storages = {str(i): array for i, array in enumerate(arrays.values())}
    for (name, array), key in zip(arrays.items(), storages):
        kind = KINDS[array.dtype.name]
        on = storage(key, kind, array.size, short=format == "zip")
        state[name] = (v1 if format == "stream" else v2)(on, 0, array.shape)
    metadata = {"_metadata": OrderedDict({"": {"version": 1}})}
    obj = Reduce(ORDERED, (), items=state.items(), state=metadata)
    return stream(obj, storages) if format == "stream" else zipped(obj, storages)
