"""CUDA kernels in Numba's simulator: the tests themselves stand in ``tests/cuda_sim``."""

import pytest

from tests.cuda_sim.runs import simulate
from tests.ops.samples import ENTRIES

FILE = "tests/cuda_sim/test_kernels.py"


@pytest.mark.parametrize("chosen", ["test_entry", "not test_entry"])
def test_kernels_equal_those_of_the_cpu(chosen):
    passed = simulate(FILE, "-k", chosen)
    assert passed >= len(ENTRIES) + (10 if chosen.startswith("not") else 0)


def test_stock_simulator():
    """Numba's own scheduler, with an OS thread for each CUDA thread, gives the same."""
    chosen = "test_tile_sizes or test_long_axis or test_in_place_and_overlap"
    assert simulate(FILE, "-k", chosen, NUMGRAD_TEST_SCHEDULER="stock") == 3
