"""The one module that touches numba-cuda: whether there is a device, its memory, its compiler.

Nothing of numba-cuda is imported before a device is asked for. In Numba's simulator (set
``NUMBA_ENABLE_CUDASIM=1`` before Python starts) the same kernels run as plain Python.
"""

import builtins
import functools
import hashlib
import importlib.util
import linecache
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

GRID_MAX = 2**31 - 1, 65535, 65535
"""Blocks of a grid, an axis: the limits of CUDA devices."""


class NoDeviceError(RuntimeError):
    """There is no CUDA device to work on; the text says what is missing."""


class Block:
    """A block of device memory, freed when nothing refers to it any more.

    ``memory`` is a flat uint8 device array; ``storage`` is the ledger's entry of the block, which
    lives as long as any array on it.
    """

    __slots__ = ("_typed", "index", "memory", "nbytes", "storage")

    def __init__(self, nbytes: int, index: int) -> None:
        cuda = module()
        self.nbytes, self.index = nbytes, index
        self.storage: Any = None
        with cuda.gpus[index]:
            # Rounded up: it can be seen as elements of any dtype, and is never empty.
            self.memory = cuda.device_array((max(nbytes + 7, 8) // 8 * 8,), np.uint8)
        self._typed: dict[str, Any] = {}

    def typed(self, dtype: np.dtype[Any]) -> Any:
        """The block as a flat device array of ``dtype``; bools are uint8, as kernels take them."""
        name = "uint8" if dtype.kind == "b" else dtype.name
        found = self._typed.get(name)
        if found is None:
            found = self._typed[name] = self.memory.view(np.dtype(name))
        return found


@functools.cache
def missing() -> str | None:
    """What is missing for a device to be there, in words; None if one is."""
    if importlib.util.find_spec("numba_cuda") is None:
        return "the package numba-cuda is not installed: pip install 'numgrad-jit[cuda]'"
    try:
        from numba import cuda
    except Exception as error:  # whatever a part of numba-cuda that is not there or broken raises
        return (
            f"numba-cuda cannot be imported ({type(error).__name__}: {error}): "
            "pip install 'numgrad-jit[cuda]' again"
        )

    if getattr(cuda, "implementation", "") != "NVIDIA":
        return "numba.cuda is Numba's own and not that of numba-cuda: start Python without -S"
    if not cuda.is_available():
        return (
            "the NVIDIA driver or the GPU is missing, and Numba's simulator is not on: "
            "stay on the CPU, or set NUMBA_ENABLE_CUDASIM=1 before Python starts"
        )
    if not _simulating():
        from numba.cuda.core import config

        config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # small operations are no mistake
    return None


def _simulating() -> bool:
    from numba.core import config

    return bool(config.ENABLE_CUDASIM)  # type: ignore[attr-defined]


@functools.cache
def simulated() -> bool:
    """Whether kernels run in Numba's simulator."""
    return missing() is None and _simulating()


def is_available() -> bool:
    """Whether there is a device. Does not import numba-cuda where it is not installed."""
    return missing() is None


def module(op: str = "cuda") -> Any:
    """``numba.cuda``.

    Raises:
        NoDeviceError: there is no device; says which of package, driver and simulator is missing.
    """
    lacks = missing()
    if lacks is not None:
        raise NoDeviceError(f"{op}: expected a CUDA device, got none; {lacks}")
    from numba import cuda

    return cuda


def device_count() -> int:
    """Number of devices, 0 without numba-cuda or a driver."""
    return len(module().gpus) if is_available() else 0


def properties(index: int) -> dict[str, Any]:
    """``name``, ``major`` and ``minor`` (compute capability), ``total_memory`` in bytes and
    ``multi_processor_count`` of a device."""
    cuda = module("get_device_properties")
    with cuda.gpus[index]:
        context = cuda.current_context()
        total = context.get_memory_info().total
        device = cuda.get_current_device()
        major, minor = device.compute_capability
        name = getattr(device, "name", "Numba's CUDA simulator")
        return {
            "name": name.decode() if isinstance(name, bytes) else str(name),
            "major": int(major),
            "minor": int(minor),
            "total_memory": total if total == float("inf") else int(total),
            "multi_processor_count": int(getattr(device, "MULTIPROCESSOR_COUNT", 1)),
        }


def synchronize(index: int = 0) -> None:
    """Wait until the device has done all that was asked of it."""
    cuda = module("synchronize")
    with cuda.gpus[index]:
        cuda.synchronize()


def write(block: Block, start: int, array: np.ndarray) -> None:
    """Copy a C-contiguous array of the host into a block, from byte ``start`` on."""
    if array.nbytes:
        cuda = module()
        with cuda.gpus[block.index]:
            source = np.frombuffer(array.tobytes(), np.uint8)
            block.memory[start : start + array.nbytes].copy_to_device(source)


def read(block: Block, start: int, out: np.ndarray) -> None:
    """Copy bytes of a block, from ``start`` on, into a C-contiguous array of the host."""
    if out.nbytes:
        cuda = module()
        with cuda.gpus[block.index]:
            data = block.memory[start : start + out.nbytes].copy_to_host()
        out.reshape(-1).view(np.uint8)[...] = data


def define(text: str, namespace: dict[str, Any]) -> None:
    """Run generated source in ``namespace``, so that tracebacks and Numba can show its lines."""
    name = f"<numgrad cuda {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    exec(builtins.compile(text, name, "exec"), namespace)


def compile(function: Callable[..., Any]) -> Any:
    """``function`` as a kernel. Its global ``cuda`` becomes ``numba.cuda``."""
    cuda = module()
    function.__globals__["cuda"] = cuda
    return cuda.jit(function)


def libdevice(name: str) -> Any:
    """A function of NVIDIA's libdevice, to be called in kernels. Not in the simulator."""
    module()
    from numba.cuda import libdevice as functions

    return getattr(functions, name)


def launch(kernel: Any, index: int, grid: Any, block: Any, args: Any) -> None:
    """Run a kernel on device ``index``."""
    cuda = module()
    with cuda.gpus[index]:
        if not simulated():
            kernel[grid, block](*args)
            return
        sizes = (*grid, 1, 1)[:3] if isinstance(grid, tuple) else (grid, 1, 1)
        if any(n > most for n, most in zip(sizes, GRID_MAX, strict=True)):
            raise ValueError(f"launch: expected at most {GRID_MAX} blocks, got {grid}")
        with warnings.catch_warnings():
            # Plain NumPy warns of overflow, division by 0 and invalid values; a GPU does not.
            warnings.simplefilter("ignore", RuntimeWarning)
            kernel[grid, block](*args)
