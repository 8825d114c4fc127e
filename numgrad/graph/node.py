"""Nodes, edges and saved values: what the tape is made of.

A node holds edges and saved values, never a Tensor: dropping a Tensor frees its data. An edge is
``(node, output index)``; the edge of a leaf leads to its ``LeafSlot``, which holds the leaf weakly.
"""

import itertools
import threading
import traceback
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import mode
from .errors import GradError
from .storage import Group, Storage

Edge = tuple["Node | LeafSlot", int]

FREED = (
    "Trying to backward through the graph a second time, but the buffers have already been freed. "
    "Specify retain_graph=True when calling backward the first time."
)
MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation"
)


class Counters(threading.local):
    """What this thread recorded: nodes made, values saved, bytes saved (each save counted)."""

    nodes: int = 0
    saved: int = 0
    saved_bytes: int = 0


counters = Counters()
recorders: list[list[Any]] = []
"""Lists of open ``memory.track`` regions: each new node is put into all of them, weakly."""

_sequence = itertools.count()


class Saved:
    """A value kept for the backward pass: ``(array, storage, version, edge, class)``.

    ``unpack`` checks that no in-place write changed the value since. ``own_output`` is the index of
    the node's own output it is, or -1: its edge is then the node itself, and holding that here would
    make a cycle.
    """

    __slots__ = (
        "array",
        "cls",
        "edge",
        "group",
        "name",
        "own_output",
        "storage",
        "version",
        "writer",
    )

    def __init__(
        self,
        name: str,
        array: np.ndarray,
        storage: Storage | None,
        group: Group | None,
        edge: Edge | None,
        cls: type | None,
        own_output: int = -1,
    ) -> None:
        self.name, self.array, self.storage, self.group = name, array, storage, group
        self.edge, self.cls, self.own_output = edge, cls, own_output
        self.version = group.version if group is not None else 0
        if storage is not None:
            storage.hold()

    def check(self, op: str) -> None:
        """Raise if an in-place operation changed the value after it was saved."""
        if self.group is not None and self.group.version != self.version:
            raise GradError(
                f"{MODIFIED}: {op} saved {self.name} {tuple(self.array.shape)} at version "
                f"{self.version}, it is now at version {self.group.version}, last changed by "
                f"{self.group.writer}; clone it before changing it, or use detect_anomaly() to "
                "see where it was used"
            )

    def __del__(self) -> None:
        storage = getattr(self, "storage", None)
        if storage is not None:
            storage.release()


class LeafSlot:
    """Where gradients of a leaf arrive. Holds the leaf weakly; lives as long as a graph needs it."""

    __slots__ = ("hooks", "leaf", "name")

    def __init__(self, leaf: Any) -> None:
        self.leaf: Callable[[], Any] = weakref.ref(leaf)
        self.hooks: dict[int, Callable[[Any], Any]] | None = None
        self.name = "AccumulateGrad"

    def __repr__(self) -> str:
        return "<AccumulateGrad>"


class Node:
    """One recorded operation.

    ``op`` computes the gradients; ``edges`` has one edge an input, None where no gradient is wanted;
    ``saved`` maps the names of the op's save-set to ``Saved`` values (None once freed); ``attrs``
    are the op's attributes; ``in_specs`` and ``out_specs`` are ``(shape, dtype)`` an input and an
    output.
    """

    __slots__ = (
        "__weakref__",
        "attrs",
        "edges",
        "hooks",
        "in_specs",
        "op",
        "out_specs",
        "saved",
        "sequence",
        "trace",
        "variable",
    )

    def __init__(
        self,
        op: Any,
        edges: tuple[Edge | None, ...],
        attrs: dict[str, Any],
        in_specs: Sequence[Any],
        out_specs: Sequence[Any],
        variable: bool = False,
    ) -> None:
        self.op, self.edges, self.attrs = op, edges, attrs
        self.in_specs, self.out_specs, self.variable = in_specs, out_specs, variable
        self.saved: dict[str, Any] | None = {}
        self.hooks: dict[int, dict[int, Callable[[Any], Any]]] | None = None
        self.sequence = next(_sequence)
        self.trace = _user_line() if mode.state.anomaly else None
        counters.nodes += 1
        for record in recorders:
            record.append(weakref.ref(self))

    @property
    def name(self) -> str:
        """``MulBackward`` for ``mul``: how ``grad_fn`` shows the node."""
        return "".join(part.title() for part in self.op.name.split("_")) + "Backward"

    @property
    def next_functions(self) -> tuple[tuple["Node | LeafSlot | None", int], ...]:
        """The nodes of the inputs, ``(None, 0)`` where no gradient is wanted."""
        return tuple(edge if edge is not None else (None, 0) for edge in self.edges)

    def save(self, saved: Saved) -> None:
        """Keep a value for the backward pass."""
        assert self.saved is not None
        self.saved[saved.name] = saved
        counters.saved += 1
        counters.saved_bytes += saved.array.nbytes

    def saved_values(self) -> list[Saved]:
        """The values still held."""
        if self.saved is None:
            return []
        flat: list[Saved] = []
        for value in self.saved.values():
            flat.extend(value if isinstance(value, (list, tuple)) else [value])
        return flat

    def live_saved(self) -> dict[str, Any]:
        """The saved values, checked against in-place changes; raises when they were freed."""
        if self.saved is None:
            raise GradError(FREED)
        for value in self.saved.values():
            value.check(self.described())
        return self.saved

    def described(self) -> str:
        """The op's name, and in anomaly mode the line that recorded it."""
        return self.op.name + (f" (recorded at {self.trace})" if self.trace else "")

    def release(self) -> None:
        """Free the saved values; a second backward then raises if there were any."""
        if self.saved:
            self.saved = None

    def __repr__(self) -> str:
        return f"<{self.name}>"


def _user_line() -> str:
    """File and line of the innermost frame outside numgrad."""
    for frame in reversed(traceback.extract_stack()):
        if "numgrad" not in frame.filename.replace("\\", "/").split("/")[-3:-1]:
            package = frame.filename.replace("\\", "/")
            if "/numgrad/" not in package:
                return f"{frame.filename}:{frame.lineno}"
    return "unknown"
