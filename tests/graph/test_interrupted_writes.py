"""Writes that an exception ends: what was made of the old values is not taken for the new ones'.

A signal that comes while a kernel runs is raised behind it, when memory has changed already.
"""

import numpy as np
import pytest

import numgrad
from numgrad import nn, optim
from numgrad.function import Function
from numgrad.kernels import launch
from numgrad.ops import derived
from numgrad.optim import launching


class Stop(BaseException):
    """As KeyboardInterrupt."""


@pytest.fixture
def behind(monkeypatch):
    """``behind(k, then)``: call ``then()`` behind the kernel launch number k from now on."""
    count = 0

    def wrap(real, k, then):
        def run(*args, **options):
            nonlocal count
            real(*args, **options)
            count += 1
            if count == k:
                then()

        return run

    places = [(launch, "elementwise"), (launch, "ranged"), (launching, "ranged")]
    reals = [getattr(*place) for place in places]

    def start(k, then):
        nonlocal count
        count = 0
        for (module, name), real in zip(places, reals, strict=True):
            monkeypatch.setattr(module, name, wrap(real, k, then))

    return start


def stop():
    raise Stop


def stepping(make):
    def write(x):
        x.requires_grad_().grad = numgrad.ones(*x.shape)
        make([x]).step()

    return write


def loading(x):
    layer = nn.Module()
    layer.register_buffer("x", x)
    layer.load_state_dict({"x": numgrad.zeros(*x.shape)})


def clipping(x):
    p = nn.Parameter(numgrad.ones(*x.shape))
    p.grad = x
    nn.utils.clip_grad_norm_([p], 0.1)


def growing(x):
    p = nn.Parameter(numgrad.ones(*x.shape))
    p.grad = x
    p.sum().backward()


def statistics(x, norm):
    norm(numgrad.randn(3, len(x), 5), x, numgrad.ones(len(x)))


WRITES = {
    "multiplied": lambda x: x.mul_(2),
    "with a scalar of the other dtype": lambda x: x.add_(numgrad.tensor(1)),
    "by an operator": lambda x: x.__iadd__(x * 3),
    "filled": lambda x: x.fill_(9),
    "zeroed": lambda x: x.zero_(),
    "copied to": lambda x: x.copy_(numgrad.zeros(6)),
    "converted": lambda x: x.copy_(numgrad.zeros(6).double()),
    "clamped": lambda x: x.clamp_(2, 3),
    "compared": lambda x: x.gt_(3),
    "masked": lambda x: x.masked_fill_(x > 2, 0),
    "given by a slice": lambda x: x.__setitem__(slice(1, 3), 9.0),
    "given by an index": lambda x: x.__setitem__(numgrad.tensor([0, 4]), 9.0),
    "given by a mask": lambda x: x.__setitem__(x > 2, 9.0),
    "of a view": lambda x: x[::2].mul_(2),
    "out": lambda x: numgrad.add(x, x, out=x),
    "uniform": lambda x: x.uniform_(),
    "normal": lambda x: x.normal_(),
    "bernoulli": lambda x: x.bernoulli_(),
    "integers": lambda x: x.random_(1, 5),
    "dropout": lambda x: nn.functional.dropout(x, 0.9, inplace=True),
    "relu": lambda x: nn.functional.hardtanh(x, 0, 1, inplace=True),
    "initialised": lambda x: nn.init.constant_(x, 8),
    "state dict": loading,
    "clipped": clipping,
    "gradient": growing,
    "batch-norm": lambda x: statistics(
        x, lambda *args: nn.functional.batch_norm(*args, training=True)
    ),
    "instance-norm": lambda x: statistics(x, nn.functional.instance_norm),
    "SGD": stepping(lambda p: optim.SGD(p, lr=1.0)),
    "SGD with momentum": stepping(lambda p: optim.SGD(p, lr=1.0, momentum=0.9)),
    "Adam": stepping(lambda p: optim.Adam(p, lr=1.0)),
    "RMSprop": stepping(lambda p: optim.RMSprop(p, lr=1.0)),
}


@pytest.mark.parametrize("way", WRITES)
def test_a_write_that_is_interrupted_is_counted(way, behind):
    """Behind whichever kernel it is interrupted."""
    seen = False
    for k in range(1, 50):
        x = numgrad.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        group, writes, version = x.group, x.storage.writes, x._version
        behind(k, stop)
        try:
            with numgrad.no_grad() if way != "gradient" else numgrad.enable_grad():
                WRITES[way](x)
        except Stop:
            if x.array.tolist() != [1, 2, 3, 4, 5, 6]:
                seen = True
                assert group.version > version and x.storage.writes >= writes + 2
        else:
            break
    assert seen and x.group is group
    assert group.version > version and x.storage.writes >= writes + 2


@pytest.mark.parametrize("way", WRITES)
def test_a_write_is_counted_before_and_after(way, behind):
    """What another thread makes of half-written memory is of neither old nor new values."""
    counts = []
    for k in range(1, 50):
        x = numgrad.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        before = x.storage.writes, x._version
        during = []
        behind(k, lambda x=x, during=during: during.append((x.storage.writes, x._version)))
        with numgrad.no_grad() if way != "gradient" else numgrad.enable_grad():
            WRITES[way](x)
        if not during:
            break
        writes, version = during[0]
        counts.append(before[0] < writes < x.storage.writes and before[1] < version)
    assert any(counts)


def test_a_function_that_is_interrupted():
    class Doubled(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            x.array[...] *= 2
            raise Stop

    x = numgrad.ones(3)
    with pytest.raises(Stop):
        Doubled.apply(x)
    assert x._version == 1 and x.storage.writes > 0


def test_a_convolution_after_an_interrupted_step(behind):
    """Its kept transform is of the old weight; and backward tells that a saved value changed."""
    weight = nn.Parameter(numgrad.randn(16, 16, 3, 3))
    x = numgrad.randn(1, 16, 8, 8)
    with numgrad.no_grad():
        nn.functional.conv2d(x, weight)
        nn.functional.conv2d(x, weight)
    loss = (weight * weight).sum()
    weight.grad = numgrad.ones(16, 16, 3, 3)
    behind(1, stop)
    with pytest.raises(Stop):
        optim.SGD([weight], lr=1.0).step()
    with numgrad.no_grad():
        found = nn.functional.conv2d(x, weight).numpy()
        derived.forget()
        np.testing.assert_array_equal(found, nn.functional.conv2d(x, weight).numpy())
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        loss.backward()


def test_a_refused_batch_norm_has_written_nothing():
    bn = nn.BatchNorm2d(3).eval()
    x = numgrad.randn(4, 3, 2, 2).requires_grad_()
    y = bn(x)
    before = bn.running_mean._version, bn.running_mean.storage.writes
    bn.train()
    for wrong in (
        numgrad.randn(1, 3, 1, 1),
        numgrad.randn(2, 4, 2, 2),
        numgrad.ones(2, 3, 2, 2).long(),
    ):
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            bn(wrong)
    assert (bn.running_mean._version, bn.running_mean.storage.writes) == before
    y.sum().backward()
