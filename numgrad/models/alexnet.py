"""AlexNet, for pictures of about 224 × 224.

Modules, their names and the names in the state dict are those of torchvision, so its files fit.

Notes: A. Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014,
arXiv:1404.5997: one column, without the local response normalisation of the network of 2012.
"""

from typing import Any, ClassVar

from ..nn import (
    AdaptiveAvgPool2d,
    Conv2d,
    Dropout,
    Linear,
    MaxPool2d,
    Module,
    ReLU,
    Sequential,
)
from ..tensor import Tensor
from .weights import Weights, pretrained_network


class AlexNet(Module):
    """AlexNet: five convolutions, three of them pooled, and three linear layers.

    Args:
        num_classes: how many logits.
        dropout: probability of dropping an element before each of the first two linear layers.

    Layers keep the first values of their own. Pictures must be at least 63 × 63.
    """

    HEAD: ClassVar[str] = "classifier.6"

    def __init__(self, num_classes: int = 1000, dropout: float = 0.5) -> None:
        super().__init__()
        self.features = Sequential(
            Conv2d(3, 64, kernel_size=11, stride=4, padding=2),
            ReLU(inplace=True),
            MaxPool2d(kernel_size=3, stride=2),
            Conv2d(64, 192, kernel_size=5, padding=2),
            ReLU(inplace=True),
            MaxPool2d(kernel_size=3, stride=2),
            Conv2d(192, 384, kernel_size=3, padding=1),
            ReLU(inplace=True),
            Conv2d(384, 256, kernel_size=3, padding=1),
            ReLU(inplace=True),
            Conv2d(256, 256, kernel_size=3, padding=1),
            ReLU(inplace=True),
            MaxPool2d(kernel_size=3, stride=2),
        )
        self.avgpool = AdaptiveAvgPool2d((6, 6))
        self.classifier = Sequential(
            Dropout(dropout),
            Linear(256 * 6 * 6, 4096),
            ReLU(inplace=True),
            Dropout(dropout),
            Linear(4096, 4096),
            ReLU(inplace=True),
            Linear(4096, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, h, w) to logits (n, num_classes)."""
        x = self.features(x)
        x = self.avgpool(x)
        x = x.flatten(1)
        out: Tensor = self.classifier(x)
        return out


def alexnet(
    pretrained: bool = False, progress: bool = True, *, weights: Weights = None, **options: Any
) -> AlexNet:
    """AlexNet, 61,100,840 parameters.

    Options are those of `AlexNet`, the other arguments and errors those of `resnet18`.
    """
    return pretrained_network("alexnet", AlexNet, options, pretrained, progress, weights)
