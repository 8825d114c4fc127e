"""Padding: elements put around a tensor, or taken away from its edges."""

import math
from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.errors import RangeError, ShapeError, expected, shown
from ..graph.mode import composite
from .attributes import INTEGERS, LARGEST
from .declare import NUMBERS
from .kernel_calls import compute, copy_into, fill, reduce_into, workspace
from .movement import clone, contiguous, slice_of
from .primitive import primitive, tensor_operand
from .reduction import SUM

Pads = tuple[tuple[int, int], ...]
"""(before, after) for each of the last axes, in their order."""
EDGES = ("reflect", "replicate", "circular")


def _along(x: np.ndarray, axis: int, start: int, stop: int, step: int = 1) -> np.ndarray:
    """Elements of one axis, a view. ``stop`` counts from 0, so -1 is before the first."""
    index = (*[slice(None)] * axis, slice(start, None if stop < 0 else stop, step))
    return x[index]


def _padded(x: Any, pads: Pads) -> Any:
    lead = len(x.shape) - len(pads)
    grown = tuple(n + b + a for n, (b, a) in zip(x.shape[lead:], pads, strict=True))
    return (*x.shape[:lead], *grown), x.dtype


def _inside(ndim: int, shape: tuple[int, ...], pads: Pads) -> tuple[slice, ...]:
    """The index of the elements of x in the padded ``shape``."""
    lead = ndim - len(pads)
    parts = [slice(b, n - a) for n, (b, a) in zip(shape[lead:], pads, strict=True)]
    return (*[slice(None)] * lead, *parts)


# --------------------------------------------------------------------------------------- constants


def _pad_gradient(g: Any, pads: Pads) -> Any:
    return slice_of(g, index=_inside(g.dim(), g.shape, pads))


@primitive(
    infer=lambda x, pads, value: _padded(x, pads),
    dx=_pad_gradient,
    reference="numgrad.kernels.reference.padding:pad_constant",
)
def pad_constant(out, x, *, pads, value):
    """x with ``value`` around it, along the last axes."""
    copy_into(out[_inside(out.ndim, out.shape, pads)], x)
    inside, lead = _inside(out.ndim, out.shape, pads), out.ndim - len(pads)
    for axis, (before, after) in enumerate(pads, lead):
        # Along the axes that were done, the whole of it; along those that are left, only x.
        for part in (slice(0, before), slice(out.shape[axis] - after, None)):
            index = (*[slice(None)] * axis, part, *inside[axis + 1 :])
            if out[index].size:
                fill(out[index], value)


# -------------------------------------------------------------------------------------------- edges


def _sources(n: int, before: int, after: int, mode: str) -> tuple[Any, Any]:
    """(start, stop, step) of what stands before and behind ``n`` elements that begin at ``before``,
    as places in the padded axis; None where nothing does."""
    if mode == "reflect":
        left = (2 * before, before, -1)
        right = (before + n - 2, before + n - 2 - after, -1)
    elif mode == "circular":
        left = (n, n + before, 1)
        right = (before, before + after, 1)
    else:
        left, right = (before, before + 1, 1), (before + n - 1, before + n, 1)
    return left if before else None, right if after else None


def _edges_gradient(g: Any, pads: Pads, mode: str) -> Any:
    return fold_edges(g, pads=pads, mode=mode)


@primitive(
    infer=lambda x, pads, mode: _padded(x, pads),
    dx=_edges_gradient,
    reference="numgrad.kernels.reference.padding:pad_edges",
)
def pad_edges(out, x, *, pads, mode):
    """x with its own elements around it: mirrored at its edges without repeating these
    (``reflect``), its edges (``replicate``), or its other end (``circular``)."""
    index = _inside(out.ndim, out.shape, pads)
    copy_into(out[index], x)
    lead = out.ndim - len(pads)
    for axis in reversed(range(lead, out.ndim)):
        # The axes behind are whole already, of those before only x is there.
        part = out[index[:axis]]
        before, after = pads[axis - lead]
        n = x.shape[axis]
        left, right = _sources(n, before, after, mode)
        if left:
            copy_into(_along(part, axis, 0, before), _along(part, axis, *left))
        if right:
            copy_into(_along(part, axis, before + n, part.shape[axis]), _along(part, axis, *right))


def _added(target: np.ndarray, y: np.ndarray) -> None:
    compute("sum of two", lambda x, y: x + y, target, target, y)


@primitive(
    infer=lambda g, pads, mode: _padded(g, tuple((-before, -after) for before, after in pads)),
    dg=lambda g, pads, mode: pad_edges(g, pads=pads, mode=mode),
    reference="numgrad.kernels.reference.padding:fold_edges",
)
def fold_edges(out, g, *, pads, mode):
    """``g`` without its edges, which are added where ``pad_edges`` takes them from: its adjoint."""
    total = workspace(g.shape, g.dtype)
    copy_into(total, g)
    index, lead = _inside(g.ndim, g.shape, pads), g.ndim - len(pads)
    for axis in range(lead, g.ndim):
        part = total[index[:axis]]
        before, after = pads[axis - lead]
        n = out.shape[axis]
        sides = zip(
            _sources(n, before, after, mode), ((0, before), (before + n, None)), strict=True
        )
        for source, (start, stop) in sides:
            if source is None:
                continue
            target = _along(part, axis, *source)
            edge = _along(part, axis, start, part.shape[axis] if stop is None else stop)
            if edge.shape != target.shape:  # an edge that was repeated
                folded = workspace(target.shape, g.dtype)
                reduce_into(folded, SUM, edge, (axis,))
                edge = folded
            _added(target, edge)
    copy_into(out, total[index])


