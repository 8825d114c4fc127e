"""Trained weights: finding, downloading, checking and loading torchvision's published files.

A file's name ends in the beginning of its SHA-256, so one name means the same bytes wherever it is
found: in numgrad's folder, in those of PyTorch's cache, or on the server.

The names are those of torchvision's sources: today's, and those of its releases up to 0.9.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..checkpoint import CheckpointError, load
from ..checkpoint.source import open_file
from ..graph.errors import RangeError, expected, shown
from ..nn import Module, StateDictError, init
from .download import DownloadError, download
from .heads import replace_head

URL = "https://download.pytorch.org/models/"
"""Where the files are, unless ``NUMGRAD_WEIGHTS_URL`` names another place."""
CLASSES = 1000

V1, V2 = "IMAGENET1K_V1", "IMAGENET1K_V2"
RESIZE = {V1: 256, V2: 232}
"""The shorter side of pictures before the middle 224 × 224 are cut out, as torchvision has it."""
PUBLISHED: dict[str, dict[str, tuple[str, ...]]] = {
    "resnet18": {V1: ("resnet18-f37072fd.pth", "resnet18-5c106cde.pth")},
    "resnet34": {V1: ("resnet34-b627a593.pth", "resnet34-333f7ec4.pth")},
    "resnet50": {
        V1: ("resnet50-0676ba61.pth", "resnet50-19c8e357.pth"),
        V2: ("resnet50-11ad3fa6.pth",),
    },
    "resnet101": {
        V1: ("resnet101-63fe2227.pth", "resnet101-5d3b4d8f.pth"),
        V2: ("resnet101-cd907fc2.pth",),
    },
    "resnet152": {
        V1: ("resnet152-394f9c45.pth", "resnet152-b121ed2d.pth"),
        V2: ("resnet152-f82ba261.pth",),
    },
    "mobilenet_v2": {V1: ("mobilenet_v2-b0353104.pth",), V2: ("mobilenet_v2-7ebf99e0.pth",)},
    "alexnet": {V1: ("alexnet-owt-7be5be79.pth", "alexnet-owt-4df8aa71.pth")},
    "vgg11": {V1: ("vgg11-8a719046.pth", "vgg11-bbd30ac9.pth")},
    "vgg13": {V1: ("vgg13-19584684.pth", "vgg13-c768596a.pth")},
    "vgg16": {V1: ("vgg16-397923af.pth",)},
    "vgg19": {V1: ("vgg19-dcbb9e9d.pth",)},
    "vgg11_bn": {V1: ("vgg11_bn-6002323d.pth",)},
    "vgg13_bn": {V1: ("vgg13_bn-abd245e5.pth",)},
    "vgg16_bn": {V1: ("vgg16_bn-6c64b313.pth",)},
    "vgg19_bn": {V1: ("vgg19_bn-c79401a0.pth",)},
    "squeezenet1_0": {V1: ("squeezenet1_0-b66bff10.pth", "squeezenet1_0-a815701f.pth")},
    "squeezenet1_1": {V1: ("squeezenet1_1-b8a52dc0.pth", "squeezenet1_1-f364aa15.pth")},
}
"""Of each network its weights, the best last, and the names of their files, today's first."""

WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
"""Under which of these keys training scripts keep the state dict."""

Weights = str | os.PathLike[str] | None
M = TypeVar("M", bound=Module)


def names() -> list[str]:
    """The names of the networks for ImageNet: ``getattr(models, name)`` makes one."""
    return list(PUBLISHED)


def pretrained_network(
    name: str,
    make: Callable[..., M],
    options: dict[str, Any],
    pretrained: bool,
    progress: bool,
    weights: Weights,
) -> M:
    """``make(**options)`` with the weights that are asked for; see `resnet18` for the arguments."""
    wanted = _wanted(name, pretrained, weights)
    if wanted is None:
        return make(**options)
    if isinstance(wanted, Path):
        path = wanted
    else:
        classes = options.get("num_classes", CLASSES)
        if classes != CLASSES:
            raise RangeError(
                expected(
                    name,
                    f"the {CLASSES} of the pretrained weights",
                    "num_classes",
                    classes,
                    f"leave it out, and then call models.replace_head(model, {classes})",
                )
            )
        path = _obtain(name, wanted, progress)
    _, state = _read(path)
    with init.skipped():  # loading is strict: every value is replaced
        model = make(**options)
    _fill(name, model, state, path)
    return model


