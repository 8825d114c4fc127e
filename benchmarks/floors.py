"""The speed floors, side by side with PyTorch on two threads: ``make bench-floors``.

A floor is the least that may not be lost, not a goal. Each is the median of several alternating
runs (ours, PyTorch's, ours, …), after the results have been compared. Exits 1 if one is missed.
"""

import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
THREADS = 2
REPEATS = 9
BUSY = 0.5
"""Load average above which the machine is said to be busy with something else."""

MATMUL_RATIO = 0.6
FORWARD_RATIO = 0.6
STEP_RATIO = 0.5
STEP_BATCH = 16
PICTURE = 224
ADD_US = 4.0
IMPORT_S = 0.6
FIRST_OP_S = 1.5

Row = tuple[str, str, str, bool]
"""What, asked, reached, whether it is enough."""


# -------------------------------------------------------------------------------------- the machine


def machine() -> str:
    """Processor, cores, and the versions that decide the speed."""
    import numba
    import numpy
    import torch

    import numgrad

    name = platform.processor() or platform.machine()
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        name = lines[0].partition(":")[2].strip() if lines else name
    return (
        f"{name}, {os.cpu_count()} cores, {THREADS} threads; Python {platform.python_version()}, "
        f"numgrad {numgrad.__version__}, numba {numba.__version__}, numpy {numpy.__version__}, "
        f"torch {torch.__version__}"
    )


def idle() -> str:
    """A warning if the machine is busy, else nothing. Call it before measuring."""
    load = os.getloadavg()[0]
    if load < BUSY:
        return ""
    return f"the load average is {load:.2f}: other work runs here, and these times mean little"


# ----------------------------------------------------------------------------------------- timing


def seconds(call: Callable[[], Any], loops: int) -> float:
    """Seconds a call takes, over ``loops`` of them."""
    started = time.perf_counter()
    for _ in range(loops):
        call()
    return (time.perf_counter() - started) / loops


def alternating(*calls: Callable[[], Any], loops: int) -> list[float]:
    """The median seconds of each call, measured in turns so that both meet the same machine."""
    for call in calls:
        seconds(call, max(loops // 10, 2))
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(REPEATS):
        for call, found in zip(calls, times, strict=True):
            found.append(seconds(call, loops))
    return [statistics.median(found) for found in times]


# --------------------------------------------------------------------------------- in this process


def matmul() -> list[Row]:
    """1024 x 1024 x 1024 in float32, as a share of PyTorch's speed."""
    import numpy as np
    import torch

    import numgrad

    n = 1024
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n)).astype(np.float32) for _ in range(2))
    x, y = numgrad.tensor(a), numgrad.tensor(b)
    u, v = torch.tensor(a), torch.tensor(b)
    np.testing.assert_allclose((x @ y).numpy(), (u @ v).numpy(), rtol=1e-4, atol=1e-3)
    ours, theirs = alternating(lambda: x @ y, lambda: u @ v, loops=5)
    gflops = 2 * n**3 / 1e9
    reached = f"{theirs / ours:.2f} ({gflops / ours:.0f} and {gflops / theirs:.0f} GFLOP/s)"
    return [
        (f"matmul {n}^3, share of PyTorch's speed", f">= {MATMUL_RATIO}", reached,
         theirs / ours >= MATMUL_RATIO)
    ]  # fmt: skip


def add() -> list[Row]:
    """Adding 10 elements: what a call costs, unrecorded and recorded."""
    import numpy as np
    import torch

    import numgrad

    a, b = np.arange(10, dtype=np.float32), np.ones(10, np.float32)
    x, y, u, v = numgrad.tensor(a), numgrad.tensor(b), torch.tensor(a), torch.tensor(b)
    np.testing.assert_array_equal((x + y).numpy(), (u + v).numpy())
    ours, theirs = alternating(lambda: x + y, lambda: u + v, loops=5000)
    rows = [
        ("add of 10 elements", f"<= {ADD_US} us",
         f"{ours * 1e6:.2f} us (PyTorch {theirs * 1e6:.2f})", ours * 1e6 <= ADD_US)
    ]  # fmt: skip
    x.requires_grad_()
    u.requires_grad_()
    assert (x + y).requires_grad and (u + v).requires_grad
    ours, theirs = alternating(lambda: x + y, lambda: u + v, loops=5000)
    rows.append(
        ("  the same, recorded", "-", f"{ours * 1e6:.2f} us (PyTorch {theirs * 1e6:.2f})", True)
    )
    return rows


