"""The networks that the commands know by name, and an input for each."""

from typing import Any, NamedTuple

from .output import UsageError


class Network(NamedTuple):
    """A network by the name of its maker in ``numgrad.models``, and the input it gets."""

    maker: str
    batch: int
    """The batch if none is asked for."""
    size: int | None = None
    """Height and width of its pictures if none is asked for; None where it takes the digits."""
    channels: int = 3
    fixed: bool = False
    """Whether it takes pictures of that size alone."""


# As models.names(), whose import would take its time before any command runs.
IMAGENET = (
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "mobilenet_v2",
    "alexnet",
    "vgg11",
    "vgg13",
    "vgg16",
    "vgg19",
    "vgg11_bn",
    "vgg13_bn",
    "vgg16_bn",
    "vgg19_bn",
    "squeezenet1_0",
    "squeezenet1_1",
)

NETWORKS = {name: Network(name, 8, 224) for name in IMAGENET} | {
    "cifar_resnet20": Network("cifar_resnet20", 64, 32),
    "cifar_resnet56": Network("cifar_resnet56", 64, 32),
    "lenet": Network("lenet", 64, 28, 1, fixed=True),
    "digits-conv": Network("DigitsConvNet", 64),
    "digits-mlp": Network("DigitsMLP", 64),
}


def settle(name: str, batch: int | None, size: int | None) -> tuple[int, int | None]:
    """The batch and the size to use: those asked for, else the network's own.

    Raises:
        UsageError: a size for a network that takes one size only.
    """
    network = NETWORKS[name]
    if size is not None and size != network.size and (network.size is None or network.fixed):
        only = network.size or 8
        raise UsageError(f"--size: {name} takes pictures of {only} × {only} only, got {size}")
    return batch or network.batch, size or network.size


def maker(name: str) -> Any:
    """The class or function of ``numgrad.models`` that makes a network."""
    from .. import models

    return getattr(models, NETWORKS[name].maker)


def make(name: str, batch: int, size: int | None) -> tuple[Any, Any]:
    """A network in eval mode with first values drawn from seed 0, and an input for it."""
    import numpy as np

    from .. import manual_seed, randn, tensor
    from ..data import load_digits

    manual_seed(0)
    model = maker(name)().eval()
    if size is None:
        images = load_digits()[0]
        return model, tensor(images[np.arange(batch) % len(images)])
    return model, randn(batch, NETWORKS[name].channels, size, size)
