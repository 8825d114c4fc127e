"""The scalar expression language that elementwise and reduction entries are written in.

The same text runs on three kinds of value: on symbols it builds an expression graph (from which
``numgrad.kernels.emit`` writes kernel source), on NumPy arrays it is the reference, and on Tensors
it applies the entries of the same name, so that a derivative has derivatives.

Write entries with ``import numgrad.kernels.scalar as s``: arithmetic, comparisons, ``& | ~`` on
conditions, and the functions of this module. Literals take the dtype of the operands.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

ARITHMETIC = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "pow": "**",
    "floordiv": "//",
    "mod": "%",
}
COMPARISON = {"lt": "<", "gt": ">", "le": "<=", "ge": ">=", "eq": "==", "ne": "!="}
LOGICAL = {"and": "&", "or": "|", "xor": "^"}


_UFUNCS = {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "power": "pow",
    "floor_divide": "floordiv",
    "remainder": "mod",
    "less": "lt",
    "greater": "gt",
    "less_equal": "le",
    "greater_equal": "ge",
    "equal": "eq",
    "not_equal": "ne",
}
"""What NumPy calls the operators."""


class Sym:
    """A node of an expression graph: operation ``op`` on ``args``; ``is_bool`` for conditions."""

    __slots__ = ("args", "is_bool", "op")

    def __init__(self, op: str, args: tuple[Any, ...], is_bool: bool = False) -> None:
        self.op, self.args, self.is_bool = op, args, is_bool

    def __bool__(self) -> bool:
        raise TypeError(
            f"`{show(self)}` is symbolic: an elementwise function is traced once and cannot branch;"
            " use where(condition, a, b) instead of `if`, `and`, `or` or `not`"
        )

    def __iter__(self) -> Any:
        raise TypeError(f"`{show(self)}` is one scalar: it cannot be iterated or unpacked")

    def __float__(self) -> float:
        raise TypeError(
            f"`{show(self)}` is symbolic: use the functions of numgrad.kernels.scalar (exp, log, …)"
            " instead of those of math or numpy"
        )

    __int__ = __index__ = __float__

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        op = _UFUNCS.get(ufunc.__name__)
        if method == "__call__" and op and not named:  # a NumPy number met a symbol
            return Sym(op, inputs, op in COMPARISON)
        raise TypeError(
            f"`{show(self)}` is symbolic: use numgrad.kernels.scalar.{ufunc.__name__} instead of "
            f"numpy.{ufunc.__name__}"
        )

    def __getattr__(self, name: str) -> Any:
        if name in FUNCTIONS:
            raise AttributeError(
                f"`{show(self)}` is a scalar without methods: use numgrad.kernels.scalar.{name}(…)"
            )
        raise AttributeError(f"`{show(self)}` is a scalar without an attribute {name!r}")

    def __hash__(self) -> int:
        return id(self)

    def __neg__(self) -> "Sym":
        return Sym("neg", (self,))

    def __pos__(self) -> "Sym":
        return self

    def __abs__(self) -> "Sym":
        return Sym("abs", (self,))

    def __invert__(self) -> "Sym":
        return Sym("not", (self,), True)


def _binary(op: str, is_bool: bool, reflected: bool) -> Callable[[Sym, Any], Sym]:
    def method(self: Sym, other: Any) -> Sym:
        if not isinstance(other, (Sym, int, float, np.number, np.bool_)):
            return NotImplemented
        args = (other, self) if reflected else (self, other)
        return Sym(op, args, is_bool)

    return method


for _name in ARITHMETIC:
    _python = {"div": "truediv"}.get(_name, _name)
    setattr(Sym, f"__{_python}__", _binary(_name, False, False))
    setattr(Sym, f"__r{_python}__", _binary(_name, False, True))
for _name in COMPARISON:
    setattr(Sym, f"__{_name}__", _binary(_name, True, False))
for _name in LOGICAL:
    setattr(Sym, f"__{_name}__", _binary(_name, True, False))
    setattr(Sym, f"__r{_name}__", _binary(_name, True, True))


def show(value: Any) -> str:
    """The expression as a user would write it."""
    if not isinstance(value, Sym):
        return repr(value)
    if value.op == "input":
        return str(value.args[0])
    if value.op == "neg":
        return f"-{show(value.args[0])}"
    sign = ARITHMETIC.get(value.op) or COMPARISON.get(value.op) or LOGICAL.get(value.op)
    if sign:
        return f"({show(value.args[0])} {sign} {show(value.args[1])})"
    return f"{value.op}({', '.join(map(show, value.args))})"


FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""Reference of every named function, on NumPy arrays."""


def _function(
    name: str, reference: Callable[..., Any], is_bool: bool = False
) -> Callable[..., Any]:
    FUNCTIONS[name] = reference

    def call(*args: Any) -> Any:
        symbolic = False
        for value in args:
            apply = getattr(value, "__numgrad_scalar__", None)
            if apply is not None:
                return apply(name, args)
            symbolic = symbolic or isinstance(value, Sym)
        if symbolic:
            return Sym(name, args, is_bool)
        return reference(*args)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"``{name}`` of scalars: a symbol, an array or a Tensor, as the arguments are."
    return call


def _erf(x: Any) -> Any:
    import math

    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(np.result_type(x, np.float32))


def _sign(x: Any) -> Any:
    return np.subtract(np.greater(x, 0), np.less(x, 0), dtype=np.result_type(x))


exp = _function("exp", np.exp)
expm1 = _function("expm1", np.expm1)
log = _function("log", np.log)
log1p = _function("log1p", np.log1p)
sqrt = _function("sqrt", np.sqrt)
tanh = _function("tanh", np.tanh)
sigmoid = _function("sigmoid", lambda x: np.exp(-np.logaddexp(0, -x)))
erf = _function("erf", _erf)
floor = _function("floor", np.floor)
ceil = _function("ceil", np.ceil)
trunc = _function("trunc", np.trunc)
round = _function("round", np.rint)
sign = _function("sign", _sign)
absolute = _function("abs", np.abs)
maximum = _function("maximum", np.maximum)
minimum = _function("minimum", np.minimum)
where = _function("where", np.where)
isfinite = _function("isfinite", np.isfinite, True)
isnan = _function("isnan", np.isnan, True)
isinf = _function("isinf", np.isinf, True)
