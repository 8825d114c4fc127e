"""Packing and unpacking: the one place where values become saved values, and come back."""

from typing import Any

from .errors import GradError
from .node import Edge, Node, Saved
from .storage import Storage, adopt
from .value import make


def pack(name: Any, x: Any, edge: Edge | None, op: str, own_output: int = -1) -> Saved:
    """Keep a value for the backward pass of an operation named ``op``.

    Raises:
        GradError: it was made in ``inference_mode``.
    """
    if x._inference:
        raise GradError(
            f"{op}: Inference tensors cannot be saved for backward. To work around you can make a "
            "clone to get a normal tensor and use it in autograd."
        )
    return Saved(name, x.array, x.storage, x.group, edge, own_output)


def unpack(saved: Saved, node: Node, variable: bool = False) -> Any:
    """The Tensor (or Variable) that a saved value was, on the edge it had.

    Raises:
        GradError: it was changed in place since.
    """
    saved.check(node)
    storage: Storage = adopt(saved.array) if saved.storage is None else saved.storage
    value = make(saved.array, storage, variable, saved.group)
    edge = (node, saved.own_output) if saved.own_output >= 0 else saved.edge
    if edge is not None:
        value._edge, value._requires_grad = edge, True
    return value
