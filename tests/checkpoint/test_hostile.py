"""Files made to harm, to lie or to break a reader: each is refused with CheckpointError, for its
own reason, with nothing run, imported, written, or allocated beyond what the file justifies.

The names of the cases say what each file tries.
"""

import io
import json
import os
import struct
import sys
import tarfile
import tempfile
import tracemalloc

import numpy as np
import pytest

from numgrad import memory
from numgrad.checkpoint import CheckpointError, load
from tests.checkpoint.makers import (
    FORMATS,
    MAGIC,
    ORDERED,
    PARAMETER,
    Entry,
    Global,
    Pid,
    Placed,
    Raw,
    Reduce,
    archive,
    dumps,
    early,
    member,
    parameter3,
    record,
    sealed,
    state_dict,
    storage,
    stream,
    tar,
    tar_storages,
    tar_tensors,
    v1,
    v2,
    zip_bytes,
    zip_entries,
    zipped,
)

FLAG = os.path.join(tempfile.gettempdir(), f"numgrad-hostile-{os.getpid()}")
"""A folder that a payload would make."""
COMMAND = f"mkdir {FLAG}".encode()
RUN = b"cposix\nsystem\n(X" + struct.pack("<I", len(COMMAND)) + COMMAND + b"tR"
SIX = np.arange(6, dtype=np.float32)
PROTOCOL = b"\x80\x02"


def pickle_in_stream(opcodes):
    return stream(PROTOCOL + opcodes + b".", {})


def pickle_in_zip(opcodes):
    return zipped(PROTOCOL + opcodes + b".", {})


def pickle_in_tar(opcodes):
    return tar(PROTOCOL + opcodes + b".", {}, {})


PICKLED = {"stream": pickle_in_stream, "zip": pickle_in_zip, "tar": pickle_in_tar}

# --------------------------------------------------------------- what the pickle of the object does


def text(value, errors="strict"):
    data = value.encode("utf-8", errors)
    return b"X" + struct.pack("<I", len(data)) + data


def code(obj):
    return dumps(obj)[2:-1]


COLLIDING = [Raw(code(k * (2**61 - 1))) for k in range(1, 2000)]
"""Integers that have all the hash 0: a dict of them takes quadratic time."""


