"""The modes of the running code, and the one predicate that decides whether a node is made.

*Volatile* is a property of a value and is contagious; *no_grad* and *inference_mode* are properties
of the running code. All modes are thread-local.
"""

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class State(threading.local):
    """What this thread's code runs under."""

    grad: bool = True
    inference: bool = False
    anomaly: bool = False


state = State()


def decide(inputs: Iterable[Any]) -> tuple[bool, bool]:
    """``(volatile, record)`` for an operation on ``inputs`` (None and constants are passed over).

    volatile = any(input.volatile)
    record   = grad mode on  and  not volatile  and  any(input.requires_grad)
    """
    volatile = needs = False
    for x in inputs:
        if x is not None:
            if x._volatile:
                volatile = True
            elif x.requires_grad:
                needs = True
    return volatile, needs and not volatile and state.grad


class _Mode:
    """A context manager that is a decorator too; entering may nest and is undone on any exit."""

    def _enter(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> "_Mode":
        before = state.grad, state.inference, state.anomaly
        self.__dict__.setdefault("_stack", []).append(before)
        self._enter()
        return self

    def __exit__(self, *exc: object) -> None:
        state.grad, state.inference, state.anomaly = self.__dict__["_stack"].pop()

    def __call__(self, function: F) -> F:
        if not callable(function):
            raise TypeError(
                f"{type(self).__name__}: expected a function to decorate, got {function!r}; "
                f"write `with {type(self).__name__}():` for a block"
            )

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self._fresh():
                return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]

    def _fresh(self) -> "_Mode":
        return type(self)()


class no_grad(_Mode):
    """Results require no gradient, whatever their inputs. ``with no_grad():`` or ``@no_grad()``."""

    def _enter(self) -> None:
        state.grad = False


class enable_grad(_Mode):
    """Record again inside ``no_grad``. ``with enable_grad():`` or ``@enable_grad()``."""

    def _enter(self) -> None:
        state.grad, state.inference = True, False


class set_grad_enabled(_Mode):
    """Turn recording on or off: at once as a call, and until the block's end as a context."""

    def __init__(self, mode: bool) -> None:
        if not isinstance(mode, bool):
            raise TypeError(
                f"set_grad_enabled: expected a bool for mode, got {mode!r}; pass True or False"
            )
        self.mode = mode
        self._before: tuple[bool, bool] | None = (state.grad, state.inference)
        self._enter()

    def _enter(self) -> None:
        state.grad = self.mode

    def __enter__(self) -> "set_grad_enabled":
        stack = self.__dict__.setdefault("_stack", [])
        grad, inference = self._before or (state.grad, state.inference)
        self._before = None
        stack.append((grad, inference, state.anomaly))
        self._enter()
        return self

    def __call__(self, function: F) -> F:
        # As a decorator it acts only inside the function, not from the decoration on.
        if self._before is not None:
            state.grad, state.inference = self._before
            self._before = None
        return super().__call__(function)

    def _fresh(self) -> "_Mode":
        return set_grad_enabled(self.mode)


class inference_mode(_Mode):
    """Like ``no_grad``; results are marked, and saving one for a later backward raises."""

    def __init__(self, mode: bool = True) -> None:
        self.mode = mode

    def _enter(self) -> None:
        if self.mode:
            state.grad, state.inference = False, True

    def _fresh(self) -> "_Mode":
        return inference_mode(self.mode)


class detect_anomaly(_Mode):
    """Nodes remember the line that made them, and errors of the backward pass name it."""

    def __init__(self, mode: bool = True) -> None:
        self.mode = mode

    def _enter(self) -> None:
        state.anomaly = self.mode

    def _fresh(self) -> "_Mode":
        return detect_anomaly(self.mode)


def is_grad_enabled() -> bool:
    """Whether operations of this thread are recorded."""
    return state.grad


def is_inference_mode_enabled() -> bool:
    """Whether this thread is inside ``inference_mode``."""
    return state.inference
