"""Replacing a file whole: after a crash at any moment it holds the old bytes or the new ones.

The new bytes go to a temporary file in the same folder, which is flushed to the disk and then
renamed over the old one; at last the folder is flushed. A process that dies in between leaves its
temporary behind; the next save to the same file sweeps it away.
"""

import hashlib
import itertools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

_count = itertools.count()


def _host() -> str:
    """Six characters that tell machines (and containers) apart: process ids mean nothing abroad."""
    return hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:6]


def _temporary(name: str) -> str:
    return f".{name}.{_host()}-{os.getpid()}-{next(_count)}.tmp"


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


def sweep(folder: str, name: str) -> None:
    """Remove the temporaries that dead processes of this machine left beside ``folder/name``."""
    start = f".{name}.{_host()}-"
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(start) and entry.name.endswith(".tmp"):
                pid = entry.name[len(start) :].split("-")[0]
                if pid.isdecimal() and 0 < int(pid) != os.getpid() and not _alive(int(pid)):
                    with suppress(OSError):
                        os.unlink(entry.path)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems (FUSE, SMB) cannot flush a folder; the data are flushed all the same.
        if error.errno not in (22, 95):  # EINVAL, ENOTSUP
            raise
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: "str | os.PathLike[str]") -> Iterator[BinaryIO]:
    """Open a file to write that becomes ``path`` when the block ends, and vanishes if it raises.

    A link is followed; the permissions of a file that is replaced are kept.

    Raises:
        OSError: the folder is missing or not writable, or the disk is full; ``path`` is as it was.
    """
    given = os.fspath(path)
    path = os.path.realpath(given)
    folder, name = os.path.split(path)
    mode = None
    with suppress(FileNotFoundError):
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(
                f"save: expected a regular file for path, got {path}; open it and pass the file"
            )
    sweep(folder, name)
    temporary = os.path.join(folder, _temporary(name))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(temporary, flags, 0o666)
    except OSError as error:
        error.filename = given  # the temporary is nobody's concern
        if isinstance(error, FileNotFoundError):
            error.strerror = (
                f"save: expected an existing folder for path, got {folder!r}, which does not "
                "exist; make it with os.makedirs"
            )
        raise
    try:
        with open(descriptor, "wb") as file:
            if mode is not None:
                with suppress(PermissionError):
                    os.fchmod(descriptor, stat.S_IMODE(mode))
            yield file
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)
