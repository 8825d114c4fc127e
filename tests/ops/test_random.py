"""Random numbers: what they depend on, their distribution, their dtypes, and what is refused."""

import threading

import numpy as np
import pytest

import numgrad
from numgrad import (
    Generator,
    Variable,
    bernoulli,
    dropout,
    empty,
    get_rng_state,
    initial_seed,
    manual_seed,
    normal,
    ones,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    set_rng_state,
    tensor,
    zeros,
)
from numgrad.ops.random import seed

N = 100_000
ERROR = 5 / np.sqrt(N)  # five standard errors of a mean of N numbers of variance 1


@pytest.fixture(autouse=True)
def seeded():
    manual_seed(0)


DRAWS = {
    "rand": lambda g: rand(100, generator=g),
    "rand64": lambda g: rand(100, dtype="float64", generator=g),
    "randn": lambda g: randn(33, 3, generator=g),
    "randint": lambda g: randint(0, 1000, (100,), generator=g),
    "randperm": lambda g: randperm(100, generator=g),
    "uniform_": lambda g: zeros(100).uniform_(-1, 1, generator=g),
    "normal_": lambda g: zeros(100).normal_(generator=g),
    "bernoulli_": lambda g: zeros(100).bernoulli_(0.3, generator=g),
    "bernoulli": lambda g: bernoulli(ones(100) * 0.5, generator=g),
    "random_": lambda g: zeros(100).random_(10, generator=g),
    "normal": lambda g: normal(ones(100), 2.0, generator=g),
    "dropout": lambda g: dropout(ones(100), 0.4, generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_depends_on_seed_and_offset_alone(name):
    draw = DRAWS[name]
    generator = Generator(7)
    first, second = draw(generator).tolist(), draw(generator).tolist()
    assert first != second
    again = Generator(7)
    assert [draw(again).tolist(), draw(again).tolist()] == [first, second]
    state = generator.get_state()
    third = draw(generator).tolist()
    assert draw(generator.set_state(state)).tolist() == third
    assert draw(Generator(8)).tolist() != first
    global_state = get_rng_state()
    draw(Generator(7))
    assert get_rng_state().tolist() == global_state.tolist()  # its own generator alone moves
    manual_seed(7)
    assert draw(None).tolist() == first


def test_the_default_generator():
    assert manual_seed(3).initial_seed() == initial_seed() == 3
    a = rand(3).tolist()
    state = get_rng_state()
    b = rand(3).tolist()
    set_rng_state(state)
    assert rand(3).tolist() == b != a
    assert initial_seed() != seed() == initial_seed()
    manual_seed(-1)
    assert initial_seed() == 2**64 - 1
    c = rand(3).tolist()
    set_rng_state(get_rng_state())
    manual_seed(2**64 - 1)
    assert rand(3).tolist() == c


def test_same_bits_at_any_number_of_threads():
    before = numgrad.get_num_threads()
    results = []
    try:
        for n in (1, 2):
            numgrad.set_num_threads(n)
            manual_seed(1)
            results.append((rand(300_000).numpy(), randn(300_001).numpy()))
    finally:
        numgrad.set_num_threads(before)
    assert all((a == b).all() for a, b in zip(*results, strict=True))


def test_threads_never_share_numbers():
    generator, drawn = Generator(0), []

    def draw():
        for _ in range(50):
            drawn.append(rand(4, dtype="float64", generator=generator).tolist())

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    numbers = [x for row in drawn for x in row]
    assert len(set(numbers)) == len(numbers) == 800


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_distributions(dtype):
    u = rand(N, dtype=dtype).numpy()
    assert u.dtype == dtype and u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 0.5) < 0.29 * ERROR and abs(u.var() - 1 / 12) < 0.1 * ERROR
    z = randn(N, dtype=dtype).numpy()
    assert abs(z.mean()) < ERROR and abs(z.var() - 1) < 1.5 * ERROR
    assert abs((z**3).mean()) < 4 * ERROR and abs((z**4).mean() - 3) < 10 * ERROR
    x = empty(N, dtype=dtype)
    assert x.uniform_(-2, 4) is x and x.numpy().min() >= -2 and x.numpy().max() <= 4
    assert abs(x.numpy().mean() - 1) < 2 * ERROR
    x.normal_(5, 0.5)
    assert abs(x.numpy().mean() - 5) < ERROR and abs(x.numpy().std() - 0.5) < ERROR
    x.bernoulli_(0.2)
    assert set(np.unique(x.numpy())) == {0, 1} and abs(x.numpy().mean() - 0.2) < ERROR
    y = normal(x * 10, 0.1).numpy()
    assert y.dtype == dtype and abs((y - x.numpy() * 10).mean()) < ERROR
    p = bernoulli(tensor([0.0, 1.0, 0.5] * 30_000, dtype=dtype)).numpy().reshape(-1, 3)
    assert p[:, 0].max() == 0 and p[:, 1].min() == 1 and abs(p[:, 2].mean() - 0.5) < 0.02


def test_integers_and_permutations():
    x = randint(-3, 4, (N,)).numpy()
    assert x.dtype == np.int64 and set(np.unique(x)) == set(range(-3, 4))
    assert abs((x == 0).mean() - 1 / 7) < ERROR
    assert randint(5, (2, 3)).shape == (2, 3) and randint(5, size=(4,)).shape == (4,)
    assert randint(0, 5, (3,), dtype=numgrad.int32).dtype == numgrad.int32
    assert set(randint(2**62, 2**63 - 1, (9,)).numpy() >> 62) == {1}
    p = randperm(1000)
    assert sorted(p.tolist()) == list(range(1000)) != p.tolist() and p.dtype == numgrad.int64
    assert randperm(0).shape == (0,) and randperm(1).tolist() == [0]
    first = [randperm(3).tolist()[0] for _ in range(300)]
    assert all(60 < first.count(i) < 140 for i in range(3))
    assert set(zeros(N, dtype="uint8").random_().tolist()) == set(range(256))
    assert set(zeros(100, dtype="bool").random_().tolist()) == {True, False}
    assert set(zeros(100, dtype="int64").random_(2, 4).tolist()) == {2, 3}


def test_shapes_and_likes():
    for draw in (rand, randn):
        for x in (draw(2, 3), draw((2, 3)), draw([2, 3])):
            assert x.shape == (2, 3) and x.dtype == numgrad.float32
        assert draw().shape == () and draw(0, 3).shape == (0, 3)
        assert draw(2, requires_grad=True).requires_grad
    x = ones(2, 3, dtype=numgrad.float64)
    assert rand_like(x).dtype == randn_like(x).dtype == numgrad.float64
    assert rand_like(x, dtype="float32").shape == (2, 3)
    strided = zeros(4, 3).t()
    strided.normal_()
    assert strided.stride() == (1, 3) and len(set(strided.reshape(-1).tolist())) == 12


def test_in_place_draws_are_writes_like_any_other():
    x = ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"^a leaf Variable that requires grad"):
        x.normal_()
    y = x * 1
    y.uniform_()
    y.sum().backward()
    assert x.grad is None or x.grad.tolist() == [0, 0, 0]
    v = Variable(ones(3), volatile=True)
    assert bernoulli(v).volatile and dropout(v).volatile


