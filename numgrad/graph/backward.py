"""The backward pass: order, accumulation, summing over broadcast axes.

Nodes are numbered as they are made, and a node is made after all it depends on: descending numbers
are a topological order, so a heap of numbers is all the scheduling there is. Nothing recurses.

A gradient travels *owned* (nobody else has its memory) or *borrowed* (an operand of ``x + y`` gets
``g`` itself). A borrowed one is copied when it becomes ``.grad`` or is handed to the user; a second
contribution is added in place to an owned one and to a fresh buffer otherwise.

Gradients travel as plain Tensors in the shapes the ops know. Where the user sees one of a Variable
(hooks, ``.grad``, ``autograd.grad``) it is made a Variable.
"""

import heapq
import os
import threading
from collections.abc import Sequence
from typing import Any

from . import device as devices
from . import mode, storage
from .above import above
from .errors import DeviceError, GradError
from .node import Edge, LeafSlot, Node
from .value import Retainer, with_class


class _Pending:
    """The gradient gathered so far for one output of a node or for one leaf."""

    __slots__ = ("owned", "value")

    def __init__(self, value: Any, owned: bool) -> None:
        self.value, self.owned = value, owned

    def add(self, value: Any, owned: bool, create_graph: bool) -> None:
        if create_graph:
            self.value, self.owned = above.add(self.value, value), True
        elif self.owned:
            self.value.add_(value)
        elif owned and value.shape == self.value.shape:
            value.add_(self.value)
            self.value, self.owned = value, True
        else:
            self.value, self.owned = above.add(self.value, value), True

    def hooked(self, hooks: dict[int, Any], variable: bool) -> None:
        """Call the hooks: they see the gradient, and may replace it, so it is borrowed now."""
        self.value, self.owned = _hooked(hooks, self.value, variable), False


