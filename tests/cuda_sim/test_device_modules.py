"""Modules on a device: moving them, files, optimizers."""

import copy
import io
import pickle

import numpy as np
import pytest

import numgrad
from numgrad import cuda, nn, optim
from tests.cuda_sim.pairs import close, network, pair


class Lists(nn.Module):
    """A layer, a ModuleList and a plain list, moved in ``__init__``."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.listed = nn.ModuleList([nn.Linear(3, 3)])
        self.forgotten = [nn.Linear(3, 3), nn.Linear(3, 3)]
        self.type(numgrad.cuda.FloatTensor)

    def forward(self, x):
        x = self.listed[0](self.first(x))
        for layer in self.forgotten:
            x = layer(x)
        return x


def test_a_plain_list_does_not_move():
    with pytest.warns(UserWarning, match=r"^Lists\.forgotten: expected a numgrad\.nn\.ModuleList"):
        model = Lists()
    names = ["first.weight", "first.bias", "listed.0.weight", "listed.0.bias"]
    assert [name for name, _ in model.named_parameters()] == list(model.state_dict()) == names
    assert {str(p.device) for p in model.parameters()} == {"cuda:0"}
    assert model.forgotten[0].weight.device == "cpu"
    with pytest.raises(RuntimeError) as raised:
        nn.Sequential(model)(numgrad.ones(1, 3, device="cuda"))
    text = str(raised.value)
    assert "x on cuda:0 and weight on cpu" in text
    assert "Lists.forgotten is a list that is not registered" in text and "ModuleList" in text
    assert text.count("forgotten") == 1
    with pytest.raises(RuntimeError) as raised:  # the input is what is wrong here
        model.first(numgrad.ones(1, 3))
    assert "forgotten" not in str(raised.value)


def test_modules_move():
    model = network()
    ids = [id(p) for p in model.parameters()]
    model(numgrad.ones(1, 3)).sum().backward()
    before = [p.tolist() for p in model.parameters()]
    for move in (
        lambda: model.cuda(),
        lambda: model.cpu(),
        lambda: model.to("cuda"),
        lambda: model.to("cpu"),
        lambda: model.to(0),
        lambda: model.type(numgrad.FloatTensor),
        lambda: model.type(cuda.FloatTensor),
    ):
        assert move() is model
        where = {str(p.device) for p in model.parameters()}
        assert len(where) == 1 and {str(p.grad.device) for p in model.parameters()} == where
    assert where == {"cuda:0"} and [id(p) for p in model.parameters()] == ids
    assert [p.tolist() for p in model.parameters()] == before
    assert model.double()[0].weight.dtype == numgrad.float64


def test_files(tmp_path):
    model = network().cuda()
    state = model.state_dict()
    numgrad.save(state, tmp_path / "model.safetensors")
    loaded = numgrad.load(tmp_path / "model.safetensors")
    assert {str(v.device) for v in loaded.values()} == {"cpu"}
    other = network().cuda()
    numgrad.manual_seed(7)
    other[0].reset_parameters()
    assert other[0].weight.tolist() != model[0].weight.tolist()
    other.load_state_dict(loaded)
    on_cpu = network()
    on_cpu.load_state_dict(state)
    for p, q, r in zip(model.parameters(), other.parameters(), on_cpu.parameters(), strict=True):
        assert p.tolist() == q.tolist() == r.tolist()
        assert (p.device, q.device, r.device) == ("cuda:0", "cuda:0", "cpu")
    twin = copy.deepcopy(model)
    assert twin[0].weight.device == "cuda:0" and twin[0].weight.tolist() == p_list(model)
    back = pickle.load(io.BytesIO(pickle.dumps(model[0].weight)))
    assert back.device == "cpu" and back.tolist() == p_list(model)


def test_state_of_the_modules_own_device_memory():
    """Values are read before any is written, and arrays of any dtype come onto the device."""
    pair = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).cuda()
    first, second = (pair[i].weight.tolist() for i in (0, 1))
    state = pair.state_dict()
    state["0.weight"], state["1.weight"] = state["1.weight"], state["0.weight"]
    pair.load_state_dict(state)
    assert [pair[i].weight.tolist() for i in (0, 1)] == [second, first]
    own = pair.state_dict()["0.weight"]
    pair.load_state_dict({"0.weight": own.t(), "1.weight": own}, strict=False)
    assert [pair[i].weight.tolist() for i in (0, 1)] == [np.transpose(second).tolist(), second]
    pair.load_state_dict({name: np.full(v.shape, 3, ">i2") for name, v in state.items()})
    assert {str(v.device) for v in pair.state_dict().values()} == {"cuda:0"}
    assert pair[1].weight.tolist() == [[3, 3], [3, 3]]
    optimizer = optim.SGD(pair.parameters(), lr=0.1, momentum=0.9)
    groups = [{"lr": 0.1, "params": [0, 1, 2, 3]}]
    buffer = {"momentum_buffer": np.ones((2, 2))}
    optimizer.load_state_dict({"state": {0: buffer}, "param_groups": groups})
    assert optimizer.state[pair[0].weight]["momentum_buffer"].device == "cuda:0"


def test_files_of_torch_save(tmp_path):
    whole = numgrad.arange(6.0, device="cuda")
    state = {"row": whole.view(2, 3)[1], "t": whole.view(2, 3).t(), "p": nn.Parameter(whole[:2])}
    for name in state:
        assert state[name].is_cuda
    numgrad.save({**state, "wide": whole[:1].expand(3000)}, tmp_path / "x.pth")
    loaded = numgrad.load(tmp_path / "x.pth")
    assert loaded.pop("wide").tolist() == [0.0] * 3000
    for name, value in state.items():
        got = loaded[name]
        assert got.device == "cpu" and got.stride() == value.stride()
        assert got.tolist() == value.tolist() and got.requires_grad == value.requires_grad
    loaded["t"].zero_()
    assert loaded["row"].tolist() == [0, 0, 0] and loaded["p"].tolist() == [0, 0]


def test_clipping():
    x, u = pair(3, 2, requires_grad=True)
    found = []
    for v in (x, u):
        (v * v).sum().backward()
        nn.utils.clip_grad_value_([v], 1.0)
        found.append((nn.utils.clip_grad_norm_([v], 0.5), v.grad))
    for wanted, got in zip(*found, strict=True):
        close(got, wanted)
    assert nn.utils.clip_grad_norm_([], 0.5).device == "cpu"


def test_the_state_of_an_optimizer_moves_to_its_parameters():
    x, u = pair(3, requires_grad=True)
    steps = [optim.Adam([v], lr=0.1) for v in (x, u)]
    for v, step in zip((x, u), steps, strict=True):
        (v * v).sum().backward()
        step.step()
    for other, state in ((u, steps[0].state_dict()), (x, steps[1].state_dict())):
        again = optim.Adam([other], lr=0.1)
        again.load_state_dict(state)
        held = [v for v in again.state[other].values() if isinstance(v, numgrad.Tensor)]
        assert {v.device for v in held if v.shape} == {other.device}
        again.step()
    close(u, x)


def p_list(model):
    return model[0].weight.tolist()
