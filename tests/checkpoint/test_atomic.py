"""A file is replaced whole or not at all, whenever the process dies and whatever fails."""

import errno
import io
import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from numgrad.checkpoint import atomic, load, save
from numgrad.ops.creation import tensor

ROOT = pathlib.Path(__file__).parents[2]
LAYOUTS = ["x.safetensors", "x.pth"]
OLD, NEW = {"a": "old"}, {"a": tensor(np.arange(5000.0))}
HOST = atomic._host()


@pytest.fixture
def path(tmp_path):
    """A file that holds OLD, alone in its folder."""
    save(OLD, tmp_path / "x.pth")
    return tmp_path / "x.pth"


def whole_and_alone(path):
    """OLD is still there, and nothing beside it."""
    assert load(path) == OLD and os.listdir(path.parent) == [path.name]


@pytest.fixture(scope="module")
def crashes(tmp_path_factory):
    """The counts of each check of crashes.py, for both layouts."""
    program = [sys.executable, str(pathlib.Path(__file__).with_name("crashes.py"))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*program, str(tmp_path_factory.mktemp("crashes"))],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    counts = json.loads(done.stdout)
    for check, of_layouts in counts.items():
        print(check, *of_layouts, sep="\n  ")
        assert len(of_layouts) == len(LAYOUTS)
    return counts


def test_50_kills_at_random_moments(crashes):
    for counts in crashes["kills"]:
        assert counts["broken"] == 0 and counts["first"] + counts["second"] == 50
        assert counts["stale"] > 0  # else no kill hit a save
        assert counts["swept"] == counts["stale"] and counts["left"] == 0


def test_interrupts_at_random_moments(crashes):
    for counts in crashes["interrupts"]:
        assert counts == {"whole": 15, "left": 0}


def test_no_more_room_at_any_byte(crashes):
    """The system itself refuses to write on: at every 4 KiB, and at every byte of a small file."""
    for counts in crashes["limits"]:
        assert counts["tried"] > 200_000 // 4096 + 300
        assert counts["refused"] == counts["old"] == counts["tried"] and counts["left"] == 0


def test_four_processes_save_at_the_same_time(crashes):
    for counts in crashes["together"]:
        assert counts["failed"] == counts["left"] == 0


def test_what_may_not_be_written(crashes):
    for counts in crashes["permissions"]:
        texts = counts["texts"]
        assert (counts["old"], counts["new"], counts["left"]) == (1, 2, 0) and len(texts) == 3
        for name in (key for key in texts if key.startswith("folder")):
            assert "expected a folder that may be written" in texts[name]
        assert "expected a file that may be written" in texts["file"]


class Disk(io.FileIO):
    """A file on a disk that has room for some bytes more."""

    room = 0

    def write(self, data):
        room = min(type(self).room, memoryview(data).nbytes)
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        type(self).room -= room
        return super().write(memoryview(data).cast("B")[:room])


@pytest.mark.parametrize("name", LAYOUTS)
def test_full_disk_at_every_4_kib(name, tmp_path, monkeypatch):
    path = tmp_path / name
    save(NEW, path)
    assert path.read_bytes().startswith(b"PK") == name.endswith(".pth")
    size = path.stat().st_size
    save(OLD, path)
    monkeypatch.setattr(
        atomic, "open", lambda fd, mode: io.BufferedWriter(Disk(fd, "w")), raising=False
    )
    rooms = [*range(0, size, 4096), size - 1]
    for room in rooms:
        Disk.room = room
        with pytest.raises(OSError, match="No space left"):
            save(NEW, path)
        assert Disk.room == 0
        whole_and_alone(path)
    Disk.room = size
    save(NEW, path)
    assert load(path)["a"].shape == (5000,) and len(rooms) == 40_000 // 4096 + 2


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space"), KeyboardInterrupt(), None])
@pytest.mark.parametrize("step", ["open", "fchmod", "fsync", "replace"])
def test_every_step_may_fail(step, error, path, monkeypatch):
    """Whatever a step raises, the old file is there alone; a kill may leave a temporary."""

    def fails(*args):
        if error is not None:
            raise error
        os.kill(os.getpid(), signal.SIGKILL)

    if error is None:
        pid = os.fork()
        if not pid:
            setattr(os, step, fails)
            save(NEW, path)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        assert load(path) == OLD and len(os.listdir(path.parent)) == 1 + (step != "open")
        save(OLD, path)
    elif step == "fchmod" and isinstance(error, OSError):  # the old permissions are not essential
        monkeypatch.setattr(os, step, fails)
        save(OLD, path)
    else:
        monkeypatch.setattr(os, step, fails)
        with pytest.raises(type(error)):
            save(NEW, path)
    whole_and_alone(path)
    assert not atomic._living


