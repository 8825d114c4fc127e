"""Counters that each thread adds to without a lock, and that are read merged."""

import itertools
import threading
import weakref
from typing import Any, ClassVar


class Counters(threading.local):
    """Integers that count up: a subclass names them, ``launches: int = 0``.

    Reading and writing an attribute is about this thread's own count, :meth:`total` about that of
    all threads together, those that have ended included.
    """

    _threads: ClassVar[list[tuple[Any, dict[str, int]]]]
    _ended: ClassVar[dict[str, int]]

    def __init_subclass__(cls) -> None:
        cls._threads, cls._ended = [], {}

    def __init__(self) -> None:  # once in each thread
        cls = type(self)
        for entry in cls._threads[:]:
            if entry[0]() is None:  # its thread has ended: keep the list short
                try:
                    cls._threads.remove(entry)
                except ValueError:  # another thread was first
                    continue
                for name, count in entry[1].items():
                    cls._ended[name] = cls._ended.get(name, 0) + count
        cls._threads.append((weakref.ref(threading.current_thread()), self.__dict__))

    def total(self, name: str) -> int:
        """The count ``name`` of all threads."""
        cls = type(self)
        return cls._ended.get(name, 0) + sum(c.get(name, 0) for _, c in cls._threads[:])


class Tally:
    """A count that all threads add to: exact and without a lock, since a step is one C call."""

    __slots__ = ("_count", "add")

    def __init__(self) -> None:
        self._count = itertools.count()
        self.add = self._count.__next__

    @property
    def value(self) -> int:
        """The steps so far."""
        return int(repr(self._count)[len("count(") : -1])


launches = Tally()
"""Kernel launches of all threads, on all devices."""
