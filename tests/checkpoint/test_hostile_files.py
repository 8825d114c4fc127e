"""Containers made to harm, to lie or to break a reader: streams, tar and zip files, and no files of
these at all. Their pickles are in test_hostile.py, safetensors and npz in files of their own.
"""

import io
import struct
import tarfile

import pytest

from numgrad.checkpoint import load
from tests.checkpoint.hostile import (
    FLAG,
    PROTOCOL,
    RUN,
    SIX,
    in_tar,
    of_zip,
    text,
)
from tests.checkpoint.makers import (
    MAGIC,
    Entry,
    Pid,
    Placed,
    archive,
    dumps,
    in_directory,
    local_header,
    member,
    sealed,
    storage,
    stream,
    tar_storages,
    tar_tensors,
    v2,
    zip_bytes,
    zip_entries,
    zipped,
)

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


def with_entry(name, data, **fields):
    """A good zip file with one record more."""
    return zip_bytes([*ENTRIES, Entry(name, data, **fields)])


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
    "bytes before the directory": (
        GOOD_ZIP[: GOOD_ZIP.index(b"PK\x01\x02")]
        + b"gap"
        + GOOD_ZIP[GOOD_ZIP.index(b"PK\x01\x02") : -6]
        + struct.pack("<I", GOOD_ZIP.index(b"PK\x01\x02") + 3)
        + b"\0\0",
        "3 bytes after it that belong to nothing",
    ),
    "a directory only": (
        b"PK\x03\x04" + GOOD_ZIP[GOOD_ZIP.rindex(b"PK\x05\x06") :],
        "its end at byte 4 does not fit 4 entries",
    ),
    "no end": (b"PK\x03\x04" + bytes(18), "does not end where the file does"),
    "12 bytes": (b"PK\x03\x04" + bytes(8), "too few for a zip archive"),
    "65534 records": (GOOD_ZIP[:-12] + b"\xfe\xff\xfe\xff" + GOOD_ZIP[-8:], "of several files"),
    "two counts": (GOOD_ZIP[:-14] + b"\x03\x00\x04\x00" + GOOD_ZIP[-10:], "of several files"),
    "records that overlap": (
        in_directory(GOOD_ZIP, 42, b"\0\0\0\0"),
        "beyond the next one's start at 0",
    ),
    "a record far away": (in_directory(GOOD_ZIP, 42, b"\xff\xff\0\0"), "after it that belong"),
    "unknown flags": (changed(WEIGHT, flags=0x2000), "has the flags 0x2000"),
    "two flags": (local_header(GOOD_ZIP, WEIGHT, flags=0x800), "header is not what"),
    "two methods": (local_header(GOOD_ZIP, WEIGHT, method=8), "header is not what"),
    "two checksums": (local_header(GOOD_ZIP, WEIGHT, crc=1), "header is not what"),
    "two sizes": (local_header(GOOD_ZIP, WEIGHT, size=20), "header is not what"),
    "two sizes in the directory": (in_directory(GOOD_ZIP, 24, b"\xff\0\0\0"), "bytes stored in 2"),
    "a comment of a record": (in_directory(GOOD_ZIP, 32, b"\1\0"), "has a comment"),
    "another disk": (in_directory(GOOD_ZIP, 34, b"\1\0"), "lies in another file"),
    "both sizes beyond the next": (
        in_directory(
            local_header(GOOD_ZIP, "archive/version", packed=255, size=255),
            20,
            b"\xff\0\0\0" * 2,
        ),
        "it ends at byte 767, beyond the next one's start at 514",
    ),
    "an extra field beyond its end": (
        GOOD_ZIP.replace(b"FB\x0e\0", b"FB\x0f\0"),
        "record 'archive/data.pkl': an extra field that is cut off",
    ),
    "a root of nothing": (zip_bytes([Entry("/data.pkl", dumps(1))]), "as the folder of data.pkl"),
    "a root in a folder": (
        zip_bytes(zip_entries([], {}, root="a/b")),
        "as the folder of data.pkl",
    ),
    "a newline in the root": (
        zip_bytes(zip_entries([], {}, root="a\nb")),
        "as the folder of data.pkl",
    ),
    "a record that goes up": (with_entry("../x", b"x"), "outside of the folder"),
    "an absolute record": (with_entry("/etc/x", b"x"), "outside of the folder"),
    "TorchScript, compressed": (
        with_entry("archive/code/__torch__.py", b"x" * 99, method=8),
        "TorchScript archive",
    ),
    "a compressed npz": (
        zip_bytes([Entry("x.npy", b"x" * 99, method=8)]),
        "a compressed .npz archive",
    ),
    "a version that is no number": (
        zip_bytes([*ENTRIES[:-1], Entry("archive/version", b"x")]),
        "no number",
    ),
    "a version of 2,000 digits": (
        zip_bytes([*ENTRIES[:-1], Entry("archive/version", b"1" * 2000)]),
        "2000 bytes, more than 1000",
    ),
    "a folder of a storage": (with_entry("archive/data/0/1", b"x"), "the pickle does not use"),
}

# ----------------------------------------------------------------------------------- no checkpoints

MISHAPS = {
    "an empty file": (b"", "empty"),
    "an HTML page": (b"<!DOCTYPE html><html><body>404</body></html>", "an HTML page"),
    "an HTML page after a line": (b"\n <html><head></head></html>", "an HTML page"),
    "an HTML page in capitals": (b"\n  <HTML>\n<body>", "an HTML page"),
    "a NumPy array": (b"\x93NUMPY\x01\x00" + bytes(50), "numpy.load"),
    "a compressed file": (b"\x1f\x8b\x08\x00" + bytes(50), "unpack it first"),
    "an HDF5 file": (b"\x89HDF\r\n\x1a\n" + bytes(50), "HDF5"),
    "zeros": (bytes(4096), "nothing but zero bytes"),
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
    **{f"stream: {name}": case for name, case in AROUND.items()},
    **{f"tar: {name}": case for name, case in TARS.items()},
    **{f"zip: {name}": case for name, case in ZIPS.items()},
    **MISHAPS,
}


@pytest.mark.parametrize("name", CASES)
def test_refused(name, refused):
    refused(*CASES[name])


@pytest.mark.parametrize("data", [GOOD_STREAM, GOOD_TAR, GOOD_ZIP, packed(), header(), pax(MTIME)])
def test_every_case_is_about_what_it_says(data):
    """The good files that the cases are made from are read."""
    assert load(io.BytesIO(data))["w"].tolist() in (SIX.tolist(), [0.0])
