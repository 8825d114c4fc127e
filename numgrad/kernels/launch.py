"""Launching kernels: serial or over threads, always by address.

``elementwise`` runs a block kernel over NumPy arrays of any layout; ``ranged`` runs a handwritten
kernel over its items. Threads take contiguous shares of whole blocks, and blocks depend on shapes
only, so results have the same bits at any number of threads.
"""

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import store
from .cpu import elementwise as driver
from .native import RANGED_SIGNATURE, array_object

PARALLEL_MIN = 1 << 16
"""Elements above which an elementwise call is worth a parallel launch (about 2 us)."""


class Counters(threading.local):
    """Kernel launches of this thread."""

    launches: int = 0


counters = Counters()

# ---------------------------------------------------------------------------------------- threads

_threads: int | None = None
_forked = False
_layer_lock: Any = None


def get_num_threads() -> int:
    """Threads that one kernel may use: ``NUMGRAD_NUM_THREADS``, else the CPUs of this process."""
    global _threads
    if _threads is None:
        named = os.environ.get("NUMGRAD_NUM_THREADS", "")
        if named and (not named.isdigit() or int(named) < 1):
            raise ValueError(
                f"NUMGRAD_NUM_THREADS: expected a positive integer, got {named!r}; unset it or set a count"
            )
        _threads = int(named) if named else _cpus()
    return 1 if _forked else min(_threads, _numba_limit())


def _cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _numba_limit() -> int:
    from numba.core import config

    return int(config.NUMBA_NUM_THREADS)


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
    global _forked, _layer_lock
    _forked = True
    _layer_lock = None


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

_RANGED_TYPES = RANGED_SIGNATURE.args

_SERIAL = '''"""Call a ranged kernel on this thread."""
from numgrad.kernels.native import call_ranged, load_i64, object_address
from numgrad.kernels.cpu.elementwise import DATA

def kernel(address, frame, n):
    call_ranged(address, load_i64(object_address(frame) + DATA, 0), 0, n, 0)
'''

_PARALLEL = '''"""Share the items of a ranged kernel between threads: one contiguous range a worker."""
from numba import prange
from numgrad.kernels.native import call_ranged, load_i64, object_address
from numgrad.kernels.cpu.elementwise import DATA

def kernel(address, frame, n, unit, workers):
    args = load_i64(object_address(frame) + DATA, 0)
    units = (n + unit - 1) // unit
    for worker in prange(workers):
        lo = units * worker // workers * unit
        hi = min(units * (worker + 1) // workers * unit, n)
        if lo < hi:
            call_ranged(address, args, lo, hi, worker)
'''

_PACK = '''"""Put the address of an array object into a frame."""
from numgrad.kernels.native import load_i64, object_address, store_i64
from numgrad.kernels.cpu.elementwise import DATA

def kernel(frame, slot, array):
    store_i64(load_i64(object_address(frame) + DATA, 0), slot, object_address(array))
'''

_ADDRESS = '''"""The address of an array's first element."""
from numgrad.kernels.native import load_i64, object_address
from numgrad.kernels.cpu.elementwise import DATA

def kernel(array):
    return load_i64(object_address(array) + DATA, 0)
'''


def _contiguous_source(count: int) -> str:
    names = [f"a{j}" for j in range(count)]
    fetch = "\n".join(f"    o{j} = object_address({name})" for j, name in enumerate(names))
    test = "\n".join(
        f"    if not (load_i32(o{j}, FLAGS) & 1) or size(o{j}) != n:\n        return 1"
        for j in range(count)
    )
    fill = "\n".join(
        f"    store_i64(pointers, {j}, load_i64(o{j} + DATA, 0))" for j in range(count)
    )
    return f'''"""Run a block kernel on {count} arrays if all are C-contiguous and of one size; else return 1."""
from numba import njit
from numgrad.kernels.native import call_block, load_i32, load_i64, object_address, stack, store_i64
from numgrad.kernels.cpu.elementwise import DATA, DIMS, HEADER, ND

FLAGS = HEADER + 48

@njit
def size(array):
    dims = load_i64(array + DIMS, 0)
    n = 1
    for axis in range(load_i32(array, ND)):
        n *= load_i64(dims, axis)
    return n

def kernel(address, {", ".join(names)}):
{fetch}
    n = size(o0)
{test}
    pointers = stack({8 * count})
{fill}
    call_block(address, pointers, n)
    return 0
'''


_entries: dict[Any, Callable[..., Any]] = {}


def _entry(key: Any, text: Callable[[], str], signature: Callable[[], Any], **options: Any) -> Any:
    entry = _entries.get(key)
    if entry is None:
        _check_array_layout()
        entry = _entries[key] = store.entry_point(text(), signature(), options)
    return entry


