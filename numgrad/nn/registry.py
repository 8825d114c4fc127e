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
