"""Normalising layers: parameters, buffers, running statistics, modes, freezing, state, repr."""

import copy
import pickle

import numpy as np
import pytest

import numgrad
from numgrad import Variable, memory, nn, tensor
from numgrad.nn import functional as F
from tests.checks import assert_close, check_gradients

RNG = np.random.default_rng(9)
F64 = numgrad.float64


def values(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def moments(x):
    axes = (0, *range(2, x.ndim))
    return x.mean(axes, dtype=np.float64), x.astype(np.float64).var(axes, ddof=1)


# -------------------------------------------------------------------------------------- batch-norm


def test_parameters_and_buffers():
    layer = nn.BatchNorm2d(3)
    assert [n for n, _ in layer.named_parameters()] == ["weight", "bias"]
    names = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert list(layer.state_dict()) == names
    assert layer.weight.tolist() == [1] * 3 and layer.bias.tolist() == [0] * 3
    assert layer.running_mean.tolist() == [0] * 3 and layer.running_var.tolist() == [1] * 3
    count = layer.num_batches_tracked
    assert count.shape == () and count.dtype == numgrad.int64 and count.item() == 0
    for buffer in layer.buffers():
        assert buffer.storage.category == numgrad.graph.storage.BUFFER
    plain = nn.BatchNorm1d(3, affine=False, track_running_stats=False)
    assert not list(plain.parameters()) and not list(plain.buffers()) and not plain.state_dict()
    assert plain.weight is None and plain.running_mean is None
    assert [n for n, _ in nn.BatchNorm1d(3, bias=False).named_parameters()] == ["weight"]
    wide = nn.BatchNorm1d(3, dtype=F64)
    assert {p.dtype for p in wide.parameters()} == {wide.running_var.dtype} == {np.dtype("f8")}
    cast = nn.BatchNorm1d(3).double()
    assert cast.running_mean.dtype == F64 and cast.num_batches_tracked.dtype == numgrad.int64


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.BatchNorm1d, (6, 3)), (nn.BatchNorm1d, (6, 3, 4)), (nn.BatchNorm2d, (6, 3, 2, 5))],
)
def test_statistics_over_steps(layer, shape):
    """An exponential and a cumulative average, and the first values again."""
    batches = [values(*shape) + i for i in range(4)]
    for momentum in (0.1, 0.4, None):
        bn = layer(3, momentum=momentum)
        mean, var = np.zeros(3), np.ones(3)
        for i, x in enumerate(batches):
            bn(tensor(x))
            weight = 1 / (i + 1) if momentum is None else momentum
            new = moments(x)
            mean, var = (1 - weight) * mean + weight * new[0], (1 - weight) * var + weight * new[1]
        assert_close(bn.running_mean.numpy(), mean, 1e-6, "mean")
        assert_close(bn.running_var.numpy(), var, 1e-6, "variance")
        assert bn.num_batches_tracked.item() == 4
        bn.eval()
        x = batches[0]
        shaped = [v.reshape(1, 3, *[1] * (x.ndim - 2)) for v in (mean, var)]
        expected = (x - shaped[0]) / np.sqrt(shaped[1] + 1e-5)
        assert_close(bn(tensor(x)).detach().numpy(), expected, 1e-5, "evaluation")
        assert bn.num_batches_tracked.item() == 4
        bn.reset_running_stats()
        assert bn.running_mean.tolist() == [0] * 3 and bn.running_var.tolist() == [1] * 3
        assert bn.num_batches_tracked.item() == 0
        bn.weight.data.fill_(3)
        bn.reset_parameters()
        assert bn.weight.tolist() == [1] * 3


def test_without_running_statistics():
    """Evaluation uses the batch's own; turning the flag off keeps those that are there still."""
    x = tensor(values(5, 3))
    bn = nn.BatchNorm1d(3, track_running_stats=False)
    np.testing.assert_array_equal(bn(x).detach().numpy(), bn.eval()(x).detach().numpy())
    tracked = nn.BatchNorm1d(3)
    tracked.track_running_stats = False
    tracked(x)
    assert tracked.num_batches_tracked.item() == 0 and tracked.running_mean.tolist() == [0] * 3


