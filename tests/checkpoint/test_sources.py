"""What checkpoints are read from and written to: paths, pipes, and open files of all sorts."""

import bz2
import gzip
import io
import lzma
import os
import threading
import zipfile

import numpy as np
import pytest

from numgrad.checkpoint import CheckpointError, load, save
from numgrad.ops.creation import from_numpy
from tests.checkpoint.makers import FORMATS, state_dict

ARRAY = np.arange(12, dtype=np.float32).reshape(3, 4)
DATA = {form: state_dict({"w": ARRAY}, form) for form in FORMATS}


class Plain:
    """A file with nothing but read, seek and tell; tests derive others of it."""

    def __init__(self, data):
        self.inner = io.BytesIO(data)
        self.reads = 0

    def read(self, size=-1):
        self.reads += 1
        return self.inner.read(size)

    def seek(self, *where):
        return self.inner.seek(*where)

    def tell(self):
        return self.inner.tell()

    def seekable(self):
        return True


class SeekTellsNothing(Plain):
    def seek(self, *where):
        self.inner.seek(*where)


class ShortReads(Plain):
    def read(self, size=-1):
        return self.inner.read(min(size, 7) if size > 0 else size)


class ShortReadInto(Plain):
    def readinto(self, out):
        return self.inner.readinto(out[:3])


class GivesBytearrays(Plain):
    def read(self, size=-1):
        return bytearray(self.inner.read(size))


class GivesViews(Plain):
    def read(self, size=-1):
        return memoryview(self.inner.read(size))


class CannotSeek(Plain):
    def seekable(self):
        return False

    def seek(self, *where):
        raise AssertionError


class OnlyReads:
    def __init__(self, data):
        self.read = io.BytesIO(data).read


GOOD = (
    Plain, SeekTellsNothing, ShortReads, ShortReadInto, GivesBytearrays, GivesViews, CannotSeek,
    OnlyReads,
)  # fmt: skip


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize("form", FORMATS)
def test_any_object_that_gives_bytes(form, kind):
    assert load(kind(DATA[form]))["w"].tolist() == ARRAY.tolist()


class Fails(Plain):
    """Raises once the reader goes on from the start of the file."""

    error: BaseException = RuntimeError("the connection is gone")

    def read(self, size=-1):
        if self.inner.tell() > 0:
            raise self.error
        return super().read(size)


class FailsInto(Plain):
    def readinto(self, out):
        raise RuntimeError("the connection is gone")


class FailsToTell(Plain):
    def tell(self):
        raise RuntimeError("the connection is gone")


class FailsToSeek(Plain):
    def seek(self, *where):
        raise RuntimeError("the connection is gone")


@pytest.mark.parametrize("kind", [Fails, FailsInto, FailsToTell, FailsToSeek])
def test_whatever_a_file_raises_is_a_failed_reading(kind):
    with pytest.raises(CheckpointError) as caught:
        load(kind(DATA["zip"]))
    assert caught.value.reason == "reading failed: the connection is gone"
    assert type(caught.value.__cause__) is RuntimeError


def test_an_error_without_a_text_is_named():
    file = Fails(DATA["zip"])
    file.error = EOFError()
    with pytest.raises(CheckpointError, match=r"reading failed: EOFError"):
        load(file)


def test_interrupts_go_through():
    file = Fails(DATA["zip"])
    file.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        load(file)


class GivesNothing(Plain):
    """As a raw file that does not wait for its bytes."""

    def read(self, size=-1):
        return None if size else b""


class GivesNothingInto(Plain):
    def readinto(self, out):
        return None


@pytest.mark.parametrize("kind", [GivesNothing, GivesNothingInto])
def test_a_file_that_does_not_wait(kind):
    with pytest.raises(CheckpointError, match=r"does not wait for its bytes has none yet; read it"):
        load(kind(DATA["zip"]))


class TooMuch(Plain):
    def read(self, size=-1):
        return self.inner.read(size) + b"xx"


