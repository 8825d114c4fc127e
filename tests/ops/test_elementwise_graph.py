"""Every elementwise entry on the graph: what it keeps, what it writes to, what it refuses."""

import gc
import inspect
import weakref

import numpy as np
import pytest

import numgrad
from numgrad import memory
from numgrad.graph.errors import GradError, ShapeError
from numgrad.graph.node import counters
from tests.checks import assert_close
from tests.ops import samples
from tests.ops.samples import ENTRIES, differentiable, tensors

each_entry = pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES.keys())
each_differentiable = pytest.mark.parametrize(
    "entry",
    [e for e in ENTRIES.values() if differentiable(e)],
    ids=[n for n, e in ENTRIES.items() if differentiable(e)],
)
WRITING = {n: e for n, e in ENTRIES.items() if n not in ("where",)}
"""Entries with an in-place form. ``where`` has none: its first operand is a condition."""
each_writing = pytest.mark.parametrize("entry", WRITING.values(), ids=WRITING.keys())

SHAPE = (4, 5)


def smooth(entry, shape=SHAPE):
    return samples.smooth(entry, shape, np.random.default_rng(sum(map(ord, entry.name)) + 1))


def save_set(entry, wanted):
    """Names an entry must keep when the operands ``wanted`` require grad: those its rules name."""
    rules = dict(zip(entry.operands, entry.rules, strict=True))
    asked = set()
    for name in wanted:
        if rules[name] is not None:
            asked |= set(inspect.signature(rules[name].function).parameters)
    return asked & {*samples.tensor_operands(entry), "out"}


# ------------------------------------------------------------------------------------- what is kept


@each_differentiable
def test_saves_only(entry):
    """Exactly the operands and results that the rules of the wanted gradients name, to the byte."""
    arrays = smooth(entry)
    names = samples.tensor_operands(entry)
    sizes = {n: a.nbytes for n, a in zip(names, arrays, strict=True)}
    sizes["out"] = arrays[-1].nbytes
    subsets = [differentiable(entry), *([n] for n in names if n in differentiable(entry))]
    for wanted in subsets:
        xs = tensors(arrays)
        for name, x in zip(names, xs, strict=True):
            if name in wanted:
                x.requires_grad_()
        with memory.track() as m:
            out = entry(*xs)
        kept = save_set(entry, [n for n in wanted if n in names])
        assert m.nodes == 1
        assert out.requires_grad and out.grad_fn is not None
        assert m.saved_tensors == len(kept), f"{entry.name} for {wanted}: expected {kept}"
        assert m.saved_bytes == sum(sizes[n] for n in kept), f"{entry.name} for {wanted}"


@each_differentiable
def test_unneeded_operands_die(entry):
    names = samples.tensor_operands(entry)
    xs = tensors(smooth(entry), requires_grad=True)
    arrays = {n: weakref.ref(x.array) for n, x in zip(names, xs, strict=True)}
    gc.disable()
    try:
        out = entry(*xs)
        arrays["out"] = weakref.ref(out.array)
        node = out.grad_fn
        del xs, out
        kept = save_set(entry, differentiable(entry))
        for name, array in arrays.items():
            assert (array() is not None) == (name in kept), f"{entry.name}: {name}, kept {kept}"
        del node
        assert all(array() is None for array in arrays.values()), f"{entry.name}: a cycle"
    finally:
        gc.enable()


def test_save_sets():
    """What is kept for a few entries, by hand."""
    x, y = (numgrad.ones(10, dtype="float64", requires_grad=True) for _ in range(2))
    frozen = numgrad.ones(10, dtype="float64")
    cases = [
        (lambda: x + y, 0),
        (lambda: x - 3, 0),
        (lambda: -x, 0),
        (lambda: x * y, 2),
        (lambda: x * frozen, 1),
        (lambda: x * 2.0, 0),
        (lambda: x.exp(), 1),
        (lambda: x.tanh(), 1),
        (lambda: x.relu(), 1),
        (lambda: x.log(), 1),
        (lambda: x / frozen, 1),
        (lambda: frozen / x, 2),
        (lambda: x**3, 1),
        (lambda: x.floor(), 0),
        (lambda: numgrad.where(frozen > 0, x, y), 1),
    ]
    for i, (function, count) in enumerate(cases):
        with memory.track() as m:
            out = function()
        assert m.saved_tensors == count, f"case {i}: {m.saved_tensors}, expected {count}"
        assert out.shape == (10,)


