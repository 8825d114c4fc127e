"""The pool of CPU blocks: what is live is never handed out, and reserved stays near live."""

from __future__ import annotations

import copy
import gc
import mmap
import os
import pickle
import random
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numgrad.graph import pool as module
from numgrad.graph.pool import ALIGN_BYTES, GRAIN_BYTES, POOL_MIN_BYTES, Block, Pool

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


# --- blocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, POOL_MIN_BYTES, 3 * MIB + 1])
def test_alignment(nbytes: int) -> None:
    pool = Pool()
    blocks = [pool.alloc(nbytes) for _ in range(3)]
    for block in blocks:
        assert type(block) is Block and block.dtype == np.uint8 and block.ndim == 1
        assert address(block) % ALIGN_BYTES == 0
        assert block.nbytes % ALIGN_BYTES == 0 and nbytes <= block.nbytes <= nbytes + 64
        assert block.flags.writeable and block.flags.c_contiguous
    assert len({address(block) for block in blocks}) == 3
    check(pool)


def test_slab_starts_on_a_grain() -> None:
    assert address(Pool().alloc(1)) % GRAIN_BYTES == 0


def test_reuse() -> None:
    pool = Pool()
    block = pool.alloc(5 * MIB)
    block[:] = 7
    first = address(block)
    del block
    assert pool.live_bytes == 0
    again = pool.alloc(5 * MIB)
    assert address(again) == first and again[-1] == 7  # the same pages, still resident
    assert pool.warmed_bytes == 6 * MIB and pool.slabs == 1


def test_best_fit_splits_and_joins() -> None:
    pool = Pool()
    sizes = [8 * KIB, 64, 4 * KIB, 64, 6 * KIB, 64]
    blocks = [pool.alloc(size) for size in sizes]
    starts = [address(block) for block in blocks]
    del blocks[4], blocks[2], blocks[0]
    fit = pool.alloc(5 * KIB)
    assert address(fit) == starts[4]  # of 8, 4 and 6 KiB the smallest that holds 5
    rest = pool.alloc(1 * KIB)
    assert address(rest) == starts[4] + 5 * KIB
    del fit, rest, blocks
    check(pool)
    assert len(pool._warm.by_size) == 1 and pool.live_bytes == 0


def test_large_block_lies_by_the_older_neighbour() -> None:
    pool = Pool()
    old, hole, young = pool.alloc(2 * MIB), pool.alloc(8 * MIB), pool.alloc(2 * MIB)
    start = address(hole)
    del hole
    low = pool.alloc(3 * MIB)
    assert address(low) == start
    del old
    renewed = pool.alloc(2 * MIB)  # in the place of `old`, and now the youngest
    assert address(renewed) == start - 2 * MIB
    del low
    assert address(pool.alloc(3 * MIB)) == address(young) - 3 * MIB
    check(pool)


def test_negative_size() -> None:
    pool = Pool()
    with pytest.raises(ValueError, match=r"alloc: expected nbytes of 0 or more, got -1; "):
        pool.alloc(-1)
    check(pool)


# --- who keeps a block ----------------------------------------------------------------------------


def test_base_is_the_block() -> None:
    """NumPy shortens chains of bases; were it to skip the Block, memory in use would be reused."""
    block = Pool().alloc(4096)
    array = np.ndarray((32, 32), np.float32, block)
    assert type(array) is np.ndarray and array.base is block
    assert array[1:].base is array  # not the slab
    assert np.frombuffer(block, np.float32).base is not None
    assert block.view(np.ndarray).base is block
    assert block[8:].base is block and block[8:][8:].base is block
    assert type(block.base) is module._Slab


ALIASES = {
    "view": lambda block, array: array[3:],
    "view of view": lambda block, array: array[3:].T[1:][::-1],
    "reshape": lambda block, array: array.reshape(-1)[5:],
    "other dtype": lambda block, array: array.view(np.uint8),
    "subclass": lambda block, array: array.view(np.recarray),
    "masked": lambda block, array: np.ma.masked_array(array),
    "memoryview": lambda block, array: memoryview(array),
    "frombuffer": lambda block, array: np.frombuffer(array, np.uint8),
    "broadcast": lambda block, array: np.broadcast_to(array, (2, 32, 32)),
    "dlpack": lambda block, array: np.from_dlpack(array),
    "flat": lambda block, array: array.flat,
    "block slice": lambda block, array: block[64:],
    "slice of slice": lambda block, array: block[64:][64:].view(Block)[::2],
    "block as ndarray": lambda block, array: np.asarray(block)[1:],
    "block view of array": lambda block, array: array.view(Block),
    "pickle buffer": lambda block, array: pickle.PickleBuffer(array),
}


