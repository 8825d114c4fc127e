"""What is derived from a weight and kept between calls: its transform for Winograd, packed panels.

It is kept as long as the weight's storage lives and nobody has written to it: ``storage.writes``
counts every write through any handle, the making of every NumPy alias, and that an address was
told. While somebody outside may write to the memory nothing is kept, nor ever again once its
address was told (``Tensor.data_ptr``). What is kept of one storage is bounded: the oldest goes
first.
"""

from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..graph import storage
from ..graph.pool import Block

BOUND = 16
"""All that is kept of one storage has at most so many times its bytes. The transforms of a weight
for a 3×3 convolution and for its gradients have about eight times."""
ALWAYS = 1 << 20
"""Bytes that may be kept of a storage however small it is."""
MARKS = 1024
"""At most so many kinds are known of one storage."""

Fill = Callable[[np.ndarray], None]
FLOAT32 = np.dtype(np.float32)

_kept: "WeakKeyDictionary[storage.Storage, tuple[int, dict[Hashable, np.ndarray | None]]]" = (
    WeakKeyDictionary()
)
"""For each storage the count of writes at which what follows was made, and by kind the result, or
None if it was wanted once and not kept; the oldest first."""


def storage_of(array: np.ndarray) -> storage.Storage | None:
    """The storage whose memory ``array`` lies in, if it is a block of the pool."""
    base: Any = array
    while type(base) is np.ndarray:
        base = base.base
    return base.storage if type(base) is Block else None


class Derived:
    """What may be derived from one weight in one call.

    Args:
        weight: the array.
        lasting: keep a result at once. Else it is kept when it is wanted a second time of the same
            values: in training each step changes them.
    """

    __slots__ = ("lasting", "weight")

    def __init__(self, weight: np.ndarray, lasting: bool) -> None:
        self.weight, self.lasting = weight, lasting

    def __call__(self, kind: Hashable, elements: int, fill: Fill) -> np.ndarray:
        """``elements`` of float32 that ``fill`` made from the weight, now or earlier.

        ``kind`` tells what it is, and of which view of the memory.
        """
        found = self.if_lasting(kind, elements, fill)
        return _made(storage.WORKSPACE, elements, fill) if found is None else found

    def if_lasting(self, kind: Hashable, elements: int, fill: Fill) -> np.ndarray | None:
        """The same, or None where it would not be kept."""
        weight = self.weight
        owner = storage_of(weight)
        if owner is None or owner.exported:
            if owner is not None:
                _kept.pop(owner, None)
            return None
        writes, results = _kept.get(owner, (-1, {}))
        if writes != owner.writes:  # all that there is was made of other values
            results = {}
            _kept[owner] = owner.writes, results
        found = results.get(kind)
        if found is None:
            if self.lasting or kind in results:
                found = _made(storage.DERIVED, elements, fill)
            results.pop(kind, None)
            results[kind] = found
            _bound(results, owner.nbytes)
        return found


def _bound(results: dict[Hashable, np.ndarray | None], nbytes: int) -> None:
    """Drop the oldest results but for the last one until there are few enough for a storage of
    ``nbytes``: many views of one memory may be used in turn, each once."""
    entries = list(results.items())
    total = sum(found.nbytes for _, found in entries if found is not None)
    limit, count = max(BOUND * nbytes, ALWAYS), len(entries)
    for kind, found in entries[:-1]:
        if total <= limit and count <= MARKS:
            return
        results.pop(kind, None)
        total -= 0 if found is None else found.nbytes
        count -= 1


def _made(category: int, elements: int, fill: Fill) -> np.ndarray:
    with storage.category(category):
        array = storage.allocate((elements,), FLOAT32)[0]
    fill(array)
    return array


def forget() -> None:
    """Give back all that was kept; it is made again when it is wanted."""
    _kept.clear()
