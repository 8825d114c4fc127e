"""The pool of CPU blocks: what it reserves, and gives back to the operating system."""

from __future__ import annotations

import mmap
import os
import random

import pytest

from numgrad.graph import pool as module
from numgrad.graph.pool import Block, Pool
from tests.graph.pool_checks import KIB, MIB, address, check, run

# --- how much is reserved -------------------------------------------------------------------------

Trace = list[tuple[int, int]]  # (block, size), or (block, -1) when it dies


def training(seed: int, layers: int = 60) -> Trace:
    """Forward keeps one activation a layer beside a temporary; backward frees in reverse."""
    rng = random.Random(seed)
    sizes = [int(rng.choice([1, 2, 3, 4, 6, 8, 12, 16, 24]) * MIB / 3) for _ in range(layers)]
    trace: Trace = []
    for layer, size in enumerate(sizes):
        trace += [(1000 + layer, size // 2), (layer, size), (1000 + layer, -1)]
    trace.append((2000 + layers, sizes[-1]))
    for layer in reversed(range(layers)):
        trace += [(3000 + layer, sizes[layer] // 3), (4000 + layer, sizes[layer] // 10)]
        trace += [(2000 + layer, sizes[layer - 1]), (2001 + layer, -1)]
        trace += [(3000 + layer, -1), (layer, -1)]
    return trace + [(2000, -1)] + [(4000 + layer, -1) for layer in range(layers)]


def resnet50(batch: int) -> list[int]:
    """Activation sizes in bytes, float32."""
    elements = [64 * 112 * 112, 64 * 56 * 56]
    for channels, side, blocks in ((64, 56, 3), (128, 28, 4), (256, 14, 6), (512, 7, 3)):
        elements += ([channels * side**2] * 4 + [4 * channels * side**2] * 3) * blocks
    return [4 * batch * n for n in elements]


def resnet_training(batch: int) -> Trace:
    sizes = resnet50(batch)
    trace: Trace = []
    for layer, size in enumerate(sizes):
        trace += [(1000 + layer, size // 3), (layer, size), (1000 + layer, -1)]
    trace.append((2000 + len(sizes), sizes[-1]))
    for layer in reversed(range(len(sizes))):
        trace += [(2000 + layer, sizes[layer - 1]), (2001 + layer, -1), (layer, -1)]
    return [*trace, (2000, -1)]


def resnet_inference(batch: int) -> Trace:
    """Two blocks live in turn, a workspace, and the input of a residual block in between."""
    trace: Trace = [(0, 4 * batch * 3 * 224 * 224)]
    previous, residual = 0, -1
    for layer, size in enumerate(resnet50(batch), 1):
        trace += [(1000 + layer, size // 4), (layer, size), (1000 + layer, -1)]
        if layer % 7 == 3:
            trace += [(residual, -1)] if residual >= 0 else []
            residual = previous
        else:
            trace.append((previous, -1))
        previous = layer
    return [*trace, (previous, -1), (residual, -1)]


def ping_pong(seed: int) -> Trace:
    rng = random.Random(seed)
    trace: Trace = [(0, MIB)]
    for i in range(1, 300):
        trace += [(i, int(rng.choice([98, 49, 24.5, 12.25, 6.1, 3, 1, 0.2]) * MIB)), (i - 1, -1)]
    return [*trace, (299, -1)]


def scattered(seed: int, live: int = 150) -> Trace:
    """Sizes of 4 KiB to 32 MiB, spread evenly in logarithm, that die in random order."""
    rng = random.Random(seed)
    trace: Trace = []
    alive: list[int] = []
    for i in range(2000):
        trace.append((i, int(4096 * 8192 ** rng.random())))
        alive.append(i)
        while len(alive) > live:
            trace.append((alive.pop(rng.randrange(len(alive))), -1))
    return trace + [(i, -1) for i in alive]


def replay(pool: Pool, trace: Trace) -> None:
    blocks: dict[int, Block] = {}
    for block, size in trace:
        if size < 0:
            del blocks[block]
        else:
            blocks[block] = pool.alloc(size)
    assert not blocks


STEADY = {
    **{f"training {seed}": training(seed) for seed in range(4)},
    **{f"resnet training {batch}": resnet_training(batch) for batch in (2, 32)},
    **{f"resnet inference {batch}": resnet_inference(batch) for batch in (1, 32)},
    **{f"ping pong {seed}": ping_pong(seed) for seed in range(4)},
}


@pytest.mark.parametrize("name", STEADY)
def test_reserved_is_near_live_and_steady(name: str) -> None:
    pool = Pool(limit_bytes=64 << 30)
    for _ in range(3):
        replay(pool, STEADY[name])
        assert pool.peak_reserved_bytes <= 1.05 * pool.peak_live_bytes + 8 * MIB
    warmed = pool.warmed_bytes
    replay(pool, STEADY[name])
    assert pool.warmed_bytes == warmed and pool.slabs == 1  # nothing left to fault in
    check(pool)


@pytest.mark.parametrize("seed", range(3))
def test_reserved_of_random_lifetimes(seed: int) -> None:
    pool = Pool(limit_bytes=64 << 30)
    replay(pool, scattered(seed))
    assert pool.peak_reserved_bytes <= 1.10 * pool.peak_live_bytes + 8 * MIB
    check(pool)


def test_bound_holds_anew_after_reset_peak() -> None:
    pool = Pool(limit_bytes=64 << 30)
    replay(pool, training(0))
    pool.empty_cache()
    pool.reset_peak()
    assert pool.peak_live_bytes == pool.peak_reserved_bytes == 0
    replay(pool, resnet_inference(4))
    assert 0 < pool.peak_reserved_bytes <= 1.05 * pool.peak_live_bytes + 8 * MIB


# --- the operating system -------------------------------------------------------------------------


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads /proc")


@needs_proc
def test_empty_cache_returns_memory() -> None:
    pool = Pool()
    start = resident_bytes()
    blocks = [pool.alloc(4 * MIB) for _ in range(16)]
    for block in blocks:
        block[:] = 1
    assert abs(resident_bytes() - start - pool.reserved_bytes) < 4 * MIB
    del blocks[1:8], block  # half of a slab that stays in use
    assert resident_bytes() - start > 60 * MIB
    pool.empty_cache()
    check(pool)
    assert pool.reserved_bytes == 36 * MIB and pool.slabs == 1
    assert abs(resident_bytes() - start - pool.reserved_bytes) < 4 * MIB
    assert all(block[0] == block[-1] == 1 for block in blocks)
    blocks.clear()
    pool.empty_cache()
    assert pool.reserved_bytes == 0 and pool.slabs == 0
    assert abs(resident_bytes() - start) < 4 * MIB


@needs_proc
def test_resident_follows_reserved() -> None:
    """A fragmenting trace, every byte written: what the pool says is what the system counts."""
    pool = Pool()
    start = resident_bytes()
    rng = random.Random(0)
    blocks: list[Block] = []
    for step in range(150):
        blocks.append(pool.alloc(rng.choice([MIB // 5, MIB, 5 * MIB + 64, 9 * MIB])))
        blocks[-1][:] = 1
        if len(blocks) > 12:
            del blocks[rng.randrange(len(blocks))]
        if step % 10 == 9:
            pool._settle()
            assert resident_bytes() - start <= pool.reserved_bytes + 4 * MIB
    assert resident_bytes() - start >= pool.reserved_bytes - 6 * MIB


def test_slab_that_does_not_start_on_a_grain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are given back at the right place where the mapping begins amid a grain."""
    monkeypatch.setattr(module, "GRAIN_BYTES", 16 * MIB)
    spacers = []
    for _ in range(8):  # newer kernels lay mappings on 2 MiB: shift them till one is off 16 MiB
        pool = Pool(slab_bytes=64 * MIB)
        blocks = [pool.alloc(16 * MIB) for _ in range(3)]
        if pool._slabs[0].skipped_bytes:
            break
        spacers.append(mmap.mmap(-1, 2 * MIB))
    assert address(blocks[0]) % (16 * MIB) == 0
    for block in blocks:
        block[:: 4 * KIB] = 1
    del blocks[1], block
    pool.empty_cache()
    assert pool.reserved_bytes == 32 * MIB
    assert all((block[:: 4 * KIB] == 1).all() for block in blocks)


def test_limit() -> None:
    pool = Pool(limit_bytes=64 * MIB)
    blocks = [pool.alloc(4 * MIB) for _ in range(16)]
    message = (
        "alloc: expected 4096 bytes to be free for a block, got 67108864 bytes reserved and"
        " 67108864 in use; free tensors or call numgrad.memory.empty_cache()"
    )
    with pytest.raises(MemoryError) as caught:
        pool.alloc(4096)
    assert str(caught.value) == message
    check(pool)
    del blocks[::2]
    with pytest.raises(MemoryError):
        pool.alloc(33 * MIB)
    check(pool)
    blocks.append(pool.alloc(32 * MIB))  # no free range of 32 MiB: the warm ones made room
    check(pool)
    with pytest.raises(MemoryError):
        pool.alloc(1 << 70)


@needs_proc
def test_address_space_limit() -> None:
    """The system refuses a large slab, then any: the free slabs go first, then MemoryError."""
    result = run(
        "import resource, numpy\n"
        "from numgrad.graph.pool import Pool\n"
        "with open('/proc/self/statm') as file:\n"
        "    used = int(file.read().split()[0]) * resource.getpagesize()\n"
        "hard = resource.getrlimit(resource.RLIMIT_AS)[1]\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20), hard))\n"
        "pool = Pool(limit_bytes=1 << 40)\n"
        "blocks = [pool.alloc(30 << 20) for _ in range(8)]\n"
        "assert pool.slabs == 8, pool.slabs\n"
        "blocks.clear()\n"
        "block = pool.alloc(280 << 20)\n"
        "assert pool.slabs == 1, pool.slabs\n"
        "try:\n"
        "    pool.alloc(280 << 20)\n"
        "except MemoryError as error:\n"
        "    print(error)\n"
    )
    assert result.stderr == ""
    assert result.stdout.startswith("alloc: expected 293601280 bytes to be free for a block, got ")
