"""Pooling and interpolation kernels: any split of their items gives the same bits."""

import numpy as np
import pytest
from numba import njit

import numgrad
import numgrad.nn.functional as F
from numgrad.kernels import launch, native

CALLS = {
    "max": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max with places": lambda x: F.max_pool2d(x, 3, 1, 1, return_indices=True)[1],
    "adaptive max": lambda x: F.adaptive_max_pool2d(x, (4, 5)),
    "avg": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "adaptive avg": lambda x: F.adaptive_avg_pool2d(x, (4, 5)),
    "nearest": lambda x: F.interpolate(x, (20, 13)),
}


@njit
def call(address, args, lo, hi):
    native.call_ranged(address, args, lo, hi, 0)


def in_pieces(kernel, args, items, **options):
    """Run a kernel item by item, the last first, instead of all items at once."""
    slots = np.array(args, np.int64)
    for item in reversed(range(items)):
        call(kernel.address, slots.ctypes.data, item, item + 1)


@pytest.mark.parametrize("name", CALLS)
def test_items_are_independent(name, monkeypatch):
    ran = []

    def counted(kernel, args, items, **options):
        ran.append(kernel)
        in_pieces(kernel, args, items, **options)

    values = np.random.default_rng(0).standard_normal((2, 3, 11, 10)).astype("float32")
    values[0, 0, :4] = np.nan

    def results():
        x = numgrad.tensor(values, requires_grad=True)
        out = CALLS[name](x)
        found = [out.detach().numpy()]
        if out.requires_grad:
            g = numgrad.tensor(np.cos(np.arange(out.numel())).reshape(out.shape), dtype="float32")
            found.append(numgrad.autograd.grad(out, x, g)[0].numpy())
        return found

    whole = results()
    monkeypatch.setattr(launch, "ranged", counted)
    for a, b in zip(whole, results(), strict=True):
        assert a.tobytes() == b.tobytes()
    assert len(ran) >= len(whole)  # else the same was run twice
