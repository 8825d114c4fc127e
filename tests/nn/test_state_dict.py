"""State dicts: PyTorch's names, and loads that copy all or nothing."""

import pickle
from collections import OrderedDict

import numpy as np
import pytest

import numgrad as ng
from numgrad import nn
from numgrad.checkpoint import load, save
from numgrad.graph.mode import inference_mode
from numgrad.ops.creation import from_numpy, ones, tensor, zeros
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


DTYPES = ["f2", "f4", "f8", "g", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"]


@pytest.mark.parametrize("dtype", [*DTYPES, ">f4", ">f8", ">i2", ">i8"])
def test_arrays_of_all_dtypes(dtype):
    values = np.array([[1, 0, 1], [0, 1, 1]]).astype(dtype)
    module = net()
    module.load_state_dict({**good(), "fc.weight": values})
    assert np.array_equal(module.fc.weight.detach().numpy(), values.astype("float32"))


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64", "uint8", "bool"])
def test_tensors_of_all_dtypes(dtype):
    values = tensor([[1, 0, 1], [0, 1, 1]], dtype=dtype)
    module = net()
    module.load_state_dict({**good(), "fc.weight": values})
    assert module.fc.weight.dtype == "float32"
    assert np.array_equal(module.fc.weight.detach().numpy(), values.numpy())


def layouts():
    """Arrays of (2, 3) whose elements do not lie one after another, or may not be written."""
    base = np.arange(12, dtype=np.float32)
    frozen = base[:6].reshape(2, 3)
    frozen.setflags(write=False)
    odd = np.zeros(25, np.uint8)[1:].view(np.float32).reshape(2, 3)
    odd[:] = 3
    fields = np.zeros((2, 3), [("a", "u1"), ("b", "f4")])["b"]  # 5 bytes apart
    fields[:] = base[:6].reshape(2, 3)
    return {
        "read-only": frozen,
        "reversed": base[:6].reshape(2, 3)[::-1, ::-1],
        "every other": base.reshape(2, 6)[:, ::2],
        "transposed": base[:6].reshape(3, 2).T,
        "expanded": np.broadcast_to(np.float32(3), (2, 3)),
        "odd address": odd,
        "odd strides": fields,
        "subclass": np.ma.masked_array(base[:6].reshape(2, 3)),
        "from a buffer": np.frombuffer(base.tobytes(), np.float32, 6).reshape(2, 3),
    }


@pytest.mark.parametrize("name", layouts())
def test_arrays_of_any_layout(name):
    array = layouts()[name]
    module = net()
    module.load_state_dict({**good(), "fc.weight": array})
    assert np.array_equal(module.fc.weight.detach().numpy(), np.asarray(array))


def test_numbers_that_do_not_fit_are_cut_as_by_a_cast():
    module = net()
    values = np.array([[1e300, -1e300, np.nan]] * 2)
    for given in (values, values.astype(">f8"), tensor(values)):
        module.load_state_dict({**good(), "fc.weight": given})
        found = module.fc.weight.detach().numpy()[0]
        assert found[0] == np.inf and found[1] == -np.inf and np.isnan(found[2])


def test_memory_shared_with_the_module():
    """Every value is taken as it was before the load, also where a write comes first."""
    pair = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    first, second = (pair[i].weight.detach().numpy().copy() for i in (0, 1))
    state = pair.state_dict()
    state["0.weight"], state["1.weight"] = state["1.weight"], state["0.weight"]
    pair.load_state_dict(state)
    assert np.array_equal(pair[0].weight.detach().numpy(), second)
    assert np.array_equal(pair[1].weight.detach().numpy(), first)

    for value in (  # of the module's own memory, as tensors and as arrays
        pair.state_dict()["0.weight"].t(),
        pair.state_dict()["0.weight"].numpy().T,
        pair.state_dict()["0.weight"].numpy()[::-1, ::-1],
    ):
        wanted = {
            "0.weight": np.array(value),
            "1.weight": pair[0].weight.detach().numpy().copy(),
        }
        pair.load_state_dict(
            {"0.weight": value, "1.weight": pair.state_dict()["0.weight"]}, strict=False
        )
        for name, array in wanted.items():
            assert np.array_equal(pair.state_dict()[name].numpy(), array)


def test_memory_of_somebody_else():
    """Parameters that are slices of one array, loaded with slices of it."""
    flat = np.arange(6, dtype=np.float32)
    pair = nn.ParameterList([Parameter(from_numpy(flat[i : i + 3])) for i in (0, 3)])
    pair.load_state_dict({"0": flat[2:5], "1": flat[1:4]})
    assert flat.tolist() == [2, 3, 4, 1, 2, 3]
    pair.load_state_dict({"0": flat[3:6], "1": flat[0:3][::-1]})
    assert flat.tolist() == [1, 2, 3, 4, 3, 2]


def test_loading_own_state_allocates_nothing():
    module = net()
    before = snapshot(module)
    with ng.memory.track() as m:
        module.load_state_dict(module.state_dict())
    assert m.peak_bytes == 0 and unchanged(module, before)
    with ng.memory.track() as m:
        module.load_state_dict({n: np.array(v) for n, v in zip(NAMES, before)})
    assert m.peak_bytes == 0 and unchanged(module, before)


def test_targets_that_cannot_be_written():
    for make, text in (
        (lambda: zeros(1).expand(2), "refers to a single memory location"),
        (inference_mode()(lambda: zeros(2)), "Inplace update to inference tensor"),
        (lambda: read_only(2), "got a read-only array"),
    ):
        module = nn.Sequential(OrderedDict(norm=Norm(False)))
        module.register_buffer("first", zeros(2))
        module.norm.running_mean = make()
        with pytest.raises(nn.StateDictError, match=r"norm\.running_mean cannot be written: ") as e:
            module.load_state_dict({"first": ones(2), "norm.running_mean": ones(2)})
        assert text in str(e.value) and e.value.mismatched == ["norm.running_mean"]
        assert module.first.tolist() == [0, 0]


def read_only(n):
    array = np.zeros(n, np.float32)
    x = from_numpy(array)
    x.array.setflags(write=False)
    return x


def test_running_out_of_memory_changes_nothing(monkeypatch):
    """What has to be converted is converted before the first value is written."""
    module = net()
    before = snapshot(module)
    convert, calls = Tensor.to, []

    def failing_sixth(self, *args):
        calls.append(args)
        if len(calls) == 6:
            raise MemoryError
        return convert(self, *args)

    monkeypatch.setattr(Tensor, "to", failing_sixth)
    with pytest.raises(MemoryError):
        module.load_state_dict({n: v.double() for n, v in good().items()})
    assert unchanged(module, before)


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


class Foreign:
    """An array of another library."""

    __module__ = "jaxtorch"
    shape = (2,)
    dtype = "jaxtorch.float32"


@pytest.mark.parametrize(
    "value",
    [
        *(None, 3, "x", [1.0, 2.0], (1.0, 2.0), {"a": 1}, np.float32(1), Foreign()),
        np.array(["a", "b"]),
        np.array([None, 1]),
        np.array([1j, 2]),
        np.zeros(2, "M8[s]"),
        np.zeros(2, [("a", "f4")]),
        np.ma.array([1.0, 2.0], mask=[False, True]),
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}",
)
def test_wrong_values(value):
    for strict in (True, False):
        error = failing({**good(), "fc.bias": value}, strict)
        assert error.mismatched == ["fc.bias"] and "for fc.bias: got" in str(error)
    if isinstance(value, Foreign):
        assert "got jaxtorch.Foreign of shape (2,); convert it to a NumPy array." in str(error)


def test_wrong_names():
    assert failing({**good(), 7: ones(1), None: ones(1)}).unexpected == [7, None]


def test_all_that_is_wrong_is_told_at_once():
    state = {**good(), "fc.weight": ones(3, 3), "fc.bias": 1, "more": ones(1)}
    del state["out.bias"]
    lines = str(failing(state)).split("\n\t")
    assert [line.split(":")[0] for line in lines[1:]] == [
        "Missing key(s) in state_dict",
        "Unexpected key(s) in state_dict",
        "size mismatch for fc.weight",
        "no tensor for fc.bias",
    ]


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


@pytest.mark.parametrize("prefix", ["model.", "_orig_mod.", "module.model.", "a.b.c.d."])
def test_common_prefix(prefix):
    module = net()
    state = {prefix + n: v for n, v in good().items()}
    with pytest.warns(UserWarning, match=f"every name starts with '{prefix}'; the names are taken"):
        assert module.load_state_dict(state) == ([], [])
    assert (module.out.weight.detach().numpy() == 1).all()


def test_strays_beside_a_common_prefix():
    """They are told of by the names they have; the others fit."""
    state = {f"module.{n}": v for n, v in good().items()}
    state |= {"x": ones(1), "module.x": ones(1), 7: ones(1)}
    with pytest.warns(UserWarning, match="5 names start with 'module.'"):
        assert net().load_state_dict(state, strict=False) == ([], ["x", "module.x", 7])
    with pytest.warns(UserWarning, match="5 names start"):
        error = failing(state)
    assert error.missing == [] and error.unexpected == ["x", "module.x", 7]


@pytest.mark.parametrize(
    "names",
    [
        {"module.fc.weight", "module.fc.bias", "out.bias"},  # one fits as it is
        {"a.fc.weight", "a.fc.bias", "b.fc.weight", "b.fc.bias"},  # two networks
        {"fc.fc.weight", "fc.fc.bias", "fc.out.weight", "fc.out.bias"},  # the module's own prefix
        {"a.b.c.d.e.fc.weight"},  # too long
        {"module.x", "module.y"},  # nothing would fit
        {".", "..fc", ""},
    ],
)
def test_names_that_are_left_alone(names):
    result = net().load_state_dict({n: ones(1) for n in names}, strict=False)
    assert result.missing_keys == [n for n in NAMES if n not in names]
    assert set(result.unexpected_keys) == names - set(NAMES)


def test_prefix_of_a_module_in_a_wrapper():
    """The longest prefix that is common to all need not be the one to take off."""
    inner = {"encoder.0.weight": ones(1, 1), "encoder.0.bias": ones(1)}
    target = nn.Sequential(OrderedDict(encoder=nn.Sequential(nn.Linear(1, 1))))
    with pytest.warns(UserWarning, match="every name starts with 'model.'"):
        target.load_state_dict({f"model.{name}": value for name, value in inner.items()})
    target = nn.Sequential(nn.Linear(1, 1))
    with pytest.warns(UserWarning, match="every name starts with 'model.encoder.'"):
        target.load_state_dict({f"model.{name}": value for name, value in inner.items()})


@pytest.mark.parametrize("strict", [True, False])
def test_whole_checkpoint(strict):
    """As training scripts save it: the error says which part to take."""
    error = failing({"epoch": 3, "state_dict": good(), "optimizer": {"state": {}}}, strict)
    assert str(error).endswith(
        "state_dict has no name of the module, state_dict['state_dict'] has them; pass that."
    )
    wrapped = {f"module.{n}": v for n, v in good().items()}
    error = failing({"model": good(), "ema": wrapped, 0: 1}, strict)
    assert "state_dict['model'] or state_dict['ema'] has them" in str(error)
    if strict:  # a dict, but with the names of another module
        error = failing({"model": {"conv.weight": ones(1)}})
        assert error.missing == NAMES and error.unexpected == ["model"]


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
