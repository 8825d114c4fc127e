"""Every elementwise entry, from what it says of itself: values, gradients, layouts, dtypes."""

import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import numgrad
from numgrad.kernels import launch
from tests.checks import assert_close, check_gradients, gradients, layouts
from tests.ops import samples
from tests.ops.samples import DTYPES, ENTRIES, attribute_sets, differentiable, tensors

TOLERANCE = {np.dtype("float32"): 2e-6, np.dtype("float64"): 1e-14}
"""Relative to each element: a few ulp, for functions of functions."""

CANCELS = {"gelu", "lerp", "divergence", "log_divergence", "weighted_logit_loss"}
"""``1 + erf(x)`` for negative x, ``x + weight * (y - x)`` near 0 and some losses subtract nearly
equal numbers: their error is relative to the largest result, in PyTorch too."""

each_entry = pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES.keys())
each_differentiable = pytest.mark.parametrize(
    "entry",
    [e for e in ENTRIES.values() if differentiable(e)],
    ids=[n for n, e in ENTRIES.items() if differentiable(e)],
)


def rng_of(entry):
    return np.random.default_rng(sum(map(ord, entry.name)))


def equal_elements(got, expected, what, cancels=False):
    """Each element within a few ulp, nan and infinities in the same places."""
    assert got.shape == expected.shape, f"{what}: {got.shape}, expected {expected.shape}"
    assert got.dtype == expected.dtype, f"{what}: {got.dtype}, expected {expected.dtype}"
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, expected, what)
        return
    tolerance = TOLERANCE[got.dtype]
    atol = np.finfo(got.dtype).tiny * 4
    if cancels:
        atol = tolerance * np.abs(expected[np.isfinite(expected)]).max(initial=1)
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=atol, err_msg=what)


def expected_of(entry, arrays, attributes, exact):
    """The reference's answer in the dtype the entry promises. ``exact``: computed in float64."""
    kinds = [
        a.dtype for a, n in zip(arrays, entry.operands, strict=False) if not is_condition(entry, n)
    ]
    compute = ruled(entry, kinds[0])
    wide = np.float64 if compute.kind == "f" and exact else compute
    inputs = [
        a if is_condition(entry, n) else a.astype(compute).astype(wide)
        for a, n in zip(arrays, entry.operands, strict=False)
    ]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = np.asarray(samples.reference(entry)(*inputs, **attributes))
        if entry.is_condition:
            assert result.dtype == bool, f"{entry.name}: the reference gives {result.dtype}"
            return result
        return result.astype(compute)


def is_condition(entry, name):
    return name in entry.conditions


def ruled(entry, dtype):
    """The dtype an entry computes in for operands of ``dtype``."""
    if dtype.kind == "f" or entry.compute_rule == "promote":
        return dtype
    if entry.compute_rule == "floating":
        return np.dtype("float32")
    return np.dtype("int64") if dtype.kind == "b" else dtype


# ------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each_entry
def test_forward(entry, dtype):
    for attributes in attribute_sets(entry):
        arrays = samples.operands(entry, dtype, (5, 13), rng_of(entry))
        got = entry(*tensors(arrays), **attributes)
        expected = expected_of(entry, arrays, attributes, exact=True)
        what = f"{entry.name} {dtype} {attributes}"
        equal_elements(got.numpy(), expected, what, entry.name in CANCELS)


@pytest.mark.parametrize("dtype", samples.FLOATS, ids=["float32", "float64"])
@each_entry
def test_edges(entry, dtype):
    arrays = samples.special(entry, np.dtype(dtype))
    got = entry(*tensors(arrays)).numpy()
    expected = expected_of(entry, arrays, {}, exact=False)
    equal_elements(got, expected, f"{entry.name} at {arrays}", entry.name in CANCELS)