# --------------------------------------------------------------------------------- public functions


def _pairs(x: Any, pad: Any) -> Pads:
    """``pad``, which begins with the last axis, as pairs in the order of the axes."""
    if not isinstance(pad, (tuple, list)):
        raise TypeError(expected("pad", "a tuple of integers", "pad", repr(pad), "pass (1, 1)"))
    for n in pad:
        if isinstance(n, bool) or not isinstance(n, INTEGERS):
            raise TypeError(expected("pad", "integers", "pad", repr(pad), "use int()"))
        if abs(n) > LARGEST:
            what = "integers within ±2**31"
            raise RangeError(expected("pad", what, "pad", repr(pad), "pad less"))
    if len(pad) % 2 or len(pad) > 2 * x.dim():
        raise ShapeError(
            expected(
                "pad",
                f"two integers for each of at most {x.dim()} axes",
                "pad",
                repr(pad),
                "pass (before, after) of the last axis, then of the one before it, …",
            )
        )
    pairs = [(int(pad[i]), int(pad[i + 1])) for i in range(0, len(pad), 2)]
    return tuple(reversed(pairs))


def _grown(pads: Pads) -> Pads:
    return tuple((max(before, 0), max(after, 0)) for before, after in pads)


def _cut(x: Any, pads: Pads) -> Any:
    """x without what negative pads take away: a view."""
    taken = tuple((max(-before, 0), max(-after, 0)) for before, after in pads)
    if not any(map(any, taken)):
        return x
    lead = x.dim() - len(pads)
    if any(n < b + a for n, (b, a) in zip(x.shape[lead:], taken, strict=True)):
        raise ShapeError(
            expected("pad", "to take away no more than there is", "pad", pads, f"x is {shown(x)}")
        )
    return slice_of(x, index=_inside(x.dim(), x.shape, taken))


def _constant(x: Any, value: Any) -> Any:
    """``value`` as a number of the dtype of x."""
    if value is None:
        return 0
    if isinstance(value, np.generic) or not isinstance(value, NUMBERS):
        one = hasattr(value, "item") and math.prod(value.shape) == 1
        value = value.item() if one else value
        if not isinstance(value, NUMBERS):
            raise TypeError(expected("pad", "a number", "value", shown(value), "use float()"))
    if x.dtype == dtypes.bool_:
        return bool(value)
    if x.dtype.kind == "f":
        return float(value)
    limits = np.iinfo(x.dtype)
    if not limits.min <= value <= limits.max:
        raise RangeError(
            expected("pad", f"a number of dtype {x.dtype}", "value", value, "convert x first")
        )
    return int(value)


@composite
def pad(x: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    """Elements put around x along its last axes; negative numbers take elements away.

    Args:
        x: any dtype.
        pad: ``(before, after)`` of the last axis, then of the one before it, and so on.
        mode: ``constant`` puts ``value`` (0 if left out) around any number of axes; ``reflect`` the
            elements mirrored at the edge, which is not repeated; ``replicate`` the edge;
            ``circular`` the other end. These three pad the last axis of 2 or 3 axes, the last two
            of 3 or 4, the last three of 4 or 5.

    Raises:
        ShapeError: pad is no list of pairs, does not fit x, or reaches farther than the mode can.
        RangeError: pad is beyond 2**31; value is out of the range of the dtype, or the mode takes
            none.
        TypeError: pad is not of integers, or value is no number.
        NotImplementedError: there is no such mode.
    """
    pads = _pairs(tensor_operand("pad", x), pad)
    if mode == "constant":
        number = _constant(x, value)
        x = _cut(x, pads)
        grown = _grown(pads)
        return pad_constant(x, pads=grown, value=number) if any(map(any, grown)) else clone(x)
    if mode not in EDGES:
        modes = ", ".join(map(repr, ("constant", *EDGES)))
        raise NotImplementedError(
            expected("pad", f"one of {modes}", "mode", repr(mode), "use one of them")
        )
    if value not in (None, 0):
        raise RangeError(
            expected("pad", f"no value with mode {mode!r}", "value", value, "leave it out")
        )
    if not 1 <= len(pads) <= 3 or x.dim() - len(pads) not in (1, 2):
        raise ShapeError(
            expected(
                "pad",
                f"one or two axes more than the {len(pads)} that mode {mode!r} pads",
                "x",
                shown(x),
                "unsqueeze it, or give another number of pads",
            )
        )
    if mode == "circular":  # it is what is left that goes round
        x = _cut(x, pads)
    grown = _grown(pads)
    for n, pair in zip(x.shape[x.dim() - len(pads) :], grown, strict=True):
        most = {"reflect": n - 1, "circular": n, "replicate": max(pair) if n else 0}[mode]
        if max(pair) > max(most, 0):
            raise ShapeError(
                expected(
                    "pad",
                    f"at most {max(most, 0)} at an axis of {n} with mode {mode!r}",
                    "pad",
                    pair,
                    f"x is {shown(x)}",
                )
            )
    if mode == "circular":
        return pad_edges(x, pads=grown, mode=mode)
    lead = ((0, 0),) * (x.dim() - len(pads))
    return contiguous(_cut(pad_edges(x, pads=grown, mode=mode), (*lead, *pads)))
