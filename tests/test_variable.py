"""Variable and Parameter: the rules of PyTorch up to 0.3, one test a rule."""

import copy
import pickle

import numpy as np
import pytest

import numgrad
from numgrad import FloatTensor, Tensor, Variable, no_grad, ones, tensor
from numgrad.graph.node import counters
from numgrad.graph.storage import BUFFER
from numgrad.nn import Linear, Module
from numgrad.variable import Parameter


def var(*values, **flags):
    return Variable(tensor(values or (1.0, 2.0, 3.0)), **flags)


class Named(Variable):
    """A subclass that takes more than Variable does."""

    def __new__(cls, data, name, requires_grad=False, unit=None):
        return super().__new__(cls, data, requires_grad, False, name, unit=unit)

    def __init__(self, data, name, requires_grad=False, unit=None):
        super().__init__(data, requires_grad, False, name, unit=unit)
        self.name, self.unit = name, unit


# -------------------------------------------------------------------------------------- constructor


def test_positional_order():
    assert Variable(ones(2), True).requires_grad
    x = Variable(ones(2), False, True)
    assert x.volatile and not x.requires_grad


def test_defaults():
    x = var()
    assert (x.requires_grad, x.volatile, x.creator, x.grad, x.is_leaf) == (
        False,
        False,
        None,
        None,
        True,
    )
    p = Linear(2, 2).weight
    assert p.requires_grad and not p.volatile


def test_both_flags():
    with pytest.raises(RuntimeError) as error:
        var(requires_grad=True, volatile=True)
    assert str(error.value) == "Variable can't be volatile and require_grad at the same time!"


@pytest.mark.parametrize(
    "data", [[1.0], 3, "x", (ones(2),), object()], ids=lambda d: type(d).__name__
)
def test_data_that_is_no_tensor(data):
    name = type(data).__name__
    with pytest.raises(RuntimeError, match=f"^Variable data has to be a tensor, but got {name}"):
        Variable(data)


@pytest.mark.parametrize("name", ["requires_grad", "volatile"])
def test_flags_must_be_bool(name):
    with pytest.raises(RuntimeError, match=f"^{name} must be a bool"):
        Variable(ones(2), **{name: 1})
    with pytest.raises(RuntimeError, match=f"^{name} must be a bool"):
        setattr(var(), name, "yes")


def test_takes_arrays_variables_and_nothing():
    array = np.zeros(3, np.float32)
    Variable(array).data.fill_(7)
    assert array.tolist() == [7.0] * 3
    x = var(requires_grad=True)
    y = Variable(x)
    assert y is not x and not y.requires_grad and y.data_ptr() == x.data_ptr()
    assert Variable().shape == (0,)


def test_subclass_passes_more_arguments():
    x = Named(ones(2), "weight", True, unit="m")
    assert (x.name, x.unit, x.requires_grad, x.volatile) == ("weight", "m", True, False)
    assert type(x * 2) is Variable
    assert isinstance(x, Variable) and isinstance(x, Tensor)


# ------------------------------------------------------------------------------------------ setters


def test_setters_do_not_check_each_other_and_volatile_wins():
    x = var(requires_grad=True)
    x.volatile = True
    assert x.requires_grad and x.volatile
    y = x * 2
    assert y.volatile and not y.requires_grad and y.grad_fn is None
    z = var(volatile=True)
    z.requires_grad = True
    assert z.volatile and z.requires_grad and (z + 1).volatile
    x.mul_(2)  # volatile wins: no leaf that a graph could need
    assert x.tolist() == [2, 4, 6]


def test_volatile_of_a_non_leaf():
    y = var(requires_grad=True) * 2
    with pytest.raises(RuntimeError, match=r"^volatile can only be set on leaf variables"):
        y.volatile = True


