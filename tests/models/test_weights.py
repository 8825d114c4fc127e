"""Pretrained weights: where they are found, downloads that fail, what is refused.

The published files are stood in for by small ones of random weights, the server by one of ours.
"""

import functools
import hashlib
import http.server
import io
import os
import re
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import numgrad as ng
from numgrad import models
from numgrad.checkpoint import CheckpointError
from numgrad.models import download, weights
from numgrad.models.download import DownloadError
from numgrad.models.weights import V1, V2

NAME = "squeezenet1_1"
ROOT = Path(__file__).parents[2]


@functools.cache
def state_of(seed, num_classes=1000):
    ng.manual_seed(seed)
    return models.squeezenet1_1(num_classes=num_classes).state_dict()


def published(tmp_path, seed, text=NAME):
    """A file's name and bytes, as a server has them: the state dict of a seed."""
    path = tmp_path / "made.safetensors"
    ng.save(state_of(seed), path)
    data = path.read_bytes()
    return f"{text}-{hashlib.sha256(data).hexdigest()[:8]}.pth", data


def same(model, seed):
    expected = state_of(seed)
    state = model.state_dict()
    assert list(state) == list(expected)
    return all((state[key] == expected[key]).all() for key in state)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Today's file, the older one and the second weights, of seeds 1, 2 and 3."""
    folder = tmp_path_factory.mktemp("made")
    return [published(folder, seed) for seed in (1, 2, 3)]


