"""Launching kernels: serial or over threads, always by address.

``elementwise`` runs a block kernel over NumPy arrays of any layout; ``ranged`` runs a handwritten
kernel over its items. Threads take contiguous shares of whole blocks, and blocks depend on shapes
only, so results have the same bits at any number of threads.
"""

import os
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import store
from .counters import launches
from .cpu import elementwise as driver
from .native import DATA, DIMS, FLAGS, ND, STRIDES, array_object

Workspace = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]
"""Gives uninitialised memory for the length of a call: kernels allocate nothing themselves."""
UINT8 = np.dtype(np.uint8)

PARALLEL_MIN = 1 << 16
"""Elements above which an elementwise call is worth a parallel launch (about 2 us)."""

_count_launch = launches.add

# ---------------------------------------------------------------------------------------- threads

_threads: int | None = None
_forked = False
_workqueue_lock = threading.Lock()
_needs_lock: bool | None = None


def get_num_threads() -> int:
    """Threads that one kernel may use: what was set, ``NUMGRAD_NUM_THREADS``, or the CPUs of this
    process; never more than Numba's pool has (``NUMBA_NUM_THREADS``), and 1 after a fork.

    Raises:
        ValueError: ``NUMGRAD_NUM_THREADS`` is not a positive integer.
    """
    global _threads
    if _threads is None:
        named = os.environ.get("NUMGRAD_NUM_THREADS", "").strip()
        if named and (not named.isdecimal() or int(named) < 1):
            raise ValueError(
                f"NUMGRAD_NUM_THREADS: expected a positive integer, got {named!r}; "
                "unset it or set a count"
            )
        _threads = int(named) if named else _cpus()
    return 1 if _forked else min(_threads, _numba_limit())


def _cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


_numba: dict[str, Any] | None = None


def _numba_limit() -> int:
    global _numba
    if _numba is None:  # an import statement takes longer than a small kernel
        from numba.core import config

        _numba = vars(config)
    return int(_numba["NUMBA_NUM_THREADS"])


def set_num_threads(n: int) -> None:
    """Let one kernel use ``n`` threads. Results have the same bits for every ``n``.

    Raises:
        ValueError: ``n`` is not a positive integer.
    """
    global _threads
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(
            f"set_num_threads: expected a positive integer for n, got {n!r}; use 1 or more"
        )
    _threads = n


def _after_fork_in_child() -> None:
    # Numba's threading layers do not survive fork: a child that launches one is killed.
    global _forked, _card_lock
    _forked = True
    _card_lock = threading.Lock()  # another thread may have held it, which the child does not have


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def threading_layer() -> str:
    """Numba's threading layer in use: ``omp`` where the system has it, else ``workqueue``."""
    import numba

    try:
        return str(numba.threading_layer())
    except ValueError:
        return "not started"


# ---------------------------------------------------------------------------------------- launchers

_SERIAL = '''"""Call a ranged kernel on this thread."""
from numgrad.kernels.native import DATA, call_ranged, load_i64, object_address

def kernel(address, frame, n):
    call_ranged(address, load_i64(object_address(frame) + DATA, 0), 0, n, 0)
'''

# The mask of Numba's threads is this thread's, and the user's: it is put back.
_PARALLEL = '''"""Share the items of a ranged kernel between threads, a range a worker."""
from numba import prange
from numgrad.kernels.native import (
    DATA, call_ranged, get_thread_mask, load_i64, object_address, set_thread_mask
)

def kernel(address, frame, n, unit, workers):
    args = load_i64(object_address(frame) + DATA, 0)
    units = (n + unit - 1) // unit
    before = get_thread_mask()
    set_thread_mask(workers)
    for worker in prange(workers):
        lo = units * worker // workers * unit
        hi = min(units * (worker + 1) // workers * unit, n)
        if lo < hi:
            call_ranged(address, args, lo, hi, worker)
    set_thread_mask(before)
'''

_PACK = '''"""Put the address of an array object into a frame."""
from numgrad.kernels.native import DATA, load_i64, object_address, store_i64

def kernel(frame, slot, array):
    store_i64(load_i64(object_address(frame) + DATA, 0), slot, object_address(array))
'''

_ADDRESS = '''"""The address of an array's first element."""
from numgrad.kernels.native import DATA, load_i64, object_address

def kernel(array):
    return load_i64(object_address(array) + DATA, 0)
'''

