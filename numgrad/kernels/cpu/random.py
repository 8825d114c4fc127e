"""Random numbers: Philox 4×32-10, a function of (seed, offset, element) and of nothing else.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).

**The map.** ``seed`` and ``offset`` are 64 bits. The key is (low half of seed, high half of seed).
One 128-bit counter gives four 32-bit words; words 0 and 1 of the counter are a 64-bit number that
wraps at 2^64, words 2 and 3 are zero.

* 32-bit numbers: element ``i`` is word ``i % 4`` of counter ``offset + i // 4``;
* 64-bit numbers: element ``i`` is words ``2 * (i % 2)`` (low half) and ``2 * (i % 2) + 1`` (high
  half) of counter ``offset + i // 2``.

So the numbers depend neither on threads nor on how a range is split, and a CUDA kernel that follows
the same map gives the same words. A call of ``n`` elements uses ``counters(n, words)`` counters, by
which a generator moves its offset on.

**Layout of the code.** Every kernel fills a buffer on its stack with the words of up to ``BLOCK``
elements, always from the first word of a counter, and then turns the words into its numbers. Both
loops vectorise. All floating-point steps are single IEEE operations (no fused multiply-add, no
libm), so the NumPy twins give the same bits.

**Slots**, the same for all kernels: 0 address of out, 1 address of x (dropout only), 2 seed,
3 offset, 4 and 5 parameters. Items are elements; out and x are contiguous and aligned.
"""

import numpy as np

from ..native import as_float32, as_float64, as_int32, as_int64, inline, load_i64, stack
from ..store import kernel

WORDS = 1024
"""Words in the buffer; 4 KiB, which leaves room in a 32 KiB first-level cache."""
BUFFER = 4 * WORDS

LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
MULTIPLIER_0, MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL_0, WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)

UNIT_24 = np.float32(2.0**-24)
UNIT_32 = np.float32(2.0**-32)
UNIT_53 = np.float64(2.0**-53)
ANGLE_30 = np.float32(np.pi / 2 * 2.0**-30)
ANGLE_62 = np.float64(np.pi / 2 * 2.0**-62)


