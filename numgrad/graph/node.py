"""Nodes, edges and saved values: what the tape is made of.

A node holds edges and saved values, never a Tensor: dropping a Tensor frees its data. An edge is
``(node, output index)``; the edge of a leaf leads to its ``LeafSlot``, which holds the leaf weakly.
"""

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..kernels.counters import Counters
from . import mode
from .errors import GradError, user_frame
from .storage import Group, Storage

Edge = tuple["Node | LeafSlot", int]

FREED = (
    "Trying to backward through the graph a second time, but the buffers have already been freed. "
    "Specify retain_graph=True when calling backward the first time."
)
MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation"
)


class Recorded(Counters):
    """Nodes made, values saved, and bytes of the values saved (each time one is saved)."""

    nodes: int = 0
    saved: int = 0
    saved_bytes: int = 0


counters = Recorded()
_sequence = itertools.count()


class Recorder:
    """The nodes made while it is among ``recorders``, of all threads, held weakly."""

    # Nobody waits for a lock here: a finaliser may make a node at any allocation, this class's own
    # included. Appending to a list, copying it and assigning a slice of it are atomic.

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._limit = 1024
        self.pruning = threading.Lock()

    def add(self, node: "Node") -> None:
        """Note a new node. The dead are forgotten now and then, so a long region stays small."""
        self._nodes.append(weakref.ref(node))
        if len(self._nodes) > self._limit and self.pruning.acquire(blocking=False):
            try:
                seen = self._nodes.copy()
                alive = [r for r in seen if r() is not None]
                self._nodes[: len(seen)] = alive  # what was added meanwhile comes after
                self._limit = 2 * len(alive) + 1024
            finally:
                self.pruning.release()

    def saved_values(self) -> Iterator["Saved"]:
        """The values that the nodes hold now."""
        for reference in self._nodes.copy():
            node = reference()
            if node is not None:
                yield from node.saved_values()


recorders: tuple[Recorder, ...] = ()
"""One for each open ``memory.track`` region. Replaced, never changed: other threads go over it."""

_opening = threading.RLock()


def open_recorder() -> Recorder:
    """Begin to note the nodes of all threads."""
    global recorders
    recorder = Recorder()
    with _opening:
        recorders = (*recorders, recorder)
    return recorder


def close_recorder(recorder: Recorder) -> None:
    """Note no more; ``recorder`` keeps what it has."""
    global recorders
    with _opening:
        recorders = tuple([r for r in recorders if r is not recorder])


def _after_fork_in_child() -> None:
    # Another thread may have held them, which the child does not have.
    global _opening
    _opening = threading.RLock()
    for recorder in recorders:
        recorder.pruning = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Saved:
    """A value kept for the backward pass: ``(array, storage, version, edge)``.

    The array and its storage are the same memory; the storage is None for numbers, which nobody
    counts. ``unpack`` checks that no in-place write changed the value since. ``own_output`` is the
    index of the node's own output it is, or -1: its edge is then the node itself, and holding that
    here would make a cycle. Its class is that of the node's results (``Node.variable``).
    """

    __slots__ = (
        "array",
        "edge",
        "group",
        "name",
        "own_output",
        "storage",
        "version",
    )

    def __init__(
        self,
        name: Any,
        array: np.ndarray,
        storage: Storage | None,
        group: Group | None = None,
        edge: Edge | None = None,
        own_output: int = -1,
    ) -> None:
        self.name, self.array, self.storage, self.group = name, array, storage, group
        self.edge, self.own_output = edge, own_output
        self.version = group.version if group is not None else 0
        if storage is not None:
            storage.hold()

    def check(self, node: "Node") -> None:
        """Raise if an in-place operation changed the value after it was saved."""
        group = self.group
        if group is not None and group.version != self.version:
            raise GradError(
                f"{MODIFIED}: {node.described()} saved {self.name} {tuple(self.array.shape)} at "
                f"version {self.version}, it is now at version {group.version}, last changed by "
                f"{group.writer}; clone it before changing it, or use detect_anomaly() to see the "
                "lines of both"
            )

    def __del__(self) -> None:
        storage = getattr(self, "storage", None)
        if storage is not None:
            storage.release()


class _LeafRef(weakref.ref):
    """A weak reference that counts its leaf's death among ``LeafSlot.dead``.

    A leaf that the collector frees together with its slot is not counted: nobody is told of it.
    """

    died = False

    def note(self) -> None:
        """Called when the leaf has died."""
        self.died = True
        LeafSlot.dead += 1


class LeafSlot:
    """Where gradients of a leaf arrive. Holds the leaf weakly; lives as long as a graph does."""

    __slots__ = ("hooks", "leaf", "variable")
    name = "AccumulateGrad"

    dead = 0
    """Slots whose leaf has died: while there are none, backward need not look for nodes to skip.
    Exact but for races of threads, in which a look too many, or a node too many, does no harm."""

    def __init__(self, leaf: Any) -> None:
        self.leaf = _LeafRef(leaf, _LeafRef.note)
        self.hooks: dict[int, Callable[[Any], Any]] | None = None
        self.variable: bool = leaf.contagious

    def __del__(self) -> None:
        if self.leaf.died:
            type(self).dead -= 1

    def __repr__(self) -> str:
        return "<AccumulateGrad>"


class Node:
    """One recorded operation.

    ``op`` computes the gradients; ``edges`` has one an input, None where no gradient is wanted;
    ``saved`` maps the names of the op's save-set to ``Saved`` values (None once freed); ``attrs``
    are the op's attributes; ``in_specs`` and ``out_specs`` are ``(shape, dtype)`` an input and an
    output; ``variable``: its results are Variables.
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
        self.saved: dict[Any, Saved | None] | None = {}
        self.hooks: dict[int, dict[int, Callable[[Any], Any]]] | None = None
        self.sequence = next(_sequence)
        self.trace = user_line() if mode.state.anomaly else None
        counters.nodes += 1
        for recorder in recorders:
            recorder.add(self)

    @property
    def name(self) -> str:
        """``MulBackward`` for ``mul``: how ``grad_fn`` shows the node."""
        parts = self.op.name.split("_")
        return "".join(part[:1].upper() + part[1:] for part in parts) + "Backward"

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
        return [s for s in (self.saved or {}).values() if s is not None]

    def live_saved(self) -> dict[Any, Saved | None]:
        """The saved values, checked against in-place changes; raises when they were freed."""
        if self.saved is None:
            raise GradError(FREED)
        for saved in self.saved.values():
            if saved is not None:
                saved.check(self)
        return self.saved

    def described(self) -> str:
        """The op's name, and in anomaly mode the line that recorded it."""
        return self.op.name + (f" (recorded at {self.trace})" if self.trace else "")

    def release(self) -> None:
        """Free the saved values, if there are any; a second backward then raises."""
        if self.saved:
            self.saved = None

    def __repr__(self) -> str:
        return f"<{self.name}>"


def user_line() -> str:
    """File and line of the innermost frame outside numgrad."""
    frame, _ = user_frame()
    return "unknown" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
