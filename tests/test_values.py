"""Small inputs with right values, each for a kind of mistake that autograd libraries have made."""

import gc
import warnings

import numpy as np
import pytest

import numgrad
from numgrad import memory
from numgrad.autograd import grad
from numgrad.graph.errors import GradError
from numgrad.kernels import launch

INF, NAN = float("inf"), float("nan")


def leaf(values, dtype="float32"):
    return numgrad.tensor(values, dtype=dtype, requires_grad=True)


def gradient(function, values, dtype="float32"):
    """The gradient of ``function(x).sum()`` at ``values``."""
    x = leaf(values, dtype)
    out = function(x)
    (out if out.dim() == 0 else out.sum()).backward()
    assert x.grad.shape == x.shape
    return x.grad.tolist()


# ------------------------------------------------------------------------ kinks inside composites


def test_norm_at_zero():
    assert gradient(lambda x: x.norm(), [0.0, 0.0, 0.0]) == [0, 0, 0]
    assert gradient(lambda x: x.norm() ** 2, [0.0, 0.0]) == [0, 0]
    assert gradient(lambda x: x.norm(2, 1), [[0.0, 0.0], [3.0, 4.0]])[0] == [0, 0]
    for p in (1, 3, 1.5, INF):
        assert gradient(lambda x: x.norm(p), [0.0, 0.0, 0.0]) == [0, 0, 0], p
    x = leaf([0.0, 0.0])
    (g,) = grad(x.norm(), x, create_graph=True)
    (h,) = grad(g.sum(), x)
    assert h.tolist() == [0, 0]


def test_std_of_a_constant():
    assert gradient(lambda x: x.std(), [2.0] * 5) == [0] * 5
    assert gradient(lambda x: x.std(1), [[2.0] * 3, [1.0, 2.0, 3.0]])[0] == [0] * 3


def test_prod_with_zero_factors():
    for values, expected in (
        ([0.0, 2.0, 3.0], [6, 0, 0]),
        ([0.0, 0.0, 3.0], [0, 0, 0]),
        ([2.0, 0.0, 4.0], [0, 8, 0]),
        ([0.0], [1]),
    ):
        assert gradient(lambda x: x.prod(), values) == expected
        assert gradient(lambda x: x.prod(1), [values, values]) == [expected] * 2


def test_repeated_index_adds():
    assert gradient(lambda x: x[numgrad.tensor([0, 0])], [1.0]) == [2]
    x = leaf([1.0, 2.0])
    x[numgrad.tensor([1, 0, 1])].backward(numgrad.tensor([1.0, 10.0, 100.0]))
    assert x.grad.tolist() == [10, 101]


# ------------------------------------------------------------------------------ branches not taken


def test_where_branch_not_taken():
    where = numgrad.where
    assert gradient(lambda x: where(x > 0, x.sqrt(), x), [-1.0, -4.0]) == [1, 1]
    assert gradient(lambda x: where(x == 0, x / 2, x.sqrt() + 1), [16.0, 0.0]) == [0.125, 0.5]
    assert gradient(lambda x: where(x > 0, x.log(), x), [0.0, -1.0]) == [1, 1]
    assert gradient(lambda x: where(x == 0, 1.0, 1 / x), [0.0, 2.0]) == [0, -0.25]
    assert gradient(lambda x: where(x < 100, x, x.exp()), [1.0, 99.0]) == [1, 1]
    assert gradient(lambda x: where(x > 0, x**0.5, x * 0), [-1.0, 4.0]) == [0, 0.25]
    # Recorded, too.
    x = leaf([-1.0, 4.0])
    (g,) = grad(where(x > 0, x.sqrt(), x).sum(), x, create_graph=True)
    assert g.tolist() == [1, 0.25]
    (h,) = grad(g.sum(), x)
    assert h.tolist() == [0, -1 / 32]


