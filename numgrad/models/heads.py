"""A new last layer for a trained network."""

from typing import Any

from ..graph.errors import expected, shown
from ..nn import Conv2d, Linear, Module, init
from ..ops.attributes import length


def replace_head(model: Module, num_classes: int) -> Module:
    """Put a new, trainable layer in place of a network's last one, for other classes.

    Args:
        model: any of this package's networks for ImageNet, a `CifarResNet` or a `LeNet`; changed in
            place.
        num_classes: how many logits it is to give from now on.

    Returns:
        The new layer, part of ``model``: a `Linear`, of SqueezeNet a 1 × 1 `Conv2d`. It has the
        device, the dtype and the mode (training or not) of the old one, first values as the network
        draws them, and parameters that require gradients whether or not the others do.

    Raises:
        TypeError: model is no such network, or num_classes no integer.
        RangeError: num_classes is not positive.

    ::

        model = models.resnet18(pretrained=True)
        model.requires_grad_(False)
        head = models.replace_head(model, 2)
        optimizer = optim.SGD(head.parameters(), lr=0.01)
    """
    path = getattr(type(model), "HEAD", None)
    if path is None:
        raise TypeError(
            expected(
                "replace_head",
                "one of numgrad.models' networks for ImageNet, CIFAR or LeNet",
                "model",
                shown(model) if not isinstance(model, Module) else f"a {type(model).__name__}",
                "assign the new layer to its attribute",
            )
        )
    num_classes = length("replace_head", "num_classes", num_classes, 1)
    owner_path, _, name = path.rpartition(".")
    owner: Any = model.get_submodule(owner_path)
    old: Any = owner.get_submodule(name)
    where = {"device": old.weight.device, "dtype": old.weight.dtype}
    new: Linear | Conv2d
    if isinstance(old, Conv2d):
        new = Conv2d(old.in_channels, num_classes, 1, **where)
    else:
        new = Linear(old.in_features, num_classes, **where)
    std = getattr(type(model), "HEAD_STD", None)
    if std is not None:
        first_head_values(new, std)
    setattr(owner, name, new.train(old.training))
    if hasattr(model, "num_classes"):
        model.num_classes = num_classes
    return new


def first_head_values(head: Any, std: float) -> None:
    """Weights from a normal law of deviation ``std``, a bias of zeros."""
    init.normal_(head.weight, 0, std)
    init.zeros_(head.bias)
