"""Folders of kernels: warm, copied, of one test alone; and a process to run programs in."""

import json
import shutil

import pytest

from tests.kernels.stores import KERNELS, PROGRAM, REPOSITORY, SERVER, check, command, framed, run


@pytest.fixture(scope="module")
def child():
    """``child(cache, program)`` is ``run`` in a child of a process that imported numgrad before."""
    with command(SERVER, REPOSITORY, {}) as server:

        def run_child(cache, program=PROGRAM, **environment):
            environment = {"NUMGRAD_CACHE": str(cache), **environment}
            print(json.dumps([environment, framed(program)]), file=server.stdin, flush=True)
            answer = server.stdout.readline()
            assert answer, server.stderr.read()
            return json.loads(answer)

        yield run_child
        server.stdin.close()
        server.wait(timeout=60)


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A kernel folder in which PROGRAM has run."""
    cache = tmp_path_factory.mktemp("warm")
    check(run(cache), compiled=KERNELS)
    return cache


@pytest.fixture
def cache(warm, tmp_path):
    """A copy of the warm folder at another place; what depends on the place is compiled again."""
    shutil.copytree(warm, tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMGRAD_CACHE", str(tmp_path))
    return tmp_path
