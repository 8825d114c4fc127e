"""LeNet-5, for grey pictures of 28 × 28 or 32 × 32."""

from typing import ClassVar

from ..graph.errors import RangeError, expected
from ..nn import Conv2d, Linear, MaxPool2d, Module
from ..nn import functional as F
from ..tensor import Tensor

SIZES = (28, 32)


class LeNet(Module):
    """LeNet-5: two convolutions of 5 × 5, each with ReLU and pooling, and three linear layers.

    For 32 × 32 this is (n, 1, 32, 32) → 6 × 28 × 28 → 6 × 14 × 14 → 16 × 10 × 10 → 16 × 5 × 5 →
    120 → 84 → num_classes. Pictures of 28 × 28 get a border of two zeros first, in ``conv1``.

    ReLU and max pooling stand where the paper has scaled tanh and trainable averages, and all 16
    maps of the second convolution see all 6 of the first, as in today's tutorials.

    Args:
        num_classes: how many logits.
        in_channels: channels of the pictures.
        size: height and width of the pictures, 28 or 32.

    Raises:
        RangeError: another size.

    Notes: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, "Gradient-based learning applied to document
        recognition", Proceedings of the IEEE 86 (11), 1998.
    """

    HEAD: ClassVar[str] = "fc3"

    def __init__(self, num_classes: int = 10, in_channels: int = 1, size: int = 28) -> None:
        super().__init__()
        if size not in SIZES:
            raise RangeError(expected("LeNet", "28 or 32", "size", size, "resize the pictures"))
        self.conv1 = Conv2d(in_channels, 6, 5, padding=(32 - size) // 2)
        self.conv2 = Conv2d(6, 16, 5)
        self.pool = MaxPool2d(2)
        self.fc1 = Linear(16 * 5 * 5, 120)
        self.fc2 = Linear(120, 84)
        self.fc3 = Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, in_channels, size, size) to logits (n, num_classes)."""
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.flatten(1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        out: Tensor = self.fc3(x)
        return out


def lenet(num_classes: int = 10, in_channels: int = 1, size: int = 28) -> LeNet:
    """A new `LeNet`."""
    return LeNet(num_classes, in_channels, size)
