"""The pool of CPU blocks: 64-byte aligned memory that arrays are made on.

``Pool.alloc`` hands out a `Block`. An array made on it keeps it as its ``base``, and so does every
view of that array, numgrad's or the user's. When the last of them dies, ``Block.__del__`` puts the
block's address on a deque, which the next ``alloc`` empties. Nothing else frees a block.

* *slab*: one private anonymous mapping, a stretch of addresses several times larger than the memory
  of the machine. Addresses cost nothing; only pages that are written to do.
* *warm* range: free, and its pages may be resident. *Cold* range: free, and its pages were given
  back or never touched; it starts and ends on a multiple of ``GRAIN_BYTES``.
* *reserved*: live blocks and warm ranges, what may be resident; a multiple of the grain.

A block is cut from the smallest warm range that holds it (best fit), a large one from that end of
it where the older neighbour is: the rest lies by the younger one, which tends to die first, and
then they join. If no range holds it, cold bytes turn warm where the fewest complete one. Where that
would lift the peak of reserved over ``1.05 * peak live + 4 MiB``, the smallest warm ranges turn
cold: fragmentation costs page faults, not memory. docs/decisions.md has the measurements.
"""

from __future__ import annotations

import mmap
import os
import threading
from bisect import bisect_left, insort
from collections import deque
from contextlib import suppress
from typing import Any, Final
from weakref import WeakSet

import numpy as np

__all__ = ["ALIGN_BYTES", "GRAIN_BYTES", "POOL_MIN_BYTES", "Block", "Pool"]

POOL_MIN_BYTES: Final = 4096  # below, callers use plain NumPy, which is quicker there
ALIGN_BYTES: Final = 64  # of starts and sizes: a cache line, an AVX-512 vector
GRAIN_BYTES: Final = 2 << 20  # memory turns warm and cold in this unit, a huge page of x86-64
_RATIO: Final = 1.05  # of peak live, the promise for peak reserved
_SLACK_BYTES: Final = 4 << 20  # of 8 MiB promised; the rest is for ranges under a grain
_LARGE_BYTES: Final = 1 << 20  # blocks from here on choose their end of a range
_SLAB_SHIFT: Final = 48  # address: (slab number << 48) + offset, so slabs never touch
_OFFSET: Final = (1 << _SLAB_SHIFT) - 1
_SMALL_SLAB_BYTES: Final = 32 << 20  # where no large one is granted: RLIMIT_AS, overcommit 2
_MAP_NORESERVE: Final = 0x4000 if os.uname().sysname == "Linux" else 0  # not in mmap before 3.13
_U8: Final = np.dtype(np.uint8)


