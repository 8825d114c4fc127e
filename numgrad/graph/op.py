"""What an entry may say, checked when it is declared.

An op has named operands and attributes, results (``outs``), results that only the backward pass
wants (``aux``), and for each operand a *rule*: a vector-Jacobian product whose parameter names are
what it needs. Those names are the save-set: nothing else is kept.

A rule may ask for ``g`` (with several outs: ``g_<out>``), operands, outs (``out`` if there is one),
aux, attributes, and ``<operand>_shape``, which keeps no value.

Rules run on Tensors. Where kernels of their own are quicker, an entry names a ``fused`` function,
which a plain backward pass calls instead of the rules; the rules then say what is kept, and run
under ``create_graph``. There an aux value that is a function of the operands must not be a
constant: ``derived`` says, in entries, which function it is.
"""

import inspect
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import numpy as np

from . import device as devices
from .above import above
from .node import Node, Saved
from .saved import unpack

Spec = tuple[tuple[int, ...], np.dtype]
"""Shape and dtype of a result."""

OPS: dict[str, "Op"] = {}
"""Every declared op by name: what the tests are generated from."""


def origins(name: str, operands: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Why results of an op are not recorded: by the answer of ``mode.decide``, and for each operand
    that may be volatile. What ``explain`` says; made once, so that it costs nothing later."""
    by_answer = (
        f"no input of {name} requires grad",
        "",
        "",
        f"{name} ran under no_grad",
    )
    return by_answer, tuple(f"through {operand} of {name}" for operand in operands)


class Rule:
    """The VJP of one operand: a function and the names it asks for."""

    __slots__ = ("asks", "function")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.asks = tuple(inspect.signature(function).parameters)

    def __call__(self, env: Callable[[str], Any]) -> Any:
        return self.function(*[env(name) for name in self.asks])


class Op:
    """One operation. Subclasses say how results are inferred and computed.

    Args:
        name: the op's name, unique.
        operands: names of the tensor operands.
        attrs: names of run-time parameters that are not tensors.
        rules: ``{"dx": f, …}``, one an operand; None is a derivative that is zero.
        outs: names of the results.
        aux: names of results that only the backward pass wants.
        constant: operands without a derivative (conditions, indices).
        deferrable: while nothing is recorded, the op may wait for what uses its result.
        variadic: the op takes one list of operands; its only rule returns a gradient for each.
        fused: gradients of all operands at once, for a backward pass that is not recorded. Its
            parameters are names as a rule asks for, None where the rules that are needed do not ask
            for them, and ``needs``, a bool an operand; it returns a gradient (or None) an operand.
        derived: ``{aux: f}``, what a rule gets for an aux value under ``create_graph``. ``f`` may
            ask for the operands that every rule that asks for the aux value asks for, for
            attributes, and for other aux values.
    """

    view = False
    """Whether the result shares the operand's memory."""
    run_cuda: Any = None
    """As ``run``, on arrays of a GPU; None if the op has no CUDA kernel."""
    owns_results = True
    """Whether nobody keeps the gradients that ``vjp`` returns, save where they share memory with
    what it was given."""

    def __init__(
        self,
        name: str,
        operands: Sequence[str],
        rules: dict[str, Callable[..., Any] | None],
        *,
        attrs: Sequence[str] = (),
        outs: Sequence[str] = ("out",),
        aux: Sequence[str] = (),
        constant: Sequence[str] = (),
        variadic: bool = False,
        deferrable: bool = False,
        fused: Callable[..., Sequence[Any]] | None = None,
        derived: dict[str, Callable[..., Any]] | None = None,
        doc: str | None = None,
        register: bool = True,
    ) -> None:
        self.name, self.operands, self.attrs = name, tuple(operands), tuple(attrs)
        self.origins, self.volatile_origins = origins(name, self.operands)
        self.outs, self.aux, self.constant = tuple(outs), tuple(aux), tuple(constant)
        self.variadic, self.deferrable = variadic, deferrable
        self.__doc__ = doc
        self.__name__ = name
        self.rules = self._check_rules(rules)
        self.fused = None if fused is None else Rule(fused)
        self.derived = {name: Rule(function) for name, function in (derived or {}).items()}
        self._check_fused()
        self._save_sets: dict[tuple[bool, ...], tuple[str, ...]] = {}
        if register:
            if name in OPS:
                raise TypeError(
                    f"{name}: expected a new name for an op, got one that is declared already; "
                    "rename the function"
                )
            OPS[name] = self

    def _check_rules(self, rules: dict[str, Callable[..., Any] | None]) -> tuple[Rule | None, ...]:
        wanted = {f"d{operand}" for operand in self.operands if operand not in self.constant}
        unknown, missing = set(rules) - wanted, wanted - set(rules)
        if unknown:
            raise TypeError(
                f"{self.name}: expected derivatives named {sorted(wanted)}, got {sorted(unknown)}; "
                "a derivative is called d<operand>"
            )
        if missing:
            raise TypeError(
                f"{self.name}: expected a derivative for every operand, got none for "
                f"{sorted(missing)}; write {min(missing)}=None if it is zero"
            )
        gradients = ["g"] if len(self.outs) == 1 else [f"g_{out}" for out in self.outs]
        shapes = [f"{operand}_shape" for operand in self.operands]
        allowed = [*gradients, *self.operands, *self.outs, *self.aux, *self.attrs, *shapes]
        checked: list[Rule | None] = []
        for operand in self.operands:
            function = rules.get(f"d{operand}")
            if function is None:
                checked.append(None)
                continue
            if not callable(function):
                raise TypeError(
                    f"{self.name}: expected a function or None for d{operand}, got {function!r}; "
                    f"write d{operand}=lambda g, …: …"
                )
            rule = Rule(function)
            bad = [name for name in rule.asks if name not in allowed]
            if bad:
                raise TypeError(
                    f"{self.name}: d{operand} asks for {bad}; it may ask for {', '.join(allowed)}"
                )
            checked.append(rule)
        return tuple(checked)

    def _check_fused(self) -> None:
        """Raise unless ``fused`` and ``derived`` ask for what they can get."""
        gradients = ["g"] if len(self.outs) == 1 else [f"g_{out}" for out in self.outs]
        shapes = [f"{operand}_shape" for operand in self.operands]
        known = {*self.operands, *self.aux, *self.attrs, *shapes}
        checked = [(f"derived[{name!r}]", rule, known) for name, rule in self.derived.items()]
        if self.fused is not None:
            checked.append(("fused", self.fused, known | {"needs", *gradients, *self.outs}))
        for what, rule, allowed in checked:
            bad = [name for name in rule.asks if name not in allowed]
            if bad:
                raise TypeError(
                    f"{self.name}: {what} asks for {bad}; it may ask for "
                    f"{', '.join(sorted(allowed))}"
                )
        for operand, given in zip(self.operands, self.rules, strict=True):
            asks = () if given is None else given.asks
            for name in asks:
                if name in self.derived:
                    lacking = set(self.derived[name].asks) & set(self.operands) - set(asks)
                    if lacking:
                        raise TypeError(
                            f"{self.name}: d{operand} asks for {name} and not for "
                            f"{sorted(lacking)}, which {name} is derived from; ask for both"
                        )

    # ------------------------------------------------------------------- what subclasses implement

    def infer(self, inputs: Sequence[Any], attrs: dict[str, Any]) -> Sequence[Spec] | None:
        """Specs of the results, or None where only the data tell the shape. Raises on bad input."""
        raise NotImplementedError(self.name)

    def run(
        self,
        outs: Sequence[np.ndarray],
        arrays: Sequence[Any],
        attrs: dict[str, Any],
        record: bool,
    ) -> dict[str, Any] | None:
        """Fill ``outs``. When ``record``, returns the aux values by name: ``(array, storage)`` as
        ``allocate`` gives them, or a number, which is kept as an attribute."""
        raise NotImplementedError(self.name)

    def run_dynamic(self, arrays: Sequence[Any], attrs: dict[str, Any]) -> Sequence[Any]:
        """For ops whose shape depends on data: allocate and return ``(array, storage)`` pairs."""
        raise NotImplementedError(self.name)

    def see(self, array: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
        """For views: the array that shares ``array``'s memory."""
        raise NotImplementedError(self.name)

    def reference(self, *arrays: Any, **attrs: Any) -> Any:
        """The same in plain NumPy."""
        raise NotImplementedError(self.name)

    # ----------------------------------------------------------------------------------- gradients

    def save_set(self, needs: tuple[bool, ...]) -> tuple[str, ...]:
        """Names to keep when the operands marked in ``needs`` want a gradient."""
        found = self._save_sets.get(needs)
        if found is None:
            rules = self.rules if not self.variadic else self.rules * len(needs)
            asked = {
                n
                for rule, need in zip(rules, needs, strict=True)
                if need and rule
                for n in rule.asks
            }
            keepable = (*self.operands, *self.outs, *self.aux)
            found = self._save_sets[needs] = tuple(name for name in keepable if name in asked)
        return found

    def vjp(
        self, node: Node, grads: Sequence[Any], needs: Sequence[bool], create_graph: bool
    ) -> Sequence[Any]:
        """Gradients of the operands marked in ``needs``, from those of the results (on Tensors)."""
        env = Environment(self, node, grads, self.derived if create_graph else {})
        if self.fused is not None and not create_graph:
            env.known["needs"] = needs
            return list(self.fused(env))
        if self.variadic:
            rule = self.rules[0]
            results = rule(env) if rule is not None else [None] * len(needs)
            return [r if need else None for r, need in zip(results, needs, strict=True)]
        return [
            rule(env) if need and rule is not None else None
            for rule, need in zip(self.rules, needs, strict=True)
        ]

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        """As a class attribute an op is a method: its first operand is the object."""
        return self if obj is None else MethodType(self, obj)

    def __call__(self, *args: Any, **named: Any) -> Any:
        raise NotImplementedError(self.name)

    def __repr__(self) -> str:
        return f"<op {self.name}>"


class Environment:
    """What a rule may ask for, by name, for one node."""

    def __init__(self, op: Op, node: Node, grads: Sequence[Any], derived: dict[str, Rule]) -> None:
        self.op, self.node, self.derived = op, node, derived
        self.saved = node.live_saved()
        names = ["g"] if len(op.outs) == 1 else [f"g_{out}" for out in op.outs]
        self.known: dict[str, Any] = dict(zip(names, grads, strict=True))

    def _beside_gradient(self, value: Any) -> Any:
        """A saved number on the device of the gradients: saved as a number it was on none."""
        for g in self.known.values():
            if isinstance(g, above.Tensor) and g.device is not value.device and not value.shape:
                return above.to_device(value, g.device)
        return value

    def __call__(self, name: str) -> Any:
        if name in self.known:
            value = self.known[name]
            if value is None:
                index = [f"g_{out}" for out in self.op.outs].index(name)
                where = next(g.device for g in self.known.values() if isinstance(g, above.Tensor))
                value = above.zeros(self.node.out_specs[index], where)
                self.known[name] = value
            return value
        node = self.node
        if name in self.derived:
            value = self.derived[name](self)
        elif name in self.saved:
            value = self.saved[name]
            if isinstance(value, Saved):
                value = unpack(value, node)
                if devices.used:
                    value = self._beside_gradient(value)
        elif name in node.attrs:
            value = node.attrs[name]
        elif name.endswith("_shape") and self.op.variadic:
            value = [spec[0] for spec in node.in_specs]
        elif name.endswith("_shape"):
            spec = node.in_specs[self.op.operands.index(name[: -len("_shape")])]
            value = None if spec is None else spec[0]
        else:
            value = None
        self.known[name] = value
        return value
