"""Launching: threads, what is counted, and what an unusual environment does."""

import json
import os
import pathlib
import subprocess
import sys
import threading

import numba
import numpy as np
import pytest

from numgrad.kernels import emit, launch, native, store
from numgrad.kernels.cpu import elementwise as driver
from numgrad.kernels.scalar import Sym

REPOSITORY = pathlib.Path(launch.__file__).parents[2]
FLOAT = np.dtype("float32")
LARGE = 3 * launch.PARALLEL_MIN + 5


@pytest.fixture
def threads():
    """``set_num_threads``; what was set before comes back."""
    before = launch._threads
    yield launch.set_num_threads
    launch._threads = before


def product():
    x, y = (Sym("input", (name,)) for name in "xy")
    text = emit.block("test product", FLOAT, [("x", FLOAT), ("y", FLOAT)], [(x * y, FLOAT)])
    return store.generated(text, native.BLOCK_SIGNATURE)


# A ranged kernel that says which worker did each item.
WHO = """
from numgrad.kernels.native import as_int64, load_i64
def kernel(args, lo, hi, worker):
    out = as_int64(load_i64(args, 0))
    for i in range(lo, hi):
        out[i] = worker
"""


def workers(items, **named):
    """The worker of each item."""
    who = store.generated(WHO, native.RANGED_SIGNATURE)
    out = np.full(max(items, 1), -1)
    launch.ranged(who, [launch.address(out)], items, **named)
    return out[:items]


# ------------------------------------------------------------------------------------------ ranges


@pytest.mark.parametrize("unit", [1, 7, 1024])
@pytest.mark.parametrize("items", [1, 2, 7, 8, 1000, 4096, 10_001])
def test_workers_share_the_items_in_whole_units(threads, items, unit):
    threads(2)
    found = workers(items, unit=unit)
    assert set(found) == ({0} if items <= unit else {0, 1})
    assert np.array_equal(found, np.sort(found))
    assert all(start % unit == 0 for start in np.flatnonzero(np.diff(found)) + 1)
    counts = np.bincount(found)
    assert counts.max() - counts.min() <= 2 * unit or len(counts) == 1


def test_no_items_no_launch():
    before = launch.launches.value
    assert workers(0).size == 0
    assert launch.launches.value == before


def test_serial_and_limited(threads):
    threads(2)
    assert set(workers(100, parallel=False)) == {0}
    assert set(workers(100, workers=1)) == {0}
    before = launch.launches.value
    assert set(workers(100)) == {0, 1}
    assert launch.launches.value == before + 1
    threads(1)
    assert set(workers(100)) == {0}
    # A workspace was made for two before another thread set one: there still are two at most.
    assert set(workers(100, workers=2)) == {0, 1}


def test_address():
    x = np.arange(12.0).reshape(3, 4)
    for view in (x, x[1:], x[:, 2:], x[::-1], x.T, np.array(3.0), np.empty((0, 3))):
        assert launch.address(view) == view.ctypes.data


# ----------------------------------------------------------------------------------------- threads


@pytest.mark.parametrize("n", [0, -1, 1.0, "2", None, True])
def test_set_num_threads_refuses(threads, n):
    before = launch.get_num_threads()
    with pytest.raises(ValueError, match=r"^set_num_threads: expected a positive integer for n"):
        threads(n)
    assert launch.get_num_threads() == before


def test_more_threads_than_there_are(threads):
    limit = numba.config.NUMBA_NUM_THREADS
    threads(limit + 7)
    assert launch.get_num_threads() == limit
    assert set(workers(1000)) == set(range(limit))


def test_users_mask_of_numba_stays(threads):
    numba.set_num_threads(1)
    try:
        threads(2)
        assert set(workers(100)) == {0, 1}
        assert numba.get_num_threads() == 1
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "²"])
def test_environment_refuses(monkeypatch, threads, value):
    monkeypatch.setattr(launch, "_threads", None)
    monkeypatch.setenv("NUMGRAD_NUM_THREADS", value)
    with pytest.raises(ValueError, match=r"^NUMGRAD_NUM_THREADS: expected a positive integer, got"):
        launch.get_num_threads()


@pytest.mark.parametrize("value", ["", "1", "2", " 2 "])
def test_environment_sets(monkeypatch, threads, value):
    monkeypatch.setattr(launch, "_threads", None)
    monkeypatch.setenv("NUMGRAD_NUM_THREADS", value)
    cpus = len(os.sched_getaffinity(0))
    limit = numba.config.NUMBA_NUM_THREADS
    assert launch.get_num_threads() == min(int(value.strip() or cpus), limit)


def program(text, **environment):
    """What a new process prints, as JSON; its warnings are errors."""
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", text],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout.splitlines()[-1])


