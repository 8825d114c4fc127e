"""Reductions: values against NumPy over every kind of axes and layout, gradients, empty, large."""

import itertools
import warnings

import numpy as np
import pytest
import scipy.special

import numgrad
from numgrad import memory
from numgrad.kernels import launch
from tests.checks import assert_close, check_gradients, layouts

F32, F64 = np.dtype("float32"), np.dtype("float64")
DTYPES = tuple(np.dtype(d) for d in ("float32", "float64", "int32", "int64", "uint8", "bool"))
TOLERANCE = {F32: 1e-6, F64: 1e-14}


def _var(correction):
    def var(x, axis, keepdims):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "degrees of freedom <= 0"
            return np.var(x, axis, ddof=correction, keepdims=keepdims)

    return var


def _norm(p):
    def norm(x, axis, keepdims):
        powers = np.abs(x) ** p
        return np.sum(powers, axis, keepdims=keepdims) ** (1 / p)

    return norm


REDUCTIONS = {  # name: (function(x, dim, keepdim), NumPy's (x, axis, keepdims), dtypes)
    "sum": (numgrad.sum, np.sum, "all"),
    "mean": (numgrad.mean, np.mean, "float"),
    "prod": (numgrad.prod, np.prod, "all"),
    "amax": (numgrad.amax, np.amax, "all"),
    "amin": (numgrad.amin, np.amin, "all"),
    "any": (numgrad.any, np.any, "all"),
    "all": (numgrad.all, np.all, "all"),
    "var": (lambda x, d, k: x.var(d, keepdim=k), _var(1), "float"),
    "var0": (lambda x, d, k: x.var(d, False, k), _var(0), "float"),
    "std": (
        lambda x, d, k: x.std(d, keepdim=k),
        lambda x, axis, keepdims: np.sqrt(_var(1)(x, axis, keepdims)),
        "float",
    ),
    "logsumexp": (
        numgrad.logsumexp,
        lambda x, axis, keepdims: scipy.special.logsumexp(x, axis=axis, keepdims=keepdims),
        "all",
    ),
    "norm": (lambda x, d, k: x.norm(2, d, k), _norm(2), "float"),
    "norm1": (lambda x, d, k: x.norm(1, d, k), _norm(1), "float"),
    "norm3": (lambda x, d, k: x.norm(3, d, k), _norm(3), "float"),
    "norm inf": (
        lambda x, d, k: x.norm(float("inf"), d, k),
        lambda x, axis, keepdims: np.abs(x).max(axis, keepdims=keepdims),
        "float",
    ),
}
ALONG = {
    "max": (numgrad.max, np.argmax),
    "min": (numgrad.min, np.argmin),
}
each_reduction = pytest.mark.parametrize("name", REDUCTIONS)
SHAPE = (3, 4, 5)
AXES = [None, 0, 1, 2, -1, -3, (0, 1), (1, 2), (0, 2), (-1, 0), (0, 1, 2), ()]
DIFFERENTIABLE = [n for n in REDUCTIONS if n not in ("any", "all")]


def values(dtype, shape=SHAPE, seed=0):
    rng = np.random.default_rng(seed)
    if dtype.kind == "f":
        return (
            rng.permutation(np.linspace(-2.03, 1.97, int(np.prod(shape))))
            .reshape(shape)
            .astype(dtype)
        )
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(0 if dtype.kind == "u" else -4, 5, shape).astype(dtype)


def expected_dtype(name, dtype):
    if name in ("any", "all"):
        return np.dtype("uint8") if dtype == np.uint8 else np.dtype(bool)
    if name in ("sum", "prod") and dtype.kind != "f":
        return np.dtype("int64")
    return F32 if name == "logsumexp" and dtype.kind != "f" else dtype


