"""What the files of the hostile tests are made of, beside `makers`."""

import os
import struct
import tempfile

import numpy as np

from tests.checkpoint.makers import Pid, Placed, dumps, storage, stream, tar, v2, zipped

FLAG = os.path.join(tempfile.gettempdir(), f"numgrad-hostile-{os.getpid()}")
"""A folder that a payload would make."""
COMMAND = f"mkdir {FLAG}".encode()
RUN = b"cposix\nsystem\n(X" + struct.pack("<I", len(COMMAND)) + COMMAND + b"tR"
SIX = np.arange(6, dtype=np.float32)
PROTOCOL = b"\x80\x02"
COLLIDING = [k * (2**61 - 1) for k in range(1, 4000)]
"""Integers that have all the hash 0: a dict of them takes quadratic time."""


def text(value, errors="strict"):
    """The opcode of a text."""
    data = value.encode("utf-8", errors)
    return b"X" + struct.pack("<I", len(data)) + data


def code(obj):
    """The opcodes of an object."""
    return dumps(obj)[2:-1]


WHOLE = {
    "stream": lambda pickle: stream(pickle, {}),
    "zip": lambda pickle: zipped(pickle, {}),
    "tar": lambda pickle: tar(pickle, {}, {}),
}
"""Files of a pickle, by their format."""

FLOAT6 = {
    "zip": storage("0", "Float", 6, short=True),
    "stream": storage("0", "Float", 6),
}


def in_stream(tensor, array=SIX, **how):
    """A stream of one tensor."""
    return stream({"w": tensor}, {"0": array}, **how)


def in_zip(tensor, array=SIX, **how):
    """A zip file of one tensor."""
    return zipped({"w": tensor}, {"0": array}, **how)


def in_tar(placed, storages=None, **how):
    """A tar file of one tensor."""
    storages = {90: SIX} if storages is None else storages
    return tar(
        {"w": Pid("80")}, storages, {80: placed} if isinstance(placed, Placed) else placed, **how
    )


def of_zip(*args, **how):
    """A tensor of one element on a storage of a zip file."""
    return v2(storage(*args, short=True, **how), 0, (1,))


def of_stream(*args, **how):
    """The same of a stream."""
    return v2(storage(*args, **how), 0, (1,))