_CONTIGUOUS = '''"""Run a block kernel on {count} arrays.

At once if all are C-contiguous, of one size, and none is output 0 itself; else by the driver
``blocks``, whose answer is returned, or 2 if that is not loaded.
"""
from numgrad.kernels.native import (
    C_CONTIGUOUS, DATA, FLAGS, call_block, call_ranged, count_elements, load_i32, load_i64,
    object_address, stack, store_i64,
)

def kernel(card, {names}):
    address, driver = load_i64(card, 0), load_i64(card, 2)
    frame, pointers = stack({frame_bytes}), stack({bytes})
{fetch}
    n = count_elements(load_i64(frame, {objects}))
    plain = True
    for j in range({count}):
        array = load_i64(frame, {objects} + j)
        data = load_i64(array + DATA, 0)
        store_i64(pointers, j, data)
        plain = plain and (load_i32(array, FLAGS) & C_CONTIGUOUS) and count_elements(array) == n
        plain = plain and (j == 0 or data != load_i64(pointers, 0))
    if plain:
        call_block(address, pointers, n)
        return 0
    if driver == 0:
        return 2
    store_i64(frame, 0, address)
    store_i64(frame, 1, load_i64(card, 1))
    call_ranged(driver, frame, 0, {count}, 0)
    return load_i64(frame, 2)
'''


def _contiguous_source(count: int) -> str:
    names = [f"a{j}" for j in range(count)]
    fetch = [
        f"    store_i64(frame, {driver.BLOCKS_OBJECTS + j}, object_address({name}))"
        for j, name in enumerate(names)
    ]
    return _CONTIGUOUS.format(
        count=count,
        names=", ".join(names),
        bytes=8 * count,
        frame_bytes=8 * (driver.BLOCKS_OBJECTS + count),
        objects=driver.BLOCKS_OBJECTS,
        fetch="\n".join(fetch),
    )


_card_lock = threading.Lock()


def _card(kernel: store.Kernel, arrays: Sequence[np.ndarray]) -> int:
    """The address of what a contiguous launcher wants to know of a kernel, made once a kernel: its
    address, the sizes of its operands' elements (two bits each), the address of ``blocks`` or 0."""
    sizes = sum((a.itemsize.bit_length() - 1) << 2 * j for j, a in enumerate(arrays))
    slots = np.array([kernel.address, sizes, driver.blocks.loaded], np.int64)
    card = slots.ctypes.data
    with _card_lock:  # nothing is allocated inside that could run a finaliser, which may launch
        if not kernel.card:
            kernel.slots, kernel.card = slots, card
    return kernel.card


entries: dict[Any, Callable[..., Any]] = {}
"""The entry points asked for so far: what :func:`entry` gives, for who cannot wait."""


def entry(key: Any, text: Callable[[], str], signature: Callable[[], Any], **options: Any) -> Any:
    """The entry point of a launcher, compiled or loaded when first asked for."""
    found = entries.get(key)
    if found is None:
        _check_array_layout()
        found = entries[key] = store.entry_point(text(), signature(), options)
    return found


def _serial() -> Any:
    from numba import types

    def signature() -> Any:
        return types.void(types.int64, array_object, types.int64)

    return entry("serial", lambda: _SERIAL, signature, nogil=True)


def _parallel() -> Any:
    from numba import types

    def signature() -> Any:
        i = types.int64
        return types.void(i, array_object, i, i, i)

    return entry("parallel", lambda: _PARALLEL, signature, nogil=True, parallel=True)


def _pack() -> Any:
    from numba import types

    def signature() -> Any:
        return types.void(array_object, types.int64, array_object)

    return entry("pack", lambda: _PACK, signature)


def _contiguous(count: int) -> Any:
    from numba import types

    def signature() -> Any:
        return types.int64(types.int64, *[array_object] * count)

    return entry(count, lambda: _contiguous_source(count), signature)


def _address() -> Any:
    from numba import types

    return entry("address", lambda: _ADDRESS, lambda: types.int64(array_object))


def address(array: np.ndarray) -> int:
    """The address of the first element of ``array`` (``array.ctypes.data``, ten times quicker).

    Raises:
        NotImplementedError: memory of a GPU, which no kernel of the CPU may be given.
    """
    if not isinstance(array, np.ndarray):
        raise array.refused("a kernel of the CPU")  # a DeviceArray
    result: int = (entries.get("address") or _address())(array)
    return result


def address_or_0(array: np.ndarray | None) -> int:
    """The address of an operand that may be left out: 0 says so to a kernel."""
    return 0 if array is None else address(array)


def put_addresses(
    args: np.ndarray, slots: Sequence[int], arrays: Sequence[np.ndarray | None]
) -> None:
    """Put the addresses of operands that may be left out into their slots."""
    for slot, array in zip(slots, arrays, strict=True):
        if array is not None:
            args[slot] = address(array)


def bits(value: float) -> int:
    """The bits of a float64 as an integer: how a kernel gets a number."""
    number: int = _INT64.unpack(_FLOAT64.pack(value))[0]
    return number


