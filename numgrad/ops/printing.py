"""How tensors print."""

from typing import Any

import numpy as np

from ..graph import dtypes

TYPE_NAMES: dict[Any, str] = {
    dtypes.float32: "FloatTensor",
    dtypes.float64: "DoubleTensor",
    dtypes.int32: "IntTensor",
    dtypes.int64: "LongTensor",
    dtypes.uint8: "ByteTensor",
    dtypes.bool_: "BoolTensor",
}
"""What ``x.type()`` says, after ``numgrad.``."""


def show(x: Any) -> str:
    """``tensor([1., 2.], requires_grad=True)``: elements, and what is not the default."""
    name = "Variable" if x.contagious else "tensor"
    prefix = f"{name}("
    body = np.array2string(
        x.array,
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
    if x.dtype not in (dtypes.get_default_dtype(), dtypes.int64, dtypes.bool_):
        notes.append(f"dtype={x.dtype}")
    if x.grad_fn is not None:
        notes.append(f"grad_fn={x.grad_fn!r}")
    elif x.requires_grad:
        notes.append("requires_grad=True")
    if x.volatile:
        notes.append("volatile=True")
    return prefix + ", ".join([body, *notes]) + ")"
