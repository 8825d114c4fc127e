"""What stands beside tensors in the files of ``torch.save``, and how what is refused is told of."""

import io
import pickle
import struct
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

import numgrad
from numgrad.checkpoint import CheckpointError, load, save
from numgrad.checkpoint.limits import SMALL_EXPANSION_BYTES
from numgrad.checkpoint.listing import listing
from tests.checkpoint.makers import (
    PARAMETER,
    Entry,
    Global,
    Pid,
    Placed,
    Raw,
    Reduce,
    dumps,
    parameter,
    safetensors,
    state_dict,
    storage,
    stream,
    tar,
    tar_storages,
    v2,
    zip_bytes,
    zip_entries,
    zipped,
)

PICKLED = {
    "stream": lambda obj: stream(obj, {}),
    "zip": lambda obj: zipped(obj, {}),
    "tar": lambda obj: tar(obj, {}, {}),
}


def of(obj, form="zip"):
    """What is read of a file of an object."""
    return load(io.BytesIO(PICKLED[form](obj)))


def refusal(data):
    """The error of a file."""
    with pytest.raises(CheckpointError) as caught:
        load(io.BytesIO(data))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
    return caught.value


def text(opcodes):
    """A pickle of protocol 5."""
    return b"\x80\x05" + opcodes + b"."


# ------------------------------------------------------------------------------------ dtypes

OWN = {
    "float32": numgrad.float32,
    "float": numgrad.float32,
    "float64": numgrad.float64,
    "double": numgrad.float64,
    "int32": numgrad.int32,
    "int64": numgrad.int64,
    "long": numgrad.int64,
    "uint8": numgrad.uint8,
    "bool": np.dtype(bool),
}
OTHER = (
    *("bfloat16", "float16", "int8", "int16", "uint16"),
    *("uint32", "uint64", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "quint8"),
    *("qint32", "bits8", "int4", "uint7"),
)


@pytest.mark.parametrize("name", OWN)
def test_dtypes_as_values(name):
    assert of({"dtype": Global("torch", name)}) == {"dtype": OWN[name]}


@pytest.mark.parametrize("form", PICKLED)
def test_dtypes_that_numgrad_has_not_as_values(form):
    got = of({name: Global("torch", name) for name in OTHER}, form)
    assert got == {name: f"torch.{name}" for name in OTHER}
    assert all(type(value) is str for value in got.values())


def test_short_names_of_dtypes_come_as_the_long_ones():
    assert of([Global("torch", "half"), Global("torch", "short")]) == [
        "torch.float16",
        "torch.int16",
    ]


def test_layouts():
    layout = Reduce(Global("torch.serialization", "_get_layout"), ("torch.strided",))
    assert of([layout]) == ["torch.strided"]
    wrong = Reduce(Global("torch.serialization", "_get_layout"), ("torch.load",))
    assert "a torch.layout 'torch.load'" in refusal(zipped([wrong], {})).reason


def test_dtypes_of_numpy_as_values():
    dtypes = [np.dtype(t) for t in ("float16", "float32", "int8", "uint16", "bool", ">f4")]
    got = load(io.BytesIO(zipped(pickle.dumps(dtypes, 2), {})))
    assert got == [*dtypes[:-1], np.dtype("float32")]
    assert all(isinstance(dtype, np.dtype) for dtype in got)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "complex32", "quint8"])
def test_tensors_of_dtypes_that_cannot_be_held(name):
    on = storage("0", Global("torch.storage", "UntypedStorage"), 8, short=True)
    make = Global("torch._utils", "_rebuild_tensor_v3")
    tensor = Reduce(make, (on, 0, (2,), (1,), False, None, Global("torch", name)))
    error = refusal(zipped({"layer.w": tensor}, {"0": bytes(8)}))
    assert error.reason == f"unsupported kind: a tensor of torch.{name}"
    assert "after 'layer.w'" in error.where


# ---------------------------------------------------------------------------- Python's values


def built(name, *args):
    return Reduce(Global("__builtin__", name), args)


def test_bytearrays_and_complex_numbers():
    two = Reduce(Global("builtins", "bytearray"), (Raw(b"C\3abc"),))
    got = of([built("bytearray"), two, built("bytearray", "a\xff", "latin-1")])
    assert got == [bytearray(), bytearray(b"abc"), bytearray(b"a\xff")]
    assert all(type(value) is bytearray for value in got)
    assert of([built("complex", 1.5, -2.0)]) == [1.5 - 2j]


