"""Tensor: the number protocol, conversion, flags, gradients, copies, printing."""

import copy
import pickle

import numpy as np
import pytest

import numgrad
from numgrad import Tensor, Variable, no_grad, ones, tensor, zeros
from numgrad.variable import Parameter


def leaf():
    return tensor([1.0, 2.0, 3.0], requires_grad=True)


# ------------------------------------------------------------------------------------- as a number


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_element_behaves_like_a_number(shape):
    x = numgrad.full(shape, 2.5)
    n = numgrad.full(shape, 3)
    assert float(x) == 2.5 and int(x) == 2 and bool(x) and not bool(x * 0)
    old_style = "%d %.1f"
    assert f"{x:.2f}" == "2.50" and f"{n:04d}" == "0003" and old_style % (n, x) == "3 2.5"
    assert f"{x:>6}" == "   2.5" and round(float(x)) == 2
    assert x > 2 and not x > 3 and x == 2.5 and 2 < x < 3
    assert x.item() == 2.5 and type(n.item()) is int and type(n.bool().item()) is bool
    assert [10, 11, 12, 13][n] == 13 and list(range(n)) == [0, 1, 2]
    assert float(tensor([2.5], requires_grad=True)) == 2.5
    assert sum([x, x]) == 5


def test_a_0_dim_tensor_has_no_axes():
    x = tensor(2.5)
    with pytest.raises(IndexError, match=r"invalid index of a 0-dim tensor"):
        x[0]
    with pytest.raises(TypeError, match=r"^len: expected a tensor with axes"):
        len(x)
    with pytest.raises(TypeError, match=r"^iteration over a 0-d tensor"):
        iter(x)
    assert Variable(x)[0].item() == 2.5 and len(Variable(x)) == 1  # legacy: loss[0]
    assert x[()].item() == x[...].item() == 2.5 and x[None].shape == (1,)


@pytest.mark.parametrize("shape", [(2,), (0,), (2, 2)])
def test_others_do_not(shape):
    x = ones(shape)
    with pytest.raises(ValueError, match=r"^item: expected one element for x"):
        x.item()
    for convert in (float, int):
        with pytest.raises(ValueError, match=r"expected one element"):
            convert(x)
    held = "more than one value" if x.numel() else "no values"
    with pytest.raises(RuntimeError, match=f"^Boolean value of Tensor with {held} is ambiguous"):
        bool(x)
    with pytest.raises(TypeError, match=r"^index: expected one integer"):
        range(x.long())
    with pytest.raises(TypeError, match=r"^index: expected one integer"):
        range(ones(1))


def test_iteration_and_membership():
    x = tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    a, b = x
    assert a.tolist() == [1, 2] and b.requires_grad and len(x) == 2
    assert 3 in x and 5 not in x
    assert len({x, x, a}) == 2 and x is not None


# ------------------------------------------------------------------------------- shape, conversion


def test_shape_and_size():
    x = zeros(2, 3)
    assert x.size() == (2, 3) == x.shape and x.size(-1) == 3 and x.dim() == x.ndim == 2
    assert x.numel() == x.nelement() == 6 and x.element_size() == 4 and x.stride() == (3, 1)
    assert x.t().stride(0) == 1 and x.is_contiguous() and not x.t().is_contiguous()
    assert x.device == "cpu" and not x.is_cuda and x.is_floating_point()
    with pytest.raises(IndexError, match=r"^size: expected dim"):
        x.size(2)


def test_numpy_shares_memory():
    x = ones(3)
    a = x.numpy()
    a[0] = 5
    x[1] = 7
    assert x.tolist() == [5, 7, 1] == a.tolist()
    assert (
        np.asarray(x).tolist() == [5, 7, 1] and np.asarray(x, dtype=np.float64).dtype == np.float64
    )
    for mix in (lambda: np.ones(3) + x, lambda: x * np.ones(3), lambda: x @ np.ones(3)):
        with pytest.raises(
            TypeError, match=r"expected a Tensor or a number for an operand, got ndar"
        ):
            mix()
    copied = np.array(x)
    copied[0] = 9
    assert x[0].item() == 5 and Variable(x).numpy().tolist() == [5, 7, 1]
    with pytest.raises(RuntimeError, match=r"^Can't call numpy\(\) on Tensor that requires grad"):
        leaf().numpy()
    with pytest.raises(RuntimeError, match=r"requires grad"):
        np.asarray(leaf())
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        with pytest.raises(ValueError, match=r"^asarray: expected dtype float32"):
            np.asarray(x, dtype=np.float64, copy=False)


