"""Dropout: a function of the seed, its own gradient, the right distribution."""

import numpy as np
import pytest

import numgrad
from numgrad import memory, nn
from numgrad.kernels import launch
from numgrad.kernels.reference import random as reference
from numgrad.nn import functional as F
from tests.checks import check_gradients


def test_deterministic():
    x = numgrad.ones(1000)
    numgrad.manual_seed(3)
    a = numgrad.dropout(x, 0.3)
    b = numgrad.dropout(x, 0.3)
    numgrad.manual_seed(3)
    np.testing.assert_array_equal(numgrad.dropout(x, 0.3).numpy(), a.numpy())
    assert (a != b).any().item()
    state = numgrad.get_rng_state()
    c = numgrad.dropout(x, 0.3)
    numgrad.set_rng_state(state)
    np.testing.assert_array_equal(numgrad.dropout(x, 0.3).numpy(), c.numpy())
    generator = numgrad.Generator(3)
    np.testing.assert_array_equal(numgrad.dropout(x, 0.3, generator=generator).numpy(), a.numpy())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values(dtype):
    """Element by element the documented function of (seed, offset, element)."""
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(dtype)
    for strided in (x, x.T.copy().T, np.repeat(x, 2, 1)[:, ::2]):
        numgrad.manual_seed(11)
        got = numgrad.dropout(numgrad.from_numpy(strided), 0.4).numpy()
        expected = reference.dropout_float64(x.reshape(-1), 11, 0, 0.4, 1 / 0.6).reshape(x.shape)
        np.testing.assert_allclose(got, expected, rtol=1e-6)
        np.testing.assert_array_equal(got == 0, expected == 0)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_distribution(p):
    n = 1 << 18
    numgrad.manual_seed(0)
    out = numgrad.dropout(numgrad.ones(n), p).numpy()
    kept = out != 0
    np.testing.assert_allclose(out[kept], 1 / (1 - p), rtol=1e-6)
    deviation = np.sqrt(p * (1 - p) / n)
    assert abs(kept.mean() - (1 - p)) < 5 * deviation
    # Neighbours are independent: the count of kept pairs has the mean of a product.
    pairs = (kept[:-1] & kept[1:]).mean()
    assert abs(pairs - (1 - p) ** 2) < 8 * deviation


def test_threads():
    x = numgrad.ones(100_003)
    threads = launch.get_num_threads()
    results = []
    for n in (1, max(2, threads)):
        numgrad.set_num_threads(n)
        try:
            numgrad.manual_seed(5)
            results.append(numgrad.dropout(x, 0.5).numpy())
        finally:
            numgrad.set_num_threads(threads)
    np.testing.assert_array_equal(*results)


def test_gradient():
    x = np.random.default_rng(0).standard_normal((4, 5))

    def function(t):
        numgrad.manual_seed(7)
        return numgrad.dropout(t, 0.4) * t

    check_gradients(function, [x], "dropout")
    t = numgrad.tensor(x, requires_grad=True)
    out = numgrad.dropout(t, 0.4)
    out.sum().backward()
    np.testing.assert_allclose(t.grad.numpy(), np.where(out.detach().numpy() != 0, 1 / 0.6, 0))


def test_keeps_nothing():
    """The seed and the offset, not a mask."""
    x = numgrad.ones(1000, requires_grad=True)
    with memory.track() as m:
        out = numgrad.dropout(x, 0.5)
    assert (m.nodes, m.saved_tensors, m.saved_bytes) == (1, 0, 0) and out.requires_grad
    with memory.track() as m:
        out = numgrad.dropout(numgrad.Variable(x.detach(), volatile=True), 0.5)
    assert m.nodes == 0 and out.volatile


def test_identity_and_extremes():
    x = numgrad.tensor([1.0, 2.0], requires_grad=True)
    assert numgrad.dropout(x, 0.5, False) is x
    assert numgrad.dropout(x, 0.0) is x
    out = numgrad.dropout(x, 1.0)
    assert out.tolist() == [0, 0]
    out.sum().backward()
    assert x.grad.tolist() == [0, 0]
    assert numgrad.dropout(numgrad.zeros(0), 0.5).shape == (0,)
    nan = numgrad.tensor([np.nan, np.inf] * 50)
    numgrad.manual_seed(0)
    dropped = numgrad.dropout(nan, 0.5).numpy()
    assert (dropped == 0).any()


