"""The errors of the graph, and how all errors are worded.

``"{op}: expected {what} for {operand}, got {value}; {way out}"``, save for the texts that old code
matches on, which begin as PyTorch's did.
"""

import os
import sys
import warnings
from typing import Any

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class GradError(RuntimeError):
    """An error of the graph: what was asked of autograd is impossible or was made impossible."""


class ShapeError(ValueError, RuntimeError):
    """Shapes that do not fit. Also a RuntimeError, which PyTorch's users catch."""


class RangeError(ValueError, RuntimeError):
    """A value that an operation is not defined for. Also a RuntimeError, which PyTorch's users
    catch."""


class DtypeError(TypeError, RuntimeError):
    """A dtype that an operation cannot take. Also a RuntimeError, which PyTorch's users catch."""


class DeviceError(RuntimeError):
    """Operands on different devices, or on another one than the operation can work on."""


def expected(op: str, what: str, operand: str, value: object, way_out: str) -> str:
    """The text of an error in the common form."""
    return f"{op}: expected {what} for {operand}, got {value}; {way_out}"


def shown(value: object) -> str:
    """A value as errors show it: kind, shape and dtype of arrays and tensors, else its repr."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{type(value).__name__} of shape {tuple(shape)} and dtype {dtype}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 80 else text[:77] + '...'}"


def user_frame() -> tuple[Any, int]:
    """The innermost frame outside numgrad, None if there is none, and how far it is from here."""
    frame: Any = sys._getframe(1)
    depth = 1
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, depth = frame.f_back, depth + 1
    return frame, depth


def warn_user(text: str) -> None:
    """Warn (UserWarning) at the user's line, however deep inside numgrad the call stands."""
    _, depth = user_frame()
    warnings.warn(text, UserWarning, stacklevel=depth)
