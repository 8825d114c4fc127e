"""Views and copies into another order: against NumPy, aliasing, gradients, writes through views."""

import itertools

import numpy as np
import pytest

import numgrad
from numgrad import memory
from numgrad.autograd import grad
from numgrad.graph.errors import GradError, ShapeError
from tests.checks import check_gradients, gradients, layouts

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 4))
ONES = RNG.standard_normal((1, 3, 1, 2))
LIKE = numgrad.zeros(4, 3, 1, 2)

VIEWS = {  # name: (of a tensor, of an array, the operand)
    "view": (lambda x: x.view(4, -1), lambda a: a.reshape(4, -1), X),
    "view tuple": (lambda x: x.view((6, 4)), lambda a: a.reshape(6, 4), X),
    "reshape": (lambda x: x.reshape(3, 8), lambda a: a.reshape(3, 8), X),
    "flatten": (lambda x: x.flatten(1), lambda a: a.reshape(2, 12), X),
    "flatten all": (lambda x: x.flatten(), lambda a: a.reshape(-1), X),
    "permute": (lambda x: x.permute(2, 0, 1), lambda a: a.transpose(2, 0, 1), X),
    "permute negative": (lambda x: x.permute(-1, 0, -2), lambda a: a.transpose(2, 0, 1), X),
    "transpose": (lambda x: x.transpose(0, -1), lambda a: a.swapaxes(0, 2), X),
    "t": (lambda x: x.t(), lambda a: a.T, X[0]),
    "T": (lambda x: x.T, lambda a: a.T, X),
    "mT": (lambda x: x.mT, lambda a: a.swapaxes(-1, -2), X),
    "expand": (lambda x: x.expand(5, 4, 3, 7, 2),
               lambda a: np.broadcast_to(a, (5, 4, 3, 7, 2)), ONES),
    "expand -1": (lambda x: x.expand(4, -1, 2, -1),
                  lambda a: np.broadcast_to(a, (4, 3, 2, 2)), ONES),
    "expand_as": (lambda x: x.expand_as(LIKE),
                  lambda a: np.broadcast_to(a, (4, 3, 1, 2)), ONES),
    "broadcast_to": (lambda x: x.broadcast_to((2, 3, 5, 2)),
                     lambda a: np.broadcast_to(a, (2, 3, 5, 2)), ONES),
    "squeeze": (lambda x: x.squeeze(), lambda a: a.squeeze(), ONES),
    "squeeze dim": (lambda x: x.squeeze(2), lambda a: a.squeeze(2), ONES),
    "squeeze several": (lambda x: x.squeeze((0, 1)), lambda a: a.squeeze(0), ONES),
    "squeeze none": (lambda x: x.squeeze(1), lambda a: a, ONES),
    "unsqueeze": (lambda x: x.unsqueeze(1), lambda a: a[:, None], X),
    "unsqueeze end": (lambda x: x.unsqueeze(-1), lambda a: a[..., None], X),
    "narrow": (lambda x: x.narrow(1, 1, 2), lambda a: a[:, 1:3], X),
    "narrow negative": (lambda x: x.narrow(-1, -3, 2), lambda a: a[..., 1:3], X),
    "select": (lambda x: x.select(1, -1), lambda a: a[:, -1], X),
    "chunk": (lambda x: x.chunk(3, 2)[1], lambda a: a[..., 2:4], X),
    "split": (lambda x: x.split([1, 3], 2)[1], lambda a: a[..., 1:], X),
    "slice": (lambda x: x[:, 1:, ::2], lambda a: a[:, 1:, ::2], X),
    "integers": (lambda x: x[1, -1], lambda a: a[1, -1], X),
    "new axes": (lambda x: x[None, ..., None, 2], lambda a: a[None, ..., None, 2], X),
    "chain": (lambda x: x.permute(2, 0, 1)[1:].transpose(0, 1)[:, 1],
              lambda a: a.transpose(2, 0, 1)[1:].swapaxes(0, 1)[:, 1], X),
}  # fmt: skip
COPIES = {
    "reshape copy": (lambda x: x.t().reshape(-1), lambda a: a.T.reshape(-1), X[0]),
    "flip": (lambda x: x.flip(0, 2), lambda a: np.flip(a, (0, 2)), X),
    "flip tuple": (lambda x: x.flip((-1,)), lambda a: np.flip(a, -1), X),
    "clone": (lambda x: x.clone(), lambda a: a.copy(), X),
    "contiguous": (lambda x: x.t().contiguous(), lambda a: a.T.copy(), X[0]),
    "cat self": (lambda x: numgrad.cat([x, x], 1), lambda a: np.concatenate([a, a], 1), X),
    "stack self": (lambda x: numgrad.stack([x, x], -1), lambda a: np.stack([a, a], -1), X),
}
ALL = {**VIEWS, **COPIES}