def test_guard_is_for_exact_zeros_only():
    """The second derivative of ½ (z² - 1)² at z = 1, where the first is 0, is 4."""
    z = leaf([1.0], "float64")
    y = z * z - 1
    (g,) = grad((y * y / 2).sum(), z, create_graph=True)
    assert g.tolist() == [0]
    (h,) = grad(g.sum(), z)
    assert h.tolist() == [4]
    z = leaf([1.0], "float64")
    (g,) = grad(((z**2 - 1) ** 2 / 2).sum(), z, create_graph=True)
    assert grad(g.sum(), z)[0].tolist() == [4]
    # A derivative that is not finite stays so where a gradient does come in.
    assert gradient(lambda x: x.sqrt(), [0.0]) == [INF]
    assert np.isnan(gradient(lambda x: x.sqrt(), [-1.0])[0])


# -------------------------------------------------------------------------------- ties and corners


def test_ties():
    assert gradient(lambda x: x.amax(), [2.0, 2.0, 1.0]) == [0.5, 0.5, 0]
    assert gradient(lambda x: x.max(), [2.0, 2.0, 1.0]) == [0.5, 0.5, 0]
    assert gradient(lambda x: x.amin(), [1.0, 2.0, 1.0]) == [0.5, 0, 0.5]
    for function in (numgrad.maximum, numgrad.minimum, numgrad.max):
        x, y = leaf([1.0]), leaf([1.0])
        function(x, y).backward()
        assert x.grad.tolist() == [0.5] == y.grad.tolist()
    for name in ("max", "min"):
        got = gradient(lambda x: getattr(x, name)(0)[0], [3.0, 3.0, 3.0])
        assert got == [1, 0, 0]


def test_pow_at_the_edges():
    assert gradient(lambda x: x**0, [0.0, 1.0]) == [0, 0]
    assert gradient(lambda x: x**1, [0.0, 1.0]) == [1, 1]
    assert gradient(lambda x: x**2, [0.0, -3.0]) == [0, -6]
    assert gradient(lambda x: x**3.0, [0.0, -2.0]) == [0, 12]
    a, b = leaf([0.0, 2.0]), leaf([1.0, 1.0])
    (a**b).sum().backward()
    assert b.grad.tolist() == pytest.approx([0, 1.3862944])
    assert a.grad.tolist() == [1, 1]
    # No logarithm of a base whose exponent needs no gradient.
    x = leaf([-2.0, 0.0])
    (x ** numgrad.tensor([2.0, 3.0])).sum().backward()
    assert x.grad.tolist() == [-4, 0]
    x = leaf([0.0, 1.0], "float64")
    (g,) = grad((x**0).sum(), x, create_graph=True)
    assert grad(g.sum(), x)[0].tolist() == [0, 0]
    x = leaf([0.0, 1.0], "float64")
    (g,) = grad((x**1.0).sum(), x, create_graph=True)
    assert grad(g.sum(), x)[0].tolist() == [0, 0]


def test_corners():
    assert gradient(numgrad.relu, [0.0, -0.0]) == [0, 0]
    assert gradient(numgrad.relu6, [0.0, 6.0]) == [0, 0]
    assert gradient(numgrad.hardtanh, [-1.0, 1.0]) == [0, 0]
    assert gradient(lambda x: x.clamp(0, 1), [0.0, 1.0, 2.0, -1.0]) == [1, 1, 0, 0]
    assert gradient(lambda x: x.abs(), [0.0]) == [0]


# -------------------------------------------------------------------- infinities in stable formulas


def test_logsumexp_of_infinities():
    x = leaf([-INF, -INF])
    out = x.logsumexp(0)
    assert out.item() == -INF
    out.backward()
    assert x.grad.tolist() == [0, 0]
    x = leaf([-INF, 2.0])
    out = x.logsumexp(0)
    assert out.item() == 2
    out.backward()
    assert x.grad.tolist() == [0, 1]
    x = leaf([[-INF, -INF], [-INF, 2.0]])
    (g,) = grad(x.logsumexp(1).sum(), x, create_graph=True)
    assert g.tolist() == [[0, 0], [0, 1]]
    assert np.isfinite(grad(g.sum(), x)[0].numpy()).all()


