"""Small networks for the handwritten digits of ``numgrad.data``."""

from collections.abc import Sequence

from ..nn import BatchNorm2d, Conv2d, Dropout, Linear, MaxPool2d, Module, ReLU, Sequential
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


class DigitsConvNet(Module):
    """Convolutional network: 8 × 8 pixels, three 3 × 3 convolutions with batch-norm and ReLU, max
    pooling after the second, 10 classes.

    Args:
        width: channels of the first two convolutions; the third has twice as many.
        dropout: probability with which an element is dropped in front of the last layer in training
            mode; with 0 there is no `Dropout` at all.

    Attributes:
        features: `Sequential` of (n, 1, 8, 8) → (n, 2 · width, 4, 4).
        classifier: `Sequential` whose last layer gives the logits.
    """

    def __init__(self, width: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        self.features = Sequential(
            *_convolution(1, width),
            *_convolution(width, width),
            MaxPool2d(2),
            *_convolution(width, 2 * width),
        )
        dropped = [Dropout(dropout)] if dropout else []
        self.classifier = Sequential(*dropped, Linear(2 * width * 4 * 4, 10))

    def forward(self, input: Tensor) -> Tensor:
        """(n, 64) or (n, 1, 8, 8), pixels from 0 to 1, to logits (n, 10)."""
        x = self.features(input.reshape(len(input), 1, 8, 8))
        out: Tensor = self.classifier(x.flatten(1))
        return out


def _convolution(planes: int, out_planes: int) -> list[Module]:
    """A convolution that keeps the size, batch-norm and ReLU."""
    return [
        Conv2d(planes, out_planes, 3, padding=1, bias=False),
        BatchNorm2d(out_planes),
        ReLU(inplace=True),
    ]
