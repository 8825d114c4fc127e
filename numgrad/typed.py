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

    def __call__(cls, *args: Any) -> Any:
        return creation.legacy(args, cls.dtype)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor) and instance.dtype == cls.dtype

    def __repr__(cls) -> str:
        return f"<class 'numgrad.{cls.__name__}'>"


def _typed(dtype: np.dtype[Any]) -> Any:
    name = TYPE_NAMES[dtype]
    doc = (
        f"A tensor of dtype {dtype}: ``{name}(2, 3)`` uninitialised, ``{name}([1, 2])`` from data."
    )
    return _TypedTensor(name, (), {"dtype": dtype, "__doc__": doc, "__module__": "numgrad"})


FloatTensor, DoubleTensor = _typed(dtypes.float32), _typed(dtypes.float64)
IntTensor, LongTensor = _typed(dtypes.int32), _typed(dtypes.int64)
ByteTensor, BoolTensor = _typed(dtypes.uint8), _typed(dtypes.bool_)
