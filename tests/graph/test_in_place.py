"""In place on values and views: gradients as if written out of place, versions, what must raise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numgrad
from numgrad import enable_grad, no_grad, ones, tensor, zeros
from numgrad.autograd import grad


def leaf(n=6, seed=0):
    values = np.random.default_rng(seed).uniform(0.5, 2.0, n)
    return tensor(values, requires_grad=True)


def replaced(base, view, new):
    """``base`` with what ``view`` selects replaced by ``new``, out of place."""
    places = view(tensor(np.arange(base.numel()).reshape(base.shape))).numpy()
    mask = np.zeros(base.numel())
    mask[places.reshape(-1)] = 1
    order = np.zeros(base.numel(), np.int64)
    order[places.reshape(-1)] = np.arange(places.size)
    spread = new.reshape(-1)[tensor(order)]
    keep = tensor(1 - mask).view(*base.shape)
    return base * keep + spread.view(*base.shape) * tensor(mask).view(*base.shape)


VIEWS = {
    "all": lambda x: x.view(*x.shape),
    "slice": lambda x: x[1:3],
    "step": lambda x: x[::2],
    "row": lambda x: x.view(2, 3)[1],
    "column": lambda x: x.view(2, 3)[:, 1],
    "transposed": lambda x: x.view(2, 3).t()[1:],
    "element": lambda x: x[4],
    "unsqueezed": lambda x: x[3:].unsqueeze(0),
    "deep": lambda x: x.view(3, 2)[1:].t()[0][1:],
}
WRITES = {
    "mul_by_leaf": (lambda v, w: v.mul_(w[0]), lambda v, w: v * w[0]),
    "add_leaf": (lambda v, w: v.add_(w[1]), lambda v, w: v + w[1]),
    "exp": (lambda v, w: v.exp_(), lambda v, w: v.exp()),
    "relu": (lambda v, w: v.relu_(), lambda v, w: v.relu()),
    "square": (lambda v, w: v.mul_(v), lambda v, w: v * v),
    "sub_itself": (lambda v, w: v.sub_(v), lambda v, w: v - v),
    "copy": (lambda v, w: v.copy_(w[2]), lambda v, w: v * 0 + w[2]),
    "fill": (lambda v, w: v.fill_(3.0), lambda v, w: v * 0 + 3.0),
    "pow": (lambda v, w: v.pow_(w[0]), lambda v, w: v ** w[0]),
    "div": (lambda v, w: v.div_(v + w[0]), lambda v, w: v / (v + w[0])),
}


def close(a, b):
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", VIEWS)
def test_gradients_equal_those_of_the_out_of_place_form(view, write):
    select, (in_place, out_of_place) = VIEWS[view], WRITES[write]
    results = []
    for inside in (True, False):
        x, w = leaf(), leaf(3, 1)
        base = x * 1.5
        first = base[2:5]  # another view of the same base, made before
        if inside:
            written = select(base)
            in_place(written, w)
            later = base[:3]
        else:
            new = out_of_place(select(base), w)
            base = replaced(base, select, new)
            written, first, later = select(base), base[2:5], base[:3]
        loss = (base * base).sum() + (first**3).sum() + written.sum() * 2 + (later * later).sum()
        results.append([base, first, written, later, *grad(loss, [x, w], allow_unused=True)])
    for a, b in zip(*results, strict=True):
        if a is None or b is None:
            assert (a or b) is None or (a if b is None else b).abs().max().item() == 0
        else:
            close(a, b)


@pytest.mark.parametrize("write", WRITES)
def test_second_gradients(write):
    in_place, out_of_place = WRITES[write]
    results = []
    for inside in (True, False):
        x, w = leaf(), leaf(3, 1)
        base = x * x
        if inside:
            in_place(base[1:4], w)
        else:
            select = lambda y: y[1:4]
            base = replaced(base, select, out_of_place(select(base), w))
        first = grad((base**3).sum(), [x, w], create_graph=True, allow_unused=True)
        total = sum((g * g).sum() for g in first if g is not None)
        results.append(grad(total, [x, w], allow_unused=True))
    for a, b in zip(*results, strict=True):
        if a is not None and b is not None:
            close(a, b)
        else:
            assert (a or b) is None or (a if b is None else b).abs().max().item() == 0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(VIEWS)), st.sampled_from(["mul_by_leaf", "add_leaf", "square"])
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_sequence_of_writes_through_several_views(steps):
    results = []
    for inside in (True, False):
        x, w = leaf(), leaf(3, 1)
        base = x * 0.5
        views = {name: VIEWS[name](base) for name, _ in steps}
        for name, write in steps:
            in_place, out_of_place = WRITES[write]
            if inside:
                in_place(views[name], w)
            else:
                base = replaced(base, VIEWS[name], out_of_place(VIEWS[name](base), w))
        last = views[steps[0][0]] if inside else VIEWS[steps[0][0]](base)
        loss = (base * base).sum() + last.sum() + w.sum()
        results.append([base, last, *grad(loss, [x, w])])
    for a, b in zip(*results, strict=True):
        close(a, b)


def test_a_view_gets_a_new_grad_fn_when_asked():
    x = leaf()
    base = x * 1
    view = base[1:]
    before = view.grad_fn
    base.mul_(2)
    assert view.grad_fn is not before and view.grad_fn.next_functions[0][0] is base.grad_fn
    assert view.grad_fn is view.grad_fn
    view.add_(1)
    assert base.grad_fn.name == "ViewScatterBackward"


def test_a_constant_base_gets_history_through_its_view():
    w = leaf(3)
    base = zeros(2, 3, dtype=numgrad.float64)
    other = base[1]
    base[0].add_(w)
    assert base.requires_grad and not base.is_leaf and other.requires_grad
    (base.sum() * 2 + other.sum()).backward()
    assert w.grad.tolist() == [2, 2, 2]
    buffer = zeros(3, dtype=numgrad.float64)
    for i in range(3):
        buffer[i] = w[i] ** 2
    w.grad = None
    buffer.sum().backward()
    close(w.grad, w * 2)


def test_detach_cuts_and_shares_the_version():
    x = leaf()
    y = x * x
    cut = y.detach()
    assert cut.data_ptr() == y.data_ptr() and not cut.requires_grad and cut.is_leaf
    z = y.exp()
    cut.add_(1)
    assert cut._version == y._version == 1
    z.sum().backward(retain_graph=True)  # exp keeps its result, which did not change
    w = y * y
    cut.mul_(2)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation"):
        w.sum().backward()


def test_data_is_not_seen_by_the_graph_but_by_the_storage():
    x = leaf()
    y = x * x
    writes, version = x.storage.writes, x._version
    x.data.mul_(2)
    assert x._version == version and x.storage.writes == writes + 2
    y.sum().backward()  # documented: the gradient is of the new value


def test_detach_in_place():
    x = leaf()
    y = x * 2
    z = y * 3
    view = y[1:]
    assert y.detach_() is y and y.is_leaf and not y.requires_grad
    z.sum().backward(retain_graph=True)
    assert x.grad.tolist() == [6] * 6  # graphs made earlier keep the old node
    view.sum().backward()
    assert x.grad.tolist() == [6, 8, 8, 8, 8, 8]
    with pytest.raises(RuntimeError, match=r"^Can't detach views in-place"):
        (x * 2)[1:].detach_()
    x.detach_()
    assert not x.requires_grad


BUMPS = {
    "add_": lambda x: x.add_(1),
    "iadd": lambda x: x.__iadd__(1),
    "isub": lambda x: x.__isub__(x),
    "imul": lambda x: x.__imul__(2),
    "itruediv": lambda x: x.__itruediv__(2),
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(2),
    "copy_": lambda x: x.copy_(ones(6)),
    "setitem": lambda x: x.__setitem__(0, 1),
    "setitem_mask": lambda x: x.__setitem__(x > 0, 1),
    "setitem_places": lambda x: x.__setitem__(tensor([0, 0]), 1),
    "clamp_": lambda x: x.clamp_(max=1.0),
    "exp_": lambda x: x.exp_(),
    "masked_fill_": lambda x: x.masked_fill_(x > 0, 3),
    "addcmul_": lambda x: x.addcmul_(x, x),
    "uniform_": lambda x: x.uniform_(),
    "normal_": lambda x: x.normal_(),
    "bernoulli_": lambda x: x.bernoulli_(),
    "random_": lambda x: x.random_(),
    "out": lambda x: numgrad.add(x, 1, out=x),
    "view": lambda x: x.view(2, 3)[0].add_(1),
    "detached": lambda x: x.detach().add_(1),
}


@pytest.mark.parametrize("name", BUMPS)
def test_every_write_bumps_both_counters(name):
    x = ones(6)
    view, version, writes = x[1:], x._version, x.storage.writes
    BUMPS[name](x)
    assert x._version > version and view._version == x._version
    assert x.storage.writes > writes


# ------------------------------------------------------------------------------------------- errors


def test_a_saved_value_that_changed():  # values.md row 17
    x = leaf()
    y = x.exp()
    y += 1
    with pytest.raises(RuntimeError) as error:
        y.sum().backward()
    text = str(error.value)
    assert text.startswith(
        "one of the variables needed for gradient computation has been modified by an inplace "
        "operation"
    )
    for part in ("exp saved out (6,)", "at version 0", "now at version 1", "add_"):
        assert part in text
    z = x * 1
    product = z * z
    z[0] = 3
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*mul saved"):
        product.sum().backward()


def test_leaves_and_views_of_leaves():
    x = leaf()
    view = x[1:]
    for write in (lambda: x.add_(1), lambda: x.zero_(), lambda: x.copy_(ones(6))):
        with pytest.raises(
            RuntimeError,
            match=r"^a leaf Variable that requires grad has been used in an in-place operation.",
        ):
            write()
    for write in (lambda: view.add_(1), lambda: x.__setitem__(0, 1.0)):
        with pytest.raises(RuntimeError, match=r"^a view of a leaf Variable that requires grad"):
            write()
    assert x.tolist() == leaf().tolist() and x._version == 0
    with no_grad():
        view.add_(1)
    assert x.requires_grad and x.is_leaf and x._version == 1


def test_a_view_made_without_history():
    base = leaf() * 1
    with no_grad():
        view = base[1:]
        view.add_(1)
    with pytest.raises(RuntimeError, match=r"^A view was created in no_grad mode"):
        view.add_(1)
    with no_grad(), enable_grad():
        base[1:].add_(1)


def test_overlapping_memory():  # values.md rows 18 and 34
    a = ones(1, 1).expand(4, 5)
    for write in (lambda: a.add_(1), lambda: a.copy_(ones(4, 5)), lambda: a.__setitem__(0, 2.0)):
        with pytest.raises(RuntimeError, match=r"unsupported operation: more than one element"):
            write()
    assert a.sum().item() == 20
    ones(0, 1).expand(0, 3).add_(1)
    a = tensor([[1.0, 2.0], [3.0, 4.0]])
    a.add_(a[0])
    assert a.tolist() == [[2, 4], [4, 6]]
    a = tensor([1.0, 2.0, 3.0, 4.0])
    a.copy_(a.flip(0))
    assert a.tolist() == [4, 3, 2, 1]
    a[1:].copy_(a[:-1])
    assert a.tolist() == [4, 4, 3, 2]
    a = tensor([[1.0, 2.0], [3.0, 4.0]])
    a.copy_(a.t())
    assert a.tolist() == [[1, 3], [2, 4]]


def test_overlapping_operands_have_right_gradients():
    x = tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    a = x * 1
    a.mul_(a[0])
    a.sum().backward()
    y = tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    (y * y[0]).sum().backward()
    close(x.grad, y.grad)


@pytest.mark.parametrize(
    "write, error",
    [
        (lambda x: x.add_(ones(4)), ValueError),
        (lambda x: x.add_(ones(2, 6)), ValueError),
        (lambda x: x.copy_(ones(7)), ValueError),
        (lambda x: x.__setitem__(slice(2), ones(3)), ValueError),
        (lambda x: x.__setitem__(9, 1.0), IndexError),
        (lambda x: x.add_("1"), TypeError),
        (lambda x: x.copy_([1]), TypeError),
        (lambda x: x.fill_(None), TypeError),
        (lambda x: x.long().add_(0.5), TypeError),
        (lambda x: x.uniform_(2, 1), ValueError),
        (lambda x: x.normal_(0, -1), ValueError),
        (lambda x: x.bernoulli_(2), ValueError),
    ],
)
def test_a_bad_write_changes_nothing(write, error):
    x = ones(6)
    with pytest.raises(error):
        write(x)
    assert x.tolist() == [1] * 6 and x._version == 0 and x.storage.writes == 0


def test_read_only_memory():
    array = np.ones(3, np.float32)
    x = numgrad.from_numpy(array)
    array.flags.writeable = False
    y = numgrad.from_numpy(np.ones(3, np.float32))
    y._array = array
    with pytest.raises(RuntimeError, match=r"^add_: expected writable memory"):
        y.add_(1)
    assert x.tolist() == [1, 1, 1]


def test_a_square_and_its_transpose():
    """The same first element and shape, other strides: what is read is not what was written."""
    a = np.arange(120.0 * 120).reshape(120, 120)
    x = numgrad.tensor(a)
    x.add_(x.t())
    np.testing.assert_array_equal(x.numpy(), a + a.T)
    x = numgrad.tensor(a)
    x.copy_(x.t())
    np.testing.assert_array_equal(x.numpy(), a.T)