def test_folder_that_cannot_be_flushed(path, monkeypatch):
    """Where the file system has no such thing it is no error; a failing disk is."""
    number = errno.EINVAL
    real = os.fsync

    def fsync(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    save({"a": 1}, path)
    assert load(path) == {"a": 1}
    number = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        save({"a": 2}, path)
    assert load(path) == {"a": 2} and os.listdir(path.parent) == [path.name]


def test_what_cannot_be_saved_leaves_the_old_file(path):
    with pytest.raises(TypeError):
        save({"a": tensor([1.0]), "b": object()}, path)
    whole_and_alone(path)


class Slow(io.RawIOBase):
    """A file without a buffer that takes seven bytes at a time."""

    def __init__(self, name, takes=7):
        self.name, self.takes, self.data = name, takes, b""

    def write(self, data):
        if self.takes is None:
            return None
        part = bytes(memoryview(data).cast("B")[: self.takes])
        self.data += part
        return len(part)


@pytest.mark.parametrize("name", [*LAYOUTS, "x.npz"])
def test_files_that_take_a_part_at_a_time(name):
    file = Slow(name)
    save(NEW, file)
    assert np.array_equal(load(io.BytesIO(file.data))["a"].numpy(), NEW["a"].numpy())
    for takes in (0, None):  # None: as of a pipe that does not wait for its reader
        with pytest.raises(OSError, match="got none taken"):
            save(NEW, Slow(name, takes))


# ------------------------------------------------------------------------------- names and places


def test_replaces_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "x.safetensors"
    save({"a": 1}, path)
    path.chmod(0o640)
    save({"a": 2}, str(path))
    assert load(path) == {"a": 2} and os.listdir(tmp_path) == ["x.safetensors"]
    assert path.stat().st_mode & 0o777 == 0o640
    save({"a": 3}, os.fsencode(path))
    assert load(path) == {"a": 3} and os.listdir(tmp_path) == ["x.safetensors"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_umask(umask, tmp_path):
    before = os.umask(umask)
    try:
        save(1, tmp_path / "x")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_private_file_is_never_open_to_others(path, monkeypatch):
    path.chmod(0o600)
    modes = []
    real = os.open

    def opened(name, flags, mode=0o777):
        descriptor = real(name, flags, mode)
        modes.append(os.fstat(descriptor).st_mode & 0o777)
        return descriptor

    monkeypatch.setattr(os, "open", opened)
    save(OLD, path)
    assert modes[0] == 0o600 and path.stat().st_mode & 0o777 == 0o600


def test_relative_paths_and_links(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(1, "plain")
    os.symlink("plain", "link")
    save(2, "link")
    assert os.path.islink("link") and load("plain") == 2
    os.symlink("later", "dangling")
    save(3, "dangling")
    assert os.path.islink("dangling") and load("later") == 3
    os.symlink("loop", "loop")
    with pytest.raises(OSError, match="loop"):
        save(4, "loop")
    os.link("plain", "hard")
    save(5, "plain")
    assert load("hard") == 2 and load("plain") == 5


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError, match="save: expected a regular file for path") as caught:
        save(1, tmp_path)
    assert caught.value.filename == str(tmp_path)
    with pytest.raises(IsADirectoryError, match="add a file name"):
        save(1, f"{tmp_path}/none/")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a device or a pipe"):
        save(1, tmp_path / "pipe")
    with pytest.raises(FileNotFoundError, match="does not exist; make it"):
        save(1, tmp_path / "none" / "x")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        save(1, tmp_path / "file" / "x")
    assert sorted(os.listdir(tmp_path)) == ["file", "pipe"]


@pytest.mark.parametrize("name", ["x" * 255, "重" * 85, "x" * 100, "é" * 127, " ", "-", "a\nb"])
def test_any_name_that_the_system_takes(name, tmp_path):
    path = tmp_path / name
    save(1, path)
    save(2, path)
    assert load(path) == 2 and os.listdir(tmp_path) == [name]


def test_too_long_a_name(tmp_path):
    with pytest.raises(OSError, match="too long") as caught:
        save(1, tmp_path / ("x" * 256))
    assert caught.value.errno == errno.ENAMETOOLONG and os.listdir(tmp_path) == []


# ------------------------------------------------------------------------------------- sweeping


def test_sweep_leaves_the_living_alone(tmp_path):
    keep = [
        f".x.numgrad-{HOST}-{os.getppid()}-0.tmp",  # alive
        ".x.numgrad-abcdef-1-0.tmp",  # another machine
        f".x.numgrad-{HOST}-a-0.tmp",
        f".x.numgrad-{HOST}-0-0.tmp",  # no process
        f".x.numgrad-{HOST}-{10**30}-0.tmp",  # no process id
        f".x.numgrad-{HOST}-999999999-0.tmp.txt",
        f"x.numgrad-{HOST}-999999999-0.tmp",
        "x",
    ]
    gone = [
        f".x.numgrad-{HOST}-999999999-0.tmp",
        f".another.file\n.numgrad-{HOST}-999999999-12.tmp",
        f".x.numgrad-{HOST}-{os.getpid()}-{10**9}.tmp",  # of a process that had our id
    ]
    for name in [*keep, *gone]:
        (tmp_path / name).write_bytes(b"")
    atomic.sweep(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == sorted(keep)
    atomic.sweep(str(tmp_path / "none"))


def test_two_saves_of_one_process_at_a_time(tmp_path):
    """As of two threads: the inner save does not sweep the outer one's temporary away."""
    with atomic.replacing(tmp_path / "x") as outer:
        outer.write(b"outer")
        save({"a": 1}, tmp_path / "x")
        assert load(tmp_path / "x") == {"a": 1} and len(os.listdir(tmp_path)) == 2
    assert (tmp_path / "x").read_bytes() == b"outer" and os.listdir(tmp_path) == ["x"]


def test_a_temporary_that_cannot_be_removed(tmp_path, monkeypatch):
    """A leftover under the name that comes next, as after a restart in a container."""
    number = next(atomic._count) + 1
    stale = tmp_path / f".x.numgrad-{HOST}-{os.getpid()}-{number}.tmp"
    stale.mkdir()
    save({"a": 1}, tmp_path / "x")
    assert load(tmp_path / "x") == {"a": 1} and sorted(os.listdir(tmp_path)) == [stale.name, "x"]
