"""Modules: what is registered, how it is walked, called, switched and shown."""

import copy
import pickle

import numpy as np
import pytest

import numgrad
from numgrad import nn
from numgrad.graph import storage
from numgrad.ops.creation import ones, tensor, zeros
from numgrad.tensor import Tensor
from numgrad.variable import Parameter, Variable


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(4, 2, bias=False))
        self.scale = Parameter(tensor([2.0]))
        self.register_buffer("mean", zeros(4))

    def forward(self, x):
        return self.rest(self.first(x) - self.mean) * self.scale


NAMES = ["scale", "first.weight", "first.bias", "rest.1.weight"]


def test_walks():
    net = Net()
    assert [n for n, _ in net.named_parameters()] == NAMES
    assert [n for n, _ in net.named_parameters("net")] == [f"net.{n}" for n in NAMES]
    assert [n for n, _ in net.named_parameters(recurse=False)] == ["scale"]
    assert [n for n, _ in net.named_buffers()] == ["mean"]
    assert [n for n, _ in net.named_modules()] == ["", "first", "rest", "rest.0", "rest.1"]
    assert [n for n, _ in net.named_children()] == ["first", "rest"]
    assert list(net.children()) == [net.first, net.rest]
    assert next(net.modules()) is net and len(list(net.parameters())) == 4
    assert net.get_submodule("rest.1") is net.rest[1] and net.get_submodule("") is net
    assert net.get_parameter("first.bias") is net.first.bias
    assert net.get_buffer("mean") is net.mean
    for call, name in ((net.get_submodule, "rest.7"), (net.get_parameter, "first.mean")):
        with pytest.raises(AttributeError, match="has no"):
            call(name)


def test_shared_members_are_walked_once():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    net.add_module("again", net[0])
    assert [n for n, _ in net.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
    assert len(list(net.named_parameters(remove_duplicate=False))) == 6
    assert len(net.state_dict()) == 6
    assert len(list(net.modules())) == 3 and len(list(net.children())) == 2


def test_forward_against_numpy():
    net = Net()
    x = np.random.RandomState(0).randn(5, 3).astype(np.float32)
    w, b, v = (p.detach().numpy() for p in (net.first.weight, net.first.bias, net.rest[1].weight))
    expected = np.maximum(x @ w.T + b, 0) @ v.T * 2
    assert np.allclose(net(tensor(x)).detach().numpy(), expected, atol=1e-6)


def test_categories():
    net = Net()
    assert net.first.weight.storage.category == storage.PARAMETER
    assert net.mean.storage.category == storage.BUFFER
    net.double()
    assert net.first.weight.storage.category == storage.PARAMETER
    assert net.mean.storage.category == storage.BUFFER


# ------------------------------------------------------------------------------------ attributes


def test_assignment_registers_and_replaces():
    net = nn.Module()
    net.x = Parameter(ones(2))
    assert list(net._parameters) == ["x"] and "x" not in net.__dict__
    net.x = None
    assert net.x is None and list(net.parameters()) == []
    net.x = Parameter(ones(3))
    net.y = 5
    net.y = nn.Linear(1, 1)
    assert "y" not in net.__dict__ and list(net._modules) == ["y"]
    net.y = Parameter(ones(1))
    assert list(net._modules) == [] and list(net._parameters) == ["x", "y"]
    del net.y
    assert not hasattr(net, "y")
    net.plain = ones(2)  # a tensor alone is no buffer
    assert list(net.state_dict()) == ["x"]
    with pytest.raises(AttributeError):
        del net.nothing


def test_assignment_errors():
    net = Net()
    for value, name in (
        (ones(1), "numgrad.tensor.Tensor"),
        (3, "int"),
        (Variable(ones(1)), "numgrad.variable.Variable"),
    ):
        with pytest.raises(TypeError) as caught:
            net.scale = value
        assert str(caught.value).startswith(
            f"cannot assign '{name}' as parameter 'scale' (torch.nn.Parameter or None expected)"
        )
    with pytest.raises(
        TypeError, match=r"cannot assign 'int' as child module 'first' \(torch.nn.M"
    ):
        net.first = 3
    with pytest.raises(
        TypeError, match=r"cannot assign 'float' as buffer 'mean' \(torch.Tensor or"
    ):
        net.mean = 1.5
    assert isinstance(net.scale, Parameter) and net.mean.shape == (4,)


def test_missing_attribute():
    layer = nn.Linear(2, 2)
    with pytest.raises(
        AttributeError, match=r"^'Linear' object has no attribute 'weigth'$"
    ) as caught:
        layer.weigth
    assert caught.value.name == "weigth" and caught.value.obj is layer  # so Python suggests weight
    assert {"weight", "bias", "forward"} <= set(dir(layer))
    assert "0" not in dir(nn.Sequential(layer))
    assert not hasattr(layer, "weigth")


class Early(nn.Module):
    def __init__(self, what):
        if what == "module":
            self.layer = nn.Linear(1, 1)
        elif what == "parameter":
            self.weight = Parameter(ones(1))
        elif what == "buffer":
            self.register_buffer("x", ones(1))
        else:
            self.plain = 3


def test_before_init():
    with pytest.raises(
        AttributeError, match=r"cannot assign module before Module.__init__\(\) call"
    ):
        Early("module")
    with pytest.raises(
        AttributeError, match=r"cannot assign parameters before Module.__init__\(\)"
    ):
        Early("parameter")
    with pytest.raises(AttributeError, match=r"register_buffer.*super\(\).__init__\(\)"):
        Early("buffer")
    net = Early("nothing")  # a plain attribute is fine
    with pytest.raises(AttributeError, match=r"call super\(\).__init__\(\) at the start of Early"):
        net(1)
    with pytest.raises(AttributeError, match=r"super\(\).__init__\(\)"):
        list(net.parameters())


def test_requires_grad_cannot_be_assigned():
    net = Net()
    with pytest.raises(AttributeError, match=r"use module.requires_grad_\(False\)"):
        net.requires_grad = False
    net.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())
    net.requires_grad_()
    assert all(p.requires_grad for p in net.parameters())


