"""Elementwise kernels for any layout: generated from the expressions the CPU's come from.

A kernel is a grid-stride loop over the elements of output 0. Axes are merged where all operands
allow it; what is left, the *rank*, and whether an operand is one number, is written into the text,
so that index arithmetic is straight-line code. Indices are int32 where all offsets fit, else int64.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import emit
from . import functions, runtime


class Writer(emit.Writer):
    """Writes expressions with the functions of ``numgrad.kernels.cuda.functions``."""

    def _text(self, op: str, names: tuple[str, ...]) -> str:
        if op == "sign" and self.compute == emit.BOOL:
            return names[0]
        if self.compute.kind == "f":
            call, T = f"{op}_{self.compute.name}", self.type
            if op == "isinf":
                return f"abs_{self.compute.name}({names[0]}) == {self.literal(math.inf)}"
            if op == "sigmoid":
                return f"{T}(1) / ({T}(1) + exp_{self.compute.name}(-{names[0]}))"
            if op in functions.FUNCTIONS:
                return f"{call}({', '.join(names)})"
        return super()._text(op, names)


class Kernel:
    """An elementwise operation: ``outputs`` are (expression, dtype), ``inputs`` (name, dtype)."""

    def __init__(
        self,
        title: str,
        compute: np.dtype[Any],
        inputs: Sequence[tuple[str, np.dtype[Any]]],
        outputs: Sequence[tuple[Any, np.dtype[Any]]],
    ) -> None:
        self.title, self.compute = title, compute
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._compiled: dict[Any, Any] = {}

    def variant(self, rank: int, numbers: tuple[bool, ...], index: str) -> Any:
        """The compiled kernel for ``rank`` merged axes; ``numbers`` tells which inputs are numbers
        and no arrays, ``index`` is the dtype of indices."""
        key = rank, numbers, index
        found = self._compiled.get(key)
        if found is None:
            namespace = functions.namespace()
            text = self.source(rank, numbers, index)
            runtime.define(text, namespace)
            found = self._compiled[key] = runtime.compile(namespace["kernel"])
        return found

    def source(self, rank: int, numbers: tuple[bool, ...], index: str) -> str:
        """Source of a kernel.

        Args, in this order: n; the lengths of all axes but the first, if there are several; for
        each output, then for each input that is an array: a flat device array, the place of its
        first element, its strides in elements; a number is one argument.

        Any strides. Reads each element of an input as often as it is repeated, writes each of an
        output once. Not checked: shapes, places, overlap.
        """
        writer = Writer(self.compute)
        results = [emit.stored(writer, value, dtype) for value, dtype in self.outputs]
        parameters = ["n", *(f"n{axis}" for axis in range(1, rank))]
        loads, stores = [], []

        def at(name: str) -> str:
            place = f"{name}_at"
            for axis in range(rank):
                place = f"{index}({place} + {index}(i{axis} * {name}_s{axis}))"
            return f"{name}_[{place}]"

        def operand(name: str) -> list[str]:
            return [f"{name}_", f"{name}_at", *(f"{name}_s{axis}" for axis in range(rank))]

        for j, result in enumerate(results):
            parameters += operand(f"o{j}")
            stores.append(f"{at(f'o{j}')} = {result}")
        for (name, dtype), number in zip(self.inputs, numbers, strict=True):
            parameters += [f"{name}_"] if number else operand(name)
            load = f"{name}_" if number else at(name)
            loads.append(f"{name} = {load}" + (" != uint8(0)" if dtype == emit.BOOL else ""))
        unfold = ["i0 = i"]
        for axis in reversed(range(1, rank)):
            unfold += [f"i{axis} = {index}(i0 % n{axis})", f"i0 = {index}(i0 // n{axis})"]
        body = [*unfold, *loads, *writer.lines, *stores]
        return "\n".join(
            [
                f'"""{self.title}"""',
                f"def kernel({', '.join(parameters)}):",
                f"    block = {index}(cuda.blockDim.x)",
                f"    first = {index}(cuda.blockIdx.x * block + cuda.threadIdx.x)",
                f"    step = {index}(cuda.gridDim.x * block)",
                "    for at in range(first, n, step):",
                f"        i = {index}(at)",
                *(f"        {line}" for line in body),
                "",
            ]
        )


def collapse(
    shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """``(lengths, strides of each operand)`` with axes merged wherever all operands allow it."""
    lengths: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis, n in enumerate(shape):
        if n == 1:
            continue
        if lengths and all(s[-1] == row[axis] * n for s, row in zip(steps, strides, strict=True)):
            lengths[-1] *= n
            for s, row in zip(steps, strides, strict=True):
                s[-1] = row[axis]
        else:
            lengths.append(n)
            for s, row in zip(steps, strides, strict=True):
                s.append(row[axis])
    if not lengths:
        lengths = [1]
        steps = [[0] for _ in strides]
    return lengths, steps


def broadcast_strides(array: Any, shape: Sequence[int]) -> list[int]:
    """Strides in elements of ``array`` broadcast to ``shape``: 0 along what is repeated."""
    lead = len(shape) - len(array.shape)
    own = zip(array.shape, array.strides, shape[lead:], strict=True)
    return [0] * lead + [0 if n == 1 and m != 1 else s // array.itemsize for n, s, m in own]
