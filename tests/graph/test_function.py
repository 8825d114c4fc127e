"""Function in its static style: all that ctx offers, volatile, None, wrong counts, any order."""

import gc
import weakref

import pytest

import numgrad
from numgrad import Function, Tensor, Variable, no_grad, ones, tensor
from numgrad.autograd import grad, once_differentiable
from numgrad.graph.node import counters


def leaf(*values):
    return tensor(values or (1.0, 2.0, 3.0), requires_grad=True)


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x * x


class Exp(Function):
    @staticmethod
    def forward(ctx, x):
        out = x.exp()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_variables
        return g * out


class Scaled(Function):
    """Tensors and other things among the arguments; trailing Nones."""

    @staticmethod
    def forward(ctx, x, factor, y, name="n"):
        ctx.factor = factor
        assert not x.requires_grad and not (x * 2).requires_grad
        return x * factor + y

    @staticmethod
    def backward(ctx, g):
        seen.append(ctx.needs_input_grad)
        return g * ctx.factor if ctx.needs_input_grad[0] else None, None, g, None, None, None


seen: list = []


def test_gradients_of_any_order():
    x = leaf()
    y = Cube.apply(x).sum()
    (first,) = grad(y, x, create_graph=True)
    (second,) = grad(first.sum(), x, create_graph=True)
    (third,) = grad(second.sum(), x)
    assert first.tolist() == [3, 12, 27] and second.tolist() == [6, 12, 18]
    assert third.tolist() == [6, 6, 6]
    x = leaf(0.5)
    out = Exp.apply(x)
    for _ in range(3):
        (out,) = grad(out, x, create_graph=True)
        assert out.item() == pytest.approx(1.6487213)


def test_needs_input_grad_other_arguments_and_trailing_nones():
    seen.clear()
    x, y = leaf(), ones(3)
    Scaled.apply(x, 4, y).sum().backward()
    assert x.grad.tolist() == [4, 4, 4] and y.grad is None
    y = leaf()
    Scaled.apply(ones(3), 4, y, "name").sum().backward()
    assert seen == [(True, False, False), (False, False, True, False)]


def test_not_recorded_where_nothing_requires_grad():
    before = counters.nodes
    y = Cube.apply(ones(3))
    assert not y.requires_grad and y.grad_fn is None
    with no_grad():
        assert not Cube.apply(leaf()).requires_grad
    assert counters.nodes == before
    assert "no input of Cube requires grad" in numgrad.explain(y)
    assert Cube.apply(leaf()).grad_fn.name == "CubeBackward"