def test_softmax_of_infinities():
    x = leaf([1.0, -INF, 1.0])
    out = x.softmax(0)
    assert out.tolist() == [0.5, 0, 0.5]
    out[0].backward()
    assert x.grad.tolist() == [0.25, 0, -0.25]
    x = leaf([0.0, 50.0, -50.0])
    out = x.log_softmax(0)
    assert out.tolist() == [-50, 0, -100]
    out[1].backward()
    assert np.isfinite(x.grad.numpy()).all()


def test_binary_cross_entropy_of_logits():
    for named in ({}, {"pos_weight": numgrad.tensor([1.0])}):
        x, y = leaf([0.0, -120.0]), numgrad.tensor([0.0, 1.0])
        loss = numgrad.binary_cross_entropy_with_logits(x, y, **named)
        assert loss.item() == pytest.approx(60.3466, abs=1e-4)
        loss.backward()
        assert x.grad.tolist() == pytest.approx([0.25, -0.5])


# ---------------------------------------------------------------------- cancellation, accumulation


def test_variance_of_large_values():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(100_000)
    x = (x - x.mean()) / x.std() * np.sqrt(0.331) + 1e4
    got = numgrad.tensor(x.astype(np.float32)).var()
    assert got.dtype == np.float32 and got.item() == pytest.approx(0.331, rel=2e-3)
    assert got.item() == pytest.approx(x.astype(np.float32).astype(np.float64).var(ddof=1), 1e-6)


def test_batch_norm_of_large_values():
    """Equal values give 0 and large ones do not overflow: float64 sums of deviations."""
    batch_norm = numgrad.nn.functional.batch_norm
    for x, expected in (
        (np.full((3, 3), 100.0), np.zeros((3, 3))),
        (np.full((4, 2), 1e10), np.zeros((4, 2))),
        (np.array([[1e30], [-1e30], [1e30], [-1e30]]), [[1], [-1], [1], [-1]]),
    ):
        got = batch_norm(numgrad.tensor(x, dtype="float32"), None, None, training=True)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)


def test_frozen_batch_norm_is_not_fixed():
    """Without requires_grad the statistics of a batch-norm move on; freeze() keeps them still."""
    layer = numgrad.nn.BatchNorm1d(1, momentum=0.1).requires_grad_(False)
    x = numgrad.tensor([[2.0], [4.0]])
    for _ in range(2):
        layer(x)
        found = layer.running_mean.item(), layer.running_var.item()
        assert found == pytest.approx((0.3, 1.1), rel=1e-6)
        layer.freeze().train()


def test_naive_accumulation():
    x = numgrad.full((1_000_000,), 1 / 255, dtype="float32")
    assert x.sum().item() == pytest.approx(3921.57, abs=0.005)
    assert numgrad.ones(2**24 + 10).sum().item() == 16777226


def test_parallel_reductions():
    """No two threads add to one cell: sums of every kind over many elements are exact."""
    x = numgrad.ones(200, 200, requires_grad=True)
    assert x[:, :199].sum().item() == 39800
    big = numgrad.ones(500, 400)
    threads = launch.get_num_threads()
    numgrad.set_num_threads(max(threads, 2))
    try:
        for _ in range(20):
            assert big.sum().item() == 200_000
            assert big.sum(0).tolist() == [500.0] * 400
            assert big.sum(1).tolist() == [400.0] * 500
            y = numgrad.zeros(4, requires_grad=True)
            y[numgrad.zeros(100_000, dtype="int64")].sum().backward()
            assert y.grad.tolist() == [100_000, 0, 0, 0]
            b = numgrad.zeros(3, requires_grad=True)
            (numgrad.ones(50_000, 3) + b).sum().backward()
            assert b.grad.tolist() == [50_000] * 3
    finally:
        numgrad.set_num_threads(threads)