@pytest.mark.parametrize("make", [list, tuple, lambda x: dict(enumerate(x)), lambda x: [list(x)]])
@pytest.mark.parametrize("kind", ["Module", "Parameter"])
def test_plain_containers_warn(make, kind):
    net = nn.Module()
    items = [nn.ReLU()] if kind == "Module" else [Parameter(ones(1))]
    with pytest.warns(
        UserWarning, match=rf"Module.layers: expected a numgrad.nn.{kind}(List|Dict)"
    ) as w:
        net.layers = make(items)
    assert w[0].filename == __file__
    assert list(net.children()) == []


def test_plain_containers_of_registered_modules_do_not_warn():
    net = Net()
    net.order = [net.rest, net.first]
    net.sizes = [1, (2, 3), {"a": zeros(1)}]
    net.empty = []


def test_registration_errors():
    net = Net()
    for register, value in (
        (net.register_buffer, zeros(1)),
        (net.register_parameter, Parameter(zeros(1))),
        (net.add_module, nn.ReLU()),
    ):
        with pytest.raises(KeyError, match="already exists"):
            register("forward", value)
        with pytest.raises(KeyError, match=r"name can.+t contain"):
            register("a.b", value)
        with pytest.raises(KeyError, match=r"name can.+t be empty"):
            register("", value)
        with pytest.raises(TypeError, match="should be a string"):
            register(3, value)
        register("none", None)
        assert net.none is None
        delattr(net, "none")
    with pytest.raises(TypeError, match="cannot assign 'list' object to buffer 'x'"):
        net.register_buffer("x", [1])
    with pytest.raises(
        TypeError, match=r"cannot assign 'numgrad.tensor.Tensor' object to parameter"
    ):
        net.register_parameter("x", zeros(1))
    with pytest.raises(TypeError, match="int is not a Module subclass"):
        net.add_module("x", 3)


# --------------------------------------------------------------------------------------- buffers


