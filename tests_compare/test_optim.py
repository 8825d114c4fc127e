"""Optimisers, schedules, bounds on gradients and parameter vectors against PyTorch."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

import numgrad
from tests_compare.checks import FLOATS, agree, array_of, count, tensor

RMSPROP = [
    {
        "lr": 0.01,
        "alpha": alpha,
        "eps": eps,
        "weight_decay": decay,
        "momentum": momentum,
        "centered": centered,
    }
    for alpha, eps, decay, momentum, centered in itertools.product(
        (0.99, 0.7), (1e-8, 1e-3), (0, 0.1), (0, 0.9), (False, True)
    )
]
ADAMW = [
    {"lr": 0.01, "betas": betas, "eps": eps, "weight_decay": decay, "amsgrad": amsgrad}
    for betas, eps, decay, amsgrad in itertools.product(
        ((0.9, 0.999), (0.5, 0.7)), (1e-8, 1e-3), (0, 0.1), (False, True)
    )
]
OPTIMISERS = [*(("RMSprop", o) for o in RMSPROP), *(("AdamW", o) for o in ADAMW)]
"""Compared by ``test_layers.test_optimiser``, as the others are."""


@pytest.mark.parametrize("name", ["RMSprop", "AdamW"])
def test_state_moves_between_the_libraries(name: str) -> None:
    """PyTorch's optimiser state, taken over, goes on as PyTorch does."""
    options: Any = {
        "RMSprop": {"lr": 0.01, "momentum": 0.9, "centered": True},
        "AdamW": {"lr": 0.01, "amsgrad": True},
    }[name]
    p = tensor(torch, np.array([1.0, -2.0, 3.0]), True)
    q = tensor(numgrad, np.zeros(3), True)
    reference = getattr(torch.optim, name)([p], **options)
    optimiser = getattr(numgrad.optim, name)([q], **options)
    for step in range(6):
        if step == 3:
            saved = reference.state_dict()
            state = {
                k: {n: tensor(numgrad, v.numpy()) for n, v in values.items()}
                for k, values in saved["state"].items()
            }
            with numgrad.no_grad():
                q.copy_(tensor(numgrad, array_of(p)))
            optimiser.load_state_dict({"state": state, "param_groups": saved["param_groups"]})
            mine = optimiser.state_dict()["state"][0]
            assert set(mine) == set(saved["state"][0])
        reference.zero_grad()
        (p * p * p).sum().backward()
        reference.step()
        if step >= 3:
            optimiser.zero_grad()
            (q * q * q).sum().backward()
            optimiser.step()
            agree("optimiser", "forward", f"{name}, state taken over", q, p)


# -------------------------------------------------------------------------------------- schedules

SCHEDULES: list[tuple[str, Any]] = [
    ("StepLR", lambda s, o: s.StepLR(o, 3, gamma=0.3)),
    ("MultiStepLR", lambda s, o: s.MultiStepLR(o, [2, 5, 5, 9], gamma=0.5)),
    ("ExponentialLR", lambda s, o: s.ExponentialLR(o, 0.8)),
    ("LambdaLR", lambda s, o: s.LambdaLR(o, lambda e: 1 / (1 + e))),
    ("LambdaLR", lambda s, o: s.LambdaLR(o, [lambda e: 0.9**e, lambda e: e])),
    ("CosineAnnealingLR", lambda s, o: s.CosineAnnealingLR(o, 5)),
    ("CosineAnnealingLR", lambda s, o: s.CosineAnnealingLR(o, T_max=4, eta_min=0.02)),
]


def optimiser(t: Any) -> Any:
    a, b = (tensor(t, np.ones(2), True) for _ in range(2))
    made = t.optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.7}], lr=0.1, momentum=0.9)
    for p in (a, b):
        p.grad = tensor(t, np.ones(2))
    return made


@pytest.mark.parametrize(("name", "make"), SCHEDULES, ids=[s[0] for s in SCHEDULES])
@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_schedule(name: str, make: Any) -> None:
    """Rates and parameters after each of 23 epochs, through a save and a jump."""
    found = []
    for t in (numgrad, torch):
        o = optimiser(t)
        schedule = make(t.optim.lr_scheduler, o)
        rates = []
        for epoch in range(23):
            o.step()
            if epoch == 12:
                state = schedule.state_dict()
                if "lr_lambdas" in state:
                    assert state["lr_lambdas"] == [None, None]
                schedule = make(t.optim.lr_scheduler, o)
                schedule.load_state_dict(state)
                for group, rate in zip(o.param_groups, schedule.get_last_lr(), strict=True):
                    group["lr"] = rate
            schedule.step(*([7] if epoch == 18 else []))
            assert schedule.get_last_lr() == [group["lr"] for group in o.param_groups]
            rates.append(schedule.get_last_lr())
        assert schedule.base_lrs == [0.1, 0.7]
        found.append((rates, schedule.last_epoch, o))
    (ours, epoch, mine), (theirs, other, its) = found
    assert epoch == other
    np.testing.assert_allclose(ours, theirs, rtol=1e-13)
    count("optimiser", "rates", "float64", name, 0.0)
    for a, b in zip(mine.param_groups, its.param_groups, strict=True):
        agree("optimiser", "forward", f"{name}, parameters", a["params"][0], b["params"][0])


