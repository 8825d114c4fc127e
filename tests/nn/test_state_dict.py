"""State dicts: PyTorch's names, and loads that copy all or nothing."""

import pickle
from collections import OrderedDict

import numpy as np
import pytest

from numgrad import nn
from numgrad.checkpoint import load, save
from numgrad.ops.creation import ones, tensor, zeros
from numgrad.tensor import Tensor
from numgrad.variable import Parameter, Variable


class Norm(nn.Module):
    """The state of a batch-norm; of PyTorch before 0.4.1 without the counter."""

    def __init__(self, counter):
        super().__init__()
        self.register_buffer("running_mean", zeros(2))
        if counter:
            self.register_buffer("num_batches_tracked", tensor(0))


def net():
    return nn.Sequential(OrderedDict(fc=nn.Linear(3, 2), out=nn.Linear(2, 1)))


NAMES = ["fc.weight", "fc.bias", "out.weight", "out.bias"]


def snapshot(module):
    return [value.numpy().copy() for value in module.state_dict().values()]


def unchanged(module, before):
    return all(map(np.array_equal, snapshot(module), before))


def test_names_and_values():
    module = net()
    state = module.state_dict()
    assert type(state) is OrderedDict and list(state) == NAMES
    assert all(type(v) is Tensor and not v.requires_grad for v in state.values())
    state["fc.bias"].zero_()
    assert not module.fc.bias.detach().numpy().any()  # shared memory
    assert module.state_dict(keep_vars=True)["fc.weight"] is module.fc.weight
    assert list(module.state_dict(prefix="a.")) == [f"a.{n}" for n in NAMES]


def test_load():
    source, target = net(), net()
    weight, identity = target.fc.weight, id(target.fc.weight)
    version = weight._version
    result = target.load_state_dict(source.state_dict())
    assert unchanged(target, snapshot(source)) and id(target.fc.weight) == identity
    assert weight.requires_grad and weight.is_leaf and weight._version > version
    assert result.missing_keys == result.unexpected_keys == []
    assert repr(result) == "<All keys matched successfully>"
    source.fc.bias.data.fill_(7)
    assert not (target.fc.bias.detach().numpy() == 7).any()  # copied


def test_load_converts():
    module = nn.Linear(2, 1)
    state = {"weight": np.array([[1, 2]], np.int64), "bias": tensor(np.array(0.5))}  # () into (1,)
    module.load_state_dict(state)
    assert module.weight.dtype == "float32" and module.weight.detach().numpy().tolist() == [[1, 2]]
    assert module.bias.detach().numpy().tolist() == [0.5]
    module.load_state_dict(
        {"weight": Variable(ones(1, 2), volatile=True), "bias": Parameter(ones(1))}
    )
    assert module.weight.requires_grad and not module.weight.volatile


def failing(state, strict=True):
    module = net()
    before = snapshot(module)
    with pytest.raises(nn.StateDictError) as caught:
        module.load_state_dict(state, strict=strict)
    assert unchanged(module, before)
    assert isinstance(caught.value, KeyError) and isinstance(caught.value, RuntimeError)
    return caught.value


def good():
    return {name: ones(value.shape) for name, value in net().state_dict().items()}


def test_missing_and_unexpected():
    state = good()
    del state["out.bias"]
    state["out.more"] = ones(1)
    error = failing(state)
    assert str(error) == (
        "Error(s) in loading state_dict for Sequential:\n"
        '\tMissing key(s) in state_dict: "out.bias".  (out: Linear)\n'
        '\tUnexpected key(s) in state_dict: "out.more".  (out: Linear)'
    )
    assert error.missing == ["out.bias"] and error.unexpected == ["out.more"]
    module = net()
    result = module.load_state_dict(state, strict=False)
    assert result.missing_keys == ["out.bias"] and result.unexpected_keys == ["out.more"]
    assert (module.fc.weight.detach().numpy() == 1).all()
    assert "missing_keys=['out.bias']" in repr(result)


def test_missing_are_grouped_by_module():
    text = str(failing({"a.x": ones(1), "b": ones(1)}))
    assert text.splitlines()[1:] == [
        "\tMissing key(s) in state_dict: ",
        '\t\t"fc.weight", "fc.bias".  (fc: Linear)',
        '\t\t"out.weight", "out.bias".  (out: Linear)',
        "\tUnexpected key(s) in state_dict: ",
        '\t\t"a.x".',
        '\t\t"b".',
    ]


@pytest.mark.parametrize("strict", [True, False])
def test_wrong_shapes(strict):
    state = good()
    state["out.weight"] = ones(2, 2)
    state["out.bias"] = ones(())
    error = failing(state, strict)
    assert error.mismatched == ["out.weight"]
    assert (
        "size mismatch for out.weight: copying a param with shape (2, 2) from checkpoint, "
        "the shape in current model is (1, 2)."
    ) in str(error)


@pytest.mark.parametrize("value", [None, 3, "x", [1.0], np.array(["a"])])
def test_wrong_values(value):
    error = failing({**good(), "fc.bias": value})
    assert error.mismatched == ["fc.bias"] and "for fc.bias: got" in str(error)


def test_no_dict():
    with pytest.raises(
        TypeError, match="load_state_dict: expected a dict for state_dict, got int 3"
    ):
        net().load_state_dict(3)


def test_error_survives_pickling():
    error = failing({})
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.missing == error.missing


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("theirs", [False, True])
def test_counter_of_batch_norm(ours, theirs):
    target, source = nn.Sequential(Norm(ours)), nn.Sequential(Norm(theirs))
    source[0].running_mean.fill_(3)
    result = target.load_state_dict(source.state_dict())
    assert result.missing_keys == result.unexpected_keys == []
    assert (target[0].running_mean.numpy() == 3).all()
    with pytest.raises(nn.StateDictError):  # a counter of no module
        target.load_state_dict({**source.state_dict(), "1.num_batches_tracked": tensor(0)})


def test_data_parallel_prefix():
    module = net()
    state = {f"module.{n}": v for n, v in good().items()}
    with pytest.warns(UserWarning, match="every name starts with 'module.'") as caught:
        module.load_state_dict(state)
    assert caught[0].filename == __file__
    assert (module.fc.weight.detach().numpy() == 1).all()
    own = nn.Sequential(OrderedDict(module=nn.Linear(1, 1)))
    own.load_state_dict(own.state_dict())  # its own names start so: nothing is stripped
    failing({**state, "x": ones(1)})  # not all names start so


def test_frozen_and_tied_parameters_load():
    module = net().freeze()
    module.load_state_dict(good())
    assert (module.fc.weight.detach().numpy() == 1).all() and not module.fc.weight.requires_grad
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    tied.load_state_dict(tied.state_dict())


def test_through_a_file(tmp_path):
    source, target = net(), net()
    save({"model": source.state_dict(), "epoch": 3}, tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors")
    assert loaded["epoch"] == 3 and list(loaded["model"]) == NAMES
    target.load_state_dict(loaded["model"])
    assert unchanged(target, snapshot(source))
