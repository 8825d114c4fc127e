"""Layers, losses as layers, first values, optimiser steps, and small networks trained by both."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

import numgrad
import numgrad.nn
import numgrad.optim
from tests_compare import test_optim
from tests_compare.checks import FLOATS, agree, array_of, compare, count, tensor

RNG = np.random.default_rng(11)
INF = math.inf


def module(t: Any, make: Any, dtype: str) -> Any:
    """A module of library ``t`` in a dtype, its parameters those of every other one made so."""
    made = make(t.nn).to(getattr(t, dtype))
    rng = np.random.default_rng(12)
    with t.no_grad():
        for p in made.parameters():
            p.copy_(tensor(t, rng.standard_normal(tuple(p.shape)).astype(dtype)))
    return made


# ------------------------------------------------------------------------------------------- layers

# name: (modules, shapes of their input)
LAYERS: dict[str, tuple[list[Any], list[tuple[int, ...]]]] = {
    "Linear": (
        [lambda nn: nn.Linear(4, 3), lambda nn: nn.Linear(4, 3, bias=False)],
        [(5, 4), (4,), (2, 5, 4), (0, 4)],
    ),
    "Identity": ([lambda nn: nn.Identity()], [(3, 4)]),
    "Flatten": ([lambda nn: nn.Flatten(), lambda nn: nn.Flatten(0, 1)], [(2, 3, 4)]),
    "Unflatten": (
        [lambda nn: nn.Unflatten(1, (2, 3)), lambda nn: nn.Unflatten(-1, (3, -1))],
        [(4, 6)],
    ),
    "PReLU": ([lambda nn: nn.PReLU(), lambda nn: nn.PReLU(4, 0.1)], [(3, 4), (2, 4, 3)]),
    "Dropout": ([lambda nn: nn.Dropout(0.5).eval(), lambda nn: nn.Dropout(0.0)], [(3, 4)]),
    "ReLU": ([lambda nn: nn.ReLU()], [(3, 4), ()]),
    "ReLU6": ([lambda nn: nn.ReLU6()], [(3, 4)]),
    "LeakyReLU": ([lambda nn: nn.LeakyReLU(), lambda nn: nn.LeakyReLU(0.3)], [(3, 4)]),
    "ELU": ([lambda nn: nn.ELU(), lambda nn: nn.ELU(0.5)], [(3, 4)]),
    "Hardtanh": ([lambda nn: nn.Hardtanh(), lambda nn: nn.Hardtanh(-2, 0.5)], [(3, 4)]),
    "Softplus": ([lambda nn: nn.Softplus(), lambda nn: nn.Softplus(2, 1)], [(3, 4)]),
    "SiLU": ([lambda nn: nn.SiLU()], [(3, 4)]),
    "GELU": ([lambda nn: nn.GELU()], [(3, 4)]),
    "Tanh": ([lambda nn: nn.Tanh()], [(3, 4)]),
    "Sigmoid": ([lambda nn: nn.Sigmoid()], [(3, 4)]),
    "LogSigmoid": ([lambda nn: nn.LogSigmoid()], [(3, 4)]),
    "Softmax": ([lambda nn: nn.Softmax(1), lambda nn: nn.Softmax(dim=-1)], [(3, 4), (2, 3, 4)]),
    "LogSoftmax": ([lambda nn: nn.LogSoftmax(0)], [(3, 4)]),
    "Sequential": (
        [
            lambda nn: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3), nn.LogSoftmax(1)),
            lambda nn: nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Sigmoid(), nn.Linear(4, 2))),
        ],
        [(5, 4)],
    ),
}
IN_PLACE = ("ReLU", "ReLU6", "LeakyReLU", "ELU", "Hardtanh", "SiLU")


def through(make: Any, dtype: str) -> Any:
    """A call of a module as a function of its input and its parameters."""

    def call(t: Any, x: Any, *values: Any) -> Any:
        layer = make(t.nn).to(getattr(t, dtype))
        owners = [
            (owner, name)
            for owner in layer.modules()
            for name in list(owner._parameters)
            if owner._parameters[name] is not None
        ]
        for (owner, name), value in zip(owners, values, strict=True):
            del owner._parameters[name]
            object.__setattr__(owner, name, value)  # no Parameter: gradients flow to ``value``
        return layer(x)

    return call


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str, dtype: str) -> None:
    """Outputs, and gradients of the input and of all parameters in both orders."""
    makes, shapes = LAYERS[name]
    for make, shape in itertools.product(makes, shapes):
        parameters = [array_of(p) for p in module(torch, make, dtype).parameters()]
        x = np.asarray(RNG.standard_normal(shape)).astype(dtype)
        compare("layer", name, through(make, dtype), [x, *parameters])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", LAYERS)
def test_layer_with_its_own_parameters(name: str, dtype: str) -> None:
    """The same through ``.grad`` of the parameters, and the names in the state dict."""
    for make in LAYERS[name][0]:
        x = RNG.standard_normal(LAYERS[name][1][0]).astype(dtype)
        found = []
        for t in (numgrad, torch):
            layer = module(t, make, dtype)
            assert layer.training == (name != "Dropout" or layer.p == 0)
            y = layer(tensor(t, x, True))
            (y * y).sum().backward()
            found.append((y, layer))
        (ours, layer), (theirs, reference) = found
        agree("layer", "forward", name, ours, theirs)
        assert list(layer.state_dict()) == list(reference.state_dict())
        for (key, a), (_, b) in zip(
            layer.named_parameters(), reference.named_parameters(), strict=True
        ):
            agree("layer", "gradient", f"{name}.{key}", a.grad, b.grad)


@pytest.mark.parametrize("name", IN_PLACE)
def test_layer_in_place(name: str) -> None:
    x = RNG.standard_normal((3, 4))

    def call(t: Any, x: Any) -> Any:
        z = x * 1
        return getattr(t.nn, name)(inplace=True)(z), z

    # Of the first order: PyTorch's in-place SiLU and Hardtanh keep what they overwrite.
    compare("layer", f"{name}(inplace=True)", call, [x], gradients=0 if name == "SiLU" else 1)


def test_containers() -> None:
    for make in (
        lambda nn: nn.ModuleList([nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 1))]),
        lambda nn: nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.ModuleList([nn.Linear(1, 1)])}),
    ):
        ours, theirs = make(numgrad.nn), make(torch.nn)
        assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
        assert [n for n, _ in ours.named_modules()] == [n for n, _ in theirs.named_modules()]
        assert list(ours.state_dict()) == list(theirs.state_dict())
    for make in (
        lambda t: t.nn.ParameterList([t.nn.Parameter(t.zeros(2)), t.nn.Parameter(t.ones(1))]),
        lambda t: t.nn.ParameterDict({"a": t.nn.Parameter(t.zeros(2))}),
    ):
        ours, theirs = make(numgrad), make(torch)
        assert list(ours.state_dict()) == list(theirs.state_dict())


# ------------------------------------------------------------------------------------ loss layers

REDUCTIONS = ("mean", "sum", "none")
REGRESSION, CLASSIFICATION = ("MSELoss", "L1Loss"), ("CrossEntropyLoss", "NLLLoss")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_loss_layers(reduction: str, dtype: str) -> None:
    x, y = (RNG.standard_normal((5, 4)).astype(dtype) for _ in range(2))
    labels = RNG.integers(0, 4, 5)
    weight = RNG.uniform(0.5, 2, 4).astype(dtype)
    for name in REGRESSION:

        def regression(t: Any, x: Any, y: Any) -> Any:
            return getattr(t.nn, name)(reduction=reduction)(x, y)

        compare("loss", f"{name}({reduction})", regression, [x, y])
    for name, weighted in itertools.product(CLASSIFICATION, (False, True)):

        def classification(t: Any, x: Any) -> Any:
            factors = tensor(t, weight) if weighted else None
            loss = getattr(t.nn, name)(weight=factors, ignore_index=2, reduction=reduction)
            return loss(x, tensor(t, labels))

        compare("loss", f"{name}({reduction}{', weight' * weighted})", classification, [x])


# ----------------------------------------------------------------------------------- functional

FUNCTIONAL: dict[str, Any] = {
    "relu": [lambda F, x: F.relu(x), lambda F, x: F.relu(x * 1, inplace=True)],
    "relu6": [lambda F, x: F.relu6(x * 3)],
    "relu_": [lambda F, x: F.relu_(x * 1)],
    "leaky_relu_": [lambda F, x: F.leaky_relu_(x * 1, 0.3)],
    "elu_": [lambda F, x: F.elu_(x * 1, 0.5)],
    "hardtanh_": [lambda F, x: F.hardtanh_(x * 1, -0.5, 0.7)],
    "leaky_relu": [lambda F, x: F.leaky_relu(x), lambda F, x: F.leaky_relu(x, 0.3)],
    "elu": [lambda F, x: F.elu(x), lambda F, x: F.elu(x, 0.5)],
    "hardtanh": [lambda F, x: F.hardtanh(x), lambda F, x: F.hardtanh(x, -0.5, 0.7)],
    "softplus": [lambda F, x: F.softplus(x), lambda F, x: F.softplus(x, 2, 1)],
    "silu": [lambda F, x: F.silu(x)],
    "gelu": [lambda F, x: F.gelu(x)],
    "tanh": [lambda F, x: F.tanh(x)],
    "sigmoid": [lambda F, x: F.sigmoid(x)],
    "logsigmoid": [lambda F, x: F.logsigmoid(x), lambda F, x: F.logsigmoid(x * 8)],
    "softmax": [lambda F, x: F.softmax(x, dim=1)],
    "log_softmax": [lambda F, x: F.log_softmax(x, dim=1)],
    "linear": [lambda F, x: F.linear(x, x[:2], x[0, :2])],
    "dropout": [lambda F, x: F.dropout(x, 0.5, training=False), lambda F, x: F.dropout(x, 0.0)],
    "mse_loss": [lambda F, x: F.mse_loss(x, x.detach() * 2)],
    "l1_loss": [lambda F, x: F.l1_loss(x, x.detach() * 2, reduction="sum")],
    "nll_loss": [lambda F, x: F.nll_loss(x, x.detach().argmin(1))],
    "cross_entropy": [lambda F, x: F.cross_entropy(x, x.detach().argmin(1), reduction="none")],
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional(name: str, dtype: str) -> None:
    x = np.random.default_rng(3).standard_normal((3, 4)).astype(dtype)
    for call in FUNCTIONAL[name]:
        compare("layer", f"F.{name}", lambda t, x: call(t.nn.functional, x), [x])


# --------------------------------------------------------------------------------------- init

INITIAL: dict[str, Any] = {
    "uniform_": lambda init, w: init.uniform_(w, -0.3, 0.5),
    "normal_": lambda init, w: init.normal_(w, 0.2, 0.7),
    "constant_": lambda init, w: init.constant_(w, 0.3),
    "ones_": lambda init, w: init.ones_(w),
    "zeros_": lambda init, w: init.zeros_(w),
    "eye_": lambda init, w: init.eye_(w),
    "xavier_uniform_": lambda init, w: init.xavier_uniform_(w, gain=1.4),
    "xavier_normal_": lambda init, w: init.xavier_normal_(w),
    "kaiming_uniform_": lambda init, w: init.kaiming_uniform_(w, a=math.sqrt(5)),
    "kaiming_normal_": lambda init, w: init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"),
    "trunc_normal_": lambda init, w: init.trunc_normal_(w, 0.0, 1.0, -1.0, 2.0),
    "orthogonal_": lambda init, w: init.orthogonal_(w),
    "sparse_": lambda init, w: init.sparse_(w, 0.25),
    "dirac_": lambda init, w: init.dirac_(w.reshape(20, 10, 300), 2),
}
EXACT = ("constant_", "ones_", "zeros_", "eye_", "dirac_")
OWN = ("default_linear_",)  # what a new Linear draws: compared at the end of the test


def test_initial_values() -> None:
    """First values by their distribution, with the gains and fans of PyTorch."""
    numgrad.manual_seed(3)
    torch.manual_seed(3)
    names = [name for name in vars(numgrad.nn.init) if name.endswith("_") and name[0] != "_"]
    assert set(names) - set(OWN) <= set(INITIAL), set(names) - set(INITIAL)
    for name in set(names) - set(OWN):
        ours, theirs = (INITIAL[name](t.nn.init, t.empty(200, 300)) for t in (numgrad, torch))
        if name in EXACT:
            agree("layer", "forward", f"init.{name}", ours, theirs)
            continue
        a, b = array_of(ours).ravel(), array_of(theirs).ravel()
        distance = scipy.stats.ks_2samp(a, b, method="asymp").statistic
        assert distance < math.sqrt(-math.log(1e-9 / 2) / a.size), f"{name}: {distance}"
        count("random", "KS distance", "float32", f"init.{name}", float(distance))
        np.testing.assert_allclose([a.min(), a.max()], [b.min(), b.max()], rtol=0.3)
    for nonlinearity, param in (
        ("linear", None),
        ("sigmoid", None),
        ("tanh", None),
        ("relu", None),
        ("leaky_relu", 0.2),
    ):
        gains = [t.nn.init.calculate_gain(nonlinearity, param) for t in (numgrad, torch)]
        assert gains[0] == gains[1]
    # A new Linear layer draws weight and bias from the same laws.
    layers = [t.nn.Linear(200, 300) for t in (numgrad, torch)]
    for name in ("weight", "bias"):
        a, b = (array_of(getattr(layer, name)).ravel() for layer in layers)
        distance = scipy.stats.ks_2samp(a, b, method="asymp").statistic
        assert distance < math.sqrt(-math.log(1e-9 / 2) / a.size)
        np.testing.assert_allclose([a.min(), a.max()], [b.min(), b.max()], rtol=0.1)


# ----------------------------------------------------------------------------------- optimisers

SGD = [
    {
        "lr": lr,
        "momentum": momentum,
        "dampening": dampening,
        "weight_decay": decay,
        "nesterov": nesterov,
    }
    for lr, momentum, dampening, decay, nesterov in itertools.product(
        (0.1,), (0, 0.9), (0, 0.3), (0, 0.05), (False, True)
    )
    if not (nesterov and (momentum == 0 or dampening))
]
ADAM = [
    {"lr": lr, "betas": betas, "eps": eps, "weight_decay": decay, "amsgrad": amsgrad}
    for lr, betas, eps, decay, amsgrad in itertools.product(
        (0.01,), ((0.9, 0.999), (0.5, 0.7)), (1e-8, 1e-3), (0, 0.1), (False, True)
    )
]
OPTIMISERS = [
    *(("SGD", options) for options in SGD),
    *(("Adam", options) for options in ADAM),
    *test_optim.OPTIMISERS,
]


def steps(t: Any, name: str, options: Any, dtype: str, count: int = 8) -> list[Any]:
    """The parameters after each step on a quadratic whose gradient changes from step to step."""
    rng = np.random.default_rng(21)
    shapes = ((3, 4), (5,), ())
    parameters = [tensor(t, np.asarray(rng.standard_normal(s)).astype(dtype), True) for s in shapes]
    targets = [tensor(t, np.asarray(rng.standard_normal(s)).astype(dtype)) for s in shapes]
    optimiser = getattr(t.optim, name)(parameters, **options)
    values = []
    for step in range(count):
        optimiser.zero_grad()
        loss = sum(
            ((p - y) ** 2).sum() * (1 + 0.5 * (-1) ** step)
            for p, y in zip(parameters, targets, strict=True)
        )
        loss.backward()
        if step == 3:
            parameters[1].grad = None  # a parameter without gradient stands still
        optimiser.step()
        values.append([p.detach().clone() for p in parameters])
    state = [optimiser.state[p] for p in parameters]
    return [*itertools.chain(*values), *(s[k] for s in state for k in sorted(s) if k != "step")]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("name", "options"), OPTIMISERS, ids=lambda v: str(v))
def test_optimiser(name: str, options: Any, dtype: str) -> None:
    """Eight steps, compared after each, and what the optimiser keeps."""
    ours, theirs = (steps(t, name, options, dtype) for t in (numgrad, torch))
    assert len(ours) == len(theirs)
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        agree("optimiser", "forward", f"{name} {options}, value {i}", a, b)


def test_every_optimiser_is_compared() -> None:
    exported = {
        name
        for name, value in vars(numgrad.optim).items()
        if isinstance(value, type) and name != "Optimizer"
    }
    assert exported == {name for name, _ in OPTIMISERS}


def test_parameter_groups() -> None:
    found = []
    for t in (numgrad, torch):
        a, b = (tensor(t, np.full(3, v), True) for v in (1.0, 2.0))
        optimiser = t.optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.5}], lr=0.1, momentum=0.9)
        for step in range(4):
            optimiser.zero_grad()
            ((a * a).sum() + (b * b).sum()).backward()
            optimiser.step()
            if step == 1:
                optimiser.param_groups[0]["lr"] = 0.3
        found.append((a, b))
    for ours, theirs in zip(*found, strict=True):
        agree("optimiser", "forward", "groups with rates of their own", ours, theirs)


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_state_moves_between_the_libraries(name: str) -> None:
    """PyTorch's optimiser state, taken over, goes on as PyTorch does."""
    options = {"SGD": {"lr": 0.1, "momentum": 0.9}, "Adam": {"lr": 0.01, "amsgrad": True}}[name]

    def quadratic(t: Any, p: Any) -> Any:
        return (p * p * p).sum()

    p = tensor(torch, np.array([1.0, -2.0, 3.0]), True)
    reference = getattr(torch.optim, name)([p], **options)
    q = tensor(numgrad, np.zeros(3), True)
    optimiser = getattr(numgrad.optim, name)([q], **options)
    for step in range(6):
        if step == 3:
            saved = reference.state_dict()
            state = {
                k: {
                    n: tensor(numgrad, v.numpy()) if isinstance(v, torch.Tensor) else v
                    for n, v in values.items()
                }
                for k, values in saved["state"].items()
            }
            with numgrad.no_grad():
                q.copy_(tensor(numgrad, array_of(p)))
            optimiser.load_state_dict({"state": state, "param_groups": saved["param_groups"]})
        reference.zero_grad()
        quadratic(torch, p).backward()
        reference.step()
        if step >= 3:
            optimiser.zero_grad()
            quadratic(numgrad, q).backward()
            optimiser.step()
            agree("optimiser", "forward", f"{name}, state taken over", q, p)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_a_network_trains_alike(name: str, dtype: str) -> None:
    """Ten steps of a multi-layer perceptron: losses and parameters."""
    rng = np.random.default_rng(31)
    x, labels = rng.standard_normal((32, 20)).astype(dtype), rng.integers(0, 5, 32)

    def make(nn: Any) -> Any:
        return nn.Sequential(
            nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 16), nn.Sigmoid(), nn.Linear(16, 5)
        )

    found = []
    for t in (numgrad, torch):
        network = module(t, make, dtype)
        options = {"momentum": 0.9, "weight_decay": 1e-3} if name == "SGD" else {}
        optimiser = getattr(t.optim, name)(network.parameters(), lr=0.01, **options)
        losses = []
        for _ in range(10):
            optimiser.zero_grad()
            loss = t.nn.CrossEntropyLoss()(network(tensor(t, x)), tensor(t, labels))
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        found.append([*losses, *network.parameters()])
    for i, (a, b) in enumerate(zip(*found, strict=True)):
        agree("optimiser", "forward", f"training with {name}, value {i}", a, b)
