"""The scalar functions of the CPU kernels: accuracy, edges, vectorised loops."""

import functools
import inspect
import math
import re
import types

import numpy as np
import pytest
from numba import njit
from scipy import special

from numgrad.kernels.cpu import functions

NAMES = ("exp", "expm1", "log", "log1p", "tanh", "erf", "sigmoid")
DTYPES = ("float32", "float64")
INF, NAN = math.inf, math.nan

# Where each function does something: beyond, the result is constant, infinite or nan.
DOMAINS = {
    ("exp", "float32"): (-110, 95),
    ("exp", "float64"): (-750, 715),
    ("expm1", "float32"): (-20, 95),
    ("expm1", "float64"): (-45, 715),
    ("log", "float32"): (0, 4),
    ("log", "float64"): (0, 4),
    ("log1p", "float32"): (-1, 3),
    ("log1p", "float64"): (-1, 3),
    ("tanh", "float32"): (-11, 11),
    ("tanh", "float64"): (-24, 24),
    ("erf", "float32"): (-5, 5),
    ("erf", "float64"): (-7, 7),
    ("sigmoid", "float32"): (-110, 20),
    ("sigmoid", "float64"): (-750, 40),
}

# Pairs of an input and its exact result; nan gives nan for all.
EDGES = {
    "exp": [(0.0, 1), (-0.0, 1), (INF, INF), (-INF, 0.0), (1e4, INF), (-1e4, 0.0)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1), (1e4, INF), (-1e4, -1)],
    "log": [(1, 0.0), (0.0, -INF), (-0.0, -INF), (INF, INF), (-INF, NAN), (-1, NAN), (-1e-44, NAN)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1, -INF), (INF, INF), (-INF, NAN), (-1.5, NAN)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1), (-INF, -1), (1e30, 1), (-1e30, -1)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1), (-INF, -1), (1e30, 1), (-1e30, -1)],
    "sigmoid": [(0.0, 0.5), (-0.0, 0.5), (INF, 1), (-INF, 0.0), (1e4, 1), (-1e4, 0.0)],
}

each = pytest.mark.parametrize(
    ("name", "dtype"), [pytest.param(n, d, id=f"{n}-{d}") for n in NAMES for d in DTYPES]
)


def needed(name):
    """``name`` and the functions of the module it calls, callees first."""
    names = []
    for callee in getattr(functions, name).__code__.co_names:
        if isinstance(getattr(functions, callee, None), types.FunctionType):
            names += [n for n in needed(callee) if n not in names]
    return [*names, name]


@functools.cache
def compiled(name, dtype):
    """A loop of one function, put together from source as the code generator does it."""
    source = (
        "import math\nfrom numba import njit\nfrom numpy import float32, float64, int32, int64\n"
    )
    for member in needed(f"{name}_{dtype}"):
        source += "@njit(fastmath={'contract'}, error_model='numpy', forceinline=True)\n"
        source += inspect.getsource(getattr(functions, member))
    source += "def loop(x, out):\n    for i in range(x.shape[0]):\n"
    source += f"        out[i] = {name}_{dtype}(x[i])\n"
    namespace = {}
    exec(source, namespace)
    return njit(f"void({dtype}[::1], {dtype}[::1])", error_model="numpy")(namespace["loop"])


def evaluate(name, x):
    out = np.empty_like(x)
    compiled(name, x.dtype.name)(x, out)
    return out


def erf_longdouble(x):
    """``2 / sqrt(pi) exp(-x**2) sum_n 2**n x**(2 n + 1) / (2 n + 1)!!``: no term is negative."""
    square = x * x
    term = total = x
    for n in range(1, 200):
        term = term * (2 * square / (2 * n + 1))
        total = total + term
    value = total * np.exp(-square) * 2 / np.sqrt(np.arctan(np.longdouble(1)) * 4)
    # |x| from 7 on: erfc(7) < 1e-22. nan stays.
    return np.where(np.abs(x) < 7, value, np.where(np.isnan(x), x, np.sign(x)))


def reference(name, x):
    """The value in the next wider float type."""
    if x.dtype == np.float32:
        wide = x.astype(np.float64)
        scipy_names = {"erf": special.erf, "sigmoid": special.expit}
        return (scipy_names.get(name) or getattr(np, name))(wide)
    wide = x.astype(np.longdouble)
    if name == "erf":
        return erf_longdouble(wide)
    if name == "sigmoid":
        e = np.exp(-np.abs(wide))
        return np.where(wide >= 0, 1, e) / (1 + e)
    return getattr(np, name)(wide)


