"""backward, grad, Function: the names users know from ``torch.autograd``."""

from collections.abc import Sequence
from typing import Any

from .function import Function, once_differentiable
from .graph import backward as engine
from .graph.above import above
from .graph.errors import GradError, ShapeError, shown, warn_user
from .graph.mode import (
    detect_anomaly,
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from .graph.value import Value, alias, with_class
from .ops.creation import ones
from .tensor import Tensor
from .variable import Variable

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
        if tensor.volatile:
            raise GradError(
                f"element {i} of variables tuple is volatile: it was computed from a volatile "
                "value, so no graph was kept; make the input without volatile=True to differentiate"
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
        return ones(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    if not isinstance(gradient, Value):
        raise TypeError(
            f"gradients can be either Tensors, Variables or None, but got {type(gradient).__name__}"
        )
    if gradient.dtype != tensor.dtype:
        raise GradError(
            f"backward: expected a gradient of dtype {tensor.dtype} for the root, got "
            f"{shown(gradient)}; convert it"
        )
    if gradient.device is not tensor.device:
        raise GradError(
            f"backward: expected a gradient on {tensor.device} for the root, got one on "
            f"{gradient.device}; move it"
        )
    if create_graph and not gradient.volatile:
        gradient = with_class(gradient, False)
    else:
        gradient = alias(gradient, False, gradient.group)
    if gradient.shape != tensor.shape:
        if gradient.numel() == tensor.numel() == 1:
            return above.reshape(gradient, tensor.shape)
        raise ShapeError(
            f"backward: expected a gradient of shape {tensor.shape} for the root, got "
            f"{gradient.shape}; Mismatch in shape: expand it"
        )
    return gradient


def _retain(retain_graph: Any, retain_variables: Any, create_graph: bool) -> bool:
    if retain_variables is not None:
        if retain_graph is not None:
            raise ValueError("only one of retain_graph and retain_variables can be specified")
        warn_user(
            "retain_variables option is deprecated and will be removed in 0.3. Use retain_graph "
            "instead.",
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
        ValueError: both ``grad_tensors`` and ``grad_variables``, its old name, are given.
    """
    if grad_tensors is not None and grad_variables is not None:
        raise ValueError(
            "backward: expected one of grad_tensors and grad_variables, its old name, got both; "
            "pass grad_tensors"
        )
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
        warn_user(
            "only_inputs argument is deprecated and is ignored now (defaults to True)",
        )
    roots, wanted = _as_list(outputs), _as_list(inputs)
    gradients = [None] * len(roots) if grad_outputs is None else _as_list(grad_outputs)
    edges = []
    for i, x in enumerate(wanted):
        edge = x.gradient_edge() if isinstance(x, Value) else None
        if edge is None:
            raise GradError(
                f"One of the differentiated Variables does not require grad: inputs[{i}] is "
                f"{shown(x)}; call requires_grad_() on it first"
            )
        edges.append(edge)
    retain = _retain(retain_graph, None, create_graph)
    found = engine.run(_roots(roots, gradients, create_graph), retain, create_graph, edges)
    assert found is not None
    results = []
    for x, gradient in zip(wanted, found, strict=True):
        if gradient is None and not allow_unused:
            raise GradError(
                "One of the differentiated Variables appears to not have been used in the graph. "
                "Set allow_unused=True if this is the desired behavior."
            )
        results.append(None if gradient is None else with_class(gradient, x.contagious))
    return tuple(results)


# ----------------------------------------------------------------------------------------- explain


def explain(x: Any) -> str:
    """Why ``x`` does or does not require a gradient, one line a reason."""
    if not isinstance(x, Tensor):
        raise TypeError(f"explain: expected a Tensor for x, got {shown(x)}; pass a tensor")
    if x.volatile:
        lines = [f"volatile: {x._origin or 'a leaf made so; nothing computed from it is recorded'}"]
        if x.requires_grad:
            lines.append("volatile: requires_grad is True as well, but volatile wins")
        return "\n".join(lines)
    if x.requires_grad:
        node = x.grad_fn
        if node is None:
            return "requires grad: a leaf with requires_grad=True"
        lines = [f"requires grad: made by {node.op.name} from inputs that require grad"]
        for i, edge in enumerate(node.edges):
            where = "needs no gradient" if edge is None else f"gradient flows to {edge[0]!r}"
            lines.append(f"  input {i}: {where}")
        return "\n".join(lines)
    lines = []
    if x.dtype.kind != "f":
        lines.append(f"needs no grad: dtype {x.dtype} has no gradients")
    if x._inference:
        lines.append("needs no grad: made inside inference_mode")
    elif x._origin is not None:
        lines.append(f"needs no grad: {x._origin}")
    elif not lines:
        lines.append("needs no grad: a leaf with requires_grad=False")
    return "\n".join(lines)
