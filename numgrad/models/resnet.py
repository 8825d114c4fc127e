"""Residual networks for pictures of about 224 × 224: ResNet-18, 34, 50, 101 and 152.

Modules, their names and the names in the state dict are those of torchvision, so its files fit.

Notes: K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", CVPR 2016,
arXiv:1512.03385. In `Bottleneck` the 3 × 3 convolution has the stride, not the first 1 × 1: "ResNet
v1.5", which is what torchvision has.
"""

import functools
from collections.abc import Sequence
from typing import Any, ClassVar

from ..nn import (
    AdaptiveAvgPool2d,
    BatchNorm2d,
    Conv2d,
    Linear,
    MaxPool2d,
    Module,
    ReLU,
    Sequential,
    init,
)
from ..tensor import Tensor
from .weights import Weights, pretrained_network


def conv3x3(in_planes: int, planes: int, stride: int = 1) -> Conv2d:
    """A 3 × 3 convolution that keeps the size at stride 1."""
    return Conv2d(in_planes, planes, kernel_size=3, stride=stride, padding=1, bias=False)


def conv1x1(in_planes: int, planes: int, stride: int = 1) -> Conv2d:
    """A 1 × 1 convolution."""
    return Conv2d(in_planes, planes, kernel_size=1, stride=stride, bias=False)


class BasicBlock(Module):
    """Two 3 × 3 convolutions beside a shortcut: ``relu(bn2(conv2(relu(bn1(conv1(x))))) + x)``.

    Args:
        inplanes, planes: channels that come in and go out.
        stride: of the first convolution.
        downsample: what the shortcut goes through where its shape changes; None for nothing.
    """

    expansion: ClassVar[int] = 1

    def __init__(
        self, inplanes: int, planes: int, stride: int = 1, downsample: Module | None = None
    ) -> None:
        super().__init__()
        self.conv1 = conv3x3(inplanes, planes, stride)
        self.bn1 = BatchNorm2d(planes)
        self.relu = ReLU(inplace=True)
        self.conv2 = conv3x3(planes, planes)
        self.bn2 = BatchNorm2d(planes)
        self.downsample = downsample
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """(n, inplanes, h, w) to (n, planes, h / stride, w / stride)."""
        identity = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        result: Tensor = self.relu(out)
        return result


class Bottleneck(Module):
    """1 × 1 to fewer channels, 3 × 3, 1 × 1 to ``4 · planes`` channels, beside a shortcut.

    Arguments are those of `BasicBlock`; ``4 · planes`` channels go out.
    """

    expansion: ClassVar[int] = 4

    def __init__(
        self, inplanes: int, planes: int, stride: int = 1, downsample: Module | None = None
    ) -> None:
        super().__init__()
        self.conv1 = conv1x1(inplanes, planes)
        self.bn1 = BatchNorm2d(planes)
        self.conv2 = conv3x3(planes, planes, stride)
        self.bn2 = BatchNorm2d(planes)
        self.conv3 = conv1x1(planes, planes * self.expansion)
        self.bn3 = BatchNorm2d(planes * self.expansion)
        self.relu = ReLU(inplace=True)
        self.downsample = downsample
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """(n, inplanes, h, w) to (n, 4 · planes, h / stride, w / stride)."""
        identity = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        out = self.relu(out)
        out = self.conv3(out)
        out = self.bn3(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        result: Tensor = self.relu(out)
        return result


class ResNet(Module):
    """A residual network: a stem, four stages of blocks, global average, one linear layer.

    Args:
        block: `BasicBlock` or `Bottleneck`.
        layers: how many blocks each of the four stages has.
        num_classes: how many logits.
        zero_init_residual: begin with the last batch-norm of each block at weight 0, so that each
            block is the identity at first.

    Weights of convolutions are drawn from a normal law of variance ``2 / fan_out`` (He's, for
    ReLU); batch-norm starts with weight 1 and bias 0.
    """

    HEAD: ClassVar[str] = "fc"

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        layers: Sequence[int],
        num_classes: int = 1000,
        zero_init_residual: bool = False,
    ) -> None:
        super().__init__()
        self.inplanes = 64
        self.conv1 = Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = BatchNorm2d(64)
        self.relu = ReLU(inplace=True)
        self.maxpool = MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._make_layer(block, 64, layers[0])
        self.layer2 = self._make_layer(block, 128, layers[1], stride=2)
        self.layer3 = self._make_layer(block, 256, layers[2], stride=2)
        self.layer4 = self._make_layer(block, 512, layers[3], stride=2)
        self.avgpool = AdaptiveAvgPool2d((1, 1))
        self.fc = Linear(512 * block.expansion, num_classes)
        initialise(self)
        if zero_init_residual:
            for module in self.modules():
                if isinstance(module, (BasicBlock, Bottleneck)):
                    last: Any = module.bn3 if isinstance(module, Bottleneck) else module.bn2
                    init.zeros_(last.weight)

    def _make_layer(
        self, block: type[BasicBlock | Bottleneck], planes: int, blocks: int, stride: int = 1
    ) -> Sequential:
        out_planes = planes * block.expansion
        downsample = None
        if stride != 1 or self.inplanes != out_planes:
            downsample = Sequential(
                conv1x1(self.inplanes, out_planes, stride), BatchNorm2d(out_planes)
            )
        made: list[Module] = [block(self.inplanes, planes, stride, downsample)]
        self.inplanes = out_planes
        made += [block(out_planes, planes) for _ in range(1, blocks)]
        return Sequential(*made)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, h, w) to logits (n, num_classes)."""
        x = self.conv1(x)
        x = self.bn1(x)
        x = self.relu(x)
        x = self.maxpool(x)
        x = self.layer1(x)
        x = self.layer2(x)
        x = self.layer3(x)
        x = self.layer4(x)
        x = self.avgpool(x)
        x = x.flatten(1)
        out: Tensor = self.fc(x)
        return out


def initialise(network: Module) -> None:
    """He's first values for convolutions; batch-norm starts with 1 and 0 by itself."""
    for module in network.modules():
        if isinstance(module, Conv2d):
            init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _resnet(
    name: str,
    block: type[BasicBlock | Bottleneck],
    layers: Sequence[int],
    options: dict[str, Any],
    pretrained: bool,
    progress: bool,
    weights: Weights,
) -> ResNet:
    make = functools.partial(ResNet, block, layers)
    return pretrained_network(name, make, options, pretrained, progress, weights)