def test_a_failed_call_moves_nothing():
    bn = nn.BatchNorm1d(3)
    for bad in (tensor(values(1, 3)), tensor(values(4, 5)), numgrad.ones(4, 3, dtype="int64")):
        with pytest.raises((ValueError, TypeError)):
            bn(bad)
    assert bn.num_batches_tracked.item() == 0 and bn.running_var.tolist() == [1] * 3


def test_volatile_input_moves_the_statistics():
    x = values(6, 3)
    bn = nn.BatchNorm1d(3)
    with memory.track() as m:
        out = bn(Variable(tensor(x), volatile=True))
    assert out.volatile and (m.nodes, m.saved_bytes) == (0, 0)
    mean, var = moments(x)
    assert_close(bn.running_mean.numpy(), 0.1 * mean, 1e-6)
    assert_close(bn.running_var.numpy(), 0.9 + 0.1 * var, 1e-6)
    assert not bn.running_mean.volatile and bn.num_batches_tracked.item() == 1
    assert not bn.num_batches_tracked.volatile
    loss = bn(tensor(x)).square().sum()  # and training goes on
    loss.backward()
    assert bn.bias.grad is not None


def test_frozen_by_requires_grad_is_not_fixed():
    """With requires_grad off the statistics still move in training mode; freeze() keeps them."""
    x = tensor([[2.0], [4.0]])
    bn = nn.BatchNorm1d(1)
    bn.requires_grad_(False)
    bn(x)
    np.testing.assert_allclose(bn.running_mean.numpy(), [0.3], rtol=1e-6)
    np.testing.assert_allclose(bn.running_var.numpy(), [1.1], rtol=1e-6)
    net = nn.Sequential(nn.Linear(1, 1), bn.freeze()).train()
    state = {name: v.clone() for name, v in bn.state_dict().items()}
    for _ in range(2):
        net(x)
    assert net.training and not bn.training
    for name, value in bn.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), state[name].numpy())
    net.unfreeze()
    assert bn.training
    net(x)
    assert bn.num_batches_tracked.item() == 2


def test_a_frozen_layer_keeps_nothing_of_its_input():
    """The gradient of x through frozen batch-norm needs weight and variance, and x of none."""
    x = tensor(values(4, 3, 5, 5), requires_grad=True)
    bn = nn.BatchNorm2d(3).freeze()
    with memory.track() as m:
        out = bn(x)
    assert (m.nodes, m.saved_bytes) == (1, 0)  # parameters and buffers are there anyway
    assert {s.name for s in out.grad_fn.saved_values()} == {"weight", "running_var"}
    with memory.track() as m:
        bn(x.detach())
    assert m.nodes == 0


def test_gradients_of_layers():
    for make, shape in (
        (lambda: nn.BatchNorm1d(3, dtype=F64), (5, 3)),
        (lambda: nn.BatchNorm2d(3, dtype=F64).eval(), (2, 3, 2, 2)),
        (lambda: nn.GroupNorm(1, 3, dtype=F64), (2, 3, 4)),
        (lambda: nn.LayerNorm((3, 4), dtype=F64), (2, 3, 4)),
        (lambda: nn.InstanceNorm1d(3, affine=True, dtype=F64), (2, 3, 4)),
    ):
        layer = make().requires_grad_(False)
        check_gradients(
            lambda x, layer=layer: layer(x),
            [RNG.standard_normal(shape)],
            repr(layer),
            float32=False,
        )
        x = tensor(RNG.standard_normal(shape))
        layer.requires_grad_()
        layer(x).square().sum().backward()
        assert all(p.grad.shape == p.shape for p in layer.parameters())


def test_state():
    """Round trips, copies, and files without a count of batches."""
    source, target = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    source(tensor(values(2, 3, 4, 4)))
    source.weight.data.fill_(2)
    target.load_state_dict(source.state_dict())
    for copied in (target, copy.deepcopy(source), pickle.loads(pickle.dumps(source))):
        for name, value in source.state_dict().items():
            np.testing.assert_array_equal(copied.state_dict()[name].numpy(), value.numpy())
    old = {n: v for n, v in source.state_dict().items() if n != "num_batches_tracked"}
    fresh = nn.BatchNorm2d(3)
    assert not fresh.load_state_dict(old).missing_keys
    assert fresh.num_batches_tracked.item() == 0
    assert_close(fresh.running_var.numpy(), source.running_var.numpy(), 0)
    with pytest.raises(RuntimeError, match=r'Missing key.*"running_mean"'):
        fresh.load_state_dict({n: v for n, v in old.items() if n != "running_mean"})


