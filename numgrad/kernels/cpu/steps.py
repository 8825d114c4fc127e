"""Steps of optimizers: all parameters of a group in one launch.

A *row* of the table describes one parameter: where its elements, its gradient and its state lie,
each contiguous. An item is CHUNK elements of one parameter, or what is left of it, so that threads
share large and small parameters alike. Elements do not depend on each other, and each is rounded
exactly as by the operations that the formula is written in (``numgrad.optim``), number by number.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..native import as_float64, inline, items_at, load_i64, store_i64
from ..store import Handwritten, named

CHUNK = 1 << 14
"""Elements of an item: five operands of 4 bytes stay within 320 KiB."""

END, FIRST, COUNT, P, G, A, B, C, X, Y, BEGUN = range(11)
"""Slots of a row: the item after its last, its first item, elements; addresses of the parameter,
its gradient and up to three tensors of state; the bits of up to two float64 of its own; BEGUN is 0
until an item of the row is computed."""
SLOTS = 11
TABLE = 0
"""Slot of the arguments: the address of the rows. Those from 1 on are the group's numbers."""

F32, F64 = np.float32, np.float64


def _stepping(name: str, dtype: Any, update: Callable[..., None]) -> Handwritten:
    """The ranged kernel that calls ``update(args, row, offset in bytes, elements)`` for an item."""
    update_inlined = inline(update)
    itemsize = np.dtype(dtype).itemsize

    def step(args, lo, hi, worker):
        row = load_i64(args, TABLE)
        for item in range(lo, hi):
            while load_i64(row, END) <= item:
                row += 8 * SLOTS
            store_i64(row, BEGUN, 1)
            start = (item - load_i64(row, FIRST)) * CHUNK
            update_inlined(args, row, start * itemsize, min(CHUNK, load_i64(row, COUNT) - start))

    step.__doc__ = (
        f"{update.__doc__}\n\nItems are chunks of CHUNK elements of rows. Operands: contiguous. "
        "Reads and writes each element once, and sets BEGUN of a row. Not checked: overlap."
    )
    return named(f"{name}_{np.dtype(dtype).name}", step)


def _sgd(dtype: Any, momentum: bool, nesterov: bool) -> Callable[..., None]:
    def sgd(args, row, at, n):
        """p += rate d with d = g + decay p; with a momentum b = keep b + gain d, or d where X is
        not 0, and d is b or, with nesterov, d + keep b. Numbers: rate, decay, keep, gain; A: b."""
        numbers = as_float64(args)
        rate, decay = dtype(numbers[1]), dtype(numbers[2])
        keep, gain = dtype(numbers[3]), dtype(numbers[4])
        first = as_float64(row)[X] != 0
        p, g = items_at(load_i64(row, P), at, dtype), items_at(load_i64(row, G), at, dtype)
        buffer = items_at(load_i64(row, A), at, dtype)
        for j in range(n):
            d = g[j]
            if decay != 0:
                d = d + decay * p[j]
            if momentum:
                b = buffer[j] * keep + gain * d
                b = d if first else b
                buffer[j] = b
                d = d + keep * b if nesterov else b
            p[j] = p[j] + rate * d

    return sgd


def _adam(dtype: Any, amsgrad: bool) -> Callable[..., None]:
    def adam(args, row, at, n):
        """p = shrink p + rate m / (sqrt(u) / root + eps) with d = g + decay p, m moved towards d by
        the part near, v = keep v + gain d d, u the larger of v and u with amsgrad, else v.

        Numbers: decay, shrink, near, keep, gain, eps; A, B, C: m, v, u; X, Y: rate, root."""
        numbers = as_float64(args)
        decay, shrink, near = dtype(numbers[1]), dtype(numbers[2]), dtype(numbers[3])
        keep, gain, eps = dtype(numbers[4]), dtype(numbers[5]), dtype(numbers[6])
        rate, root = dtype(as_float64(row)[X]), dtype(as_float64(row)[Y])
        one = dtype(1)
        small = abs(near) < dtype(0.5)
        p, g = items_at(load_i64(row, P), at, dtype), items_at(load_i64(row, G), at, dtype)
        mean, square = items_at(load_i64(row, A), at, dtype), items_at(load_i64(row, B), at, dtype)
        largest = items_at(load_i64(row, C), at, dtype)
        for j in range(n):
            x = p[j] * shrink
            d = g[j]
            if decay != 0:
                d = d + decay * x
            m = mean[j]
            m = m + near * (d - m) if small else d - (d - m) * (one - near)
            mean[j] = m
            u = square[j] * keep + gain * d * d
            square[j] = u
            if amsgrad:
                before = largest[j]
                u = before if (before > u) | (before != before) else u
                largest[j] = u
            p[j] = x + rate * m / (np.sqrt(u) / root + eps)

    return adam


def _rmsprop(dtype: Any, momentum: bool, centered: bool) -> Callable[..., None]:
    def rmsprop(args, row, at, n):
        """p += rate d / (sqrt(u) + eps), or with a momentum b = keep b + d / (sqrt(u) + eps) and
        p += rate b, where d = g + decay p, v = alpha v + gain d d, and u = v or, centered, v - a a
        with a moved towards d by the part gain.

        Numbers: rate, decay, alpha, gain, eps, keep; A, B, C: v, b, a."""
        numbers = as_float64(args)
        rate, decay, alpha = dtype(numbers[1]), dtype(numbers[2]), dtype(numbers[3])
        gain, eps, keep = dtype(numbers[4]), dtype(numbers[5]), dtype(numbers[6])
        one = dtype(1)
        small = abs(gain) < dtype(0.5)
        p, g = items_at(load_i64(row, P), at, dtype), items_at(load_i64(row, G), at, dtype)
        square, buffer = (
            items_at(load_i64(row, A), at, dtype),
            items_at(load_i64(row, B), at, dtype),
        )
        mean = items_at(load_i64(row, C), at, dtype)
        for j in range(n):
            d = g[j]
            if decay != 0:
                d = d + decay * p[j]
            u = square[j] * alpha + gain * d * d
            square[j] = u
            if centered:
                a = mean[j]
                a = a + gain * (d - a) if small else d - (d - a) * (one - gain)
                mean[j] = a
                u = u - a * a
            root = np.sqrt(u) + eps
            if momentum:
                b = buffer[j] * keep + d / root
                buffer[j] = b
                p[j] = p[j] + rate * b
            else:
                p[j] = p[j] + rate * d / root

    return rmsprop


def _kernels() -> dict[tuple[str, np.dtype[Any]], Handwritten]:
    found = {}
    for dtype in (F32, F64):
        updates = {
            "sgd": _sgd(dtype, False, False),
            "sgd_momentum": _sgd(dtype, True, False),
            "sgd_nesterov": _sgd(dtype, True, True),
            "adam": _adam(dtype, False),
            "adam_amsgrad": _adam(dtype, True),
            "rmsprop": _rmsprop(dtype, False, False),
            "rmsprop_momentum": _rmsprop(dtype, True, False),
            "rmsprop_centered": _rmsprop(dtype, False, True),
            "rmsprop_momentum_centered": _rmsprop(dtype, True, True),
        }
        for name, update in updates.items():
            found[name, np.dtype(dtype)] = _stepping(name, dtype, update)
    return found


KERNELS = _kernels()
"""By name and dtype; compiled when first used."""
