"""Parameters as one vector, and back."""

from collections.abc import Iterable

from ...graph.errors import ShapeError, expected, shown
from ...ops.movement import cat
from ...tensor import Tensor


def tensors_of(op: str, parameters: Iterable[Tensor]) -> list[Tensor]:
    """The parameters as a list. Raises TypeError if they are not Tensors."""
    way = "pass module.parameters()"
    if not isinstance(parameters, Iterable):
        raise TypeError(expected(op, "tensors", "parameters", shown(parameters), way))
    found = list(parameters)
    for p in found:
        if not isinstance(p, Tensor):
            raise TypeError(expected(op, "tensors", "parameters", shown(p), way))
    return found


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All parameters, flattened, one after the other: (n1,), (n2, n3), … to (n1 + n2 · n3 + …,).

    Raises:
        TypeError: parameters are no tensors, or none.
    """
    return cat([p.reshape(-1) for p in tensors_of("parameters_to_vector", parameters)])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Give each parameter its part of ``vec`` as its data. They share memory with it.

    Raises:
        TypeError: vec is no tensor, or a parameter is none.
        ShapeError: vec is too short; nothing is changed.
    """
    if not isinstance(vec, Tensor):
        raise TypeError(
            expected("vector_to_parameters", "a Tensor", "vec", shown(vec), "use numgrad.tensor(…)")
        )
    parameters = tensors_of("vector_to_parameters", parameters)
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
