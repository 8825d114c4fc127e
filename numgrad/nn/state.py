"""Loading a state dict: everything is checked first, then everything is copied."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..graph.errors import shown, warn_user
from ..graph.mode import no_grad
from ..ops.creation import tensor
from ..tensor import Tensor

COUNTER = "num_batches_tracked"  # of batch-norm; files of PyTorch before 0.4.1 have none
PREFIX = "module."  # of a model saved while wrapped in DataParallel


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
    given = _strip_prefix(dict(state_dict), own)
    modules = dict(module.named_modules())

    missing = [n for n in own if n not in given and not _is_counter(n, modules)]
    unexpected = [n for n in given if n not in own and not _is_counter(n, modules)]
    mismatched, notes, plan = [], [], []
    for name, target in own.items():
        if name not in given:
            continue
        value = given[name]
        note = _misfit(name, target, value)
        if note:
            mismatched.append(name)
            notes.append(note)
        else:
            plan.append((target, value))

    lines = list(notes)
    if strict:
        for title, names in (("Unexpected", unexpected), ("Missing", missing)):
            if names:
                lines.insert(0, f"{title} key(s) in state_dict: " + _grouped(names, modules))
    if lines:
        text = f"Error(s) in loading state_dict for {type(module).__name__}:\n\t"
        raise StateDictError(text + "\n\t".join(lines), missing, unexpected, mismatched)

    with no_grad():
        for target, value in plan:
            if not isinstance(value, Tensor):
                value = tensor(value)
            if value.shape != target.shape:  # () and (1,)
                value = value.detach().view(target.shape)
            target.copy_(value)
    return IncompatibleKeys(missing, unexpected)


def _is_counter(name: str, modules: Mapping[str, Any]) -> bool:
    prefix, _, last = name.rpartition(".")
    return last == COUNTER and prefix in modules


def _strip_prefix(given: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    if not given or not all(isinstance(n, str) and n.startswith(PREFIX) for n in given):
        return given
    if any(name.startswith(PREFIX) for name in own):
        return given
    warn_user(
        f"load_state_dict: every name starts with {PREFIX!r}, as DataParallel saves them; "
        "the names are taken without it",
    )
    return {name[len(PREFIX) :]: value for name, value in given.items()}


def _misfit(name: str, target: Tensor, value: Any) -> str | None:
    """Why a value cannot be copied to the target; None if it can."""
    if not isinstance(value, (Tensor, np.ndarray)):
        return f"no tensor for {name}: got {shown(value)}."
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biuf":
        return f"no numbers for {name}: got {shown(value)}."
    shapes = tuple(target.shape), tuple(value.shape)
    if shapes[0] == shapes[1] or set(shapes) == {(), (1,)}:
        return None
    return (
        f"size mismatch for {name}: copying a param with shape {shapes[1]} from checkpoint, "
        f"the shape in current model is {shapes[0]}."
    )


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
