"""The reader takes what the format allows and refuses everything else with one error."""

import contextlib
import io
import json
import math
import struct
import subprocess
import sys

import numpy as np
import pytest

from numgrad.checkpoint import CheckpointError, load, save
from numgrad.ops.creation import tensor
from tests.checkpoint.hostile import COLLIDING


def build(header, data=b"", length=None):
    """A file of a header (an object, text or bytes) and data."""
    if not isinstance(header, (str, bytes)):
        header = json.dumps(header)
    if isinstance(header, str):
        header = header.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def read(data):
    return load(io.BytesIO(data))


EIGHT = bytes(range(8))
GOOD = {"x": entry()}


def test_reads_plain_file():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y = np.array([True, False])
    header = {"x": entry(shape=(2, 3), offsets=(0, 24)), "y": entry("BOOL", (2,), (24, 26))}
    state = read(build(header, x.tobytes() + y.tobytes()))
    assert list(state) == ["x", "y"]
    assert np.array_equal(state["x"].numpy(), x) and state["x"].numpy().dtype == np.float32
    assert np.array_equal(state["y"].numpy(), y) and state["y"].numpy().dtype == np.bool_


def test_header_may_be_padded_and_carry_metadata():
    header = json.dumps({"__metadata__": {"format": "pt"}, **GOOD}) + " " * 13
    assert list(read(build(header, EIGHT))) == ["x"]


def test_order_of_the_data_is_free():
    header = {"b": entry(shape=(1,), offsets=(4, 8)), "a": entry(shape=(1,), offsets=(0, 4))}
    state = read(build(header, struct.pack("<ff", 1, 2)))
    assert list(state) == ["b", "a"]
    assert state["a"].item() == 1 and state["b"].item() == 2


def test_empty_tensors():
    header = {"a": entry(shape=(0, 3), offsets=(0, 0)), "b": entry(shape=(), offsets=(0, 4))}
    header["c"] = entry(shape=(5, 0), offsets=(4, 4))
    state = read(build(header, struct.pack("<f", 7)))
    assert tuple(state["a"].shape) == (0, 3) and tuple(state["c"].shape) == (5, 0)
    assert tuple(state["b"].shape) == () and state["b"].item() == 7
    assert read(build({})) == {}


@pytest.mark.parametrize("name", ["x.safetensors", "x.pth"])
def test_empty_tensors_of_long_axes(name):
    """They take no room, so their lengths say nothing against a small file."""
    file = io.BytesIO()
    file.name = name
    save({"x": tensor(np.zeros((0, 10**6), np.float32))}, file)
    assert read(file.getvalue())["x"].shape == (0, 10**6)


@pytest.mark.parametrize(
    ("code", "values", "wide"),
    [
        ("F16", np.array([1.5, -65504, 6e-8], np.float16), np.float32),
        ("I8", np.array([-128, 127, 0], np.int8), np.int32),
        ("I16", np.array([-32768, 32767, 0], np.int16), np.int32),
        ("U16", np.array([65535, 1, 0], np.uint16), np.int32),
        ("U32", np.array([2**32 - 1, 1, 0], np.uint32), np.int64),
    ],
)
def test_widened_dtypes(code, values, wide):
    data = build({"x": entry(code, (3,), (0, values.nbytes))}, values.tobytes())
    with pytest.warns(UserWarning, match=f"1 tensor of {values.dtype} came as {wide.__name__}"):
        got = read(data)["x"].numpy()
    assert got.dtype == wide and np.array_equal(got, values.astype(wide))


def test_bfloat16():
    values = np.array([1.0, -2.5, 3.0e38, math.inf], np.float32)
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    with pytest.warns(UserWarning, match="1 tensor of bfloat16 came as float32"):
        got = read(build({"x": entry("BF16", (4,), (0, 8))}, upper.tobytes()))["x"].numpy()
    assert got.dtype == np.float32
    assert np.array_equal(got, (upper.astype(np.uint32) << 16).view(np.float32))
    assert got[0] == 1.0 and got[1] == -2.5


