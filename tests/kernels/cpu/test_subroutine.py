"""A kernel in the cache holds every subroutine it calls, whichever kernels were compiled before."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
KERNELS = (
    "matmul.gemm_float32",
    "convolution.pack_weights_float32",
    "convolution.convolution_weight_float32",
    "winograd_weight.winograd_weight_float32",
)


def python(folder, code, *arguments):
    """What a fresh process with its kernels in ``folder`` prints."""
    environment = {**os.environ, "NUMGRAD_CACHE": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(folder, names):
    """Take kernels in a fresh process; how many were compiled there."""
    code = (
        "import importlib, sys\n"
        "from numgrad.kernels import launch, store\n"
        "for name in sys.argv[1:]:\n"
        "    module, kernel = name.split('.')\n"
        "    getattr(importlib.import_module('numgrad.kernels.cpu.' + module), kernel).address\n"
        "print(store.stats.compiled)\n"
        "launch._serial()  # only when one more comes are all symbols looked for\n"
    )
    return int(python(folder, code, *names))


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache that one process has filled."""
    folder = tmp_path_factory.mktemp("kernels")
    assert run(folder, KERNELS) == len(KERNELS)
    return folder


@pytest.mark.parametrize("name", KERNELS)
def test_each_alone(filled, name):
    assert run(filled, [name]) == 0


def test_they_are_not_compiled_on_their_own(tmp_path):
    """Numba would do so when it links them: then all is done twice."""
    code = (
        "from numgrad.kernels.cpu import subroutine, winograd\n"
        "winograd.winograd_float32.address\n"
        "states = [x.library._finalized for x in subroutine._lowered.values()]\n"
        "print(len(states) > 5, any(states))\n"
    )
    assert python(tmp_path, code) == "True False\n"
