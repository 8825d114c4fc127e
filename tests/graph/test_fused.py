"""An entry's ``fused`` gradients of a plain backward pass, and its rules beside them."""

import numpy as np
import pytest

import numgrad
from numgrad.autograd import grad
from numgrad.graph.storage import allocate
from numgrad.graph.value import make
from numgrad.ops.primitive import primitive
from tests.checks import check_gradients

calls = []


def both(g, x, y, norm, needs):
    calls.append((tuple(needs), x is None, y is None, norm is None))
    g, *rest = (None if v is None else v.array for v in (g, x, y, norm))
    x, y, norm = rest
    found = [None, None]
    if needs[0]:
        found[0] = g * y / norm - (g * x * y).sum() * x / norm**3
    if needs[1]:
        found[1] = g * x / norm
    return [None if a is None else owned(a) for a in found]


def owned(values):
    array, storage = allocate(values.shape, values.dtype)
    array[...] = values
    return make(array, storage)


@primitive(
    infer=lambda x, y: (x.shape, x.dtype),
    aux=("norm",),
    dx=lambda g, x, y, norm: g * y / norm - (g * x * y).sum() * x / norm**3,
    dy=lambda g, x, norm: g * x / norm,
    fused=both,
    derived={"norm": lambda x: (x * x).sum().sqrt()},
    register=False,
)
def over_norm(out, x, y, *, record):
    """``x * y / |x|``."""
    norm, storage = allocate((), np.dtype(x.dtype))
    norm[...] = np.sqrt((x * x).sum())
    out[...] = x * y / norm
    return {"norm": (norm, storage)} if record else None


def test_fused_runs_in_a_plain_pass_alone():
    """Once for all gradients, for the wanted ones only; under create_graph the rules run."""
    rng = np.random.default_rng(1)
    arrays = rng.standard_normal(5), rng.standard_normal(5)
    calls.clear()
    for needs, missing in (((True, True), (False, False)), ((True, False), (False, False)),
                           ((False, True), (False, True))):  # fmt: skip
        x, y = (numgrad.tensor(a, requires_grad=n) for a, n in zip(arrays, needs, strict=True))
        out = over_norm(x, y)
        out.sum().backward()
        assert calls.pop() == (needs, *missing, False) and not calls
        assert (x.grad is not None, y.grad is not None) == needs
    x, y = (numgrad.tensor(a, requires_grad=True) for a in arrays)
    found = grad(over_norm(x, y).sum(), [x, y], create_graph=True)
    assert not calls and all(g.requires_grad for g in found)
    check_gradients(over_norm, arrays, "over_norm", float32=False)


def test_derived_is_a_function_of_the_operands():
    """A norm taken for a constant would give a second derivative of 0 for dy with respect to x."""
    x = numgrad.tensor([3.0, 4.0], dtype=numgrad.float64, requires_grad=True)
    y = numgrad.ones(2, dtype=numgrad.float64, requires_grad=True)
    (dy,) = grad(over_norm(x, y).sum(), y, create_graph=True)
    (second,) = grad(dy[0], x)
    np.testing.assert_allclose(second.numpy(), [16 / 125, -12 / 125], rtol=1e-12)


def declared(fused=None, derived=None, **rules):
    rules = {"dx": lambda g, x, norm: g, **rules}

    @primitive(infer=None, aux=("norm",), fused=fused, derived=derived, register=False, **rules)
    def op(x):
        """Nothing."""

    return op


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"fused": lambda g, z, needs: ()}, r"fused asks for \['z'\]; it may ask for g, needs"),
        ({"derived": {"norm": lambda g: g}}, r"derived\['norm'\] asks for \['g'\]"),
        (
            {"derived": {"norm": lambda x: x}, "dx": lambda g, norm: g},
            r"dx asks for norm and not for \['x'\], which norm is derived from",
        ),
    ],
)
def test_bad_declarations(arguments, text):
    with pytest.raises(TypeError, match=text):
        declared(**arguments)
