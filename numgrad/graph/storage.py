"""Storages, view groups, and the ledger that counts their bytes.

A storage belongs to a block of memory and is alive while anybody holds an array on that block. The
ledger adds its bytes to one category and takes them away when it dies. Each thread writes to an
account of its own without locks; readers merge the accounts.
"""

import functools
import os
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np

from ..kernels.cuda import array as device_arrays
from . import device as devices
from .device import CPU, canonical, device
from .pool import POOL_MIN_BYTES, Block, Pool

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
    """One thread's sums: live bytes and live storages a category. Merged when read.

    ``category`` is what the thread's new storages count under, ``op`` the op it runs.
    """

    __slots__ = ("bytes", "category", "counts", "op", "thread", "total")

    def __init__(self) -> None:
        self.total = 0
        self.bytes = [0] * len(CATEGORIES)
        self.counts = [0] * len(CATEGORIES)
        self.thread = weakref.ref(threading.current_thread())
        self.category = ACTIVATION
        self.op: str | None = None


class Peak:
    """The highest total since the start of a region, and the categories at that instant."""

    __slots__ = ("by_category", "op", "start", "start_by_category", "total")

    def __init__(self) -> None:
        self.start_by_category = self.by_category = bytes_by_category()
        self.start = self.total = sum(self.by_category)
        self.op: str | None = None


_accounts: list[Account] = []
_folded = Account()
_folding = threading.Lock()


class _Local(threading.local):
    def __init__(self) -> None:
        self.account = Account()
        _fold()
        _accounts.append(self.account)


def _fold() -> None:
    """Merge the accounts of threads that have ended, so that their list stays short."""
    if not _folding.acquire(blocking=False):  # another thread does it, or a finaliser inside of it
        return
    try:
        for account in [a for a in _accounts if a.thread() is None]:
            _accounts.remove(account)
            _folded.total += account.total
            for c in range(len(CATEGORIES)):
                _folded.bytes[c] += account.bytes[c]
                _folded.counts[c] += account.counts[c]
    finally:
        _folding.release()


def _after_fork_in_child() -> None:
    global _folding
    _folding = threading.Lock()  # another thread may have held it, which the child does not have


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


local = _Local()
"""This thread's account, the category that new storages get, and the op now running."""


def total_bytes() -> int:
    """Live bytes of all threads."""
    return _folded.total + sum(a.total for a in _accounts)


def bytes_by_category() -> list[int]:
    """Live bytes a category, of all threads."""
    accounts = [_folded, *_accounts]
    return [sum(a.bytes[c] for a in accounts) for c in range(len(CATEGORIES))]


def counts_by_category() -> list[int]:
    """Live storages a category, of all threads."""
    accounts = [_folded, *_accounts]
    return [sum(a.counts[c] for a in accounts) for c in range(len(CATEGORIES))]


_peaks: list[Peak] = [Peak()]
_threshold = 0
"""Lowest total among the peaks in force: only above it does an allocation look at them."""


def _note_peak(total: int) -> None:
    global _threshold
    by_category = bytes_by_category()
    for peak in _peaks:
        if total > peak.total:
            peak.total, peak.by_category, peak.op = total, by_category, local.account.op
    _threshold = min(peak.total for peak in _peaks)


def open_peak() -> Peak:
    """Begin to watch for the highest total from now on."""
    global _threshold
    peak = Peak()
    _peaks.append(peak)
    _threshold = min(_threshold, peak.total)
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
    _peaks[0] = Peak()
    _threshold = min(p.total for p in _peaks)
    pool.reset_peak()


class Group:
    """A view group: a base, its views and what ``detach`` made share one version counter.

    ``version`` counts in-place writes through the group; ``writer`` names the last op that wrote.
    Both stand in the class until the first write: most groups are never written to.
    """

    version: int = 0
    writer: str | None = None


