"""How tensors print."""

from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.device import CPU, canonical
from .kernel_calls import to_host

TYPE_NAMES: dict[Any, str] = {
    dtypes.float32: "FloatTensor",
    dtypes.float64: "DoubleTensor",
    dtypes.int32: "IntTensor",
    dtypes.int64: "LongTensor",
    dtypes.uint8: "ByteTensor",
    dtypes.bool_: "BoolTensor",
}
"""What ``x.type()`` says, after ``numgrad.`` or ``numgrad.cuda.``."""


def type_name(x: Any) -> str:
    """``numgrad.FloatTensor``, ``numgrad.cuda.FloatTensor``."""
    return f"numgrad.{'cuda.' if x.device.type == 'cuda' else ''}{TYPE_NAMES[x.dtype]}"


def type_target(kind: Any, here: Any) -> tuple[Any, Any]:
    """The dtype and the device that a tensor on ``here`` has as a ``kind``: one of the typed
    constructors or its name, which say both, or a dtype."""
    own, where = getattr(kind, "dtype", None), getattr(kind, "device", None)
    if isinstance(kind, str) and kind.endswith("Tensor"):
        where = "cuda" if ".cuda." in f".{kind}" else "cpu"
    elif isinstance(own, np.dtype) and isinstance(where, str):
        kind = own
    else:
        return (own if isinstance(own, np.dtype) else kind), None
    if where == "cpu":
        return kind, CPU
    return kind, here if here.type == "cuda" else canonical("cuda")


def show(x: Any) -> str:
    """``tensor([1., 2.], requires_grad=True)``: elements, and what is not the default."""
    name = "Variable" if x.contagious else "tensor"
    prefix = f"{name}("
    body = np.array2string(
        to_host(x.array),
        separator=", ",
        prefix=prefix,
        precision=4,
        threshold=1000,
        edgeitems=3,
        suppress_small=False,
    )
    notes = []
    if x.array.size == 0:
        body = "[]"
        notes.append(f"size={tuple(x.shape)}")
    if x.device.type != "cpu":
        notes.append(f"device='{x.device}'")
    if x.dtype not in (dtypes.get_default_dtype(), dtypes.int64, dtypes.bool_):
        notes.append(f"dtype={x.dtype}")
    if x.grad_fn is not None:
        notes.append(f"grad_fn={x.grad_fn!r}")
    elif x.requires_grad:
        notes.append("requires_grad=True")
    if x.volatile:
        notes.append("volatile=True")
    return prefix + ", ".join([body, *notes]) + ")"
