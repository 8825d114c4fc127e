"""Kernel source from expressions: block kernels for elementwise entries.

The text of a module says everything that decides its machine code: the helper functions it uses
stand in it textually, constants are literals of the compute dtype, and ``numgrad.kernels.store``
adds the options and the fingerprint of the intrinsics. Equal expressions give equal text.
"""

import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import scalar
from .scalar import Sym

BOOL, UINT8, INT32, INT64 = (np.dtype(name) for name in ("bool", "uint8", "int32", "int64"))
FLOAT32, FLOAT64 = np.dtype("float32"), np.dtype("float64")

HELPERS = ("exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf")
"""Functions of ``numgrad.kernels.cpu.functions``: pasted into the module, one version a dtype."""

_FLOAT_TEXT = {
    "neg": "-{0}",
    "abs": "np.fabs({0})",
    "sqrt": "np.sqrt({0})",
    "floor": "np.floor({0})",
    "ceil": "np.ceil({0})",
    "trunc": "np.trunc({0})",
    "round": "np.rint({0})",
    "isfinite": "{0} - {0} == {0} - {0}",
    "isnan": "{0} != {0}",
    "isinf": "np.fabs({0}) == {T}(np.inf)",
    "maximum": "{0} if ({0} > {1}) | ({0} != {0}) else {1}",
    "minimum": "{0} if ({0} < {1}) | ({0} != {0}) else {1}",
}
_INT_TEXT = {
    "neg": "{T}(-{0})",
    "abs": "{0} if {0} >= {T}(0) else {T}(-{0})",
    "floor": "{0}",
    "ceil": "{0}",
    "trunc": "{0}",
    "round": "{0}",
    "isfinite": "True",
    "isnan": "False",
    "isinf": "False",
    "maximum": "{0} if {0} > {1} else {1}",
    "minimum": "{0} if {0} < {1} else {1}",
}
_ANY_TEXT = {
    "where": "{1} if {0} else {2}",
    "sign": "{T}({T}({0} > {T}(0)) - {T}({0} < {T}(0)))",
    "not": "not {0}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} != {1}",
    "bool": "{0} != {T}(0)",
    "number": "{T}({0})",
}


def type_name(dtype: np.dtype) -> str:
    """How generated source names a dtype."""
    return "bool_" if dtype == BOOL else str(dtype.name)


class Writer:
    """Writes the expression graph of one kernel as assignments, each shared node once."""

    def __init__(self, compute: np.dtype) -> None:
        self.compute = compute
        self.type = type_name(compute)
        self.lines: list[str] = []
        self.helpers: dict[str, None] = {}
        self._names: dict[Any, str] = {}

    def literal(self, value: Any) -> str:
        if self.compute == BOOL:
            return str(bool(value))
        if self.compute.kind != "f":
            return f"{self.type}({int(value)})"
        number = float(value)
        if math.isfinite(number):
            return f"{self.type}({number!r})"
        name = "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"
        return f"{self.type}({name.replace('inf', 'np.inf').replace('nan', 'np.nan')})"

    def write(self, value: Any) -> str:
        """The name (or literal) that holds ``value``."""
        if not isinstance(value, Sym):
            return self.literal(value)
        if value.op == "input":
            return str(value.args[0])
        key: Any = value.op, tuple(self._operands(value))
        if key not in self._names:
            text = self._text(value.op, key[1])
            self._names[key] = name = f"v{len(self._names)}"
            self.lines.append(f"{name} = {text}")
        return self._names[key]

    def _operands(self, value: Sym) -> list[str]:
        if value.op in ("not", "and", "or", "xor"):
            return [self.condition(a) for a in value.args]
        if value.op == "where":
            condition, *rest = value.args
            if all(isinstance(a, Sym) and a.is_bool for a in rest):
                return [self.condition(a) for a in value.args]
            return [self.condition(condition), *(self.number(a) for a in rest)]
        if value.op in ("bool", "number"):
            return [self.write(a) for a in value.args]
        return [self.number(a) for a in value.args]

    def condition(self, value: Any) -> str:
        if isinstance(value, Sym) and not value.is_bool and self.compute != BOOL:
            return self.write(Sym("bool", (value,), True))
        if not isinstance(value, Sym):
            return str(bool(value))
        return self.write(value)

    def number(self, value: Any) -> str:
        if isinstance(value, Sym) and value.is_bool and self.compute != BOOL:
            return self.write(Sym("number", (value,)))
        return self.write(value)

    def _text(self, op: str, names: tuple[str, ...]) -> str:
        if op in HELPERS:
            helper = f"{op}_{self.compute.name}"
            self.helpers[helper] = None
            return f"{helper}({', '.join(names)})"
        table = _FLOAT_TEXT if self.compute.kind == "f" else _INT_TEXT
        template = table.get(op) or _ANY_TEXT.get(op)
        if template is not None:
            return template.format(*names, T=self.type)
        if op in scalar.COMPARISON:
            return f"{names[0]} {scalar.COMPARISON[op]} {names[1]}"
        if op not in scalar.ARITHMETIC:
            raise TypeError(
                f"{op}: expected a function with a {self.compute.name} kernel, got none"
            )
        if op == "div" and self.compute.kind != "f":
            raise TypeError(
                f"div: expected floating operands for /, got {self.compute.name}; declare the op "
                "with dtype='floating', or use //"
            )
        text = f"{names[0]} {scalar.ARITHMETIC[op]} {names[1]}"
        # Numba widens integers: each result is cut back to the compute dtype, as stored ones are.
        return text if self.compute.kind == "f" else f"{self.type}({text})"


