"""Elementwise entries: one decorated scalar function is a public function, its kernels on any
layout, its derivative kernels, its reference, and its tests.

The function is traced on symbols once, when it is declared; it is never parsed.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..graph import device as devices
from ..graph import dtypes, mode
from ..graph.apply import (
    Constant,
    above,
    apply,
    apply_in_place,
    beside,
    check_same_device,
    check_writable,
    make,
)
from ..graph.errors import DeviceError, DtypeError, ShapeError, expected, shown
from ..graph.mode import no_grad
from ..graph.node import Node
from ..graph.op import Op, Rule, Spec
from ..graph.storage import allocate, allocate_on
from ..graph.value import Value
from ..kernels import emit, launch, native, store
from ..kernels import scalar as s
from ..kernels.cuda import elementwise as cuda_elementwise
from ..kernels.cuda import launch as cuda_launch
from ..kernels.cuda.array import DeviceArray
from ..kernels.scalar import Sym

NUMBERS = (int, float, np.integer, np.floating, np.bool_)
NO_ATTRS: dict[str, Any] = {}

promote, numeric, floating = "promote", "numeric", "floating"
"""Compute dtypes: PyTorch's promotion; the same with bool made int64; with integers, too, made the
default float."""


_constants: dict[str, dict[Any, Constant]] = {d.char: {} for d in dtypes.FLOATING}


def constant_of(op: str, value: Any, dtype: np.dtype) -> Constant:
    """A Python number as a constant of a floating dtype; recent ones are kept, for code repeats.
    Beyond the largest float32 it is infinite, as in PyTorch.

    Raises:
        OverflowError: an integer beyond float64.
    """
    kept = _constants[dtype.char] if value else {}  # 0.0 == -0.0: as a key zero is ambiguous
    found = kept.get(value)
    if found is None:
        try:
            with np.errstate(over="ignore"):
                found = Constant(np.array(value, dtype))
        except OverflowError:
            digits = f"an integer of {value.bit_length()} bits"
            raise OverflowError(
                expected(op, "a number that float64 holds", "a scalar", digits, "use math.inf")
            ) from None
        if len(kept) >= 256:
            kept.clear()
        kept[value] = found
    return found


def broadcast_shapes(op: str, inputs: Sequence[Any], names: Sequence[str]) -> tuple[int, ...]:
    """The common shape of the operands, by NumPy's rules.

    Raises:
        ShapeError: they do not broadcast.
    """
    shape: tuple[int, ...] = inputs[0].shape
    for x, name in zip(inputs[1:], names[1:], strict=True):
        other = x.shape
        if other == shape or not other:
            continue
        longer, shorter = (shape, other) if len(shape) >= len(other) else (other, shape)
        merged = list(longer)
        offset = len(longer) - len(shorter)
        for axis, n in enumerate(shorter, offset):
            if merged[axis] == 1:
                merged[axis] = n
            elif n not in (1, merged[axis]):
                shapes = ", ".join(f"{n} {x.shape}" for n, x in zip(names, inputs, strict=True))
                raise ShapeError(
                    expected(
                        op,
                        f"a shape that broadcasts with {shape}",
                        name,
                        f"{other} ({shapes}; dtypes {', '.join(str(x.dtype) for x in inputs)})",
                        "each axis must be equal or 1: reshape or unsqueeze one of them",
                    )
                )
        shape = tuple(merged)
    return shape


class Elementwise(Op):
    """An op declared by a function of scalars. See :func:`elementwise`."""

    def __init__(
        self,
        function: Callable[..., Any],
        rules: dict[str, Callable[..., Any] | None],
        *,
        dtype: str,
        constant: Sequence[str],
        conditions: Sequence[str],
        reference: str | None,
        domain: tuple[float, float],
        edges: Sequence[float],
        check: Callable[..., None] | None,
        register: bool,
    ) -> None:
        parameters = inspect.signature(function).parameters
        self.function = function
        self.defaults = {
            name: p.default
            for name, p in parameters.items()
            if p.default is not inspect.Parameter.empty
        }
        self.conditions = tuple(conditions)
        self.compute_rule, self.domain, self.edges = dtype, domain, tuple(edges)
        self.reference_name, self.check = reference, check
        super().__init__(
            function.__name__,
            tuple(parameters),
            rules,
            constant=(*constant, *conditions, *self.defaults),
            deferrable=True,
            doc=function.__doc__,
            register=register,
        )
        self.__module__ = function.__module__
        self._inputs = {name: Sym("input", (name,), name in self.conditions) for name in parameters}
        self.expression = function(*self._inputs.values())
        if not isinstance(self.expression, (Sym, *NUMBERS)):
            raise TypeError(
                f"{self.name}: expected a scalar expression for the function's result, got "
                f"{self.expression!r}; return an expression of the arguments"
            )
        self.is_condition = isinstance(self.expression, Sym) and self.expression.is_bool
        self._gradients = {
            operand: self._trace_rule(operand, rule)
            for operand, rule in zip(self.operands, self.rules, strict=True)
            if rule is not None
        }
        self._plain = not self.conditions
        self._forward: dict[Any, store.Kernel] = {}
        self._backward: dict[Any, Any] = {}

    def _trace_rule(self, operand: str, rule: Rule) -> Any:
        g, out = Sym("input", ("g",)), Sym("input", ("out",))
        known = {**self._inputs, "g": g, "out": out}
        unknown = [name for name in rule.asks if name not in known]
        if unknown:
            raise TypeError(
                f"{self.name}: d{operand} asks for {unknown}; it may ask for {', '.join(known)}"
            )
        gradient = rule.function(*(known[name] for name in rule.asks))
        if gradient is not g and set(rule.asks) != {"g"}:
            gradient = guarded(g, gradient)
        return gradient

    # ------------------------------------------------------------------------------------- calling

    def __call__(self, *args: Any, out: Any = None, **named: Any) -> Any:
        if named or len(args) != len(self.operands):
            args = self._bind(args, named)
        if out is None:
            return apply(self, self.convert(args), NO_ATTRS)
        self.check_out(out, args)
        result = apply(self, self.convert(args), NO_ATTRS)
        out.copy_(result)
        if result._volatile and out.contagious:
            out._volatile = True
        return out

    def check_out(self, out: Any, args: Sequence[Any]) -> None:
        """Raise unless ``out`` can take the result for ``args``; nothing is made."""
        compute = self._compute_dtype(args)
        named = [(x, n) for x, n in zip(args, self.operands, strict=True) if isinstance(x, Value)]
        shape = broadcast_shapes(self.name, *zip(*named, strict=True)) if named else ()
        check_out(self.name, out, args, shape, dtypes.bool_ if self.is_condition else compute)

    def in_place(self, *args: Any, **named: Any) -> Any:
        """The op with its first operand's memory as the result."""
        if named or len(args) != len(self.operands):
            args = self._bind(args, named)
        x = args[0]
        if not isinstance(x, Value):
            raise TypeError(
                expected(
                    f"{self.name}_", "a Tensor", self.operands[0], shown(x), "make it a tensor"
                )
            )
        if self.operands[0] in self.conditions:
            raise TypeError(
                f"{self.name}_: expected an op whose first operand is no condition, got "
                f"{self.name}; assign its result instead"
            )
        inputs = self.convert((x, *beside(x, args[1:])))
        if inputs[0] is x and not self.is_condition:
            return apply_in_place(self, inputs, NO_ATTRS)
        # Computed in another dtype than x has: the result is converted as it is written.
        shape, dtype = self.infer(inputs, NO_ATTRS)[0]
        if dtypes.rank(dtype) > dtypes.rank(x.dtype) and not self.is_condition:
            raise DtypeError(
                f"{self.name}_: expected operands that {x.dtype} can hold, got a result of dtype "
                f"{dtype}; result type {dtype} can't be cast to the desired output type {x.dtype}: "
                "convert the tensor first"
            )
        if shape != x.shape:
            raise ShapeError(
                f"{self.name}_: expected a result of shape {x.shape} for {self.operands[0]}, got "
                f"{shape}; an in-place operation cannot change the shape"
            )
        check_writable(f"{self.name}_", x)
        return above.assign.in_place(x, above.cast(apply(self, inputs, NO_ATTRS), x.dtype))

    def _bind(self, args: Sequence[Any], named: dict[str, Any]) -> tuple[Any, ...]:
        if len(args) > len(self.operands):
            raise TypeError(
                f"{self.name}: expected at most {len(self.operands)} arguments "
                f"({', '.join(self.operands)}), got {len(args)}; leave out the rest"
            )
        bound = dict(zip(self.operands, args, strict=False))
        aliases = {
            "input": self.operands[0],
            "other": self.operands[min(1, len(self.operands) - 1)],
        }
        for name, value in named.items():
            target = name if name in self.operands else aliases.get(name)
            if target is None or target in bound:
                raise TypeError(
                    f"{self.name}: expected keywords among {', '.join(self.operands)}, out, got "
                    f"{name!r}; check the spelling"
                )
            bound[target] = value
        missing = [n for n in self.operands if n not in bound and n not in self.defaults]
        if missing:
            raise TypeError(
                f"{self.name}: expected a value for {', '.join(missing)}, got none; pass it"
            )
        return tuple(bound.get(n, self.defaults.get(n)) for n in self.operands)

    def convert(self, args: Sequence[Any]) -> Sequence[Any]:
        """Operands of the compute dtype; Python numbers become constants of it."""
        first = args[0]
        if self._plain and isinstance(first, Value):  # quickly, what nearly every call is
            dtype = first._dtype
            if dtype.kind == "f" or dtype is self._ruled(dtype):
                for x in args:
                    if not isinstance(x, Value) or x._dtype is not dtype:
                        break
                else:
                    return args
                number = args[1] if len(args) == 2 and first._shape and dtype.kind == "f" else None
                if type(number) in (float, int):
                    return first, constant_of(self.name, number, dtype)
        compute = self._compute_dtype(args)
        if devices.used:  # before a conversion runs
            check_same_device(self.name, args, self.operands)
        volatile = any(isinstance(x, Value) and x.volatile for x in args)
        return [
            self._operand(name, x, dtypes.bool_ if name in self.conditions else compute, volatile)
            for name, x in zip(self.operands, args, strict=True)
        ]

    def _ruled(self, dtype: np.dtype) -> np.dtype:
        """The dtype to compute in when the operands promote to ``dtype``."""
        if dtype.kind == "f" or self.compute_rule == promote:
            return dtype
        if self.compute_rule == floating:
            return dtypes.get_default_dtype()
        return dtypes.int64 if dtype == dtypes.bool_ else dtype

    def _compute_dtype(self, args: Sequence[Any]) -> np.dtype:
        kinds = []
        for name, x in zip(self.operands, args, strict=True):
            if isinstance(x, Value):
                if name not in self.conditions:
                    kinds.append((x.dtype, 0 if x.shape else 1))
            elif isinstance(x, NUMBERS):
                if name not in self.defaults and name not in self.conditions:
                    kinds.append((dtypes.of_scalar(x), 2))
            else:
                raise TypeError(
                    expected(
                        self.name, "a Tensor or a number", name, shown(x), "use numgrad.tensor(…)"
                    )
                )
        compute = self._ruled(dtypes.result_type(kinds) if kinds else dtypes.bool_)
        if self.is_condition and compute.kind in "iu":
            limits = np.iinfo(compute)
            if any(
                isinstance(x, (int, np.integer)) and not limits.min <= x <= limits.max for x in args
            ):
                return dtypes.int64  # a uint8 is below 300 and above -1
        return compute

    def _operand(self, name: str, x: Any, dtype: Any, any_volatile: bool) -> Any:
        if isinstance(x, Value):
            if x.dtype == dtype:
                return x
            if name in self.conditions and x.dtype != dtypes.uint8:
                raise DtypeError(
                    expected(
                        self.name,
                        "a bool (or uint8) condition",
                        name,
                        shown(x),
                        "compare it with 0",
                    )
                )
            if any_volatile:
                with no_grad():  # a converted parameter is not worth a node that nobody can reach
                    return above.cast(x, dtype)
            return above.cast(x, dtype)
        if dtype.kind != "f" and isinstance(x, (float, np.floating)) and name in self.defaults:
            raise DtypeError(
                expected(
                    self.name, f"a value that {dtype} holds", name, repr(x), "use a float tensor"
                )
            )
        if dtype.kind in "iu" and not -(2**63) <= x < 2**63:
            raise OverflowError(
                expected(self.name, "an integer of 64 bits", name, x, "use a floating number")
            )
        if dtype.kind == "f":
            return constant_of(self.name, x, dtype)
        return Constant(np.array(x).astype(dtype))  # integers wrap around, as in PyTorch

    # ------------------------------------------------------------------------------------- forward

    def infer(self, inputs: Sequence[Any], attrs: dict[str, Any]) -> Sequence[Spec]:
        shape = inputs[0]._shape
        for x in inputs:
            other = x._shape
            if other != shape and other:
                if shape:
                    shape = broadcast_shapes(self.name, inputs, self.operands)
                    break
                shape = other
        if self._plain and not self.is_condition:
            return ((shape, inputs[0]._dtype),)
        return ((shape, dtypes.bool_ if self.is_condition else self._compute(inputs)),)

    def _compute(self, inputs: Sequence[Any]) -> np.dtype:
        dtype: np.dtype = inputs[0].dtype
        if self.conditions:
            for name, x in zip(self.operands, inputs, strict=True):
                if name not in self.conditions:
                    dtype = x.dtype
                    break
        return dtype

    def run(
        self, outs: Sequence[np.ndarray], arrays: Sequence[Any], attrs: dict[str, Any], record: bool
    ) -> None:
        if self.check is not None:
            self.check(*arrays)
        key = (self._compute(arrays), outs[0].dtype)
        kernel = self._forward.get(key) or self._forward_kernel(key)
        launch.elementwise(kernel, (outs[0], *arrays))

    def _forward_kernel(self, key: Any) -> store.Kernel:
        compute, out = key
        inputs = self._inputs_of(compute)
        text = emit.block(f"{self.name} {compute}", compute, inputs, [(self.expression, out)])
        kernel = self._forward[key] = store.generated(text, native.BLOCK_SIGNATURE)
        return kernel

    def run_cuda(
        self, outs: Sequence[Any], arrays: Sequence[Any], attrs: dict[str, Any], record: bool
    ) -> None:
        compute = self._compute(arrays)
        if self.check is not None and compute.kind != "f":
            # It looks at values: this waits for the device.
            self.check(*[a.to_host() if isinstance(a, DeviceArray) else a for a in arrays])
        key = ("cuda", compute, outs[0].dtype)
        kernel: Any = self._forward.get(key)
        if kernel is None:
            inputs = self._inputs_of(compute)
            outputs = [(self.expression, outs[0].dtype)]
            kernel = cuda_elementwise.Kernel(f"{self.name} {compute}", compute, inputs, outputs)
            self._forward[key] = kernel
        cuda_launch.elementwise(kernel, (outs[0], *arrays))

    def _inputs_of(self, compute: np.dtype) -> list[tuple[str, np.dtype]]:
        return [(n, dtypes.bool_ if n in self.conditions else compute) for n in self.operands]

    def reference(self, *arrays: Any, **attrs: Any) -> Any:
        return self.function(*arrays, **attrs)

    # ----------------------------------------------------------------------------------- gradients

    def vjp(
        self, node: Node, grads: Sequence[Any], needs: Sequence[bool], create_graph: bool
    ) -> Sequence[Any]:
        g = grads[0]
        if create_graph:
            results = super().vjp(node, grads, needs, create_graph)
            return [
                dx
                if dx is None or dx is g or self.rules[i].asks == ("g",)  # type: ignore[union-attr]
                else above.guard(g, dx)
                for i, dx in enumerate(results)
            ]
        saved: Any = node.live_saved()
        on_device = devices.used and g.device is not devices.CPU
        key = (tuple(needs), g.dtype, on_device)
        plan = self._backward.get(key)
        if plan is None:
            plan = self._backward[key] = self._backward_plan(*key)
        kernel, names, written = plan
        results = [g if need else None for need in needs]
        if kernel is not None:
            shape = node.out_specs[0][0]
            if on_device:
                made = [allocate_on(g.device, shape, g.dtype) for _ in written]
            else:
                made = [allocate(shape, g.dtype) for _ in written]
            arrays = [array for array, _ in made]
            arrays += [g.array if name == "g" else saved[name].array for name in names]
            if devices.used:
                _check_memory(self.name, arrays, on_device)
            (cuda_launch if on_device else launch).elementwise(kernel, arrays, len(made))
            for index, (array, storage) in zip(written, made, strict=True):
                results[index] = make(array, storage)
        return results

    def _backward_plan(self, needs: tuple[bool, ...], dtype: np.dtype, on_device: bool) -> Any:
        """``(kernel, its input names, operands it writes)``; an operand whose gradient is ``g``
        itself is not written."""
        written, outputs = [], []
        asked: set[str] = set()
        for index, (operand, need) in enumerate(zip(self.operands, needs, strict=True)):
            if need and not _is_g(self._gradients[operand]):
                written.append(index)
                outputs.append((self._gradients[operand], dtype))
                rule = self.rules[index]
                assert rule is not None
                asked.update(rule.asks, ("g",))
        if not written:
            return None, (), ()
        names = [n for n in ("g", *self.operands, "out") if n in asked]
        inputs = [(n, dtypes.bool_ if n in self.conditions else dtype) for n in names]
        title = (
            f"gradient of {self.name} {dtype}: {', '.join('d' + self.operands[i] for i in written)}"
        )
        kernel: Any
        if on_device:
            kernel = cuda_elementwise.Kernel(title, dtype, inputs, outputs)
        else:
            text = emit.block(title, dtype, inputs, outputs)
            kernel = store.generated(text, native.BLOCK_SIGNATURE)
        return kernel, tuple(names), tuple(written)