def test_conversion():
    x = leaf()
    assert x.double().dtype == numgrad.float64 and x.float() is x and x.long().tolist() == [1, 2, 3]
    assert x.type() == "numgrad.FloatTensor" and x.type("torch.DoubleTensor").dtype == "float64"
    assert x.type(numgrad.LongTensor).dtype == numgrad.int64 and x.type_as(x.int()).dtype == "int32"
    assert (
        x.to("cpu") is x.cpu() is x.to(x) is x and x.to("cpu", numgrad.float64).dtype == "float64"
    )
    assert x.to(dtype=numgrad.int32).dtype == "int32" and x.to(x, copy=True) is not x
    y = x.double()
    (y * y).sum().backward()
    assert x.grad.tolist() == [2, 4, 6] and x.grad.dtype == numgrad.float32
    assert not x.long().requires_grad
    with pytest.raises(TypeError, match=r"^to: expected one of float32"):
        x.to("float16")


# -------------------------------------------------------------------------------- flags, gradients


def test_requires_grad():
    x = ones(2)
    assert x.requires_grad_() is x and x.requires_grad
    x.requires_grad = False
    assert not x.requires_grad
    with pytest.raises(RuntimeError, match=r"^requires_grad must be a bool"):
        x.requires_grad = 1
    with pytest.raises(RuntimeError, match=r"^requires_grad must be a bool"):
        x.requires_grad_(None)
    for dtype in ("int64", "bool"):
        with pytest.raises(RuntimeError, match=r"only Tensors of floating point dtype can require"):
            zeros(2, dtype=dtype).requires_grad_()
    y = leaf() * 2
    with pytest.raises(
        RuntimeError,
        match=r"^you can only change requires_grad flags of leaf variables. If you want to use a "
        r"computed variable in a subgraph that doesn't require differentiation use "
        r"var_no_grad = var.detach\(\).",
    ):
        y.requires_grad = False


def test_a_tensor_may_be_volatile_too():
    x = ones(3)
    x.volatile = True
    y = x * Parameter(ones(3))
    assert y.volatile and type(y) is Tensor and not y.requires_grad
    with pytest.raises(RuntimeError, match=r"^volatile must be a bool"):
        x.volatile = 0
    with pytest.raises(RuntimeError, match=r"^volatile can only be set on leaf variables"):
        (leaf() * 2).volatile = True
    assert "volatile=True" in repr(x)


@pytest.mark.parametrize(
    "value, text",
    [
        (lambda x: ones(3).double(), "assigned grad has data of a different type"),
        (lambda x: ones(3).long(), "assigned grad has data of a different type"),
        (lambda x: [1.0, 2.0, 3.0], "assigned grad has data of a different type"),
        (lambda x: np.ones(3, np.float32), "assigned grad has data of a different type"),
        (lambda x: ones(2), "assigned grad has data of a different size"),
        (lambda x: ones(3, 1), "assigned grad has data of a different size"),
        (lambda x: ones(1, 3), "assigned grad has data of a different size"),
        (lambda x: x, "can't assign Variable as its own grad"),
    ],
)
def test_assigning_a_bad_grad(value, text):
    x = leaf()
    x.grad = mine = ones(3)
    with pytest.raises(RuntimeError, match=f"^{text}"):
        x.grad = value(x)
    assert x.grad is mine