def helper_sources(names: Sequence[str]) -> str:
    """The text of helper functions and of those they call, each once, callees first."""
    from .cpu import functions

    ordered: dict[str, str] = {}

    def visit(name: str) -> None:
        function = getattr(functions, name)
        for callee in function.__code__.co_names:
            if callee != name and inspect.isfunction(getattr(functions, callee, None)):
                visit(callee)
        if name not in ordered:
            ordered[name] = inspect.getsource(function)

    for name in names:
        visit(name)
    decorator = '@njit(fastmath={"contract"}, error_model="numpy", forceinline=True)\n'
    return "\n\n".join(decorator + text for text in ordered.values())


def prelude(title: str, helpers: Sequence[str]) -> str:
    """Imports and helpers of a generated module."""
    text = f'''"""{title}"""
import math
import numpy as np
from numba import njit
from numpy import bool_, float32, float64, int32, int64, uint8
from numgrad.kernels.native import (
    as_bool, as_float32, as_float64, as_int32, as_int64, as_uint8, load_i64, stack, store_i64
)

'''
    return text + (helper_sources(helpers) + "\n\n" if helpers else "")


def stored(writer: Writer, value: Any, dtype: np.dtype) -> str:
    """The text that converts ``value`` for an output of ``dtype``."""
    is_bool = (isinstance(value, Sym) and value.is_bool) or writer.compute == BOOL
    if dtype == BOOL:
        return f"uint8({writer.condition(value)})"
    name = writer.write(value)
    if dtype == writer.compute and not is_bool:
        return name
    if dtype == UINT8 and writer.compute.kind == "f":
        # Out of range such a conversion has no defined result in LLVM; from int64 it wraps.
        return f"uint8(int64({name}))"
    return f"{type_name(dtype)}({name})"


def block(
    title: str,
    compute: np.dtype,
    inputs: Sequence[tuple[str, np.dtype]],
    outputs: Sequence[tuple[Any, np.dtype]],
) -> str:
    """Source of a block kernel: ``outputs`` are (expression, dtype), ``inputs`` (name, dtype)."""
    writer = Writer(compute)
    results = [stored(writer, value, dtype) for value, dtype in outputs]
    pointers, loads, stores = [], [], []
    for j, (_, dtype) in enumerate(outputs):
        pointers.append(f"    o{j}_ = as_{dtype.name}(load_i64(pointers, {j}))")
        stores.append(f"        o{j}_[i] = {results[j]}")
    for j, (name, dtype) in enumerate(inputs, len(outputs)):
        pointers.append(f"    {name}_ = as_{dtype.name}(load_i64(pointers, {j}))")
        loads.append(f"        {name} = {name}_[i]" + (" != 0" if dtype == BOOL else ""))
    lines = [*pointers, "    for i in range(n):", *loads]
    lines += [f"        {line}" for line in writer.lines] + stores
    body = "def kernel(pointers, n):\n" + "\n".join(lines) + "\n"
    return prelude(title, list(writer.helpers)) + body
