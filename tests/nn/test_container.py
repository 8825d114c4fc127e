"""Containers register what they hold and behave as the list or dict they are named after."""

from collections import OrderedDict

import pytest

from numgrad import nn
from numgrad.ops.creation import ones, tensor
from numgrad.variable import Parameter


def modules(n):
    return [nn.Linear(1, i + 1) for i in range(n)]


@pytest.mark.parametrize("kind", [nn.ModuleList, lambda m: nn.Sequential(*m)])
def test_lists(kind):
    a, b, c, d = modules(4)
    box = kind([a, b, c])
    assert len(box) == 3 and list(box) == [a, b, c] and box[-1] is c and box[0] is a
    assert [n for n, _ in box.named_children()] == ["0", "1", "2"]
    assert list(box[1:]) == [b, c] and type(box[1:]) is type(box)
    box[1] = d
    assert list(box) == [a, d, c]
    assert box.append(b) is box and list(box) == [a, d, c, b]
    del box[0]
    assert list(box._modules.items()) == [("0", d), ("1", c), ("2", b)]
    box.insert(1, a)
    assert list(box) == [d, a, c, b] and list(box._modules) == ["0", "1", "2", "3"]
    assert box.pop() is b and box.pop(0) is d
    del box[:]
    assert len(box) == 0
    box.extend([a, b])
    assert list(box) == [a, b]
    for index in (2, -3):
        with pytest.raises(IndexError, match="out of range"):
            box[index]
    with pytest.raises(TypeError, match="int is not a Module subclass"):
        box.append(3)
    with pytest.raises(TypeError, match="expected an iterable"):
        box.extend(3)


def test_list_sums():
    a, b, c = modules(3)
    box = nn.ModuleList([a])
    box += [b]
    assert list(box) == [a, b] and list(box + [c]) == [a, b, c] and len(box) == 2
    with pytest.raises(NotImplementedError):
        box(1)


def test_sequential():
    net = nn.Sequential(OrderedDict(a=nn.Linear(2, 3), b=nn.ReLU()))
    assert list(net._modules) == ["a", "b"] and net.a is net[0]
    assert net(ones(4, 2)).shape == (4, 3) and nn.Sequential()(5) == 5
    assert list(net[:1]._modules) == ["a"]
    del net[0]
    assert list(net._modules) == ["b"]
    with pytest.raises(TypeError, match="builtin_function_or_method is not a Module subclass"):
        nn.Sequential(abs)


def test_module_dict():
    a, b, c = modules(3)
    box = nn.ModuleDict({"a": a, "b": b})
    assert list(box) == list(box.keys()) == ["a", "b"] and box["a"] is a and "b" in box
    box["c"] = c
    assert list(box.values()) == [a, b, c] and len(box) == 3
    assert [n for n, _ in box.named_parameters()][:2] == ["a.weight", "a.bias"]
    assert box.pop("c") is c
    del box["a"]
    box.update([("z", a)])
    box.update(nn.ModuleDict({"y": c}))
    assert list(box.items()) == [("b", b), ("z", a), ("y", c)]
    box.clear()
    assert len(box) == 0
    with pytest.raises(KeyError, match="already exists"):
        box["forward"] = a
    with pytest.raises(KeyError):
        box["none"]


def test_parameter_containers():
    p, q = Parameter(ones(2)), tensor([1.0])
    box = nn.ParameterList([p, q])
    assert box[0] is p and isinstance(box[1], Parameter) and len(list(box.parameters())) == 2
    box.append(ones(3))
    box[0] = ones(4)
    assert [tuple(x.shape) for x in box] == [(4,), (1,), (3,)] and len(box[1:]) == 2
    named = nn.ParameterDict({"p": p})
    named["q"] = q
    assert list(named) == ["p", "q"] and named["p"] is p and isinstance(named["q"], Parameter)
    assert list(named.state_dict()) == ["p", "q"] and "p" in named and len(named) == 2
    del named["p"]
    assert [n for n, _ in named.items()] == ["q"] == list(named.keys())
    assert repr(box).splitlines()[1] == "  (0): Parameter of shape (4,) and dtype float32"
