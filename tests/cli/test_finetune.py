"""``numgrad demo finetune``: a new last layer on a folder of pictures.

The networks here have random values, which tell colours apart, but no more. That patterns are told
apart takes trained ones: ``tests/cli/textures.py`` says how to try that.
"""

import contextlib
import io
import json
import os
import re
import sys

import numpy as np
import pytest
from PIL import Image

import numgrad as ng
from numgrad import models
from numgrad.cli import finetune, main
from numgrad.nn.functional import cross_entropy
from tests.cli import textures

SIZE, BATCH = 32, 4
COLOURS = {"blue": (40, 60, 200), "red": (200, 60, 40)}


def refused(argv, capsys):
    """The one line on stderr of a command that must be refused."""
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert err.startswith("numgrad: ") and err.endswith("\n") and err.count("\n") == 1
    return err


def paint(folder, counts):
    """Folders of noisy pictures, each of its colour."""
    rng = np.random.default_rng(0)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            noise = rng.normal(0, 25, (40, 50, 3))
            values = np.clip(np.array(COLOURS[name]) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(values).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    ng.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "resnet18.pt"
    ng.save(models.resnet18().state_dict(), path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = paint(tmp_path_factory.mktemp("pictures"), {"blue": 12, "red": 10})
    (folder / "notes.txt").write_text("not a class")
    (folder / ".hidden").mkdir()
    return folder


def arguments(folder, weights, *more):
    argv = ["demo", "finetune", str(folder), "--weights", str(weights), "--size", str(SIZE)]
    return [*argv, "--batch", str(BATCH), "--lr", "0.001", "--epochs", "4", *more]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, folder, weights):
    """Exit status, JSON, printed lines and saved file of one run."""
    out = tmp_path_factory.mktemp("tuned")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        argv = arguments(folder, weights, "--save", str(out / "tuned.pt"))
        status = main([*argv, "--json", str(out / "tuned.json")])
    report = json.loads((out / "tuned.json").read_text())
    return status, report, printed.getvalue(), ng.load(out / "tuned.pt")


def test_accuracy_and_what_is_printed(tuned, folder):
    status, report, text, _ = tuned
    assert status == 0 and list(report) == ["machine", "command", "training", "rows"]
    training = report["training"]
    assert training["classes"] == ["blue", "red"]
    assert (training["training_pictures"], training["test_pictures"]) == (17, 5)
    assert training["test_accuracy"] == 1.0
    assert "blue: 9 to train on, 3 to test on\nred: 8 to train on, 2 to test on" in text
    assert re.search(r"^epoch 4/4  loss \d\.\d{4}  right \d+\.\d%", text, re.M)
    assert "test accuracy 100.00% (5 of 5 pictures)" in text
    assert report["command"].startswith(f"numgrad demo finetune {folder}")


def test_memory_rows(tuned):
    _, report, text, _ = tuned
    frozen, full = report["rows"]
    assert (frozen["trained"], frozen["parameters"]) == ("frozen", 2 * 512 + 2)
    network = models.resnet18(num_classes=2)
    assert full["parameters"] == sum(p.numel() for p in network.parameters())
    # The tape has the new layer, which keeps its input, and the loss.
    with ng.memory.track() as own:
        loss = cross_entropy(ng.randn(BATCH, 2, requires_grad=True), ng.zeros(BATCH, dtype="int64"))
    assert loss.requires_grad  # it holds what it keeps
    assert frozen["saved_bytes"] == BATCH * 512 * 4 + own.saved_bytes
    assert frozen["nodes"] == 1 + own.nodes and full["nodes"] > 60
    # Full training keeps at least its input and the two results of each basic block.
    assert full["saved_bytes"] > 4 * BATCH * 3 * SIZE * SIZE + frozen["saved_bytes"]
    # At its peak it has a gradient and a momentum for each parameter.
    assert full["peak_bytes"] >= 2 * 4 * full["parameters"] > 10 * frozen["peak_bytes"]
    assert f"a training step of {BATCH} pictures, {SIZE} × {SIZE}" in text
    assert all(count >= 0 for row in (frozen, full) for count in row["by_category"].values())
    percent = 100 * frozen["saved_bytes"] / full["saved_bytes"]
    assert f"a step keeps {percent:.2f}% of full training" in text


def test_what_is_saved(tuned, weights, folder):
    """The backbone as it was, to the bit; a new head; read as the help says."""
    *_, saved = tuned
    before = ng.load(weights)
    for name, value in saved["state_dict"].items():
        if not name.startswith("fc."):
            assert np.array_equal(value.numpy(), before[name].numpy())
    assert (saved["model"], saved["size"]) == ("resnet18", SIZE)
    model = models.resnet18(num_classes=len(saved["classes"]))
    model.load_state_dict(saved["state_dict"])
    classes, training, test = finetune.read(str(folder), SIZE, finetune.TEST_SHARE, 0)
    assert classes == saved["classes"]
    assert finetune.correct(model, test, BATCH) == 5
    assert finetune.correct(model, training, 5) == 17


def test_fine_tuned_again(tuned, folder, tmp_path):
    """What was saved is a file of weights itself, for other classes."""
    ng.save(tuned[-1], tmp_path / "tuned.safetensors")
    model, head = finetune.network("resnet18", str(tmp_path / "tuned.safetensors"), 5, 0)
    assert head.weight.shape == (5, 512) and head.training and not model.bn1.training
    assert [n for n, p in model.named_parameters() if p.requires_grad] == ["fc.weight", "fc.bias"]


def test_seed(folder, weights, tmp_path, tuned, monkeypatch):
    monkeypatch.setattr(finetune, "compare", lambda *args: tuned[1]["rows"])
    found = {}
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        path = tmp_path / name
        argv = arguments(folder, weights, "--seed", seed, "--save", str(path))
        assert main([*argv, "--epochs", "1"]) == 0
        found[name] = path.read_bytes()
    assert found["a"] == found["b"] != found["c"]


def test_split():
    classes = {"a": [f"a{i}" for i in range(40)], "b": ["b0", "b1"], "c": ["c0", "c1", "c2"]}
    training, test = finetune.split(classes, 0.25, 7)
    assert [(len(training[n]), len(test[n])) for n in classes] == [(30, 10), (1, 1), (2, 1)]
    assert all(sorted(training[n] + test[n]) == sorted(classes[n]) for n in classes)
    assert finetune.split(classes, 0.25, 7) == (training, test)
    assert finetune.split(classes, 0.25, 8)[1]["a"] != test["a"] != classes["a"][:10]
    training, test = finetune.split(classes, 0.99, 7)
    assert [(len(training[n]), len(test[n])) for n in classes] == [(1, 39), (1, 1), (1, 2)]


def test_pictures_and_labels(tmp_path):
    textures.write(tmp_path / "pictures", 2, 40)
    classes, training, test = finetune.read(str(tmp_path / "pictures"), 24, 0.5, 0)
    assert classes == ["dots", "stripes"]
    assert training.inputs.shape == test.inputs.shape == (2, 3, 24, 24)
    assert training.labels.tolist() == test.labels.tolist() == [0, 1]
    assert training.inputs.dtype == "float32" and abs(training.inputs.mean().item()) < 3


# ------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda f: f / "none", "none, which is not there"),
        (lambda f: write(f / "file", b"x"), "file, which is a file"),
        (lambda f: f, "two or more folders in"),
        (lambda f: paint(f, {"red": 3}), "two or more folders in"),
        (lambda f: paint(f, {"red": 3, "blue": 0}), "blue has no pictures"),
        (lambda f: paint(f, {"red": 3, "blue": 1}), "two or more pictures in"),
    ],
    ids=["missing", "file", "empty", "one class", "empty class", "one picture"],
)
def test_bad_folders(make, says, tmp_path, weights, capsys):
    assert says in refused(arguments(make(tmp_path), weights), capsys)