@pytest.mark.parametrize("name", ALL)
def test_forward(name):
    function, reference, a = ALL[name]
    for dtype in ("float64", "float32", "int64", "int32", "uint8", "bool"):
        values = (np.abs(a) * 10).astype(dtype) if dtype != "bool" else a > 0
        for layout, strided in layouts(values, None).items():
            if name in ("view", "view tuple") and layout not in ("contiguous",):
                continue  # test_view_of_strides
            got = function(numgrad.from_numpy(strided))
            assert got.dtype == values.dtype
            np.testing.assert_array_equal(got.numpy(), reference(values), f"{name} {layout}")


@pytest.mark.parametrize("name", VIEWS)
def test_views_share_memory(name):
    function, reference, a = VIEWS[name]
    x = numgrad.tensor(a)
    with memory.track() as m:
        y = function(x)
    assert m.launches == 0 and m.peak_bytes == 0
    assert np.shares_memory(y.numpy(), x.numpy()) and y.storage is x.storage
    assert y._version == x._version
    x.mul_(2)
    np.testing.assert_array_equal(y.numpy(), reference(a * 2))
    assert y._version == x._version == 1


@pytest.mark.parametrize("name", COPIES)
def test_copies_do_not(name):
    x = numgrad.tensor(COPIES[name][2])
    assert not np.shares_memory(COPIES[name][0](x).numpy(), x.numpy())


@pytest.mark.parametrize("name", ALL)
def test_gradient(name):
    function, _, a = ALL[name]
    check_gradients(lambda x: function(x * x), [a], name)
    check_gradients(function, [a], name)


@pytest.mark.parametrize("name", VIEWS)
def test_no_tape(name):
    x = numgrad.tensor(VIEWS[name][2], requires_grad=True)
    with memory.track() as m, numgrad.no_grad():
        y = VIEWS[name][0](x)
    assert m.nodes == 0 and not y.requires_grad
    v = numgrad.Variable(x.detach(), volatile=True)
    with memory.track() as m:
        y = VIEWS[name][0](v)
    assert m.nodes == 0 and y.volatile and isinstance(y, numgrad.Variable)


EXPANDING = [n for n in VIEWS if n.startswith(("expand", "broadcast"))]


@pytest.mark.parametrize("name", [n for n in VIEWS if n not in EXPANDING])
def test_write_through_view(name):
    """In place on a view writes to its base, and gradients come right through the base."""
    function, reference, a = VIEWS[name]
    factor = 1 + np.arange(a.size, dtype=float).reshape(a.shape)
    x = numgrad.tensor(a, requires_grad=True)
    base = x * 1
    function(base).mul_(3)
    expected = a.copy()
    reference(expected)[...] *= 3
    np.testing.assert_array_equal(base.detach().numpy(), expected)
    (base * numgrad.tensor(factor)).sum().backward()
    mask = np.ones(a.shape)
    reference(mask)[...] = 3
    np.testing.assert_array_equal(x.grad.numpy(), factor * mask)

    # And the other way: a write to the base changes the history of a view made before.
    x = numgrad.tensor(a, requires_grad=True)
    base = x * 1
    view = function(base)
    base.mul_(5)
    view.sum().backward()
    mask = np.zeros(a.shape)
    reference(mask)[...] = 5
    np.testing.assert_array_equal(x.grad.numpy(), mask)


def test_write_through_view_twice_differentiable():
    def function(x):
        y = x * x
        y[:, 1:].mul_(y[:, :1].clone())
        return y

    check_gradients(function, [X[0]], "write through a view")


@pytest.mark.parametrize("name", EXPANDING)
def test_expanded_cannot_be_written(name):
    x = numgrad.tensor(VIEWS[name][2])
    with pytest.raises(GradError, match="more than one element of the written-to tensor"):
        VIEWS[name][0](x).add_(1)
    np.testing.assert_array_equal(x.numpy(), VIEWS[name][2])


def test_view_of_a_leaf():
    x = numgrad.tensor(X, requires_grad=True)
    with pytest.raises(GradError, match="a view of a leaf Variable that requires grad"):
        x[0].zero_()
    with numgrad.no_grad():
        x[0].zero_()
    assert x.detach()[0].abs().sum().item() == 0 and x.requires_grad and x.is_leaf


