"""The slotted base of Tensor: shape, dtype, device, flags, storage, view, edge.

Shape, dtype and device live on the value; its buffer is reached through ``array`` alone, so that a
value may exist before its buffer does.
"""

import weakref
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np

from . import mode
from .above import above
from .errors import GradError, shown
from .node import Edge, LeafSlot, Node
from .storage import GRADIENT, Group, Storage


class Value:
    """A value of the graph. ``numgrad.Tensor`` adds the methods.

    ``_edge`` is None for leaves. A view has a ``_base`` and a ``_chain`` (the view operations that
    lead from the base to it); writing to the base or to another view gives it a new history.
    ``_stamp`` is the base's stamp that its flags were set for, ``_edge_stamp`` the one that its
    edge was made for: nodes are made only when the edge is asked for.
    ``_origin`` tells ``explain`` why nothing was recorded.
    """

    __slots__ = (
        "_array",
        "_base",
        "_chain",
        "_dtype",
        "_edge",
        "_edge_stamp",
        "_inference",
        "_origin",
        "_requires_grad",
        "_shape",
        "_slot",
        "_stamp",
        "_volatile",
        "grad_value",
        "group",
        "storage",
    )

    contagious = False
    """Whether an operation on it gives values of its class with the rules of ``Variable``."""

    _array: np.ndarray
    _inference: bool
    _shape: tuple[int, ...]
    _dtype: "np.dtype[Any]"
    storage: Storage
    group: Group
    grad_value: Any

    def _init(self, array: np.ndarray, storage: Storage, group: Group | None = None) -> None:
        self._array, self.storage = array, storage
        self.group = Group() if group is None else group
        self._shape, self._dtype = array.shape, array.dtype
        self._requires_grad = self._volatile = self._inference = False
        self._edge: Edge | None = None
        self._base: Value | None = None
        self._slot: LeafSlot | None = None
        self._origin: str | None = None
        self.grad_value = None
        self._chain: tuple[Any, ...] = ()
        self._stamp = self._edge_stamp = 0

    array: Any = property(
        attrgetter("_array"), doc="The buffer: the one way to a value's elements."
    )
    # Read-only: kernels trust them, so nobody may write to them as one may with an ndarray's.
    shape: Any = property(attrgetter("_shape"), doc="The length of each axis.")
    dtype: Any = property(attrgetter("_dtype"), doc="The dtype of the elements.")
    device: Any = property(attrgetter("storage.device"), doc="Where the buffer lies.")

    # ------------------------------------------------------------------------------------- history

    def refresh(self) -> None:
        """Set the flags of a view anew if its base got a new history since. Makes no node.

        A view whose base got other memory (``base.data = …``) is none of it any more.
        """
        base = self._base
        if base is None or self._stamp == base._stamp:
            return
        if self.group is not base.group:
            if self._edge_stamp != self._stamp:  # what its flags were set for was never made
                self._requires_grad = self._edge is not None
            self._base, self._chain = None, ()
            return
        self._stamp = base._stamp
        if base._volatile:
            self._become_volatile(base._origin)
        elif base._requires_grad:
            self._requires_grad = True
        else:
            self._replace_edge(None)

    def _current_edge(self) -> Edge | None:
        """The edge, made anew if this is a view whose base got a new history since."""
        self.refresh()
        base = self._base
        if base is not None and self._edge_stamp != self._stamp:
            self._edge_stamp = self._stamp
            edge, shape = base.gradient_edge(), base.shape
            if edge is not None:
                self.check_chain()
                for op, attrs, out_shape in self._chain:
                    spec_in, spec_out = (shape, base.dtype), (out_shape, base.dtype)
                    edge = (Node(op, (edge,), attrs, (spec_in,), (spec_out,), base.contagious), 0)
                    shape = out_shape
            self._replace_edge(edge)
        return self._edge

    def check_chain(self) -> None:
        """Raise if the base of a view was reshaped in place after the view was made."""
        base = self._base
        if base is None:
            return
        array = base.array
        try:
            for op, attrs, _ in self._chain:
                array = op.see(array, attrs)
        except (IndexError, ValueError):
            array = None
        own = self._array
        if array is None or (array.shape, array.strides) != (own.shape, own.strides):
            raise GradError(
                f"view: expected a base of the shape it had when the view was made, got "
                f"{base.shape}; make the view again after squeeze_ or unsqueeze_ of its base"
            )

    def _replace_edge(self, edge: Edge | None) -> None:
        before, self._edge = self._edge, edge
        self._requires_grad = edge is not None
        kept = _retainer(self, before)
        if kept is not None:
            kept.remove()
            if edge is not None:
                self.retain_gradient()

    def _become_volatile(self, origin: str | None) -> None:
        self._replace_edge(None)
        self._volatile, self._origin = True, origin
        self.grad_value = self._slot = None

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are wanted for this value."""
        self.refresh()
        return self._requires_grad

    @property
    def volatile(self) -> bool:
        """Whether nothing that uses this value is recorded. Contagious; may be set on leaves."""
        self.refresh()
        return self._volatile

    @property
    def edge(self) -> Edge | None:
        """``(node, output index)`` of the operation that made the value; None for a leaf."""
        return self._current_edge()

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made the value."""
        return self.edge is None

    def gradient_edge(self) -> Edge | None:
        """The edge that gradients of this value flow along; None if none are wanted."""
        if not self.requires_grad:
            return None
        edge = self._current_edge()
        if edge is None:
            if self._slot is None:
                self._slot = LeafSlot(self)
            edge = (self._slot, 0)
        return edge

    def set_history(self, edge: Edge) -> None:
        """Give a value that is no view a new history (after an in-place write)."""
        self._replace_edge(edge)
        self._stamp += 1

    def take_memory(self, other: "Value") -> None:
        """Have the memory of another value, with its shape and dtype; flags, history, hooks stay.

        What were views of this value are views of nothing from now on.
        """
        self._array, self.storage, self.group = other._array, other.storage, Group()
        self._shape, self._dtype = other.shape, other.dtype
        self._base, self._chain = None, ()
        self._stamp += 1

    def become_volatile(self, origin: str) -> None:
        """Cut history, hooks and gradient, and be volatile; so do the base and its other views."""
        self.refresh()
        base = self if self._base is None else self._base
        base._become_volatile(origin)
        base._stamp += 1
        self.refresh()

    # --------------------------------------------------------------------------------------- hooks

    def add_hook(self, hook: Callable[[Any], Any]) -> "HookHandle":
        """Call ``hook(gradient)`` when the value's gradient is complete; it may return another."""
        if not callable(hook):
            raise TypeError(
                f"register_hook: expected a function for hook, got {shown(hook)}; pass one"
            )
        if self.volatile:
            raise GradError("cannot register a hook on a volatile variable")
        edge = self.gradient_edge()
        if edge is None:
            raise GradError("cannot register a hook on a variable that doesn't require gradient")
        target, index = edge
        if target.hooks is None:
            target.hooks = {}
        hooks: dict[int, Any] = target.hooks
        if isinstance(target, Node):
            hooks = hooks.setdefault(index, {})
        return HookHandle(hooks, hook)

    def retain_gradient(self) -> None:
        """Keep the gradient of a non-leaf as ``grad_value`` in backward passes."""
        if self.edge is not None and _retainer(self, self._edge) is None:
            self.add_hook(Retainer(self))


