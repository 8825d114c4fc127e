"""Layers that change the shape only."""

import math
from collections.abc import Iterable

from ..graph.errors import ShapeError, expected, shown
from ..ops.movement import axis_of
from ..tensor import Tensor
from .module import Module


class Flatten(Module):
    """Join the axes ``start_dim`` to ``end_dim`` into one.

    (n, c, h, w) becomes (n, c · h · w). A view where the layout allows it.

    Raises:
        IndexError: there is no such axis.
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        """The input with fewer axes."""
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Split the axis ``dim`` into axes of ``unflattened_size``; one of these may be -1.

    (n, 12) becomes (n, 3, 4) by ``Unflatten(1, (3, 4))``. A view.

    Raises:
        IndexError: there is no such axis.
        ShapeError: the sizes do not multiply to the length of the axis.
    """

    def __init__(self, dim: int, unflattened_size: Iterable[int]) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input: Tensor) -> Tensor:
        """The input with more axes."""
        axis = axis_of("Unflatten", self.dim, input.dim())
        shape, sizes = input.shape, list(self.unflattened_size)
        known = math.prod(n for n in sizes if n != -1)
        if sizes.count(-1) == 1 and known and shape[axis] % known == 0:
            sizes[sizes.index(-1)] = shape[axis] // known
        if math.prod(sizes) != shape[axis] or -1 in sizes:
            raise ShapeError(
                expected(
                    "Unflatten",
                    f"an axis {self.dim} of {self.unflattened_size}",
                    "input",
                    shown(input),
                    "the sizes must multiply to its length",
                )
            )
        return input.reshape(*shape[:axis], *sizes, *shape[axis + 1 :])

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
