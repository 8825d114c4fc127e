"""The two libraries, side by side in every group. Run: ``pytest benchmarks --benchmark-only``."""

import importlib
from typing import Any

import pytest

THREADS = 2


@pytest.fixture(params=["numgrad", "torch"])
def library(request: Any) -> Any:
    """numgrad, and PyTorch where it is installed."""
    name = request.param
    if name == "torch":
        t = pytest.importorskip("torch")
    else:
        t = importlib.import_module(name)
        for part in ("nn", "optim"):
            importlib.import_module(f"{name}.{part}")
    t.set_num_threads(THREADS)
    return t


@pytest.fixture(autouse=True)
def _one_group_a_call(request: Any) -> None:
    """Group a benchmark with the same call in the other library."""
    benchmark = request.getfixturevalue("benchmark")
    benchmark.group = request.node.name.replace("numgrad", "").replace("torch", "")
