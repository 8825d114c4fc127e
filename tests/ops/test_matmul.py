"""Matrix products over every kind of operand: values, gradients, what is kept, errors."""

import itertools

import numpy as np
import pytest

import numgrad
from numgrad import memory
from numgrad.graph.errors import ShapeError
from numgrad.kernels import launch
from tests.checks import assert_close, check_gradients, layouts

RNG = np.random.default_rng(0)
SHAPES = [  # of x and y
    ((3, 4), (4, 5)),
    ((1, 1), (1, 1)),
    ((7, 1), (1, 9)),
    ((1, 13), (13, 1)),
    ((33, 17), (17, 35)),
    ((4,), (4,)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 3, 4), (1, 4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (1, 3, 4, 5)),
    ((2, 3, 3, 4), (3, 4, 5)),
    ((4,), (2, 4, 5)),
    ((2, 3, 4), (4,)),
    ((0, 4), (4, 5)),
    ((3, 0), (0, 5)),
    ((3, 4), (4, 0)),
    ((2, 3, 0), (0, 5)),
    ((0, 3, 4), (4, 5)),
    ((2, 0, 4), (2, 4, 5)),
    ((0,), (0,)),
    ((2, 3, 0), (2, 0, 5)),
]


def operands(x, y, dtype):
    if dtype.kind == "f":
        return RNG.standard_normal(x).astype(dtype), RNG.standard_normal(y).astype(dtype)
    low = 0 if dtype.kind == "u" else -9
    return RNG.integers(low, 9, x).astype(dtype), RNG.integers(low, 9, y).astype(dtype)


DTYPES = [np.dtype(d) for d in ("float32", "float64", "int32", "int64", "uint8")]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("x", "y"), SHAPES)
def test_forward(x, y, dtype):
    a, b = operands(x, y, dtype)
    got = numgrad.tensor(a) @ numgrad.tensor(b)
    wide = np.float64 if dtype.kind == "f" else dtype
    expected = np.asarray(np.matmul(a.astype(wide), b.astype(wide))).astype(dtype)
    assert got.dtype == dtype
    assert_close(got.numpy(), expected, 1e-6 if dtype == np.float32 else 1e-14, f"{x} @ {y}")


@pytest.mark.parametrize(("x", "y"), [((6, 7), (7, 5)), ((2, 3, 4), (2, 4, 5)), ((4,), (4, 3))])
def test_strided(x, y):
    a, b = operands(x, y, np.dtype("float64"))
    expected = np.matmul(a, b)
    for (n, p), (m, q) in itertools.product(layouts(a, None).items(), layouts(b, None).items()):
        got = numgrad.from_numpy(p) @ numgrad.from_numpy(q)
        assert_close(got.numpy(), expected, 1e-14, f"{n} @ {m}")
    row = numgrad.tensor(b[..., :1]).expand(*b.shape)
    assert_close(
        (numgrad.tensor(a) @ row).numpy(),
        np.matmul(a, np.broadcast_to(b[..., :1], b.shape)),
        1e-14,
        "expanded",
    )


@pytest.mark.parametrize(("x", "y"), [s for s in SHAPES if 0 not in s[0] + s[1]])
def test_gradient(x, y):
    check_gradients(numgrad.matmul, operands(x, y, np.dtype("float64")), "matmul")


def test_transposed_gradient():
    """Transposed operands, and a strided incoming gradient."""
    a, b = operands((4, 3), (5, 4), np.dtype("float64"))
    check_gradients(lambda x, y: (x.t() @ y.t()).t(), [a, b], "matmul transposed")
    check_gradients(lambda x, y: (y @ x).sum(0).expand(7, 3), [a, b], "matmul expanded")


@pytest.mark.parametrize(("x", "y"), [s for s in SHAPES if 0 in s[0] + s[1]])
def test_empty_gradient(x, y):
    a, b = (numgrad.ones(*s, requires_grad=True) for s in (x, y))
    out = a @ b
    out.sum().backward()
    assert a.grad.shape == x and b.grad.shape == y
    assert a.grad.abs().sum().item() == 0 or 0 not in y


