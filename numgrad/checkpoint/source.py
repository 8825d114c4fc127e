"""The bytes of a checkpoint file: whoever reads stays inside of them, or gets a CheckpointError."""

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from ..graph.errors import expected, shown
from .errors import CheckpointError

CHUNK = 1 << 16
"""Bytes that a `Cursor` reads ahead."""


class Source:
    """``size`` bytes of an open file, from its position ``base`` on; positions count from there."""

    def __init__(self, file: BinaryIO, path: str, base: int, size: int) -> None:
        self._file, self._base = file, base
        self.path, self.size = path, size

    def error(self, where: str, reason: str) -> CheckpointError:
        """An error that names this file."""
        return CheckpointError(self.path, where, reason)

    def read(self, start: int, count: int, where: str) -> bytes:
        """Bytes ``start`` to ``start + count``.

        Raises:
            CheckpointError: they are not all in the file, or cannot be read.
        """
        self._check(start, count, where)
        parts: list[bytes] = []
        left = count
        with self._asked(where, count):
            self._file.seek(self._base + start)
            while left > 0:  # one that is not buffered may give less than it was asked for
                part = _as_bytes(self._file.read(left))
                if not part:
                    break
                parts.append(part)
                left -= len(part)
        if left:
            raise self.error(where, f"{count} bytes expected, {count - left} read")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, start: int, out: memoryview, where: str) -> None:
        """Fill ``out``, a view of bytes, with the bytes from ``start`` on. Errors are `read`'s."""
        self._check(start, len(out), where)
        read = getattr(self._file, "readinto", None)
        got = 0
        with self._asked(where, len(out)):
            self._file.seek(self._base + start)
            while got < len(out):
                if read is not None:
                    count = read(out[got:])
                    if count is None:
                        raise BlockingIOError(NOT_YET)
                else:
                    data = _as_bytes(self._file.read(len(out) - got))
                    count = len(data)
                    out[got : got + count] = data
                if count <= 0:
                    break
                got += count
        if got != len(out):
            raise self.error(where, f"{len(out)} bytes expected, {got} read")

    def leave(self, position: int) -> None:
        """Let the file stand at a position.

        Raises:
            CheckpointError: it cannot.
        """
        with self._asked("end of file", 0):
            self._file.seek(self._base + position)

    @contextmanager
    def _asked(self, where: str, count: int) -> Iterator[None]:
        """Turn whatever the file raises when it is asked for bytes into a CheckpointError."""
        try:
            yield
        except MemoryError:
            raise self.error(where, f"not enough memory for {count} bytes") from None
        except Exception as error:  # zlib.error, EOFError, BadZipFile, those of a connection …
            raise self.error(where, _failed(error)) from error

    def _check(self, start: int, count: int, where: str) -> None:
        if start < 0 or count < 0 or start + count > self.size:
            raise self.error(
                where,
                f"bytes {start} to {start + count} of a file of {self.size}; it may be cut off",
            )


class Cursor:
    """Reads on from ``start`` and not beyond ``stop``; ``where`` names the part in errors."""

    def __init__(self, source: Source, start: int, stop: int, where: str) -> None:
        self.source, self.stop, self.where = source, stop, where
        self._data, self._at, self._start = b"", 0, start

    @property
    def position(self) -> int:
        """The byte that is read next."""
        return self._start + self._at

    @property
    def place(self) -> str:
        """This position in errors."""
        return f"{self.where}, byte {self.position}"

    def error(self, reason: str) -> CheckpointError:
        """An error at this position."""
        return self.source.error(self.place, reason)

    def read(self, count: int) -> bytes:
        """The next ``count`` bytes.

        Raises:
            CheckpointError: there are not so many before ``stop``.
        """
        at = self._at
        stop = at + count
        if stop > len(self._data):
            self._refill(count)
            at, stop = 0, count
        self._at = stop
        return self._data[at:stop]

    def _refill(self, count: int) -> None:
        position = self.position
        left = self.stop - position
        if count > left:
            raise self.error(f"{count} bytes expected, {left} left; it may be cut off")
        self._data = self.source.read(position, min(max(count, CHUNK), left), self.where)
        self._start, self._at = position, 0

    def line(self, limit: int) -> bytes:
        """The bytes up to a newline, which is read and left out; at most ``limit``."""
        while True:
            end = self._data.find(b"\n", self._at, self._at + limit + 1)
            if end >= 0:
                return self.read(end - self._at + 1)[:-1]
            have = len(self._data) - self._at
            if have > limit:
                raise self.error(f"a line of more than {limit} bytes")
            self._refill(have + 1)

    def skip(self, count: int) -> None:
        """Go on ``count`` bytes further; they must be there."""
        if not 0 <= count <= self.stop - self.position:
            left = self.stop - self.position
            raise self.error(f"{count} bytes expected, {left} left; it may be cut off")
        if self._at + count <= len(self._data):
            self._at += count
        else:
            self._data, self._at, self._start = b"", 0, self.position + count

    def int64(self) -> int:
        """The next 8 bytes as a signed little-endian integer."""
        return int.from_bytes(self.read(8), "little", signed=True)