# ----------------------------------------------------------------------------- shapes of gradients


def test_gradient_has_the_shape_of_its_input():
    a, b = leaf([1.0]), leaf([[1.0, 1.0]])
    (a * b).sum().backward()
    assert a.grad.shape == (1,) and a.grad.tolist() == [2]
    assert b.grad.shape == (1, 2)


def test_gradient_ownership():
    """z = x + y, backward twice: each gradient is 2, in memory of its own."""
    x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    z = x + y
    g = numgrad.ones(2)
    z.backward(g, retain_graph=True)
    z.backward(g)
    assert x.grad.tolist() == [2, 2] == y.grad.tolist() and g.tolist() == [1, 1]
    assert not np.shares_memory(x.grad.numpy(), y.grad.numpy())
    assert not np.shares_memory(x.grad.numpy(), g.numpy())
    x.grad.zero_()
    assert y.grad.tolist() == [2, 2]


# ------------------------------------------------------------------------------- in-place, aliases


def test_saved_value_changed():
    x = leaf([1.0, 2.0])
    y = x.exp()
    y += 1
    with pytest.raises(GradError, match="modified by an inplace operation") as error:
        y.sum().backward()
    assert "exp" in str(error.value) and "add_" in str(error.value)
    assert "version 0" in str(error.value) and "version 1" in str(error.value)
    x = leaf([1.0, 2.0])
    y = x.clone()
    z = y * y
    y[0] = 5.0
    with pytest.raises(GradError, match="modified by an inplace operation") as error:
        z.sum().backward()
    assert "mul" in str(error.value)


def test_in_place_on_overlapping_memory():
    a = numgrad.ones(1, 1).expand(4, 5)
    with pytest.raises(GradError, match="single memory location"):
        a += 1


def test_overlapping_operands():
    start = np.arange(12.0).reshape(3, 4)
    a = numgrad.tensor(start)
    a.add_(a[0])
    np.testing.assert_array_equal(a.numpy(), start + start[0])
    x = numgrad.tensor(start)
    x.copy_(x.flip(0))
    np.testing.assert_array_equal(x.numpy(), start[::-1])


def test_living_alias_of_a_freed_tensor():
    y = numgrad.full((100_000,), 3.0, dtype="float32") + 1
    a = y.numpy()
    del y
    for i in range(50):
        numgrad.full((100_000,), float(i), dtype="float32").add_(1)
    np.testing.assert_array_equal(a, np.full(100_000, 4, np.float32))


def test_product_after_a_write_to_the_weight():
    rng = np.random.default_rng(0)
    x = numgrad.tensor(rng.standard_normal((20, 30)))
    w = numgrad.tensor(rng.standard_normal((30, 40)), requires_grad=True)
    for function in (lambda: x @ w, lambda: numgrad.linear(x, w.t())):
        first = function().detach()
        w.data.mul_(2)
        np.testing.assert_array_equal(function().detach().numpy(), 2 * first.numpy())
        alias = w.detach().numpy()
        alias *= 0.5
        np.testing.assert_array_equal(function().detach().numpy(), first.numpy())


# ----------------------------------------------------------------------------------- depth, cycles


def test_depth():
    x = leaf([1.0, 1.0, 1.0])
    y = x
    for _ in range(200_000):
        y = y + y * 1e-6
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 1.2214, rtol=2e-3)
    del y, x


def test_no_cycles():
    gc.collect()
    gc.disable()
    try:
        before = memory.stats()["live_bytes"]
        x = numgrad.ones(100_000, requires_grad=True)
        y = x.tanh()
        y.sum().backward()
        del x, y
        assert memory.stats()["live_bytes"] == before
    finally:
        gc.enable()


