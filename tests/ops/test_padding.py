"""Padding: values and gradients against NumPy's, negative pads, dtypes, errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numgrad
import numgrad.nn.functional as F
from numgrad import Variable, memory
from numgrad.graph.errors import RangeError, ShapeError
from numgrad.kernels.reference import padding as reference
from numgrad.ops import padding
from tests.checks import check_gradients, layouts

MODES = ("constant", "reflect", "replicate", "circular")


def flat(pads):
    """Pads in the order of the axes as the function takes them: the last axis first."""
    return [n for pair in reversed(pads) for n in pair]


@st.composite
def cases(draw):
    mode = draw(st.sampled_from(MODES))
    axes = draw(st.integers(1, 3))
    lead = draw(st.integers(0 if mode == "constant" else 1, 2))
    shape = draw(st.tuples(*[st.integers(1, 5)] * (lead + axes)))
    most = {"reflect": lambda n: n - 1, "circular": lambda n: n}.get(mode, lambda n: 4)
    pads = tuple(
        (draw(st.integers(0, most(n))), draw(st.integers(0, most(n)))) for n in shape[lead:]
    )
    return mode, shape, pads


@settings(max_examples=150, deadline=None)
@given(
    cases(),
    st.sampled_from(["contiguous", "fortran", "stepped", "flipped"]),
    st.sampled_from(["float32", "float64"]),
)
def test_pad(case, layout, dtype):
    mode, shape, pads = case
    rng = np.random.default_rng(1)
    values = rng.standard_normal(shape).astype(dtype)
    x = numgrad.from_numpy(layouts(values, None)[layout]).requires_grad_()
    out = F.pad(x, flat(pads), mode, 1.5 if mode == "constant" else None)
    if mode == "constant":
        expected = reference.pad_constant(values, pads=pads, value=1.5)
    else:
        expected = reference.pad_edges(values, pads=pads, mode=mode)
    np.testing.assert_array_equal(out.detach().numpy(), expected)
    g = rng.integers(-9, 9, out.shape).astype(dtype)
    (dx,) = numgrad.autograd.grad(out, x, numgrad.from_numpy(layouts(g, None)[layout]))
    if mode == "constant":
        lead = len(shape) - len(pads)
        inside = [slice(b, b + n) for n, (b, _) in zip(shape[lead:], pads, strict=True)]
        np.testing.assert_array_equal(dx.numpy(), g[(..., *inside)])
    else:
        np.testing.assert_array_equal(dx.numpy(), reference.fold_edges(g, pads=pads, mode=mode))


@pytest.mark.parametrize("mode", MODES)
def test_gradients(mode):
    x = np.random.default_rng(2).uniform(-2, 2, (2, 4, 5))
    for pads in ((1, 2), (2, 1, 0, 3), (3, -1, -2, 2)):
        check_gradients(lambda x, pads=pads: F.pad(x, pads, mode), [x], f"pad {mode}")
        check_gradients(lambda x, pads=pads: F.pad(x, pads, mode) ** 2, [x], f"pad {mode}, squared")


@pytest.mark.parametrize("mode", MODES[1:])
def test_gradients_of_the_adjoint(mode):
    g = np.random.default_rng(3).uniform(-2, 2, (2, 6, 7))
    check_gradients(
        lambda g: padding.fold_edges(g, pads=((1, 2), (2, 1)), mode=mode) ** 2, [g], "fold_edges"
    )


def test_negative_pads():
    x = numgrad.tensor([[0.0, 1.0, 2.0, 3.0]])
    for mode, pads, expected in (
        ("constant", (-1, 2), [1, 2, 3, 0, 0]),
        ("constant", (3, -3), [0, 0, 0, 0]),
        ("constant", (-2, -2), []),
        ("reflect", (-1, 2), [1, 2, 3, 2, 1]),
        ("reflect", (3, -3), [3, 2, 1, 0]),
        ("replicate", (3, -2), [0, 0, 0, 0, 1]),
        ("replicate", (-4, 1), [3]),
        ("circular", (-1, 2), [1, 2, 3, 1, 2]),  # what is left goes round
        ("circular", (2, -1), [1, 2, 0, 1, 2]),
    ):
        out = F.pad(x, pads, mode)
        assert out.tolist() == [expected] and out.is_contiguous(), (mode, pads)
    y = F.pad(x, (0, 0))
    y.fill_(7)
    assert x.tolist() == [[0, 1, 2, 3]]  # never x itself


def test_values_and_dtypes():
    ints = numgrad.tensor([[1, 2]])
    assert F.pad(ints, (1, 1), value=1.7).tolist() == [[1, 1, 2, 1]]
    assert F.pad(ints > 1, (1, 0), value=2).tolist() == [[True, False, True]]
    assert F.pad(ints.to(numgrad.uint8), (0, 1), value=255).tolist() == [[1, 2, 255]]
    assert F.pad(numgrad.ones(1), (1, 1), value=float("-inf")).tolist() == [-np.inf, 1, -np.inf]
    assert F.pad(numgrad.ones(2), (1, 0), value=numgrad.tensor(3.0)).tolist() == [3, 1, 1]
    for mode in MODES[1:]:
        for dtype in ("int64", "int32", "uint8", "bool"):
            assert F.pad(numgrad.ones((1, 3), dtype=dtype), (1, 1), mode).dtype == dtype
    assert F.pad(numgrad.tensor(2.0), ()).item() == 2
    assert F.pad(numgrad.ones(2, 2, 2), (1, 0, 0, 0, 0, 1)).shape == (3, 2, 3)


def test_empty():
    for mode in MODES:
        x = numgrad.zeros(0, 2, 3, 4, requires_grad=True)
        out = F.pad(x, (1, 1, 2, 0), mode)
        assert out.shape == (0, 2, 5, 6)
        out.sum().backward()
        assert x.grad.shape == x.shape
    assert F.pad(numgrad.zeros(2, 0), (1, 2), value=3).tolist() == [[3, 3, 3]] * 2


def test_padding_keeps_nothing():
    x = numgrad.ones(2, 4, 5, requires_grad=True)
    for mode in MODES:
        with memory.track() as m:
            F.pad(x, (1, 1), mode)
        assert (m.nodes, m.saved_bytes) == (1, 0)
        with memory.track() as m:
            out = F.pad(Variable(x.data, volatile=True), (1, -1), mode)
        assert (m.nodes, m.saved_bytes) == (0, 0) and out.volatile


def test_wide_edges_take_few_launches():
    x = numgrad.randn(2, 3, 4, requires_grad=True)
    out = F.pad(x, (50, 70), "replicate")
    with numgrad.memory.track() as m:
        (g,) = numgrad.autograd.grad(out.sum(), x)
    assert m.launches < 20
    assert g.tolist() == [[[51.0, 1.0, 1.0, 71.0]] * 3] * 2


BAD = [
    (lambda x: F.pad(x, (1,)), ShapeError, "two integers for each of at most 3 axes"),
    (lambda x: F.pad(x, (1, 1) * 4), ShapeError, "two integers for each of at most 3 axes"),
    (lambda x: F.pad(x, 1), TypeError, "a tuple of integers for pad"),
    (lambda x: F.pad(x, (1.0, 1)), TypeError, "integers for pad"),
    (lambda x: F.pad(x, (2**62, 2**62)), RangeError, "pad: expected integers within"),
    (lambda x: F.pad(x, (-3, -3)), ShapeError, "to take away no more than there is"),
    (lambda x: F.pad(x, (-6, 3)), ShapeError, "to take away no more than there is"),
    (lambda x: F.pad(x, (1, 1), "mirror"), NotImplementedError, "'circular' for mode"),
    (lambda x: F.pad(x, (1, 1), "reflect", 2.0), RangeError, "no value with mode 'reflect'"),
    (lambda x: F.pad(x, (5, 0), "reflect"), ShapeError, "at most 4 at an axis of 5"),
    (lambda x: F.pad(x, (6, 0), "circular"), ShapeError, "at most 5 at an axis of 5"),
    (lambda x: F.pad(x, (-2, 4), "circular"), ShapeError, "at most 3 at an axis of 3"),
    (lambda x: F.pad(x[..., :0], (1, 0), "replicate"), ShapeError, "at most 0 at an axis of 0"),
    (lambda x: F.pad(x[0, 0], (1, 1), "reflect"), ShapeError, "one or two axes more than the 1"),
    (lambda x: F.pad(x, (0, 0) * 3, "reflect"), ShapeError, "one or two axes more than the 3"),
    (lambda x: F.pad(x, (1, 1), value="a"), TypeError, "a number for value"),
    (lambda x: F.pad(x, (1, 1), value=x), TypeError, "pad: expected a number for value"),
    (lambda x: F.pad(x.long(), (1, 1), value=1e30), RangeError, "a number of dtype int64"),
    (lambda x: F.pad(x.byte(), (1, 1), value=-1), RangeError, "a number of dtype uint8"),
    (lambda x: F.pad([1.0], (1, 1)), TypeError, "a Tensor for x"),
]


@pytest.mark.parametrize("call, kind, text", BAD, ids=[text for _, _, text in BAD])
def test_bad_input(call, kind, text):
    with pytest.raises(kind, match=text):
        call(numgrad.ones(3, 4, 5))