BRACKETS = "[" * 100_000 + "]" * 100_000
REFUSED = {
    "header_over_file": (build(GOOD, EIGHT, length=200), "a header of 200 bytes in a file of"),
    "header_over_100_mb": (build(GOOD, EIGHT, length=100_000_001), "100000001 bytes, more than"),
    "header_giant": (build(GOOD, EIGHT, length=2**64 - 1), "more than the 100000000 allowed"),
    "header_empty": (build(""), "neither a file of torch.save"),
    "header_list": (build("[]"), "neither a file of torch.save"),
    "header_space": (build(" {}"), "neither a file of torch.save"),
    "header_bom": (build("\ufeff{}"), "neither a file of torch.save"),
    "not_utf8": (build(b'{"\xff":1}'), "not UTF-8"),
    "not_json": (build('{"x":}'), "not JSON"),
    "two_objects": (build("{}{}"), "not JSON"),
    "nan": (build('{"x":NaN}'), "NaN, which is not JSON"),
    "null_padding": (build(b"{}\x00\x00"), "not JSON"),
    "brackets": (build('{"x":' + BRACKETS + "}"), "nested too deeply"),
    "brackets_open": (build('{"x":' + "[" * 100_000), "nested too deeply"),
    "braces": (build('{"x":' * 100_000), "nested too deeply"),
    "metadata_number": (build({"__metadata__": {"a": 1}}), "not an object of strings"),
    "metadata_list": (build({"__metadata__": ["a"]}), "not an object of strings"),
    "metadata_nested": (build({"__metadata__": {"a": {}}}), "not an object of strings"),
    "entry_number": (build({"x": 3}), "not an object of dtype"),
    "entry_short": (build({"x": {"dtype": "F32"}}), "not an object of dtype"),
    "entry_long": (build({"x": {**entry(), "more": 1}}, EIGHT), "not an object of dtype"),
    "dtype_unknown": (build({"x": entry("F12")}, EIGHT), "unsupported dtype 'F12'"),
    "dtype_lower": (build({"x": entry("f32")}, EIGHT), "unsupported dtype"),
    "dtype_number": (build({"x": entry(3)}, EIGHT), "unsupported dtype"),
    "dtype_list": (build({"x": entry([])}, EIGHT), "unsupported dtype"),
    "dtype_u64": (build({"x": entry("U64", (1,))}, EIGHT), "uint64"),
    "shape_float": (build({"x": entry(shape=[2.0])}, EIGHT), "the shape is no non-negative"),
    "shape_true": (build({"x": entry(shape=[2, True])}, EIGHT), "the shape is no non-negative"),
    "shape_negative": (build({"x": entry(shape=[-1, -2])}, EIGHT), "the shape is no non-negative"),
    "shape_text": (
        build('{"x":{"dtype":"F32","shape":"2","data_offsets":[0,8]}}', EIGHT),
        "the shape is no non-negative",
    ),
    "shape_overflow": (build({"x": entry(shape=[2**32, 2**32], offsets=(0, 0))}), "takes 7378"),
    "shape_overflow_to_0": (build({"x": entry(shape=[2**63, 2])}, EIGHT), "overflows"),
    "shape_overflow_of_0": (build({"x": entry("I8", [0, 2**62, 2], (0, 0))}), "overflows"),
    "shape_overflow_0": (build({"x": entry(shape=[0, 2**40, 2**40], offsets=(0, 0))}), "overflows"),
    "shape_digits": (
        build('{"x":{"dtype":"F32","shape":[1' + "0" * 5000 + '],"data_offsets":[0,8]}}', EIGHT),
        "5001 digits",
    ),
    "shape_giant": (build({"x": entry(shape=[10**12])}, EIGHT), "takes 4000000000000 bytes"),
    "axes": (build({"x": entry(shape=[1] * 33, offsets=(0, 4))}, bytes(4)), "33 axes"),
    "size_small": (build({"x": entry(shape=[1])}, EIGHT), "takes 4 bytes, the offsets give it 8"),
    "size_large": (build({"x": entry(shape=[3])}, EIGHT), "takes 12 bytes"),
    "offsets_reversed": (build({"x": entry(offsets=(8, 0))}, EIGHT), "before its begin"),
    "offsets_negative": (build({"x": entry(offsets=(-8, 0))}, EIGHT), "no two positions"),
    "offsets_three": (build({"x": entry(offsets=(0, 8, 8))}, EIGHT), "no two positions"),
    "offsets_float": (build({"x": entry(offsets=(0, 8.0))}, EIGHT), "no two positions"),
    "offsets_over": (build({"x": entry(offsets=(8, 16))}, EIGHT), "after the last of 8 bytes"),
    "overlap": (
        build({"x": entry(shape=(1,), offsets=(0, 4)), "y": entry(offsets=(0, 8))}, EIGHT),
        "overlaps",
    ),
    "same_bytes": (build({"x": entry(), "y": entry()}, EIGHT), "overlaps"),
    "hole": (build({"x": entry(), "y": entry(offsets=(12, 20))}, bytes(20)), "follows a hole"),
    "hole_first": (build({"x": entry(offsets=(4, 12))}, bytes(12)), "follows a hole"),
    "trailing": (build(GOOD, bytes(9)), "1 bytes belong to no tensor"),
    "trailing_only": (build({}, bytes(9)), "9 bytes belong to no tensor"),
    "duplicate": (
        build(f'{{"x":{json.dumps(entry())},"x":{json.dumps(entry())}}}', EIGHT),
        "twice",
    ),
    "duplicate_metadata": (build('{"__metadata__":{},"__metadata__":{}}'), "twice"),
    "name_nul": (build({"x\x00": entry()}, EIGHT), "control character"),
    "name_newline": (build({"x\n": entry()}, EIGHT), "control character"),
    "name_surrogate": (build('{"\\ud800":' + json.dumps(entry()) + "}", EIGHT), "half a surrogate"),
    "keys_of_one_hash": (
        build(
            {
                "__metadata__": {
                    "numgrad_format": "1",
                    "numgrad_structure": json.dumps({"dict": [[k, 1] for k in COLLIDING]}),
                }
            }
        ),
        "too many keys",
    ),
    "bool_two": (build({"x": entry("BOOL", (8,))}, EIGHT), "neither 0 nor 1"),
}