MODES = {
    "volatile": None,
    "no_grad": numgrad.no_grad,
    "inference_mode": numgrad.inference_mode,
    "constants": None,
}


@pytest.mark.parametrize("mode", MODES)
@each_entry
def test_no_tape(entry, mode):
    xs = tensors(smooth(entry), requires_grad=mode in ("no_grad", "inference_mode"))
    if mode == "volatile":
        xs = [x.requires_grad_() if x.is_floating_point() else x for x in xs]
        xs[-1] = numgrad.Variable(xs[-1].detach(), volatile=True)
    before = counters.nodes, counters.saved, counters.saved_bytes
    with memory.track() as m:
        if MODES[mode] is None:
            out = entry(*xs)
        else:
            with MODES[mode]():
                out = entry(*xs)
    assert (m.nodes, m.saved_tensors, m.saved_bytes) == (0, 0, 0)
    assert (counters.nodes, counters.saved, counters.saved_bytes) == before
    assert m.by_category["saved"] == 0
    assert not out.requires_grad and out.grad_fn is None and out.is_leaf
    assert out.volatile == (mode == "volatile")


@each_differentiable
def test_freed_after_backward(entry):
    if not save_set(entry, differentiable(entry)):
        return  # nothing was kept, so nothing is missing: test_values.py does this twice for add
    xs = tensors(smooth(entry), requires_grad=True)
    out = entry(*xs)
    g = numgrad.ones_like(out)
    out.backward(g)
    with pytest.raises(GradError, match="second time"):
        out.backward(g)


# ----------------------------------------------------------------------------------------- in place


def _history(arrays, requires_grad=True):
    """Leaves, and computed copies of them that may be written to."""
    leaves = tensors(arrays, requires_grad)
    return leaves, [x.clone() for x in leaves]


@each_writing
def test_in_place(entry):
    """Equals out of place, gradients included; the tensor stays the same object and memory."""
    arrays = smooth(entry)
    weights = numgrad.tensor(np.linspace(0.5, 2, 20).reshape(SHAPE))
    leaves, xs = _history(arrays)
    expected = entry(*xs)
    if expected.requires_grad:
        (expected * weights).sum().backward()
    leaves_2, xs = _history(arrays)
    target, address, version = xs[0], xs[0].data_ptr(), xs[0]._version
    got = entry.in_place(*xs)
    assert got is target and got.data_ptr() == address and got._version == version + 1
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got.detach().numpy(), expected.detach().numpy().astype(float))
    if expected.requires_grad:
        assert got.requires_grad
        (got * weights).sum().backward()
        for a, b in zip(leaves, leaves_2, strict=True):
            assert (a.grad is None) == (b.grad is None), entry.name
            if a.grad is not None:
                np.testing.assert_array_equal(a.grad.numpy(), b.grad.numpy(), entry.name)


@each_writing
def test_in_place_needs_overwritten_value(entry):
    """Where a rule needs the first operand, it gets its old value, of a strided tensor too."""
    arrays = smooth(entry)
    leaves, xs = _history(arrays)
    entry(*xs).sum().backward() if differentiable(entry) else None
    leaves_2, xs = _history(arrays)
    turned = [xs[0].t().clone().t(), *xs[1:]]
    entry.in_place(*turned)
    if differentiable(entry):
        turned[0].sum().backward()
        for a, b in zip(leaves, leaves_2, strict=True):
            if a.grad is not None:
                np.testing.assert_array_equal(a.grad.numpy(), b.grad.numpy(), entry.name)


