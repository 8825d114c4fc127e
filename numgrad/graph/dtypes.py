"""The dtypes numgrad has, and how they promote (PyTorch's rules)."""

from collections.abc import Iterable
from typing import Any

import numpy as np

float32, float64 = np.dtype("float32"), np.dtype("float64")
int32, int64, uint8 = np.dtype("int32"), np.dtype("int64"), np.dtype("uint8")
bool_ = np.dtype("bool")

ALL = (float32, float64, int32, int64, uint8, bool_)
FLOATING = (float32, float64)
BY_NAME = {
    **{dtype.name: dtype for dtype in ALL},
    "float": float32,
    "double": float64,
    "int": int32,
    "long": int64,
    "byte": uint8,
}
_RANK = {"b": 0, "u": 1, "i": 1, "f": 2}

_default = float32


def get_default_dtype() -> np.dtype[Any]:
    """The dtype of Python floats and of integer operands of floating functions."""
    return _default


def set_default_dtype(dtype: Any) -> None:
    """Make ``dtype`` (float32 or float64) the dtype of Python floats."""
    global _default
    found = as_dtype(dtype, "set_default_dtype")
    if found not in FLOATING:
        raise TypeError(
            f"set_default_dtype: expected float32 or float64 for dtype, got {found}; use one of "
            "them"
        )
    _default = found


def as_dtype(spec: Any, op: str = "dtype") -> np.dtype[Any]:
    """The numgrad dtype that ``spec`` (a dtype, a NumPy type, a name, bool/int/float) means."""
    if spec is float:
        return _default
    if spec is int:
        return int64
    if isinstance(spec, str) and spec.rpartition(".")[2] in BY_NAME:
        return BY_NAME[spec.rpartition(".")[2]]
    try:
        found = np.dtype(spec)
    except TypeError:
        found = None
    if spec is None or found is None or found not in ALL:
        names = ", ".join(dtype.name for dtype in ALL)
        raise TypeError(f"{op}: expected one of {names} for dtype, got {spec!r}; convert it first")
    return found


def of_scalar(value: Any) -> np.dtype[Any]:
    """The dtype a Python number promotes as."""
    if isinstance(value, (bool, np.bool_)):
        return bool_
    return int64 if isinstance(value, (int, np.integer)) else _default


def promote_types(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that two tensors with axes promote to."""
    if a == b:
        return a
    rank_a, rank_b = _RANK[a.kind], _RANK[b.kind]
    if rank_a != rank_b:
        return a if rank_a > rank_b else b
    return a if a.itemsize > b.itemsize else b


def result_type(operands: Iterable[tuple[np.dtype[Any], int]]) -> np.dtype[Any]:
    """The dtype of an operation on ``(dtype, class)`` operands.

    Class 0 is a tensor with axes, 1 a 0-dim tensor, 2 a Python number: an operand of a higher class
    only counts if its kind (bool < integer < floating) is above that of the others.
    """
    best: list[np.dtype[Any] | None] = [None, None, None]
    for dtype, priority in operands:
        current = best[priority]
        best[priority] = dtype if current is None else promote_types(current, dtype)
    result: np.dtype[Any] | None = None
    for candidate in best:
        if candidate is not None and (result is None or _RANK[candidate.kind] > _RANK[result.kind]):
            result = candidate
    assert result is not None
    return result


def rank(dtype: np.dtype[Any]) -> int:
    """0 for bool, 1 for integers, 2 for floating dtypes."""
    return _RANK[dtype.kind]