def network_of(
    name: str, make: Callable[[], M], path: "str | os.PathLike[str]"
) -> tuple[M, Mapping[str, Any]]:
    """A network with the weights of a file, and with as many classes as the file has.

    Args:
        name: of the network, for errors.
        make: makes it.
        path: of the file, read once.

    Returns:
        The network, and all that the file holds.

    Raises:
        CheckpointError: the file is damaged, or of another network. OSError: it cannot be opened.
    """
    content, state = _read(Path(path))
    with init.skipped():
        model = make()
        head: Any = model.get_submodule(model.HEAD)
        ours, theirs = head.weight.shape, _head_shape(model, state)
        if theirs[1:] == ours[1:] and theirs[0] not in (0, ours[0]):
            replace_head(model, theirs[0])
    _fill(name, model, state, Path(path))
    return model, content


def resize_of(file: str) -> int:
    """`RESIZE` for a file, by its name; 256 for one that torchvision has not published."""
    for kinds in PUBLISHED.values():
        for kind, files in kinds.items():
            if file in files:
                return RESIZE[kind]
    return RESIZE[V1]


def _wanted(name: str, pretrained: bool, weights: Weights) -> Path | tuple[str, ...] | None:
    """A file of the user's, or the names of published files, any of which will do."""
    if pretrained is not None and not isinstance(pretrained, bool):
        other = "weights" if isinstance(pretrained, (str, os.PathLike)) else "num_classes"
        way_out = f"pass it as {other}="
        raise TypeError(expected(name, "True or False", "pretrained", shown(pretrained), way_out))
    if weights is None:
        return PUBLISHED[name][V1] if pretrained else None
    if not isinstance(weights, (str, os.PathLike)):
        raise TypeError(
            expected(
                name,
                "a path, or a name such as 'DEFAULT',",
                "weights",
                shown(weights),
                "pass a state dict to model.load_state_dict",
            )
        )
    kinds = PUBLISHED[name]
    if isinstance(weights, str):
        # torchvision also writes ResNet18_Weights.DEFAULT.
        start = f"{name}_weights."
        kind = weights[len(start) :] if weights.lower().startswith(start) else weights
        if kind == "DEFAULT":
            return list(kinds.values())[-1]
        if kind in kinds:
            return kinds[kind]
    path = Path(weights)
    if path.is_dir() or not path.exists():
        choices = ", ".join(map(repr, ("DEFAULT", *kinds)))
        given = repr(os.fspath(weights))
        wrong: type[OSError] = FileNotFoundError
        if os.fspath(weights) and path.is_dir():
            wrong, given = IsADirectoryError, f"the folder {given}"
        raise wrong(
            expected(name, f"a file or one of {choices}", "weights", given, "check the path")
        )
    return path


# ------------------------------------------------------------------------------- finding the file


def folder() -> Path:
    """Where numgrad keeps weights: ``$NUMGRAD_WEIGHTS``, else a folder in the user's cache."""
    named = os.environ.get("NUMGRAD_WEIGHTS")
    if named:
        path = Path(os.path.expanduser(named))
        return path if named.startswith("~") else path.absolute()
    return _caches() / "numgrad" / "weights"


def _caches() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


def folders() -> list[Path]:
    """Where weights are looked for: numgrad's folder, then those of PyTorch's versions."""
    home = os.environ.get("TORCH_HOME")
    homes = [Path(os.path.expanduser(home))] if home else []
    homes += [_caches() / "torch", Path(os.path.expanduser("~/.cache/torch"))]
    found = [folder()]
    found += [one / below for one in homes for below in ("hub/checkpoints", "checkpoints")]
    found.append(Path(os.path.expanduser("~/.torch/models")))
    return list(dict.fromkeys(found))


