"""Modules that hold modules or parameters: `Sequential`, `ModuleList`, `ModuleDict`, …"""

import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from ..variable import Parameter
from .module import Module
from .registry import typename

T = TypeVar("T")


def _position(owner: Any, index: Any, length: int) -> int:
    """A list index from 0 on."""
    index = operator.index(index)
    if not -length <= index < length:
        raise IndexError(f"index {index} is out of range for {type(owner).__name__} of {length}")
    return index % length if length else 0


class _Listed(Module):
    """What `Sequential` and `ModuleList` share: children named 0, 1, 2 …, used as a list."""

    def _names(self) -> list[str]:
        return list(self._modules)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._slice(index)
        return self._modules[self._names()[_position(self, index, len(self))]]

    def _slice(self, index: slice) -> Module:
        raise NotImplementedError

    def __setitem__(self, index: Any, module: Module) -> None:
        setattr(self, self._names()[_position(self, index, len(self))], module)

    def __delitem__(self, index: Any) -> None:
        names = self._names()
        if not isinstance(index, slice):
            index = _position(self, index, len(names))
            index = slice(index, index + 1)
        for name in names[index]:
            delattr(self, name)
        # Numbered children are numbered anew; named ones (of Sequential) keep their names.
        if all(name.isdecimal() for name in names):
            self._replace(list(self._modules.values()))

    def _replace(self, modules: list[Any]) -> None:
        self._modules.clear()
        self._modules.update((str(i), module) for i, module in enumerate(modules))

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._modules.values()))

    def append(self: T, module: Module) -> T:
        """Add a module at the end. Returns the container."""
        self.add_module(str(len(self)), module)  # type: ignore[attr-defined, arg-type]
        return self

    def extend(self: T, modules: Iterable[Module]) -> T:
        """Add modules at the end. Returns the container."""
        if not isinstance(modules, Iterable):
            raise TypeError(
                f"{type(self).__name__}.extend: expected an iterable for modules, got "
                f"{typename(modules)}; pass a list of modules"
            )
        for module in list(modules):
            self.append(module)  # type: ignore[attr-defined]
        return self

    def insert(self, index: int, module: Module) -> Any:
        """Add a module before that at ``index``, as in a list."""
        if not isinstance(module, Module):
            raise TypeError(f"{typename(module)} is not a Module subclass")
        modules = list(self._modules.values())
        modules.insert(index, module)
        self._replace(modules)
        return self

    def pop(self, index: int = -1) -> Any:
        """Take the module at ``index`` out and return it."""
        module = self[index]
        del self[index]
        return module


class Sequential(_Listed):
    """Modules one after the other, each called with what the one before returned.

    ``Sequential(a, b, c)`` names them 0, 1, 2; ``Sequential(OrderedDict(first=a, …))`` by the keys.

    Raises:
        TypeError: an argument is no module.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], Mapping):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            for i, module in enumerate(args):
                self.add_module(str(i), module)

    def forward(self, input: Any) -> Any:
        """The last module's result."""
        for module in self._modules.values():
            input = module(input)  # type: ignore[misc]
        return input

    def _slice(self, index: slice) -> "Sequential":
        return type(self)(OrderedDict(list(self._modules.items())[index]))


