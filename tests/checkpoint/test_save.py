"""What is saved comes back, and a save that fails leaves the old file."""

import errno
import io
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import textwrap
from collections import OrderedDict, namedtuple

import numpy as np
import pytest

from numgrad.checkpoint import CheckpointError, atomic, load, save
from numgrad.ops.creation import tensor
from numgrad.tensor import Tensor
from numgrad.variable import Parameter

ROOT = pathlib.Path(__file__).parents[2]


def through(obj):
    file = io.BytesIO()
    save(obj, file)
    return load(io.BytesIO(file.getvalue()))


def header_of(data):
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length])


def equal(a, b):
    if isinstance(a, (Tensor, np.ndarray)):
        a, b = (x.detach().numpy() if isinstance(x, Tensor) else x for x in (a, b))
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


OBJECTS = {
    "none": None,
    "true": True,
    "integers": [0, -1, 2**63, -(2**200), 10**3000],
    "floats": [0.1, -0.0, 1e-310, math.inf, -math.inf, math.nan, 1.0],
    "texts": ["", "a\nb\0", "重み", "\ud800", '"\\', "__metadata__"],
    "nested": {"a": [1, (2, {"b": ()})], "c": {}, "d": []},
    "keys": {None: 1, True: 2, "1": 3, 5: 4, 0.5: 5, "": 6, "a.b": 7},
    "ordered": OrderedDict([("z", 1), ("a", OrderedDict())]),
    "tagged": {"tensor": "x", "dict": [["a", 1]], "float": "nan", "tuple": []},
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "arrays": [np.array(3.5), np.zeros((0, 2), np.uint64), np.array([1, 2], np.float16)],
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects(name):
    assert equal(through(OBJECTS[name]), OBJECTS[name])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (2, 3, 4)])
def test_tensors(dtype, shape):
    values = np.random.RandomState(0).randint(0, 2, shape).astype(dtype)
    x = tensor(values)
    state = through({"x": x, "list": [x]})
    assert type(state["x"]) is Tensor and equal(state["x"], x) and equal(state["list"][0], x)
    assert not state["x"].requires_grad


def test_special_floats_keep_their_bits():
    bits = np.array([0x7FC00001, 0x80000000, 0x00000001, 0xFF800000], np.uint32)
    values = tensor(bits.view(np.float32))
    assert np.array_equal(through(values).numpy().view(np.uint32), bits)


def test_names_are_paths():
    x = tensor([1.0])
    file = io.BytesIO()
    obj = {"model": OrderedDict([("fc.weight", x)]), "optimizer": {"state": {0: {"m": x}}}}
    obj["model.fc.weight"] = x
    obj["bad\nname"] = x
    obj["__metadata__"] = x
    save(obj, file)
    header = header_of(file.getvalue())
    metadata = header.pop("__metadata__")
    assert set(header) == {
        "model.fc.weight",
        "model.fc.weight#2",
        "optimizer.state.0.m",
        "bad_name",
        "__metadata__#2",
    }
    assert metadata["numgrad_format"] == "1" and set(metadata) == {
        "format",
        "numgrad_format",
        "numgrad_structure",
    }
    assert equal(load(io.BytesIO(file.getvalue())), obj)


def test_data_are_aligned():
    state = {
        "a": tensor(np.zeros(3, np.uint8)),
        "b": tensor(np.zeros(1)),
        "c": tensor(np.zeros(3, "f")),
    }
    file = io.BytesIO()
    save(state, file)
    data = file.getvalue()
    header = header_of(data)
    assert (8 + struct.unpack("<Q", data[:8])[0]) % 64 == 0
    for name, size in (("a", 1), ("b", 8), ("c", 4)):
        assert header[name]["data_offsets"][0] % size == 0


def test_views_and_shared_memory():
    x = tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    state = through({"x": x, "t": x.t(), "row": x[1]})
    assert equal(state["t"], tensor(np.ascontiguousarray(x.numpy().T)))
    assert equal(state["row"], tensor(x.numpy()[1]))
    state["x"].zero_()
    assert state["row"].numpy().tolist() == [3, 4, 5]


