"""The zip format: what may differ between files, what is refused, and what `save` writes."""

import io
import pickletools
import struct
import tracemalloc
import zipfile
import zlib
from collections import Counter, OrderedDict

import numpy as np
import pytest

import numgrad
from numgrad.checkpoint import CheckpointError, load, save, torch_zip
from numgrad.checkpoint.source import opened
from numgrad.nn import Parameter
from tests.checkpoint.makers import (
    Entry,
    Global,
    Reduce,
    in_directory,
    local_header,
    storage,
    v2,
    zip_bytes,
    zip_entries,
    zipped,
)

SIX = np.arange(6, dtype=np.float32)


def on(key="0", kind="Float", numel=6):
    return storage(key, kind, numel, short=True)


STATE = {"w": v2(on(), 0, (2, 3))}


def read(data):
    return load(io.BytesIO(data))


def refused(data, reason):
    with pytest.raises(CheckpointError, match=reason) as caught:
        read(data)
    assert caught.value.path == "file" and caught.value.where


def entries(**how):
    return zip_entries(STATE, {"0": SIX}, **how)


# -------------------------------------------------------------------- what may differ between files


@pytest.mark.parametrize("root", ["archive", "model_best", "重み", "a.b c", "data"])
def test_any_root(root):
    assert np.array_equal(read(zip_bytes(entries(root=root)))["w"].numpy(), SIX.reshape(2, 3))


def test_a_root_that_is_no_unicode():
    """Old files of Windows have names in its code page."""
    data = zip_bytes(entries(root="root")).replace(b"root/", b"\x8fd\x82\xdd/")
    assert np.array_equal(read(data)["w"].numpy(), SIX.reshape(2, 3))


def test_an_empty_tensor_may_begin_anywhere():
    """PyTorch's ``x[2:, 3:]`` of a tensor (2, 3) begins behind the end of its storage."""
    got = read(
        zipped([v2(on(), 9, (0, 0), (3, 1)), v2(on("1", numel=0), 1, (0, 2))], {"0": SIX, "1": b""})
    )
    assert [x.shape for x in got] == [(0, 0), (0, 2)]


def test_byte_orders():
    assert np.array_equal(read(zip_bytes(entries(byteorder=None)))["w"].numpy().ravel(), SIX)
    obj = {"f": v2(on("0"), 0, (6,)), "i": v2(on("1", "Short", 2), 0, (2,))}
    storages = {"0": SIX.astype(">f4"), "1": np.array([1, -2], ">i2")}
    with pytest.warns(UserWarning, match="1 tensor of int16 came as int32"):
        got = read(zipped(obj, storages, byteorder="big"))
    assert np.array_equal(got["f"].numpy(), SIX) and got["i"].tolist() == [1, -2]


def test_entries_that_newer_files_have():
    extra = [
        Entry("archive/.format_version", b"1"),
        Entry("archive/.storage_alignment", b"64"),
        Entry("archive/.data/serialization_id", b"0" * 40),
        Entry("archive/.data/version", b"6\n"),
    ]
    assert read(zip_bytes(entries() + extra))["w"].shape == (2, 3)


class Streamed:
    """A file that cannot seek: zipfile then writes descriptors after the records."""

    def __init__(self):
        self.data = b""

    def write(self, data):
        self.data += bytes(data)
        return len(data)

    def flush(self):
        pass


def rewritten(data, out, zip64=False):
    with zipfile.ZipFile(out, "w") as new, zipfile.ZipFile(io.BytesIO(data)) as old:
        for info in old.infolist():
            with new.open(zipfile.ZipInfo(info.filename), "w", force_zip64=zip64) as record:
                record.write(old.read(info))