def _serial() -> Any:
    from numba import types

    def signature() -> Any:
        return types.void(types.int64, array_object, types.int64)

    return _entry("serial", lambda: _SERIAL, signature, nogil=True)


def _parallel() -> Any:
    from numba import types

    def signature() -> Any:
        i = types.int64
        return types.void(i, array_object, i, i, i)

    return _entry("parallel", lambda: _PARALLEL, signature, nogil=True, parallel=True)


def _pack() -> Any:
    from numba import types

    def signature() -> Any:
        return types.void(array_object, types.int64, array_object)

    return _entry("pack", lambda: _PACK, signature)


def _contiguous(count: int) -> Any:
    from numba import types

    def signature() -> Any:
        return types.int64(types.int64, *[array_object] * count)

    return _entry(count, lambda: _contiguous_source(count), signature)


def address(array: np.ndarray) -> int:
    """The address of the first element of ``array`` (``array.ctypes.data``, ten times quicker)."""
    from numba import types

    entry = _entries.get("address") or _entry(
        "address", lambda: _ADDRESS, lambda: types.int64(array_object)
    )
    result: int = entry(array)
    return result


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
        ctypes.c_int64.from_address(base + driver.DATA).value,
        ctypes.c_int32.from_address(base + driver.ND).value,
        ctypes.c_int64.from_address(
            ctypes.c_int64.from_address(base + driver.DIMS).value + 8
        ).value,
        ctypes.c_int64.from_address(ctypes.c_int64.from_address(base + driver.STRIDES).value).value,
        ctypes.c_int32.from_address(base + driver.HEADER + 48).value & 1,
    )
    if fields != (probe.ctypes.data, 2, 2, probe.strides[0], 0):
        raise RuntimeError(
            f"launch: expected NumPy's C layout for array objects, got {fields}; "
            "this Python or NumPy build is not supported, please report it"
        )
    _layout_checked = True


def _run(address: int, frame: np.ndarray, n: int, unit: int, parallel: bool) -> None:
    counters.launches += 1
    workers = get_num_threads() if parallel else 1
    workers = min(workers, -(-n // unit))
    if workers <= 1:
        _serial()(address, frame, n)
        return
    launcher = _parallel()
    lock = _lock()
    if lock is None:
        launcher(address, frame, n, unit, workers)
    else:
        with lock:
            launcher(address, frame, n, unit, workers)


def _lock() -> Any:
    """A lock for layers that abort when two Python threads launch at once; None where none is needed."""
    global _layer_lock
    if _layer_lock is None:
        import numba
        from numba.np.ufunc.parallel import _launch_threads

        numba.set_num_threads(min(get_num_threads(), _numba_limit()))
        _launch_threads()
        _layer_lock = False if threading_layer() in ("omp", "tbb") else threading.Lock()
    return _layer_lock or None


def ranged(
    kernel: store.Handwritten | store.Kernel,
    args: Sequence[int],
    items: int,
    *,
    unit: int = 1,
    parallel: bool = True,
) -> None:
    """Run items ``[0, items)`` of a ranged kernel; workers take whole multiples of ``unit``."""
    if items > 0:
        _run(kernel.address, np.array(args, np.int64), items, unit, parallel)


def elementwise(kernel: store.Kernel, arrays: Sequence[np.ndarray], outputs: int = 1) -> None:
    """Run a block kernel: ``arrays`` are the outputs, then the inputs, broadcast to output 0.

    The caller guarantees dtypes, that shapes broadcast, and that outputs overlap inputs only as the
    very same elements.
    """
    first = arrays[0]
    if first.size < PARALLEL_MIN:
        count = len(arrays)
        if (_entries.get(count) or _contiguous(count))(kernel.address, *arrays) == 0:
            counters.launches += 1
            return
        if first.size == 0:
            return
    _strided(kernel, arrays, outputs)


def _strided(kernel: store.Kernel, arrays: Sequence[np.ndarray], outputs: int) -> None:
    count, n = len(arrays), arrays[0].size
    if count > driver.MAX_OPERANDS or arrays[0].ndim > driver.MAX_NDIM:
        raise ValueError(
            f"elementwise: expected at most {driver.MAX_OPERANDS} operands of {driver.MAX_NDIM} axes, "
            f"got {count} of {arrays[0].ndim}; split the operation"
        )
    frame = np.empty(driver.FRAME_SLOTS, np.int64)
    frame[driver.KERNEL], frame[driver.COUNT], frame[driver.OUTPUTS] = (
        kernel.address,
        count,
        outputs,
    )
    pack = _pack()
    for j, array in enumerate(arrays):
        pack(frame, driver.OBJECTS + j, array)
        frame[driver.SIZE + j] = array.itemsize
    _serial()(driver.geometry.address, frame, 1)
    _run(driver.run.address, frame, n, driver.BLOCK, n >= PARALLEL_MIN)
