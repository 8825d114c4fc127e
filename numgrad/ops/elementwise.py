"""The elementwise entries: each op, its derivative and its dtype rule in one statement."""

import math

from ..graph.apply import above
from ..graph.errors import expected
from ..kernels import scalar as s
from .declare import elementwise, floating, guarded, numeric

# ------------------------------------------------------------------------------------- arithmetic


@elementwise(dx=lambda g: g, dy=lambda g: g, reference="numpy:add")
def add(x, y):
    """Sum, ``x + y``."""
    return x + y


@elementwise(dx=lambda g: g, dy=lambda g: -g, dtype=numeric, reference="numpy:subtract")
def sub(x, y):
    """Difference, ``x - y``."""
    return x - y


@elementwise(dx=lambda g, y: g * y, dy=lambda g, x: g * x, reference="numpy:multiply")
def mul(x, y):
    """Product, ``x * y``."""
    return x * y


@elementwise(
    dx=lambda g, y: g / y,
    dy=lambda g, x, y: -g * x / (y * y),
    dtype=floating,
    domain=(0.5, 3.0),
    edges=(0.0, -0.0, math.inf),
    reference="numpy:true_divide",
)
def div(x, y):
    """Quotient, ``x / y``; integers give the default float."""
    return x / y


def _nonzero_divisor(op):
    def check(x, y):
        if y.dtype.kind in "iu" and not y.all():
            raise ZeroDivisionError(
                expected(op, "a non-zero integer divisor", "y", 0, "convert to float to get inf")
            )

    return check


@elementwise(
    dx=None,
    dy=None,
    dtype=numeric,
    domain=(1.0, 9.0),
    check=_nonzero_divisor("floor_divide"),
    reference="numpy:floor_divide",
)
def floor_divide(x, y):
    """Quotient rounded down, ``floor(x / y)``. Raises ZeroDivisionError for an integer 0."""
    return x // y


