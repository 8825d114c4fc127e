"""What the generated tests share: the gradient checker, and comparisons with a tolerance that says
what it is relative to.

A gradient is checked by projection: for random directions ``u`` and a random weighting ``v`` of the
results, ``d/dt <f(x + t u), v>`` by finite differences must equal ``<gradient, u>``. One number
stands for all elements of all operands. Order 2 does the same to the recorded gradient.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import numgrad
from numgrad.autograd import grad

performed: set[tuple[str, str, int]] = set()
"""(entry, dtype, order) of every gradient check of this process that passed; the sum is printed at
the end of the session."""

STEP = 1e-3
"""Step of the five-point stencil: its error is STEP**4 times a fifth derivative, about 1e-12, and
that of rounding 1e-16 / STEP."""
TOLERANCE = 1e-7
"""Of projections, relative to the sum of absolute products: far above both errors, far below any
mistake in a formula."""
FLOAT32_TOLERANCE = {1: 1e-4, 2: 1e-3}
"""Of a float32 gradient against the float64 one at the same point, relative to its largest element.
Second gradients subtract numbers of the size of the first."""


def _tensors(arrays: Sequence[np.ndarray], dtype: Any = None) -> list[Any]:
    return [
        numgrad.tensor(a, dtype=dtype if a.dtype.kind == "f" else None, requires_grad=True)
        if a.dtype.kind == "f"
        else numgrad.tensor(a)
        for a in arrays
    ]


def _outputs(function: Callable[..., Any], tensors: Sequence[Any]) -> list[Any]:
    out = function(*tensors)
    outs = list(out) if isinstance(out, tuple) else [out]
    return [o for o in outs if o.dtype.kind == "f"]


def _weights(function: Callable[..., Any], arrays: Sequence[np.ndarray], rng: Any) -> list[Any]:
    outs = _outputs(function, [numgrad.tensor(a) for a in arrays])
    return [rng.uniform(0.5, 1.5, o.shape) * rng.choice([-1.0, 1.0], o.shape) for o in outs]


def gradients(
    function: Callable[..., Any],
    arrays: Sequence[np.ndarray],
    weights: Sequence[np.ndarray],
    dtype: Any = None,
    recorded: bool = False,
) -> list[np.ndarray]:
    """Gradients of ``<function(arrays), weights>`` with respect to the floating arrays."""
    tensors = _tensors(arrays, dtype)
    wanted = [t for t in tensors if t.requires_grad]
    outs = _outputs(function, tensors)
    pairs = [(o, w) for o, w in zip(outs, weights, strict=True) if o.requires_grad]
    if not pairs:
        return [np.zeros(t.shape, t.dtype) for t in wanted]
    found = grad(
        [o for o, _ in pairs],
        wanted,
        [numgrad.tensor(w, dtype=o.dtype) for o, w in pairs],
        create_graph=recorded,
        allow_unused=True,
    )
    return [
        np.zeros(t.shape, t.dtype) if g is None else g.detach().numpy()
        for t, g in zip(wanted, found, strict=True)
    ]


def _slope(value: Callable[[float], float]) -> float:
    """The derivative of ``value`` at 0 by the five-point stencil."""
    h = STEP
    return (value(-2 * h) - 8 * value(-h) + 8 * value(h) - value(2 * h)) / (12 * h)


def _dot(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> float:
    return float(sum(np.sum(x * y) for x, y in zip(a, b, strict=True)))


def _moved(arrays: Sequence[np.ndarray], directions: Sequence[np.ndarray], t: float) -> list[Any]:
    steps = iter(directions)
    return [a + t * next(steps) if a.dtype.kind == "f" else a for a in arrays]


def _compare(
    entry: str,
    order: int,
    value: Callable[[float], float],
    found: Sequence[np.ndarray],
    directions: Sequence[np.ndarray],
) -> None:
    expected, got = _slope(value), _dot(found, directions)
    scale = max(_dot([np.abs(f) for f in found], [np.abs(d) for d in directions]), abs(expected), 1)
    if not abs(got - expected) <= TOLERANCE * scale:
        raise AssertionError(
            f"{entry}: expected order-{order} gradient projection {expected!r} by finite "
            f"differences, got {got!r} from backward"
        )


def check_gradients(
    function: Callable[..., Any],
    arrays: Sequence[np.ndarray],
    entry: str,
    *,
    orders: Sequence[int] = (1, 2),
    seed: int = 0,
    float32: bool = True,
) -> None:
    """Check ``function``'s gradients at the float64 ``arrays`` by finite differences, to order 2,
    and those of float32 against them.

    ``function`` takes tensors and returns one or a tuple. Arrays of other dtypes are passed on as
    they are. The points must be farther than 2 * STEP from any kink.

    Raises:
        AssertionError: a gradient is wrong.
    """
    rng = np.random.default_rng(seed)
    arrays = [np.asarray(a) for a in arrays]
    floats = [a for a in arrays if a.dtype.kind == "f"]
    assert floats and all(a.dtype == np.float64 for a in floats), "arrays must be float64"
    weights = _weights(function, arrays, rng)

    def directions() -> list[np.ndarray]:
        return [rng.uniform(0.5, 1.5, a.shape) * rng.choice([-1.0, 1.0], a.shape) for a in floats]

    first = gradients(function, arrays, weights)
    for g, a in zip(first, floats, strict=True):
        assert g.shape == a.shape and g.dtype == a.dtype, (entry, g.shape, a.shape)
    if 1 in orders:
        for u in (directions(), directions()):

            def value(t: float, u: Any = u) -> float:
                outs = _outputs(function, [numgrad.tensor(a) for a in _moved(arrays, u, t)])
                return _dot([o.numpy() for o in outs], weights)

            _compare(entry, 1, value, first, u)
        performed.add((entry, "float64", 1))
    projection = directions()
    if 2 in orders:
        recorded = gradients(function, arrays, weights, recorded=True)
        for a, b in zip(recorded, first, strict=True):
            assert_close(a, b, 1e-12, f"{entry}: gradient under create_graph")
        second = second_gradients(function, arrays, weights, projection)
        u = directions() + [rng.uniform(-1, 1, w.shape) for w in weights]

        def value_2(t: float) -> float:
            moved = [w + t * d for w, d in zip(weights, u[len(floats) :], strict=True)]
            return _dot(gradients(function, _moved(arrays, u, t), moved), projection)

        _compare(entry, 2, value_2, second, u)
        performed.add((entry, "float64", 2))
    if float32:
        _check_float32(function, arrays, entry, orders, weights, projection)


def second_gradients(
    function: Callable[..., Any],
    arrays: Sequence[np.ndarray],
    weights: Sequence[np.ndarray],
    projection: Sequence[np.ndarray],
    dtype: Any = None,
) -> list[np.ndarray]:
    """Gradients of ``<gradients(function, arrays, weights), projection>`` with respect to the
    floating arrays and to the weights."""
    tensors = _tensors(arrays, dtype)
    wanted = [t for t in tensors if t.requires_grad]
    outs = _outputs(function, tensors)
    gs = [
        numgrad.tensor(w, dtype=o.dtype, requires_grad=True)
        for w, o in zip(weights, outs, strict=True)
    ]
    zeros = [np.zeros(t.shape, t.dtype) for t in [*wanted, *gs]]
    pairs = [(o, g) for o, g in zip(outs, gs, strict=True) if o.requires_grad]
    if not pairs:
        return zeros
    found = grad(
        [o for o, _ in pairs],
        wanted,
        [g for _, g in pairs],
        create_graph=True,
        allow_unused=True,
    )
    roots = [
        (g, numgrad.tensor(p, dtype=g.dtype))
        for g, p in zip(found, projection, strict=True)
        if g is not None and g.requires_grad
    ]
    if not roots:
        return zeros
    twice = grad([r for r, _ in roots], [*wanted, *gs], [p for _, p in roots], allow_unused=True)
    return [z if g is None else g.detach().numpy() for z, g in zip(zeros, twice, strict=True)]


def _check_float32(
    function: Callable[..., Any],
    arrays: Sequence[np.ndarray],
    entry: str,
    orders: Sequence[int],
    weights: Sequence[np.ndarray],
    projection: Sequence[np.ndarray],
) -> None:
    single = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in arrays]
    double = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in single]
    weights = [w.astype(np.float32).astype(np.float64) for w in weights]
    projection = [p.astype(np.float32).astype(np.float64) for p in projection]
    for order in orders:
        if order == 1:
            got = gradients(function, single, weights)
            expected = gradients(function, double, weights)
        else:
            got = second_gradients(function, single, weights, projection)
            expected = second_gradients(function, double, weights, projection)
        # Second gradients of some operands are 0 as a difference: the scale is that of them all.
        scale = max([1.0, *(float(np.abs(b).max(initial=0)) for b in expected)])
        for a, b in zip(got, expected, strict=True):
            assert a.dtype == np.float32, (entry, a.dtype)
            what = f"{entry}: float32 gradient of order {order}"
            assert_close(a, b, FLOAT32_TOLERANCE[order], what, scale)
        performed.add((entry, "float32", order))


def assert_close(
    got: Any, expected: Any, tolerance: float, what: str = "", scale: float = 1e-3
) -> None:
    """Equal shapes, equal places of nan and infinities, and elsewhere a difference of at most
    ``tolerance`` times the largest finite expected value, which counts as at least ``scale``."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, expected {expected.shape}"
    if got.dtype.kind != "f" and expected.dtype.kind != "f":
        np.testing.assert_array_equal(got, expected, what)
        return
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(
        np.where(finite, 0, got), np.where(finite, 0, expected), f"{what}: not finite"
    )
    assert np.isfinite(got[finite]).all(), f"{what}: {got} expected {expected}"
    scale = max(np.abs(expected[finite]).max(initial=0), scale)
    error = np.abs(got[finite].astype(np.float64) - expected[finite]).max(initial=0)
    assert error <= tolerance * scale, (
        f"{what}: error {error:.3g} of {scale:.3g}\n{got}\n{expected}"
    )


def layouts(array: np.ndarray, rng: Any) -> dict[str, np.ndarray]:
    """The same values in every kind of layout: all equal ``array``, none shares memory with it."""
    found = {"contiguous": array.copy()}
    found["transposed"] = array.T.copy().T
    found["fortran"] = np.asfortranarray(array)
    wide = np.zeros(tuple(2 * n + 3 for n in array.shape), array.dtype)
    part = wide[tuple(slice(1, 2 * n + 1, 2) for n in array.shape)]
    part[...] = array
    found["stepped"] = part
    padded = np.zeros(tuple(n + 3 for n in array.shape), array.dtype)
    part = padded[tuple(slice(2, n + 2) for n in array.shape)]
    part[...] = array
    found["sliced"] = part
    found["flipped"] = np.flip(array).copy()[(slice(None, None, -1),) * array.ndim]
    return found
