"""The stream format: what PyTorch 0.1.10 to 1.5 wrote, and what newer ones write when asked."""

import io
from collections import OrderedDict

import numpy as np
import pytest

import numgrad
from numgrad.checkpoint import CheckpointError, load
from numgrad.nn import Parameter
from tests.checkpoint.makers import (
    KINDS,
    ORDERED,
    Global,
    Pid,
    Reduce,
    Text2,
    early,
    parameter,
    parameter3,
    parameter5,
    state_dict,
    storage,
    stream,
    v1,
    v2,
)

SIX = np.arange(6, dtype=np.float32)


def read(obj, storages=None):
    return load(io.BytesIO(stream(obj, {"0": SIX} if storages is None else storages)))


def on(key="0", numel=6, kind="Float", **how):
    return storage(key, kind, numel, **how)


@pytest.mark.parametrize("tensor", [v1, v2, early])
def test_each_way_a_tensor_was_written(tensor):
    got = read({"w": tensor(on(), 0, (2, 3))})["w"]
    assert type(got) is numgrad.Tensor and not got.requires_grad
    assert np.array_equal(got.numpy(), SIX.reshape(2, 3)) and got.dtype == np.float32


@pytest.mark.parametrize(
    ("make", "tensor"),
    [
        (parameter, v2),
        (parameter3, v1),
        (parameter3, v2),
        (parameter3, early),
        (parameter5, v1),
        (parameter5, early),
    ],
)
def test_each_way_a_parameter_was_written(make, tensor):
    got = read({"w": make(tensor(on(), 0, (3, 2)))})["w"]
    assert type(got) is Parameter and got.requires_grad
    assert np.array_equal(got.detach().numpy(), SIX.reshape(3, 2))


def test_parameter_with_new_and_a_state_of_three():
    got = read([parameter3(v1(on(), 0, (6,)), new=True)])[0]
    assert type(got) is Parameter and got.requires_grad


def test_state_dict_with_metadata_is_an_ordered_dict_and_keeps_its_order():
    arrays = {"b": SIX, "a": np.arange(3), "c": np.array(2.5)}
    got = load(io.BytesIO(state_dict(arrays, "stream")))
    assert type(got) is OrderedDict and list(got) == ["b", "a", "c"]
    assert all(np.array_equal(got[name].numpy(), array) for name, array in arrays.items())
    assert vars(got) == {}


def test_python_2_wrote_ordered_dicts_as_lists_and_texts_as_bytes():
    items = [
        [Text2(b"plain"), v1(on(), 0, (6,))],
        [Text2("重み".encode()), v1(on(), 1, (2,))],
        [Text2(b"caf\xe9"), 3],
    ]
    kind = Global("torch", "FloatStorage")
    pid = Pid((Text2(b"storage"), kind, Text2(b"0"), Text2(b"cuda:7"), 6, None))
    items[0][1] = v1(pid, 0, (6,))
    got = read(Reduce(ORDERED, (items,)))
    assert list(got) == ["plain", "重み", "café"]
    assert all(type(name) is str for name in got)
    assert got["重み"].tolist() == [1, 2]


@pytest.mark.parametrize("dtype", sorted(KINDS))
def test_dtypes(dtype):
    array = np.array([0, 1, 1, 0, 1]).astype(dtype)
    data = stream([v2(storage("5", KINDS[dtype], 5), 0, (5,))], {"5": array})
    wide = {"float16": np.float32, "int8": np.int32, "int16": np.int32}.get(dtype)
    if wide is None:
        got = load(io.BytesIO(data))[0]
    else:
        with pytest.warns(UserWarning, match=dtype):
            got = load(io.BytesIO(data))[0]
    assert got.dtype == (wide or array.dtype) and got.tolist() == array.tolist()


def test_device_is_ignored_and_classes_of_cuda_are_read():
    kind = Global("torch.cuda", "FloatStorage")
    got = read([v1(on(kind=kind, location="cuda:7"), 0, (6,))])[0]
    assert got.device.type == "cpu" and got.tolist() == SIX.tolist()


def test_shared_storage_offset_and_strides():
    whole = v2(on(), 0, (2, 3))
    got = read({"w": whole, "t": v2(on(), 0, (3, 2), (1, 3)), "tail": v2(on(), 4, (2,))})
    assert got["t"].tolist() == SIX.reshape(2, 3).T.tolist() and got["t"].stride() == (1, 3)
    assert got["tail"].tolist() == [4, 5]
    with numgrad.no_grad():
        got["w"][1, 2] = 50
    assert got["tail"].tolist() == [4, 50] and got["t"][2, 1].item() == 50


def test_views_of_a_storage_count_from_their_first_element_and_share_memory():
    view = on(view=("7", 2, 3))
    got = read([v1(view, 1, (2,)), v1(on(), 0, (6,)), v1(view, 0, (3,))])
    assert got[0].tolist() == [3, 4] and got[2].tolist() == [2, 3, 4]
    with numgrad.no_grad():
        got[1][3] = 30
    assert got[0].tolist() == [30, 4] and got[2].tolist() == [2, 30, 4]


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (("7", 4, 3), "elements 4 to 7 of a storage of 6"),
        (("7", -1, 3), "no (key, offset, size)"),
        (("7", 0), "no (key, offset, size)"),
        (("7", 0, True), "no (key, offset, size)"),
    ],
)
def test_view_past_its_storage(view, reason):
    with pytest.raises(CheckpointError) as caught:
        read([v1(on(view=view), 0, (1,))])
    assert reason in caught.value.reason


def test_tensor_past_its_view_but_inside_the_storage():
    with pytest.raises(CheckpointError) as caught:
        read([v1(on(view=("7", 2, 3)), 1, (3,))])
    assert "reaches element 3 of a storage of 3" in caught.value.reason


def test_two_views_of_one_key_that_differ():
    with pytest.raises(CheckpointError) as caught:
        read([v1(on(view=("7", 2, 3)), 0, (1,)), v1(on(view=("7", 1, 3)), 0, (1,))])
    assert "that differ" in caught.value.reason


def test_empty_tensors_and_many_storages_in_the_order_of_their_texts():
    storages = {str(i): np.full(i, i, np.int64) for i in range(12)}
    obj = {i: v1(storage(str(i), "Long", i), 0, (i,)) for i in range(12)}
    got = load(io.BytesIO(stream(obj, storages)))
    assert [got[i].tolist() for i in range(12)] == [[i] * i for i in range(12)]


def test_an_object_without_tensors():
    obj = {"epoch": 3, "best": 0.5, "names": ["a", "重み"], "none": None, "flag": True}
    assert read(obj, {}) == obj


def test_one_tensor_is_one_object_wherever_it_stands():
    tensor = v1(on(), 0, (6,))
    shared = {"a": tensor}
    got = read([shared, shared])
    assert type(got[0]["a"]) is numgrad.Tensor and got[0]["a"].tolist() == SIX.tolist()


def test_file_object_is_read_from_its_position():
    data = stream([v1(on(), 0, (6,))], {"0": SIX})
    file = io.BytesIO(b"before" + data)
    file.seek(6)
    assert load(file)[0].tolist() == SIX.tolist()