def resnet18(
    pretrained: bool = False, progress: bool = True, *, weights: Weights = None, **options: Any
) -> ResNet:
    """ResNet-18, 11,689,512 parameters.

    Args:
        pretrained: load the weights that torchvision calls IMAGENET1K_V1, from numgrad's folder
            (``$NUMGRAD_WEIGHTS``, else ``numgrad/weights`` in the user's cache folder), from the
            cache folders of PyTorch (``$TORCH_HOME`` and its defaults, ``~/.torch/models``), or
            from the network (``$NUMGRAD_WEIGHTS_URL``, else PyTorch's server) into numgrad's
            folder. The SHA-256 must begin as the file's name ends.
        progress: whether to tell on stderr how far a download is.
        weights: the path of a file to load, in any format that `numgrad.load` reads: a state dict,
            or what a training script saved around it. Or one of torchvision's names: "DEFAULT",
            "IMAGENET1K_V1", and "IMAGENET1K_V2" of ResNet-50, 101, 152 and MobileNetV2, whose
            pictures torchvision resizes to 232. ``pretrained`` is ignored then.
        options: those of `ResNet`.

    Raises:
        DownloadError: the file is not here and could not be downloaded; the text says which file
            to put where. FileNotFoundError: no file at the path.
        CheckpointError: the file is damaged, no checkpoint, or of another network.
        RangeError: published weights for another ``num_classes`` than 1000. Load them, then call
            `replace_head`.
    """
    return _resnet("resnet18", BasicBlock, [2, 2, 2, 2], options, pretrained, progress, weights)


def resnet34(
    pretrained: bool = False, progress: bool = True, *, weights: Weights = None, **options: Any
) -> ResNet:
    """ResNet-34, 21,797,672 parameters. Arguments and errors are those of `resnet18`."""
    return _resnet("resnet34", BasicBlock, [3, 4, 6, 3], options, pretrained, progress, weights)


def resnet50(
    pretrained: bool = False, progress: bool = True, *, weights: Weights = None, **options: Any
) -> ResNet:
    """ResNet-50, 25,557,032 parameters. Arguments and errors are those of `resnet18`."""
    return _resnet("resnet50", Bottleneck, [3, 4, 6, 3], options, pretrained, progress, weights)


def resnet101(
    pretrained: bool = False, progress: bool = True, *, weights: Weights = None, **options: Any
) -> ResNet:
    """ResNet-101, 44,549,160 parameters. Arguments and errors are those of `resnet18`."""
    return _resnet("resnet101", Bottleneck, [3, 4, 23, 3], options, pretrained, progress, weights)


def resnet152(
    pretrained: bool = False, progress: bool = True, *, weights: Weights = None, **options: Any
) -> ResNet:
    """ResNet-152, 60,192,808 parameters. Arguments and errors are those of `resnet18`."""
    return _resnet("resnet152", Bottleneck, [3, 8, 36, 3], options, pretrained, progress, weights)
