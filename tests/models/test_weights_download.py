"""Downloads of pretrained weights: what fails, what is left behind, who else downloads."""

import io
import os
import re
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import pytest

from numgrad import models
from numgrad.models import download, weights
from numgrad.models.download import DownloadError
from tests.models.published import ROOT, put, same


@pytest.mark.parametrize("manner", ["whole", "in_chunks"])
def test_download(manner, home, server, made, capsys):
    file, data = made[0]
    server.manner = manner
    assert same(models.squeezenet1_1(pretrained=True), 1)
    folder = home / ".cache/numgrad/weights"
    assert os.listdir(folder) == [file] and (folder / file).read_bytes() == data
    assert server.requests == [f"/models/{file}"]
    said = capsys.readouterr()
    assert said.out == "" and f"/models/{file}" in said.err and str(folder) in said.err
    lines = said.err.splitlines()
    assert len(lines) == (5 if manner == "whole" else 1)
    assert all(line.startswith("numgrad: ") for line in lines)
    assert manner == "in_chunks" or lines[-1].endswith("100 %")

    assert same(models.squeezenet1_1(pretrained=True), 1)  # and now it is here
    assert len(server.requests) == 1 and capsys.readouterr().err == ""


def test_download_in_silence(home, server, made, monkeypatch, capsys):
    monkeypatch.setenv("NUMGRAD_WEIGHTS", str(home / "a" / "b"))
    assert same(models.squeezenet1_1(True, False), 1)
    assert os.listdir(home / "a" / "b") == [made[0][0]]
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("installed", [False, True])
def test_download_on_a_terminal(installed, home, server, monkeypatch):
    """With rich one bar, without it lines."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    bars = []
    if not installed:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    else:
        progress = pytest.importorskip("rich.progress")
        real = progress.Progress.update
        monkeypatch.setattr(
            progress.Progress,
            "update",
            lambda self, *args, **options: (bars.append(options), real(self, *args, **options)),
        )
    assert same(models.squeezenet1_1(pretrained=True), 1)
    assert "numgrad: downloading http" in screen.getvalue()
    assert ("100 %" in screen.getvalue()) == (not installed)
    if installed:
        assert bars[-1] == {"completed": len(server.data)}
        assert "MB" in screen.getvalue() or "MiB" in screen.getvalue()


FAILURES = {
    "missing": r"HTTP status 404 Not \[31m Found;",
    "broken": r"HTTP status 500",
    "redirected_for_ever": r"HTTP status 302 .*infinite loop",
    "truncated": r"\d+ of \d+ bytes",
    "truncated_chunks": r"[1-9]\d{6} bytes and no more, though others were to come",
    "half": r"another file: [1-9]\d{6} bytes, whose SHA-256 begins with [0-9a-f]{8};",
    "wrong": r"another file: [1-9]\d{6} bytes, whose SHA-256 begins with [0-9a-f]{8};",
    "a_page": r"another file",
    "empty": r"another file",
    "endless": r"more than 9000000 bytes and no end",
    "enormous": r"1099511627776 bytes, more than any of these files has",
    "no_http": r"",
    "silent": r"timed out",
    "stuck": r"timed out",
    "slow": r"\d+ bytes in the last \d+ s",
}


@pytest.mark.parametrize("manner", FAILURES)
def test_failed_download(manner, home, server, made, monkeypatch):
    file = made[0][0]
    server.manner = manner
    monkeypatch.setattr(download, "MAX_BYTES", 9_000_000)
    if manner in ("silent", "stuck"):
        monkeypatch.setattr(download, "TIMEOUT", 0.2)
    if manner == "slow":
        monkeypatch.setattr(download, "SLOW_SECONDS", 0.1)
    folder = home / ".cache/numgrad/weights"
    with pytest.raises(DownloadError) as caught:
        models.squeezenet1_1(pretrained=True, progress=False)
    text = str(caught.value)
    assert re.search(rf"squeezenet1_1: expected {file} from http.*, got {FAILURES[manner]}", text)
    assert text.endswith(f"; get that file elsewhere and put it into {folder}")
    assert "\n" not in text and isinstance(caught.value, OSError)
    # Where nothing came, not even the folder was made.
    came = manner not in ("missing", "broken", "redirected_for_ever", "no_http", "silent", "ftp")
    assert os.listdir(home / ".cache") == ["numgrad"] if came else not (home / ".cache").exists()
    assert not came or os.listdir(folder) == []
    assert len(server.requests) == (5 if manner == "redirected_for_ever" else 1)
    # Nothing stands in the way of the next try.
    server.manner = "whole"
    assert same(models.squeezenet1_1(pretrained=True, progress=False), 1)


def test_no_network(home, made):
    with pytest.raises(DownloadError, match=rf"{made[0][0]} from .*refused.* and put it into "):
        models.squeezenet1_1(pretrained=True, progress=False)
    assert not (home / ".cache").exists()


def test_no_home(home, monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(DownloadError, match=r"expected a home folder .* set NUMGRAD_WEIGHTS"):
        models.squeezenet1_1(pretrained=True)


def test_a_folder_of_nobody(home, monkeypatch):
    monkeypatch.chdir(home)
    monkeypatch.setenv("NUMGRAD_WEIGHTS", "~nobodyhere/weights")
    said = r"expected a home folder for its weights, got none for ~nobodyhere; set NUMGRAD_WEIGHTS"
    with pytest.raises(DownloadError, match=said):
        models.squeezenet1_1(pretrained=True)
    assert os.listdir(home) == []


def test_passwords_are_not_told(home, monkeypatch):
    monkeypatch.setenv("NUMGRAD_WEIGHTS_URL", "http://me:secret@127.0.0.1:1/models")
    said = r"from http://127\.0\.0\.1:1/.*, got an address with a user's name, which is not"
    with pytest.raises(DownloadError, match=said) as caught:
        models.squeezenet1_1(pretrained=True)
    assert "secret" not in str(caught.value) and "me:" not in str(caught.value)


def test_an_answer_that_sends_elsewhere(home, server, monkeypatch):
    """urllib would follow to FTP."""

    class Answer(io.BytesIO):
        url, length = "ftp://127.0.0.1/file", None

    monkeypatch.setattr(urllib.request, "urlopen", lambda *args, **options: Answer())
    with pytest.raises(DownloadError, match="an answer that sends on to ftp://"):
        models.squeezenet1_1(pretrained=True)


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_something_else_in_its_place(kind, home, server, made):
    path = home / ".cache/numgrad/weights" / made[0][0]
    path.parent.mkdir(parents=True)
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    said = rf"something in its place that is no file, {path}; get that file elsewhere"
    with pytest.raises(DownloadError, match=said):
        models.squeezenet1_1(pretrained=True, progress=False)


@pytest.mark.parametrize("closed", ["folder", "file"])
def test_what_is_closed_to_us_is_passed_over(closed, home, made, monkeypatch):
    put(home / ".cache/torch/hub/checkpoints", *made[0])
    put(home / ".torch/models", *made[1])
    shut = str(home / ".cache/torch/hub/checkpoints")
    real = {"stat": os.stat, "access": os.access}

    def stat(path, *args, **options):
        if closed == "folder" and str(path).startswith(shut + "/"):
            raise PermissionError(13, "Permission denied", path)
        return real["stat"](path, *args, **options)

    def access(path, *args, **options):
        return not str(path).startswith(shut) and real["access"](path, *args, **options)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "access", access)
    assert same(models.squeezenet1_1(pretrained=True), 2)


class Deaf(io.StringIO):
    def write(self, text):
        raise OSError(28, "No space left on device")


def test_a_stderr_that_takes_nothing(home, server, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Deaf())
    assert same(models.squeezenet1_1(pretrained=True), 1)


def test_an_address_that_is_none(home, monkeypatch):
    for address in ("ftp://host/models", "file:///tmp", "nonsense"):
        monkeypatch.setenv("NUMGRAD_WEIGHTS_URL", address)
        with pytest.raises(DownloadError, match=r"got an address that does not begin with https"):
            models.squeezenet1_1(pretrained=True)
    monkeypatch.setenv("NUMGRAD_WEIGHTS_URL", "http://ho st:port")
    with pytest.raises(DownloadError):
        models.squeezenet1_1(pretrained=True, progress=False)


def test_a_folder_that_cannot_be_made(home, server, monkeypatch):
    (home / "taken").write_text("a file")
    monkeypatch.setenv("NUMGRAD_WEIGHTS", str(home / "taken"))
    with pytest.raises(DownloadError, match=r"File exists.*put it into .*taken"):
        models.squeezenet1_1(pretrained=True)
    assert os.listdir(home) == ["taken"]


@pytest.mark.parametrize("stop", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_stopped_in_the_middle(stop, home, server, monkeypatch):
    """A full disk, or Ctrl-C: the part that was written is gone."""
    real = download.replacing

    class File:
        def __init__(self, file):
            self.file = file

        def write(self, block):
            if self.file.tell() > 1 << 20:
                self.file.flush()
                assert len(os.listdir(folder)) == 1  # the temporary
                raise stop
            return self.file.write(block)

    @contextmanager
    def replacing(path):
        with real(path) as file:
            yield File(file)

    folder = home / ".cache/numgrad/weights"
    monkeypatch.setattr(download, "replacing", replacing)
    wanted = (DownloadError, "No space left") if isinstance(stop, OSError) else (type(stop), None)
    with pytest.raises(wanted[0], match=wanted[1]):
        models.squeezenet1_1(pretrained=True, progress=False)
    assert os.listdir(folder) == []


CHILD = """
import sys
from pathlib import Path
from numgrad.models.download import download
url, path, digest = sys.argv[1:]
download(url, Path(path), digest, "child", False)
assert Path(path).stat().st_size == int(sys.stdin.read())
"""


def child(path):
    """A process that downloads to ``path``."""
    address = os.environ["NUMGRAD_WEIGHTS_URL"] + path.name
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, address, str(path), weights._digest(path.name)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_process_killed_in_the_middle(home, server, made):
    """What it leaves is no weights, and is gone after the next download."""
    file = made[0][0]
    server.manner = "stuck"
    folder = home / ".cache/numgrad/weights"
    with child(folder / file) as process:
        while not server.sent.wait(0.05) or not (folder.is_dir() and os.listdir(folder)):
            assert process.poll() is None, process.communicate()[1]
        process.kill()
    (left,) = os.listdir(folder)
    assert left.startswith(".") and left.endswith(".tmp")
    server.manner = "whole"
    assert same(models.squeezenet1_1(pretrained=True, progress=False), 1)
    assert os.listdir(folder) == [file]


def test_processes_download_at_once(home, server, made):
    """Three, whose answers begin at the same moment: all get it, and one file is left."""
    file, data = made[0]
    server.manner = "together"
    path = home / "own" / file
    children = [child(path) for _ in range(3)]
    for process in children:
        _, err = process.communicate(str(len(data)), timeout=120)
        assert process.returncode == 0, err
    assert len(server.requests) == 3
    assert os.listdir(path.parent) == [file] and path.read_bytes() == data