def test_view_of_strides():
    """view works where strides allow it, and says what to do where not."""
    x = numgrad.tensor(X)
    assert x.permute(1, 0, 2).view(3, 2, 2, 2).shape == (3, 2, 2, 2)
    assert x[:, :, ::2].view(6, 2).shape == (6, 2)
    for strided in (x.permute(1, 0, 2), x.transpose(1, 2), x[:, :, :3]):
        with pytest.raises(ShapeError, match="view size is not compatible"):
            strided.view(-1)
        assert strided.reshape(-1).shape == (strided.numel(),)
    assert numgrad.zeros(0, 3).view(3, 0).shape == (3, 0)
    assert numgrad.zeros(0, 3).view(-1, 3).shape == (0, 3)
    assert numgrad.tensor(5.0).view(1, 1).shape == (1, 1)
    assert numgrad.tensor([[5.0]]).view(()).shape == ()
    with pytest.raises(ShapeError):
        numgrad.zeros(0, 3).view(-1, 0)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cat(dim):
    arrays = [RNG.standard_normal((2, 3, 4)) for _ in range(3)]
    axis = dim % 3
    arrays[1] = np.take(arrays[1], [0], axis)
    arrays[2] = np.take(arrays[2], [], axis)
    expected = np.concatenate(arrays, axis)
    for chosen in itertools.product(("contiguous", "transposed", "stepped"), repeat=2):
        xs = [
            numgrad.from_numpy(layouts(a, None)[layout])
            for a, layout in zip(arrays, [*chosen, "contiguous"], strict=True)
        ]
        np.testing.assert_array_equal(numgrad.cat(xs, dim).numpy(), expected)
    check_gradients(lambda *xs: numgrad.cat([x * x for x in xs], dim), arrays[:2], "cat")
    g = gradients(lambda *xs: numgrad.cat(xs, dim), arrays, [expected])
    for got, a in zip(g, arrays, strict=True):
        np.testing.assert_array_equal(got, a)


