"""The libraries side by side in every group. Run: ``pytest benchmarks --benchmark-only``.

Cases with a name, such as ``matmul/128x128x128``, are those of ``numgrad bench speed``.
"""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from numgrad.cli.speed import cases
from numgrad.cli.speed.kit import Kit
from numgrad.cli.speed.measuring import error_of
from numgrad.cli.speed.server import flat

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


def pytest_generate_tests(metafunc: Any) -> None:
    """``case``: those of the groups that the module names in ``GROUPS``; ``variant``: of each."""
    if "case" not in metafunc.fixturenames:
        return
    groups = metafunc.module.GROUPS
    chosen = [case for case in cases.CASES.values() if case.group in groups]
    metafunc.parametrize(
        ("case", "variant"),
        [
            pytest.param(case, variant, id=f"{case.full_name}{variant and '-' + variant}")
            for case in chosen
            for variant in case.variants
        ],
    )


@pytest.fixture
def timed(benchmark: Any, library: Any) -> Callable[[cases.Case, str], None]:
    """Time a case in a variant, which numgrad has not, after its result has been compared."""

    def run(case: cases.Case, variant: str) -> None:
        if variant and library.__name__ == "numgrad":
            pytest.skip("a variant of PyTorch's")
        call = case.build(Kit(library.__name__, case.full_name, variant))
        first = np.concatenate([flat(call()) for _ in range(case.calls)])
        if library.__name__ == "numgrad":
            assert np.isfinite(first).all()
        else:
            ours = case.build(Kit("numgrad", case.full_name))
            expected = np.concatenate([flat(ours()) for _ in range(case.calls)])
            assert error_of(expected, first) <= case.tolerance
        benchmark(call)

    return run


@pytest.fixture(autouse=True)
def _one_group_a_call(request: Any) -> None:
    """Group a benchmark with the same call in the other library."""
    benchmark = request.getfixturevalue("benchmark")
    if "case" in request.fixturenames:
        benchmark.group = request.node.callspec.params["case"].full_name
    else:
        benchmark.group = request.node.name.replace("numgrad", "").replace("torch", "")
