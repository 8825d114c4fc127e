"""What is saved comes back, and a save that fails leaves the old file."""

import enum
import io
import json
import math
import os
import pathlib
import struct
from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest

import numgrad
from numgrad.checkpoint import load, save
from numgrad.ops.creation import from_numpy, tensor
from numgrad.tensor import Tensor
from numgrad.variable import Parameter

ROOT = pathlib.Path(__file__).parents[2]


def opened(layout):
    """A file in memory whose name asks for a layout."""
    file = io.BytesIO()
    file.name = f"x.{layout}"
    return file


def through(obj, layout="safetensors"):
    file = opened(layout)
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
    "integers": [0, -1, 2**63, -(2**200), 10**600],
    "floats": [0.1, -0.0, 1e-310, math.inf, -math.inf, math.nan, 1.0],
    "texts": ["", "a\nb\0", "重み", "\ud800", '"\\', "__metadata__"],
    "nested": {"a": [1, (2, {"b": ()})], "c": {}, "d": []},
    "keys": {None: 1, True: 2, "1": 3, 5: 4, 0.5: 5, "": 6, "a.b": 7},
    "ordered": OrderedDict([("z", 1), ("a", OrderedDict())]),
    "tagged": {"tensor": "x", "dict": [["a", 1]], "float": "nan", "tuple": []},
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "arrays": [np.array(3.5), np.zeros((0, 2), np.uint64), np.array([1, 2], np.float16)],
}


LAYOUTS = ["safetensors", "pth"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OBJECTS)
def test_objects(name, layout):
    assert equal(through(OBJECTS[name], layout), OBJECTS[name])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (2, 3, 4)])
def test_tensors(dtype, shape, layout):
    values = np.random.RandomState(0).randint(0, 2, shape).astype(dtype)
    x = tensor(values)
    state = through({"x": x, "list": [x]}, layout)
    assert type(state["x"]) is Tensor and equal(state["x"], x) and equal(state["list"][0], x)
    assert not state["x"].requires_grad


@pytest.mark.parametrize("layout", [*LAYOUTS, "npz"])
@pytest.mark.parametrize("kind", [tensor, np.array])
def test_booleans_are_0_or_1(kind, layout):
    """Memory that was never written to holds anything."""
    garbage = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    value = from_numpy(garbage) if kind is tensor else garbage
    file = opened(layout)
    save({"x": value}, file)
    got = load(io.BytesIO(file.getvalue()))["x"]
    assert got.tolist() == [False, True, True, True] and b"\0\1\1\1" in file.getvalue()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_in_another_byte_order(layout):
    for array in (np.arange(3, dtype=">f4"), np.arange(6, dtype=">i2").reshape(2, 3).T):
        got = through({"x": array}, layout)["x"]
        assert got.dtype == array.dtype.newbyteorder("=") and np.array_equal(got, array)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_special_floats_keep_their_bits(layout):
    bits = np.array([0x7FC00001, 0x80000000, 0x00000001, 0xFF800000], np.uint32)
    values = tensor(bits.view(np.float32))
    assert np.array_equal(through(values, layout).numpy().view(np.uint32), bits)


def test_names_are_paths():
    x = tensor([1.0])
    file = opened("safetensors")
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
    file = opened("safetensors")
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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_kinds_that_become_plain_ones(layout):
    obj = [np.float32(0.5), np.int64(3), np.bool_(True), np.float64("inf")]
    assert equal(through(obj, layout), [0.5, 3, True, math.inf])
    point = namedtuple("point", "x y")
    assert equal(through(point(1, 2), layout), (1, 2))
    assert equal(through(defaultdict(list, a=[1]), layout), {"a": [1]})
    mode = enum.Enum("Mode", {"train": "TRAIN"}, type=str)
    assert equal(through({mode.train: mode.train}, layout), {"TRAIN": "TRAIN"})


class WithState:
    def state_dict(self):
        return {}