_FLOAT64, _INT64 = struct.Struct("=d"), struct.Struct("=q")


_layout_checked = False


def _check_array_layout() -> None:
    """Refuse an interpreter whose array objects are laid out otherwise than kernels read them."""
    global _layout_checked
    if _layout_checked:
        return
    import ctypes

    probe = np.empty((3, 5), np.float32)[:, 1:3]
    base = id(probe)
    fields = (
        ctypes.c_int64.from_address(base + DATA).value,
        ctypes.c_int32.from_address(base + ND).value,
        ctypes.c_int64.from_address(ctypes.c_int64.from_address(base + DIMS).value + 8).value,
        ctypes.c_int64.from_address(ctypes.c_int64.from_address(base + STRIDES).value).value,
        ctypes.c_int32.from_address(base + FLAGS).value & 1,
    )
    if fields != (probe.ctypes.data, 2, 2, probe.strides[0], 0):
        raise RuntimeError(
            f"launch: expected NumPy's C layout for array objects, got {fields}; "
            "this Python or NumPy build is not supported, please report it"
        )
    _layout_checked = True


def _run(address: int, frame: np.ndarray, n: int, unit: int, workers: int) -> None:
    _count_launch()
    workers = min(workers, -(-n // unit))
    if workers <= 1:
        (entries.get("serial") or _serial())(address, frame, n)
        return
    locked = _layer_needs_lock() if _needs_lock is None else _needs_lock
    launcher = entries.get("parallel") or _parallel()
    if locked:
        with _workqueue_lock:
            launcher(address, frame, n, unit, workers)
    else:
        launcher(address, frame, n, unit, workers)


def _layer_needs_lock() -> bool:
    """Start Numba's threads; whether they abort when two Python threads launch at once."""
    global _needs_lock
    import numba

    numba.get_num_threads()  # starts the layer, under a lock of its own
    _needs_lock = threading_layer() not in ("omp", "tbb")
    return _needs_lock


def ranged(
    kernel: store.Handwritten | store.Kernel,
    args: Sequence[int] | np.ndarray,
    items: int,
    *,
    unit: int = 1,
    parallel: bool = True,
    workers: int | None = None,
) -> None:
    """Run items ``[0, items)`` of a ranged kernel; workers take whole multiples of ``unit``.

    ``workers``, if given, is the most there may be: a kernel whose workspace was made for so many
    says so, because ``set_num_threads`` may be called meanwhile by another thread.
    """
    if items > 0:
        if workers is None:
            workers = get_num_threads() if parallel else 1
        _run(kernel.address, np.asarray(args, np.int64), items, unit, workers)


def elementwise(kernel: store.Kernel, arrays: Sequence[np.ndarray], outputs: int = 1) -> None:
    """Run a block kernel: ``arrays`` are the outputs, then the inputs, broadcast to output 0.

    The caller guarantees dtypes, that shapes broadcast, and that outputs overlap inputs only as the
    very same elements.
    """
    first = arrays[0]
    if first.size < PARALLEL_MIN:
        count = len(arrays)
        if count <= driver.BLOCKS_MAX:
            entry = entries.get(count) or _contiguous(count)
            card = kernel.card or _card(kernel, arrays)
            answer = entry(card, *arrays)
            if answer == 2:  # not before it is needed: a first operation should not wait for it
                kernel.slots[2] = driver.blocks.address
                answer = entry(card, *arrays)
            if answer == 0:
                _count_launch()
                return
        if first.size == 0:
            return
    _strided(kernel, arrays, outputs)


def _strided(kernel: store.Kernel, arrays: Sequence[np.ndarray], outputs: int) -> None:
    count, n = len(arrays), arrays[0].size
    if count > driver.MAX_OPERANDS or arrays[0].ndim > driver.MAX_NDIM:
        raise ValueError(
            f"elementwise: expected at most {driver.MAX_OPERANDS} operands of {driver.MAX_NDIM} "
            f"axes, got {count} of {arrays[0].ndim}; split the operation"
        )
    frame = np.empty(driver.FRAME_SLOTS, np.int64)
    frame[driver.KERNEL], frame[driver.COUNT], frame[driver.OUTPUTS] = (
        kernel.address,
        count,
        outputs,
    )
    pack = entries.get("pack") or _pack()
    for j, array in enumerate(arrays):
        pack(frame, driver.OBJECTS + j, array)
        frame[driver.SIZE + j] = array.itemsize
    (entries.get("serial") or _serial())(driver.geometry.address, frame, 1)
    workers = get_num_threads() if n >= PARALLEL_MIN else 1
    _run(driver.run.address, frame, n, driver.BLOCK, workers)
