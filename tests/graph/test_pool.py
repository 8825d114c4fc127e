"""The pool of CPU blocks: what is live is never handed out, and who keeps it."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numgrad.graph import pool as module
from numgrad.graph.pool import ALIGN_BYTES, GRAIN_BYTES, POOL_MIN_BYTES, Block, Pool
from tests.graph.pool_checks import KIB, MIB, Traced, address, check

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


def test_last_block_that_died_is_handed_out_again() -> None:
    pool = Pool()
    blocks = [pool.alloc(8 * KIB) for _ in range(5)]
    starts = [address(block) for block in blocks]
    del blocks[1]
    del blocks[2]  # what was the fourth
    again = pool.alloc(8 * KIB)
    assert address(again) == starts[3]
    check(pool)
    assert pool.allocs == 6 and pool.live_bytes == pool.peak_live_bytes - 8 * KIB == 32 * KIB
    del again
    other = pool.alloc(4 * KIB)  # of another size: all that died is free again
    assert address(other) in (starts[1], starts[3])
    check(pool)


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
