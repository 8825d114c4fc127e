"""backward, grad and explain as users call them: rules, keywords, the texts of the errors."""

import re

import numpy as np
import pytest

import numgrad
from numgrad import (
    Variable,
    autograd,
    enable_grad,
    explain,
    inference_mode,
    no_grad,
    ones,
    tensor,
)
from numgrad.autograd import backward, grad
from numgrad.graph.errors import GradError
from numgrad.graph.node import counters
from numgrad.variable import Parameter


def leaf(*values):
    return tensor(values or (1.0, 2.0, 3.0), requires_grad=True)


# ----------------------------------------------------------------------------------------- errors


def begins(text):
    return "^" + re.escape(text)


def test_backward_of_a_volatile():
    v = Variable(ones(1), volatile=True)
    text = begins("element 0 of variables tuple is volatile")
    with pytest.raises(RuntimeError, match=text):
        v.backward()
    with pytest.raises(RuntimeError, match=text):
        (v * Parameter(ones(1))).backward()
    with pytest.raises(RuntimeError, match=begins("element 1 of variables tuple is volatile")):
        backward([leaf(1.0), v])


def test_backward_where_nothing_requires_grad():
    text = begins("element 0 of variables does not require grad and does not have a grad_fn")
    for root in (ones(1), Variable(ones(1)), leaf(1.0).detach(), leaf(1.0) > 0):
        with pytest.raises(RuntimeError, match=text):
            root.backward()
    with no_grad():
        y = leaf().sum()
    with pytest.raises(GradError, match=r"sum_over ran under no_grad"):
        y.backward()


def test_roots_that_are_no_scalars():
    text = begins("grad can be implicitly created only for scalar outputs")
    for shape in ((2,), (1, 2), (0,)):
        with pytest.raises(RuntimeError, match=text):
            (ones(shape, requires_grad=True) * 2).backward()
    for shape in ((), (1,), (1, 1, 1)):  # scalar means one element
        x = ones(shape, requires_grad=True)
        (x * 2).backward()
        assert x.grad.shape == shape and x.grad.item() == 2


@pytest.mark.parametrize("gradient", [1.0, [1.0], np.ones(1)], ids=lambda g: type(g).__name__)
def test_gradients_of_a_wrong_kind(gradient):
    name = type(gradient).__name__
    text = begins(f"gradients can be either Tensors, Variables or None, but got {name}")
    y = leaf(1.0) * 2
    with pytest.raises(TypeError, match=text):
        autograd.backward([y], [gradient])
    with pytest.raises(TypeError, match=text):
        y.backward(gradient)


def test_gradients_of_a_wrong_shape_dtype_or_number():
    x = leaf()
    with pytest.raises(RuntimeError, match=r"expected a gradient of shape"):
        (x * 2).backward(ones(2))
    with pytest.raises(RuntimeError, match=r"expected a gradient of dtype float32"):
        (x * 2).backward(ones(3).double())
    with pytest.raises(ValueError, match=r"^backward: expected 1 gradients, one a tensor, got 2"):
        backward([x * 2], [ones(3), ones(3)])
    with pytest.raises(TypeError, match=r"^backward: expected a Tensor for tensors\[0\]"):
        backward([3.0])
    assert x.grad is None


def test_second_backward():
    x = leaf()
    loss = (x * x).sum()
    loss.backward()
    with pytest.raises(
        RuntimeError,
        match=begins(
            "Trying to backward through the graph a second time, but the buffers have already been "
            "freed. Specify retain_graph=True when calling backward the first time."
        ),
    ):
        loss.backward()
    assert x.grad.tolist() == [2, 4, 6]
    z = x + 1
    for _ in range(2):  # nothing was saved, so nothing was freed
        z.backward(ones(3))


def test_both_keywords():
    loss = leaf(1.0) * 2
    with pytest.raises(
        ValueError, match=begins("only one of retain_graph and retain_variables can be specified")
    ):
        loss.backward(retain_graph=True, retain_variables=True)


def test_retain_variables_warns_and_works():
    x = leaf(2.0)
    loss = x * x
    with pytest.warns(UserWarning, match=r"retain_variables option is deprecated"):
        loss.backward(retain_variables=True)
    loss.backward()
    assert x.grad.tolist() == [8]


# -------------------------------------------------------------------------------------------- grad


def test_grad_leaves_dot_grad_alone():
    x, y = leaf(), leaf()
    assert [g.tolist() for g in grad((x * y * y).sum(), [x, y])] == [[1, 4, 9], [2, 8, 18]]
    assert x.grad is None and y.grad is None
    (g,) = grad(x * 2, x, grad_outputs=tensor([1.0, 0.0, 2.0]))
    assert g.tolist() == [2, 0, 4]
    a, b = grad([x.sum(), (y * 3).sum()], (x, y))
    assert a.tolist() == [1, 1, 1] and b.tolist() == [3, 3, 3]


def test_grad_of_non_leaves_and_of_the_output_itself():
    x = leaf()
    y = x * 2
    z = (y * y).sum()
    gz, gy, gx = grad(z, [z, y, x])
    assert gz.item() == 1 and gy.tolist() == [4, 8, 12] and gx.tolist() == [8, 16, 24]


def test_grad_computes_only_what_is_asked():
    x, w = leaf(), leaf()
    loss = (x * w).sum()
    before = counters.nodes
    (g,) = grad(loss, x, retain_graph=True)
    assert g.tolist() == [1, 2, 3] and counters.nodes == before
    first, again = grad(loss, [w, w])
    assert first.tolist() == again.tolist() == [1, 2, 3]