LINEAR = [((3, 4), 5), ((4,), 5), ((2, 3, 4), 5), ((0, 4), 5), ((3, 0), 5), ((2, 3, 0), 2)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("shape", "n"), LINEAR)
def test_linear(shape, n, bias):
    x, w, c = (RNG.standard_normal(s) for s in (shape, (n, shape[-1]), (n,)))
    arrays = [x, w, c] if bias else [x, w]
    expected = x @ w.T + (c if bias else 0)
    for a, b in itertools.product(layouts(x, None).values(), layouts(w, None).values()):
        rest = [numgrad.from_numpy(np.repeat(c, 2)[::2])] if bias else []
        got = numgrad.linear(numgrad.from_numpy(a), numgrad.from_numpy(b), *rest)
        assert_close(got.numpy(), expected, 1e-14, f"linear {shape}")
    if 0 not in shape:
        check_gradients(numgrad.linear, arrays, "linear")
    else:
        tensors = [numgrad.tensor(a, requires_grad=True) for a in arrays]
        numgrad.linear(*tensors).sum().backward()
        assert all(t.grad.shape == t.shape for t in tensors)
        if bias:
            assert tensors[2].grad.tolist() == [float(np.prod(shape[:-1]))] * n


def test_large():
    """Above the parallel threshold, edges that no tile fits: the same bits at any thread count."""
    threads = launch.get_num_threads()
    for x, y in (
        ((131, 77), (77, 93)),
        ((5, 67, 33), (33, 41)),
        ((300, 500), (500,)),
        ((9, 40, 40), (9, 40, 40)),
    ):
        a, b = operands(x, y, np.dtype("float64"))
        results = []
        for n in (1, max(threads, 2)):
            numgrad.set_num_threads(n)
            try:
                results.append((numgrad.tensor(a) @ numgrad.tensor(b)).numpy())
            finally:
                numgrad.set_num_threads(threads)
        np.testing.assert_array_equal(*results)
        assert_close(results[0], np.matmul(a, b), 1e-13, f"{x} @ {y}")


def test_non_finite():
    """Padding of tiles adds nothing: nan and inf stay in their rows and columns."""
    x = np.ones((9, 11))
    x[3, 4], x[5, 6] = np.nan, np.inf
    got = (numgrad.tensor(x) @ numgrad.ones(11, 7, dtype="float64")).numpy()
    assert np.isnan(got[3]).all() and np.isinf(got[5]).all()
    assert np.isfinite(np.delete(got, [3, 5], 0)).all()


@pytest.mark.parametrize(
    "shapes",
    [((3, 4), (4, 5)), ((1, 512), (512, 1000)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5))],
)
def test_one_launch(shapes):
    x, y = (numgrad.ones(*shape) for shape in shapes)
    with memory.track() as m:
        x @ y
    assert m.launches == 1


@pytest.mark.parametrize(("m", "n", "k"), [(128, 128, 256), (150, 40, 320), (784, 10, 256)])
def test_no_workspace(m, n, k):
    """Rows of x are read in place, or packed on the stack of the kernel."""
    x, y = numgrad.ones(m, k), numgrad.ones(k, n)
    with memory.track() as region:
        out = x @ y
    assert region.peak_bytes == 4 * m * n
    assert (out.numpy() == k).all()


def test_batches_as_views():
    """Equal batches go to the kernel as they are, whatever their strides."""
    x, y = RNG.standard_normal((2, 5, 64, 30)), RNG.standard_normal((2, 5, 64, 8))
    a, b = numgrad.tensor(x), numgrad.tensor(y)
    for i in (0, 1):
        got = a[i].transpose(1, 2) @ b[i]
        assert_close(got.numpy(), x[i].transpose(0, 2, 1) @ y[i], 1e-5)
    got = a[:, 0].transpose(1, 2) @ b[:, 3]
    assert_close(got.numpy(), x[:, 0].transpose(0, 2, 1) @ y[:, 3], 1e-5)


