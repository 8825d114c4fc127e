"""Networks from files that have other classes than ImageNet, or do not fit."""

import functools

import pytest

import numgrad as ng
from numgrad import models
from numgrad.checkpoint import CheckpointError, source
from numgrad.models import weights

NAME = "squeezenet1_1"


@functools.cache
def state_of(seed, num_classes=1000):
    ng.manual_seed(seed)
    return models.squeezenet1_1(num_classes=num_classes).state_dict()


def opens(monkeypatch):
    """The paths of checkpoints that are opened from now on."""
    found = []
    real = source.open_file

    def counted(path, **options):
        found.append(str(path))
        return real(path, **options)

    monkeypatch.setattr(source, "open_file", counted)
    return found


@pytest.mark.parametrize("classes", [1000, 7])
def test_network_of(classes, tmp_path, monkeypatch):
    """One network, and the file read once, whatever its classes are."""
    path = tmp_path / "w.pth"
    ng.save({"model": state_of(9, classes), "note": "n"}, path)
    opened, made = opens(monkeypatch), []

    def make():
        made.append(models.squeezenet1_1())
        return made[-1]

    model, content = weights.network_of(NAME, make, path)
    assert made == [model] and opened == [str(path)] and content["note"] == "n"
    state = model.state_dict()
    assert all((state[key] == value).all() for key, value in state_of(9, classes).items())


MISFITS = {
    "width": (
        {"classifier.1.weight": (1000, 3, 1, 1)},
        "size mismatch for classifier.1.weight: .*",
    ),
    "no class": ({"classifier.1.weight": (0, 512, 1, 1)}, "size mismatch for classifier.1.weight"),
    "bias": ({"classifier.1.bias": (5,)}, "size mismatch for classifier.1.bias: .*"),
    "text": ({"classifier.1.bias": "text"}, "no tensor for classifier.1.bias: got str 'text'"),
    "number": ({"classifier.1.weight": 3}, "no tensor for classifier.1.weight: got int 3"),
    "more": ({"extra": (2,)}, r"Unexpected key\(s\) in state_dict: .*extra"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_what_does_not_fit_is_told_as_load_state_dict_tells_it(case, tmp_path):
    changes, says = MISFITS[case]
    given = {k: ng.zeros(*v) if isinstance(v, tuple) else v for k, v in changes.items()}
    ng.save({**state_of(9), **given}, tmp_path / "w.pth")
    said = r"w\.pth: state dict: the file does not fit squeezenet1_1: " + says
    with pytest.raises(CheckpointError, match=said) as caught:
        weights.network_of(NAME, models.squeezenet1_1, tmp_path / "w.pth")
    assert "\n" not in str(caught.value) and "num_classes" not in str(caught.value)


def test_network_of_a_damaged_file_of_a_published_name(tmp_path):
    path = tmp_path / "resnet18-f37072fd.pth"
    ng.save(state_of(1), path)
    with pytest.raises(CheckpointError, match="damaged; remove it"):
        weights.network_of(NAME, models.squeezenet1_1, path)


def test_resize_of():
    """torchvision's transforms: 232 for its second weights."""
    assert weights.resize_of("resnet50-11ad3fa6.pth") == 232
    assert weights.resize_of("mobilenet_v2-7ebf99e0.pth") == 232
    assert weights.resize_of("mobilenet_v2-b0353104.pth") == weights.resize_of("mine.pth") == 256


@pytest.mark.parametrize("classes", [1000, 7])
def test_no_first_values_are_drawn(classes, tmp_path):
    """They would all be replaced, and the generator of the user goes on where it was."""
    ng.save(state_of(9, classes), tmp_path / "w.pth")
    ng.manual_seed(5)
    wanted = ng.rand(3).tolist()
    ng.manual_seed(5)
    weights.network_of(NAME, models.squeezenet1_1, tmp_path / "w.pth")
    models.squeezenet1_1(weights=tmp_path / "w.pth", num_classes=classes)
    assert ng.rand(3).tolist() == wanted
    ng.manual_seed(5)
    ng.nn.Linear(2, 2)  # but outside of there they are
    assert ng.rand(3).tolist() != wanted


def test_drawing_goes_on_after_a_failure(tmp_path):
    ng.save({"x": ng.ones(1)}, tmp_path / "w.pth")

    def fail():
        raise KeyError("stop")

    with pytest.raises(KeyError):
        weights.network_of(NAME, fail, tmp_path / "w.pth")
    assert (ng.nn.Linear(2, 2).weight != 0).any()
    assert ng.nn.init.uniform_(ng.zeros(9)).sum() > 0