def resnet18(seed: int = 0) -> tuple[Any, Any, Any]:
    """ResNet-18 with the same weights: ours, and PyTorch's in both of its layouts."""
    import torch

    from numgrad import models
    from tests_compare import torch_networks

    torch.manual_seed(seed)
    planar = torch_networks.resnet18()
    packed = torch_networks.resnet18()
    packed.load_state_dict(planar.state_dict())
    ours = models.resnet18()
    ours.load_state_dict({k: v.numpy() for k, v in planar.state_dict().items()})
    return ours, planar, packed.to(memory_format=torch.channels_last)


def agree(ours: Any, theirs: Any, what: str) -> None:
    """Stop if results differ: times of wrong results mean nothing."""
    import numpy as np

    scale = np.abs(theirs).max()
    found = float(np.abs(ours - theirs).max() / scale)
    if not found <= 1e-3:
        raise SystemExit(f"floors: {what}: results differ by {found:.1e}")


def share(what: str, floor: float, times: list[float]) -> Row:
    """A row of our speed as a share of PyTorch's in the better of its layouts."""
    ours, planar, packed = times
    ratio = min(planar, packed) / ours
    reached = (
        f"{ratio:.2f} ({ours * 1e3:.0f} ms; PyTorch {planar * 1e3:.0f}, channels last "
        f"{packed * 1e3:.0f})"
    )
    return what, f">= {floor}", reached, ratio >= floor


def forward() -> list[Row]:
    """ResNet-18 without a tape, batch 1: volatile here, no_grad in PyTorch."""
    import numpy as np
    import torch

    import numgrad

    ours, planar, packed = (model.eval() for model in resnet18())
    picture = np.random.default_rng(0).standard_normal((1, 3, PICTURE, PICTURE))
    a = numgrad.Variable(numgrad.tensor(picture.astype(np.float32)), volatile=True)
    b = torch.tensor(picture.astype(np.float32))
    c = b.to(memory_format=torch.channels_last)

    def unrecorded(model: Any, x: Any) -> Callable[[], Any]:
        def call() -> Any:
            with torch.no_grad():
                return model(x)

        return call

    def volatile() -> Any:
        return numgrad.realize(ours(a))

    agree(ours(a).numpy(), unrecorded(planar, b)().numpy(), "volatile ResNet-18")
    times = alternating(volatile, unrecorded(planar, b), unrecorded(packed, c), loops=3)
    return [share("volatile ResNet-18, batch 1, of PyTorch", FORWARD_RATIO, times)]


def step() -> list[Row]:
    """A training step of ResNet-18: forward, backward, SGD with momentum."""
    import numpy as np
    import torch

    import numgrad
    import numgrad.nn
    import numgrad.optim

    rng = np.random.default_rng(0)
    pictures = rng.standard_normal((STEP_BATCH, 3, PICTURE, PICTURE)).astype(np.float32)
    labels = rng.integers(0, 1000, STEP_BATCH)

    def stepping(t: Any, model: Any, x: Any) -> Callable[[], Any]:
        model.train()
        rule = t.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        target = t.tensor(labels)

        def call() -> Any:
            rule.zero_grad()
            loss = t.nn.functional.cross_entropy(model(x), target)
            loss.backward()
            rule.step()
            return loss.item()

        return call

    ours, planar, packed = resnet18()
    x = torch.tensor(pictures)
    calls = [
        stepping(numgrad, ours, numgrad.tensor(pictures)),
        stepping(torch, planar, x),
        stepping(torch, packed, x.to(memory_format=torch.channels_last)),
    ]
    losses = [[call() for _ in range(2)] for call in calls]
    agree(np.array(losses[0]), np.array(losses[1]), "two training steps of ResNet-18")
    times = alternating(*calls, loops=1)
    return [share(f"training step, batch {STEP_BATCH}, of PyTorch", STEP_RATIO, times)]


