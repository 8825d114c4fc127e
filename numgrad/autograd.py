"""backward, grad, Function: the names users know from ``torch.autograd``."""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from .graph import backward as engine
from .graph import mode
from .graph.apply import above, make, overlaps_itself, rebase, wrote
from .graph.errors import GradError, ShapeError, shown
from .graph.mode import (
    detect_anomaly,
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from .graph.node import Node, Saved
from .graph.value import Value
from .tensor import Tensor, Variable

__all__ = [
    "Function",
    "GradError",
    "Variable",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "explain",
    "grad",
    "inference_mode",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "no_grad",
    "once_differentiable",
    "set_grad_enabled",
]

# ------------------------------------------------------------------------------- backward and grad


def _as_list(values: Any) -> list[Any]:
    return list(values) if isinstance(values, (list, tuple)) else [values]


def _roots(tensors: Sequence[Any], gradients: Sequence[Any], create_graph: bool) -> list[Any]:
    if len(tensors) != len(gradients):
        raise ShapeError(
            f"backward: expected {len(tensors)} gradients, one a tensor, got {len(gradients)}; "
            "pass None where the root is a scalar"
        )
    roots = []
    for i, (tensor, gradient) in enumerate(zip(tensors, gradients, strict=True)):
        if not isinstance(tensor, Value):
            raise TypeError(
                f"backward: expected a Tensor for tensors[{i}], got {shown(tensor)}; pass one"
            )
        if tensor._volatile:
            raise GradError(
                f"element {i} of variables tuple is volatile: it was computed from a volatile value, so "
                "no graph was kept; make the input without volatile=True to differentiate"
            )
        edge = tensor.gradient_edge()
        if edge is None:
            raise GradError(
                f"element {i} of variables does not require grad and does not have a grad_fn: "
                f"{explain(tensor)}"
            )
        roots.append((edge, _root_gradient(tensor, gradient, create_graph)))
    return roots


def _root_gradient(tensor: Any, gradient: Any, create_graph: bool) -> Any:
    if gradient is None:
        if tensor.numel() != 1:
            raise GradError(
                "grad can be implicitly created only for scalar outputs: the root has shape "
                f"{tensor.shape}; pass gradient= or reduce it first"
            )
        from .ops.creation import ones

        return ones(tensor.shape, dtype=tensor.dtype)
    if not isinstance(gradient, Value):
        raise TypeError(
            f"gradients can be either Tensors, Variables or None, but got {type(gradient).__name__}"
        )
    if gradient.dtype != tensor.dtype:
        raise GradError(
            f"backward: expected a gradient of dtype {tensor.dtype} for the root, got {shown(gradient)}; "
            "convert it"
        )
    if not create_graph:
        gradient = make(gradient.array, gradient.storage, False, gradient.group)
    if gradient.shape != tensor.shape:
        if gradient.numel() == tensor.numel() == 1:
            return above.reshape(gradient, tensor.shape)
        raise ShapeError(
            f"backward: expected a gradient of shape {tensor.shape} for the root, got {gradient.shape}; "
            "Mismatch in shape: expand it"
        )
    return gradient


def _retain(retain_graph: Any, retain_variables: Any, create_graph: bool) -> bool:
    if retain_variables is not None:
        if retain_graph is not None:
            raise ValueError("only one of retain_graph and retain_variables can be specified")
        warnings.warn(
            "retain_variables option is deprecated and will be removed in 0.3. Use retain_graph instead.",
            UserWarning,
            stacklevel=3,
        )
        retain_graph = retain_variables
    return create_graph if retain_graph is None else bool(retain_graph)


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    retain_variables: bool | None = None,
    grad_variables: Any = None,
) -> None:
    """Add the gradients of ``tensors`` to the ``.grad`` of the leaves they were computed from.

    Args:
        grad_tensors: the gradient of each root; None for a root of one element.
        retain_graph: keep saved values for another pass; by default only with ``create_graph``.
        create_graph: record the pass, so that gradients can be differentiated.

    Raises:
        GradError: a root is volatile, needs no gradient, or is no scalar and has no gradient; the
            graph was freed; a saved value was changed in place.
    """
    retain = _retain(retain_graph, retain_variables, create_graph)
    roots = _as_list(tensors)
    given = grad_tensors if grad_tensors is not None else grad_variables
    gradients = [None] * len(roots) if given is None else _as_list(given)
    engine.run(_roots(roots, gradients, create_graph), retain, create_graph)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool = False,
) -> tuple[Any, ...]:
    """The gradients of ``outputs`` with respect to ``inputs``; ``.grad`` is left alone.

    Raises:
        GradError: as :func:`backward`; an input needs no gradient; an input was not used (None
            instead with ``allow_unused``).
    """
    if not only_inputs:
        warnings.warn(
            "only_inputs argument is deprecated and is ignored now (defaults to True)",
            UserWarning,
            stacklevel=2,
        )
    roots, wanted = _as_list(outputs), _as_list(inputs)
    gradients = [None] * len(roots) if grad_outputs is None else _as_list(grad_outputs)
    edges = []
    for i, x in enumerate(wanted):
        edge = x.gradient_edge() if isinstance(x, Value) else None
        if edge is None:
            raise GradError(
                "One of the differentiated Variables does not require grad: "
                f"inputs[{i}] is {shown(x)}; call requires_grad_() on it first"
            )
        edges.append(edge)
    retain = _retain(retain_graph, None, create_graph)
    found = engine.run(_roots(roots, gradients, create_graph), retain, create_graph, edges)
    assert found is not None
    results = []
    for x, gradient in zip(wanted, found, strict=True):
        if gradient is None and not allow_unused:
            raise GradError(
                "One of the differentiated Variables appears to not have been used in the graph. Set "
                "allow_unused=True if this is the desired behavior."
            )
        results.append(_returned(x, gradient))
    return tuple(results)


