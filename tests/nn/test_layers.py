"""Layers and functions against the NumPy formulas, and their gradients by finite differences."""

import math
import warnings

import numpy as np
import pytest

from numgrad import nn
from numgrad.graph.mode import no_grad
from numgrad.nn import functional as F
from numgrad.ops.creation import ones, tensor
from numgrad.tensor import Tensor
from numgrad.variable import Parameter, Variable

erf = np.vectorize(math.erf)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def np_softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


ACTIVATIONS = {
    "relu": (nn.ReLU(), F.relu, lambda x: np.maximum(x, 0)),
    "relu6": (nn.ReLU6(), F.relu6, lambda x: np.clip(x, 0, 6)),
    "leaky_relu": (
        nn.LeakyReLU(0.2),
        lambda x: F.leaky_relu(x, 0.2),
        lambda x: np.where(x > 0, x, 0.2 * x),
    ),
    "elu": (nn.ELU(0.5), lambda x: F.elu(x, 0.5), lambda x: np.where(x > 0, x, 0.5 * np.expm1(x))),
    "hardtanh": (nn.Hardtanh(-2, 1), lambda x: F.hardtanh(x, -2, 1), lambda x: np.clip(x, -2, 1)),
    "softplus": (nn.Softplus(2), lambda x: F.softplus(x, 2), lambda x: np.log1p(np.exp(2 * x)) / 2),
    "silu": (nn.SiLU(), F.silu, lambda x: x * sigmoid(x)),
    "gelu": (nn.GELU(), F.gelu, lambda x: x * (1 + erf(x / math.sqrt(2))) / 2),
    "tanh": (nn.Tanh(), F.tanh, np.tanh),
    "sigmoid": (nn.Sigmoid(), F.sigmoid, sigmoid),
    "logsigmoid": (nn.LogSigmoid(), F.logsigmoid, lambda x: np.log(sigmoid(x))),
    "softmax": (nn.Softmax(1), lambda x: F.softmax(x, 1), lambda x: np_softmax(x, 1)),
    "log_softmax": (
        nn.LogSoftmax(-1),
        lambda x: F.log_softmax(x, -1),
        lambda x: np.log(np_softmax(x, 1)),
    ),
}


def sample(*shape):
    return np.random.RandomState(0).uniform(-3, 8, shape)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    layer, function, formula = ACTIVATIONS[name]
    x = sample(4, 5)
    for f in (layer, function):
        got = f(tensor(x))
        assert got.dtype == "float64" and np.allclose(got.numpy(), formula(x), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_gradients(name):
    layer, _, formula = ACTIVATIONS[name]
    values, weights = sample(3, 4), np.random.RandomState(1).randn(3, 4)
    x = tensor(values, requires_grad=True)
    (layer(x) * tensor(weights)).sum().backward()
    numeric = np.zeros_like(values)
    for i in np.ndindex(values.shape):
        step = np.zeros_like(values)
        step[i] = 1e-6
        difference = formula(values + step) - formula(values - step)
        numeric[i] = (difference * weights).sum() / 2e-6
    assert np.allclose(x.grad.numpy(), numeric, rtol=1e-4, atol=1e-6)


INPLACE = {
    "relu": nn.ReLU(True),
    "relu6": nn.ReLU6(True),
    "leaky_relu": nn.LeakyReLU(0.2, True),
    "elu": nn.ELU(0.5, True),
    "hardtanh": nn.Hardtanh(-2, 1, True),
    "silu": nn.SiLU(True),
}


@pytest.mark.parametrize("name", INPLACE)
def test_inplace(name):
    x = tensor(sample(4, 5))
    expected = ACTIVATIONS[name][2](sample(4, 5))
    assert INPLACE[name](x) is x and np.allclose(x.numpy(), expected)
    assert "inplace=True" in repr(INPLACE[name])


def test_hardtanh_error():
    with pytest.raises(ValueError, match="expected max_val > 1 for max_val, got 1"):
        nn.Hardtanh(1, 1)


@pytest.mark.parametrize(
    ("shape", "dim"), [((3,), 0), ((3, 4), 1), ((2, 3, 4), 0), ((2, 3, 4, 1), 1)]
)
def test_implicit_dim(shape, dim):
    x = tensor(sample(*shape))
    for call, name in (
        (lambda: F.softmax(x), "softmax"),
        (lambda: nn.Softmax()(x), "softmax"),
        (lambda: F.log_softmax(x), "log_softmax"),
        (lambda: nn.LogSoftmax()(x), "log_softmax"),
    ):
        with pytest.warns(
            UserWarning, match=f"^Implicit dimension choice for {name} has been"
        ) as w:
            got = call()
        expected = np_softmax(sample(*shape), dim)
        expected = np.log(expected) if name == "log_softmax" else expected
        assert np.allclose(got.numpy(), expected) and w[0].filename == __file__


# ---------------------------------------------------------------------------------------- linear


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3,), (5, 3), (2, 4, 3), (0, 3)])
def test_linear(bias, shape):
    layer = nn.Linear(3, 2, bias=bias, dtype=np.float64)
    x = sample(*shape)
    out = layer(tensor(x))
    w = layer.weight.detach().numpy()
    expected = x @ w.T + (layer.bias.detach().numpy() if bias else 0)
    assert out.shape == (*shape[:-1], 2) and np.allclose(out.detach().numpy(), expected)
    out.sum().backward()
    rows = x.reshape(-1, 3)
    assert np.allclose(layer.weight.grad.numpy(), np.tile(rows.sum(0), (2, 1)))
    assert not bias or np.allclose(layer.bias.grad.numpy(), len(rows))
    assert np.allclose(F.linear(tensor(x), layer.weight).detach().numpy(), x @ w.T)