@each_entry
def test_empty(entry):
    for shape in [(0,), (3, 0), (0, 4, 1)]:
        arrays = [
            np.zeros(shape, bool if is_condition(entry, n) else np.float64)
            for n in samples.tensor_operands(entry)
        ]
        xs = tensors(arrays, requires_grad=True)
        out = entry(*xs)
        assert out.shape == shape
        if out.requires_grad:
            out.sum().backward()
            for name, x in zip(entry.operands, xs, strict=False):
                if name in differentiable(entry):
                    assert x.grad.shape == shape


@each_entry
def test_0dim(entry):
    arrays = samples.smooth(entry, (), rng_of(entry))
    out = entry(*tensors(arrays))
    assert out.shape == () and out.dim() == 0
    expected = expected_of(entry, [np.asarray(a) for a in arrays], {}, exact=True)
    equal_elements(out.numpy(), np.asarray(expected), entry.name, entry.name in CANCELS)


@each_entry
def test_strided(entry):
    """All layouts of the first operand against contiguous others, and of all at once."""
    rng = rng_of(entry)
    arrays = samples.smooth(entry, (3, 4, 5), rng)
    expected = entry(*tensors(arrays)).numpy()
    grads = [x.grad for x in _backward(entry, tensors(arrays, True))]
    kinds = [layouts(a, rng) for a in arrays]
    for name in kinds[0]:
        for mixed in (True, False):
            strided = [
                numgrad.from_numpy(k[name] if i == 0 or not mixed else k["contiguous"])
                for i, k in enumerate(kinds)
            ]
            got = entry(*strided)
            np.testing.assert_array_equal(got.numpy(), expected, f"{entry.name} {name}")
            xs = [x.requires_grad_() if x.is_floating_point() else x for x in strided]
            for x, g in zip(_backward(entry, xs), grads, strict=True):
                assert (x.grad is None) == (g is None)
                if g is not None:
                    np.testing.assert_array_equal(x.grad.numpy(), g.numpy(), f"{entry.name} {name}")


def _backward(entry, xs):
    out = entry(*xs)
    if out.requires_grad:
        # A weighting with a layout of its own: the incoming gradient is strided, too.
        weights = np.linspace(0.5, 2.0, out.numel()).reshape(out.shape[::-1]).T
        out.backward(numgrad.from_numpy(weights.copy(order="K")))
    return xs


# ---------------------------------------------------------------------------------------- gradients


@each_differentiable
def test_gradient(entry):
    for attributes in attribute_sets(entry):
        arrays = samples.smooth(entry, (4, 5), rng_of(entry))
        check_gradients(lambda *xs: entry(*xs, **attributes), arrays, entry.name, orders=(1,))


@each_differentiable
def test_second_gradient(entry):
    for attributes in attribute_sets(entry):
        arrays = samples.smooth(entry, (4, 5), rng_of(entry))
        function = lambda *xs: entry(*xs, **attributes)
        check_gradients(function, arrays, entry.name, orders=(2,))


@each_differentiable
def test_second_gradient_where_g_is_zero(entry):
    """½ (f(x) - f(c))² at x = c: the incoming gradient is 0, the second derivative is f'(c)²."""
    arrays = samples.smooth(entry, (4, 5), rng_of(entry))
    constant = entry(*tensors(arrays))

    def loss(*xs):
        difference = entry(*xs) - constant
        return difference * difference * 0.5

    check_gradients(loss, arrays, f"{entry.name} at 0", orders=(2,), float32=False)


@pytest.mark.parametrize(("name", "slope"), [("elu", "alpha"), ("leaky_relu", "negative_slope")])
def test_negative_slope(name, slope):
    """The sign of the result does not tell that of the operand."""
    x = samples.smooth(ENTRIES[name], (4, 5), rng_of(ENTRIES[name]))
    check_gradients(lambda x: ENTRIES[name](x, **{slope: -0.5}), x, name)


