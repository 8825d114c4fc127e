"""The single door every op goes through: infer, run, and record if the predicate says so.

If nothing is recorded, nothing exists that would not exist without autograd: no node, no saved
value, no aux result.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import mode
from .errors import GradError, expected
from .node import Edge, Node, Saved
from .op import Op
from .storage import ACTIVATION, Group, Storage, adopt, allocate, local
from .value import Value

above: Any = SimpleNamespace()
"""What the graph needs from the layers above; they set it at import:

``Tensor``, ``Variable`` (classes of results), ``add(x, y)``, ``sum_to(x, shape)``,
``cast(x, dtype)``, ``reshape(x, shape)``, ``zeros(spec)``, ``view_scatter`` (an op).
"""


class Constant:
    """A Python number among the operands: a 0-d array that takes no part in the graph."""

    __slots__ = ("array", "dtype", "shape")
    _volatile = _inference = requires_grad = contagious = False
    storage = group = _base = None

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.dtype, self.shape = array, array.dtype, ()

    def gradient_edge(self) -> None:
        return None


def make(
    array: np.ndarray, storage: Storage, variable: bool = False, group: Group | None = None
) -> Any:
    """A new value without history: a Variable if ``variable`` (0-d then becomes ``(1,)``)."""
    cls = above.Variable if variable else above.Tensor
    if variable and array.ndim == 0:
        array = array.reshape(1)
    value = object.__new__(cls)
    value._init(array, storage, group)
    value._inference = mode.state.inference
    return value


def apply(op: Op, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Run ``op``; one value, or a tuple if the op has several outs. Operands may be None."""
    volatile, record = mode.decide(inputs)
    specs = None if op.view else op.infer(inputs, attrs)
    variable = False
    arrays = []
    for x in inputs:
        if x is None:
            arrays.append(None)
        else:
            variable = variable or x.contagious
            arrays.append(x.array)
    local.op = op.name
    aux = None
    made: Sequence[Any]
    if op.view:
        results = [_view(op, inputs[0], attrs, variable)]
        specs = [(results[0].array.shape, results[0].dtype)]
    elif specs is None:
        made = op.run_dynamic(arrays, attrs)
        specs = [(array.shape, array.dtype) for array, _ in made]
        results = [make(array, storage, variable) for array, storage in made]
    else:
        made = [allocate(shape, dtype) for shape, dtype in specs]
        aux = op.run([array for array, _ in made], arrays, attrs, record)
        results = [make(array, storage, variable) for array, storage in made]
    if volatile:
        for result in results:
            result._volatile = True
    elif record:
        node = _record(op, inputs, attrs, specs, results, aux, variable)
        for index, result in enumerate(results):
            if result.dtype.kind == "f":
                result._edge = (node, index)
                result._requires_grad = True
    return results[0] if len(results) == 1 else tuple(results)


def _view(op: Op, x: Value, attrs: dict[str, Any], variable: bool) -> Value:
    array = op.see(x.array, attrs)
    result: Value = make(array, x.storage, variable, x.group)
    result._base = x if x._base is None else x._base
    result._chain = (*x._chain, (op, attrs, array.shape))
    result._stamp = result._base._stamp
    return result


def _record(
    op: Op,
    inputs: Sequence[Any],
    attrs: dict[str, Any],
    specs: Sequence[Any],
    results: Sequence[Value],
    aux: dict[str, Any] | None,
    variable: bool,
    overwritten: np.ndarray | None = None,
) -> Node:
    """The node of an operation that ran. ``overwritten`` is the first operand's value before it."""
    edges = tuple(
        None if x is None or x._volatile or _constant(op, i) else x.gradient_edge()
        for i, x in enumerate(inputs)
    )
    in_specs = [None if x is None else (x.shape, x.dtype) for x in inputs]
    node = Node(op, edges, attrs, in_specs, specs, variable)
    for name in op.save_set(tuple(edge is not None for edge in edges)):
        if name in op.operands:
            index = op.operands.index(name)
            x = inputs[index]
            if x is None:
                continue
            if index == 0 and overwritten is not None:
                saved = Saved(name, overwritten, None, None, edges[0], None)
            else:
                saved = pack(name, x, edges[index], op)
        elif name in op.outs:
            index = op.outs.index(name)
            out = results[index]
            saved = Saved(name, out.array, out.storage, out.group, None, None, index)
        else:
            assert aux is not None
            value = aux[name]
            if isinstance(value, np.ndarray):
                saved = Saved(name, value, Storage(value.nbytes, ACTIVATION), None, None, None)
            else:
                node.attrs = {**node.attrs, name: value}
                continue
        node.save(saved)
    return node


def _constant(op: Op, index: int) -> bool:
    return not op.variadic and (op.rules[index] is None)


