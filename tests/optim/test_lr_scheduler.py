"""Schedules of learning rates: their rates, state, warnings and errors."""

import copy
import math
import pickle

import pytest

import numgrad
from numgrad.ops.creation import ones, tensor
from numgrad.optim import SGD
from numgrad.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LRScheduler,
    MultiStepLR,
    ReduceLROnPlateau,
    StepLR,
)
from numgrad.variable import Parameter


def optimizer(*rates):
    groups = [{"params": [Parameter(ones(2))], "lr": rate} for rate in rates or (0.4,)]
    made = SGD(groups, lr=1.0)
    made.step()
    return made


def rates(schedule, steps):
    """The first group's rates at epochs 0, 1, …, read from the optimizer."""
    found = []
    for _ in range(steps):
        found.append(schedule.optimizer.param_groups[0]["lr"])
        assert schedule.get_last_lr()[0] == found[-1]
        schedule.optimizer.step()
        schedule.step()
    return found


SCHEDULES = {  # name: (make, the rate at an epoch for a first rate of 1)
    "step": (lambda o: StepLR(o, 3, 0.5), lambda e: 0.5 ** (e // 3)),
    "milestones": (
        lambda o: MultiStepLR(o, [5, 2, 5], 0.5),
        lambda e: 0.5 ** ((e >= 2) + 2 * (e >= 5)),
    ),
    "exponential": (lambda o: ExponentialLR(o, 0.9), lambda e: 0.9**e),
    "lambda": (lambda o: LambdaLR(o, lambda e: 1 / (1 + e)), lambda e: 1 / (1 + e)),
    "cosine": (lambda o: CosineAnnealingLR(o, 4), lambda e: (1 + math.cos(math.pi * e / 4)) / 2),
}
each_schedule = pytest.mark.parametrize("name", SCHEDULES)


@each_schedule
def test_rates(name):
    make, rate = SCHEDULES[name]
    schedule = make(optimizer(0.4))
    expected = [0.4 * rate(e) for e in range(14)]
    assert rates(schedule, 14) == pytest.approx(expected, rel=1e-12, abs=1e-16)
    assert schedule.last_epoch == 14 and schedule.base_lrs == [0.4]


@each_schedule
def test_groups_and_old_epochs(name):
    """Each group from its own rate; step(epoch) jumps there, with a warning."""
    make, rate = SCHEDULES[name]
    schedule = make(optimizer(0.4, 3.0))
    schedule.step()
    assert schedule.get_last_lr() == pytest.approx([0.4 * rate(1), 3 * rate(1)])
    with pytest.warns(UserWarning, match="The epoch parameter in `scheduler.step"):
        schedule.step(6)
    assert schedule.last_epoch == 6
    assert schedule.get_last_lr() == pytest.approx([0.4 * rate(6), 3 * rate(6)], abs=1e-15)


@each_schedule
def test_state(name):
    """Optimizer and schedule saved at epoch 5 and loaded go on as if nothing had been."""
    make, _ = SCHEDULES[name]
    schedule = make(optimizer(0.4))
    rates(schedule, 5)
    saved = pickle.loads(pickle.dumps((schedule.state_dict(), schedule.optimizer.state_dict())))
    assert "optimizer" not in saved[0]
    fresh = make(optimizer(0.4))
    fresh.optimizer.load_state_dict(saved[1])
    fresh.load_state_dict(saved[0])
    assert fresh.last_epoch == 5
    assert rates(fresh, 6) == rates(schedule, 6)


@pytest.mark.parametrize("state", [3, {}, {"state": {}, "param_groups": []}])
def test_state_of_something_else(state):
    for schedule in (StepLR(optimizer(0.4), 3), ReduceLROnPlateau(optimizer(0.4))):
        with pytest.raises(TypeError, match="expected a dict with 'last_epoch' for state_dict"):
            schedule.load_state_dict(state)
        assert schedule.last_epoch == 0


@each_schedule
def test_last_epoch(name):
    """Made for an epoch, a schedule goes on from there; the groups must know their first rates."""
    make, _ = SCHEDULES[name]
    schedule = make(optimizer(0.4))
    rates(schedule, 4)
    o = schedule.optimizer
    again = type(schedule)(o, *_arguments(schedule), last_epoch=3)
    assert again.last_epoch == 4 and again.base_lrs == [0.4]
    with pytest.raises(KeyError, match=r"'initial_lr' is not specified in param_groups\[0\]"):
        type(schedule)(optimizer(0.4), *_arguments(schedule), last_epoch=3)


def _arguments(schedule):
    known = vars(schedule)
    if "lr_lambdas" in known:
        return (known["lr_lambdas"],)
    first = [known[n] for n in ("step_size", "milestones", "T_max") if n in known]
    return (*first, known["gamma"]) if "gamma" in known else first


@pytest.mark.parametrize("epochs", [1, 4, 5, 7])
@pytest.mark.parametrize("name", ["exponential", "cosine"])
def test_made_for_an_epoch_it_leaves_the_rates_that_are_there(name, epochs):
    """As PyTorch: those of the epoch after ``last_epoch`` are those of the one that was reached."""
    schedule = SCHEDULES[name][0](optimizer(0.4))
    reached = rates(schedule, epochs + 1)[-1]
    schedule.optimizer.param_groups[0]["lr"] = reached
    again = type(schedule)(schedule.optimizer, *_arguments(schedule), last_epoch=epochs)
    assert again.get_last_lr() == [reached] and again.last_epoch == epochs + 1
    assert "_is_initial" not in again.state_dict()
    again.optimizer.step()
    again.step()
    if name == "exponential":
        assert again.get_last_lr()[0] == pytest.approx(0.9 * reached)


def test_cosine_with_a_floor():
    schedule = CosineAnnealingLR(optimizer(1.0), T_max=5, eta_min=0.2)
    expected = [0.2 + 0.4 * (1 + math.cos(math.pi * e / 5)) for e in range(21)]
    assert rates(schedule, 21) == pytest.approx(expected, rel=1e-9)


def test_two_schedules_on_one_optimizer():
    """Both change the rate that is there."""
    o = optimizer(1.0)
    schedules = StepLR(o, 2, 0.1), ExponentialLR(o, 0.5)
    for epoch in range(6):
        assert o.param_groups[0]["lr"] == pytest.approx(0.1 ** (epoch // 2) * 0.5**epoch)
        o.step()
        for schedule in schedules:
            schedule.step()


def test_a_rate_that_is_a_tensor():
    o = optimizer(1.0)
    rate = o.param_groups[0]["lr"] = tensor(0.5, dtype="float64")
    schedule = ExponentialLR(o, 0.5)
    o.step()
    schedule.step()
    assert o.param_groups[0]["lr"] is rate and rate.item() == 0.25
    assert schedule.get_last_lr()[0] is not rate


class Halve:
    def __init__(self, by):
        self.by = by

    def __call__(self, epoch):
        return self.by**epoch


def test_lambdas():
    schedule = LambdaLR(optimizer(1.0, 2.0), [lambda e: e + 1, Halve(0.5)])
    assert schedule.get_last_lr() == [1, 2]
    schedule.step()
    assert schedule.get_last_lr() == [2, 1]
    state = schedule.state_dict()
    assert state["lr_lambdas"] == [None, {"by": 0.5}]
    other = LambdaLR(optimizer(1.0, 2.0), [lambda e: e + 1, Halve(0.1)])
    other.load_state_dict(copy.deepcopy(state))
    other.step()
    assert other.get_last_lr() == [3, 0.5]
    with pytest.raises(ValueError, match="Expected 2 lr_lambdas, but got 1"):
        LambdaLR(optimizer(1.0, 2.0), [lambda e: 1])


def test_order_of_steps():
    """A schedule that steps before its optimizer warns, once."""
    o = SGD([Parameter(ones(2))], lr=1.0)
    schedule = StepLR(o, 1)
    with pytest.warns(UserWarning, match=r"`lr_scheduler.step\(\)` before `optimizer.step\(\)`"):
        schedule.step()
    schedule.step()  # warnings are errors here
    o = SGD([Parameter(ones(2))], lr=1.0)
    schedule = StepLR(o, 1)
    o.step()
    schedule.step()

    class Own(SGD):
        def step(self, closure=None):
            return None

    StepLR(Own([Parameter(ones(2))], lr=1.0), 1).step()  # who knows what it does


def test_a_schedule_of_ones_own():
    class Falling(numgrad.optim.lr_scheduler._LRScheduler):
        def get_lr(self):
            return [rate / (1 + self.last_epoch) for rate in self.base_lrs]

    assert rates(Falling(optimizer(1.0)), 3) == [1, 1 / 2, 1 / 3]


def test_errors():
    for call in (
        lambda o: StepLR(o, 2, "a"),
        lambda o: MultiStepLR(o, [2], None),
        lambda o: ExponentialLR(o, "a"),
        lambda o: CosineAnnealingLR(o, 2, "a"),
        lambda o: ReduceLROnPlateau(o, factor="a"),
    ):
        with pytest.raises(TypeError, match=r"LR\w*: expected a number for (gamma|eta_min|factor)"):
            call(optimizer())
    for bad in (3, [3]):
        with pytest.raises(TypeError, match="LambdaLR: expected a function for lr_lambda"):
            LambdaLR(optimizer(), bad)
    with pytest.raises(TypeError, match="MultiStepLR: expected epochs for milestones, got 5"):
        MultiStepLR(optimizer(), 5)
    for bad in (0, -3, math.nan, None):
        with pytest.raises(ValueError, match="StepLR: expected a number above 0 for step_size"):
            StepLR(optimizer(), bad)
        with pytest.raises(ValueError, match=r"CosineAnnealingLR: expected .* above 0 for T_max"):
            CosineAnnealingLR(optimizer(), bad)
    for make in (lambda o: StepLR(o, 1), lambda o: LambdaLR(o, abs), ReduceLROnPlateau):
        with pytest.raises(TypeError, match="int is not an Optimizer"):
            make(3)
    with pytest.raises(NotImplementedError):
        LRScheduler(optimizer())


# ------------------------------------------------------------------------------------- on a plateau


def after(schedule, metrics):
    found = []
    for metric in metrics:
        schedule.step(metric)
        found.append(schedule.optimizer.param_groups[0]["lr"])
        assert schedule.get_last_lr()[0] == found[-1]
    return found


def test_plateau():
    schedule = ReduceLROnPlateau(optimizer(1.0), factor=0.5, patience=2)
    assert after(schedule, [3, 2, 2, 2]) == [1, 1, 1, 1]
    assert after(schedule, [2, 1.9, 1.9, 1.9, 1.9]) == [0.5, 0.5, 0.5, 0.5, 0.25]
    assert schedule.best == 1.9 and schedule.last_epoch == 9 and not schedule.in_cooldown


def test_plateau_modes():
    kinds = {  # what is just not better than 10, and what just is
        ("min", "rel"): (9.0, 8.9),
        ("min", "abs"): (9.9, 9.8),
        ("max", "rel"): (11.0, 11.1),
        ("max", "abs"): (10.1, 10.2),
    }
    for (mode, threshold_mode), (worse, better) in kinds.items():
        for metric, expected in ((worse, 0.1), (better, 1.0)):
            schedule = ReduceLROnPlateau(
                optimizer(1.0), mode, patience=0, threshold=0.1, threshold_mode=threshold_mode
            )
            assert after(schedule, [10.0, metric]) == [1.0, expected], (mode, threshold_mode)
    schedule = ReduceLROnPlateau(optimizer(1.0), patience=0)
    assert after(schedule, [tensor(1.0), tensor([1.0]), math.nan]) == pytest.approx([1, 0.1, 0.01])


def test_plateau_cooldown_floor_and_eps():
    schedule = ReduceLROnPlateau(optimizer(1.0), factor=0.5, patience=0, cooldown=2, min_lr=0.2)
    assert after(schedule, [1, 1]) == [1, 0.5] and schedule.in_cooldown
    assert after(schedule, [1, 1, 1, 1, 1, 1]) == [0.5, 0.5, 0.25, 0.25, 0.25, 0.2]
    schedule = ReduceLROnPlateau(optimizer(1e-8), patience=0)
    assert after(schedule, [1, 1]) == [1e-8, 1e-8]
    schedule = ReduceLROnPlateau(optimizer(1.0, 1.0), patience=0, min_lr=[0.5, 0.0])
    schedule.step(1)
    schedule.step(1)
    assert schedule.get_last_lr() == [0.5, 0.1]


def test_plateau_state_and_groups_added_later():
    schedule = ReduceLROnPlateau(optimizer(1.0), patience=1)
    after(schedule, [1, 1])
    fresh = ReduceLROnPlateau(optimizer(1.0), patience=1)
    fresh.load_state_dict(pickle.loads(pickle.dumps(schedule.state_dict())))
    assert after(fresh, [1, 1, 1]) == after(schedule, [1, 1, 1]) == [0.1, 0.1, 0.1 * 0.1]
    schedule.optimizer.add_param_group({"params": [Parameter(ones(1))]})
    after(schedule, [1, 1])
    assert len(schedule.get_last_lr()) == 2
    schedule = ReduceLROnPlateau(optimizer(1.0), patience=0, min_lr=[0.1])
    schedule.optimizer.add_param_group({"params": [Parameter(ones(1))]})
    schedule.step(1)
    with pytest.raises(RuntimeError, match="expected 2 min_lrs, got 1"):
        schedule.step(1)


def test_plateau_errors():
    o = optimizer(1.0, 2.0)
    for named, text in (
        ({"factor": 1.0}, "Factor should be < 1.0"),
        ({"mode": "low"}, "'min' or 'max' for mode"),
        ({"threshold_mode": "sum"}, "'rel' or 'abs' for threshold_mode"),
        ({"min_lr": [0.1]}, "expected 2 min_lrs, got 1"),
    ):
        with pytest.raises(ValueError, match=text):
            ReduceLROnPlateau(o, **named)
    with pytest.warns(UserWarning, match="The epoch parameter in `scheduler.step"):
        ReduceLROnPlateau(o).step(1.0, epoch=4)


def test_module_is_found():
    assert numgrad.optim.lr_scheduler.StepLR is StepLR
