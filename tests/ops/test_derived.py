"""Derived weights: kept as long as nobody can have changed what they come from."""

import ctypes
import gc

import numpy as np
import pytest

import numgrad
from numgrad import memory, nn
from numgrad.graph import storage
from numgrad.kernels import counters
from numgrad.ops import derived


@pytest.fixture(autouse=True)
def _nothing_kept():
    derived.forget()
    yield
    derived.forget()


def kept_bytes():
    return memory.stats()["by_category"]["derived"]["live_bytes"]


def layer(requires_grad=True):
    conv = nn.Conv2d(16, 16, 3, padding=1)
    for p in conv.parameters():
        p.requires_grad_(requires_grad)
    return conv, numgrad.randn(1, 16, 8, 8)


def unrecorded(conv, x):
    with numgrad.no_grad():
        return conv(x)


def launches(call):
    before = counters.launches.value
    call()
    return counters.launches.value - before


def test_kept_and_counted():
    conv, x = layer()
    first = launches(lambda: unrecorded(conv, x))
    assert kept_bytes() >= 16 * 16 * 36 * 4
    assert launches(lambda: unrecorded(conv, x)) == first - 1  # the weights' transform
    conv = None
    gc.collect()
    assert kept_bytes() == 0


WRITES = {
    "in place": lambda w: w.mul_(2),
    "data": lambda w: w.data.add_(1),
    "view": lambda w: w[0].zero_(),
    "copy": lambda w: w.copy_(numgrad.ones(16, 16, 3, 3)),
    "NumPy, gone since": lambda w: w.detach().numpy().fill(3),
    "assignment": lambda w: w.__setitem__(0, 1.0),
    "state dict": None,
    "optimizer": None,
}


@pytest.mark.parametrize("way", WRITES)
def test_every_write_is_noticed(way):
    conv, x = layer()
    unrecorded(conv, x)
    if way == "state dict":
        other = {k: v * 2 for k, v in conv.state_dict().items()}
        conv.load_state_dict(other)
    elif way == "optimizer":
        conv(x).sum().backward()
        numgrad.optim.SGD(conv.parameters(), lr=0.5).step()
    else:
        with numgrad.no_grad():
            WRITES[way](conv.weight)
    found = unrecorded(conv, x).numpy().copy()
    derived.forget()
    np.testing.assert_array_equal(found, unrecorded(conv, x).numpy())
    with numgrad.backends.cpu.flags(allow_winograd=False):
        np.testing.assert_allclose(found, unrecorded(conv, x).numpy(), rtol=1e-4, atol=1e-4)


def test_nothing_is_kept_while_an_alias_lives():
    conv, x = layer()
    unrecorded(conv, x)
    alias = conv.weight.detach().numpy()
    before = unrecorded(conv, x).numpy().copy()
    alias *= 2
    np.testing.assert_allclose(
        unrecorded(conv, x).numpy() - conv.bias.detach().numpy()[:, None, None],
        2 * (before - conv.bias.detach().numpy()[:, None, None]),
        rtol=1e-5, atol=1e-6,
    )  # fmt: skip
    assert kept_bytes() == 0
    del alias
    unrecorded(conv, x)
    assert kept_bytes() > 0


def test_memory_from_outside_is_never_trusted():
    w = np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype(np.float32)
    x, weight = numgrad.randn(1, 16, 8, 8), numgrad.from_numpy(w)
    nn.functional.conv2d(x, weight)
    assert kept_bytes() == 0
    w[:] = 0
    assert not nn.functional.conv2d(x, weight).numpy().any()


def test_training_keeps_nothing():
    conv, x = layer()
    optimizer = numgrad.optim.SGD(conv.parameters(), lr=0.1)
    x.requires_grad_()
    for _ in range(3):
        optimizer.zero_grad()
        conv(x).sum().backward()
        optimizer.step()
        assert kept_bytes() == 0


