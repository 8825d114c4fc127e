"""VGG networks of 11, 13, 16 and 19 weighted layers, for pictures of about 224 × 224.

Modules, their names and the names in the state dict are those of torchvision, so its files fit.

Notes: K. Simonyan, A. Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
Recognition", ICLR 2015, arXiv:1409.1556. Batch-norm after each convolution is torchvision's.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from ..nn import (
    AdaptiveAvgPool2d,
    BatchNorm2d,
    Conv2d,
    Dropout,
    Linear,
    MaxPool2d,
    Module,
    ReLU,
    Sequential,
    init,
)
from ..tensor import Tensor
from .heads import first_head_values
from .resnet import initialise
from .weights import Weights, pretrained_network

POOL = "M"
PLANES = (64, 128, 256, 512, 512)


def _column(*counts: int) -> list[int | str]:
    """Stages of so many convolutions, each with a pooling at its end."""
    stages = zip(counts, PLANES, strict=True)
    column: list[int | str] = []
    for count, planes in stages:
        column += [planes] * count
        column.append(POOL)
    return column


cfgs: dict[str, list[int | str]] = {
    "A": _column(1, 1, 2, 2, 2),
    "B": _column(2, 2, 2, 2, 2),
    "D": _column(2, 2, 3, 3, 3),
    "E": _column(2, 2, 4, 4, 4),
}
"""Columns of table 1 of the paper: VGG-11, 13, 16 and 19."""


def make_layers(cfg: Sequence[int | str], batch_norm: bool = False) -> Sequential:
    """The convolutions of a network, 3 × 3 with ReLU, and its 2 × 2 max poolings.

    Args:
        cfg: how many channels go out of each convolution, and "M" where pooling stands.
        batch_norm: whether batch-norm stands between each convolution and its ReLU.
    """
    layers: list[Module] = []
    in_planes = 3
    for item in cfg:
        if isinstance(item, str):
            layers.append(MaxPool2d(kernel_size=2, stride=2))
            continue
        layers.append(Conv2d(in_planes, item, kernel_size=3, padding=1))
        if batch_norm:
            layers.append(BatchNorm2d(item))
        layers.append(ReLU(inplace=True))
        in_planes = item
    return Sequential(*layers)


class VGG(Module):
    """A VGG network: convolutions, averages on a grid of 7 × 7, three linear layers.

    Args:
        features: what `make_layers` gives: (n, 3, h, w) to (n, 512, h / 32, w / 32).
        num_classes: how many logits.
        init_weights: whether to begin with torchvision's first values: of variance ``2 / fan_out``
            for convolutions, of deviation 0.01 for linear layers, zeros for all biases. Else layers
            keep those of their own.
        dropout: probability of dropping an element after each of the first two linear layers.

    Pictures must be at least 32 × 32.
    """

    HEAD: ClassVar[str] = "classifier.6"
    HEAD_STD: ClassVar[float] = 0.01

    def __init__(
        self,
        features: Module,
        num_classes: int = 1000,
        init_weights: bool = True,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.features = features
        self.avgpool = AdaptiveAvgPool2d((7, 7))
        self.classifier = Sequential(
            Linear(512 * 7 * 7, 4096),
            ReLU(inplace=True),
            Dropout(dropout),
            Linear(4096, 4096),
            ReLU(inplace=True),
            Dropout(dropout),
            Linear(4096, num_classes),
        )
        if init_weights:
            initialise(self)
            for module in self.modules():
                if isinstance(module, Conv2d) and module.bias is not None:
                    init.zeros_(module.bias)
                elif isinstance(module, Linear):
                    first_head_values(module, self.HEAD_STD)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, h, w) to logits (n, num_classes)."""
        x = self.features(x)
        x = self.avgpool(x)
        x = x.flatten(1)
        out: Tensor = self.classifier(x)
        return out


def _vgg(
    name: str,
    cfg: str,
    options: dict[str, Any],
    pretrained: bool,
    progress: bool,
    weights: Weights,
) -> VGG:
    def make(**options: Any) -> VGG:
        return VGG(make_layers(cfgs[cfg], name.endswith("_bn")), **options)

    return pretrained_network(name, make, options, pretrained, progress, weights)


def vgg11(
    pretrained: bool = False, progress: bool = True, *, weights: Weights = None, **options: Any
) -> VGG:
    """VGG of 11 layers, 132,863,336 parameters.

    Options are those of `VGG`, the other arguments and errors those of `resnet18`.
    """
    return _vgg("vgg11", "A", options, pretrained, progress, weights)


def vgg11_bn(
    pretrained: bool = False, progress: bool = True, *, weights: Weights = None, **options: Any
) -> VGG:
    """VGG of 11 layers with batch-norm, 132,868,840 parameters.

    Arguments and errors are those of `vgg11`.
    """
    return _vgg("vgg11_bn", "A", options, pretrained, progress, weights)


def vgg13(
    pretrained: bool = False, progress: bool = True, *, weights: Weights = None, **options: Any
) -> VGG:
    """VGG of 13 layers, 133,047,848 parameters. Arguments and errors are those of `vgg11`."""
    return _vgg("vgg13", "B", options, pretrained, progress, weights)


def vgg13_bn(
    pretrained: bool = False, progress: bool = True, *, weights: Weights = None, **options: Any
) -> VGG:
    """VGG of 13 layers with batch-norm, 133,053,736 parameters.

    Arguments and errors are those of `vgg11`.
    """
    return _vgg("vgg13_bn", "B", options, pretrained, progress, weights)


def vgg16(
    pretrained: bool = False, progress: bool = True, *, weights: Weights = None, **options: Any
) -> VGG:
    """VGG of 16 layers, 138,357,544 parameters. Arguments and errors are those of `vgg11`."""
    return _vgg("vgg16", "D", options, pretrained, progress, weights)


def vgg16_bn(
    pretrained: bool = False, progress: bool = True, *, weights: Weights = None, **options: Any
) -> VGG:
    """VGG of 16 layers with batch-norm, 138,365,992 parameters.

    Arguments and errors are those of `vgg11`.
    """
    return _vgg("vgg16_bn", "D", options, pretrained, progress, weights)


def vgg19(
    pretrained: bool = False, progress: bool = True, *, weights: Weights = None, **options: Any
) -> VGG:
    """VGG of 19 layers, 143,667,240 parameters. Arguments and errors are those of `vgg11`."""
    return _vgg("vgg19", "E", options, pretrained, progress, weights)


def vgg19_bn(
    pretrained: bool = False, progress: bool = True, *, weights: Weights = None, **options: Any
) -> VGG:
    """VGG of 19 layers with batch-norm, 143,678,248 parameters.

    Arguments and errors are those of `vgg11`.
    """
    return _vgg("vgg19_bn", "E", options, pretrained, progress, weights)