@pytest.mark.parametrize("zip64", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
def test_archives_of_another_program(streamed, zip64):
    out = Streamed() if streamed else io.BytesIO()
    rewritten(zip_bytes(entries()), out, zip64)
    data = out.data if streamed else out.getvalue()
    assert np.array_equal(read(data)["w"].numpy(), SIX.reshape(2, 3))


def test_descriptors_without_a_sign():
    out = Streamed()
    rewritten(zip_bytes(entries()), out)
    record = zipfile.ZipFile(io.BytesIO(out.data)).getinfo("archive/version")
    assert out.data.count(b"PK\x07\x08") == 4
    at = out.data.index(b"PK\x07\x08", record.header_offset)
    data = bytearray(out.data[:at] + out.data[at + 4 :])
    start = struct.unpack("<I", data[-6:-2])[0]  # of the directory, which moved with its record
    data[-6:-2] = struct.pack("<I", start - 4)
    assert np.array_equal(read(bytes(data))["w"].numpy(), SIX.reshape(2, 3))


def test_64_bit_fields():
    """Every size and position where 32 bits do not suffice, as in files over 4 GiB."""
    out, directory = b"", b""
    for entry in entries():
        name, n, crc = entry.name.encode(), len(entry.data), zlib.crc32(entry.data)
        offset = len(out)
        extra = struct.pack("<HHQQ", 1, 16, n, n)
        fields = struct.pack("<HHHHHIII", 45, 0, 0, 0, 0, crc, 2**32 - 1, 2**32 - 1)
        out += b"PK\x03\x04" + fields + struct.pack("<HH", len(name), len(extra)) + name + extra
        out += entry.data
        extra = struct.pack("<HHQQQ", 1, 24, n, n, offset)
        directory += b"PK\x01\x02\x2d\x00" + fields + struct.pack("<HH", len(name), len(extra))
        directory += struct.pack("<HHHII", 0, 0, 0, 0, 2**32 - 1) + name + extra
    start, size = len(out), len(directory)
    end = struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 4, 4, size, start)
    locator = struct.pack("<IQI", 0, start + size, 1)
    ones = b"PK\x05\x06" + b"\0" * 4 + b"\xff" * 12 + b"\0\0"
    data = out + directory + b"PK\x06\x06" + end + b"PK\x06\x07" + locator + ones
    assert np.array_equal(read(data)["w"].numpy(), SIX.reshape(2, 3))
    refused(data.replace(b"PK\x06\x06", b"PK\x06\x05"), "its 64-bit end is malformed")
    refused(data.replace(locator, struct.pack("<IQI", 0, start, 1)), "its 64-bit end is malformed")


def test_files_without_checksums():
    """As torch.serialization.set_crc32_options(False) writes them."""
    given = entries()
    for entry in given:
        entry.crc = 0
    with pytest.warns(UserWarning, match="written without checksums"):
        assert read(zip_bytes(given))["w"].shape == (2, 3)
    given[2].crc = None
    refused(zip_bytes(given), "CRC is wrong")


def test_untyped_storages():
    """uint16 and such: the tensor, not the storage, has the dtype."""
    untyped = storage("0", Global("torch.storage", "UntypedStorage"), 6, short=True)

    def tensor(dtype, shape):
        args = (untyped, 0, shape, (1,), False, OrderedDict(), Global("torch", dtype))
        return Reduce(Global("torch._utils", "_rebuild_tensor_v3"), args)

    values = np.array([1, 65535, 2], np.uint16)
    with pytest.warns(UserWarning, match="2 tensors of uint16 came as int32"):
        got = read(zipped([tensor("uint16", (3,)), tensor("uint16", (2,))], {"0": values}))
    assert got[0].tolist() == [1, 65535, 2]
    got[0].zero_()
    assert got[1].tolist() == [0, 0]
    refused(zipped(tensor("uint32", (1,)), {"0": values}), "6 bytes as elements of torch.uint32")
    refused(
        zipped([tensor("uint16", (3,)), tensor("int16", (3,))], {"0": values}), "as torch.int16"
    )


# ------------------------------------------------------------------------------- what is refused


def test_descriptors_must_agree():
    out = Streamed()
    rewritten(GOOD, out)
    assert read(out.data)["w"].shape == (2, 3)
    at = out.data.rindex(b"PK\x07\x08")
    for place in range(16):
        data = out.data[: at + place] + b"\xee" + out.data[at + place + 1 :]
        refused(data, "record 'archive/version': its descriptor is not what the zip directory says")
    with pytest.raises(CheckpointError, match="its descriptor is not"):  # there is none
        read(struct_flags(GOOD, 8))


def struct_flags(data, flags):
    """The archive with the flags of the version's two headers changed."""
    data = local_header(data, "archive/version", flags=flags)
    return in_directory(data, 8, struct.pack("<H", flags))