def test_repr():
    assert repr(nn.BatchNorm2d(3)) == (
        "BatchNorm2d(3, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)"
    )
    assert repr(nn.InstanceNorm1d(2)) == (
        "InstanceNorm1d(2, eps=1e-05, momentum=0.1, affine=False, bias=False, "
        "track_running_stats=False)"
    )
    assert repr(nn.LayerNorm(4)) == "LayerNorm((4,), eps=1e-05, elementwise_affine=True, bias=True)"
    assert repr(nn.GroupNorm(2, 4)) == "GroupNorm(2, 4, eps=1e-05, affine=True, bias=True)"


# ------------------------------------------------------------------------------------- other layers


def test_other_layers_are_their_functions():
    x = tensor(values(4, 6, 5, 5))
    for layer, expected in (
        (nn.LayerNorm([5, 5]), F.layer_norm(x, (5, 5))),
        (nn.LayerNorm(5, elementwise_affine=False), F.layer_norm(x, 5)),
        (nn.LayerNorm(5, bias=False), F.layer_norm(x, 5)),
        (nn.GroupNorm(3, 6), F.group_norm(x, 3)),
        (nn.GroupNorm(1, 6, affine=False), F.group_norm(x, 1)),
        (nn.InstanceNorm2d(6), F.instance_norm(x)),
        (nn.InstanceNorm2d(6, affine=True).eval(), F.instance_norm(x)),
    ):
        np.testing.assert_array_equal(layer(x).detach().numpy(), expected.numpy())
    single = nn.InstanceNorm2d(6)(x[0])
    np.testing.assert_array_equal(single.numpy(), F.instance_norm(x)[0].numpy())
    tracked = nn.InstanceNorm2d(6, track_running_stats=True)
    tracked(x)
    assert_close(tracked.running_mean.numpy(), 0.1 * x.numpy().mean((0, 2, 3)), 1e-5)
    tracked.eval()
    expected = F.batch_norm(x, tracked.running_mean, tracked.running_var)
    np.testing.assert_array_equal(tracked(x).numpy(), expected.numpy())


def test_errors():
    x = tensor(values(4, 3))
    for call, error, text in (
        (lambda: nn.BatchNorm2d(3)(x), ValueError, r"expected 4D input \(got 2D input\)"),
        (lambda: nn.BatchNorm1d(3)(x[0]), ValueError, r"expected 2D or 3D input \(got 1D input\)"),
        (lambda: nn.BatchNorm1d(4)(x), ValueError, r"expected 4 channels for x, got"),
        (lambda: nn.BatchNorm1d(3)(x[:1]), ValueError, "Expected more than 1 value per channel"),
        (lambda: nn.BatchNorm1d(3)(x.double()), TypeError, "expected dtype float64 for weight"),
        (lambda: nn.BatchNorm1d(-1), ValueError, "an integer from 0 on for num_features"),
        (lambda: nn.BatchNorm1d(2.5), TypeError, "an integer for num_features"),
        (lambda: nn.GroupNorm(2, 3), ValueError, r"num_channels \(3\) must be divisible by num_g"),
        (lambda: nn.GroupNorm(0, 3), ValueError, "a positive integer for num_groups"),
        (lambda: nn.LayerNorm(4)(x), ValueError, r"expected last axes \(4,\)"),
        (lambda: nn.InstanceNorm1d(5, affine=True)(x), ValueError, "to match num_features"),
        (lambda: nn.InstanceNorm2d(3)(x), ValueError, r"expected 3D or 4D input \(got 2D input\)"),
    ):
        with pytest.raises(error, match=text):
            call()
    with pytest.warns(UserWarning, match="does not match num_features"):
        nn.InstanceNorm1d(5)(tensor(values(2, 3, 4)))


def test_counts_of_numpy():
    for layer in (nn.BatchNorm1d(np.int64(4)), nn.GroupNorm(np.int64(2), np.int64(4))):
        assert "np." not in repr(layer) and layer(tensor(values(3, 4, 2))).shape == (3, 4, 2)
