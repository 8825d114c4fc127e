"""The kernel store when files are damaged or cannot be written: nothing wrong runs, nobody is
stopped."""

import shutil

import numpy as np
import pytest

from numgrad.kernels import store
from tests.kernels.stores import KERNELS, PROGRAM, REPOSITORY, check, kernel_folders

# -------------------------------------------------------------------------------------- damage


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def garbage(path):
    path.write_bytes(np.random.default_rng(1).bytes(path.stat().st_size))


def flip_bit(path):
    """A bit of the machine code: the file unpickles as before."""
    data = bytearray(path.read_bytes())
    data[data.index(b"\x7fELF") + 0x60] ^= 1
    path.write_bytes(bytes(data))


def remove(path):
    path.unlink()


def damage(folders, pattern, how):
    files = [file for folder in folders for file in folder.glob(pattern)]
    assert files
    for file in files:
        how(file)
    return len(files)


@pytest.mark.parametrize("kind", ["generated", "launcher", "handwritten"])
@pytest.mark.parametrize("file", ["index", "data"])
@pytest.mark.parametrize("how", [truncate, empty, garbage])
def test_damaged_file_costs_a_recompile_and_one_warning(child, warm, how, file, kind):
    # In the warm folder itself: each case must leave it whole for the next.
    folders = kernel_folders(warm)[kind]
    damaged = damage(folders, "*/*.nbi" if file == "index" else "*/*.nbc", how)
    check(child(warm), compiled=damaged, warned="damaged kernel in")


def test_everything_damaged_is_mended(child, warm):
    folders = [folder for found in kernel_folders(warm).values() for folder in found]
    damage(folders, "*/*.nb[ic]", garbage)
    damage(folders[:1], "*/*.seal", truncate)
    check(child(warm), compiled=KERNELS, warned="damaged")
    check(child(warm), compiled=0)


def test_flipped_bit_of_machine_code_never_runs(child, warm):
    damaged = damage(kernel_folders(warm)["generated"], "*/*.nbc", flip_bit)
    check(child(warm), compiled=damaged, warned="damaged kernel in")


@pytest.mark.parametrize("how", [truncate, empty, garbage])
def test_damaged_source_is_written_again(child, warm, how):
    folders = kernel_folders(warm)
    damage(folders["generated"] + folders["launcher"], "*.py", how)
    check(child(warm), compiled=0, warned="damaged kernel source")
    check(child(warm), compiled=0)


def test_removed_files_are_no_damage(child, warm):
    folders = kernel_folders(warm)
    for folder in folders["generated"]:
        shutil.rmtree(folder)
    damage(folders["launcher"], "*/*.seal", remove)  # as if ended before sealing
    check(child(warm), compiled=2)
    check(child(warm), compiled=0)


# ------------------------------------------------------------------------------ where writing fails


def test_folder_that_cannot_be_written(child, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    for _ in range(2):
        answer = child(tmp_path / "file" / "cache")
        check(answer, compiled=KERNELS, warned="cannot write kernels to")
    assert "set NUMGRAD_CACHE to a folder you may write" in answer["warnings"][0][1]


def test_no_home_folder(child, tmp_path):
    program = "import os.path\nos.path.expanduser = lambda path: path\n" + PROGRAM
    answer = child("", program, HOME="", XDG_CACHE_HOME="")
    check(answer, compiled=KERNELS, warned="no home folder")
    assert not (REPOSITORY / "~").exists()


LIMITED = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
"""


@pytest.mark.parametrize("limit", [0, 1000, 4000], ids=lambda n: f"{n} bytes")
def test_files_that_cannot_be_written_whole(child, tmp_path, limit):
    # As on a full disk: a write fails, of the source, the index or the machine code.
    answer = child(tmp_path, LIMITED.format(limit=limit) + PROGRAM)
    check(answer, compiled=KERNELS, warned="cannot write kernels to")
    assert not list(tmp_path.rglob("*.tmp*"))
    check(child(tmp_path), compiled=KERNELS)


def test_full_disk_still_loads_what_is_there(child, cache):
    check(child(cache), compiled=2)  # a generated kernel is bound to its place
    shutil.rmtree(kernel_folders(cache)["generated"][0])
    program = FULL + PROGRAM
    check(child(cache, program), compiled=1, warned="No space left on device")


FULL = """
import errno, os
from numba.core.caching import IndexDataCacheFile
def full(self, *args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
IndexDataCacheFile._save_data = full
"""


def test_after_a_failed_write_nothing_is_compiled_twice(monkeypatch, tmp_path):
    asked = []

    def build(folder):
        asked.append(folder)
        return "compiled", 0

    monkeypatch.setattr(store, "stats", store.Stats())
    monkeypatch.setattr(store, "_unwritable", True)
    assert store._compile(build, tmp_path / "kernel", "a kernel") == "compiled"
    assert asked == [None] and store.stats.compiled == 1
