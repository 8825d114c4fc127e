"""The tar format: what PyTorch wrote before 0.1.10."""

import io
import tarfile
from collections import OrderedDict

import numpy as np
import pytest

import numgrad
from numgrad.checkpoint import CheckpointError, load
from numgrad.models import resnet18
from numgrad.nn import Parameter
from tests.checkpoint.makers import (
    FORMATS,
    KINDS,
    Global,
    Pid,
    Placed,
    archive,
    parameter3,
    parameter5,
    state_dict,
    tar,
)

SIX = np.arange(6, dtype=np.float32)


def read(obj, storages=None, tensors=None, **how):
    storages = {90: SIX} if storages is None else storages
    tensors = {80: Placed(90, (2, 3))} if tensors is None else tensors
    return load(io.BytesIO(tar(obj, storages, tensors, **how)))


def test_tensors():
    got = read({"w": Pid("80"), "again": Pid("80")})
    assert type(got["w"]) is numgrad.Tensor and got["w"].tolist() == SIX.reshape(2, 3).tolist()
    assert got["again"] is got["w"]


@pytest.mark.parametrize("make", [parameter3, parameter5, lambda t: parameter3(t, new=True)])
def test_parameters_in_each_of_their_states(make):
    got = read({"w": make(Pid("80"))})["w"]
    assert type(got) is Parameter and got.requires_grad
    assert np.array_equal(got.detach().numpy(), SIX.reshape(2, 3))


def test_offsets_strides_and_shared_storage():
    tensors = {80: Placed(90, (3, 2), (1, 3)), 81: Placed(90, (2,), offset=4)}
    got = read([Pid("80"), Pid("81")], tensors=tensors)
    assert got[0].tolist() == SIX.reshape(2, 3).T.tolist() and got[0].stride() == (1, 3)
    with numgrad.no_grad():
        got[1][1] = 50
    assert got[0][2, 1].item() == 50


def test_views_share_memory_with_their_storage():
    tensors = {80: Placed(90, (6,)), 81: Placed(91, (2,), offset=1)}
    got = read([Pid("80"), Pid("81")], tensors=tensors, views=[(91, 90, 2, 3)])
    assert got[1].tolist() == [3, 4]
    with numgrad.no_grad():
        got[0][3] = 30
    assert got[1].tolist() == [30, 4]


def test_empty_tensor_without_a_storage():
    got = read([Pid("80")], {}, {80: Placed(None, (0,), kind="Long")})
    assert tuple(got[0].shape) == (0,) and got[0].dtype == np.int64


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "int32", "int64"])
def test_dtypes(dtype):
    array = np.array([0, 1, 2]).astype(dtype)
    got = read([Pid("80")], {90: array}, {80: Placed(90, (3,), kind=KINDS[dtype])})
    assert got[0].dtype == array.dtype and got[0].tolist() == [0, 1, 2]


def test_classes_of_cuda():
    kind = Global("torch.cuda", "FloatTensor")
    got = read([Pid("80")], None, {80: Placed(90, (6,), kind=kind)})
    assert got[0].device.type == "cpu" and got[0].tolist() == SIX.tolist()


@pytest.mark.parametrize(
    "fields",
    [
        {"mtime": 1480000000.25},  # a fraction makes an extended header
        {"uname": "重", "mtime": 1.5},
        {"mode": 0o600, "uid": 1000},
    ],
)
def test_owners_and_times_do_not_matter(fields):
    assert read([Pid("80")], **fields)[0].tolist() == SIX.reshape(2, 3).tolist()


def test_names_with_a_dot_before():
    data = tar([Pid("80")], {90: SIX}, {80: Placed(90, (6,))})
    with tarfile.open(fileobj=io.BytesIO(data)) as file:
        parts = [(info, file.extractfile(info).read()) for info in file]
    for info, _ in parts:
        info.name = "./" + info.name
    assert load(io.BytesIO(archive(parts)))[0].tolist() == SIX.tolist()


def test_tensor_past_the_end_of_its_view():
    with pytest.raises(CheckpointError) as caught:
        read([Pid("80")], None, {80: Placed(91, (3,), offset=1)}, views=[(91, 90, 2, 3)])
    assert "reaches element 3 of a storage of 3" in caught.value.reason


def test_one_resnet18_in_every_format():
    model = resnet18()
    rng = np.random.default_rng(7)
    arrays = {}
    for name, tensor in model.state_dict().items():
        if not name.endswith("num_batches_tracked"):  # PyTorch 0.1.9 had none
            arrays[name] = rng.standard_normal(tensor.shape, np.float32)
    for form in FORMATS:
        data = state_dict(arrays, form)
        if form == "tar":  # as many bytes as torchvision's resnet18-5c106cde.pth has
            assert len(data) == 46_827_520
        got = load(io.BytesIO(data))
        assert type(got) is OrderedDict and list(got) == list(arrays)
        for name, array in arrays.items():
            assert np.array_equal(got[name].detach().numpy(), array)
        model.load_state_dict(got)