# ----------------------------------------------------------------------------------- labels, shapes


def test_bad_labels():
    x = leaf(np.random.default_rng(0).standard_normal((2, 5)))
    ignored = numgrad.tensor([-100, -100])
    loss = numgrad.cross_entropy(x, ignored)
    assert np.isnan(loss.item())
    loss.backward()
    assert x.grad.tolist() == [[0.0] * 5] * 2
    x.grad = None
    total = numgrad.cross_entropy(x, ignored, reduction="sum")
    assert total.item() == 0
    total.backward()
    assert x.grad.tolist() == [[0.0] * 5] * 2
    with pytest.raises(IndexError, match="-4"):
        numgrad.cross_entropy(x, numgrad.tensor([0, -4]))


def test_accidental_broadcasting():
    x, y = numgrad.tensor([[1.0], [2.0], [3.0]]), numgrad.tensor([1.0, 2.0, 3.0])
    with pytest.warns(UserWarning, match="likely lead to incorrect results due to broadcasting"):
        loss = numgrad.mse_loss(x, y)
    assert loss.item() == pytest.approx(4 / 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert numgrad.mse_loss(x[:, 0], y).item() == 0


def test_dtype_rules():
    seven, two = numgrad.tensor([7]), numgrad.tensor([2])
    quotient = seven / two
    assert quotient.dtype == np.float32 and quotient.tolist() == [3.5]
    total = numgrad.ones(300, dtype="uint8").sum()
    assert total.item() == 300 and total.dtype == np.int64
    assert (-seven // 2).tolist() == [-4] and (-seven % 2).tolist() == [1]
    assert (-seven // two).tolist() == [-4] and (-seven % two).tolist() == [1]
    assert (numgrad.tensor([-7.0]) // 2).tolist() == [-4]
    assert (seven + 0.5).dtype == np.float32 and (seven + numgrad.tensor(0.5)).dtype == np.float32


# ------------------------------------------------------------------------------------- convolution


def test_convolution_with_a_strided_weight():
    w = numgrad.arange(144.0).reshape(3, 3, 4, 4)[:, :, ::2, ::2]
    out = numgrad.conv2d(numgrad.ones(3, 3, 2, 2), w)
    assert out.reshape(3, 3).tolist() == [[252, 828, 1404]] * 3


def test_stride_in_the_gradient_of_a_transposed_convolution():
    x = leaf([[[1.0, 1.0]]])
    out = numgrad.conv_transpose1d(x, numgrad.tensor([[[-0.7767]]]), stride=2)
    out.backward(numgrad.tensor([[[1.5, 0.0, 0.7]]]))
    assert x.grad.tolist() == [[[pytest.approx(-1.16505), pytest.approx(-0.54369)]]]


def test_weight_written_to_between_convolutions():
    numgrad.manual_seed(0)
    for shape in ((4, 3, 3, 3), (20, 3, 1, 1), (16, 3, 5, 5)):
        x, w = numgrad.randn(2, 3, 9, 9), numgrad.randn(*shape)
        first = numgrad.conv2d(x, w)
        w.data.mul_(2)
        assert (numgrad.conv2d(x, w) == 2 * first).all()
        w.numpy()[...] *= 2
        assert (numgrad.conv2d(x, w) == 4 * first).all()


# ---------------------------------------------------------------------------------------- volatile


def test_volatile_statistic_in_a_buffer():
    """A buffer that a volatile statistic was added to is not volatile, and training goes on."""
    running = numgrad.zeros(3)
    weight = leaf([1.0, 2.0, 3.0])
    statistic = numgrad.Variable(numgrad.ones(3), volatile=True) * 2
    running.mul_(0.9).add_(statistic)
    assert not running.volatile and running.tolist() == [2, 2, 2]
    loss = ((weight - running) ** 2).sum()
    assert loss.requires_grad
    loss.backward()
    assert weight.grad.tolist() == [-2, 0, 2]
