"""Parameters as one vector, and back."""

from collections.abc import Iterable

from ...graph.errors import ShapeError, expected, shown
from ...ops.movement import cat
from ...tensor import Tensor


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All parameters, flattened, one after the other: (n1,), (n2, n3), … to (n1 + n2 · n3 + …,)."""
    return cat([p.reshape(-1) for p in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Give each parameter its part of ``vec`` as its data. They share memory with it.

    Raises:
        TypeError: vec is no tensor.
        ShapeError: vec is too short; nothing is changed.
    """
    if not isinstance(vec, Tensor):
        raise TypeError(
            expected("vector_to_parameters", "a Tensor", "vec", shown(vec), "use numgrad.tensor(…)")
        )
    parameters = list(parameters)
    count = sum(p.numel() for p in parameters)
    if vec.dim() != 1 or vec.numel() < count:
        raise ShapeError(
            expected(
                "vector_to_parameters",
                f"shape ({count},)",
                "vec",
                shown(vec),
                "pass as many values as the parameters have",
            )
        )
    start = 0
    for p in parameters:
        n = p.numel()
        p.data = vec.data[start : start + n].view(*p.shape)
        start += n