class TooMuchInto(Plain):
    def readinto(self, out):
        return self.inner.readinto(out) + 5


@pytest.mark.parametrize("kind", [TooMuch, TooMuchInto])
def test_a_file_that_gives_more_than_asked_for(kind):
    with pytest.raises(CheckpointError, match=r"[0-9]+ bytes expected, [0-9]+ read"):
        load(kind(DATA["zip"]))


def test_a_closed_file_and_one_for_writing(tmp_path):
    file = io.BytesIO(DATA["zip"])
    file.close()
    with pytest.raises(CheckpointError, match=r"reading failed: I/O operation on closed file"):
        load(file)
    with (
        open(tmp_path / "new.pth", "wb") as file,
        pytest.raises(
            CheckpointError, match=r'new.pth.*not open for reading; open it with mode "rb"'
        ),
    ):
        load(file)


def test_text_is_no_file_of_bytes(tmp_path):
    with pytest.raises(
        TypeError, match=r'^load: expected a file of bytes for file, got .* str; .*"rb"'
    ):
        load(io.StringIO("text"))
    for file in (io.StringIO(), open(tmp_path / "text", "w")):  # noqa: SIM115
        with (
            file,
            pytest.raises(TypeError, match=r'^save: .* bytes for file, got .*; open it .*"wb"$'),
        ):
            save({"a": 1}, file)


def test_a_file_that_takes_bytes_alone():
    class Adds:
        data = b""

        def write(self, data):
            self.data += data

    file = Adds()
    save({"w": from_numpy(ARRAY)}, file)
    assert load(io.BytesIO(file.data))["w"].tolist() == ARRAY.tolist()


@pytest.mark.parametrize("wrong", [5, None, ["a.pth"]])
def test_no_file_at_all(wrong):
    with pytest.raises(
        TypeError, match=r"^load: expected a path or a file of bytes for file, got "
    ):
        load(wrong)
    with pytest.raises(
        TypeError, match=r"^save: expected a path or a file of bytes for file, got "
    ):
        save({}, wrong)


def test_read_from_its_position_to_its_end():
    file = io.BytesIO(b"before" + DATA["zip"])
    file.seek(6)
    assert load(file)["w"].tolist() == ARRAY.tolist()
    assert file.tell() == 6 + len(DATA["zip"])
    with pytest.raises(
        CheckpointError, match=r"stands at byte \d+ of \d+, its end; seek\(0\) first"
    ):
        load(file)
    file.seek(9999)
    with pytest.raises(CheckpointError, match=r"at byte 9999 of"):
        load(file)
    with pytest.raises(CheckpointError, match=r"the file is empty"):
        load(io.BytesIO())


# ---------------------------------------------------------------- files of Python's libraries


def unpacked(kind, data):
    """An open file that unpacks ``data``, packed by the library."""
    if kind == "zipfile":
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("inner.pth", data)
        packed = out.getvalue()
    else:
        packed = {"gzip": gzip, "bz2": bz2, "lzma": lzma}[kind].compress(data)
    return packed, lambda packed: {
        "zipfile": lambda: zipfile.ZipFile(io.BytesIO(packed)).open("inner.pth"),
        "gzip": lambda: gzip.open(io.BytesIO(packed)),
        "bz2": lambda: bz2.open(io.BytesIO(packed)),
        "lzma": lambda: lzma.open(io.BytesIO(packed)),
    }[kind]()


PACKERS = ("gzip", "bz2", "lzma", "zipfile")


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("form", FORMATS)
def test_packed_files(form, kind):
    packed, open_ = unpacked(kind, DATA[form])
    with open_(packed) as file:
        assert load(file)["w"].tolist() == ARRAY.tolist()


@pytest.mark.parametrize("kind", PACKERS)
def test_packed_files_are_unpacked_once(kind, monkeypatch):
    packed, open_ = unpacked(kind, DATA["zip"])
    with open_(packed) as file:
        monkeypatch.setattr(file, "seek", None, raising=False)
        assert load(file)["w"].tolist() == ARRAY.tolist()