def _check_memory(op: str, arrays: Sequence[Any], on_device: bool) -> None:
    """Raise if a kernel would get arrays of another kind of memory than it can read. 0-dim ones of
    the host are numbers."""
    for a in arrays:
        if (type(a) is DeviceArray) is not on_device and not (on_device and a.ndim == 0):
            raise DeviceError(
                f"{op}: expected a gradient on the device of the operands, got "
                f"{shown(a)} beside {shown(arrays[0])}; move it"
            )


def _is_g(expression: Any) -> bool:
    return isinstance(expression, Sym) and expression.op == "input" and expression.args == ("g",)


def guarded(g: Any, dx: Any) -> Any:
    """``dx``, with 0 x non-finite counted as 0: where the incoming gradient is exactly 0 (the
    branch of a ``where`` that was not taken) nothing leaks."""
    return s.where((g == 0) & ~s.isfinite(dx), 0, dx)


def check_out(
    op: str, out: Any, args: Sequence[Any], shape: tuple[int, ...], dtype: np.dtype
) -> None:
    """Raise, before anything runs, unless ``out`` can take a result of that shape and dtype."""
    if not isinstance(out, Value):
        raise TypeError(expected(op, "a Tensor", "out", shown(out), "use numgrad.empty_like(…)"))
    if mode.state.grad and any(isinstance(x, Value) and x.requires_grad for x in (out, *args)):
        raise RuntimeError(
            f"{op}: expected operands that need no gradient for out=, got one that requires grad; "
            "functions with out=... arguments don't support automatic differentiation: "
            "use no_grad()"
        )
    for x in args if devices.used else ():
        if isinstance(x, Value) and x.device is not out.device:
            raise DeviceError(
                expected(op, f"a tensor on {x.device}", "out", f"one on {out.device}", "make it so")
            )
    if out.shape != shape:
        raise ShapeError(expected(op, f"shape {shape}", "out", shown(out), "make it that shape"))
    if dtypes.rank(dtype) > dtypes.rank(out.dtype):
        raise DtypeError(
            expected(op, f"a dtype that holds {dtype}", "out", shown(out), "convert out first")
        )


