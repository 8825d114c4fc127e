"""The typed constructors of old: ``FloatTensor(2, 3)``, ``isinstance(x, LongTensor)``."""

from typing import Any

import numpy as np

from .graph import dtypes
from .ops import creation
from .ops.printing import TYPE_NAMES
from .tensor import Tensor

dtypes.BY_NAME.update({name: dtype for dtype, name in TYPE_NAMES.items()})


class _TypedTensor(type):
    """``FloatTensor(2, 3)`` makes a tensor of its dtype; ``isinstance(x, FloatTensor)`` asks."""

    dtype: np.dtype[Any]
    device: str

    def __call__(cls, *args: Any) -> Any:
        return creation.legacy(args, cls.dtype, cls.device)

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, Tensor)
            and instance.dtype == cls.dtype
            and instance.device.type == cls.device
        )

    def __repr__(cls) -> str:
        return f"<class '{cls.__module__}.{cls.__name__}'>"


def typed(dtype: np.dtype[Any], device: str = "cpu", module: str = "numgrad") -> Any:
    """The typed constructor of a dtype on a kind of device."""
    name = TYPE_NAMES[dtype]
    doc = (
        f"A tensor of dtype {dtype} on {device}: ``{name}(2, 3)`` uninitialised, "
        f"``{name}([1, 2])`` from data."
    )
    names = {"dtype": dtype, "device": device, "__doc__": doc, "__module__": module}
    return _TypedTensor(name, (), names)


FloatTensor, DoubleTensor = typed(dtypes.float32), typed(dtypes.float64)
IntTensor, LongTensor = typed(dtypes.int32), typed(dtypes.int64)
ByteTensor, BoolTensor = typed(dtypes.uint8), typed(dtypes.bool_)