class Pass:
    """One backward pass from roots to leaves, or to the captured edges.

    ``needed`` holds the nodes that lead to a leaf (or to a captured edge) that still wants a
    gradient; None where all do.
    """

    def __init__(self, retain_graph: bool, create_graph: bool) -> None:
        self.retain_graph, self.create_graph = retain_graph, create_graph
        self.gathered: dict[Node, list[_Pending | None]] = {}
        self.leaves: dict[LeafSlot, _Pending] = {}
        self.heap: list[tuple[int, Node]] = []
        self.capture: dict[tuple[int, int], _Pending | None] | None = None
        self.needed: set[int] | None = None

    def send(self, edge: Edge, value: Any, owned: bool) -> None:
        """Add a contribution to what has arrived at ``edge``."""
        target, index = edge
        if isinstance(target, LeafSlot):
            self._send_leaf(target, value, owned)
            return
        arrived = self.gathered.get(target)
        if arrived is None:
            arrived = self.gathered[target] = [None] * len(target.out_specs)
            heapq.heappush(self.heap, (-target.sequence, target))
        pending = arrived[index]
        if pending is None:
            arrived[index] = _Pending(value, owned)
        else:
            pending.add(value, owned, self.create_graph)

    def _send_leaf(self, slot: LeafSlot, value: Any, owned: bool) -> None:
        if self.capture is not None or slot.hooks or self.create_graph:
            pending = self.leaves.get(slot)
            if pending is None:
                self.leaves[slot] = _Pending(value, owned)
            else:
                pending.add(value, owned, self.create_graph)
        else:
            accumulate(slot, value, owned, False)

    def run(self) -> None:
        """Work off the heap, then hand the leaves what waits for hooks or a graph."""
        while self.heap:
            _, node = heapq.heappop(self.heap)
            self._run_node(node)
        for slot, pending in self.leaves.items():
            if slot.hooks:
                pending.hooked(slot.hooks, slot.variable)
            if self.capture is None:
                accumulate(slot, pending.value, pending.owned, self.create_graph)
            elif (id(slot), 0) in self.capture:
                self.capture[id(slot), 0] = pending

    def _run_node(self, node: Node) -> None:
        arrived = self.gathered.pop(node)
        for index, pending in enumerate(arrived):
            if pending is None:
                continue
            if pending.value.shape != node.out_specs[index][0]:
                pending.value = above.reshape(pending.value, node.out_specs[index][0])
                pending.owned = False
            if node.hooks and node.hooks.get(index):
                pending.hooked(node.hooks[index], node.variable)
            if self.capture is not None and (id(node), index) in self.capture:
                pending.owned = False  # it goes on along the edges as well
                self.capture[id(node), index] = pending
        needs = [edge is not None and self.wanted(edge) for edge in node.edges]
        if any(needs):
            grads = [None if p is None else p.value for p in arrived]
            results = node.op.vjp(node, grads, needs, self.create_graph)
            self._deliver(node, arrived, needs, results)
        if not self.retain_graph:
            node.release()

    def wanted(self, edge: Edge) -> bool:
        """Whether a gradient that arrives at ``edge`` is of use to anybody."""
        if self.needed is None:
            return True
        target, index = edge
        if self.capture is not None:
            return (id(target), index) in self.capture or id(target) in self.needed
        if isinstance(target, LeafSlot):
            return target.leaf() is not None or bool(target.hooks)
        return id(target) in self.needed or bool(target.hooks)

    def find_needed(self, roots: Sequence[Edge]) -> None:
        """Fill ``needed``: a walk over the whole graph, for where it may spare work.

        A node that is skipped because its leaves have died raises what it would have raised, and
        frees what it would have freed.
        """
        self.needed = needed = set()
        for node in _reachable(roots):
            if any(edge is not None and self.wanted(edge) for edge in node.edges):
                needed.add(id(node))
            elif self.capture is None:
                node.live_saved()
                if not self.retain_graph:
                    node.release()

    def _deliver(
        self,
        node: Node,
        arrived: list[_Pending | None],
        needs: Sequence[bool],
        results: Sequence[Any],
    ) -> None:
        """Send the gradients of a node's operands on, each as owned or borrowed.

        Borrowed is what shares memory with an incoming gradient, a saved value or another result,
        and whatever a user's Function returned. Only an owned gradient that a single operand gets
        as it came stays owned.
        """
        seen = [p.value.storage for p in arrived if p is not None]
        seen += [s.storage for s in node.saved_values()]
        given = [value.storage for value in results if value is not None]
        first = arrived[0]
        passed_on = first.value if len(arrived) == 1 and first and first.owned else None
        for edge, value, need, spec in zip(node.edges, results, needs, node.in_specs, strict=True):
            if not need or value is None:
                continue
            assert edge is not None
            alone = sum(value.storage is s for s in given) == 1
            fresh = value is passed_on or not any(value.storage is s for s in seen)
            owned = node.op.owns_results and alone and fresh and value._base is None
            shape, dtype = spec
            if value.shape != shape:
                value = above.sum_to(value, shape)
                owned = owned and value._base is None
            if value.dtype != dtype:
                value = above.cast(value, dtype)
                owned = True
            self.send(edge, value, owned)


def _hooked(hooks: dict[int, Any], value: Any, variable: bool) -> Any:
    """The gradient after the hooks, in order of registration, those of ``retain_grad`` last."""
    given = with_class(value, variable)
    for hook in sorted(hooks.values(), key=lambda hook: isinstance(hook, Retainer)):
        result = hook(given)
        if result is None:
            continue
        if not isinstance(result, above.Tensor):
            raise TypeError(
                "register_hook: expected a Tensor or None for the hook's result, got "
                f"{type(result)}; return a gradient or nothing"
            )
        if result.shape != given.shape or result.dtype != given.dtype:
            raise GradError(
                f"register_hook: expected a gradient of shape {given.shape} and dtype "
                f"{given.dtype} for the hook's result, got {result.shape} and {result.dtype}; keep "
                "both"
            )
        if result.device is not given.device:
            raise DeviceError(
                f"register_hook: expected a gradient on {given.device} for the hook's result, got "
                f"one on {result.device}; move it with .to()"
            )
        given = with_class(result, variable)
    out = with_class(given, False)
    return out if out.shape == value.shape else above.reshape(out, value.shape)