def test_cat_and_stack_dtypes():
    x, y = numgrad.tensor([1, 2]), numgrad.tensor([0.5], requires_grad=True)
    out = numgrad.cat([x, y])
    assert out.tolist() == [1.0, 2.0, 0.5] and out.dtype == np.float32
    (out * numgrad.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert y.grad.tolist() == [3.0]
    assert numgrad.cat([numgrad.zeros(0), numgrad.ones(2, 3)]).shape == (2, 3)
    assert numgrad.cat([numgrad.zeros(0), numgrad.zeros(0)]).shape == (0,)
    assert numgrad.stack([x, x, x], 1).tolist() == [[1, 1, 1], [2, 2, 2]]
    assert numgrad.stack([numgrad.tensor(1.0), numgrad.tensor(2.0)]).tolist() == [1, 2]
    check_gradients(lambda a, b: numgrad.stack([a, b, a], 1), [X[0], X[1]], "stack")


def test_chunk_and_split():
    x = numgrad.tensor(np.arange(10.0))
    assert [c.numel() for c in x.chunk(4)] == [3, 3, 3, 1]
    assert [c.numel() for c in x.chunk(20)] == [1] * 10
    assert [c.tolist() for c in x.split(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [c.numel() for c in x.split([1, 0, 9])] == [1, 0, 9]
    assert [c.shape for c in numgrad.zeros(0, 2).split(3)] == [(0, 2)]
    for bad in (0, -1):
        with pytest.raises(ValueError):
            x.split(bad)
        with pytest.raises(ValueError):
            x.chunk(bad)
    with pytest.raises(ShapeError, match="sizes that sum to 10"):
        x.split([3, 3])


@pytest.mark.parametrize("source", ["float32", "float64", "int32", "int64", "uint8", "bool"])
def test_conversion(source):
    """Every dtype to every other, of every layout."""
    values = np.array([[0, 1, 2], [3, 200, 100]])
    a = values.astype(source)
    if a.dtype.kind == "f":
        a[0, 1] = -1.75
    if a.dtype.kind == "i":
        a[0, 1] = -3
    for target in ("float32", "float64", "int32", "int64", "uint8", "bool"):
        b = a
        if a.dtype.kind == "f" and target == "uint8":
            b = np.trunc(a).astype("int64")  # it wraps; C leaves it undefined
        for strided in layouts(b, None).values():
            got = numgrad.from_numpy(strided).to(target)
            np.testing.assert_array_equal(got.numpy(), b.astype(target), f"{source} to {target}")
            assert got.dtype == target
    for n in (1, 15, 16, 33, 100):  # whole vectors and what is left over
        for value, wanted in ((300.0, 44), (-5.0, 251), (2.0**33 + 512, 0)):
            if source in ("float32", "float64"):
                x = numgrad.full((n,), value, dtype=source)
                assert x.byte().tolist() == [wanted] * n
    x = numgrad.ones(3, requires_grad=True)
    y = x.double()
    y.backward(numgrad.full((3,), 2.0, dtype="float64"))
    assert x.grad.tolist() == [2, 2, 2] and x.grad.dtype == np.float32
    assert x.float() is x and x.long().requires_grad is False
    check_gradients(lambda t: t.double() * t.double(), [X], "cast", float32=False)


def test_copy():
    x = numgrad.zeros(2, 3)
    assert x.copy_(numgrad.tensor([1, 2, 3])) is x
    assert x.tolist() == [[1, 2, 3]] * 2
    x.t().copy_(numgrad.tensor([[7.0], [8.0], [9.0]]))
    assert x.tolist() == [[7, 8, 9]] * 2
    assert numgrad.zeros(2, dtype="bool").copy_(5).tolist() == [True, True]
    assert numgrad.zeros(2, dtype="int64").fill_(2.9).tolist() == [2, 2]
    assert numgrad.ones(2, dtype="bool").zero_().tolist() == [False, False]
    for bad in ("x", None, [1.0]):
        with pytest.raises(TypeError):
            x.copy_(bad)
    with pytest.raises(ValueError):
        x.copy_(numgrad.ones(4))
    assert x.tolist() == [[7, 8, 9]] * 2
    check_gradients(lambda a, b: (a * a).copy_(b * b) * a, [X[0], X[0][0]], "copy_")


def test_squeeze_in_place():
    x = numgrad.ones(1, 3, 1)
    assert x.squeeze_(0) is x and x.shape == (3, 1)
    assert x.unsqueeze_(1) is x and x.shape == (3, 1, 1)
    assert x.squeeze_().shape == (3,)


def test_errors():
    x = numgrad.tensor(X, requires_grad=True)
    cases = [
        (lambda: x.view(5, -1), ShapeError, "is invalid for input of size 24"),
        (lambda: x.view(-1, -1), ShapeError, "invalid"),
        (lambda: x.view(24.0), TypeError, "integers for size"),
        (lambda: x.reshape(7), ShapeError, "invalid"),
        (lambda: x.permute(0, 1), ShapeError, "each of 3 axes once"),
        (lambda: x.permute(0, 1, 1), ShapeError, "each of 3 axes once"),
        (lambda: x.transpose(0, 3), IndexError, "Dimension out of range"),
        (lambda: x.t(), ShapeError, "at most 2 axes"),
        (lambda: x.expand(3, 3, 4), ShapeError, "sizes that"),
        (lambda: x.expand(3, 4), ShapeError, "sizes that"),
        (lambda: x.expand(-1, 2, 3, 4), ShapeError, "sizes that"),
        (lambda: x.unsqueeze(4), IndexError, "Dimension out of range"),
        (lambda: x.squeeze(3), IndexError, "Dimension out of range"),
        (lambda: x.narrow(0, 1, 2), IndexError, "a range within 2"),
        (lambda: x.select(0, 2), IndexError, "out of bounds"),
        (lambda: x.flatten(2, 1), ShapeError, "start_dim <= end_dim"),
        (lambda: x.flip(0, 0), ValueError, "each axis once"),
        (lambda: x.flip(3), IndexError, "Dimension out of range"),
        (lambda: numgrad.cat([]), TypeError, "a non-empty list"),
        (lambda: numgrad.cat(x), TypeError, "a non-empty list"),
        (lambda: numgrad.cat([x, 1.0]), TypeError, r"a Tensor for tensors\[1\]"),
        (lambda: numgrad.cat([x, x[0]]), ShapeError, "except in axis 0"),
        (lambda: numgrad.cat([x, x], 3), IndexError, "Dimension out of range"),
        (lambda: numgrad.cat([numgrad.tensor(1.0)] * 2), ShapeError, "use stack"),
        (lambda: numgrad.stack([x, x[0]]), ShapeError, r"shape \(2, 3, 4\)"),
    ]
    for function, kind, text in cases:
        with pytest.raises(kind, match=text):
            function()
    np.testing.assert_array_equal(x.detach().numpy(), X)
    (g,) = grad(x.sum(), x)
    assert g.shape == X.shape