def reference(name, x, axes, keepdim):
    wide = x.astype(np.float64) if x.dtype.kind == "f" else x
    if name in ("sum", "prod") and x.dtype.kind != "f":
        wide = x.astype(np.int64)
    axes = None if axes == () else axes
    if name == "logsumexp":
        wide = wide.astype(np.float64)
        axes = tuple(range(x.ndim)) if axes is None else axes
    with np.errstate(all="ignore"):
        result = np.asarray(REDUCTIONS[name][1](wide, axes, keepdims=keepdim))
    return result.astype(expected_dtype(name, x.dtype))


# ------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each_reduction
def test_forward(name, dtype):
    function, _, kinds = REDUCTIONS[name]
    x = values(dtype)
    if kinds == "float" and dtype.kind != "f":
        with pytest.raises(TypeError, match="a floating dtype for x"):
            function(numgrad.tensor(x), 0, False)
        return
    for axes, keepdim in itertools.product(AXES, (False, True)):
        got = function(numgrad.tensor(x), axes, keepdim)
        expected = reference(name, x, axes, keepdim)
        assert got.dtype == expected_dtype(name, dtype), f"{name} {dtype}: {got.dtype}"
        what = f"{name} of {dtype} over {axes}, keepdim {keepdim}"
        assert_close(got.numpy(), expected, TOLERANCE.get(got.dtype, 0), what)


