"""Faults of operations, optimizers and files that were found by trying to break things."""

import copy
import importlib
import inspect
import math
import pickle

import numpy as np
import pytest

import numgrad
from numgrad import nn, ones, ops, optim, tensor, zeros
from numgrad.nn import functional as F
from numgrad.ops import indexing, movement

# ------------------------------------------------------------------------------------ non-tensors

NO_TENSOR_FIRST = {
    *("Generator", "arange", "as_tensor", "empty", "eye", "from_numpy", "full", "linspace"),
    *("get_rng_state", "initial_seed", "manual_seed", "set_rng_state"),
    *("normal", "ones", "rand", "randint", "randn", "randperm", "tensor", "zeros"),
}
COUNTS = {"add": 2, "sub": 2, "addmm": 3, "addcmul": 3, "addcdiv": 3}
NON_TENSORS = [[1.0, 2.0], None, "a", np.ones((2, 2))]


def count_of(name, function):
    if name in COUNTS:
        return COUNTS[name]
    if hasattr(function, "operands"):
        return len(function.operands) - len(function.defaults)
    parameters = inspect.signature(function).parameters.values()
    return sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)


@pytest.mark.parametrize("name", sorted(set(ops.__all__) - NO_TENSOR_FIRST))
def test_first_operand_is_no_tensor(name):
    function = getattr(ops, name)
    rest = [ones(2, 2)] * (count_of(name, function) - 1)
    for bad in NON_TENSORS:
        with pytest.raises(TypeError, match=r"^\w+: expected .*; "):
            function(bad, *rest)


@pytest.mark.parametrize(
    "name", ["softmax", "log_softmax", "relu", "logsigmoid", "linear", "mse_loss", "cross_entropy"]
)
def test_first_operand_of_a_functional_is_no_tensor(name):
    function = getattr(F, name)
    rest = [ones(2, 2)] * (count_of(name, function) - 1)
    for bad in NON_TENSORS:
        with pytest.raises(TypeError, match=rf"^{name}: expected .*; "):
            function(bad, *rest)


def test_places_that_are_no_integers():
    x = ones(3, 3)
    for call in (
        lambda: x.select(0, 0.5),
        lambda: x.narrow(0, 0.5, 1),
        lambda: x.narrow(0, 0, None),
        lambda: ops.masked_select(x, tensor([0, 1, 2])),
    ):
        with pytest.raises(TypeError, match=r"^\w+: expected .*; "):
            call()


# ------------------------------------------------------------------------------------- arithmetic


@pytest.mark.parametrize(
    "power",
    [
        lambda: tensor([0, 2]) ** tensor([1, -1]),
        lambda: tensor([2]) ** -1,
        lambda: tensor([2]) ** np.int64(-1),
        lambda: tensor([2], dtype=numgrad.uint8) ** -1,
        lambda: 2 ** tensor([-1]),
        lambda: tensor([2]).pow_(tensor([-1])),
        lambda: ops.pow(tensor([2]), tensor(-1), out=zeros(1, dtype=numgrad.int64)),
    ],
)
def test_integers_to_negative_powers(power):
    with pytest.raises(ValueError, match="pow: expected a non-negative exponent for integers"):
        power()


def test_powers_that_are_no_integers_alone():
    assert (tensor([2]) ** tensor([-1.0])).tolist() == [0.5]
    assert (tensor([2.0]) ** tensor([-1])).tolist() == [0.5]
    assert (tensor([], dtype=numgrad.int64) ** tensor([-1])).tolist() == []


@pytest.mark.filterwarnings("error")
def test_numbers_beyond_float32():
    assert (ones(2) * 1e300).tolist() == [math.inf, math.inf]
    assert ones(2).mul_(-1e300).tolist() == [-math.inf, -math.inf]
    assert (tensor([1]) + 1e300).tolist() == [math.inf]
    assert numgrad.full((1,), 1e300).tolist() == [math.inf]
    assert (ones(2).double() * 1e300).tolist() == [1e300, 1e300]
    for x in (ones(2), tensor(1.0)):
        with pytest.raises(OverflowError, match="mul: expected a number that float64 holds"):
            x * 10**400


