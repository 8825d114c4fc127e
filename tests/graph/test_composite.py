"""Functions made of several ops record nothing when one operand is volatile."""

import numpy as np
import pytest

import numgrad
from numgrad.nn import functional as F


def parameter(*shape):
    return numgrad.tensor(np.ones(shape, np.float32), requires_grad=True)


def volatile(*shape):
    return numgrad.Variable(numgrad.ones(*shape), volatile=True)


CALLS = {
    "matmul by a parameter vector": lambda: (numgrad.matmul, volatile(2, 3), parameter(3)),
    "linear with a bias of one": lambda: (F.linear, volatile(2, 3), parameter(4, 3), parameter(1)),
    "linear on three axes": lambda: (F.linear, volatile(2, 2, 3), parameter(4, 3), parameter(4)),
    "addmm with beta": lambda: (
        lambda m, a, b: numgrad.addmm(m, a, b, beta=2),
        parameter(2, 4),
        volatile(2, 3),
        parameter(3, 4),
    ),
    "nll_loss with weights": lambda: (
        numgrad.nll_loss,
        volatile(2, 3),
        numgrad.tensor([0, 2]),
        parameter(3),
    ),
    "cross_entropy": lambda: (numgrad.cross_entropy, volatile(2, 3), numgrad.tensor([0, 2])),
    "mse_loss": lambda: (numgrad.mse_loss, parameter(2, 3), volatile(2, 3)),
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_recorded(name):
    function, *args = CALLS[name]()
    with numgrad.memory.track() as m:
        out = function(*args)
    assert (m.nodes, m.saved_tensors) == (0, 0)
    assert out.volatile and not out.requires_grad and out.grad_fn is None
    assert numgrad.is_grad_enabled()


def test_masks_are_of_zero_and_one():
    x = numgrad.tensor([5, 1], dtype="uint8")
    with pytest.raises(TypeError, match="expected masks of 0 and 1"):
        x & x
    mask = numgrad.tensor([0, 1], dtype="uint8")
    assert (mask | ~mask).tolist() == [1, 1]