PICKLES = {
    # code
    "REDUCE of a function": (RUN, "posix.system"),
    "REDUCE popped again": (RUN + b"0N", "posix.system"),
    "INST": (b"(" + text(f"mkdir {FLAG}") + b"iposix\nsystem\n", "INST"),
    "OBJ": (b"(cposix\nsystem\n" + text(f"mkdir {FLAG}") + b"o", "posix.system"),
    "OBJ popped again": (b"(cposix\nsystem\n" + text("true") + b"o0N", "posix.system"),
    "OBJ of a class of the list": (b"(ccollections\nOrderedDict\no", "OBJ"),
    "NEWOBJ of a class": (b"csubprocess\nPopen\n" + text("true") + b"\x85\x81", "subprocess.Popen"),
    "NEWOBJ of a function of the list": (b"ccollections\nOrderedDict\n)\x81", "it makes an object"),
    "NEWOBJ_EX": (b"ccollections\nOrderedDict\n)}\x92", "NEWOBJ_EX"),
    "STACK_GLOBAL": (text("builtins") + text("exec") + b"\x93", "builtins.exec"),
    "STACK_GLOBAL of no texts": (b"K\x01K\x02\x93", "a global's name"),
    "EXT1": (b"\x82\x01", "EXT1"),
    "EXT2": (b"\x83\x01\x00", "EXT2"),
    "EXT4": (b"\x84\x01\x00\x00\x00", "EXT4"),
    "NEXT_BUFFER": (b"\x97", "NEXT_BUFFER"),
    "attribute of a name of the list": (
        b"ccollections\nOrderedDict.__init__.__globals__\n",
        "OrderedDict.__init__.__globals__",
    ),
    "submodule of a name of the list": (b"ctorch._utils._rebuild_tensor\nx\n", "_rebuild_tensor.x"),
    "getattr": (b"c__builtin__\ngetattr\n", "__builtin__.getattr"),
    "torch.load": (b"ctorch.serialization\nload\n", "torch.serialization.load"),
    "numpy.load": (b"cnumpy\nload\n", "numpy.load"),
    "call of a tensor": (b"N)R", "it calls"),
    "arguments that are a list": (b"ccollections\nOrderedDict\n]R", "no tuple"),
    "BUILD on a dict": (b"}}b", "it sets attributes"),
    "BUILD on a class": (b"ccollections\nOrderedDict\n}b", "it sets attributes"),
    "BUILD on a number": (b"K\x01}b", "it sets attributes"),
    "BUILD on an OrderedDict, other attributes": (
        code(Reduce(ORDERED, (), state={"__class__": 1})),
        "it sets attributes",
    ),
    "BUILD on an OrderedDict, more than _metadata": (
        code(Reduce(ORDERED, (), state={"_metadata": {}, "x": 1})),
        "it sets attributes",
    ),
    "BUILD on a Parameter, a dict": (
        code(Reduce(PARAMETER, (), True, state={"__class__": 1})),
        "a Parameter whose state",
    ),
    "BUILD on an early tensor, no storage": (
        code(early(None, 0, (1,))),
        "a tensor on no storage",
    ),
    "BUILD on an early tensor, a dict": (
        code(Reduce(Global("torch", "FloatTensor"), (), state={"x": 1})),
        "a tensor whose state",
    ),
    "an early tensor without a state": (b"ctorch\nFloatTensor\n)R", "never got its elements"),
    "a Parameter without data": (
        b"ctorch.nn.parameter\nParameter\n)\x81",
        "never got its elements",
    ),
    "a Parameter of text": (code(parameter3("x")), "no tensor"),
    "BUILD on an ndarray": (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85C\1b\x87R}b",
        "a NumPy array whose state",
    ),
    "an ndarray of objects": (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85C\1b\x87R"
        b"(K\1K\1\x85cnumpy\ndtype\nC\2O8K\0K\1\x87R",
        "a NumPy dtype",
    ),
    "an ndarray larger than its bytes": (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85C\1b\x87R"
        b"(K\1\x8a\x06\0\0\0\0\0\1\x85cnumpy\ndtype\n"
        + text("f8")
        + b"K\0K\1\x87R(K\3"
        + text("<")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89C\x08abcdefghtb",
        "in 8 bytes",
    ),
    "BUILD on a dtype, fields": (
        b"cnumpy\ndtype\n" + text("f8") + b"K\0K\1\x87R(K\3" + text("|") + b"N}}K\1K\1K\0tb",
        "no plain number",
    ),
    "a subclass of ndarray": (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy.matrixlib\nmatrix\nK\0\x85C\1b\x87R",
        "numpy.matrixlib.matrix",
    ),
    "a class that stands as data": (b"ccollections\nOrderedDict\n", "where data should be"),
    "hooks": (
        b"ctorch._utils\n_rebuild_parameter\nN\x89ccollections\nOrderedDict\n"
        b"(K\1K\2\x86l\x85R\x87R",
        "hooks",
    ),
    "a whole module": (
        b"ctorchvision.models.resnet\nResNet\n)\x81}" + text("training") + b"\x88sb",
        "torchvision.models.resnet.ResNet",
    ),
    "the way out of a whole module": (b"c__main__\nNet\n)\x81", "state_dict()"),
    # structure
    "SETITEM on a list": (b"]K\1K\2s", "no dict"),
    "SETITEMS on a tuple": (b")(K\1K\2u", "no dict"),
    "SETITEM on a text": (text("x") + b"K\1K\2s", "no dict"),
    "APPEND on a dict": (b"}K\1a", "no list"),
    "APPENDS on an OrderedDict": (b"ccollections\nOrderedDict\n)R(K\1e", "no list"),
    "stack underflow": (b"0", "more from its stack"),
    "TUPLE3 of two": (b"K\1K\2\x87", "more from its stack"),
    "underflow through a mark": (b"K\1(\x85", "more from its stack"),
    "no mark": (b"K\1t", "mark"),
    "unknown memo": (b"h\7", "the memo has no entry 7"),
    "unknown LONG_BINGET": (b"j\xff\xff\xff\xff", "the memo has no entry"),
    "PUT of nothing": (b"q\0", "more from its stack"),
    "two objects": (b"K\1K\2", "2 objects"),
    "a mark left over": (b"(", "objects at the end"),
    "unhashable key, a list": (b"}]K\1s", "a dict's key"),
    "unhashable key, a dict": (b"}}K\1s", "a dict's key"),
    "unhashable key, in a tuple": (b"}]\x85K\1s", "a dict's key"),
    "a key twice": (b"}(" + (text("w") + b"K\1") * 2 + b"u", "twice"),
    "50,000 nested lists": (b"]" * 50_000 + b"a" * 49_999, "levels"),
    "50,000 nested tuples": (b")" + b"\x85" * 50_000, "levels"),
    "50,000 nested dicts": (b"}" + b"K\1}" * 50_000 + b"s" * 50_000, "levels"),
    "doubling memo": (b"]" + b"q\x000h\x00h\x00\x86" * 64, "items"),
    "a list that contains itself": (b"]q\0h\0a", "contains itself"),
    "a dict that contains itself": (b"}q\0K\1h\0s", "contains itself"),
    "lists that contain each other": (b"]q\0]q\1h\0aa", "contains itself"),
    "2,000 copies of one text": (
        b"c_codecs\nencode\nq\0" + text("a" * 50_000) + b"q\1" + text("latin1") + b"q\2"
        b"](" + b"h\0h\1h\2\x86R" * 2000 + b"e",
        "more copies of its data",
    ),
    "2,000 copies of one dict": (
        b"ccollections\nCounter\nq\0}q\1("
        + b"".join(b"M" + struct.pack("<H", i) + b"K\1" for i in range(5000))
        + b"u("
        + b"h\0h\1\x85R" * 2000
        + b"l",
        "more copies of its data",
    ),
    "2,000 dicts of one list": (
        b"ccollections\nOrderedDict\nq\0]q\1("
        + b"".join(b"M" + struct.pack("<H", i) + b"N\x86" for i in range(5000))
        + b"e("
        + b"h\0h\1\x85R" * 2000
        + b"l",
        "more copies of its data",
    ),
    "a size of 50,000 axes": (b"ctorch\nSize\n](" + b"K\1" * 50_000 + b"e\x85R", "torch.Size of"),
    "keys of one hash": (code(dict.fromkeys(COLLIDING)), "a dict's key that is 23058"),
    "keys of one hash in tuples": (
        code({(1, k): None for k in COLLIDING}),
        "a tuple with 23058",
    ),
    "unknown opcode": (b"\xff", "unknown pickle opcode"),
    "protocol 6": (b"\x80\x06N", "protocol 6"),
    "a text of 4 GiB": (b"X\xff\xff\xff\xffabc", "cut off"),
    "a text of 2^63 bytes": (b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc", "cut off"),
    "bytes of 4 GiB": (b"B\xff\xff\xff\xffabc", "cut off"),
    "an integer of 2 GiB": (b"\x8b\xff\xff\xff\x7fabc", "an integer of"),
    "an integer of negative size": (b"\x8b\xff\xff\xff\xffabc", "negative size"),
    "a frame of 2^63 bytes": (b"\x95\xff\xff\xff\xff\xff\xff\xff\x7fN", "frame"),
    "digits without end": (b"I" + b"1" * 50_000, "a line of more than"),
    "5,000 digits": (b"L" + b"1" * 5_000 + b"L\n", "no integer"),
    "a name without end": (b"c" + b"x" * 50_000, "a line of more than"),
    "a text that is no UTF-8": (b"X\2\0\0\0\xff\xfe", "UTF-8"),
    # kinds
    "quantized": (b"ctorch._utils\n_rebuild_qtensor\n", "unsupported kind"),
    "a quantized storage": (b"ctorch\nQInt8Storage\n", "unsupported kind"),
    "sparse": (b"ctorch._utils\n_rebuild_sparse_tensor\n", "unsupported kind"),
    "an early sparse tensor": (b"ctorch.sparse\nFloatTensor\n", "unsupported kind"),
    "complex": (b"ctorch\nComplexFloatStorage\n", "unsupported kind"),
}

