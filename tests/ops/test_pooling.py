"""Pooling: values and gradients against the references over random windows, aux, bad input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numgrad
import numgrad.nn.functional as F
from numgrad import Variable, memory
from numgrad.graph.errors import DtypeError, RangeError, ShapeError
from numgrad.kernels import launch
from numgrad.kernels.reference import pooling as reference
from numgrad.ops import pooling
from numgrad.ops.windows import Windows, adaptive, moving
from tests.checks import assert_close, check_gradients, layouts

INF, NAN = np.inf, np.nan
TOLERANCE = {"float32": 1e-5, "float64": 1e-13}


def distinct(shape, seed=0):
    """Different numbers in random order: no ties, and gaps far above a finite difference."""
    count = int(np.prod(shape))
    return np.random.default_rng(seed).permutation(np.linspace(-2, 2, count)).reshape(shape)


@st.composite
def cases(draw):
    """(shape, axes, arguments of the windows or an adaptive output size)."""
    axes = draw(st.integers(1, 2))
    each = st.tuples(*[st.integers(1, 5)] * axes)
    lead = draw(st.sampled_from([(1,), (3,), (2, 1), (2, 3), (0, 2)]))
    if draw(st.integers(0, 3)) == 0:
        shape = (*lead, *draw(st.tuples(*[st.integers(1, 9)] * axes)))
        return shape, axes, draw(each)
    kernel, stride, dilation = draw(each), draw(each), draw(st.sampled_from([1, 1, 2]))
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    ceil = draw(st.booleans())
    # at least as long as a dilated window, so that none lies in the padding alone
    spatial = tuple((k - 1) * dilation + 1 + draw(st.integers(0, 8)) for k in kernel)
    return (*lead, *spatial), axes, (kernel, stride, padding, dilation, ceil)


def layout(x, kind):
    return numgrad.from_numpy(layouts(x, None)[kind])


KINDS = st.sampled_from(["contiguous", "fortran", "stepped", "flipped"])
DTYPES = st.sampled_from(["float32", "float64"])


def max_pool(x, axes, given, indices):
    name = f"max_pool{axes}d"
    if len(given) == axes:
        return getattr(F, "adaptive_" + name)(x, given, indices)
    return getattr(F, name)(x, *given, return_indices=indices)


def windows_of(x, axes, given, **more):
    if len(given) == axes:
        return adaptive("test", x, axes, given)
    kernel, stride, padding, dilation, ceil = given
    return moving("test", x, axes, kernel, stride, padding, dilation, ceil, **more)


@settings(max_examples=120, deadline=None)
@given(cases(), KINDS, DTYPES, st.integers(0, 2**31), st.sampled_from([2048, 3]))
def test_max_pool(case, kind, dtype, seed, line):
    """Values, places, and gradients, with ties, infinities and nan; lines cut short, too."""
    shape, axes, given = case
    rng = np.random.default_rng(seed)
    values = rng.integers(-3, 4, shape).astype(dtype)
    values[rng.random(shape) < 0.2] = -INF
    values[rng.random(shape) < seed % 3 * 0.1] = NAN
    before, pooling.LINE = pooling.LINE, line
    try:
        x = layout(values, kind).requires_grad_()
        where = windows_of(x, axes, given)
        expected, flat = reference.max_pool_indexed(values, windows=where)
        _, places = reference.max_pool_places(values, windows=where)
        out, indices = max_pool(x, axes, given, True)
        np.testing.assert_array_equal(out.detach().numpy(), expected)
        np.testing.assert_array_equal(indices.numpy(), flat)
        with numgrad.no_grad():
            np.testing.assert_array_equal(max_pool(x, axes, given, False).numpy(), expected)
        out = max_pool(x, axes, given, False)
        np.testing.assert_array_equal(out.detach().numpy(), expected)
        g = rng.integers(-9, 9, out.shape).astype(dtype)  # whole numbers: sums are exact
        (dx,) = numgrad.autograd.grad(out, x, layout(g, kind))
        adjoint = reference.add_places(g, places, shape=shape, windows=where)
        np.testing.assert_array_equal(dx.numpy(), adjoint)
        chosen = numgrad.tensor(places.astype(np.uint8))
        taken = pooling.take_places(x, chosen, windows=where)
        np.testing.assert_array_equal(taken.detach().numpy(), expected)
    finally:
        pooling.LINE = before


@settings(max_examples=120, deadline=None)
@given(
    cases(),
    KINDS,
    DTYPES,
    st.integers(0, 2**31),
    st.sampled_from([2048, 3]),
    st.booleans(),
    st.sampled_from([None, None, 3, -2]),
)
def test_avg_pool(case, kind, dtype, seed, line, include, divisor):
    shape, axes, given = case
    shared = len(given) == axes
    if not shared:
        given = (*given[:3], 1, given[4])
    divisor = None if shared or axes == 1 else divisor
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape).astype(dtype)
    before, pooling.LINE = pooling.LINE, line
    try:
        x = layout(values, kind).requires_grad_()
        if shared:
            where = windows_of(x, axes, given)
            out = getattr(F, f"adaptive_avg_pool{axes}d")(x, given)
        else:
            where = windows_of(x, axes, given, include_pad=include)
            more = (divisor,) if axes == 2 else ()
            kernel, stride, padding, _, ceil = given
            pool = getattr(F, f"avg_pool{axes}d")
            out = pool(x, kernel, stride, padding, ceil, include, *more)
        expected = reference.avg_pool(values.astype(float), windows=where, divisor=divisor)
        assert out.dtype == dtype
        assert_close(out.detach().numpy(), expected, TOLERANCE[dtype], "average")
        g = rng.standard_normal(out.shape).astype(dtype)
        (dx,) = numgrad.autograd.grad(out, x, layout(g, kind))
        adjoint = reference.avg_pool_adjoint(
            g.astype(float), shape=shape, windows=where, divisor=divisor
        )
        assert_close(dx.numpy(), adjoint, TOLERANCE[dtype], "its adjoint")
    finally:
        pooling.LINE = before


GRADIENTS = {
    "max 3/2": (lambda x: F.max_pool2d(x, 3, 2, 1), (2, 2, 7, 6)),
    "max 2/1 dilated": (lambda x: F.max_pool2d(x, 2, 1, 1, (2, 1), True), (2, 5, 6)),
    "max of 272 cells": (lambda x: F.max_pool2d(x, (17, 16), 3), (1, 20, 19)),
    "max with indices": (lambda x: F.max_pool2d(x, (2, 3), return_indices=True)[0], (2, 1, 5, 6)),
    "max 1-D": (lambda x: F.max_pool1d(x, 3, 2, 1), (2, 2, 9)),
    "adaptive max": (lambda x: F.adaptive_max_pool2d(x, (3, 2)), (2, 2, 7, 5)),
    "adaptive max 1-D": (lambda x: F.adaptive_max_pool1d(x, 4), (2, 7)),
    "avg 3/2": (lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), (2, 2, 7, 6)),
    "avg 3/1": (lambda x: F.avg_pool2d(x, 3, 1, 1), (2, 5, 6)),
    "avg with a divisor": (lambda x: F.avg_pool2d(x, (2, 4), 3, divisor_override=5), (1, 2, 7, 8)),
    "avg 1-D": (lambda x: F.avg_pool1d(x, 3, 2, 1), (2, 2, 9)),
    "adaptive avg": (lambda x: F.adaptive_avg_pool2d(x, (3, None)), (2, 2, 7, 5)),
    "adaptive avg 1-D": (lambda x: F.adaptive_avg_pool1d(x, 4), (2, 7)),
    "global avg": (lambda x: F.adaptive_avg_pool2d(x, 1), (2, 3, 5, 4)),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    """Of order 1 and 2; through a product, so that those of order 2 are not all zero."""
    function, shape = GRADIENTS[name]
    check_gradients(function, [distinct(shape)], name)
    check_gradients(lambda x: function(x) ** 2, [distinct(shape, 1)], f"{name}, squared")


@pytest.mark.parametrize("name", ["take_places", "add_places", "avg_pool_adjoint"])
def test_gradients_of_the_adjoints(name):
    where = Windows((3, 2), (2, 1), (1, 0), (1, 1), (3, 4))
    places = numgrad.tensor(np.full((2, 1, 3, 4), 3, np.uint8))  # the cell (1, 1) of each window
    function = {
        "take_places": lambda x: pooling.take_places(x, places, windows=where) ** 2,
        "add_places": lambda v: (
            pooling.add_places(v, places, shape=(2, 1, 6, 5), windows=where) ** 2
        ),
        "avg_pool_adjoint": lambda g: (
            pooling.avg_pool_adjoint(g, shape=(2, 1, 6, 5), windows=where, divisor=None) ** 2
        ),
    }[name]
    shape = (2, 1, 6, 5) if name == "take_places" else (2, 1, 3, 4)
    check_gradients(function, [distinct(shape)], name)


# ------------------------------------------------------------------------------------ known answers


def test_padding_is_lower_than_everything():
    """The padding is -inf and no cell of it is ever chosen, nor is there an index -1."""
    x = numgrad.full((1, 1, 4, 4), -5.0)
    assert F.max_pool2d(x, 3, 2, 1).tolist() == [[[[-5, -5], [-5, -5]]]]
    for value, kernel, padding in ((-INF, 2, 1), (-INF, 2, 0), (NAN, 2, 1), (NAN, 2, 0)):
        x = numgrad.full((1, 1, 2, 2), value).requires_grad_()
        out, indices = F.max_pool2d(x, kernel, 2, padding, return_indices=True)
        count = (1 + padding) ** 2
        np.testing.assert_array_equal(out.detach().numpy().ravel(), [value] * count)
        assert ((indices.numpy() >= 0) & (indices.numpy() < 4)).all()
        out.backward(numgrad.ones(out.shape))
        assert x.grad.sum().item() == count
        if padding:  # each window has one cell inside
            assert x.grad.tolist() == [[[[1, 1], [1, 1]]]]


def test_first_maximum_and_last_nan():
    x = numgrad.tensor([[[1.0, 2.0, 2.0], [2.0, 0.0, 1.0], [2.0, 2.0, 2.0]]])
    assert F.max_pool2d(x, 3, return_indices=True)[1].item() == 1
    x = numgrad.tensor([[[NAN, 2.0, 2.0], [2.0, 0.0, NAN], [2.0, 2.0, 2.0]]])
    out, index = F.max_pool2d(x, 3, return_indices=True)
    assert np.isnan(out.item()) and index.item() == 5


def test_divisors_of_windows_that_are_cut():
    x = numgrad.arange(49.0).reshape(1, 7, 7)
    expected = [[4, 7, 9.5], [25, 28, 30.5], [42.5, 45.5, 48]]
    assert F.avg_pool2d(x, 2, 3, ceil_mode=True).tolist() == [expected]
    ones = numgrad.ones(1, 3, 3)
    # A corner has 4 of 9 cells; those beyond the padding, which ceil_mode reaches, never count.
    assert_close(F.avg_pool2d(ones, 3, 2, 1).numpy()[0], np.full((2, 2), 4 / 9), 1e-6)
    assert F.avg_pool2d(ones, 3, 2, 1, count_include_pad=False).tolist() == [[[1, 1], [1, 1]]]
    assert F.avg_pool2d(ones, 3, 2, 1, divisor_override=2).tolist() == [[[2, 2], [2, 2]]]
    row = numgrad.ones(1, 4)
    assert_close(F.avg_pool1d(row, 3, 3, 1, True).numpy()[0], np.array([2 / 3, 2 / 3]), 1e-6)


def test_integers():
    for dtype in ("int32", "int64", "uint8"):
        x = numgrad.tensor(np.array([[[0, 3, 1], [7, 2, 2]]]), dtype=dtype)
        out, index = F.max_pool2d(x, 2, 1, 1, return_indices=True)
        assert out.dtype == dtype
        assert out.tolist() == [[[0, 3, 3, 1], [7, 7, 3, 2], [7, 7, 2, 2]]]
        assert index.tolist() == [[[0, 1, 1, 2], [3, 3, 1, 5], [3, 3, 4, 5]]]
        assert F.max_pool2d(x, 2, 1, 1).tolist() == out.tolist()
        with pytest.raises(DtypeError, match="avg_pool2d: expected a floating dtype for x"):
            F.avg_pool2d(x, 2)
    for dtype, limits in (("int64", np.iinfo(np.int64)), ("int32", np.iinfo(np.int32))):
        lowest = numgrad.full((1, 2, 2), limits.min, dtype=dtype)
        out, index = F.max_pool2d(lowest, 2, 2, 1, return_indices=True)
        assert set(out.numpy().ravel()) == {limits.min}
        assert index.tolist() == [[[0, 1], [2, 3]]]


# ---------------------------------------------------------------------------------- what is kept


def saved(function, x):
    with memory.track() as m:
        out = function(x)
    return out, (m.nodes, m.saved_tensors, m.saved_bytes)


def test_max_pool_keeps_a_byte_an_element():
    x = numgrad.tensor(distinct((2, 3, 9, 8)), dtype="float32", requires_grad=True)
    out, kept = saved(lambda x: F.max_pool2d(x, 3, 2, 1), x)
    assert kept == (1, 1, out.numel())
    for window, size in (((16, 16), 1), ((17, 16), 4)):  # 256 cells, and more than a byte counts
        wide = numgrad.ones(1, 1, 18, 17, requires_grad=True)
        out, kept = saved(lambda x, window=window: F.max_pool2d(x, window, 1), wide)
        assert kept == (1, 1, size * out.numel())
    _, kept = saved(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)
    assert kept == (1, 1, 2 * 3 * 5 * 4)
    _, kept = saved(lambda x: F.adaptive_max_pool2d(x, 4), x)
    assert kept == (1, 1, 2 * 3 * 4 * 4)


@pytest.mark.parametrize("pool", [F.avg_pool2d, F.adaptive_avg_pool2d])
def test_averages_keep_nothing(pool):
    x = numgrad.ones(2, 3, 9, 8, requires_grad=True)
    assert saved(lambda x: pool(x, 2), x)[1] == (1, 0, 0)


def test_unrecorded_pooling_keeps_nothing_and_makes_no_places(monkeypatch):
    data = numgrad.tensor(distinct((2, 3, 70, 60)), dtype="float32")
    pools = [
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: F.adaptive_max_pool2d(x, 33),
        lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)[0],
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        lambda x: F.adaptive_avg_pool2d(x, 33),
    ]
    recorded = [pool(data.clone().requires_grad_()) for pool in pools]

    def no_aux(*args):
        raise AssertionError("an aux result was made")

    monkeypatch.setattr(pooling, "allocate", no_aux)  # what places come from
    with pytest.raises(AssertionError, match="an aux result"):
        pools[0](data.clone().requires_grad_())
    for pool, expected in zip(pools, recorded, strict=True):
        for x in (Variable(data, volatile=True), data):
            out, kept = saved(pool, x)
            assert kept == (0, 0, 0) and out.grad_fn is None
            assert out.volatile == x.volatile and not out.requires_grad
            assert out.tolist() == expected.tolist()
        with numgrad.no_grad():
            assert saved(pool, data.clone().requires_grad_())[1] == (0, 0, 0)


def test_an_empty_batch():
    for shape, axes in (((0, 3, 6, 5), 2), ((0, 3, 6), 1)):
        for name in ("max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool"):
            for size in (2, 1):
                x = numgrad.zeros(shape, requires_grad=True)
                out = getattr(F, f"{name}{axes}d")(x, size)
                assert out.shape[:2] == (0, 3) and out.dim() == len(shape)
                out.sum().backward()
                assert x.grad.shape == shape
    assert F.adaptive_avg_pool2d(numgrad.ones(2, 3, 4, 4), 0).shape == (2, 3, 0, 0)
    x = numgrad.ones(2, 3, 4, 4, requires_grad=True)
    for pool in (F.adaptive_avg_pool2d, F.adaptive_max_pool2d):  # no windows: a gradient of zeros
        (g,) = numgrad.autograd.grad(pool(x, (0, 2)).sum(), x)
        assert g.tolist() == numgrad.zeros(x.shape).tolist()


def test_the_same_bits_at_any_number_of_threads():
    x = numgrad.randn(5, 3, 90, 80, requires_grad=True)
    before = launch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            numgrad.set_num_threads(threads)
            results = []
            for pool in (
                lambda x: F.max_pool2d(x, 3, 2, 1),
                lambda x: F.avg_pool2d(x, 3, 1, 1),
                lambda x: F.adaptive_avg_pool2d(x, 7),
            ):
                out = pool(x)
                results += [out, *numgrad.autograd.grad((out * out).sum(), x)]
            found.append([r.detach().numpy().tobytes() for r in results])
    finally:
        numgrad.set_num_threads(before)
    assert found[0] == found[1] == found[2]


# ------------------------------------------------------------------------------------------- errors

X = (1, 2, 4, 4)
BAD = [
    (lambda x: F.max_pool2d(x, 0), RangeError, "positive integers below .* for kernel_size"),
    (lambda x: F.max_pool2d(x, 2, 0), RangeError, "positive integers below .* for stride"),
    (lambda x: F.avg_pool2d(x, 2, (1, -1)), RangeError, "positive integers below .* for stride"),
    (lambda x: F.max_pool2d(x, 2, 1, -1), RangeError, "non-negative integers below .* for padding"),
    (
        lambda x: F.max_pool2d(x, 2, dilation=0),
        RangeError,
        "positive integers below .* for dilation",
    ),
    (lambda x: F.max_pool2d(x, 3, 1, 2), RangeError, "at most half of kernel_size"),
    (lambda x: F.avg_pool2d(x, 3, 1, (1, 2)), RangeError, "at most half of kernel_size"),
    (lambda x: F.max_pool2d(x, 5), ShapeError, "windows that fit into x"),
    (lambda x: F.avg_pool2d(x, (2, 5)), ShapeError, r"output size \(2, 0\) is too small"),
    (lambda x: F.max_pool2d(x, 2, dilation=4), ShapeError, "windows that fit"),
    (lambda x: F.max_pool2d(x[:, :, :2], 2, 1, 1, 3), ShapeError, "windows that all meet x"),
    (lambda x: F.max_pool2d(x, (2, 2, 2)), RangeError, "one integer or 2 for kernel_size"),
    (lambda x: F.max_pool1d(x[0], (2, 2)), RangeError, "one integer for kernel_size"),
    (lambda x: F.max_pool2d(x, 2.0), TypeError, "integers for kernel_size"),
    (lambda x: F.max_pool2d(x, True), TypeError, "integers for kernel_size"),
    (lambda x: F.max_pool2d(x, 2, "a"), TypeError, "integers for stride"),
    (lambda x: F.avg_pool2d(x, 2, divisor_override=0), RangeError, "not 0 for divisor_override"),
    (lambda x: F.avg_pool2d(x, 2, divisor_override=2**70), RangeError, "for divisor_override"),
    (lambda x: F.max_pool2d(x, 2**17, 1, 2**16), RangeError, "fewer than 2..31 cells"),
    (lambda x: F.max_pool2d(x, 2, 2**70), RangeError, "positive integers below 2..31 for stride"),
    (lambda x: F.adaptive_avg_pool2d(x, 2**70), RangeError, "integers below 2..31 for output_size"),
    (lambda x: F.avg_pool2d(x, 2, divisor_override=1.5), TypeError, "for divisor_override"),
    (lambda x: F.max_pool2d(x[0, 0], 2), ShapeError, r"\(n, c, h, w\) or \(c, h, w\) for x"),
    (lambda x: F.max_pool1d(x, 2), ShapeError, r"\(n, c, l\) or \(c, l\) for x"),
    (lambda x: F.avg_pool2d(x[:, :, :0], 2), ShapeError, "elements in all axes but the batch"),
    (lambda x: F.max_pool2d(x[:, :0], 2), ShapeError, "elements in all axes but the batch"),
    (lambda x: F.max_pool2d(x > 0, 2), DtypeError, "numbers for x"),
    (lambda x: F.adaptive_avg_pool2d(x.long(), 2), DtypeError, "a floating dtype for x"),
    (lambda x: F.adaptive_avg_pool2d(x, -1), RangeError, "non-negative integers"),
    (lambda x: F.adaptive_max_pool2d(x, (2, 2, 2)), RangeError, "one integer or 2 for output_size"),
    (lambda x: F.adaptive_avg_pool2d(x, (2,)), RangeError, "one integer or 2 for output_size"),
    (lambda x: F.adaptive_avg_pool1d(x[0], None), TypeError, "integers for output_size"),
    (lambda x: F.adaptive_max_pool2d(x, 2.0), TypeError, "integers for output_size"),
    (lambda x: F.max_pool2d([[1.0]], 1), TypeError, "a Tensor for x"),
]


@pytest.mark.parametrize("call, kind, text", BAD, ids=[text for _, _, text in BAD])
def test_bad_input(call, kind, text):
    x = numgrad.ones(X)
    before = numgrad.memory.stats()["by_category"]["workspace"]["live_bytes"]
    with pytest.raises(kind, match=text):
        call(x)
    assert numgrad.memory.stats()["by_category"]["workspace"]["live_bytes"] == before
