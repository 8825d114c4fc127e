"""The tar files that ``torch.save`` wrote before PyTorch 0.1.10.

Four members: ``sys_info``; ``storages``, the elements; ``tensors``, the tensors on them; and
``pickle``, the object, whose persistent ids are the decimal keys of tensors.

::

    storages   pickle: N
               N times: pickle: (key, location, class of storage); int64 number of elements;
               the elements
               pickle: a list of views (key, key of the storage, offset, number of elements)
    tensors    pickle: M
               M times: pickle: (key, key of the storage, class of tensor); int32 number of axes;
               4 bytes of anything; int64 sizes; int64 strides; int64 offset

Numbers are little endian. Nothing is ever unpacked: the members are read where they lie.

Sources: PyTorch, torch/serialization.py, ``legacy_load``; POSIX.1-2001, pax Interchange Format.
"""

from typing import Any

from .allowlist import finish
from .contents import RAW, Contents, Spec, Stored, make_spec, natural, short
from .limits import MAX_DIMENSIONS, MAX_TAR_EXTENSION_BYTES
from .pickles import Interpreter
from .source import Cursor, Source
from .symbols import Global, Text

BLOCK = 512
RECORD = 20 * BLOCK
"""The size of a tar file is a multiple of this."""
MEMBERS = ("sys_info", "pickle", "tensors", "storages")
VERSION = 1000
FORMAT = "PyTorch tar (torch.save before 0.1.10)"


def read(source: Source) -> Contents:
    """What the file holds; of the elements nothing is read but their numbers.

    Raises:
        CheckpointError: it is not what the format asks for.
    """
    places = members(source)
    interpreter = Interpreter(source)

    def part(name: str) -> Cursor:
        return Cursor(source, *places[name], name)

    cursor = part("sys_info")
    info = interpreter.run(cursor)
    if type(info) is not dict or info.get("protocol_version") != VERSION:
        raise cursor.error(f"no protocol version {VERSION}")
    _at_end(cursor)
    cursor = part("storages")
    storages = _storages(interpreter, cursor)
    _at_end(cursor)
    cursor = part("tensors")
    known = {**storages, **_tensors(interpreter, cursor, storages)}
    _at_end(cursor)
    cursor = part("pickle")

    def persistent(pid: Any) -> Any:
        if type(pid) is tuple:  # a class, the file that defines it, its source text
            raise cursor.error("a whole module, which is code; save its state_dict() instead")
        decimal = type(pid) in (str, Text) and pid.isascii() and pid.isdecimal()
        if not decimal or len(pid) > 20 or int(pid) not in known:
            raise cursor.error(f"it refers to {short(pid)}, no tensor or storage of the file")
        return known[int(pid)]

    obj = interpreter.run(cursor, persistent)
    _at_end(cursor)
    return Contents(FORMAT, finish(source, obj))


def _at_end(cursor: Cursor) -> None:
    if cursor.position != cursor.stop:
        raise cursor.error(f"{cursor.stop - cursor.position} bytes after the end of this member")


# -------------------------------------------------------------------------------------- the members


def members(source: Source) -> dict[str, tuple[int, int]]:
    """Where the data of each member begin and end.

    Raises:
        CheckpointError: the file is no tar file of the four members, or has anything else in it.
    """
    if source.size % RECORD:
        raise source.error(
            "end of file",
            f"{source.size} bytes, no multiple of a tar file's {RECORD}; it may be cut off",
        )
    found: dict[str, tuple[int, int]] = {}
    position, extended, where = 0, -1, ""
    while (header := source.read(position, BLOCK, f"tar header, byte {position}")).strip(b"\0"):
        where = f"tar header, byte {position}"
        kind, name, size = _header(source, where, header)
        start = position + BLOCK
        position = start + size + -size % BLOCK
        if position > source.size:
            raise source.error(where, f"a member of {size} bytes; the file may be cut off")
        if source.read(start + size, -size % BLOCK, where).strip(b"\0"):
            raise source.error(where, "bytes behind the end of a member")
        if kind == "x":
            if extended == start - BLOCK:
                raise source.error(where, "two extended headers for one member")
            _check_extension(source, where, start, size)
            extended = position
            continue
        if name not in MEMBERS:
            raise source.error(where, f"an unknown member {name!r:.200}")
        if name in found:
            raise source.error(where, f"the member {name} twice")
        found[name] = start, start + size
    if extended == position:
        raise source.error(where, "an extended header without a member")
    if source.size - position > RECORD + BLOCK:
        raise source.error("end of file", f"{source.size - position} bytes after the last member")
    if source.read(position, source.size - position, "end of file").strip(b"\0"):
        raise source.error("end of file", "bytes after the last member")
    missing = [name for name in MEMBERS if name not in found]
    if missing:
        raise source.error("end of file", f"the member {missing[0]} is missing")
    return found


def _header(source: Source, where: str, header: bytes) -> tuple[str, str, int]:
    """Kind, name and size of a member: "0" is a plain file, "x" an extension for the next one."""
    checksum = _octal(source, where, header[148:156])
    if checksum != sum(header) - sum(header[148:156]) + 8 * ord(" "):
        raise source.error(where, "its checksum is wrong: the bytes were damaged")
    if header[257:265] != b"ustar\x0000":
        raise source.error(where, "no header of a tar file")
    kind = header[156:157].replace(b"\0", b"0")
    if kind not in (b"0", b"x"):
        kinds = {b"1": "link", b"2": "link", b"3": "device", b"4": "device", b"5": "folder"}
        raise source.error(
            where, f"a {kinds.get(kind, 'member of an unknown kind')}, no plain file"
        )
    if header[157:257].strip(b"\0") or header[345:500].strip(b"\0"):
        raise source.error(where, "a link's target or a folder before the name")
    name = header[:100].split(b"\0")[0].decode("latin-1").removeprefix("./")
    return kind.decode(), name, _octal(source, where, header[124:136])


