"""Convolution and its two adjoints in the graph: gradients, what is kept, what is launched."""

import itertools

import numpy as np
import pytest

import numgrad
from numgrad import memory
from numgrad.autograd import grad
from numgrad.kernels.reference import convolution as reference
from numgrad.ops.convolution import convolution, convolution_transposed, convolution_weight
from tests.checks import assert_close, check_gradients, layouts
from tests.ops.convolutions import bias_of, twin

# --------------------------------------------------------------------------------------- gradients

GRADIENTS = [
    (numgrad.conv1d, (2, 3, 7), (4, 3, 3), {"padding": 1}),
    (numgrad.conv1d, (3, 8), (4, 3, 2), {"padding": "same", "dilation": 3}),
    (numgrad.conv1d, (2, 4, 9), (6, 2, 2), {"stride": 3, "padding": 2, "groups": 2}),
    (numgrad.conv2d, (2, 3, 5, 4), (2, 3, 3, 3), {}),
    (numgrad.conv2d, (2, 3, 5, 4), (5, 3, 3, 3), {"padding": 1}),
    (numgrad.conv2d, (3, 5, 6), (4, 3, 2, 4), {"padding": "same"}),
    (numgrad.conv2d, (2, 3, 7, 6), (4, 3, 3, 3), {"stride": 2, "padding": 1}),
    (numgrad.conv2d, (2, 4, 6, 7), (4, 1, 3, 2), {"groups": 4, "padding": (1, 0)}),
    (
        numgrad.conv2d,
        (1, 4, 8, 8),
        (6, 2, 3, 2),
        {"groups": 2, "stride": (1, 3), "dilation": (2, 3), "padding": (2, 1)},
    ),
    (numgrad.conv_transpose1d, (2, 3, 5), (3, 2, 3), {"stride": 2, "output_padding": 1}),
    (numgrad.conv_transpose1d, (3, 5), (3, 2, 3), {"dilation": 3, "output_padding": 2}),
    (numgrad.conv_transpose2d, (2, 3, 4, 3), (3, 2, 3, 3), {"padding": 1}),
    (
        numgrad.conv_transpose2d,
        (2, 4, 3, 3),
        (4, 3, 2, 3),
        {"stride": (2, 3), "groups": 2, "output_padding": (1, 2), "padding": (0, 1)},
    ),
]


@pytest.mark.parametrize(("function", "x", "weight", "named"), GRADIENTS)
def test_gradients(function, x, weight, named):
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(s) for s in (x, weight, bias_of(function, weight, named))]
    name = function.__name__
    check_gradients(lambda *t: function(*t, **named), arrays, name)
    check_gradients(lambda *t: function(*t, **named), arrays[:2], name)


@pytest.mark.parametrize(
    ("entry", "shapes", "attrs"),
    [
        # size is less than what fits, as much, and more
        *[
            (convolution, ((2, 2, 6), (4, 2, 3)), {"size": (n,), "stride": (2,), "padding": (1,)})
            for n in (2, 3, 5)
        ],
        *[
            (
                convolution_transposed,
                ((2, 4, 3, 3), (4, 1, 2, 3)),
                {"size": n, "stride": (2, 1), "padding": (1, 0), "groups": 2},
            )
            for n in ((4, 5), (3, 4), (6, 7))
        ],
        (convolution_weight, ((2, 4, 6), (2, 6, 4)), {"size": (2,), "dilation": (2,), "groups": 2}),
        (convolution_weight, ((2, 1, 5, 4), (2, 2, 3, 4)), {"size": (3, 2), "padding": (0, 1)}),
    ],
)
def test_entries_gradients(entry, shapes, attrs):
    axes = len(shapes[0]) - 2
    attrs = {
        "stride": (1,) * axes,
        "padding": (0,) * axes,
        "dilation": (1,) * axes,
        "groups": 1,
        **attrs,
    }
    rng = np.random.default_rng(4)
    arrays = [rng.standard_normal(s) for s in shapes]
    check_gradients(lambda x, y: entry(x, y, **attrs), arrays, entry.name)