def test_in_place():
    numgrad.manual_seed(9)
    x = numgrad.tensor(np.arange(1.0, 21.0))
    expected = numgrad.dropout(x, 0.5)
    numgrad.manual_seed(9)
    y = x.clone()
    got = numgrad.dropout(y, 0.5, inplace=True)
    assert got is y
    np.testing.assert_array_equal(got.numpy(), expected.numpy())
    leaf = numgrad.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable"):
        numgrad.dropout(leaf, 0.5, inplace=True)
    strided = numgrad.ones(4, 6).t()
    numgrad.manual_seed(9)
    numgrad.dropout(strided, 0.5, inplace=True)
    numgrad.manual_seed(9)
    np.testing.assert_array_equal(strided.numpy(), numgrad.dropout(numgrad.ones(6, 4), 0.5).numpy())


def test_errors():
    x = numgrad.ones(3)
    state = numgrad.get_rng_state().tolist()
    for p in (-0.1, 1.1, "0.5", None, float("nan")):
        with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
            numgrad.dropout(x, p)
        for op, call in (
            ("dropout", lambda p: F.dropout(x, p, training=False)),
            ("dropout2d", lambda p: F.dropout2d(numgrad.ones(1, 2, 3), p)),
            ("Dropout", nn.Dropout),
            ("Dropout2d", nn.Dropout2d),
        ):
            text = (
                f"^{op}: expected .* for p, got .*; dropout probability has to be between 0 and 1"
            )
            with pytest.raises(ValueError, match=text):
                call(p)
    with pytest.raises(TypeError, match="a floating Tensor for x"):
        numgrad.dropout(numgrad.tensor([1, 2]), 0.5)
    with pytest.raises(TypeError, match="a floating Tensor for x"):
        numgrad.dropout([1.0], 0.5)
    assert numgrad.get_rng_state().tolist() == state


# ------------------------------------------------------------------------------------ of channels


def test_channels():
    """Whole channels are dropped, at the rate p, and the others scaled."""
    numgrad.manual_seed(5)
    x = numgrad.tensor(np.random.default_rng(0).uniform(1, 2, (40, 50, 3, 4)))
    for shape in ((40, 50, 3, 4), (40, 50, 12)):
        a = x.reshape(*shape)
        out = numgrad.nn.functional.dropout2d(a, 0.3).numpy()
        ratio = (out / a.numpy()).reshape(2000, -1)
        assert (ratio.max(1) - ratio.min(1)).max() < 1e-12
        dropped = ratio[:, 0] == 0
        assert abs(dropped.mean() - 0.3) < 0.05
        np.testing.assert_allclose(ratio[~dropped], 1 / 0.7, rtol=1e-12)
    layer = numgrad.nn.Dropout2d(0.5)
    assert repr(layer) == "Dropout2d(p=0.5, inplace=False)"
    assert layer.eval()(x) is x and numgrad.nn.functional.dropout2d(x, 0.0) is x
    with pytest.warns(UserWarning, match="2-D input to dropout2d"):
        assert numgrad.nn.functional.dropout2d(x[:, :, 0, 0]).shape == (40, 50)
    with pytest.raises(ValueError, match="between 0 and 1"):
        numgrad.nn.functional.dropout2d(x, 1.5)
    with pytest.raises(RuntimeError, match=r"expected \(n, c, h, w\) for x"):
        numgrad.nn.functional.dropout2d(x[0, 0, 0])
    with pytest.raises(TypeError, match="a floating Tensor for x"):
        numgrad.nn.functional.dropout2d(x.long())


@pytest.mark.parametrize("inplace", [False, True])
def test_channels_gradient(inplace):
    """One factor a channel is kept, and scales the gradient."""
    x = numgrad.ones(4, 6, 5, 5, requires_grad=True)
    y = x * 1
    with memory.track() as m:
        out = numgrad.nn.functional.dropout2d(y, 0.5, inplace=inplace)
    assert (m.nodes, m.saved_tensors, m.saved_bytes) == (1, 1, 4 * 6 * 4)
    assert (out is y) == inplace
    out.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), out.detach().numpy())
    with memory.track() as m:
        out = numgrad.nn.Dropout2d()(numgrad.Variable(x, volatile=True))
    assert (m.nodes, m.saved_tensors) == (0, 0) and out.volatile


def test_channels_gradients_of_both_orders():
    x = np.random.default_rng(1).standard_normal((2, 3, 2, 2))

    def call(t):
        numgrad.manual_seed(7)
        return numgrad.nn.functional.dropout2d(t, 0.4)

    check_gradients(call, [x], "dropout2d")
