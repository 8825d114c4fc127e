"""NumPy's archives: read as data or refused, written for ``numpy.load``."""

import io
from collections import Counter, OrderedDict

import numpy as np
import pytest

from numgrad.checkpoint import CheckpointError, load, save
from numgrad.ops.creation import ones, tensor
from numgrad.tensor import Tensor
from numgrad.variable import Parameter
from tests.checkpoint.makers import Entry, zip_bytes

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "mask": np.array([True, False]),
    "scalar": np.array(5),
    "empty": np.zeros((0, 10**6)),
    "big": np.arange(3, dtype=">i4"),
    "folder/name": np.array([1, 255], np.uint8),
    "重み": np.zeros((1, 2, 3, 4), np.float32),
}


def savez(arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def read(data):
    return load(io.BytesIO(data))


def npy(descr="'<f4'", order="False", shape="(2,)", data=bytes(8), version=(1, 0), header=None):
    """A .npy file, each part as text."""
    if header is None:
        header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"
    text = header.encode() if isinstance(header, str) else header
    length = len(text).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + bytes(version) + length + text + data


def one(data, name="x.npy", **how):
    return zip_bytes([Entry(name, data, **how)])


def test_reads_what_numpy_writes():
    state = read(savez(ARRAYS))
    assert type(state) is OrderedDict and list(state) == list(ARRAYS)
    for name, array in ARRAYS.items():
        got = state[name]
        assert type(got) is Tensor and got.shape == array.shape
        assert got.dtype == array.dtype.newbyteorder("=") and np.array_equal(got.numpy(), array)
    assert state["fortran"].stride() == (1, 2)


def test_numpy_reads_what_is_written(tmp_path):
    state = read(savez(ARRAYS))
    state["view"] = state["a"].t()
    state["parameter"] = Parameter(ones(2))
    state["array"] = np.array([1.5], np.float16)
    state["swapped"] = np.arange(3, dtype=">i2")
    path = tmp_path / "x.npz"
    save(state, path)
    with np.load(path) as found:
        assert list(found) == list(state)
        for name, value in state.items():
            array = value.detach().numpy() if isinstance(value, Tensor) else value
            assert found[name].dtype == array.dtype.newbyteorder("=")
            assert np.array_equal(found[name], array)
            assert found[name].shape == array.shape
    with pytest.warns(UserWarning, match="1 tensor of float16 came as float32, 1 tensor of int16"):
        again = load(path)
    assert all(
        np.array_equal(again[name].numpy(), state[name].numpy()) for name in (*ARRAYS, "view")
    )


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }          \n",
        "{'shape':(2,),'fortran_order':True,'descr':'<f4'}",
        '{"descr": "<f4", "fortran_order": False, "shape": (2L,)}',
        " { 'descr' : '<f4' , 'fortran_order' : False , 'shape' : ( 2 , ) } ",
    ],
)
def test_headers_of_other_writers(header, version):
    data = npy(header=header, version=version, data=np.array([1, -2], "<f4").tobytes())
    assert read(one(data))["x"].tolist() == [1, -2]


