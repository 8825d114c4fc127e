"""Storages, view groups, and the ledger that counts their bytes.

A storage belongs to a block of memory and is alive while anybody holds an array on that block. The
ledger adds its bytes to one category and takes them away when it dies. Each thread writes to an
account of its own without locks; readers merge the accounts.
"""

import threading
import weakref
from typing import Any

import numpy as np

from .pool import POOL_MIN_BYTES, Pool

CATEGORIES = (
    "data",
    "parameter",
    "buffer",
    "activation",
    "saved",
    "gradient",
    "optimizer",
    "workspace",
    "derived",
)
(
    DATA,
    PARAMETER,
    BUFFER,
    ACTIVATION,
    SAVED,
    GRADIENT,
    OPTIMIZER,
    WORKSPACE,
    DERIVED,
) = range(len(CATEGORIES))

pool = Pool()


class Account:
    """One thread's sums: live bytes and live storages a category. Merged when read."""

    __slots__ = ("bytes", "counts", "thread", "total")

    def __init__(self) -> None:
        self.total = 0
        self.bytes = [0] * len(CATEGORIES)
        self.counts = [0] * len(CATEGORIES)
        self.thread = weakref.ref(threading.current_thread())


class Peak:
    """The highest total since the start of a region, and the categories at that instant."""

    __slots__ = ("by_category", "op", "start", "total")

    def __init__(self, total: int, by_category: list[int]) -> None:
        self.start = self.total = total
        self.by_category = by_category
        self.op: str | None = None


class _Local(threading.local):
    def __init__(self) -> None:
        self.account = Account()
        self.category = ACTIVATION
        self.op: str | None = None
        _accounts.append(self.account)


_accounts: list[Account] = []
_folded = Account()
local = _Local()
"""This thread's account, the category that new storages get, and the op now running."""

_peaks: list[Peak] = [Peak(0, [0] * len(CATEGORIES))]
_threshold = 0
"""Lowest total among the peaks in force: only above it does an allocation look at them."""


def _fold() -> None:
    """Merge the accounts of threads that have ended, so that their list stays short."""
    for account in [a for a in _accounts if a.thread() is None]:
        try:
            _accounts.remove(account)
        except ValueError:
            continue
        _folded.total += account.total
        for c in range(len(CATEGORIES)):
            _folded.bytes[c] += account.bytes[c]
            _folded.counts[c] += account.counts[c]


def total_bytes() -> int:
    """Live bytes of all threads."""
    return _folded.total + sum(a.total for a in _accounts)


def bytes_by_category() -> list[int]:
    """Live bytes a category, of all threads."""
    accounts = [_folded, *_accounts]
    return [sum(a.bytes[c] for a in accounts) for c in range(len(CATEGORIES))]


def counts_by_category() -> list[int]:
    """Live storages a category, of all threads."""
    _fold()
    accounts = [_folded, *_accounts]
    return [sum(a.counts[c] for a in accounts) for c in range(len(CATEGORIES))]


def _note_peak(total: int) -> None:
    global _threshold
    by_category = bytes_by_category()
    for peak in _peaks:
        if total > peak.total:
            peak.total, peak.by_category, peak.op = total, by_category, local.op
    _threshold = min(peak.total for peak in _peaks)


def open_peak() -> Peak:
    """Begin to watch for the highest total from now on."""
    global _threshold
    total = total_bytes()
    peak = Peak(total, bytes_by_category())
    _peaks.append(peak)
    _threshold = min(_threshold, total)
    return peak


def close_peak(peak: Peak) -> None:
    """Stop watching; ``peak`` keeps what it saw."""
    global _threshold
    _peaks.remove(peak)
    _threshold = min(p.total for p in _peaks)


def overall_peak() -> Peak:
    """The peak since the process began or ``reset_peak`` was called."""
    return _peaks[0]