@pytest.mark.parametrize("alias", ALIASES)
def test_alias_keeps_the_block(alias: str) -> None:
    pool = Pool()
    block = pool.alloc(4096)
    array = np.ndarray((32, 32), np.float32, block)
    array[:] = 1.5
    kept = ALIASES[alias](block, array)
    before = np.array(kept, copy=True).tobytes() if alias != "pickle buffer" else bytes(kept)
    del block, array
    gc.collect()
    assert pool.live_bytes == 4096
    other = pool.alloc(4096)
    other[:] = 0
    after = np.array(kept, copy=True).tobytes() if alias != "pickle buffer" else bytes(kept)
    assert before == after
    del kept, other
    gc.collect()
    assert pool.live_bytes == 0
    check(pool)


COPIES = {
    "copy": lambda block: block.copy(),
    "np.copy": np.copy,
    "copy.copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle {n}": lambda block, n=n: pickle.loads(pickle.dumps(block, n))
        for n in range(pickle.HIGHEST_PROTOCOL + 1)
    },
    "slice deepcopy": lambda block: copy.deepcopy(block[:]),
    "slice pickle": lambda block: pickle.loads(pickle.dumps(block[:])),
    "take": lambda block: block[np.arange(block.size)],
    "ufunc": lambda block: block + np.uint8(0),
}


@pytest.mark.parametrize("way", COPIES)
def test_copy_owns_its_memory(way: str) -> None:
    pool = Pool()
    block = pool.alloc(4096)
    block[:] = np.arange(4096) % 251
    expected = bytes(block)
    made = COPIES[way](block)
    assert not np.shares_memory(made, block)
    if "copy.copy" in way or "deepcopy" in way or "pickle" in way:
        assert type(made) is np.ndarray
    del block
    assert pool.live_bytes == 0
    pool.alloc(4096)[:] = 0
    assert bytes(made) == expected
    del made
    check(pool)  # nothing was freed twice


def test_views_of_a_block_free_once() -> None:
    pool = Pool()
    block = pool.alloc(4096)
    for _ in range(3):
        for view in (block[3:], block[:], block.view(Block), block.view(), block[::2], block[0:0]):
            del view
    assert pool.live_bytes == 4096
    inner = block[64:128]
    del block
    assert pool.live_bytes == 4096 and not pool._freed
    del inner
    assert list(pool._freed) == [0] and pool.live_bytes == 0
    check(pool)


def test_pool_dies_before_its_blocks() -> None:
    pool = Pool()
    array = np.ndarray((MIB,), np.uint8, pool.alloc(MIB))
    gone = weakref.ref(pool)
    array[:] = 3
    del pool
    gc.collect()
    assert gone() is None and array.sum() == 3 * MIB


# --- random traces --------------------------------------------------------------------------------


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


