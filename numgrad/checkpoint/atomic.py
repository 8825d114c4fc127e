"""Replacing a file whole: after a crash at any moment it holds the old bytes or the new ones.

The new bytes go to a temporary file in the same folder, which is flushed to the disk and then
renamed over the old one; at last the folder is flushed. A process that dies in between leaves its
temporary behind; the next save into the same folder sweeps it away.
"""

import errno
import hashlib
import io
import itertools
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from ..graph.errors import expected

MAX_NAME = 100
"""Bytes of the target's name that stand in the temporary's; some file systems allow 143 in all."""

_count = itertools.count()
_living: set[str] = set()
"""Names of the temporaries that this process is writing."""


def write_all(out: BinaryIO, data: Any) -> None:
    """Write all of ``data``; a file without a buffer may take a part of it at a time.

    Raises:
        OSError: it takes nothing; a pipe that does not wait for its reader is such a file.
        TypeError: it takes no bytes.
    """
    left = memoryview(data)
    while len(left):
        count = _write(out, left)
        if count is None and not isinstance(out, io.RawIOBase):
            return  # a file that tells nothing has written everything
        if not count or count < 0:
            raise OSError(f"save: expected a file that takes {len(left)} bytes, got none taken")
        left = left[count:]


def _write(out: BinaryIO, data: memoryview) -> Any:
    """What ``out.write(data)`` returns."""
    with suppress(TypeError):
        return out.write(data)
    try:  # some take bytes alone
        return out.write(bytes(data))
    except TypeError as error:
        found = f"{type(out).__name__}, which takes none"
        text = expected("save", "a file of bytes", "file", found, 'open it with mode "wb"')
        raise TypeError(text) from error


def _host() -> str:
    """Six characters that tell machines and containers apart: process ids mean nothing abroad."""
    here = os.uname().nodename
    with suppress(OSError):  # containers may share the machine's name, but not its processes
        here += os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(os.fsencode(here)).hexdigest()[:6]


def _temporary(folder: str, name: str) -> str:
    """A name for a new file in a folder; that it is numgrad's and whose stands in it."""
    encoded = os.fsencode(name)
    if len(encoded) > MAX_NAME:
        name = encoded[:MAX_NAME].decode("utf-8", "ignore")
    while True:
        temporary = f".{name}.numgrad-{_host()}-{os.getpid()}-{next(_count)}.tmp"
        # One of an earlier process of our id may be there that could not be removed.
        if not os.path.lexists(os.path.join(folder, temporary)):
            return temporary


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OverflowError:  # not a process id at all: leave the file alone
        return True
    except PermissionError:  # somebody else's process
        return True
    return True


def sweep(folder: str) -> None:
    """Remove the temporaries that dead processes of this machine left in a folder."""
    pattern = re.compile(rf"\..*\.numgrad-{_host()}-([1-9][0-9]*)-[0-9]+\.tmp", re.DOTALL)
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = pattern.fullmatch(entry.name)
            if found is None:
                continue
            # After a restart, an earlier process may have had the id that is ours now.
            pid = int(found[1])
            living = entry.name in _living if pid == os.getpid() else _alive(pid)
            if not living:
                with suppress(OSError):
                    os.unlink(entry.path)


def _sync_folder(folder: str) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # a folder that may be written but not listed; the data are flushed
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems (FUSE, SMB) cannot flush a folder; the data are flushed all the same.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _present(path: str, given: str) -> "os.stat_result | None":
    """The file that is to be replaced, if there is one.

    Raises:
        OSError: something else is there, or a file that may not be written.
    """
    if given.endswith(os.sep):
        raise _error(errno.EISDIR, "a file for path, got a folder; add a file name", given)
    try:
        present = os.stat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(present.st_mode):
        kind = errno.EISDIR if stat.S_ISDIR(present.st_mode) else errno.EINVAL
        what = "a folder" if kind == errno.EISDIR else "a device or a pipe"
        raise _error(
            kind,
            f"a regular file for path, got {what}; add a name, or open it and pass that",
            given,
        )
    if not os.access(path, os.W_OK):  # renaming would not ask
        raise _error(
            errno.EACCES,
            "a file that may be written for path, got one that may not; choose another name",
            given,
        )
    return present


def _error(number: int, rest: str, given: str) -> OSError:
    return OSError(number, f"save: expected {rest}", given)


def _explained(error: OSError, given: str, folder: str) -> OSError:
    """An error of opening the temporary, which is nobody's concern, as one of the path."""
    number = error.errno or 0
    if number == errno.ENOENT:
        rest = f"an existing folder for path, got {folder!r}, which does not exist; "
        return _error(number, rest + "make it with os.makedirs", given)
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        rest = f"a folder that may be written for path, got {folder!r}, which may not; "
        return _error(number, rest + "a file is replaced whole, by a new one beside it", given)
    return OSError(number, error.strerror, given)


@contextmanager
def replacing(path: "str | os.PathLike[str]") -> Iterator[BinaryIO]:
    """Open a file to write that becomes ``path`` when the block ends, and vanishes if it raises.

    A link is followed. The permissions of a file that is replaced are kept, and its owner where
    the system allows it; a hard link to it keeps the old bytes.

    Raises:
        OSError: the folder is missing or not writable, the file may not be written, or the disk is
            full; ``path`` is as it was. Only if flushing the folder fails, at the very end, it may
            hold the new bytes, whole.
    """
    given = os.fsdecode(path)
    if "\0" in given:
        raise _error(errno.EINVAL, "a path for file, got one with a NUL in it; mend it", given)
    path = os.path.realpath(given)
    folder, name = os.path.split(path)
    present = _present(path, given)
    sweep(folder)
    name = _temporary(folder, name)
    temporary = os.path.join(folder, name)
    _living.add(name)
    try:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            # Closed to others until it has the permissions of the old one.
            descriptor = os.open(temporary, flags, 0o666 if present is None else 0o600)
        except OSError as error:
            raise _explained(error, given, folder) from None
        with open(descriptor, "wb") as file:
            if present is not None:
                with suppress(OSError):
                    os.fchown(descriptor, present.st_uid, present.st_gid)
                with suppress(OSError):
                    os.fchmod(descriptor, stat.S_IMODE(present.st_mode))
            yield file
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        _living.discard(name)
    _sync_folder(folder)