@each_writing
def test_in_place_on_a_leaf(entry):
    xs = tensors(smooth(entry), requires_grad=True)
    before, version = xs[0].detach().clone(), xs[0]._version
    with pytest.raises(GradError, match="a leaf Variable that requires grad has been used"):
        entry.in_place(*xs)
    np.testing.assert_array_equal(xs[0].detach().numpy(), before.numpy())
    assert xs[0]._version == version and xs[0].grad_fn is None
    with numgrad.no_grad():
        entry.in_place(*xs)
    assert xs[0].requires_grad and xs[0].is_leaf and xs[0]._version == version + 1


@each_differentiable
def test_saved_value_changed(entry):
    """A value the entry keeps must not change before backward; one it does not keep may."""
    names = samples.tensor_operands(entry)
    kept = save_set(entry, differentiable(entry))
    for name in [*names, "out"]:
        leaves, xs = _history(smooth(entry))
        out = entry(*xs)
        changed = out if name == "out" else xs[names.index(name)]
        changed.add_(1) if changed.is_floating_point() else changed.zero_()
        if name in kept:
            with pytest.raises(GradError, match="modified by an inplace operation") as error:
                out.sum().backward()
            assert entry.name in str(error.value) and "version" in str(error.value)
        else:
            out.sum().backward()
            assert any(x.grad is not None for x in leaves)


@each_writing
def test_in_place_shape(entry):
    xs = tensors(smooth(entry))
    if len(xs) < 2:
        return
    small = xs[0][0].clone()
    before = small.clone()
    with pytest.raises(ShapeError, match="cannot change the shape"):
        entry.in_place(small, *xs[1:])
    np.testing.assert_array_equal(small.numpy(), before.numpy())
    assert small._version == 0


def test_in_place_dtypes():
    """The result is computed in the promoted dtype and converted as it is written."""
    x = numgrad.tensor([200, 7], dtype="uint8")
    assert x.floor_divide_(numgrad.tensor([300, 2])).tolist() == [0, 3]
    x = numgrad.tensor([1.0, 2.0])
    assert x.add_(numgrad.tensor([0.5, 1.0], dtype="float64")).tolist() == [1.5, 3.0]
    assert x.dtype == np.float32
    x = numgrad.tensor([1, 2], dtype="int32")
    assert x.mul_(numgrad.tensor([True, False])).tolist() == [1, 0]
    assert x.add_(2**40 + 1).tolist() == [2, 1]  # wraps around, as in PyTorch
    x = numgrad.tensor([0.0, 3.0])
    assert numgrad.logical_not.in_place(x).tolist() == [1.0, 0.0] and x.dtype == np.float32
    assert numgrad.gt.in_place(x, numgrad.tensor([0, 0])).tolist() == [1.0, 0.0]
    x = numgrad.tensor([5, 6])
    for write in (lambda: x.add_(1.5), lambda: x.div_(2), lambda: x.sqrt_(), lambda: x.pow_(-1)):
        with pytest.raises((TypeError, ValueError)):
            write()
    with pytest.raises(TypeError, match="can't be cast to the desired output type"):
        numgrad.tensor([True]).add_(1)
    assert x.tolist() == [5, 6] and x._version == 0
    a = numgrad.tensor([1.0, 2.0], requires_grad=True)
    b = numgrad.tensor([3.0, 4.0], dtype="float64", requires_grad=True)
    y = a.clone().mul_(b)
    y.sum().backward()
    assert a.grad.tolist() == [3, 4] and a.grad.dtype == np.float32
    assert b.grad.tolist() == [1, 2] and b.grad.dtype == np.float64


