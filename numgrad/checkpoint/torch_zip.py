"""The zip format of ``torch.save``, written since PyTorch 1.6: reading.

::

    <root>/data.pkl                     the object; it refers to storages by their keys
    <root>/data/<key>                   the elements of a storage, nothing else
    <root>/version, <root>/byteorder …  a few characters each

All records are stored as they are. The archive is read strictly: what its directory says must be
what stands in the records' own headers, and headers, records and directory must cover the file
without a gap, so that no byte can be read in two ways.

Source of the layout: APPNOTE.TXT of PKWARE, 4.3 and 4.5.3; of the contents: PyTorch's
``torch.serialization`` and its documentation, "Serialization semantics".
"""

import struct
import zlib
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from .allowlist import finish
from .contents import NAMES, Contents, Stored, short
from .limits import MAX_PICKLE_BYTES, MAX_RECORDS, MAX_SMALL_RECORD_BYTES
from .pickles import Interpreter
from .source import Cursor, Source
from .symbols import StorageId, storage_id

START = b"PK\x03\x04"
FORMAT = "PyTorch zip (torch.save since 1.6)"
FILES = (b".pth", b".pt", b".ckpt", b".bin", b".tar", b".npz", b".safetensors")
"""What names of checkpoints end in; no record of torch.save is called so."""
CHUNK = 1 << 20

LOCAL = struct.Struct("<4s5H3I2H")
ENTRY = struct.Struct("<4s6H3I5H2I")
END = struct.Struct("<4s4H2IH")
LOCATOR = struct.Struct("<4sIQI")
END64 = struct.Struct("<4sQ2H2I4Q")
DESCRIPTOR_FLAG, UTF8_FLAG = 1 << 3, 1 << 11
ONES16, ONES32 = 0xFFFF, 0xFFFFFFFF
"""What a field holds whose value stands in a 64-bit field elsewhere."""

DIRECTORY = "zip directory"
SCRIPT = (
    "a TorchScript archive, which holds a program; load it with torch.jit.load and re-save its "
    "state_dict() with torch.save"
)


class Record(NamedTuple):
    """A record of the archive: bytes ``start`` to ``start + size`` of the file."""

    name: bytes
    start: int
    size: int
    crc: int

    @property
    def where(self) -> str:
        """The record in errors."""
        return f"record {_shown(self.name)}"


class _Entry(NamedTuple):
    """What the directory says of a record; ``offset`` is that of the record's header."""

    name: bytes
    flags: int
    crc: int
    size: int
    offset: int


# ------------------------------------------------------------------------------------- the archive


def read_archive(source: Source) -> list[Record]:
    """The records of a zip archive that fills the file, in the order of their bytes.

    Raises:
        CheckpointError: the archive is malformed, cut off, compressed or encrypted, or has two
            records of one name, or bytes that belong to nothing.
    """
    start, stop, count = _end(source)
    cursor = Cursor(source, start, stop, DIRECTORY)
    entries = [_entry(cursor) for _ in range(count)]
    if cursor.position != stop:
        raise cursor.error("bytes that belong to no entry")
    entries.sort(key=lambda entry: entry.offset)
    ends = [entry.offset for entry in entries[1:]] + [start]
    if (entries[0].offset if entries else start) != 0:
        raise source.error(DIRECTORY, "bytes before the first record that belong to nothing")
    if len({entry.name for entry in entries}) != count:
        name = Counter(entry.name for entry in entries).most_common(1)[0][0]
        raise source.error(DIRECTORY, f"two records {_shown(name)}")
    return [_record(source, entry, end) for entry, end in zip(entries, ends)]


def _shown(name: bytes) -> str:
    """The name of a record in errors."""
    return short(name.decode("utf-8", "replace"))


