"""Scalar functions that generated kernels compile into themselves: exp, log, tanh and others.

Numba's own ``math.exp`` is a scalar call into libm, and a loop with a call is not vectorised. The
functions here are arithmetic, selects and bit casts only, so LLVM vectorises a loop of them.

They are plain functions, one per dtype, and nothing here is compiled: the code generator pastes
the *source* of those a kernel needs into the kernel's own module, decorated ``njit`` with
``fastmath={'contract'}``, ``error_model='numpy'`` and ``forceinline=True``: ``erf_float64`` is
larger than what LLVM inlines of its own accord, and a loop with a call is not vectorised.
Hence the rules for a body:

* It names only other functions of this file, ``abs``, ``math`` and the NumPy scalar types.
* A float32 literal is written ``float32(...)``: a bare one makes the whole expression float64.
* Integer arithmetic is 64 bit in Numba: an int32 result is cast back before it is viewed.
* Numba wants ``.view`` on a direct call of a scalar type, as in ``float32(t).view(int32)``.
* A select that must let nan through is written ``limit if x > limit else x``.
* Each jitted function costs about 40 ms of compile time, however small. This is why the few
  lines of range reduction stand in each body instead of in a helper.

Recurring steps:

* ``t = x / ln 2 + 1.5 * 2**23`` (``2**52`` in float64) rounds to nearest: ``t - 1.5 * 2**23`` is
  the integer ``n`` as a float, and the low bits of ``t`` are ``n`` as an integer. ``x - n ln 2``
  takes ``ln 2`` in two parts, the first so short that its product with ``n`` is exact
  (Cody & Waite 1980).
* ``2**n`` is made by placing ``n`` in the exponent field.
* ``log`` subtracts the bits of ``sqrt(1/2)``. What is left holds ``k`` in the exponent field and
  the rest of the mantissa ``m`` below it: ``x = 2**k m`` with ``sqrt(1/2) <= m < sqrt(2)``.

Polynomials are minimax fits made for this file (Remez in 50 digits, coefficients rounded to the
dtype). The error of every function is below 2 ulp everywhere, denormal results included.
"""

import math

from numpy import float32, float64, int32, int64


def exp_float32(x):
    """``exp(x) = 2**n (1 + r + r**2 q(r))``, ``r = x - n ln 2`` (Cody & Waite, Cephes).

    ``2**n`` is applied in two halves: neither overflows, and a denormal result is rounded once.
    """
    x = float32(-104.0) if x < float32(-104.0) else x
    x = float32(89.0) if x > float32(89.0) else x
    t = x * float32(1.442695) + float32(12582912.0)
    n = t - float32(12582912.0)
    r = x - n * float32(0.693359375)
    r = r - n * float32(-0.00021219444)
    q = float32(0.000198459) * r + float32(0.0013940927)
    q = q * r + float32(0.00833339)
    q = q * r + float32(0.04166636)
    q = q * r + float32(0.16666666)
    q = q * r + float32(0.5)
    p = q * (r * r) + r + float32(1.0)
    k = float32(t).view(int32)
    h = int32(k >> 1)
    p = p * int32((h << 23) + 0x3F800000).view(float32)
    return p * int32(((k - h) << 23) + 0x3F800000).view(float32)


def exp_float64(x):
    """``exp(x) = 2**n (1 + r + r**2 q(r))``, ``r = x - n ln 2``; as ``exp_float32``."""
    x = -746.0 if x < -746.0 else x
    x = 710.0 if x > 710.0 else x
    t = x * 1.4426950408889634 + 6755399441055744.0
    n = t - 6755399441055744.0
    r = x - n * 0.6931471803691238
    r = r - n * 1.9082149292705877e-10
    q = 2.505377619831109e-08 * r + 2.7626436226588476e-07
    q = q * r + 2.755740859499157e-06
    q = q * r + 2.4801504321056648e-05
    q = q * r + 0.0001984126971684409
    q = q * r + 0.001388888893230966
    q = q * r + 0.008333333333390874
    q = q * r + 0.04166666666657466
    q = q * r + 0.16666666666666588
    q = q * r + 0.5000000000000006
    p = q * (r * r) + r + 1.0
    k = float64(t).view(int64)
    h = k >> 1
    p = p * int64((h << 52) + 0x3FF0000000000000).view(float64)
    return p * int64(((k - h) << 52) + 0x3FF0000000000000).view(float64)


