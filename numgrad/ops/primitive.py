"""Entries that are not elementwise: views, and primitives that name their kernels themselves.

The decorated function of a primitive is its *run* step: parameters are the result arrays, the
operand arrays (None where an optional operand is missing), then, keyword-only, the attributes, and
``record`` if it has aux results to make. That of a view returns the array that shares memory.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..graph.apply import apply, apply_in_place, check_device
from ..graph.errors import expected, shown
from ..graph.op import Op, Spec
from ..graph.value import Value
from ..kernels.cuda.array import DeviceArray


def tensor_operand(op: str, x: Any, name: str = "x") -> Any:
    """``x`` if it is a Tensor. Raises TypeError otherwise."""
    if not isinstance(x, Value):
        raise TypeError(expected(op, "a Tensor", name, shown(x), "use numgrad.tensor(…)"))
    return x


class Primitive(Op):
    """An op with a run step of its own. See :func:`primitive`."""

    def __init__(
        self,
        function: Callable[..., Any],
        rules: dict[str, Callable[..., Any] | None],
        *,
        infer: Callable[..., Any] | None,
        reference: str | None,
        view: bool = False,
        dynamic: bool = False,
        **described: Any,
    ) -> None:
        parameters = inspect.signature(function).parameters.values()
        outs = tuple(described.pop("outs", ("out",)))
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        operands = positional if view or dynamic else positional[len(outs) :]
        attrs = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "record"]
        self.defaults = {
            p.name: p.default
            for p in parameters
            if p.kind is p.KEYWORD_ONLY and p.default is not p.empty
        }
        self.optional = {p.name for p in parameters if p.name in operands and p.default is None}
        self.records = any(p.name == "record" for p in parameters)
        self.function, self._infer, self.view, self.dynamic = function, infer, view, dynamic
        self.reference_name = reference
        super().__init__(
            function.__name__,
            operands,
            rules,
            attrs=attrs,
            outs=outs,
            doc=function.__doc__,
            **described,
        )
        self.__module__ = function.__module__

    def __call__(self, *args: Any, **attrs: Any) -> Any:
        attrs = {**self.defaults, **attrs} if self.defaults else attrs
        return apply(self, self._inputs(args), attrs)

    def check(self, *args: Any, **attrs: Any) -> None:
        """Raise what a call with these arguments raises before it computes."""
        inputs = self._inputs(args)
        check_device(self, inputs)
        self.infer(inputs, {**self.defaults, **attrs})

    def _inputs(self, args: Sequence[Any]) -> list[Any]:
        """All operands, None for those left out. Raises TypeError unless they are Tensors."""
        inputs = list(args[0]) if self.variadic else list(args)
        names = self.operands * len(inputs) if self.variadic else self.operands
        if len(inputs) < len(names):
            inputs += [None] * (len(names) - len(inputs))
        for name, x in zip(names, inputs, strict=True):
            if not isinstance(x, Value) and not (x is None and name in self.optional):
                tensor_operand(self.name, x, name)
        return inputs

    def in_place(self, *inputs: Any, **attrs: Any) -> Any:
        """The op with its first operand's memory as the result."""
        return apply_in_place(self, inputs, {**self.defaults, **attrs})

    def infer(self, inputs: Sequence[Any], attrs: dict[str, Any]) -> Sequence[Spec] | None:
        if self._infer is None:
            return None
        specs = self._infer(inputs, **attrs) if self.variadic else self._infer(*inputs, **attrs)
        return [specs] if isinstance(specs[0], tuple) and isinstance(specs[1], np.dtype) else specs

    def run(
        self, outs: Sequence[np.ndarray], arrays: Sequence[Any], attrs: dict[str, Any], record: bool
    ) -> dict[str, Any] | None:
        if self.records:
            attrs = {**attrs, "record": record}
        operands = [list(arrays)] if self.variadic else arrays
        aux: dict[str, Any] | None = self.function(*outs, *operands, **attrs)
        return aux

    def run_dynamic(self, arrays: Sequence[Any], attrs: dict[str, Any]) -> Sequence[Any]:
        result = self.function(*arrays, **attrs)
        return result if isinstance(result, list) else [result]

    def see(self, array: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
        if type(array) is DeviceArray:
            return array.see(self.function, **attrs)
        result: np.ndarray = self.function(array, **attrs)
        return result


def primitive(
    *,
    infer: Callable[..., Any] | None,
    reference: str | None = None,
    outs: Sequence[str] = ("out",),
    aux: Sequence[str] = (),
    constant: Sequence[str] = (),
    variadic: bool = False,
    deferrable: bool = False,
    fused: Callable[..., Sequence[Any]] | None = None,
    derived: dict[str, Callable[..., Any]] | None = None,
    cuda: bool = False,
    register: bool = True,
    **rules: Callable[..., Any] | None,
) -> Callable[[Callable[..., Any]], Primitive]:
    """Declare an op by its run step.

    Args:
        infer: ``infer(*operands, **attrs) -> (shape, dtype)`` (a list of them for several outs);
            raises on bad input, before anything runs. None: only the data tell the shape, and the
            run step takes operands alone and returns ``(array, storage)`` pairs.
        reference: ``"module:function"``, an independent answer for the tests.
        outs, aux, constant, variadic, deferrable, fused, derived, register: see
            :class:`numgrad.graph.op.Op`.
        cuda: the run step works on arrays of a GPU, too: it only calls functions that do.
        dx, dy, …: the VJPs.
    """

    def declare(function: Callable[..., Any]) -> Primitive:
        op = Primitive(
            function,
            rules,
            infer=infer,
            reference=reference,
            dynamic=infer is None,
            outs=outs,
            aux=aux,
            constant=constant,
            variadic=variadic,
            deferrable=deferrable,
            fused=fused,
            derived=derived,
            register=register,
        )
        if cuda:
            op.run_cuda = op.run
        return op

    return declare


def view(
    *, reference: str | None = None, **rules: Callable[..., Any] | None
) -> Callable[[Callable[..., Any]], Primitive]:
    """Declare a view: the function returns an array that shares its operand's memory."""

    def declare(function: Callable[..., Any]) -> Primitive:
        return Primitive(function, rules, infer=None, reference=reference, view=True)

    return declare
