"""Scalar functions that generated CUDA kernels call: those of libdevice, under the names that
``numgrad.kernels.cpu.functions`` has, ``exp_float32`` and so on.

In the simulator, where libdevice does nothing, NumPy functions stand in for them: unlike those of
``math`` they give inf and nan as the GPU does.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from . import runtime


def _erf(x: Any) -> Any:
    return type(x)(math.erf(x))


FUNCTIONS: dict[str, tuple[str, Callable[..., Any]]] = {
    "exp": ("exp", np.exp),
    "expm1": ("expm1", np.expm1),
    "log": ("log", np.log),
    "log1p": ("log1p", np.log1p),
    "tanh": ("tanh", np.tanh),
    "erf": ("erf", _erf),
    "sqrt": ("sqrt", np.sqrt),
    "abs": ("fabs", np.fabs),
    "floor": ("floor", np.floor),
    "ceil": ("ceil", np.ceil),
    "trunc": ("trunc", np.trunc),
    "round": ("rint", np.rint),
}
"""Name in the scalar language -> (name in libdevice, its twin for the simulator)."""


@functools.cache
def bound() -> dict[str, Any]:
    """Every function under the name that kernels call it by."""
    found: dict[str, Any] = {}
    for name, (device_name, twin) in FUNCTIONS.items():
        for dtype, suffix in (("float32", "f"), ("float64", "")):
            found[f"{name}_{dtype}"] = (
                twin if runtime.simulated() else runtime.libdevice(device_name + suffix)
            )
    return found


def namespace() -> dict[str, Any]:
    """The names that the text of a generated kernel may use."""
    names: dict[str, Any] = {"np": np, "math": math, **bound()}
    for name in ("bool_", "float32", "float64", "int32", "int64", "uint8"):
        names[name] = getattr(np, name)
    return names
