"""The kernel store: nothing is compiled twice, nothing stale or damaged runs, nobody is stopped.

What the store does is seen by a new process only, so most tests run small programs.
"""

import gc
import pathlib
import shutil
import threading
import warnings

import numpy as np
import pytest

from numgrad.kernels import launch, native, store
from numgrad.kernels.cpu import elementwise as driver
from tests.kernels.stores import (
    KERNELS,
    REPOSITORY,
    RIGHT,
    check,
    finish,
    kernel_folders,
    run,
    start,
)

# --------------------------------------------------------------------------------- found, not stale


def test_second_process_compiles_nothing(warm):
    check(run(warm), compiled=0)
    assert {kind: len(found) for kind, found in kernel_folders(warm).items()} == {
        "handwritten": 1,
        "launcher": 1,
        "generated": 1,
    }


USER_OP = """
import importlib.util
spec = importlib.util.spec_from_file_location("mine", {path!r})
mine = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mine)
result = mine.scaled(numgrad.tensor([1.0, 2.0])).tolist()
"""


def test_edited_formula_changes_the_result(tmp_path):
    script, cache = tmp_path / "mine.py", tmp_path / "cache"
    program = USER_OP.format(path=str(script))

    def write(formula):
        script.write_text(
            "import numgrad\n"
            "@numgrad.elementwise(dx=lambda g: g)\n"
            f"def scaled(x):\n    return {formula}\n"
        )

    write("x * 5")
    check(run(cache, program), compiled=3, result=[5.0, 10.0])
    check(run(cache, program), compiled=0, result=[5.0, 10.0])
    write("x * 7")
    check(run(cache, program), compiled=1, result=[7.0, 14.0])


PROBE = '''
from numba import njit
from ..native import as_float64, load_i64
from ..store import kernel
from . import vector
from .functions import helper

@kernel()
def probe(args, lo, hi, worker):
    """out = helper(1) + (2 * 3 + 4 as a vector does it)."""
    out = as_float64(load_i64(args, 0))
    t = out[0] * 0
    two, three, four = vector.splat(2 + t), vector.splat(3 + t), vector.splat(4 + t)
    vector.store(load_i64(args, 0), 0, vector.multiply_add(two, three, four))
    out[0] += helper(1.0)
'''
PROBING = """
import numpy as np
from numgrad.kernels import launch
from numgrad.kernels.cpu.probe import probe
out = np.zeros(64)
launch.ranged(probe, [launch.address(out)], 1)
result = [out[0], float(numgrad.exp(numgrad.tensor([1.0]))[0])]
"""


def test_edited_helpers_and_intrinsics_change_the_result(tmp_path):
    # The package in a copy: a handwritten kernel with a helper and an intrinsic of other modules,
    # and a generated one (exp) with a helper.
    shutil.copytree(REPOSITORY / "numgrad", tmp_path / "numgrad")
    kernels = tmp_path / "numgrad" / "kernels"
    (kernels / "cpu" / "probe.py").write_text(PROBE)
    functions, vectors = kernels / "cpu" / "functions.py", kernels / "cpu" / "vector.py"

    def answer():
        found = run(tmp_path / "cache", PROBING, tmp_path)
        assert found["compiled"] > 0 and not found["warnings"]
        return found["result"]

    append(functions, "from numba import njit\n@njit\ndef helper(x):\n    return x\n")
    assert answer() == [11.0, pytest.approx(np.e)]
    append(functions, "@njit\ndef helper(x):\n    return 30 * x\n")
    append(functions, "def exp_float32(x):\n    return x + x\n")
    assert answer() == [40.0, 2.0]
    edited = vectors.read_text().replace("def multiply_add_value(builder, a, b, c):", EDITED)
    assert edited != vectors.read_text()
    vectors.write_text(edited)
    assert answer() == [36.0, 2.0]
    edited = run(tmp_path / "cache", PROBING, tmp_path)
    assert edited["compiled"] == 0 and edited["result"] == [36.0, 2.0]
    # The intrinsics of generated kernels and launchers: all are compiled again.
    append(kernels / "native.py", "# edited\n")
    edited = run(tmp_path / "cache", PROBING, tmp_path)
    assert edited["hits"] == 0 and edited["result"] == [36.0, 2.0]


EDITED = """def multiply_add_value(builder, a, b, c):
    return builder.fmul(a, b)
def unused(builder, a, b, c):"""


def append(path, text):
    path.write_text(path.read_text() + "\n\n" + text)