def _end(source: Source) -> tuple[int, int, int]:
    """Where the directory begins and ends, and how many entries it has."""
    stop = source.size - END.size
    if stop < 0:
        raise source.error(DIRECTORY, f"{source.size} bytes, too few for a zip archive")
    end = END.unpack(source.read(stop, END.size, DIRECTORY))
    if end[0] != b"PK\x05\x06" or end[-1]:
        raise source.error(
            DIRECTORY,
            "the zip archive does not end where the file does; it is cut off, or something follows",
        )
    disk, first_disk, here, count, size, start = end[1:7]
    locator = (b"", 0, 0, 0)
    if stop >= LOCATOR.size + END64.size:
        at = stop - LOCATOR.size
        locator = LOCATOR.unpack(source.read(at, LOCATOR.size, DIRECTORY))
    if locator[0] == b"PK\x06\x07":
        stop = at - END64.size
        end64 = END64.unpack(source.read(stop, END64.size, DIRECTORY))
        if end64[0] != b"PK\x06\x06" or end64[1] != END64.size - 12 or locator[1:] != (0, stop, 1):
            raise source.error(DIRECTORY, "its 64-bit end is malformed")
        for old, new, ones in zip(end[1:7], end64[4:], [ONES16] * 4 + [ONES32] * 2):
            if old not in (new, ones):
                raise source.error(DIRECTORY, f"its two ends disagree: {old} and {new}")
        disk, first_disk, here, count, size, start = end64[4:]
    if disk or first_disk or here != count:
        raise source.error(DIRECTORY, "a part of a zip archive of several files")
    if start + size != stop or count * ENTRY.size > size:
        raise source.error(
            DIRECTORY,
            f"its end at byte {stop} does not fit {count} entries, {size} bytes from {start} on",
        )
    if count > MAX_RECORDS:
        raise source.error(DIRECTORY, f"{count} records, more than {MAX_RECORDS}")
    return start, stop, count


def _entry(cursor: Cursor) -> _Entry:
    fields = ENTRY.unpack(cursor.read(ENTRY.size))
    sign, _, _, flags, method, _, _, crc, packed, size, n_name, n_extra, n_comment, disk = fields[
        :14
    ]
    if sign != b"PK\x01\x02":
        raise cursor.error("no entry where one was expected")
    name, extra = cursor.read(n_name), cursor.read(n_extra)
    if flags & 1:
        raise cursor.error(f"the record {_shown(name)} is encrypted")
    if method:
        raise cursor.error(_packed(name))
    if flags & ~(DESCRIPTOR_FLAG | UTF8_FLAG):
        raise cursor.error(f"the record {_shown(name)} has the flags {flags:#x}")
    if n_comment or disk:
        raise cursor.error(f"the record {_shown(name)} has a comment, or lies in another file")
    size, packed, offset = _wide(cursor.source, DIRECTORY, extra, (size, packed, fields[-1]))
    if size != packed:
        raise cursor.error(f"the record {_shown(name)} has {size} bytes stored in {packed}")
    return _Entry(name, flags, crc, size, offset)


def _is_script(name: bytes) -> bool:
    """Whether only TorchScript's archives have a record of this name."""
    return name.endswith(b"/constants.pkl") or b"/code/" in name


def _packed(name: bytes) -> str:
    """Why a compressed record is refused."""
    if _is_script(name):
        return SCRIPT
    if name.endswith(b".npy"):
        return "a compressed .npz archive; load it with numpy.load and save it with numpy.savez"
    if name.endswith(FILES):
        return f"a zip archive with the file {_shown(name)} in it; unpack it, and load that"
    return (
        f"the record {_shown(name)} is compressed, which torch.save never does; unpack the "
        "archive and pack it without compression, or save again"
    )


def _wide(source: Source, where: str, extra: bytes, values: Iterable[int]) -> list[int]:
    """The values with those that do not fit 32 bits from the extra field."""
    wide = b""
    at = 0
    while at < len(extra):
        kind, length = struct.unpack_from("<2H", extra + b"\0\0\0", at)
        if at + 4 + length > len(extra):
            raise source.error(where, "an extra field that is cut off")
        if kind == 1:
            wide = extra[at + 4 : at + 4 + length]
        at += 4 + length
    found = []
    for value in values:
        if value == ONES32 and wide:
            if len(wide) < 8:
                raise source.error(where, "a 64-bit extra field that is cut off")
            value, wide = int.from_bytes(wide[:8], "little"), wide[8:]
        found.append(value)
    return found