GOOD = zip_bytes(entries())


@pytest.mark.parametrize("index", range(4))
def test_wrong_checksums(index):
    given = entries()
    given[index].crc = zlib.crc32(given[index].data) ^ 1
    refused(zip_bytes(given), "CRC is wrong")


def test_a_directory_has_a_limit(monkeypatch):
    monkeypatch.setattr(torch_zip, "MAX_RECORDS", 3)
    refused(GOOD, "4 records, more than 3")


def test_the_pickle_has_a_limit(monkeypatch):
    monkeypatch.setattr(torch_zip, "MAX_PICKLE_BYTES", 10)
    refused(GOOD, "more than 10")


# --------------------------------------------------------------------------------- what is written


def written(obj):
    file = io.BytesIO()
    save(obj, file)
    return file.getvalue()


def again(obj):
    return read(written(obj))


def test_the_archive():
    state = {"a": numgrad.ones(3), "b": numgrad.zeros(2, 2, dtype=numgrad.int64)}
    data = written(state)
    archive = zipfile.ZipFile(io.BytesIO(data))
    assert archive.testzip() is None
    with opened(io.BytesIO(data)) as source:
        records = torch_zip.read_archive(source)
    assert [record.name.decode() for record in records] == archive.namelist()
    assert archive.namelist() == [
        "archive/data.pkl",
        "archive/byteorder",
        "archive/data/0",
        "archive/data/1",
        "archive/version",
    ]
    assert all(record.start % 64 == 0 for record in records)
    assert archive.read("archive/byteorder") == b"little"
    assert archive.read("archive/version") == b"3\n"
    assert archive.read("archive/data/0") == np.ones(3, "<f4").tobytes()
    assert written({key: value.clone() for key, value in state.items()}) == data