@each_differentiable
def test_broadcast(entry):
    """A gradient has its operand's shape: summed over the axes that broadcasting added."""
    names = samples.tensor_operands(entry)
    shapes = [(4, 1, 3), (5, 1), (3,), ()]
    rng = rng_of(entry)
    full = (4, 5, 3)
    wide = samples.smooth(entry, full, rng)
    for shift in range(len(shapes) if len(names) > 1 else 0):
        arrays = []
        for i, a in enumerate(wide):
            shape = shapes[(i + shift) % len(shapes)]
            index = tuple(slice(None, n) for n in (1,) * (3 - len(shape)) + shape)
            arrays.append(a[index].reshape(shape))
        common = np.broadcast_shapes(*(a.shape for a in arrays))
        out = entry(*tensors(arrays))
        assert out.shape == common
        spread = [np.broadcast_to(a, common).copy() for a in arrays]
        np.testing.assert_array_equal(out.numpy(), entry(*tensors(spread)).numpy())
        weights = [rng.uniform(0.5, 1.5, common)]
        found = gradients(entry, arrays, weights)
        for a, g, g_full in zip(
            [a for a in arrays if a.dtype.kind == "f"],
            found,
            gradients(entry, spread, weights),
            strict=True,
        ):
            lead = len(common) - a.ndim
            axes = tuple(range(lead)) + tuple(
                i + lead for i, n in enumerate(a.shape) if n == 1 and common[i + lead] != 1
            )
            assert_close(g, g_full.sum(axes, keepdims=True).reshape(a.shape), 1e-13, entry.name)


# ------------------------------------------------------------------------------------------- dtypes

f32, f64, i32, i64, u8, b = DTYPES
PROMOTION = {  # PyTorch's table: result of two tensors with axes
    (f32, f64): f64, (f32, i32): f32, (f32, i64): f32, (f32, u8): f32, (f32, b): f32,
    (f64, i32): f64, (f64, i64): f64, (f64, u8): f64, (f64, b): f64,
    (i32, i64): i64, (i32, u8): i32, (i32, b): i32, (i64, u8): i64, (i64, b): i64, (u8, b): u8,
}  # fmt: skip
KIND = {"b": 0, "u": 1, "i": 1, "f": 2}


def promoted(x, y):
    return x if x == y else PROMOTION.get((x, y)) or PROMOTION[y, x]


def promised(entry, operands):
    """The result's dtype for ``[(dtype, class)]``; class 0 has axes, 1 is 0-dim, 2 a number."""
    best = None
    for level in (0, 1, 2):
        dtypes = [d for d, c in operands if c == level]
        if not dtypes:
            continue
        found = dtypes[0]
        for d in dtypes[1:]:
            found = promoted(found, d)
        if best is None or KIND[found.kind] > KIND[best.kind]:
            best = found
    return b if entry.is_condition else ruled(entry, best)


@each_entry
def test_dtype_rule(entry):
    names = [n for n in samples.tensor_operands(entry) if not is_condition(entry, n)]
    lead = [numgrad.ones(2, dtype="bool")] * len(entry.conditions)
    number = {f32: 1.0, i64: 1, b: True}

    def result(operands):
        xs = [
            number[d] if c == 2 else numgrad.ones((2,) if c == 0 else (), dtype=d)
            for d, c in operands
        ]
        args = [*lead, *xs, *[1] * (len(entry.operands) - len(lead) - len(xs))]
        return entry.infer(entry.convert(args), {})[0][1]

    if len(names) == 1:
        for dtype in DTYPES:
            for level in (0, 1):
                assert result([(dtype, level)]) == promised(entry, [(dtype, level)])
        return
    for x in DTYPES:
        for y in DTYPES:
            for levels in ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0), (1, 2), (2, 1)):
                if any(c == 2 and d not in number for d, c in zip((x, y), levels, strict=True)):
                    continue
                operands = list(zip((x, y), levels, strict=True))
                operands += [(x, levels[0])] * (len(names) - 2)
                what = f"{entry.name} of {operands}"
                assert result(operands) == promised(entry, operands), what


