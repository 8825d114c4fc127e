"""AlexNet, VGG, SqueezeNet: torchvision's names, shapes and first values; counts, sizes."""

import numpy as np
import pytest

import numgrad as ng
import numgrad.nn as nn
from numgrad import models
from numgrad.models.squeezenet import Fire
from tests.models import shapes

COUNTS = {
    "alexnet": 61_100_840,
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "vgg11_bn": 132_868_840,
    "vgg13_bn": 133_053_736,
    "vgg16_bn": 138_365_992,
    "vgg19_bn": 143_678_248,
    "squeezenet1_0": 1_248_424,
    "squeezenet1_1": 1_235_496,
}


def expected_shapes(name):
    kind, _, rest = name.partition("net") if "net" in name else ("vgg", "", name[3:])
    if kind == "alex":
        return shapes.alexnet()
    if kind == "squeeze":
        return shapes.squeezenet(rest)
    return shapes.vgg(int(rest[:2]), name.endswith("_bn"))


@pytest.mark.parametrize("name", COUNTS)
def test_state_dict(name):
    model = getattr(models, name)()
    described = [(key, tuple(value.shape)) for key, value in model.state_dict().items()]
    assert described == expected_shapes(name)
    assert sum(p.numel() for p in model.parameters()) == COUNTS[name]
    assert all(m.inplace for m in model.modules() if isinstance(m, nn.ReLU))
    dropped = [m.p for m in model.modules() if isinstance(m, nn.Dropout)]
    assert dropped == [0.5] * (1 if name.startswith("squeeze") else 2)


def like(values, std):
    """Whether numbers may have been drawn with mean 0 and this deviation."""
    far = 5 / np.sqrt(values.size)
    return abs(values.std() / std - 1) < far and abs(values.mean()) < far * std


@pytest.mark.parametrize("name", ["alexnet", "vgg11_bn", "squeezenet1_1"])
def test_first_values(name):
    ng.manual_seed(0)
    model = getattr(models, name)()
    last = model.get_submodule(type(model).HEAD)
    for module in model.modules():
        if not isinstance(module, (nn.Conv2d, nn.Linear)):
            continue
        values = module.weight.detach().numpy()
        inputs, outputs = values[0].size, values.size // values.shape[1]
        if name == "alexnet":  # the layers' own: uniform in ±1 / sqrt(inputs)
            std = 1 / np.sqrt(3 * inputs)
            assert abs(values).max() <= 1 / np.sqrt(inputs)
            assert (module.bias != 0).any()
        else:
            convolved = np.sqrt(2 / (outputs if name.startswith("vgg") else inputs))
            small = module is last or isinstance(module, nn.Linear)
            std = 0.01 if small else convolved
            assert (module.bias == 0).all()
        assert like(values, std)
        uniform = name == "alexnet" or (name == "squeezenet1_1" and module is not last)
        assert (abs(values).max() <= 1.001 * np.sqrt(3) * std) == uniform


def test_vgg_keeps_the_layers_own_values():
    model = models.VGG(nn.Sequential(nn.Conv2d(3, 512, 1)), num_classes=2, init_weights=False)
    assert (model.classifier[6].bias != 0).any() and (model.features[0].bias != 0).any()


def test_vgg_with_layers_of_its_own():
    features = models.vgg.make_layers([8, "M", 512], batch_norm=True)
    kinds = [type(layer).__name__ for layer in features]
    assert kinds == ["Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d", "Conv2d", "BatchNorm2d", "ReLU"]
    assert features(ng.zeros(1, 3, 8, 8)).shape == (1, 512, 4, 4)


def sizes_of(model, x):
    """Height and width behind each pooling, and the shape of the logits."""
    found = []
    for module in model.features:
        if isinstance(module, nn.MaxPool2d):
            module.register_forward_hook(lambda module, args, out: found.append(out.shape[-1]))
    with ng.no_grad():
        out = model.eval()(x)
    return found, tuple(out.shape)


@pytest.mark.parametrize(
    ("name", "size", "pooled"),
    [
        ("alexnet", 64, [7, 3, 1]),
        ("vgg11", 32, [16, 8, 4, 2, 1]),
        # Rounded up: of 14 the last window of three is cut, and then of 34 and of 8.
        ("squeezenet1_0", 64, [14, 7, 3]),
        ("squeezenet1_1", 64, [15, 7, 3]),
        ("squeezenet1_1", 69, [17, 8, 4]),
    ],
)
def test_sizes(name, size, pooled):
    model = getattr(models, name)(num_classes=5)
    assert sizes_of(model, ng.randn(2, 3, size, size)) == (pooled, (2, 5))


@pytest.mark.parametrize("name", ["squeezenet1_0", "squeezenet1_1"])
def test_a_pooling_that_is_cut(name):
    """A maximum in the last row and column, which whole windows do not reach, is not lost."""
    pool = next(m for m in getattr(models, name)().features if isinstance(m, nn.MaxPool2d))
    x = ng.zeros(1, 1, 6, 6)
    x[0, 0, 5, 5] = 7.0
    assert pool(x).shape == (1, 1, 3, 3) and pool(x)[0, 0, 2, 2] == 7


def test_fire_by_hand():
    """Both halves of identity convolutions: the input twice, without what is negative."""
    fire = Fire(4, 4, 4, 4)
    for convolution in (fire.squeeze, fire.expand1x1, fire.expand3x3):
        nn.init.dirac_(convolution.weight)
        nn.init.zeros_(convolution.bias)
    nn.init.ones_(fire.expand3x3.bias)
    x = ng.randn(2, 4, 3, 3)
    kept = np.maximum(x.numpy(), 0)
    np.testing.assert_array_equal(fire(x).detach().numpy(), np.concatenate([kept, kept + 1], 1))


@pytest.mark.parametrize("name", ["alexnet", "squeezenet1_0"])
def test_gradients(name):
    ng.manual_seed(0)
    model = getattr(models, name)(num_classes=3, dropout=0.0)
    out = model(ng.randn(2, 3, 64, 64))
    nn.functional.cross_entropy(out, ng.tensor([0, 2])).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.shape == parameter.shape, key


def test_errors():
    with pytest.raises(ValueError, match=r"SqueezeNet: expected '1_0' or '1_1' for version, got"):
        models.SqueezeNet("2_0")
