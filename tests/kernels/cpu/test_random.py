"""Philox and what is drawn from it: known answers, the twins bit for bit, and distributions."""

import itertools

import numpy as np
import pytest
from numba import njit
from scipy import stats

from numgrad.kernels import native
from numgrad.kernels.cpu import random
from numgrad.kernels.reference import random as reference

DRAWN = {
    "uniform_float32": (np.float32, 1, ()),
    "uniform_float64": (np.float64, 2, ()),
    "normal_float32": (np.float32, 1, ()),
    "normal_float64": (np.float64, 2, ()),
    "integers_int64": (np.int64, 2, (-3, 2**62)),
}
DROPOUT = {"dropout_float32": np.float32, "dropout_float64": np.float64}
LENGTHS = [0, 1, 2, 3, 4, 5, 511, 512, 1023, 1024, 1025, 5003]
SEEDS = [(0, 0), (7, 3), (2**64 - 1, 2**32 - 2), (0x123456789ABCDEF0, 2**64 - 2)]

KNOWN = """
00000000 00000000 00000000 00000000 00000000 00000000 6627e8d5 e169c58d bc57ac4c 9b00dbd8
ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd
243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 d16cfe09 94fdcceb 5001e420 24126ea1
"""  # counter, key, words


@njit
def launch(address, args, lo, hi):
    native.call_ranged(address, args, lo, hi, 0)


def int64(value):
    """The int64 of the same 64 bits as an integer of up to 64 bits, or as a float."""
    if isinstance(value, float):
        return int(np.float64(value).view(np.int64))
    return int(np.uint64(value % 2**64).view(np.int64))


def run(name, out, seed, offset, *parameters, x=None, cuts=()):
    """Fill ``out`` in one range, or in the ranges between ``cuts`` (the last range first)."""
    address = 0 if x is None else x.ctypes.data
    slots = [out.ctypes.data, address, int64(seed), int64(offset), *map(int64, parameters)]
    args = np.array(slots, np.int64)
    edges = [0, *cuts, out.size]
    for lo, hi in reversed(list(itertools.pairwise(edges))):
        launch(getattr(random, name).address, args.ctypes.data, lo, hi)
    return out


def draw(name, n, seed=1, offset=0, *parameters, **keywords):
    return run(name, np.empty(n, DRAWN[name][0]), seed, offset, *parameters, **keywords)


@pytest.mark.parametrize("line", KNOWN.strip().splitlines(), ids=["zeros", "ones", "pi"])
def test_known_answers(line):
    """The vectors of Random123 (kat_vectors, philox4x32 10)."""
    numbers = [int(word, 16) for word in line.split()]
    counter, key, words = numbers[:4], numbers[4:6], numbers[6:]
    assert reference.philox(np.array([counter], np.uint64), key).tolist() == [words]
    compiled = random.philox(*(np.uint64(word) for word in counter + key))
    assert [int(word) & 0xFFFFFFFF for word in compiled] == words


def test_map_to_words():
    """Element i is word i % 4 of counter offset + i // 4, key and counter split low half first."""
    seed, offset = 0x299F31D0A4093822, 2**32 - 1
    counters = [[2**32 - 1, 0, 0, 0], [0, 1, 0, 0]]
    words = reference.philox(np.array(counters, np.uint64), (0xA4093822, 0x299F31D0)).reshape(-1)
    expected = (words >> 8).astype(np.float32) / np.float32(2**24)
    np.testing.assert_array_equal(draw("uniform_float32", 8, seed, offset), expected)
    expected = [(int(words[2 * i]) | int(words[2 * i + 1]) << 32) >> 11 for i in range(4)]
    got = draw("uniform_float64", 4, seed, offset)
    np.testing.assert_array_equal(got, np.array(expected) / 2.0**53)


