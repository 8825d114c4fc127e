"""GPUs: whether there are any, their memory, and the typed constructors of old.

Nothing here imports numba-cuda before a GPU is asked for. Without one every call but
``is_available`` and ``device_count`` says what is missing.
"""

from types import SimpleNamespace
from typing import Any

from .graph import dtypes, storage
from .graph.device import device as Device
from .kernels.cuda import runtime
from .kernels.cuda.runtime import NoDeviceError
from .ops import random
from .ops.creation import check_device
from .typed import typed

__all__ = [
    "BoolTensor",
    "ByteTensor",
    "DoubleTensor",
    "FloatTensor",
    "IntTensor",
    "LongTensor",
    "NoDeviceError",
    "current_device",
    "device_count",
    "get_device_name",
    "get_device_properties",
    "is_available",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "memory_allocated",
    "reset_peak_memory_stats",
    "synchronize",
]


def is_available() -> bool:
    """Whether there is a GPU, or Numba's simulator is on."""
    return runtime.is_available()


def device_count() -> int:
    """Number of GPUs; 0 where none can be used."""
    return runtime.device_count()


def _which(op: str, device: Any) -> Device:
    where = check_device(op, "cuda" if device is None else device)
    if where.type != "cuda":
        raise ValueError(f"{op}: expected a CUDA device for device, got {device!r}; use 'cuda'")
    return where


def current_device() -> int:
    """The number of the GPU that ``"cuda"`` means: 0. Raises RuntimeError if there is none."""
    return _which("current_device", None).index or 0


def manual_seed(seed: int) -> None:
    """As ``numgrad.manual_seed``: the numbers of a GPU are those of the CPU. Needs no GPU."""
    random.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """As :func:`manual_seed`."""
    random.manual_seed(seed)


def synchronize(device: Any = None) -> None:
    """Wait until a GPU has done all it was asked for. Raises RuntimeError if there is none."""
    runtime.synchronize(_which("synchronize", device).index or 0)


def get_device_properties(device: Any = None) -> SimpleNamespace:
    """``name``, ``major`` and ``minor`` (compute capability), ``total_memory`` in bytes and
    ``multi_processor_count`` of a GPU. Raises RuntimeError if there is none."""
    where = _which("get_device_properties", device)
    return SimpleNamespace(**runtime.properties(where.index or 0))


def get_device_name(device: Any = None) -> str:
    """The name of a GPU. Raises RuntimeError if there is none."""
    return str(get_device_properties(device).name)


def memory_allocated(device: Any = None) -> int:
    """Bytes of a GPU's memory that tensors hold now. Raises RuntimeError if there is none."""
    return storage.ledger(_which("memory_allocated", device)).total


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes of a GPU's memory that tensors ever held, since the start or the last
    ``reset_peak_memory_stats``. Raises RuntimeError if there is none."""
    return storage.ledger(_which("max_memory_allocated", device)).peak


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let the peak begin again at what is held now. Raises RuntimeError if there is none."""
    storage.ledger(_which("reset_peak_memory_stats", device)).reset_peak()


def _typed(dtype: Any) -> Any:
    return typed(dtype, "cuda", "numgrad.cuda")


FloatTensor, DoubleTensor = _typed(dtypes.float32), _typed(dtypes.float64)
IntTensor, LongTensor = _typed(dtypes.int32), _typed(dtypes.int64)
ByteTensor, BoolTensor = _typed(dtypes.uint8), _typed(dtypes.bool_)