# ------------------------------------------------------------------------------------------ dropout


def test_dropout():
    x = ones(N, requires_grad=True)
    y = dropout(x, 0.25)
    values = y.detach().numpy()
    assert set(np.unique(values)) == {0, np.float32(4 / 3)}
    assert abs((values == 0).mean() - 0.25) < ERROR
    y.sum().backward()
    assert (x.grad.numpy() == values).all()
    assert y.grad_fn.saved_values() == []  # three numbers, no mask
    assert dropout(x, 0.5, training=False) is x and dropout(x, 0.0) is x
    assert dropout(x, 1.0).abs().max().item() == 0
    z = ones(10)
    assert dropout(z, 0.5, inplace=True) is z and set(z.tolist()) <= {0, 2}


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: rand(2, dtype="int64"), TypeError, "rand: expected a floating dtype for dtype"),
        (lambda: randn(-2), ValueError, "randn: expected non-negative lengths"),
        (lambda: rand(1.5), TypeError, "rand: expected integers for size"),
        (lambda: rand_like(3), TypeError, "rand_like: expected a Tensor for x"),
        (lambda: randint(3, 3, (2,)), ValueError, "randint: expected low < high"),
        (lambda: randint(0.5, 3, (2,)), TypeError, "randint: expected an integer for low"),
        (
            lambda: randint(0, 2**63, (2,)),
            ValueError,
            "randint: expected a 64-bit integer for high",
        ),
        (lambda: randint(5), TypeError, "randint: expected a size, got none"),
        (lambda: randperm(-1), ValueError, "randperm: expected a non-negative integer for n"),
        (lambda: randperm(2.0), ValueError, "randperm: expected a non-negative integer for n"),
        (lambda: normal(0.0, -1.0, (2,)), ValueError, "normal: expected a non-negative std"),
        (
            lambda: normal(0.0, tensor([1.0, -1.0])),
            ValueError,
            "normal: expected a non-negative std",
        ),
        (lambda: bernoulli(0.5), TypeError, "bernoulli: expected a Tensor for p"),
        (
            lambda: bernoulli(tensor([1.5])),
            ValueError,
            r"bernoulli: expected probabilities in \[0, 1\]",
        ),
        (lambda: bernoulli(tensor([1])), TypeError, "bernoulli: expected a floating dtype"),
        (lambda: bernoulli(tensor([np.nan])), ValueError, "bernoulli: expected probabilities"),
        (
            lambda: ones(2).bernoulli_(-0.1),
            ValueError,
            r"bernoulli_: expected a probability in \[0, 1\]",
        ),
        (lambda: ones(2).bernoulli_(tensor([2.0, 0.0])), ValueError, "bernoulli_: expected probab"),
        (lambda: ones(2).long().normal_(), TypeError, "normal_: expected a floating dtype"),
        (lambda: dropout(ones(2), 1.5), ValueError, r"dropout: expected a probability in \[0, 1\]"),
        (lambda: dropout([1.0]), TypeError, "dropout: expected a "),
        (lambda: dropout(tensor([1])), TypeError, "dropout: expected a floating"),
        (lambda: manual_seed("a"), TypeError, "manual_seed: expected an integer for seed"),
        (lambda: manual_seed(2**64), ValueError, "manual_seed: expected a 64-bit integer"),
        (lambda: set_rng_state(ones(2)), ValueError, "set_state: expected an int64 tensor of 2"),
    ],
)
def test_bad_input(call, error, text):
    state = get_rng_state().tolist()
    with pytest.raises(error, match=f"^{text}"):
        call()
    assert get_rng_state().tolist() == state
