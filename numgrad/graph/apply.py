"""The single door every op goes through: infer, run, and record if the predicate says so.

If nothing is recorded, nothing exists that would not exist without autograd: no node, no saved
value, no aux result.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..kernels.cuda.array import DeviceArray
from . import device as devices
from . import mode
from .above import above
from .errors import DeviceError, DtypeError, GradError, ShapeError, expected
from .mode import RECORD, UNNEEDED, VOLATILE
from .node import Edge, Node, Saved, user_line
from .op import Op
from .saved import pack
from .storage import (
    ACTIVATION,
    BUFFER,
    PARAMETER,
    WORKSPACE,
    Storage,
    allocate,
    allocate_beside,
    allocate_on,
    category,
    local,
)
from .value import Constant, Value, alias, make, with_class

__all__ = [
    "Constant",
    "above",
    "apply",
    "apply_in_place",
    "beside",
    "check_device",
    "check_same_device",
    "check_writable",
    "keeps_flags",
    "make",
    "no_kernel",
    "overlaps_itself",
    "rebase",
    "writing",
    "wrote",
]

Kept = dict[int, tuple[np.ndarray, Storage]]
"""Copies of operands, by position, made before an in-place operation overwrote them."""


def apply(op: Op, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Run ``op``; one value, or a tuple if the op has several outs. Operands may be None."""
    where = check_device(op, inputs) if devices.used else devices.CPU
    how = mode.decide(inputs)
    specs = None if op.view else op.infer(inputs, attrs)
    variable = False
    arrays: list[Any] = []
    for x in inputs:
        if x is None:
            arrays.append(None)
        else:
            if x.contagious:
                variable = True
            arrays.append(x.array)
    if how == RECORD and specs is not None and not _differentiable(specs):
        how = UNNEEDED
    aux = None
    results: Any
    if specs is not None and len(specs) == 1:  # written out: nearly every call comes through here
        shape, dtype = specs[0]
        if where is devices.CPU:
            array, storage = allocate(shape, dtype, op.name)
            aux = op.run((array,), arrays, attrs, how == RECORD)
        else:
            array, storage = allocate_on(where, shape, dtype, op.name)
            aux = op.run_cuda((array,), arrays, attrs, how == RECORD)
        result = make(array, storage, variable)
        if how != RECORD:
            if how == VOLATILE:
                result._volatile = True
                result._origin = _volatile_origin(op, inputs)
            else:
                result._origin = op.origins[how]
            return result
        results = (result,)
    elif specs is not None:
        made = [allocate_on(where, shape, dtype, op.name) for shape, dtype in specs]
        run = op.run if where is devices.CPU else op.run_cuda
        aux = run([array for array, _ in made], arrays, attrs, how == RECORD)
        results = [make(array, storage, variable) for array, storage in made]
    elif op.view:
        results = [_view(op, inputs[0], arrays[0], attrs, variable)]
    else:
        local.account.op = op.name
        results = [make(a, storage, variable) for a, storage in op.run_dynamic(arrays, attrs)]
    if how == RECORD:
        if specs is None:
            specs = [(result.shape, result.dtype) for result in results]
        edges = edges_of(op, inputs)
        node = _record(op, inputs, edges, attrs, specs, results, aux, variable, {})
        for index, result in enumerate(results):
            if result.dtype.kind == "f":
                result._edge, result._requires_grad = (node, index), True
    else:
        origin = _volatile_origin(op, inputs) if how == VOLATILE else op.origins[how]
        for result in results:
            result._volatile, result._origin = how == VOLATILE, origin
    return results[0] if len(results) == 1 else tuple(results)


def check_same_device(op: str, inputs: Sequence[Any], names: Sequence[str]) -> Any:
    """The one device of the tensors among the operands; numbers have none.

    Raises:
        DeviceError: the operands are on several devices.
    """
    first: Value | None = None
    for x, name in zip(inputs, names, strict=False):
        if not isinstance(x, Value):
            continue
        if first is None:
            first, first_name = x, name
        elif x.device is not first.device:
            raise DeviceError(
                f"{op}: expected all operands on one device, got {first_name} on {first.device} "
                f"and {name} on {x.device}; move one with .cuda() or .cpu()"
            )
    return devices.CPU if first is None else first.device