operations = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), st.integers(0, 3 * MIB)),
        st.tuples(st.just("alloc"), st.sampled_from([64, 4 * KIB, 64 * KIB, MIB, 2 * MIB])),
        st.tuples(st.just("free"), st.integers(0, 1000)),
        st.tuples(st.just("empty_cache"), st.just(0)),
        st.tuples(st.just("reset_peak"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(operations, st.sampled_from([8 * MIB, 1 << 40]))
def test_invariants(trace: list[tuple[str, int]], slab_bytes: int) -> None:
    traced = Traced(Pool(slab_bytes=slab_bytes))
    for name, value in trace:
        if name == "alloc":
            traced.alloc(value)
        elif name == "free":
            if traced.blocks:
                traced.free(value)
        else:
            getattr(traced.pool, name)()
        check(traced.pool)
    while traced.blocks:
        traced.free(0)
    traced.pool.empty_cache()
    check(traced.pool)
    assert traced.pool.reserved_bytes == traced.pool.live_bytes == traced.pool.slabs == 0


def test_small_slabs() -> None:
    """Where the system grants no large slab, small ones serve, and free ones are unmapped."""
    pool = Pool(slab_bytes=4 * MIB)
    blocks = [pool.alloc(3 * MIB) for _ in range(5)]
    assert pool.slabs == 5
    del blocks[1:4]
    pool.empty_cache()
    check(pool)
    assert pool.slabs == 2 and pool.reserved_bytes == 8 * MIB
    blocks.append(pool.alloc(64 * MIB))
    assert pool.slabs == 3
    check(pool)


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


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
    )


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


# --- collector, threads, fork, exit ---------------------------------------------------------------


class Cycle:
    """Dies only by the collector, and then runs ``action``."""

    def __init__(self, payload: object, action: Callable[[], object]) -> None:
        self.me, self.payload, self.action = self, payload, action

    def __del__(self) -> None:
        self.action()


def interrupt(pool: Pool, step: Callable[[], object], action: Callable[[], object]) -> int:
    """Run ``step``, and ``action`` before each line of the pool's code; the number of lines."""
    lines = 0

    def trace(frame: FrameType, event: str, arg: object) -> Callable | None:
        nonlocal lines
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "line":
            lines += 1
            action()  # not traced itself: no trace function runs inside another
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        step()
    finally:
        sys.settrace(before)
    return lines


def test_finalisers_inside_alloc() -> None:
    """Wherever in `alloc` the collector runs finalisers that drop and want blocks, all is well."""
    pool = Pool(limit_bytes=64 * MIB)
    made: list[Block] = []

    def more() -> None:
        block = pool.alloc(5000)
        block[:] = 9
        made[:] = [*made[-3:], block]
        assert address(block) % ALIGN_BYTES == 0 and block.nbytes >= 5000
        pool.reset_peak()
        assert pool.live_bytes >= 0

    def collect() -> None:
        Cycle(pool.alloc(4096), more)
        gc.collect(0)

    traced = Traced(pool)
    lines = 0
    for size in (4096, 3 * MIB, 64, 9 * MIB, 3 * MIB):
        lines += interrupt(pool, lambda: traced.alloc(size), collect)
    for index in (1, 0):
        lines += interrupt(pool, lambda: traced.free(index), collect)
    lines += interrupt(pool, lambda: traced.alloc(2 * MIB), collect)
    lines += interrupt(pool, pool.empty_cache, collect)
    assert lines > 200
    while traced.blocks:
        traced.free(0)
    assert all((block == 9).all() for block in made)
    made.clear()
    gc.collect()
    check(pool)
    assert pool.live_bytes == 0


def test_collector_at_work() -> None:
    """The real collector, at its most eager."""
    pool = Pool()
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for i in range(300):
            Cycle(pool.alloc(4096 + 64 * (i % 7)), lambda: pool.alloc(64))
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    check(pool)
    assert pool.live_bytes == 0


@pytest.fixture
def eager_switching() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("eager_switching")
def test_threads() -> None:
    pool = Pool()
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        traced = Traced(pool)
        traced.count = seed << 32
        try:
            for _ in range(300):
                if traced.blocks and rng.random() < 0.45:
                    traced.free(rng.randrange(1000))
                else:
                    traced.alloc(int(4096 * 256 ** rng.random()))
                if rng.random() < 0.02:
                    pool.empty_cache()
            while traced.blocks:
                traced.free(0)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    check(pool)
    assert pool.live_bytes == 0


def exit_code_of_child(action: Callable[[], object]) -> int:
    """Fork, run ``action`` in the child, and kill it if it hangs."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    killer = threading.Timer(20, os.kill, (child, 9))
    killer.start()
    status = os.waitpid(child, 0)[1]
    killer.cancel()
    return os.waitstatus_to_exitcode(status)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.usefixtures("eager_switching")
def test_fork() -> None:
    """A child forked while other threads are inside `alloc` finds a whole pool, all its own."""
    pool = Pool()
    kept = pool.alloc(4 * MIB)
    kept[:] = 5
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            pool.alloc(10_000)

    def use() -> None:
        check(pool)
        assert (kept == 5).all()
        kept[:] = 6
        traced = Traced(pool)
        for size in (4096, MIB, 3 * MIB):
            traced.alloc(size)
        pool.empty_cache()
        assert exit_code_of_child(lambda: check(pool)) == 0
        check(pool)

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            assert exit_code_of_child(use) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not module._held
    assert (kept == 5).all()
    check(pool)


def test_interpreter_exit_is_silent() -> None:
    result = run(
        "import threading, numpy\n"
        "from numgrad.graph.pool import Pool\n"
        "class Late:\n"
        "    def __del__(self):\n"
        "        self.array = None\n"
        "pool = Pool()\n"
        "late = Late(); late.me = late; late.array = numpy.ndarray((9,), 'f4', pool.alloc(36))\n"
        "kept = [pool.alloc(5000)[5:], pool.alloc(1 << 20), pool.alloc(64).view(numpy.ndarray)]\n"
        "import sys; sys.kept = kept; threading.kept = [pool.alloc(4096)]\n"
        "del pool\n"
        "print('end')\n"
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "end\n", "")