def test_assigning_and_deleting_grad():
    x = leaf()
    x.grad = mine = ones(3)
    assert x.grad is mine
    (x * 2).sum().backward()
    assert x.grad is mine and mine.tolist() == [3, 3, 3]
    del x.grad
    assert x.grad is None
    x.grad = None
    y = x * 1
    y.grad = ones(3)
    assert y.grad.tolist() == [1, 1, 1]


def test_data():
    x = leaf()
    x.data.add_(1)
    assert x.tolist() == [2, 3, 4] and x.requires_grad
    x.data = ones(2)
    assert x.tolist() == [1, 1] and x.requires_grad and x.is_leaf
    x.data = ones(4).double()  # as module.double() did it
    assert x.dtype == numgrad.float64
    (x * x).sum().backward()
    assert x.grad.tolist() == [2] * 4 and x.grad.dtype == numgrad.float64
    with pytest.raises(TypeError, match=r"^data: expected a Tensor for value"):
        x.data = [1.0]
    with pytest.raises(RuntimeError, match=r"^data: expected a floating dtype"):
        x.data = tensor([1, 2])
    v = Variable(ones(3))
    v.data = tensor(2.0)
    assert v.shape == (1,) and type(v) is Variable


def test_output_number_and_functions():
    x = leaf()
    values, places = x.max(0)
    assert values.output_nr == 0 and values.grad_fn.name.endswith("Backward") and places.is_leaf
    y = x * 2
    assert y.creator is y.grad_fn and repr(y.grad_fn) == "<MulBackward>"
    assert y.grad_fn.next_functions[0][0].name == "AccumulateGrad"
    assert y.grad_fn.next_functions[1] == (None, 0)
    assert x.grad_fn is None and x.is_leaf and not y.is_leaf


# ----------------------------------------------------------------------------------- copies, pickle

COPIED = {
    "0-dim": lambda: tensor(2.5),
    "leaf": leaf,
    "parameter": lambda: Parameter(ones(2, 2)),
    "frozen": lambda: Parameter(ones(2, 2), requires_grad=False),
    "strided": lambda: tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).t()[1:],
    "empty": lambda: zeros(0, 3),
    "mask": lambda: tensor([True, False]),
    "expanded": lambda: ones(1).expand(3),
}


@pytest.mark.parametrize("name", COPIED)
def test_copies(name):
    x = COPIED[name]()
    for y in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert type(y) is type(x) and y.shape == x.shape and y.dtype == x.dtype
        assert y.tolist() == x.tolist() and y.requires_grad == x.requires_grad and y.is_leaf
        assert y.storage.category == x.storage.category
    assert np.shares_memory(copy.copy(x).array, x.array) or x.numel() == 0
    for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert not np.shares_memory(y.array, x.array)


def test_copies_of_computed_values():
    y = leaf() * 2
    with pytest.raises(RuntimeError, match=r"^Only Variables created explicitly by the user"):
        copy.deepcopy(y)
    with pytest.raises(RuntimeError, match=r"^pickle: expected a leaf"):
        pickle.dumps(y)
    assert copy.deepcopy(y.detach()).tolist() == [2, 4, 6]


def test_attributes_survive_copies():
    x = leaf()
    x.note = ["a"]
    x.me = x
    y = copy.deepcopy(x)
    assert y.note == ["a"] and y.note is not x.note and y.me is y
    del x.me
    assert pickle.loads(pickle.dumps(x)).note == ["a"] and copy.copy(x).note is x.note


# ----------------------------------------------------------------------------------------- printing


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: tensor([1.0, 2.5]), "tensor([1. , 2.5])"),
        (lambda: tensor([1, 2]), "tensor([1, 2])"),
        (lambda: tensor([True]), "tensor([ True])"),
        (lambda: ones(2).double(), "tensor([1., 1.], dtype=float64)"),
        (lambda: zeros(0, 3), "tensor([], size=(0, 3))"),
        (leaf, "tensor([1., 2., 3.], requires_grad=True)"),
        (lambda: leaf() * 2, "tensor([2., 4., 6.], grad_fn=<MulBackward>)"),
        (lambda: Variable(ones(1), volatile=True), "Variable([1.], volatile=True)"),
        (lambda: Parameter(ones(1)), "Parameter containing:\ntensor([1.], requires_grad=True)"),
    ],
)
def test_repr(make, text):
    assert repr(make()) == str(make()) == text


