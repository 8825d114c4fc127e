"""PyTorch's own networks of `numgrad.models`, written out with torchvision's names.

torchvision is not needed for the comparisons. Nothing here knows numgrad.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

# ---------------------------------------------------------------------------------------- ResNet


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inplanes: int, planes: int, stride: int, downsample: Any) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = downsample

    def forward(self, x: Any) -> Any:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inplanes: int, planes: int, stride: int, downsample: Any) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Any) -> Any:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, block: Any, layers: list[int], num_classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inplanes = 64
        for i, count in enumerate(layers):
            planes, stride = 64 << i, 1 if i == 0 else 2
            blocks = []
            for j in range(count):
                first = j == 0
                downsample = None
                if first and (stride != 1 or inplanes != planes * block.expansion):
                    downsample = nn.Sequential(
                        nn.Conv2d(inplanes, planes * block.expansion, 1, stride, bias=False),
                        nn.BatchNorm2d(planes * block.expansion),
                    )
                blocks.append(block(inplanes, planes, stride if first else 1, downsample))
                inplanes = planes * block.expansion
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inplanes, num_classes)

    def forward(self, x: Any) -> Any:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet18(**options: Any) -> ResNet:
    return ResNet(BasicBlock, [2, 2, 2, 2], **options)


def resnet34(**options: Any) -> ResNet:
    return ResNet(BasicBlock, [3, 4, 6, 3], **options)


def resnet50(**options: Any) -> ResNet:
    return ResNet(Bottleneck, [3, 4, 6, 3], **options)


def resnet101(**options: Any) -> ResNet:
    return ResNet(Bottleneck, [3, 4, 23, 3], **options)


def resnet152(**options: Any) -> ResNet:
    return ResNet(Bottleneck, [3, 8, 36, 3], **options)


# ------------------------------------------------------------------------------------ MobileNetV2


def _conv(cin: int, cout: int, k: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(cin, cout, k, stride, k // 2, groups=groups, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int, expand: int) -> None:
        super().__init__()
        wide = cin * expand
        self.residual = stride == 1 and cin == cout
        self.conv = nn.Sequential(
            *([_conv(cin, wide, 1)] if expand != 1 else []),
            _conv(wide, wide, 3, stride, wide),
            nn.Conv2d(wide, cout, 1, bias=False),
            nn.BatchNorm2d(cout),
        )

    def forward(self, x: Any) -> Any:
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self, num_classes: int = 1000, dropout: float = 0.2) -> None:
        super().__init__()
        blocks = [_conv(3, 32, 3, 2)]
        cin = 32
        for expand, cout, count, stride in (
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ):
            for i in range(count):
                blocks.append(InvertedResidual(cin, cout, stride if i == 0 else 1, expand))
                cin = cout
        self.features = nn.Sequential(*blocks, _conv(cin, 1280, 1))
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(1280, num_classes))

    def forward(self, x: Any) -> Any:
        x = F.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))


def mobilenet_v2(**options: Any) -> MobileNetV2:
    return MobileNetV2(**options)


# ------------------------------------------------------------------------ AlexNet, VGG, SqueezeNet


class AlexNet(nn.Module):
    def __init__(self, num_classes: int = 1000, dropout: float = 0.5) -> None:
        super().__init__()
        relu = nn.ReLU
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 64, 11, 4, 2), relu(inplace=True), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(64, 192, 5, 1, 2), relu(inplace=True), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(192, 384, 3, 1, 1), relu(inplace=True)),
            *(nn.Conv2d(384, 256, 3, 1, 1), relu(inplace=True)),
            *(nn.Conv2d(256, 256, 3, 1, 1), relu(inplace=True), nn.MaxPool2d(3, 2)),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            *(nn.Dropout(dropout), nn.Linear(9216, 4096), relu(inplace=True)),
            *(nn.Dropout(dropout), nn.Linear(4096, 4096), relu(inplace=True)),
            nn.Linear(4096, num_classes),
        )

    def forward(self, x: Any) -> Any:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


def alexnet(**options: Any) -> AlexNet:
    return AlexNet(**options)


class VGG(nn.Module):
    def __init__(
        self, counts: list[int], normed: bool, num_classes: int = 1000, dropout: float = 0.5
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        cin = 3
        for stage, count in enumerate(counts):
            cout = min(64 << stage, 512)
            for _ in range(count):
                layers.append(nn.Conv2d(cin, cout, 3, 1, 1))
                if normed:
                    layers.append(nn.BatchNorm2d(cout))
                layers.append(nn.ReLU(inplace=True))
                cin = cout
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            *(nn.Linear(25088, 4096), nn.ReLU(inplace=True), nn.Dropout(dropout)),
            *(nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(dropout)),
            nn.Linear(4096, num_classes),
        )

    def forward(self, x: Any) -> Any:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


def vgg11_bn(**options: Any) -> VGG:
    return VGG([1, 1, 2, 2, 2], True, **options)


def vgg16(**options: Any) -> VGG:
    return VGG([2, 2, 3, 3, 3], False, **options)


class Fire(nn.Module):
    def __init__(self, cin: int, between: int, cout: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(cin, between, 1)
        self.expand1x1 = nn.Conv2d(between, cout, 1)
        self.expand3x3 = nn.Conv2d(between, cout, 3, 1, 1)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.expand1x1(x)), F.relu(self.expand3x3(x))], 1)


class SqueezeNet(nn.Module):
    def __init__(
        self, first: nn.Conv2d, halves: list[int], num_classes: int = 1000, dropout: float = 0.5
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [first, nn.ReLU(inplace=True)]
        cin = first.out_channels
        for half in halves:  # 0: pooling
            if half:
                layers.append(Fire(cin, half // 4, half))
                cin = 2 * half
            else:
                layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Conv2d(512, num_classes, 1),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
        )

    def forward(self, x: Any) -> Any:
        return torch.flatten(self.classifier(self.features(x)), 1)


def squeezenet1_0(**options: Any) -> SqueezeNet:
    halves = [0, 64, 64, 128, 0, 128, 192, 192, 256, 0, 256]
    return SqueezeNet(nn.Conv2d(3, 96, 7, 2), halves, **options)


def squeezenet1_1(**options: Any) -> SqueezeNet:
    halves = [0, 64, 64, 0, 128, 128, 0, 192, 192, 256, 256]
    return SqueezeNet(nn.Conv2d(3, 64, 3, 2), halves, **options)


# --------------------------------------------------------------------------------- small pictures


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc3(F.relu(self.fc2(x)))


def lenet() -> LeNet:
    return LeNet()


class _Padded(nn.Module):
    def forward(self, x: Any) -> Any:
        half = x.shape[1] // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, half, half))


class CifarResNet(nn.Module):
    def __init__(self, depth: int, option: str = "A") -> None:
        super().__init__()
        n = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        for stage, (cin, cout) in enumerate(((16, 16), (16, 32), (32, 64))):
            stride = 1 if stage == 0 else 2
            shortcut: Any = None
            if stage:
                shortcut = _Padded()
                if option == "B":
                    shortcut = nn.Sequential(
                        nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)
                    )
            blocks = [BasicBlock(cin, cout, stride, shortcut)]
            blocks += [BasicBlock(cout, cout, 1, None) for _ in range(1, n)]
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


def cifar_resnet20(**options: Any) -> CifarResNet:
    return CifarResNet(20, **options)
