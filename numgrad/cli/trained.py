"""Trained networks, for ``classify`` and ``demo finetune``: their arguments, and their loading."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .networks import IMAGENET
from .output import UsageError, check_readable

PIXELS, RESIZE = 224, 256 / 224
"""What networks for ImageNet take, and the shorter side before the middle is cut out, in terms of
the cut."""
MOST_PIXELS = 1024
"""The most that ``demo finetune`` takes."""


def add_arguments(parser: Any, default: str) -> None:
    """Describe ``--model`` and ``--weights``."""
    parser.add_argument(
        "--model",
        choices=IMAGENET,
        default=default,
        metavar="M",
        help=f"default: {default}; others: {', '.join(n for n in IMAGENET if n != default)}",
    )
    parser.add_argument(
        "--weights",
        metavar="FILE",
        help=(
            "a state dict: .pth, .pt, .safetensors; default: torchvision's ImageNet weights, as "
            "PyTorch has kept them on this machine, else downloaded"
        ),
    )


def check(command: str, weights: str | None) -> None:
    """Raise UsageError if Pillow is missing, or there is no file ``weights``."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise UsageError(
            f'{command}: Pillow is missing; install "numgrad-jit[vision]" to open pictures'
        ) from None
    check_readable(weights, "--weights")


def check_size(model: Any, name: str, x: Any) -> None:
    """Raise UsageError if the network cannot take pictures of that size."""
    from .. import no_grad

    try:
        with no_grad():
            model(x)
    except ValueError as error:
        raise UsageError(
            f"{name} cannot take pictures of {x.shape[2]} × {x.shape[3]}: {error}"
        ) from None


class Trained(NamedTuple):
    """A trained network, and what it expects of pictures."""

    model: Any
    classes: int
    names: Sequence[str] | None
    """Of the classes, if its file has them: ``numgrad demo finetune`` writes such files."""
    resize: int
    """Pixels of the shorter side, before the middle is cut out."""
    crop: int


def trained(name: str, weights: str | None) -> Trained:
    """A network with the weights of a file, or torchvision's.

    A file of other classes than ImageNet's is taken, too: as many logits as its last layer gives.

    Raises:
        CheckpointError: a file that is damaged, or of another network.
        OSError: a file that cannot be read, or torchvision's weights are not on this machine and
            cannot be downloaded.
    """
    from .. import models
    from ..models.weights import network_of, resize_of

    make: Callable[..., Any] = getattr(models, name)
    content: Mapping[str, Any] = {}
    if weights is None:
        model = make(pretrained=True)
    else:
        model, content = network_of(name, make, weights)
    classes = int(model.get_submodule(model.HEAD).weight.shape[0])
    names: Any = content.get("classes")
    if not isinstance(names, list) or len(names) != classes:
        names = None
    crop, resize = PIXELS, resize_of(os.path.basename(weights or ""))
    own: Any = content.get("size")  # of the pictures that demo finetune has trained it on
    if type(own) is int and 0 < own <= MOST_PIXELS:
        crop, resize = own, round(RESIZE * own)
    return Trained(model, classes, names and [str(one) for one in names], resize, crop)
