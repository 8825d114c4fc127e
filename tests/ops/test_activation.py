"""Activations with weights, and chains in place as networks write them."""

import numpy as np
import pytest

import numgrad
import numgrad.nn as nn
import numgrad.nn.functional as F
from numgrad import Variable, memory
from tests.checks import assert_close, check_gradients, layouts

RNG = np.random.default_rng(0)

SHAPES = [  # of x, and how many weights
    ((), 1),
    ((5,), 1),
    ((4, 3), 1),
    ((4, 3), 3),
    ((2, 3, 5), 3),
    ((2, 3, 4, 5), 1),
    ((2, 3, 4, 5), 3),
    ((0, 3, 4), 3),
]


@pytest.mark.parametrize(("shape", "count"), SHAPES)
def test_prelu(shape, count):
    x = np.asarray(RNG.uniform(0.1, 2, shape) * RNG.choice([-1.0, 1.0], shape))
    w = RNG.uniform(-1, 1, count)
    spread = w.reshape(-1, *[1] * max(len(shape) - 2, 0))
    expected = np.where(x > 0, x, spread * x).reshape(shape)
    for dtype, tolerance in (("float32", 1e-6), ("float64", 1e-15)):
        for a in layouts(x.astype(dtype), None).values() if x.ndim else [x.astype(dtype)]:
            got = numgrad.prelu(numgrad.from_numpy(a), numgrad.tensor(w, dtype=dtype))
            assert_close(got.numpy(), expected, tolerance, "prelu")
    check_gradients(numgrad.prelu, [x, w], "sloped")
    if count == 1:
        check_gradients(numgrad.prelu, [x, w.reshape(())], "sloped")


def test_prelu_at_zero_and_saves():
    x = numgrad.tensor([0.0, -0.0, 1.0, -2.0, np.nan], requires_grad=True)
    layer = nn.PReLU()
    assert layer.weight.tolist() == [0.25] and repr(layer) == "PReLU(num_parameters=1)"
    out = layer(x)
    np.testing.assert_array_equal(out.detach().numpy(), [0, 0, 1, -0.5, np.nan])
    out.backward(numgrad.ones(5))
    np.testing.assert_array_equal(x.grad.numpy(), [0.25, 0.25, 1, 1 * 0.25, 0.25])
    layer.weight.requires_grad_(False)
    h = numgrad.ones(4, 3) * x.detach()[2]
    with memory.track() as m:
        out = layer(h)
    assert (m.nodes, m.saved_tensors) == (0, 0) and not out.requires_grad
    layer.weight.requires_grad_(True)
    with memory.track() as m:
        out = layer(h)  # the weight's gradient wants h alone
    assert (m.nodes, m.saved_tensors) == (1, 1) and out.requires_grad
    with memory.track() as m:
        out = nn.PReLU(3)(Variable(numgrad.ones(2, 3, 4), volatile=True))
    assert (m.nodes, m.saved_tensors) == (0, 0) and out.volatile


def test_prelu_errors():
    x = numgrad.ones(2, 3)
    for weight in (numgrad.ones(2), numgrad.ones(0)):
        with pytest.raises(ValueError, match="1 value or 3, one a channel of x"):
            numgrad.prelu(x, weight)
    with pytest.raises(RuntimeError, match="0-dim or 1-dim tensor for weight"):
        numgrad.prelu(x, numgrad.ones(1, 1))
    for bad in (numgrad.ones(3), numgrad.ones(2)):
        for one in (numgrad.ones(()), numgrad.ones(3)):
            with pytest.raises(ValueError, match="for weight"):
                numgrad.prelu(one, bad)
    with pytest.raises(TypeError, match="the floating dtype of x, float32, for weight"):
        numgrad.prelu(x, numgrad.ones(3, dtype="float64"))
    with pytest.raises(TypeError, match="the floating dtype of x, int64, for weight"):
        numgrad.prelu(x.long(), numgrad.ones(3, dtype="int64"))
    with pytest.raises(TypeError, match="a Tensor for weight"):
        numgrad.prelu(x, 0.5)


# ---------------------------------------------------------------------------------------- in place


def block(x, w, identity, activation):
    """The end of a residual block: a result, the shortcut added to it, an activation, in place."""
    out = x * w
    out += identity
    return activation(out)


IN_PLACE = {
    "relu_": (F.relu_, lambda z: np.maximum(z, 0)),
    "relu": (lambda z: F.relu(z, inplace=True), lambda z: np.maximum(z, 0)),
    "method": (lambda z: z.relu_(), lambda z: np.maximum(z, 0)),
    "ReLU": (nn.ReLU(inplace=True), lambda z: np.maximum(z, 0)),
    "ReLU6": (nn.ReLU6(inplace=True), lambda z: np.clip(z, 0, 6)),
    "relu6": (lambda z: F.relu6(z, inplace=True), lambda z: np.clip(z, 0, 6)),
    "hardtanh_": (lambda z: F.hardtanh_(z, 0.0, 6.0), lambda z: np.clip(z, 0, 6)),
    "Hardtanh": (nn.Hardtanh(-1, 2, inplace=True), lambda z: np.clip(z, -1, 2)),
}
each_in_place = pytest.mark.parametrize("name", IN_PLACE)


@each_in_place
def test_chain_in_place(name):
    """The gradients of the chain out of place; kept are the operands of the product, and of the
    chain itself only its result."""
    activation, reference = IN_PLACE[name]
    x, w, identity = RNG.uniform(-8, 8, (3, 4, 5))
    check_gradients(
        lambda x, w, i: block(x, w, i, activation), [x / 3, w / 3, identity], "in place"
    )
    leaves = [numgrad.tensor(a, requires_grad=True) for a in (x, w, identity)]
    product = leaves[0] * leaves[1]
    with memory.track() as m:
        out = product
        out += leaves[2]
        out = activation(out)
    assert out is product
    assert (m.nodes, m.saved_tensors, m.saved_bytes) == (2, 1, out.array.nbytes)
    assert_close(out.detach().numpy(), reference(x * w + identity), 1e-15, name)


@each_in_place
def test_chain_unrecorded(name):
    """Frozen, volatile or without gradients: no node and nothing kept."""
    activation, reference = IN_PLACE[name]
    x, w, identity = RNG.uniform(-3, 3, (3, 4, 5))
    expected = reference(x * w + identity)
    frozen = [numgrad.tensor(a) for a in (x, w, identity)]
    weight = numgrad.tensor(w, requires_grad=True)
    volatile = Variable(numgrad.tensor(x), volatile=True)
    with memory.track() as m:
        outs = [block(*frozen, activation), block(volatile, weight, frozen[2], activation)]
        with numgrad.no_grad():
            outs.append(block(frozen[0], weight, frozen[2], activation))
    assert (m.nodes, m.saved_tensors, m.saved_bytes) == (0, 0, 0)
    assert outs[1].volatile
    for out in outs:
        assert out.grad_fn is None and not out.requires_grad
        assert_close(out.numpy(), expected, 1e-15, name)


def test_frozen_weights_keep_nothing_but_the_activation():
    x, w, identity = (numgrad.tensor(a) for a in RNG.uniform(-3, 3, (3, 4, 5)))
    identity.requires_grad_()
    with memory.track() as m:
        out = block(x, w, identity, F.relu_)
    assert (m.nodes, m.saved_tensors, m.saved_bytes) == (2, 1, out.array.nbytes)


def test_in_place_after_a_saved_result_raises():
    x = numgrad.tensor([1.0, -1.0], requires_grad=True)
    out = F.relu(x * 1)
    out += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
