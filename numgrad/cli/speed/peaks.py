"""What this CPU can do at most, measured by kernels of our own, and whether it is idle."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..output import UsageError

ROUNDS = 15
COUNT = 100_000
"""Rounds of multiply-adds in one sample: milliseconds."""
LEAST_BYTES, MOST_BYTES = 192 << 20, 768 << 20
BLOCK = 1 << 12
BUSY_LOAD = 0.3
"""Load average, a CPU, from which other work is said to run."""
BUSY_STOLEN = 1.1
"""Wall time over time of our own on the CPU from which it is said so, too."""


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """The quarter, the half and the three quarters of the samples in their order."""
    if len(samples) == 1:
        return (samples[0],) * 3
    a, b, c = statistics.quantiles(samples, n=4, method="inclusive")
    return a, b, c


def measure(threads: Sequence[int]) -> dict[str, dict[str, float]]:
    """``{threads: {"gflops", "gbps", "wait"}}``: the two peaks, and wall over CPU time.

    Raises:
        UsageError: Numba has fewer threads than that.
    """
    from ...kernels import launch

    before = launch.get_num_threads()
    found = {}
    try:
        for n in threads:
            launch.set_num_threads(n)
            if launch.get_num_threads() < n:
                raise UsageError(
                    f"--threads: expected at most the threads Numba may use, got {n}; "
                    "set NUMBA_NUM_THREADS"
                )
            gflops, wait = multiply_adds(n)
            found[str(n)] = {"gflops": gflops, "gbps": triad(n), "wait": wait}
    finally:
        launch.set_num_threads(before)
    return found


def _seconds(call: Callable[[], Any]) -> list[tuple[float, float]]:
    """Wall time and time on the CPUs of each round."""
    call()
    found = []
    for _ in range(ROUNDS):
        wall, own = time.perf_counter(), time.process_time()
        call()
        found.append((time.perf_counter() - wall, time.process_time() - own))
    return found


def multiply_adds(threads: int) -> tuple[float, float]:
    """GFLOP/s of multiply-adds in registers, and how long they took beside their CPU time."""
    import numpy as np

    from ...kernels import launch
    from ...kernels.cpu import peak, vector

    values = np.zeros(16 * threads, np.float32)

    def call() -> None:
        launch.ranged(peak.multiply_adds_float32, [values.ctypes.data, COUNT], threads)

    found = _seconds(call)
    flops = 2 * vector.lanes_of(4) * peak.CHAINS * COUNT * threads
    wait = statistics.median(wall * threads / max(own, 1e-9) for wall, own in found)
    return flops / statistics.median(wall for wall, _ in found) / 1e9, wait


def triad(threads: int) -> float:
    """GB/s of ``out = x + 3 * y``, the bytes of the three counted once each."""
    import numpy as np

    from ...kernels import launch
    from ...kernels.cpu import peak

    length = max(LEAST_BYTES, min(4 * last_level_bytes(), MOST_BYTES)) // 12 // BLOCK * BLOCK
    out, x, y = (np.ones(length, np.float32) for _ in range(3))
    slots = [*(a.ctypes.data for a in (out, x, y)), length, BLOCK]
    found = _seconds(lambda: launch.ranged(peak.triad_float32, slots, length // BLOCK))
    return 12 * length / statistics.median(wall for wall, _ in found) / 1e9


def last_level_bytes() -> int:
    """The size of the largest cache; 0 where the system does not tell."""
    sizes = [0]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text(encoding="ascii").strip()
        if text.endswith("K") and text[:-1].isdecimal():
            sizes.append(int(text[:-1]) << 10)
    return max(sizes)


def busy(found: dict[str, dict[str, float]], load: float | None) -> str:
    """What to say if other work runs on this machine, else nothing."""
    if load is not None and load > BUSY_LOAD * (os.cpu_count() or 1):
        return f"the load average was {load:.2f} before: other work runs here, times mean little"
    waiting = max((peak["wait"] for peak in found.values()), default=0.0)
    if waiting > BUSY_STOLEN:
        return (
            f"a calibration waited {waiting - 1:.0%} of its time for a CPU: other work runs here, "
            "times mean little"
        )
    return ""


def load_average() -> float | None:
    """The load average of the last minute, where the system has one."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