@pytest.mark.parametrize("name", DRAWN)
def test_twin(name):
    parameters = DRAWN[name][2]
    for seed, offset in SEEDS:
        for n in LENGTHS:
            got = draw(name, n, seed, offset, *parameters)
            expected = getattr(reference, name)(n, seed, offset, *parameters)
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected, err_msg=f"{n} {seed} {offset}")


@pytest.mark.parametrize("name", DRAWN)
def test_any_split_same_bits(name):
    parameters = DRAWN[name][2]
    whole = draw(name, 3000, 11, 5, *parameters)
    for cuts in [(1,), (2, 3), (5, 1029, 2055), tuple(range(7, 3000, 37))]:
        np.testing.assert_array_equal(draw(name, 3000, 11, 5, *parameters, cuts=cuts), whole)


def test_nothing_outside_the_range():
    for name, (dtype, _, parameters) in DRAWN.items():
        out = np.full(40, 77, dtype)
        args = np.array([out.ctypes.data, 0, 1, 2, *parameters], np.int64)
        launch(getattr(random, name).address, args.ctypes.data, 13, 27)
        assert (out[:13] == 77).all() and (out[27:] == 77).all() and (out[13:27] != 77).all()


@pytest.mark.parametrize("name", DRAWN)
def test_counters(name):
    """A call uses ``counters(n, words)`` counters: the next one starts right behind the last."""
    _, words, parameters = DRAWN[name]
    per_counter = 4 // words
    assert random.counters(0, words) == 0
    for n in (1, 2, 3, 4, 5, 100, 101):
        used = random.counters(n, words)
        rounded = used * per_counter
        assert rounded - per_counter < n <= rounded
        both = draw(name, rounded + 8, 3, 10, *parameters)
        np.testing.assert_array_equal(both[rounded:], draw(name, 8, 3, 10 + used, *parameters))


def assert_distributed(draw_seed, distribution):
    """The p-values of Kolmogorov-Smirnov tests of 100 seeds are uniform themselves."""
    tests = [stats.kstest(draw_seed(seed).astype(np.float64), distribution) for seed in range(100)]
    assert stats.kstest([test.pvalue for test in tests], "uniform").pvalue > 0.01


@pytest.mark.parametrize("name", ["uniform_float32", "uniform_float64"])
def test_uniform(name):
    assert_distributed(lambda seed: draw(name, 5000, seed), "uniform")
    x = draw(name, 200_000, 5)
    assert x.min() >= 0 and x.max() < 1
    bits = 24 if name.endswith("32") else 53
    assert (x.astype(np.float64) * 2.0**bits % 1 == 0).all()
    for lag in (1, 2, 3, 4, 8):
        assert abs(np.corrcoef(x[:-lag], x[lag:])[0, 1]) < 4 / np.sqrt(x.size)
    for seed, offset in [(6, 0), (5 + 2**32, 0), (5, 50_000)]:
        assert abs(np.corrcoef(x, draw(name, x.size, seed, offset))[0, 1]) < 4 / np.sqrt(x.size)


@pytest.mark.parametrize("name", ["normal_float32", "normal_float64"])
def test_normal(name):
    def pairs(seed):
        return draw(name, 5000, seed).reshape(-1, 2).T

    assert_distributed(lambda seed: draw(name, 5000, seed), "norm")
    assert_distributed(lambda seed: (pairs(seed) ** 2).sum(0), stats.chi2(2).cdf)
    assert_distributed(lambda seed: np.arctan2(*pairs(seed)) / (2 * np.pi) % 1, "uniform")
    x = draw(name, 400_000, 9).astype(np.float64)
    assert abs(stats.kurtosis(x)) < 5 * np.sqrt(24 / x.size)
    assert abs(np.corrcoef(x[0::2], x[1::2])[0, 1]) < 4 / np.sqrt(x.size / 2)


def box_muller(u, turn):
    radius = np.sqrt(-2 * np.log(u))
    return np.stack([radius * np.cos(turn), radius * np.sin(turn)], axis=1).reshape(-1)