COUNTED = """
import json, os
import numgrad
from numgrad.kernels import launch
x = numgrad.ones(3 * launch.PARALLEL_MIN)
tasks = []
for n in (1, 2, 3):
    numgrad.set_num_threads(n)
    x * x
    tasks.append(len(os.listdir("/proc/self/task")))
print(json.dumps([launch.threading_layer(), tasks]))
"""


def test_no_more_threads_than_asked_for_are_used():
    # Four in Numba's pool; OpenMP makes a team of as many as a loop may use, with this thread.
    environment = {"NUMBA_NUM_THREADS": "4", "NUMGRAD_NUM_THREADS": "1"}
    layer, (one, two, three) = program(COUNTED, **environment)
    if layer == "omp":
        assert (two - one, three - one) == (1, 2)


EIGHT = """
import json, threading
import numpy as np
import numgrad
from numgrad.kernels import launch
numgrad.set_num_threads(2)
rng = np.random.default_rng(0)
x = numgrad.tensor(rng.standard_normal((300, 700)).astype(np.float32))
w = numgrad.tensor(rng.standard_normal((700, 128)).astype(np.float32))
def run():
    y = (x * 3 + x.t().t()).tanh()
    results = y, y @ w, y.sum(0), y.sum(), y.softmax(1), y[::2, 3:].exp()
    return [a.numpy().tobytes() for a in results]
answers = [None] * 8
def work(i):
    for _ in range(10):
        answers[i] = run()
threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
numgrad.set_num_threads(1)
print(json.dumps([launch.threading_layer(), [answer == run() for answer in answers]]))
"""


@pytest.mark.parametrize("layer", ["omp", "workqueue"])
def test_eight_threads_launch_at_once(layer):
    # Two threads at once in Numba's workqueue abort the process: ours take turns.
    environment = {"NUMBA_THREADING_LAYER": layer} if layer == "workqueue" else {}
    used, equal = program(EIGHT, NUMBA_NUM_THREADS="2", **environment)
    assert layer == "omp" or used == "workqueue"
    assert equal == [True] * 8


# ---------------------------------------------------------------------------------------- launchers


def test_launches_of_all_threads_are_counted():
    x = np.ones(3, np.float32)
    kernel = product()

    def work():
        for _ in range(1000):
            launch.elementwise(kernel, (x.copy(), x, x))

    before = launch.launches.value
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert launch.launches.value == before + 4000


def test_one_kernel_on_small_and_large_arrays(threads):
    kernel = product()
    for n in (0, 1, 10, LARGE):
        x = np.arange(n, dtype=np.float32)
        for y in (x, np.array(3, np.float32), x[::-1]):
            out = np.zeros(n, np.float32)
            launch.elementwise(kernel, (out, x, y))
            np.testing.assert_array_equal(out, x * y)


def test_empty_operands_are_not_read():
    kernel = product()
    for shape in ((0,), (3, 0), (0, 3)):
        out = np.zeros(shape, np.float32)
        for y in (np.array(1, np.float32), np.ones(shape[-1:], np.float32), out.T.copy().T):
            launch.elementwise(kernel, (out, out, y))


def test_driver_of_blocks_is_loaded_when_needed():
    # A first operation of equal shapes waits for two small compilations only.
    text = (
        "import json, numgrad\n"
        "from numgrad.kernels.cpu import elementwise as d\n"
        "x = numgrad.tensor([1.0, 2.0])\n"
        "y = x * x\n"
        "loaded = [d.blocks.loaded > 0]\n"
        "z = x * 2\n"
        "loaded += [d.blocks.loaded > 0, d.run.loaded > 0]\n"
        "print(json.dumps(loaded + [y.tolist(), z.tolist()]))\n"
    )
    assert program(text) == [False, True, False, [1.0, 4.0], [2.0, 4.0]]


def test_other_layout_of_array_objects_is_refused(monkeypatch):
    monkeypatch.setattr(launch, "_layout_checked", False)
    monkeypatch.setattr(launch, "DATA", native.DATA + 8)
    with pytest.raises(RuntimeError, match=r"^launch: expected NumPy's C layout for array objects"):
        launch._check_array_layout()


def test_block_is_what_the_buffers_hold():
    assert driver._BUFFER_BYTES == 8 * driver.BLOCK
    assert launch.PARALLEL_MIN % driver.BLOCK == 0


# ----------------------------------------------------------------------------------------- operands


def test_operands_of_kernels():
    x = np.ones(3)
    assert launch.address_or_0(x) == launch.address(x) == x.ctypes.data
    assert launch.address_or_0(None) == 0
    for value in (0.0, -0.0, 1, np.float32(0.1), float("inf"), float("nan")):
        assert launch.bits(value) == np.float64(value).view(np.int64)
    assert launch.bits(0.0) != launch.bits(-0.0)
