"""A line on stderr that tells which kernel is being compiled, while a user would wonder.

It is shown if stderr is a terminal, or if ``NUMGRAD_PROGRESS`` is 1; never if that is 0. It comes
after about a second of compiling, is written over in place, and is gone whenever nothing compiles.
"""

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator

PATIENCE = 1.0
"""Seconds of compiling before the line is shown, and of pause after which counting begins anew."""

_lock = threading.Lock()
"""Held while the line is written: a timer shows it, whoever compiles wipes it out."""
_done = 0
_spent = 0.0
_ended = 0.0
_width = 0
_count = 0


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # a timer that is late may have held it, which the child has not


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def wanted() -> bool:
    """Whether there is anybody to tell."""
    asked = os.environ.get("NUMGRAD_PROGRESS", "").strip()
    if asked in ("0", "1"):
        return asked == "1"
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it was closed
        return False


@contextlib.contextmanager
def compiling(name: str) -> Iterator[None]:
    """Tell of the kernel ``name`` if it and those before it take long. The store's lock is held."""
    global _spent, _ended, _done, _count
    if not wanted():
        yield
        return
    started = time.monotonic()
    if started - _ended > PATIENCE:
        _spent, _done = 0.0, 0
    _count = mine = _count + 1
    timer = None
    if _spent >= PATIENCE:
        _show(name, mine)
    else:
        timer = threading.Timer(PATIENCE - _spent, _show, (name, mine))
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
        with _lock:
            _count += 1  # a timer that is late shows nothing any more
            _write("")
        _ended = time.monotonic()
        _spent += _ended - started
        _done += 1


def _show(name: str, mine: int) -> None:
    with _lock:
        if mine == _count:
            _write(f"numgrad: compiling kernels for this CPU, once: {_done} done, now {name}")


def _write(text: str) -> None:
    """Write ``text`` over the line that is there; an empty one wipes it out."""
    global _width
    text = text[: max(shutil.get_terminal_size().columns - 1, 20)]
    if text or _width:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            sys.stderr.write("\r" + text.ljust(_width) + ("" if text else "\r"))
            sys.stderr.flush()
        _width = len(text)