def test_one_warning_for_all_widened_tensors():
    header = {
        "a": entry("F16", (1,), (0, 2)),
        "b": entry("I16", (1,), (2, 4)),
        "c": entry("F16", (1,), (4, 6)),
        "d": entry("U8", (1,), (6, 7)),
    }
    with pytest.warns(UserWarning) as caught:
        read(build(header, bytes(7)))
    assert [str(warning.message) for warning in caught] == [
        "load: file: 2 tensors of float16 came as float32, 1 tensor of int16 came as int32, "
        "which hold all their values"
    ]


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, refused):
    refused(*REFUSED[name])


def test_japanese_names():
    assert list(read(build({"重み": entry()}, EIGHT))) == ["重み"]


SMALL = {
    "a": tensor(np.array([1.5, -2.0], np.float32)),
    "b": [tensor(np.array([True])), {"c": None}],
}


def small():
    file = io.BytesIO()
    file.name = "small.safetensors"
    save(SMALL, file)
    return file.getvalue()


def test_every_prefix_is_refused():
    data = small()
    assert len(data) < 500
    for length in range(len(data)):
        with pytest.raises(CheckpointError):
            read(data[:length])


@pytest.mark.parametrize("mask", [0xFF, 0x01])
def test_every_flipped_byte(mask):
    """Whatever byte is wrong: an object of the file's own bytes, or the one error."""
    data = small()
    loaded = 0
    for i in range(len(data)):
        changed = bytearray(data)
        changed[i] ^= mask
        try:
            read(bytes(changed))
            loaded += 1
        except CheckpointError:
            pass
    assert loaded < len(data) // 2  # padding, texts, and the floats themselves


def test_random_bytes_between():
    random = np.random.RandomState(0)
    data = small()
    for _ in range(300):
        start = random.randint(len(data))
        junk = random.bytes(random.randint(1, 30))
        for changed in (data[:start] + junk + data[start:], data[:start] + junk):
            with contextlib.suppress(CheckpointError):
                read(changed)


class Failing(io.BytesIO):
    def read(self, *args):
        raise OSError("the disk is gone")


def test_read_errors_name_the_file():
    with pytest.raises(CheckpointError, match="the disk is gone"):
        load(Failing(b"abc"))


def test_errors_survive_pickling():
    import pickle

    error = pickle.loads(pickle.dumps(CheckpointError("a.st", "header", "broken")))
    assert str(error) == "a.st: header: broken" and isinstance(error, RuntimeError)


def test_files_of_text_are_refused():
    with pytest.raises(TypeError, match="load: expected a file of bytes for file"):
        load(io.StringIO("abc"))


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none")


@pytest.mark.parametrize(
    "header", ['{"x":' + BRACKETS + "}", '{"x":["\\"]", ' + "[" * 100_000, '{"x":' * 100_000]
)
def test_nesting_where_python_does_not_stop_it(header, tmp_path):
    """With the limit of calls raised Python's parser would overflow the stack of the process."""
    path = tmp_path / "deep.safetensors"
    path.write_bytes(build(header))
    program = (
        "import sys\nfrom numgrad.checkpoint import CheckpointError, load\n"
        f"sys.setrecursionlimit(10**6)\ntry: load({str(path)!r})\n"
        "except CheckpointError as error: print(error.reason)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and "nested too deeply" in done.stdout, done.stderr
