"""Pickles of plain data read as Python's own pickle reads them; everything else is refused."""

import io
import pickle
import pickletools
import struct
from collections import Counter, OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numgrad.checkpoint import CheckpointError, pickles
from numgrad.checkpoint.names import finish
from numgrad.checkpoint.pickles import Interpreter
from numgrad.checkpoint.source import Cursor, Source


def interpret(data, persistent=None):
    source = Source(io.BytesIO(data), "made", 0, len(data))
    cursor = Cursor(source, 0, len(data), "pickle")
    obj = finish(source, Interpreter(source).run(cursor, persistent))
    assert cursor.position == len(data)
    return obj


def same(a, b):
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


KEYS = st.none() | st.booleans() | st.integers(2, 2**60 - 1) | st.text(max_size=5) | st.binary()
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.text(st.characters(categories=["Cs", "L"]), max_size=3)
    | st.binary()
)
OBJECTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4).map(OrderedDict)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("protocol", range(6))
@settings(max_examples=60, deadline=None)
@given(obj=OBJECTS)
def test_data_are_read_as_by_python(protocol, obj):
    assert same(interpret(pickle.dumps(obj, protocol)), obj)


@pytest.mark.parametrize("protocol", range(5))
def test_numpy_data(protocol):
    dtypes = ("<f4", ">f8", "i1", "<u2", ">i8", "?")
    arrays = [np.arange(6).reshape(2, 3).astype(dtype) for dtype in dtypes]
    arrays += [np.asfortranarray(arrays[0]), np.zeros((0, 3)), np.array(2.5), np.float16([1, 2])]
    numbers = [np.float64(0.1), np.int32(-7), np.bool_(True), np.float32("nan")]
    read = interpret(pickle.dumps([arrays, numbers, Counter("abca")], protocol))
    native = [a.astype(a.dtype.newbyteorder("=")) for a in arrays]
    assert same(read, [native, numbers, Counter("abca")])
    read[0][0][0, 0] = 5  # memory of its own, not the file's


def test_objects_at_two_places_stay_one():
    shared = [1]
    obj = interpret(pickle.dumps({"a": shared, "b": (shared, shared)}))
    assert obj["a"] is obj["b"][0] is obj["b"][1]


def test_texts_of_python_2():
    data = b"\x80\x02(U\x06\xe9\x87\x8d\xe3\x81\xbfU\x01\xe9t."
    assert interpret(data) == ("重み", "é")
    assert {type(text) for text in interpret(data)} == {str}


