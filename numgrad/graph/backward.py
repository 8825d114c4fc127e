"""The backward pass: order, accumulation, summing over broadcast axes.

Nodes are numbered as they are made, and a node is made after all it depends on: descending numbers
are a topological order, so a heap of numbers is all the scheduling there is. Nothing recurses.

A gradient travels *owned* (nobody else has its memory) or *borrowed* (an operand of ``x + y`` gets
``g`` itself). A borrowed one is copied when it becomes ``.grad``; a second contribution is added in
place to an owned one and to a fresh buffer otherwise.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import Any

from . import mode, storage
from .apply import above
from .errors import GradError
from .node import Edge, LeafSlot, Node


class _Pending:
    """The gradient gathered so far for one output of a node or for one leaf."""

    __slots__ = ("owned", "value")

    def __init__(self, value: Any, owned: bool) -> None:
        self.value, self.owned = value, owned

    def add(self, value: Any, owned: bool, create_graph: bool) -> None:
        if create_graph:
            self.value = above.add(self.value, value)
        elif self.owned:
            self.value.add_(value)
        elif owned and value.shape == self.value.shape:
            value.add_(self.value)
            self.value, self.owned = value, True
        else:
            self.value, self.owned = above.add(self.value, value), True


class Pass:
    """One backward pass from roots to leaves, or to the captured edges."""

    def __init__(self, retain_graph: bool, create_graph: bool) -> None:
        self.retain_graph, self.create_graph = retain_graph, create_graph
        self.gathered: dict[Node, list[_Pending | None]] = {}
        self.leaves: dict[LeafSlot, _Pending] = {}
        self.heap: list[tuple[int, Node]] = []
        self.capture: dict[tuple[int, int], _Pending | None] | None = None
        self.needed: set[int] = set()

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
                pending.value = _hooked(slot.hooks, pending.value)
                pending.owned = False
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
                pending.value = _hooked(node.hooks[index], pending.value)
                pending.owned = False
            if self.capture is not None and (id(node), index) in self.capture:
                self.capture[id(node), index] = pending
        needs = [edge is not None and self._wanted(edge) for edge in node.edges]
        if any(needs):
            grads = [None if p is None else p.value for p in arrived]
            results = node.op.vjp(node, grads, needs, self.create_graph)
            self._deliver(node, arrived, needs, results)
        if not self.retain_graph:
            node.release()

    def _wanted(self, edge: Edge) -> bool:
        target, index = edge
        if self.capture is None:
            return True
        return (id(target), index) in self.capture or id(target) in self.needed

    def _deliver(
        self,
        node: Node,
        arrived: list[_Pending | None],
        needs: Sequence[bool],
        results: Sequence[Any],
    ) -> None:
        foreign = [p.value.storage for p in arrived if p is not None]
        foreign += [s.storage for s in node.saved_values()]
        sole = len(arrived) == 1 and arrived[0] is not None and arrived[0].owned
        shared = 0
        for value, need in zip(results, needs, strict=True):
            if need and value is not None and any(value.storage is s for s in foreign):
                shared += 1
        for edge, value, need, spec in zip(node.edges, results, needs, node.in_specs, strict=True):
            if not need or value is None:
                continue
            assert edge is not None
            owned = not any(value.storage is s for s in foreign)
            if not owned and sole and shared == 1 and value is arrived[0].value:  # type: ignore[union-attr]
                owned = True
            shape, dtype = spec
            if value.shape != shape:
                value = above.sum_to(value, shape)
            if value.dtype != dtype:
                value = above.cast(value, dtype)
                owned = True
            self.send(edge, value, owned and value._base is None)


def _hooked(hooks: dict[int, Callable[[Any], Any]], value: Any) -> Any:
    for hook in list(hooks.values()):
        result = hook(value)
        if result is None:
            continue
        if not isinstance(result, above.Tensor):
            raise TypeError(
                f"register_hook: expected a Tensor or None for the hook's result, got {type(result)}; "
                "return a gradient or nothing"
            )
        if result.shape != value.shape or result.dtype != value.dtype:
            raise GradError(
                f"register_hook: expected a gradient of shape {value.shape} and dtype {value.dtype} "
                f"for the hook's result, got {result.shape} and {result.dtype}; keep both"
            )
        value = result
    return value


def accumulate(slot: LeafSlot, value: Any, owned: bool, create_graph: bool) -> None:
    """Add a gradient to a leaf's ``.grad``: in place, or to a new value when a graph is wanted."""
    leaf = slot.leaf()
    if leaf is None:
        return
    before = leaf.grad_value
    if before is None:
        if create_graph:
            leaf.grad_value = value
        else:
            leaf.grad_value = _as_gradient(leaf, value if owned else above.copy(value))
    elif create_graph:
        leaf.grad_value = above.add(before, value)
    else:
        with mode.no_grad():
            before.add_(value.reshape(before.shape) if value.shape != before.shape else value)


def _as_gradient(leaf: Any, value: Any) -> Any:
    """``value`` as the ``.grad`` of ``leaf``: of its shape, and a Variable if the leaf is one."""
    value.storage.move_to(storage.GRADIENT)
    if leaf.contagious:
        return above.variable_gradient(value, leaf.shape)
    return value


def _reachable(roots: Sequence[Edge]) -> list[Node]:
    """Nodes reachable from the roots, in ascending order of their numbers."""
    seen: dict[int, Node] = {}
    todo = [target for target, _ in roots if isinstance(target, Node)]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        todo.extend(e[0] for e in node.edges if e is not None and isinstance(e[0], Node))
    return sorted(seen.values(), key=lambda node: node.sequence)


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
        for node in _reachable([edge for edge, _ in roots]):
            for edge in node.edges:
                if edge is not None and backward._wanted(edge):
                    backward.needed.add(id(node))
                    break
    with storage.category(storage.GRADIENT), _grad_mode(create_graph):
        for edge, value in roots:
            backward.send(edge, value, False)
        backward.run()
    if capture is None:
        return None
    assert backward.capture is not None
    found = [backward.capture[id(target), index] for target, index in capture]
    return [None if p is None else p.value for p in found]


def _grad_mode(create_graph: bool) -> Any:
    return mode.enable_grad() if create_graph else mode.no_grad()
