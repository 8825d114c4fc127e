"""A user's own op: one scalar function and its derivative."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import numgrad
import numgrad.kernels.scalar as s
from tests.checks import check_gradients


@numgrad.elementwise(dx=lambda g, x: g * (s.sigmoid(x) + x * s.sigmoid(x) * (1 - s.sigmoid(x))))
def swish(x):
    """``x * sigmoid(x)``."""
    return x * s.sigmoid(x)


def test_works_on_every_layout_and_dtype():
    x = np.linspace(-4, 4, 24).reshape(4, 6)
    for dtype, tolerance in ((np.float32, 1e-6), (np.float64, 1e-15)):
        for view in (x, x.T, x[::2, 1::2], x[:0]):
            array = view.astype(dtype)
            out = swish(numgrad.tensor(array))
            want = view / (1 + np.exp(-view))
            assert out.dtype == dtype
            np.testing.assert_allclose(out.numpy(), want, rtol=tolerance, atol=tolerance)


def test_has_two_derivatives():
    check_gradients(swish, [np.linspace(-3, 3, 7)], "swish")


def test_is_an_op_like_any_other():
    x = numgrad.ones(3, requires_grad=True)
    with numgrad.memory.track() as m:
        out = swish(x)
    assert (m.nodes, m.saved_tensors, m.saved_bytes) == (1, 1, 12)
    volatile = numgrad.Variable(numgrad.ones(3), volatile=True)
    with numgrad.memory.track() as m:
        swish(volatile)
    assert (m.nodes, m.saved_tensors, m.launches) == (0, 0, 1)
    assert out.grad_fn.name == "SwishBackward"


def test_parameter_with_a_default_is_a_number_that_does_not_compile():
    @numgrad.elementwise(dx=lambda g, x, slope: s.where(x > 0, g, g * slope))
    def leaky(x, slope=0.1):
        return s.where(x > 0, x, slope * x)

    x = numgrad.tensor([-1.0, 2.0], requires_grad=True)
    leaky(x).sum().backward()
    compiled = numgrad.kernels.store.stats.compiled
    for slope in (0.2, 0.3, 0.4):
        x.grad = None
        leaky(x, slope).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), [slope, 1], rtol=1e-6)
    assert numgrad.kernels.store.stats.compiled == compiled


def test_is_cached(tmp_path):
    script = tmp_path / "activation.py"
    script.write_text(
        textwrap.dedent(
            """
            import numgrad, numgrad.kernels.scalar as s
            @numgrad.elementwise(dx=lambda g, x: g * 3 * x * x)
            def cube(x):
                return x * x * x
            x = numgrad.ones(4, requires_grad=True)
            cube(x).sum().backward()
            stats = numgrad.kernels.store.stats
            print(stats.compiled, stats.hits, x.grad.tolist())
            """
        )
    )
    env = {**os.environ, "NUMGRAD_CACHE": str(tmp_path / "kernels")}
    runs = [
        subprocess.run(
            [sys.executable, str(script)], env=env, capture_output=True, text=True, check=True
        ).stdout.split(maxsplit=2)
        for _ in range(2)
    ]
    assert int(runs[0][0]) > 0
    assert (int(runs[1][0]), int(runs[1][1])) == (0, int(runs[0][0]))
    assert runs[0][2] == runs[1][2] == "[3.0, 3.0, 3.0, 3.0]\n"


WRONG = {
    "branch": (
        lambda: numgrad.elementwise(dx=lambda g: g)(lambda x: x if x > 0 else 0),
        r"`\(x > 0\)` is symbolic.*use where\(condition, a, b\)",
    ),
    "misspelt": (
        lambda: numgrad.elementwise(dx=lambda g, outt: g * outt)(lambda x: s.exp(x)),
        r"dx asks for \['outt'\]; it may ask for g, x, out",
    ),
    "missing": (
        lambda: numgrad.elementwise()(lambda x: x * 2),
        r"expected a derivative for every operand, got none for \['dx'\]; write dx=None",
    ),
    "unknown operand": (
        lambda: numgrad.elementwise(dx=lambda g: g, dz=None)(lambda x: x),
        r"expected derivatives named \['dx'\], got \['dz'\]",
    ),
    "numpy function": (
        lambda: numgrad.elementwise(dx=lambda g: g)(lambda x: np.exp(x)),
        r"use numgrad.kernels.scalar.exp instead of numpy.exp",
    ),
    "tensor method": (
        lambda: numgrad.elementwise(dx=lambda g: g)(lambda x: x.exp()),
        r"use numgrad.kernels.scalar.exp",
    ),
    "math function": (
        lambda: numgrad.elementwise(dx=lambda g: g)(lambda x: __import__("math").exp(x)),
        r"`x` is symbolic: use the functions of numgrad.kernels.scalar",
    ),
    "no expression": (
        lambda: numgrad.elementwise(dx=lambda g: g)(lambda x: None),
        r"expected a scalar expression for the function's result, got None",
    ),
    "no keywords": (
        lambda: numgrad.elementwise(lambda x: x),
        r"write @elementwise\(dx=",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_errors_of_a_wrong_one_teach(kind):
    declare, text = WRONG[kind]
    with pytest.raises((TypeError, AttributeError), match=text):
        declare()


def test_division_of_integers_is_declared():
    @numgrad.elementwise(dx=lambda g: g / 2)
    def half(x):
        return x / 2

    with pytest.raises(TypeError, match="declare the op with dtype='floating'"):
        half(numgrad.tensor([1, 2]))
    assert half(numgrad.tensor([1.0, 2.0])).tolist() == [0.5, 1.0]


def test_numpy_numbers_are_numbers():
    @numgrad.elementwise(dx=lambda g: g * np.float64(3))
    def triple(x):
        return np.float32(3) * x + np.float64(0)

    assert triple(numgrad.tensor([1.0, 2.0])).tolist() == [3.0, 6.0]