def test_the_pickle_needs_no_code():
    """Only opcodes and names that torch.load(weights_only=True) reads."""
    obj = {
        "t": numgrad.ones(2, 3).t(),
        "p": Parameter(numgrad.ones(2)),
        "c": Counter("aab"),
        "o": OrderedDict(a=(1, 2.5, None, True, "x", b"y", 2**100, -1, 70000, [()], (1, 2, 3, 4))),
        "s": numgrad.ones(2).size(),
        "d": [numgrad.float32, numgrad.device("cuda:1"), numgrad.bool],
        "many": [str(i) for i in range(300)] * 2,
    }
    pickle = zipfile.ZipFile(io.BytesIO(written(obj))).read("archive/data.pkl")
    operations = list(pickletools.genops(pickle))
    names = {op.name for op, _, _ in operations}
    assert names <= {
        *("PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "BINPERSID", "BINPUT", "BINGET"),
        *("LONG_BINPUT", "LONG_BINGET", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "SETITEMS"),
        *("APPENDS", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "NONE", "NEWTRUE", "NEWFALSE"),
        *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"),
    }
    assert {argument for op, argument, _ in operations if op.name == "GLOBAL"} == {
        *("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"),
        *("collections OrderedDict", "collections Counter", "_codecs encode"),
        *("torch FloatStorage", "torch Size", "torch device", "torch float32", "torch bool"),
    }
    got = read(written(obj))
    assert got["c"] == Counter("aab") and type(got["c"]) is Counter and got["o"] == obj["o"]
    assert got["s"] == obj["s"] and type(got["s"]) is numgrad.Size and got["d"] == obj["d"]
    assert got["many"] == obj["many"] and type(got["p"]) is Parameter


def test_what_is_shared_stays_shared():
    inner = [1]
    tensor = numgrad.arange(3)
    got = again({"a": inner, "b": inner, "x": tensor, "y": (tensor, tensor)})
    assert got["a"] is got["b"] and got["x"] is got["y"][0] is got["y"][1]
    deep = []
    for _ in range(60):
        deep = (deep, deep) if len(str(deep)) < 10 else [deep, 1]
    assert again(deep) == deep


def test_views_share_a_whole_storage():
    whole = numgrad.arange(100000.0)
    views = {
        "row": whole.view(1000, 100)[7],
        "t": whole.view(1000, 100).t(),
        "step": whole[3:100:7],
        "parameter": Parameter(whole[:10]),
        "empty": whole[5:5],
        "small": whole[:2].view(2, 1).expand(2, 3),
    }
    data = written(views)
    sizes = [
        i.file_size for i in zipfile.ZipFile(io.BytesIO(data)).infolist() if "/data/" in i.filename
    ]
    assert sizes == [400000]
    got = read(data)
    for name, view in views.items():
        assert got[name].shape == view.shape and got[name].stride() == view.stride()
        assert np.array_equal(got[name].detach().numpy(), view.detach().numpy())
    got["t"].zero_()
    assert got["row"].tolist() == [0] * 100 and got["parameter"].tolist() == [0] * 10


def test_memory_from_outside():
    """Of it, what lies between the elements that are saved."""
    outside = np.arange(1000.0)
    x = numgrad.from_numpy(outside[100:200].reshape(10, 10))
    got = again({"x": x, "t": x[2:4].t()})
    assert got["x"].tolist() == x.tolist() and got["t"].tolist() == x[2:4].t().tolist()
    got["x"].zero_()
    assert not got["t"].any()
    assert len(written(x)) < 2000


def test_what_pytorch_cannot_have_is_written_contiguous():
    forth = np.arange(6.0).reshape(2, 3)
    x = numgrad.from_numpy(forth[::-1, ::-1])
    got = again([x, numgrad.from_numpy(forth), x])
    assert got[0].stride() == (3, 1) and got[0].tolist() == [[5, 4, 3], [2, 1, 0]]
    assert got[1].tolist() == forth.tolist() and got[2] is got[0]
    giant = numgrad.ones(1).expand(500_000)  # larger than a file of its one element
    got = again(giant)
    assert got.stride() == (1,) and got.sum() == 500_000


def test_a_tensor_of_other_elements_of_the_same_memory():
    """PyTorch refuses to save them; here each dtype has a storage."""
    memory = np.array([1.0, 2.0], np.float32)
    x = numgrad.from_numpy(memory)
    y = numgrad.from_numpy(memory.view(np.int32))
    got = again([x, y])
    assert got[0].tolist() == [1, 2] and got[1].tolist() == memory.view(np.int32).tolist()


def test_requires_grad():
    leaf = numgrad.ones(2, requires_grad=True)
    frozen = Parameter(numgrad.ones(2), requires_grad=False)
    got = again([leaf, leaf * 2, leaf.detach(), Parameter(numgrad.ones(2)), frozen])
    assert [x.requires_grad for x in got] == [True, True, False, True, False]
    assert all(x.is_leaf for x in got) and type(got[4]) is Parameter
    assert got[1].tolist() == [2, 2]


@pytest.mark.parametrize(
    "code", ["b1", "u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
)
def test_arrays(code):
    for array in (
        np.arange(6).astype(code).reshape(2, 3),
        np.arange(6).astype(code).reshape(2, 3).T,
        np.zeros((0, 3), code),
        np.ones((), code),
    ):
        got = again([array, array])
        assert got[0] is got[1] and type(got[0]) is np.ndarray
        assert got[0].dtype == array.dtype and got[0].shape == array.shape
        assert np.array_equal(got[0], array) and got[0].flags.writeable


def test_data_are_not_copied():
    state = {"a": numgrad.zeros(1 << 20), "b": numgrad.zeros(512, 512).t()}
    nowhere = Streamed()
    nowhere.write = lambda data: len(data)
    tracemalloc.start()
    try:
        save(state, nowhere)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


class Halting(Streamed):
    """Takes at most 7 bytes at a time, as raw files may."""

    def write(self, data):
        return super().write(data[:7])


def test_files_that_take_little():
    state = {"a": numgrad.arange(5.0)}
    halting = Halting()
    save(state, halting)
    assert halting.data == written(state)
    silent = Streamed()
    write = silent.write
    silent.write = lambda data: write(data) and None
    save(state, silent)
    assert silent.data == written(state)
    full = Streamed()
    full.write = lambda data: 0
    with pytest.raises(OSError, match="save: expected a file that takes"):
        save(state, full)


def test_nothing_is_written_of_what_is_refused(monkeypatch):
    out = Streamed()
    for obj, text in (
        ({"a": numgrad.ones(2), "b": {1, 2}}, r"obj\['b'\], got set"),
        ({"a\nb": numgrad.ones(2)}, r"a tensor's name without control characters"),
        ({"\ud800": [numgrad.ones(2)]}, r"a tensor's name without control characters"),
        ({"a" * 1001: numgrad.ones(2)}, r"a tensor's name of up to 1000 characters"),
        (Counter(a=[]), r"a number, as it is a count for obj\['a'\]"),
        (np.dtype("f2"), "a dtype that numgrad has for obj, got float16"),
        (2**2040, "an integer of up to 255 bytes"),
        (numgrad.nn.Linear(2, 2), r"got Linear; save its state_dict\(\)"),
        (range(3), "range"),
    ):
        with pytest.raises(TypeError, match=text):
            save(obj, out)
    monkeypatch.setattr("numgrad.checkpoint.pickle_writer.MAX_PICKLE_BYTES", 1000)
    with pytest.raises(ValueError, match="save: expected up to 1000 bytes of names"):
        save("x" * 1000, out)
    assert out.data == b""


EVERYTHING = [
    *({"a": [1, 2.5, None, True, "x", "x", b"y", b"y"]}, Counter("aab"), OrderedDict(a=1)),
    *((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [(), []], {}, 70000, -1, 2**70),
    *(numgrad.Size([1, 2]), numgrad.device("cuda:1"), numgrad.float32, np.ones(3, "f2")),
    *(numgrad.ones(2, 3), Parameter(numgrad.ones(2)), [str(i) for i in range(300)] * 2),
]


def test_the_steps_of_a_pickle_are_counted(monkeypatch):
    for obj in [*EVERYTHING, EVERYTHING]:
        pickle = zipfile.ZipFile(io.BytesIO(written(obj))).read("archive/data.pkl")
        count = len(list(pickletools.genops(pickle)))
        with monkeypatch.context() as patch:
            patch.setattr("numgrad.checkpoint.pickle_writer.MAX_OPCODES", count - 1)
            with pytest.raises(ValueError, match=f"up to {count - 1} steps for obj, got {count}; "):
                written(obj)


def test_limits_are_those_of_the_reader(monkeypatch):
    lists = []
    for _ in range(99):
        lists = [lists]
    assert again(lists) == lists
    with pytest.raises(TypeError, match="at most 100 levels"):
        written([lists])
    with pytest.raises(TypeError, match="at most 100 levels"):
        written([[lists[0], numgrad.Size([1])]])
    fine = {"a" * 1000: numgrad.ones(1), "b\n": 1, "\ud800" * 2000: 2}
    assert list(again(fine)) == list(fine)
    for module in ("pickle_writer", "walking"):
        monkeypatch.setattr(f"numgrad.checkpoint.{module}.MAX_ITEMS", 10)
    assert again([1] * 9) == [1] * 9 and again(numgrad.Size(range(9))) == tuple(range(9))
    for more in ([1] * 10, numgrad.Size(range(10))):
        with pytest.raises(TypeError, match="at most 10 items"):
            written(more)
    assert again(2**2039 - 1) == 2**2039 - 1 and again(-(2**2038)) == -(2**2038)


def test_names_tell_the_layout(tmp_path):
    state = {"a": numgrad.ones(2)}
    for name, start in (
        ("x.safetensors", b"{"),
        ("X.SafeTensors", b"{"),
        ("x.pth", b"PK\x03\x04"),
        ("x", b"PK\x03\x04"),
        ("safetensors", b"PK\x03\x04"),
    ):
        for path in (tmp_path / name, str(tmp_path / name), bytes(tmp_path / name)):
            save(state, path)
            data = (tmp_path / name).read_bytes()
            assert data[8:9] == start if start == b"{" else data.startswith(start)
            assert load(path)["a"].tolist() == [1, 1]
        with open(tmp_path / name, "wb") as file:
            save(state, file)
        assert (tmp_path / name).read_bytes() == data
    with open(tmp_path / "x", "wb") as file, open(file.fileno(), "wb", closefd=False) as numbered:
        save(state, numbered)  # its name is a number
    assert load(tmp_path / "x")["a"].tolist() == [1, 1]