def test_in_place_operators():
    """Each writes to the tensor's own memory: another handle sees it."""
    x = numgrad.tensor([7.0, -7.0])
    for write, expected in (
        (lambda t: t.__iadd__(1), [8, -6]),
        (lambda t: t.__isub__(1), [6, -8]),
        (lambda t: t.__imul__(2), [14, -14]),
        (lambda t: t.__itruediv__(2), [3.5, -3.5]),
        (lambda t: t.__ifloordiv__(2), [3, -4]),
        (lambda t: t.__imod__(2), [1, 1]),
        (lambda t: t.__ipow__(2), [49, 49]),
    ):
        y = x.clone()
        alias = y.view(2)
        assert write(y) is y and alias.tolist() == expected
    mask = numgrad.tensor([True, False, True])
    alias, other = mask.view(3), numgrad.tensor([True, True, False])
    mask &= other
    assert alias.tolist() == [True, False, False]
    mask |= other
    assert alias.tolist() == [True, True, False]
    mask ^= numgrad.tensor([True, False, True])
    assert alias.tolist() == [False, True, True]
    assert (~mask).tolist() == [True, False, False] and (mask & True).tolist() == mask.tolist()
    with pytest.raises(TypeError, match="bool"):
        mask &= x[0]
    assert alias.tolist() == [False, True, True]


def test_overlap():
    """An operand that overlaps the destination counts as copied first."""
    start = np.arange(1.0, 13.0).reshape(3, 4)
    square = np.arange(1.0, 10.0).reshape(3, 3)

    def check(array, write, expected):
        x = numgrad.tensor(array)
        write(x)
        np.testing.assert_array_equal(x.numpy(), expected)

    check(start, lambda a: a.add_(a[0]), start + start[0])
    check(start, lambda a: a.mul_(a[:, :1]), start * start[:, :1])
    check(square, lambda a: a.sub_(a.t()), square - square.T)
    check(square, lambda a: a.copy_(a.t()), square.T)
    check(start, lambda a: a.copy_(a.flip(0)), start[::-1])
    check(start, lambda a: a.mul_(a), start * start)
    check(start, lambda a: a[1:].copy_(a[:-1]), np.concatenate([start[:1], start[:-1]]))
    check(start, lambda a: a[:, 1:].add_(a[:, :-1]), np.concatenate(
        [start[:, :1], start[:, 1:] + start[:, :-1]], 1))  # fmt: skip
    check(start, lambda a: a.reshape(-1)[::2].sub_(a.reshape(-1)[1::2]), np.stack(
        [start.reshape(-1)[::2] - start.reshape(-1)[1::2], start.reshape(-1)[1::2]], 1
    ).reshape(3, 4))  # fmt: skip
    check(square, lambda a: numgrad.lerp.in_place(a, a.t(), a[0]),
          samples.reference(ENTRIES["lerp"])(square, square.T, square[0]))  # fmt: skip
    x = numgrad.tensor(square, requires_grad=True)
    y = x.clone()
    y.mul_(y.t())
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), 2 * square.T)


def test_expanded_destination():
    a = numgrad.ones(1, 1).expand(4, 5)
    with pytest.raises(GradError, match="more than one element of the written-to tensor"):
        a += 1
    assert a.tolist() == [[1.0] * 5] * 4


# --------------------------------------------------------------------------------------------- out=


@each_entry
def test_out_argument(entry):
    xs = tensors(smooth(entry))
    expected = entry(*xs)
    out = numgrad.empty(SHAPE, dtype=expected.dtype)
    address = out.data_ptr()
    assert entry(*xs, out=out) is out
    assert out.data_ptr() == address and out._version == 1
    np.testing.assert_array_equal(out.numpy(), expected.numpy())
    strided = numgrad.zeros(SHAPE[::-1], dtype=expected.dtype).t()
    entry(*xs, out=strided)
    np.testing.assert_array_equal(strided.numpy(), expected.numpy())
    needing = tensors(smooth(entry), requires_grad=True)
    if differentiable(entry):
        with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
            entry(*needing, out=out)
        with numgrad.no_grad():
            assert entry(*needing, out=out) is out
    wrong = numgrad.full((3,), 7.0, dtype="float64")
    with pytest.raises(ShapeError, match="for out"):
        entry(*xs, out=wrong)
    with pytest.raises(TypeError, match="a Tensor for out"):
        entry(*xs, out=np.zeros(SHAPE))
    assert wrong.tolist() == [7.0] * 3
    if expected.dtype.kind == "f":
        whole = numgrad.full(SHAPE, 7, dtype="int64")
        with pytest.raises(TypeError, match="for out"):
            entry(*xs, out=whole)
        assert whole.tolist() == [[7] * 5] * 4