@pytest.mark.parametrize(("name", "make"), SCHEDULES, ids=[s[0] for s in SCHEDULES])
@pytest.mark.parametrize("epochs", [1, 4, 7])
def test_schedule_made_for_an_epoch(name: str, make: Any, epochs: int) -> None:
    """Rates of one that goes on from ``last_epoch`` on the optimiser of another."""
    found = []
    for t in (numgrad, torch):
        o, rates = optimiser(t), []
        schedule = make(t.optim.lr_scheduler, o)
        for epoch in range(12):
            if epoch == epochs:
                kind, known = type(schedule), vars(schedule)
                names = ["step_size", "milestones", "T_max", "gamma", "eta_min"]
                options = {n: known[n] for n in names if n in known}
                if "lr_lambdas" in known:
                    options["lr_lambda"] = known["lr_lambdas"]
                if "milestones" in options:
                    options["milestones"] = list(options["milestones"].elements())
                schedule = kind(o, **options, last_epoch=schedule.last_epoch)
            rates.append(schedule.get_last_lr())
            o.step()
            schedule.step()
        found.append(rates)
    np.testing.assert_allclose(*found, rtol=1e-13, atol=1e-16)
    count("optimiser", "rates", "float64", f"{name}, going on", 0.0)


PLATEAU = [
    {"factor": factor, "patience": patience, "cooldown": cooldown, "mode": mode, **more}
    for factor, patience, cooldown, mode in itertools.product(
        (0.1, 0.5), (0, 2), (0, 3), ("min", "max")
    )
    for more in (
        {},
        {"threshold": 0.1, "threshold_mode": "abs"},
        {"min_lr": [0.05, 0.2], "threshold": 0.2},
    )
]


@pytest.mark.parametrize("options", PLATEAU, ids=str)
def test_plateau(options: Any) -> None:
    metrics = [*np.random.default_rng(5).uniform(0.5, 1.5, 30), math.nan, 1.0]
    found = []
    for t in (numgrad, torch):
        o = optimiser(t)
        schedule = t.optim.lr_scheduler.ReduceLROnPlateau(o, **options)
        rates = []
        for epoch, metric in enumerate(metrics):
            if epoch == 14:
                state = schedule.state_dict()
                schedule = t.optim.lr_scheduler.ReduceLROnPlateau(o, **options)
                schedule.load_state_dict(state)
            schedule.step(metric)
            rates.append([*schedule.get_last_lr(), schedule.best, schedule.num_bad_epochs])
        found.append(rates)
    np.testing.assert_array_equal(*found)
    count("optimiser", "rates", "float64", "ReduceLROnPlateau", 0.0)


def test_every_schedule_is_compared() -> None:
    names = set(numgrad.optim.lr_scheduler.__all__) - {"LRScheduler"}
    assert names == {*(name for name, _ in SCHEDULES), "ReduceLROnPlateau"}


# ---------------------------------------------------------------------------------------- nn.utils


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [2, 1, 3, math.inf, 0.5])
def test_clip_grad_norm(p: Any, dtype: str) -> None:
    rng = np.random.default_rng(6)
    grads = [np.asarray(rng.standard_normal(s)).astype(dtype) for s in ((3, 4), (5,), (), (200,))]
    for limit in (0.5, 1e9):
        found = []
        for t in (numgrad, torch):
            parameters = [tensor(t, np.zeros_like(g), True) for g in grads]
            for q, g in zip(parameters, grads, strict=True):
                q.grad = tensor(t, g)
            parameters.append(tensor(t, np.zeros(2, dtype), True))
            norm = t.nn.utils.clip_grad_norm_(parameters, limit, norm_type=p)
            found.append([norm, *(q.grad for q in parameters[:-1])])
        for ours, theirs in zip(*found, strict=True):
            agree("optimiser", "forward", f"clip_grad_norm_({p})", ours, theirs)


def test_clip_grad_norm_that_is_not_finite() -> None:
    for bad, p in itertools.product((math.inf, math.nan), (2, math.inf)):
        found = []
        for t in (numgrad, torch):
            q = tensor(t, np.zeros(3), True)
            q.grad = tensor(t, np.array([1.0, bad, -2.0]))
            with pytest.raises(RuntimeError, match="is non-finite, so it cannot be clipped"):
                t.nn.utils.clip_grad_norm_([q], 1.0, p, error_if_nonfinite=True)
            found.append([t.nn.utils.clip_grad_norm_([q], 1.0, p), q.grad])
        for ours, theirs in zip(*found, strict=True):
            agree("optimiser", "forward", f"clip_grad_norm_ of {bad}", ours, theirs)


def test_clip_grad_value_and_vectors() -> None:
    rng = np.random.default_rng(7)
    values = [rng.standard_normal(s) for s in ((3, 4), (5,), (2, 1, 2))]
    new = rng.standard_normal(21)
    found = []
    for t in (numgrad, torch):
        parameters = [tensor(t, v, True) for v in values]
        flat = t.nn.utils.parameters_to_vector(parameters)
        (flat * flat).sum().backward()
        t.nn.utils.clip_grad_value_(parameters, 0.7)
        grads = [q.grad for q in parameters]
        t.nn.utils.vector_to_parameters(tensor(t, new), parameters)
        found.append([flat, *grads, *parameters])
    for ours, theirs in zip(*found, strict=True):
        agree("optimiser", "forward", "clip_grad_value_ and vectors", ours, theirs)