def reset_peak() -> None:
    """Let the overall peak begin again at what is live now."""
    global _threshold
    _peaks[0] = Peak(total_bytes(), bytes_by_category())
    _threshold = min(p.total for p in _peaks)
    pool.reset_peak()


class Group:
    """A view group: a base, its views and what ``detach`` made share one version counter.

    ``version`` counts in-place writes through the group; ``writer`` names the last op that wrote.
    """

    __slots__ = ("version", "writer")

    def __init__(self) -> None:
        self.version = 0
        self.writer: str | None = None


class Storage:
    """A block of memory as the ledger sees it.

    ``nbytes``; ``category`` (an index into ``CATEGORIES``); ``writes``, bumped by every write
    through any handle; ``saved``, the number of saved values that hold it; ``owned``, False for
    memory that came from outside and is not counted.
    """

    __slots__ = ("__weakref__", "_forget", "category", "nbytes", "owned", "saved", "writes")

    def __init__(self, nbytes: int, category: int, owned: bool = True) -> None:
        global _threshold
        self.nbytes, self.category, self.owned = nbytes, category, owned
        self.writes = self.saved = 0
        self._forget = _forget
        if owned:
            account = local.account
            account.total += nbytes
            account.bytes[category] += nbytes
            account.counts[category] += 1
            total = account.total if len(_accounts) == 1 else total_bytes()
            if total > _threshold:
                _note_peak(total)

    def counted_as(self) -> int:
        """The category whose sum holds the bytes now: saved-for-backward wins over activation."""
        return SAVED if self.saved and self.category == ACTIVATION else self.category

    def move_to(self, category: int) -> None:
        """Count the bytes under another category from now on."""
        before = self.counted_as()
        self.category = category
        self._moved(before)

    def hold(self) -> None:
        """A saved value begins to hold the storage."""
        self.saved += 1
        if self.saved == 1 and self.category == ACTIVATION:
            self._moved(ACTIVATION)

    def release(self) -> None:
        """A saved value lets go of the storage."""
        self.saved -= 1
        if not self.saved and self.category == ACTIVATION:
            self._moved(SAVED)

    def _moved(self, before: int) -> None:
        after = self.counted_as()
        if self.owned and after != before:
            account = local.account
            account.bytes[before] -= self.nbytes
            account.bytes[after] += self.nbytes
            account.counts[before] -= 1
            account.counts[after] += 1

    def __del__(self) -> None:
        # Bound at creation: at interpreter exit the module's names may be gone already.
        self._forget(self)


def _forget(storage: Storage, local: _Local = local) -> None:
    if storage.owned:
        try:
            account = local.account
        except AttributeError:  # the thread's locals are being torn down
            account = _folded
        category = storage.counted_as()
        account.total -= storage.nbytes
        account.bytes[category] -= storage.nbytes
        account.counts[category] -= 1


_new_array = np.empty
_ndarray = np.ndarray


def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[np.ndarray, Storage]:
    """An uninitialised C-contiguous array of this thread's current category, and its storage.

    From ``POOL_MIN_BYTES`` on the memory is a 64-byte aligned block of the pool, whose storage
    lives as long as any array on the block; below it NumPy's own.
    """
    nbytes = dtype.itemsize
    for length in shape:
        nbytes *= length
    if nbytes < POOL_MIN_BYTES:
        return _new_array(shape, dtype), Storage(nbytes, local.category)
    block = pool.alloc(nbytes)
    storage = Storage(nbytes, local.category)
    block.storage = storage
    return _ndarray(shape, dtype, block), storage


def adopt(array: np.ndarray) -> Storage:
    """A storage for memory that somebody else owns: alive with the array, not counted."""
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    return Storage(base.nbytes, DATA, owned=False)


class category:
    """``with category(GRADIENT):`` new storages of this thread count under it."""

    __slots__ = ("_before", "_category")

    def __init__(self, which: int) -> None:
        self._category = which

    def __enter__(self) -> None:
        self._before = local.category
        local.category = self._category

    def __exit__(self, *exc: object) -> None:
        local.category = self._before
