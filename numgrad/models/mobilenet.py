"""MobileNetV2 for pictures of about 224 × 224.

Modules, their names and the names in the state dict are those of torchvision, so its files fit.

Notes: M. Sandler, A. Howard, M. Zhu, A. Zhmoginov, L.-C. Chen, "MobileNetV2: Inverted Residuals and
Linear Bottlenecks", CVPR 2018, arXiv:1801.04381.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from ..nn import BatchNorm2d, Conv2d, Dropout, Linear, Module, ReLU6, Sequential, init
from ..nn import functional as F
from ..tensor import Tensor
from .heads import first_head_values
from .weights import Weights, pretrained_network

SETTING = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Table 2 of the paper: expansion, channels, number of blocks, stride of the first of them."""


def _make_divisible(value: float, divisor: int, min_value: int | None = None) -> int:
    """``value`` rounded to a multiple of ``divisor``, but not down by more than a tenth."""
    least = divisor if min_value is None else min_value
    rounded = max(least, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * value else rounded


class ConvBNReLU(Sequential):
    """Convolution without bias, batch-norm, ReLU6; the size stays at stride 1."""

    def __init__(
        self, in_planes: int, planes: int, kernel_size: int = 3, stride: int = 1, groups: int = 1
    ) -> None:
        padding = (kernel_size - 1) // 2
        super().__init__(
            Conv2d(in_planes, planes, kernel_size, stride, padding, groups=groups, bias=False),
            BatchNorm2d(planes),
            ReLU6(inplace=True),
        )


class InvertedResidual(Module):
    """1 × 1 to ``expand_ratio`` times the channels, 3 × 3 a channel, 1 × 1 back without ReLU.

    The input is added where the shape stays.

    Args:
        inp, oup: channels that come in and go out.
        stride: 1 or 2, of the 3 × 3 convolution.
        expand_ratio: with 1 there is no first convolution.
    """

    def __init__(self, inp: int, oup: int, stride: int, expand_ratio: int) -> None:
        super().__init__()
        self.stride = stride
        self.use_res_connect = stride == 1 and inp == oup
        hidden = round(inp * expand_ratio)
        layers: list[Module] = []
        if expand_ratio != 1:
            layers.append(ConvBNReLU(inp, hidden, kernel_size=1))
        layers += [
            ConvBNReLU(hidden, hidden, stride=stride, groups=hidden),
            Conv2d(hidden, oup, 1, 1, 0, bias=False),
            BatchNorm2d(oup),
        ]
        self.conv = Sequential(*layers)
        self.out_channels = oup

    def forward(self, x: Tensor) -> Tensor:
        """(n, inp, h, w) to (n, oup, h / stride, w / stride)."""
        out: Tensor = self.conv(x)
        return x + out if self.use_res_connect else out


class MobileNetV2(Module):
    """MobileNetV2: a stem, 17 inverted residual blocks, a 1 × 1 convolution, global average,
    dropout and one linear layer.

    Args:
        num_classes: how many logits.
        width_mult: factor of all channel counts, which are rounded to a multiple of round_nearest.
        inverted_residual_setting: rows of expansion, channels, blocks, stride; by default those of
            the paper.
        round_nearest: see width_mult; 1 turns rounding off.
        dropout: probability of dropping an element before the linear layer.
    """

    HEAD: ClassVar[str] = "classifier.1"
    HEAD_STD: ClassVar[float] = 0.01

    def __init__(
        self,
        num_classes: int = 1000,
        width_mult: float = 1.0,
        inverted_residual_setting: Sequence[Sequence[int]] | None = None,
        round_nearest: int = 8,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        planes = _make_divisible(32 * width_mult, round_nearest)
        self.last_channel = _make_divisible(1280 * max(1.0, width_mult), round_nearest)
        features: list[Module] = [ConvBNReLU(3, planes, stride=2)]
        for t, c, n, s in inverted_residual_setting or SETTING:
            out_planes = _make_divisible(c * width_mult, round_nearest)
            for i in range(n):
                stride = s if i == 0 else 1
                features.append(InvertedResidual(planes, out_planes, stride, expand_ratio=t))
                planes = out_planes
        features.append(ConvBNReLU(planes, self.last_channel, kernel_size=1))
        self.features = Sequential(*features)
        self.classifier = Sequential(Dropout(dropout), Linear(self.last_channel, num_classes))
        for module in self.modules():
            if isinstance(module, Conv2d):
                init.kaiming_normal_(module.weight, mode="fan_out")
        first_head_values(self.classifier[1], self.HEAD_STD)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, h, w) to logits (n, num_classes)."""
        x = self.features(x)
        x = F.adaptive_avg_pool2d(x, (1, 1))
        x = x.flatten(1)
        out: Tensor = self.classifier(x)
        return out


def mobilenet_v2(
    pretrained: bool = False, progress: bool = True, *, weights: Weights = None, **options: Any
) -> MobileNetV2:
    """MobileNetV2, 3,504,872 parameters.

    Options are those of `MobileNetV2`, the other arguments and errors those of `resnet18`.
    """
    return pretrained_network("mobilenet_v2", MobileNetV2, options, pretrained, progress, weights)