def test_linear_start():
    layer = nn.Linear(100, 50)
    for p in layer.parameters():
        values = p.detach().numpy()
        assert p.dtype == "float32" and np.abs(values).max() <= 0.1
        assert abs(values.std() - 0.1 / math.sqrt(3)) < 0.01
    before = layer.weight.detach().numpy().copy()
    layer.reset_parameters()
    assert (layer.weight.detach().numpy() != before).any()


def test_linear_errors():
    with pytest.raises((ValueError, RuntimeError), match=r"5"):
        nn.Linear(3, 2)(ones(4, 5))
    with pytest.raises((ValueError, TypeError)):
        nn.Linear(-1, 2)


def test_old_code():
    """A Variable in gives a Variable out, and a volatile one leaves no graph."""
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    out = net(Variable(ones(5, 3)))
    assert type(out) is Variable and out.requires_grad and not out.volatile
    out = net(Variable(ones(5, 3), volatile=True))
    assert type(out) is Variable and out.volatile and not out.requires_grad
    assert out.creator is None
    assert type(net(ones(5, 3))) is Tensor
    with no_grad():
        assert not net(ones(5, 3)).requires_grad


def test_small_layers():
    x = ones(2, 3, 4)
    assert nn.Identity(1, a=2)(x) is x
    assert nn.Flatten()(x).shape == (2, 12) and nn.Flatten(0, 1)(x).shape == (6, 4)
    assert repr(nn.Flatten()) == "Flatten(start_dim=1, end_dim=-1)"
    with pytest.raises(IndexError):
        nn.Flatten(5)(x)


# --------------------------------------------------------------------------------------- dropout


def test_dropout():
    x = ones(100, 100)
    layer = nn.Dropout(0.25)
    got = layer(x).numpy()
    assert set(np.unique(got)) == {0, np.float32(1 / 0.75)}
    assert abs((got == 0).mean() - 0.25) < 0.02
    assert layer.eval()(x) is x and F.dropout(x, 0.5, training=False) is x
    assert nn.Dropout(0)(x) is x and not F.dropout(x, 1).numpy().any()
    y = ones(50)
    assert nn.Dropout(0.5, inplace=True)(y) is y and 0 in y.numpy()
    for p in (-0.1, 1.1):
        with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
            nn.Dropout(p)
        with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
            F.dropout(x, p)


def test_dropout_gradient():
    x = ones(40, 40, requires_grad=True)
    out = F.dropout(x, 0.5)
    out.sum().backward()
    assert np.array_equal(x.grad.numpy(), out.detach().numpy())


# ---------------------------------------------------------------------------------------- losses


def np_reduced(losses, reduction, weights=None):
    if reduction == "none":
        return losses
    total = losses.sum()
    if reduction == "sum":
        return total
    return total / (losses.size if weights is None else weights.sum())


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_regression_losses(reduction):
    x, y = sample(3, 4), sample(3, 4)[::-1].copy()
    for layer, function, formula, slope in (
        (nn.MSELoss, F.mse_loss, lambda d: d * d, lambda d: 2 * d),
        (nn.L1Loss, F.l1_loss, np.abs, np.sign),
    ):
        expected = np_reduced(formula(x - y), reduction)
        a = tensor(x, requires_grad=True)
        loss = layer(reduction=reduction)(a, tensor(y))
        assert np.allclose(loss.detach().numpy(), expected) and loss.shape == expected.shape
        assert np.allclose(function(tensor(x), tensor(y), reduction=reduction).numpy(), expected)
        loss.sum().backward()
        scale = 1 / x.size if reduction == "mean" else 1
        assert np.allclose(a.grad.numpy(), slope(x - y) * scale)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [-100, 2])