@pytest.mark.parametrize("function", [ops.argmax, ops.argmin])
def test_place_of_an_extreme_of_all_keeps_axes(function):
    assert function(tensor([[2.0, 2.0], [2.0, 2.0]]), keepdim=True).tolist() == [[0]]
    assert function(tensor(1.0), keepdim=True).shape == ()
    assert function(ones(2, 3)).shape == ()


def test_softmax_in_another_dtype():
    x = tensor([1, 2])
    assert F.softmax(x, 0, dtype=numgrad.float64).dtype == numgrad.float64
    assert F.log_softmax(x, 0, dtype=numgrad.float64).exp().sum().item() == pytest.approx(1)


# ------------------------------------------------------------------------------------------- out=


@pytest.mark.parametrize(
    ("function", "operands", "out", "error"),
    [
        (ops.mul, (ones(2, 3), ones(3)), lambda: zeros(3), ValueError),
        (ops.div, (tensor([1]), 2), lambda: zeros(1, dtype=numgrad.int64), TypeError),
        (ops.mul, (ones(2), 2), lambda: zeros(2, dtype=numgrad.int64), TypeError),
        (ops.mul, (ones(2, requires_grad=True), ones(2).double()), lambda: zeros(2), RuntimeError),
        (ops.mul, (ones(2), 2), lambda: zeros(2, requires_grad=True), RuntimeError),
        (ops.mul, (ones(2), 2), lambda: [0, 0], TypeError),
        (ops.div, (ones(2), 2, "trunc"), lambda: zeros(3), ValueError),
        (ops.clamp, (ones(2), 0, 1), lambda: zeros(3), ValueError),
        (ops.where, (ones(2) > 0, ones(2), ones(1, 2)), lambda: zeros(2), ValueError),
    ],
)
def test_out_is_refused_before_anything_runs(function, operands, out, error):
    out = out()
    with numgrad.memory.track() as taken, pytest.raises(error, match="out"):
        function(*operands, out=out)
    assert (taken.peak_bytes, taken.launches, taken.nodes) == (0, 0, 0)


def test_out_that_fits():
    out = zeros(2, 3).double()
    assert ops.mul(ones(2, 3), ones(3), out=out) is out
    assert ops.where(ones(3) > 0, 2.0, ones(2, 3), out=out).tolist() == [[2] * 3] * 2
    assert ops.clamp(ones(3) * 5, 0, tensor([[1.0], [2.0]]), out=out).tolist() == [[1] * 3, [2] * 3]
    assert ops.eq(ones(2, 3), 1, out=out).tolist() == [[1] * 3] * 2


# --------------------------------------------------------------------------------------- indexing


def test_bool_is_no_place():
    x = tensor(1.0)
    assert x[False].shape == x[(False,)].shape == (0,)
    assert x[True].tolist() == [1]
    with pytest.raises(IndexError, match="0-dim"):
        x[0]


def test_results_of_nonzero_are_in_the_ledger():
    x = ones(10_000)
    before = numgrad.memory.stats()["live_bytes"]
    places = x.nonzero()
    assert numgrad.memory.stats()["live_bytes"] - before == 8 * places.numel()


def test_memory_of_a_write_is_that_of_what_is_written():
    x = zeros(1000, 200)
    index = tensor([0, -1])
    with numgrad.memory.track() as taken:
        x[index] = 5.0
    # Places and values of 400 elements, and what making them takes; not 200,000 places.
    assert 8 * 400 <= taken.peak_bytes < 4 * 8 * 400
    assert x.sum().item() == 2000
    assert x[999].sum().item() == 1000


def random_index(rng, shape):
    """``(for NumPy, for numgrad)``: slices, new axes, and arrays that broadcast or one mask."""
    mask = rng.random() < 0.2
    sides = [(), (2,), (1, 3), (2, 3)][rng.integers(4)]
    parts, used = [], False
    for n in shape:
        if rng.random() < 0.25:
            parts.append(None)
        if rng.random() < 0.5 or (mask and used):
            parts.append(slice(int(rng.integers(n + 1)), None, int(rng.integers(1, 3))))
        else:
            parts.append(rng.random(n) < 0.5 if mask else rng.integers(-n, n, sides))
            used = True
    if rng.random() < 0.3:
        parts[-1] = ...
    return tuple(parts), tuple(tensor(np.asarray(p)) if _is_array(p) else p for p in parts)