@pytest.mark.parametrize("outputs", [16, 24])
def test_a_frozen_weight_is_kept_from_its_second_use_on(outputs):
    """Also in the gradient of the input, whose transform is another one; the values stay."""
    weight = numgrad.randn(outputs, 16, 3, 3)
    x = numgrad.randn(1, 16, 8, 8).requires_grad_()
    sizes, results = [], []
    for enabled in (True, True, True, False):
        with numgrad.backends.cpu.flags(allow_winograd=enabled):
            x.grad = None
            out = nn.functional.conv2d(x, weight, padding=1)
            out.pow(2).sum().backward()
        results.append((out.detach().numpy(), x.grad.numpy()))
        sizes.append(kept_bytes())
    assert sizes[0] == 0
    assert sizes[1] == sizes[2]
    ((_, kinds),) = derived._kept.values()
    assert len([1 for kind in kinds if kind[0] == "Winograd"]) == 2
    for out, dx in results[:3]:
        np.testing.assert_allclose(out, results[3][0], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(dx, results[3][1], rtol=1e-3, atol=1e-2)


def test_what_was_made_of_old_values_goes_with_the_first_use_of_new_ones():
    """Also where the new use wants another kind."""
    conv, x = layer()
    unrecorded(conv, x)
    assert kept_bytes() > 0
    with numgrad.no_grad():
        conv.weight.mul_(2)
    nn.functional.conv_transpose2d(x, conv.weight.detach(), padding=1)
    assert kept_bytes() == 0


def test_storage_of():
    x = numgrad.randn(64, 64)
    assert derived.storage_of(x[1:].t().array) is x.storage
    assert derived.storage_of(np.zeros((64, 64))) is None
    assert derived.storage_of(numgrad.randn(2).array) is None  # too small for the pool
    assert storage.CATEGORIES[storage.DERIVED] == "derived"


# -------------------------------------------------------------------- views that move, addresses


def test_what_is_kept_of_views_that_move_is_bounded():
    """Views of one memory that nobody writes to, each used once; the last ones are kept."""
    memory = numgrad.randn(400, 32, 3, 3)
    x = numgrad.randn(1, 32, 8, 8)
    with numgrad.no_grad():
        for i in range(380):
            nn.functional.conv2d(x, memory[i : i + 16], padding=1)
            assert kept_bytes() <= derived.BOUND * memory.storage.nbytes
        assert kept_bytes() > derived.BOUND * memory.storage.nbytes / 2
        made = launches(lambda: nn.functional.conv2d(x, memory[:16], padding=1))
        again = launches(lambda: nn.functional.conv2d(x, memory[379:395], padding=1))
    assert made > again


def test_marks_of_what_is_not_kept_are_bounded():
    weight = numgrad.randn(64, 64)
    keep = derived.Derived(weight.array, lasting=False)
    for i in range(derived.MARKS + 50):
        keep(("mark", i), 8, lambda array: array.fill(0))
    ((_, kinds),) = derived._kept.values()
    assert len(kinds) == derived.MARKS and ("mark", 0) not in kinds


def test_one_result_is_kept_however_large():
    weight = numgrad.randn(64, 64)
    keep = derived.Derived(weight.array, lasting=True)
    for kind in range(3):
        first = keep(kind, derived.ALWAYS, lambda array: array.fill(0))
        assert keep(kind, derived.ALWAYS, None) is first
        assert kept_bytes() == first.nbytes


def test_nothing_is_kept_of_memory_whose_address_was_told():
    weight, x = numgrad.ones(32, 32, 3, 3), numgrad.ones(1, 32, 8, 8)
    with numgrad.no_grad():
        nn.functional.conv2d(x, weight)
        address = weight[1:].data_ptr()
        for value in (100.0, 200.0):  # nobody says when the address is used for the last time
            ctypes.c_float.from_address(address).value = value
            found = nn.functional.conv2d(x, weight)
            assert kept_bytes() == 0
            np.testing.assert_array_equal(
                found.numpy(), nn.functional.conv2d(x, weight.clone()).numpy()
            )
            derived.forget()