# -------------------------------------------------------------- what is said of a tensor's elements


def in_stream(tensor, array=SIX, **how):
    return stream({"w": tensor}, {"0": array}, **how)


def in_zip(tensor, array=SIX, **how):
    return zipped({"w": tensor}, {"0": array}, **how)


def in_tar(placed, storages=None, **how):
    storages = {90: SIX} if storages is None else storages
    return tar(
        {"w": Pid("80")}, storages, {80: placed} if isinstance(placed, Placed) else placed, **how
    )


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
    "a product that overflows to 0": ((2**32, 2**32), (0, 0), 0, "larger than the file"),
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

FLOAT6 = {
    "zip": storage("0", "Float", 6, short=True),
    "stream": storage("0", "Float", 6),
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


UNTYPED = Global("torch.storage", "UntypedStorage")


def of_zip(*args, **how):
    return v2(storage(*args, short=True, **how), 0, (1,))


def of_stream(*args, **how):
    return v2(storage(*args, **how), 0, (1,))


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

# ------------------------------------------------------------------------------- the pickles around

GOOD_OBJECT = {"w": v2(storage("0", "Float", 6), 0, (6,))}
GOOD_STREAM = stream(GOOD_OBJECT, {"0": SIX})
EXACT = dumps(MAGIC)


def around(**how):
    return stream(GOOD_OBJECT, {"0": SIX}, **how)


AROUND = {
    "a callable in the magic number": (around(magic=PROTOCOL + RUN + b"."), "posix.system"),
    "a callable popped in the magic number": (
        around(magic=EXACT[:-1] + RUN + b"0."),
        "posix.system",
    ),
    "a callable in the version": (around(version=PROTOCOL + RUN + b"."), "posix.system"),
    "a callable in the facts of the machine": (around(info=PROTOCOL + RUN + b"."), "posix.system"),
    "a callable in the key list": (around(keys=PROTOCOL + b"](" + RUN + b"e."), "posix.system"),
    "a callable popped in the key list": (
        around(keys=PROTOCOL + b"]" + text("0") + RUN + b"0a."),
        "posix.system",
    ),
    "a persistent id in the key list": (around(keys=dumps([Pid("0")])), "outside of the pickle"),
    "another magic number": (around(magic=dumps(MAGIC + 1)), "the magic number is"),
    "the magic number as a float": (around(magic=dumps(float(MAGIC))), "the magic number is"),
    "another version": (around(version=dumps(1002)), "the protocol version is 1002"),
    "the version as a float": (around(version=dumps(1001.0)), "the protocol version is"),
    "no facts of the machine": (around(info=dumps([])), "no dict"),
    "bytes after the end": (around(tail=b"\0"), "1 bytes after the last element"),
    "a second file after the end": (around(tail=GOOD_STREAM), "bytes after the last element"),
    "only the magic number": (EXACT, "cut off"),
}

# ---------------------------------------------------------------------------------------------- tar

GOOD_TAR = in_tar(Placed(90, (6,)))
PARTS = {
    "sys_info": dumps({"protocol_version": 1000}),
    "pickle": dumps({"w": Pid("80")}),
    "tensors": tar_tensors({80: Placed(90, (6,))}),
    "storages": tar_storages({90: SIX}),
}


def packed(*leave_out, extra=(), **data):
    parts = {**PARTS, **data}
    members = [member(name, parts[name]) for name in parts if name not in leave_out]
    return archive([*members, *extra])


def header(position=0, **fields):
    """A good tar file with a field of a header changed and its checksum made right again."""
    places = {"name": (0, 100), "size": (124, 136), "kind": (156, 157), "link": (157, 257)}
    places |= {"magic": (257, 265), "prefix": (345, 500)}
    head = bytearray(GOOD_TAR[position : position + 512])
    for name, value in fields.items():
        start, stop = places[name]
        head[start:stop] = value.ljust(stop - start, b"\0")
    return GOOD_TAR[:position] + sealed(bytes(head)) + GOOD_TAR[position + 512 :]


def pax(records, *, members=None, times=1):
    """A tar file whose first member has an extended header, or several."""
    info = tarfile.TarInfo("PaxHeaders/x")
    info.type = tarfile.XHDTYPE
    info.size = len(records)
    data = info.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % 512)
    data = data * times + (packed().rstrip(b"\0") if members is None else members)
    return data + bytes(10240 - len(data) % 10240)


