"""Saves that die, fail or meet: run as ``python crashes.py FOLDER``, prints counts as JSON.

A process of its own, since it forks, kills its children and limits what it may write. The children
are forked after numgrad was imported, so that each costs milliseconds.
"""

import errno
import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import numgrad
from numgrad.checkpoint import load, save

LAYOUTS = ("model.safetensors", "model.pth")
CONTENTS = [
    {"step": step, "model": {"w": np.full(length, step, np.float32)}, "text": "x" * step}
    for step, length in ((1, 60_000), (2, 75_000), (3, 9), (4, 50_000))
]
STATES = [
    {**c, "model": {"w": numgrad.tensor(c["model"]["w"]), "b": numgrad.tensor([0.5])}}
    for c in CONTENTS
]


def which(path: str) -> int:
    """The step of the contents that are in a file, whole; anything else raises."""
    state = load(path)
    expected = CONTENTS[state["step"] - 1]
    assert list(state) == list(expected) and state["text"] == expected["text"]
    assert np.array_equal(state["model"]["w"].numpy(), expected["model"]["w"])
    assert state["model"]["b"].tolist() == [0.5]
    return state["step"]


def child(work: Callable[[], Any]) -> int:
    """Fork a process that does some work and ends with 0, or with 1 if it raised an error."""
    pid = os.fork()
    if pid:
        return pid
    code = 0
    try:
        work()
    except KeyboardInterrupt:
        pass
    except BaseException:
        traceback.print_exc()
        code = 1
    # The exception is gone by now, and with it the frames that it may have left half-way.
    os._exit(code)


def struck(work: Callable[[], Any], number: int, rng: random.Random) -> int:
    """The exit code of a child that works until it gets a signal, soon after it began."""
    ready, started = os.pipe()

    def told() -> None:
        os.write(started, b"1")
        work()

    pid = child(told)
    os.read(ready, 1)
    os.close(ready)
    os.close(started)
    time.sleep(rng.uniform(0.0005, 0.02))
    for _ in range(20):
        os.kill(pid, number)
        for _ in range(200):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        # Python ignores an interrupt inside of a __del__: the child works on, and gets another.
    os.kill(pid, signal.SIGKILL)
    wait(pid)
    raise AssertionError(f"20 signals {number} did not end a process")


def wait(pid: int) -> int:
    """The exit code of a child, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def temporaries(folder: str) -> list[str]:
    return [name for name in os.listdir(folder) if name not in LAYOUTS]


def kills(path: str) -> dict[str, int]:
    """50 processes that save two contents in turn are killed, each at a random moment."""
    folder = os.path.dirname(path)
    counts: Counter[str] = Counter(first=0, second=0, broken=0, stale=0, swept=0)
    rng = random.Random(1)
    save(STATES[0], path)

    def work() -> None:
        while True:
            for state in STATES[:2]:
                save(state, path)

    for _ in range(50):
        left = temporaries(folder)
        assert struck(work, signal.SIGKILL, rng) == -signal.SIGKILL
        try:
            counts["first" if which(path) == 1 else "second"] += 1
        except Exception:
            traceback.print_exc()
            counts["broken"] += 1
        now = temporaries(folder)
        assert len(now) <= 2, now  # one of this child, and one that it had no time to sweep away
        counts["stale"] += len(set(now) - set(left))
        counts["swept"] += len(set(left) - set(now))
    before = len(temporaries(folder))
    save(STATES[0], path)
    counts["swept"] += before - len(temporaries(folder))
    counts["left"] = len(temporaries(folder))
    return counts


def interrupts(path: str) -> dict[str, int]:
    """15 processes that save get SIGINT, each at a random moment: not even a temporary is left."""
    counts: Counter[str] = Counter(whole=0, left=0)
    rng = random.Random(2)
    save(STATES[0], path)

    def work() -> None:
        while True:
            for state in STATES[:2]:
                save(state, path)

    for _ in range(15):
        assert struck(work, signal.SIGINT, rng) == 0
        counts["whole"] += which(path) in (1, 2)
        counts["left"] += len(temporaries(os.path.dirname(path)))
    return counts


def limits(path: str) -> dict[str, int]:
    """Files may have no more than so many bytes: every 4 KiB, and every byte of a small file."""
    counts: Counter[str] = Counter(refused=0, old=0, left=0)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    for state, step in ((STATES[3], 4096), (STATES[2], 1)):
        save(state, path)
        size = os.path.getsize(path)
        save(STATES[0], path)
        for limit in range(0, size, step):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            try:
                save(state, path)
            except OSError as error:
                counts["refused"] += error.errno == errno.EFBIG
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            counts["tried"] += 1
            counts["old"] += os.path.getsize(path) > 200_000 and which(path) == 1
            counts["left"] += len(temporaries(os.path.dirname(path)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        save(state, path)  # just enough
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert which(path) == state["step"]
    return counts


def together(path: str) -> dict[str, int]:
    """Four processes save to one path at the same time while this one loads it."""
    counts: Counter[str] = Counter(failed=0)
    save(STATES[0], path)

    def work(state: Any) -> Callable[[], None]:
        return lambda: [save(state, path) for _ in range(15)] and None

    running = {child(work(state)) for state in STATES}
    while running:
        which(path)  # raises if it is not whole
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            running.remove(pid)
            counts["failed"] += status != 0
    counts["left"] = len(temporaries(os.path.dirname(path)))
    return counts


def permissions(path: str) -> dict[str, Any]:
    """What a user may not write is refused, with an old file kept; as nobody, not as root."""
    import tempfile

    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, os.path.basename(path))
        save(STATES[0], path)
        texts = {}
        os.chmod(folder, 0o500)
        for name in (path, os.path.join(folder, "new")):
            try:
                save(STATES[1], name)
            except PermissionError as error:
                texts[f"folder, {os.path.basename(name)}"] = error.strerror
        os.chmod(folder, 0o700)
        os.chmod(path, 0o400)
        try:
            save(STATES[1], path)
        except PermissionError as error:
            texts["file"] = error.strerror
        os.chmod(path, 0o600)
        old = which(path)
        left = len(temporaries(folder))
        os.chmod(folder, 0o300)  # may be written but not listed
        save(STATES[1], path)
        return {"texts": texts, "old": old, "new": which(path), "left": left}


if __name__ == "__main__":
    # Whoever runs the tests in the background may have told all children to ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    paths = []
    for i, layout in enumerate(LAYOUTS):
        paths.append(Path(sys.argv[1]) / str(i) / layout)
        paths[i].parent.mkdir()
    checks = (kills, interrupts, limits, together, permissions)  # the last gives up being root
    print(json.dumps({check.__name__: [check(str(path)) for path in paths] for check in checks}))
