"""Steps that an exception ends: the state is that of before the step, or of behind it."""

import numpy as np
import pytest

from numgrad.kernels import launch
from numgrad.ops.creation import empty, ones, tensor, zeros
from numgrad.optim import SGD, Adam, AdamW, RMSprop, launching
from numgrad.variable import Parameter

KINDS = [
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "momentum": 0.9}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (Adam, {"lr": 0.1, "amsgrad": True}),
    (AdamW, {"lr": 0.1}),
    (RMSprop, {"lr": 0.1, "momentum": 0.9, "centered": True}),
]


class Stop(BaseException):
    """As KeyboardInterrupt."""


def made(kind, options):
    rng = np.random.default_rng(0)
    params = [Parameter(tensor(rng.standard_normal(n).astype("float32"))) for n in (3000, 5)]
    params.append(Parameter(tensor(rng.standard_normal(7))))  # of float64: a launch of its own
    for p in params:
        p.grad = ones(*p.shape).to(p.dtype)
    return params, kind(params, **options)


def values(params, optimizer):
    found = []
    for p in params:
        found.append(p.array.tolist())
        for name, value in optimizer.state[p].items():
            found.append((name, value if isinstance(value, int) else value.array.tolist()))
    return found


@pytest.fixture
def launches(monkeypatch):
    """``launches(k, before)``: launch number k raises Stop instead of running, or behind it."""
    real = launch.ranged

    def start(number, before):
        count = 0

        def run(*args, **options):
            nonlocal count
            count += 1
            if count == number and before:
                raise Stop
            real(*args, **options)
            if count == number:
                raise Stop

        monkeypatch.setattr(launching, "ranged", run)

    yield start
    monkeypatch.setattr(launching, "ranged", real)


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_each_parameter_has_made_its_step_or_not(kind, options, before, steps, launches):
    params, optimizer = made(kind, options)
    others, whole = made(kind, options)
    for number in (1, 2):
        for each in (optimizer, whole):
            for _ in range(steps):
                each.step()
        old = values(others, whole)
        whole.step()
        new = values(others, whole)
        launches(number, before)
        with pytest.raises(Stop):
            optimizer.step()
        launches(-1, before)
        got = values(params, optimizer)
        done = number - 1 if before else number  # launches that ran: the one of float32 first
        split = len(old) if done == 2 else len(old) * done * 2 // 3
        if steps or number == 2:  # else there is less state in the old values than in the new
            assert got == new[:split] + old[split:]
        else:
            kept = [len(optimizer.state[p]) for p in params]
            expected = [len(whole.state[p]) for p in others]
            assert kept == [n * (done == 1 and i < 2) for i, n in enumerate(expected)]
        for p in params[: (0, 2, 3)[done]]:  # these are a step ahead: the next one is the others'
            p.grad = None
        optimizer.step()
        assert values(params, optimizer) == new
        for p in params:
            p.grad = ones(*p.shape).to(p.dtype)


def test_no_buffer_is_left_that_nobody_wrote():
    """An option no float holds; what the pool hands out next is full of nan."""
    p = Parameter(zeros(3000))
    p.grad = ones(3000)
    optimizer = SGD([p], lr=10**400, momentum=0.9)
    empty(3000).fill_(float("nan"))
    with pytest.raises(OverflowError):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.1
    optimizer.step()
    np.testing.assert_array_equal(p.detach().numpy(), np.float32(-0.1))


@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_numbers_that_cannot_be_computed(kind):
    """The second group's parameter has made no step then, and neither has one of the same launch
    before the one that fails."""
    params, optimizer = made(kind, {"lr": 0.1})
    optimizer.step()
    optimizer.param_groups[0]["betas"] = (1.0, 0.9)
    before = values(params, optimizer)
    with pytest.raises(ZeroDivisionError):
        optimizer.step()
    assert values(params, optimizer) == before


@pytest.mark.parametrize("kind", [Adam, RMSprop])
def test_one_by_one_the_step_is_counted_behind_it(kind):
    class Own(kind):
        def update(self, param, grad, state, group):
            super().update(param, grad, state, group)

    p = Parameter(zeros(4))
    p.grad = ones(4)
    optimizer = Own([p], lr=0.1)
    optimizer.param_groups[0]["lr"] = "much"
    with pytest.raises(TypeError):
        optimizer.step()
    assert "step" not in optimizer.state[p]
    optimizer.param_groups[0]["lr"] = 0.1
    optimizer.step()
    assert optimizer.state[p]["step"] == 1