def test_saves_only():
    x, w, c = (numgrad.ones(4, 4, requires_grad=True), numgrad.ones(4, 4, requires_grad=True),
               numgrad.ones(4, requires_grad=True))  # fmt: skip
    frozen = numgrad.ones(4, 4)
    for function, kept in (
        (lambda: x @ w, 2),
        (lambda: x @ frozen, 1),
        (lambda: frozen @ w, 1),
        (lambda: numgrad.linear(x, w, c), 2),
        (lambda: numgrad.linear(frozen, w, c), 1),
        (lambda: numgrad.linear(x, frozen, c), 1),
        (lambda: numgrad.linear(frozen, frozen, c), 0),
    ):
        with memory.track() as m:
            out = function()
        assert (m.nodes, m.saved_tensors, m.saved_bytes) == (1, kept, kept * 64)
        with memory.track() as m, numgrad.no_grad():
            function()
        assert (m.nodes, m.saved_tensors) == (0, 0)
        assert out.requires_grad


def test_other_products():
    a, b = operands((3, 4), (4, 5), np.dtype("float64"))
    m = RNG.standard_normal((3, 5))
    x, y, z = numgrad.tensor(a), numgrad.tensor(b), numgrad.tensor(m)
    for got, expected in (
        (numgrad.mm(x, y), a @ b),
        (numgrad.mv(x, y[:, 0]), a @ b[:, 0]),
        (numgrad.dot(x[0], y[:, 0]), a[0] @ b[:, 0]),
        (numgrad.bmm(x.expand(2, 3, 4), y.expand(2, 4, 5)), np.stack([a @ b] * 2)),
        (numgrad.addmm(z, x, y), m + a @ b),
        (numgrad.addmm(z, x, y, beta=0.5, alpha=2), 0.5 * m + 2 * (a @ b)),
        (numgrad.addmm(0.5, z, 2, x, y), 0.5 * m + 2 * (a @ b)),
        (numgrad.addmm(0.5, z, x, y), 0.5 * m + a @ b),
        (z.addmm(x, y), m + a @ b),
        (numgrad.addmm(z[0], x, y), m[0] + a @ b),
        (numgrad.addmm(z * float("nan"), x, y, beta=0), a @ b),
    ):
        assert_close(got.numpy(), np.asarray(expected), 1e-14, "product")
    check_gradients(lambda z, x, y: numgrad.addmm(z, x, y, beta=0.5, alpha=2), [m, a, b], "addmm")


def test_errors():
    f = numgrad.ones
    cases = [
        (lambda: f(3, 4) @ f(5, 2), ShapeError, "matmul: expected y with 4 rows to match x "),
        (lambda: f(3) @ f(4), ShapeError, "expected y with 3 elements"),
        (lambda: f(2, 3, 4) @ f(3, 4, 5), ShapeError, "batch axes that broadcast"),
        (lambda: f(()) @ f(3), ShapeError, "tensors with axes"),
        (lambda: f(3, 4) @ f(4, 5, dtype="float64"), TypeError, "dtype float32 as x has for y"),
        (lambda: f(2, 2, dtype="bool") @ f(2, 2, dtype="bool"), TypeError, "numbers for x"),
        (lambda: numgrad.matmul(f(2, 2), np.ones((2, 2))), TypeError, "a Tensor for y"),
        (lambda: numgrad.mm(f(2, 2), f(2)), ShapeError, "2 axes for y"),
        (lambda: numgrad.bmm(f(2, 2, 2), f(3, 2, 2)), ShapeError, "a batch of 2 for y"),
        (lambda: numgrad.dot(f(2, 2), f(2)), ShapeError, "1 axes for x"),
        (lambda: numgrad.mv(f(2, 2), f(3)), ShapeError, "expected y with 2 elements"),
        (lambda: numgrad.linear(f(3, 4), f(5, 3)), ShapeError, "mat1 and mat2 shapes cannot be"),
        (lambda: numgrad.linear(f(3, 4), f(5, 4), f(4)), ShapeError, r"shape \(5,\) for bias"),
        (lambda: numgrad.linear(f(3, 4), f(4)), ShapeError, "expected weight"),
        (lambda: numgrad.addmm(f(2, 7), f(2, 3), f(3, 5)), ShapeError, "expands to .* for m"),
        (lambda: numgrad.addmm(f(2, 5), f(2, 3)), TypeError, "pass three"),
    ]  # fmt: skip
    for function, kind, text in cases:
        with pytest.raises(kind, match=text) as error:
            function()
        assert isinstance(error.value, RuntimeError) or kind is TypeError