class ModuleList(_Listed):
    """A list of modules whose members are registered. It has no ``forward`` of its own.

    Raises:
        TypeError: a member is no module.
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def _slice(self, index: slice) -> "ModuleList":
        return type(self)(list(self._modules.values())[index])  # type: ignore[arg-type]

    def __iadd__(self, modules: Iterable[Module]) -> "ModuleList":
        return self.extend(modules)

    def __add__(self, other: Iterable[Module]) -> "ModuleList":
        return ModuleList([*self, *other])

    def __repr__(self) -> str:
        """Equal neighbours on one line, as PyTorch shows them."""
        runs: list[list[Any]] = []  # [first, last, repr]
        for i, module in enumerate(self):
            text = repr(module)
            if runs and runs[-1][2] == text:
                runs[-1][1] = i
            else:
                runs.append([i, i, text])
        if not runs:
            return f"{self._get_name()}()"
        lines = ""
        for first, last, text in runs:
            if first == last:
                line = f"({first}): {text}"
            else:
                line = f"({first}-{last}): {last - first + 1} x {text}"
            lines += "\n  " + line.replace("\n", "\n  ")
        return f"{self._get_name()}({lines}\n)"


class ModuleDict(Module):
    """A dict of modules whose values are registered. It has no ``forward`` of its own.

    Raises:
        TypeError: a value is no module, or a key no string.
        KeyError: a key has a dot, is empty, or is the name of an attribute of the class.
    """

    def __init__(self, modules: Any = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._modules.keys()

    def values(self) -> Iterable[Any]:
        """The modules."""
        return self._modules.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        """``(name, module)`` pairs."""
        return self._modules.items()

    def clear(self) -> None:
        """Remove all."""
        self._modules.clear()

    def pop(self, key: str) -> Any:
        """Take a module out and return it."""
        return self._modules.pop(key)

    def update(self, modules: Any) -> None:
        """Add modules from a mapping or from ``(name, module)`` pairs."""
        pairs = modules.items() if isinstance(modules, (Mapping, ModuleDict)) else modules
        for name, module in pairs:
            self[name] = module


class ParameterList(Module):
    """A list of parameters that are registered. Plain tensors are made parameters."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        if values is not None:
            self.extend(values)

    def __getitem__(self, index: Any) -> Any:
        values = list(self._parameters.values())
        if isinstance(index, slice):
            return type(self)(values[index])
        return values[_position(self, index, len(values))]

    def __setitem__(self, index: int, value: Any) -> None:
        name = str(_position(self, index, len(self)))
        self._parameters[name] = _as_parameter(value)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._parameters.values()))

    def __iadd__(self, values: Iterable[Any]) -> "ParameterList":
        return self.extend(values)

    def append(self, value: Any) -> "ParameterList":
        """Add a parameter at the end. Returns the list."""
        self.register_parameter(str(len(self)), _as_parameter(value))
        return self

    def extend(self, values: Iterable[Any]) -> "ParameterList":
        """Add parameters at the end. Returns the list."""
        for value in list(values):
            self.append(value)
        return self

    def __repr__(self) -> str:
        return _shown_parameters(self)


class ParameterDict(Module):
    """A dict of parameters that are registered. Plain tensors are made parameters."""

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        if parameters is not None:
            self.update(parameters)

    def __getitem__(self, key: str) -> Any:
        return self._parameters[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.register_parameter(key, _as_parameter(value))

    def __delitem__(self, key: str) -> None:
        del self._parameters[key]

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __contains__(self, key: object) -> bool:
        return key in self._parameters

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._parameters.keys()

    def values(self) -> Iterable[Any]:
        """The parameters."""
        return self._parameters.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        """``(name, parameter)`` pairs."""
        return self._parameters.items()

    def update(self, parameters: Any) -> None:
        """Add parameters from a mapping or from ``(name, parameter)`` pairs."""
        mapping = isinstance(parameters, (Mapping, ParameterDict))
        for name, value in parameters.items() if mapping else parameters:
            self[name] = value

    def __repr__(self) -> str:
        return _shown_parameters(self)


def _as_parameter(value: Any) -> Parameter:
    return value if isinstance(value, Parameter) else Parameter(value)


def _shown_parameters(owner: Module) -> str:
    lines = [
        f"\n  ({name}): Parameter of shape {tuple(value.shape)} and dtype {value.dtype}"
        for name, value in owner._parameters.items()
        if value is not None
    ]
    return f"{type(owner).__name__}({''.join(lines)}" + ("\n)" if lines else ")")