LOOP = []
LOOP.append(LOOP)
DOUBLING = []
for _ in range(64):
    DOUBLING = [DOUBLING, DOUBLING]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("obj", "text"),
    [
        ({"a": [1, {2}]}, r"for obj\['a'\]\[1\], got set \{2\}"),
        ({"a": range(3)}, "dict, list, tuple, number, text, .*bool or None"),
        ({(1, 2): 3}, "keys that are text, numbers, bools or None"),
        ({math.nan: 3}, "keys that are text"),
        ({5 * i: i for i in range(30_000)}, "keys that are texts for obj, got too many numbers"),
        (WithState(), r"save its state_dict\(\)"),
        (LOOP, "at most 100 levels"),
        (np.array(["a"]), "a dtype of bools, integers or floats"),
        (np.array([1j]), "a dtype of bools, integers or floats"),
        (np.ma.array([1.0, 2.0], mask=[0, 1]), "an array without a mask for obj, got a masked one"),
        (np.zeros((1,) * 32)[..., None], "up to 32 axes for obj, got 33"),
        (DOUBLING, "at most 10000000 items"),
        ([10**5000], "an integer of up to (4000 digits|255 bytes)"),
    ],
)
def test_refused_objects(obj, text, layout, tmp_path):
    with pytest.raises(TypeError, match=text):
        save(obj, tmp_path / f"x.{layout}")
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
def test_refused_structures(structure, version, reason, refused):
    refused(corrupt(structure, version), reason)


@pytest.mark.parametrize("value", [b"x", numgrad.float32, numgrad.device("cpu")])
def test_what_safetensors_has_no_place_for(value):
    with pytest.raises(TypeError, match=r"in a safetensors file for obj\['a'\]\[1\], got "):
        through({"a": [1, value]})
    assert through({"a": [1, value]}, "pth") == {"a": [1, value]}


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


def layout_1(header, padding, data):
    """A file as numgrad wrote it when it knew safetensors only."""
    header += b" " * padding
    return struct.pack("<Q", len(header)) + header + bytes.fromhex(data)


# A linear layer and Adam after one step, a counter and the random generator.
TRAINING = layout_1(
    b'{"__metadata__":{"format":"numgrad","numgrad_format":"1","numgrad_stru'
    b'cture":"{\\"dict\\":[[\\"model\\",{\\"ordered\\":[[\\"weight\\",{\\"tensor\\":\\"'
    b'model.weight\\"}],[\\"bias\\",{\\"tensor\\":\\"model.bias\\"}]]}],[\\"optimize'
    b'r\\",{\\"dict\\":[[\\"state\\",{\\"dict\\":[[0,{\\"dict\\":[[\\"exp_avg\\",{\\"ten'
    b'sor\\":\\"optimizer.state.0.exp_avg\\"}],[\\"exp_avg_sq\\",{\\"tensor\\":\\"op'
    b'timizer.state.0.exp_avg_sq\\"}],[\\"step\\",1]]}],[1,{\\"dict\\":[[\\"exp_av'
    b'g\\",{\\"tensor\\":\\"optimizer.state.1.exp_avg\\"}],[\\"exp_avg_sq\\",{\\"ten'
    b'sor\\":\\"optimizer.state.1.exp_avg_sq\\"}],[\\"step\\",1]]}]]}],[\\"param_g'
    b'roups\\",[{\\"dict\\":[[\\"lr\\",0.01],[\\"betas\\",{\\"tuple\\":[0.9,0.999]}],'
    b'[\\"eps\\",1e-08],[\\"weight_decay\\",0],[\\"amsgrad\\",false],[\\"params\\",['
    b'0,1]]]}]]]}],[\\"step\\",7],[\\"rng\\",{\\"tensor\\":\\"rng\\"}],[\\"best\\",{\\"'
    b'float\\":\\"nan\\"}]]}"},"rng":{"dtype":"I64","shape":[2],"data_offsets":'
    b'[0,16]},"model.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[16'
    b',24]},"model.bias":{"dtype":"F32","shape":[1],"data_offsets":[24,28]},'
    b'"optimizer.state.0.exp_avg":{"dtype":"F32","shape":[1,2],"data_offsets'
    b'":[28,36]},"optimizer.state.0.exp_avg_sq":{"dtype":"F32","shape":[1,2]'
    b',"data_offsets":[36,44]},"optimizer.state.1.exp_avg":{"dtype":"F32","s'
    b'hape":[1],"data_offsets":[44,48]},"optimizer.state.1.exp_avg_sq":{"dty'
    b'pe":"F32","shape":[1],"data_offsets":[48,52]}}',
    30,
    "00000000000000000200000000000000b96f1cbef933073fd968283f"
    "cdcccc3dcdcccc3d6f12833a6f12833acdcccc3d6f12833a",
)