def test_format():
    assert repr(tensor(3.0)) == "tensor(3.)" and f"{tensor(3.0)}" == "3.0"
    assert f"{tensor([1.0, 2.0])}" == "tensor([1., 2.])"


def test_repr_of_large_tensors_is_short():
    assert len(repr(zeros(1000, 1000))) < 1000


# -------------------------------------------------------------------------------------- the package


def test_public_names():
    assert set(numgrad.ops.__all__) <= set(numgrad.__all__)
    assert len(set(numgrad.__all__)) == len(numgrad.__all__)
    for name in numgrad.__all__:
        assert hasattr(numgrad, name), name
    for name in ("nn", "optim", "distributions", "data", "save", "load", "memory", "autograd"):
        assert name in numgrad.__all__


def test_realize_waits_for_tensors():
    assert numgrad.realize(ones(2), leaf()) is None
    with pytest.raises(TypeError, match=r"^realize: expected a Tensor for tensors\[1\], got int 3"):
        numgrad.realize(ones(2), 3)


def test_squeeze_in_place():
    x = zeros(1, 3, 1)
    assert x.squeeze_() is x and x.shape == (3,) and x.unsqueeze_(0).shape == (1, 3)
    base, w = zeros(2, 3), leaf()
    row = base[1:]
    row.squeeze_(0)
    row.add_(w)  # the write goes through the view's new shape
    (base * 2).sum().backward()
    assert w.grad.tolist() == [2, 2, 2] and base.tolist() == [[0, 0, 0], [1, 2, 3]]
    for value in (leaf(), leaf() * 2):
        with pytest.raises(RuntimeError, match=r"^squeeze_: expected a constant for x"):
            value.squeeze_()


def test_comparisons_of_whole_tensors():
    x = ones(3)
    assert x.equal(ones(3)) and not x.equal(ones(2)) and not x.equal(x * 2)
    assert x.allclose(x + 1e-7) and not x.allclose(x + 1e-3)
    nan = tensor([float("nan")])
    assert not nan.allclose(nan) and nan.allclose(nan, equal_nan=True)
    for call in (x.equal, x.allclose):
        with pytest.raises(TypeError, match=r"expected a Tensor for y, got int 3"):
            call(3)


def test_operators_with_something_else():
    x = ones(2)
    for operation in (lambda: x + "a", lambda: [1] - x, lambda: x @ None, lambda: x ** {}):
        with pytest.raises(TypeError):
            operation()
    assert (x == "a") is False and (x != None) is True  # noqa: E711
    with no_grad():
        assert (-leaf()).tolist() == [-1, -2, -3] and abs(-x).tolist() == [1, 1] and (+x) is x


def test_resize():
    x = tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    view, same = x[0], x.resize_(2, 3)
    assert same is x and view.tolist() == [1, 2, 3]
    view.zero_()
    assert x.tolist()[0] == [0, 0, 0]  # the shape it had: the memory it had
    assert x.t().resize_(3, 3).reshape(-1)[:6].tolist() == [0, 4, 0, 5, 0, 6]
    assert x.resize_(4).tolist() == [0, 0, 0, 4] and x.is_contiguous()
    x.fill_(7)
    assert view.tolist() == [0, 0, 0]
    assert x.resize_as_(ones(2, 1)).resize_(ones(1, 1).size()).tolist() == [[7]]
    with pytest.raises(RuntimeError, match=r"^cannot resize variables that require grad"):
        ones(2).requires_grad_().resize_(3)
    with pytest.raises(ValueError, match=r"^resize_: expected non-negative lengths"):
        x.resize_(-1)
    with pytest.raises(TypeError, match=r"^resize_as_: expected a Tensor for y, got int 3"):
        x.resize_as_(3)