def _returned(x: Any, gradient: Any) -> Any:
    """A gradient in the class and shape of the value it belongs to."""
    if gradient is None or not x.contagious:
        return gradient
    if gradient.shape != x.shape:
        gradient = above.reshape(gradient, x.shape)
    out = make(gradient.array, gradient.storage, True, gradient.group)
    out._edge, out._requires_grad = gradient.edge, gradient.requires_grad
    return out


# ---------------------------------------------------------------------------------------- Function


class Context:
    """What ``forward`` leaves for ``backward``: saved tensors, flags, and any attribute."""

    def __init__(self) -> None:
        self._to_save: tuple[Any, ...] = ()
        self._dirty: tuple[Any, ...] = ()
        self._constant: tuple[Any, ...] = ()
        self._node: Node | None = None
        self.materialize_grads = True
        self.needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors (or None) for ``backward``: they are checked against in-place changes."""
        for i, tensor in enumerate(tensors):
            if tensor is not None and not isinstance(tensor, Value):
                raise TypeError(
                    f"save_for_backward: expected Tensors or None for tensors[{i}], got {shown(tensor)}; "
                    "keep other things as attributes of ctx"
                )
        self._to_save = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        """Say that ``forward`` changed these inputs in place; return them as outputs."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Say that these outputs need no gradient."""
        self._constant = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether missing incoming gradients reach ``backward`` as zeros (the default) or None."""
        self.materialize_grads = value

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors kept by ``save_for_backward``, on the graph they had."""
        node = self._node
        if node is None:
            return self._to_save
        if node.saved is None:
            node.live_saved()
        from .graph.apply import unpack

        return tuple(None if s is None else unpack(s, node) for s in node.saved.values())  # type: ignore[union-attr]

    saved_variables = saved_tensors