class Storage:
    """A block of memory as the ledger sees it.

    ``nbytes``; ``category`` (an index into ``CATEGORIES``); ``counted``, the category whose sum
    holds the bytes now; ``writes``, which moves before and after every write through any handle;
    ``saved``, the number of saved values that hold it; ``owned``, False for memory from outside,
    which is not counted; ``device``, where the memory is.
    """

    device = CPU

    __slots__ = (
        "__weakref__",
        "aliases",
        "category",
        "counted",
        "nbytes",
        "owned",
        "saved",
        "writes",
    )

    def __init__(
        self, nbytes: int, category: int, owned: bool = True, account: Account | None = None
    ) -> None:
        self.nbytes, self.category, self.counted, self.owned = nbytes, category, category, False
        self.writes = self.saved = self.aliases = 0
        if owned:
            account = account or local.account
            account.bytes[category] += nbytes
            account.counts[category] += 1
            account.total = total = account.total + nbytes
            self.owned = True  # from now on its end is counted, too
            if len(_accounts) > 1 or _folded.total:
                total = total_bytes()
            if total > _threshold:
                _note_peak(total)

    def export(self, array: np.ndarray) -> np.ndarray:
        """An array for the user on the memory of ``array``. The storage lives as long as it or any
        view of it does, and is ``exported`` until then."""
        # NumPy makes views of views refer to the first array whose base is no array: this one.
        alias = np.asarray(memoryview(array))  # type: ignore[arg-type]
        key = id(alias)
        _exports[key] = (weakref.ref(alias, functools.partial(_end_export, key)), self)
        self.aliases += 1
        self.writes += 1  # what is written through it is not seen, and it may be gone soon
        return alias

    def tell_address(self) -> None:
        """Somebody outside gets to know where the memory is. Nobody says when that is no longer
        used, so the storage is ``exported`` for good."""
        self.aliases += 1
        self.writes += 1

    @property
    def exported(self) -> bool:
        """Whether somebody outside may write to the memory: a NumPy alias is alive, its address was
        told, or the memory came from outside."""
        return self.aliases > 0 or not self.owned

    def move_to(self, category: int) -> None:
        """Count the bytes under another category from now on."""
        self.category = category
        self._recount()

    def hold(self) -> None:
        """A saved value begins to hold the storage: saved-for-backward wins over activation."""
        self.saved += 1
        if self.saved == 1 and self.category == ACTIVATION:
            self._recount()

    def release(self) -> None:
        """A saved value lets go of the storage."""
        self.saved -= 1
        if self.saved == 0 and self.counted == SAVED:
            self._recount()

    def _recount(self) -> None:
        before = self.counted
        self.counted = after = (
            SAVED if self.saved and self.category == ACTIVATION else self.category
        )
        if self.owned and after != before:
            account = local.account
            account.bytes[before] -= self.nbytes
            account.bytes[after] += self.nbytes
            account.counts[before] -= 1
            account.counts[after] += 1

    # The names are bound here: at interpreter exit those of the module may be gone already.
    def __del__(self, local: _Local = local, folded: Account = _folded) -> None:
        try:
            owned = self.owned
        except AttributeError:  # a signal raised as it was made
            return
        if owned:
            try:
                account = local.account
            except AttributeError:  # the thread's locals are being torn down
                account = folded
            account.total -= self.nbytes
            account.bytes[self.counted] -= self.nbytes
            account.counts[self.counted] -= 1


_exports: dict[int, tuple[Any, Storage]] = {}
"""Arrays that users hold: ``id`` of the array -> (weak reference to it, storage)."""


def _end_export(
    key: int, reference: Any, exports: dict[int, tuple[Any, Storage]] = _exports
) -> None:
    _, storage = exports.pop(key)
    storage.aliases -= 1


class DeviceLedger:
    """Bytes and storages of one device that is not the CPU, a category, of all threads.

    What storages note is kept in a queue, without a lock, since a finaliser may note something
    anywhere; whoever wants to know works it off. The order is kept, so the peak is exact.
    """

    def __init__(self) -> None:
        self._noted: deque[tuple[int, int, int, str | None]] = deque()
        self._lock = threading.RLock()
        self._busy = False
        self.bytes = [0] * len(CATEGORIES)
        self.counts = [0] * len(CATEGORIES)
        self.total = self.peak = 0
        self.peak_by_category = list(self.bytes)
        self.peak_op: str | None = None

    def note(self, category: int, nbytes: int, count: int, op: str | None = None) -> None:
        """Add bytes and storages to a category; ``op`` is what allocates them."""
        self._noted.append((category, nbytes, count, op))
        if count > 0:
            self.settle()

    def settle(self) -> "DeviceLedger":
        """Work off what was noted."""
        with self._lock:
            if not self._busy:
                self._busy = True
                try:
                    while self._noted:
                        self._add(*self._noted.popleft())
                finally:
                    self._busy = False
        return self

    def _add(self, category: int, nbytes: int, count: int, op: str | None) -> None:
        self.bytes[category] += nbytes
        self.counts[category] += count
        self.total += nbytes
        if self.total > self.peak:
            self.peak, self.peak_by_category = self.total, list(self.bytes)
            self.peak_op = op

    def reset_peak(self) -> None:
        """Let the peak begin again at what is live now."""
        self.settle()
        self.peak, self.peak_by_category, self.peak_op = self.total, list(self.bytes), None