def test_buffers():
    net = nn.Module()
    net.register_buffer("kept", zeros(2))
    net.register_buffer("left_out", zeros(2), persistent=False)
    assert list(net.state_dict()) == ["kept"] and len(list(net.buffers())) == 2
    net.kept = ones(2)
    assert net.kept.storage.category == storage.BUFFER and list(net._buffers) == [
        "kept",
        "left_out",
    ]


def test_contagion_stops_at_buffers():
    net = nn.Module()
    x = Variable(ones(2), volatile=True)
    net.register_buffer("a", x)
    net.register_buffer("b", zeros(2))
    net.b = x * 2
    for buffer in (net.a, net.b):
        assert type(buffer) is Tensor and not buffer.volatile
    net.a.zero_()
    assert x.data.numpy().tolist() == [0, 0]  # the same memory
    net.b.mul_(0.5).add_(x)
    assert type(net.b) is Tensor and not net.b.volatile and net.b.numpy().tolist() == [1, 1]
    y = Parameter(ones(2)) * net.b
    assert y.requires_grad and type(y) is Tensor


# --------------------------------------------------------------------------------- calls and hooks


def test_forward_is_required():
    with pytest.raises(
        NotImplementedError, match=r'Module \[Module\] is missing the required "forward"'
    ):
        nn.Module()(1)


class Double(nn.Module):
    def forward(self, x, extra=0):
        return 2 * x + extra


def test_hooks():
    calls = []
    net = Double()
    a = net.register_forward_pre_hook(lambda m, args: calls.append(("pre", m is net, args)))
    b = net.register_forward_hook(lambda m, args, out: calls.append(("post", args, out)))
    assert net(3) == 6 and calls == [("pre", True, (3,)), ("post", (3,), 6)]
    a.remove()
    b.remove()
    b.remove()
    assert net(3) == 6 and len(calls) == 2


def test_hooks_replace():
    net = Double()
    with net.register_forward_pre_hook(lambda m, args: args[0] + 1):
        assert net(3) == 8
        net.register_forward_pre_hook(lambda m, args: (args[0] * 10,), prepend=True)
        assert net(3) == 62
    net.register_forward_hook(lambda m, args, out: out + 0.5)
    net.register_forward_hook(lambda m, args, out: -out)
    assert net(3) == -60.5


def test_hooks_with_keywords():
    net = Double()
    net.register_forward_pre_hook(lambda m, args, kwargs: (args, {"extra": 100}), with_kwargs=True)
    seen = []
    net.register_forward_hook(lambda m, args, kwargs, out: seen.append(kwargs), with_kwargs=True)
    assert net(3, extra=1) == 106 and seen == [{"extra": 100}]
    net.register_forward_pre_hook(lambda m, args, kwargs: 3, with_kwargs=True)
    with pytest.raises(RuntimeError, match=r"expected None or \(args, kwargs\)"):
        net(3)
    with pytest.raises(TypeError, match="expected a function for hook"):
        net.register_forward_hook(3)


def test_hook_that_removes_itself():
    net = Double()
    handles = [net.register_forward_hook(lambda *a: handles[0].remove()) for _ in range(2)]
    assert net(1) == 2 and len(net._post_hooks) == 1


# ----------------------------------------------------------------------------------------- modes


def test_train_and_eval():
    net = Net()
    assert net.training and net.eval() is net
    assert not any(m.training for m in net.modules())
    net.train()
    assert all(m.training for m in net.modules())
    with pytest.raises(ValueError, match="training mode is expected to be boolean"):
        net.train(1)


def test_freeze():
    net = Net()
    net.first.bias.requires_grad_(False)
    assert net.first.freeze() is net.first
    net.train()
    assert net.training and net.rest.training and not net.first.training
    assert not net.first.weight.requires_grad and net.rest[1].weight.requires_grad
    net.freeze()
    net.train()
    assert not any(m.training for m in net.modules())
    assert not any(p.requires_grad for p in net.parameters())
    net.unfreeze()
    assert all(m.training for m in net.modules())
    assert [n for n, p in net.named_parameters() if not p.requires_grad] == ["first.bias"]
    net.freeze().eval()
    assert not net.unfreeze().training and not net.rest.training


