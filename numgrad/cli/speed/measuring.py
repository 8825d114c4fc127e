"""Servers and what is measured with them: in turns, after the results have been compared."""

import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..output import UsageError
from .cases import Case
from .peaks import quartiles

ROUNDS = 7
FEW = ((0.8, 5), (1.6, 3))
"""Seconds of one call from which fewer rounds are made."""
SAMPLE_S, MOST_LOOPS = 0.04, 200
"""A sample is the median of the calls that fit into this time."""
SPREAD = 1.3
ATTEMPTS = 3
PAUSE_S = {"onnxruntime": 0.06}
PAUSE = 0.02
"""Waited, if threads are several, for those of the last one to sleep."""


class Differs(Exception):
    """Two libraries have not the same result."""


def server_command(library: str, threads: int) -> list[str]:
    """How the process of a library is started."""
    return [sys.executable, "-m", "numgrad.cli.speed.server", library, str(threads)]


def environment(threads: int) -> dict[str, str]:
    """This process's, with the count of threads for all libraries, and this numgrad."""
    path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    count = {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "MKL", "NUMBA", "NUMGRAD")}
    return {**os.environ, **count, "PYTHONPATH": path}


class Client:
    """The process of one library with one count of threads."""

    def __init__(self, library: str, threads: int) -> None:
        self.library, self.threads = library, threads
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen(
            server_command(library, threads), env=environment(threads), text=True, encoding="utf-8",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            UsageError: the process has ended, or could not do it.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        reply = json.loads(line) if line else {"error": self._last_words()}
        if "error" in reply:
            what = f" of {request['case']}" if "case" in request else ""
            raise UsageError(f"bench speed: the process of {self.library}{what}: {reply['error']}")
        return dict(reply)

    def drop(self) -> None:
        """Let it forget its cases, if it still lives."""
        if self._process.poll() is None:
            self.ask(do="drop")

    def _last_words(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else f"ended with exit code {self._process.returncode}"

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()


class Clients:
    """Processes by library and count of threads, started when first needed."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], Client] = {}

    def __enter__(self) -> "Clients":
        return self

    def __exit__(self, *error: object) -> None:
        for client in self._found.values():
            client.close()

    def get(self, library: str, threads: int) -> Client:
        """The process of a library with so many threads."""
        key = (library, threads)
        if key not in self._found:
            self._found[key] = Client(library, threads)
        return self._found[key]

    def drop(self) -> None:
        """Let all of them forget their cases."""
        for client in self._found.values():
            client.drop()


class Contestant:
    """A case made in one process in one variant."""

    def __init__(self, client: Client, case: Case, variant: str = "") -> None:
        self.client, self.variant = client, variant
        self.id = client.ask(do="make", case=case.full_name, variant=variant)["id"]
        self.loops = 1

    def result(self, folder: str) -> np.ndarray:
        """What its first calls compute."""
        file = str(Path(folder) / "result.npy")
        self.client.ask(do="check", id=self.id, file=file)
        found: np.ndarray = np.load(file)
        return found

    def sample(self) -> float:
        """The median of one sample's calls, in seconds."""
        return statistics.median(self.client.ask(do="run", id=self.id, loops=self.loops)["seconds"])


def contestants(
    clients: Clients, case: Case, threads: int, compare: Sequence[str]
) -> list[Contestant]:
    """Ours first, then the peers that can run the case, in each of their variants."""
    found = [Contestant(clients.get("numgrad", threads), case)]
    if "torch" in compare:
        client = clients.get("torch", threads)
        found += [Contestant(client, case, variant) for variant in case.variants]
    if "onnxruntime" in compare and case.onnx_batch:
        found.append(Contestant(clients.get("onnxruntime", threads), case))
    return found


def check(case: Case, runners: Sequence[Contestant]) -> dict[str, float]:
    """The error of each peer's result beside ours.

    Raises:
        Differs: one is beyond the case's tolerance.
    """
    with tempfile.TemporaryDirectory() as folder:
        ours = runners[0].result(folder)
        errors = {}
        for other in runners[1:]:
            name = f"{other.client.library} {other.variant}".strip()
            errors[name] = error_of(ours, other.result(folder))
            if not errors[name] <= case.tolerance:
                raise Differs(
                    f"{case.full_name}: the result differs from that of {name} by "
                    f"{errors[name]:.1e} of its largest number (allowed: {case.tolerance:.0e})"
                )
    return errors


def error_of(a: np.ndarray, b: np.ndarray) -> float:
    """``max|a - b| / max(max|b|, 1e-3)``; infinite for other sizes and for nan."""
    if a.shape != b.shape:
        return math.inf
    wide = b.astype(np.float64)
    apart = float(np.max(np.abs(a - wide), initial=0.0))
    found = apart / max(float(np.max(np.abs(wide), initial=0.0)), 1e-3)
    return found if math.isfinite(found) else math.inf


def rounds_for(seconds: float) -> int:
    """How many rounds there are if a call takes so long."""
    count = ROUNDS
    for least, fewer in FEW:
        if seconds >= least:
            count = fewer
    return count


def spread(samples: Sequence[float]) -> float:
    """p75 over p25."""
    low, _, high = quartiles(samples)
    return high / low if low > 0 else math.inf


def in_turns(runners: Sequence[Contestant]) -> Iterator[list[list[float]]]:
    """Attempts at the samples of each contestant: as many as there may be."""
    slowest = 0.0
    for runner in runners:  # kernels are loaded, threads started, pages there
        runner.loops = 1
        seconds = runner.sample()
        if seconds < FEW[0][0]:
            seconds = min(seconds, runner.sample())
        runner.loops = max(1, min(int(SAMPLE_S / max(seconds, 1e-7)), MOST_LOOPS))
        slowest = max(slowest, seconds)
    count = rounds_for(slowest)
    for _ in range(ATTEMPTS if count == ROUNDS else 2):
        samples: list[list[float]] = [[] for _ in runners]
        for _ in range(count):
            for runner, found in zip(runners, samples, strict=True):
                if runner.client.threads > 1:
                    time.sleep(PAUSE_S.get(runner.client.library, PAUSE))
                found.append(runner.sample())
        yield samples


def steadiest(attempts: Iterator[list[list[float]]]) -> tuple[list[list[float]], int, bool]:
    """The samples of the attempt that spread least; how many there were; whether they are steady.

    A new one is made while samples spread more than `SPREAD`.
    """
    made: list[tuple[float, list[list[float]]]] = []
    for samples in attempts:
        made.append((max(spread(found) for found in samples), samples))
        if made[-1][0] <= SPREAD:
            break
    worst, samples = min(made, key=lambda attempt: attempt[0])
    return samples, len(made), worst <= SPREAD


def times_of(runner: Contestant, samples: Sequence[float]) -> dict[str, Any]:
    """What a row keeps of a contestant."""
    low, middle, high = quartiles(samples)
    return {
        "library": runner.client.library,
        "variant": runner.variant,
        "threads": runner.client.threads,
        "ms": middle * 1e3,
        "p25_ms": low * 1e3,
        "p75_ms": high * 1e3,
        "samples_ms": [s * 1e3 for s in samples],
        "calls_a_sample": runner.loops,
    }


def race(runners: Sequence[Contestant]) -> dict[str, Any]:
    """Times of all contestants, measured in turns."""
    samples, attempts, steady = steadiest(in_turns(runners))
    return {
        "times": [times_of(r, found) for r, found in zip(runners, samples, strict=True)],
        "attempts": attempts,
        "steady": steady,
    }
