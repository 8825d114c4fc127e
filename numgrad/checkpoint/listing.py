"""What a checkpoint file holds, as a list: every tensor, and what there is beside tensors.

Everything is checked that `load` checks, the elements of all tensors, too; no Tensor is made.
"""

import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from .contents import CODES, NAMES, WIDENED, Contents, Spec, Stored, contiguous_strides
from .elements import check_dtype, read_elements
from .loading import named, read, widened
from .source import Source, opened
from .walking import CONTAINERS, rebuild

MAX_OTHERS = 10_000
"""Of values in a listing. A value of one byte may lie under a hundred keys."""


@dataclass(slots=True)
class Row:
    """A tensor of a file.

    Strides and offset count elements. ``dtype_in_file`` is another than ``dtype`` where numgrad has
    no such. ``storage`` is the place of its storage in `Listing.storages`; None for an array that
    stands in the pickle itself. ``shares``: the name of the first tensor on the same storage, if it
    is another.
    """

    path: tuple[Any, ...]
    kind: str
    shape: tuple[int, ...]
    dtype_in_file: str
    dtype: str
    nbytes: int
    strides: tuple[int, ...]
    offset: int
    requires_grad: bool
    storage: int | None
    shares: str | None = None

    @property
    def name(self) -> str:
        """The keys that lead to it, joined by dots."""
        return ".".join(map(str, self.path))

    @property
    def numel(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)

    @property
    def contiguous(self) -> bool:
        """Whether its elements follow one another in C order."""
        natural = contiguous_strides(self.shape)
        return not self.numel or all(
            length == 1 or step == usual
            for length, step, usual in zip(self.shape, self.strides, natural)
        )


@dataclass(slots=True)
class Listing:
    """A file that `load` would load. ``others``: what is no tensor, with the path that leads there.

    Of very many others those at the top and those further inside are kept up to `MAX_OTHERS` each;
    ``counts`` has how many there are, by the first two keys of the list or dict they stand in.
    A tensor at very many places has rows for `MAX_OTHERS` of them.
    ``containers``: how many lists, dicts … there are.
    """

    path: str
    nbytes: int
    format: str
    rows: list[Row] = field(default_factory=list)
    storages: list[Stored] = field(default_factory=list)
    others: list[tuple[tuple[Any, ...], Any]] = field(default_factory=list)
    counts: "Counter[tuple[Any, ...]]" = field(default_factory=Counter)
    containers: "Counter[type]" = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def listing(file: "str | os.PathLike[str] | BinaryIO") -> Listing:
    """List what a file holds.

    Raises:
        CheckpointError: `load` would raise it, too. OSError: the file cannot be opened.
    """
    with opened(file) as source:
        return list_contents(source, read(source), check=True)


def list_contents(source: Source, contents: Contents, check: bool = False) -> Listing:
    """The same of a file that was read; its elements are looked at only if ``check`` is true."""
    obj = rebuild(  # only to refuse what it refuses: safetensors may hold too many items
        contents.obj,
        lambda item, path: item,
        lambda path, reason: source.error("object", reason),
    )
    found = Listing(source.path, source.size, contents.format, notes=list(contents.notes))
    places: dict[int, int] = {}
    first: dict[int, str] = {}
    counts: Counter[str] = Counter()
    kept = [0, 0]
    listed: set[int] = set()
    repeats = 0
    for path, item in leaves(obj, found.containers):
        if not isinstance(item, (Spec, np.ndarray)):
            inside = len(path) > 1
            kept[inside] += 1
            if kept[inside] <= MAX_OTHERS:
                found.others.append((path, item))
            found.counts[path[:-1][:2]] += 1
            continue
        repeats += id(item) in listed
        if id(item) in listed and repeats > MAX_OTHERS:
            continue
        listed.add(id(item))
        if isinstance(item, np.ndarray):
            found.rows.append(_array_row(path, item))
            continue
        stored = item.stored
        if item.kind != "array":
            with named(source, path):
                check_dtype(source, stored)
        place = places.get(id(stored))
        known = place is not None
        if place is None:
            place = places[id(stored)] = len(places)
            found.storages.append(stored)
            if check:
                with named(source, path):
                    read_elements(source, stored, None)
        row = _row(path, item, place)
        counts[stored.code] += item.kind != "array" and stored.code in WIDENED
        if known:
            row.shares = first[id(stored)]
        first.setdefault(id(stored), row.name)
        found.rows.append(row)
    found.notes += widened(+counts)
    return found


def leaves(obj: Any, containers: "Counter[type]") -> Iterator[tuple[tuple[Any, ...], Any]]:
    """What lists, tuples and dicts inside one another hold, and the paths that lead there.

    A list or dict that stands at several places counts at the first; an empty one is a leaf, too.
    ``containers`` counts them by type.
    """
    seen: set[int] = set()

    def items(path: tuple[Any, ...], container: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
        pairs = container.items() if isinstance(container, dict) else enumerate(container)
        return (((*path, key), value) for key, value in pairs)

    open_ = [iter([((), obj)])]  # no recursion: a value would pass through every level
    while open_:
        for path, item in open_[-1]:
            if type(item) not in CONTAINERS:
                yield path, item
            elif id(item) not in seen:
                seen.add(id(item))
                containers[type(item)] += 1
                if not item:
                    yield path, item
                open_.append(items(path, item))
                break
        else:
            open_.pop()


def _row(path: tuple[Any, ...], spec: Spec, storage: int) -> Row:
    return Row(
        path,
        spec.kind,
        spec.shape,
        NAMES[spec.stored.code],
        spec.dtype.name,
        math.prod(spec.shape) * spec.stored.itemsize,
        spec.strides,
        spec.offset,
        spec.requires_grad,
        storage,
    )


def _array_row(path: tuple[Any, ...], array: np.ndarray) -> Row:
    name = NAMES[CODES[array.dtype]] if array.dtype in CODES else str(array.dtype)
    strides = tuple(step // max(array.itemsize, 1) for step in array.strides)
    shape = tuple(array.shape)
    return Row(path, "array", shape, name, name, array.nbytes, strides, 0, False, None)