@pytest.mark.parametrize("value", [True, False])
def test_requires_grad_of_a_non_leaf(value):
    y = var(requires_grad=True) * 2
    with pytest.raises(
        RuntimeError, match=r"^you can only change requires_grad flags of leaf variables."
    ) as error:
        y.requires_grad = value
    assert ("detach()" in str(error.value)) == (not value)
    assert y.requires_grad_() is y


def test_volatile_result_is_a_leaf_that_can_be_made_a_constant():
    w = Parameter(ones(3))
    y = w * var(volatile=True)
    assert y.is_leaf and y.volatile
    y.volatile = False
    loss = (w * y).sum()
    loss.backward()
    assert w.grad.tolist() == [1, 2, 3]


# -------------------------------------------------------------------------------------- propagation

UNARY = {
    "slice": lambda x: x[1:],
    "index": lambda x: x[numgrad.tensor([0, 2])],
    "item": lambda x: x[0],
    "float": lambda x: x.double().float(),
    "type": lambda x: x.type("numgrad.DoubleTensor"),
    "cpu": lambda x: x.cpu(),
    "view": lambda x: x.view(3, 1),
    "detach": lambda x: x.detach(),
    "clone": lambda x: x.clone(),
    "neg": lambda x: -x,
    "sum": lambda x: x.sum(),
    "max": lambda x: x.max(0)[0],
    "compare": lambda x: x > 1,
    "mean": lambda x: x.mean(0, keepdim=True),
    "chunk": lambda x: x.chunk(3)[1],
    "cat": lambda x: numgrad.cat([ones(2), x]),
    "softmax": lambda x: numgrad.softmax(x, 0),
}


@pytest.mark.parametrize("name", UNARY)
def test_volatile_is_contagious(name):
    w = Parameter(ones(3))
    before = counters.nodes
    y = UNARY[name](w * var(volatile=True) + w)
    assert y.volatile and not y.requires_grad and y.creator is None and y.grad_fn is None
    assert type(y) is Variable and y.is_leaf
    assert counters.nodes == before


def test_one_volatile_input_beats_any_number_of_parameters():
    layer = Linear(3, 2)
    y = layer(Variable(ones(4, 3), volatile=True))
    assert y.volatile and not y.requires_grad and y.creator is None
    y = layer(Variable(ones(4, 3)))
    assert y.requires_grad and not y.volatile and y.creator is not None
    assert type(y) is Variable


def test_data_is_a_plain_tensor_without_flags():
    x = var(volatile=True)
    assert type(x.data) is Tensor and not x.data.volatile
    assert not Variable(x.data).volatile
    y = var(requires_grad=True)
    assert not y.data.requires_grad and y.data.data_ptr() == y.data_ptr()


# ----------------------------------------------------------------------------------------- in place