def _is_array(part):
    return isinstance(part, (np.ndarray, np.integer))


def test_writes_go_where_numpy_puts_them():
    rng = np.random.default_rng(5)
    for _ in range(300):
        shape = tuple(int(n) for n in rng.integers(1, 5, rng.integers(1, 5)))
        theirs, ours = random_index(rng, shape)
        expected = rng.random(shape)
        x = tensor(expected)
        picked = np.asarray(expected[theirs])
        assert x[ours].shape == picked.shape, (shape, theirs)
        assert np.array_equal(x[ours].numpy(), picked), (shape, theirs)
        v = rng.random(picked.shape)
        expected[theirs] = v
        x[ours] = tensor(np.asarray(v))
        assert np.array_equal(x.numpy(), expected), (shape, theirs)


def twin(entry):
    module, function = entry.reference_name.split(":")
    return getattr(importlib.import_module(module), function)


CHAIN = (
    (movement.slice_of, {"index": (slice(1, None),)}, (2, 4)),
    (movement.permute_axes, {"axes": (1, 0)}, (4, 2)),
)


@pytest.mark.parametrize(
    ("entry", "operands", "attrs"),
    [
        (indexing.take_rows, [(3, 4), [2, 0, 2]], {}),
        (indexing.add_rows, [(3, 4), [2, 0, 2]], {"rows": 5}),
        (indexing.put_elements, [(3, 4), (3,), [2, 7, 2]], {}),
        (indexing.scatter_along, [(2, 3), [[0, 1, 0], [3, 3, 3]]], {"shape": (2, 4), "axis": 1}),
        (
            movement.scatter_slice,
            [(2, 2)],
            {"shape": (3, 4), "index": (slice(1, 3), slice(0, 4, 2))},
        ),
        (movement.slice_of, [(3, 4)], {"index": (None, 1, ..., slice(0, 4, 3))}),
        (movement.view_scatter, [(3, 4), (4, 2)], {"chain": CHAIN}),
    ],
)
def test_indexing_ops_against_their_twins(entry, operands, attrs):
    rng = np.random.default_rng(3)
    arrays = [np.array(o) if isinstance(o, list) else rng.random(o) for o in operands]
    expected = twin(entry)(*arrays, **attrs)
    assert np.array_equal(entry(*map(tensor, arrays), **attrs).numpy(), expected)


# ------------------------------------------------------------------------ layers, optimizers, files


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda p: optim.SGD(p, lr="a"), TypeError, "SGD: expected a number for lr"),
        (lambda p: optim.SGD(p, dampening=None), TypeError, "SGD: expected a number for dampening"),
        (lambda p: optim.Adam(p, lr="a"), TypeError, "Adam: expected a number for lr"),
        (lambda p: optim.Adam(p, betas=("a", 0)), TypeError, "Adam: expected a number for betas"),
        (lambda p: optim.Adam(p, betas=0.9), ValueError, "Adam: expected two numbers"),
        (lambda p: nn.Linear(-1, 3), ValueError, "Linear: expected .* for in_features, got -1"),
        (lambda p: nn.Linear(3, 1.5), TypeError, "Linear: expected .* for out_features, got 1.5"),
    ],
)
def test_options_without_meaning(make, error, text):
    with pytest.raises(error, match=text):
        make([ones(2, requires_grad=True)])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_of_a_generator_go_on_alike(copied):
    generator = numgrad.Generator(3)
    numgrad.rand(5, generator=generator)
    other = copied(generator)
    expected = numgrad.rand(5, generator=generator).tolist()
    assert numgrad.rand(5, generator=other).tolist() == expected


def test_save_into_a_folder_that_does_not_exist(tmp_path):
    path = tmp_path / "nowhere" / "model"
    with pytest.raises(FileNotFoundError, match=r"save: expected an existing folder") as caught:
        numgrad.save({}, path)
    assert str(tmp_path / "nowhere") in str(caught.value)
    assert caught.value.filename == str(path)
    assert ".tmp" not in str(caught.value)
