"""Tensor hooks and retain_grad: order, replacement, removal, once a pass, no cycles."""

import gc
import weakref

import pytest

from numgrad import Variable, enable_grad, no_grad, ones, tensor


def leaf():
    return tensor([1.0, 2.0, 3.0], requires_grad=True)


@pytest.mark.parametrize("where", ["leaf", "non-leaf"])
def test_called_once_a_pass_in_order_with_the_whole_gradient(where):
    x = leaf()
    y = x * 1
    seen = []
    target = x if where == "leaf" else y
    target.register_hook(lambda g: seen.append(("first", g.tolist())))
    target.register_hook(lambda g: seen.append(("second", g.tolist())))
    loss = (y + y * 2 + y[0]).sum()
    for count in (1, 2):
        loss.backward(retain_graph=True)
        assert seen == [("first", [6, 3, 3]), ("second", [6, 3, 3])] * count


@pytest.mark.parametrize("where", ["leaf", "non-leaf"])
def test_may_replace_the_gradient(where):
    x = leaf()
    y = x * 1
    target = x if where == "leaf" else y
    seen = []
    target.register_hook(lambda g: g * 10)
    target.register_hook(lambda g: seen.append(g.tolist()))
    (y * 2).sum().backward()
    assert seen == [[20, 20, 20]] and x.grad.tolist() == [20, 20, 20]


def test_replacement_under_create_graph_has_a_graph():
    x = leaf()
    x.register_hook(lambda g: g * g)
    (x * x).sum().backward(create_graph=True)  # (2x)^2
    assert x.grad.tolist() == [4, 16, 36]
    grad, x.grad = x.grad, None
    grad.sum().backward()  # its own pass calls the hook again: (8x)^2
    assert x.grad.tolist() == [64, 256, 576]


@pytest.mark.parametrize("where", ["leaf", "non-leaf"])
def test_remove(where):
    x = leaf()
    y = x * 1
    target = x if where == "leaf" else y
    seen = []
    handles = [target.register_hook(lambda g, i=i: seen.append(i)) for i in range(3)]
    handles[1].remove()
    handles[1].remove()
    y.sum().backward(retain_graph=True)
    assert seen == [0, 2]
    with target.register_hook(lambda g: seen.append("with")):
        y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert seen == [0, 2, 0, 2, "with", 0, 2]


def test_a_hook_may_remove_itself():
    x = leaf()
    seen = []

    def once(g):
        seen.append(g)
        handle.remove()

    handle = x.register_hook(once)
    x.register_hook(lambda g: seen.append("after"))
    for _ in range(2):
        (x * 2).sum().backward()
    assert len(seen) == 3 and seen[1:] == ["after", "after"]


def test_a_hook_that_keeps_and_changes_what_it_saw_does_no_harm():
    x, z = leaf(), leaf()
    kept = []
    x.register_hook(kept.append)
    for _ in range(2):
        (x + z).backward(ones(3))
    kept[0].mul_(100)
    assert x.grad.tolist() == z.grad.tolist() == [2, 2, 2]


def test_hooks_on_a_value_changed_in_place_stay_at_the_old_value():
    x = leaf()
    y = x * 1
    seen = []
    y.register_hook(lambda g: seen.append(g.tolist()))
    y.mul_(5)
    y.sum().backward()
    assert seen == [[5, 5, 5]]


@pytest.mark.parametrize(
    "result, error",
    [
        (3, TypeError),
        (ones(2), RuntimeError),
        (ones(3).double(), RuntimeError),
        (ones(1, 3), RuntimeError),
    ],
    ids=["number", "size", "dtype", "axes"],
)
def test_bad_replacement(result, error):
    x = leaf()
    x.register_hook(lambda g: result)
    with pytest.raises(error, match=r"^register_hook: expected a"):
        (x * 2).sum().backward()
    assert x.grad is None


def test_errors():
    volatile = Variable(ones(2), volatile=True)
    with pytest.raises(RuntimeError, match=r"^cannot register a hook on a volatile variable"):
        volatile.register_hook(print)
    text = "^cannot register a hook on a variable that doesn't require gradient"
    for constant in (ones(2), Variable(ones(2)), leaf().detach()):
        with pytest.raises(RuntimeError, match=text):
            constant.register_hook(print)
    with pytest.raises(TypeError, match=r"^register_hook: expected a function for hook"):
        leaf().register_hook(3)


# ------------------------------------------------------------------------------------- retain_grad


def test_retain_grad_keeps_the_gradient_of_a_non_leaf():
    x = leaf()
    y = x * 2
    y.retain_grad()
    y.retain_grad()
    (y * y).sum().backward(retain_graph=True)
    assert y.grad.tolist() == [4, 8, 12] and x.grad.tolist() == [8, 16, 24]
    (y * y).sum().backward()
    assert y.grad.tolist() == [8, 16, 24]
    y.grad.zero_()
    assert x.grad.tolist() == [16, 32, 48]
    x.retain_grad()  # leaves do so anyway
    with pytest.raises(RuntimeError, match=r"^can't retain_grad on Tensor that has requires_grad"):
        ones(2).retain_grad()


def test_retained_gradients_are_separate_buffers():
    x, z = leaf(), leaf()
    a, b = x * 1, z * 1
    a.retain_grad()
    b.retain_grad()
    g = ones(3)
    (a + b).backward(g)
    a.grad.zero_()
    assert b.grad.tolist() == x.grad.tolist() == z.grad.tolist() == g.tolist() == [1, 1, 1]


def test_retain_grad_keeps_what_later_hooks_make_of_it():
    y = leaf() * 2
    y.retain_grad()
    y.register_hook(lambda g: g * 3)
    y.sum().backward()
    assert y.grad.tolist() == [3, 3, 3]


def test_retain_grad_follows_in_place_changes():
    x = leaf()
    base = x * 2
    view = base[1:]
    base.retain_grad()
    view.retain_grad()
    base.mul_(3)
    (base * 5).sum().backward()
    assert base.grad.tolist() == [5, 5, 5] and view.grad is None and x.grad.tolist() == [30] * 3
    y = leaf() * 1
    y.retain_grad()
    y[0] = 7
    (y * y).sum().backward()
    assert y.grad.tolist() == [14, 4, 6]


def test_retain_grad_makes_no_cycle():
    gc.collect()
    gc.disable()
    try:
        x = leaf()
        y = x * 2
        y.retain_grad()
        z = (y * y).sum()
        z.backward()
        gone = weakref.ref(y)
        del y, z
        assert gone() is None
    finally:
        gc.enable()


def test_grad_mode_inside_of_hooks():
    x = leaf()
    modes = []
    x.register_hook(lambda g: modes.append((g * x).requires_grad))
    (x * x).sum().backward()
    (x * x).sum().backward(create_graph=True)
    x.grad = None
    assert modes == [False, True]
    with no_grad(), enable_grad():
        (x * x).sum().backward()