class _Slab(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """One mapping as an array; it is unmapped when the last reference dies, never under a Block.

    NumPy shortens a chain of bases while their types are equal: this type stops it at the Block.
    """

    __slots__ = ("memory", "skipped_bytes")
    memory: mmap.mmap
    skipped_bytes: int  # of the mapping, before the first multiple of the grain


class Block(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """Uninitialised bytes of a pool: one-dimensional, uint8; ``nbytes`` is the rounded size.

    Make arrays on it by ``np.ndarray(shape, dtype, block)``. Slices, views and results of a Block
    may be Blocks by type, but only what ``Pool.alloc`` returned has its slots filled, and frees.
    """

    __slots__ = ("_give_back", "_start", "storage")
    _give_back: Any  # the append method of the pool's deque: atomic, no lock, no module global
    _start: int
    storage: Any  # the ledger entry of the block: lives as long as any array on it

    def __del__(self) -> None:
        try:
            give_back = self._give_back
        except AttributeError:  # a slice or view, whose base is the owner, or a result
            return
        give_back(self._start)

    def __copy__(self, memo: Any = None, /) -> Any:
        return np.array(self, subok=False)

    __deepcopy__ = __copy__

    def __reduce_ex__(self, protocol: Any, /) -> Any:
        return np.asarray(self).__reduce_ex__(protocol)


class _Ranges:
    """Disjoint free ranges, found by size and by either end; ranges that touch are joined."""

    __slots__ = ("by_size", "size_at", "start_before")

    def __init__(self) -> None:
        self.by_size: list[tuple[int, int]] = []  # (size, start), ascending
        self.size_at: dict[int, int] = {}  # start -> size
        self.start_before: dict[int, int] = {}  # end -> start

    def add(self, start: int, size: int) -> None:
        """Insert a range and join it with the neighbours it touches."""
        before = self.start_before.get(start)
        if before is not None:
            size += self.remove(before)
            start = before
        end = start + size
        if end in self.size_at:
            end += self.remove(end)
            size = end - start
        self.size_at[start] = size
        self.start_before[end] = start
        insort(self.by_size, (size, start))

    def remove(self, start: int) -> int:
        """Take a whole range out; its size in bytes."""
        size = self.size_at.pop(start)
        del self.start_before[start + size]
        del self.by_size[bisect_left(self.by_size, (size, start))]
        return size

    def carve(self, start: int, at: int, size: int) -> None:
        """Take ``[at, at + size)`` out of the range that begins at ``start``."""
        end = start + self.remove(start)
        if at > start:
            self.add(start, at - start)
        if end > at + size:
            self.add(at + size, end - at - size)


class Pool:
    """Blocks cut from slabs; safe with threads, with fork and with the garbage collector.

    Args:
        limit_bytes: reserved bytes that ``alloc`` does not exceed; by default the memory and swap
            of the machine, or the limit of its control group.
        slab_bytes: addresses to ask for at once; by default four times the limit.

    Attributes:
        reserved_bytes: bytes of live blocks and warm ranges, which may be resident.
        peak_reserved_bytes, peak_live_bytes: largest value since the last ``reset_peak``.
        warmed_bytes: bytes that ever turned warm, to be faulted in; constant in a steady loop.
        allocs: number of blocks handed out.
    """

    def __init__(self, limit_bytes: int | None = None, slab_bytes: int | None = None) -> None:
        self.limit_bytes = _machine_bytes() if limit_bytes is None else limit_bytes
        wanted = 4 * self.limit_bytes if slab_bytes is None else slab_bytes
        self._slab_bytes = min(_grains(wanted), 1 << 46)
        # Reentrant, with `_busy` to tell a nested call: a finaliser or a signal handler may run
        # between any two lines of `alloc`, in the same thread, and may itself want a block.
        self._lock = threading.RLock()
        self._busy = self._torn = False
        self._freed: deque[int] = deque()
        self._give_back = self._freed.append
        self._live: dict[int, tuple[int, int]] = {}  # start -> size, number of the alloc
        self._age_before: dict[int, int] = {}  # end -> number of the alloc
        self._warm = _Ranges()
        self._cold = _Ranges()
        self._slabs: dict[int, _Slab] = {}
        self._next_slab = 0
        self._live_bytes = self.peak_live_bytes = 0
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.warmed_bytes = self.allocs = 0
        _pools.add(self)

    def alloc(self, nbytes: int) -> Block:
        """A block of at least ``nbytes`` bytes, rounded up to 64, its contents undefined.

        Raises:
            MemoryError: neither the limit nor the system leaves room, even without the warm ranges.
        """
        size = (nbytes + 63) & -64 or ALIGN_BYTES  # never 0: no two blocks share an address
        if nbytes < 0:
            raise ValueError(f"alloc: expected nbytes of 0 or more, got {nbytes}; pass a size")
        start, block = -1, None
        try:
            with self._lock:
                if self._busy:
                    return _outside(size)
                try:
                    self._busy = True
                    if self._torn:
                        self._mend()
                    freed = self._freed
                    # The block that died last is still in the cache: of the right size, it is the
                    # one. It is looked at first, and forgotten by nobody if a signal raises here.
                    if freed and size < _LARGE_BYTES:
                        start = freed[-1]
                        if self._live[start][0] != size:
                            start = -1
                    if start >= 0:
                        last = freed.pop()
                        if last != start:  # another died meanwhile
                            freed.remove(start)
                            freed.append(last)
                    else:
                        while freed:
                            self._take_back(freed[0])
                            freed.popleft()
                        start = self._place(size)
                        self._live_bytes += size
                        if self._live_bytes > self.peak_live_bytes:
                            self.peak_live_bytes = self._live_bytes
                    self.allocs = age = self.allocs + 1
                    self._live[start] = size, age
                    self._age_before[start + size] = age
                except MemoryError:
                    raise
                except BaseException:
                    self._torn = True
                    raise
                finally:
                    self._busy = False
            block = Block(size, _U8, self._slabs[start >> _SLAB_SHIFT], start & _OFFSET)
            block._start = start
            block._give_back = self._give_back
            return block
        except BaseException:  # a signal may raise between any two lines
            if start >= 0 and getattr(block, "_give_back", None) is None:
                self._give_back(start)
            raise

    @property
    def live_bytes(self) -> int:
        """Bytes of blocks that some array still uses, rounded sizes."""
        self._settle()
        return self._live_bytes

    @property
    def slabs(self) -> int:
        """Number of mappings held."""
        return len(self._slabs)

    def reset_peak(self) -> None:
        """Let both peaks begin again at what is live and reserved now."""
        self._settle()
        self.peak_live_bytes = self._live_bytes
        self.peak_reserved_bytes = self.reserved_bytes

    def empty_cache(self) -> None:
        """Give every warm page and every wholly free slab back to the system.

        Live blocks stay reserved, with what else lies in their grains.
        """
        self._settle(release=True)

    def _settle(self, release: bool = False) -> None:
        """Account for the blocks that died since the last ``alloc``."""
        with self._lock:
            if self._busy:
                return
            try:
                self._busy = True
                if self._torn:
                    self._mend()
                while self._freed:
                    self._take_back(self._freed[0])
                    self._freed.popleft()
                if release:
                    self._release()
            except BaseException:
                self._torn = True
                raise
            finally:
                self._busy = False

    # Everything below runs with the lock held and `_busy` set.

    def _mend(self) -> None:
        """Begin anew from what is live, after a signal that raised in the middle of a change.

        Grains without live bytes are given back, and what else lies in the others is warm.
        """
        freed, live = self._freed, self._live
        while freed:  # some may be live no more, or there twice
            live.pop(freed[0], None)
            freed.popleft()
        warm, cold, reserved = _Ranges(), _Ranges(), 0
        held = sorted((start, size) for start, (size, _) in live.items())
        for number, slab in self._slabs.items():
            at = base = number << _SLAB_SHIFT
            end = base + slab.nbytes
            for start, size in [*held, (end, 0)]:
                if not base <= start <= end:
                    continue
                used = start // GRAIN_BYTES * GRAIN_BYTES
                edge = min(_grains(at), end)  # up to here grains have live bytes already
                if used > edge:
                    if edge > at:
                        warm.add(at, edge - at)
                    cold.add(edge, used - edge)
                    offset = slab.skipped_bytes + (edge & _OFFSET)
                    slab.memory.madvise(mmap.MADV_DONTNEED, offset, used - edge)
                    at = used
                if start > at:
                    warm.add(at, start - at)
                at = start + size
            reserved += slab.nbytes
        self._warm, self._cold = warm, cold
        self._age_before = {start + size: age for start, (size, age) in live.items()}
        self._live_bytes = sum(size for size, _ in live.values())
        self.reserved_bytes = reserved - sum(cold.size_at.values())
        self._torn = False

    def _place(self, size: int) -> int:
        """Take ``size`` bytes out of the warm ranges: where they begin."""
        warm = self._warm
        by_size = warm.by_size
        index = bisect_left(by_size, (size,))
        if index == len(by_size):
            self._grow(size)
            found, start = by_size[-1]
            warm.carve(start, start, size)
        elif size >= _LARGE_BYTES:
            found, low = by_size[index]
            start = self._by_the_older(low, low + found, size)
            warm.carve(low, start, size)
        else:  # carve, written out
            found, start = by_size.pop(index)
            del warm.size_at[start]
            if found > size:
                warm.size_at[start + size] = found - size
                warm.start_before[start + found] = start + size
                insort(by_size, (found - size, start + size))
            else:
                del warm.start_before[start + found]
        return start

    def _take_back(self, start: int) -> None:
        size, _ = self._live.pop(start)
        del self._age_before[start + size]
        self._live_bytes -= size
        self._warm.add(start, size)

    def _by_the_older(self, start: int, end: int, size: int) -> int:
        """Where to lay a block in a range; cold bytes and the ends of a slab are the oldest."""
        above = self._live.get(end, (0, 0))[1]
        return end - size if above < self._age_before.get(start, 0) else start

    def _grow(self, size: int) -> None:
        """Turn cold bytes warm, so that the largest warm range, and only that, holds ``size``."""
        if size > self.limit_bytes:
            raise self._full(size)
        spot = self._spot(size) or self._map(size)
        if spot is None:
            self._release()  # unmaps what it can, and joins cold ranges that a warm one kept apart
            spot = self._spot(size) or self._map(size)
            if spot is None:
                raise self._full(size)
        fresh, at, cold = spot
        self._cold.carve(cold, at, fresh)
        self._warm.add(at, fresh)
        self.reserved_bytes += fresh
        self.warmed_bytes += fresh
        peak_live = max(self.peak_live_bytes, self._live_bytes + size)
        allowed = max(self.peak_reserved_bytes, int(_RATIO * peak_live) + _SLACK_BYTES)
        self._cool(self.reserved_bytes - min(allowed, self.limit_bytes), keep=1)
        if self.reserved_bytes > self.limit_bytes:
            self._release()
            raise self._full(size)
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _spot(self, size: int) -> tuple[int, int, int] | None:
        """Where the fewest cold bytes complete a warm range of ``size``.

        Returns: bytes to turn warm, their address, the start of the cold range they are in.
        """
        best: tuple[int, int, int] | None = None
        warm = self._warm
        for start, have in self._cold.size_at.items():
            end = start + have
            before = start - warm.start_before.get(start, start)
            after = warm.size_at.get(end, 0)
            if before + have + after >= size:
                low = min(have, _grains(size - before))
                high = min(have, _grains(size - after))
                found = (low, start, start) if low <= high else (high, end - high, start)
                best = found if best is None else min(best, found)
        return best

    def _cool(self, excess: int, keep: int = 0) -> None:
        """Give back ``excess`` bytes, smallest warm ranges first, never the ``keep`` largest."""
        by_size = self._warm.by_size
        for size, start in by_size[: len(by_size) - keep]:
            if excess <= 0:
                return
            end = (start + size) // GRAIN_BYTES * GRAIN_BYTES
            at = max(_grains(start), end - _grains(excess))
            if at >= end:
                continue
            slab = self._slabs[at >> _SLAB_SHIFT]
            slab.memory.madvise(mmap.MADV_DONTNEED, slab.skipped_bytes + (at & _OFFSET), end - at)
            self._warm.carve(start, at, end - at)
            self._cold.add(at, end - at)
            self.reserved_bytes -= end - at
            excess -= end - at

    def _release(self) -> None:
        """Cool all that is warm and drop the slabs that are wholly cold."""
        self._cool(self.reserved_bytes)
        for number, slab in tuple(self._slabs.items()):
            if self._cold.size_at.get(number << _SLAB_SHIFT) == slab.nbytes:
                self._cold.remove(number << _SLAB_SHIFT)
                del self._slabs[number]

    def _map(self, size: int) -> tuple[int, int, int] | None:
        """Add a slab for ``size`` bytes and answer as `_spot`; None if the system refuses."""
        needed = _grains(size)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        for slab_bytes in (max(self._slab_bytes, needed), max(_SMALL_SLAB_BYTES, needed), needed):
            try:
                memory = mmap.mmap(-1, slab_bytes + GRAIN_BYTES, flags=flags)
            except (OSError, OverflowError):
                continue
            with suppress(AttributeError, OSError):  # a system without them
                memory.madvise(mmap.MADV_HUGEPAGE)  # as NumPy does for its own arrays
            whole = np.frombuffer(memory, _U8)  # exports the mapping, which cannot be closed then
            skipped = -whole.ctypes.data % GRAIN_BYTES
            slab = whole[skipped : skipped + slab_bytes].view(_Slab)
            slab.memory, slab.skipped_bytes = memory, skipped
            start = self._next_slab << _SLAB_SHIFT
            self._next_slab += 1  # first: a number is never given twice
            self._slabs[start >> _SLAB_SHIFT] = slab
            self._cold.add(start, slab_bytes)
            return needed, start, start
        return None

    def _full(self, size: int) -> MemoryError:
        return MemoryError(
            f"alloc: expected {size} bytes to be free for a block, got {self.reserved_bytes} bytes"
            f" reserved and {self._live_bytes} in use;"
            " free tensors or call numgrad.memory.empty_cache()"
        )


def _grains(nbytes: int) -> int:
    """``nbytes`` rounded up to the grain."""
    return -(-nbytes // GRAIN_BYTES) * GRAIN_BYTES


def _outside(size: int) -> Block:
    """A block of plain NumPy memory, for a call from inside the pool's own locked section."""
    memory = np.empty(size + ALIGN_BYTES, _U8)
    return Block(size, _U8, memory, -memory.ctypes.data % ALIGN_BYTES)


def _machine_bytes() -> int:
    """Memory and swap of the machine, or the limit of the control group, in bytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Each is missing on some system; memory.max may say "max".
    with suppress(OSError, KeyError), open("/proc/meminfo", encoding="ascii") as file:
        total += int(dict(line.split(":") for line in file)["SwapTotal"].split()[0]) << 10
    with suppress(OSError, ValueError), open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
        total = min(total, int(file.read()))
    return total


_pools: WeakSet[Pool] = WeakSet()
_held: dict[int, list[Pool]] = {}  # thread -> pools it locked for a fork


def _before_fork() -> None:
    """Lock every pool: the child must not find one half changed by a thread that it lacks."""
    pools = sorted(_pools, key=id)  # one order for all threads
    for pool in pools:
        pool._lock.acquire()
    _held[threading.get_ident()] = pools


def _after_fork() -> None:
    """Unlock them, in the parent and in the child: the forking thread owns the locks in both."""
    for pool in _held.pop(threading.get_ident(), ()):
        pool._lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
