"""Networks that come with the package.

Those for ImageNet (`names`) are torchvision's, and its files fit: ``resnet18(pretrained=True)``
finds or downloads one, ``resnet18(weights=path)`` loads one. ``import numgrad`` does not load this
package: write ``from numgrad import models``.
"""

from .alexnet import AlexNet, alexnet
from .cifar import (
    CifarResNet,
    cifar_resnet20,
    cifar_resnet32,
    cifar_resnet44,
    cifar_resnet56,
)
from .digits import DigitsConvNet, DigitsMLP
from .download import DownloadError
from .heads import replace_head
from .lenet import LeNet, lenet
from .mobilenet import MobileNetV2, mobilenet_v2
from .resnet import ResNet, resnet18, resnet34, resnet50, resnet101, resnet152
from .squeezenet import SqueezeNet, squeezenet1_0, squeezenet1_1
from .vgg import VGG, vgg11, vgg11_bn, vgg13, vgg13_bn, vgg16, vgg16_bn, vgg19, vgg19_bn
from .weights import names

__all__ = [
    "VGG",
    "AlexNet",
    "CifarResNet",
    "DigitsConvNet",
    "DigitsMLP",
    "DownloadError",
    "LeNet",
    "MobileNetV2",
    "ResNet",
    "SqueezeNet",
    "alexnet",
    "cifar_resnet20",
    "cifar_resnet32",
    "cifar_resnet44",
    "cifar_resnet56",
    "lenet",
    "mobilenet_v2",
    "names",
    "replace_head",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "squeezenet1_0",
    "squeezenet1_1",
    "vgg11",
    "vgg11_bn",
    "vgg13",
    "vgg13_bn",
    "vgg16",
    "vgg16_bn",
    "vgg19",
    "vgg19_bn",
]