def test_unused_inputs():
    x, other = leaf(), leaf()
    text = begins("One of the differentiated Variables appears to not have been used in the graph")
    with pytest.raises(RuntimeError, match=text):
        grad((x * 2).sum(), [x, other])
    a, b = grad((x * 2).sum(), [x, other], allow_unused=True)
    assert a.tolist() == [2, 2, 2] and b is None
    with pytest.raises(RuntimeError, match=r"does not require grad"):
        grad((x * 2).sum(), ones(3))
    with pytest.raises(RuntimeError, match=r"does not require grad"):
        grad((x * 2).sum(), 3)
    with pytest.warns(UserWarning, match=r"only_inputs argument is deprecated"):
        grad((x * 2).sum(), x, only_inputs=False)


def test_grad_of_variables_gives_variables():
    x = Variable(ones(3), requires_grad=True)
    total = x.sum()
    g, t = grad(total * 2, [x, total])
    assert type(g) is Variable and g.shape == (3,) and type(t) is Variable and t.shape == (1,)
    (g,) = grad((x * x).sum(), x, create_graph=True)
    assert type(g) is Variable and g.requires_grad


@pytest.mark.parametrize("make", [leaf, lambda: Variable(tensor([1.0, 2.0, 3.0]), True)])
def test_gradients_of_any_order(make):
    x = make()
    y = (x**4).sum()
    for values in ([4, 32, 108], [12, 48, 108], [24, 48, 72], [24, 24, 24], [0, 0, 0]):
        (g,) = grad(y, x, create_graph=True)
        np.testing.assert_allclose(g.detach().numpy(), values, rtol=1e-5)
        y = g.sum()


def test_create_graph_in_backward():
    x = leaf()
    (x**3).sum().backward(create_graph=True)
    first = x.grad
    assert first.tolist() == [3, 12, 27] and first.requires_grad
    x.grad = None
    (first * first).sum().backward()  # d (3x²)² = 36 x³
    assert x.grad.tolist() == [36, 288, 972]
    v = Variable(ones(2), requires_grad=True)
    (v**3).sum().backward(create_graph=True)
    assert type(v.grad) is Variable and v.grad.requires_grad and not v.grad.volatile
    w, z = leaf(), leaf()
    (w + z).sum().backward(create_graph=True)
    assert w.grad is not z.grad


def test_gradient_penalty_through_grad_outputs():
    x, g = leaf(), leaf(1.0, 1.0, 1.0)
    (first,) = grad(x * x, x, g, create_graph=True)
    (second,) = grad(first.sum(), g)
    assert second.tolist() == [2, 4, 6]
    volatile = Variable(ones(3), volatile=True)  # a root's gradient is a constant then
    (first,) = grad(x * x, x, volatile, create_graph=True)
    assert not first.volatile and first.requires_grad


def test_a_plain_pass_is_not_recorded_though_grad_mode_is_on():
    x = leaf()
    loss = (x * x).sum()
    before = counters.nodes
    loss.backward()
    assert counters.nodes == before and not x.grad.requires_grad and x.grad.is_leaf


def test_backward_under_no_grad_and_create_graph_under_no_grad():
    x = leaf()
    loss = (x * x).sum()
    with no_grad():
        loss.backward(retain_graph=True)
        (g,) = grad(loss, x, create_graph=True)
    assert x.grad.tolist() == [2, 4, 6] and g.requires_grad


# ----------------------------------------------------------------------------------------- explain


def explained():
    x, c = leaf(), ones(3)
    v = Variable(ones(3), volatile=True)
    with no_grad():
        under_no_grad, created = x * 2, ones(2)
    with inference_mode():
        inference = x * 2
        with enable_grad():
            still = x * 2
    written = Variable(ones(3))
    written.add_(v)
    both = Variable(ones(3), volatile=True)
    both.requires_grad = True
    cut = x * 2
    cut.detach_()
    base = Variable(ones(3)) * 1
    view = base[1:]
    base[0] = v[0]
    return {
        "requires grad: a leaf": x,
        "requires grad: made by mul from inputs that require grad": x * c,
        "  input 0: gradient flows to <AccumulateGrad>": x * c,
        "  input 1: needs no gradient": x * c,
        "volatile: a leaf made so": v,
        "volatile: through y of mul": x * v,
        "volatile: through x of sub": v - x,
        "volatile: through tensors of concatenate": numgrad.cat([x, v]),
        "volatile: through x of slice_of": v[1:],
        "volatile: through y of add": written,
        "volatile: requires_grad is True as well, but volatile wins": both,
        "volatile: through y of assign": view,
        "needs no grad: mul ran under no_grad": under_no_grad,
        "needs no grad: made inside inference_mode": inference,
        "needs no grad: made inside inference_mode ": still,
        "needs no grad: detach() cut it off": (x * 2).detach(),
        "needs no grad: detach_() cut it off": cut,
        "needs no grad: no input of add requires grad": c + c,
        "needs no grad: dtype bool has no gradients": x > 1,
        "needs no grad: dtype int64 has no gradients": tensor([1]),
        "needs no grad: a leaf with requires_grad=False": created,
    }


@pytest.mark.parametrize("reason", explained())
def test_explain(reason):
    lines = explain(explained()[reason]).split("\n")
    assert any(line.startswith(reason.rstrip()) for line in lines), lines


def test_explain_makes_nothing_on_the_unrecorded_path():
    a, b = ones(3) + ones(3), ones(3) + ones(3)
    assert a._origin is b._origin
    v = Variable(ones(3), volatile=True)
    assert (v * 2)._origin is (v * 3)._origin


def test_explain_of_something_else():
    with pytest.raises(TypeError, match=r"^explain: expected a Tensor for x, got int 3"):
        explain(3)