def write(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("cut", "says"), [(0, "is empty"), (60, "is damaged"), (None, "is no picture")]
)
def test_broken_pictures(cut, says, tmp_path, weights, capsys):
    folder = paint(tmp_path, {"red": 2, "blue": 2})
    broken = folder / "red" / "0.png"
    broken.write_bytes(b"<html>" if cut is None else broken.read_bytes()[:cut])
    err = refused(arguments(folder, weights), capsys)
    assert str(broken) in err and says in err


def test_wrong_weights(folder, weights, tmp_path, capsys):
    for path, says in (
        (tmp_path / "none.pt", "none.pt: No such file or directory; check the path"),
        (tmp_path, f"the folder {tmp_path}; name a file"),
        (write(tmp_path / "page.pt", b"<!DOCTYPE html>" * 9), "page.pt"),
        (write(tmp_path / "cut.pt", weights.read_bytes()[:5000]), "cut.pt"),
    ):
        assert says in refused(arguments(folder, path), capsys)
    err = refused(arguments(folder, weights, "--model", "squeezenet1_1"), capsys)
    assert "squeezenet1_1" in err and str(weights) in err and len(err) < 500


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--lr", "0"], "--lr: expected a positive number, got '0'"),
        (["--lr", "fast"], "--lr: expected a positive number, got 'fast'"),
        (["--epochs", "0"], "--epochs: expected a positive integer"),
        (["--batch", "x"], "--batch: expected a positive integer"),
        (["--seed", "-1"], "--seed: expected an integer from 0"),
        (["--test-share", "0"], "--test-share: expected a number between 0 and 1, got '0'"),
        (["--test-share", "1"], "--test-share: expected a number between 0 and 1"),
        (["--test-share", "nan"], "--test-share: expected a number between 0 and 1"),
        (["--size", "0"], "--size: expected a positive integer"),
        (["--size", "1025"], "--size: expected at most 1024, got 1025"),
        (["--model", "resnet"], "invalid choice: 'resnet'"),
        (["--save", "none/x.pt"], "--save: expected a file in an existing folder"),
        (["--json", "none/x.json"], "--json: expected a file in an existing folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_arguments(more, says, folder, weights, capsys):
    assert says in refused(arguments(folder, weights, *more), capsys)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--save", "x.npz"], "--save: expected .pth or .safetensors, got x.npz"),
        (["--save", "/dev/null"], "--save: expected a file, got the pipe or device /dev/null"),
        (["--save", "x", "--json", "./x"], "--json: expected another file than --save, got ./x"),
        (["--save", "WEIGHTS"], "--save: expected another file than --weights"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_files_that_would_be_lost(more, says, folder, weights, tmp_path, capsys, monkeypatch):
    """Refused before the training, and before a picture is opened."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finetune, "load", None)
    more = [str(weights) if word == "WEIGHTS" else word for word in more]
    assert says in refused(arguments(folder, weights, *more), capsys)
    assert os.listdir() == [] and weights.stat().st_size > 1000


def test_weights_are_looked_for_before_pictures_are_opened(folder, capsys, monkeypatch):
    monkeypatch.setattr(finetune, "load", None)
    assert "got none.pt: No such file" in refused(arguments(folder, "none.pt"), capsys)


def test_no_folder_named(capsys):
    assert "required: FOLDER" in refused(["demo", "finetune"], capsys)


def test_pictures_too_small_for_the_network(folder, tmp_path, capsys):
    ng.save(models.squeezenet1_1().state_dict(), tmp_path / "squeezenet.pt")
    argv = arguments(folder, tmp_path / "squeezenet.pt", "--model", "squeezenet1_1", "--size", "4")
    assert "--size: squeezenet1_1 cannot take pictures of 4 × 4: " in refused(argv, capsys)


def test_a_rate_that_is_too_high(folder, weights, capsys):
    err = refused(arguments(folder, weights, "--lr", "1e39"), capsys)
    assert "expected a finite loss, got " in err and "take a smaller --lr" in err


def test_without_pillow(folder, weights, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert 'install "numgrad-jit[vision]"' in refused(arguments(folder, weights), capsys)


def test_too_many_pictures(folder, weights, capsys, monkeypatch):
    def none_left(*args):
        raise MemoryError

    monkeypatch.setattr(finetune, "load", none_left)
    assert "take a smaller --size" in refused(arguments(folder, weights), capsys)


def test_default_weights_that_are_nowhere(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("NUMGRAD_WEIGHTS_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("NO_PROXY", "*")
    for name in ("HOME", "XDG_CACHE_HOME", "NUMGRAD_WEIGHTS", "TORCH_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    err = refused(["demo", "finetune", str(folder), "--size", "32"], capsys)
    assert "resnet18-f37072fd.pth" in err and str(tmp_path) in err
    assert not os.path.exists(tmp_path / "resnet18-f37072fd.pth")


def test_complaints(tuned, capsys):
    frozen, full = ({**row} for row in tuned[1]["rows"])
    assert finetune.complain([frozen, full]) == 0
    frozen["saved_bytes"], frozen["nodes"] = full["saved_bytes"] + 1, full["nodes"]
    assert finetune.complain([frozen, full]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and f"frozen has {frozen['saved_bytes']} saved_bytes" in err