def expm1_float32(x):
    """``exp(x) - 1 = 2**n (r + r**2 q(r)) + (2**n - 1)``, as in fdlibm ``s_expm1.c``.

    ``r`` and ``q`` are those of ``exp_float32``. The linear term uses ``r = v - w`` in its two
    parts, of which ``v`` is exact. The sum is formed at half size, so that ``n = 128`` is no
    overflow. A tiny ``x`` is its own result, which keeps denormals and -0.
    """
    z = float32(-18.0) if x < float32(-18.0) else x
    z = float32(89.0) if z > float32(89.0) else z
    t = z * float32(1.442695) + float32(12582912.0)
    n = t - float32(12582912.0)
    v = z - n * float32(0.693359375)
    w = n * float32(-0.00021219444)
    r = v - w
    q = float32(0.000198459) * r + float32(0.0013940927)
    q = q * r + float32(0.00833339)
    q = q * r + float32(0.04166636)
    q = q * r + float32(0.16666666)
    q = q * r + float32(0.5)
    half = int32((float32(t).view(int32) << 23) + 0x3F000000).view(float32)
    y = (q * (r * r) - w) * half + (v * half + (half - float32(0.5)))
    return x if abs(x) < float32(1e-8) else y + y


def expm1_float64(x):
    """``exp(x) - 1 = 2**n (r + r**2 q(r)) + (2**n - 1)``; as ``expm1_float32``."""
    z = -38.0 if x < -38.0 else x
    z = 710.0 if z > 710.0 else z
    t = z * 1.4426950408889634 + 6755399441055744.0
    n = t - 6755399441055744.0
    v = z - n * 0.6931471803691238
    w = n * 1.9082149292705877e-10
    r = v - w
    q = 2.505377619831109e-08 * r + 2.7626436226588476e-07
    q = q * r + 2.755740859499157e-06
    q = q * r + 2.4801504321056648e-05
    q = q * r + 0.0001984126971684409
    q = q * r + 0.001388888893230966
    q = q * r + 0.008333333333390874
    q = q * r + 0.04166666666657466
    q = q * r + 0.16666666666666588
    q = q * r + 0.5000000000000006
    half = int64((float64(t).view(int64) << 52) + 0x3FE0000000000000).view(float64)
    y = (q * (r * r) - w) * half + (v * half + (half - 0.5))
    return x if abs(x) < 1e-17 else y + y


def log_float32(x):
    """``log(x) = k ln 2 + (f - f**2 / 2 + f**3 q(f))``, ``f = m - 1`` (Cephes ``logf``)."""
    small = x < float32(1.1754944e-38)
    z = x * float32(33554432.0) if small else x  # 2**25: a denormal has no implicit leading bit
    i = int32(float32(z).view(int32) - 0x3F3504F3)
    k = float32(int32(i >> 23)) - (float32(25.0) if small else float32(0.0))
    f = int32((i & 0x7FFFFF) + 0x3F3504F3).view(float32) - float32(1.0)
    q = float32(-0.076345) * f + float32(0.12761971)
    q = q * f + float32(-0.13160363)
    q = q * f + float32(0.14201717)
    q = q * f + float32(-0.16623336)
    q = q * f + float32(0.20001228)
    q = q * f + float32(-0.25000823)
    q = q * f + float32(0.3333333)
    s = f * f
    y = s * (f * q) + k * float32(-0.00021219444)
    y = k * float32(0.693359375) + (f + (y - float32(0.5) * s))
    y = y if x < float32(math.inf) else x
    return y if x > float32(0.0) else float32(-math.inf) if x == float32(0.0) else float32(math.nan)


