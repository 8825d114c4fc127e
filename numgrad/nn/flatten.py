"""Layers that change the shape only."""

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
