"""The part of a module that changes the dtype and the device of all it holds."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from ..graph import storage
from ..graph.device import device as Device
from ..graph.mode import no_grad
from ..ops.creation import empty
from ..tensor import Tensor
from .registry import as_buffer

C = TypeVar("C", bound="Casting")


def _floating(value: Tensor) -> bool:
    return value.dtype.kind == "f"


def _become(target: Tensor, value: Tensor, category: int) -> None:
    """Give a tensor the memory of another, of any dtype; flags and hooks stay."""
    if value.storage is not target.storage:
        target.take_memory(value)
        target.storage.move_to(category)


class Casting:
    """``to``, ``type``, ``float``, ``double``, ``cpu``, ``cuda``: change a module in place.

    Parameters stay the same objects, so an optimizer goes on with them. Each call returns the
    module.
    """

    def _apply(self: C, fn: Callable[[Tensor], Tensor]) -> C:
        modules: Iterator[Any] = self.modules()  # type: ignore[attr-defined]
        with no_grad():
            for module in modules:
                for parameter in module._parameters.values():
                    if parameter is None:
                        continue
                    grad = parameter.grad
                    _become(parameter, fn(parameter.detach()), storage.PARAMETER)
                    if grad is not None:
                        _become(grad, fn(grad.detach()), storage.GRADIENT)
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        module._buffers[name] = as_buffer(fn(buffer))
        return self

    def to(self: C, *args: Any, **kwargs: Any) -> C:
        """Change device, dtype or both: ``to(device)``, ``to(dtype)``, ``to(device, dtype)``.

        ``to(tensor)`` takes both from a tensor. A dtype is applied to floating-point parameters and
        buffers only.

        Raises:
            TypeError: the dtype is not a floating-point one, or an argument is none of these.
        """
        kwargs.pop("non_blocking", None)
        target = kwargs.pop("device", None)
        dtype = kwargs.pop("dtype", None)
        for arg in args:
            if isinstance(arg, Tensor):
                target, dtype = arg.device, arg.dtype
            elif isinstance(arg, (str, Device)) or type(arg) is int:
                target = arg
            elif isinstance(arg, (np.dtype, type)):
                dtype = arg
            elif arg is not None and not isinstance(arg, bool):  # non_blocking, by position
                raise TypeError(
                    f"Module.to: expected a device, a dtype or a tensor for an argument, got "
                    f"{arg!r}; pass for instance 'cpu' or numgrad.float64"
                )
        if kwargs:
            raise TypeError(
                f"Module.to: expected device, dtype or non_blocking for a keyword, got "
                f"{next(iter(kwargs))!r}; leave it out"
            )
        if dtype is not None:
            dtype = np.dtype(dtype)
            if dtype.kind != "f":
                raise TypeError(
                    "nn.Module.to only accepts floating point dtypes, but got desired "
                    f"dtype={dtype}; convert a single tensor with its own to()"
                )
        where = None if target is None else Device(target)

        def convert(value: Tensor) -> Tensor:
            if where is not None:
                value = value.to(where)
            return value.to(dtype) if dtype is not None and _floating(value) else value

        return self._apply(convert)

    def type(self: C, dst_type: Any) -> C:
        """Change the dtype of all parameters and buffers; also by the tensor types of old, which
        say the device, too: ``type(numgrad.cuda.FloatTensor)``.

        Raises:
            RuntimeError: a type of a GPU that is not there.
            TypeError: the dtype is not a floating-point one and a parameter requires grad.
        """
        dtype = empty(0).type(dst_type).dtype
        parameters: Iterator[Any] = self.parameters()  # type: ignore[attr-defined]
        if dtype.kind != "f" and any(p.requires_grad for p in parameters):
            raise TypeError(
                "Module.type: expected a floating-point dtype, which can require gradients, for "
                f"dst_type, got {dtype}; call requires_grad_(False) on the parameters first"
            )
        return self._apply(lambda value: value.type(dst_type))

    def float(self: C) -> C:
        """Change floating-point parameters and buffers to float32."""
        return self._apply(lambda value: value.float() if _floating(value) else value)

    def double(self: C) -> C:
        """Change floating-point parameters and buffers to float64."""
        return self._apply(lambda value: value.double() if _floating(value) else value)

    def cpu(self: C) -> C:
        """Move all parameters and buffers to the CPU."""
        return self._apply(lambda value: value.cpu())

    def cuda(self: C, device: Any = None) -> C:
        """Move all parameters and buffers to a GPU.

        Raises:
            RuntimeError: there is no such GPU; says what is missing.
        """
        return self._apply(lambda value: value.cuda(device))
