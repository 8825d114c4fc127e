"""Functions that run before or after a module's ``forward``."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ..graph.value import HookHandle


class Hook:
    """A function and whether it takes the keyword arguments of the call, too."""

    __slots__ = ("function", "with_kwargs")

    def __init__(self, function: Callable[..., Any], with_kwargs: bool) -> None:
        self.function, self.with_kwargs = function, with_kwargs


Hooks = "OrderedDict[int, Hook]"


def register(
    hooks: "OrderedDict[int, Any]",
    what: str,
    hook: Callable[..., Any],
    prepend: bool,
    with_kwargs: bool,
) -> HookHandle:
    """Add a hook as the last, or with ``prepend`` as the first."""
    if not callable(hook):
        raise TypeError(f"{what}: expected a function for hook, got {hook!r}; pass one")
    handle = HookHandle(hooks, hook)
    hooks[handle.id] = Hook(hook, with_kwargs)
    if prepend:
        hooks.move_to_end(handle.id, last=False)
    return handle


def run_pre(
    hooks: "OrderedDict[int, Any]", module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments for ``forward`` after all pre-hooks; what one returns replaces them."""
    for hook in tuple(hooks.values()):
        if hook.with_kwargs:
            result = hook.function(module, args, kwargs)
            if result is not None:
                if not (isinstance(result, tuple) and len(result) == 2):
                    raise RuntimeError(
                        "forward_pre_hook: expected None or (args, kwargs) from a hook with "
                        f"with_kwargs=True, got {result!r}; return both"
                    )
                args, kwargs = result
        else:
            result = hook.function(module, args)
            if result is not None:
                args = result if isinstance(result, tuple) else (result,)
    return args, kwargs


def run_post(
    hooks: "OrderedDict[int, Any]",
    module: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    out: Any,
) -> Any:
    """The result of the call after all forward hooks; what one returns replaces it."""
    for hook in tuple(hooks.values()):
        if hook.with_kwargs:
            result = hook.function(module, args, kwargs, out)
        else:
            result = hook.function(module, args, out)
        if result is not None:
            out = result
    return out