def test_classification_losses(reduction, weighted, ignored):
    scores, labels = sample(6, 4), np.array([0, 3, 2, 1, 2, 0])
    w = np.array([0.5, 1.0, 2.0, 3.0]) if weighted else np.ones(4)
    weights = w[labels] * (labels != ignored)
    logs = np.log(np_softmax(scores, 1))
    losses = -logs[np.arange(6), labels] * weights
    expected = np_reduced(losses, reduction, weights)
    options = {
        "weight": tensor(w) if weighted else None,
        "ignore_index": ignored,
        "reduction": reduction,
    }
    x = tensor(scores, requires_grad=True)
    loss = nn.CrossEntropyLoss(**options)(x, tensor(labels))
    assert np.allclose(loss.detach().numpy(), expected) and loss.shape == np.shape(expected)
    loss.sum().backward()
    one_hot = np.eye(4)[labels]
    gradient = (np_softmax(scores, 1) - one_hot) * weights[:, None]
    gradient /= weights.sum() if reduction == "mean" else 1
    assert np.allclose(x.grad.numpy(), gradient)
    for got in (
        F.cross_entropy(tensor(scores), tensor(labels), **options),
        nn.NLLLoss(**options)(tensor(logs), tensor(labels)),
        F.nll_loss(tensor(logs), tensor(labels), **options),
    ):
        assert np.allclose(got.numpy(), expected)


def test_loss_of_pictures():
    scores, labels = sample(2, 3, 4, 5), np.random.RandomState(0).randint(0, 3, (2, 4, 5))
    logs = np.log(np_softmax(scores, 1))
    picked = np.take_along_axis(logs, labels[:, None], 1)[:, 0]
    got = F.cross_entropy(tensor(scores), tensor(labels), reduction="none")
    assert np.allclose(got.numpy(), -picked)
    assert np.allclose(F.cross_entropy(tensor(scores), tensor(labels)).item(), -picked.mean())


def test_extreme_scores():
    scores = tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    loss = F.cross_entropy(scores, tensor([1]))
    loss.backward()
    assert loss.item() == 2e4 and scores.grad.numpy().tolist() == [[1, -1, 0]]


def test_old_reductions():
    x, y = tensor([1.0, 3.0]), tensor([0.0, 0.0])
    for options, reduction, expected in (
        ({"size_average": False}, "sum", 10),
        ({"size_average": True}, "mean", 5),
        ({"reduce": False}, "none", [1, 9]),
        ({"reduce": True}, "mean", 5),
        ({"size_average": False, "reduce": True}, "sum", 10),
    ):
        text = (
            f"size_average and reduce args will be deprecated, please use reduction='{reduction}'"
        )
        for call in (lambda: nn.MSELoss(**options)(x, y), lambda: F.mse_loss(x, y, **options)):
            with pytest.warns(UserWarning, match=text):
                assert call().numpy().tolist() == expected
        with pytest.warns(UserWarning, match=text):
            assert nn.CrossEntropyLoss(**options).reduction == reduction
    with pytest.warns(UserWarning):
        assert F.mse_loss(x, y, False).item() == 10  # by position, as in 0.2
    with pytest.raises(ValueError, match="reduction"):
        nn.NLLLoss(reduction="product")


def test_loss_errors():
    scores, labels = ones(2, 3), tensor([0, 1])
    with pytest.raises(IndexError, match="Target 3 is out of bounds"):
        F.nll_loss(scores, tensor([0, 3]))
    with pytest.raises(ValueError, match="nll_loss"):
        F.nll_loss(scores, tensor([0]))
    with pytest.raises(TypeError, match="target"):
        F.nll_loss(scores, tensor([0.0, 1.0]))
    with pytest.warns(UserWarning, match="size"):
        F.mse_loss(ones(2, 3), ones(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nn.CrossEntropyLoss()(scores, labels)


def test_loss_weight_is_a_buffer():
    loss = nn.CrossEntropyLoss(weight=ones(3))
    assert list(loss.state_dict()) == ["weight"] and loss.double().weight.dtype == "float64"
    assert list(nn.CrossEntropyLoss().state_dict()) == []


# ------------------------------------------------------------------------------- a small training


def test_training_learns():
    from numgrad.optim import SGD

    random = np.random.RandomState(0)
    x = random.randn(64, 2).astype(np.float32)
    labels = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    for p in net.parameters():
        p.data.copy_(tensor(random.uniform(-0.7, 0.7, p.shape).astype(np.float32)))
    optimizer = SGD(net.parameters(), lr=0.5, momentum=0.9)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(tensor(x)), tensor(labels))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 < 0.5 < losses[0]
    assert isinstance(net[0].weight, Parameter)


def test_unflatten():
    x = tensor(np.arange(24.0).reshape(2, 12), requires_grad=True)
    for sizes in ((3, 4), (3, -1), (-1, 2, 2), [12]):
        y = nn.Unflatten(1, sizes)(x)
        expected = x.detach().numpy().reshape(2, *sizes)
        assert np.array_equal(y.detach().numpy(), expected)
        assert nn.Flatten()(y).shape == (2, 12)
    assert nn.Unflatten(-1, (4, 3))(x).shape == (2, 4, 3)
    assert nn.Unflatten(0, (1, 2))(x).shape == (1, 2, 12)
    assert repr(nn.Unflatten(1, [3, 4])) == "Unflatten(dim=1, unflattened_size=(3, 4))"
    for bad in ((5, 2), (5, -1), (-1, -1), (0, -1)):
        with pytest.raises(ValueError, match="the sizes must multiply to its length"):
            nn.Unflatten(1, bad)(x)
    with pytest.raises(IndexError):
        nn.Unflatten(2, (1, 1))(x)
