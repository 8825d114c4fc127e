"""Convolution, its two adjoints, the public functions: values, edges, errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal

import numgrad
from numgrad import memory
from numgrad.autograd import grad
from numgrad.graph.errors import RangeError, ShapeError
from numgrad.kernels import launch
from numgrad.kernels.reference import convolution as reference
from numgrad.nn import functional as F
from numgrad.ops.convolution import convolution, convolution_transposed, convolution_weight
from tests.checks import assert_close, layouts
from tests.ops.convolutions import bias_of, twin

TOLERANCE = {"float32": 1e-5, "float64": 1e-13}


@st.composite
def geometries(draw):
    """(axes, shapes of x, weight and y, attributes): y smaller or larger than what fits, too."""
    axes = draw(st.sampled_from((1, 2)))
    n, groups = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    # Few outputs a group, or one input, have kernels of their own.
    c, k = draw(st.sampled_from((1, 2, 5))), draw(st.sampled_from((1, 2, 4, 5, 9)))

    def each(low, high):
        return tuple(draw(st.integers(low, high)) for _ in range(axes))

    kernel, stride, padding, dilation = each(1, 4), each(1, 4), each(0, 3), each(1, 3)
    fits, size = each(0, 5), []
    x = each(0, 3)
    spatial = []
    for more, left, r, s, p, d in zip(fits, x, kernel, stride, padding, dilation, strict=True):
        h = max(d * (r - 1) + 1 + more * s + min(left, s - 1) - 2 * p, 1)
        spatial.append(h)
        size.append(max((h + 2 * p - d * (r - 1) - 1) // s + 1 + draw(st.integers(-1, 1)), 1))
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    shapes = (
        (n, groups * c, *spatial),
        (groups * k, c, *kernel),
        (n, groups * k, *size),
    )
    return axes, shapes, attrs


def scattered(array, kind):
    """The same values in another layout."""
    if kind != "walled":
        return layouts(array, None)[kind] if array.size else array
    room = np.full([n + 5 for n in array.shape], np.nan, array.dtype)
    room[tuple(slice(2, n + 2) for n in array.shape)] = array
    return room[tuple(slice(2, n + 2) for n in array.shape)]


KINDS = ("contiguous", "transposed", "stepped", "walled", "flipped")
"""Walled: what stands around is nan, so that reading it shows."""


@settings(max_examples=150, deadline=None)
@given(
    geometries(),
    st.sampled_from(("float32", "float64")),
    st.booleans(),
    st.tuples(*[st.sampled_from(KINDS)] * 3),
    st.integers(0, 2**32 - 1),
)
def test_entries(geometry, dtype, with_bias, kinds, seed):
    """All three entries against their twins, on operands of any layout, and as adjoints."""
    axes, (x_shape, w_shape, y_shape), attrs = geometry
    rng = np.random.default_rng(seed)
    x, w, y = (rng.standard_normal(s).astype(dtype) for s in (x_shape, w_shape, y_shape))
    bias = rng.standard_normal(w_shape[0]).astype(dtype) if with_bias else None
    back = rng.standard_normal(x_shape[1]).astype(dtype) if with_bias else None
    a, v, b = (
        numgrad.from_numpy(scattered(z, kind)) for z, kind in zip((x, w, y), kinds, strict=True)
    )
    optional = [
        None if z is None else numgrad.from_numpy(np.repeat(z, 2)[::2]) for z in (bias, back)
    ]
    tolerance = TOLERANCE[dtype]

    got = convolution(a, v, optional[0], size=y_shape[2:], **attrs)
    expected = twin(reference.convolve, y_shape, x, w, axes=axes, shift=bias, **attrs)
    assert got.dtype == dtype and got.array.flags.c_contiguous
    assert_close(got.numpy(), expected, tolerance, "convolution", 1.0)

    got = convolution_transposed(b, v, optional[1], size=x_shape[2:], **attrs)
    expected = twin(reference.convolve_transposed, x_shape, y, w, axes=axes, shift=back, **attrs)
    assert_close(got.numpy(), expected, tolerance, "convolution_transposed", 1.0)

    got = convolution_weight(a, b, size=w_shape[2:], **attrs)
    expected = twin(reference.weight_gradient, w_shape, x, y, axes=axes, **attrs)
    assert_close(got.numpy(), expected, tolerance, "convolution_weight", 1.0)


@settings(max_examples=100, deadline=None)
@given(geometries(), st.integers(0, 2**32 - 1))
def test_twins(geometry, seed):
    """The answer key: the first by SciPy, the others as its adjoints."""
    axes, (x_shape, w_shape, y_shape), attrs = geometry
    rng = np.random.default_rng(seed)
    x, w, y = (rng.standard_normal(s) for s in (x_shape, w_shape, y_shape))
    product = twin(reference.convolve, y_shape, x, w, axes=axes, **attrs)
    padding, dilation, stride = attrs["padding"], attrs["dilation"], attrs["stride"]
    depth, rows = w_shape[1], w_shape[0] // attrs["groups"]
    spread = np.zeros(
        (*w_shape[:2], *(d * (r - 1) + 1 for d, r in zip(dilation, w_shape[2:], strict=True)))
    )
    spread[(..., *(slice(None, None, d) for d in dilation))] = w
    more = [(0, 0), (0, 0), *((p, p + 9) for p in padding)]
    padded = np.pad(x, more)
    for n, k in np.ndindex(*y_shape[:2]):
        own = padded[n, k // rows * depth : (k // rows + 1) * depth]
        expected = signal.correlate(own, spread[k], "valid", "direct")[0]
        expected = expected[tuple(slice(None, None, s) for s in stride)]
        expected = expected[tuple(slice(0, h) for h in y_shape[2:])]
        assert_close(product[n, k], expected, 1e-13, "convolve", 1.0)
    back = twin(reference.convolve_transposed, x_shape, y, w, axes=axes, **attrs)
    weight = twin(reference.weight_gradient, w_shape, x, y, axes=axes, **attrs)
    total = np.sum(np.abs(product * y)) + 1
    assert abs(np.sum(product * y) - np.sum(back * x)) < 1e-12 * total
    assert abs(np.sum(product * y) - np.sum(weight * w)) < 1e-12 * total


# ----------------------------------------------------------------------------------- larger shapes

LAYERS = [  # x, weight, arguments: as networks have them, past the edges of tiles and blocks
    ((1, 3, 33, 35), (16, 3, 7, 7), {"stride": 2, "padding": 3}),
    ((2, 16, 14, 15), (32, 16, 3, 3), {"padding": 1}),
    ((1, 65, 9, 8), (33, 65, 3, 3), {"padding": 1}),
    ((2, 32, 13, 13), (48, 32, 3, 3), {"stride": 2, "padding": 1}),
    ((3, 40, 7, 7), (70, 40, 1, 1), {}),
    ((3, 40, 8, 7), (70, 40, 1, 1), {"stride": 2}),
    ((2, 24, 19, 18), (24, 1, 3, 3), {"padding": 1, "groups": 24}),
    ((2, 24, 19, 18), (48, 1, 3, 3), {"padding": 1, "groups": 24, "stride": 2}),
    ((2, 12, 9, 270), (20, 3, 3, 2), {"groups": 4, "padding": (1, 0)}),
    ((1, 1, 28, 28), (6, 1, 5, 5), {}),
    ((1, 512, 2, 2), (130, 512, 3, 3), {"padding": 1}),
    ((4, 8, 40), (17, 8, 5), {"padding": 2, "dilation": 2}),
]


def convolve(x):
    return numgrad.conv2d if x.ndim == 4 else numgrad.conv1d


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("x_shape", "w_shape", "named"), LAYERS)
def test_layers(x_shape, w_shape, named, dtype):
    """Result and gradients against the twins, with the same bits at one thread and at several."""
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(s).astype(dtype) for s in (x_shape, w_shape, w_shape[:1])]
    x, w, bias = arrays
    threads = launch.get_num_threads()
    results = []
    for count in (1, max(threads, 2)):
        numgrad.set_num_threads(count)
        try:
            tensors = [numgrad.tensor(a, requires_grad=True) for a in arrays]
            out = convolve(x)(*tensors, **named)
            g = np.random.default_rng(2).standard_normal(out.shape).astype(dtype)
            out.backward(numgrad.tensor(g))
            results.append([out.detach().numpy(), *(t.grad.numpy() for t in tensors)])
        finally:
            numgrad.set_num_threads(threads)
    for one, several in zip(*results, strict=True):
        np.testing.assert_array_equal(one, several)

    axes = x.ndim - 2
    attrs = {"stride": 1, "padding": 0, "dilation": 1, **named}
    attrs = {k: v if isinstance(v, tuple) else (v,) * axes for k, v in attrs.items()}
    attrs.update(groups=named.get("groups", 1), axes=axes)
    expected = [
        twin(reference.convolve, g.shape, x, w, shift=bias, **attrs),
        twin(reference.convolve_transposed, x.shape, g, w, **attrs),
        twin(reference.weight_gradient, w.shape, x, g, **attrs),
        g.astype(np.float64).sum((0, *range(2, g.ndim))),
    ]
    for got, wanted, what in zip(results[0], expected, ("out", "dx", "dw", "db"), strict=True):
        assert_close(got, wanted, TOLERANCE[dtype], what)


# ---------------------------------------------------------------------------------------- at edges


def test_empty_batch():
    for function, x, w in (
        (numgrad.conv1d, (0, 3, 5), (4, 3, 3)),
        (numgrad.conv2d, (0, 3, 5, 5), (4, 3, 3, 3)),
        (numgrad.conv2d, (0, 4, 5, 5), (4, 1, 3, 3)),
        (numgrad.conv_transpose2d, (0, 4, 5, 5), (4, 3, 3, 3)),
    ):
        named = {"groups": 4} if w[1] == 1 else {}
        a, v = (numgrad.ones(*s, requires_grad=True) for s in (x, w))
        b = numgrad.ones(*bias_of(function, w, named), requires_grad=True)
        out = function(a, v, b, stride=2, **named)
        assert out.shape[0] == 0 and out.shape[1] == b.shape[0]
        first = grad(out.sum(), [a, v, b], create_graph=True)
        assert [g.shape for g in first] == [a.shape, v.shape, b.shape]
        assert not v.grad and first[1].abs().sum().item() == 0 == first[2].abs().sum().item()
        sum(g.sum() for g in first).backward()


def test_non_finite():
    """What is not finite stays where the kernel reaches."""
    x = np.ones((1, 2, 9, 11), np.float32)
    x[0, 0, 2, 3], x[0, 1, 7, 9] = np.nan, np.inf
    out = numgrad.conv2d(numgrad.tensor(x), numgrad.ones(5, 2, 3, 3), padding=1).numpy()
    reached = np.zeros((9, 11), bool)
    reached[1:4, 2:5] = reached[6:9, 8:11] = True
    assert (np.isfinite(out) == ~reached).all()
    assert np.isnan(out[:, :, 1:4, 2:5]).all() and np.isinf(out[:, :, 6:9, 8:11]).all()


def test_long_strides():
    """A stride beyond the input: one place is read, and its gradient goes back to that place."""
    x = numgrad.arange(12.0).reshape(1, 1, 3, 4).requires_grad_()
    w = numgrad.ones(1, 1, 2, 2, requires_grad=True)
    out = numgrad.conv2d(x, w, stride=2**31 - 1)
    assert out.tolist() == [[[[10.0]]]]
    out.backward(numgrad.tensor([[[[2.0]]]]))
    assert x.grad.tolist() == [[[[2.0, 2, 0, 0], [2, 2, 0, 0], [0, 0, 0, 0]]]]
    out = numgrad.conv_transpose2d(numgrad.ones(1, 1, 1, 1), w, stride=(2**31 - 1, 1))
    assert out.tolist() == [[[[1.0, 1.0], [1.0, 1.0]]]]


@pytest.mark.parametrize("groups", [1, 2])
def test_no_input_channels(groups):
    x = numgrad.zeros(2, 0, 5, 4, requires_grad=True)
    w = numgrad.zeros(4, 0, 3, 2, requires_grad=True)
    b = numgrad.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    out = numgrad.conv2d(x, w, b, groups=groups)
    assert out.shape == (2, 4, 3, 3)
    assert (out == b.reshape(4, 1, 1)).all()
    out.sum().backward()
    assert x.grad.shape == x.shape and w.grad.shape == w.shape
    assert b.grad.tolist() == [18.0] * 4
    assert (numgrad.conv2d(x, w, groups=groups) == 0).all()


def test_variables():
    x = numgrad.Variable(numgrad.ones(3, 5, 5))
    out = numgrad.conv2d(x, numgrad.ones(2, 3, 2, 2))
    assert type(out) is numgrad.Variable and out.shape == (2, 4, 4)


# ------------------------------------------------------------------------------------------ errors

X, W = (2, 4, 5, 5), (4, 4, 3, 3)


def conv(x=X, w=W, b=None, **named):
    bias = None if b is None else numgrad.ones(*b)
    return numgrad.conv2d(numgrad.ones(*x), numgrad.ones(*w), bias, **named)


def back(x=X, w=W, b=None, **named):
    bias = None if b is None else numgrad.ones(*b)
    return numgrad.conv_transpose2d(numgrad.ones(*x), numgrad.ones(*w), bias, **named)


F64 = numgrad.float64
ERRORS = [
    (lambda: conv((2, 3, 5, 5)), ShapeError, r"4 channels for x, got .*\(2, 3, 5, 5\)"),
    (lambda: conv((3, 5, 5)), ShapeError, "its axis 0 must fit weight"),
    (lambda: conv((2, 3, 5, 5), (4, 2, 3, 3), groups=2), ShapeError, "with 2 groups"),
    (lambda: conv((5, 5)), ShapeError, r"\(n, c, h, w\) or \(c, h, w\) for x"),
    (lambda: conv((1, 1, 1, 5, 5)), ShapeError, "h, w"),
    (lambda: conv(X, (4, 4, 3)), ShapeError, "4 axes that are not empty for weight"),
    (lambda: conv(X, (4, 4, 0, 3)), ShapeError, "not empty for weight"),
    (lambda: conv(X, (0, 4, 3, 3)), ShapeError, "not empty for weight"),
    (lambda: back(X, (4, 0, 3, 3)), ShapeError, "output channels for weight"),
    (lambda: back((2, 0, 5, 5), (0, 4, 3, 3)), ShapeError, "not empty for weight"),
    (lambda: conv((2, 5, 5, 4)), ShapeError, r"seem to stand last, there by permute\(0, 3, 1, 2\)"),
    (lambda: conv((5, 5, 4)), ShapeError, r"seem to stand last, there by permute\(2, 0, 1\)"),
    (lambda: conv((2, 4, 0, 5), padding=2), ShapeError, "length 1 or more for x"),
    (lambda: conv(X, (4, 4, 6, 3)), ShapeError, r"padded x \(5, 5\) .* over \(6, 3\)"),
    (lambda: conv(padding=(0, 1), dilation=(3, 1)), ShapeError, r"x \(5, 7\) .* \(7, 3\)"),
    (lambda: conv(b=(3,)), ShapeError, r"shape \(4,\) for bias"),
    (lambda: conv(b=(1,)), ShapeError, r"shape \(4,\) for bias"),
    (lambda: conv(b=(4, 1)), ShapeError, r"shape \(4,\) for bias"),
    (lambda: conv(X, (3, 2, 3, 3), groups=2), ShapeError, "2 groups divide for weight"),
    (lambda: conv(groups=0), RangeError, "a positive integer below .* for groups, got 0"),
    (lambda: conv(groups=-1), RangeError, "for groups, got -1"),
    (lambda: conv(stride=0), RangeError, "positive integers below .* for stride, got 0"),
    (lambda: conv(stride=(1, -2)), RangeError, r"for stride, got \(1, -2\)"),
    (lambda: conv(stride=2**31), RangeError, "below 2"),
    (lambda: conv(stride=(1, 1, 1)), RangeError, "one integer or 2 for stride"),
    (lambda: conv(stride=()), RangeError, "one integer or 2 for stride"),
    (lambda: conv(stride=1.5), TypeError, "integers for stride, got 1.5"),
    (lambda: conv(stride=True), TypeError, "integers for stride"),
    (lambda: conv(stride="1"), TypeError, "integers for stride"),
    (lambda: conv(groups=(2,) * 2), TypeError, "an integer for groups"),
    (lambda: conv(dilation=0), RangeError, "for dilation, got 0"),
    (lambda: conv(padding=-1), RangeError, "non-negative integers below .* for padding, got -1"),
    (lambda: conv(padding="full"), RangeError, "'valid' or 'same' for padding, got 'full'"),
    (lambda: conv(padding="same", stride=2), RangeError, "stride 1 with padding='same'"),
    (lambda: back((2, 3, 5, 5)), ShapeError, "4 channels for x"),
    (lambda: back((5, 5)), ShapeError, "conv_transpose2d: expected .n, c, h, w."),
    (lambda: back(X, (4, 2, 3, 3), (4,)), ShapeError, r"shape \(2,\) for bias"),
    (lambda: back(groups=3), ShapeError, "3 groups divide for weight"),
    (lambda: back((2, 4, 1, 1), padding=2), ShapeError, r"length 1 or more .* got \(-1, -1\)"),
    (lambda: back((2, 4, 1, 1), (4, 4, 2, 2), padding=1), ShapeError, r"got \(0, 0\)"),
    (lambda: back(stride=2, output_padding=2), RangeError, "less than stride or dilation for out"),
    (lambda: back(output_padding=-1), RangeError, "for output_padding, got -1"),
    (lambda: back(padding="same"), TypeError, "integers for padding, got 'same'"),
]  # fmt: skip
DTYPES = [
    (("int64", "int64"), "a floating dtype for x"),
    (("uint8", "float32"), "a floating dtype for x"),
    (("bool", "bool"), "a floating dtype for x"),
    (("float32", "int64"), "a floating dtype for weight"),
    (("float32", "float64"), "dtype float32, that of x, for weight"),
    (("float32", "float32", "float64"), "dtype float32, that of x, for bias"),
]


@pytest.mark.parametrize(("function", "kind", "text"), ERRORS)
def test_errors(function, kind, text):
    with pytest.raises(kind, match=text) as error, memory.track() as m:
        function()
    assert m.launches <= 3, "the operands alone were made"
    assert isinstance(error.value, RuntimeError) == (kind is not TypeError)
    assert "; " in str(error.value)


@pytest.mark.parametrize(("dtypes", "text"), DTYPES)
def test_wrong_dtypes(dtypes, text):
    shapes = (X, W, (4,))
    operands = [numgrad.ones(*s, dtype=d) for s, d in zip(shapes, dtypes, strict=False)]
    for function in (numgrad.conv2d, numgrad.conv_transpose2d):
        with pytest.raises(TypeError, match=text) as error:
            function(*operands)
        assert isinstance(error.value, RuntimeError)
    with pytest.raises(TypeError, match="a Tensor for weight"):
        numgrad.conv2d(operands[0], np.ones(W))
    with pytest.raises(TypeError, match="a Tensor for bias"):
        numgrad.conv2d(numgrad.ones(*X), numgrad.ones(*W), 1.0)


@pytest.mark.parametrize("name", ["stride", "padding", "dilation", "groups"])
@pytest.mark.parametrize("value", [np.array([1, 1]), [True, True], True, 1.0, (1.0, 1.0), None])
def test_attributes_that_are_no_integers(name, value):
    x, w = numgrad.ones(1, 2, 5, 5), numgrad.ones(2, 2, 3, 3)
    F.conv2d(x, w, stride=1, padding=1, dilation=1, groups=1)  # what equals these is known
    with pytest.raises(
        TypeError,
        match=rf"^conv2d: expected (an integer|integers) for {name}, got",
    ):
        F.conv2d(x, w, **{name: value})


def test_a_window_far_away_costs_nothing():
    """The padding of a gradient with stride 2 may be far larger than the kernel."""
    with numgrad.memory.track() as m:
        x, w = numgrad.ones(1, 16, 8, 8, requires_grad=True), numgrad.ones(16, 16, 1, 1)
        F.conv2d(x, w, stride=2, padding=2001)[:, :, 1000:1005, 1000:1005].sum().backward()
    assert x.grad.sum().item() == 16 * 16 * 16
    assert m.by_category["workspace"] < 8 << 20
