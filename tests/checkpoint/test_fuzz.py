"""Every prefix and every changed byte of a small good file: arrays inside the file, or one error.

`pytest -s` prints the counts, and the most reading and memory that a file of each format took.
"""

import io
import random
import tracemalloc
import warnings
import zipfile
from collections import Counter

import numpy as np
import pytest

import numgrad
from numgrad import memory
from numgrad.checkpoint import CheckpointError, load
from numgrad.checkpoint.contents import Spec
from numgrad.checkpoint.loading import read
from numgrad.checkpoint.source import opened
from numgrad.checkpoint.walking import rebuild
from tests.checkpoint.makers import (
    FORMATS,
    ORDERED,
    Global,
    Pid,
    Placed,
    Reduce,
    Text2,
    early,
    parameter3,
    parameter5,
    safetensors,
    state_dict,
    storage,
    stream,
    tar,
    v1,
    v2,
    zipped,
)

MAX_BYTES = 64 << 20
MAX_READS = 50
"""Of one file: none makes a reader go round and round."""

W = np.arange(6, dtype=np.float32) / 7
N = np.arange(4)
ARRAYS = {"w": W, "n": N, "b": np.array([True, False, True])}


def rich(form):
    """A file with as many features of its format as a short one can have."""
    extra = {"epoch": 3, "lr": 0.1, "none": None, "seen": (True, [1, "重"])}
    if form == "safetensors":
        return safetensors({**ARRAYS, "empty": np.zeros((0, 3), np.float64)})
    if form == "tar":
        tensors = {
            80: Placed(90, (2, 3)),
            81: Placed(92, (2,), offset=1),
            82: Placed(91, (2, 2), (1, 2), kind="Long"),
        }
        obj = {"w": parameter5(Pid("80")), "v": Pid("81"), "n": parameter(Pid("82")), **extra}
        return tar(obj, {90: W, 91: N}, tensors, views=[(92, 90, 2, 3)])
    short = {"short": form == "zip"}
    w, n = storage("0", "Float", 6, **short), storage("1", "Long", 4, **short)
    b = storage("2", "Bool", 3, **short)
    view = storage("0", "Float", 6, view=None if short["short"] else ("7", 2, 3), **short)
    items = [
        ("w", v2(w, 0, (2, 3), grad=True)),
        (Text2(b"caf\xe9"), v1(view, 1, (2,))),
        ("n", parameter(early(n, 0, (2, 2), (1, 2), "LongTensor"))),
        ("b", v1(b, 0, (3,))),
        ("array", ndarray()),
        ("size", Reduce(Global("torch", "Size"), ((2, 3),))),
        *extra.items(),
    ]
    obj = Reduce(ORDERED, (), items=items, state={"_metadata": {"": {"version": 1}}})
    storages = {"0": W, "1": N, "2": ARRAYS["b"]}
    return stream(obj, storages) if form == "stream" else zipped(obj, storages)


def parameter(tensor):
    """Of integers: none that requires a gradient."""
    made = parameter3(tensor, new=True)
    made.state = (False, False, None)
    return made


def ndarray():
    kind = Reduce(
        Global("numpy", "dtype"), ("f4", 0, 1), state=(3, "<", None, None, None, -1, -1, 0)
    )
    raw = Reduce(Global("_codecs", "encode"), ("abcdefgh", "latin1"))
    made = Reduce(
        Global("numpy.core.multiarray", "_reconstruct"),
        (Global("numpy", "ndarray"), (0,), Reduce(Global("_codecs", "encode"), ("b", "latin1"))),
    )
    made.state = (1, (2,), kind, False, raw)
    return made


def tensors_of(obj):
    if isinstance(obj, dict):
        obj = list(obj.values())
    if isinstance(obj, (list, tuple)):
        for item in obj:
            yield from tensors_of(item)
    elif isinstance(obj, numgrad.Tensor):
        yield obj


def specs_of(obj):
    """The tensors of an object that a reader gave, each once."""
    found = []

    def leaf(item, path):
        if isinstance(item, Spec):
            found.append(item)
        return item

    rebuild(obj, leaf, lambda path, reason: AssertionError(reason))
    return found


class Counted(io.BytesIO):
    """A file that counts how often it is read from."""

    def __init__(self, data):
        super().__init__(data)
        self.reads = 0

    def read(self, *args):
        self.reads += 1
        return super().read(*args)

    def readinto(self, buffer):
        self.reads += 1
        return super().readinto(buffer)


class Tries:
    """Loads many files and keeps what was worst."""

    def __init__(self):
        self.counts = Counter()
        self.reads, self.python = 0, 0
        self._before = memory.stats()["live_bytes"]
        memory.reset_peak()
        tracemalloc.start()

    def load(self, data):
        """Whether the file was loaded; else it was refused."""
        file = Counted(data)
        try:
            obj = load(file)
        except CheckpointError as error:
            assert type(error) is CheckpointError and error.reason and "\n" not in str(error)
            obj = None
        self.python = max(self.python, tracemalloc.get_traced_memory()[1])
        self.reads = max(self.reads, file.reads)
        self.counts["refused" if obj is None else "loaded"] += 1
        if obj is not None:
            tracemalloc.stop()  # everything takes four times as long with it
            inside(obj, data)
            tracemalloc.start()
        return obj is not None

    def report(self, what):
        """Print what was worst, and check the memory."""
        tracemalloc.stop()
        tensors = memory.stats()["peak_bytes"] - self._before
        print(
            f"\n{what}: {self.counts['loaded']} loaded, {self.counts['refused']} refused; worst "
            f"{self.reads} reads, {self.python} bytes of Python's, {tensors} of tensors"
        )
        assert 1 < self.reads < MAX_READS
        assert self.python < MAX_BYTES and tensors < MAX_BYTES