@elementwise(
    dx=lambda g: g,
    dy=lambda g, x, y: -g * (x // y),
    dtype=numeric,
    domain=(1.0, 9.0),
    check=_nonzero_divisor("remainder"),
    reference="numpy:remainder",
)
def remainder(x, y):
    """Remainder with the sign of the divisor, ``x - y * floor(x / y)``. Raises ZeroDivisionError
    for an integer 0."""
    return x % y


def _natural_exponent(x, y):
    if y.dtype.kind == "i" and x.size and y.size and y.min() < 0:
        raise ValueError(negative_exponent(y.min()))


def negative_exponent(y):
    """The text of the error for an integer to a negative integer power."""
    return expected(
        "pow", "a non-negative exponent for integers", "y", y, "convert x with .float()"
    )


@elementwise(
    dx=lambda g, x, y: s.where(y == 0, 0, g * y * x ** (y - 1)),
    dy=lambda g, x, y, out: s.where((x == 0) & (y >= 0), 0, g * out * s.log(x)),
    dtype=numeric,
    domain=(0.3, 2.0),
    check=_natural_exponent,
    reference="numgrad.kernels.reference.elementwise:power",
)
def pow(x, y):
    """Power, ``x ** y``; its derivative at exponent 0 is 0, also for base 0. Raises ValueError for
    integers to negative integer powers."""
    return x**y


@elementwise(dx=lambda g: -g, dtype=numeric, reference="numpy:negative")
def neg(x):
    """Negation, ``-x``."""
    return -x


@elementwise(dx=lambda g, x: g * s.sign(x), dtype=numeric, edges=(0.0, -0.0), reference="numpy:abs")
def abs(x):
    """Absolute value, ``|x|``; the derivative at 0 is 0."""
    return s.absolute(x)


@elementwise(
    dx=lambda g: g * 0, edges=(0.0, -0.0), reference="numgrad.kernels.reference.elementwise:sign"
)
def sign(x):
    """-1, 0 or 1; 0 for nan."""
    return s.sign(x)


@elementwise(
    dx=lambda g, out: -g * out * out,
    dtype=floating,
    domain=(0.5, 3.0),
    reference="numpy:reciprocal",
)
def reciprocal(x):
    """``1 / x``."""
    return 1 / x


@elementwise(dx=lambda g, x: 2 * g * x, dtype=numeric, reference="numpy:square")
def square(x):
    """``x * x``."""
    return x * x


# ----------------------------------------------------------------------- exponentials and the like


@elementwise(
    dx=lambda g, out: g * out, dtype=floating, edges=(0.0, -math.inf, 89.0), reference="numpy:exp"
)
def exp(x):
    """Exponential, ``e ** x``."""
    return s.exp(x)


@elementwise(
    dx=lambda g, out: g * (out + 1),
    dtype=floating,
    edges=(0.0, 1e-20, -math.inf),
    reference="numpy:expm1",
)
def expm1(x):
    """``e ** x - 1``, accurate near 0."""
    return s.expm1(x)


@elementwise(
    dx=lambda g, x: g / x,
    dtype=floating,
    domain=(0.2, 3.0),
    edges=(0.0, math.inf, -1.0),
    reference="numpy:log",
)
def log(x):
    """Natural logarithm."""
    return s.log(x)


@elementwise(
    dx=lambda g, x: g / (x + 1),
    dtype=floating,
    domain=(-0.8, 3.0),
    edges=(0.0, 1e-20, -1.0),
    reference="numpy:log1p",
)
def log1p(x):
    """``log(1 + x)``, accurate near 0."""
    return s.log1p(x)


@elementwise(
    dx=lambda g, out: g / (2 * out),
    dtype=floating,
    domain=(0.2, 3.0),
    edges=(0.0, math.inf, -1.0),
    reference="numpy:sqrt",
)
def sqrt(x):
    """Square root."""
    return s.sqrt(x)


@elementwise(
    dx=lambda g, out: -g * out * out * out / 2,
    dtype=floating,
    domain=(0.2, 3.0),
    edges=(math.inf,),
    reference="numgrad.kernels.reference.elementwise:rsqrt",
)
def rsqrt(x):
    """``1 / sqrt(x)``."""
    return 1 / s.sqrt(x)


@elementwise(
    dx=lambda g, out: g * (1 - out * out),
    dtype=floating,
    edges=(0.0, math.inf, -math.inf),
    reference="numpy:tanh",
)
def tanh(x):
    """Hyperbolic tangent."""
    return s.tanh(x)


@elementwise(
    dx=lambda g, out: g * out * (1 - out),
    dtype=floating,
    domain=(-8.0, 8.0),
    edges=(0.0, math.inf, -math.inf),
    reference="scipy.special:expit",
)
def sigmoid(x):
    """Logistic sigmoid, ``1 / (1 + exp(-x))``."""
    return s.sigmoid(x)


@elementwise(
    dx=lambda g, x: g * (2 / math.sqrt(math.pi)) * s.exp(-x * x),
    dtype=floating,
    edges=(0.0, math.inf, -math.inf),
    reference="scipy.special:erf",
)
def erf(x):
    """Error function, ``2/sqrt(pi) * integral of exp(-t*t) from 0 to x``."""
    return s.erf(x)


# ------------------------------------------------------------------------------------- activations


@elementwise(
    dx=lambda g, out: s.where(out <= 0, 0, g),
    dtype=numeric,
    edges=(0.0, math.nan),
    reference="numgrad.kernels.reference.elementwise:relu",
)
def relu(x):
    """``max(x, 0)``; the derivative at 0 is 0."""
    return s.maximum(x, 0)


@elementwise(
    dx=lambda g, out: s.where((out <= 0) | (out >= 6), 0, g),
    dtype=numeric,
    domain=(-3.0, 9.0),
    edges=(0.0, 6.0),
    reference="numgrad.kernels.reference.elementwise:relu6",
)
def relu6(x):
    """``min(max(x, 0), 6)``; the derivative at the corners is 0."""
    return s.minimum(s.maximum(x, 0), 6)


@elementwise(
    dx=lambda g, x, negative_slope: s.where(x > 0, g, g * negative_slope),
    dtype=floating,
    edges=(0.0,),
    reference="numgrad.kernels.reference.elementwise:leaky_relu",
)
def leaky_relu(x, negative_slope=0.01):
    """``x`` where positive, else ``negative_slope * x``."""
    return s.where(x > 0, x, negative_slope * x)


@elementwise(
    dx=lambda g, x, alpha: s.where(x <= 0, g * alpha * s.exp(x), g),
    dtype=floating,
    reference="numgrad.kernels.reference.elementwise:elu",
)
def elu(x, alpha=1.0):
    """``x`` where positive, else ``alpha * (exp(x) - 1)``."""
    return s.where(x > 0, x, alpha * s.expm1(x))


@elementwise(
    dx=lambda g, x, beta, threshold: s.where(beta * x > threshold, g, g * s.sigmoid(beta * x)),
    dtype=floating,
    edges=(0.0, 30.0, -200.0),
    reference="numgrad.kernels.reference.elementwise:softplus",
)
def softplus(x, beta=1.0, threshold=20.0):
    """``log(1 + exp(beta * x)) / beta``, computed so that exp never overflows; ``x`` itself where
    ``beta * x > threshold``."""
    z = beta * x
    smooth = (s.maximum(z, 0) + s.log1p(s.exp(-s.absolute(z)))) / beta
    return s.where(z > threshold, x, smooth)


@elementwise(
    dx=lambda g, x: g * s.sigmoid(x) * (1 + x * (1 - s.sigmoid(x))),
    dtype=floating,
    edges=(0.0,),
    reference="numgrad.kernels.reference.elementwise:silu",
)
def silu(x):
    """``x * sigmoid(x)`` (Elfwing et al. 2018)."""
    return x * s.sigmoid(x)


@elementwise(
    dx=lambda g, x: (
        g
        * (
            0.5 * (1 + s.erf(x * math.sqrt(0.5)))
            + x * s.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
        )
    ),
    dtype=floating,
    edges=(0.0,),
    reference="numgrad.kernels.reference.elementwise:gelu",
)
def gelu(x):
    """``x * Phi(x)``, Phi the normal distribution function (Hendrycks & Gimpel 2016, exact)."""
    return 0.5 * x * (1 + s.erf(x * math.sqrt(0.5)))


@elementwise(
    dx=lambda g, out, min_val, max_val: s.where((out <= min_val) | (out >= max_val), 0, g),
    dtype=floating,
    edges=(-1.0, 1.0),
    reference="numgrad.kernels.reference.elementwise:hardtanh",
)
def hardtanh(x, min_val=-1.0, max_val=1.0):
    """``x`` cut to ``[min_val, max_val]``; the derivative at the corners is 0."""
    return s.minimum(s.maximum(x, min_val), max_val)


# ------------------------------------------------------------------------------ rounding, extremes


@elementwise(dx=lambda g: g * 0, dtype=numeric, edges=(0.5, -0.5), reference="numpy:floor")
def floor(x):
    """Largest integer not above ``x``."""
    return s.floor(x)


@elementwise(dx=lambda g: g * 0, dtype=numeric, edges=(0.5, -0.5), reference="numpy:ceil")
def ceil(x):
    """Smallest integer not below ``x``."""
    return s.ceil(x)


@elementwise(dx=lambda g: g * 0, dtype=numeric, edges=(0.5, -0.5), reference="numpy:trunc")
def trunc(x):
    """Integer part, rounded towards 0."""
    return s.trunc(x)


@elementwise(dx=lambda g: g * 0, dtype=numeric, edges=(0.5, 1.5, -0.5), reference="numpy:rint")
def round(x):
    """Nearest integer, halves to even."""
    return s.round(x)


@elementwise(
    dx=lambda g, x, y: s.where(x < y, 0, s.where(x == y, g / 2, g)),
    dy=lambda g, x, y: s.where(x > y, 0, s.where(x == y, g / 2, g)),
    edges=(math.nan,),
    reference="numpy:maximum",
)
def maximum(x, y):
    """The larger, nan if either is; a tie shares the gradient."""
    return s.maximum(x, y)


@elementwise(
    dx=lambda g, x, y: s.where(x > y, 0, s.where(x == y, g / 2, g)),
    dy=lambda g, x, y: s.where(x < y, 0, s.where(x == y, g / 2, g)),
    edges=(math.nan,),
    reference="numpy:minimum",
)
def minimum(x, y):
    """The smaller, nan if either is; a tie shares the gradient."""
    return s.minimum(x, y)


@elementwise(
    dx=lambda g, x, low: s.where(x >= low, g, 0),
    dlow=lambda g, x, low: s.where(x >= low, 0, g),
    reference="numpy:maximum",
)
def clamp_min(x, low):
    """``x``, at least ``low``; at the bound the gradient goes to ``x``."""
    return s.maximum(x, low)


@elementwise(
    dx=lambda g, x, high: s.where(x <= high, g, 0),
    dhigh=lambda g, x, high: s.where(x <= high, 0, g),
    reference="numpy:minimum",
)
def clamp_max(x, high):
    """``x``, at most ``high``; at the bound the gradient goes to ``x``."""
    return s.minimum(x, high)


@elementwise(
    dx=lambda g, condition: s.where(condition, g, 0),
    dy=lambda g, condition: s.where(condition, 0, g),
    conditions=("condition",),
    reference="numpy:where",
)
def where(condition, x, y):
    """``x`` where ``condition``, else ``y``; the branch not taken gets gradient 0."""
    return s.where(condition, x, y)


@elementwise(
    dx=lambda g, x, y: s.where((y == 0) & ~s.isfinite(x), 0, g),
    dy=None,
    reference="numgrad.kernels.reference.elementwise:guard",
)
def guard(x, y):
    """Gradient ``x`` with 0 x non-finite counted as 0, where the incoming gradient ``y`` is 0.
    Where it acts its derivative is 0, so that a branch not taken leaks nothing at any order;
    elsewhere it is the identity, also where ``y`` is 0."""
    return guarded(y, x)


@elementwise(dx=None, dy=lambda g: g, reference="numgrad.kernels.reference.elementwise:assign")
def assign(x, y):
    """``y`` in the shape of ``x``: what ``x.copy_(y)`` writes."""
    return y


# ---------------------------------------------------------------------------- comparison and logic


@elementwise(dx=None, dy=None, reference="numpy:equal")
def eq(x, y):
    """``x == y``."""
    return x == y


@elementwise(dx=None, dy=None, reference="numpy:not_equal")
def ne(x, y):
    """``x != y``."""
    return x != y


@elementwise(dx=None, dy=None, reference="numpy:less")
def lt(x, y):
    """``x < y``."""
    return x < y


@elementwise(dx=None, dy=None, reference="numpy:less_equal")
def le(x, y):
    """``x <= y``."""
    return x <= y


@elementwise(dx=None, dy=None, reference="numpy:greater")
def gt(x, y):
    """``x > y``."""
    return x > y


@elementwise(dx=None, dy=None, reference="numpy:greater_equal")
def ge(x, y):
    """``x >= y``."""
    return x >= y


@elementwise(dx=None, dy=None, edges=(0.0,), reference="numpy:logical_and")
def logical_and(x, y):
    """Whether both are non-zero."""
    return (x != 0) & (y != 0)


@elementwise(dx=None, dy=None, edges=(0.0,), reference="numpy:logical_or")
def logical_or(x, y):
    """Whether either is non-zero."""
    return (x != 0) | (y != 0)


@elementwise(dx=None, dy=None, edges=(0.0,), reference="numpy:logical_xor")
def logical_xor(x, y):
    """Whether exactly one is non-zero."""
    return (x != 0) ^ (y != 0)


@elementwise(dx=None, edges=(0.0,), reference="numpy:logical_not")
def logical_not(x):
    """Whether ``x`` is zero."""
    return ~(x != 0)


@elementwise(dx=None, edges=(math.nan, math.inf), reference="numpy:isnan")
def isnan(x):
    """Whether ``x`` is nan."""
    return s.isnan(x)


@elementwise(dx=None, edges=(math.nan, math.inf), reference="numpy:isfinite")
def isfinite(x):
    """Whether ``x`` is neither nan nor infinite."""
    return s.isfinite(x)


@elementwise(dx=None, edges=(math.nan, math.inf), reference="numpy:isinf")
def isinf(x):
    """Whether ``x`` is infinite."""
    return s.isinf(x)


above.guard = lambda g, dx: guard(dx, g)
above.add = add
above.assign = assign
