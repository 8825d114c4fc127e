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
from numgrad.checkpoint.allowlist import finish
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


def test_a_numpy_array_of_too_few_bytes():
    data = pickle.dumps(np.arange(3.0), 3)
    assert data.count(struct.pack("<d", 2.0)) == 1
    with pytest.raises(CheckpointError, match="in 24 bytes"):
        interpret(data.replace(b"K\x03\x85", b"K\x04\x85", 1))


def numbers(keys):
    items = b"".join(b"\x8a\x0a" + key.to_bytes(10, "little") + b"N" for key in keys)
    return b"}(" + items + b"u"


def test_keys_that_meet_each_other():
    """Hashes of integers are their remainders of 2**61 - 1: all of these are 0."""
    chosen = [i * (2**61 - 1) for i in range(1, 3501)]
    assert len({hash(key) for key in chosen}) == 1
    assert len(interpret(b"\x80\x02" + numbers(chosen[:2000]) + b".")) == 2000
    twice = numbers(chosen[:2400]) + numbers(chosen[:2400])
    for data in (numbers(chosen), b"](" + twice + b"e"):
        with pytest.raises(CheckpointError, match="too many keys that are numbers in dicts"):
            interpret(b"\x80\x02" + data + b".")
    tuples = {(5 * i,): i for i in range(3500)}
    small = {7 * i: i for i in range(30_000)}
    for obj in (tuples, small):
        with pytest.raises(CheckpointError, match="too many keys"):
            interpret(pickle.dumps(obj, 2))


def test_keys_that_genuine_files_have():
    addresses = {139_648_000_000_000 + 64 * i: None for i in range(10_000)}
    pairs = {(str(i), str(i + 1)): i for i in range(50_000)}
    for obj in (addresses, pairs):
        assert same(interpret(pickle.dumps(obj, 2)), obj)


def test_keys_that_count_up_meet_nobody():
    obj = dict.fromkeys(range(50_000)) | {str(i): i for i in range(20_000)}
    assert same(interpret(pickle.dumps(obj, 2)), obj)


def test_a_large_file_may_have_more_keys():
    obj = {7 * i: bytes(100) for i in range(25_000)}
    data = pickle.dumps([obj, *(str(i) * 1000 for i in range(1000))], 2)
    assert len(interpret(data)[0]) == 25_000


@pytest.mark.parametrize("one", [b"]", b"}", b"N\x85", b"U\x00", b")t", b"h\x00)R"])
def test_containers_are_counted(one):
    """A byte of a pickle can make a list of hundreds of bytes."""
    start = b"ccollections\nOrderedDict\nq\x000]("
    few, many = (start + one.replace(b")t", b"(t") * n + b"e." for n in (40_000, 400_000))
    assert len(interpret(few)) == 40_000
    with pytest.raises(CheckpointError, match="more lists, tuples and dicts than a file of its"):
        interpret(many)


@pytest.mark.parametrize("order", [list, reversed])
def test_the_depth_of_what_stands_at_several_places(order):
    """Chains of 60 levels, each ending in the one before: refused however they are first met."""

    def chain(end):
        for _ in range(60):
            end = [end]
        return end

    one = chain(0)
    two = chain(one)
    assert interpret(pickle.dumps([one, one])) == [one, one]
    with pytest.raises(CheckpointError, match="more than 100 levels"):
        interpret(pickle.dumps(list(order([one, two]))))


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
    monkeypatch.setattr(pickles, "MAX_PICKLE_BYTES", 100)
    with pytest.raises(CheckpointError, match="more than 100 bytes"):
        Interpreter(source).run(Cursor(source, 0, 122, "pickle"))