@pytest.mark.parametrize("protocol", range(2, 6))
def test_bytearrays_and_complex_numbers_of_every_protocol(protocol):
    values = {"a": bytearray(b"abc"), "b": bytearray(), "c": 1j, "d": b"x"}
    shared = [values["a"], values]
    got = of(pickle.dumps(shared, protocol))
    assert got == shared and got[0] is got[1]["a"]


def test_bytearrays_and_complex_numbers_are_saved():
    values = {"a": bytearray(range(256)), "b": bytearray(), "c": [1.5 - 2j, np.complex128(3j)]}
    file = io.BytesIO()
    save([values["a"], values], file)
    file.seek(0)
    got = load(file)
    assert got == [values["a"], values] and got[0] is got[1]["a"]
    assert type(got[0]) is bytearray and [type(c) for c in got[1]["c"]] == [complex, complex]


@pytest.mark.parametrize("value", [bytearray(b"a"), 1j])
def test_safetensors_has_no_place_for_them(value, tmp_path):
    with pytest.raises(TypeError, match=r"in a safetensors file for obj\['a'\], got"):
        save({"a": value}, tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    "value",
    [
        built("bytearray", 10**9),
        built("bytearray", "abc"),
        built("bytearray", "abc", "utf-8"),
        built("bytearray", [1, 2]),
        built("complex", 1.0),
        built("complex", "1j", 0.0),
        built("complex", 10**400, 0.0),
        Raw(b"\x96" + struct.pack("<Q", 1 << 60)),
    ],
)
def test_bytearrays_and_complex_numbers_of_something_else(value):
    assert refusal(zipped([value], {}))


def test_copies_of_bytearrays_are_counted():
    size = 1 << 18
    call = b"h\0h\1\x85R"
    many = b"cbuiltins\nbytearray\nq\0B" + struct.pack("<I", size) + bytes(size) + b"q\1"
    assert (
        "more copies of its data"
        in refusal(zipped(text(b"](" + many + call * 99 + b"e"), {})).reason
    )
    array = b"cnumpy._core.numeric\n_frombuffer\n(h\3h\1M\0\1M\0\4\x86U\1CtR"
    dtype = b"cnumpy\ndtype\nU\2u1\x89\x88\x87Rq\1"
    many = b"\x96" + struct.pack("<Q", size) + bytes(size) + b"q\3"
    data = text(b"](" + many + dtype + array * 99 + b"e")
    assert "more copies of its data" in refusal(zipped(data, {})).reason


WAYS_OUT = {
    "__builtin__.set": "list",
    "builtins.set": "list",
    "builtins.frozenset": "tuple",
    "builtins.range": "tuple",
    "builtins.slice": "tuple",
    "collections.deque": "list",
    "collections.defaultdict": "dict",
    "pathlib.PosixPath": "text",
    "pathlib._local.PosixPath": "text",
    "pathlib.PureWindowsPath": "text",
    "datetime.datetime": "text",
    "argparse.Namespace": "dict, vars",
}


@pytest.mark.parametrize("name", WAYS_OUT)
def test_what_to_make_of_values_that_are_not_read(name):
    module, _, cls = name.rpartition(".")
    error = refusal(zipped({"epochs": 3, "done": Reduce(Global(module, cls), ([],))}, {}))
    assert f"it has {name}, which numgrad does not read; make it a {WAYS_OUT[name]}" in error.reason
    assert "state_dict" not in error.reason and "after 'done'" in error.where


@pytest.mark.parametrize("value", [{1, 2}, frozenset([1])])
def test_sets_of_protocol_4(value):
    error = refusal(zipped(pickle.dumps({"done": value}, 4), {}))
    assert error.reason == "it has a set, which numgrad does not read; make it a list, and save"


def test_a_class_is_told_with_its_place():
    error = refusal(zipped({"epochs": 3, "model": Reduce(Global("net", "Net"))}, {}))
    assert "it refers to net.Net, a class or a function" in error.reason
    assert "state_dict()" in error.reason and error.where.endswith("after 'model'")


def test_keys_that_are_numbers_of_numpy():
    keys = {np.int64(7): "a", np.float32(0.5): "b", np.bool_(True): "c"}
    got = load(io.BytesIO(zipped(pickle.dumps(keys, 2), {})))
    assert got == {7: "a", 0.5: "b", True: "c"}
    assert [type(key) for key in got] == [int, float, bool]