def test_numpy_data_of_python_2():
    """There the bytes of an array are a text."""
    values = np.array([1.0, -2.5], "<f8")
    raw = values.tobytes()
    data = (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02\x85cnumpy\ndtype\n(U\x02f8K\x00K\x01tR"
        b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + b"U"
        + bytes([len(raw)])
        + raw
        + b"tb."
    )
    assert same(interpret(data), values)


def test_persistent_ids_are_asked_for():
    asked = []
    assert interpret(b"\x80\x02(U\x01aU\x01bQtQ.", lambda pid: asked.append(pid) or 1) == 1
    assert asked == ["b", ("a", 1)]
    assert interpret(b"P12\n.", lambda pid: int(pid)) == 12


def test_every_opcode_is_read_or_refused_by_name():
    known = set(pickles._ACTIONS) | set(pickles._REFUSED) | {b"."}
    assert known == {op.code.encode("latin-1") for op in pickletools.opcodes}


def nested(depth):
    return b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."


REFUSED = {
    "global": (b"cposix\nsystem\n.", "posix.system, a class or a function"),
    "global popped": (b"cposix\nsystem\n0N.", "posix.system"),
    "reduce": (b"cposix\nsystem\n(U\x02lstR.", "posix.system"),
    "stack global": (b"\x8c\x05posix\x8c\x06system\x93.", "posix.system"),
    "global of texts": (b"K\x01\x8c\x06system\x93.", "global's name that is 1"),
    "attribute": (b"ccollections\nOrderedDict.__globals__\n.", "OrderedDict.__globals__"),
    "split otherwise": (b"ctorch\n_utils._rebuild_tensor\n.", "torch._utils._rebuild_tensor"),
    "builtin": (b"c__builtin__\neval\n.", "__builtin__.eval"),
    "inst": (b"(iposix\nsystem\n.", "INST"),
    "obj": (b"(cposix\nsystem\no.", "posix.system"),
    "obj of data": (b"(No.", "OBJ"),
    "newobj": (b"ccollections\nOrderedDict\n)\x81.", "an object of collections.OrderedDict"),
    "newobj of data": (b"N)\x81.", "an object of a NoneType"),
    "newobj ex": (b"N)}\x92.", "NEWOBJ_EX"),
    "ext": (b"\x82\x01.", "EXT1"),
    "call of data": (b"N)R.", "it calls a NoneType"),
    "call of a call": (b"ccollections\nOrderedDict\n)R)R.", "it calls a OrderedDict"),
    "call of a dtype": (b"ctorch\nfloat32\n)R.", "it calls torch.float32"),
    "arguments": (b"ccollections\nOrderedDict\n]R.", "no tuple"),
    "build": (b"}}b.", "sets attributes of a dict"),
    "build of a class": (b"ccollections\nOrderedDict\n}b.", "sets attributes of a Global"),
    "build of ordered": (b"ccollections\nOrderedDict\n)R}U\x01xNsb.", "attributes of a dict"),
    "class left over": (b"ccollections\nOrderedDict\n.", "where data should be"),
    "setitem": (b"]K\x01K\x02s.", "which is no dict"),
    "setitems": (b"N(K\x01K\x02u.", "which is no dict"),
    "append": (b"}Na.", "which is no list"),
    "appends": (b")(Ne.", "which is no list"),
    "key": (b"}}Ns.", "key that is a dict"),
    "key of tuples": (b"})\x85\x85Ns.", "key that is a tuple"),
    "key twice": (b"}(K\x01NK\x01Nu.", "twice"),
    "half a pair": (b"}(K\x01u.", "without a value"),
    "underflow": (b"0.", "more from its stack"),
    "underflow below a mark": (b"(\x85.", "more from its stack"),
    "no mark": (b"Nt.", "not there"),
    "nothing": (b".", "0 objects"),
    "two objects": (b"NN.", "2 objects"),
    "mark": (b"(.", "1 objects"),
    "memo": (b"h\x07.", "no entry 7"),
    "memo by text": (b"g-1\n.", "no entry -1"),
    "negative memo": (b"Np-1\n.", "entry -1"),
    "no stop": (b"\x80\x02N", "0 left"),
    "empty": (b"", "0 left"),
    "protocol": (b"\x80\x06N.", "protocol 6"),
    "unknown opcode": (b"\xff.", "unknown"),
    "pid": (b"NQ.", "outside of the pickle"),
    "frame": (b"\x80\x04\x95" + b"\xff" * 8 + b"N.", "beyond"),
    "long text": (b"X\xff\xff\xff\xffabc.", "cut off"),
    "longer text": (b"\x8d" + b"\xff" * 8 + b"abc.", "cut off"),
    "negative text": (b"T\xff\xff\xff\xffabc.", "negative size"),
    "not UTF-8": (b"X\x01\x00\x00\x00\xff.", "UTF-8"),
    "integer": (b"\x8b\xe9\x03\x00\x00" + b"\1" * 1001 + b".", "1001 bytes"),
    "negative integer": (b"\x8b\xff\xff\xff\xff.", "negative size"),
    "digits": (b"I" + b"1" * 2000 + b"\n.", "no integer"),
    "no digits": (b"I1x\n.", "no integer"),
    "minus": (b"I--1\n.", "no integer"),
    "no float": (b"Fx\n.", "no number"),
    "line": (b"I" + b"1" * 20_000 + b"\n.", "a line of more"),
    "escape": (b"V\\ud\n.", "cannot be read"),
    "name": (b"c" + b"x" * 2000 + b"\ny\n.", "a line of more"),
    "nested": (nested(50_000), "levels"),
    "itself": (b"]q\x00h\x00a.", "contains itself"),
    "itself in a dict": (b"}q\x00K\x01h\x00s.", "contains itself"),
    "doubling": (b"]" + b"q\x000h\x00h\x00\x86" * 40 + b".", "items"),
    "dtype numgrad has not": (b"ctorch\nfloat16\n.", "torch.float16 where data"),
    "module": (b"c__main__\nNet\n)\x81}b.", "__main__.Net"),
    "quantized": (b"ctorch._utils\n_rebuild_qtensor\n.", "unsupported kind"),
    "sparse": (b"ctorch._utils\n_rebuild_sparse_tensor\n.", "unsupported kind"),
    "complex": (b"ctorch\nComplexFloatStorage\n.", "unsupported kind"),
    "encode": (b"c_codecs\nencode\n(U\x01aU\x05utf-8tR.", "another encoding"),
    "encode beyond": (
        b"c_codecs\nencode\n(X\x03\0\0\0\xe9\x87\x8dU\x06latin1tR.",
        "bytes above 255",
    ),
    "counter": (b"ccollections\nCounter\n}U\x01aNs\x85R.", "than numbers"),
    "size": (b"ctorch\nSize\nK\x01J\xff\xff\xff\xff\x86\x85R.", "torch.Size"),
    "ndarray alone": (b"cnumpy\nndarray\n.", "where data should be"),
    "array without state": (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85C\x01btR.",
        "never got its elements",
    ),
    "array of objects": (pickle.dumps(np.array([{}, None], object), 2), "NumPy dtype 'O8'"),
    "array of texts": (pickle.dumps(np.array(["a"]), 2), "NumPy dtype 'U1'"),
    "array of fields": (pickle.dumps(np.zeros(1, [("a", "f4")]), 2), "NumPy dtype 'V4'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    data, fragment = REFUSED[name]
    with pytest.raises(CheckpointError) as caught:
        interpret(data)
    assert fragment in caught.value.reason


def test_a_numpy_array_of_too_few_bytes():
    data = pickle.dumps(np.arange(3.0), 3)
    assert data.count(struct.pack("<d", 2.0)) == 1
    with pytest.raises(CheckpointError, match="in 24 bytes"):
        interpret(data.replace(b"K\x03\x85", b"K\x04\x85", 1))


def test_limits(monkeypatch):
    monkeypatch.setattr(pickles, "MAX_OPCODES", 100)
    source = Source(io.BytesIO(b"N0" * 60 + b"N."), "made", 0, 122)
    interpreter = Interpreter(source)
    with pytest.raises(CheckpointError, match="more than 100 steps"):
        interpreter.run(Cursor(source, 0, 122, "pickle"))
    short = Source(io.BytesIO(b"N0" * 40 + b"N."), "made", 0, 82)
    interpreter = Interpreter(short)
    interpreter.run(Cursor(short, 0, 82, "pickle"))
    with pytest.raises(CheckpointError, match="more than 100 steps"):  # they count together
        interpreter.run(Cursor(short, 0, 82, "pickle"))
    monkeypatch.setattr(pickles, "MAX_OPCODES", 10**6)
    monkeypatch.setattr(pickles, "MAX_BYTES", 100)
    with pytest.raises(CheckpointError, match="more than 100 bytes"):
        Interpreter(source).run(Cursor(source, 0, 122, "pickle"))
