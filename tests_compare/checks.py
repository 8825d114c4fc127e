"""What every comparison with PyTorch needs: one call in both libraries, and the tally of errors.

A *case* is a function of a library ``t`` (numgrad or torch) and of tensors: the same call in both.
Its results are compared in value, shape, dtype and ``requires_grad``; its gradients in both orders,
and the first order twice, since a plain backward runs other kernels than one that is recorded.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import numgrad
import numgrad.nn
import numgrad.optim
from numgrad.ops.declare import Elementwise
from numgrad.ops.primitive import Primitive

LIMITS = {
    ("forward", "float32"): 1e-5,
    ("gradient", "float32"): 1e-4,
    ("second gradient", "float32"): 1e-4,
    ("forward", "float64"): 1e-12,
    ("gradient", "float64"): 1e-12,
    ("second gradient", "float64"): 1e-12,
}
"""Largest errors allowed, by what is compared and its dtype; integers and bools must be equal."""

FLOATS = ("float32", "float64")

# --------------------------------------------------------------------------------------- the tally


@dataclass
class Row:
    """Comparisons of one kind: how many, and the worst error with the name of its case."""

    count: int = 0
    worst: float = -1.0
    name: str = ""


tally: dict[tuple[str, str, str], Row] = {}
"""By (kind, what, dtype)."""


def count(kind: str, what: str, dtype: str, name: str, error: float) -> None:
    """Add one comparison to the tally."""
    row = tally.setdefault((kind, what, dtype), Row())
    row.count += 1
    if error > row.worst:
        row.worst, row.name = error, name


def error(ours: Any, theirs: Any) -> float:
    """``max|a - b| / max(max|b|, 1e-3)``; inf where shapes, nans or infinities differ."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if a.shape != b.shape:
        return np.inf
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return np.inf
    if not finite.any():
        return 0.0
    a, b = a[finite], b[finite]
    if not np.isfinite(a).all():
        return np.inf
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-3))


# ------------------------------------------------------------------------------- both libraries

Library = Any


def tensor(t: Library, array: Any, requires_grad: bool = False) -> Any:
    """A leaf of library ``t`` with a copy of an array (in its strides' order)."""
    array = np.asarray(array)
    leaf = t.tensor(array)
    if requires_grad and array.dtype.kind == "f":
        leaf.requires_grad_(True)
    return leaf


def array_of(x: Any) -> np.ndarray:
    """The values of a tensor of either library."""
    # force: PyTorch keeps some gradients that are zero as tensors without memory.
    return x.detach().numpy(force=True) if isinstance(x, torch.Tensor) else x.detach().numpy()


def dtype_of(x: Any) -> str:
    """The name of a tensor's dtype, the same in both libraries."""
    return str(x.dtype).removeprefix("torch.")


def function(t: Library, name: str) -> Callable[..., Any]:
    """The function ``name`` of a library, also one that PyTorch has in ``nn.functional`` only."""
    found = getattr(t, name, None)
    return found if found is not None else getattr(t.nn.functional, name)


def tensors_of(result: Any) -> list[Any]:
    """A result, a tuple or a list of results as a list of tensors."""
    if isinstance(result, (tuple, list)):
        return [x for item in result for x in tensors_of(item)]
    return [result]


def agree(kind: str, what: str, name: str, ours: Any, theirs: Any) -> None:
    """Assert that two tensors are equal in shape, dtype and value, and count it."""
    assert tuple(ours.shape) == tuple(theirs.shape), (
        f"{name}, {what}: shape {tuple(ours.shape)}, PyTorch's {tuple(theirs.shape)}"
    )
    dtype = dtype_of(theirs)
    assert dtype_of(ours) == dtype, f"{name}, {what}: dtype {dtype_of(ours)}, PyTorch's {dtype}"
    a, b = array_of(ours), array_of(theirs)
    found = error(a, b)
    limit = LIMITS.get((what, dtype), 0.0)
    assert found <= limit, f"{name}, {what} {dtype}: error {found:.2e} > {limit}\n{a}\n{b}"
    count(kind, what, dtype, name, found)


