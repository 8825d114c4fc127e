"""Public arithmetic where it is more than one entry: scaled sums, clamp, powers, both orders of the
scalar argument."""

import numbers
from typing import Any

import numpy as np

from ..graph.apply import beside
from ..graph.errors import ShapeError, expected, shown
from ..graph.mode import composite
from ..graph.value import Value
from ..kernels import scalar as s
from . import elementwise as e
from .declare import broadcast_shapes, check_out, elementwise
from .movement import as_written
from .primitive import tensor_operand


@elementwise(
    dx=lambda g: g,
    dy=lambda g, alpha: g * alpha,
    reference="numgrad.kernels.reference.elementwise:add_scaled",
)
def add_scaled(x, y, alpha=1):
    """``x + alpha * y``."""
    return x + alpha * y


@elementwise(
    dx=lambda g: g,
    dy=lambda g, z, value: g * value * z,
    dz=lambda g, y, value: g * value * y,
    reference="numgrad.kernels.reference.elementwise:addcmul",
)
def add_product(x, y, z, value=1):
    """``x + value * y * z``."""
    return x + value * y * z


@elementwise(
    dx=lambda g: g,
    dy=lambda g, z, value: g * value / z,
    dz=lambda g, y, z, value: -g * value * y / (z * z),
    dtype="floating",
    domain=(0.5, 3.0),
    reference="numgrad.kernels.reference.elementwise:addcdiv",
)
def add_quotient(x, y, z, value=1):
    """``x + value * y / z``."""
    return x + value * y / z


@elementwise(
    dx=lambda g, weight: g * (1 - weight),
    dy=lambda g, weight: g * weight,
    dweight=lambda g, x, y: g * (y - x),
    dtype="floating",
    reference="numgrad.kernels.reference.elementwise:lerp",
)
def lerp(x, y, weight):
    """``x + weight * (y - x)``, computed from the nearer end: weights 0 and 1 give x and y."""
    step = y - x
    return s.where(s.absolute(weight) < 0.5, x + weight * step, y - step * (1 - weight))