def _record(source: Source, entry: _Entry, stop: int) -> Record:
    """The record whose header, bytes and descriptor reach up to ``stop``."""
    where = f"record {_shown(entry.name)}"
    wrong = source.error(where, "its header is not what the zip directory says")
    fields = LOCAL.unpack(source.read(entry.offset, LOCAL.size, where))
    sign, _, flags, method, _, _, crc, packed, size, n_name, n_extra = fields
    start = entry.offset + LOCAL.size + n_name + n_extra
    if sign != START or (flags, method, n_name) != (entry.flags, 0, len(entry.name)):
        raise wrong
    texts = source.read(entry.offset + LOCAL.size, n_name + n_extra, where)
    size, packed = _wide(source, where, texts[n_name:], (size, packed))
    late = flags & DESCRIPTOR_FLAG  # the descriptor has what is 0 here
    if texts[:n_name] != entry.name or any(
        said != true and not (late and said == 0)
        for said, true in ((crc, entry.crc), (size, entry.size), (packed, entry.size))
    ):
        raise wrong
    end = start + entry.size
    if end > stop:
        raise source.error(where, f"it ends at byte {end}, beyond the next one's start at {stop}")
    left = source.read(end, min(stop - end, 25), where)
    if late and (left or entry.size):
        # Four or eight bytes for each of the sizes; PyTorch writes a sign before all.
        crc_bytes = struct.pack("<I", entry.crc)
        known = [crc_bytes + struct.pack("<Q", entry.size) * 2]
        if entry.size < ONES32:
            known.append(crc_bytes + struct.pack("<I", entry.size) * 2)
        if left.removeprefix(b"PK\x07\x08") not in known:
            raise source.error(where, "its descriptor is not what the zip directory says")
    elif left:
        raise source.error(where, f"{stop - end} bytes after it that belong to nothing")
    return Record(entry.name, start, entry.size, entry.crc)


def crc_of(source: Source, record: Record) -> int:
    """The CRC-32 of a record's bytes."""
    crc = 0
    for at in range(0, record.size, CHUNK):
        count = min(CHUNK, record.size - at)
        crc = zlib.crc32(source.read(record.start + at, count, record.where), crc)
    return crc


# ------------------------------------------------------------------------------------ the contents


def read(source: Source) -> Contents:
    """Read the pickle of a file of ``torch.save``, and where its storages lie.

    Raises:
        CheckpointError: the archive or the pickle is damaged, wants more than data, or the two do
            not fit each other.
    """
    archive = read_archive(source)
    root = _root(source, archive)
    records = {record.name.removeprefix(root): record for record in archive}
    storages = {
        name.removeprefix(b"data/"): records.pop(name)
        for name in list(records)
        if name.startswith(b"data/")
    }
    # torch.serialization.set_crc32_options(False) writes 0 for each.
    unchecked = not any(record.crc for record in archive)
    pickle = records.pop(b"data.pkl")
    if pickle.size > MAX_PICKLE_BYTES:
        raise source.error(pickle.where, f"{pickle.size} bytes, more than {MAX_PICKLE_BYTES}")
    if not unchecked and crc_of(source, pickle) != pickle.crc:
        raise source.error(pickle.where, "its CRC is wrong: the bytes were damaged")
    swap = False
    for name, record in records.items():
        value = _small(source, record, name, unchecked)
        if name == b"byteorder":
            swap = value == b"big"
    obj = _object(source, pickle, storages, swap, unchecked)
    notes = ["written without checksums: damage would not be noticed"] if unchecked else []
    return Contents(FORMAT, obj, notes)


