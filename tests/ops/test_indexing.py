"""Indexing against NumPy's: fixed cases of every kind, and many random ones; reading, writing,
gradients of both."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import numgrad
from numgrad import memory
from numgrad.graph.errors import GradError, ShapeError
from tests.checks import check_gradients

RNG = np.random.default_rng(0)
SHAPE = (3, 4, 5)
X = RNG.standard_normal(SHAPE)
MASK = RNG.integers(0, 2, SHAPE).astype(bool)


def a(*values):
    return np.array(values, np.int64)


BASIC = [
    0, -1, (1, 2), (1, 2, 3), (-1, -2, -3), slice(None), slice(1, None), slice(None, None, 2),
    slice(10), slice(3, 1), slice(-2, None), (slice(None), 1), (..., 1), (1, ...),
    (..., 1, slice(2)),
    (slice(None), None, slice(1, 3)), None, (None, ..., None), ..., (), (0, slice(1, 3), -1),
    (slice(None), slice(None, None, 3), slice(4, 1)), np.int64(1), (np.int32(1), -1),
]  # fmt: skip
ADVANCED = [
    a(0, 2), a(2, 2, 2, 0), a(-1, 0), [0, 2], a(), np.array([[0, 1], [2, -3]]),
    (slice(None), a(0, 3, 3)), (slice(None), slice(None), a(4, -5)), (..., a(0, 1)), (a(0, 1), ...),
    (a(0, 1), a(2, 3)), (a(0, 1, 1), a(2, 3, 3), a(4, 4, 4)), (a(0, 1), 2), (1, a(0, 1)),
    (a(0, 1), slice(None), a(2, 3)), (1, slice(None), a(2, 3)), (a(0, 1), slice(None), 2),
    (slice(1, 3), a(0, 1), a(1, 1)), (a(0, 1)[:, None], a(1, 2, 3)),
    (a(0, 1)[:, None], slice(None), a(1, 2)),
    (None, a(0, 1)), (a(0, 1), None, a(2, 3)), (slice(None), None, a(0, 1)), (a(0, 1), None),
    (slice(None, None, 2), a(1, 0), slice(3)), np.int64(1) * a(1), (a(0)[0], a(1, 2)),
    (a(0, 1), a(1)), (a(1), a(0, 1, 2)), ([0, 1], [1, 2]), (slice(None), [[0, 1], [2, 3]]),
    (..., a(0, 1), a(1, 0)), (np.array(1), slice(None)), (np.array(1), a(0, 1)),
    np.array([1, 2], np.int32), (slice(None), a(), 0),
]  # fmt: skip
MASKED = [
    MASK, MASK[:, 0, 0], MASK[:, :, 0], (slice(None), MASK[0, :, 0]), (..., MASK[0, 0]),
    (MASK[:, 0, 0], slice(None), a(1)), (MASK[:, 0, 0], 1), (slice(None), MASK[0, :, 0], slice(2)),
    np.zeros(SHAPE, bool), np.ones(SHAPE, bool), np.zeros(3, bool), (0, MASK[0]),
    (slice(None), MASK[0, :, 0], 1), (None, MASK[:, 0, 0]), True, False, (True, 0),
    (MASK[:, :, 0], None),
    (MASK[:, 0, 0] | True, a(0, 1, 2)), np.True_, [True, False, True],
]  # fmt: skip
CASES = {f"{kind}-{i}": c for kind, cases in (("basic", BASIC), ("advanced", ADVANCED),
         ("mask", MASKED)) for i, c in enumerate(cases)}  # fmt: skip
each_case = pytest.mark.parametrize("index", CASES.values(), ids=CASES.keys())


def _width(part):
    if part is None or part is ... or isinstance(part, (bool, np.bool_)):
        return 0
    return part.ndim if isinstance(part, np.ndarray) and part.dtype == bool else 1


def places(shape, index):
    """The flat places an index names, as PyTorch does: integers, slices and new axes first, then
    arrays and masks. (NumPy takes an integer beside an array for an array.)"""
    flat = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    parts = list(index) if isinstance(index, tuple) else [index]
    parts = [np.asarray(p) if isinstance(p, list) else p for p in parts]
    parts = [int(p) if isinstance(p, np.integer) else p for p in parts]
    if not any(isinstance(p, np.ndarray) for p in parts):
        return flat[index]
    used = sum(_width(p) for p in parts)
    at = next((i for i, p in enumerate(parts) if p is ...), len(parts))
    parts[at : at + 1] = [slice(None)] * (len(shape) - used)
    basic, advanced = [], []
    for p in parts:
        if isinstance(p, np.ndarray):
            masked = p.ndim if p.dtype == bool else 1
            basic += [slice(None)] * masked
            advanced.append(p)
        else:
            basic.append(p)
            if isinstance(p, bool) or not isinstance(p, int):
                advanced.append(slice(None))
    return flat[tuple(basic)][tuple(advanced)]


def as_tensors(index):
    """The same index with tensors for arrays."""
    parts = index if isinstance(index, tuple) else (index,)
    changed = tuple(numgrad.tensor(p) if isinstance(p, np.ndarray) else p for p in parts)
    return changed if isinstance(index, tuple) else changed[0]


@each_case
def test_getitem(index):
    expected = X.reshape(-1)[places(SHAPE, index)]
    if not isinstance(index, tuple) or not any(isinstance(p, int) for p in index):
        np.testing.assert_array_equal(expected, X[index])
    for x in (numgrad.tensor(X), numgrad.tensor(X.transpose(2, 0, 1).copy()).permute(1, 2, 0)):
        for form in (index, as_tensors(index)):
            got = x[form]
            assert got.shape == np.shape(expected)
            np.testing.assert_array_equal(got.numpy(), expected)


@each_case
def test_getitem_gradient(index):
    if np.size(places(SHAPE, index)):
        check_gradients(lambda x: (x * x)[as_tensors(index)], [X], "getitem")
    x = numgrad.tensor(X, requires_grad=True)
    y = x[as_tensors(index)]
    weights = np.arange(1.0, y.numel() + 1).reshape(y.shape)
    y.backward(numgrad.tensor(weights))
    expected = np.zeros(X.size)
    np.add.at(expected, places(SHAPE, index), weights)
    np.testing.assert_array_equal(x.grad.numpy(), expected.reshape(SHAPE))


def _repeats(index):
    """Whether an index names a place twice: NumPy then leaves open which value wins."""
    named = places(SHAPE, index)
    return np.unique(named).size != np.size(named)


@each_case
def test_setitem(index):
    shape = np.shape(places(SHAPE, index))
    values = RNG.standard_normal(shape)
    choices = [values, 7.0] if not _repeats(index) else [7.0]
    if len(shape) > 1:
        choices.append(values[:1] if not _repeats(index) else np.full((1, *shape[1:]), 3.0))
    for value in choices:
        expected = X.reshape(-1).copy()
        expected[places(SHAPE, index)] = value
        expected = expected.reshape(SHAPE)
        for strided in (False, True):
            x = numgrad.tensor(X)
            if strided:
                x = numgrad.tensor(X.transpose(2, 0, 1).copy()).permute(1, 2, 0)
            x[as_tensors(index)] = value if isinstance(value, float) else numgrad.tensor(value)
            np.testing.assert_array_equal(x.numpy(), expected)
            assert x._version == 1 or np.size(values) == 0


@each_case
def test_setitem_gradient(index):
    shape = np.shape(places(SHAPE, index))
    if _repeats(index) or 0 in shape:
        return
    values = RNG.standard_normal(shape)

    def function(x, v):
        y = x * x
        y[as_tensors(index)] = v * v
        return y * x

    check_gradients(function, [X, values], "setitem")


def test_repeated_places():
    """Reading adds the gradients; writing keeps the last value."""
    x = numgrad.tensor([1.0, 2.0], requires_grad=True)
    y = x[numgrad.tensor([1, 0, 1])]
    y.backward(numgrad.tensor([1.0, 10.0, 100.0]))
    assert x.grad.tolist() == [10, 101]
    x = numgrad.zeros(3)
    x[numgrad.tensor([1, 1, 2])] = numgrad.tensor([5.0, 6.0, 7.0])
    assert x.tolist() == [0, 6, 7]


def test_repeated_writes_gradient():
    """Only the value that was written last gets a gradient."""
    v = numgrad.tensor([5.0, 6.0, 7.0], requires_grad=True)
    x = numgrad.zeros(3)
    x[numgrad.tensor([1, 1, 2])] = v
    x.backward(numgrad.tensor([1.0, 10.0, 100.0]))
    assert v.grad.tolist() == [0, 10, 100]


@st.composite
def indices(draw):
    """A shape and a valid index of it: any mixture of integers, slices, new axes, an ellipsis,
    integer arrays and masks."""
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    common = draw(st.lists(st.integers(0, 3), max_size=2))
    parts, axis = [], 0
    count = draw(st.integers(0, len(shape)))
    ellipsis = draw(st.integers(0, count)) if draw(st.booleans()) else count + 1
    while axis < count:
        if axis == ellipsis:
            parts.append(...)
        if draw(st.integers(0, 5)) == 0:
            parts.append(None)
        n = shape[axis] if axis < ellipsis else shape[len(shape) - count + axis]
        kind = draw(st.sampled_from(["int", "slice", "slice", "array", "array", "mask"]))
        if kind == "int" and n:
            parts.append(draw(st.integers(-n, n - 1)))
        elif kind == "array" and (n or 0 in common):
            own = [k if draw(st.integers(0, 2)) else 1 for k in common]
            own = own[draw(st.integers(0, len(own))) :]
            if not n and 0 not in own:
                own = list(common)
            parts.append(rng.integers(-n, max(n, 1), own).astype(np.int64))
        elif kind == "mask":
            mask = rng.integers(0, 2, n).astype(bool)
            arrays = [p for p in parts if isinstance(p, np.ndarray)]
            if arrays or common:
                parts.append(slice(None))
            else:
                parts.append(mask)
                common = [int(mask.sum())]
        else:
            bounds = [draw(st.one_of(st.none(), st.integers(-5, 5))) for _ in range(2)]
            parts.append(slice(*bounds, draw(st.sampled_from([None, 1, 2, 3]))))
        axis += 1
    return shape, tuple(parts)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(indices())
def test_any_index(case):
    shape, index = case
    values = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    try:
        named = places(shape, index)
    except IndexError:
        with pytest.raises(IndexError):
            numgrad.tensor(values)[as_tensors(index)]
        return
    x = numgrad.tensor(values, requires_grad=True)
    got = x[as_tensors(index)]
    assert got.shape == np.shape(named)
    np.testing.assert_array_equal(got.detach().numpy(), values.reshape(-1)[named])
    weights = np.arange(1.0, got.numel() + 1).reshape(got.shape)
    got.backward(numgrad.tensor(weights))
    gradient = np.zeros(values.size)
    np.add.at(gradient, named, weights)
    np.testing.assert_array_equal(x.grad.numpy(), gradient.reshape(shape))
    changed = numgrad.tensor(values)
    changed[as_tensors(index)] = -1.0
    values.reshape(-1)[named] = -1
    np.testing.assert_array_equal(changed.numpy(), values)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "bool"])
def test_dtypes(dtype):
    values = (np.abs(X) * 10).astype(dtype)
    x = numgrad.tensor(values)
    index = (a(0, 2, 2), slice(None), a(1, 0, 4))
    got = x[as_tensors(index)]
    assert got.dtype == dtype
    np.testing.assert_array_equal(got.numpy(), values[index])
    x[numgrad.tensor(MASK)] = 1
    values[MASK] = 1
    x[0, 1] = 0
    values[0, 1] = 0
    x[numgrad.tensor([1]), 2] = numgrad.tensor([1, 0, 1, 0, 1])
    values[[1], 2] = [1, 0, 1, 0, 1]
    np.testing.assert_array_equal(x.numpy(), values)
    assert x.dtype == dtype


def test_basic_is_a_view_and_advanced_a_copy():
    x = numgrad.tensor(X)
    assert np.shares_memory(x[1:, ..., 0].numpy(), x.numpy())
    for index in (numgrad.tensor([0, 1]), numgrad.tensor(MASK), [0, 1]):
        assert not np.shares_memory(x[index].numpy(), x.numpy())


def test_uint8_is_a_mask():
    x = numgrad.tensor([1.0, 2.0, 3.0])
    assert x[numgrad.tensor([1, 0, 1], dtype="uint8")].tolist() == [1, 3]
    assert x[(x > 1)].tolist() == [2, 3]


def test_gather():
    index = RNG.integers(-3, 3, (5, 4, 2))
    x = RNG.standard_normal((3, 4, 5))
    got = numgrad.gather(numgrad.tensor(x), 0, numgrad.tensor(index))
    expected = np.take_along_axis(x[:, :, :2], index, 0)
    np.testing.assert_array_equal(got.numpy(), expected)
    check_gradients(lambda t: (t * t).gather(0, numgrad.tensor(index)), [x], "gather")
    for axis in (1, 2, -1):
        index = RNG.integers(0, x.shape[axis], (3, 4, 5))
        got = numgrad.tensor(x).gather(axis, numgrad.tensor(index))
        np.testing.assert_array_equal(got.numpy(), np.take_along_axis(x, index, axis))
        check_gradients(lambda t: t.gather(axis, numgrad.tensor(index)), [x], "gather")
    t = numgrad.tensor(x)
    with pytest.raises(ShapeError, match="3 axes for index"):
        t.gather(0, numgrad.tensor([1]))
    with pytest.raises(ShapeError, match="outside axis 0"):
        t.gather(0, numgrad.zeros(3, 5, 5, dtype="int64"))
    with pytest.raises(IndexError, match="index 3 is out of bounds"):
        t.gather(0, numgrad.full((3, 4, 5), 3))
    with pytest.raises(TypeError, match="int64 tensor for index"):
        t.gather(0, numgrad.zeros(3, 4, 5))


def test_index_select():
    for axis in (0, 1, -1):
        index = RNG.integers(0, X.shape[axis], 7)
        got = numgrad.index_select(numgrad.tensor(X), axis, numgrad.tensor(index))
        np.testing.assert_array_equal(got.numpy(), np.take(X, index, axis))
        check_gradients(
            lambda t: (t * t).index_select(axis, numgrad.tensor(index)), [X], "index_select"
        )
    assert numgrad.tensor(X).index_select(0, numgrad.tensor(1)).shape == (1, 4, 5)
    with pytest.raises(ShapeError, match="one axis for index"):
        numgrad.tensor(X).index_select(0, numgrad.zeros(2, 2, dtype="int64"))


def test_nonzero_and_masked_select():
    for array in (MASK, X > 9, np.array(True), np.array(False), np.arange(6).reshape(2, 3), X[0]):
        got = numgrad.nonzero(numgrad.tensor(array))
        np.testing.assert_array_equal(got.numpy(), np.argwhere(array))
        assert got.dtype == np.int64
    turned = numgrad.tensor(MASK[0]).t().nonzero()
    np.testing.assert_array_equal(turned.numpy(), np.argwhere(MASK[0].T))
    x = numgrad.tensor(X)
    np.testing.assert_array_equal(x.masked_select(numgrad.tensor(MASK)).numpy(), X[MASK])
    row = MASK[0, 0]
    np.testing.assert_array_equal(
        x.masked_select(numgrad.tensor(row)).numpy(), X[np.broadcast_to(row, SHAPE)]
    )
    check_gradients(lambda t: (t * t).masked_select(numgrad.tensor(MASK)), [X], "masked_select")


def test_masked_fill():
    x, mask = numgrad.tensor(X), numgrad.tensor(MASK)
    expected = np.where(MASK, -1.5, X)
    np.testing.assert_array_equal(x.masked_fill(mask, -1.5).numpy(), expected)
    np.testing.assert_array_equal(x.masked_fill(mask, numgrad.tensor(-1.5)).numpy(), expected)
    y = x.clone()
    assert y.masked_fill_(mask, -1.5) is y
    np.testing.assert_array_equal(y.numpy(), expected)
    np.testing.assert_array_equal(
        x.masked_fill(mask[0], float("inf")).numpy(), np.where(MASK[0], np.inf, X)
    )
    check_gradients(lambda t: (t * t).masked_fill(mask, 2.0), [X], "masked_fill")
    check_gradients(lambda t: (t * t).masked_fill_(mask, 2.0) * t, [X], "masked_fill")
    with pytest.raises(ShapeError, match="a 0-dim tensor for value"):
        x.masked_fill(mask, numgrad.ones(3))
    with pytest.raises(TypeError, match="a bool"):
        x.masked_fill(x, 1.0)
    np.testing.assert_array_equal(x.numpy(), X)


def test_large():
    """Above the parallel threshold."""
    x = RNG.standard_normal((700, 300))
    rows = RNG.integers(0, 700, 900)
    t = numgrad.tensor(x, requires_grad=True)
    got = t[numgrad.tensor(rows)]
    np.testing.assert_array_equal(got.detach().numpy(), x[rows])
    weights = RNG.standard_normal(got.shape)
    got.backward(numgrad.tensor(weights))
    expected = np.zeros(x.shape)
    np.add.at(expected, rows, weights)
    np.testing.assert_array_equal(t.grad.numpy(), expected)
    mask = x > 0
    np.testing.assert_array_equal(t.detach()[numgrad.tensor(mask)].numpy(), x[mask])


def test_saves_only():
    x = numgrad.tensor(X, requires_grad=True)
    index = numgrad.tensor([0, 2])
    with memory.track() as m:
        y = x[index]
    assert m.saved_bytes <= 2 * 8 + 16  # the places, not x
    with memory.track() as m, numgrad.no_grad():
        x[index]
    assert (m.nodes, m.saved_tensors) == (0, 0)
    v = numgrad.Variable(x.detach(), volatile=True)
    with memory.track() as m:
        assert v[index].volatile and v[0].volatile
    assert m.nodes == 0 and y.requires_grad


def test_errors():
    x = numgrad.tensor(X, requires_grad=True)
    cases = [
        (3, IndexError, "index 3 is out of bounds for dimension 0 with size 3"),
        (-4, IndexError, "index -4 is out of bounds"),
        ((0, 4), IndexError, "dimension 1 with size 4"),
        ((0, 0, 0, 0), IndexError, "too many indices for tensor of dimension 3"),
        ((..., ...), IndexError, r"at most one \.\.\."),
        (numgrad.tensor([3]), IndexError, "index 3 is out of bounds"),
        (numgrad.tensor([-4]), IndexError, "index -4 is out of bounds"),
        (numgrad.tensor([0.5]), TypeError, "int64"),
        ("a", TypeError, "integers, slices"),
        (1.5, TypeError, "integers, slices"),
        (slice(None, None, -1), ValueError, "a slice step greater than zero"),
        (slice(None, None, 0), ValueError, "a slice step greater than zero"),
        (slice(0.5), TypeError, "integers in a slice"),
        (numgrad.tensor([True, False]), IndexError, "The shape of the mask"),
        (numgrad.tensor(MASK[:, :, :2]), IndexError, "The shape of the mask"),
        ((numgrad.tensor([0, 1]), numgrad.tensor([0, 1, 2])), IndexError, "broadcast together"),
    ]
    y = numgrad.tensor(X)
    for index, kind, text in cases:
        with pytest.raises(kind, match=text):
            x[index]
        with pytest.raises(kind, match=text):
            y[index] = 0.0
    for index, value in (
        (0, numgrad.ones(3)),
        (numgrad.tensor([0, 1]), numgrad.ones(3, 4, 5)),
        (numgrad.tensor(MASK), numgrad.ones(MASK.sum() + 1)),
        (0, numgrad.ones(2, 1, 4, 5)),
    ):
        with pytest.raises(ValueError):
            y[index] = value
    for value in ("x", None, object()):
        with pytest.raises(TypeError):
            y[0] = value
        with pytest.raises(TypeError):
            y[numgrad.tensor([0])] = value
    np.testing.assert_array_equal(y.numpy(), X)
    assert y._version == 0
    with pytest.raises(GradError, match=r"a view of a leaf|a leaf Variable"):
        x[0] = 1.0
    with pytest.raises(GradError, match="a leaf Variable"):
        x[numgrad.tensor([0])] = 1.0
    np.testing.assert_array_equal(x.detach().numpy(), X)
    with pytest.raises(IndexError, match="0-dim tensor"):
        numgrad.tensor(1.0)[0]