def _new_locks() -> list[Any]:
    return [threading.RLock() for _ in range(64)]


_locks = _new_locks()
"""One of them is held while a leaf's gradient grows: threads may share the leaf. They are taken
again by a finaliser that runs a backward pass meanwhile."""


def _after_fork_in_child() -> None:
    global _locks
    _locks = _new_locks()  # another thread may have held some, which the child does not have


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def accumulate(slot: LeafSlot, value: Any, owned: bool, create_graph: bool) -> None:
    """Add a gradient to a leaf's ``.grad``: in place, or to a new value when a graph is wanted."""
    leaf = slot.leaf()
    if leaf is not None:
        with _locks[hash(slot) % len(_locks)]:
            _accumulate(slot, leaf, value, owned, create_graph)


def _accumulate(slot: LeafSlot, leaf: Any, value: Any, owned: bool, create_graph: bool) -> None:
    before = leaf.grad_value
    shape = leaf.shape if before is None else before.shape
    if value.shape != shape:  # a Variable has (1,) for (), and so may have what was set as .grad
        if {value.shape, shape} != {(), (1,)}:
            what = "the leaf" if shape == leaf.shape else ".grad"
            raise GradError(
                f"backward: expected {what} to have the shape {value.shape} of the gradient, got "
                f"{shape}; change the shape (.data = …) only between backward and the next forward "
                "pass, and set .grad to None then"
            )
        value = above.reshape(value, shape)
    if value.dtype != leaf.dtype:  # it was converted after the forward pass
        value, owned = above.cast(value, leaf.dtype), True
    if devices.used and value.device is not leaf.device:  # as was its memory
        value, owned = above.to_device(value, leaf.device), True
    if before is not None and before.dtype != leaf.dtype:
        before = leaf.grad_value = _as_gradient(leaf, above.cast(before, leaf.dtype))
    if create_graph:
        value = with_class(value if owned else above.copy(value), slot.variable)
        leaf.grad_value = value if before is None else above.add(before, value)
    elif before is None:
        leaf.grad_value = _as_gradient(leaf, value if owned else above.copy(value))
    else:
        before.add_(value)


def _as_gradient(leaf: Any, value: Any) -> Any:
    """``value`` as the ``.grad`` of ``leaf``: a Variable if the leaf is one."""
    value.storage.move_to(storage.GRADIENT)
    return above.variable_gradient(value) if leaf.contagious else value


def _reachable(roots: Sequence[Edge]) -> list[Node]:
    """Nodes reachable from the roots, in ascending order of their numbers."""
    seen: dict[int, Node] = {}
    todo = [target for target, _ in roots if isinstance(target, Node)]
    while todo:
        node = todo.pop()
        if node.sequence not in seen:
            seen[node.sequence] = node
            todo.extend(e[0] for e in node.edges if e is not None and isinstance(e[0], Node))
    return [seen[number] for number in sorted(seen)]


def run(
    roots: Sequence[tuple[Edge, Any]],
    retain_graph: bool,
    create_graph: bool,
    capture: Sequence[Edge] | None = None,
) -> list[Any] | None:
    """Send gradients from ``roots``; accumulate them in the leaves, or return the captured ones."""
    backward = Pass(retain_graph, create_graph)
    if capture is not None:
        backward.capture = {(id(target), index): None for target, index in capture}
    if capture is not None or LeafSlot.dead:
        backward.find_needed([edge for edge, _ in roots])
    # Not by `no_grad()`: an interrupt between two lines must not leave the mode behind.
    before = mode.state.grad, storage.local.account.category
    try:
        mode.state.grad = create_graph and not mode.state.inference
        storage.local.account.category = storage.GRADIENT
        for edge, value in roots:
            backward.send(edge, value, False)
        backward.run()
        if backward.capture is None:
            return None
        found = [backward.capture[id(target), index] for target, index in capture or ()]
        return [
            p if p is None else p.value if p.owned or create_graph else above.copy(p.value)
            for p in found
        ]
    finally:
        mode.state.grad, storage.local.account.category = before
