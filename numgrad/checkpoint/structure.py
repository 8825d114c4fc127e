"""The non-tensor part of a checkpoint as JSON, with tensors referred to by name.

========================  ==============================================================
Python                    JSON
========================  ==============================================================
None, bool, str, int      the same
float                     the same; ``{"float": "nan"}``, ``"inf"``, ``"-inf"``
list                      ``[…]``
tuple                     ``{"tuple": […]}``
dict                      ``{"dict": [[key, value], …]}``; keys: None, bool, str, int, float
OrderedDict               ``{"ordered": [[key, value], …]}``
Tensor                    ``{"tensor": name}``
NumPy array               ``{"array": name}``
========================  ==============================================================
"""

import json
import math
from collections import OrderedDict
from typing import Any

import numpy as np

from ..graph.errors import shown
from ..tensor import Tensor
from .contents import Spec, unreadable
from .errors import CheckpointError
from .limits import MAX_DEPTH, KeyBudget
from .strict_json import parse_json

NOT_FINITE = ("nan", "inf", "-inf")
WHERE = "structure"


class Flattener:
    """Turns what `Plain` made into JSON; ``tensors`` then has what it holds, by unique names.

    A tensor's name is the path of keys that leads to it, joined by dots, so that a flat state dict
    keeps its names. Where two paths give one name, the later gets ``#2``, ``#3`` ….
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}
        self._repeats: dict[str, int] = {}

    def flatten(self, obj: Any) -> str:
        """The JSON text.

        Raises:
            TypeError: the object holds bytes, a dtype or a device; the text names the place.
        """
        # ASCII, so that texts with half a surrogate are written as the escapes they have to be.
        return json.dumps(self._encode(obj, ()), allow_nan=False, separators=(",", ":"))

    def _encode(self, obj: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(obj, float) and not math.isfinite(obj):
            return {"float": repr(obj)}
        if obj is None or isinstance(obj, (bool, int, float, str)):
            return obj
        if isinstance(obj, (Tensor, np.ndarray)):
            return {"tensor" if isinstance(obj, Tensor) else "array": self._name(obj, path)}
        if isinstance(obj, dict):
            pairs = [[key, self._encode(value, (*path, key))] for key, value in obj.items()]
            return {"ordered" if isinstance(obj, OrderedDict) else "dict": pairs}
        if isinstance(obj, (list, tuple)):
            items = [self._encode(item, (*path, i)) for i, item in enumerate(obj)]
            return items if isinstance(obj, list) else {"tuple": items}
        what = "a tensor, array, dict, list, tuple, number, text, bool or None"
        way_out = "convert or leave it out, or save as .pth"
        raise refused(path, f"{what} in a safetensors file", shown(obj), way_out)

    def _name(self, tensor: Any, path: tuple[Any, ...]) -> str:
        base = ".".join(map(str, path)) if path else "tensor"
        base = "".join("_" if unreadable(c) else c for c in base)
        name = base
        while name in self.tensors or name == "__metadata__":
            self._repeats[base] = self._repeats.get(base, 1) + 1
            name = f"{base}#{self._repeats[base]}"
        self.tensors[name] = tensor
        return name


def shown_path(path: tuple[Any, ...]) -> str:
    """The place of an item in what is saved, as errors name it."""
    return "obj" + "".join(f"[{part!r:.80}]" for part in path)


def refused(
    path: tuple[Any, ...], what: str, value: Any, way_out: str = "convert or leave it out"
) -> TypeError:
    """The error for an item that cannot be saved."""
    return TypeError(f"save: expected {what} for {shown_path(path)}, got {value}; {way_out}")


def plain_key(key: Any, path: tuple[Any, ...]) -> Any:
    """A key of a dict that is saved, as plain Python has it.

    Raises:
        TypeError: it is neither text nor a finite number nor None.
    """
    if isinstance(key, np.generic) and key.dtype.kind in "biuf":
        key = key.item()
    if key is None or isinstance(key, (bool, str, int)):
        return str.__str__(key) if isinstance(key, str) else key
    if isinstance(key, float) and math.isfinite(key):
        return float(key)
    raise refused(path, "keys that are text, numbers, bools or None", shown(key))


def check_keys(keys: KeyBudget, owner: int, size: int, key: Any, path: tuple[Any, ...]) -> None:
    """Raise for more numbers as keys than a file may have."""
    if not keys.allows(owner, size, key):
        found = "too many numbers that do not count up from 0"
        raise refused(path, "keys that are texts", found, "use texts, or a tensor of the numbers")


def unflatten(text: str, tensors: dict[str, Spec], path: str) -> Any:
    """The object that ``flatten`` gave the text for.

    Args:
        text: the JSON text.
        tensors: those of the file; they stand in the result, with their kind set.
        path: of the file, for errors.

    Raises:
        CheckpointError: the text is no such structure, or does not fit the tensors.
    """
    left = dict(tensors)
    keys = KeyBudget(len(text))

    def fail(reason: str) -> CheckpointError:
        return CheckpointError(path, WHERE, reason)

    def decode(node: Any, depth: int) -> Any:
        if node is None or isinstance(node, (bool, str, int, float)):
            return node
        if depth > MAX_DEPTH:
            raise fail(f"more than {MAX_DEPTH} levels")
        if isinstance(node, list):
            return [decode(item, depth + 1) for item in node]
        if len(node) != 1:
            raise fail(f"an object of {len(node)} names where one was expected")
        ((kind, value),) = node.items()
        if kind in ("tensor", "array"):
            if not isinstance(value, str) or value not in left:
                raise fail(f"{value!r:.100} is no tensor of the file, or stands here twice")
            spec = left.pop(value)
            spec.kind = kind
            return spec
        if kind == "float" and value in NOT_FINITE:
            return float(value)
        if kind in ("tuple", "dict", "ordered") and isinstance(value, list):
            if kind == "tuple":
                return tuple(decode(item, depth + 1) for item in value)
            return decode_pairs(value, depth, OrderedDict() if kind == "ordered" else {})
        raise fail(f"unknown kind {kind!r:.100}")

    def decode_pairs(pairs: list[Any], depth: int, result: dict[Any, Any]) -> dict[Any, Any]:
        for pair in pairs:
            if not isinstance(pair, list) or len(pair) != 2:
                raise fail("a dict's item that is no pair")
            key, value = pair
            if isinstance(key, (list, dict)):
                raise fail("a key that is neither text nor number")
            if not keys.allows(id(result), len(result), key):
                raise fail("too many keys that are numbers in dicts; make them texts")
            if key in result:
                raise fail(f"the key {key!r:.100} twice")
            result[key] = decode(value, depth + 1)
        return result

    result = decode(parse_json(text, path, WHERE), 0)
    if left:
        raise fail(f"the file has the tensor {next(iter(left))!r:.200}, the structure does not")
    return result