# Texts, keys, dtypes and an empty tensor.
MIXED = layout_1(
    b'{"__metadata__":{"format":"numgrad","numgrad_format":"1","numgrad_stru'
    b'cture":"{\\"ordered\\":[[\\"\\\\u91cd\\\\u307f\\",{\\"tensor\\":\\"\\\\u91cd\\\\u307f'
    b'\\"}],[\\"h\\",{\\"array\\":\\"h\\"}],[\\"flags\\",{\\"tuple\\":[{\\"tensor\\":\\"fl'
    b'ags.0\\"},{\\"dict\\":[[null,1180591620717411303424],[0.5,\\"x\\\\ny\\"]]}]}]'
    b',[\\"e\\",{\\"tensor\\":\\"e\\"}]]}"},"e":{"dtype":"I64","shape":[0,3],"data'
    b'_offsets":[0,0]},"\xe9\x87\x8d\xe3\x81\xbf":{"dtype":"F32","shape":[1,2],"data_offsets":'
    b'[0,8]},"h":{"dtype":"F16","shape":[2],"data_offsets":[8,12]},"flags.0"'
    b':{"dtype":"BOOL","shape":[2],"data_offsets":[12,14]}}',
    25,
    "0000c03f000000c0003c00400100",
)


def test_files_of_the_earlier_layout_load():
    state = load(io.BytesIO(TRAINING))
    assert len(TRAINING) == 1396 and list(state) == ["model", "optimizer", "step", "rng", "best"]
    weight, bias = state["model"].values()
    assert type(state["model"]) is OrderedDict and type(weight) is Tensor
    assert weight.numpy().tobytes().hex() == "b96f1cbef933073f" and weight.shape == (1, 2)
    assert bias.numpy().tobytes().hex() == "d968283f" and bias.shape == (1,)
    groups = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-08, "weight_decay": 0}
    groups |= {"amsgrad": False, "params": [0, 1]}
    assert equal(state["optimizer"]["param_groups"], [groups])
    assert state["optimizer"]["state"][1]["step"] == 1
    first = state["optimizer"]["state"][0]
    assert equal(first["exp_avg"], tensor(np.array([[0.1, 0.1]], np.float32)))
    assert equal(first["exp_avg_sq"], tensor(np.array([[0.001, 0.001]], np.float32)))
    assert state["step"] == 7 and math.isnan(state["best"])
    assert equal(state["rng"], tensor(np.array([0, 2])))

    mixed = OrderedDict()
    mixed["重み"] = tensor([[1.5, -2.0]])
    mixed["h"] = np.array([1, 2], np.float16)
    mixed["flags"] = (tensor([True, False]), {None: 2**70, 0.5: "x\ny"})
    mixed["e"] = tensor(np.zeros((0, 3), np.int64))
    assert len(MIXED) == 590 and equal(load(io.BytesIO(MIXED)), mixed)


def test_safetensors_library_reads_it(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    state = {"a.b": tensor([[1.0, 2.0]]), "n": 3, "l": [tensor([True])]}
    save(state, tmp_path / "x.safetensors")
    got = numpy.load_file(tmp_path / "x.safetensors")
    assert got["a.b"].tolist() == [[1.0, 2.0]] and got["l.0"].tolist() == [True]
    numpy.save_file({"q": np.arange(3)}, tmp_path / "y")
    assert load(tmp_path / "y")["q"].numpy().tolist() == [0, 1, 2]