# ------------------------------------------------------------------------------------------- errors


@each_entry
def test_errors(entry):
    xs = tensors(smooth(entry))
    copies = [x.clone() for x in xs]
    nodes = counters.nodes
    for bad in ("abc", None, [1.0], np.ones(SHAPE), 1j, object()):
        for i in range(len(xs)):
            with pytest.raises(TypeError, match=f"{entry.name}: expected a Tensor or a number"):
                entry(*xs[:i], bad, *xs[i + 1 :])
    with pytest.raises(TypeError, match="expected keywords among"):
        entry(*xs, wrong=1)
    with pytest.raises(TypeError, match="expected at most"):
        entry(*xs, *[1.0] * (len(entry.operands) - len(xs) + 1))
    with pytest.raises(TypeError, match="expected a value for"):
        entry()
    with pytest.raises(TypeError, match="expected keywords among"):
        entry(*xs, **{entry.operands[0]: xs[0]})
    if len(xs) > 1:
        misfit = numgrad.ones(3, 7, dtype=xs[-1].dtype)
        with pytest.raises(ShapeError) as error:
            entry(*xs[:-1], misfit)
        text = str(error.value)
        assert text.startswith(f"{entry.name}: expected a shape that broadcasts")
        assert "(4, 5)" in text and "(3, 7)" in text and "float64" in text
    for name in entry.conditions:
        i = entry.operands.index(name)
        with pytest.raises(TypeError, match="a bool"):
            entry(*xs[:i], xs[i].double(), *xs[i + 1 :])
    if entry.defaults and entry.compute_rule != "floating":
        name = next(iter(entry.defaults))
        whole = [numgrad.ones(SHAPE, dtype="int64") for _ in xs]
        with pytest.raises(TypeError, match="a value that int64 holds"):
            entry(*whole, **{name: 1.5})
    assert counters.nodes == nodes
    for x, copy in zip(xs, copies, strict=True):
        np.testing.assert_array_equal(x.numpy(), copy.numpy())
        assert x._version == 0


def test_condition_in_place():
    mask = numgrad.tensor([True, False])
    with pytest.raises(TypeError, match="no condition"):
        numgrad.where.in_place(mask, mask, mask)


def test_huge_numbers():
    x = numgrad.tensor([1, 2])
    with pytest.raises(OverflowError, match="an integer of 64 bits"):
        x + 2**70
    assert (numgrad.tensor([1.0]) + 2**70).item() == float(2**70)


def test_positional_and_keyword_names():
    x, y = numgrad.tensor([1.0, 2.0]), numgrad.tensor([3.0, 5.0])
    assert numgrad.mul(input=x, other=y).tolist() == [3.0, 10.0]
    assert numgrad.mul(x, other=y).tolist() == [3.0, 10.0]
    assert numgrad.leaky_relu(-x, negative_slope=0.5).tolist() == [-0.5, -1.0]
    assert_close(numgrad.softplus(x, threshold=1.5).numpy(), np.array([1.3132616, 2.0]), 1e-6)


def test_old_argument_orders():
    x = numgrad.tensor([1.0, 2.0])
    y, z = numgrad.tensor([3.0, 4.0]), numgrad.tensor([2.0, 8.0])
    assert x.add(0.5, y).tolist() == [2.5, 4.0] == x.add(y, alpha=0.5).tolist()
    assert x.clone().add_(-0.5, y).tolist() == [-0.5, 0.0]
    assert x.clone().sub_(0.5, y).tolist() == [-0.5, 0.0]
    assert x.addcmul(2, y, z).tolist() == [13.0, 66.0] == x.addcmul(y, z, value=2).tolist()
    assert x.clone().addcmul_(2, y, z).tolist() == [13.0, 66.0]
    assert x.addcdiv(2, y, z).tolist() == [4.0, 3.0] == x.addcdiv(y, z, value=2).tolist()
    assert x.clone().addcdiv_(2, y, z).tolist() == [4.0, 3.0]