# --------------------------------------------------------------------------------- in new processes

IMPORT = """
import json, time
started = time.perf_counter()
import {name}
print(json.dumps(time.perf_counter() - started))
"""

FIRST_OP = """
import json, time
import numpy as np
import numgrad
from numgrad.kernels import store
a = np.linspace(-1, 1, 10, dtype=np.float32)
before = store.stats.compiled
started = time.perf_counter()
y = numgrad.tanh(numgrad.tensor(a))
took = time.perf_counter() - started
assert np.allclose(y.numpy(), np.tanh(a), atol=1e-6)
print(json.dumps([took, store.stats.compiled - before]))
"""


def child(source: str, **environment: str) -> tuple[Any, float]:
    """What a new interpreter prints, and how long it lived."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, env=env, check=False
    )
    lived = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"floors: a child process failed:\n{done.stderr}")
    return json.loads(done.stdout), lived


def import_time() -> list[Row]:
    """``import numgrad`` with the files in the page cache, without the interpreter's own start."""
    for name in ("numgrad", "torch"):
        child(IMPORT.format(name=name))
    times: dict[str, list[float]] = {"numgrad": [], "numba": [], "torch": []}
    for _ in range(7):
        for name, found in times.items():
            found.append(child(IMPORT.format(name=name))[0])
    ours, numba, theirs = (statistics.median(found) for found in times.values())
    return [
        ("import numgrad", f"<= {IMPORT_S} s",
         f"{ours:.2f} s (numba alone {numba:.2f}, PyTorch {theirs:.2f})", ours <= IMPORT_S)
    ]  # fmt: skip


def first_op() -> list[Row]:
    """The first elementwise op with an empty kernel cache: all that has to be compiled for it."""
    took, lived, kernels = [], [], 0
    for _ in range(7):
        with tempfile.TemporaryDirectory() as cache:
            (seconds_taken, kernels), total = child(FIRST_OP, NUMGRAD_CACHE=cache)
        took.append(seconds_taken)
        lived.append(total)
    with tempfile.TemporaryDirectory() as cache:
        child(FIRST_OP, NUMGRAD_CACHE=cache)
        (warm, compiled), _ = child(FIRST_OP, NUMGRAD_CACHE=cache)
    assert compiled == 0, "the second process has compiled again"
    median = statistics.median(took)
    process = statistics.median(lived)
    reached = (
        f"{median:.2f} s ({kernels} compiled; the whole process {process:.2f} s; "
        f"with the cache {warm:.3f} s)"
    )
    return [
        ("first elementwise op, empty cache", f"<= {FIRST_OP_S} s", reached, median <= FIRST_OP_S)
    ]


# --------------------------------------------------------------------------------------- the table

MEASURES = (matmul, add, forward, step, import_time, first_op)


def main() -> int:
    sys.path.insert(0, str(ROOT))
    busy = idle()
    import torch

    import numgrad

    torch.set_num_threads(THREADS)
    numgrad.set_num_threads(THREADS)
    print(machine())
    print(f"medians of {REPEATS} alternating runs (7 processes each for the last two)\n")
    rows = [row for measure in MEASURES for row in measure()]
    print(f"{'what':<42}{'asked':<12}{'':<5}reached")
    for what, asked, reached, ok in rows:
        print(f"{what:<42}{asked:<12}{'ok' if ok else 'MISS':<5}{reached}")
    if busy:
        print(f"\nwarning: {busy}")
    missed = [what for what, _, _, ok in rows if not ok]
    if missed:
        print(f"\nmissed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