def _octal(source: Source, where: str, field: bytes) -> int:
    digits = field.strip(b" \0")
    if not digits or digits.strip(b"01234567"):
        raise source.error(where, f"no octal number: {short(field)}")
    return int(digits, 8)


def _check_extension(source: Source, where: str, start: int, size: int) -> None:
    """Times and owners, which are not used: records ``"{length} {name}={value}\\n"``, no others."""
    if size > MAX_TAR_EXTENSION_BYTES:
        raise source.error(where, f"an extended header of {size} bytes")
    data = source.read(start, size, where)
    at = 0
    while at < size:
        digits = data[at : at + 8].split(b" ")[0]
        stop = at + (int(digits) if digits.isdigit() else 0)
        name, equals, _ = data[at + len(digits) + 1 : stop].partition(b"=")
        if not at < stop <= size or data[stop - 1 : stop] != b"\n" or not equals:
            raise source.error(where, "an extended header that is malformed")
        if name not in (b"mtime", b"atime", b"ctime", b"uid", b"gid", b"uname", b"gname"):
            raise source.error(where, f"an extended header that sets {short(name)}")
        at = stop


# ---------------------------------------------------------------------------- storages and tensors


def _count(interpreter: Interpreter, cursor: Cursor, least: int) -> int:
    """A number of things of which each takes at least so many bytes."""
    count = interpreter.run(cursor)
    if not natural(count) or count * least > cursor.stop - cursor.position:
        raise cursor.error(f"{short(count)} entries, more than there is room for")
    return count


def _entry(interpreter: Interpreter, cursor: Cursor, known: dict[int, Any]) -> tuple[Any, ...]:
    """The three things that stand before a storage or a tensor, of which the first is a new key."""
    entry = interpreter.run(cursor)
    if type(entry) is not tuple or len(entry) != 3 or type(entry[2]) is not Global:
        raise cursor.error(f"an entry that is {short(entry)}, no (key, …, class)")
    _new_key(interpreter, cursor, entry[0], known)
    return entry


def _new_key(interpreter: Interpreter, cursor: Cursor, key: Any, known: dict[int, Any]) -> None:
    if not natural(key) or key >= 1 << 64:
        raise cursor.error(f"a key that is {short(key)}, no address")
    if not interpreter.keys.allows(id(known), len(known), key):
        raise cursor.error("too many storages and tensors")
    if key in known:
        raise cursor.error(f"the key {key} twice")


def _storages(interpreter: Interpreter, cursor: Cursor) -> dict[int, Stored]:
    found: dict[int, Stored] = {}
    for _ in range(_count(interpreter, cursor, 8)):
        key, _, kind = _entry(interpreter, cursor, found)
        if kind.storage in (None, RAW):  # this format is older than storages without a dtype
            raise cursor.error(f"a storage of {kind.full}, no class of storages")
        numel = cursor.int64()
        stored = found[key] = Stored(kind.storage, numel, f"storage {key}", cursor.position)
        if numel < 0 or stored.nbytes > cursor.stop - cursor.position:
            raise cursor.error(f"{numel} elements, more than the file holds; it may be cut off")
        cursor.skip(stored.nbytes)
    roots = dict(found)
    views = interpreter.run(cursor)
    if type(views) is not list:
        raise cursor.error("the views are no list")
    for view in views:
        if type(view) not in (tuple, list) or len(view) != 4 or not all(map(natural, view)):
            raise cursor.error(f"a view that is {short(view)}, no (key, key, offset, number)")
        key, root, offset, numel = view
        _new_key(interpreter, cursor, key, found)
        if root not in roots:
            raise cursor.error(f"a view of {short(root)}, no storage of the file")
        whole = roots[root]
        if offset + numel > whole.numel:
            raise cursor.error(
                f"a view of elements {short(offset)} to {short(offset + numel)} "
                f"of a storage of {whole.numel}"
            )
        found[key] = Stored(whole.code, numel, f"storage {key}", view=(whole, offset))
    return found


def _tensors(
    interpreter: Interpreter, cursor: Cursor, storages: dict[int, Stored]
) -> dict[int, Spec]:
    known: dict[int, Any] = dict(storages)
    found: dict[int, Spec] = {}
    for _ in range(_count(interpreter, cursor, 16)):
        key, storage, kind = _entry(interpreter, cursor, known)
        if kind.tensor is None:
            raise cursor.error(f"a tensor of {kind.full}, no class of tensors")
        if storage is None:  # an empty tensor may have none
            stored = Stored(kind.tensor, 0, f"tensor {key}", cursor.position)
        elif natural(storage) and storage in storages:
            stored = storages[storage]
        else:
            raise cursor.error(f"a tensor on {short(storage)}, no storage of the file")
        if stored.code != kind.tensor:
            raise cursor.error(f"a {kind.full} on a storage of another dtype")
        axes = int.from_bytes(cursor.read(4), "little", signed=True)
        cursor.skip(4)
        if not 0 <= axes <= MAX_DIMENSIONS:
            raise cursor.error(f"a tensor of {axes} axes; {MAX_DIMENSIONS} are the most")
        shape = tuple(cursor.int64() for _ in range(axes))
        strides = tuple(cursor.int64() for _ in range(axes))
        where = f"tensor {key}"
        found[key] = known[key] = make_spec(
            interpreter.source, where, stored, cursor.int64(), shape, strides
        )
    return found