IN_PLACE = {
    "add_": lambda x, v: x.add_(v),
    "mul_": lambda x, v: x.mul_(v),
    "copy_": lambda x, v: x.copy_(v),
    "setitem": lambda x, v: x.__setitem__(slice(0, 3), v),
    "setitem_int": lambda x, v: x.__setitem__(0, v[0]),
    "setitem_mask": lambda x, v: x.__setitem__(x > 0, v),
    "setitem_places": lambda x, v: x.__setitem__(tensor([2, 0, 1]), v),
    "addcmul_": lambda x, v: x.addcmul_(v, v),
    "view": lambda x, v: x[1:].add_(v[1:]),
    "view_of_view": lambda x, v: x.view(3, 1)[1:].mul_(v.view(3, 1)[1:]),
    "double": lambda x, v: x.add_(v.double()),
    "masked_fill_": lambda x, v: x.masked_fill_(v > 1, 5.0),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_variable_written_to_by_a_volatile_becomes_volatile(name):
    w = Parameter(ones(3))
    x = var() * w
    view = x[:1]
    called = []
    x.register_hook(called.append)
    x.retain_grad()
    x.grad = ones(3)
    IN_PLACE[name](x, var(volatile=True))
    assert x.volatile and x.grad_fn is None and not x.requires_grad and x.is_leaf
    assert view.volatile and view.grad_fn is None
    assert x.grad is None
    assert "volatile: through" in numgrad.explain(x)
    with pytest.raises(RuntimeError, match=r"^element 0 of variables tuple is volatile"):
        x.sum().backward()
    assert called == []


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("kind", ["tensor", "buffer"])
def test_others_take_the_value_and_keep_flags(name, kind):
    w = Parameter(ones(3))
    if kind == "tensor":
        x = tensor([1.0, 2.0, 3.0])
    else:
        x = var()
        module = Module()
        module.register_buffer("running", x)
        assert x.storage.category == BUFFER
    x = x if kind == "buffer" else x * w
    volatile = IN_PLACE[name]
    expected_x = (tensor([1.0, 2.0, 3.0]) * w.detach()).requires_grad_()
    expected = expected_x.clone()
    volatile(x, var(volatile=True))
    volatile(expected, tensor([1.0, 2.0, 3.0]))
    assert not x.volatile and x.requires_grad == (kind == "tensor")
    assert x.tolist() == expected.tolist()
    if kind == "tensor":
        x.sum().backward()
        expected.sum().backward()
        want = numgrad.zeros(3) if expected_x.grad is None else expected_x.grad
        got = numgrad.zeros(3) if w.grad is None else w.grad
        assert got.tolist() == (want * tensor([1.0, 2.0, 3.0])).tolist()


def test_a_parameter_takes_a_volatile_value_under_no_grad():
    p = Parameter(ones(3))
    with no_grad():
        p.copy_(var(volatile=True))
    assert p.requires_grad and not p.volatile and p.tolist() == [1, 2, 3] and p.is_leaf
    with pytest.raises(RuntimeError, match=r"^a leaf Variable that requires grad has been used"):
        p.copy_(var(volatile=True))


def test_running_statistics_do_not_poison_training():  # values.md row 35
    module = Module()
    module.register_buffer("running", numgrad.zeros(3))
    module.weight = Parameter(ones(3))
    module.running.mul_(0.9).add_(var(volatile=True))
    assert not module.running.volatile
    loss = (module.weight * module.running).sum()
    loss.backward()
    assert module.weight.grad.tolist() == [1, 2, 3]


# ------------------------------------------------------------------------------- shapes, as numbers


REDUCED = {
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "max": lambda x: x.max(),
    "item": lambda x: x[0],
    "dot": lambda x: x.dot(x),
    "norm": lambda x: x.norm(),
    "mse": lambda x: numgrad.mse_loss(x, x * 0.5),
    "along": lambda x: x.sum(0),
    "nll": lambda x: numgrad.nll_loss(x.view(1, 3), tensor([1])),
}


@pytest.mark.parametrize("name", REDUCED)
def test_what_would_be_0_dim_has_one_element(name):
    leaf = var(requires_grad=True)
    twin = tensor([1.0, 2.0, 3.0], requires_grad=True)
    y, z = REDUCED[name](leaf), REDUCED[name](twin)
    assert type(y) is Variable and y.shape == (1,) and y.size() == (1,)
    assert type(z) is Tensor and z.shape == ()
    seen = []
    y.register_hook(seen.append)
    y.retain_grad()
    y.backward()
    z.backward()
    assert [type(g) for g in seen] == [Variable] and seen[0].shape == (1,)
    assert type(y.grad) is Variable and y.grad.shape == (1,)
    assert type(leaf.grad) is Variable and leaf.grad.shape == (3,)
    assert leaf.grad.tolist() == twin.grad.tolist()


def test_copying_between_the_two_shapes():
    zero_dim, one = tensor(2.0), Variable(tensor([5.0]))
    zero_dim.copy_(one)
    assert zero_dim.shape == () and zero_dim.item() == 5
    one.data.copy_(tensor(3.0))
    assert one.tolist() == [3.0]
    x = numgrad.zeros(3)
    x[0] = one
    assert x.tolist() == [3, 0, 0]
    p = tensor(1.0, requires_grad=True)
    p.grad = Variable(tensor([4.0]))
    assert p.grad.tolist() == [4.0]
    total = Variable(tensor(1.0))
    assert total.shape == (1,)
    total += tensor(2.0)
    assert total.tolist() == [3.0]


def test_gradient_of_the_other_shape():
    loss = var(requires_grad=True).sum()
    loss.backward(FloatTensor([1]))
    y = (tensor([1.0, 2.0], requires_grad=True) * 2).sum()
    y.backward(FloatTensor([3]))
    with pytest.raises(RuntimeError, match=r"shape"):
        (var(requires_grad=True) * 2).backward(FloatTensor([1, 2]))


def test_variables_mix_with_tensors_and_numbers():
    x = var(requires_grad=True)
    for y in (x + tensor(1.0), 2 * x, tensor([1.0, 1.0, 1.0]) - x, x @ tensor([1.0, 0.0, 0.0])):
        assert type(y) is Variable
    assert type(tensor([1.0]).add_(var(2.0))) is Tensor


# ------------------------------------------------------------------------------------------- class


def test_parameter_passes_for_a_variable_and_is_not_contagious():
    p = Parameter(ones(3))
    assert isinstance(p, Variable) and isinstance(p, Tensor) and isinstance(p, Parameter)
    assert not isinstance(ones(3), Variable) and not issubclass(Parameter, Variable)
    assert type(p * 2) is Tensor and not isinstance(p * 2, Variable)
    assert (p * 2).sum().shape == ()
    assert not isinstance(p, Named)
    assert type(p.data) is Tensor and type(p.detach()) is Tensor


def test_type_of_results():
    x = var()
    assert type(x * 2) == Variable  # noqa: E721
    assert type(x.detach()) is Variable
    assert repr(x) == "Variable([1., 2., 3.])"
    assert "volatile=True" in repr(var(volatile=True))


def test_gradient_of_a_variable_reads_as_volatile():
    x = var(requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad.volatile and not x.grad.requires_grad
    y = x.grad * 2  # and nothing else depends on it
    assert not y.volatile
    loss = (x * x.grad).sum()
    loss.backward()
    p = Parameter(ones(2))
    (p * 2).sum().backward()
    assert type(p.grad) is Tensor and not p.grad.volatile
    x.grad.volatile = False
    assert not x.grad.volatile


def test_copies_and_pickle():
    for x in (var(requires_grad=True), var(volatile=True), Named(ones(2), "n", True)):
        for y in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
            assert type(y) is type(x) and y.tolist() == x.tolist()
            assert (y.requires_grad, y.volatile) == (x.requires_grad, x.volatile)
            assert y.__dict__ == x.__dict__
    assert copy.copy(x).data_ptr() == x.data_ptr() != copy.deepcopy(x).data_ptr()


@pytest.mark.parametrize("do", [copy.deepcopy, lambda x: copy.deepcopy({"a": [x]})])
def test_deepcopy_of_a_non_leaf(do):
    with pytest.raises(
        RuntimeError,
        match=r"^Only Variables created explicitly by the user \(graph leaves\) support the "
        "deepcopy protocol at the moment",
    ):
        do(var(requires_grad=True) * 2)


def test_deepcopy_copies_the_gradient_and_shares_within_one_copy():
    x = var(requires_grad=True)
    (x * 3).sum().backward()
    a, b = copy.deepcopy([x, x])
    assert a is b and a.grad.tolist() == [3, 3, 3] and a.grad is not x.grad
    a.grad.zero_()
    assert x.grad.tolist() == [3, 3, 3]


@pytest.mark.parametrize("cls", [Variable, Parameter])
def test_bad_flags_change_nothing(cls):
    with pytest.raises(RuntimeError, match=r"floating"):
        cls(tensor([1, 2]), requires_grad=True)
    with pytest.raises((TypeError, RuntimeError)):
        cls([1.0])