MTIME = b"17 mtime=12345.6\n"
LINK = {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}
TARS = {
    "a symbolic link": (packed("pickle", extra=[member("pickle", b"", **LINK)]), "a link"),
    "a hard link": (
        packed("pickle", extra=[member("pickle", b"", type=tarfile.LNKTYPE, linkname="storages")]),
        "a link",
    ),
    "a link beside": (packed(extra=[member("escape", b"", **LINK)]), "a link"),
    "a device": (packed(extra=[member("tty", b"", type=tarfile.CHRTYPE)]), "a device"),
    "a fifo": (packed(extra=[member("fifo", b"", type=tarfile.FIFOTYPE)]), "no plain file"),
    "a folder": (packed(extra=[member("folder", b"", type=tarfile.DIRTYPE)]), "a folder"),
    "an absolute name": (packed(extra=[member(FLAG, b"x")]), "unknown member"),
    "a name that goes up": (packed(extra=[member("../pickle", b"x")]), "unknown member"),
    "an absolute name of a known member": (
        packed("pickle", extra=[member("/pickle", PARTS["pickle"])]),
        "unknown member",
    ),
    "a known name in a folder": (header(prefix=b"folder"), "a folder before the name"),
    "a plain file with a link's target": (header(link=b"/etc/passwd"), "a link's target"),
    "an unknown member": (packed(extra=[member("more", b"x")]), "unknown member 'more'"),
    "a member twice": (packed(extra=[member("pickle", PARTS["pickle"])]), "pickle twice"),
    "no storages": (packed("storages"), "storages is missing"),
    "one member": (packed("pickle", "tensors", "storages"), "pickle is missing"),
    "a wrong checksum": (GOOD_TAR[:100] + b"9" + GOOD_TAR[101:], "its checksum is wrong"),
    "a size beyond the file": (header(size=b"77777777777"), "a member of 8589934591 bytes"),
    "a size that is no number": (header(size=b"9"), "no octal number"),
    "a negative size, base 256": (header(size=b"\xff" * 12), "no octal number"),
    "a size of nothing": (header(size=b""), "no octal number"),
    "a second member of another magic": (header(1024, magic=b"ustar  "), "no header of a tar file"),
    "an unknown kind": (header(kind=b"S"), "no plain file"),
    "bytes after the last member": (GOOD_TAR[:-1] + b"x", "bytes after the last member"),
    "a second file after the end": (GOOD_TAR * 2, "after the last member"),
    "zero bytes after the end": (GOOD_TAR + bytes(20480), "after the last member"),
    "bytes in the padding of a member": (
        GOOD_TAR[:1023] + b"x" + GOOD_TAR[1024:],
        "behind the end",
    ),
    "a size that is no multiple": (GOOD_TAR[:-512], "no multiple of"),
    "bytes after a pickle": (
        packed(pickle=PARTS["pickle"] + b"N."),
        "after the end of this member",
    ),
    "bytes after the tensors": (packed(tensors=PARTS["tensors"] + b"\0"), "end of this member"),
    "bytes after the storages": (packed(storages=PARTS["storages"] + b"\0"), "end of this member"),
    "a callable in sys_info": (packed(sys_info=PROTOCOL + RUN + b"."), "posix.system"),
    "a callable in the count of storages": (packed(storages=PROTOCOL + RUN + b"."), "posix.system"),
    "a callable in the count of tensors": (packed(tensors=PROTOCOL + RUN + b"."), "posix.system"),
    "a callable in the views": (
        packed(storages=tar_storages({90: SIX}, PROTOCOL + RUN + b".")),
        "posix.system",
    ),
    "another version": (packed(sys_info=dumps({"protocol_version": 1001})), "protocol version"),
    "sys_info that is a list": (packed(sys_info=dumps([])), "protocol version"),
    "an extended header that names a path": ((pax(b"15 path=/etc/x\n")), "sets b'path'"),
    "an extended header that sets a size": ((pax(b"9 size=9\n")), "sets b'size'"),
    "an extended header that names a link": (
        (pax(b"20 linkpath=/etc/ab\n")),
        "sets b'linkpath'",
    ),
    "an extended header of a sparse file": (
        (pax(b"22 GNU.sparse.major=1\n")),
        "sets b'GNU.sparse.major'",
    ),
    "an extended header without a length": ((pax(b"x mtime=1\n")), "malformed"),
    "an extended header of length 0": ((pax(b"0 mtime=1\n")), "malformed"),
    "an extended header longer than it is": ((pax(b"99 mtime=1\n")), "malformed"),
    "an extended header of 100,000 bytes": ((pax(b"1" * 100_000)), "100000 bytes"),
    "two extended headers for one member": (pax(MTIME, times=2), "two extended headers"),
    "an extended header without a member": (pax(MTIME, members=b""), "without a member"),
    "a global extended header": (header(kind=b"g"), "no plain file"),
}

