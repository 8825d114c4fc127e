"""The slotted base of Tensor: shape, dtype, device, flags, storage, view, edge.

Shape, dtype and device live on the value; its buffer is reached through ``array`` alone, so that a
value may exist before its buffer does.
"""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from . import mode
from .device import CPU, device
from .errors import GradError
from .node import Edge, LeafSlot, Node
from .storage import Group, Storage


class Value:
    """A value of the graph. ``numgrad.Tensor`` adds the methods.

    ``_edge`` is None for leaves. A view has a ``_base`` and a ``_chain`` (the view operations that
    lead from the base to it); writing to the base or to another view gives it a new edge, which is
    made when asked for: ``_stamp`` is the base's stamp that ``_edge`` was made for.
    """

    __slots__ = (
        "_array",
        "_base",
        "_chain",
        "_edge",
        "_inference",
        "_requires_grad",
        "_slot",
        "_stamp",
        "_volatile",
        "device",
        "dtype",
        "grad_value",
        "group",
        "shape",
        "storage",
    )

    contagious = False
    """Whether an operation on it gives values of its class with the rules of ``Variable``."""

    _array: np.ndarray
    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"
    device: device
    storage: Storage
    group: Group
    grad_value: Any

    def _init(self, array: np.ndarray, storage: Storage, group: Group | None = None) -> None:
        self._array, self.storage = array, storage
        self.group = Group() if group is None else group
        self.shape, self.dtype, self.device = array.shape, array.dtype, CPU
        self._requires_grad = self._volatile = self._inference = False
        self._edge: Edge | None = None
        self._base: Value | None = None
        self._chain: tuple[Any, ...] = ()
        self._stamp = 0
        self._slot: LeafSlot | None = None
        self.grad_value = None

    @property
    def array(self) -> np.ndarray:
        """The buffer: the one way to a value's elements."""
        return self._array

    # ------------------------------------------------------------------------------------- history

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are wanted for this value."""
        if self._base is not None and self._stamp != self._base._stamp:
            _refresh(self)
        return self._requires_grad

    @property
    def edge(self) -> Edge | None:
        """``(node, output index)`` of the operation that made the value; None for a leaf."""
        if self._base is not None and self._stamp != self._base._stamp:
            _refresh(self)
        return self._edge

    def set_history(self, edge: Edge | None) -> None:
        """Give the value a new history (after an in-place operation)."""
        self._edge = edge
        self._requires_grad = edge is not None
        if self._base is None:
            self._stamp += 1
        else:
            self._stamp = self._base._stamp

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made the value."""
        return self.edge is None

    def gradient_edge(self) -> Edge | None:
        """The edge that gradients of this value flow along; None if none are wanted."""
        if not self.requires_grad:
            return None
        edge = self._edge
        if edge is None:
            if self._slot is None:
                self._slot = LeafSlot(self)
            edge = (self._slot, 0)
        return edge

    # --------------------------------------------------------------------------------------- hooks

    def add_hook(self, hook: Callable[[Any], Any]) -> "HookHandle":
        """Call ``hook(gradient)`` when the value's gradient is complete; it may return another."""
        if not callable(hook):
            raise TypeError(f"register_hook: expected a function for hook, got {hook!r}; pass one")
        if self._volatile:
            raise GradError("cannot register a hook on a volatile variable")
        if not self.requires_grad:
            raise GradError("cannot register a hook on a variable that doesn't require gradient")
        edge = self.gradient_edge()
        assert edge is not None
        target, index = edge
        if isinstance(target, Node):
            if target.hooks is None:
                target.hooks = {}
            hooks = target.hooks.setdefault(index, {})
        else:
            if target.hooks is None:
                target.hooks = {}
            hooks = target.hooks
        return HookHandle(hooks, hook)


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


def _refresh(view: Value) -> None:
    """Make the edge of a view anew after its base got a new history."""
    base = view._base
    assert base is not None
    view._stamp = base._stamp
    edge = base.gradient_edge()
    shape = base.shape
    if edge is not None and not mode.state.inference:
        for op, attrs, out_shape in view._chain:
            spec_in, spec_out = (shape, base.dtype), (out_shape, base.dtype)
            edge = (Node(op, (edge,), attrs, (spec_in,), (spec_out,), base.contagious), 0)
            shape = out_shape
    view._edge = edge if view._chain else None
    view._requires_grad = edge is not None


def weak(value: Value) -> "weakref.ref[Value]":
    """A weak reference to a value."""
    return weakref.ref(value)
