"""A first result with an empty kernel folder: what is compiled, and what is told of it."""

import contextlib
import os
import subprocess
import sys
import time
import types

import pytest

from numgrad.kernels import progress, store

NETWORK = """
import numgrad
from numgrad import nn
from numgrad.kernels import store
from numgrad.kernels.cpu.vector import INSTRUCTION_SET

net = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 5)
)
with numgrad.no_grad():
    net.eval()(numgrad.ones(1, 3, 8, 8)).numpy()
print(INSTRUCTION_SET, store.stats.compiled, store.stats.hits)
"""


def first_result(folder, told):
    # A folder of its own: other settings of the environment stay as they are.
    environment = {**os.environ, "NUMGRAD_CACHE": str(folder), "NUMGRAD_PROGRESS": told}
    done = subprocess.run(
        [sys.executable, "-c", NETWORK], env=environment, capture_output=True, check=True
    )
    instruction_set, compiled, hits = done.stdout.decode().split()
    return instruction_set, int(compiled), int(hits), done.stderr.decode()


def test_a_cold_start(tmp_path):
    """One instruction set is compiled, each kernel once, and a line tells of it and is gone; when
    all is there, nothing is told."""
    used, compiled, hits, told = first_result(tmp_path, "1")
    assert (compiled > 5, hits) == (True, 0)
    names = [folder.name for folder in tmp_path.glob("*/handwritten-*/*")]
    suffixes = {name.rpartition("_")[2] for name in names} & {"avx512", "avx2", "plain"}
    assert suffixes == {used}
    assert len(list(tmp_path.glob("*/*/*/*/*.nbi"))) == compiled
    assert "numgrad: compiling kernels for this CPU, once: " in told
    assert "\n" not in told and told.endswith(" \r")  # wiped out
    assert first_result(tmp_path, "1") == (used, 0, compiled, "")


@pytest.fixture
def written(monkeypatch):
    """What is written when a tenth of a second is long, with nothing told before."""
    texts = []

    class Stream:
        def write(self, text):
            texts.append(text)

        def flush(self):
            pass

        def isatty(self):
            return True

    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=Stream()))
    monkeypatch.setattr(progress, "PATIENCE", 0.1)
    monkeypatch.setattr(progress, "_ended", 0.0)
    monkeypatch.delenv("NUMGRAD_PROGRESS", raising=False)
    return texts


def until(condition):
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.001)


def test_nothing_is_told_of_what_is_quick(written, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 60)
    with progress.compiling("a"):
        pass
    assert written == []


def test_a_slow_one_and_those_after_it(written):
    with progress.compiling("a"):
        until(lambda: written)
    assert "0 done, now a" in written[0] and not written[-1].strip()
    seen = len(written)
    with progress.compiling("b"):  # at once
        assert "1 done, now b" in written[seen]
    assert not written[-1].strip()


def test_what_is_loaded_is_not_told_of(monkeypatch, tmp_path):
    """Nor counted as compiled: an earlier process did that."""
    told = []

    def compiling(name):
        told.append(name)
        return contextlib.nullcontext()

    def build(folder):
        file = folder / "place" / "kernel.nbi"
        there = file.exists()
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"code")
        return "compiled", int(there)

    monkeypatch.setattr(progress, "compiling", compiling)
    monkeypatch.setattr(store, "stats", store.Stats())
    monkeypatch.setattr(store, "_unwritable", False)
    for _ in range(2):
        assert store._compile(build, tmp_path, "a kernel") == "compiled"
    assert told == ["a kernel"] and (store.stats.compiled, store.stats.hits) == (1, 1)


def test_a_failure_leaves_no_line(written):
    with pytest.raises(KeyError), progress.compiling("a"):
        until(lambda: written)
        raise KeyError
    assert not written[-1].strip()


@pytest.mark.parametrize(
    ("asked", "terminal", "told"),
    [("", True, True), ("", False, False), ("0", True, False), ("1", False, True)],
)
def test_who_is_told(written, monkeypatch, asked, terminal, told):
    monkeypatch.setattr(type(progress.sys.stderr), "isatty", lambda self: terminal)
    monkeypatch.setenv("NUMGRAD_PROGRESS", asked)
    assert progress.wanted() == told


def test_without_stderr(monkeypatch):
    monkeypatch.setenv("NUMGRAD_PROGRESS", "1")
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=None))
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with progress.compiling("a"):
        pass
    monkeypatch.delenv("NUMGRAD_PROGRESS")
    assert not progress.wanted()


def test_a_narrow_terminal(written, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    with progress.compiling("a" * 50):
        until(lambda: written)
    assert all(len(text.strip("\r")) < 30 for text in written)