# ---------------------------------------------------------------------------------------------- zip

ENTRIES = zip_entries({"w": of_zip("0", "Float", 6)}, {"0": SIX})


def changed(name, **fields):
    """A good zip file with something changed in the headers of one record."""
    entries = [Entry(e.name, e.data, **(fields if e.name == name else {})) for e in ENTRIES]
    return zip_bytes(entries)


WEIGHT = "archive/data/0"
PICKLE = "archive/data.pkl"
GOOD_ZIP = zip_bytes(ENTRIES)
FLIPPED = bytearray(GOOD_ZIP)
FLIPPED[GOOD_ZIP.index(SIX.tobytes()) + 5] ^= 1
ZIPS = {
    "a compressed record": (changed(WEIGHT, method=8), "is compressed"),
    "a compressed pickle": (changed(PICKLE, method=8), "is compressed"),
    "a record that is a bomb": (
        zip_bytes([ENTRIES[0], Entry(WEIGHT, bytes(50_000_000), method=8)]),
        "is compressed",
    ),
    "an encrypted record": (changed(WEIGHT, flags=1), "is encrypted"),
    "a wrong CRC of a weight": (changed(WEIGHT, crc=1), "its CRC is wrong"),
    "a wrong CRC of the pickle": (changed(PICKLE, crc=1), "its CRC is wrong"),
    "a flipped weight": (bytes(FLIPPED), "its CRC is wrong"),
    "a CRC of 0 for one record": (changed(WEIGHT, crc=0), "its CRC is wrong"),
    "a record that claims more than it has": (changed(WEIGHT, claimed=2**30), "beyond"),
    "a record that claims less than it has": (changed(WEIGHT, claimed=8), "belong to nothing"),
    "two names for one record": (
        changed(WEIGHT, local_name="archive/data/1"),
        "zip directory says",
    ),
    "a duplicate record": (zip_bytes([*ENTRIES, Entry(WEIGHT, SIX.tobytes())]), "two records"),
    "an unused record": (
        zip_bytes([*ENTRIES, Entry("archive/data/1", SIX.tobytes())]),
        "does not use",
    ),
    "an unknown record": (zip_bytes([*ENTRIES, Entry("archive/more", b"x")]), "no such record"),
    "two roots": (
        zip_bytes([*ENTRIES, Entry("other/data/0", SIX.tobytes())]),
        "outside of the folder",
    ),
    "two data.pkl": (
        zip_bytes([*ENTRIES, Entry("other/data.pkl", ENTRIES[0].data)]),
        "2 records data.pkl",
    ),
    "two data.pkl, one in a folder": (
        zip_bytes([*ENTRIES, Entry("archive/x/data.pkl", ENTRIES[0].data)]),
        "2 records data.pkl",
    ),
    "no data.pkl": (zip_bytes(ENTRIES[1:]), "records data.pkl"),
    "no records": (b"PK\x05\x06" + bytes(18), "neither a file of"),
    "an absolute root": (
        zip_bytes(zip_entries([], {}, root="/etc")),
        "as the folder of data.pkl",
    ),
    "a root that goes up": (
        zip_bytes(zip_entries([], {}, root="../..")),
        "as the folder of data.pkl",
    ),
    "TorchScript, constants": (
        zip_bytes([*ENTRIES, Entry("archive/constants.pkl", b"\x80\x02).")]),
        "TorchScript",
    ),
    "TorchScript, code": (
        zip_bytes([*ENTRIES, Entry("archive/code/__torch__.py", b"pass")]),
        "TorchScript",
    ),
    "bytes before the start": (zip_bytes(ENTRIES, start=b"#!/bin/sh\n"), "neither a file of"),
    "another record before the start": (
        GOOD_ZIP[:64] + GOOD_ZIP,
        "zip directory",
    ),
    "a comment at the end": (zip_bytes(ENTRIES, comment=b"hello"), "does not end where"),
    "bytes after the end": (GOOD_ZIP + b"\0", "does not end where"),
    "a byte order of neither kind": (
        zip_bytes(zip_entries([], {}, byteorder="middle")),
        "neither little nor big",
    ),
    "bytes after the pickle": (
        zip_bytes([Entry(PICKLE, dumps([]) + b"N."), *zip_entries([], {})[1:]]),
        "after the end of the pickle",
    ),
    "a view": (
        zipped([v2(storage("0", "Float", 6, view=("1", 0, 6)), 0, (6,))], {"0": SIX}),
        "a view of a storage",
    ),
}

