"""A signal may raise between any two lines of the pool: nothing is lost, and it goes on working."""

import itertools
import linecache
import sys

import numpy as np
import pytest

from numgrad.graph import pool as pools
from numgrad.graph.pool import GRAIN_BYTES, Pool

SIZES = (100, 5000, 1 << 20, 100, 3 << 20, 64)


class Stop(BaseException):
    """As KeyboardInterrupt."""


def work(pool, held):
    """Blocks of several sizes come and go."""
    for round_ in range(2):
        for size in SIZES:
            held.append(pool.alloc(size))
        del held[round_::2]
    pool.empty_cache()
    held.append(pool.alloc(200))


def interrupted(pool, held, line):
    """``work``, ended at the ``line``-th line of the pool that runs; whether it came to that."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        if frame.f_code.co_filename != pools.__file__ or frame.f_code.co_name == "__del__":
            return None
        # The interpreter looks for signals where functions begin, and at calls and jumps back.
        text = linecache.getline(pools.__file__, frame.f_lineno).strip()
        if event == "line" and text != "self._busy = False":
            count += 1
            if count == line:
                sys.settrace(None)
                raise Stop
        return trace

    sys.settrace(trace)
    try:
        work(pool, held)
    except Stop:
        return True
    finally:
        sys.settrace(None)
    return False


def check(pool, held):
    places = sorted((block.ctypes.data, block.nbytes) for block in held)
    for (start, nbytes), (following, _) in itertools.pairwise(places):
        assert start + nbytes <= following
    assert pool.live_bytes == sum(nbytes for _, nbytes in places)
    free = sum(pool._warm.size_at.values())
    assert pool.reserved_bytes == pool.live_bytes + free
    for ranges in pool._warm, pool._cold:
        assert sorted((n, at) for at, n in ranges.size_at.items()) == ranges.by_size
        assert {at + n: at for at, n in ranges.size_at.items()} == ranges.start_before
    assert sum(pool._cold.size_at.values()) + pool.reserved_bytes == sum(
        slab.nbytes for slab in pool._slabs.values()
    )


@pytest.mark.parametrize("slab_grains", [2, 16])
def test_a_signal_at_any_line(slab_grains):
    line = 0
    while True:
        line += 1
        pool, held = Pool(limit_bytes=1 << 30, slab_bytes=slab_grains * GRAIN_BYTES), []
        came = interrupted(pool, held, line)
        for i, block in enumerate(held):
            block[:] = i
        more = []
        work(pool, more)
        check(pool, held + more)
        for block in more:
            block[:] = 255
        assert all((np.asarray(block) == i).all() for i, block in enumerate(held))
        del block, more
        held.clear()
        assert pool.live_bytes == 0
        check(pool, [])
        if not came:
            break
    assert line > 300
