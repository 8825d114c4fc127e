"""SqueezeNet 1.0 and 1.1, for pictures of about 224 × 224.

Modules, their names and the names in the state dict are those of torchvision, so its files fit.

Notes: F. Iandola, S. Han, M. Moskewicz, K. Ashraf, W. Dally, K. Keutzer, "SqueezeNet: AlexNet-level
accuracy with 50x fewer parameters and <0.5MB model size", 2016, arXiv:1602.07360; 1.1 is the
authors' later release, https://github.com/forresti/SqueezeNet.
"""

import functools
from typing import Any, ClassVar

from ..graph.errors import RangeError, expected
from ..nn import (
    AdaptiveAvgPool2d,
    Conv2d,
    Dropout,
    MaxPool2d,
    Module,
    ReLU,
    Sequential,
    init,
)
from ..ops.movement import cat
from ..tensor import Tensor
from .heads import first_head_values
from .weights import Weights, pretrained_network

POOL = 0
LAYERS: dict[str, tuple[int, ...]] = {
    "1_0": (POOL, 64, 64, 128, POOL, 128, 192, 192, 256, POOL, 256),
    "1_1": (POOL, 64, 64, POOL, 128, 128, POOL, 192, 192, 256, 256),
}
"""After the first convolution: pooling, or a fire module that expands twice to so many channels."""


class Fire(Module):
    """1 × 1 to fewer channels, then 1 × 1 and 3 × 3 side by side; ReLU after each.

    Args:
        inplanes: channels that come in.
        squeeze_planes: channels in between.
        expand1x1_planes, expand3x3_planes: channels that go out, joined in this order.
    """

    def __init__(
        self, inplanes: int, squeeze_planes: int, expand1x1_planes: int, expand3x3_planes: int
    ) -> None:
        super().__init__()
        self.inplanes = inplanes
        self.squeeze = Conv2d(inplanes, squeeze_planes, kernel_size=1)
        self.squeeze_activation = ReLU(inplace=True)
        self.expand1x1 = Conv2d(squeeze_planes, expand1x1_planes, kernel_size=1)
        self.expand1x1_activation = ReLU(inplace=True)
        self.expand3x3 = Conv2d(squeeze_planes, expand3x3_planes, kernel_size=3, padding=1)
        self.expand3x3_activation = ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inplanes, h, w) to (n, expand1x1_planes + expand3x3_planes, h, w)."""
        x = self.squeeze_activation(self.squeeze(x))
        return cat(
            [
                self.expand1x1_activation(self.expand1x1(x)),
                self.expand3x3_activation(self.expand3x3(x)),
            ],
            1,
        )


class SqueezeNet(Module):
    """SqueezeNet: a convolution, eight fire modules, a 1 × 1 convolution to classes, their average.

    Args:
        version: "1_0" or "1_1"; the second needs 2.4 times less work.
        num_classes: how many logits; they are averages of ReLUs, and so never negative.
        dropout: probability of dropping an element before the last convolution.

    Weights are drawn from a uniform law of variance ``2 / fan_in`` (He's, for ReLU), those of the
    last convolution from a normal law of deviation 0.01; biases are zeros. Max pooling rounds sizes
    up. Pictures must be at least 21 × 21, for 1.1 17 × 17.

    Raises:
        RangeError: another version.
    """

    HEAD: ClassVar[str] = "classifier.1"
    HEAD_STD: ClassVar[float] = 0.01

    def __init__(self, version: str = "1_0", num_classes: int = 1000, dropout: float = 0.5) -> None:
        super().__init__()
        if version not in LAYERS:
            raise RangeError(
                expected("SqueezeNet", "'1_0' or '1_1'", "version", repr(version), "take '1_1'")
            )
        self.num_classes = num_classes
        planes, size = (96, 7) if version == "1_0" else (64, 3)
        features: list[Module] = [Conv2d(3, planes, kernel_size=size, stride=2), ReLU(inplace=True)]
        for expand in LAYERS[version]:
            if expand == POOL:
                features.append(MaxPool2d(kernel_size=3, stride=2, ceil_mode=True))
            else:
                features.append(Fire(planes, expand // 4, expand, expand))
                planes = 2 * expand
        self.features = Sequential(*features)
        last = Conv2d(planes, num_classes, kernel_size=1)
        self.classifier = Sequential(
            Dropout(dropout), last, ReLU(inplace=True), AdaptiveAvgPool2d((1, 1))
        )
        for module in self.modules():
            if module is last:
                first_head_values(module, self.HEAD_STD)
            elif isinstance(module, Conv2d):
                init.kaiming_uniform_(module.weight)
                bias: Any = module.bias
                init.zeros_(bias)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, h, w) to logits (n, num_classes)."""
        x = self.features(x)
        x = self.classifier(x)
        return x.flatten(1)


def _squeezenet(
    version: str, options: dict[str, Any], pretrained: bool, progress: bool, weights: Weights
) -> SqueezeNet:
    make = functools.partial(SqueezeNet, version)
    name = f"squeezenet{version}"
    return pretrained_network(name, make, options, pretrained, progress, weights)


def squeezenet1_0(
    pretrained: bool = False, progress: bool = True, *, weights: Weights = None, **options: Any
) -> SqueezeNet:
    """SqueezeNet 1.0, 1,248,424 parameters.

    Options are those of `SqueezeNet`, the other arguments and errors those of `resnet18`.
    """
    return _squeezenet("1_0", options, pretrained, progress, weights)


def squeezenet1_1(
    pretrained: bool = False, progress: bool = True, *, weights: Weights = None, **options: Any
) -> SqueezeNet:
    """SqueezeNet 1.1, 1,235,496 parameters. Arguments and errors are those of `squeezenet1_0`."""
    return _squeezenet("1_1", options, pretrained, progress, weights)