# --------------------------------------------------------------------------------- names of tensors


def named(form, name, errors="strict"):
    raw = Raw(text(name, errors))
    if form == "tar":
        items = [(raw, Pid("80"))]
        obj = Reduce(ORDERED, (), items=items)
        return tar(obj, {90: SIX}, {80: Placed(90, (6,))})
    tensor = v2(FLOAT6[form], 0, (6,))
    obj = Reduce(ORDERED, (), items=[(raw, tensor)])
    return stream(obj, {"0": SIX}) if form == "stream" else zipped(obj, {"0": SIX})


NAMES = {
    "2,000 characters": "w" * 2000,
    "NUL": "a\0b",
    "a newline": "a\nb",
    "half a surrogate": "a\ud800b",
    "an escape": "\x1b[2J",
}

# ----------------------------------------------------------------------- safetensors, other mishaps


def tensors(header, data=b"", length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def one(dtype="F32", shape=(2,), offsets=(0, 8), **more):
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}}


EIGHT = bytes(8)
TWO = {**one(), "y": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}


def second(*offsets):
    return {**one(), "y": {"dtype": "F32", "shape": [2], "data_offsets": offsets}}


SAFETENSORS = {
    "a header over the file": (tensors(one(), EIGHT, 10_000), "may be cut off"),
    "a header over 100 MB": (tensors(one(), EIGHT, 100_000_001), "more than the 100000000"),
    "a header of 2^63 bytes": (tensors(one(), EIGHT, 2**63), "more than the 100000000"),
    "overlap": (tensors(second(4, 12), bytes(12)), "overlaps"),
    "two tensors on the same bytes": (tensors(second(0, 8), EIGHT), "overlaps"),
    "a hole": (tensors(second(12, 20), bytes(20)), "follows a hole"),
    "a hole at the start": (tensors(one(offsets=[4, 12]), bytes(12)), "follows a hole"),
    "trailing bytes": (tensors(one(), EIGHT + b"\0"), "belong to no tensor"),
    "a size larger than the data": (tensors(one(shape=[3]), EIGHT), "takes 12 bytes"),
    "a size smaller than the data": (tensors(one(shape=[1]), EIGHT), "takes 4 bytes"),
    "an end past the file": (tensors(one(offsets=[0, 16], shape=[4]), EIGHT), "after the last"),
    "reversed offsets": (tensors(one(offsets=[8, 0]), EIGHT), "before its begin"),
    "negative offsets": (tensors(one(offsets=[-8, 0]), EIGHT), "no two positions"),
    "offsets that are floats": (tensors(one(offsets=[0.0, 8.0]), EIGHT), "no two positions"),
    "three offsets": (tensors(one(offsets=[0, 4, 8]), EIGHT), "no two positions"),
    "duplicate names": (
        tensors(b'{"x":%b,"x":%b}' % ((json.dumps(one()["x"]).encode(),) * 2), EIGHT),
        "twice",
    ),
    "a bad dtype": (tensors(one("F33"), EIGHT), "unsupported dtype"),
    "a dtype that is a list": (tensors(one(["F32"]), EIGHT), "unsupported dtype"),
    "not UTF-8": (tensors(b'{"\xff":1}'), "UTF-8"),
    "not JSON": (tensors(b"{x}"), "not JSON"),
    "JSON that is no object": (tensors(b"[1]"), "neither a file of"),
    "NaN in the JSON": (tensors(b'{"x":NaN}'), "JSON"),
    "metadata that are no texts": (
        tensors({"__metadata__": {"a": 1}, **one()}, EIGHT),
        "not an object of strings",
    ),
    "metadata that are a list": (
        tensors({"__metadata__": [], **one()}, EIGHT),
        "not an object of strings",
    ),
    "a shape of 2.0": (tensors(one(shape=[2.0]), EIGHT), "no list of lengths"),
    "a shape of true": (tensors(one(shape=[True, 2]), EIGHT), "no list of lengths"),
    "a negative length": (tensors(one(shape=[-2]), EIGHT), "no list of lengths"),
    "a shape that overflows": (tensors(one(shape=[2**40, 2**40]), EIGHT), "overflows"),
    "a shape that overflows to 0": (tensors(one(shape=[2**63, 2]), EIGHT), "overflows"),
    "an empty shape that overflows": (
        tensors(one("I8", [0, 2**62, 2], [0, 0])),
        "overflows",
    ),
    "33 axes": (tensors(one(shape=[1] * 33, offsets=[0, 4]), bytes(4)), "33 axes"),
    "100,000 nested brackets": (tensors(b'{"x":' + b"[" * 100_000), "nested too deeply"),
    "100,000 nested braces": (tensors(b'{"x":' * 100_000), "nested too deeply"),
    "an integer of 100,000 digits": (
        tensors(b'{"x":' + b"1" * 100_000 + b"}"),
        "digits",
    ),
    "something more in an entry": (tensors(one(more=1), EIGHT), "not an object of"),
    "a control character in a name": (
        tensors({"a\0b": one()["x"]}, EIGHT),
        "a control character",
    ),
    "half a surrogate in a name": (
        tensors(b'{"\\ud800":%b}' % json.dumps(one()["x"]).encode(), EIGHT),
        "surrogate",
    ),
    "keys of one hash": (
        tensors(
            {
                "__metadata__": {
                    "numgrad_format": "1",
                    "numgrad_structure": json.dumps({"dict": [[2**61 - 1, 1]]}),
                }
            }
        ),
        "an integer key of 2**60",
    ),
    "a boolean of 2": (tensors(one("BOOL", [2], [0, 2]), b"\0\2"), "neither 0 nor 1"),
}

