"""What operations over one or two spatial axes ask of their attributes: an integer, or one for each
axis."""

from typing import Any

import numpy as np

from ..graph.errors import RangeError, expected

Lengths = int | tuple[int, ...]
"""An integer for all axes, or one for each."""

LARGEST = 2**31 - 1
"""Of a length, stride, padding or dilation: places are counted in 64 bits, and products must
fit."""

INTEGERS = (int, np.integer)

FORMS = {1: "(n, c, l) or (c, l)", 2: "(n, c, h, w) or (c, h, w)"}
"""The axes of an operand with one or two spatial ones."""


def for_axes(
    op: str,
    name: str,
    value: Any,
    axes: int,
    *,
    kinds: tuple[type, ...] = INTEGERS,
    noun: str = "integer",
    one: bool = True,
) -> tuple[Any, ...]:
    """One of ``kinds`` for each axis, from one for all or a sequence. ``one``: whether a sequence
    of one is for all axes.

    Raises:
        TypeError: other kinds.
        RangeError: another number of them.
    """
    given = tuple(value) if isinstance(value, (tuple, list)) else (value,) * axes
    if any(isinstance(v, bool) or not isinstance(v, kinds) for v in given):
        raise TypeError(
            expected(op, f"{noun}s", name, repr(value), "pass one, or one for each axis")
        )
    if len(given) != axes and not (one and len(given) == 1):
        what = f"one {noun}" if axes == 1 else f"one {noun} or {axes}"
        raise RangeError(expected(op, what, name, repr(value), "pass one for each axis"))
    return given * (axes // len(given))


def lengths(
    op: str, name: str, value: Any, axes: int, least: int, *, one: bool = True
) -> tuple[int, ...]:
    """An integer from ``least`` (0 or 1) to `LARGEST` for each axis; see `for_axes`.

    Raises:
        TypeError: not of integers.
        RangeError: another number of them, or one out of range.
    """
    if type(value) is int and least <= value <= LARGEST:  # nearly every call ends in these two
        return (value,) * axes
    if type(value) is tuple and len(value) == axes:
        for v in value:
            if type(v) is not int or not least <= v <= LARGEST:
                break
        else:
            return value
    given = for_axes(op, name, value, axes, one=one)
    if not all(least <= v <= LARGEST for v in given):
        raise RangeError(_out_of_range(op, name, value, "integers", least))
    return tuple(int(v) for v in given)


def integer(op: str, name: str, value: Any) -> int:
    """An integer of any size.

    Raises:
        TypeError: no integer.
    """
    if isinstance(value, bool) or not isinstance(value, INTEGERS):
        raise TypeError(expected(op, "an integer", name, repr(value), "use int()"))
    return int(value)


def length(op: str, name: str, value: Any, least: int) -> int:
    """An integer from ``least`` (0 or 1) to `LARGEST`.

    Raises:
        TypeError: no integer.
        RangeError: out of range.
    """
    number = integer(op, name, value)
    if not least <= number <= LARGEST:
        raise RangeError(_out_of_range(op, name, value, "integer", least))
    return number


def _out_of_range(op: str, name: str, value: Any, noun: str, least: int) -> str:
    kind = "positive" if least else "non-negative"
    article = "a " if noun == "integer" else ""
    return expected(
        op, f"{article}{kind} {noun} below 2**31", name, repr(value), f"use {least} or more"
    )
