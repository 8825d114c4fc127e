"""Variable, with the rules of PyTorch up to 0.3, and Parameter, which passes for one."""

from typing import Any

import numpy as np

from .graph.above import above
from .graph.errors import expected, shown
from .graph.storage import PARAMETER
from .graph.value import Value
from .ops import creation
from .ops.printing import show
from .tensor import Tensor


class _VariableType(type):
    """``isinstance(parameter, Variable)`` holds, as it always did in PyTorch."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return type.__instancecheck__(cls, instance) or (
            cls is Variable and isinstance(instance, Parameter)
        )


class Variable(Tensor, metaclass=_VariableType):
    """A value with the rules of PyTorch up to 0.3: ``Variable(data, requires_grad, volatile)``.

    Results of operations on a Variable are Variables, and what would be 0-dim has shape ``(1,)``.
    ``volatile=True`` declares that nothing computed from it will be asked for gradients: no node is
    made and nothing is saved, whatever the parameters. Shares memory with ``data``.

    Raises:
        RuntimeError: both flags are True, or ``data`` is not a tensor or an array.
    """

    contagious = True

    def __new__(
        cls,
        data: Any = None,
        requires_grad: bool = False,
        volatile: bool = False,
        *args: Any,
        **named: Any,
    ) -> Any:
        for name, flag in (("requires_grad", requires_grad), ("volatile", volatile)):
            if not isinstance(flag, (bool, np.bool_)):
                raise RuntimeError(f"{name} must be a bool, got {shown(flag)}; pass True or False")
        if requires_grad and volatile:
            raise RuntimeError("Variable can't be volatile and require_grad at the same time!")
        if data is None:
            data = creation.empty(0)
        elif isinstance(data, np.ndarray):
            data = creation.as_tensor(data)
        if not isinstance(data, Value):
            raise RuntimeError(f"Variable data has to be a tensor, but got {type(data).__name__}")
        self = object.__new__(cls)
        self._init(data.array if data.shape else data.array.reshape(1), data.storage)
        self._inference = data._inference
        self._volatile = bool(volatile)
        if requires_grad:
            self.requires_grad = True
        return self

    def __init__(self, *args: Any, **named: Any) -> None:
        """Everything is done in ``__new__``; subclasses may pass on extra arguments."""

    def _volatile_or_gradient(self) -> bool:
        self.refresh()
        return self._volatile or "_is_gradient" in self.__dict__

    def _set_volatile(self, value: bool) -> None:
        super()._set_volatile(value)
        self.__dict__.pop("_is_gradient", None)

    volatile: Any = property(
        _volatile_or_gradient,
        _set_volatile,
        doc="Whether nothing that uses the value is recorded. True of gradients, without effect.",
    )


class Parameter(Tensor):
    """A tensor that a Module registers and optimizers train: ``Parameter(data, requires_grad)``.

    Shares memory with ``data`` and counts in the ledger as ``parameter``.

    Raises:
        TypeError: ``data`` is not a tensor or an array.
    """

    def __new__(cls, data: Any = None, requires_grad: bool = True, *args: Any, **named: Any) -> Any:
        if data is None:
            data = creation.empty(0)
        elif isinstance(data, np.ndarray):
            data = creation.as_tensor(data)
        if not isinstance(data, Value):
            raise TypeError(
                expected("Parameter", "a Tensor", "data", shown(data), "use numgrad.tensor(…)")
            )
        self = object.__new__(cls)
        self._init(data.array, data.storage)
        if requires_grad:
            self.requires_grad = True
        data.storage.move_to(PARAMETER)
        return self

    def __init__(self, *args: Any, **named: Any) -> None:
        """Everything is done in ``__new__``; subclasses may pass on extra arguments."""

    def __repr__(self) -> str:
        return f"Parameter containing:\n{show(self)}"


def _variable_gradient(value: Tensor) -> Any:
    """A gradient as the ``.grad`` of a Variable: a Variable that reads as volatile."""
    out = object.__new__(Variable)
    out._init(value.array, value.storage, value.group)
    out.__dict__["_is_gradient"] = True
    return out


above.Variable = Variable
above.variable_gradient = _variable_gradient