def test_third_order():
    """Second gradients have gradients too: the family is closed."""
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(s) for s in ((1, 2, 5, 4), (2, 2, 2, 3))]

    def first(x, w):
        recorded = x.requires_grad
        x, w = (x, w) if recorded else (x.requires_grad_(), w.requires_grad_())
        y = numgrad.conv2d(x, w, stride=(2, 1), padding=1)
        found = grad((y * y * y).sum(), [x, w], create_graph=True)
        return tuple(found) if recorded else tuple(g.detach() for g in found)

    check_gradients(first, arrays, "conv2d", float32=False)


def test_strided_gradient():
    """Incoming gradients of any layout, without a copy of them."""
    rng = np.random.default_rng(6)
    arrays = [rng.standard_normal(s) for s in ((2, 3, 5, 4), (4, 3, 2, 2), (4,))]
    check_gradients(
        lambda x, w, b: numgrad.conv2d(x, w, b, padding=1).permute(3, 1, 0, 2)[::2, 1:],
        arrays,
        "conv2d",
    )
    check_gradients(lambda x, w, b: numgrad.conv2d(x, w, b).sum((0, 3)), arrays, "conv2d")
    x, w = arrays[:2]
    y = twin(
        reference.convolve, (2, 4, 4, 3), x, w, axes=2, stride=(1, 1), padding=(0, 0),
        dilation=(1, 1), groups=1,
    )  # fmt: skip
    expected = None
    for kind, g in layouts(y, None).items():
        tensors = [numgrad.tensor(a, requires_grad=True) for a in arrays]
        out = numgrad.conv2d(*tensors)
        with memory.track() as m:
            out.backward(numgrad.from_numpy(g))
        found = [t.grad.numpy() for t in tensors]
        expected = found if expected is None else expected
        for got, wanted in zip(found, expected, strict=True):
            assert_close(got, wanted, 1e-14, kind)
        assert m.nodes == 0


def test_strided_operands():
    """x, weight and bias of any layout: the same values, no more memory than contiguous ones."""
    rng = np.random.default_rng(7)
    x, w, b = (rng.standard_normal(s) for s in ((2, 6, 19, 18), (8, 3, 3, 3), (8,)))
    named = {"padding": 1, "groups": 2}

    def run(x, w, b):
        x, w, b = (numgrad.from_numpy(a) for a in (x, w, b))
        with memory.track() as m:
            out = numgrad.conv2d(x, w, b, **named)
        return out.numpy(), m.peak_bytes

    expected, peak = run(x, w, b)
    for (i, p), (j, q) in itertools.product(layouts(x, None).items(), layouts(w, None).items()):
        got, needed = run(p, q, b)
        assert_close(got, expected, 1e-14, f"{i}, {j}")
        assert needed == peak, (i, j)
    got, _ = run(x, w, np.repeat(b, 2)[::2])
    np.testing.assert_array_equal(got, expected)
    image = numgrad.tensor(x[0, 0]).expand(2, 6, 19, 18)
    kernel = numgrad.tensor(w[:, :1]).expand(8, 3, 3, 3)
    got = numgrad.conv2d(image, kernel, **named).numpy()
    wanted = numgrad.conv2d(image.contiguous(), kernel.contiguous(), **named).numpy()
    assert_close(got, wanted, 1e-14, "expanded")


def test_gradient_of_the_bias_copies_nothing():
    b = numgrad.zeros(3, requires_grad=True)
    out = numgrad.conv2d(numgrad.ones(4, 2, 40, 40), numgrad.ones(3, 2, 1, 1), b)
    for g in (numgrad.ones_like(out), numgrad.ones(()).expand(*out.shape)):
        b.grad = None
        with memory.track() as m:
            out.backward(g, retain_graph=True)
        assert b.grad.tolist() == [6400] * 3
        assert m.peak_bytes < 1024


# ------------------------------------------------------------------------------------ what is kept