def check_device(op: Op, inputs: Sequence[Any]) -> Any:
    """The device that ``op`` is to run on.

    Raises:
        DeviceError: the operands are on several devices.
        NotImplementedError: they are on a GPU and the op has no CUDA kernel.
    """
    names = [f"{op.operands[0]}[{i}]" for i in range(len(inputs))] if op.variadic else op.operands
    without_kernel = op.run_cuda is None and not op.view
    where = inputs[0].device if isinstance(inputs[0], Value) else devices.CPU
    if without_kernel and where is not devices.CPU:
        # Its constants (indices) were made on the CPU: that they are there is not what is wrong.
        inputs = [None if n in op.constant else x for x, n in zip(inputs, names, strict=True)]
    where = check_same_device(op.name, inputs, names)
    if where is not devices.CPU and without_kernel:
        raise no_kernel(op.name, names[0], where)
    return where


def no_kernel(op: str, name: str, where: Any) -> NotImplementedError:
    """The error for the operand ``name`` on a GPU of an op that has no CUDA kernel."""
    return NotImplementedError(
        f"{op}: expected operands on the CPU, got {name} on {where}; the op has no CUDA kernel "
        "yet: use .cpu()"
    )


def _differentiable(specs: Sequence[Any]) -> bool:
    return any(dtype.kind == "f" for _, dtype in specs)


def _volatile_origin(op: Op, inputs: Sequence[Any]) -> str:
    """Which operand made the result volatile: a text made when the op was declared."""
    for i, x in enumerate(inputs):
        if x is not None and x._volatile:
            return op.volatile_origins[0 if op.variadic else i]
    raise AssertionError("volatile without a volatile input")


def _view(op: Op, x: Value, array: np.ndarray, attrs: dict[str, Any], variable: bool) -> Value:
    array = op.see(array, attrs)
    result: Value = make(array, x.storage, variable, x.group)
    base = x._base
    result._base = x if base is None else base
    result._chain = (*x._chain, (op, attrs, array.shape))
    result._stamp = result._edge_stamp = result._base._stamp
    result._inference = result._inference or x._inference
    return result


def edges_of(op: Op, inputs: Sequence[Any]) -> tuple[Edge | None, ...]:
    """The edge of each operand that an operation wants a gradient for, else None."""
    rules, variadic = op.rules, op.variadic
    edges: list[Edge | None] = []
    for i, x in enumerate(inputs):  # `decide` has refreshed them
        if x is None or not x._requires_grad or x._volatile or rules[0 if variadic else i] is None:
            edges.append(None)
        else:
            edges.append(x._edge if x._base is None and x._edge else x.gradient_edge())
    return tuple(edges)


def _record(
    op: Op,
    inputs: Sequence[Any],
    edges: tuple[Edge | None, ...],
    attrs: dict[str, Any],
    specs: Sequence[Any],
    results: Sequence[Value],
    aux: dict[str, Any] | None,
    variable: bool,
    kept: Kept,
) -> Node:
    """The node of an operation that ran, with the values its derivative asks for."""
    in_specs = [None if x is None else (x.shape, x.dtype) for x in inputs]
    node = Node(op, edges, attrs, in_specs, specs, variable)
    for name in op.save_set(tuple([edge is not None for edge in edges])):
        if name in op.operands:
            index = op.operands.index(name)
            if inputs[index] is None:
                continue
            if index in kept:
                saved = Saved(name, *kept[index], None, edges[index])
            else:
                saved = pack(name, inputs[index], edges[index], op.name)
        elif name in op.outs:
            index = op.outs.index(name)
            saved = pack(name, results[index], None, op.name, index)
        else:
            assert aux is not None
            if not isinstance(aux[name], tuple):
                node.attrs = {**node.attrs, name: aux[name]}
                continue
            saved = Saved(name, *aux[name])
        node.save(saved)
    return node


# ----------------------------------------------------------------------------------------- in place


