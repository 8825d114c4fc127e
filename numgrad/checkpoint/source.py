"""The bytes of a checkpoint file: whoever reads stays inside of them, or gets a CheckpointError."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

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
        try:
            self._file.seek(self._base + start)
            data = self._file.read(count)
        except (OSError, ValueError) as error:  # ValueError: somebody closed it
            raise self.error(where, f"reading failed: {error}") from error
        except MemoryError:
            raise self.error(where, f"not enough memory for {count} bytes") from None
        if len(data) != count:
            raise self.error(where, f"{count} bytes expected, {len(data)} read")
        return data

    def read_into(self, start: int, out: memoryview, where: str) -> None:
        """Fill ``out``, a view of bytes, with the bytes from ``start`` on. Errors are `read`'s."""
        self._check(start, len(out), where)
        read = getattr(self._file, "readinto", None)
        got = 0
        try:
            self._file.seek(self._base + start)
            while got < len(out):
                if read is not None:
                    count = read(out[got:])
                else:
                    data = self._file.read(len(out) - got)
                    count = len(data)
                    out[got : got + count] = data
                if not count:
                    break
                got += count
        except (OSError, ValueError) as error:
            raise self.error(where, f"reading failed: {error}") from error
        if got != len(out):
            raise self.error(where, f"{len(out)} bytes expected, {got} read")

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

    def error(self, reason: str) -> CheckpointError:
        """An error at this position."""
        return self.source.error(f"{self.where}, byte {self.position}", reason)

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


@contextmanager
def opened(file: "str | os.PathLike[str] | BinaryIO") -> Iterator[Source]:
    """The bytes of a path, or of an open file from its position to its end.

    An open file that cannot seek is read into memory first.

    Raises:
        OSError: the path cannot be opened. TypeError: the file reads text.
    """
    if not hasattr(file, "read"):
        path = os.fspath(file)
        with open(path, "rb") as own:
            yield Source(own, str(path), 0, os.fstat(own.fileno()).st_size)
        return
    given = cast(BinaryIO, file)
    name = str(getattr(given, "name", "file"))
    try:
        probe = given.read(0)
        if isinstance(probe, bytes) and getattr(given, "seekable", bool)():
            base = given.tell()
            size = given.seek(0, os.SEEK_END) - base
        else:
            data = given.read()
            probe, base, size = data, 0, len(data)
            given = io.BytesIO(data) if isinstance(data, bytes) else given
    except OSError as error:
        raise CheckpointError(name, "start of file", f"reading failed: {error}") from error
    if not isinstance(probe, bytes):
        raise TypeError(
            f"load: expected a file of bytes for file, got one that reads {type(probe).__name__}; "
            'open it with mode "rb"'
        )
    yield Source(given, name, base, max(size, 0))
    if given is file:  # as if it had been read to its end
        given.seek(base + size)