# ----------------------------------------------------------------------------- NumPy's arrays

BASE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
ARRAYS: dict[str, Callable[[], np.ndarray]] = {
    "contiguous": lambda: BASE.copy(),
    "columns first": lambda: np.asfortranarray(BASE),
    "axes swapped": lambda: BASE.copy().transpose(1, 0, 2),
    "strided": lambda: BASE[:, ::2],
    "of one number": lambda: np.array(3, np.int16),
    "empty": lambda: np.zeros((0, 3)),
    "booleans": lambda: np.array([True, False]),
    "big-endian": lambda: BASE.astype(">f4"),
    "half": lambda: BASE.astype(np.float16),
}


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_every_protocol(name, protocol):
    array = ARRAYS[name]()
    read_only = array.copy()
    read_only.flags.writeable = False
    got = of(pickle.dumps([array, read_only], protocol))
    for part in got:
        assert type(part) is np.ndarray and part.shape == array.shape
        assert part.dtype == array.dtype.newbyteorder("=") and np.array_equal(part, array)
        assert part.flags.writeable


def frombuffer(*args):
    """An array as protocol 5 makes it; the dtype is that of float32."""
    dtype = Reduce(Global("numpy", "dtype"), ("f4", False, True))
    args = tuple(dtype if arg is np.float32 else arg for arg in args)
    return Reduce(Global("numpy.core.numeric", "_frombuffer"), args)


SIX = Raw(b"C\x18" + np.arange(6, dtype=np.float32).tobytes())


def test_arrays_whose_axes_have_an_order():
    got = of([frombuffer(SIX, np.float32, (1, 2, 3), "K", (2, 0, 1))])[0]
    want = np.arange(6, dtype=np.float32).reshape(1, 2, 3).transpose(2, 0, 1)
    assert got.shape == (3, 1, 2) and np.array_equal(got, want)


@pytest.mark.parametrize(
    "args",
    [
        (SIX, np.float32, (7,), "C"),
        (SIX, np.float32, (2**62, 2**62, 0), "C"),
        (SIX, np.float32, (-6,), "C"),
        (SIX, np.float32, 6, "C"),
        (SIX, np.float32, (6,), "A"),
        (SIX, np.float32, (6,), "K"),
        (SIX, np.float32, (6,), "C", (0,)),
        (SIX, np.float32, (2, 3), "K", (0, 0)),
        (SIX, np.float32, (2, 3), "K", (0, 2)),
        (SIX, np.float32, (2, 3), "K", (0, "1")),
        (SIX, np.float32, (2, 3), "K", 5),
        (SIX, "f4", (6,), "C"),
        ([1.0], np.float32, (1,), "C"),
        (SIX, np.float32, (6,)),
    ],
)
def test_arrays_of_protocol_5_that_lie(args):
    assert refusal(zipped([frombuffer(*args)], {}))


# ---------------------------------------------------------------------------- tensors, places


