"""Loading a state dict: everything is checked first, then everything is copied."""

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from ..graph import dtypes, storage
from ..graph.apply import check_writable, make
from ..graph.errors import GradError, shown, warn_user
from ..graph.mode import no_grad
from ..kernels.cuda.array import DeviceArray
from ..ops.creation import tensor
from ..tensor import Tensor
from .registry import typename

COUNTER = "num_batches_tracked"  # of batch-norm; files of PyTorch before 0.4.1 have none
PREFIX_PARTS = 4
"""As in ``module.model.backbone.body.``: of how many names a prefix is made at most."""


class StateDictError(KeyError, RuntimeError):
    """A state dict that does not fit the module. PyTorch raised KeyError first, RuntimeError later.

    ``missing``, ``unexpected`` and ``mismatched`` list the names.
    """

    def __init__(
        self, text: str, missing: list[str], unexpected: list[str], mismatched: list[str]
    ) -> None:
        super().__init__(text)
        self.text = text
        self.missing, self.unexpected, self.mismatched = missing, unexpected, mismatched

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.text, self.missing, self.unexpected, self.mismatched)

    def __str__(self) -> str:  # KeyError would show the repr
        return self.text


class IncompatibleKeys(NamedTuple):
    """What ``load_state_dict`` returns."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return (
            f"IncompatibleKeys(missing_keys={self.missing_keys}, "
            f"unexpected_keys={self.unexpected_keys})"
        )


def load(module: Any, state_dict: Mapping[str, Any], strict: bool) -> IncompatibleKeys:
    """See ``Module.load_state_dict``."""
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            f"load_state_dict: expected a dict for state_dict, got {shown(state_dict)}; "
            "pass what state_dict() or checkpoint.load() returned"
        )
    own: OrderedDict[str, Tensor] = module.state_dict(keep_vars=True)
    modules = dict(module.named_modules())
    title = f"Error(s) in loading state_dict for {type(module).__name__}:\n\t"
    given = dict(state_dict)
    if inner := _state_dicts_inside(given, own):
        keys = " or ".join(f"state_dict[{key!r}]" for key in inner)
        text = f"state_dict has no name of the module, {keys} has them; pass that."
        raise StateDictError(title + text, list(own), list(given), [])
    given = _strip_prefix(given, own)

    missing = [n for n in own if n not in given and not _is_counter(n, modules)]
    unexpected = [n for n in given if n not in own and not _is_counter(n, modules)]
    mismatched, lines = [], []
    for name, target in own.items():
        if name in given and (note := _misfit(name, target, given[name])):
            mismatched.append(name)
            lines.append(note)
    if strict:
        for what, names in (("Unexpected", unexpected), ("Missing", missing)):
            if names:
                lines.insert(0, f"{what} key(s) in state_dict: " + _grouped(names, modules))
    if lines:
        raise StateDictError(title + "\n\t".join(lines), missing, unexpected, mismatched)

    targets = [(target, given[name]) for name, target in own.items() if name in given]
    with no_grad():
        # What takes memory is done for all values before the first one is written.
        with storage.category(storage.WORKSPACE):
            overlaps = _overlaps([target for target, _ in targets])
            plan = [(target, _ready(target, value, overlaps)) for target, value in targets]
        for target, value in plan:
            target.copy_(value)
    return IncompatibleKeys(missing, unexpected)


# ----------------------------------------------------------------------------------------- names


def _is_counter(name: Any, modules: Mapping[str, Any]) -> bool:
    if not isinstance(name, str):
        return False
    prefix, _, last = name.rpartition(".")
    return last == COUNTER and prefix in modules


def _state_dicts_inside(given: Mapping[Any, Any], own: Mapping[str, Any]) -> list[Any]:
    """The keys of a whole checkpoint, as ``{"model": …, "epoch": 3}``, under which state dicts with
    the module's names stand; none if it has such names itself."""
    if not own.keys().isdisjoint(given):
        return []
    return [
        key
        for key, value in given.items()
        if isinstance(value, Mapping)
        and (not own.keys().isdisjoint(value) or common_prefix(value, own))
    ]


def common_prefix(given: Mapping[Any, Any], own: Mapping[str, Any]) -> str:
    """What a wrapper has put before the names, such as ``module.`` or ``_orig_mod.``; else "".

    It ends in a dot, most of the given names begin with it, none of the module's own does, and of
    all such it is the one without which the most names fit. A name that fits as it is speaks
    against any prefix.
    """
    if not own.keys().isdisjoint(given):
        return ""
    fits: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for name in given:
        parts = name.split(".", PREFIX_PARTS) if isinstance(name, str) else []
        prefix = ""
        for part in parts[:-1]:
            prefix += part + "."
            counts[prefix] += 1
            fits[prefix] += name[len(prefix) :] in own
    found = [
        prefix
        for prefix, count in counts.items()
        if 2 * count > len(given) and fits[prefix] and not any(n.startswith(prefix) for n in own)
    ]
    return max(found, key=lambda prefix: fits[prefix], default="")


