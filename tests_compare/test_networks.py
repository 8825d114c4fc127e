"""Whole networks with the same weights in both libraries: logits, gradients, statistics, training.

Pictures are 96 × 96, so that the run stays short; ``COMPARE_SIZE=224`` takes another size. Errors
are ``max|a - b| / max|b|``, a parameter at a time.
"""

import os
from typing import Any

import numpy as np
import pytest
import torch

import numgrad
from numgrad import models
from tests_compare import torch_networks
from tests_compare.checks import FLOATS, array_of, count

SIZE = int(os.environ.get("COMPARE_SIZE", "96"))
BATCH = 4
NETWORKS = ("resnet18", "resnet50", "mobilenet_v2")
LOGITS = {"float32": 1e-4, "float64": 1e-10}
GRADIENTS = {"float32": 1e-3, "float64": 1e-10}
STATISTICS = {"float32": 1e-4, "float64": 1e-10}
FACTOR = 2.0
"""A float32 gradient may instead be as far from PyTorch's float64 as this times PyTorch's own."""
STEPS, LOSSES = 20, 1e-3

Arrays = dict[str, np.ndarray]


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    """``max|a - b| / max|b|``; inf for a shape or a number that is wrong."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if a.shape != b.shape or not np.isfinite(a).all():
        return np.inf
    return float(np.abs(a - b).max(initial=0) / max(np.abs(b).max(initial=0), 1e-3))


def pictures(channels: int = 3, size: int = SIZE, batch: int = BATCH) -> Any:
    """Pictures and labels, always the same; the numbers are float32's, so both dtypes get them."""
    rng = np.random.default_rng(11)
    x = rng.standard_normal((batch, channels, size, size)).astype(np.float32)
    return x.astype(np.float64), rng.integers(0, 10, batch)


def weights(name: str, dtype: str) -> Any:
    """The state dict of PyTorch's network; batch-norm has seen a batch and is not the identity.

    For float32 its biases keep nearly all that reaches a ReLU, or ReLU6, away from the kinks: where
    rounding decides on which side a number is, the gradients of two right programs differ by
    percents. In float64 rounding decides nowhere, and the numbers are spread over the kinks.
    """
    torch.manual_seed(5)
    network = getattr(torch_networks, name)(**options(name)).double()
    for key, module in network.named_modules():
        if isinstance(module, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
            if dtype == "float64":
                torch.nn.init.uniform_(module.weight, 0.5, 1.0)
                torch.nn.init.normal_(module.bias, 0, 0.1)
                continue
            torch.nn.init.uniform_(module.weight, 0.2, 0.3)
            torch.nn.init.uniform_(module.bias, 1.5, 2.0)
            if not key.endswith(LAST[name]):  # channels that are always off, in front of no sum
                with torch.no_grad():
                    module.bias[::3] *= -1
    with torch.no_grad():
        network(torch.tensor(pictures()[0]))
    # Numbers that float32 has, so that both dtypes begin with the same ones.
    return {
        key: value.float().double() if value.is_floating_point() else value
        for key, value in network.state_dict().items()
    }


LAST = {
    "resnet18": ("bn2", "downsample.1"),
    "resnet50": ("bn3", "downsample.1"),
    "mobilenet_v2": ("conv.3", "features.1.conv.2"),
}
"""Batch-norms whose result is added to a shortcut."""


def options(name: str) -> dict[str, Any]:
    """Dropout draws other numbers in the two libraries, so it is turned off."""
    return {"dropout": 0.0} if name == "mobilenet_v2" else {}


def run(t: Any, model: Any, dtype: str, training: bool) -> tuple[Any, Arrays, Arrays]:
    """Logits, gradients of the parameters, and buffers after one forward and backward."""
    model.to(getattr(t, dtype)).train(training)
    images, labels = pictures()
    logits = model(t.tensor(images.astype(dtype)))
    t.nn.functional.cross_entropy(logits, t.tensor(labels)).backward()
    gradients = {name: array_of(p.grad) for name, p in model.named_parameters()}
    buffers = {name: array_of(b) for name, b in model.named_buffers()}
    return array_of(logits), gradients, buffers


_found: dict[tuple[str, str, str, bool], Any] = {}


def theirs(name: str, kind: str, dtype: str, training: bool) -> Any:
    """What PyTorch gives in ``dtype`` for the weights of ``kind``."""
    key = (name, kind, dtype, training)
    if key not in _found:
        network = getattr(torch_networks, name)(**options(name)).to(getattr(torch, dtype))
        network.load_state_dict(weights(name, kind))
        _found[key] = run(torch, network, dtype, training)
    return _found[key]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str, dtype: str, training: bool) -> None:
    model = getattr(models, name)(**options(name))
    state = {key: value.numpy() for key, value in weights(name, dtype).items()}
    assert list(model.state_dict()) == list(state)
    model.to(getattr(numgrad, dtype)).load_state_dict(state)
    logits, gradients, buffers = run(numgrad, model, dtype, training)
    their_logits, their_gradients, their_buffers = theirs(name, dtype, dtype, training)
    exact = theirs(name, dtype, "float64", training)[1]
    where = f"{name}, {'train' if training else 'eval'}, {BATCH} × {SIZE} × {SIZE}"

    found = relative(logits, their_logits)
    count("network", "logits", dtype, where, found)
    assert found <= LOGITS[dtype], f"{where}: logits, error {found:.1e}"

    assert list(gradients) == list(their_gradients)
    worst = worst_factor = 0.0
    for key, gradient in gradients.items():
        assert gradient.dtype == dtype
        found = relative(gradient, their_gradients[key])
        count("network", "parameter grad", dtype, f"{where}, {key}", found)
        factor = 0.0
        if dtype == "float32":
            own = relative(their_gradients[key], exact[key])
            factor = relative(gradient, exact[key]) / max(own, 1e-30)
        assert found <= GRADIENTS[dtype] or factor <= FACTOR, (
            f"{where}: gradient of {key}, error {found:.1e}, {factor:.1f} times PyTorch's own"
        )
        worst, worst_factor = max(worst, found), max(worst_factor, factor)

    assert list(buffers) == list(their_buffers)
    worst_statistic = 0.0
    for key, buffer in buffers.items():
        if key.endswith("num_batches_tracked"):
            np.testing.assert_array_equal(buffer, their_buffers[key], key)
            continue
        found = relative(buffer, their_buffers[key])
        count("network", "statistics", dtype, f"{where}, {key}", found)
        assert found <= STATISTICS[dtype], f"{where}: {key}, error {found:.1e}"
        worst_statistic = max(worst_statistic, found)
        if not training:
            np.testing.assert_array_equal(buffer, state[key].astype(dtype), key)
    print(
        f"\n{where}, {dtype}: logits {relative(logits, their_logits):.1e}, "
        f"{len(gradients)} gradients at most {worst:.1e}"
        + (f" (at most {worst_factor:.2f} times PyTorch's own error)" if worst_factor else "")
        + f", statistics {worst_statistic:.1e}"
    )


