"""Bad input: where PyTorch raises, numgrad raises an error that the same ``except`` catches."""

from typing import Any

import numpy as np
import pytest
import torch

import numgrad
from tests_compare.checks import count, tensor


def v(t: Any, *shape: int, dtype: str = "float32", grad: bool = False) -> Any:
    """A tensor of small numbers."""
    return tensor(t, (np.arange(np.prod(shape)).reshape(shape) % 5 + 1).astype(dtype), grad)


def i(t: Any, *values: int) -> Any:
    """A vector of integers."""
    return tensor(t, np.array(values, np.int64))


BAD: list[tuple[str, Any]] = [
    # shapes
    ("add of (3, 4), (2,)", lambda t: v(t, 3, 4) + v(t, 2)),
    ("mul of (3, 4), (4, 3)", lambda t: v(t, 3, 4) * v(t, 4, 3)),
    ("where of (2,), (3,)", lambda t: t.where(v(t, 2) > 0, v(t, 3), v(t, 3))),
    ("add_ of (3,), (2, 3)", lambda t: v(t, 3).add_(v(t, 2, 3))),
    ("copy_ of (3,), (2,)", lambda t: v(t, 3).copy_(v(t, 2))),
    ("addcmul of shapes", lambda t: t.addcmul(v(t, 3), v(t, 2), v(t, 3))),
    ("lerp of shapes", lambda t: t.lerp(v(t, 3), v(t, 2), 0.5)),
    ("matmul of (3, 4), (3, 4)", lambda t: v(t, 3, 4) @ v(t, 3, 4)),
    ("matmul of (3, 4), (3,)", lambda t: v(t, 3, 4) @ v(t, 3)),
    ("matmul of batches", lambda t: v(t, 2, 3, 4) @ v(t, 5, 4, 2)),
    ("matmul of ()", lambda t: t.matmul(tensor(t, np.array(1.0)), v(t, 3))),
    ("mm of a vector", lambda t: t.mm(v(t, 3, 4), v(t, 4))),
    ("bmm of matrices", lambda t: t.bmm(v(t, 3, 4), v(t, 4, 3))),
    ("bmm of batches", lambda t: t.bmm(v(t, 2, 3, 4), v(t, 3, 4, 5))),
    ("mv of matrices", lambda t: t.mv(v(t, 3, 4), v(t, 4, 3))),
    ("dot of lengths", lambda t: t.dot(v(t, 3), v(t, 4))),
    ("linear of (5, 4), (3, 5)", lambda t: t.nn.functional.linear(v(t, 5, 4), v(t, 3, 5))),
    ("linear, bias", lambda t: t.nn.functional.linear(v(t, 5, 4), v(t, 3, 4), v(t, 4))),
    ("addmm of shapes", lambda t: t.addmm(v(t, 5, 5), v(t, 3, 4), v(t, 4, 2))),
    ("reshape to 5", lambda t: v(t, 6).reshape(5)),
    ("reshape to (-1, -1)", lambda t: v(t, 6).reshape(-1, -1)),
    ("reshape to (-1, 4)", lambda t: v(t, 6).reshape(-1, 4)),
    ("view of a transpose", lambda t: v(t, 3, 4).t().view(12)),
    ("expand of (3,) to 4", lambda t: v(t, 3).expand(4)),
    ("expand to fewer axes", lambda t: v(t, 3, 4).expand(4)),
    ("permute, too few", lambda t: v(t, 3, 4).permute(0)),
    ("permute, twice", lambda t: v(t, 3, 4).permute(0, 0)),
    ("t of 3 axes", lambda t: v(t, 2, 3, 4).t()),
    ("cat of shapes", lambda t: t.cat([v(t, 2, 3), v(t, 2, 4)])),
    ("cat of 0-dim", lambda t: t.cat([tensor(t, np.array(1.0))])),
    ("cat of nothing", lambda t: t.cat([])),
    ("stack of shapes", lambda t: t.stack([v(t, 2), v(t, 3)])),
    ("stack of nothing", lambda t: t.stack([])),
    ("split of sizes", lambda t: v(t, 6).split([2, 2])),
    ("flatten, reversed", lambda t: v(t, 2, 3).flatten(1, 0)),
    ("mse_loss of shapes", lambda t: t.nn.functional.mse_loss(v(t, 3), v(t, 2))),
    ("nll_loss of shapes", lambda t: t.nn.functional.nll_loss(v(t, 3, 4), i(t, 1, 2))),
    ("cross_entropy of shapes", lambda t: t.nn.functional.cross_entropy(v(t, 3, 4), i(t, 1))),
    (
        "cross_entropy, weight",
        lambda t: t.nn.functional.cross_entropy(v(t, 2, 4), i(t, 1, 2), weight=v(t, 3)),
    ),
    ("masked_select of shapes", lambda t: t.masked_select(v(t, 3), v(t, 2) > 0)),
    ("gather of axes", lambda t: t.gather(v(t, 3, 4), 0, i(t, 1))),
    ("gather, too long", lambda t: t.gather(v(t, 3, 2), 0, tensor(t, np.zeros((2, 3), np.int64)))),
    ("tensor of ragged rows", lambda t: t.tensor([[1, 2], [3]])),
    ("zeros(-1)", lambda t: t.zeros(-1)),
    ("masked_fill by a vector", lambda t: v(t, 3).masked_fill(v(t, 3) > 1, v(t, 2))),
    ("item of two", lambda t: v(t, 2).item()),
    ("bool of two", lambda t: bool(v(t, 2))),
    ("len of ()", lambda t: len(tensor(t, np.array(1.0)))),
    ("iter of ()", lambda t: list(tensor(t, np.array(1.0)))),
    ("inverted eye", lambda t: t.eye(-1)),
    # axes and indices
    ("sum over 2", lambda t: v(t, 3, 4).sum(2)),
    ("sum over -3", lambda t: v(t, 3, 4).sum(-3)),
    ("sum over (0, 0)", lambda t: v(t, 3, 4).sum((0, 0))),
    ("max over 5", lambda t: v(t, 3).max(5)),
    ("softmax over 2", lambda t: t.softmax(v(t, 3, 4), 2)),
    ("transpose of 2", lambda t: v(t, 3, 4).transpose(0, 2)),
    ("unsqueeze at 4", lambda t: v(t, 3, 4).unsqueeze(4)),
    ("squeeze of 3", lambda t: v(t, 3, 4).squeeze(3)),
    ("flip of 2", lambda t: v(t, 3, 4).flip(2)),
    ("cat over 2", lambda t: t.cat([v(t, 3, 4)], 2)),
    ("select of 3", lambda t: v(t, 3).select(0, 3)),
    ("narrow, too long", lambda t: v(t, 3).narrow(0, 2, 2)),
    ("[3]", lambda t: v(t, 3)[3]),
    ("[-4]", lambda t: v(t, 3)[-4]),
    ("[0, 0]", lambda t: v(t, 3)[0, 0]),
    ("[0] of ()", lambda t: tensor(t, np.array(1.0))[0]),
    ("[[3]]", lambda t: v(t, 3)[[3]]),
    ("[i] of -4", lambda t: v(t, 3)[i(t, -4)]),
    ("[1.0]", lambda t: v(t, 3)[1.0]),
    ("[floats]", lambda t: v(t, 3)[v(t, 2)]),
    ("[mask of (2,)]", lambda t: v(t, 3)[v(t, 2) > 0]),
    ("[i, j] of shapes", lambda t: v(t, 3, 3)[i(t, 0, 1), i(t, 0, 1, 2)]),
    ("[::-1]", lambda t: v(t, 3)[::-1]),
    ("[::0]", lambda t: v(t, 3)[::0]),
    ("['a']", lambda t: v(t, 3)["a"]),
    ("[3] = 1", lambda t: v(t, 3).__setitem__(3, 1)),
    ("[:2] = of 3", lambda t: v(t, 3).__setitem__(slice(0, 2), v(t, 3))),
    ("[mask] = of 3", lambda t: v(t, 3).__setitem__(v(t, 3) > 1, v(t, 3))),
    ("index_select of 3", lambda t: t.index_select(v(t, 3), 0, i(t, 3))),
    ("gather of 3", lambda t: t.gather(v(t, 3), 0, i(t, 3))),
    ("label 4 of 4", lambda t: t.nn.functional.cross_entropy(v(t, 1, 4), i(t, 4))),
    ("label -4 of 4", lambda t: t.nn.functional.cross_entropy(v(t, 1, 4), i(t, -4))),
    ("label -1 of 4", lambda t: t.nn.functional.nll_loss(v(t, 1, 4), i(t, -1))),
    ("amax of nothing", lambda t: t.zeros(0).amax()),
    ("max of nothing", lambda t: t.zeros(0).max()),
    ("max over an empty axis", lambda t: t.zeros(3, 0).max(1)),
    ("argmax of nothing", lambda t: t.zeros(0).argmax()),
    ("size of 2", lambda t: v(t, 3).size(2)),
    # dtypes
    ("mean of ints", lambda t: v(t, 3, dtype="int64").mean()),
    ("var of ints", lambda t: v(t, 3, dtype="int64").var()),
    ("norm of ints", lambda t: t.norm(v(t, 3, dtype="int64"))),
    ("softmax of ints", lambda t: t.softmax(v(t, 3, dtype="int64"), 0)),
    ("matmul of dtypes", lambda t: v(t, 3, 3) @ v(t, 3, 3, dtype="float64")),
    ("linear of dtypes", lambda t: t.nn.functional.linear(v(t, 3), v(t, 2, 3, dtype="float64"))),
    ("add_ of a float to ints", lambda t: v(t, 3, dtype="int64").add_(1.5)),
    ("div_ of ints", lambda t: v(t, 3, dtype="int64").div_(2)),
    ("exp_ of ints", lambda t: v(t, 3, dtype="int64").exp_()),
    ("mul_ of bools by ints", lambda t: v(t, 3, dtype="bool").mul_(2)),
    ("where of floats", lambda t: t.where(v(t, 3), v(t, 3), v(t, 3))),
    (
        "cross_entropy of int32",
        lambda t: t.nn.functional.cross_entropy(v(t, 2, 4), tensor(t, np.array([1, 2], np.int32))),
    ),
    ("nll_loss of float labels", lambda t: t.nn.functional.nll_loss(v(t, 2, 4), v(t, 2))),
    ("gather by floats", lambda t: t.gather(v(t, 3), 0, v(t, 3))),
    ("index_select by floats", lambda t: t.index_select(v(t, 3), 0, v(t, 3))),
    ("masked_fill by floats", lambda t: v(t, 3).masked_fill(v(t, 3), 1.0)),
    ("requires_grad of ints", lambda t: v(t, 3, dtype="int64").requires_grad_()),
    ("int to a negative power", lambda t: v(t, 3, dtype="int64") ** -1),
    ("int floor_divide by 0", lambda t: v(t, 3, dtype="int64") // 0),
    ("int remainder by 0", lambda t: v(t, 3, dtype="int64") % 0),
    ("dropout(1.5)", lambda t: t.nn.functional.dropout(v(t, 3), 1.5)),
    ("rand of ints", lambda t: t.rand(3, dtype=t.int64)),
    ("tensor of strings", lambda t: t.tensor(["a"])),
    ("tensor of None", lambda t: t.tensor(None)),
    ("& of floats", lambda t: v(t, 3) & v(t, 3)),
    ("~ of floats", lambda t: ~v(t, 3)),
    # no tensors, unknown keywords
    ("add of a string", lambda t: t.add(v(t, 3), "a")),
    ("+ None", lambda t: v(t, 3) + None),
    ("exp of a number", lambda t: t.exp(1.0)),
    ("matmul of a list", lambda t: t.matmul(v(t, 3), [1.0, 2.0, 3.0])),
    ("sum of a list", lambda t: t.sum([1.0])),
    ("cat of a number", lambda t: t.cat([1.0])),
    ("exp, a keyword", lambda t: t.exp(v(t, 3), dimension=1)),
    ("sum, a keyword", lambda t: t.sum(v(t, 3), dimensions=1)),
    ("clamp of nothing", lambda t: t.clamp(v(t, 3))),
    ("div, rounding_mode", lambda t: t.div(v(t, 3), 2, rounding_mode="up")),
    ("mse_loss, reduction", lambda t: t.nn.functional.mse_loss(v(t, 3), v(t, 3), reduction="all")),
    ("arange, step 0", lambda t: t.arange(0, 3, 0)),
    ("arange, wrong way", lambda t: t.arange(0, 3, -1)),
    ("randint, empty", lambda t: t.randint(3, 3, (2,))),
    ("normal_, std", lambda t: v(t, 3).normal_(0, -1)),
    ("from_numpy of a list", lambda t: t.from_numpy([1.0])),
    # the graph
    ("backward of a vector", lambda t: v(t, 3, grad=True).mul(2).backward()),
    ("backward of a constant", lambda t: v(t, 3).sum().backward()),
    ("backward twice", lambda t: twice(v(t, 3, grad=True))),
    ("backward, gradient's shape", lambda t: v(t, 3, grad=True).mul(2).backward(v(t, 2))),
    ("backward, a number", lambda t: v(t, 3, grad=True).mul(2).backward(1.0)),
    (
        "grad of an unused",
        lambda t: t.autograd.grad(v(t, 3, grad=True).sum(), [v(t, 3, grad=True)]),
    ),
    ("grad of a constant", lambda t: t.autograd.grad(v(t, 3, grad=True).sum(), [v(t, 3)])),
    ("in place on a leaf", lambda t: v(t, 3, grad=True).add_(1)),
    ("in place on a leaf's view", lambda t: v(t, 3, grad=True)[0].add_(1)),
    ("[0] = of a leaf", lambda t: v(t, 3, grad=True).__setitem__(0, 1)),
    ("exp, then in place", lambda t: exp_changed(v(t, 3, grad=True))),
    ("tanh_ twice", lambda t: tanh_twice(v(t, 3, grad=True))),
    ("mul, then in place", lambda t: changed_operand(v(t, 3, grad=True))),
    ("in place on an expanded", lambda t: v(t, 1).expand(4).add_(1)),
    ("numpy of requires_grad", lambda t: v(t, 3, grad=True).numpy()),
    (
        "requires_grad of a non-leaf",
        lambda t: setattr(v(t, 3, grad=True).mul(2), "requires_grad", False),
    ),
    ("a hook on a constant", lambda t: v(t, 3).register_hook(print)),
    ("grad of another shape", lambda t: setattr(v(t, 3, grad=True), "grad", v(t, 2))),
    (
        "grad of another dtype",
        lambda t: setattr(v(t, 3, grad=True), "grad", v(t, 3, dtype="float64")),
    ),
    ("out= of another dtype", lambda t: t.add(v(t, 3), v(t, 3), out=v(t, 3, dtype="int64"))),
    ("out= with a gradient", lambda t: t.add(v(t, 3, grad=True), 1, out=v(t, 3))),
    # layers and optimisers
    ("Linear of a wrong input", lambda t: t.nn.Linear(4, 3)(v(t, 5, 3))),
    ("load_state_dict, missing", lambda t: t.nn.Linear(2, 2).load_state_dict({})),
    (
        "load_state_dict, shape",
        lambda t: t.nn.Linear(2, 2).load_state_dict({"weight": v(t, 3, 3), "bias": v(t, 2)}),
    ),
    (
        "load_state_dict, unexpected",
        lambda t: t.nn.Linear(2, 2).load_state_dict(
            {"weight": v(t, 2, 2), "bias": v(t, 2), "x": v(t, 1)}
        ),
    ),
    (
        "load_state_dict of lists",
        lambda t: t.nn.Linear(2, 2).load_state_dict({"weight": v(t, 2, 2), "bias": [1.0, 2.0]}),
    ),
    ("load_state_dict of a number", lambda t: t.nn.Linear(2, 2).load_state_dict(3)),
    ("load_state_dict, expanded", lambda t: into_buffer(t, v(t, 1).expand(2))),
    ("load_state_dict, inference", lambda t: into_buffer(t, t.inference_mode()(v)(t, 2))),
    ("load_state_dict of SGD, groups", lambda t: into_sgd(t, {"state": {}, "param_groups": []})),
    (
        "load_state_dict of SGD, sizes",
        lambda t: into_sgd(t, {"state": {}, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}),
    ),
    ("an unknown attribute", lambda t: t.nn.Linear(2, 2).absent),
    ("a tensor as a parameter", lambda t: setattr(t.nn.Linear(2, 2), "weight", v(t, 2, 2))),
    ("Dropout(2)", lambda t: t.nn.Dropout(2)),
    ("SGD of nothing", lambda t: t.optim.SGD([], lr=0.1)),
    ("SGD of one tensor", lambda t: t.optim.SGD(v(t, 2, grad=True), lr=0.1)),
    ("SGD of a non-leaf", lambda t: t.optim.SGD([v(t, 2, grad=True) * 2], lr=0.1)),
    ("SGD, lr", lambda t: t.optim.SGD([v(t, 2, grad=True)], lr=-1)),
    ("SGD, nesterov", lambda t: t.optim.SGD([v(t, 2, grad=True)], lr=0.1, nesterov=True)),
    ("Adam, betas", lambda t: t.optim.Adam([v(t, 2, grad=True)], betas=(1.0, 0.9))),
    ("a parameter in two groups", lambda t: two_groups(t, v(t, 2, grad=True))),
    ("calculate_gain", lambda t: t.nn.init.calculate_gain("unknown")),
    ("Normal, scale", lambda t: t.distributions.Normal(0.0, -1.0)),
]


def twice(x: Any) -> None:
    y = (x * x).sum()
    y.backward()
    y.backward()


def tanh_twice(x: Any) -> None:
    x.clone().tanh_().tanh_().sum().backward()


def exp_changed(x: Any) -> None:
    y = x.exp()
    y.add_(1)
    y.sum().backward()


def changed_operand(x: Any) -> None:
    y = x * 1
    z = y * y
    y[0] = 3
    z.sum().backward()


def two_groups(t: Any, p: Any) -> None:
    t.optim.SGD([{"params": [p]}, {"params": [p]}], lr=0.1)


def into_buffer(t: Any, buffer: Any) -> None:
    module = t.nn.Module()
    module.register_buffer("b", buffer)
    module.load_state_dict({"b": v(t, 2)})


def into_sgd(t: Any, state: Any) -> None:
    t.optim.SGD([v(t, 2, grad=True)], lr=0.1).load_state_dict(state)


OURS_IS_WIDER = {
    # what numgrad computes on purpose, with the reason
    "cross_entropy of int32": "labels of any integer dtype are as good as int64",
    "exp of a number": "functions of one tensor take a number, too",
}
NOT_ASKED = "ValueError: a value, not a shape, dtype or index; PyTorch raises RuntimeError for all"
A_DTYPE = "TypeError: a wrong dtype is a TypeError everywhere in numgrad"
A_PLACE = "IndexError: a place or an axis that is not there"
OTHER_TYPES = {
    # where numgrad's type of error differs on purpose: (the type, the reason)
    "tensor of None": (TypeError, A_DTYPE),
    "tensor of strings": (TypeError, A_DTYPE),
    "rand of ints": (TypeError, A_DTYPE),
    "[1.0]": (TypeError, A_DTYPE),
    "[floats]": (TypeError, A_DTYPE),
    "zeros(-1)": (ValueError, NOT_ASKED),
    "inverted eye": (ValueError, NOT_ASKED),
    "item of two": (ValueError, "ValueError, as PyTorch raised up to 1.x"),
    "sum over (0, 0)": (ValueError, NOT_ASKED),
    "int to a negative power": (ValueError, NOT_ASKED),
    "clamp of nothing": (ValueError, NOT_ASKED),
    "div, rounding_mode": (ValueError, NOT_ASKED),
    "arange, step 0": (ValueError, NOT_ASKED),
    "arange, wrong way": (ValueError, NOT_ASKED),
    "randint, empty": (ValueError, NOT_ASKED),
    "normal_, std": (ValueError, NOT_ASKED),
    "cat of nothing": (TypeError, "TypeError: no list of tensors"),
    "stack of nothing": (TypeError, "TypeError: no list of tensors"),
    "narrow, too long": (IndexError, A_PLACE),
    "gather of 3": (IndexError, A_PLACE),
    "amax of nothing": (IndexError, A_PLACE),
    "max of nothing": (IndexError, A_PLACE),
    "int floor_divide by 0": (ZeroDivisionError, "PyTorch: RuntimeError('ZeroDivisionError')"),
    "int remainder by 0": (ZeroDivisionError, "the same"),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(("name", "call"), BAD, ids=[name for name, _ in BAD])
def test_error(name: str, call: Any) -> None:
    with pytest.raises(Exception) as theirs:
        call(torch)
    if name in OURS_IS_WIDER:
        call(numgrad)
        return
    with pytest.raises(Exception) as ours:
        call(numgrad)
    expected = OTHER_TYPES.get(name, (family(theirs.type),))[0]
    assert isinstance(ours.value, expected), f"{name}: {ours.value!r}, PyTorch: {theirs.value!r}"
    assert ours.type.__module__.split(".")[0] in ("builtins", "numgrad"), ours.type
    count("error", expected.__name__, "-", name, 0.0)


def family(kind: type) -> type:
    """The built-in class that an exception of PyTorch is caught as."""
    found = next(cls for cls in kind.__mro__ if cls.__module__ == "builtins")
    # Which dtypes PyTorch has no kernel for is no part of its interface.
    return RuntimeError if found is NotImplementedError else found