MISHAPS = {
    "an empty file": (b"", "empty"),
    "an HTML page": (b"<!DOCTYPE html><html><body>404</body></html>", "an HTML page"),
    "an HTML page after a line": (b"\n <html><head></head></html>", "an HTML page"),
    "a git-lfs pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
        "git lfs pull",
    ),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(100), "neither a file of"),
    "a text": (b"this is no checkpoint\n", "neither a file of"),
    "one byte": (b"P", "1 bytes"),
    "a pickle of Python": (b"\x80\x04\x95" + struct.pack("<Q", 3) + b"]\x94.", "magic number"),
    "a pickle that runs a command": (PROTOCOL + RUN + b".", "posix.system"),
}

CASES = {
    **{
        f"{form}: {name}": (make(ops), reason)
        for form, make in PICKLED.items()
        for name, (ops, reason) in PICKLES.items()
    },
    **{name: (data, reason) for name, data, reason in lie_cases()},
    **STORAGES,
    **{f"stream: {name}": case for name, case in AROUND.items()},
    **{f"tar: {name}": case for name, case in TARS.items()},
    **{f"zip: {name}": case for name, case in ZIPS.items()},
    **{
        f"{form}: a name with {what}": (named(form, name, "surrogatepass"), "in a tensor's name")
        for form in PICKLED
        for what, name in NAMES.items()
    },
    **{f"safetensors: {name}": case for name, case in SAFETENSORS.items()},
    **MISHAPS,
}

