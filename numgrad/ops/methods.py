"""The ops as methods of Tensor: a mixin of plain assignments, so that a jump leads to the entry."""

import builtins
from collections.abc import Callable
from typing import Any

from ..graph import dtypes
from ..graph.errors import DtypeError, GradError, ShapeError, expected, shown
from ..graph.value import Value
from . import arithmetic as ar
from . import creation, indexing, movement, random, reduction
from . import elementwise as e
from .kernel_calls import to_host
from .matmul import addmm, bmm, dot, matmul, mm, mv
from .softmax import log_softmax, softmax


def _in_place(entry: Any) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **named: Any) -> Any:
        return entry.in_place(self, *args, **named)

    method.__name__ = f"{entry.name}_"
    method.__doc__ = f"``{entry.name}`` in place."
    return method


def _converted(dtype: Any) -> Callable[[Any], Any]:
    def method(self: Any) -> Any:
        return movement.to_dtype(self, dtype)

    method.__doc__ = f"The tensor as {dtype}."
    return method


def _logical(entry: Any, sign: str) -> Callable[..., Any]:
    def method(self: Any, *other: Any) -> Any:
        _check_masks(sign, self, *other)
        return movement.to_dtype(entry(self, *other), self.dtype)

    method.__doc__ = f"Logical ``{sign}`` of masks."
    return method


def _logical_in_place(entry: Any, sign: str) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        _check_masks(sign, self, other)
        return entry.in_place(self, other)

    method.__doc__ = f"Logical ``{sign}`` of masks, in place."
    return method


def _check_masks(sign: str, *operands: Any) -> None:
    for x in operands:
        dtype = x.dtype if hasattr(x, "dtype") else dtypes.of_scalar(x)
        if dtype not in (dtypes.bool_, dtypes.uint8):
            raise DtypeError(
                expected(sign, "bool (or uint8) operands", "x, y", shown(x), "compare with != 0")
            )
        if dtype == dtypes.uint8 and isinstance(x, Value) and to_host(x.array).max(initial=0) > 1:
            raise DtypeError(
                expected(sign, "masks of 0 and 1", "x, y", shown(x), "compare with != 0")
            )


def squeeze_(x: Any, dim: Any = None) -> Any:
    """``squeeze`` of the tensor itself."""
    return _restride("squeeze", x, movement.squeeze(x.detach(), dim))


def unsqueeze_(x: Any, dim: int) -> Any:
    """``unsqueeze`` of the tensor itself."""
    return _restride("unsqueeze", x, movement.unsqueeze(x.detach(), dim))


def _restride(op: str, x: Any, view: Any) -> Any:
    if x.requires_grad:
        raise GradError(
            expected(f"{op}_", "a constant", "x", "one that requires grad", f"use {op}(…)")
        )
    x._array, x._shape = view.array, view.shape
    if x._base is not None:
        x._chain = (*x._chain, *view._chain)
    return x


def resize_(x: Any, *size: Any) -> Any:
    """Give the tensor itself another shape: elements are kept in their order, as many as fit; what
    is new is uninitialised. It has memory of its own afterwards, which its views do not see.

    Raises:
        GradError: x requires grad. ValueError: a negative length.
    """
    if x.requires_grad:
        raise GradError(
            "cannot resize variables that require grad: use reshape(…), or resize x.detach()"
        )
    out = creation.uninitialised("resize_", size, x.dtype, x.device)
    if out.shape == x.shape:
        return x
    n = builtins.min(out.numel(), x.numel())
    if n:
        kept = movement.narrow(movement.reshape(x.detach(), -1), 0, 0, n)
        movement.copy_(movement.narrow(movement.reshape(out, -1), 0, 0, n), kept)
    x.take_memory(out)
    return x


def resize_as_(x: Any, other: Any) -> Any:
    """``resize_`` to the shape of another tensor."""
    _check_tensor("resize_as_", other)
    return resize_(x, other.shape)


def fill_(x: Any, value: Any) -> Any:
    """Write one value, a number or a 0-dim tensor, everywhere."""
    value = movement.as_written("fill_", x, value)
    if hasattr(value, "shape") and value.shape not in ((), (1,)):
        raise ShapeError(expected("fill_", "a 0-dim tensor", "value", shown(value), "use copy_"))
    return e.assign.in_place(x, value)


def zero_(x: Any) -> Any:
    """Write zeros everywhere."""
    return fill_(x, 0)


def _check_tensor(op: str, y: Any) -> None:
    if not isinstance(y, Value):
        raise TypeError(expected(op, "a Tensor", "y", shown(y), "use numgrad.tensor(…)"))


