"""The pool of CPU blocks: the collector, threads, fork, exit."""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from numgrad.graph import pool as module
from numgrad.graph.pool import ALIGN_BYTES, Block, Pool
from tests.graph.pool_checks import MIB, Traced, address, check, run


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