def test_parameters_come_back_as_tensors():
    p = Parameter(tensor([1.0, 2.0]))
    state = through({"p": p})
    assert type(state["p"]) is Tensor and not state["p"].requires_grad and equal(state["p"], p)


def test_numbers_of_numpy_become_numbers():
    obj = [np.float32(0.5), np.int64(3), np.bool_(True), np.float64("inf")]
    assert equal(through(obj), [0.5, 3, True, math.inf])
    point = namedtuple("point", "x y")
    assert equal(through(point(1, 2)), (1, 2))


class WithState:
    def state_dict(self):
        return {}


LOOP = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("obj", "text"),
    [
        ({"a": [1, {2}]}, r"for obj\['a'\]\[1\], got set \{2\}"),
        ({"a": b"x"}, "tensor, dict, list, tuple, number, text, bool or None"),
        ({(1, 2): 3}, "keys that are text, numbers, bools or None"),
        ({math.nan: 3}, "keys that are text"),
        (WithState(), r"save its state_dict\(\)"),
        (LOOP, "at most 100 levels"),
        (np.array(["a"]), "a dtype that safetensors has"),
        (np.array([1j]), "a dtype that safetensors has"),
        ([10**5000], "4000 digits"),
    ],
)
def test_refused_objects(obj, text, tmp_path):
    with pytest.raises(TypeError, match=text):
        save(obj, tmp_path / "x")
    assert os.listdir(tmp_path) == []