def log_float64(x):
    """``log(x) = k ln 2 + 2 atanh(s)``, ``s = f / (2 + f)``, ``f = m - 1`` (fdlibm ``e_log.c``).

    ``2 atanh(s) = f - (f**2 / 2 - s (f**2 / 2 + z q(z)))`` with ``z = s**2``.
    """
    small = x < 2.2250738585072014e-308
    z = x * 18014398509481984.0 if small else x  # 2**54: a denormal has no implicit leading bit
    i = int64(float64(z).view(int64) - 0x3FE6A09E667F3BCD)
    k = float64(i >> 52) - (54.0 if small else 0.0)
    f = int64((i & 0xFFFFFFFFFFFFF) + 0x3FE6A09E667F3BCD).view(float64) - 1.0
    s = f / (f + 2.0)
    z = s * s
    q = 0.1474689221391795 * z + 0.1531930712312275
    q = q * z + 0.18183341431207709
    q = q * z + 0.22222203302334492
    q = q * z + 0.28571428690352474
    q = q * z + 0.3999999999968891
    q = q * z + 0.6666666666666683
    half = 0.5 * f * f
    y = s * (half + z * q) + k * 1.9082149292705877e-10
    y = k * 0.6931471803691238 - ((half - y) - f)
    y = y if x < math.inf else x
    return y if x > 0.0 else -math.inf if x == 0.0 else math.nan


def log1p_float32(x):
    """``log(1 + x)`` as in ``log_float32``, where now ``m - 1 = x / 2**k + (1 / 2**k - 1)``.

    The rounded sum ``1 + x`` gives ``k`` and nothing else (after N. Juffa's ``log1pf``).
    ``scale = 4 / 2**k``, because ``1 / 2**k`` is denormal for the largest ``k``.
    A tiny ``x`` is its own result, which keeps denormals and -0.
    """
    i = int32(float32(x + float32(1.0)).view(int32) - 0x3F3504F3)
    e = int32(i & -0x800000)
    k = float32(int32(i >> 23))
    scale = int32(0x40800000 - e).view(float32)
    f = (x * float32(0.25)) * scale + (scale * float32(0.25) - float32(1.0))
    q = float32(-0.076345) * f + float32(0.12761971)
    q = q * f + float32(-0.13160363)
    q = q * f + float32(0.14201717)
    q = q * f + float32(-0.16623336)
    q = q * f + float32(0.20001228)
    q = q * f + float32(-0.25000823)
    q = q * f + float32(0.3333333)
    s = f * f
    y = s * (f * q) + k * float32(-0.00021219444)
    y = k * float32(0.693359375) + (f + (y - float32(0.5) * s))
    y = x if abs(x) < float32(1e-8) else y
    y = y if x < float32(math.inf) else x
    return (
        y if x > float32(-1.0) else float32(-math.inf) if x == float32(-1.0) else float32(math.nan)
    )


def log1p_float64(x):
    """``log(1 + x)`` as in ``log_float64``, with ``k`` and ``m - 1`` as in ``log1p_float32``."""
    i = int64(float64(x + 1.0).view(int64) - 0x3FE6A09E667F3BCD)
    e = int64(i & -0x10000000000000)
    k = float64(i >> 52)
    scale = int64(0x4010000000000000 - e).view(float64)
    f = (x * 0.25) * scale + (scale * 0.25 - 1.0)
    s = f / (f + 2.0)
    z = s * s
    q = 0.1474689221391795 * z + 0.1531930712312275
    q = q * z + 0.18183341431207709
    q = q * z + 0.22222203302334492
    q = q * z + 0.28571428690352474
    q = q * z + 0.3999999999968891
    q = q * z + 0.6666666666666683
    half = 0.5 * f * f
    y = s * (half + z * q) + k * 1.9082149292705877e-10
    y = k * 0.6931471803691238 - ((half - y) - f)
    y = x if abs(x) < 1e-17 else y
    y = y if x < math.inf else x
    return y if x > -1.0 else -math.inf if x == -1.0 else math.nan


def tanh_float32(x):
    """``tanh(x) = h / (1 + h)``, ``h = expm1(2 |x|) / 2``, with the sign of ``x`` (fdlibm).

    ``h`` is as in ``expm1_float32``; from ``|x| = 10`` on the result rounds to 1. The quotient is
    written ``c - c (c / (1 + h))``, ``c = min(h, 1)``, that is ``h - h**2 / (1 + h)`` or
    ``1 - 1 / (1 + h)``: most rounding errors are then made in the smaller of two terms.
    """
    z = abs(x) + abs(x)
    z = float32(20.0) if z > float32(20.0) else z
    t = z * float32(1.442695) + float32(12582912.0)
    n = t - float32(12582912.0)
    v = z - n * float32(0.693359375)
    w = n * float32(-0.00021219444)
    r = v - w
    q = float32(0.000198459) * r + float32(0.0013940927)
    q = q * r + float32(0.00833339)
    q = q * r + float32(0.04166636)
    q = q * r + float32(0.16666666)
    q = q * r + float32(0.5)
    half = int32((float32(t).view(int32) << 23) + 0x3F000000).view(float32)
    h = (q * (r * r) - w) * half + (v * half + (half - float32(0.5)))
    c = h if h < float32(1.0) else float32(1.0)
    return float32(math.copysign(c - c * (c / (h + float32(1.0))), x))


