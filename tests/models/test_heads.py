"""replace_head: the new layer, its first values, what stays, what it refuses."""

import numpy as np
import pytest

import numgrad as ng
import numgrad.nn as nn
from numgrad import models

# A maker, the path of the last layer, the deviation of its first weights (None: the layer's own),
# and an input.
HEADS = {
    "resnet18": (models.resnet18, "fc", None, (2, 3, 32, 32)),
    "mobilenet_v2": (
        lambda num_classes: models.mobilenet_v2(num_classes=num_classes, width_mult=0.35),
        "classifier.1",
        0.01,
        (2, 3, 32, 32),
    ),
    "resnet50": (models.resnet50, "fc", None, (2, 3, 32, 32)),
    "alexnet": (models.alexnet, "classifier.6", None, (2, 3, 64, 64)),
    "vgg11": (models.vgg11, "classifier.6", 0.01, (2, 3, 32, 32)),
    "squeezenet1_0": (models.squeezenet1_0, "classifier.1", 0.01, (2, 3, 32, 32)),
    "squeezenet1_1": (models.squeezenet1_1, "classifier.1", 0.01, (2, 3, 32, 32)),
    "cifar_resnet20": (models.cifar_resnet20, "fc", None, (2, 3, 32, 32)),
    "lenet": (models.lenet, "fc3", None, (2, 1, 28, 28)),
}


@pytest.mark.parametrize("name", HEADS)
def test_replace_head(name):
    make, path, std, shape = HEADS[name]
    ng.manual_seed(0)
    model = make(num_classes=4).eval().requires_grad_(False)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    x = ng.randn(*shape)
    head = models.replace_head(model, 300)
    assert model.get_submodule(path) is head and not head.training
    assert list(model.state_dict()) == list(before)
    for key, value in model.state_dict().items():
        if not key.startswith(path):
            assert (value == before[key]).all(), key
    trained = [key for key, p in model.named_parameters() if p.requires_grad]
    assert trained == [f"{path}.weight", f"{path}.bias"]

    values = head.weight.detach().numpy()
    inputs = values[0].size
    # The layers' own law is uniform in ±1 / sqrt(inputs).
    law = std or 1 / np.sqrt(3 * inputs)
    assert abs(values.std() / law - 1) < 5 / np.sqrt(2 * values.size)
    assert (head.bias == 0).all() if std else (head.bias != 0).any()

    out = model(x)
    assert out.shape == (2, 300)
    out.sum().backward()
    assert {key for key, p in model.named_parameters() if p.grad is not None} == set(trained)


def test_dtype_and_mode_stay():
    model = models.lenet().double().requires_grad_(False)
    head = models.replace_head(model, 3)
    assert head.weight.dtype == head.bias.dtype == ng.float64 and head.training


@pytest.mark.parametrize("name", models.names())
def test_every_network_has_one(name):
    """Each path leads to the layer that gives the logits."""
    model = getattr(models, name)(num_classes=7)
    head = models.replace_head(model, 3)
    last = [key for key in model.state_dict() if key.endswith(".weight")][-1]
    assert model.get_parameter(last) is head.weight and head.weight.shape[0] == 3
    assert getattr(model, "num_classes", 3) == 3


def test_what_is_refused():
    with pytest.raises(TypeError, match=r"replace_head: expected .* for model, got a Linear;"):
        models.replace_head(nn.Linear(2, 3), 4)
    with pytest.raises(TypeError, match=r"replace_head: expected .* for model, got str 'resnet18'"):
        models.replace_head("resnet18", 4)
    model = models.lenet()
    head = model.fc3
    for wrong, kind in (
        (0, ValueError),
        (-1, ValueError),
        (True, TypeError),
        (2.0, TypeError),
        (1 << 31, ValueError),
    ):
        with pytest.raises(kind, match=r"replace_head: expected .* for num_classes, got "):
            models.replace_head(model, wrong)
    assert model.fc3 is head
    assert models.replace_head(model, np.int64(4)).weight.shape == (4, 84)  # len(np.unique(…))