def _scalar_first(args: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """``f(x, value, y, …)``, the old order, as ``(x, y, …, value)``."""
    if len(args) == count + 1 and isinstance(args[1], numbers.Number):
        return (args[0], *args[2:], args[1])
    return args


def _scaled(in_place: bool, sign: int, args: tuple[Any, ...], alpha: Any, out: Any) -> Any:
    if len(args) == 3:
        x, y, alpha = _scalar_first(args, 2)
    elif len(args) == 2:
        x, y = args
    else:
        raise TypeError(
            f"add: expected two operands, got {len(args)}; write add(x, y) or add(x, y, alpha=…)"
        )
    scaled = alpha != 1
    entry: Any = add_scaled if scaled else e.add if sign > 0 else e.sub
    extra = (sign * alpha,) if scaled else ()
    if in_place:
        return entry.in_place(x, y, *extra)
    return entry(x, y, *extra) if out is None else entry(x, y, *extra, out=out)


def add(*args: Any, alpha: Any = 1, out: Any = None) -> Any:
    """``x + alpha * y``; also in the old order ``(x, alpha, y)``."""
    return _scaled(False, 1, args, alpha, out)


def add_(*args: Any, alpha: Any = 1) -> Any:
    """``x += alpha * y``; also in the old order ``(x, alpha, y)``."""
    return _scaled(True, 1, args, alpha, None)


def sub(*args: Any, alpha: Any = 1, out: Any = None) -> Any:
    """``x - alpha * y``; also in the old order ``(x, alpha, y)``."""
    return _scaled(False, -1, args, alpha, out)


def sub_(*args: Any, alpha: Any = 1) -> Any:
    """``x -= alpha * y``; also in the old order ``(x, alpha, y)``."""
    return _scaled(True, -1, args, alpha, None)


def addcmul(*args: Any, value: Any = 1) -> Any:
    """``x + value * y * z``; also in the old order ``(x, value, y, z)``."""
    return add_product(*_scalar_first(args, 3), **_keyword(args, value, 3))


def addcmul_(*args: Any, value: Any = 1) -> Any:
    """``x += value * y * z``; also in the old order ``(x, value, y, z)``."""
    return add_product.in_place(*_scalar_first(args, 3), **_keyword(args, value, 3))


def addcdiv(*args: Any, value: Any = 1) -> Any:
    """``x + value * y / z``; also in the old order ``(x, value, y, z)``."""
    return add_quotient(*_scalar_first(args, 3), **_keyword(args, value, 3))


def addcdiv_(*args: Any, value: Any = 1) -> Any:
    """``x += value * y / z``; also in the old order ``(x, value, y, z)``."""
    return add_quotient.in_place(*_scalar_first(args, 3), **_keyword(args, value, 3))


def _keyword(args: tuple[Any, ...], value: Any, count: int) -> dict[str, Any]:
    return {"value": value} if len(args) == count else {}


def div(x: Any, y: Any, rounding_mode: str | None = None, out: Any = None) -> Any:
    """``x / y``; ``rounding_mode`` ``"floor"`` or ``"trunc"`` rounds the quotient."""
    if rounding_mode is None:
        return e.div(x, y, out=out)
    if rounding_mode == "floor":
        return e.floor_divide(x, y, out=out)
    if rounding_mode == "trunc":
        if out is not None:
            e.div.check_out(out, (x, y))
        return e.trunc(e.div(x, y), out=out)
    raise ValueError(
        expected("div", "None, 'floor' or 'trunc'", "rounding_mode", repr(rounding_mode), "use one")
    )


def pow(x: Any, y: Any, out: Any = None) -> Any:
    """``x ** y``.

    Raises:
        ValueError: an integer tensor to a negative integer power.
    """
    if isinstance(x, Value) and isinstance(y, int) and y == 2:
        return e.square(x, out=out)
    _check_exponent(x, y)
    return e.pow(x, y, out=out)


def pow_(x: Any, y: Any) -> Any:
    """``x ** y`` in place. Raises ValueError: an integer tensor to a negative integer power."""
    _check_exponent(x, y)
    return e.pow.in_place(x, y)


def _check_exponent(x: Any, y: Any) -> None:
    """A number would wrap around as it is made a uint8, before the entry looks at it."""
    integer = isinstance(y, (int, np.integer))
    if integer and y < 0 and isinstance(x, Value) and x.dtype.kind != "f":
        raise ValueError(e.negative_exponent(y))


@composite
def clamp(x: Any, min: Any = None, max: Any = None, *, out: Any = None) -> Any:
    """x cut to ``[min, max]``, either of which may be left out or be a tensor."""
    return _clamp(x, min, max, False, out)


def clamp_(x: Any, min: Any = None, max: Any = None) -> Any:
    """x cut to ``[min, max]`` in place."""
    return _clamp(x, min, max, True, None)


def _clamp(x: Any, low: Any, high: Any, in_place: bool, out: Any) -> Any:
    tensor_operand("clamp", x)
    if low is None and high is None:
        raise ValueError("clamp: expected min or max, got neither; pass at least one of them")
    steps = [
        (entry, bound)
        for entry, bound in ((e.clamp_min, low), (e.clamp_max, high))
        if bound is not None
    ]
    if out is not None and len(steps) == 2:
        given = {"x": x, "min": low, "max": high}
        named = {name: y for name, y in given.items() if isinstance(y, Value)}
        shape = broadcast_shapes("clamp", list(named.values()), list(named))
        check_out("clamp", out, list(named.values()), shape, x.dtype)
    result = x
    for i, (entry, bound) in enumerate(steps):
        if in_place:
            entry.in_place(x, bound)
        elif out is not None and i == len(steps) - 1:
            return entry(result, bound, out=out)
        else:
            result = entry(result, bound)
    return result


def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    """x with ``value`` (converted to its dtype) where ``mask`` is True."""
    return e.where(mask, _as_fill("masked_fill", x, value), x)


def masked_fill_(x: Any, mask: Any, value: Any) -> Any:
    """Write ``value`` where ``mask`` is True."""
    value = _as_fill("masked_fill_", x, value)
    mask, value = beside(x, (mask, value))
    return e.assign.in_place(x, e.where(mask, value, x))


def _as_fill(op: str, x: Any, value: Any) -> Any:
    """``value`` as a number or 0-dim tensor of x's dtype."""
    value = as_written(op, x, value)
    if isinstance(value, Value) and value.shape not in ((), (1,)):
        raise ShapeError(expected(op, "a 0-dim tensor", "value", shown(value), "use where"))
    return value
