"""Networks that come with the package, without weights.

Those with torchvision's names have its state dicts, too, so its files fit:
``model.load_state_dict(numgrad.load(path))``. ``import numgrad`` does not load this package: write
``from numgrad import models``.
"""

from .cifar import (
    CifarResNet,
    cifar_resnet20,
    cifar_resnet32,
    cifar_resnet44,
    cifar_resnet56,
)
from .digits import DigitsConvNet, DigitsMLP
from .lenet import LeNet, lenet
from .mobilenet import MobileNetV2, mobilenet_v2
from .resnet import ResNet, resnet18, resnet34, resnet50

__all__ = [
    "CifarResNet",
    "DigitsConvNet",
    "DigitsMLP",
    "LeNet",
    "MobileNetV2",
    "ResNet",
    "cifar_resnet20",
    "cifar_resnet32",
    "cifar_resnet44",
    "cifar_resnet56",
    "lenet",
    "mobilenet_v2",
    "resnet18",
    "resnet34",
    "resnet50",
]
