"""Function: an operation whose derivative the user writes."""

import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from .graph import mode
from .graph.above import above
from .graph.apply import check_writable, keeps_flags, rebase, wrote
from .graph.errors import DeviceError, GradError, ShapeError, shown
from .graph.node import FREED, Node
from .graph.op import origins
from .graph.saved import pack, unpack
from .graph.value import Value, alias, with_class


class Context:
    """What ``forward`` leaves for ``backward``: saved tensors, flags, and any attribute."""

    def __init__(self) -> None:
        self._to_save: tuple[Any, ...] = ()
        self._dirty: tuple[Any, ...] = ()
        self._constant: tuple[Any, ...] = ()
        self._node: Callable[[], Node | None] | None = None  # weak: the node holds the context
        self.materialize_grads = True
        self.needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors (or None) for ``backward``: they are checked against in-place changes."""
        for i, tensor in enumerate(tensors):
            if tensor is not None and not isinstance(tensor, Value):
                raise TypeError(
                    f"save_for_backward: expected Tensors or None for tensors[{i}], got "
                    f"{shown(tensor)}; keep other things as attributes of ctx"
                )
        self._to_save = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        """Say that ``forward`` changed these inputs in place; return them as outputs."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Say that these outputs need no gradient."""
        self._constant = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether missing incoming gradients reach ``backward`` as zeros (the default) or None."""
        self.materialize_grads = value

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors kept by ``save_for_backward``, on the graph they had."""
        if self._node is None:
            return self._to_save
        node = self._node()
        if node is None or node.saved is None:
            raise GradError(FREED)
        return tuple(
            None if saved is None else unpack(saved, node, node.variable)
            for saved in node.saved.values()
        )

    saved_variables = saved_tensors


class _FunctionOp:
    """Stands for a user's Function where the graph expects an op."""

    owns_results = False  # the user may return what is kept elsewhere

    def __init__(self, cls: type["Function"], ctx: Context) -> None:
        self.cls, self.ctx, self.name = cls, ctx, cls.__name__

    def vjp(
        self, node: Node, grads: Sequence[Any], needs: Sequence[bool], create_graph: bool
    ) -> Sequence[Any]:
        ctx = self.ctx
        given = [
            above.zeros(spec, where) if g is None and ctx.materialize_grads else g
            for g, spec, where in zip(grads, node.out_specs, node.attrs["out_devices"], strict=True)
        ]
        raw = self.cls.backward(
            ctx, *(None if g is None else with_class(g, node.variable) for g in given)
        )
        results = list(raw) if isinstance(raw, (tuple, list)) else [raw]
        wanted = len(ctx.needs_input_grad)
        if len(results) < wanted or any(r is not None for r in results[wanted:]):
            raise GradError(
                f"function {self.name} returned an incorrect number of gradients (expected "
                f"{wanted}, got {len(results)})"
            )
        positions = node.attrs["positions"]
        for i, r in enumerate(results[:wanted]):
            if r is not None and not isinstance(r, Value):
                raise TypeError(
                    f"function {self.name}: expected a Tensor or None for gradient {i}, got "
                    f"{shown(r)}; return tensors"
                )
            if r is not None and i not in positions:
                raise GradError(
                    f"function {self.name} returned a gradient different from None at position "
                    f"{i}, but the corresponding forward input was not a Variable"
                )
        return [
            self._gradient(i, results[i], node.in_specs[k][0], node.attrs["devices"][k])
            if need
            else None
            for k, (i, need) in enumerate(zip(positions, needs, strict=True))
        ]

    def _gradient(self, i: int, r: Any, shape: tuple[int, ...], where: Any) -> Any:
        """A gradient that ``backward`` returned, as the engine takes it: plain, on the device of
        the input, and of a shape that sums to its."""
        if r is None:
            return None
        if r.device is not where:
            raise DeviceError(
                f"Function {self.name} returned an invalid gradient at index {i} - expected device "
                f"{where} but got {r.device}: move it with .to()"
            )
        r = alias(r, False, r.group) if r.volatile else with_class(r, False)
        lead = len(r.shape) - len(shape)
        fits = lead >= 0 and all(
            n in (1, m) for n, m in zip(shape, r.shape[max(lead, 0) :], strict=False)
        )
        if not fits and r.numel() == 1 and all(n == 1 for n in shape):
            return above.reshape(r, shape)
        if not fits:
            raise ShapeError(
                f"Function {self.name} returned an invalid gradient at index {i} - got {r.shape} "
                f"but expected shape compatible with {shape}"
            )
        return r