def inside(obj, data):
    """Every element lies inside the file: by what the reader says, and by the bytes themselves."""
    with opened(io.BytesIO(data)) as source:
        for spec in specs_of(read(source).obj):
            stored = spec.stored
            assert 0 <= stored.start <= stored.start + stored.nbytes <= len(data)
            if 0 not in spec.shape:
                span = sum((n - 1) * step for n, step in zip(spec.shape, spec.strides))
                assert 0 <= spec.offset <= spec.offset + span < stored.numel
    for tensor in tensors_of(obj):
        array = tensor.detach().numpy()
        narrow = {"float32": "float16", "int32": "int16"}.get(array.dtype.name)
        for element in set(array.ravel().tolist()):
            element = np.array(element, array.dtype)
            if element.tobytes() in data:
                continue
            if array.dtype == np.float32 and element.tobytes()[2:] in data:  # of a bfloat16
                continue
            narrowed = element.astype(narrow) if narrow else element
            assert narrowed.tobytes() in data or narrowed.astype("i1").tobytes() in data


@pytest.fixture(autouse=True)
def quiet():
    """A dtype that was changed to a narrow one comes with a warning, as it should."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module", params=FORMATS)
def form(request):
    load(io.BytesIO(rich(request.param)))  # what is imported and allocated once
    return request.param


def test_the_file_itself_is_read(form):
    obj = load(io.BytesIO(rich(form)))
    inside(obj, rich(form))
    assert np.array_equal(obj["w"].detach().numpy().ravel(), W)
    n = N if form == "safetensors" else N.reshape(2, 2).T
    assert np.array_equal(obj["n"].numpy(), n) and obj["n"].dtype == np.int64


def test_every_prefix_is_refused(form):
    data = rich(form)
    tries = Tries()
    for stop in range(len(data)):
        assert not tries.load(data[:stop]), stop
    tries.report(f"{form}, every prefix of {len(data)} bytes")
    assert tries.counts == {"refused": len(data)}


@pytest.mark.parametrize("bits", [0xFF, 0x01])
def test_every_byte_changed(form, bits):
    data = rich(form)
    # Most of a tar file is zero bytes.
    places = [at for at, byte in enumerate(data) if byte or at % 16 == 0 or len(data) < 5000]
    tries = Tries()
    loaded = set()
    for at in places:
        changed = bytearray(data)
        changed[at] ^= bits
        if tries.load(bytes(changed)):
            loaded.add(at)
    tries.report(f"{form}, {len(places)} bytes of {len(data)} XOR {bits:#04x}")
    assert tries.counts["refused"] + len(loaded) == len(places)
    elements = range(data.index(W.tobytes()), data.index(W.tobytes()) + W.nbytes)
    if form == "zip":
        assert not loaded & set(records(data))
    else:  # these have no checksum
        assert loaded >= set(elements) & set(places)
    assert len(loaded) < len(places) / 2


def records(data):
    """The positions of all bytes that are the content of a record of a zip file."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            content = archive.read(info)
            start = data.index(content, info.header_offset + 30 + len(info.filename))
            yield from range(start, start + len(content))


def test_many_bytes_changed(form):
    rng = random.Random(20)
    data = rich(form)
    # Most of a tar file is zero bytes and headers: change what is neither, too.
    busy = [at for at, byte in enumerate(data) if byte]
    tries = Tries()
    for _ in range(800):
        changed = bytearray(data)
        for _ in range(rng.choice((1, 2, 3, 8))):
            at = rng.choice(busy) if rng.random() < 0.8 else rng.randrange(len(data))
            changed[at] = rng.choice(
                (0, 1, 0x7F, 0x80, 0xFF, *b"()]}.0RbQhcte", rng.randrange(256))
            )
        tries.load(bytes(changed))
    tries.report(f"{form}, several bytes changed")
    assert tries.counts["refused"] > 400


def test_spliced(form):
    """A part of one file in the place of a part of another, or of the same."""
    rng = random.Random(21)
    data = rich(form)
    others = [data, *(rich(other) for other in FORMATS), state_dict({"x": W}, form)]
    tries = Tries()
    for _ in range(800):
        other = rng.choice(others)
        start = rng.randrange(len(data))
        stop = min(start + rng.choice((0, 1, 8, 64, 512, len(data))), len(data))
        first = rng.randrange(len(other))
        last = min(first + rng.choice((0, 1, 8, 64, 512, len(other))), len(other))
        tries.load(data[:start] + other[first:last] + data[stop:])
    tries.report(f"{form}, spliced")
    assert tries.counts["refused"] > 400


def test_pickles_changed_where_a_checksum_would_hide_it():
    """In zip and tar files checksums and sizes refuse most changes before a pickle is read."""
    rng = random.Random(22)
    short = storage("0", "Float", 6, short=True)
    obj = {"w": v2(short, 0, (2, 3)), "p": parameter3(v1(short, 1, (2,))), "array": ndarray()}
    pickle = zipped(obj, {"0": W})
    start = pickle.index(b"\x80\x02}")
    pickle = pickle[start : pickle.index(b".PK", start) + 1]
    tries = Tries()
    for at in range(len(pickle)):
        for value in (0xFF ^ pickle[at], 1 ^ pickle[at], rng.choice(b"()]}.0RbQhN")):
            changed = bytearray(pickle)
            changed[at] = value
            tries.load(zipped(bytes(changed), {"0": W}))
    tries.report(f"zip, its pickle of {len(pickle)} bytes changed under a right checksum")
    assert tries.counts["loaded"] > 10 and tries.counts["refused"] > 500
