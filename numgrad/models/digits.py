"""A small network for the handwritten digits of ``numgrad.data``."""

from collections.abc import Sequence

from ..nn import Dropout, Linear, Module, ReLU, Sequential
from ..tensor import Tensor


class DigitsMLP(Module):
    """Multi-layer perceptron: 64 pixels, hidden layers with ReLU, 10 classes.

    Args:
        hidden: lengths of the hidden layers.
        dropout: probability with which an element of a hidden layer is dropped in training mode;
            with 0 there is no `Dropout` at all.

    Attributes:
        layers: `Sequential` of all layers; its last one gives the logits.
    """

    def __init__(self, hidden: Sequence[int] = (128, 128, 128), dropout: float = 0.0) -> None:
        super().__init__()
        layers: list[Module] = []
        n = 64
        for width in hidden:
            layers += [Linear(n, width), ReLU()]
            if dropout:
                layers.append(Dropout(dropout))
            n = width
        self.layers = Sequential(*layers, Linear(n, 10))

    def forward(self, input: Tensor) -> Tensor:
        """(n, 64), pixels from 0 to 1, to logits (n, 10)."""
        out: Tensor = self.layers(input)
        return out