def tanh_float64(x):
    """``tanh(x) = h / (1 + h)``, ``h = expm1(2 |x|) / 2``; as ``tanh_float32``, 1 from 22 on."""
    z = abs(x) + abs(x)
    z = 44.0 if z > 44.0 else z
    t = z * 1.4426950408889634 + 6755399441055744.0
    n = t - 6755399441055744.0
    v = z - n * 0.6931471803691238
    w = n * 1.9082149292705877e-10
    r = v - w
    q = 2.505377619831109e-08 * r + 2.7626436226588476e-07
    q = q * r + 2.755740859499157e-06
    q = q * r + 2.4801504321056648e-05
    q = q * r + 0.0001984126971684409
    q = q * r + 0.001388888893230966
    q = q * r + 0.008333333333390874
    q = q * r + 0.04166666666657466
    q = q * r + 0.16666666666666588
    q = q * r + 0.5000000000000006
    half = int64((float64(t).view(int64) << 52) + 0x3FE0000000000000).view(float64)
    h = (q * (r * r) - w) * half + (v * half + (half - 0.5))
    c = h if h < 1.0 else 1.0
    return float64(math.copysign(c - c * (c / (h + 1.0)), x))


def erf_float32(x):
    """``erf(x) = x + x p(x**2)`` for ``|x| < 1``, else ``1 - exp(z(|x| - 1))``, ``z = log erfc``.

    The two parts are after N. Juffa's ``erff``. ``exp`` is as in ``exp_float32`` but needs no ends:
    from ``|x| = 4`` on the difference rounds to 1.
    """
    s = x * x
    p = float32(7.8538615e-05) * s + float32(-0.00080101937)
    p = p * s + float32(0.0051883277)
    p = p * s + float32(-0.026853813)
    p = p * s + float32(0.112835854)
    p = p * s + float32(-0.37612626)
    p = p * s + float32(0.12837917)
    inner = x * p + x
    a = abs(x)
    d = (float32(4.0) if a > float32(4.0) else a) - float32(1.0)
    z = float32(0.00018637547) * d + float32(-0.0018293686)
    z = z * d + float32(0.00989544)
    z = z * d + float32(-0.041503485)
    z = z * d + float32(-0.8431176)
    z = z * d + float32(-2.6389668)
    z = z * d + float32(-1.8496056)
    t = z * float32(1.442695) + float32(12582912.0)
    n = t - float32(12582912.0)
    r = z - n * float32(0.693359375)
    r = r - n * float32(-0.00021219444)
    q = float32(0.000198459) * r + float32(0.0013940927)
    q = q * r + float32(0.00833339)
    q = q * r + float32(0.04166636)
    q = q * r + float32(0.16666666)
    q = q * r + float32(0.5)
    p = q * (r * r) + r + float32(1.0)
    scale = int32((float32(t).view(int32) << 23) + 0x3F800000).view(float32)
    outer = float32(math.copysign(float32(1.0) - p * scale, x))
    return inner if a < float32(1.0) else outer