def test_normal_accuracy():
    """Against the formula with NumPy's log, cos and sin in float64."""
    words = reference.words_32(200_000, 4, 0).astype(np.float64)
    expected = box_muller((words[0::2] + 0.5) * 2.0**-32, words[1::2] * 2 * np.pi * 2.0**-32)
    # u is rounded to float32, which near 1 moves log u by 6e-8 and thus the radius by up to 2e-4.
    usual = np.repeat(words[0::2] < 0.95 * 2**32, 2)
    got = draw("normal_float32", 200_000, 4)
    np.testing.assert_allclose(got[usual], expected[usual], rtol=0, atol=2e-6)
    np.testing.assert_allclose(got, expected, rtol=0, atol=4e-4)

    numbers = reference.words_64(100_000, 4, 0)
    u = ((numbers[0::2] >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53
    turn = numbers[1::2].view(np.int64).astype(np.float64) * (2 * np.pi * 2.0**-64)
    got = draw("normal_float64", 100_000, 4)
    np.testing.assert_allclose(got, box_muller(u, turn), rtol=0, atol=4e-15)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-1, 1), (0, 2**32), (5, 2**63 - 1), (-(2**63), 2**63 - 1)]
)
def test_integers(low, high):
    x = draw("integers_int64", 4001, 2, 3, low, high)
    np.testing.assert_array_equal(x, reference.integers_int64(4001, 2, 3, low, high))
    assert x.min() >= low and x.max() < high


def test_integers_are_uniform():
    x = draw("integers_int64", 140_000, 8, 0, -3, 4)
    counts = np.bincount(x + 3, minlength=7)
    assert counts.size == 7 and stats.chisquare(counts).pvalue > 0.01
    x = draw("integers_int64", 100_000, 8, 0, -(2**62), 2**62)
    assert stats.kstest((x + 2.0**62) / 2.0**63, "uniform").pvalue > 0.01


@pytest.mark.parametrize("name", DROPOUT)
def test_dropout(name):
    x = np.random.default_rng(0).standard_normal(5003).astype(DROPOUT[name])
    uniform = draw("uniform_float32", x.size, 3, 17).astype(np.float64)
    # 0 and 1 keep and drop all; one p is a number drawn, one the number next to it.
    for p in (0.0, 0.1, 0.5, float(uniform[0]), np.nextafter(uniform[0], 1), 1.0):
        for scale in (1 / 0.7, 0.0):
            got = run(name, np.empty_like(x), 3, 17, float(p), scale, x=x)
            expected = np.where(uniform >= p, x * x.dtype.type(scale), 0)
            np.testing.assert_array_equal(got, expected)
            np.testing.assert_array_equal(got, getattr(reference, name)(x, 3, 17, p, scale))
    whole = run(name, np.empty_like(x), 3, 17, 0.3, 2.0, x=x)
    for cuts in [(1,), (5, 1029, 2055), tuple(range(7, 5000, 371))]:
        cut = run(name, np.empty_like(x), 3, 17, 0.3, 2.0, x=x, cuts=cuts)
        np.testing.assert_array_equal(cut, whole)
    in_place = x.copy()
    run(name, in_place, 3, 17, 0.3, 2.0, x=in_place)
    np.testing.assert_array_equal(in_place, whole)
    assert run(name, np.empty(0, x.dtype), 3, 17, 0.3, 2.0, x=x).size == 0


@pytest.mark.parametrize("name", DROPOUT)
def test_dropout_of_nan_and_inf(name):
    x = np.array([np.nan, np.inf, -np.inf, -0.0] * 16, DROPOUT[name])
    got = run(name, np.empty_like(x), 3, 0, 0.5, 2.0, x=x)
    kept = draw("uniform_float32", x.size, 3, 0) >= 0.5
    assert kept.any() and not kept.all()
    np.testing.assert_array_equal(got[kept], x[kept])
    assert (got[~kept] == 0).all() and not np.signbit(got[~kept]).any()
