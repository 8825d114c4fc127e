"""Files that PyTorch wrote, loaded by the makers of networks; files of ours, read by PyTorch."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import numgrad
from numgrad import models
from numgrad.checkpoint import CheckpointError
from numgrad.models import weights
from tests_compare import torch_networks
from tests_compare.checks import count

NAME = "squeezenet1_1"
LIMIT = 1e-4


@pytest.fixture(scope="module")
def network() -> Any:
    torch.manual_seed(3)
    network = torch_networks.squeezenet1_1().eval()
    for parameter in network.parameters():
        if parameter.dim() > 1:
            torch.nn.init.kaiming_normal_(parameter)
    return network


def agree(model: Any, network: Any, where: str) -> None:
    """The same numbers in the state dicts, and logits that agree."""
    state = network.state_dict()
    assert list(model.state_dict()) == list(state)
    for key, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), state[key].numpy(), key)
    x = np.random.default_rng(0).standard_normal((2, 3, 65, 65)).astype(np.float32)
    with torch.no_grad(), numgrad.no_grad():
        expected = network(torch.tensor(x)).numpy()
        found = model.eval()(numgrad.tensor(x)).numpy()
    error = float(np.abs(found - expected).max() / np.abs(expected).max())
    count("weights", "logits", "float32", where, error)
    assert expected.std() > 1e-2 and error <= LIMIT


FORMATS = {"stream": False, "zip": True}


@pytest.mark.parametrize("form", FORMATS)
def test_state_dict(form: str, network: Any, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save(network.state_dict(), path, _use_new_zipfile_serialization=FORMATS[form])
    agree(models.squeezenet1_1(weights=path), network, form)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_training_checkpoint(key: str, form: str, network: Any, tmp_path: Path) -> None:
    """As ``main.py`` of PyTorch's ImageNet example saves it, of a model in DataParallel."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    saved = {
        "epoch": 3,
        "arch": NAME,
        key: torch.nn.DataParallel(network).state_dict(),
        "best_acc1": torch.tensor(58.2),
        "optimizer": optimizer.state_dict(),
    }
    path = tmp_path / "model_best.pth.tar"
    torch.save(saved, path, _use_new_zipfile_serialization=FORMATS[form])
    with pytest.warns(UserWarning, match="module"):
        model = models.squeezenet1_1(weights=path)
    agree(model, network, f"checkpoint, {form}")


def test_published(network: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the cache folder of PyTorch, under its hash."""
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save(network.state_dict(), folder / "new")
    digest = hashlib.sha256((folder / "new").read_bytes()).hexdigest()[:8]
    file = f"{NAME}-{digest}.pth"
    (folder / "new").rename(folder / file)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("NUMGRAD_WEIGHTS", str(tmp_path / "own"))
    monkeypatch.setenv("NUMGRAD_WEIGHTS_URL", "http://127.0.0.1:1/")
    monkeypatch.setitem(weights.PUBLISHED, NAME, {weights.V1: (file,)})
    agree(models.squeezenet1_1(pretrained=True), network, "published")


def test_a_whole_model_is_refused(network: Any, tmp_path: Path) -> None:
    torch.save(network, tmp_path / "whole.pth")
    with pytest.raises(CheckpointError, match="SqueezeNet"):
        models.squeezenet1_1(weights=tmp_path / "whole.pth")


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_ours_in_pytorch(suffix: str, tmp_path: Path) -> None:
    model = models.squeezenet1_1(num_classes=7)
    head = models.replace_head(model, 1000)
    numgrad.nn.init.normal_(head.weight, 0, 0.05)
    path = tmp_path / f"ours{suffix}"
    numgrad.save(model.state_dict(), path)
    network = torch_networks.squeezenet1_1().eval()
    if suffix == ".pth":
        state = torch.load(path, weights_only=True)
    else:
        state = pytest.importorskip("safetensors.torch").load_file(path)
    network.load_state_dict(state)
    agree(model, network, f"ours{suffix}")
