"""The zip format of ``torch.save``: writing. The layout is described in `torch_zip`.

What is written is what ``torch.save`` writes: whole storages, so that tensors that share memory
share it again, each at a multiple of 64 bytes. The same object gives the same bytes.
"""

import struct
import zlib
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

import numpy as np

from ..graph.value import make
from ..kernels.cuda.array import DeviceArray
from .atomic import write_all
from .contents import contiguous_strides
from .elements import data_bytes
from .limits import SMALL_EXPANSION_BYTES
from .pickle_writer import Place, Plain, pickle_of
from .torch_zip import (
    DESCRIPTOR_FLAG,
    END,
    END64,
    ENTRY,
    LOCAL,
    LOCATOR,
    ONES16,
    ONES32,
    START,
    UTF8_FLAG,
)

ROOT = "archive"
"""The folder in the archive, as ``torch.save`` names it for an open file. Named after the file, the
bytes would depend on it."""

ALIGNMENT = 64  # of the storages

FLAGS = DESCRIPTOR_FLAG | UTF8_FLAG
VERSION = 45  # of the zip format: 4.5, the first with 64-bit sizes
DATE = 0x21  # 1980-01-01


def prepared(obj: Any) -> Callable[[BinaryIO], None]:
    """What writes an object that was found fit to be saved, as ``torch.save`` does.

    Raises:
        TypeError: the object holds something that cannot be saved; the text names the place.
        ValueError: it holds too much beside tensors.
    """
    plain = Plain(obj)
    plan = _Plan(plain.tensors)
    pickle = pickle_of(plain.obj, plan.place)

    def write(out: BinaryIO) -> None:  # storage by storage, without a copy of them all
        archive = Archive(out, ROOT + "/")
        archive.add("data.pkl", len(pickle), [pickle])
        archive.add("byteorder", 6, [b"little"])
        for key, run in enumerate(plan.runs):
            archive.add(f"data/{key}", run.nbytes, [run.data()])
        archive.add("version", 2, [b"3\n"])
        archive.close()

    return write


# ------------------------------------------------------------------------------------ the storages


class _Run:
    """Elements that become one storage: ``array`` is contiguous, one axis, maybe on a device."""

    def __init__(self, array: Any, tensor: Any) -> None:
        self.array, self._tensor = array, tensor
        self.numel, self.nbytes = int(array.size), int(array.nbytes)

    def data(self) -> memoryview:
        """The bytes as the file has them."""
        on_device = isinstance(self.array, DeviceArray)
        return data_bytes(make(self.array, self._tensor.storage) if on_device else self.array)