# --------------------------------------------------------------------------------- which ops ran

_ran: set[str] = set()


def _noting(method: Callable[..., Any]) -> Callable[..., Any]:
    def noted(self: Any, *args: Any, **named: Any) -> Any:
        _ran.add(self.name)
        return method(self, *args, **named)

    return noted


def note_ops() -> None:
    """From now on, note the name of every op that runs."""
    for cls, methods in ((Elementwise, ["run", "vjp"]), (Primitive, ["run", "run_dynamic", "see"])):
        for method in methods:
            setattr(cls, method, _noting(getattr(cls, method)))


@contextmanager
def ops_that_run() -> Iterator[set[str]]:
    """The names of the ops that run in the block."""
    before = set(_ran)
    _ran.clear()
    found: set[str] = set()
    try:
        yield found
    finally:
        found |= _ran
        _ran.update(before)


# ------------------------------------------------------------------------------------------- cases


@dataclass
class Case:
    """One call in both libraries.

    Args:
        name: what is compared, as it stands in the table of errors.
        call: ``call(t, *tensors)``, a tensor or a tuple of them.
        shapes: one tuple of operand shapes a run; operands are drawn from ``domain``.
        arrays: further runs with given operands (floats take the dtype of the run).
        ops: entries of the op table that this must run; ``name`` if left out.
        gradients: 0, 1 or 2 orders.
        domain: an interval, or one an operand.
    """

    name: str
    call: Callable[..., Any]
    shapes: Sequence[Sequence[tuple[int, ...]]] = ()
    arrays: Sequence[Sequence[Any]] = ()
    ops: Sequence[str] | None = None
    gradients: int = 2
    domain: Any = (-3.0, 3.0)
    dtypes: Sequence[str] = FLOATS
    label: str = field(default="")

    def __post_init__(self) -> None:
        self.label = self.label or self.name

    def __str__(self) -> str:
        return self.label

    def operands(self, dtype: str) -> Iterator[list[np.ndarray]]:
        """The operands of each run."""
        rng = np.random.default_rng(zlib.crc32(self.label.encode()))
        for shapes in self.shapes:
            domains = self.domain if isinstance(self.domain[0], tuple) else [self.domain] * 9
            yield [
                np.asarray(rng.uniform(*domain, shape)).astype(dtype)
                for shape, domain in zip(shapes, domains, strict=False)
            ]
        for given in self.arrays:
            yield [_typed(np.asarray(a), dtype) for a in given]


def _typed(array: np.ndarray, dtype: str) -> np.ndarray:
    return array.astype(dtype) if array.dtype.kind == "f" else array


def check(case: Case, kind: str, dtype: str) -> None:
    """Compare all runs of a case; assert that the ops it names were among those that ran."""
    with ops_that_run() as ran:
        for operands in case.operands(dtype):
            compare(kind, case.label, case.call, operands, case.gradients)
    missing = set([case.name] if case.ops is None else case.ops) - ran
    assert not missing, f"{case.label}: never ran {sorted(missing)}; ran {sorted(ran)}"


