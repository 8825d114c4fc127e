"""Pretrained weights: the folders they are found in.

The published files are stood in for by small ones of random weights, the server by one of ours.
"""

import re

import pytest

from numgrad import models
from numgrad.checkpoint import CheckpointError
from numgrad.models import weights
from numgrad.models.weights import V1, V2
from tests.models.published import put, same

FOLDERS = {
    "NUMGRAD_WEIGHTS": ("own", {"NUMGRAD_WEIGHTS": "own"}),
    "numgrad's": (".cache/numgrad/weights", {}),
    "numgrad's, XDG": ("xdg/numgrad/weights", {"XDG_CACHE_HOME": "xdg"}),
    "TORCH_HOME": ("torch/hub/checkpoints", {"TORCH_HOME": "torch"}),
    "TORCH_HOME, 1.1": ("torch/checkpoints", {"TORCH_HOME": "torch"}),
    "XDG": ("xdg/torch/hub/checkpoints", {"XDG_CACHE_HOME": "xdg"}),
    "today's": (".cache/torch/hub/checkpoints", {}),
    "1.1": (".cache/torch/checkpoints", {}),
    "0.4": (".torch/models", {}),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_found(case, home, made, monkeypatch):
    below, variables = FOLDERS[case]
    for name, value in variables.items():
        monkeypatch.setenv(name, str(home / value))
    put(home / below, *made[0])
    assert same(models.squeezenet1_1(pretrained=True), 1)
    if case in ("NUMGRAD_WEIGHTS", "TORCH_HOME"):
        monkeypatch.setenv(case, f"~/{variables[case]}")
        assert same(models.squeezenet1_1(True, False), 1)


def test_the_older_file_will_do(home, made):
    put(home / ".torch/models", *made[1])
    assert same(models.squeezenet1_1(pretrained=True), 2)
    put(home / ".torch/models", *made[0])
    assert same(models.squeezenet1_1(pretrained=True), 1)  # but today's is better


def test_names_of_weights(home, made):
    for file, data in made:
        put(home / ".torch/models", file, data)
    for name, seed in ((V1, 1), (V2, 3), ("DEFAULT", 3)):
        assert same(models.squeezenet1_1(weights=name), seed)
        assert same(models.squeezenet1_1(weights=f"SqueezeNet1_1_Weights.{name}"), seed)
    assert same(models.squeezenet1_1(pretrained=True, weights=V2), 3)


def test_a_damaged_file_is_not_loaded(home, server, made):
    file, data = made[0]
    for wrong in (data[:-1] + bytes([data[-1] ^ 1]), data[:-1], data + b"\0", b""):
        path = put(home / ".torch/models", file, wrong)
        with pytest.raises(CheckpointError, match=r"damaged; remove it and try again") as caught:
            models.squeezenet1_1(pretrained=True)
        assert caught.value.path == str(path) and path.read_bytes() == wrong
        # The name promises the same to who passes the path.
        with pytest.raises(CheckpointError, match=r"damaged"):
            models.squeezenet1_1(weights=path)
    assert not server.requests


def test_the_table():
    """Every network is there, and every name is one of torchvision's."""
    assert models.names() == list(weights.PUBLISHED)
    every = [f for kinds in weights.PUBLISHED.values() for files in kinds.values() for f in files]
    assert len(set(every)) == len(every) == 31
    for name, kinds in weights.PUBLISHED.items():
        start = "alexnet-owt" if name == "alexnet" else name
        assert callable(getattr(models, name))
        assert list(kinds) in ([V1], [V1, V2])
        assert (V2 in kinds) == (name in ("resnet50", "resnet101", "resnet152", "mobilenet_v2"))
        for file in (file for files in kinds.values() for file in files):
            assert re.fullmatch(rf"{start}-[0-9a-f]{{8}}\.pth", file)