def test_save_sets():
    tensors = {"x", "weight", "bias", "y", "out"}
    for x, w, b in itertools.product((False, True), repeat=3):
        kept = {name for name, needed in (("x", w), ("weight", x)) if needed}
        for entry in (convolution, convolution_transposed):
            assert set(entry.save_set((x, w, b))) & tensors == kept
    assert set(convolution_weight.save_set((True, False))) & tensors == {"y"}
    assert set(convolution_weight.save_set((False, True))) & tensors == {"x"}


@pytest.mark.parametrize("function", [numgrad.conv2d, numgrad.conv_transpose2d])
def test_saves_only(function):
    """A frozen weight does not keep its input, nor a constant input the weight."""
    shapes = (2, 4, 5, 5), (4, 4, 2, 2), (4,)
    for needs in itertools.product((False, True), repeat=3):
        x, w, b = (
            numgrad.ones(*s, requires_grad=need) for s, need in zip(shapes, needs, strict=True)
        )
        kept = [t for t, needed in ((x, needs[1]), (w, needs[0])) if needed]
        with memory.track() as m:
            out = function(x, w, b)
        assert out.requires_grad == any(needs)
        assert (m.nodes, m.saved_tensors) == (any(needs), len(kept)), needs
        assert m.saved_bytes == sum(t.numel() * 4 for t in kept)


def test_no_node_when_volatile():
    x, w, b = (
        numgrad.ones(2, 3, 5, 5),
        *(numgrad.ones(*s, requires_grad=True) for s in ((4, 3, 2, 2), (4,))),
    )
    back = numgrad.ones(3, 4, 2, 2, requires_grad=True)
    volatile = numgrad.Variable(x, volatile=True)
    for function in (
        lambda x: numgrad.conv2d(x, w, b, padding="same"),
        lambda x: numgrad.conv2d(x[0], w, b),
        lambda x: numgrad.conv1d(x[:, :, 0], w[:, :, 0], b),
        lambda x: numgrad.conv_transpose2d(x, back, b),
        lambda x: numgrad.conv_transpose1d(x[0, :, 0], back.detach()[:, :, 0], b),
    ):
        expected = function(x).detach().numpy()
        for operand, context in ((volatile, numgrad.enable_grad()), (x, numgrad.no_grad())):
            with memory.track() as m, context:
                out = function(operand)
            # Slices of the weight that the test takes are views without a volatile operand.
            assert m.saved_tensors == 0
            assert out.grad_fn is None and not out.requires_grad
            assert out.volatile == (operand is volatile)
            np.testing.assert_array_equal(out.numpy(), expected)
    with memory.track() as m:
        numgrad.conv2d(volatile, w, b)
        numgrad.conv2d(volatile[0], w, b)
        numgrad.conv2d(x[0], numgrad.Variable(w, volatile=True), b)
        numgrad.conv2d(
            numgrad.ones(3, 5, 5, requires_grad=True), numgrad.Variable(w, volatile=True), b
        )
    assert m.nodes == 0 and m.saved_tensors == 0


def test_frozen_operands_launch_nothing():
    """Backward computes only what is wanted."""
    x, w = numgrad.ones(2, 3, 5, 5), numgrad.ones(4, 3, 2, 2)
    launches = {}
    for name in ("x", "w", "xw"):
        a, b = x.clone(), w.clone()
        a.requires_grad_("x" in name)
        b.requires_grad_("w" in name)
        out = numgrad.conv2d(a, b)
        g = numgrad.ones_like(out)
        with memory.track() as m:
            out.backward(g)
        launches[name] = m.launches
        assert (a.grad is not None, b.grad is not None) == ("x" in name, "w" in name)
    assert launches["xw"] == launches["x"] + launches["w"]


def test_changed_weight_is_seen():
    """Saved operands are checked; nothing derived from a weight outlives a write to it."""
    x = numgrad.ones(1, 1, 3, 3, requires_grad=True)
    w = numgrad.ones(1, 1, 2, 2, requires_grad=True)
    out = numgrad.conv2d(x, w)
    with numgrad.no_grad():
        w.mul_(2)
    with pytest.raises(numgrad.GradError, match="modified by an inplace operation"):
        out.sum().backward()
    assert numgrad.conv2d(x, w).tolist() == [[[[8.0, 8.0], [8.0, 8.0]]]]
