"""The same numbers on the CPU and on the device, and their comparison."""

import numpy as np

import numgrad
from numgrad import nn


def pair(*shape, seed=0, requires_grad=False):
    """The same numbers on the CPU and on the device."""
    a = np.random.default_rng(seed).standard_normal(shape).astype("f")
    return (
        numgrad.tensor(a, requires_grad=requires_grad),
        numgrad.tensor(a, device="cuda", requires_grad=requires_grad),
    )


def close(got, wanted):
    assert got.device == "cuda:0" and wanted.device == "cpu"
    np.testing.assert_allclose(
        got.detach().cpu().numpy(), wanted.detach().numpy(), rtol=2e-6, atol=2e-6
    )


def network():
    numgrad.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 1))