def _strip_prefix(given: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    prefix = common_prefix(given, own)
    if not prefix:
        return given
    short = {name: name[len(prefix) :] for name in given if str(name).startswith(prefix)}
    who = "every name starts" if len(short) == len(given) else f"{len(short)} names start"
    saved = ", as DataParallel saves them" if prefix == "module." else ""
    warn_user(
        f"load_state_dict: {who} with {prefix!r}{saved}; the names are taken without it",
    )
    # One that is there without the prefix as well keeps it, so that both are told of.
    return {
        short[name] if name in short and short[name] not in given else name: value
        for name, value in given.items()
    }


def _grouped(names: list[str], modules: Mapping[str, Any]) -> str:
    """The names, those of one module on one line with its type."""
    groups: dict[str, list[str]] = {}
    for name in names:
        owner = str(name).rpartition(".")[0]
        groups.setdefault(owner, []).append(f'"{name}"')
    lines = []
    for owner, quoted in groups.items():
        line = ", ".join(quoted) + "."
        if owner and owner in modules:
            line += f"  ({owner}: {type(modules[owner]).__name__})"
        lines.append(line)
    return lines[0] if len(lines) == 1 else "".join(f"\n\t\t{line}" for line in lines)


# ---------------------------------------------------------------------------------------- values


def _misfit(name: str, target: Tensor, value: Any) -> str | None:
    """Why a value cannot be copied to the target; None if it can."""
    if not isinstance(value, (Tensor, np.ndarray)):
        if hasattr(value, "shape"):  # an array of another library
            value = f"{typename(value)} of shape {tuple(value.shape)}"
            return f"no tensor for {name}: got {value}; convert it to a NumPy array."
        return f"no tensor for {name}: got {shown(value)}."
    if isinstance(value, np.ndarray) and np.ma.is_masked(value):
        return f"no plain array for {name}: got a masked one; fill it."
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biuf":
        return f"no numbers for {name}: got {shown(value)}."
    shapes = tuple(target.shape), tuple(value.shape)
    if shapes[0] != shapes[1] and set(shapes) != {(), (1,)}:
        return (
            f"size mismatch for {name}: copying a param with shape {shapes[1]} from checkpoint, "
            f"the shape in current model is {shapes[0]}."
        )
    try:
        with no_grad():
            check_writable("load_state_dict", target)
    except GradError as error:
        return f"{name} cannot be written: {error}."
    return None


def _ready(target: Tensor, value: Any, overlaps: Callable[[Tensor], bool]) -> Tensor:
    """The value as a tensor of the target's shape, dtype and device, of memory that no write to any
    target changes."""
    if isinstance(value, np.ndarray):
        value = _as_tensor(value, target)
    value = value.detach()
    if value.shape != target.shape:  # () and (1,)
        value = value.view(target.shape)
    ready: Tensor = value.to(target.device).to(target.dtype)
    same = _place(ready.array) == _place(target.array)
    return ready.clone() if not same and overlaps(ready) else ready


def _as_tensor(array: np.ndarray, target: Tensor) -> Tensor:
    """An array as a tensor, of the same memory if that can be read as it is."""
    plain = array.dtype in dtypes.ALL and array.dtype.isnative and array.flags.aligned
    if not plain or any(s % array.itemsize for s in array.strides):
        with np.errstate(invalid="ignore", over="ignore"):
            result: Tensor = tensor(np.asarray(array, target.dtype))
        return result
    array = array.view(np.ndarray)
    return make(array, storage.adopt(array))


def _place(array: Any) -> Any:
    """Where the elements lie: equal for arrays of the very same elements."""
    where = array.place() if type(array) is DeviceArray else array.__array_interface__["data"][0]
    return where, array.shape, array.strides


def _overlaps(targets: list[Tensor]) -> Callable[[Tensor], bool]:
    """A function that tells whether a tensor may share memory with any of the targets."""
    blocks = {id(t.storage) for t in targets if type(t.array) is DeviceArray}
    hosted = sorted(storage.bounds(t.array) for t in targets if type(t.array) is not DeviceArray)
    starts = [low for low, _ in hosted]
    ends = list(accumulate((high for _, high in hosted), max))

    def overlaps(x: Tensor) -> bool:
        if type(x.array) is DeviceArray:
            return id(x.storage) in blocks
        low, high = storage.bounds(x.array)
        before = bisect_left(starts, high)  # targets that begin before x ends
        return before > 0 and ends[before - 1] > low

    return overlaps