def erf_float64(x):
    """``erf(x) = x + x p(x**2)`` for ``|x| < 1``, else ``1 - exp(z(|x| - 1))``; as ``erf_float32``.

    From ``|x| = 6`` on it rounds to 1.
    """
    s = x * x
    p = -7.779474084969435e-10 * s + 1.3710983651499275e-08
    p = p * s + -1.6206314576614705e-07
    p = p * s + 1.6447131687680205e-06
    p = p * s + -1.492471231230137e-05
    p = p * s + 0.00012055293577485266
    p = p * s + -0.000854832592933581
    p = p * s + 0.005223977606118957
    p = p * s + -0.02686617064311153
    p = p * s + 0.11283791670944185
    p = p * s + -0.3761263890318352
    p = p * s + 0.12837916709551256
    inner = x * p + x
    a = abs(x)
    d = (6.0 if a > 6.0 else a) - 1.0
    z = -4.927142888344979e-12 * d + 1.2067925591430163e-10
    z = z * d + -1.3323334829573937e-09
    z = z * d + 8.595579418013141e-09
    z = z * d + -3.3686584890140924e-08
    z = z * d + 5.8805885128278485e-08
    z = z * d + 2.0327341150484665e-07
    z = z * d + -2.129762547894434e-06
    z = z * d + 9.669116697639243e-06
    z = z * d + -2.7197259255888195e-05
    z = z * d + 2.6295390659868605e-05
    z = z * d + 0.00023731679535037405
    z = z * d + -0.0019779013103185766
    z = z * d + 0.010033825195108488
    z = z * d + -0.041561098026684416
    z = z * d + -0.8431072563593298
    z = z * d + -2.6389675142347775
    z = z * d + -1.8496055099332482
    t = z * 1.4426950408889634 + 6755399441055744.0
    n = t - 6755399441055744.0
    r = z - n * 0.6931471803691238
    r = r - n * 1.9082149292705877e-10
    q = 2.505377619831109e-08 * r + 2.7626436226588476e-07
    q = q * r + 2.755740859499157e-06
    q = q * r + 2.4801504321056648e-05
    q = q * r + 0.0001984126971684409
    q = q * r + 0.001388888893230966
    q = q * r + 0.008333333333390874
    q = q * r + 0.04166666666657466
    q = q * r + 0.16666666666666588
    q = q * r + 0.5000000000000006
    p = q * (r * r) + r + 1.0
    scale = int64((float64(t).view(int64) << 52) + 0x3FF0000000000000).view(float64)
    outer = float64(math.copysign(1.0 - p * scale, x))
    return inner if a < 1.0 else outer


def sigmoid_float32(x):
    """``1 / (1 + e)`` for ``x >= 0``, else ``e / (1 + e)``, where ``e = exp(-|x|)``.

    Neither overflows, and both tails keep their relative accuracy. They are written ``1 - u`` and
    ``e - e u`` with ``u = e / (1 + e)``, as in ``tanh_float32``; ``e`` is ``exp_float32(-abs(x))``.
    """
    z = -abs(x)
    z = float32(-104.0) if z < float32(-104.0) else z
    t = z * float32(1.442695) + float32(12582912.0)
    n = t - float32(12582912.0)
    r = z - n * float32(0.693359375)
    r = r - n * float32(-0.00021219444)
    q = float32(0.000198459) * r + float32(0.0013940927)
    q = q * r + float32(0.00833339)
    q = q * r + float32(0.04166636)
    q = q * r + float32(0.16666666)
    q = q * r + float32(0.5)
    p = q * (r * r) + r + float32(1.0)
    k = float32(t).view(int32)
    h = int32(k >> 1)
    p = p * int32((h << 23) + 0x3F800000).view(float32)
    e = p * int32(((k - h) << 23) + 0x3F800000).view(float32)
    c = float32(1.0) if x >= float32(0.0) else e
    return c - c * (e / (float32(1.0) + e))


def sigmoid_float64(x):
    """``1 / (1 + e)`` for ``x >= 0``, else ``e / (1 + e)``, ``e = exp(-|x|)``; as in float32."""
    z = -abs(x)
    z = -746.0 if z < -746.0 else z
    t = z * 1.4426950408889634 + 6755399441055744.0
    n = t - 6755399441055744.0
    r = z - n * 0.6931471803691238
    r = r - n * 1.9082149292705877e-10
    q = 2.505377619831109e-08 * r + 2.7626436226588476e-07
    q = q * r + 2.755740859499157e-06
    q = q * r + 2.4801504321056648e-05
    q = q * r + 0.0001984126971684409
    q = q * r + 0.001388888893230966
    q = q * r + 0.008333333333390874
    q = q * r + 0.04166666666657466
    q = q * r + 0.16666666666666588
    q = q * r + 0.5000000000000006
    p = q * (r * r) + r + 1.0
    k = float64(t).view(int64)
    h = k >> 1
    p = p * int64((h << 52) + 0x3FF0000000000000).view(float64)
    e = p * int64(((k - h) << 52) + 0x3FF0000000000000).view(float64)
    c = 1.0 if x >= 0.0 else e
    return c - c * (e / (1.0 + e))
