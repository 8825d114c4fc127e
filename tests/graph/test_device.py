"""What names a device, and that what is named so cannot be changed."""

import copy
import pickle

import pytest

import numgrad
from numgrad.graph import device as devices


@pytest.mark.parametrize(
    ("made", "text", "index"),
    [
        (numgrad.device("cpu"), "cpu", None),
        (numgrad.device("cpu:0"), "cpu:0", 0),
        (numgrad.device("cuda"), "cuda", None),
        (numgrad.device("cuda:12"), "cuda:12", 12),
        (numgrad.device("cuda", 1), "cuda:1", 1),
        (numgrad.device(0), "cuda:0", 0),
        (numgrad.device(numgrad.device("cuda:3")), "cuda:3", 3),
    ],
)
def test_names(made, text, index):
    assert str(made) == text == made and made.type == text.partition(":")[0]
    assert made.index == index and repr(made) == f"device({text!r})"
    assert hash(made) == hash(numgrad.device(text)) and made != 3
    for twin in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert twin == made and twin.index == index


@pytest.mark.parametrize(
    "bad", ["gpu", "cuda:", "cuda:-1", "cuda:²", "cuda:1:2", "", True, 1.0, -1]
)
def test_bad_names(bad):
    with pytest.raises(ValueError, match=r"^device: expected 'cpu' or 'cuda\[:N\]' for spec, got"):
        numgrad.device(bad)


@pytest.mark.parametrize(("spec", "index"), [("cuda:0", 1), ("cuda", -1), ("cuda", True)])
def test_bad_numbers(spec, index):
    with pytest.raises(TypeError, match=r"^device: expected one non-negative number for index"):
        numgrad.device(spec, index)


def test_devices_do_not_change():
    x = numgrad.ones(2)
    for name in ("type", "index"):
        with pytest.raises(AttributeError, match=f"expected nobody to write to {name}"):
            setattr(x.device, name, "cuda")
    assert x.device == "cpu"


def test_one_object_a_device():
    assert devices.canonical(None) is devices.canonical("cpu:0") is numgrad.ones(1).device
    first = devices.canonical("cuda")
    assert first is devices.canonical(0) is devices.canonical("cuda:0") is devices.canonical(first)
    assert devices.canonical(1) is not first


def test_moving_where_it_is():
    x = numgrad.ones(2)
    assert x.to("cpu", non_blocking=True) is x is x.to("cpu", None, True)
    assert x.to("cpu", copy=True) is not x
    assert x.to(numgrad.float64, non_blocking=True).dtype == numgrad.float64
    assert x.to("float64").dtype == x.to("torch.float64").dtype == numgrad.float64
    with pytest.raises(
        TypeError, match=r"^to: expected one of float32.*, cpu, cuda\[:N\] for args, got 'tpu'; "
    ):
        x.to("tpu")


def test_seeds_need_no_gpu():
    drawn = []
    for seed in (numgrad.manual_seed, numgrad.cuda.manual_seed, numgrad.cuda.manual_seed_all):
        seed(5)
        drawn.append(numgrad.rand(3).tolist())
    assert drawn[0] == drawn[1] == drawn[2]