def test_numbers_and_dtypes():
    """What PyTorch gives for numbers beside tensors, op by op."""
    i = lambda *v, dtype=None: numgrad.tensor(list(v), dtype=dtype)
    cases = [
        (1 - numgrad.tensor([True, False]), [0, 1], i64),
        (numgrad.tensor([True]) + numgrad.tensor([True]), [True], b),
        (i(7, -7) // 2, [3, -4], i64),
        (i(7, -7) % 2, [1, 1], i64),
        (i(7, -7) % -2, [-1, -1], i64),
        (i(7, 9) / i(2, 2), [3.5, 4.5], f32),
        (i(200, dtype=u8) + 100, [44], u8),
        (i(1, 2, dtype=u8) - 5, [252, 253], u8),
        (-i(1, 2, dtype=u8), [255, 254], u8),
        (i(2**31 - 1, dtype=i32) + 1, [-(2**31)], i32),
        (i(2, 3, dtype=u8) ** 10, [0, 169], u8),
        (i(2, 1, -1, 0) ** i(1, 7, 3, 0), [2, 1, -1, 1], i64),
        (i(4, 9) ** 0.5, [2.0, 3.0], f32),
        (3 ** i(2, 3, dtype=u8), [9, 27], u8),
        (i(1, 5).clamp(1.5, 3.5), [1.5, 3.5], f32),
        (i(1, 5).clamp(min=2), [2, 5], i64),
        (i(2) < 2.5, [True], b),
        (i(2, dtype=u8) > -1, [True], b),
        (i(44, dtype=u8) == 300, [False], b),
        (i(44, dtype=i32) < 2**40, [True], b),
        (numgrad.tensor([True]) == 1, [True], b),
        (i(1, 2).masked_fill(numgrad.tensor([True, False]), 1.9), [1, 2], i64),
        (numgrad.where(numgrad.tensor([True]), 1, 2.0), [1.0], f32),
        (numgrad.where(numgrad.tensor([False]), 1, 2), [2], i64),
        (numgrad.where(numgrad.tensor([1, 0], dtype=u8), i(1, 2), 0.5), [1.0, 0.5], f32),
        (numgrad.tensor([1.0]) // numgrad.tensor([0.1]), [9.0], f32),
        (numgrad.tensor([-3.0, 1.0]) // numgrad.tensor([np.inf, 0.0]), [-1.0, np.inf], f32),
        (numgrad.tensor([-3.0]) % np.inf, [np.inf], f32),
    ]
    for got, values, dtype in cases:
        assert got.dtype == dtype and got.tolist() == pytest.approx(values), (got, values, dtype)


@pytest.mark.parametrize("dtype", [i32, i64, u8], ids=str)
def test_integer_division_by_zero(dtype):
    x = numgrad.tensor([3, 4], dtype=dtype)
    for divide in (lambda: x // 0, lambda: x % 0, lambda: x // numgrad.tensor([1, 0])):
        with pytest.raises(ZeroDivisionError, match="non-zero integer divisor"):
            divide()
    assert x.tolist() == [3, 4]


# ------------------------------------------------------------------------------ large, many layouts

LARGE = (515, 259)  # above launch.PARALLEL_MIN, no multiple of a block in either axis


def _large_operands(rng):
    x, y = rng.standard_normal((2, *LARGE))
    return {
        "contiguous": (x, y),
        "transposed": (x, y.T.copy().T),
        "row": (x, y[0]),
        "column": (x, y[:, :1]),
        "number": (x, y[:1, :1]),
        "strided": (np.repeat(x, 2, axis=1)[:, ::2], y[::-1]),
    }


@pytest.mark.parametrize("name", ["add", "mul", "maximum"])
def test_large(name):
    """Above the parallel threshold: every kind of operand, forward, backward and in place, and the
    same bits at one thread and at several."""
    entry = ENTRIES[name]
    threads = launch.get_num_threads()
    for kind, (x, y) in _large_operands(np.random.default_rng(5)).items():
        expected = samples.reference(entry)(x, y)
        results = []
        for n in (1, max(threads, 2)):
            numgrad.set_num_threads(n)
            try:
                a, c = numgrad.from_numpy(x).requires_grad_(), numgrad.tensor(y, requires_grad=True)
                out = entry(a, c)
                out.backward(numgrad.from_numpy(expected))
                fresh = numgrad.tensor(x)
                assert entry.in_place(fresh, numgrad.tensor(y)) is fresh
                results.append([t.detach().numpy() for t in (out, a.grad, c.grad, fresh)])
            finally:
                numgrad.set_num_threads(threads)
        for one, several in zip(*results, strict=True):
            np.testing.assert_array_equal(one, several, f"{name} {kind}: 1 and several threads")
        out, dx, dy, fresh = results[0]
        np.testing.assert_array_equal(out, expected, f"{name} {kind}")
        np.testing.assert_array_equal(fresh, expected, f"{name}_ {kind}")
        small = gradients(entry, [x, np.broadcast_to(y, LARGE).copy()], [expected])
        assert_close(dx, small[0], 1e-13, f"{name} {kind} dx")
        axes = (
            tuple(i for i in range(2) if y.ndim == 2 and y.shape[i] == 1) if y.ndim == 2 else (0,)
        )
        wanted = small[1].sum(axes, keepdims=y.ndim == 2) if axes else small[1]
        assert_close(dy, wanted, 1e-12, f"{name} {kind} dy")


@pytest.mark.parametrize("name", ["exp", "relu", "sigmoid"])
def test_large_unary(name):
    entry, x = ENTRIES[name], np.random.default_rng(6).standard_normal(LARGE)
    for layout, a in layouts(x, None).items():
        t = numgrad.from_numpy(a).requires_grad_()
        out = entry(t)
        equal_elements(out.detach().numpy(), samples.reference(entry)(x), f"{name} {layout}")
        out.backward(numgrad.ones(LARGE, dtype=f64))
        expected = gradients(entry, [x.reshape(-1)[:1000]], [np.ones(1000)])[0]
        np.testing.assert_array_equal(t.grad.numpy().reshape(-1)[:1000], expected)
        t = numgrad.from_numpy(a)
        entry.in_place(t)
        np.testing.assert_array_equal(t.numpy(), out.detach().numpy(), f"{name}_ {layout}")


@st.composite
def strided_arrays(draw, shape):
    """An array of ``shape`` or one that broadcasts to it, with drawn strides."""
    own = [n if draw(st.integers(0, 3)) else 1 for n in shape]
    own = own[draw(st.integers(0, len(own))) :] if draw(st.booleans()) else own
    steps = [draw(st.sampled_from([1, 1, 2, 3, -1, -2])) for _ in own]
    order = draw(st.permutations(range(len(own))))
    big = [max(n * abs(s), 1) for n, s in zip(own, steps, strict=True)]
    seed = draw(st.integers(0, 2**32 - 1))
    base = np.random.default_rng(seed).integers(-9, 9, [big[i] for i in order]).astype(np.float64)
    base = base.transpose(np.argsort(order))
    view = base[tuple(slice(None, None, s) for s in steps)]
    view = view[tuple(slice(0, n) for n in own)]
    if own and draw(st.integers(0, 4)) == 0:
        view = np.broadcast_to(view[..., :1], view.shape)
    return np.asarray(view)


@st.composite
def operand_sets(draw):
    shape = draw(st.lists(st.integers(0, 5), max_size=5))
    return [draw(strided_arrays(shape)) for _ in range(3)]


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(operand_sets())
def test_any_shapes_and_strides(arrays):
    x, y, z = (_alias(a) for a in arrays)
    np.testing.assert_array_equal((x + y).numpy(), arrays[0] + arrays[1])
    got = numgrad.where(x > 0, y, z)
    np.testing.assert_array_equal(got.numpy(), np.where(arrays[0] > 0, arrays[1], arrays[2]))


def _alias(array):
    """A tensor on the array's own memory and strides, read-only ones included."""
    from numgrad.graph.apply import make
    from numgrad.graph.storage import adopt

    return make(array, adopt(array))
