"""Starting processes in which Numba's simulator is on, or in which there is no GPU at all."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLOSING = re.compile(r"^simulated: (\d+) of (\d+) passed$", re.M)


def environment(**changes):
    """This process's, less what pytest and the simulator put there."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "NUMBA_ENABLE_CUDASIM", "CUDA_VISIBLE_DEVICES"))
    }
    return {**kept, "PYTHONPATH": str(ROOT), **changes}


def simulate(*args, **changes):
    """Run pytest on tests of this folder in the simulator; how many passed. All must."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, *args],
        cwd=ROOT,
        env=environment(NUMBA_ENABLE_CUDASIM="1", **changes),
        capture_output=True,
        text=True,
        timeout=600,
    )
    out = done.stdout + done.stderr
    found = CLOSING.search(done.stdout)
    assert done.returncode == 0 and found, out[-6000:]
    passed, collected = int(found[1]), int(found[2])
    assert passed == collected, out[-6000:]
    return passed


def without_gpu(code, **changes):
    """What a program prints where no GPU can be seen and the simulator is off."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment(CUDA_VISIBLE_DEVICES="-1", **changes),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