class _Plan:
    """Which storages there will be (``runs``), and where each tensor lies in them."""

    def __init__(self, tensors: list[Any]) -> None:
        self.runs: list[_Run] = []
        self._places: dict[int, Place] = {}
        groups: dict[Any, list[Any]] = {}
        for tensor in tensors:
            groups.setdefault((id(tensor.storage), tensor.dtype), []).append(tensor)
        for group in groups.values():
            self._place_group(group)

    def place(self, tensor: Any) -> Place:
        """Where a tensor lies."""
        return self._places[id(tensor)]

    def _place_group(self, group: list[Any]) -> None:
        """Place tensors of one block of memory and one dtype."""
        regular = [tensor for tensor in group if _is_regular(tensor.array)]
        whole = _whole(group, regular)
        run = key = None
        for tensor in group:
            array = tensor.array
            offset, left = divmod(_address(array) - _address(whole), array.itemsize)
            if not array.size:
                offset = left = 0
            if (
                left
                or offset < 0
                or not _is_regular(array)
                # Expanded: a reader takes no more bytes than the file has, at least these.
                or array.nbytes > max(whole.nbytes, SMALL_EXPANSION_BYTES)
            ):
                strides = contiguous_strides(tensor.shape)
                self.runs.append(_Run(array if array.ndim else array.reshape(1), tensor))
                own = str(len(self.runs) - 1)
                self._places[id(tensor)] = Place(own, int(array.size), 0, strides)
                continue
            if run is None:
                run, key = _Run(whole, tensor), str(len(self.runs))
                self.runs.append(run)
            strides = tuple(step // array.itemsize for step in array.strides)
            self._places[id(tensor)] = Place(str(key), run.numel, offset, strides)


def _is_regular(array: Any) -> bool:
    """Whether PyTorch can have a tensor of this geometry."""
    return all(step >= 0 and step % array.itemsize == 0 for step in array.strides)


def _address(array: Any) -> int:
    """Byte of the first element: in the machine's memory, or in its block on a device."""
    if isinstance(array, DeviceArray):
        return array.offset
    address: int = array.__array_interface__["data"][0]
    return address


def _whole(group: list[Any], regular: list[Any]) -> Any:
    """All elements of the memory that tensors are views of, on one axis.

    Of memory from outside, whose bounds nobody knows, those between the first and the last element
    of the regular tensors.
    """
    first = group[0]
    itemsize, storage = first.dtype.itemsize, first.storage
    if isinstance(first.array, DeviceArray):
        numel = storage.nbytes // itemsize
        return DeviceArray(first.array.block, 0, (numel,), (itemsize,), first.dtype)
    for tensor in group:
        root = tensor.array
        while type(root.base) is np.ndarray:
            root = root.base
        if not root.flags.c_contiguous:
            root = root.T
        if storage.owned and root.nbytes == storage.nbytes and root.flags.c_contiguous:
            numel = root.nbytes // itemsize
            return np.ndarray((numel,), first.dtype, root)
    arrays = [tensor.array for tensor in regular if tensor.array.size]
    if not arrays:
        return np.empty(0, first.dtype)
    lowest = min(arrays, key=_address)
    stop = max(
        _address(a) + sum((n - 1) * s for n, s in zip(a.shape, a.strides)) + itemsize
        for a in arrays
    )
    numel = (stop - _address(lowest)) // itemsize
    return np.lib.stride_tricks.as_strided(lowest, (numel,), (itemsize,), writeable=False)


# ------------------------------------------------------------------------------------- the archive


class Archive:
    """A zip archive being written to a file that need not be able to seek.

    ``root`` is what all names begin with.
    """

    def __init__(self, out: BinaryIO, root: str = "") -> None:
        self._out, self._root = out, root
        self._position = 0
        self._directory: list[bytes] = []

    def _write(self, data: Any) -> None:
        write_all(self._out, data)
        self._position += len(memoryview(data))

    def add(self, name: str, size: int, chunks: Iterable[Any]) -> None:
        """A record of ``size`` bytes; its CRC follows it, so that the bytes are read once."""
        full = f"{self._root}{name}".encode()
        offset = self._position
        wide = size >= ONES32
        sizes = struct.pack("<2HQQ", 1, 16, 0, 0) if wide else b""
        # PyTorch, too, fills up with an extra field of this name.
        padding = -(offset + LOCAL.size + len(full) + len(sizes) + 4) % ALIGNMENT
        extra = sizes + struct.pack("<2s1H", b"FB", padding) + b"Z" * padding
        said = ONES32 if wide else 0
        self._write(
            LOCAL.pack(START, VERSION, FLAGS, 0, 0, DATE, 0, said, said, len(full), len(extra))
            + full
            + extra
        )
        crc, written = 0, 0
        for chunk in chunks:
            crc = zlib.crc32(chunk, crc)
            written += len(chunk)
            self._write(chunk)
        assert written == size, (name, written, size)
        self._write(struct.pack("<4sIQQ" if wide else "<4sIII", b"PK\x07\x08", crc, size, size))
        narrow = [ONES32 if n >= ONES32 else n for n in (size, size, offset)]
        values = [n for n in (size, size, offset) if n >= ONES32]
        extra = struct.pack(f"<2H{len(values)}Q", 1, 8 * len(values), *values) if values else b""
        self._directory.append(
            ENTRY.pack(
                b"PK\x01\x02", VERSION, VERSION, FLAGS, 0, 0, DATE, crc, narrow[0], narrow[1],
                len(full), len(extra), 0, 0, 0, 0, narrow[2],
            )
            + full
            + extra
        )  # fmt: skip

    def close(self) -> None:
        """Write the directory."""
        start, count = self._position, len(self._directory)
        for entry in self._directory:
            self._write(entry)
        size = self._position - start
        end = self._position
        self._write(
            END64.pack(
                b"PK\x06\x06", END64.size - 12, VERSION, VERSION, 0, 0, count, count, size, start
            )
            + LOCATOR.pack(b"PK\x06\x07", 0, end, 1)
            + END.pack(
                b"PK\x05\x06", 0, 0, min(count, ONES16), min(count, ONES16), min(size, ONES32),
                min(start, ONES32), 0,
            )
        )  # fmt: skip