def _root(source: Source, archive: list[Record]) -> bytes:
    """What all names begin with, the slash included."""
    found = [r.name[: -len(b"data.pkl")] for r in archive if r.name.endswith(b"/data.pkl")]
    names = [record.name for record in archive]
    if any(map(_is_script, names)):
        raise source.error(DIRECTORY, SCRIPT)
    files = [name for name in names if name.endswith(FILES)]
    if not found and files:
        reason = f"a zip archive with the file {_shown(files[0])} in it; unpack it, and load that"
        raise source.error(DIRECTORY, reason)
    if len(found) != 1:
        count = len(found) or "no"
        raise source.error(DIRECTORY, f"{count} records data.pkl; archives of torch.save have one")
    root = found[0]
    if b"/" in root[:-1] or any(c < 32 or c == 127 for c in root) or len(root) == 1:
        raise source.error(DIRECTORY, f"{_shown(root[:-1])} as the folder of data.pkl")
    for name in names:
        if not name.startswith(root):
            raise source.error(
                DIRECTORY, f"the record {_shown(name)} outside of the folder {_shown(root[:-1])}"
            )
    return root


def _small(source: Source, record: Record, name: bytes, unchecked: bool) -> bytes:
    """The bytes of a record that is neither the pickle nor a storage, if they are in order."""
    if name not in KNOWN:
        raise source.error(record.where, "an archive of torch.save has no such record")
    if record.size > MAX_SMALL_RECORD_BYTES:
        raise source.error(record.where, f"{record.size} bytes, more than {MAX_SMALL_RECORD_BYTES}")
    if not unchecked and crc_of(source, record) != record.crc:
        raise source.error(record.where, "its CRC is wrong: the bytes were damaged")
    value = source.read(record.start, record.size, record.where)
    if KNOWN[name] == "number" and not value.removesuffix(b"\n").isdigit():
        raise source.error(record.where, f"{short(value)} is no number")
    if name == b"byteorder" and value not in (b"little", b"big"):
        raise source.error(record.where, f"{short(value)} is neither little nor big")
    return value


KNOWN = {
    b"version": "number",
    b".data/version": "number",
    b".format_version": "number",
    b".storage_alignment": "number",
    b"byteorder": "order",
    b".data/serialization_id": "text",
}
"""Records beside the pickle and the storages."""


def _elements(ident: StorageId) -> str:
    return f"{short(ident.numel)} elements of {NAMES.get(ident.code, 'one byte')}"


def _object(
    source: Source, pickle: Record, records: dict[bytes, Record], swap: bool, unchecked: bool
) -> Any:
    found: dict[str, tuple[StorageId, Stored]] = {}

    def storage(pid: Any) -> Stored:
        ident = storage_id(source, pickle.where, pid)
        where = f"storage {short(ident.key)}"
        if ident.view is not None:
            raise source.error(where, "a view of a storage, which this format has not")
        known = found.get(ident.key)
        if known is not None:
            if known[0] != ident:
                raise source.error(
                    where,
                    f"{_elements(known[0])}, and elsewhere in the pickle {_elements(ident)}",
                )
            return known[1]
        record = records.get(ident.key.encode("utf-8"))
        if record is None:
            raise source.error(where, f"the archive has no record data/{ident.key[:100]} for it")
        stored = Stored(
            ident.code,
            ident.numel,
            where,
            start=record.start,
            swap=swap,
            crc=None if unchecked else record.crc,
        )
        if stored.nbytes != record.size:
            raise source.error(
                where,
                f"{_elements(ident)} in {short(stored.nbytes)} bytes, the record has {record.size}",
            )
        found[ident.key] = ident, stored
        return stored

    cursor = Cursor(source, pickle.start, pickle.start + pickle.size, pickle.where)
    obj = Interpreter(source).run(cursor, storage)
    if cursor.position != cursor.stop:
        raise cursor.error(f"{cursor.stop - cursor.position} bytes after the end of the pickle")
    obj = finish(source, obj)
    for key in records.keys() - {key.encode("utf-8") for key in found}:
        raise source.error(records[key].where, "a storage that the pickle does not use")
    return obj