def equal(x: Any, y: Any) -> bool:
    """Whether shapes and all elements are equal."""
    _check_tensor("equal", y)
    return bool(x.shape == y.shape and (x.numel() == 0 or e.eq(x, y).all().item()))


def allclose(
    x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Whether ``|x - y| <= atol + rtol * |y|`` everywhere."""
    _check_tensor("allclose", y)
    close = (x == y) | (e.isfinite(y) & ((x - y).abs() <= y.abs() * rtol + atol))
    if equal_nan:
        close = close | (e.isnan(x) & e.isnan(y))
    return bool(close.all().item())


def new_full(x: Any, size: Any, fill_value: Any, *, dtype: Any = None) -> Any:
    """A tensor of the given size in the dtype of x, filled with one value."""
    return creation.full(size, fill_value, dtype=dtype or x.dtype, device=x.device)


def new_zeros(x: Any, *size: Any, dtype: Any = None) -> Any:
    """Zeros in the dtype of x."""
    return creation.zeros(*size, dtype=dtype or x.dtype, device=x.device)


def new_ones(x: Any, *size: Any, dtype: Any = None) -> Any:
    """Ones in the dtype of x."""
    return creation.ones(*size, dtype=dtype or x.dtype, device=x.device)


def new_empty(x: Any, *size: Any, dtype: Any = None) -> Any:
    """Uninitialised memory in the dtype of x."""
    return creation.empty(*size, dtype=dtype or x.dtype, device=x.device)


def new_tensor(x: Any, data: Any, *, dtype: Any = None) -> Any:
    """A copy of ``data`` in the dtype of x."""
    return creation.tensor(data, dtype=dtype or x.dtype, device=x.device)


def new(x: Any, *args: Any) -> Any:
    """``x.new(2, 3)``: uninitialised; ``x.new([1, 2])``: from data. In the dtype of x."""
    if len(args) == 1 and not isinstance(args[0], int):
        return new_tensor(x, args[0])
    return new_empty(x, *args) if args else new_empty(x, 0)


class Methods:
    """Every op that is a method of Tensor."""

    __slots__ = ()

    # arithmetic
    add, add_, sub, sub_ = ar.add, ar.add_, ar.sub, ar.sub_
    subtract = ar.sub
    mul, mul_ = e.mul, _in_place(e.mul)
    multiply = e.mul
    div, div_ = ar.div, _in_place(e.div)
    true_divide = e.div
    floor_divide, floor_divide_ = e.floor_divide, _in_place(e.floor_divide)
    remainder, remainder_ = e.remainder, _in_place(e.remainder)
    pow, pow_ = ar.pow, ar.pow_
    __ifloordiv__, __imod__, __ipow__ = floor_divide_, remainder_, pow_
    neg, neg_ = e.neg, _in_place(e.neg)
    abs, abs_ = e.abs, _in_place(e.abs)
    sign, sign_ = e.sign, _in_place(e.sign)
    reciprocal, reciprocal_ = e.reciprocal, _in_place(e.reciprocal)
    square, square_ = e.square, _in_place(e.square)
    addcmul, addcmul_ = ar.addcmul, ar.addcmul_
    addcdiv, addcdiv_ = ar.addcdiv, ar.addcdiv_
    lerp, lerp_ = ar.lerp, _in_place(ar.lerp)
    clamp, clamp_ = ar.clamp, ar.clamp_
    clip, clip_ = ar.clamp, ar.clamp_
    clamp_min, clamp_min_ = e.clamp_min, _in_place(e.clamp_min)
    clamp_max, clamp_max_ = e.clamp_max, _in_place(e.clamp_max)
    maximum, minimum = e.maximum, e.minimum

    # exponentials, activations, rounding
    exp, exp_ = e.exp, _in_place(e.exp)
    expm1, expm1_ = e.expm1, _in_place(e.expm1)
    log, log_ = e.log, _in_place(e.log)
    log1p, log1p_ = e.log1p, _in_place(e.log1p)
    sqrt, sqrt_ = e.sqrt, _in_place(e.sqrt)
    rsqrt, rsqrt_ = e.rsqrt, _in_place(e.rsqrt)
    tanh, tanh_ = e.tanh, _in_place(e.tanh)
    sigmoid, sigmoid_ = e.sigmoid, _in_place(e.sigmoid)
    erf, erf_ = e.erf, _in_place(e.erf)
    relu, relu_ = e.relu, _in_place(e.relu)
    floor, floor_ = e.floor, _in_place(e.floor)
    ceil, ceil_ = e.ceil, _in_place(e.ceil)
    trunc, trunc_ = e.trunc, _in_place(e.trunc)
    round, round_ = e.round, _in_place(e.round)
    softmax, log_softmax = softmax, log_softmax

    # comparison and logic
    eq, ne, lt, le, gt, ge = e.eq, e.ne, e.lt, e.le, e.gt, e.ge
    logical_and, logical_or, logical_xor, logical_not = (
        e.logical_and,
        e.logical_or,
        e.logical_xor,
        e.logical_not,
    )
    __and__ = __rand__ = _logical(e.logical_and, "&")
    __or__ = __ror__ = _logical(e.logical_or, "|")
    __xor__ = __rxor__ = _logical(e.logical_xor, "^")
    __invert__ = _logical(e.logical_not, "~")
    __iand__ = _logical_in_place(e.logical_and, "&=")
    __ior__ = _logical_in_place(e.logical_or, "|=")
    __ixor__ = _logical_in_place(e.logical_xor, "^=")
    eq_, ne_, lt_, le_, gt_, ge_ = (
        _in_place(e.eq),
        _in_place(e.ne),
        _in_place(e.lt),
        _in_place(e.le),
        _in_place(e.gt),
        _in_place(e.ge),
    )
    logical_and_, logical_or_, logical_xor_, logical_not_ = (
        _in_place(e.logical_and),
        _in_place(e.logical_or),
        _in_place(e.logical_xor),
        _in_place(e.logical_not),
    )
    isnan, isfinite, isinf = e.isnan, e.isfinite, e.isinf
    equal, allclose = equal, allclose

    def where(self, condition: Any, other: Any) -> Any:
        """The tensor where ``condition``, else ``other``."""
        return e.where(condition, self, other)

    # reductions
    sum, mean, prod, any, all = (
        reduction.sum,
        reduction.mean,
        reduction.prod,
        reduction.any,
        reduction.all,
    )
    amax, amin, max, min = reduction.amax, reduction.amin, reduction.max, reduction.min
    argmax, argmin = reduction.argmax, reduction.argmin
    var, std, norm, logsumexp = reduction.var, reduction.std, reduction.norm, reduction.logsumexp

    # products
    matmul, mm, bmm, mv, dot, addmm = matmul, mm, bmm, mv, dot, addmm

    # movement
    view, reshape, flatten = movement.view_shape, movement.reshape, movement.flatten
    permute, transpose, t = movement.permute, movement.transpose, movement.t
    expand, broadcast_to = movement.expand, movement.broadcast_to
    squeeze, unsqueeze = movement.squeeze, movement.unsqueeze
    squeeze_, unsqueeze_ = squeeze_, unsqueeze_
    resize_, resize_as_ = resize_, resize_as_
    narrow, select, chunk, split = (
        movement.narrow,
        movement.select,
        movement.chunk,
        movement.split,
    )
    flip, clone, contiguous, copy_ = (
        movement.flip,
        movement.clone,
        movement.contiguous,
        movement.copy_,
    )
    fill_, zero_ = fill_, zero_

    @property
    def T(self) -> Any:
        """The axes in reverse order."""
        return movement.permute(self, *reversed(range(self.dim())))  # type: ignore[attr-defined]

    mT = property(movement.matrix_transpose)

    def view_as(self, other: Any) -> Any:
        """The tensor in the shape of another."""
        return movement.view_shape(self, *other.shape)

    def reshape_as(self, other: Any) -> Any:
        """The tensor in the shape of another, copied if need be."""
        return movement.reshape(self, *other.shape)

    def expand_as(self, other: Any) -> Any:
        """The tensor expanded to the shape of another."""
        return movement.expand(self, *other.shape)

    # indexing
    __getitem__, __setitem__ = indexing.getitem, indexing.setitem
    gather, index_select, nonzero = indexing.gather, indexing.index_select, indexing.nonzero
    masked_select = indexing.masked_select
    masked_fill, masked_fill_ = ar.masked_fill, ar.masked_fill_

    # conversion and creation
    float, double = _converted(dtypes.float32), _converted(dtypes.float64)
    int, long = _converted(dtypes.int32), _converted(dtypes.int64)
    byte, bool = _converted(dtypes.uint8), _converted(dtypes.bool_)
    new, new_tensor, new_full = new, new_tensor, new_full
    new_zeros, new_ones, new_empty = new_zeros, new_ones, new_empty

    # random, in place
    uniform_, normal_ = random.uniform_, random.normal_
    bernoulli_, random_ = random.bernoulli_, random.random_