def overlaps_itself(array: np.ndarray) -> bool:
    """Whether two elements of ``array`` share memory (an expanded view)."""
    repeated = any(s == 0 and n > 1 for s, n in zip(array.strides, array.shape, strict=True))
    return repeated and array.size > 0


def check_writable(op: str, x: Value) -> None:
    """Raise if writing to ``x`` in place is not allowed."""
    if x._inference and not mode.state.inference:
        raise GradError(
            "Inplace update to inference tensor outside InferenceMode is not allowed. You can make "
            f"a clone to get a normal tensor before doing inplace update. ({op})"
        )
    if overlaps_itself(x.array):
        raise GradError(
            f"{op}: unsupported operation: more than one element of the written-to tensor refers "
            f"to a single memory location, got an expanded view of shape {x.shape}; clone it first"
        )
    if not x.array.flags.writeable:
        raise GradError(
            expected(op, "writable memory", "the result", "a read-only array", "clone it first")
        )
    if not mode.state.grad or x.volatile:
        return
    base = x._base
    if base is not None and base.requires_grad:
        if base.is_leaf:
            raise GradError(
                "a view of a leaf Variable that requires grad is being used in an in-place "
                f"operation. ({op}; use no_grad() or write to a clone)"
            )
        if not x.requires_grad:
            raise GradError(
                "A view was created in no_grad mode and is being modified inplace with grad mode "
                f"enabled. ({op}; make the view outside of no_grad(), or write inside of it)"
            )
    edge = x.edge
    if edge is not None and edge[1] in edge[0].attrs.get("aliases", ()):  # type: ignore[union-attr]
        raise GradError(
            f"Output {edge[1]} of {edge[0].name} is a view and is being modified inplace. It "
            f"shares memory with an input of the Function. ({op}; clone it, or mark the input "
            "dirty)"
        )
    if x.requires_grad and x.is_leaf:
        raise GradError(
            f"a leaf Variable that requires grad has been used in an in-place operation. ({op}; "
            "use no_grad() or .data, or write to a clone)"
        )


def _copied(array: np.ndarray, which: int) -> tuple[np.ndarray, Storage]:
    with category(which):
        out, storage = allocate_beside(array, array.shape, array.dtype)
    out[...] = array
    return out, storage


def _may_overlap(x: Any, target: Any) -> bool:
    if type(target) is DeviceArray:
        return type(x) is DeviceArray and x.overlaps(target)
    return np.may_share_memory(x, target)


