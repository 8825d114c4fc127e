"""What holds for a pool at any time."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np

from numgrad.graph.pool import ALIGN_BYTES, GRAIN_BYTES, Pool

KIB, MIB = 1 << 10, 1 << 20
SLAB_LIMIT = 1 << 48


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def check(pool: Pool) -> None:
    """The invariants: live, warm and cold tile every slab; no two free ranges of a kind touch."""
    pool._settle()
    assert not pool._busy
    tiles = []
    for ranges in (pool._warm, pool._cold):
        assert ranges.by_size == sorted((size, start) for start, size in ranges.size_at.items())
        assert ranges.start_before == {s + size: s for s, size in ranges.size_at.items()}
        for start, size in ranges.size_at.items():
            assert size > 0 and size % ALIGN_BYTES == 0 and start % ALIGN_BYTES == 0
            assert start + size not in ranges.size_at  # they would have joined
            tiles.append((start, size))
    for start, size in pool._cold.size_at.items():
        assert size % GRAIN_BYTES == 0 and start % GRAIN_BYTES == 0
    tiles += [(start, size) for start, (size, _) in pool._live.items()]
    assert pool._age_before == {start + size: age for start, (size, age) in pool._live.items()}
    tiles.sort()
    ends = {}
    for start, size in tiles:
        number = start // SLAB_LIMIT
        assert start == ends.get(number, number * SLAB_LIMIT)
        ends[number] = start + size
    assert ends == {n: n * SLAB_LIMIT + slab.nbytes for n, slab in pool._slabs.items()}
    live = sum(size for size, _ in pool._live.values())
    assert pool.live_bytes == live <= pool.peak_live_bytes
    assert pool.reserved_bytes == live + sum(pool._warm.size_at.values())
    assert pool.reserved_bytes <= min(pool.peak_reserved_bytes, pool.limit_bytes)


class Traced:
    """A pool under test, each block filled with a number of its own that must not change."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.blocks: list[tuple[np.ndarray, int]] = []
        self.count = 0

    def alloc(self, nbytes: int) -> None:
        self.count += 1
        array = np.ndarray((max(nbytes, 8) // 8,), np.int64, self.pool.alloc(max(nbytes, 8)))
        array[:: max(1, array.size // 64)] = array[-1] = self.count
        self.blocks.append((array, self.count))

    def free(self, index: int) -> None:
        array, number = self.blocks.pop(index % len(self.blocks))
        assert array[0] == array[-1] == number


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
    )