_ledgers: dict[device, DeviceLedger] = {}


def ledger(where: device) -> DeviceLedger:
    """The ledger of a device that is not the CPU, up to date."""
    return _ledgers.setdefault(where, DeviceLedger()).settle()


class DeviceStorage(Storage):
    """A block of memory of another device than the CPU."""

    __slots__ = ("_ledger", "device")

    def __init__(self, nbytes: int, category: int, where: device) -> None:
        super().__init__(nbytes, category, owned=False)
        self.owned, self.device = True, where
        self._ledger = ledger(where)
        devices.used = True
        self._ledger.note(category, nbytes, 1, local.account.op)

    def _recount(self) -> None:
        before = self.counted
        self.counted = after = (
            SAVED if self.saved and self.category == ACTIVATION else self.category
        )
        if after != before:
            self._ledger.note(before, -self.nbytes, -1)
            self._ledger.note(after, self.nbytes, 1)

    def __del__(self) -> None:  # type: ignore[override]
        found = getattr(self, "_ledger", None)
        if found is not None:
            found.note(self.counted, -self.nbytes, -1)


_new_array = np.empty
_ndarray = np.ndarray


def allocate(
    shape: tuple[int, ...], dtype: np.dtype[Any], op: str | None = None
) -> tuple[np.ndarray, Storage]:
    """An uninitialised C-contiguous array of this thread's current category, and its storage.

    From ``POOL_MIN_BYTES`` on the memory is a 64-byte aligned block of the pool, whose storage
    lives as long as any array on the block; below it NumPy's own. ``op`` is what peaks are put down
    to from now on.
    """
    account = local.account
    if op is not None:
        account.op = op
    nbytes = dtype.itemsize
    for length in shape:
        nbytes *= length
    if nbytes < POOL_MIN_BYTES:
        return _new_array(shape, dtype), Storage(nbytes, account.category, True, account)
    block = pool.alloc(nbytes)
    storage = Storage(nbytes, account.category, True, account)
    block.storage = storage
    return _ndarray(shape, dtype, block), storage


def allocate_on(
    where: device, shape: tuple[int, ...], dtype: np.dtype[Any], op: str | None = None
) -> tuple[Any, Storage]:
    """As :func:`allocate`, in the memory of a device; the array is a ``DeviceArray`` on a GPU.

    Raises:
        NoDeviceError: a GPU where there is none.
    """
    if where is CPU:
        return allocate(shape, dtype, op)
    account = local.account
    if op is not None:
        account.op = op
    array = device_arrays.empty(shape, dtype, where.index or 0)
    storage = DeviceStorage(array.nbytes, account.category, where)
    array.block.storage = storage
    return array, storage


def allocate_beside(
    array: Any, shape: tuple[int, ...], dtype: np.dtype[Any], op: str | None = None
) -> tuple[Any, Storage]:
    """As :func:`allocate`, where ``array`` has its memory."""
    if type(array) is device_arrays.DeviceArray:
        return allocate_on(canonical(array.index), shape, dtype, op)
    return allocate(shape, dtype, op)


def adopt(array: np.ndarray) -> Storage:
    """The storage of memory that is there already.

    Memory of the pool (seen through ``x.numpy()``) has one. Any other belongs to somebody else: it
    is alive with the array and not counted.
    """
    base: Any = array
    while True:
        if isinstance(base, Block):  # what the pool handed out, or a slice of it, which has none
            storage: Storage | None = getattr(base, "storage", None)
            if storage is not None:
                return storage
        exported = _exports.get(id(base))
        if exported is not None and exported[0]() is base:  # what ``export`` gave
            return exported[1]
        inner = base.base
        if not isinstance(inner, np.ndarray):
            return Storage(base.nbytes, DATA, owned=False)
        base = inner


def bounds(array: np.ndarray) -> tuple[int, int]:
    """The addresses of the first byte and behind the last one of memory on the host."""
    low = high = array.__array_interface__["data"][0]
    if array.size:
        steps = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
        low += sum(step for step in steps if step < 0)
        high += sum(step for step in steps if step > 0) + array.itemsize
    return low, high


class category:
    """``with category(GRADIENT):`` new storages of this thread count under it."""

    __slots__ = ("_before", "_category")

    def __init__(self, which: int) -> None:
        self._category = which

    def __enter__(self) -> None:
        self._before = local.account.category
        local.account.category = self._category

    def __exit__(self, *exc: object) -> None:
        local.account.category = self._before
