"""Files that lie about their tensors: sizes, strides, offsets, storages, keys and views."""

import struct

import pytest

from tests.checkpoint.hostile import (
    FLOAT6,
    SIX,
    in_stream,
    in_tar,
    in_zip,
    of_stream,
    of_zip,
)
from tests.checkpoint.makers import (
    ORDERED,
    Global,
    Pid,
    Placed,
    dumps,
    early,
    record,
    storage,
    stream,
    tar,
    tar_storages,
    v1,
    v2,
    zipped,
)

# ---------------------------------------------------------------------------------- of six elements

GIANT = (1_000_000, 1_000_000)
LIES = {  # (shape, strides, offset): reason; of a storage of six elements
    "past the end": ((7,), (1,), 0, "reaches element 6 of a storage of 6"),
    "past the end by its offset": ((6,), (1,), 1, "reaches element 6 of a storage of 6"),
    "past the end by a stride": ((2, 3), (4, 1), 0, "reaches element 6 of a storage of 6"),
    "negative offset": ((2,), (1,), -1, "the offset is no non-negative"),
    "negative stride": ((2,), (-1,), 1, "the strides is no non-negative"),
    "negative size": ((-2,), (1,), 0, "the shape is no non-negative"),
    "two negative sizes": ((-2, -3), (3, 1), 0, "the shape is no non-negative"),
    "a product that overflows": ((2**62, 4), (0, 0), 0, "the shape overflows"),
    "a product that overflows to 0": ((2**32, 2**32), (0, 0), 0, "the shape overflows"),
    "strides that overflow": ((2, 1), (2**62, 1), 0, "the strides overflows"),
    "a stride that overflows on an axis of one": ((1,), (2**62,), 0, "the strides overflows"),
    "zero strides, 10^12 elements": (GIANT, (0, 0), 0, "larger than the file"),
    "33 axes": ((1,) * 33, (1,) * 33, 0, "axes"),
}
ODD = {  # what a pickle can say and a record of tensors cannot
    "size and stride of different lengths": ((2, 3), (1,), 0, "2 axes but 1 strides"),
    "a size that is a float": ((2.0,), (1,), 0, "the shape is no non-negative"),
    "a size that is a bool": ((True,), (1,), 0, "the shape is no non-negative"),
    "a size of 1,000 bits": ((2**1000,), (0,), 0, "the shape overflows"),
    "a shape that is no tuple": (6, (1,), 0, "the shape is no non-negative"),
    "an offset that is a text": ((1,), (1,), "0", "the offset is no non-negative"),
    "an offset of 1,000 bits": ((1,), (1,), 2**1000, "reaches element"),
}


def lie_cases():
    for name, (shape, strides, offset, reason) in {**LIES, **ODD}.items():
        for make in (v1, v2, early):
            label = f"{name}, {make.__name__}"
            yield f"zip: {label}", in_zip(make(FLOAT6["zip"], offset, shape, strides)), reason
            yield (
                f"stream: {label}",
                in_stream(make(FLOAT6["stream"], offset, shape, strides)),
                reason,
            )
        if name in LIES:
            yield f"tar: {name}", in_tar(Placed(90, shape, strides, offset)), reason


# -------------------------------------------------------------------------------- of their storages