def test_volatile_runs_forward_drops_what_it_saved_and_makes_volatile():
    x = Variable(tensor([1.0, 2.0]), volatile=True)
    w = leaf(3.0, 4.0)
    kept = []

    class Mul(Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            kept.append(weakref.ref(ctx))
            return a * b

        @staticmethod
        def backward(ctx, g):
            raise AssertionError

    before = counters.nodes, counters.saved
    y = Mul.apply(x, w)
    assert y.volatile and not y.requires_grad and type(y) is Variable and y.tolist() == [3, 8]
    assert kept[0]() is None and (counters.nodes, counters.saved) == before


def test_variables_in_variables_out():
    classes = []

    class Sum(Function):
        @staticmethod
        def forward(ctx, x):
            classes.append(type(x))
            ctx.save_for_backward(x)
            return x.sum()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_variables
            classes.append((type(g), g.shape, type(x)))
            return g.expand(*x.shape)

    x = Variable(ones(3), requires_grad=True)
    y = Sum.apply(x)
    assert type(y) is Variable and y.shape == (1,)
    y.backward()
    assert classes == [Tensor, (Variable, (1,), Variable)]
    assert type(x.grad) is Variable and x.grad.tolist() == [1, 1, 1]
    assert Sum.apply(leaf()).shape == ()


class Two(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        seen.append((a, b))
        return a * 2 + b * 3


def test_several_outputs_and_missing_gradients_are_zeros():
    x = leaf()
    a, b = Two.apply(x)
    a.sum().backward(retain_graph=True)
    assert x.grad.tolist() == [2, 2, 2] and seen[-1][1].tolist() == [0, 0, 0]
    (a + b).sum().backward()
    assert x.grad.tolist() == [7, 7, 7] and (a.output_nr, b.output_nr) == (0, 1)


def test_without_materialised_gradients():
    got = []

    class Plain(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 1, x * 2

        @staticmethod
        def backward(ctx, a, b):
            got.append((a, b))
            return None if a is None else a

    x = leaf()
    Plain.apply(x)[0].sum().backward()
    assert got[0][1] is None


def test_none_gradients():
    class Cut(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return None

    x = leaf()
    (Cut.apply(x) + x).sum().backward()
    assert x.grad.tolist() == [1, 1, 1]


def returning(*gradients):
    class Returning(Function):
        @staticmethod
        def forward(ctx, x, y):
            return x + y

        @staticmethod
        def backward(ctx, g):
            return gradients if len(gradients) != 1 else gradients[0]

    return Returning


@pytest.mark.parametrize(
    "gradients, count",
    [((ones(3),), 1), ((ones(3), ones(3), ones(3)), 3), ((None, None, None, ones(3)), 4)],
)
def test_wrong_number_of_gradients(gradients, count):
    x, y = leaf(), leaf()
    with pytest.raises(
        RuntimeError,
        match=r"^function Returning returned an incorrect number of gradients \(expected 2, got "
        rf"{count}\)",
    ):
        returning(*gradients).apply(x, y).sum().backward()


def test_wrong_gradients():
    a, b = leaf(), leaf()
    y = returning(3, None).apply(a, b)
    with pytest.raises(TypeError, match=r"^function Returning: expected a Tensor or None for"):
        y.sum().backward()
    y = returning(ones(2), None).apply(a, b)
    with pytest.raises(RuntimeError, match=r"invalid gradient at index 0 - got \(2,\)"):
        y.sum().backward()
    y = Scaled.apply(a, 2, b)
    Scaled.backward, kept = staticmethod(lambda ctx, g: (g, g, g)), Scaled.backward
    try:
        with pytest.raises(RuntimeError, match=r"gradient different from None at position 1"):
            y.sum().backward()
    finally:
        Scaled.backward = staticmethod(kept)


def test_gradients_are_summed_to_the_shape_and_made_of_the_dtype():
    x, y = leaf(), leaf(1.0)
    returning(ones(4, 3).double(), ones(3)).apply(x, y).sum().backward()
    assert x.grad.tolist() == [4, 4, 4] and x.grad.dtype == numgrad.float32
    assert y.grad.tolist() == [3]


def test_gradients_that_the_function_keeps_stay_its_own():
    kept = ones(3)
    x, y = leaf(), leaf()
    fn = returning(kept, kept)
    for _ in range(3):
        fn.apply(x, y).sum().backward()
    assert kept.tolist() == [1, 1, 1] and x.grad.tolist() == y.grad.tolist() == [3, 3, 3]
    x.grad.zero_()
    assert y.grad.tolist() == [3, 3, 3]


class AddOne(Function):
    @staticmethod
    def forward(ctx, x):
        x.add_(1)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


def test_mark_dirty():
    x = leaf()
    y = x * 2
    version = y._version
    z = AddOne.apply(y)
    assert z is y and y.tolist() == [3, 5, 7] and y._version > version
    assert y.grad_fn.name == "AddOneBackward"
    (y * y).sum().backward()
    assert x.grad.tolist() == [12, 20, 28]
    constant = ones(3)
    assert AddOne.apply(constant) is constant and not constant.requires_grad


def test_mark_dirty_through_a_view():
    x = leaf()
    base = x * 2
    AddOne.apply(base[1:])
    (base * base).sum().backward()
    assert base.tolist() == [2, 5, 7] and x.grad.tolist() == [8, 20, 28]


def test_mark_dirty_errors():
    with pytest.raises(RuntimeError, match=r"^a leaf Variable that requires grad has been used"):
        AddOne.apply(leaf())
    x = leaf()
    y = x * 2
    saved = y.exp()
    other = y * y
    AddOne.apply(y)
    saved.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*AddOne"):
        other.sum().backward()


def test_dirty_variable_beside_a_volatile_one_becomes_volatile():
    class Write(Function):
        @staticmethod
        def forward(ctx, x, y):
            x.copy_(y)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return None, g

    x, v = Variable(ones(2)), Variable(tensor([5.0, 6.0]), volatile=True)
    assert Write.apply(x, v) is x and x.volatile and x.tolist() == [5, 6]
    plain = ones(2)
    assert Write.apply(plain, v) is plain and not plain.volatile and plain.tolist() == [5, 6]


def test_mark_non_differentiable():
    class SortOf(Function):
        @staticmethod
        def forward(ctx, x):
            mask = x * 0 + 1
            places = x.argmax().view(1)
            ctx.mark_non_differentiable(mask, places)
            return x * 2, mask, places

        @staticmethod
        def backward(ctx, g, mask, places):
            assert mask.tolist() == [0, 0, 0]
            return g * 2

    x = leaf()
    y, mask, places = SortOf.apply(x)
    assert y.requires_grad and not mask.requires_grad and not places.requires_grad
    y.sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_once_differentiable():
    class Once(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            assert not (x * 2).requires_grad
            return 2 * x * g

    x = leaf()
    Once.apply(x).sum().backward()
    assert x.grad.tolist() == [2, 4, 6]
    (g,) = grad(Once.apply(x).sum(), x, create_graph=True)
    assert g.tolist() == [2, 4, 6]
    with pytest.raises(RuntimeError, match=r"marked with @once_differentiable"):
        g.sum().backward()


def test_saved_tensors_are_checked_and_freed():
    x = leaf()
    y = x * 1
    z = Cube.apply(y).sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*Cube saved 0"):
        z.backward()
    z = Cube.apply(x).sum()
    z.backward()
    with pytest.raises(RuntimeError, match=r"^Trying to backward through the graph a second time"):
        z.backward()


def test_save_for_backward_takes_tensors_and_none():
    class Save(Function):
        @staticmethod
        def forward(ctx, x, what):
            ctx.save_for_backward(None, what)
            return x * 1

        @staticmethod
        def backward(ctx, g):
            assert ctx.saved_tensors[0] is None
            return g, None

    Save.apply(leaf(), ones(2)).sum().backward()
    with pytest.raises(TypeError, match=r"^save_for_backward: expected Tensors or None"):
        Save.apply(leaf(), 3)


def test_wrong_functions():
    class Instance(Function):
        def forward(self, x):
            return x

        def backward(self, g):
            return g

    class Number(Function):
        @staticmethod
        def forward(ctx, x):
            return 3

    class Nothing(Function):
        pass

    with pytest.raises(TypeError, match=r"expected a staticmethod"):
        Instance.apply(leaf())
    with pytest.raises(TypeError, match=r"^Instance: expected Instance.apply"):
        Instance()(leaf())
    with pytest.raises(TypeError, match=r"expected Tensors for the results of forward, got int 3"):
        Number.apply(leaf())
    with pytest.raises(NotImplementedError, match=r"forward"):
        Nothing.apply(leaf())


def test_no_cycles():
    gc.collect()
    gc.disable()
    try:
        for fn in (Cube, Exp):
            x = leaf()
            y = fn.apply(x)
            gone = weakref.ref(y), weakref.ref(y.grad_fn), weakref.ref(y.grad_fn.op.ctx)
            (g,) = grad(y.sum(), x, create_graph=True)
            del y, g
            assert [r() for r in gone] == [None] * 3
        assert gc.collect() == 0
    finally:
        gc.enable()