def test_freeze_survives_copies():
    net = copy.deepcopy(nn.Sequential(nn.Dropout()).freeze())
    assert not net.train().training and net.unfreeze().training


def test_zero_grad():
    net = Net()
    net(ones(2, 3)).sum().backward()
    grads = [p.grad for p in net.parameters()]
    assert all(g is not None for g in grads)
    net.zero_grad(set_to_none=False)
    assert all(p.grad is g and not g.numpy().any() for p, g in zip(net.parameters(), grads))
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())


def test_apply():
    seen = []
    net = Net()
    assert net.apply(seen.append) is net
    assert seen == [net.first, net.rest[0], net.rest[1], net.rest, net]


# ----------------------------------------------------------------------------------------- casts


def test_casts():
    net = Net()
    net.register_buffer("count", tensor([3]))
    weight, values = net.first.weight, net.first.weight.detach().numpy().copy()
    net(ones(2, 3)).sum().backward()
    for change, dtype in (
        (lambda: net.double(), "float64"),
        (lambda: net.float(), "float32"),
        (lambda: net.to("float64" and np.float64), "float64"),
        (lambda: net.to(net.scale.detach().float()), "float32"),
        (lambda: net.to("cpu", np.dtype("float64")), "float64"),
        (lambda: net.to(device="cpu", dtype=np.float32, non_blocking=True), "float32"),
    ):
        assert change() is net
        assert net.first.weight is weight and weight.is_leaf and weight.requires_grad
        for value in (weight, weight.grad, net.mean):
            assert value.dtype == dtype
        assert net.count.dtype == "int64"
    assert np.array_equal(weight.detach().numpy(), values)
    assert net.cpu() is net and isinstance(weight, Parameter)
    for bad in (np.int64, 3.5, "float77"):
        with pytest.raises((TypeError, ValueError)):
            net.to(bad)
    with pytest.raises(TypeError, match="only accepts floating point dtypes"):
        net.to(np.int64)
    with pytest.raises(TypeError, match="for a keyword, got 'colour'"):
        net.to(colour=1)


def test_type_changes_all():
    net = nn.Module()
    net.register_buffer("count", tensor([3]))
    net.type(numgrad.DoubleTensor)
    assert net.count.dtype == "float64"
    net.type("numgrad.FloatTensor")
    assert net.count.dtype == "float32"


# ------------------------------------------------------------------------------- copies and shows


@pytest.mark.parametrize("through", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies(through):
    net = Net().eval()
    other = through(net)
    assert type(other) is Net and not other.rest.training
    assert [n for n, _ in other.named_parameters()] == NAMES
    for a, b in zip(net.state_dict().values(), other.state_dict().values()):
        assert np.array_equal(a.numpy(), b.numpy()) and a.storage is not b.storage
    assert all(isinstance(p, Parameter) and p.requires_grad for p in other.parameters())
    other.first.weight.data.zero_()
    assert net.first.weight.detach().numpy().any()
    x = ones(2, 3)
    assert other(x).shape == (2, 2)


def test_copies_keep_ties():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    other = copy.deepcopy(net)
    assert other[1].weight is other[0].weight is not net[0].weight


REPR = """\
Net(
  (first): Linear(in_features=3, out_features=4, bias=True)
  (rest): Sequential(
    (0): ReLU()
    (1): Linear(in_features=4, out_features=2, bias=False)
  )
)"""


def test_repr():
    assert repr(Net()) == REPR
    assert repr(nn.Module()) == "Module()"
    assert repr(nn.Dropout(0.1)) == "Dropout(p=0.1, inplace=False)"
    assert repr(nn.ReLU(inplace=True)) == "ReLU(inplace=True)"
    layers = nn.ModuleList([nn.Linear(1, 2), nn.Linear(1, 2), nn.Tanh()])
    assert repr(layers) == (
        "ModuleList(\n  (0-1): 2 x Linear(in_features=1, out_features=2, bias=True)\n"
        "  (2): Tanh()\n)"
    )
    assert repr(nn.ModuleList()) == "ModuleList()" and repr(nn.Sequential()) == "Sequential()"
