"""Small programs that use the kernel store, each in a process of its own."""

import json
import os
import pathlib
import subprocess
import sys

from numgrad.kernels import store

REPOSITORY = pathlib.Path(store.__file__).parents[2]

# One kernel of each kind: a generated one (copy), a launcher, and a handwritten one (`blocks`).
PROGRAM = "result = numgrad.full((3,), 2.5).tolist()"
KERNELS = 3
RIGHT = [2.5, 2.5, 2.5]

# A warning is reported however often it is raised. (Numba would import SciPy, which takes long.)
FRAME = """
import json, sys, warnings
sys.modules.setdefault("scipy", None)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import numgrad
    from numgrad.kernels import store
{program}
print(json.dumps(dict(
    result=result, compiled=store.stats.compiled, hits=store.stats.hits,
    warnings=[(w.category.__name__, str(w.message)) for w in caught],
)), flush=True)
"""

# A process that has imported everything, and answers each line of input by a child's output.
SERVER = """
import json, os, sys
sys.modules["scipy"] = None
import numba, numgrad
numba.njit("int64(int64)")(lambda x: x)
for line in sys.stdin:
    environment, text = json.loads(line)
    read, write = os.pipe()
    if os.fork() == 0:
        os.environ.update(environment)
        os.dup2(write, 1)
        exec(text, {})
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        output = pipe.read()
    assert os.wait()[1] == 0
    print(output.splitlines()[-1], flush=True)
"""


def command(text, package, environment):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "NUMGRAD_"))}
    return subprocess.Popen(
        [sys.executable, "-c", text],
        env={**inherited, "PYTHONPATH": str(package), **environment},
        cwd=package,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def framed(program):
    return FRAME.format(program="\n".join(f"    {line}" for line in program.splitlines()))


def start(cache, program=PROGRAM, package=REPOSITORY, **environment):
    """A process that runs ``program`` with the kernel folder ``cache``."""
    return command(framed(program), package, {"NUMGRAD_CACHE": str(cache), **environment})


def finish(process):
    """What the program says of itself: result, compiled, hits, warnings."""
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


def run(*args, **named):
    return finish(start(*args, **named))


def check(answer, *, compiled, warned=None, result=RIGHT, kernels=KERNELS):
    """Right; so many compiled and the rest loaded; one StoreWarning about ``warned`` or none."""
    assert answer["result"] == result
    assert (answer["compiled"], answer["hits"]) == (compiled, kernels - compiled)
    if warned is None:
        assert answer["warnings"] == []
    else:
        ((category, text),) = answer["warnings"]
        assert category == "StoreWarning" and warned in text


def kernel_folders(cache):
    """The folders of the kernels in ``cache`` by kind."""
    kinds = {"handwritten": [], "launcher": [], "generated": []}
    for index in cache.rglob("*.nbi"):
        folder = index.parents[1]
        source = folder / f"{folder.name}.py"
        if not source.exists():
            kinds["handwritten"].append(folder)
        else:
            launches = "def kernel(card" in source.read_text()
            kinds["launcher" if launches else "generated"].append(folder)
    return kinds