def pack(name: str, x: Any, edge: Edge | None, op: Op) -> Saved:
    """Keep an operand for the backward pass: the one place where values are packed."""
    if x._inference:
        raise GradError(
            f"{op.name}: Inference tensors cannot be saved for backward. To work around you can make "
            "a clone to get a normal tensor and use it in autograd."
        )
    return Saved(name, x.array, x.storage, x.group, edge, None)


def unpack(saved: Saved, node: Node) -> Any:
    """The Tensor a saved value was, on the edge it had: the one place where values are unpacked."""
    saved.check(node.described())
    storage = saved.storage if saved.storage is not None else adopt(saved.array)
    value = make(saved.array, storage, False, saved.group)
    edge = (node, saved.own_output) if saved.own_output >= 0 else saved.edge
    if edge is not None:
        value._edge = edge
        value._requires_grad = True
    return value


# ----------------------------------------------------------------------------------------- in place


def overlaps_itself(array: np.ndarray) -> bool:
    """Whether two elements of ``array`` share memory (an expanded view)."""
    return any(stride == 0 and n > 1 for stride, n in zip(array.strides, array.shape, strict=True))


def check_writable(op: str, x: Value, record: bool) -> None:
    """Raise if writing to ``x`` in place is not allowed."""
    if overlaps_itself(x.array):
        raise GradError(
            f"{op}: unsupported operation: more than one element of the written-to tensor refers to "
            f"a single memory location, got an expanded view of shape {x.shape}; clone it first"
        )
    if not x.array.flags.writeable:
        raise GradError(
            expected(op, "writable memory", "the result", "a read-only array", "clone it first")
        )
    if mode.state.grad and x._base is not None and x._base.requires_grad and x._base.is_leaf:
        raise GradError(
            "a view of a leaf Variable that requires grad is being used in an in-place operation. "
            f"({op}; use no_grad() or write to a clone)"
        )
    if mode.state.grad and x.requires_grad and x.is_leaf:
        raise GradError(
            "a leaf Variable that requires grad has been used in an in-place operation. "
            f"({op}; use no_grad() or .data, or write to a clone)"
        )


def disjoint(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    """``x``, copied if it overlaps ``target`` other than as the very same elements."""
    if x is target or not np.may_share_memory(x, target):
        return x
    same = (
        x.shape == target.shape
        and x.strides == target.strides
        and x.__array_interface__["data"] == target.__array_interface__["data"]
    )
    if same or not np.shares_memory(x, target, max_work=10_000):
        return x
    return x.copy()


def apply_in_place(op: Op, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Run ``op`` with its first operand's memory as the result."""
    x = inputs[0]
    others = inputs[1:]
    contagious = x.contagious and any(y is not None and y._volatile for y in others)
    constants = [y for y in others if y is not None and not y._volatile]
    record = (
        mode.state.grad
        and not contagious
        and not x._volatile
        and (x.requires_grad or any(y.requires_grad for y in constants))
    )
    specs = op.infer(inputs, attrs)
    assert specs is not None
    shape = specs[0][0]
    if shape != x.shape:
        raise ValueError(
            f"{op.name}_: expected a result of shape {x.shape} for {op.operands[0]}, got {shape}; "
            "an in-place operation cannot change the shape"
        )
    check_writable(op.name + "_", x, record)
    target = x.array
    arrays = [target] + [None if y is None else disjoint(y.array, target) for y in others]
    overwritten = None
    edges_wanted = [x.requires_grad, *(y is not None and y.requires_grad for y in others)]
    if record and op.operands[0] in op.save_set(tuple(edges_wanted)):
        overwritten = allocate(target.shape, target.dtype)[0]
        overwritten[...] = target
    local.op = op.name
    aux = op.run([target], arrays, attrs, record)
    wrote(x, op.name + "_")
    if contagious:
        x.grad_value = None
        x._slot = None
        x.set_history(None)
        x._volatile = True
    elif record:
        if target.dtype.kind == "f":
            node = _record(
                op, inputs, attrs, [(shape, x.dtype)], [x], aux, x.contagious, overwritten
            )
            rebase(x, (node, 0))
    return x


def wrote(x: Value, op: str) -> None:
    """Note a write to ``x``'s memory: both counters, and who wrote."""
    group = x.group
    group.version += 1
    group.writer = op
    x.storage.writes += 1


def rebase(x: Value, edge: Edge) -> None:
    """Give ``x`` a new history after an in-place write; through a view its base gets one too."""
    base = x._base
    if base is None:
        x.set_history(edge)
        return
    # The base's new value is its old one with the view's elements replaced.
    scatter: Op = above.view_scatter
    spec, view_spec = (base.shape, base.dtype), (x.shape, x.dtype)
    attrs = {"chain": x._chain}
    node = Node(
        scatter, (base.gradient_edge(), edge), attrs, [spec, view_spec], [spec], base.contagious
    )
    base.set_history((node, 0))
    x._stamp = base._stamp - 1  # stale: the view's own edge is made anew from the base