UNTYPED = Global("torch.storage", "UntypedStorage")
STORAGES = {
    # numel against the record
    "zip: numel larger than the record": (in_zip(of_zip("0", "Float", 7)), "record has 24"),
    "zip: numel smaller than the record": (in_zip(of_zip("0", "Float", 5)), "record has 24"),
    "zip: numel of 2^60": (in_zip(of_zip("0", "Float", 2**60)), "record has 24"),
    "zip: negative numel": (in_zip(of_zip("0", "Float", -1)), "size is no non-negative"),
    "zip: numel of True": (in_zip(of_zip("0", "Float", True)), "size is no non-negative"),
    "stream: numel larger than the record": (in_stream(of_stream("0", "Float", 7)), "6 elements"),
    "stream: numel smaller than the record": (in_stream(of_stream("0", "Float", 5)), "6 elements"),
    "stream: numel of 2^38 in a file of 400 bytes": (
        in_stream(of_stream("0", "Float", 2**38), record(SIX, 2**38)),
        "more than the file",
    ),
    "stream: numel of 2^38 in the record only": (
        in_stream(of_stream("0", "Float", 6), record(SIX, 2**38)),
        "274877906944 elements, but 6",
    ),
    "stream: negative numel in the record": (
        in_stream(of_stream("0", "Float", 6), record(SIX, -6)),
        "-6 elements, but 6",
    ),
    "stream: negative numel": (in_stream(of_stream("0", "Float", -6)), "size is no non-negative"),
    "stream: fewer elements than numel": (
        in_stream(of_stream("0", "Float", 6), record(SIX[:4], 6)),
        "cut off",
    ),
    "tar: numel of 2^38 in a small file": (
        in_tar(Placed(90, (6,)), tar_storages({90: ("Float", record(SIX, 2**38))})),
        "more than the file",
    ),
    "tar: negative numel": (
        in_tar(Placed(90, (6,)), tar_storages({90: ("Float", record(SIX, -6))})),
        "more than the file",
    ),
    "tar: numel smaller than what is there": (
        in_tar(Placed(90, (5,)), tar_storages({90: ("Float", record(SIX, 5))})),
        "unknown pickle opcode",
    ),
    "tar: offset past the storage": (in_tar(Placed(90, (1,), offset=100)), "reaches element 100"),
    "tar: 2^31 axes": (
        in_tar(
            dumps(1)
            + dumps((80, 90, Global("torch", "FloatTensor")))
            + struct.pack("<i", -(2**31))
            + bytes(40)
        ),
        "axes",
    ),
    "tar: a million axes": (
        in_tar(
            dumps(1)
            + dumps((80, 90, Global("torch", "FloatTensor")))
            + struct.pack("<i", 1_000_000)
            + bytes(40)
        ),
        "axes",
    ),
    "tar: a count of 2^60 storages": (
        in_tar(Placed(90, (6,)), dumps(2**60) + dumps([])),
        "entries, more than",
    ),
    "tar: a count of 2^60 tensors": (in_tar(dumps(2**60)), "entries, more than"),
    "tar: a negative count": (in_tar(dumps(-1)), "entries, more than"),
    "tar: a count that is True": (in_tar(dumps(True)), "entries, more than"),
    # keys
    "zip: one key with two dtypes": (
        zipped([of_zip("0", "Float", 6), of_zip("0", "Int", 6)], {"0": SIX}),
        "elsewhere",
    ),
    "zip: one key with two sizes": (
        zipped([of_zip("0", "Float", 6), of_zip("0", "Float", 5)], {"0": SIX}),
        "6 elements of float32, and elsewhere in the pickle 5 elements of float32",
    ),
    "stream: one key with two dtypes": (
        stream([of_stream("0", "Float", 6), of_stream("0", "Int", 6)], {"0": SIX}),
        "two references that differ",
    ),
    "stream: one key with two sizes": (
        stream([of_stream("0", "Float", 6), of_stream("0", "Float", 5)], {"0": SIX}),
        "two references that differ",
    ),
    "tar: one key with two dtypes": (
        in_tar(
            Placed(90, (6,)),
            dumps(2)
            + b"".join(
                dumps((90, "cpu", Global("torch", f"{kind}Storage"))) + record(SIX)
                for kind in ("Float", "Int")
            )
            + dumps([]),
        ),
        "the key 90 twice",
    ),
    "tar: a tensor of another dtype than its storage": (
        in_tar(Placed(90, (6,), kind="Int")),
        "another dtype",
    ),
    "tar: a tensor with the key of a storage": (
        in_tar({90: Placed(90, (6,))}),
        "the key 90 twice",
    ),
    "zip: a key with slashes": (
        zipped([of_zip("../../etc/passwd", "Float", 6)], {"../../etc/passwd": SIX}),
        "no plain name",
    ),
    "stream: a key with slashes": (
        stream([of_stream("/etc/passwd", "Float", 6)], {"/etc/passwd": SIX}),
        "no plain name",
    ),
    "zip: a key that is a number": (zipped([of_zip(0, "Float", 6)], {"0": SIX}), "no plain name"),
    "zip: a key with NUL": (zipped([of_zip("0\0", "Float", 6)], {"0\0": SIX}), "no plain name"),
    "stream: a key of 10,000 characters": (
        stream([of_stream("0" * 10_000, "Float", 6)], {"0" * 10_000: SIX}),
        "no plain name",
    ),
    "zip: a missing record": (zipped([of_zip("1", "Float", 6)], {"0": SIX}), "no record data/1"),
    "stream: a missing record": (
        stream([of_stream("1", "Float", 6)], {}, keys=["1"]),
        "cut off",
    ),
    "stream: a key missing in the list": (
        stream([of_stream("1", "Float", 6)], {"1": SIX}, keys=[]),
        "lacks '1'",
    ),
    "stream: a key in the list that is not used": (
        stream([of_stream("0", "Float", 6)], {"0": SIX, "1": SIX}),
        "unused '1'",
    ),
    "stream: a key twice in the list": (
        stream([of_stream("0", "Float", 6)], {"0": record(SIX) * 2}, keys=["0", "0"]),
        "has one twice",
    ),
    "stream: a list that is not sorted": (
        stream(
            [of_stream("0", "Float", 6), of_stream("1", "Float", 6)],
            {"0": SIX, "1": SIX},
            keys=["1", "0"],
        ),
        "not sorted",
    ),
    "stream: a list of numbers": (
        stream([of_stream("0", "Float", 6)], {"0": SIX}, keys=[0]),
        "no list of texts",
    ),
    "stream: a tuple of keys": (
        stream([of_stream("0", "Float", 6)], {"0": SIX}, keys=("0",)),
        "no list of texts",
    ),
    "tar: a tensor on no storage": (in_tar(Placed(91, (6,))), "no storage of the file"),
    "tar: a tensor on a text": (in_tar(Placed("90", (6,))), "no storage of the file"),
    "tar: a tensor on nothing": (in_tar(Placed(None, (6,))), "reaches element 5"),
    "tar: a tensor that is not there": (
        tar({"w": Pid("81")}, {90: SIX}, {80: Placed(90, (6,))}),
        "no tensor or storage of the file",
    ),
    "tar: a persistent id that is a number": (
        tar({"w": Pid(80)}, {90: SIX}, {80: Placed(90, (6,))}),
        "no tensor or storage of the file",
    ),
    "tar: a persistent id that is a class": (
        tar({"w": Pid((ORDERED, "net.py", "class Net: pass"))}, {}, {}),
        "a whole module",
    ),
    "tar: a module's class in a persistent id": (
        tar({"w": Pid((Global("net", "Net"), "net.py", "class Net: pass"))}, {}, {}),
        "net.Net",
    ),
    "stream: a module's class in a persistent id": (
        stream([Pid(("module", Global("net", "Net"), "net.py", "class Net: pass"))], {}),
        "net.Net",
    ),
    "tar: a storage as data": (
        tar({"w": Pid("90")}, {90: SIX}, {80: Placed(90, (6,))}),
        "belongs to no tensor",
    ),
    "stream: a storage as data": (
        stream([storage("0", "Float", 6)], {"0": SIX}),
        "belongs to no tensor",
    ),
    "stream: a persistent id of another kind": (stream([Pid(("file", "x"))], {}), "a reference"),
    "zip: a persistent id of another kind": (zipped([Pid("/etc/passwd")], {}), "a reference"),
    "zip: a storage of no class of storages": (
        in_zip(v2(storage("0", ORDERED, 6, short=True), 0, (6,))),
        "of no class of storages",
    ),
    "stream: a storage of a class of tensors": (
        in_stream(v2(storage("0", Global("torch", "FloatTensor"), 6), 0, (6,))),
        "of no class of storages",
    ),
    "tar: a storage of a class of tensors": (
        in_tar(
            Placed(90, (6,)),
            tar_storages({90: (Global("torch", "FloatTensor"), record(SIX))}),
        ),
        "no class of storages",
    ),
    "tar: a storage of no class of storages": (
        in_tar(Placed(90, (6,)), tar_storages({90: (ORDERED, record(SIX))})),
        "no class of storages",
    ),
    "stream: a storage without a dtype": (
        stream(
            [of_stream("0", UNTYPED, 24)],
            {"0": record(SIX, 24)},
        ),
        "without a dtype",
    ),
    "zip: a storage without a dtype": (
        in_zip(of_zip("0", UNTYPED, 24)),
        "without a dtype",
    ),
    # views
    "tar: a tensor of no class of tensors": (
        in_tar(Placed(90, (6,), kind=Global("torch", "FloatStorage"))),
        "no class of tensors",
    ),
    "tar: a storage whose class is a text": (
        in_tar(Placed(90, (6,)), dumps(1) + dumps((90, "cpu", "Float")) + record(SIX)),
        "no (key, …, class)",
    ),
    "tar: a storage of two": (
        in_tar(Placed(90, (6,)), dumps(1) + dumps((90, 90)) + bytes(40)),
        "no (key",
    ),
    "tar: a storage whose key is a text": (
        in_tar(Placed(90, (6,)), tar_storages({"90": ("Float", record(SIX))})),
        "no address",
    ),
    "tar: a storage whose key is a list": (
        in_tar(Placed(90, (6,)), dumps(1) + dumps(([], "cpu", ORDERED)) + record(SIX)),
        "no address",
    ),
    "tar: a storage whose key is of 65 bits": (
        in_tar(Placed(90, (6,)), tar_storages({2**64: ("Float", record(SIX))})),
        "no address",
    ),
    "stream: a view of a storage without a dtype": (
        stream([of_stream("0", UNTYPED, 24, view=("7", 0, 4))], {"0": record(SIX, 24)}),
        "a view of a storage without",
    ),
    "stream: a view past its storage": (
        stream([v1(storage("0", "Float", 6, view=("7", 4, 3)), 0, (1,))], {"0": SIX}),
        "elements 4 to 7 of a storage of 6",
    ),
    "stream: a view at a negative offset": (
        stream([v1(storage("0", "Float", 6, view=("7", -1, 3)), 0, (1,))], {"0": SIX}),
        "view is no",
    ),
    "tar: a view past its storage": (
        in_tar(Placed(91, (1,)), views=[(91, 90, 4, 3)]),
        "elements 4 to 7",
    ),
    "tar: a view at a negative offset": (
        in_tar(Placed(91, (1,)), views=[(91, 90, -1, 3)]),
        "a view that is",
    ),
    "tar: a view of 2^2000 elements": (
        in_tar(Placed(91, (1,)), views=[(91, 90, 2**1500, 2**1500)]),
        "a view of elements",
    ),
    "tar: a view of no storage": (
        in_tar(Placed(91, (1,)), views=[(91, 92, 0, 3)]),
        "no storage of the file",
    ),
    "tar: a view of itself": (
        in_tar(Placed(91, (1,)), views=[(91, 91, 0, 3)]),
        "no storage of the file",
    ),
    "tar: a view with the key of a storage": (
        in_tar(Placed(90, (1,)), views=[(90, 90, 0, 3)]),
        "the key 90 twice",
    ),
    "tar: views that are no list": (in_tar(Placed(90, (1,)), views=dumps({})), "are no list"),
    "tar: a view of three": (in_tar(Placed(90, (1,)), views=[(91, 90, 0)]), "a view that is"),
    # booleans
    "stream: a boolean of 2": (
        in_stream(of_stream("0", "Bool", 6), struct.pack("<q6B", 6, 0, 1, 2, 0, 0, 1)),
        "neither 0 nor 1",
    ),
    "zip: a boolean of 2": (
        in_zip(of_zip("0", "Bool", 6), bytes([0, 1, 2, 0, 0, 1])),
        "neither 0 nor 1",
    ),
}

CASES = {**{name: (data, reason) for name, data, reason in lie_cases()}, **STORAGES}


@pytest.mark.parametrize("name", CASES)
def test_refused(name, refused):
    refused(*CASES[name])