@pytest.mark.parametrize("form", ["zip", "stream"])
def test_expanded_tensors(form):
    on = storage("0", "Float", 1, short=form == "zip")
    make = {"zip": zipped, "stream": stream}[form]
    side = int((SMALL_EXPANSION_BYTES // 4) ** 0.5)
    data = make({"mask": v2(on, 0, (side, side), (0, 0))}, {"0": np.ones(1, np.float32)})
    got = load(io.BytesIO(data))["mask"]
    assert tuple(got.shape) == (side, side) and got.stride() == (0, 0) and got[3, 5].item() == 1
    data = make({"mask": v2(on, 0, (side, side + 1), (0, 0))}, {"0": np.ones(1, np.float32)})
    error = refusal(data)
    assert "larger than the file of" in error.reason and ".contiguous() copy" in error.reason
    assert "after 'mask'" in error.where


def test_expanded_tensors_share_memory_when_saved():
    base = numgrad.ones(1)
    file = io.BytesIO()
    save({"a": base, "b": base.expand(100, 100)}, file)
    assert len(file.getvalue()) < 3000
    file.seek(0)
    got = load(file)
    with numgrad.no_grad():
        got["a"][0] = 7
    assert got["b"][99, 99].item() == 7


LONG4 = storage("0", "Long", 4, short=True)


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("form", PICKLED)
def test_parameters_of_integers(form, new):
    make = {
        "zip": lambda obj: zipped(obj, {"0": np.arange(4)}),
        "stream": lambda obj: stream(obj, {"0": np.arange(4)}),
        "tar": lambda obj: tar(obj, {90: np.arange(4)}, {80: Placed(90, (4,), kind="Long")}),
    }[form]
    on = storage("0", "Long", 4, short=form == "zip")
    tensor = Pid("80") if form == "tar" else v2(on, 0, (4,))
    error = refusal(make({"w": Reduce(PARAMETER, (tensor,), new)}))
    assert error.where == "object['w']"
    assert error.reason == "a tensor of int64 that requires a gradient"
    frozen = Reduce(PARAMETER, (tensor,), new, state=(False, False, {}))
    assert not load(io.BytesIO(make({"w": frozen})))["w"].requires_grad


UNTYPED = Global("torch.storage", "UntypedStorage")


@pytest.mark.parametrize("views", [[], [(8, 7, 4, 8)]])
def test_tar_files_are_older_than_storages_without_a_dtype(views):
    args = (Pid("7"), 0, (4,), (1,), False, None, Global("torch", "float32"))
    whole = Reduce(Global("torch._utils", "_rebuild_tensor_v3"), args)
    args = (Pid("8"), 0, (2,), (1,), False, None, Global("torch", "float32"))
    view = Reduce(Global("torch._utils", "_rebuild_tensor_v3"), args)
    storages = tar_storages({7: (UNTYPED, struct.pack("<q", 16) + bytes(16))}, views)
    for obj in ([whole, view], [view, whole], [view], [whole])[0 if views else 3 :]:
        assert "no class of storages" in refusal(tar(obj, storages, {})).reason


def test_errors_of_elements_name_the_tensor():
    on = storage("0", "Float", 4, short=True)
    entries = zip_entries({"net": {"w": parameter(v2(on, 0, (4,)))}}, {"0": bytes(16)})
    broken = [Entry(e.name, e.data, crc=5) if e.name.endswith("data/0") else e for e in entries]
    for read in (load, listing):
        with pytest.raises(CheckpointError, match="its CRC is wrong") as caught:
            read(io.BytesIO(zip_bytes(broken)))
        assert caught.value.where == "object['net']['w'], storage '0'"


def test_unsupported_elements_name_the_tensor():
    on = storage("0", Global("torch.storage", "UntypedStorage"), 8, short=True)
    make = Global("torch._utils", "_rebuild_tensor_v3")
    tensor = Reduce(make, (on, 0, (1,), (1,), False, None, Global("torch", "uint64")))
    data = zipped({"x": [tensor]}, {"0": bytes(8)})
    for read in (load, listing):
        with pytest.raises(CheckpointError, match="unsupported dtype uint64") as caught:
            read(io.BytesIO(data))
        assert caught.value.where == "object['x'][0], storage '0'"
    broken = bytearray(safetensors({"w": np.array([True, False])}))
    broken[-1] = 7
    assert refusal(bytes(broken)).where == "tensor 'w'"


@pytest.mark.parametrize(
    "obj", [{"w": np.ones(2)}, {"w": 1.5}, [1], Counter("a"), 7, 1.5, "text", None]
)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_pickles(obj, protocol):
    error = refusal(pickle.dumps(obj, protocol) + bytes(8))
    assert error.where.startswith("plain pickle, byte ")
    assert "no torch.save wrote it" in error.reason and "pickle.load" in error.reason


def test_streams_of_torch_are_no_plain_pickles():
    data = stream({"w": 1}, {}, version=dumps(1002))
    assert refusal(data).reason == "the protocol version is 1002, not 1001"


@pytest.mark.parametrize("form", ["stream", "zip"])
def test_names_of_tensors_that_lie(form):
    data = state_dict({"first": np.ones(3, np.float32), "second": np.ones(5, np.float32)}, form)
    at = data.index(b"second")
    wrong = data[:at] + data[at:].replace(b"K\5\x85", b"K\6\x85", 1)
    if form == "zip":
        entries = zip_entries(
            {"first": 1, "second": v2(storage("0", "Float", 5, short=True), 0, (6,))},
            {"0": np.ones(5, np.float32)},
        )
        wrong = zip_bytes(entries)
    error = refusal(wrong)
    assert "reaches element 5 of a storage of 5" in error.reason
    assert error.where.endswith(", after 'second'")