class _FunctionOp:
    """Stands for a user's Function where the graph expects an op."""

    def __init__(self, cls: type, ctx: Context) -> None:
        self.cls, self.ctx = cls, ctx
        self.name = cls.__name__

    def vjp(
        self, node: Node, grads: Sequence[Any], needs: Sequence[bool], create_graph: bool
    ) -> Sequence[Any]:
        ctx = self.ctx
        given = [
            above.zeros(spec) if g is None and ctx.materialize_grads else g
            for g, spec in zip(grads, node.out_specs, strict=True)
        ]
        results = self.cls.backward(ctx, *given)  # type: ignore[attr-defined]
        results = list(results) if isinstance(results, tuple) else [results]
        n = len(ctx.needs_input_grad)
        extra = results[n:]
        if len(results) < n or any(r is not None for r in extra):
            raise GradError(
                f"function {self.name} returned an incorrect number of gradients (expected {n}, got "
                f"{len(results)})"
            )
        by_operand = [results[i] for i in node.attrs["positions"]]
        for i, (r, need) in enumerate(zip(by_operand, needs, strict=True)):
            if need and r is not None and not isinstance(r, Value):
                raise TypeError(
                    f"function {self.name}: expected a Tensor or None for gradient {i}, got {shown(r)}; "
                    "return tensors"
                )
        return by_operand


class Function:
    """An operation with a derivative of one's own.

    Subclass with two static methods and call ``apply``::

        class Cube(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x * x

            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                return 3 * g * x * x

        y = Cube.apply(x)

    ``backward`` returns a gradient (or None) for each argument of ``forward``, and is recorded itself
    under ``create_graph``. With a volatile input nothing is kept.
    """

    @staticmethod
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the results from the arguments, unrecorded."""
        raise NotImplementedError("Function: expected a forward staticmethod, got none; write one")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradients of the arguments, from those of the results."""
        raise NotImplementedError("Function: expected a backward staticmethod, got none; write one")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run ``forward`` and record it if an argument needs a gradient."""
        if not isinstance(cls.__dict__.get("forward", staticmethod(cls.forward)), staticmethod):
            raise TypeError(
                f"{cls.__name__}.apply: expected forward to be a staticmethod(ctx, …), got an instance "
                "method; decorate forward and backward with @staticmethod"
            )
        tensors = [a for a in args if isinstance(a, Value)]
        volatile, record = mode.decide(tensors)
        variable = any(t.contagious for t in tensors)
        ctx = Context()
        ctx.needs_input_grad = tuple(
            isinstance(a, Value) and a.requires_grad and record for a in args
        )
        with no_grad():
            inner = [_shadow(a) if isinstance(a, Value) else a for a in args]
            raw = cls.forward(ctx, *inner)
        outputs = list(raw) if isinstance(raw, tuple) else [raw]
        results = _wrap_outputs(cls, ctx, args, inner, outputs, variable)
        if volatile:
            for r in results:
                if isinstance(r, Value):
                    r._volatile = True
            ctx._to_save = ()
        elif record:
            _record_function(cls, ctx, args, inner, outputs, results, variable)
        else:
            ctx._to_save = ()
        return tuple(results) if isinstance(raw, tuple) else results[0]


def _shadow(x: Any) -> Any:
    """An argument as ``forward`` sees it: the same memory, no history, not contagious for volatile."""
    out = make(x.array, x.storage, x.contagious, x.group)
    return out


def _wrap_outputs(
    cls: type, ctx: Context, args: Any, inner: Any, outputs: Sequence[Any], variable: bool
) -> list[Any]:
    dirty = {id(t) for t in ctx._dirty}
    results: list[Any] = []
    for out in outputs:
        if not isinstance(out, Value):
            raise TypeError(
                f"function {cls.__name__}: expected Tensors from forward, got {shown(out)}; return tensors"
            )
        at = next((i for i, a in enumerate(inner) if a is out), None)
        if at is not None and id(out) in dirty:
            if overlaps_itself(out.array):
                raise GradError(
                    f"function {cls.__name__}: expected no expanded dirty input; clone it"
                )
            if args[at].is_leaf and args[at].requires_grad and mode.state.grad:
                raise GradError(
                    "a leaf Variable that requires grad has been used in an in-place operation. "
                    f"({cls.__name__})"
                )
            results.append(args[at])
            continue
        results.append(make(out.array, out.storage, variable, out.group))
    return results


def _record_function(
    cls: type,
    ctx: Context,
    args: Any,
    inner: Any,
    outputs: Sequence[Any],
    results: Sequence[Any],
    variable: bool,
) -> None:
    positions = [i for i, a in enumerate(args) if isinstance(a, Value)]
    edges = tuple(args[i].gradient_edge() for i in positions)
    in_specs = [(args[i].shape, args[i].dtype) for i in positions]
    out_specs = [(r.shape, r.dtype) for r in results]
    node = Node(
        _FunctionOp(cls, ctx), edges, {"positions": positions}, in_specs, out_specs, variable
    )
    for i, tensor in enumerate(ctx._to_save):
        if tensor is None:
            node.saved[i] = None  # type: ignore[index]
            continue
        at_input = next((j for j, a in enumerate(inner) if a is tensor), None)
        at_output = next((j for j, o in enumerate(outputs) if o is tensor), -1)
        edge = args[at_input].gradient_edge() if at_input is not None and at_output < 0 else None
        node.save(
            Saved(i, tensor.array, tensor.storage, tensor.group, edge, None, at_output)  # type: ignore[arg-type]
        )
    ctx._node = node
    ctx._to_save = ()
    constant = {id(t) for t in ctx._constant}
    dirty = {id(t) for t in ctx._dirty}
    for index, (out, result) in enumerate(zip(outputs, results, strict=True)):
        if id(out) in constant or result.dtype.kind != "f":
            continue
        if id(out) in dirty:
            wrote(result, cls.__name__)
            rebase(result, (node, index))
        else:
            result._edge, result._requires_grad = (node, index), True


def once_differentiable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a ``backward`` that is not recorded: differentiating it raises."""

    @functools.wraps(function)
    def wrapped(ctx: Any, *grads: Any) -> Any:
        with no_grad():
            results = function(ctx, *grads)
        if not mode.state.grad or not any(isinstance(g, Value) and g.requires_grad for g in grads):
            return results
        several = isinstance(results, tuple)
        marked = [
            _Once.apply(r, *grads) if isinstance(r, Value) else r
            for r in (results if several else (results,))
        ]
        return tuple(marked) if several else marked[0]

    return wrapped