class Function:
    """An operation with a derivative of one's own.

    Subclass with two static methods and call ``apply``::

        class Cube(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x * x

            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                return 3 * g * x * x

        y = Cube.apply(x)

    ``forward`` gets plain Tensors and is not recorded. ``backward`` returns a gradient (or None)
    for each argument of ``forward``, and is recorded itself under ``create_graph``. With a volatile
    input nothing is kept.
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        """Compute the results from the arguments, unrecorded."""
        raise NotImplementedError("Function: expected a forward staticmethod, got none; write one")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradients of the arguments, from those of the results."""
        raise NotImplementedError("Function: expected a backward staticmethod, got none; write one")

    def __call__(self, *args: Any) -> Any:
        """Raises TypeError: numgrad has no instance style yet."""
        name = type(self).__name__
        raise TypeError(
            f"{name}: expected {name}.apply(…) with static methods, got a call of an instance; "
            "write forward(ctx, …) and backward(ctx, …) as @staticmethod"
        )

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run ``forward`` and record it if an argument needs a gradient.

        Raises:
            TypeError: ``forward`` is no static method or returns something else than Tensors.
        """
        if not isinstance(inspect.getattr_static(cls, "forward"), staticmethod):
            raise TypeError(
                f"{cls.__name__}.apply: expected a staticmethod(ctx, …) for forward, got an "
                "instance method; decorate forward and backward with @staticmethod"
            )
        tensors = [a for a in args if isinstance(a, Value)]
        how = mode.decide(tensors)
        record = how == mode.RECORD
        variable = any(t.contagious for t in tensors)
        ctx = Context()
        ctx.needs_input_grad = tuple(
            record and isinstance(a, Value) and a.requires_grad for a in args
        )
        with mode.no_grad():
            inner = [alias(a, False, a.group) if isinstance(a, Value) else a for a in args]
            try:
                raw = cls.forward(ctx, *inner)
            except BaseException:
                for x in ctx._dirty:  # they may have been written to, in whatever way
                    if isinstance(x, Value):
                        wrote(x, cls.__name__)
                raise
        outputs = list(raw) if isinstance(raw, tuple) else [raw]
        results = _wrap(cls.__name__, ctx, args, inner, outputs, variable)
        constant = {id(t) for t in ctx._constant}
        recorded = [
            record and r.dtype.kind == "f" and id(out) not in constant
            for out, r in zip(outputs, results, strict=True)
        ]
        if any(recorded):
            _record(cls, ctx, args, inner, outputs, results, recorded, variable)
        else:
            why, through = origins(cls.__name__, ["an input"])
            volatile = how == mode.VOLATILE
            for result in results:
                if not any(result is a for a in args):
                    result._volatile = volatile
                    result._origin = through[0] if volatile else why[how]
                elif volatile and not result.volatile and not keeps_flags(result):
                    result.become_volatile(through[0])
        ctx._to_save = ()
        return tuple(results) if isinstance(raw, tuple) else results[0]


def _wrap(
    name: str, ctx: Context, args: Any, inner: Any, outputs: Sequence[Any], variable: bool
) -> list[Any]:
    """The results: new values on the outputs' memory, and the arguments themselves where dirty."""
    dirty = {id(t) for t in ctx._dirty}
    results: list[Any] = []
    for out in outputs:
        if not isinstance(out, Value):
            raise TypeError(
                f"function {name}: expected Tensors for the results of forward, got {shown(out)}; "
                "return tensors"
            )
        if id(out) not in dirty:
            results.append(alias(out, variable, out.group))
            continue
        changed = next((a for a, i in zip(args, inner, strict=True) if i is out), None)
        if changed is None:
            raise GradError(
                f"function {name}: expected inputs for mark_dirty, got a tensor made in forward; "
                "mark only inputs that were changed in place"
            )
        check_writable(name, changed)
        changed.check_chain()
        wrote(changed, name)
        results.append(changed)
    return results


def _record(
    cls: type[Function],
    ctx: Context,
    args: Any,
    inner: Any,
    outputs: Sequence[Any],
    results: Sequence[Any],
    recorded: Sequence[bool],
    variable: bool,
) -> None:
    positions = [i for i, a in enumerate(args) if isinstance(a, Value)]
    edges = tuple(args[i].gradient_edge() for i in positions)
    in_specs = [(args[i].shape, args[i].dtype) for i in positions]
    out_specs = [(r.shape, r.dtype) for r in results]
    op = _FunctionOp(cls, ctx)
    storages = [args[i].storage for i in positions]
    aliases = [
        j
        for j, result in enumerate(results)
        if any(result.storage is s for s in storages) and not any(result is a for a in args)
    ]
    attrs = {
        "positions": positions,
        "aliases": aliases,
        "devices": [args[i].device for i in positions],
        "out_devices": [r.device for r in results],
    }
    node = Node(op, edges, attrs, in_specs, out_specs, variable)
    assert node.saved is not None
    for i, tensor in enumerate(ctx._to_save):
        if tensor is None:
            node.saved[i] = None
            continue
        own = next((j for j, out in enumerate(outputs) if out is tensor), -1)
        source = next((a for a, x in zip(args, inner, strict=True) if x is tensor), None)
        edge = source.gradient_edge() if source is not None and own < 0 else None
        node.save(pack(i, tensor if source is None else source, edge, cls.__name__, own))
    ctx._node = weakref.ref(node)
    for index, (result, wanted) in enumerate(zip(results, recorded, strict=True)):
        if any(result is a for a in args):
            rebase(result, (node, index))
        elif wanted:
            result._edge, result._requires_grad = (node, index), True


def once_differentiable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a ``backward`` that is not recorded: differentiating it raises."""

    @functools.wraps(function)
    def wrapped(ctx: Any, *grads: Any) -> Any:
        with mode.no_grad():
            results = function(ctx, *grads)
        saved = [t for t in ctx.saved_tensors if t is not None]
        if mode.decide([*(g for g in grads if isinstance(g, Value)), *saved]) != mode.RECORD:
            return results
        several = isinstance(results, tuple)
        marked = [
            _Once.apply(r, *grads, *saved) if isinstance(r, Value) else r
            for r in (results if several else (results,))
        ]
        return tuple(marked) if several else marked[0]

    return wrapped


class _Once(Function):
    """The identity, with a backward that says that there is none."""

    @staticmethod
    def forward(ctx: Any, x: Any, *others: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise GradError(
            "trying to differentiate twice a function that was marked with @once_differentiable"
        )
