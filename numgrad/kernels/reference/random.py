"""NumPy twins of ``numgrad.kernels.cpu.random``: bit for bit the same numbers.

``fill(n, seed, offset, …)`` gives elements 0 … n - 1. Seed and offset are Python integers, taken
modulo 2^64; the map from (seed, offset, element) to words is described in the CPU module.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MASK = 0xFFFFFFFF


def philox(counter: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint32]:
    """Philox 4×32-10 of counters (n, 4) of 32-bit words and a key of two: (n, 4) words."""
    c0, c1, c2, c3 = (counter[:, k].astype(np.uint64) for k in range(4))
    for r in range(10):
        k0 = np.uint64((key[0] + r * 0x9E3779B9) & MASK)
        k1 = np.uint64((key[1] + r * 0xBB67AE85) & MASK)
        product_0, product_1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        high_0, high_1 = product_0 >> np.uint64(32), product_1 >> np.uint64(32)
        low_0, low_1 = product_0 & np.uint64(MASK), product_1 & np.uint64(MASK)
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def words_32(n: int, seed: int, offset: int) -> NDArray[np.uint32]:
    """The 32-bit word of each of ``n`` elements, rounded up to whole counters."""
    groups = -(-n // 4)
    c = np.uint64(offset % 2**64) + np.arange(groups, dtype=np.uint64)
    zero = np.zeros_like(c)
    counter = np.stack([c & np.uint64(MASK), c >> np.uint64(32), zero, zero], axis=1)
    return philox(counter, (seed & MASK, seed >> 32 & MASK)).reshape(-1)


def words_64(n: int, seed: int, offset: int) -> NDArray[np.uint64]:
    """The 64-bit number of each of ``n`` elements, rounded up to whole counters."""
    words = words_32(2 * n, seed, offset).astype(np.uint64)
    return words[0::2] | words[1::2] << np.uint64(32)


def uniform_float32(n: int, seed: int, offset: int) -> Array:
    words = words_32(n, seed, offset)[:n]
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def uniform_float64(n: int, seed: int, offset: int) -> Array:
    return (words_64(n, seed, offset)[:n] >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers_int64(n: int, seed: int, offset: int, low: int, high: int) -> Array:
    numbers = words_64(n, seed, offset)[:n].tolist()
    return np.array([low + (x * (high - low) >> 64) for x in numbers], np.int64)


def _polynomial(x: Array, *coefficients: float) -> Array:
    """By Horner's rule, in the dtype of x, highest power first."""
    p: Array = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        p = p * x + x.dtype.type(c)
    return p


def _log_float32(x: NDArray[np.float32]) -> Array:
    bits = x.view(np.int32)
    exponent = (bits - np.int32(0x3F3504F3)) >> 23
    m = (bits - (exponent << 23)).view(np.float32) - np.float32(1)
    e = exponent.astype(np.float32)
    p = _polynomial(
        m,
        7.0376836292e-2,
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
        3.3333331174e-1,
    )
    square = m * m
    low = p * m * square + e * np.float32(-2.12194440e-4)
    return (m + (low - np.float32(0.5) * square)) + e * np.float32(0.693359375)


def _log_float64(x: NDArray[np.float64]) -> Array:
    bits = x.view(np.int64)
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52
    m = (bits - (exponent << 52)).view(np.float64) - 1.0
    e = exponent.astype(np.float64)
    p = _polynomial(
        m,
        1.01875663804580931796e-4,
        4.97494994976747001425e-1,
        4.70579119878881725854e0,
        1.44989225341610930846e1,
        1.79368678507819816313e1,
        7.70838733755885391666e0,
    )
    q = _polynomial(
        m,
        1.0,
        1.12873587189167450590e1,
        4.52279145837532221105e1,
        8.29875266912776603211e1,
        7.11544750618563894466e1,
        2.31251620126765340583e1,
    )
    square = m * m
    low = m * (square * p / q) - e * 2.121944400546905827679e-4
    return (m + (low - 0.5 * square)) + e * 0.693359375


SIN_FLOAT32 = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
COS_FLOAT32 = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
SIN_FLOAT64 = (
    1.58962301576546568060e-10,
    -2.50507477628578072866e-8,
    2.75573136213857245213e-6,
    -1.98412698295895385996e-4,
    8.33333333332211858878e-3,
    -1.66666666666666307295e-1,
)
COS_FLOAT64 = (
    -1.13585365213876817300e-11,
    2.08757008419747316778e-9,
    -2.75573141792967388112e-7,
    2.48015872888517045348e-5,
    -1.38888888888730564116e-3,
    4.16666666666665929218e-2,
)


def _box_muller(log: Array, angle: Array, quarter: Array, sin: Any, cos: Any) -> Array:
    """Pairs of normal numbers from log u and an angle, given as quarter turns and a rest."""
    one = angle.dtype.type
    radius = np.sqrt(one(-2) * log)
    z = angle * angle
    s = _polynomial(z, *sin) * z * angle + angle
    c = _polynomial(z, *cos) * z * z - one(0.5) * z + one(1)
    cosine = np.choose(quarter & 3, [c, -s, -c, s])
    sine = np.choose(quarter & 3, [s, c, -s, -c])
    return np.stack([radius * cosine, radius * sine], axis=1).reshape(-1)


def normal_float32(n: int, seed: int, offset: int) -> Array:
    words = words_32(n, seed, offset)
    a, b = words[0::2], words[1::2].view(np.int32)
    log = _log_float32((a.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32))
    rest = (b << 2) >> 2
    angle = rest.astype(np.float32) * np.float32(np.pi / 2 * 2.0**-30)
    return _box_muller(log, angle, (b - rest) >> 30, SIN_FLOAT32, COS_FLOAT32)[:n]


def normal_float64(n: int, seed: int, offset: int) -> Array:
    numbers = words_64(n, seed, offset)
    a, b = numbers[0::2], numbers[1::2].view(np.int64)
    log = _log_float64(((a >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53)
    rest = (b << 2) >> 2
    angle = rest.astype(np.float64) * (np.pi / 2 * 2.0**-62)
    return _box_muller(log, angle, (b - rest) >> 62, SIN_FLOAT64, COS_FLOAT64)[:n]


def _dropout(x: Array, seed: int, offset: int, p: float, scale: float) -> Array:
    kept = uniform_float32(x.size, seed, offset).astype(np.float64) >= p
    out = np.zeros_like(x)
    out[kept] = x[kept] * x.dtype.type(scale)
    return out


dropout_float32 = dropout_float64 = _dropout
