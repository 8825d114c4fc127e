"""The stream that ``torch.save`` wrote from PyTorch 0.1.10 to 1.5: pickles, then elements.

::

    pickle: 0x1950a86a20f9469cfc6c      pickle: 1001      pickle: about the machine, not used
    pickle: the object; its persistent ids refer to storages by key
    pickle: the keys of all storages, sorted
    for each key: int64 number of elements, the elements, little endian

Source: PyTorch, torch/serialization.py, ``_legacy_load`` and ``_legacy_save``.
"""

from typing import Any

from .allowlist import finish
from .contents import RAW, Contents, Stored, short
from .errors import CheckpointError
from .pickles import Interpreter
from .source import Cursor, Source
from .symbols import StorageId, Text, storage_id

MAGIC = 0x1950A86A20F9469CFC6C
VERSION = 1001
FOREIGN = (
    "; no torch.save wrote it: if you trust it, open it with pickle.load, which runs what code is "
    "in it, and save the arrays"
)
FORMAT = "PyTorch stream (torch.save of 0.1.10 to 1.5)"


def read(source: Source) -> Contents:
    """What the file holds; of the elements nothing is read but their numbers.

    Raises:
        CheckpointError: it is not what the format asks for.
    """
    start = source.read(0, min(source.size, 64), "start of file")
    foreign = MAGIC.to_bytes(10, "little") not in start
    cursor = Cursor(source, 0, source.size, "plain pickle" if foreign else "pickles")
    interpreter = Interpreter(source)
    for what, expected in (("magic number", MAGIC), ("protocol version", VERSION)):
        found = interpreter.run(cursor)
        if type(found) is not int or found != expected:
            way_out = FOREIGN if foreign else ""
            raise cursor.error(f"the {what} is {short(found)}, not {expected}{way_out}")
    if type(interpreter.run(cursor)) is not dict:
        raise cursor.error("what should tell of the machine is no dict")
    storages = _Storages(source)
    obj = interpreter.run(cursor, storages.get)
    keys = interpreter.run(cursor)
    _check_keys(cursor, keys, storages.roots)
    for key in keys:
        stored, pid = storages.roots[key]
        cursor.where = stored.where
        numel = cursor.int64()
        if numel != pid.numel:
            raise cursor.error(f"{numel} elements, but {pid.numel} in the pickle")
        stored.start = cursor.position
        cursor.skip(stored.nbytes)
    if cursor.position != source.size:
        left = source.size - cursor.position
        raise source.error("end of file", f"{left} bytes after the last element")
    return Contents(FORMAT, finish(source, obj))


def _check_keys(cursor: Cursor, keys: Any, known: dict[str, Any]) -> None:
    if type(keys) is not list or any(type(key) not in (str, Text) for key in keys):
        raise cursor.error("the list of storages is no list of texts")
    if len(set(keys)) != len(keys):
        raise cursor.error("the list of storages has one twice")
    if set(keys) != known.keys():
        missing, unused = known.keys() - set(keys), set(keys) - known.keys()
        what = f"lacks {short(min(missing))}" if missing else f"has an unused {short(min(unused))}"
        raise cursor.error(f"the list of storages {what}")
    if keys != sorted(keys):
        raise cursor.error("the list of storages is not sorted")


class _Storages:
    """The storages that the pickle refers to, by key."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.roots: dict[str, tuple[Stored, StorageId]] = {}
        self._views: dict[str, tuple[Stored, tuple[str, int, int]]] = {}

    def get(self, pid: Any) -> Stored:
        """The storage of a persistent id, which must not contradict an earlier one."""
        found = storage_id(self._source, "pickle", pid)
        where = f"storage {short(found.key)}"
        if found.key not in self.roots:
            stored = Stored(found.code, found.numel, where)
            if stored.nbytes > self._source.size:
                raise self._error(where, f"{found.numel} elements, more than the file can hold")
            self.roots[found.key] = stored, found
        root, first = self.roots[found.key]
        if (first.code, first.numel) != (found.code, found.numel):
            raise self._error(where, "two references that differ in dtype or number of elements")
        return root if found.view is None else self._view(root, where, found)

    def _view(self, root: Stored, where: str, found: StorageId) -> Stored:
        assert found.view is not None
        key, offset, numel = found.view
        where += f", view {short(key)}"
        if offset + numel > found.numel:
            raise self._error(
                where, f"elements {offset} to {offset + numel} of a storage of {found.numel}"
            )
        if found.code == RAW:
            raise self._error(where, "a view of a storage without a dtype")
        if key not in self._views:
            view = Stored(found.code, numel, where, view=(root, offset))
            self._views[key] = view, (found.key, offset, numel)
        view, known = self._views[key]
        if known != (found.key, offset, numel):
            raise self._error(where, "two views of this key that differ")
        return view

    def _error(self, where: str, reason: str) -> CheckpointError:
        return self._source.error(where, reason)