def ulps(actual, exact):
    """``|actual - exact|`` in spacings of ``exact`` rounded; infinities and nan must agree."""
    rounded = exact.astype(actual.dtype)
    finite = np.isfinite(rounded)
    same = (actual == rounded) | (np.isnan(actual) & np.isnan(rounded))
    error = np.abs(actual - exact) / np.spacing(np.abs(rounded))
    return np.where(finite & np.isfinite(actual), error, np.where(same, 0, INF))


def inputs(name, dtype, count):
    """Bit patterns spread evenly over the dtype; numbers of the domain, near 0 and 1, denormal."""
    integer = np.dtype(f"i{np.dtype(dtype).itemsize}")
    low, high = np.iinfo(integer).min, np.iinfo(integer).max
    patterns = low + np.arange(2 * count).astype(object) * ((high - low) // (2 * count))
    rng = np.random.default_rng(0)
    parts = [
        patterns.astype(integer).view(dtype),
        rng.uniform(*DOMAINS[name, dtype], 2 * count),
        rng.uniform(-1.5, 1.5, 2 * count),
        rng.uniform(0.99, 1.01, count),
        np.finfo(dtype).smallest_subnormal * rng.integers(-5000, 5000, count),
    ]
    return np.concatenate([part.astype(dtype) for part in parts])


@each
def test_accuracy(name, dtype):
    if dtype == "float64" and np.finfo(np.longdouble).nmant < 63:
        pytest.skip("no float type wider than float64 to compare with")
    x = inputs(name, dtype, 100_000 if dtype == "float32" else 10_000)
    with np.errstate(all="ignore"):
        error = ulps(evaluate(name, x), reference(name, x))
    worst = error.argmax()
    assert error[worst] <= 2, f"{name}({x[worst]!r}) is off by {error[worst]:.2f} ulp"


@each
def test_edges(name, dtype):
    x, expected = np.array([*EDGES[name], (NAN, NAN)], dtype).T.copy()
    actual = evaluate(name, x)
    np.testing.assert_array_equal(actual, expected)
    signed = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual)[signed], np.signbit(expected)[signed])


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp_range(dtype):
    """The last finite result, the first infinite one, and the smallest denormal."""
    largest = np.log(np.finfo(dtype).max.astype(np.longdouble)).astype(dtype)
    smallest = np.log(np.finfo(dtype).smallest_subnormal.astype(np.longdouble)).astype(dtype)
    x = np.array([largest * (1 - 1e-6), largest * (1 + 1e-6), smallest], dtype)
    below, above, tiny = evaluate("exp", x)
    assert np.isfinite(below)
    assert above == INF
    assert tiny == np.finfo(dtype).smallest_subnormal


@each
def test_vectorised(name, dtype):
    loop = compiled(name, dtype)
    (ir,) = loop.inspect_llvm().values()
    (asm,) = loop.inspect_asm().values()
    kind = "float" if dtype == "float32" else "double"
    assert re.search(rf"fmul .*<\d+ x {kind}>", ir)
    assert "fpext" not in ir
    assert not re.findall(r"\b_*(?:exp2?|expm1|log|log1p|tanh|erf)f?\b", asm)


@each
def test_runs_as_python(name, dtype):
    """The source is also the slow, obvious twin of what is compiled from it."""
    x = np.linspace(0.1, 3, 20, dtype=dtype)
    function = getattr(functions, f"{name}_{dtype}")
    with np.errstate(over="ignore"):
        actual = [function(value) for value in x]
    assert {type(value) for value in actual} == {np.dtype(dtype).type}
    np.testing.assert_allclose(actual, evaluate(name, x), rtol=4 * np.finfo(dtype).eps)


@each
def test_names(name, dtype):
    """A pasted function finds every name it uses in the generated module."""
    allowed = {"abs", "math", "float32", "float64", "int32", "int64"}
    attributes = {"view", "inf", "nan", "copysign"}
    code = getattr(functions, f"{name}_{dtype}").__code__
    assert set(code.co_names) <= allowed | attributes | set(vars(functions))
    assert not code.co_freevars