REFUSED = {
    "compressed": (
        one(npy(), method=8),
        "a compressed .npz archive; load it with numpy.load and save it with numpy.savez",
    ),
    "not npy": (one(b"x" * 50), "no .npy file"),
    "short": (one(b"\x93NUMPY"), "no .npy file"),
    "others": (zip_bytes([Entry("x.npy", npy()), Entry("a/data.pkl", b"N.")]), "no .npy file"),
    "version": (one(npy(version=(4, 0))), "version 4.0 of the .npy format"),
    "minor version": (one(npy(version=(1, 1))), "version 1.1 of the .npy format"),
    "header over the record": (one(npy()[:40]), "a header of 58 bytes in a record of 40"),
    "giant header": (
        one(b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(20)),
        "more than 10000",
    ),
    "objects": (one(npy("'|O'")), "Python objects, which are code"),
    "texts": (one(npy("'<U2'")), "unsupported dtype '<U2'"),
    "complex": (one(npy("'<c8'")), "unsupported dtype '<c8'"),
    "times": (one(npy("'<M8[s]'")), "unsupported dtype"),
    "structured": (one(npy("[('a', '<f4'), ('b', '<f4')]")), "its header is no dict"),
    "no byte order": (one(npy("'|f4'")), "unsupported dtype"),
    "native byte order": (one(npy("'=f4'")), "unsupported dtype"),
    "order of bytes": (one(npy("'<u1'", shape="(8,)")), "unsupported dtype"),
    "uint64": (one(npy("'<u8'", shape="(1,)")), "unsupported dtype uint64"),
    "empty descr": (one(npy("''")), "its header is no dict"),
    "larger": (one(npy(shape="(3,)")), "takes 12 bytes, it has 8"),
    "smaller": (one(npy(shape="(1,)")), "takes 4 bytes, it has 8"),
    "giant": (one(npy(shape="(1000000000000,)")), "takes 4000000000000 bytes"),
    "overflow": (one(npy(shape="(4294967296, 4294967296)", data=b"")), "takes"),
    "overflow of nothing": (
        one(npy(shape="(0, 1099511627776, 1099511627776)", data=b"")),
        "overflows",
    ),
    "many axes": (one(npy(shape="(" + "1, " * 32 + "2)")), "33 axes"),
    "negative": (one(npy(shape="(-2,)")), "its header is no dict"),
    "float": (one(npy(shape="(2.0,)")), "its header is no dict"),
    "boolean": (one(npy(shape="(True,)")), "its header is no dict"),
    "a number": (one(npy(shape="(2)")), "its header is no dict"),
    "a sum": (one(npy(shape="(1+1,)")), "its header is no dict"),
    "digits": (one(npy(shape="(1" + "0" * 5000 + ",)")), "its header is no dict"),
    "a call": (one(npy(order="__import__('os')")), "its header is no dict"),
    "escape": (one(npy("'\\\\x3cf4'")), "its header is no dict"),
    "order": (one(npy(order="'False'")), "its header is no dict"),
    "twice": (
        one(npy(header="{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}")),
        "its header is no dict",
    ),
    "missing": (one(npy(header="{'descr': '<f4', 'shape': (2,)}")), "its header is no dict"),
    "brackets": (one(npy(header="{" + "(" * 9000)), "its header is no dict"),
    "not UTF-8": (one(npy(header=b"{\xff}")), "its header is no dict"),
    "bool": (one(npy("'|b1'", shape="(1,)", data=b"\x02")), "neither 0 nor 1"),
    "newline": (one(npy(), "a\nb.npy"), "a control character"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, refused):
    refused(*REFUSED[name])


def test_every_prefix_and_every_flipped_byte():
    """The checksum covers header and elements: whatever changes in a record is noticed."""
    data = savez({"a": np.array([1.5, -2], np.float32), "b": np.array([True])})
    assert len(data) < 900
    for length in range(len(data)):
        with pytest.raises(CheckpointError):
            read(data[:length])
    inside = range(data.index(b"\x93NUMPY"), data.index(b"PK\x03\x04", 10))
    verdicts = Counter()
    for at in range(len(data)):
        for mask in (0xFF, 0x01):
            changed = bytearray(data)
            changed[at] ^= mask
            try:
                read(bytes(changed))
                verdicts["loaded"] += 1
                assert at not in inside
            except CheckpointError:
                verdicts["refused"] += 1
    print(dict(verdicts))
    assert verdicts["refused"] > 2 * len(inside)


@pytest.mark.parametrize(
    ("obj", "text"),
    [
        ([ones(1)], "a dict with a tensor in an .npz file for obj"),
        ({}, "a dict with a tensor"),
        ({"a": ones(1), "n": 3}, r"a tensor or an array in an .npz file for obj\['n'\], got int 3"),
        ({"a": {"b": ones(1)}}, "a tensor or an array"),
        ({3: ones(1)}, "a name without control characters"),
        ({"a\nb": ones(1)}, "a name without control characters"),
        ({"a": np.array(["x"])}, "a dtype of bools, integers or floats"),
        ({"a": np.ma.array([1.0])}, "an array without a mask"),
    ],
)
def test_what_does_not_fit(obj, text, tmp_path):
    save({"old": tensor([1.0])}, tmp_path / "x.npz")
    with pytest.raises(TypeError, match=text):
        save(obj, tmp_path / "x.npz")
    assert list(load(tmp_path / "x.npz")) == ["old"]
