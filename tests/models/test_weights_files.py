"""Weights from the user's own files: wrappers, prefixes, what does not fit."""

import re

import numpy as np
import pytest

import numgrad as ng
from numgrad import models
from numgrad.checkpoint import CheckpointError
from numgrad.models import weights
from numgrad.models.download import DownloadError
from tests.models.published import NAME, put, same, state_of


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A file of the state dict of seed 4."""
    path = tmp_path_factory.mktemp("tuned") / "tuned.safetensors"
    ng.save(state_of(4), path)
    return path


def test_weights_of_a_path(tuned):
    assert same(models.squeezenet1_1(weights=tuned), 4)
    assert same(models.squeezenet1_1(False, True, weights=str(tuned)), 4)
    assert not same(models.squeezenet1_1(), 4)
    assert same(models.squeezenet1_1(pretrained=True, weights=tuned), 4)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("state_dict", "checkpoint.pth"),
        ("model", "checkpoint.safetensors"),
        ("model_state_dict", "checkpoint.pth.tar"),
        ("net", "checkpoint.t7"),
    ],
)
def test_training_checkpoints(key, name, tmp_path):
    state = state_of(5)
    ng.save({"epoch": 3, key: dict(state), "optimizer": {"lr": 0.1}}, tmp_path / name)
    assert same(models.squeezenet1_1(weights=tmp_path / name), 5)


def test_a_prefix_and_two_wrappers(tmp_path):
    state = {f"module.{key}": value for key, value in state_of(6).items()}
    ng.save({"model": {"state_dict": state}}, tmp_path / "parallel.pth")
    with pytest.warns(UserWarning, match="module"):
        assert same(models.squeezenet1_1(weights=tmp_path / "parallel.pth"), 6)


def test_a_wrapper_with_another_name(tmp_path):
    ng.save({"ema": dict(state_of(5)), "epoch": 3}, tmp_path / "ema.pth")
    with pytest.raises(CheckpointError, match=r"no state dict of squeezenet1_1, .* under 'ema'"):
        models.squeezenet1_1(weights=tmp_path / "ema.pth")


def test_another_network(tmp_path, tuned):
    for name in ("squeezenet1_0", "lenet"):
        path = tmp_path / f"{name}.pth"
        ng.save(getattr(models, name)().state_dict(), path)
        with pytest.raises(CheckpointError) as caught:
            models.squeezenet1_1(weights=path)
        assert caught.value.path == str(path) and str(path) in str(caught.value)
        assert re.search(
            r"file is of another network than squeezenet1_1: \d+ of 52 entries missing \('",
            str(caught.value),
        )
        assert "\n" not in str(caught.value)


def test_a_file_that_does_not_fit_changes_nothing(tmp_path):
    """Half of the right names and one shape that is wrong: none is copied."""
    state = dict(list(state_of(7).items())[:20])
    state["features.0.weight"] = ng.zeros(1, 2, 3, 4)
    ng.save(state, tmp_path / "half.pth")
    ng.manual_seed(8)
    model = models.squeezenet1_1()
    with pytest.raises(CheckpointError, match=r"32 of 52 entries missing \(.*, 1 of another shape"):
        weights.pretrained_network(NAME, lambda: model, {}, False, True, tmp_path / "half.pth")
    assert same(model, 8)


def test_classes(tmp_path, home, made):
    for prefix in ("", "module."):
        state = {prefix + key: value for key, value in state_of(9, num_classes=2).items()}
        ng.save(state, tmp_path / "two.pth")
        if prefix:
            with pytest.warns(UserWarning, match="module"), pytest.raises(CheckpointError) as found:
                models.squeezenet1_1(weights=tmp_path / "two.pth")
        else:
            with pytest.raises(CheckpointError) as found:
                models.squeezenet1_1(weights=tmp_path / "two.pth")
            assert models.squeezenet1_1(weights=tmp_path / "two.pth", num_classes=2)
        assert "the file has 2 classes, num_classes of squeezenet1_1 is 1000;" in str(found.value)
        assert "pass num_classes=2 and then call models.replace_head(model, 1000)" in str(
            found.value
        )
    # Of published weights it is said before anything is downloaded.
    for asked in ({"pretrained": True}, {"weights": "DEFAULT"}):
        with pytest.raises(ValueError, match=r"for num_classes, got 2; .*replace_head\(model, 2\)"):
            models.squeezenet1_1(num_classes=2, **asked)
    assert not (home / ".cache").exists()
    put(home / ".torch/models", *made[0])
    assert same(models.squeezenet1_1(pretrained=True, num_classes=1000), 1)


def test_what_is_no_state_dict(tmp_path):
    for content in ([ng.ones(2)], ng.ones(2), 3):
        ng.save(content, tmp_path / "list.pth")
        with pytest.raises(CheckpointError, match=r"expected a state dict, got .*; save model"):
            models.squeezenet1_1(weights=tmp_path / "list.pth")
    (tmp_path / "page.pth").write_text("<html></html>")
    with pytest.raises(CheckpointError):
        models.squeezenet1_1(weights=tmp_path / "page.pth")


def test_arguments(tmp_path):
    said = r"expected a file or one of 'DEFAULT', 'IMAGENET1K_V1' for weights, got"
    for wrong in ("nowhere.pth", "IMAGENET1K_V2", "ResNet50_Weights.DEFAULT"):
        with pytest.raises(FileNotFoundError, match=rf"{said} '{wrong}'"):
            models.squeezenet1_1(weights=wrong)
    with pytest.raises(FileNotFoundError, match=r"DEFAULT', 'IMAGENET1K_V1', 'IMAGENET1K_V2' for"):
        models.resnet50(weights=tmp_path / "nowhere.pth")
    said = rf"squeezenet1_1: expected a file or .* for weights, got the folder '{tmp_path}'"
    with pytest.raises(IsADirectoryError, match=said):
        models.squeezenet1_1(weights=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"expected a file or .* for weights, got '';"):
        models.squeezenet1_1(weights="")
    with pytest.raises(OSError, match=r"a device, not a file: '/dev/null'"):
        models.squeezenet1_1(weights="/dev/null")
    for wrong in ({"fc.weight": ng.ones(2)}, True, 3):
        with pytest.raises(TypeError, match=r"squeezenet1_1: expected a path, .* for weights, got"):
            models.squeezenet1_1(weights=wrong)
    with pytest.raises(TypeError, match=r"expected True or False for pretrained, got str"):
        models.squeezenet1_1("DEFAULT")
    for number in (10, 1, 0, np.int64(10)):  # meant as num_classes: nothing is downloaded
        with pytest.raises(TypeError, match=r"for pretrained, got .*; pass it as num_classes="):
            models.squeezenet1_1(number)
    assert np.isfinite(models.squeezenet1_1(None).features[0].weight.detach().numpy()).all()


@pytest.mark.parametrize("name", models.names())
def test_every_network_takes_the_arguments(name, home, monkeypatch):
    """Each maker asks for its own file."""
    asked = []

    def obtain(name, files, progress):
        asked.append((name, files, progress))
        raise DownloadError("stop here")

    monkeypatch.setattr(weights, "_obtain", obtain)
    make = getattr(models, name)
    for arguments, options in (((True, False), {}), ((), {"progress": True, "weights": "DEFAULT"})):
        with pytest.raises(DownloadError):
            make(*arguments, **options)
    kinds = list(weights.PUBLISHED[name].values())
    assert asked == [(name, kinds[0], False), (name, kinds[-1], True)]