def disjoint(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    """``x``, copied if it overlaps ``target`` other than as the very same elements."""
    if x is target or not _may_overlap(x, target):
        return x
    on_device = type(x) is DeviceArray
    same = (
        x.shape == target.shape
        and x.strides == target.strides
        and (
            x.place() == target.place()  # type: ignore[attr-defined]
            if on_device
            else x.__array_interface__["data"] == target.__array_interface__["data"]
        )
    )
    if same:
        return x
    if on_device:
        return _copied(x, WORKSPACE)[0]
    work: Any = 10_000
    try:
        overlap = np.shares_memory(x, target, max_work=work)
    except np.exceptions.TooHardError:
        overlap = True
    return _copied(x, WORKSPACE)[0] if overlap else x


def keeps_flags(x: Value) -> bool:
    """Whether ``x`` keeps flags and history when a volatile value is written to it.

    All do but a Variable that is neither a Parameter's nor a buffer's memory: else a running mean
    that is updated with a volatile statistic would poison all later training.
    """
    return not x.contagious or x.storage.category in (PARAMETER, BUFFER)


def beside(x: Value, operands: Sequence[Any]) -> Sequence[Any]:
    """The operands of an in-place operation on ``x``: a volatile one counts as a constant if ``x``
    keeps its flags, and a Variable of shape ``(1,)`` as a scalar if ``x`` is one."""
    if not keeps_flags(x):
        return operands
    settled = []
    for y in operands:
        if isinstance(y, Value):
            if y.volatile:
                y = alias(y, y.contagious, y.group)
            if y.contagious and x.shape == () and y.shape == (1,):
                y = above.reshape(with_class(y, False), ())
        settled.append(y)
    return settled


def apply_in_place(op: Op, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Run ``op`` with its first operand's memory as the result."""
    x = inputs[0]
    inputs = (x, *beside(x, inputs[1:]))
    run = op.run
    if devices.used and check_device(op, inputs) is not devices.CPU:
        run = op.run_cuda
    how = mode.decide(inputs)
    specs = op.infer(inputs, attrs)
    assert specs is not None
    shape, dtype = specs[0]
    if shape != x.shape:
        raise ShapeError(
            f"{op.name}_: expected a result of shape {x.shape} for {op.operands[0]}, got {shape}; "
            "an in-place operation cannot change the shape"
        )
    if dtype != x.dtype:
        raise DtypeError(
            f"{op.name}_: expected a result of dtype {x.dtype} for {op.operands[0]}, got {dtype}; "
            "an in-place operation cannot change the dtype"
        )
    check_writable(op.name + "_", x)
    target = x.array
    kept: Kept = {}
    edges: tuple[Edge | None, ...] = ()
    if how == RECORD and dtype.kind == "f":
        x.check_chain()
        edges = edges_of(op, inputs)
        kept = _keep(op, inputs, edges, target)
    arrays = [target] + [None if y is None else disjoint(y.array, target) for y in inputs[1:]]
    local.account.op = op.name
    wrote(x, op.name + "_")
    try:
        aux = run([target], arrays, attrs, how == RECORD)
    finally:
        x.storage.writes += 1
    if how == RECORD:
        if edges:
            node = _record(op, inputs, edges, attrs, specs, [x], aux, x.contagious, kept)
            rebase(x, (node, 0))
    elif how == VOLATILE and not x.volatile:
        x.become_volatile(_volatile_origin(op, inputs))
    return x


def _keep(op: Op, inputs: Sequence[Any], edges: Sequence[Edge | None], target: np.ndarray) -> Kept:
    """Copies of the operands that the derivative asks for and the operation will overwrite."""
    names = op.save_set(tuple(edge is not None for edge in edges))
    return {
        i: _copied(y.array, ACTIVATION)
        for i, y in enumerate(inputs)
        # Arrays without elements share no memory, but the version counter is x's all the same.
        if y is not None
        and op.operands[i] in names
        and (y is inputs[0] or _may_overlap(y.array, target))
    }


def wrote(x: Value, op: str) -> None:
    """Note a write to ``x``'s memory: both counters, and who wrote.

    It is noted before the write, which may be interrupted: a signal that comes while a kernel runs
    raises behind it, when memory has changed. Who runs a kernel counts ``storage.writes`` once more
    behind it, whatever happened, since another thread may have read half-written memory: `writing`
    does both.
    """
    group = x.group
    group.version += 1
    x.storage.writes += 1
    group.writer = _writer(op)


def _writer(op: str) -> str:
    return f"{op} (at {user_line()})" if mode.state.anomaly else op


class writing:
    """``with writing("op", [x, y]):`` the memory of these values is written to inside."""

    __slots__ = ("_op", "_values")

    def __init__(self, op: str, values: Sequence[Value]) -> None:
        self._op, self._values = op, values

    def __enter__(self) -> None:
        writer = _writer(self._op)
        for x in self._values:  # as `wrote`, quickly: an optimizer has hundreds
            group = x.group
            group.version += 1
            x.storage.writes += 1
            group.writer = writer

    def __exit__(self, *exc: object) -> None:
        for x in self._values:
            x.storage.writes += 1


def rebase(x: Value, edge: Edge) -> None:
    """Give ``x`` a new history after an in-place write; through a view its base gets one too."""
    base = x._base
    if base is None:
        x.set_history(edge)
        return
    # The base's new value is its old one with the view's elements replaced.
    spec, view_spec = (base.shape, base.dtype), (x.shape, x.dtype)
    node = Node(
        above.view_scatter,
        (base.gradient_edge(), edge),
        {"chain": x._chain},
        (spec, view_spec),
        (spec,),
        base.contagious,
    )
    base.set_history((node, 0))  # x and the other views make theirs anew from it when asked
