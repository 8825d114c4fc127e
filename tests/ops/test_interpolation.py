"""Nearest interpolation: values and gradients against the reference, sizes and factors, errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numgrad
import numgrad.nn.functional as F
from numgrad import Variable, memory
from numgrad.graph.errors import DtypeError, RangeError, ShapeError
from numgrad.kernels import launch
from numgrad.kernels.reference import interpolation as reference
from numgrad.ops import interpolation
from tests.checks import check_gradients, layouts


@st.composite
def cases(draw):
    """(shape, arguments, lengths, scales as the op takes them)."""
    axes = draw(st.integers(1, 2))
    spatial = draw(st.tuples(*[st.integers(1, 9)] * axes))
    shape = (*draw(st.sampled_from([(1, 1), (2, 3), (0, 2)])), *spatial)
    if draw(st.booleans()):
        size = draw(st.tuples(*[st.integers(1, 20)] * axes))
        return shape, {"size": size}, size, (None,) * axes
    factor = st.one_of(st.sampled_from([1.0, 2.0, 3.0, 1.5]), st.floats(1, 3))
    factors = draw(st.tuples(*[factor] * axes))
    size = tuple(int(n * f) for n, f in zip(spatial, factors, strict=True))
    again = draw(st.booleans())
    given = {"scale_factor": factors, "recompute_scale_factor": again}
    return shape, given, size, (None,) * axes if again else factors


@settings(max_examples=150, deadline=None)
@given(
    cases(),
    st.sampled_from(["contiguous", "fortran", "stepped", "flipped"]),
    st.sampled_from(["float32", "float64"]),
)
def test_nearest(case, layout, dtype):
    shape, arguments, size, scales = case
    rng = np.random.default_rng(1)
    values = rng.standard_normal(shape).astype(dtype)
    x = numgrad.from_numpy(layouts(values, None)[layout]).requires_grad_()
    out = F.interpolate(x, **arguments)
    expected = reference.nearest(values, size=size, scales=scales)
    np.testing.assert_array_equal(out.detach().numpy(), expected)
    g = rng.integers(-9, 9, out.shape).astype(dtype)
    (dx,) = numgrad.autograd.grad(out, x, numgrad.from_numpy(layouts(g, None)[layout]))
    adjoint = reference.nearest_adjoint(g, shape=shape, scales=scales)
    np.testing.assert_array_equal(dx.numpy(), adjoint)


def test_sources_one_by_one():
    """The table of a whole axis against the same in scalars, and inside of the axis."""
    rng = np.random.default_rng(2)
    for _ in range(200):
        n, scale = int(rng.integers(1, 300)), float(rng.uniform(0.3, 4))
        for m, s in ((int(rng.integers(1, 600)), None), (max(int(n * scale), 1), scale)):
            table = interpolation.sources(n, m, s)
            assert table.tolist() == reference.sources(n, m, s), (n, m, s)
            assert (np.diff(table) >= 0).all() and table[0] >= 0 and table[-1] < n


@pytest.mark.parametrize("arguments", [{"size": (7, 2)}, {"scale_factor": (2, 1.5)}])
def test_gradients(arguments):
    x = np.random.default_rng(3).uniform(-2, 2, (2, 2, 4, 5))
    check_gradients(lambda x: F.interpolate(x, **arguments), [x], "nearest")
    check_gradients(lambda x: F.interpolate(x, **arguments) ** 2, [x], "nearest, squared")
    check_gradients(lambda x: F.interpolate(x[0], scale_factor=2) ** 2, [x], "nearest, 1-D")
    check_gradients(
        lambda g: interpolation.nearest_adjoint(g, shape=(2, 2, 3, 2), scales=(None, None)) ** 2,
        [x],
        "nearest_adjoint",
    )


def test_known_answers():
    x = numgrad.tensor([[[1.0, 2.0, 3.0]]])
    assert F.interpolate(x, 6).tolist() == [[[1, 1, 2, 2, 3, 3]]]
    assert F.interpolate(x, 2).tolist() == [[[1, 2]]]
    assert F.interpolate(x, scale_factor=1.6).tolist() == [[[1, 1, 2, 2]]]  # floor(i / 1.6)
    assert F.interpolate(x, scale_factor=1.6, recompute_scale_factor=True).tolist() == [
        [[1, 1, 2, 3]]  # floor(i * 3 / 4)
    ]
    image = numgrad.tensor([[[[1, 2], [3, 4]]]], dtype=numgrad.uint8)
    assert F.interpolate(image, scale_factor=(1, 2)).tolist() == [[[[1, 1, 2, 2], [3, 3, 4, 4]]]]
    y = F.interpolate(x, 3)
    y.fill_(0)
    assert x.tolist() == [[[1, 2, 3]]]


def test_nothing_is_kept_and_bits_do_not_depend_on_threads():
    x = numgrad.randn(2, 3, 100, 90, requires_grad=True)
    with memory.track() as m:
        F.interpolate(x, scale_factor=2)
    assert (m.nodes, m.saved_bytes) == (1, 0)
    with memory.track() as m:
        out = F.interpolate(Variable(x.data, volatile=True), scale_factor=2)
    assert (m.nodes, m.saved_bytes) == (0, 0) and out.volatile
    before, found = launch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            numgrad.set_num_threads(threads)
            out = F.interpolate(x, (171, 207))
            (g,) = numgrad.autograd.grad((out * out).sum(), x)
            found.append((out.detach().numpy().tobytes(), g.numpy().tobytes()))
    finally:
        numgrad.set_num_threads(before)
    assert found[0] == found[1] == found[2]


BAD = [
    (lambda x: F.interpolate(x), RangeError, "one of them for size, scale_factor, got neither"),
    (lambda x: F.interpolate(x, 3, 2), RangeError, "one of them for size, scale_factor, got both"),
    (lambda x: F.interpolate(x, (3, 3, 3)), RangeError, "one integer or 2 for "),
    (lambda x: F.interpolate(x, scale_factor=(2,)), RangeError, "one number or 2 for "),
    (lambda x: F.interpolate(x, 0), RangeError, "positive integers below .* for size"),
    (lambda x: F.interpolate(x, scale_factor=0.1), RangeError, "that give lengths from 1"),
    (lambda x: F.interpolate(x, scale_factor=-1.0), RangeError, "that give lengths from 1"),
    (lambda x: F.interpolate(x, scale_factor=float("inf")), RangeError, "factors that give"),
    (lambda x: F.interpolate(x[:, :, :0], 2), ShapeError, "elements in all axes"),
    (lambda x: F.interpolate(x, 2.5), TypeError, "integers for size"),
    (lambda x: F.interpolate(x, True), TypeError, "integers for size"),
    (lambda x: F.interpolate(x, scale_factor="a"), TypeError, "numbers for scale_factor"),
    (lambda x: F.interpolate(x, 3, mode="bilinear"), NotImplementedError, "'nearest' for mode"),
    (lambda x: F.interpolate(x, 3, align_corners=False), RangeError, "no align_corners"),
    (lambda x: F.interpolate(x, 3, antialias=True), RangeError, "no antialias"),
    (
        lambda x: F.interpolate(x, 3, recompute_scale_factor=True),
        RangeError,
        "no recompute_scale_factor with a size",
    ),
    (lambda x: F.interpolate(x[0, 0], 3), NotImplementedError, r"\(n, c, h, w\) for x"),
    (lambda x: F.interpolate(x[None], 3), NotImplementedError, r"\(n, c, h, w\) for x"),
    (lambda x: F.interpolate(x.long(), 3), DtypeError, "a floating dtype or uint8"),
]


@pytest.mark.parametrize("call, kind, text", BAD, ids=[text for _, _, text in BAD])
def test_bad_input(call, kind, text):
    with pytest.raises(kind, match=text):
        call(numgrad.ones(1, 2, 3, 4))
