"""``numgrad inspect`` and ``numgrad convert``, called in process."""

import errno
import io
import json
import os
import pickle
from collections import Counter, OrderedDict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import numgrad as ng
from numgrad.checkpoint import load, save
from numgrad.cli import main
from numgrad.cli.output import width
from tests.checkpoint import makers

ARRAYS = {
    "layer.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "layer.bias": np.array([0.5, -1.5, 3e-9], np.float32),
    "norm.running_mean": np.array([2.0], np.float32),
    "norm.num_batches_tracked": np.array(7, np.int64),
    "double": np.array([[1e-300]], np.float64),
    "mask": np.array([True, False, True]),
    "empty": np.zeros((0, 3), np.int32),
    "bytes": np.array([0, 255], np.uint8),
}
NUMEL = sum(array.size for array in ARRAYS.values())
NBYTES = sum(array.nbytes for array in ARRAYS.values())
FORMATS = {"tar": "PyTorch tar", "stream": "PyTorch stream", "zip": "PyTorch zip"}
FORMATS |= {"safetensors": "safetensors", "npz": "NumPy archive"}


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, data):
    with open(name, "wb") as file:
        file.write(data)
    return name


def encoded(arrays, format):
    """The arrays as a file of that format, not written by numgrad."""
    if format != "npz":
        return makers.state_dict(arrays, format)
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def output(argv, capsys):
    """What a command that succeeds prints."""
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def refused(argv, capsys):
    """The one line on stderr of a command that prints nothing else."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("numgrad: ") and err.endswith("\n") and err.count("\n") == 1
    return err


def inspected(name, capsys):
    (found,) = json.loads(output(["inspect", "--json", name], capsys))["files"]
    return found


def same(state, arrays):
    assert list(state) == list(arrays)
    for name, array in arrays.items():
        got = state[name].detach().numpy()
        assert got.dtype == array.dtype and got.shape == array.shape
        assert got.tobytes() == array.tobytes()


# ----------------------------------------------------------------------------------------- inspect


@pytest.mark.parametrize("format", FORMATS)
def test_inspect_each_format(format, capsys):
    name = write("a.bin", encoded(ARRAYS, format))
    found = inspected(name, capsys)
    assert found["file"] == name and found["bytes"] == os.path.getsize(name)
    assert found["format"].startswith(FORMATS[format]) and found["notes"] == []
    assert found["elements"] == NUMEL and found["tensor_bytes"] == NBYTES
    assert found["parameters"] == NUMEL - 2  # batch-norm's two
    assert found["others"] == [] and len(found["storages"]) == len(ARRAYS)
    for row, (key, array) in zip(found["tensors"], ARRAYS.items(), strict=True):
        kind = "parameter" if format == "tar" and array.dtype.kind == "f" else "tensor"
        assert (row["name"], row["path"], row["kind"]) == (key, [key], kind)
        assert row["shape"] == list(array.shape) and row["bytes"] == array.nbytes
        assert row["dtype"] == row["dtype_in_file"] == array.dtype.name
        steps = [step // array.itemsize for step in array.strides]
        assert row["strides"] == (steps if array.size else [3, 1])
        assert row["contiguous"] and row["offset"] == 0 and row["shares_with"] is None
        assert found["storages"][row["storage"]] == {
            "dtype": array.dtype.name,
            "elements": array.size,
            "bytes": array.nbytes,
        }


def test_inspect_prints_a_table(capsys):
    name = write("a.pth", makers.state_dict(ARRAYS, "stream"))
    lines = output(["inspect", name], capsys).splitlines()
    assert lines == [
        "a.pth",
        "format      PyTorch stream (torch.save of 0.1.10 to 1.5)",
        f"size        {os.path.getsize(name):,} bytes",
        f"tensors     8, {NUMEL} elements in {NBYTES} bytes",
        f"parameters  {NUMEL - 2}, without batch-norm's statistics",
        "",
        "tensor                     shape    dtype  bytes",
        "------------------------  ------  -------  -----",
        "layer.weight               3 × 4  float32     48",
        "layer.bias                     3  float32     12",
        "norm.running_mean              1  float32      4",
        "norm.num_batches_tracked  scalar    int64      8",
        "double                     1 × 1  float64      8",
        "mask                           3     bool      3",
        "empty                      0 × 3    int32      0",
        "bytes                          2    uint8      2",
    ]


def test_inspect_relations_between_tensors(capsys):
    x = ng.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    whole = ng.tensor(np.arange(100, dtype=np.int64))
    state = {
        "x": x,
        "t": x.t(),
        "row": x[1],
        "part": whole[10:12],
        "p": ng.nn.Parameter(ng.ones(2)),
        "frozen": ng.nn.Parameter(ng.ones(2), requires_grad=False),
        "leaf": ng.ones(1, requires_grad=True),
        "array": np.ones((2, 2), np.float16),
    }
    save(state, "a.pth")
    rows = {row["name"]: row for row in inspected("a.pth", capsys)["tensors"]}
    assert rows["t"]["strides"] == [1, 3] and not rows["t"]["contiguous"]
    assert rows["t"]["shares_with"] == rows["row"]["shares_with"] == "x"
    assert rows["row"]["offset"] == 3 and rows["row"]["storage"] == rows["x"]["storage"]
    assert rows["part"]["offset"] == 10 and rows["part"]["shares_with"] is None
    assert [rows[name]["kind"] for name in ("x", "p", "frozen", "array")] == [
        "tensor",
        "parameter",
        "parameter",
        "array",
    ]
    assert [rows[name]["requires_grad"] for name in ("x", "p", "frozen", "leaf")] == [
        False,
        True,
        False,
        True,
    ]
    out = output(["inspect", "a.pth"], capsys)
    ends = {line.split()[0]: line for line in out.splitlines()[5:]}
    save({"a.b": x, "a": {"b": x}}, "same.pth")  # one tensor, two places of one name
    assert [r["shares_with"] for r in inspected("same.pth", capsys)["tensors"]] == [None, "a.b"]
    assert ends["t"].endswith("24  strides (1, 3), shares memory with x")
    assert ends["row"].endswith("12  shares memory with x")
    assert ends["part"].endswith("16  of a storage of 800 bytes")
    assert ends["p"].endswith("8  Parameter") and ends["frozen"].endswith("8  frozen Parameter")
    assert ends["leaf"].endswith("4  requires grad")
    assert ends["array"].endswith("float16      8  NumPy array")


def test_inspect_widened_dtypes(capsys):
    arrays = {"h": np.array([1.5, 2], np.float16), "i": np.array([3], np.int8)}
    name = write("a.pth", makers.state_dict({**arrays, "j": arrays["i"]}, "zip"))
    note = "2 tensors of int8 came as int32, 1 tensor of float16 came as float32"
    found = inspected(name, capsys)
    (text,) = found["notes"]
    assert sorted(text.removesuffix(", which hold all their values").split(", ")) == sorted(
        note.split(", ")
    )
    assert [(r["dtype_in_file"], r["dtype"], r["bytes"]) for r in found["tensors"]] == [
        ("float16", "float32", 4),
        ("int8", "int32", 1),
        ("int8", "int32", 1),
    ]
    out = output(["inspect", name], capsys)
    assert "float16 → float32" in out and f"note     {text}" in out


def test_inspect_what_is_no_tensor(capsys):
    state = {
        "epoch": 3,
        "best": float("nan"),
        "name": "two\nlines",
        "model": OrderedDict(w=ng.ones(2)),
        "optimizer": {"state": {0: {"step": 5}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        "log": [],
    }
    for name in ("a.pth", "a.safetensors"):
        save(state, name)
        found = inspected(name, capsys)
        assert {"path": ["epoch"], "value": 3} in found["others"]
        assert {"path": ["best"], "value": "nan"} in found["others"]
        assert {"path": ["name"], "value": "two\nlines"} in found["others"]
        assert {"path": ["log"], "value": []} in found["others"]
        lr = {"path": ["optimizer", "param_groups", 0, "lr"], "value": 0.1}
        assert lr in found["others"] and len(found["others"]) == 7
        out = output(["inspect", name], capsys)
        assert "besides  epoch = 3\n" in out and "besides  name = 'two\\nlines'\n" in out
        assert "besides  optimizer.state: a value that is no tensor\n" in out
        assert "besides  optimizer.param_groups: 2 values that are no tensors\n" in out


def test_inspect_a_tensor_alone_and_no_tensor(capsys):
    save(ng.ones(2, 2), "tensor.pth")
    assert "\n(the object itself)  2 × 2  float32     16\n" in output(
        ["inspect", "tensor.pth"], capsys
    )
    save(5, "number.pth")
    out = output(["inspect", "number.pth"], capsys)
    assert "besides  5\n" in out and "tensors  0, 0 elements in 0 bytes" in out
    assert "dtype" not in out
    save({str(i): i for i in range(50)}, "many.pth")
    out = output(["inspect", "many.pth"], capsys)
    assert out.count("besides") == 20 and "and 30 more; --json has all" in out


def test_inspect_wide_and_strange_names(capsys):
    long = "block." * 20 + "weight"
    state = {"重み": ng.ones(2), "e\u0301": ng.ones(1), long: ng.ones(3), "ü": ng.ones(1)}
    save(state, "a.pth")
    lines = output(["inspect", "a.pth"], capsys).splitlines()
    at = lines.index(long)
    rest = [lines[at - 2], lines[at - 1], lines[at + 1], lines[at + 2]]
    assert {width(line) for line in rest} == {width(lines[at - 3])}  # the rule under the heads
    assert lines[at + 1].split() == ["3", "float32", "12"]
    save({"a\x1b[31m\n": ng.ones(1)}, "a.safetensors")
    out = output(["inspect", "a.safetensors"], capsys)
    assert "\\x1b" in out and "\x1b" not in out


def test_inspect_several_files(capsys):
    save({"a": ng.ones(2)}, "good.pth")
    write("empty.pth", b"")
    write("page.pth", b"<!DOCTYPE html><html>")
    assert main(["inspect", "good.pth", "none.pth", ".", "empty.pth", "page.pth", "good.pth"]) == 2
    out, err = capsys.readouterr()
    assert out.count("good.pth\n") == 2 and "\n\ngood.pth" in out
    assert err.splitlines() == [
        "numgrad: none.pth: No such file or directory",
        "numgrad: .: Is a directory",
        "numgrad: empty.pth: start of file: the file is empty",
        "numgrad: page.pth: start of file: an HTML page; the download gave a web page instead of "
        "the file",
    ]
    assert main(["inspect", "empty.pth", "good.pth", "--json"]) == 2
    out, err = capsys.readouterr()
    bad, good = json.loads(out)["files"]
    assert bad == {
        "file": "empty.pth",
        "refused": {"where": "start of file", "reason": "the file is empty"},
    }
    assert good["elements"] == 2 and err.count("\n") == 1


def test_inspect_options_between_files(capsys):
    save({"a": ng.ones(2)}, "a.pth")
    save({"b": ng.ones(2)}, "b.pth")
    found = json.loads(output(["inspect", "a.pth", "--json", "b.pth"], capsys))["files"]
    assert [one["file"] for one in found] == ["a.pth", "b.pth"]


def test_inspect_names_files_as_they_are(capsys):
    """Names that are no text, or have spaces, or what terminals obey."""
    names = [b"a  b.pth", b"c\x1b[31m\n.pth", b"d\xff.pth"]
    paths = [os.fsdecode(write(name, b"")) for name in names]
    assert main(["inspect", *paths, "--json"]) == 2
    out, err = capsys.readouterr()
    shown = ["a  b.pth", r"c\x1b[31m\n.pth", r"d\udcff.pth"]
    assert err.splitlines() == [
        f"numgrad: {name}: start of file: the file is empty" for name in shown
    ]
    content = json.loads(out)
    assert [one["file"] for one in content["files"]] == [*paths[:2], "d\ufffd.pth"]


def test_devices_are_no_files(capsys):
    assert refused(["inspect", "/dev/zero"], capsys) == (
        "numgrad: /dev/zero: a device, not a file\n"
    )
    assert "/dev/zero: a device" in refused(["convert", "/dev/zero", "b.pth"], capsys)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.filterwarnings("ignore:load")
def test_inspect_checks_all_that_load_checks(format, capsys):
    """Flipped bytes all over the file: refused by both, or by neither."""
    data = encoded({"w": ARRAYS["layer.bias"], "m": ARRAYS["mask"]}, format)
    verdicts = Counter()
    for at in range(0, len(data), len(data) // 150 + 1):
        name = write("a.pth", data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        status = main(["inspect", "--json", name])
        _, err = capsys.readouterr()
        try:
            load(name)
            loads = True
        except ng.checkpoint.CheckpointError as error:
            loads = False
            assert err == f"numgrad: {' '.join(str(error).split())}\n"
        assert status == (0 if loads else 2)
        verdicts[loads] += 1
    assert verdicts[False] > (15 if format == "tar" else 50), verdicts


def test_inspect_refuses_what_load_refuses(capsys):
    name = write("b.st", makers.safetensors({"x": np.zeros(2, np.int64)}).replace(b"I64", b"U64"))
    assert "unsupported dtype uint64" in refused(["inspect", name], capsys)
    name = write("c.st", makers.safetensors({"x": ARRAYS["mask"]})[:-1] + b"\x02")
    assert "neither 0 nor 1" in refused(["inspect", name], capsys)


class Dangerous:
    def __reduce__(self):
        return os.mkdir, ("made",)


def test_inspect_runs_no_code(capsys):
    name = write("a.pth", makers.stream(pickle.dumps(Dangerous(), 2), {}))
    assert "mkdir" in refused(["inspect", name], capsys)
    assert not os.path.exists("made")


# ----------------------------------------------------------------------------------------- convert


@pytest.mark.parametrize("format", FORMATS)
def test_convert_there_and_back(format, capsys):
    """From each format to each layout: the same bits throughout."""
    names = ["a.bin", "b.pth", "c.safetensors", "d.pth", "e.npz", "f.pth"]
    write(names[0], encoded(ARRAYS, format))
    for source, target in pairwise(names):
        lines = output(["convert", source, target], capsys).splitlines()
        assert lines[0].startswith(f"{source}: ") and lines[0].endswith(", 8 tensors")
        kind = {"h": "zip", "s": "safetensors", "z": "npz"}[target[-1]]
        assert lines[1] == f"{target}: {kind}, {os.path.getsize(target):,} bytes"
        lost = format == "tar" and target == "c.safetensors"  # where Parameters end
        assert len(lines) == 2 + lost
        same(load(target), ARRAYS)
    assert Path("b.pth").read_bytes()[:4] == b"PK\x03\x04"
    assert inspected("c.safetensors", capsys)["format"] == "safetensors, written by numgrad"
    assert sorted(os.listdir()) == names


def test_convert_says_what_is_lost(capsys):
    x = ng.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    state = {"x": x, "t": x.t(), "p": ng.nn.Parameter(x), "c": Counter(a=2), "s": ng.Size([2])}
    save(state, "a.pth")
    assert "note" not in output(["convert", "a.pth", "b.pth"], capsys)
    again = load("b.pth")
    assert type(again["c"]) is Counter and type(again["s"]) is ng.Size
    again["x"][0, 0] = 9.0
    assert again["t"].tolist()[0][0] == again["p"].tolist()[0][0] == 9
    out = output(["convert", "a.pth", "b.safetensors"], capsys)
    assert [line for line in out.splitlines() if line.startswith("note: ")] == [
        "note: 2 tensors shared memory with another and became a copy",
        "note: 1 tensor had other strides and became contiguous",
        "note: 1 tensor required a gradient or was a Parameter, and is plain now",
        "note: 1 Counter became dict",
        "note: 1 Size became tuple",
    ]
    assert load("b.safetensors")["t"].tolist() == x.t().tolist()


def test_convert_widens_with_a_note(capsys):
    arrays = {"h": np.array([1.5, -65504], np.float16), "i": np.array([-128], np.int8)}
    for format in ("stream", "safetensors"):
        write("a.bin", makers.state_dict(arrays, format))
        for target in ("b.pth", "b.safetensors"):
            out = output(["convert", "a.bin", target, "--force"], capsys)
            assert "float16 came as float32" in out and "int8 came as int32" in out
            state = load(target)
            same(state, {"h": arrays["h"].astype(np.float32), "i": arrays["i"].astype(np.int32)})


def test_convert_refuses(capsys):
    save({"a": 1}, "a.pth")
    save({"b": 2}, "b.pth")
    os.symlink("a.pth", "link.pth")
    os.mkdir("folder")
    write("empty.pth", b"")
    before = {name: Path(name).read_bytes() for name in ("a.pth", "b.pth")}
    for argv, text in [
        (["a.pth", "a.pth"], "A and B are the same file, a.pth; choose another B"),
        (["a.pth", "./a.pth", "--force"], "A and B are the same file"),
        (["a.pth", "link.pth", "--force"], "A and B are the same file"),
        (["a.pth", "b.pth"], "b.pth is there already; --force replaces it"),
        (["a.pth", "folder"], "got the folder folder"),
        (["a.pth", "folder/"], "got the folder folder/"),
        (["a.pth", "new/"], "got the folder new/"),
        (["a.pth", "none/c.pth"], "make none"),
        (["none.pth", "c.pth"], "none.pth: No such file or directory"),
        (["folder", "c.pth"], "folder: Is a directory"),
        (["empty.pth", "b.pth", "--force"], "empty.pth: start of file: the file is empty"),
        (["a.pth"], "the following arguments are required: B"),
    ]:
        assert text in refused(["convert", *argv], capsys)
    assert {name: Path(name).read_bytes() for name in before} == before
    assert sorted(os.listdir()) == ["a.pth", "b.pth", "empty.pth", "folder", "link.pth"]
    output(["convert", "a.pth", "b.pth", "--force"], capsys)
    assert load("b.pth") == {"a": 1}


def test_convert_on_a_full_disk(capsys, monkeypatch):
    save({"a": ng.ones(5)}, "a.pth")
    save({"old": 1}, "b.pth")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    error = refused(["convert", "a.pth", "b.pth", "--force"], capsys)
    assert error == "numgrad: convert: b.pth was not written: No space left on device\n"
    assert load("b.pth") == {"old": 1} and sorted(os.listdir()) == ["a.pth", "b.pth"]


def test_convert_refuses_what_the_layout_has_not(capsys):
    """Files that load, but cannot be written in the other layout: B stays as it was."""
    save({"raw": b"\x00", "x": ng.ones(1)}, "a.pth")
    save({"old": 1}, "b.safetensors")
    error = refused(["convert", "a.pth", "b.safetensors", "--force"], capsys)
    assert (
        "b.safetensors was not written: expected a tensor, array, dict" in error
        and "'raw'" in error
    )
    assert load("b.safetensors") == {"old": 1}
    error = refused(["convert", "a.pth", "b.npz"], capsys)
    assert "b.npz was not written: expected a tensor or an array" in error
    save({"a\nb": ng.ones(1)}, "a.safetensors")
    error = refused(["convert", "a.safetensors", "c.pth"], capsys)
    assert "c.pth was not written" in error and "control characters" in error
    assert not os.path.exists("c.pth") and not os.path.exists("b.npz")


def test_inspect_counts_what_there_are_many_of(capsys, monkeypatch):
    monkeypatch.setattr("numgrad.checkpoint.listing.MAX_OTHERS", 30)
    tensor = ng.ones(2)
    state = {
        "names": [f"n{i}" for i in range(100)],
        "few": list(range(5)),
        "deep": [[list(range(50)), 7], 8],
        "last": 9,
        "same": [tensor] * 40,
        "other": ng.ones(3),
    }
    save(state, "a.pth")
    found = inspected("a.pth", capsys)
    assert len(found["others"]) == 31 and {"path": ["last"], "value": 9} in found["others"]
    assert found["others_left_out"] == 100 + 5 + 50 + 1 + 1 + 1 - 31
    assert len(found["tensors"]) == 1 + 30 + 1 and len(found["storages"]) == 2
    assert found["tensors"][-1]["path"] == ["other"]
    out = output(["inspect", "a.pth"], capsys)
    assert "besides  names: 100 values that are no tensors\n" in out
    assert "besides  deep.0: 51 values that are no tensors\n" in out
    assert "besides  last = 9\n" in out and "and 6 more; --json has many" in out


def test_inspect_lists_many_values_once(capsys):
    save({"names": ["n"] * 20_000, "epoch": 1}, "a.pth")
    found = inspected("a.pth", capsys)
    assert len(found["others"]) == 10_001 and found["others_left_out"] == 10_000
    assert {"path": ["epoch"], "value": 1} in found["others"]
    out = output(["inspect", "a.pth"], capsys)
    assert "besides  epoch = 1\n" in out and " more" not in out
    assert "besides  names: 20,000 values that are no tensors\n" in out


def test_inspect_values_deep_inside(capsys):
    obj = list(range(1000))
    for _ in range(97):
        obj = [obj]
    save(obj, "a.pth")
    found = inspected("a.pth", capsys)
    assert found["others"][-1] == {"path": [0] * 97 + [999], "value": 999}
    assert found["others_left_out"] == 0