@pytest.mark.parametrize("kind", PACKERS)
def test_damaged_packed_files(kind):
    packed, open_ = unpacked(kind, os.urandom(1000) + DATA["zip"])
    for at in range(100, 900, 50):
        damaged = bytearray(packed)
        damaged[at] ^= 0xFF
        with open_(bytes(damaged)) as file, pytest.raises(CheckpointError, match=r"reading failed"):
            load(file)


@pytest.mark.parametrize("kind", ["gzip", "bz2", "lzma"])
def test_packed_files_cut_off(kind):
    packed, open_ = unpacked(kind, DATA["zip"])
    with (
        open_(packed[:-30]) as file,
        pytest.raises(CheckpointError, match=r"reading failed: .*end"),
    ):
        load(file)


# -------------------------------------------------------------------------------------- paths


def test_a_path_of_bytes(tmp_path):
    path = os.fsencode(tmp_path / "層.pth")
    with open(path, "wb") as file:
        file.write(DATA["zip"])
    assert load(path)["w"].tolist() == ARRAY.tolist()
    with open(path, "wb") as file:
        file.write(DATA["zip"][:-9])
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert caught.value.path == os.fsdecode(path)


def test_a_named_pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(DATA["zip"]), daemon=True)
    writer.start()
    assert load(path)["w"].tolist() == ARRAY.tolist()
    writer.join(10)


@pytest.mark.parametrize("by_path", [True, False])
def test_an_unnamed_pipe(by_path):
    reader, writer = os.pipe()
    os.write(writer, DATA["stream"])
    os.close(writer)
    with open(reader, "rb") as file:
        given = f"/dev/fd/{reader}" if by_path else file
        assert load(given)["w"].tolist() == ARRAY.tolist()


def test_the_number_of_a_pipe_is_no_name():
    reader, writer = os.pipe()
    os.close(writer)
    with open(reader, "rb") as file, pytest.raises(CheckpointError) as caught:
        load(file)
    assert caught.value.path == "file"


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null"])
def test_devices(path):
    with pytest.raises(OSError, match=f"a device, not a file: '{path}'"):
        load(path)


def test_a_path_with_a_nul():
    with pytest.raises(OSError, match=r"NUL"):
        load("a\0b.pth")
    with pytest.raises(OSError, match=r"^.*save: expected a path for file, got one with a NUL"):
        save({}, "a\0b.pth")


# ------------------------------------------------------------------------ no checkpoints at all


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_archive_of_checkpoints(method):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("run/model.pth", DATA["zip"])
    with pytest.raises(
        CheckpointError, match=r"the file 'run/model.pth' in it; unpack it, and load"
    ):
        load(io.BytesIO(out.getvalue()))


def test_streams_of_protocol_0():
    data = b"L119547037146038801333356L\n.I1001\n.(dp0\n."
    with pytest.raises(CheckpointError, match="written with pickle_protocol=0 or 1; save it again"):
        load(io.BytesIO(data))


@pytest.mark.parametrize("data", [b"(dp0\nVa\np1\nI1\ns.", b"ccollections\nOrderedDict\n(tR."])
def test_pickles_of_protocol_0(data):
    with pytest.raises(CheckpointError, match=r"a pickle of protocol 0; .* pickle\.load"):
        load(io.BytesIO(data))


@pytest.mark.parametrize("where", ["mps", "x", "cuda:x", -1, [1], 1.5, {"cpu": "x"}])
def test_places_that_are_none(where):
    with pytest.raises(ValueError, match=r"^load: expected None, 'cpu', .* for map_location, got "):
        load(io.BytesIO(DATA["zip"]), where)


@pytest.mark.parametrize("where", [None, "cpu", {"cuda:0": "cpu"}, {"cpu": "cpu"}, {}])
def test_places_on_the_cpu(where):
    assert load(io.BytesIO(DATA["zip"]), where)["w"].device.type == "cpu"