def elementwise(
    *args: Any,
    dtype: str = promote,
    constant: Sequence[str] = (),
    conditions: Sequence[str] = (),
    reference: str | None = None,
    domain: tuple[float, float] = (-3.0, 3.0),
    edges: Sequence[float] = (),
    check: Callable[..., None] | None = None,
    **rules: Callable[..., Any] | None,
) -> Callable[[Callable[..., Any]], Elementwise]:
    """Declare an op by a function of scalars and its derivatives.

    >>> import numgrad, numgrad.kernels.scalar as s
    >>> @numgrad.elementwise(dx=lambda g, x: g * (1 - s.tanh(x) ** 2))
    ... def my_tanh(x):
    ...     return s.tanh(x)

    Args:
        dx, dy, …: the VJP of each parameter, written in the same language; its parameter names
            (``g``, the function's parameters, ``out``) are all that is kept for the backward pass.
            None for a derivative that is zero. Parameters with a default are numbers.
        dtype: ``"promote"``, ``"numeric"`` (bool operands become int64) or ``"floating"`` (integer
            operands become the default float).
        constant: operands without a derivative.
        conditions: operands that are bool.
        reference: ``"scipy.special:expit"``, an independent answer for the tests.
        domain: interval the tests draw operands from.
        edges: further values the tests try.
        check: called with the operands' arrays before the kernel; raises on values the op refuses.

    Raises:
        TypeError: a derivative is missing, misnamed, or asks for what it may not; the function
            branches on a symbol.
    """
    if args:
        raise TypeError(
            "elementwise: expected keywords only, got a positional argument; "
            "write @elementwise(dx=lambda g, x: …) with the derivative"
        )
    if dtype not in (promote, numeric, floating):
        raise TypeError(
            f"elementwise: expected 'promote', 'numeric' or 'floating' for dtype, got {dtype!r}; "
            "use one of them"
        )

    def declare(function: Callable[..., Any]) -> Elementwise:
        own = (function.__module__ or "").startswith("numgrad.ops.")  # None: from exec
        return Elementwise(
            function,
            rules,
            dtype=dtype,
            constant=constant,
            conditions=conditions,
            reference=reference,
            domain=domain,
            edges=edges,
            check=check,
            register=own,
        )

    return declare