def with_first_values(name: str, training: bool) -> tuple[np.ndarray, np.ndarray]:
    """Errors of float32 gradients against float64 with the weights that a network begins with, a
    parameter at a time: ours and PyTorch's."""
    torch.manual_seed(0)
    network = getattr(torch_networks, name)(**options(name))
    for module in network.modules():
        if isinstance(module, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        network(torch.tensor(pictures()[0].astype(np.float32)))
    state = {key: value.clone() for key, value in network.state_dict().items()}
    exact_network = getattr(torch_networks, name)(**options(name)).double()
    exact_network.load_state_dict(state)
    model = getattr(models, name)(**options(name))
    model.load_state_dict({key: value.numpy() for key, value in state.items()})
    exact = run(torch, exact_network, "float64", training)[1]
    logits, ours, _ = run(numgrad, model, "float32", training)
    their_logits, theirs_, _ = run(torch, network, "float32", training)
    found = relative(logits, their_logits)
    count("network", "first logits", "float32", name, found)
    assert found <= LOGITS["float32"]
    errors = np.array([relative(ours[key], exact[key]) for key in exact])
    own = np.array([relative(theirs_[key], exact[key]) for key in exact])
    apart = np.array([relative(ours[key], theirs_[key]) for key in exact])
    kept = int(((apart <= GRADIENTS["float32"]) | (errors <= FACTOR * own)).sum())
    print(
        f"\n{name}, {'train' if training else 'eval'}, first values: gradients' error, median "
        f"{np.median(errors):.1e} (PyTorch {np.median(own):.1e}), worst {errors.max():.1e} "
        f"({own.max():.1e}); {kept} of {len(errors)} within {GRADIENTS['float32']} or {FACTOR} "
        "times PyTorch's own"
    )
    return errors, own


def test_float32_with_first_values() -> None:
    """With the weights a network begins with, rounding turns some ReLUs on or off, in PyTorch as
    here, and a gradient is percents from that of float64: which parameter's is chance, and of which
    network. In the middle ours are no further than twice as far as PyTorch's."""
    ratios = [
        np.median(ours) / np.median(own)
        for name in NETWORKS
        for training in (False, True)
        for ours, own in [with_first_values(name, training)]
    ]
    middle = float(np.median(ratios))
    print(f"ratios of the medians: {np.round(ratios, 2)}, their median {middle:.2f}")
    assert middle <= FACTOR


CLASSIC = ("alexnet", "vgg16", "vgg11_bn", "squeezenet1_0", "squeezenet1_1")
ODD = 65
"""A size of which pooling cuts the last windows, or leaves out the last pixels."""


def pair(name: str, **options: Any) -> tuple[Any, Any]:
    """PyTorch's network with He's first values, and ours with the same numbers."""
    torch.manual_seed(7)
    reference = getattr(torch_networks, name)(**options)
    for module in reference.modules():
        if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
            torch.nn.init.kaiming_normal_(module.weight)
    model = getattr(models, name)(**options)
    ours = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    state = reference.state_dict()
    assert list(ours.items()) == [(key, tuple(value.shape)) for key, value in state.items()]
    model.load_state_dict({key: value.numpy() for key, value in state.items()})
    return reference, model


@pytest.mark.parametrize("name", [*CLASSIC, "resnet34", "resnet101", "resnet152"])
def test_logits(name: str) -> None:
    reference, model = pair(name)
    x = pictures(size=ODD, batch=2)[0].astype(np.float32)
    with torch.no_grad(), numgrad.no_grad():
        expected = reference.eval()(torch.tensor(x)).numpy()
        found = relative(model.eval()(numgrad.tensor(x)).numpy(), expected)
    assert expected.shape == (2, 1000) and expected.std() > 1e-2
    count("network", "logits", "float32", f"{name}, 2 × {ODD} × {ODD}", found)
    assert found <= LOGITS["float32"], f"{name}: error {found:.1e}"


@pytest.mark.parametrize("name", CLASSIC)
def test_gradients_of_classic_networks(name: str) -> None:
    """In training and float64, without dropout; one linear layer stands for the three, which are
    nearly all of the weights."""
    reference, model = pair(name, dropout=0.0, num_classes=10)
    if not name.startswith("squeezenet"):
        inputs = reference.classifier[0 if name.startswith("vgg") else 1].in_features
        reference.classifier = torch.nn.Linear(inputs, 10)
        model.classifier = numgrad.nn.Linear(inputs, 10)
        head = reference.classifier.state_dict().items()
        model.classifier.load_state_dict({key: value.numpy() for key, value in head})
    found = []
    for t, network in ((numgrad, model), (torch, reference)):
        network.to(t.float64).train()
        images, labels = pictures(size=ODD, batch=2)
        logits = network(t.tensor(images))
        t.nn.functional.cross_entropy(logits, t.tensor(labels)).backward()
        arrays = {f"grad of {key}": array_of(p.grad) for key, p in network.named_parameters()}
        arrays |= {key: array_of(buffer) for key, buffer in network.named_buffers()}
        found.append({"logits": array_of(logits), **arrays})
    ours, expected = found
    assert list(ours) == list(expected)
    for key, array in expected.items():
        assert ours[key].dtype == array.dtype and ours[key].shape == array.shape
        # The gradient of a bias before batch-norm is 0; of no weight is it anywhere near.
        assert np.abs(array).max() > 1e-3 or not key.endswith("weight")
        error = relative(ours[key], array)
        count("network", "classic", "float64", f"{name}, {key}", error)
        assert error <= GRADIENTS["float64"], f"{name}: {key}, error {error:.1e}"


SMALL: dict[str, tuple[Any, Any, tuple[int, int], float]] = {
    "lenet": (models.lenet, torch_networks.lenet, (1, 28), 0.15),
    "cifar_resnet20": (models.cifar_resnet20, torch_networks.cifar_resnet20, (3, 32), 0.001),
    "cifar_resnet20 B": (
        lambda: models.cifar_resnet20(option="B"),
        lambda: torch_networks.cifar_resnet20(option="B"),
        (3, 32),
        0.001,
    ),
}
"""Ours, PyTorch's, channels and size of pictures, learning rate. At much larger ones the losses of
PyTorch in its two layouts are more than 1e-3 apart, too."""


@pytest.mark.parametrize("name", SMALL)
def test_training_steps(name: str) -> None:
    """20 steps of SGD with momentum and weight decay from the same weights."""
    make, make_theirs, (channels, size), lr = SMALL[name]
    torch.manual_seed(5)
    reference, model = make_theirs(), make()
    model.load_state_dict({k: v.numpy() for k, v in reference.state_dict().items()})
    images, labels = pictures(channels, size, 32)
    found = []
    for t, network in ((numgrad, model), (torch, reference)):
        network.train()
        rule = t.optim.SGD(network.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
        x, target = t.tensor(images.astype(np.float32)), t.tensor(labels)
        losses = []
        for _ in range(STEPS):
            rule.zero_grad()
            loss = t.nn.functional.cross_entropy(network(x), target)
            loss.backward()
            rule.step()
            losses.append(loss.item())
        found.append(np.array(losses))
    ours, expected = found
    assert expected[-1] < 0.8 * expected[0]  # they learn: the losses are not all the same
    worst = float(np.abs(ours / expected - 1).max())
    count("network", "loss in training", "float32", name, worst)
    print(f"\n{name}: {STEPS} losses from {expected[0]:.3f} to {expected[-1]:.3f}: {worst:.1e}")
    np.testing.assert_allclose(ours, expected, rtol=LOSSES)