def _obtain(name: str, files: tuple[str, ...], progress: bool) -> Path:
    """The path of one of the files; downloaded if it is nowhere."""
    for file in files:
        for place in folders():
            path = place / file
            # What others have closed to us is passed over, as if it were not there.
            if os.path.isfile(path) and os.access(path, os.R_OK):
                return path
    path = folder() / files[0]
    if not path.is_absolute():
        way_out = "set NUMGRAD_WEIGHTS to a folder for them"
        home = f"none for {path.parts[0]}"
        raise DownloadError(expected(name, "a home folder", "its weights", home, way_out))
    base = os.environ.get("NUMGRAD_WEIGHTS_URL") or URL
    download(f"{base.rstrip('/')}/{path.name}", path, _digest(path.name), name, progress)
    return path


def _digest(file: str) -> str:
    """The hexadecimal digits that a published name ends in."""
    return file.rpartition("-")[2].partition(".")[0]


def _published(file: str) -> bool:
    return any(file in files for kinds in PUBLISHED.values() for files in kinds.values())


def _check(path: Path) -> None:
    """Raise CheckpointError unless the file's SHA-256 begins as its name says."""
    hashed, digest = hashlib.sha256(), _digest(path.name)
    with open_file(path) as file:
        while block := file.read(1 << 20):
            hashed.update(block)
    found = hashed.hexdigest()[: len(digest)]
    if found != digest:
        raise CheckpointError(
            str(path),
            "SHA-256",
            f"begins with {found}, the name says {digest}: the file is damaged; remove it and try "
            "again",
        )


# ------------------------------------------------------------------------------- loading the file


def _read(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What is in a file, and the state dict: the same, or what a training script saved around it.

    Raises:
        CheckpointError: there is none, or the file is damaged. OSError: it cannot be opened.
    """
    if _published(path.name):
        _check(path)
    content = state = load(path)
    while isinstance(state, Mapping):
        inner = [state[key] for key in WRAPPERS if isinstance(state.get(key), Mapping)]
        if not inner:
            return content, state
        state = inner[0]
    raise CheckpointError(
        str(path),
        "content",
        f"expected a state dict, got {shown(state)}; save model.state_dict()",
    )


def _fill(name: str, model: Module, state: Mapping[str, Any], path: Path) -> None:
    """Load a state dict; CheckpointError if it is another network's."""
    try:
        model.load_state_dict(state)
    except StateDictError as error:
        reason = _misfit(name, model, state, error)
        raise CheckpointError(str(path), "state dict", reason) from error


def _head_weight(model: Module) -> str:
    return f"{getattr(type(model), 'HEAD', '')}.weight"


def _head_shape(model: Module, state: Mapping[str, Any], what: str = "weight") -> tuple[int, ...]:
    """The shape that the last layer's weight or bias has in a state dict, whatever stands before
    its name; () if there is none."""
    ending = "." + _head_weight(model).removesuffix("weight") + what
    value = next((v for key, v in state.items() if f".{key}".endswith(ending)), None)
    return tuple(getattr(value, "shape", ()))


def _misfit(name: str, model: Module, state: Mapping[str, Any], error: StateDictError) -> str:
    """One sentence about a state dict that is another network's."""
    weight = _head_weight(model)
    others = error.missing or error.unexpected
    if weight in error.mismatched and not others and len(error.mismatched) <= 2:
        ours, theirs = model.state_dict()[weight].shape, _head_shape(model, state)
        agree = _head_shape(model, state, "bias") == theirs[:1]
        if theirs[1:] == ours[1:] and agree and theirs[0]:
            n, m = theirs[0], ours[0]
            return (
                f"the file has {n} classes, num_classes of {name} is {m}; pass num_classes={n} and "
                f"then call models.replace_head(model, {m})"
            )
    inside = [key for key, value in state.items() if isinstance(value, Mapping)]
    if inside and error.missing:
        keys = ", ".join(map(repr, inside))
        return (
            f"the file is no state dict of {name}, but has dicts under {keys}; pass the right one "
            "to model.load_state_dict"
        )
    if not error.missing:  # the names fit: what does not is worth to be told in full
        first, *more = str(error).split("\n\t")[1:]
        rest = f" (and {len(more)} more)" if more else ""
        return f"the file does not fit {name}: {first:.300}{rest}"
    counts = (
        (error.missing, f"of {len(model.state_dict())} entries missing"),
        (error.mismatched, "of another shape"),
        (error.unexpected, "unknown"),
    )
    parts = [f"{len(found)} {what} ({str(found[0])!r:.80} …)" for found, what in counts if found]
    return f"the file is of another network than {name}: " + ", ".join(parts)
