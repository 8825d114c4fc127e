"""State dicts of optimizers: resuming, layout, what is refused."""

import copy
import io
import pickle

import numpy as np
import pytest

from numgrad import nn
from numgrad.checkpoint import load, save
from numgrad.graph import storage
from numgrad.ops.creation import ones, tensor
from numgrad.optim import SGD, Adam, AdamW, RMSprop
from numgrad.tensor import Tensor
from numgrad.variable import Parameter
from tests.optim.paths import START, gradients, run


def make_sgd(params):
    return SGD(params, lr=0.1, momentum=0.9)


def make_adam(params):
    return Adam(params, lr=0.1, amsgrad=True)


def through_file(state):
    file = io.BytesIO()
    save(state, file)
    return load(io.BytesIO(file.getvalue()))


@pytest.mark.parametrize("make", [make_sgd, make_adam])
@pytest.mark.parametrize("through", [lambda s: s, copy.deepcopy, through_file])
def test_resume(make, through):
    """Six steps at once, and three, a save, a load and three more: the same bits."""
    expected = run(make)
    p = Parameter(tensor(START))
    first = make([p])
    for g in gradients()[:3]:
        p.grad = tensor(g)
        first.step()
    state = through(first.state_dict())
    q = Parameter(tensor(p.detach().numpy()))
    second = make([q])
    second.param_groups[0]["lr"] = 77
    second.load_state_dict(state)
    assert second.param_groups[0]["lr"] == 0.1 and second.param_groups[0]["params"] == [q]
    for g, wanted in zip(gradients()[3:], expected[3:]):
        q.grad = tensor(g)
        second.step()
        assert np.array_equal(q.detach().numpy(), wanted)


def test_layout_is_that_of_pytorch():
    a, b, c = (Parameter(ones(2)) for _ in range(3))
    optimizer = Adam([{"params": [a, b]}, {"params": [c], "lr": 0.5}])
    b.grad = ones(2)
    optimizer.step()
    state = optimizer.state_dict()
    assert list(state) == ["state", "param_groups"] and list(state["state"]) == [1]
    assert set(state["state"][1]) == {"step", "exp_avg", "exp_avg_sq"}
    assert [g["params"] for g in state["param_groups"]] == [[0, 1], [2]]
    assert [g["lr"] for g in state["param_groups"]] == [1e-3, 0.5]


def test_load_from_pytorch():
    """Its step is a tensor, its groups have more options, and old files number by identity."""
    p = Parameter(tensor(START))
    optimizer = make_adam([p])
    values = {"exp_avg": ones(4), "exp_avg_sq": ones(4), "max_exp_avg_sq": ones(4)}
    group = {"lr": 0.5, "betas": (0.9, 0.99), "foreach": None, "params": [140230]}
    optimizer.load_state_dict(
        {"state": {140230: {"step": tensor(5.0), **values}}, "param_groups": [group]}
    )
    state = optimizer.state[p]
    assert state["step"] == 5 and type(state["step"]) is int
    assert state["exp_avg"].dtype == "float64" and state["exp_avg"] is not values["exp_avg"]
    assert state["exp_avg"].storage.category == storage.OPTIMIZER
    assert (
        optimizer.param_groups[0]["betas"] == (0.9, 0.99)
        and optimizer.param_groups[0]["eps"] == 1e-8
    )


def test_load_errors_change_nothing():
    p = Parameter(tensor(START))
    optimizer = make_sgd([p])
    p.grad = ones(4).double()
    optimizer.step()
    good = copy.deepcopy(optimizer.state_dict())
    two = copy.deepcopy(good)
    two["param_groups"][0]["params"] = [0, 1]
    shape = copy.deepcopy(good)
    shape["state"][0]["momentum_buffer"] = ones(3)
    shape["param_groups"][0]["lr"] = 9
    option = copy.deepcopy(good)
    option["param_groups"][0]["lr"] = -1
    for state, text in (
        (
            {**good, "param_groups": []},
            "^loaded state dict has a different number of parameter groups",
        ),
        (two, "doesn't match the size of optimizer's group"),
        (shape, r"expected shape \(4,\) for momentum_buffer, got \(3,\)"),
        (option, "expected lr >= 0"),
    ):
        with pytest.raises(ValueError, match=text):
            optimizer.load_state_dict(state)
    for state, text in (
        (3, "for state_dict, got int 3; pass what"),
        ({}, "for state_dict, got one of nothing; pass what"),
        ({"state": {}}, "for state_dict, got one of 'state'; pass what"),
        ({"model": {}, "opt": good}, r"got one of 'model', 'opt'; pass state_dict\['opt'\]"),
        ({**good, "state": []}, "expected a dict for state, got list"),
        ({**good, "state": {0: 3}}, "expected a dict a parameter for state, got int 3"),
        ({**good, "param_groups": 3}, "expected a list for param_groups, got int 3"),
        ({**good, "param_groups": [3]}, "a list of numbers under 'params' for param_groups, got"),
        ({**good, "param_groups": [{"lr": 1}]}, "a list of numbers under 'params'"),
    ):
        with pytest.raises(TypeError, match=text):
            optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert np.array_equal(optimizer.state[p]["momentum_buffer"].numpy(), np.ones(4))


def test_state_of_another_kind():
    """It is refused by the names of its tensors; a user's subclass may keep others."""
    p = Parameter(tensor(START))
    makers = {"sgd": make_sgd, "adam": make_adam, "rmsprop": lambda ps: RMSprop(ps, centered=True)}
    makers["adamw"] = AdamW
    states = {}
    for name, make in makers.items():
        optimizer = make([p])
        p.grad = ones(4).double()
        optimizer.step()
        states[name] = optimizer.state_dict()
    alike = {"adam", "adamw"}  # the same tensors
    for name, make in makers.items():
        for other, state in states.items():
            optimizer = make([p])
            if name == other or {name, other} == alike:
                optimizer.load_state_dict(state)
                assert set(optimizer.state_dict()["state"][0]) == set(state["state"][0])
            else:
                with pytest.raises(ValueError, match="load the state of an optimizer of the kind"):
                    optimizer.load_state_dict(state)
                assert optimizer.state_dict()["state"] == {}

    class Mine(Adam):
        def update(self, param, grad, state, group):
            super().update(param, grad, state, group)
            state["mine"] = ones(4)

    optimizer = Mine([p])
    optimizer.step()
    Mine([p]).load_state_dict(optimizer.state_dict())


def test_state_of_arrays():
    """Arrays, as a reader of another format gives them, become tensors."""
    p = Parameter(tensor(START))
    optimizer = Adam([p])
    values = {"exp_avg": np.ones(4, "f4"), "exp_avg_sq": np.ones(4), "step": np.int64(3)}
    group = {"lr": np.float64(0.5), "params": [0]}
    optimizer.load_state_dict({"state": {0: values}, "param_groups": [group]})
    state = optimizer.state[p]
    assert state["step"] == 3 and type(state["exp_avg"]) is Tensor
    assert state["exp_avg"].dtype == "float64"
    p.grad = ones(4).double()
    optimizer.step()


def test_pickle_keeps_parameters_together():
    net = nn.Linear(2, 2)
    optimizer = make_adam(net.parameters())
    net(ones(1, 2)).sum().backward()
    optimizer.step()
    net.zero_grad()
    other_net, other = pickle.loads(pickle.dumps((net, optimizer)))
    assert other.param_groups[0]["params"][0] is other_net.weight
    assert other.state[other_net.weight]["step"] == 1
    assert type(other) is Adam
