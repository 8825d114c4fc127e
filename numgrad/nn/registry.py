"""How attributes of a module become parameters, buffers and children, and what may not."""

from collections.abc import Iterable, Iterator
from typing import Any

from ..graph import storage
from ..graph.apply import make
from ..graph.errors import warn_user
from ..tensor import Tensor
from ..variable import Parameter


def typename(value: Any) -> str:
    """``numgrad.variable.Variable``, ``list``: how errors name the type of a value."""
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"


def as_buffer(value: Tensor | None) -> Tensor | None:
    """The tensor to keep as a buffer: a plain, non-volatile one, whose bytes count as a buffer's.

    Contagion stops at buffers. A `Variable` or a volatile tensor would make everything computed
    from the buffer a Variable or volatile, so a plain handle of the same memory is kept instead.
    """
    if value is None:
        return None
    if value.contagious or value._volatile:
        value = make(value.array, value.storage, group=value.group)
    if value.storage.category != storage.PARAMETER:
        value.storage.move_to(storage.BUFFER)
    return value


def _found(value: Any, wanted: tuple[type, ...], depth: int = 3) -> Iterator[Any]:
    if isinstance(value, wanted):
        yield value
    elif depth and type(value) in (list, tuple, dict):
        items: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for item in items:
            yield from _found(item, wanted, depth - 1)


def _devices(item: Any) -> set[str]:
    """Where the parameters of a module, or one parameter, lie."""
    return {str(p.device) for p in ([item] if isinstance(item, Parameter) else item.parameters())}


def name_strays(owner: Any, error: Exception, module_type: type) -> None:
    """Add to a device error which plain lists, tuples and dicts of ``owner`` hold what did not move
    with it, because it is not registered."""
    own = {str(p.device) for p in owner.parameters()}
    for name, value in vars(owner).items():
        if type(value) not in (list, tuple, dict) or name.startswith("_"):
            continue
        known = {id(m) for m in owner.modules()} | {id(p) for p in owner.parameters()}
        strays = [x for x in _found(value, (Parameter, module_type)) if id(x) not in known]
        places = set().union(*map(_devices, strays)) - own if strays else set()
        if places and own:
            kind = "ParameterList" if isinstance(strays[0], Parameter) else "ModuleList"
            error.args = (
                f"{error}; {type(owner).__name__}.{name} is a {type(value).__name__} that is not "
                f"registered and stayed on {', '.join(sorted(places))} while the module is on "
                f"{', '.join(sorted(own))}: make it a numgrad.nn.{kind}",
            )


def warn_unregistered(owner: Any, name: str, value: Any, module_type: type) -> None:
    """Warn if a plain list, tuple or dict holds Modules or Parameters the module does not have."""
    found = list(_found(value, (Parameter, module_type)))
    if not found:
        return
    known = {id(m) for m in owner.modules()} | {id(p) for p in owner.parameters()}
    found = [item for item in found if id(item) not in known]
    if not found:
        return
    kind = "Parameter" if isinstance(found[0], Parameter) else "Module"
    container = kind + ("Dict" if isinstance(value, dict) else "List")
    warn_user(
        f"{type(owner).__name__}.{name}: expected a numgrad.nn.{container} to hold a {kind}, got a "
        f"{type(value).__name__}; what is in it is not registered: it is not trained, moved, saved "
        f"or loaded with the module; assign {container}(...) instead",
    )