def _failed(error: Exception) -> str:
    if isinstance(error, io.UnsupportedOperation):  # "read" is all it says
        return 'it is not open for reading; open it with mode "rb"'
    text = " ".join(str(error).split())[:200]
    return f"reading failed: {text or type(error).__name__}"


REREADING = ("gzip", "bz2", "lzma", "zipfile", "compression.zstd._zstdfile")
"""Modules of files that seek backwards by reading all over again."""
NOT_YET = "a file that does not wait for its bytes has none yet; read it into an io.BytesIO first"


class _NotBytes(TypeError):
    """A file gave something else."""


def _as_bytes(data: Any) -> bytes:
    """What a file gave, as bytes."""
    if isinstance(data, bytes):
        return data
    if data is None:
        raise BlockingIOError(NOT_YET)
    if isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    raise _NotBytes(
        expected(
            "load",
            "a file of bytes",
            "file",
            f"one that reads {type(data).__name__}",
            'open it with mode "rb"',
        )
    )


def open_file(path: "str | bytes | os.PathLike[str]", pipes: bool = False) -> BinaryIO:
    """Open a file for reading; opening a pipe would wait for its writer, and devices have no end.

    Raises:
        OSError: it cannot be opened, is a device, or a pipe and ``pipes`` is false.
    """
    try:
        mode = os.stat(path).st_mode
    except ValueError:
        raise OSError(errno.EINVAL, "a path with a NUL in it", os.fspath(path)) from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode) and not (pipes and stat.S_ISFIFO(mode)):
        what = "a device, not a file" if pipes else "a pipe or a device, not a file"
        raise OSError(errno.EINVAL, what, os.fspath(path))
    return open(path, "rb")


@contextmanager
def opened(file: "str | os.PathLike[str] | BinaryIO") -> Iterator[Source]:
    """The bytes of a path, or of an open file from its position to its end.

    What cannot seek (a pipe) or seeks by reading all over again (a file of `gzip`) is read into
    memory first.

    Raises:
        OSError: the path cannot be opened. TypeError: it is no path, or the file reads text.
        CheckpointError: an open file failed when it was asked for bytes.
    """
    if hasattr(file, "read"):
        given = cast(BinaryIO, file)
        source = _source(given, _name(given))
        yield source
        source.leave(source.size)  # as if it had been read to its end
        return
    try:
        path = os.fspath(file)
    except TypeError:
        raise TypeError(
            expected(
                "load",
                "a path or a file of bytes",
                "file",
                shown(file),
                'pass a path, or what open(path, "rb") returns',
            )
        ) from None
    with open_file(path, pipes=True) as own:
        yield _source(own, os.fsdecode(path))


def _name(file: Any) -> str:
    """What errors call an open file; those of pipes and sockets have numbers for names."""
    name = getattr(file, "name", None)
    return os.fsdecode(name) if isinstance(name, (str, bytes)) else "file"


def _source(file: BinaryIO, name: str) -> Source:
    """The bytes of an open file from its position to its end."""
    try:
        probe = _as_bytes(file.read(0))
        slow = any(kind.__module__ in REREADING for kind in type(file).__mro__)
        if not slow and getattr(file, "seekable", bool)():
            base = file.tell()
            file.seek(0, os.SEEK_END)  # some return nothing
            size = file.tell() - base
        else:
            probe = _as_bytes(file.read())
            file, base, size = io.BytesIO(probe), 0, len(probe)
    except _NotBytes as error:
        raise TypeError(str(error)) from None
    except MemoryError:
        raise CheckpointError(name, "start of file", "not enough memory to read it") from None
    except Exception as error:
        raise CheckpointError(name, "start of file", _failed(error)) from error
    if base and size <= 0:
        reason = f"it stands at byte {base} of {base + size}, its end; seek(0) first"
        raise CheckpointError(name, "start of file", reason)
    return Source(file, name, base, size)