MAX_PYTHON_BYTES = 24 << 20
"""Of the largest file, 50,000 nested dicts of 64 bytes each; most take a few kB."""

watched = None
"""Names of audit events while a file is read, else None."""
HARMFUL = {"import", "exec", "compile", "os.system", "os.mkdir", "os.exec", "os.posix_spawn"}
HARMFUL |= {"open", "subprocess.Popen", "socket.connect", "shutil.unpack_archive", "os.rename"}


def _hook(event, args):
    if watched is not None:
        watched.append(event)


sys.addaudithook(_hook)


@pytest.fixture(scope="module", autouse=True)
def readers_imported():
    """The modules of all formats are imported when the first file of each is read."""
    for form in FORMATS:
        load(io.BytesIO(state_dict({"w": SIX}, form)))
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("name", CASES)
def test_refused(name):
    global watched
    data, fragment = CASES[name]
    modules = set(sys.modules)
    before = memory.stats()["live_bytes"]
    memory.reset_peak()
    tracemalloc.reset_peak()
    start = tracemalloc.get_traced_memory()[0]
    file = io.BytesIO(data)
    watched = events = []
    try:
        with pytest.raises(CheckpointError) as caught:
            load(file)
    finally:
        watched = None
    peak = tracemalloc.get_traced_memory()[1] - start
    error = caught.value
    assert type(error) is CheckpointError and fragment in str(error), str(error)
    assert fragment and len(str(error)) < 600 and "\n" not in str(error)
    assert not HARMFUL & set(events) and not os.path.exists(FLAG)
    assert set(sys.modules) == modules
    assert peak < MAX_PYTHON_BYTES
    assert memory.stats()["peak_bytes"] - before <= max(len(data), 4096)


def test_every_case_is_about_what_it_says():
    """The good files that the cases are made from are read."""
    for data in (
        GOOD_STREAM,
        GOOD_TAR,
        GOOD_ZIP,
        packed(),
        header(),
        tensors(TWO, bytes(16)),
        (pax(b"17 mtime=12345.6\n")),
    ):
        assert load(io.BytesIO(data))


@pytest.mark.parametrize("form", PICKLED)
def test_names_in_japanese_and_devices_that_are_not_there(form):
    got = load(io.BytesIO(named(form, "層1.重み")))
    assert list(got) == ["層1.重み"] and got["層1.重み"].tolist() == SIX.tolist()


def test_device_cuda_7():
    on = storage("0", "Float", 6, location="cuda:7", short=True)
    assert in_zip(v2(on, 0, (6,))) and load(io.BytesIO(in_zip(v2(on, 0, (6,)))))["w"].tolist()
    data = in_tar(Placed(90, (6,)), tar_storages({90: SIX}, location="cuda:7"))
    assert load(io.BytesIO(data))["w"].tolist() == SIX.tolist()


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_is_written_beside_the_file(form, tmp_path):
    path = tmp_path / "weights.pth"
    path.write_bytes(state_dict({"w": SIX}, form))
    load(path)
    path.write_bytes(state_dict({"w": SIX}, form)[:-600])
    with pytest.raises(CheckpointError, match=r"weights\.pth"):
        load(path)
    assert os.listdir(tmp_path) == ["weights.pth"]