def corrupt(structure, version="1", tensors=("x",)):
    header = {"__metadata__": {"numgrad_format": version, "numgrad_structure": structure}}
    if structure is None:
        del header["__metadata__"]["numgrad_structure"]
    for i, name in enumerate(tensors):
        header[name] = {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(len(tensors))


@pytest.mark.parametrize(
    ("structure", "version", "reason"),
    [
        ('{"tensor":"x"}', "2", "written by a newer numgrad"),
        ('{"tensor":"x"}', "0", "is no version"),
        ('{"tensor":"x"}', "one", "is no version"),
        ('{"tensor":"x"}', "9" * 100, "is no version"),
        (None, "1", "numgrad_structure is missing"),
        ("", "1", "not JSON"),
        ("[", "1", "not JSON"),
        ("[" * 100_000, "1", "nested too deeply"),
        ("[" * 150 + "]" * 150, "1", "more than 100 levels"),
        ("[NaN]", "1", "NaN, which is not JSON"),
        ('{"tensor":"y"}', "1", "no tensor of the file"),
        ('{"tensor":["x"]}', "1", "no tensor of the file"),
        ('[{"tensor":"x"},{"tensor":"x"}]', "1", "stands here twice"),
        ("[]", "1", "the structure does not"),
        ("{}", "1", "an object of 0 names"),
        ('{"tensor":"x","array":"x"}', "1", "an object of 2 names"),
        ('{"code":"x"}', "1", "unknown kind 'code'"),
        ('{"float":"1.0"}', "1", "unknown kind 'float'"),
        ('{"float":[]}', "1", "unknown kind 'float'"),
        ('{"dict":{}}', "1", "unknown kind 'dict'"),
        ('{"dict":[1]}', "1", "no pair"),
        ('{"dict":[["a"]]}', "1", "no pair"),
        ('{"dict":[[[],1]]}', "1", "neither text nor number"),
        ('{"dict":[["a",1],["a",2]]}', "1", "the key 'a' twice"),
        ('{"dict":[[1,1],[1.0,2]]}', "1", "the key 1.0 twice"),
    ],
)
def test_refused_structures(structure, version, reason):
    with pytest.raises(CheckpointError, match=reason):
        load(io.BytesIO(corrupt(structure, version)))


def test_file_of_version_1_stays_readable():
    """The bytes of a file of layout 1: whatever changes, they load."""
    header = (
        b'{"__metadata__":{"format":"numgrad","numgrad_format":"1","numgrad_structure":'
        b'"{\\"ordered\\":[[\\"w\\",{\\"tensor\\":\\"w\\"}],[\\"lr\\",0.5],[\\"n\\",{\\"float\\":'
        b'\\"nan\\"}],[\\"b\\",{\\"tuple\\":[{\\"array\\":\\"b.0\\"}]}]]}"},'
        b'"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
        b'"b.0":{"dtype":"U8","shape":[],"data_offsets":[8,9]}}'
    )
    data = struct.pack("<Q", len(header)) + header + struct.pack("<ff", 1.5, -2) + b"\x07"
    expected = OrderedDict(w=tensor([1.5, -2.0]), lr=0.5, n=math.nan, b=(np.array(7, np.uint8),))
    assert equal(load(io.BytesIO(data)), expected)


# -------------------------------------------------------------------------------- writing whole


def test_replaces_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "x.safetensors"
    save({"a": 1}, path)
    path.chmod(0o640)
    save({"a": 2}, str(path))
    assert load(path) == {"a": 2} and os.listdir(tmp_path) == ["x.safetensors"]
    assert path.stat().st_mode & 0o777 == 0o640


def test_relative_paths_and_links(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(1, "plain")
    os.symlink("plain", "link")
    save(2, "link")
    assert os.path.islink("link") and load("plain") == 2


def test_folder_is_refused(tmp_path):
    with pytest.raises(OSError, match="save: expected a regular file"):
        save(1, tmp_path)
    with pytest.raises(FileNotFoundError):
        save(1, tmp_path / "none" / "x")


@pytest.mark.parametrize("room", [0, 1, 8, 100, 300, 1000])
def test_full_disk_keeps_the_old_file(room, tmp_path, monkeypatch):
    path = tmp_path / "x"
    save({"a": "old"}, path)

    class Full(io.BufferedWriter):
        left = room

        def write(self, data):
            self.left -= len(data)
            if self.left < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    monkeypatch.setattr(atomic, "open", lambda fd, mode: Full(io.FileIO(fd, "w")), raising=False)
    with pytest.raises(OSError, match="No space left"):
        save({"a": tensor(np.zeros(1000))}, path)
    assert load(path) == {"a": "old"} and os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("moment", ["write", "fsync", "replace"])
def test_killed_at_any_moment(moment, tmp_path):
    """The old file is whole, and the next save sweeps the temporary away."""
    path = tmp_path / "x"
    save({"a": "old"}, path)
    program = f"""
        import os, signal
        import numpy as np
        from numgrad.checkpoint import atomic, files, save
        def die(*args):
            os.kill(os.getpid(), signal.SIGKILL)
        if {moment!r} == "write":
            files.data_bytes = die
        else:
            setattr(os, {moment!r}, die)
        save({{"a": np.zeros(100)}}, {str(path)!r})
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=environment)
    assert done.returncode == -9
    assert load(path) == {"a": "old"}
    assert len(os.listdir(tmp_path)) == 2
    save({"a": "new"}, path)
    assert load(path) == {"a": "new"} and os.listdir(tmp_path) == ["x"]


def test_sweep_leaves_the_living_alone(tmp_path):
    host = atomic._host()
    keep = [
        f".x.{host}-{os.getppid()}-0.tmp",  # alive
        f".x.{host}-{os.getpid()}-9.tmp",  # another thread of ours
        ".x.abcdef-1-0.tmp",  # another machine
        f".y.{host}-999999999-0.tmp",  # another file
        f".x.{host}-a-0.tmp",
        "x",
    ]
    gone = f".x.{host}-999999999-0.tmp"
    for name in [*keep, gone]:
        (tmp_path / name).write_bytes(b"")
    atomic.sweep(str(tmp_path), "x")
    assert sorted(os.listdir(tmp_path)) == sorted(keep)


def test_safetensors_library_reads_it(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    state = {"a.b": tensor([[1.0, 2.0]]), "n": 3, "l": [tensor([True])]}
    save(state, tmp_path / "x")
    got = numpy.load_file(tmp_path / "x")
    assert got["a.b"].tolist() == [[1.0, 2.0]] and got["l.0"].tolist() == [True]
    numpy.save_file({"q": np.arange(3)}, tmp_path / "y")
    assert load(tmp_path / "y")["q"].numpy().tolist() == [0, 1, 2]