class _Once(Function):
    """The identity, with a backward that says that there is none."""

    @staticmethod
    def forward(ctx: Any, x: Any, *grads: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise GradError(
            "trying to differentiate twice a function that was marked with @once_differentiable"
        )


# ----------------------------------------------------------------------------------------- explain


def explain(x: Any) -> str:
    """Why ``x`` does or does not require a gradient, one line a reason."""
    if not isinstance(x, Tensor):
        raise TypeError(f"explain: expected a Tensor for x, got {shown(x)}; pass a tensor")
    lines = []
    if x._volatile:
        lines.append(
            "volatile: it was made volatile, or computed from a volatile value; nothing is recorded"
        )
    elif x.requires_grad and x.grad_fn is not None:
        lines.append(f"requires grad: made by {x.grad_fn.name} from inputs that require grad")
        for i, edge in enumerate(x.grad_fn.edges):
            what = "needs none" if edge is None else f"flows to {edge[0]!r}"
            lines.append(f"  input {i}: gradient {what}")
    elif x.requires_grad:
        lines.append("requires grad: a leaf with requires_grad=True")
    else:
        if x.dtype.kind != "f":
            lines.append(f"needs no grad: dtype {x.dtype} has no gradients")
        if x._inference:
            lines.append("needs no grad: made inside inference_mode")
        origin = x.__dict__.get("_origin")
        lines.append(
            f"needs no grad: {origin}"
            if origin
            else "needs no grad: a leaf with requires_grad=False; it was created so, detached, computed "
            "under no_grad, or computed from inputs none of which requires grad"
        )
    return "\n".join(lines)
