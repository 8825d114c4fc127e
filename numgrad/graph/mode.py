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
    """What this thread's code runs under. ``inference`` implies that ``grad`` is False."""

    grad: bool = True
    inference: bool = False
    anomaly: bool = False


state = State()


UNNEEDED, RECORD, VOLATILE, NO_GRAD = range(4)
"""What ``decide`` may answer. A node is made for RECORD alone."""


def decide(inputs: Iterable[Any]) -> int:
    """Whether an operation on ``inputs`` (None is passed over) is recorded, and if not, why.

    volatile = any(input.volatile)
    record   = grad mode on  and  not volatile  and  any(input.requires_grad)
    """
    volatile = needs = False
    for x in inputs:
        if x is not None:
            base = x._base
            if base is not None and x._stamp != base._stamp:
                x.refresh()
            if x._volatile:
                volatile = True
            elif x._requires_grad:
                needs = True
    if volatile:
        return VOLATILE
    if needs:
        return RECORD if state.grad else NO_GRAD
    return UNNEEDED


class _Mode:
    """A context manager that is a decorator too; entering may nest and is undone on any exit."""

    def __new__(cls, *args: Any, **named: Any) -> Any:
        if args and callable(args[0]):  # `@no_grad` without parentheses
            return cls()(args[0])
        return super().__new__(cls)

    def __init__(self) -> None:
        self._before: list[tuple[bool, bool, bool]] = []

    def _enter(self) -> None:
        raise NotImplementedError

    def _again(self) -> "_Mode":
        """A new object of the same kind, for one call of a decorated function."""
        return type(self)()

    def __enter__(self) -> Any:
        self._before.append((state.grad, state.inference, state.anomaly))
        self._enter()
        return self

    def __exit__(self, *exc: object) -> None:
        state.grad, state.inference, state.anomaly = self._before.pop()

    def __call__(self, function: F) -> F:
        if not callable(function):
            raise TypeError(
                f"{type(self).__name__}: expected a function to decorate, got {function!r}; write "
                f"`with {type(self).__name__}():` for a block"
            )
        return self._decorated(function)

    def _decorated(self, function: F) -> F:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]


class no_grad(_Mode):
    """Results require no gradient, whatever their inputs. ``with no_grad():`` or ``@no_grad()``."""

    def _enter(self) -> None:
        state.grad = False


class enable_grad(_Mode):
    """Record again inside ``no_grad``; inside ``inference_mode`` still nothing is recorded."""

    def _enter(self) -> None:
        state.grad = not state.inference


class set_grad_enabled(_Mode):
    """Turn recording on or off: at once as a call, and until the block's end as a context.

    Inside ``inference_mode`` it stays off.
    """

    def __init__(self, mode: bool) -> None:
        super().__init__()
        _check_flag("set_grad_enabled", mode)
        self.mode = mode
        self._at_call: bool | None = state.grad
        self._enter()

    def _enter(self) -> None:
        state.grad = self.mode and not state.inference

    def _undo_call(self) -> None:
        if self._at_call is not None:
            state.grad, self._at_call = self._at_call, None

    def __enter__(self) -> Any:
        self._undo_call()  # the state to return to is that before the call
        return super().__enter__()

    def _decorated(self, function: F) -> F:
        self._undo_call()  # a decorator acts inside the function, not from the decoration on
        return super()._decorated(function)

    def _again(self) -> _Mode:
        return set_grad_enabled(self.mode)


class inference_mode(_Mode):
    """Like ``no_grad``; results are marked, and saving one for a later backward raises.

    ``inference_mode(False)`` inside of it turns it off.
    """

    def __init__(self, mode: bool = True) -> None:
        super().__init__()
        _check_flag("inference_mode", mode)
        self.mode = mode

    def _enter(self) -> None:
        if self.mode:
            state.grad, state.inference = False, True
        elif state.inference:
            state.grad, state.inference = True, False

    def _again(self) -> _Mode:
        return inference_mode(self.mode)


class detect_anomaly(_Mode):
    """Nodes and in-place writes remember the line that made them; errors of backward name it."""

    def __init__(self, mode: bool = True) -> None:
        super().__init__()
        _check_flag("detect_anomaly", mode)
        self.mode = mode

    def _enter(self) -> None:
        state.anomaly = self.mode

    def _again(self) -> _Mode:
        return detect_anomaly(self.mode)


def _check_flag(name: str, mode: Any) -> None:
    if not isinstance(mode, bool):
        raise TypeError(f"{name}: expected a bool for mode, got {mode!r}; pass True or False")


def is_grad_enabled() -> bool:
    """Whether operations of this thread are recorded."""
    return state.grad


def is_inference_mode_enabled() -> bool:
    """Whether this thread is inside ``inference_mode``."""
    return state.inference


def _is_volatile(x: Any) -> bool:
    if isinstance(x, (list, tuple)):
        return any(_is_volatile(y) for y in x)
    if not hasattr(x, "_volatile"):
        return False
    return decide((x,)) == VOLATILE


def _marked(result: Any) -> Any:
    for value in result if isinstance(result, tuple) else (result,):
        value._volatile = True
    return result


def composite(function: F) -> F:
    """Declare a function made of several ops: with a volatile operand none of them is recorded, and
    the result is volatile.

    Without it an op on parameters alone (the transpose of a weight) would make a node that nobody
    can reach, and an index that is volatile would be lost.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **named: Any) -> Any:
        if state.grad:
            for x in (*args, *named.values()):
                if _is_volatile(x):
                    with no_grad():
                        return _marked(function(*args, **named))
        return function(*args, **named)

    return wrapped  # type: ignore[return-value]
