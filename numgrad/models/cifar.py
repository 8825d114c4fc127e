"""Residual networks for pictures of 32 × 32: ResNet-20, 32, 44 and 56.

Notes: K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", CVPR 2016,
§4.2, arXiv:1512.03385.
"""

from typing import Any, ClassVar

from ..graph.errors import RangeError, expected
from ..nn import AdaptiveAvgPool2d, BatchNorm2d, Conv2d, Linear, Module, ReLU, Sequential
from ..nn import functional as F
from ..tensor import Tensor
from .resnet import BasicBlock, conv1x1, initialise

OPTIONS = ("A", "B")


class PadShortcut(Module):
    """The shortcut of option A, without parameters: every other pixel, and channels of zeros.

    Args:
        stride: step along height and width.
        before, after: how many channels of zeros come before and after those of the input.
    """

    def __init__(self, stride: int, before: int, after: int) -> None:
        super().__init__()
        self.stride, self.before, self.after = stride, before, after

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) to (n, before + c + after, h / stride, w / stride)."""
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, self.before, self.after))

    def extra_repr(self) -> str:
        return f"stride={self.stride}, before={self.before}, after={self.after}"


class CifarResNet(Module):
    """A residual network of ``6 n + 2`` layers: a 3 × 3 convolution to 16 channels, three stages of
    n blocks with 16, 32 and 64 channels, global average, one linear layer.

    Args:
        depth: number of weighted layers, ``6 n + 2``.
        num_classes: how many logits.
        option: what shortcuts do where the shape changes. "A", which the paper used for CIFAR:
            every other pixel, and zeros for the new channels, half of them before and half after.
            "B": a 1 × 1 convolution and batch-norm.

    Raises:
        RangeError: depth is not ``6 n + 2`` or option is neither.
    """

    HEAD: ClassVar[str] = "fc"

    def __init__(self, depth: int = 20, num_classes: int = 10, option: str = "A") -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise RangeError(
                expected("CifarResNet", "6 n + 2, n ≥ 1,", "depth", depth, "take 20, 32, 44 or 56")
            )
        if option not in OPTIONS:
            raise RangeError(
                expected("CifarResNet", "'A' or 'B'", "option", option, "A has no parameters")
            )
        n = (depth - 2) // 6
        self.conv1 = Conv2d(3, 16, kernel_size=3, padding=1, bias=False)
        self.bn1 = BatchNorm2d(16)
        self.relu = ReLU(inplace=True)
        self.layer1 = _stage(16, 16, n, 1, option)
        self.layer2 = _stage(16, 32, n, 2, option)
        self.layer3 = _stage(32, 64, n, 2, option)
        self.avgpool = AdaptiveAvgPool2d((1, 1))
        self.fc = Linear(64, num_classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, 32, 32) to logits (n, num_classes)."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        x = self.avgpool(x)
        x = x.flatten(1)
        out: Tensor = self.fc(x)
        return out


def _stage(in_planes: int, planes: int, blocks: int, stride: int, option: str) -> Sequential:
    shortcut: Module | None = None
    if stride != 1 or in_planes != planes:
        if option == "A":
            new = planes - in_planes
            shortcut = PadShortcut(stride, new // 2, new - new // 2)
        else:
            shortcut = Sequential(conv1x1(in_planes, planes, stride), BatchNorm2d(planes))
    made = [BasicBlock(in_planes, planes, stride, shortcut)]
    made += [BasicBlock(planes, planes) for _ in range(1, blocks)]
    return Sequential(*made)


def cifar_resnet20(**options: Any) -> CifarResNet:
    """ResNet-20, 269,722 parameters with option A. Options are those of `CifarResNet`."""
    return CifarResNet(20, **options)


def cifar_resnet32(**options: Any) -> CifarResNet:
    """ResNet-32, 464,154 parameters with option A. Options are those of `CifarResNet`."""
    return CifarResNet(32, **options)


def cifar_resnet44(**options: Any) -> CifarResNet:
    """ResNet-44, 658,586 parameters with option A. Options are those of `CifarResNet`."""
    return CifarResNet(44, **options)


def cifar_resnet56(**options: Any) -> CifarResNet:
    """ResNet-56, 853,018 parameters with option A. Options are those of `CifarResNet`."""
    return CifarResNet(56, **options)