def test_what_decides_machine_code_names_the_folder(monkeypatch, tmp_path):
    from numba.core import config

    monkeypatch.setenv("NUMGRAD_CACHE", str(tmp_path))
    folders = {store._folder()}
    for setting, value in (
        ("OPT", 1),
        ("LOOP_VECTORIZE", 0),
        ("BOUNDSCHECK", 1),
        ("CPU_NAME", "generic"),
        ("DEBUGINFO_DEFAULT", 1),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(config, setting, value)
            folders.add(store._folder())
    monkeypatch.setenv("NUMGRAD_CPU", "plain")
    folders.add(store._folder())
    assert len(folders) == 7
    assert all(folder.parent == tmp_path for folder in folders)


def test_equal_text_of_another_signature_or_option_is_another_kernel(own_folder):
    from numba import types

    text = "def kernel(x, y):\n    return x / y\n"
    i, f = types.int64, types.float64
    whole = store.entry_point(text, i(i, i))
    assert whole(7, 2) == 3
    assert store.entry_point(text, f(f, f))(7.0, 2.0) == 3.5
    assert store.entry_point(text, f(f, f), {"error_model": "python"}) is not whole
    with pytest.raises(ZeroDivisionError):
        store.entry_point(text, f(f, f), {"error_model": "python"})(1.0, 0.0)
    assert store.entry_point(text, f(f, f))(1.0, 0.0) == np.inf


def test_handwritten_kernels_of_one_name_are_refused():
    def f(args, lo, hi, worker):
        pass

    store.kernel()(f)
    with pytest.raises(ValueError, match=r"^kernel: expected a name of its own .* twice in"):
        store.kernel()(f)


# ------------------------------------------------------------------------------------- concurrency


def test_eight_processes_at_once(tmp_path):
    for answer in [finish(p) for p in [start(tmp_path) for _ in range(8)]]:
        assert answer["result"] == RIGHT and answer["warnings"] == []
        assert answer["compiled"] + answer["hits"] == KERNELS
    check(run(tmp_path), compiled=0)


def add_number(number):
    """The text of a kernel ``out = x + number`` of int64."""
    return (
        "from numgrad.kernels.native import as_int64, load_i64\n"
        "def kernel(pointers, n):\n"
        "    out, x = as_int64(load_i64(pointers, 0)), as_int64(load_i64(pointers, 1))\n"
        "    for i in range(n):\n"
        f"        out[i] = x[i] + {number}\n"
    )


def added(number):
    kernel = store.generated(add_number(number), native.BLOCK_SIGNATURE)
    out = np.zeros(5, np.int64)
    launch.elementwise(kernel, (out, np.arange(5)))
    return out.tolist()


def test_threads_compile_at_once(own_folder):
    before = store.stats.compiled + store.stats.hits
    answers = [[] for _ in range(8)]

    def work(answer):
        answer += [added(1001), added(1002)]

    threads = [threading.Thread(target=work, args=(answer,)) for answer in answers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [[1001 + i for i in range(5)], [1002 + i for i in range(5)]]
    assert all(answer == expected for answer in answers)
    assert store.stats.compiled + store.stats.hits - before <= 3  # two kernels, perhaps a launcher


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_no_garbage_is_collected_while_compiling(enabled, fails):
    def inside():
        assert not gc.isenabled()
        if fails:
            raise KeyboardInterrupt

    def compile_twice():
        with store._compiling("one"):
            with store._compiling("one that it needs"):
                pass
            inside()

    try:
        if not enabled:
            gc.disable()
        if fails:
            with pytest.raises(KeyboardInterrupt):
                compile_twice()
        else:
            compile_twice()
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_failed_compilation_leaves_nothing(own_folder):
    from numba.core.errors import TypingError

    text = "def kernel(pointers, n):\n    pointers.nothing()\n"
    for _ in range(2):
        with pytest.raises(TypingError):
            store.generated(text, native.BLOCK_SIGNATURE)
    assert not list(own_folder.rglob("*.nb[ic]"))
    assert added(1003) == [1003, 1004, 1005, 1006, 1007]


def test_folder_named_anew_and_removed_while_running(monkeypatch, tmp_path):
    for name in ("a", "b"):
        monkeypatch.setenv("NUMGRAD_CACHE", str(tmp_path / name))
        assert added(1010 + ord(name))[0] == 1010 + ord(name)
        assert list((tmp_path / name).rglob("*.seal"))
    shutil.rmtree(tmp_path / "b")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert added(1020)[0] == 1020
    assert list((tmp_path / "b").rglob("*.seal"))


# ----------------------------------------------------------------------------- Numba's own settings


USERS_OWN = """
import importlib.util
def users(name):
    spec = importlib.util.spec_from_file_location(name, {folder!r} + "/" + name + ".py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.f(1)
result = users("early")
numgrad.full((3,), 2.5)
result += users("late")
"""


@pytest.mark.parametrize("named", [False, True])
def test_users_functions_stay_in_their_own_cache(warm, tmp_path, named):
    for name in ("early", "late"):
        text = "from numba import njit\n@njit(cache=True)\ndef f(x):\n    return x + 1\n"
        (tmp_path / f"{name}.py").write_text(text)
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "named")} if named else {}
    answer = run(warm, USERS_OWN.format(folder=str(tmp_path)), **environment)
    assert answer["result"] == 4 and answer["compiled"] == 0
    place = tmp_path / ("named" if named else "__pycache__")
    assert len(list(tmp_path.rglob("*.nbi"))) == len(list(place.rglob("*.nbi"))) == 2
    assert not list(warm.rglob("*early*")) and not list(warm.rglob("*late*"))


def test_cache_locators_of_the_users_are_not_ours(child, warm):
    # In the package's own __pycache__ an edited helper would go unseen.
    environment = {"NUMBA_CACHE_LOCATOR_CLASSES": "InTreeCacheLocator"}
    check(child(warm, **environment), compiled=0)


def test_disabled_jit_says_so(warm):
    process = start(warm, NUMBA_DISABLE_JIT="1")
    errors = process.communicate(timeout=120)[1]
    assert process.returncode != 0
    assert "RuntimeError: numgrad: expected Numba to compile, got NUMBA_DISABLE_JIT=1" in errors
    assert "unset NUMBA_DISABLE_JIT" in errors


def test_describe(own_folder):
    assert store.describe()["generated"] == 0
    added(1030)
    described = store.describe()
    assert pathlib.Path(described["folder"]).parent == own_folder
    assert described["generated"] in (1, 2)  # its launcher may have been compiled elsewhere
    assert described["handwritten"] == 0 and described["bytes"] > 1000
    assert described["compiled_now"] == store.stats.compiled


def test_nothing_is_compiled_at_import(tmp_path):
    check(run(tmp_path, "result = 0"), compiled=0, result=0, kernels=0)
    assert not list(tmp_path.iterdir())


def test_kernels_are_loaded_when_first_asked_for():
    assert isinstance(driver.blocks, store.Handwritten) and driver.blocks.address > 0
    assert driver.blocks.loaded == driver.blocks.address
