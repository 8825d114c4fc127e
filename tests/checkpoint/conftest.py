"""`refused`: what every file that is made to harm, to lie or to break a reader goes through."""

import codecs
import io
import os
import sys
import tracemalloc

import numpy as np
import pytest

from numgrad import memory
from numgrad.checkpoint import CheckpointError, load
from tests.checkpoint.hostile import FLAG
from tests.checkpoint.makers import FORMATS, state_dict

MAX_PYTHON_BYTES = 24 << 20
"""Of the largest file, 50,000 nested dicts of 64 bytes each; most take a few kB."""
HARMFUL = {"import", "exec", "compile", "os.system", "os.mkdir", "os.exec", "os.posix_spawn"}
HARMFUL |= {"open", "subprocess.Popen", "socket.connect", "shutil.unpack_archive", "os.rename"}

watched = None
"""Names of audit events while a file is read, else None."""


def _hook(event, args):
    if watched is not None:
        watched.append(event)


@pytest.fixture(scope="session")
def _hooked():
    """The modules of all formats are imported when the first file of each is read, and those of
    Python's codecs when they are first used."""
    codecs.lookup("raw-unicode-escape")
    for form in FORMATS:
        load(io.BytesIO(state_dict({"w": np.ones(1, np.float32)}, form)))
    file = io.BytesIO()
    np.savez(file, w=np.ones(1, np.float32))
    load(io.BytesIO(file.getvalue()))
    sys.addaudithook(_hook)  # Python has no way to take it off


@pytest.fixture
def refused(_hooked):
    """Load a file that must be refused with CheckpointError alone, for a reason that has a text in
    it, with nothing run, imported, written, or allocated beyond what the file justifies."""

    def check(data, fragment):
        global watched
        modules = set(sys.modules)
        file = io.BytesIO(data)
        before = memory.stats()["live_bytes"]
        memory.reset_peak()
        tracemalloc.start()
        watched = events = []
        try:
            with pytest.raises(CheckpointError) as caught:
                load(file)
        finally:
            watched = None
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        error = caught.value
        assert type(error) is CheckpointError and fragment in str(error), str(error)
        assert fragment and len(str(error)) < 600 and "\n" not in str(error)
        assert error.path == "file" and error.where and error.reason
        assert not HARMFUL & set(events) and not os.path.exists(FLAG)
        assert set(sys.modules) == modules
        assert peak < MAX_PYTHON_BYTES
        assert memory.stats()["peak_bytes"] - before <= max(len(data), 4096)

    return check
