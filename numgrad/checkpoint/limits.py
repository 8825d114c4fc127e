"""The limits of what is read from a file and written to one.

Each lies above what genuine files need, and keeps what a hostile file can cost in proportion to its
size. `saving` keeps to those that hold for reading, so that what was saved can be loaded.
"""

from typing import Any

# ------------------------------------------------------------------------------------------ arrays

MAX_ARRAY_BYTES = 2**62
"""No product of lengths overflows."""
MAX_DIMENSIONS = 32  # of NumPy 1
SMALL_EXPANSION_BYTES = 1 << 20
"""An expanded tensor may have more bytes than its file, up to these."""

# ----------------------------------------------------------------------------------------- objects

MAX_DEPTH = 100
"""Lists, tuples and dicts inside one another."""
MAX_ITEMS = 10_000_000
"""Items in all, those that stand at several places counted at each."""
MAX_TENSOR_NAME = 1000
"""Characters of a part of a tensor's name."""
MAX_STORAGE_KEY = 200
"""Characters of a storage's key."""

# ----------------------------------------------------------------------------------------- pickles

MAX_PICKLE_BYTES = 64 << 20
"""Of all pickles of a file together."""
MAX_OPCODES = 10_000_000
"""Of all pickles of a file together."""
MAX_INTEGER_BYTES = 1000
MAX_SAVED_INTEGER_BYTES = 255
"""What ``torch.load(weights_only=True)`` reads (LONG1)."""
MAX_LINE_BYTES = 10_000
"""Of a number or a name written as text."""
MAX_GLOBAL_NAME = 1000
"""Characters of a global's module, and of its name."""
SMALL_COPIES = 1 << 20
"""Bytes that calls may copy of what they are given, beside twice those of the file."""
SMALL_CONTAINERS = 100_000
"""Lists, tuples, dicts and texts of Python 2 in all pickles of a file, beside one for each sixth
byte of it: each takes a few hundred bytes of memory, and may take one byte of the pickle."""

# -------------------------------------------------------------------------------- headers, archives

MAX_JSON_HEADER_BYTES = 100_000_000  # the limit of safetensors itself
MAX_DIGITS = 4000  # of an integer; Python itself refuses 4301
MAX_NESTING = 1000
"""Brackets inside one another in JSON."""
MAX_NPY_HEADER_BYTES = 10_000
MAX_RECORDS = 1_000_000
"""Of a zip archive."""
MAX_SMALL_RECORD_BYTES = 1000
"""Of the records of a zip archive that are neither the pickle nor a storage."""
MAX_TAR_EXTENSION_BYTES = 1 << 16

# ------------------------------------------------------------------------------------ keys of dicts

SMALL_MEETINGS, MEETINGS_A_BYTE = 200_000_000, 200
"""Of keys with others in the dicts of a file; see `KeyBudget`."""
SECRET = (str, bytes)
"""Types whose hashes nobody outside of this process knows."""


class KeyBudget:
    """Bounds the time that the dicts of a file take to fill, however their keys were chosen.

    Hashes of numbers can be chosen so that each key meets all the others. Those of texts and bytes
    cannot, and integers that count up from 0 meet nobody: only other keys are counted. A file of
    ``nbytes`` may have dicts of 20,000 such integers, a large one of more; of larger integers,
    whose hashes may be equal, and of floats and tuples of numbers a seventh.
    """

    def __init__(self, nbytes: int = 0) -> None:
        self._left = SMALL_MEETINGS + MEETINGS_A_BYTE * nbytes
        self._loose: dict[int, int] = {}

    def allows(self, owner: int, size: int, key: Any) -> bool:
        """Whether a dict, by its id, may get a key after ``size`` others."""
        if type(key) in SECRET or (type(key) is int and 0 <= key <= size):
            return True
        if type(key) is tuple and all(type(k) in SECRET for k in key):
            return True
        loose = self._loose.get(owner, 0)
        self._loose[owner] = loose + 1
        small = type(key) is int and -(1 << 60) < key < 1 << 60
        self._left -= loose if small else 50 * loose  # keys of one hash are compared, too
        return self._left >= 0