def counters(n: int, words: int = 1) -> int:
    """How many counters ``n`` elements of ``words`` 32-bit words (1 or 2) each use up."""
    return -(-n * words // 4)


# ------------------------------------------------------------------------------------------ words


@inline
def philox(c0, c1, c2, c3, k0, k1):
    """Ten rounds on counter (c0, c1, c2, c3) and key (k0, k1), all uint64; 32 bits of each count.

    64-bit lanes: one ``vpmuludq`` a product. What the upper halves hold is cut off at the next
    product, so only the caller has to cut off the upper halves of the result.
    """
    for _ in range(10):
        product_0 = (c0 & LOW) * MULTIPLIER_0
        product_1 = (c2 & LOW) * MULTIPLIER_1
        c0 = (product_1 >> HALF) ^ c1 ^ k0
        c2 = (product_0 >> HALF) ^ c3 ^ k1
        c1, c3 = product_1, product_0
        k0, k1 = (k0 + WEYL_0) & LOW, (k1 + WEYL_1) & LOW
    return c0, c1, c2, c3


@inline
def _fill(words, groups, seed, counter):
    """Write the ``4 * groups`` words of ``groups`` counters from ``counter`` on."""
    out = as_int32(words)
    zero = np.uint64(0)
    for group in range(groups):
        c = counter + np.uint64(group)
        a, b, c, d = philox(c, c >> HALF, zero, zero, seed & LOW, seed >> HALF)
        out[4 * group] = np.int32(a)
        out[4 * group + 1] = np.int32(b)
        out[4 * group + 2] = np.int32(c)
        out[4 * group + 3] = np.int32(d)


@inline
def _block(args, words, lo, hi, per_counter):
    """Fill ``words`` for the elements from ``lo`` on: (first element, element to stop before).

    The first element is ``lo`` or up to three before it: the one with the counter's first word.
    """
    first = lo - lo % per_counter
    stop = min(hi, first + per_counter * (WORDS // 4))
    groups = (stop - first + per_counter - 1) // per_counter
    counter = np.uint64(load_i64(args, 3)) + np.uint64(first // per_counter)
    _fill(words, groups, np.uint64(load_i64(args, 2)), counter)
    return first, stop


@inline
def load_f64(args, slot):
    """A float64 parameter, kept as its bits in an int64 slot."""
    return np.int64(load_i64(args, slot)).view(np.float64)


# ---------------------------------------------------------------------------------------- uniform


@kernel()
def uniform_float32(args, lo, hi, worker):
    """out[i] = (word >> 8) · 2^-24, uniform on [0, 1): 24 bits, 1 word an element.

    Slots: 0 out, 2 seed, 3 offset. Writes 4 bytes an element. Not checked: anything.
    """
    words = stack(BUFFER)
    bits, out = as_int32(words), as_float32(load_i64(args, 0))
    while lo < hi:
        first, stop = _block(args, words, lo, hi, 4)
        for i in range(lo, stop):
            out[i] = np.float32(np.int32((bits[i - first] >> 8) & 0xFFFFFF)) * UNIT_24
        lo = stop


@kernel()
def uniform_float64(args, lo, hi, worker):
    """out[i] = (bits >> 11) · 2^-53, uniform on [0, 1): 53 bits, 2 words an element.

    Slots: 0 out, 2 seed, 3 offset. Writes 8 bytes an element. Not checked: anything.
    """
    words = stack(BUFFER)
    bits, out = as_int64(words), as_float64(load_i64(args, 0))
    while lo < hi:
        first, stop = _block(args, words, lo, hi, 2)
        for i in range(lo, stop):
            out[i] = np.float64(np.int64(np.uint64(bits[i - first]) >> np.uint64(11))) * UNIT_53
        lo = stop


@kernel()
def integers_int64(args, lo, hi, worker):
    """out[i] = low + (bits · (high - low) >> 64), on [low, high): 2 words an element.

    Slots: 0 out, 2 seed, 3 offset, 4 low, 5 high. Multiply-high (Lemire 2019) without the
    rejection step, so that elements stay independent of each other: the probability of a number is
    off by less than 2^-64. ``high - low`` is taken modulo 2^64. Writes 8 bytes an element.
    Not checked: low < high.
    """
    words = stack(BUFFER)
    bits, out = as_int64(words), as_int64(load_i64(args, 0))
    low = np.uint64(load_i64(args, 4))
    span = np.uint64(load_i64(args, 5)) - low
    span_low, span_high = span & LOW, span >> HALF
    while lo < hi:
        first, stop = _block(args, words, lo, hi, 2)
        for i in range(lo, stop):
            x = np.uint64(bits[i - first])
            x_low, x_high = x & LOW, x >> HALF
            middle = x_high * span_low + (x_low * span_low >> HALF)
            carry = (middle & LOW) + x_low * span_high
            out[i] = np.int64(low + x_high * span_high + (middle >> HALF) + (carry >> HALF))
        lo = stop


# ----------------------------------------------------------------------------------------- normal
#
# Box-Muller: r = sqrt(-2 log u), out = (r cos t, r sin t) for the pair of elements (2j, 2j + 1),
# where u in (0, 1] comes from the first element's bits and t, an angle of a whole turn, from the
# second's. The top two bits (rounded) are the quarter turn, the rest a signed angle of at most
# π/4, so nothing is lost in a reduction. Polynomials: Cephes (Moshier), logf/log, sinf/cosf,
# sin/cos.


@inline
def _log_float32(x):
    """log x for a normal x in (0, 1]; relative error below 2e-7."""
    bits = np.float32(x).view(np.int32)
    shifted = np.int32(bits - np.int32(0x3F3504F3))  # so that the mantissa is in [√½, √2)
    exponent = np.int32(shifted >> 23)
    m = np.int32(bits - np.int32(exponent << 23)).view(np.float32) - np.float32(1)
    e = np.float32(exponent)
    p = np.float32(7.0376836292e-2)
    p = p * m - np.float32(1.1514610310e-1)
    p = p * m + np.float32(1.1676998740e-1)
    p = p * m - np.float32(1.2420140846e-1)
    p = p * m + np.float32(1.4249322787e-1)
    p = p * m - np.float32(1.6668057665e-1)
    p = p * m + np.float32(2.0000714765e-1)
    p = p * m - np.float32(2.4999993993e-1)
    p = p * m + np.float32(3.3333331174e-1)
    square = m * m
    low = p * m * square + e * np.float32(-2.12194440e-4)
    return (m + (low - np.float32(0.5) * square)) + e * np.float32(0.693359375)


@inline
def _log_float64(x):
    """log x for a normal x in (0, 1]; relative error below 4e-16."""
    bits = np.float64(x).view(np.int64)
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52  # so that the mantissa is in [√½, √2)
    m = np.int64(bits - (exponent << 52)).view(np.float64) - 1.0
    e = np.float64(exponent)
    p = 1.01875663804580931796e-4
    p = p * m + 4.97494994976747001425e-1
    p = p * m + 4.70579119878881725854e0
    p = p * m + 1.44989225341610930846e1
    p = p * m + 1.79368678507819816313e1
    p = p * m + 7.70838733755885391666e0
    q = m + 1.12873587189167450590e1
    q = q * m + 4.52279145837532221105e1
    q = q * m + 8.29875266912776603211e1
    q = q * m + 7.11544750618563894466e1
    q = q * m + 2.31251620126765340583e1
    square = m * m
    low = m * (square * p / q) - e * 2.121944400546905827679e-4
    return (m + (low - 0.5 * square)) + e * 0.693359375


@inline
def _sin_float32(x, z):
    """sin x for |x| <= π/4, z = x²."""
    p = np.float32(-1.9515295891e-4) * z + np.float32(8.3321608736e-3)
    return (p * z - np.float32(1.6666654611e-1)) * z * x + x


@inline
def _cos_float32(z):
    """cos √z for √z <= π/4."""
    p = np.float32(2.443315711809948e-5) * z - np.float32(1.388731625493765e-3)
    return (p * z + np.float32(4.166664568298827e-2)) * z * z - np.float32(0.5) * z + np.float32(1)


@inline
def _sin_float64(x, z):
    """sin x for |x| <= π/4, z = x²."""
    p = 1.58962301576546568060e-10 * z - 2.50507477628578072866e-8
    p = p * z + 2.75573136213857245213e-6
    p = p * z - 1.98412698295895385996e-4
    p = p * z + 8.33333333332211858878e-3
    return (p * z - 1.66666666666666307295e-1) * z * x + x


@inline
def _cos_float64(z):
    """cos √z for √z <= π/4."""
    p = -1.13585365213876817300e-11 * z + 2.08757008419747316778e-9
    p = p * z - 2.75573141792967388112e-7
    p = p * z + 2.48015872888517045348e-5
    p = p * z - 1.38888888888730564116e-3
    p = p * z + 4.16666666666665929218e-2
    return p * z * z - 0.5 * z + 1.0


@inline
def _turn(quarter, s, c):
    """(cos, sin) of the angle with sin s and cos c, turned by ``quarter`` quarter turns."""
    swap = (quarter & 1) != 0
    x, y = (s if swap else c), (c if swap else s)
    return (-x if ((quarter + 1) & 2) != 0 else x), (-y if (quarter & 2) != 0 else y)


@inline
def _pair_float32(a, b):
    """Two normal numbers from two words (int32)."""
    unit = (np.float32(np.uint32(a)) + np.float32(0.5)) * UNIT_32  # 2^-33 … 1
    radius = np.sqrt(np.float32(-2) * _log_float32(unit))
    rest = np.int32(np.int32(b << 2) >> 2)
    angle = np.float32(rest) * ANGLE_30
    z = angle * angle
    cos, sin = _turn(np.int32(np.int32(b - rest) >> 30), _sin_float32(angle, z), _cos_float32(z))
    return radius * cos, radius * sin


@inline
def _pair_float64(a, b):
    """Two normal numbers from two 64-bit numbers (int64)."""
    unit = np.float64(np.int64(np.uint64(a) >> np.uint64(11)) + 1) * UNIT_53  # 2^-53 … 1
    radius = np.sqrt(-2.0 * _log_float64(unit))
    rest = (b << 2) >> 2
    angle = np.float64(rest) * ANGLE_62
    z = angle * angle
    cos, sin = _turn((b - rest) >> 62, _sin_float64(angle, z), _cos_float64(z))
    return radius * cos, radius * sin


@kernel()
def normal_float32(args, lo, hi, worker):
    """Standard normal numbers by Box-Muller on elements (2j, 2j + 1): 1 word an element.

    u = (a + ½) · 2^-32, t = b · 2π · 2^-32 for the words a, b of the two elements (rounded to
    float32); out[2j] = sqrt(-2 log u) cos t, out[2j + 1] = sqrt(-2 log u) sin t. At most 6.77 in
    size. Slots: 0 out, 2 seed, 3 offset. Writes 4 bytes an element. Not checked: anything.
    """
    words, numbers = stack(BUFFER), stack(BUFFER)
    bits, pairs, out = as_int32(words), as_float32(numbers), as_float32(load_i64(args, 0))
    while lo < hi:
        first, stop = _block(args, words, lo, hi, 4)
        for j in range((stop - first + 1) // 2):
            pairs[2 * j], pairs[2 * j + 1] = _pair_float32(bits[2 * j], bits[2 * j + 1])
        for i in range(lo, stop):
            out[i] = pairs[i - first]
        lo = stop


@kernel()
def normal_float64(args, lo, hi, worker):
    """Standard normal numbers by Box-Muller on elements (2j, 2j + 1): 2 words an element.

    u = ((a >> 11) + 1) · 2^-53, t = b · 2π · 2^-64 for the 64-bit numbers a, b of the two
    elements; out[2j] = sqrt(-2 log u) cos t, out[2j + 1] = sqrt(-2 log u) sin t. At most 8.58 in
    size. Slots: 0 out, 2 seed, 3 offset. Writes 8 bytes an element. Not checked: anything.
    """
    words, numbers = stack(BUFFER), stack(BUFFER)
    bits, pairs, out = as_int64(words), as_float64(numbers), as_float64(load_i64(args, 0))
    while lo < hi:
        first, stop = _block(args, words, lo, hi, 2)
        for j in range((stop - first + 1) // 2):
            pairs[2 * j], pairs[2 * j + 1] = _pair_float64(bits[2 * j], bits[2 * j + 1])
        for i in range(lo, stop):
            out[i] = pairs[i - first]
        lo = stop


# ---------------------------------------------------------------------------------------- dropout


@inline
def _threshold(p):
    """The least k with k · 2^-24 >= p, so that comparing 24-bit integers is exact."""
    return np.int32(np.ceil(min(max(p, 0.0), 2.0) * 16777216.0))


@kernel()
def dropout_float32(args, lo, hi, worker):
    """out[i] = x[i] · scale where uniform_float32(seed, offset)[i] >= p, else 0: 1 word an element.

    Slots: 0 out, 1 x, 2 seed, 3 offset, 4 bits of p (float64), 5 bits of scale (float64, rounded
    to float32). A dropped element is 0 even where x is nan or inf. The backward pass is the same
    kernel on g with the same seed and offset. out may be x (at half the speed). Reads 4, writes 4
    bytes an element. Not checked: 0 <= p <= 1.
    """
    words = stack(BUFFER)
    bits, out, x = as_int32(words), as_float32(load_i64(args, 0)), as_float32(load_i64(args, 1))
    threshold, scale = _threshold(load_f64(args, 4)), np.float32(load_f64(args, 5))
    while lo < hi:
        first, stop = _block(args, words, lo, hi, 4)
        for i in range(lo, stop):
            kept = np.int32((bits[i - first] >> 8) & 0xFFFFFF) >= threshold
            scaled = x[i] * scale  # read before it is known whether it is kept: no masked load
            out[i] = scaled if kept else np.float32(0)
        lo = stop


@kernel()
def dropout_float64(args, lo, hi, worker):
    """out[i] = x[i] · scale where uniform_float32(seed, offset)[i] >= p, else 0: 1 word an element.

    As ``dropout_float32``, with the same elements kept; scale is used as it is. Reads 8, writes
    8 bytes an element.
    """
    words = stack(BUFFER)
    bits, out, x = as_int32(words), as_float64(load_i64(args, 0)), as_float64(load_i64(args, 1))
    threshold, scale = _threshold(load_f64(args, 4)), load_f64(args, 5)
    while lo < hi:
        first, stop = _block(args, words, lo, hi, 4)
        for i in range(lo, stop):
            kept = np.int32((bits[i - first] >> 8) & 0xFFFFFF) >= threshold
            scaled = x[i] * scale  # read before it is known whether it is kept: no masked load
            out[i] = scaled if kept else 0.0
        lo = stop
