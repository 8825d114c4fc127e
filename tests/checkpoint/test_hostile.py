"""Files made to harm, to lie or to break a reader: what their pickles do, and names of tensors.

The names of the cases say what each file tries; `refused` of conftest.py is what they go through.
"""

import io
import os
import pickle
import struct

import numpy as np
import pytest

from numgrad.checkpoint import CheckpointError, load
from tests.checkpoint.hostile import (
    COLLIDING,
    FLAG,
    FLOAT6,
    PROTOCOL,
    RUN,
    SIX,
    WHOLE,
    code,
    in_tar,
    in_zip,
    text,
)
from tests.checkpoint.makers import (
    FORMATS,
    ORDERED,
    PARAMETER,
    Global,
    Pid,
    Placed,
    Raw,
    Reduce,
    early,
    parameter3,
    state_dict,
    storage,
    stream,
    tar,
    tar_storages,
    v2,
    zipped,
)


def plain(obj):
    """The opcodes that Python's own pickler writes."""
    return pickle.dumps(obj, 2)[2:-1]


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
    "5,000 nested lists": (b"]" * 5_000 + b"a" * 4_999, "levels"),
    "5,000 nested tuples": (b")" + b"\x85" * 5_000, "levels"),
    "5,000 nested dicts": (b"}" + b"K\1}" * 5_000 + b"s" * 5_000, "levels"),
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
    "keys of one hash": (code(dict.fromkeys(Raw(code(k)) for k in COLLIDING)), "too many keys"),
    "keys of one hash in tuples": (
        code({(1, Raw(code(k))): None for k in COLLIDING}),
        "too many keys",
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
    # code
    "OBJ of data": (b"(No", "OBJ"),
    "NEWOBJ of data": (b"N)\x81", "an object of a NoneType"),
    "a name split otherwise": (b"ctorch\n_utils._rebuild_tensor\n", "torch._utils._rebuild_tensor"),
    "call of a call": (b"ccollections\nOrderedDict\n)R)R", "it calls an OrderedDict"),
    "call of a dtype": (b"ctorch\nfloat32\n)R", "it calls torch.float32"),
    "text in another encoding": (b"c_codecs\nencode\n(U\x01aU\x05utf-8tR", "another encoding"),
    "bytes above 255": (
        b"c_codecs\nencode\n(X\x03\0\0\0\xe9\x87\x8dU\x06latin1tR",
        "bytes above 255",
    ),
    "a Counter of None": (b"ccollections\nCounter\n}U\x01aNs\x85R", "than numbers"),
    "a negative size": (b"ctorch\nSize\nK\x01J\xff\xff\xff\xff\x86\x85R", "torch.Size"),
    "numpy.ndarray": (b"cnumpy\nndarray\n", "where data should be"),
    "an ndarray without a state": (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85C\x01btR",
        "never got its elements",
    ),
    "an array of objects": (plain(np.array([{}, None], object)), "NumPy dtype 'O8'"),
    "an array of texts": (plain(np.array(["a"])), "NumPy dtype 'U1'"),
    "an array of fields": (plain(np.zeros(1, [("a", "f4")])), "NumPy dtype 'V4'"),
    # structure
    "nothing": (b"", "0 objects"),
    "half a pair": (b"}(K\x01u", "without a value"),
    "unhashable key, a tuple of tuples": (b"})\x85\x85Ns", "key that is a tuple"),
    "the memo's entry -1": (b"g-1\n", "no entry -1"),
    "PUT of -1": (b"Np-1\n", "entry -1"),
    "PUT of a chosen hash": (b"Np2305843009213693951\n", "of which there are fewer"),
    "PUT far away": (b"Nr\xff\xff\xff\xff", "of which there are fewer"),
    "GET of a gap": (b"NNNNNNNq\x05h\x03", "no entry 3"),
    "a text of negative size": (b"T\xff\xff\xff\xffabc", "negative size"),
    "an integer of 1,001 bytes": (b"\x8b\xe9\x03\x00\x00" + b"\1" * 1001, "1001 bytes"),
    "2,000 digits": (b"I" + b"1" * 2000 + b"\n", "no integer"),
    "an integer with a letter": (b"I1x\n", "no integer"),
    "an integer with two signs": (b"I--1\n", "no integer"),
    "no float": (b"Fx\n", "no number"),
    "an escape that is cut off": (b"V\\ud\n", "cannot be read"),
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

CASES = {
    **{
        f"{form}: {name}": (make(PROTOCOL + ops + b"."), reason)
        for form, make in WHOLE.items()
        for name, (ops, reason) in PICKLES.items()
    },
    **{f"{form}: no STOP": (WHOLE[form](PROTOCOL + b"N"), "cut off") for form in ("zip", "tar")},
    **{f"{form}: no pickle": (WHOLE[form](b""), "cut off") for form in ("zip", "tar")},
    **{
        f"{form}: a name with {what}": (named(form, name, "surrogatepass"), "in a tensor's name")
        for form in WHOLE
        for what, name in NAMES.items()
    },
}


@pytest.mark.parametrize("name", CASES)
def test_refused(name, refused):
    refused(*CASES[name])


@pytest.mark.parametrize("form", WHOLE)
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