def compare(
    kind: str,
    name: str,
    call: Callable[..., Any],
    operands: Sequence[np.ndarray],
    gradients: int = 2,
) -> None:
    """Run ``call`` on the same operands in both libraries and compare results and gradients."""
    shapes = ", ".join(str(x.shape) for x in operands)
    where = f"{name} of {shapes}"
    results = [
        tensors_of(call(t, *[tensor(t, x, gradients > 0) for x in operands]))
        for t in (numgrad, torch)
    ]
    assert len(results[0]) == len(results[1]), f"{where}: number of results"
    for ours, theirs in zip(*results, strict=True):
        agree(kind, "forward", where, ours, theirs)
        assert ours.requires_grad == theirs.requires_grad, f"{where}: requires_grad"
    if gradients == 0 or not any(out.requires_grad for out in results[1]):
        return
    rng = np.random.default_rng(7)
    incoming = [rng.standard_normal(tuple(out.shape)) for out in results[1]]
    # Cotangents for the gradients in the second pass.
    outgoing = [rng.standard_normal(x.shape) for x in operands]

    plain = [_plain_backward(t, call, operands, incoming) for t in (numgrad, torch)]
    _agree_all(kind, "gradient", where, *plain, operands)
    if gradients < 2:
        return
    recorded = [_recorded_backward(t, call, operands, incoming, outgoing) for t in (numgrad, torch)]
    _agree_all(kind, "gradient", where, recorded[0][0], recorded[1][0], operands)
    wanted = [*operands, *(c.astype(_dtype_of_floats(operands)) for c in incoming)]
    _agree_all(kind, "second gradient", where, recorded[0][1], recorded[1][1], wanted)


def _dtype_of_floats(operands: Sequence[np.ndarray]) -> Any:
    return next(x.dtype for x in operands if x.dtype.kind == "f")


def _agree_all(
    kind: str, what: str, name: str, ours: Any, theirs: Any, operands: Sequence[np.ndarray]
) -> None:
    """Compare gradients; no gradient (None) counts as zeros."""
    for i, (a, b, operand) in enumerate(zip(ours, theirs, operands, strict=True)):
        if a is None and b is None:
            continue
        a = numgrad.tensor(np.zeros_like(operand)) if a is None else a
        b = torch.tensor(np.zeros_like(operand)) if b is None else b
        agree(kind, what, f"{name}, operand {i}", a, b)


def _differentiable(
    t: Library, call: Callable[..., Any], operands: Any, incoming: Any, record: bool
) -> tuple[list[Any], list[Any], list[Any]]:
    """Leaves, results, and the incoming gradient of each result (None where it takes none)."""
    leaves = [tensor(t, x, True) for x in operands]
    outs = tensors_of(call(t, *leaves))
    gs = [
        tensor(t, g.astype(dtype_of(out)), record) if out.requires_grad else None
        for out, g in zip(outs, incoming, strict=True)
    ]
    return leaves, outs, gs


def _plain_backward(t: Library, call: Any, operands: Any, incoming: Any) -> list[Any]:
    leaves, outs, gs = _differentiable(t, call, operands, incoming, False)
    t.autograd.backward([out for out in outs if out.requires_grad], _without_none(gs))
    return [leaf.grad for leaf in leaves]


def _recorded_backward(
    t: Library, call: Any, operands: Any, incoming: Any, outgoing: Any
) -> tuple[list[Any], list[Any]]:
    leaves, outs, gs = _differentiable(t, call, operands, incoming, True)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    first = t.autograd.grad(
        [out for out in outs if out.requires_grad],
        wanted,
        _without_none(gs),
        create_graph=True,
        allow_unused=True,
    )
    first = _at_places(first, [leaf.requires_grad for leaf in leaves])
    roots = [
        (g, tensor(t, v.astype(dtype_of(g))))
        for g, v in zip(first, outgoing, strict=True)
        if g is not None and g.requires_grad
    ]
    places = [*(leaf.requires_grad for leaf in leaves), *(g is not None for g in gs)]
    if not roots:
        return first, [None] * len(places)
    second = t.autograd.grad(
        [g for g, _ in roots],
        [*wanted, *_without_none(gs)],
        [v for _, v in roots],
        allow_unused=True,
    )
    return first, _at_places(second, places)


def _without_none(values: Sequence[Any]) -> list[Any]:
    return [v for v in values if v is not None]


def _at_places(values: Sequence[Any], places: Sequence[bool]) -> list[Any]:
    """The values in order, one a True place, and None elsewhere."""
    rest = iter(values)
    return [next(rest) if place else None for place in places]
