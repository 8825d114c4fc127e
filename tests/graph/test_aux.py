"""Results that only the backward pass wants: made when recording, and never otherwise."""

import gc

import numpy as np
import pytest

import numgrad
from numgrad.graph.op import OPS
from numgrad.graph.storage import allocate
from numgrad.ops.kernel_calls import compute
from numgrad.ops.primitive import primitive

made = []


def masked(g, mask, factor):
    return g * mask.to(g.dtype) * factor


@primitive(infer=lambda x: (x.shape, x.dtype), aux=("mask", "factor"), dx=masked, register=False)
def positive(out, x, *, record):
    """``2 * max(x, 0)``, whose gradient needs one byte an element and a number."""
    compute("twice the positive part", lambda x: (x > 0) * x * 2, out, x)
    if not record:
        return None
    made.append(x.shape)
    mask, storage = allocate(x.shape, np.dtype(bool))
    np.greater(x, 0, out=mask)
    return {"mask": (mask, storage), "factor": 2.0}


@pytest.mark.parametrize("n", [7, 5000])  # below and above the pool's smallest block
def test_aux_is_made_only_when_recording(n):
    x = numgrad.tensor(np.linspace(-1, 1, n), requires_grad=True)
    made.clear()
    for context in (numgrad.no_grad, numgrad.inference_mode):
        with context(), numgrad.memory.track() as m:
            positive(x)
        assert not made and (m.nodes, m.saved_bytes) == (0, 0)
    volatile = numgrad.Variable(x.data, volatile=True)
    with numgrad.memory.track() as m:
        positive(volatile)
    assert not made and m.saved_bytes == 0
    with numgrad.memory.track() as m:
        out = positive(x)
    assert made == [(n,)]
    assert (m.nodes, m.saved_tensors, m.saved_bytes) == (1, 1, n)
    out.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), 2.0 * (x.detach().numpy() > 0))


def test_aux_is_in_the_ledger_and_goes_with_the_node():
    x = numgrad.tensor(np.linspace(-1, 1, 6000), requires_grad=True)
    gc.disable()
    try:
        before = numgrad.memory.stats()["by_category"]["saved"]["live_bytes"]
        out = positive(x)
        during = numgrad.memory.stats()["by_category"]["saved"]["live_bytes"]
        del out
        after = numgrad.memory.stats()["by_category"]["saved"]["live_bytes"]
    finally:
        gc.enable()
    assert (during - before, after - before) == (6000, 0)


def test_aux_is_not_kept_where_no_gradient_is_wanted():
    x = numgrad.ones(3)
    with numgrad.memory.track() as m:
        positive(x)
    assert m.nodes == 0 and m.saved_tensors == 0


def test_what_may_wait_says_so():
    for name in ("add", "tanh", "where", "product", "affine", "convolution"):
        assert OPS[name].deferrable, name
    for name in ("sum_over", "dropout_at", "take_rows", "concatenate", "view_as"):
        assert not OPS[name].deferrable, name