class HookHandle:
    """``remove()`` takes the hook away again; also a context manager."""

    _count = 0

    def __init__(self, hooks: dict[int, Callable[..., Any]], hook: Callable[..., Any]) -> None:
        HookHandle._count += 1
        self.id = HookHandle._count
        hooks[self.id] = hook
        self._hooks = hooks

    def remove(self) -> None:
        """Take the hook away. A second call does nothing."""
        self._hooks.pop(self.id, None)

    def __enter__(self) -> "HookHandle":
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


class Retainer:
    """The hook behind ``retain_grad``. It holds its value weakly: no cycle."""

    def __init__(self, value: Value) -> None:
        self.value = weakref.ref(value)

    def __call__(self, g: Any) -> None:
        value = self.value()
        if value is None:
            return
        if value.grad_value is not None:
            value.grad_value = above.add(value.grad_value, g)
            return
        kept = above.copy(g)  # the user may write to it: nobody else may see its memory
        kept.storage.move_to(GRADIENT)
        value.grad_value = kept


def _retainer(value: Value, edge: Edge | None) -> Any:
    """The handle of the ``retain_grad`` hook of a value that has ``edge``, or None."""
    if edge is None or not edge[0].hooks:
        return None
    hooks: Any = edge[0].hooks.get(edge[1], {})
    for number, hook in hooks.items():
        if isinstance(hook, Retainer) and hook.value() is value:
            handle = object.__new__(HookHandle)
            handle.id, handle._hooks = number, hooks
            return handle
    return None


class Constant:
    """A Python number among the operands: a 0-d array that takes no part in the graph."""

    __slots__ = ("_dtype", "_shape", "array")
    dtype = property(attrgetter("_dtype"))
    shape = property(attrgetter("_shape"))
    _volatile = _inference = _requires_grad = False
    volatile = requires_grad = contagious = False
    storage = group = _base = None

    def __init__(self, array: np.ndarray) -> None:
        self.array, self._dtype, self._shape = array, array.dtype, ()

    def gradient_edge(self) -> None:
        """None: no gradient is wanted for a number."""
        return None


_new: Any = object.__new__


def make(
    array: np.ndarray, storage: Storage, variable: bool = False, group: Group | None = None
) -> Any:
    """A new value without history: a Variable if ``variable`` (0-d then becomes ``(1,)``)."""
    if variable:
        value = _new(above.Variable)
        if array.ndim == 0:
            array = array.reshape(1)
    else:
        value = _new(above.Tensor)
    value._init(array, storage, group)
    if mode.state.inference:
        value._inference = True
    return value


def alias(x: Value, variable: bool, group: Group | None = None) -> Any:
    """The memory of ``x`` as a new value without history."""
    out = make(x.array, x.storage, variable, group)
    out._inference = out._inference or x._inference
    return out


def with_class(x: Any, variable: bool) -> Any:
    """``x`` as a Variable or as a plain Tensor, on the edge it has. Gradients change class so."""
    if x.contagious == variable:
        return x
    if variable and not x.shape:
        x = above.reshape(x, (1,))
    out = alias(x, variable, x.group)
    edge = x.gradient_edge()
    if edge is not None:
        out._edge, out._requires_grad = edge, True
    return out
