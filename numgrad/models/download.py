"""Downloading one file whose SHA-256 is known: whole and right, or not at all."""

import contextlib
import hashlib
import os
import re
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from ..checkpoint.atomic import replacing
from ..graph.errors import expected

TIMEOUT = 30.0
"""Seconds without a byte after which a server counts as silent."""
SLOW_SECONDS, SLOW_BYTES = 60.0, 60_000
"""A download with less than so many bytes in so many seconds is given up."""
MAX_BYTES = 1 << 30
"""The largest published file has 575 MB; a server that sends more sends something else."""
BLOCK = 1 << 18
SCHEMES = ("http://", "https://")
QUARTERS = 4


class DownloadError(OSError):
    """Weights that are not on this machine could not be downloaded; nothing was left behind.

    The text says which file to put into which folder.
    """


class _Refused(Exception):
    """What a server sent cannot be the file."""


def download(url: str, path: Path, digest: str, model: str, progress: bool) -> None:
    """Download ``url`` to ``path``, making its folder; only a right file replaces one there.

    Processes that download the same file at the same time do not see each other's bytes: each
    writes a file of its own and renames it when it is right.

    Args:
        url: begins with http:// or https://.
        path: where to put the file.
        digest: how the SHA-256 of the file begins, in hexadecimal.
        model: for what, as errors begin.
        progress: whether to tell on stderr how far it is.

    Raises:
        DownloadError: no network, a server that refuses, is silent or too slow, a file that is too
            long, too short or wrong, a folder that cannot be written, a full disk.
    """
    import http.client
    import urllib.error
    import urllib.request

    public = re.sub("//[^/]*@", "//", url)  # a name and a password are nobody else's business
    try:
        if public != url:
            raise _Refused("an address with a user's name, which is not supported")
        if not url.startswith(SCHEMES):
            raise _Refused("an address that does not begin with https:// or http://")
        request = urllib.request.Request(url, headers={"User-Agent": "numgrad"})
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            if not response.url.startswith(SCHEMES):
                raise _Refused(f"an answer that sends on to {response.url}")
            # Not before a server has answered: else failures would leave folders behind.
            path.parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(path) and not path.is_file():
                raise _Refused(f"something in its place that is no file, {path}")
            with replacing(path) as out:
                found, count = _receive(response, out, _Progress(url, path, response, progress))
                if not found.startswith(digest):
                    begin = found[: len(digest)]
                    raise _Refused(
                        f"another file: {count} bytes, whose SHA-256 begins with {begin}"
                    )
    except (OSError, http.client.HTTPException, ValueError, _Refused) as error:
        if isinstance(error, urllib.error.HTTPError):
            reason: object = f"HTTP status {error.code} {error.reason}"
            error.close()
        elif isinstance(error, urllib.error.URLError):
            reason = error.reason
        else:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        text = " ".join(str(reason).removeprefix("save: ").split())
        raise DownloadError(
            expected(
                model,
                f"{path.name} from {public}",
                "its weights",
                "".join(c for c in text if c.isprintable()),
                f"get that file elsewhere and put it into {path.parent}",
            )
        ) from error


def _receive(response: Any, out: BinaryIO, told: "_Progress") -> tuple[str, int]:
    """Write what the server sends; its SHA-256, and how many bytes it has."""
    import http.client

    hashed, count = hashlib.sha256(), 0
    length: int | None = response.length
    if (length or 0) > MAX_BYTES:
        raise _Refused(f"{length} bytes, more than any of these files has")
    then, before = time.monotonic(), 0
    with told:
        try:
            while block := response.read1(BLOCK):
                count += len(block)
                if count > MAX_BYTES:
                    raise _Refused(f"more than {MAX_BYTES} bytes and no end")
                hashed.update(block)
                out.write(block)
                told.advance(count)
                now = time.monotonic()
                if now - then > SLOW_SECONDS:
                    if count - before < SLOW_BYTES:
                        raise _Refused(f"{count - before} bytes in the last {now - then:.0f} s")
                    then, before = now, count
        except http.client.IncompleteRead:
            raise _Refused(f"{count} bytes and no more, though others were to come") from None
    if length is not None and count != length:
        raise _Refused(f"{count} of {length} bytes")
    return hashed.hexdigest(), count


class _Progress:
    """How far a download is, on stderr: a bar on a terminal where rich is installed, else lines."""

    def __init__(self, url: str, path: Path, response: Any, wanted: bool) -> None:
        length: int | None = response.length
        self.name, self.length = path.name, length
        self.wanted = wanted and sys.stderr is not None
        self.quarters = 0
        self.bar: Any = self._rich() if self.wanted and sys.stderr.isatty() else None
        size = "" if length is None else f" ({length / 2**20:.1f} MiB)"
        self._say(f"downloading {url}{size} to {path}", always=True)

    def _rich(self) -> Any:
        try:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )
        except ImportError:
            return None
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        bar.add_task(self.name, total=self.length)
        return bar

    def _say(self, text: str, always: bool = False) -> None:
        if self.wanted and (always or self.bar is None):
            with contextlib.suppress(OSError):  # a stderr that takes nothing fails no download
                print(f"numgrad: {text}", file=sys.stderr, flush=True)

    def advance(self, count: int) -> None:
        """``count`` bytes are here."""
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=count)
        elif self.length and count * QUARTERS // self.length > self.quarters:
            self.quarters = count * QUARTERS // self.length
            self._say(f"{self.name}: {100 * self.quarters // QUARTERS} %")

    def __enter__(self) -> "_Progress":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.stop()