@each_reduction
def test_strided(name):
    """Every layout, also of views that no copy-free three-axis form fits, and expanded ones."""
    function = REDUCTIONS[name][0]
    x = values(F64, (2, 3, 4, 5))
    kinds = layouts(x, None)
    kinds["permuted"] = x.transpose(2, 0, 3, 1).copy().transpose(1, 3, 0, 2)
    for axes in (None, 0, 1, 3, (0, 2), (1, 3), (0, 3), (1, 2)):
        expected = reference(name, x, axes, False)
        for layout, a in kinds.items():
            got = function(numgrad.from_numpy(a), axes, False).numpy()
            assert_close(got, expected, 1e-14, f"{name} {layout} over {axes}")
    row = numgrad.tensor(x[0, 0, 0]).expand(3, 2, 5)
    for axes in (None, 0, 1, 2, (0, 2)):
        expected = reference(name, np.broadcast_to(x[0, 0, 0], (3, 2, 5)).copy(), axes, False)
        assert_close(function(row, axes, False).numpy(), expected, 1e-14, f"{name} expanded {axes}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ALONG)
def test_along(name, dtype):
    """Values and the first place of them, along each axis; arg forms; ties and nan."""
    function, places = ALONG[name]
    x = values(dtype)
    for axis, keepdim in itertools.product((0, 1, 2, -1), (False, True)):
        for a in layouts(x, None).values():
            got = function(numgrad.from_numpy(a), axis, keepdim)
            where = places(x, axis, keepdims=True)
            expected = np.take_along_axis(x, where, axis)
            if not keepdim:
                where, expected = where.squeeze(axis), expected.squeeze(axis)
            np.testing.assert_array_equal(got.indices.numpy(), where)
            np.testing.assert_array_equal(got.values.numpy(), expected)
            assert got[0] is got.values and got.values.dtype == dtype
            arg = getattr(numgrad, f"arg{name}")
            np.testing.assert_array_equal(arg(numgrad.from_numpy(a), axis, keepdim).numpy(), where)
            assert arg(numgrad.from_numpy(a)).item() == places(x)
    assert function(numgrad.tensor(x)).numpy() == (x.max() if name == "max" else x.min())


def test_along_special():
    x = numgrad.tensor([[2.0, 5.0, 5.0], [1.0, np.nan, np.nan], [-np.inf, -np.inf, -np.inf]])
    values_, indices = x.max(1)
    assert (
        values_.tolist()[0] == 5 and np.isnan(values_.tolist()[1]) and values_[2].item() == -np.inf
    )
    assert indices.tolist() == [1, 1, 0]
    assert x.argmin(1).tolist() == [0, 1, 0]
    scalar = numgrad.tensor(3.0)
    assert scalar.max(0).values.shape == () and scalar.max(0).indices.item() == 0
    y = numgrad.tensor([1.0, 7.0]), numgrad.tensor([4.0, 2.0])
    assert numgrad.max(*y).tolist() == [4.0, 7.0] and numgrad.min(*y).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("name", [*REDUCTIONS])
def test_special_values(name):
    function = REDUCTIONS[name][0]
    rows = np.array(
        [
            [1.0, np.nan, 2.0],
            [np.inf, 1.0, 2.0],
            [-np.inf, 1.0, 0.0],
            [np.inf, -np.inf, 1.0],
            [-np.inf, -np.inf, -np.inf],
            [0.0, -0.0, 0.0],
            [1e308, 1e308, 1e308],
        ]
    )
    if name.startswith(("var", "std")):
        rows = rows[:6]  # squares of 1e308 overflow in NumPy, too, but its order is another
    got = function(numgrad.tensor(rows), 1, False).numpy()
    assert_close(got, reference(name, rows, 1, False), 1e-14, name)


# --------------------------------------------------------------------------------------- empty, 0-d

EMPTY = {  # what a reduction over no elements gives; None raises
    "sum": 0,
    "mean": np.nan,
    "prod": 1,
    "any": False,
    "all": True,
    "var": np.nan,
    "var0": np.nan,
    "std": np.nan,
    "logsumexp": -np.inf,
    "norm": 0,
    "norm1": 0,
    "norm3": 0,
    "amax": None,
    "amin": None,
    "norm inf": None,
}


@each_reduction
def test_empty(name):
    function = REDUCTIONS[name][0]
    x = numgrad.zeros(0, 3, dtype="float64", requires_grad=True)
    kept = function(x, 1, False)
    assert kept.shape == (0,)
    for axes, shape in ((0, (3,)), ((0, 1), ()), (None, ())):
        if EMPTY[name] is None:
            with pytest.raises(IndexError, match="at least one element to reduce"):
                function(x, axes, False)
            continue
        got = function(x, axes, False)
        np.testing.assert_array_equal(got.detach().numpy(), np.full(shape, EMPTY[name]), name)
        if got.requires_grad:
            got.sum().backward()
            assert x.grad.shape == (0, 3)
            x.grad = None


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_empty_along(name):
    function = getattr(numgrad, name)
    x = numgrad.zeros(0, 3)
    result = function(x, 1)
    assert (result[0] if isinstance(result, tuple) else result).shape == (0,)
    with pytest.raises(IndexError, match="at least one element"):
        function(x, 0)
    with pytest.raises(IndexError, match="at least one element"):
        function(x)


@each_reduction
def test_0dim(name):
    function = REDUCTIONS[name][0]
    x = numgrad.tensor(1.5, dtype="float64", requires_grad=True)
    for axes in (None, 0, -1):
        got = function(x, axes, False)
        expected = reference(name, np.array([1.5]), 0, False)
        np.testing.assert_allclose(got.detach().numpy(), expected, rtol=1e-15)
        assert got.shape == ()
        if got.requires_grad:
            got.backward()
            assert x.grad.shape == ()


def test_norms():
    x = numgrad.tensor([[3.0, -4.0], [0.0, 2.0]])
    assert x.norm().item() == pytest.approx(np.sqrt(29))
    assert x.norm("fro", 1).tolist() == [5.0, 2.0]
    assert x.norm(0).item() == 3 and x.norm(0, 1).tolist() == [2.0, 1.0]
    assert x.norm(-float("inf"), 1).tolist() == [3.0, 0.0]
    assert x[0].norm(-1).item() == pytest.approx(12 / 7)
    with pytest.raises(TypeError, match="a number for p"):
        x.norm("nuc")


def test_std_of_numbers_whose_squares_are_none():
    """Its variance is no float32, the standard deviation is."""
    for scale in (1e-30, 1e38):
        x = numgrad.tensor([scale, 0, -scale], requires_grad=True)
        out = x.std()
        assert out.item() == pytest.approx(scale, rel=1e-6)
        out.backward()
        np.testing.assert_allclose(x.grad.numpy(), [0.5, 0, -0.5], rtol=1e-6)


def test_corrections():
    """n - correction at 0 and below: nan for a constant, infinite otherwise, and no exception."""
    x = numgrad.tensor([1.0, 2.0, 4.0], requires_grad=True)
    assert x.var(correction=0).item() == pytest.approx(14 / 9)
    assert x.var(False).item() == pytest.approx(14 / 9)
    for correction in (3, 5):
        out = x.var(correction=correction)
        assert out.item() == np.inf
        out.backward()
    one = numgrad.tensor([2.0], requires_grad=True)
    out = one.var()
    assert np.isnan(out.item())
    out.backward()
    assert np.isnan(one.grad.item())


# ---------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradient(name):
    function = REDUCTIONS[name][0]
    for axes, keepdim in ((None, False), (0, False), (-1, True), ((0, 2), False), (1, True)):
        x = values(F64, (3, 2, 4), seed=3) * 0.7
        for a in (x, x.transpose(2, 0, 1).copy().transpose(1, 2, 0)):
            check_gradients(lambda t: function(t, axes, keepdim), [a], name)


@pytest.mark.parametrize("name", ALONG)
def test_gradient_along(name):
    for axis, keepdim in ((0, False), (1, True), (-1, False)):
        check_gradients(lambda t: ALONG[name][0](t, axis, keepdim)[0], [values(F64)], name)


def test_prod_gradient_with_zeros():
    """Against finite differences where factors are 0: one, two, all of them."""
    x = np.array([[2.0, 0.0, 3.0, -1.5], [0.0, 0.0, 3.0, 1.0], [0.0, 0.0, 0.0, 0.0], [1, 2, 3, 4]])
    for axes in (None, 0, 1, (0, 1)):
        check_gradients(lambda t: t.prod(axes), [x], "prod at 0")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_prod_gradient_beside_what_is_not_finite(bad):
    """An element's gradient is the product of the others, whatever it is itself."""
    for values in ([bad, 2.0, 3.0], [2.0, bad, 3.0, 5.0], [bad]):
        x = numgrad.tensor(values, requires_grad=True)
        for y in (x.prod(), x.prod(0)):
            (g,) = numgrad.autograd.grad(y, x, create_graph=True)
            expected = [np.prod(values[:i] + values[i + 1 :]) for i in range(len(values))]
            np.testing.assert_array_equal(g.detach().numpy(), expected)
            assert g.requires_grad


def test_second_gradient_of_ties():
    """amax and logsumexp twice, with ties: the share of the gradient is a constant."""
    x = numgrad.tensor([2.0, 2.0, 1.0], dtype="float64", requires_grad=True)
    (g,) = numgrad.autograd.grad((x.amax() ** 2), x, create_graph=True)
    assert g.tolist() == [2.0, 2.0, 0.0]
    (h,) = numgrad.autograd.grad(g[0], x)
    assert h.tolist() == [0.5, 0.5, 0.0]
    check_gradients(lambda t: t.logsumexp(0), [np.array([2.0, 2.0, 1.0])], "logsumexp ties")


@pytest.mark.parametrize(
    ("function", "kept"),
    [
        (lambda x: x.sum(0), 0),
        (lambda x: x.mean(1), 0),
        (lambda x: x.prod(0), 1),
        (lambda x: x.amax(0), 2),
        (lambda x: x.var(0), 1),
        (lambda x: x.logsumexp(0), 2),
        (lambda x: x.max(0)[0], 1),
    ],
)
def test_saves_only(function, kept):
    x = numgrad.ones(3, 4, dtype="float64", requires_grad=True)
    with memory.track() as m:
        out = function(x)
    assert m.nodes == 1 and m.saved_tensors == kept and out.requires_grad
    with memory.track() as m, numgrad.no_grad():
        out = function(x)
    assert (m.nodes, m.saved_tensors, m.saved_bytes) == (0, 0, 0)
    assert not out.requires_grad
    with memory.track() as m:
        out = function(numgrad.Variable(x.detach(), volatile=True))
    assert (m.nodes, m.saved_tensors) == (0, 0) and out.volatile


# -------------------------------------------------------------------------------------------- large

LARGE = [  # shapes and axes on both sides of a chunk (1 << 15), of a tile (128), of the threads
    ((100_003,), None),
    ((3, 70_001), 1),
    ((70_001, 3), 0),
    ((2, 40_000, 2), 1),
    ((300, 257), 0),
    ((257, 300), 1),
    ((400, 300), None),
    ((5, 130, 131), (0, 2)),
]


@pytest.mark.parametrize(("shape", "axes"), LARGE)
def test_large(shape, axes):
    """Chunked and threaded: right, and the same bits at one thread and at several."""
    x = np.random.default_rng(1).standard_normal(shape)
    threads = launch.get_num_threads()
    for name in ("sum", "amax", "var", "logsumexp", "any"):
        for a in (x, np.asfortranarray(x), np.repeat(x, 2, -1)[..., ::2]):
            results = []
            for n in (1, max(threads, 2)):
                numgrad.set_num_threads(n)
                try:
                    results.append(REDUCTIONS[name][0](numgrad.from_numpy(a), axes, False).numpy())
                finally:
                    numgrad.set_num_threads(threads)
            np.testing.assert_array_equal(results[0], results[1], f"{name} {shape}: threads")
            assert_close(results[0], reference(name, x, axes, False), 1e-12, f"{name} {shape}")


APART = [  # shapes, and axes that do not merge
    ((4, 3, 16, 9), (0, 2, 3)),
    ((40, 3, 2, 2), (0, 2, 3)),
    ((9, 4, 3, 20), (1, 3)),
    ((2, 3, 4, 5), (1, 3)),
    ((9, 2, 10, 2, 11), (0, 2, 4)),
    ((17, 1, 5, 20), (0, 3)),
    ((600, 5, 400), (0, 2)),
]


@pytest.mark.parametrize(("shape", "axes"), APART)
def test_axes_apart(shape, axes):
    """Right, and the same bits at one thread and at several, also for axes that are permuted."""
    x = np.random.default_rng(3).standard_normal(shape)
    threads = launch.get_num_threads()
    for name in ("sum", "mean", "amax", "var", "logsumexp", "any", "prod"):
        for dtype, tolerance in (("float64", 1e-12), ("float32", 2e-6)):
            one = x.astype(dtype)
            expected = reference(name, one.astype(np.float64), axes, False)
            swapped = np.ascontiguousarray(np.moveaxis(one, 1, -1))
            for a in (one, np.moveaxis(swapped, -1, 1), np.asfortranarray(one)):
                results = []
                for n in (1, max(threads, 2)):
                    numgrad.set_num_threads(n)
                    try:
                        t = numgrad.from_numpy(a)
                        results.append(REDUCTIONS[name][0](t, axes, False).numpy())
                    finally:
                        numgrad.set_num_threads(threads)
                np.testing.assert_array_equal(results[0], results[1], f"{name} {shape}: threads")
                assert_close(results[0], expected, tolerance, f"{name} {shape} {dtype}")


def test_axes_apart_need_no_copy():
    """The sum over n, h and w of (n, c, h, w) keeps one accumulator for each n and c, no more."""
    x = numgrad.ones(8, 16, 28, 28)
    for name in ("sum", "mean", "amax", "var"):
        call = REDUCTIONS[name][0]
        call(x, (0, 2, 3), False)
        with memory.track() as m:
            call(x, (0, 2, 3), False)
        assert m.peak_bytes <= 2 * 8 * 16 * 8 + 1000, (name, m.peak_bytes)
    g = numgrad.ones(8, 16, 28, 28)
    b = numgrad.zeros(16, 1, 1, requires_grad=True)
    (x + b).backward(g)
    assert (b.grad.numpy() == 8 * 28 * 28).all()


def test_axes_apart_round_once():
    """float32 sums of axes that lie apart are those in float64, rounded."""
    x = (np.random.default_rng(4).random((64, 3, 100, 31)) * 1e3).astype(np.float32)
    exact = x.astype(np.float64)
    for name in ("sum", "mean"):
        got = getattr(numgrad.tensor(x), name)((0, 2, 3)).numpy()
        expected = getattr(exact, name)((0, 2, 3)).astype(np.float32)
        np.testing.assert_array_max_ulp(got, expected, 1)
    far = (1e4 + np.random.default_rng(5).random((16, 2, 50))).astype(np.float32)
    got = numgrad.tensor(far).var((0, 2)).numpy()
    np.testing.assert_allclose(got, far.astype(np.float64).var((0, 2), ddof=1), rtol=1e-6)


def test_float32_accuracy():
    """Sums accumulate in float64: one rounding at the end, however long the axis."""
    rng = np.random.default_rng(2)
    for shape, axis in (((1 << 20,), 0), ((300_000, 3), 0), ((3, 300_000), 1)):
        x = (rng.random(shape) * 1e3).astype(np.float32)
        exact = x.astype(np.float64)
        for name in ("sum", "mean"):
            got = getattr(numgrad.tensor(x), name)(axis).numpy()
            expected = getattr(exact, name)(axis).astype(np.float32)
            np.testing.assert_array_max_ulp(got, expected, 1)
        got = numgrad.tensor(x).var(axis).numpy()
        np.testing.assert_allclose(got, exact.var(axis, ddof=1), rtol=1e-6)


def test_integer_sums():
    assert numgrad.ones(300, dtype="uint8").sum().item() == 300
    assert numgrad.full((3,), 2**31 - 1, dtype="int32").sum().item() == 3 * (2**31 - 1)
    assert numgrad.ones(1000, dtype="bool").sum().item() == 1000
    assert numgrad.full((3,), 2**62, dtype="int64").sum().item() == 3 * 2**62 - 2**64
    assert numgrad.tensor([1, 2]).sum(dtype="float32").dtype == F32
    assert numgrad.tensor([1, 2]).mean(dtype="float64").item() == 1.5
    assert numgrad.tensor([[True, False]]).any(1).dtype == np.dtype(bool)


# ------------------------------------------------------------------------------------------- errors


@each_reduction
def test_errors(name):
    function = REDUCTIONS[name][0]
    x = numgrad.ones(2, 3)
    with pytest.raises(IndexError, match="Dimension out of range"):
        function(x, 2, False)
    with pytest.raises(IndexError, match="Dimension out of range"):
        function(x, -3, False)
    with pytest.raises(ValueError, match="each axis once"):
        function(x, (0, -2), False)
    for bad in (1.5, "0", True, {}):
        if name.startswith(("var", "std")) and bad is True:
            continue  # the old form var(unbiased)
        with pytest.raises(TypeError, match="an integer for dim"):
            function(x, bad, False)


@pytest.mark.parametrize(
    "name", ["sum", "mean", "prod", "amax", "amin", "any", "all", "var", "std", "norm",
             "max", "min", "argmax", "argmin"]
)  # fmt: skip
def test_not_a_tensor(name):
    for bad in (np.ones(3), [1.0], None, "x"):
        with pytest.raises(TypeError, match=rf"^{name}: expected a Tensor for x"):
            getattr(numgrad, name)(bad)
    with pytest.raises(TypeError):
        getattr(numgrad, name)(numgrad.ones(2), wrong=1)