@pytest.fixture
def home(tmp_path, monkeypatch, made):
    """A user with an empty home, no network, and a table that has the made files."""
    for name in ("TORCH_HOME", "XDG_CACHE_HOME", "NUMGRAD_WEIGHTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("NUMGRAD_WEIGHTS_URL", "http://127.0.0.1:1/models")  # nobody listens there
    kinds = {V1: (made[0][0], made[1][0]), V2: (made[2][0],)}
    monkeypatch.setitem(weights.PUBLISHED, NAME, kinds)
    return tmp_path


def put(folder, file, data):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(data)
    return folder / file


# ------------------------------------------------------------------------------------- the server


class Server(http.server.ThreadingHTTPServer):
    """Serves one file, in the manner that the test asks for."""

    daemon_threads = True
    block_on_close = False
    data = b""
    manner = "whole"

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests, self.done, self.sent = [], threading.Event(), threading.Event()
        self.together = threading.Barrier(3)

    def handle_error(self, request, client_address):
        pass  # clients that hang up are what is tested


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def head(self, length, status=200, reason=None):
        self.send_response(status, reason)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        self.end_headers()

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def do_GET(self):
        self.close_connection = True
        server, data = self.server, self.server.data
        server.requests.append(self.path)
        getattr(self, server.manner)(server, data)

    def whole(self, server, data):
        self.head(len(data))
        self.wfile.write(data)

    def in_chunks(self, server, data):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for at in range(0, len(data), 1 << 20):
            self.chunk(data[at : at + (1 << 20)])
        self.chunk(b"")

    def together(self, server, data):
        server.together.wait(60)
        self.whole(server, data)

    def missing(self, server, data):
        self.head(9, 404, "Not \x1b[31m Found")
        self.wfile.write(b"not here\n")

    def broken(self, server, data):
        self.head(0, 500)

    def redirected_for_ever(self, server, data):
        self.send_response(302)
        self.send_header("Location", self.path)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def truncated(self, server, data):
        self.head(len(data))
        self.wfile.write(data[: len(data) // 2])

    def truncated_chunks(self, server, data):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.chunk(data[: len(data) // 2])

    def half(self, server, data):
        self.head(None)
        self.wfile.write(data[: len(data) // 2])

    def wrong(self, server, data):
        self.head(len(data))
        self.wfile.write(data[:-1] + bytes([data[-1] ^ 1]))

    def a_page(self, server, data):
        self.head(34)
        self.wfile.write(b"<html>Please log in here.</html>\n\n")

    def empty(self, server, data):
        self.head(0)

    def endless(self, server, data):
        self.head(None)
        while not server.done.is_set():
            self.wfile.write(data)

    def enormous(self, server, data):
        self.head(1 << 40)

    def no_http(self, server, data):
        self.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")

    def silent(self, server, data):
        server.done.wait(60)

    def stuck(self, server, data):
        self.head(len(data))
        self.wfile.write(data[:1000])
        server.sent.set()
        server.done.wait(60)

    def slow(self, server, data):
        self.head(len(data))
        while not server.done.wait(0.02):
            self.wfile.write(b"x")


@pytest.fixture
def server(home, made, monkeypatch):
    with Server() as server:
        server.data = made[0][1]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        host, port = server.server_address
        monkeypatch.setenv("NUMGRAD_WEIGHTS_URL", f"http://{host}:{port}/models/")
        yield server
        server.done.set()
        server.shutdown()
        thread.join()


# ------------------------------------------------------------------------------------- the folders


FOLDERS = {
    "NUMGRAD_WEIGHTS": ("own", {"NUMGRAD_WEIGHTS": "own"}),
    "numgrad's": (".cache/numgrad/weights", {}),
    "numgrad's, XDG": ("xdg/numgrad/weights", {"XDG_CACHE_HOME": "xdg"}),
    "TORCH_HOME": ("torch/hub/checkpoints", {"TORCH_HOME": "torch"}),
    "TORCH_HOME, 1.1": ("torch/checkpoints", {"TORCH_HOME": "torch"}),
    "XDG": ("xdg/torch/hub/checkpoints", {"XDG_CACHE_HOME": "xdg"}),
    "today's": (".cache/torch/hub/checkpoints", {}),
    "1.1": (".cache/torch/checkpoints", {}),
    "0.4": (".torch/models", {}),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_found(case, home, made, monkeypatch):
    below, variables = FOLDERS[case]
    for name, value in variables.items():
        monkeypatch.setenv(name, str(home / value))
    put(home / below, *made[0])
    assert same(models.squeezenet1_1(pretrained=True), 1)
    if case in ("NUMGRAD_WEIGHTS", "TORCH_HOME"):
        monkeypatch.setenv(case, f"~/{variables[case]}")
        assert same(models.squeezenet1_1(True, False), 1)


def test_the_older_file_will_do(home, made):
    put(home / ".torch/models", *made[1])
    assert same(models.squeezenet1_1(pretrained=True), 2)
    put(home / ".torch/models", *made[0])
    assert same(models.squeezenet1_1(pretrained=True), 1)  # but today's is better


def test_names_of_weights(home, made):
    for file, data in made:
        put(home / ".torch/models", file, data)
    for name, seed in ((V1, 1), (V2, 3), ("DEFAULT", 3)):
        assert same(models.squeezenet1_1(weights=name), seed)
        assert same(models.squeezenet1_1(weights=f"SqueezeNet1_1_Weights.{name}"), seed)
    assert same(models.squeezenet1_1(pretrained=True, weights=V2), 3)


def test_a_damaged_file_is_not_loaded(home, server, made):
    file, data = made[0]
    for wrong in (data[:-1] + bytes([data[-1] ^ 1]), data[:-1], data + b"\0", b""):
        path = put(home / ".torch/models", file, wrong)
        with pytest.raises(CheckpointError, match=r"damaged; remove it and try again") as caught:
            models.squeezenet1_1(pretrained=True)
        assert caught.value.path == str(path) and path.read_bytes() == wrong
        # The name promises the same to who passes the path.
        with pytest.raises(CheckpointError, match=r"damaged"):
            models.squeezenet1_1(weights=path)
    assert not server.requests


def test_the_table():
    """Every network is there, and every name is one of torchvision's."""
    assert models.names() == list(weights.PUBLISHED)
    every = [f for kinds in weights.PUBLISHED.values() for files in kinds.values() for f in files]
    assert len(set(every)) == len(every) == 31
    for name, kinds in weights.PUBLISHED.items():
        start = "alexnet-owt" if name == "alexnet" else name
        assert callable(getattr(models, name))
        assert list(kinds) in ([V1], [V1, V2])
        assert (V2 in kinds) == (name in ("resnet50", "resnet101", "resnet152", "mobilenet_v2"))
        for file in (file for files in kinds.values() for file in files):
            assert re.fullmatch(rf"{start}-[0-9a-f]{{8}}\.pth", file)


# ------------------------------------------------------------------------------------- downloading


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


# ------------------------------------------------------------------------------ files of the user's


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A file of the state dict of seed 4."""
    path = tmp_path_factory.mktemp("tuned") / "tuned.safetensors"
    ng.save(state_of(4), path)
    return path


def test_weights_of_a_path(tuned):
    assert same(models.squeezenet1_1(weights=tuned), 4)
    assert same(models.squeezenet1_1(False, True, weights=str(tuned)), 4)
    assert not same(models.squeezenet1_1(), 4)
    assert same(models.squeezenet1_1(pretrained=True, weights=tuned), 4)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("state_dict", "checkpoint.pth"),
        ("model", "checkpoint.safetensors"),
        ("model_state_dict", "checkpoint.pth.tar"),
        ("net", "checkpoint.t7"),
    ],
)
def test_training_checkpoints(key, name, tmp_path):
    state = state_of(5)
    ng.save({"epoch": 3, key: dict(state), "optimizer": {"lr": 0.1}}, tmp_path / name)
    assert same(models.squeezenet1_1(weights=tmp_path / name), 5)


def test_a_prefix_and_two_wrappers(tmp_path):
    state = {f"module.{key}": value for key, value in state_of(6).items()}
    ng.save({"model": {"state_dict": state}}, tmp_path / "parallel.pth")
    with pytest.warns(UserWarning, match="module"):
        assert same(models.squeezenet1_1(weights=tmp_path / "parallel.pth"), 6)


def test_a_wrapper_with_another_name(tmp_path):
    ng.save({"ema": dict(state_of(5)), "epoch": 3}, tmp_path / "ema.pth")
    with pytest.raises(CheckpointError, match=r"no state dict of squeezenet1_1, .* under 'ema'"):
        models.squeezenet1_1(weights=tmp_path / "ema.pth")


def test_another_network(tmp_path, tuned):
    for name in ("squeezenet1_0", "lenet"):
        path = tmp_path / f"{name}.pth"
        ng.save(getattr(models, name)().state_dict(), path)
        with pytest.raises(CheckpointError) as caught:
            models.squeezenet1_1(weights=path)
        assert caught.value.path == str(path) and str(path) in str(caught.value)
        assert re.search(
            r"file is of another network than squeezenet1_1: \d+ of 52 entries missing \('",
            str(caught.value),
        )
        assert "\n" not in str(caught.value)


def test_a_file_that_does_not_fit_changes_nothing(tmp_path):
    """Half of the right names and one shape that is wrong: none is copied."""
    state = dict(list(state_of(7).items())[:20])
    state["features.0.weight"] = ng.zeros(1, 2, 3, 4)
    ng.save(state, tmp_path / "half.pth")
    ng.manual_seed(8)
    model = models.squeezenet1_1()
    with pytest.raises(CheckpointError, match=r"32 of 52 entries missing \(.*, 1 of another shape"):
        weights.pretrained_network(NAME, lambda: model, {}, False, True, tmp_path / "half.pth")
    assert same(model, 8)


def test_classes(tmp_path, home, made):
    for prefix in ("", "module."):
        state = {prefix + key: value for key, value in state_of(9, num_classes=2).items()}
        ng.save(state, tmp_path / "two.pth")
        if prefix:
            with pytest.warns(UserWarning, match="module"), pytest.raises(CheckpointError) as found:
                models.squeezenet1_1(weights=tmp_path / "two.pth")
        else:
            with pytest.raises(CheckpointError) as found:
                models.squeezenet1_1(weights=tmp_path / "two.pth")
            assert models.squeezenet1_1(weights=tmp_path / "two.pth", num_classes=2)
        assert "the file has 2 classes, num_classes of squeezenet1_1 is 1000;" in str(found.value)
        assert "pass num_classes=2 and then call models.replace_head(model, 1000)" in str(
            found.value
        )
    # Of published weights it is said before anything is downloaded.
    for asked in ({"pretrained": True}, {"weights": "DEFAULT"}):
        with pytest.raises(ValueError, match=r"for num_classes, got 2; .*replace_head\(model, 2\)"):
            models.squeezenet1_1(num_classes=2, **asked)
    assert not (home / ".cache").exists()
    put(home / ".torch/models", *made[0])
    assert same(models.squeezenet1_1(pretrained=True, num_classes=1000), 1)


def test_what_is_no_state_dict(tmp_path):
    for content in ([ng.ones(2)], ng.ones(2), 3):
        ng.save(content, tmp_path / "list.pth")
        with pytest.raises(CheckpointError, match=r"expected a state dict, got .*; save model"):
            models.squeezenet1_1(weights=tmp_path / "list.pth")
    (tmp_path / "page.pth").write_text("<html></html>")
    with pytest.raises(CheckpointError):
        models.squeezenet1_1(weights=tmp_path / "page.pth")


def test_arguments(tmp_path):
    said = r"expected a file or one of 'DEFAULT', 'IMAGENET1K_V1' for weights, got"
    for wrong in ("nowhere.pth", "IMAGENET1K_V2", "ResNet50_Weights.DEFAULT"):
        with pytest.raises(FileNotFoundError, match=rf"{said} '{wrong}'"):
            models.squeezenet1_1(weights=wrong)
    with pytest.raises(FileNotFoundError, match=r"DEFAULT', 'IMAGENET1K_V1', 'IMAGENET1K_V2' for"):
        models.resnet50(weights=tmp_path / "nowhere.pth")
    said = rf"squeezenet1_1: expected a file or .* for weights, got the folder '{tmp_path}'"
    with pytest.raises(IsADirectoryError, match=said):
        models.squeezenet1_1(weights=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"expected a file or .* for weights, got '';"):
        models.squeezenet1_1(weights="")
    with pytest.raises(OSError, match=r"a device, not a file: '/dev/null'"):
        models.squeezenet1_1(weights="/dev/null")
    for wrong in ({"fc.weight": ng.ones(2)}, True, 3):
        with pytest.raises(TypeError, match=r"squeezenet1_1: expected a path, .* for weights, got"):
            models.squeezenet1_1(weights=wrong)
    with pytest.raises(TypeError, match=r"expected True or False for pretrained, got str"):
        models.squeezenet1_1("DEFAULT")
    for number in (10, 1, 0, np.int64(10)):  # meant as num_classes: nothing is downloaded
        with pytest.raises(TypeError, match=r"for pretrained, got .*; pass it as num_classes="):
            models.squeezenet1_1(number)
    assert np.isfinite(models.squeezenet1_1(None).features[0].weight.detach().numpy()).all()


@pytest.mark.parametrize("name", models.names())
def test_every_network_takes_the_arguments(name, home, monkeypatch):
    """Each maker asks for its own file."""
    asked = []

    def obtain(name, files, progress):
        asked.append((name, files, progress))
        raise DownloadError("stop here")

    monkeypatch.setattr(weights, "_obtain", obtain)
    make = getattr(models, name)
    for arguments, options in (((True, False), {}), ((), {"progress": True, "weights": "DEFAULT"})):
        with pytest.raises(DownloadError):
            make(*arguments, **options)
    kinds = list(weights.PUBLISHED[name].values())
    assert asked == [(name, kinds[0], False), (name, kinds[-1], True)]
