"""Schedules of learning rates, a step an epoch.

Each writes ``lr`` of the optimizer's groups, when it is made and at every ``step()``. Most change
the rate that is there, so that several work on one optimizer.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

from ..graph.errors import expected, shown, warn_user
from ..tensor import Tensor
from .optimizer import Optimizer, number

__all__ = [
    "CosineAnnealingLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "MultiStepLR",
    "ReduceLROnPlateau",
    "StepLR",
]


def _rates(optimizer: Optimizer, name: str = "lr") -> list[Any]:
    """The rates of all groups; of tensors, copies."""
    values = [group[name] for group in optimizer.param_groups]
    return [value.detach().clone() if isinstance(value, Tensor) else value for value in values]


def _write(optimizer: Optimizer, rates: Iterable[Any]) -> None:
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(float(rate))
        else:
            group["lr"] = rate


def _check_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"{type(optimizer).__name__} is not an Optimizer; pass one of numgrad.optim"
        )


def _check_epochs(what: str, name: str, epochs: Any) -> None:
    """Raise ValueError unless ``epochs``, which the epoch is divided by, is a number above 0."""
    if not isinstance(epochs, (int, float)) or not epochs > 0:
        raise ValueError(expected(what, "a number above 0", name, repr(epochs), "use 10"))


class LRScheduler:
    """Base of the schedules. A subclass defines ``get_lr()``, the rates at ``last_epoch``.

    Args:
        optimizer: whose rates are set. Their first values are kept as ``initial_lr`` of the groups.
        last_epoch: the epoch to go on after; -1 to begin.

    Attributes:
        last_epoch: steps taken so far.
        base_lrs: the first rates of the groups.

    Raises:
        TypeError: optimizer is none.
        KeyError: last_epoch is given and a group has no ``initial_lr``.
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        _check_optimizer(optimizer)
        self.optimizer = optimizer
        first = _rates(optimizer)
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", first[i])
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming an "
                    "optimizer: load its state dict first, or begin with last_epoch=-1"
                )
        self.base_lrs = _rates(optimizer, "initial_lr")
        self.last_epoch = last_epoch
        self._step_count = 0
        self._is_initial = True
        self.step()
        del self._is_initial

    _is_initial = False
    """Whether the constructor takes the step: the rates that are there are those of this epoch."""

    def get_lr(self) -> Sequence[Any]:
        """The rates of the groups at ``last_epoch``, from those of the epoch before."""
        raise NotImplementedError

    def get_last_lr(self) -> list[Any]:
        """The rates that the last step wrote."""
        return self._last_lr

    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch and write its rates. Call it after ``optimizer.step()``.

        Args:
            epoch: the epoch to go to; the old way, which warns.
        """
        own = type(self.optimizer).step is Optimizer.step
        if self._step_count == 1 and own and not self.optimizer.stepped:
            warn_user(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`: call them in "
                "the opposite order, or the first value of the schedule is skipped."
            )
        self._step_count += 1
        if epoch is None:
            self.last_epoch += 1
            rates = self.get_lr()
        else:
            warn_user(
                "The epoch parameter in `scheduler.step()` was not necessary and is being "
                "deprecated where possible. Please use `scheduler.step()`."
            )
            self.last_epoch = epoch
            closed = getattr(self, "_get_closed_form_lr", self.get_lr)
            rates = closed()
        _write(self.optimizer, rates)
        self._last_lr = _rates(self.optimizer)

    def state_dict(self) -> dict[str, Any]:
        """All that the schedule knows, but for the optimizer."""
        return {name: value for name, value in vars(self).items() if name != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of a schedule of the same kind. The optimizer's rates are in *its*
        state dict.

        Raises:
            TypeError: state_dict is no dict with ``last_epoch``, which changes nothing.
        """
        if not isinstance(state_dict, Mapping) or "last_epoch" not in state_dict:
            what = f"{type(self).__name__}.load_state_dict"
            kind, way = "a dict with 'last_epoch'", "pass what state_dict() returned"
            raise TypeError(expected(what, kind, "state_dict", shown(state_dict), way))
        vars(self).update(state_dict)

    def _now(self) -> list[Any]:
        return _rates(self.optimizer)


_LRScheduler = LRScheduler
"""Its name before PyTorch 2, which users' own schedules are derived from."""


class LambdaLR(LRScheduler):
    """The first rate times a function of the epoch.

    Args:
        optimizer: see `LRScheduler`.
        lr_lambda: a function of the epoch, or a list of them, one a group.
        last_epoch: see `LRScheduler`.

    A state dict holds callable objects by their attributes; functions are not in it.

    Raises:
        ValueError: the list has not as many functions as there are groups.
        TypeError: one is no function.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        _check_optimizer(optimizer)
        count = len(optimizer.param_groups)
        if isinstance(lr_lambda, (list, tuple)):
            if len(lr_lambda) != count:
                raise ValueError(f"Expected {count} lr_lambdas, but got {len(lr_lambda)}")
            self.lr_lambdas = list(lr_lambda)
        else:
            self.lr_lambdas = [lr_lambda] * count
        for function in self.lr_lambdas:
            if not callable(function):
                way = "pass lambda epoch: …"
                raise TypeError(
                    expected("LambdaLR", "a function", "lr_lambda", shown(function), way)
                )
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Sequence[Any]:
        pairs = zip(self.base_lrs, self.lr_lambdas, strict=True)
        return [rate * function(self.last_epoch) for rate, function in pairs]

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        state["lr_lambdas"] = [
            None if isinstance(f, FunctionType) or not hasattr(f, "__dict__") else dict(vars(f))
            for f in self.lr_lambdas
        ]
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        functions = self.lr_lambdas
        super().load_state_dict(state_dict)
        self.lr_lambdas = functions
        for function, values in zip(functions, state_dict["lr_lambdas"], strict=True):
            if values is not None:
                vars(function).update(values)


class StepLR(LRScheduler):
    """The rate times gamma, every ``step_size`` epochs: ``base_lr · gamma^⌊epoch / step_size⌋``.

    Args:
        optimizer, last_epoch: see `LRScheduler`.
        step_size: above 0.
        gamma: the factor.

    Raises:
        ValueError: step_size is not above 0.
    """

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        _check_epochs("StepLR", "step_size", step_size)
        self.step_size, self.gamma = step_size, number("StepLR", "gamma", gamma)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Sequence[Any]:
        if self.last_epoch == 0 or self.last_epoch % self.step_size != 0:
            return self._now()
        return [rate * self.gamma for rate in self._now()]

    def _get_closed_form_lr(self) -> Sequence[Any]:
        return [rate * self.gamma ** (self.last_epoch // self.step_size) for rate in self.base_lrs]


class MultiStepLR(LRScheduler):
    """The rate times gamma at each of the epochs ``milestones``; one given twice counts twice:
    ``base_lr · gamma^k`` after k milestones.

    Args:
        optimizer, last_epoch: see `LRScheduler`.
        milestones: epochs, in any order.
        gamma: the factor.

    Raises:
        TypeError: milestones is a single number.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        if not isinstance(milestones, Iterable):
            way = "pass a list of epochs"
            raise TypeError(expected("MultiStepLR", "epochs", "milestones", repr(milestones), way))
        self.milestones = Counter(milestones)
        self.gamma = number("MultiStepLR", "gamma", gamma)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Sequence[Any]:
        count = self.milestones.get(self.last_epoch, 0)  # .get: a Counter loaded may be a dict
        return [rate * self.gamma**count for rate in self._now()] if count else self._now()

    def _get_closed_form_lr(self) -> Sequence[Any]:
        passed = bisect_right(sorted(Counter(self.milestones).elements()), self.last_epoch)
        return [rate * self.gamma**passed for rate in self.base_lrs]


class ExponentialLR(LRScheduler):
    """The rate times gamma, every epoch: ``base_lr · gamma^epoch``.

    Args:
        optimizer, last_epoch: see `LRScheduler`.
        gamma: the factor.
    """

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = number("ExponentialLR", "gamma", gamma)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Sequence[Any]:
        if self._is_initial:
            return self._now()
        return [rate * self.gamma for rate in self._now()]

    def _get_closed_form_lr(self) -> Sequence[Any]:
        return [rate * self.gamma**self.last_epoch for rate in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from the first rate down to ``eta_min`` in ``T_max`` epochs, and up again::

        lr = eta_min + (base_lr - eta_min) · (1 + cos(π · epoch / T_max)) / 2

    Each rate is computed from the one before, as in PyTorch.

    Args:
        optimizer, last_epoch: see `LRScheduler`.
        T_max: epochs of the way down, above 0.
        eta_min: the least rate.

    Raises:
        ValueError: T_max is not above 0.

    Notes: I. Loshchilov, F. Hutter, "SGDR: stochastic gradient descent with warm restarts" (ICLR
        2017), eq. 5, without the restarts.
    """

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        _check_epochs("CosineAnnealingLR", "T_max", T_max)
        self.T_max, self.eta_min = T_max, number("CosineAnnealingLR", "eta_min", eta_min)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Sequence[Any]:
        epoch, least = self.last_epoch, self.eta_min
        if self._is_initial:
            return self._now()
        if (epoch - 1 - self.T_max) % (2 * self.T_max) == 0:  # the rate before is the least
            rise = (1 - math.cos(math.pi / self.T_max)) / 2
            pairs = zip(self.base_lrs, self._now(), strict=True)
            return [rate + (base - least) * rise for base, rate in pairs]
        factor = (1 + math.cos(math.pi * epoch / self.T_max)) / (
            1 + math.cos(math.pi * (epoch - 1) / self.T_max)
        )
        return [factor * (rate - least) + least for rate in self._now()]

    def _get_closed_form_lr(self) -> Sequence[Any]:
        height = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * height for base in self.base_lrs]


class ReduceLROnPlateau(LRScheduler):
    """The rate times ``factor`` when a metric has stopped improving.

    Args:
        optimizer: whose rates are set.
        mode: ``min`` if lower metrics are better, ``max`` if higher ones are.
        factor: below 1.
        patience: how many epochs in a row may bring nothing.
        threshold: what counts as better: with ``threshold_mode`` ``rel`` by this part of the best
            value, with ``abs`` by this difference.
        cooldown: how many epochs after a reduction do not count.
        min_lr: no rate goes below it; a number, or a list with one a group.
        eps: smaller changes are not made.

    Raises:
        ValueError: factor is 1 or more; a mode is unknown; min_lr has not one value a group.
        TypeError: optimizer is none.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: Any = 0,
        eps: float = 1e-8,
    ) -> None:
        what = "ReduceLROnPlateau"
        if number(what, "factor", factor) >= 1:
            raise ValueError(f"Factor should be < 1.0. ({what} got {factor})")
        _check_optimizer(optimizer)
        if mode not in ("min", "max"):
            raise ValueError(expected(what, "'min' or 'max'", "mode", repr(mode), "use one"))
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(
                expected(what, "'rel' or 'abs'", "threshold_mode", repr(threshold_mode), "use one")
            )
        self.optimizer = optimizer
        several = isinstance(min_lr, (list, tuple))
        self.default_min_lr = None if several else min_lr
        self.min_lrs = list(min_lr) if several else [min_lr] * len(optimizer.param_groups)
        self._check_least(ValueError)
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.eps = cooldown, eps
        self.best = self.mode_worse = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0
        self._last_lr = _rates(optimizer)

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]
        """Look at the metric of an epoch, and reduce the rates if it is time.

        Args:
            metrics: a number, or a tensor of one element.
            epoch: the number of the epoch; the next if None.
        """
        metric = float(metrics)
        if epoch is not None:
            warn_user("The epoch parameter in `scheduler.step()` is deprecated; leave it out.")
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self.is_better(metric, self.best):
            self.best, self.num_bad_epochs = metric, 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._check_least(RuntimeError)
            pairs = list(zip(_rates(self.optimizer), self.min_lrs, strict=True))
            lower = [max(float(rate) * self.factor, least) for rate, least in pairs]
            _write(
                self.optimizer,
                [
                    new if rate - new > self.eps else rate
                    for (rate, _), new in zip(pairs, lower, strict=True)
                ],
            )
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = _rates(self.optimizer)

    def _check_least(self, error: type[Exception]) -> None:
        """One least rate a group, also of groups added since."""
        count = len(self.optimizer.param_groups)
        if len(self.min_lrs) != count:
            if self.default_min_lr is None:
                raise error(f"expected {count} min_lrs, got {len(self.min_lrs)}: one a group")
            self.min_lrs = [self.default_min_lr] * count

    @property
    def in_cooldown(self) -> bool:
        """Whether epochs do not count yet after a reduction."""
        return self.cooldown_counter > 0

    def is_better(self, metric: float, best: float) -> bool:
        """Whether ``metric`` improves on ``best`` by more than the threshold."""
        sign = 1 if self.mode == "min" else -1
        if self.threshold_mode == "abs":
            return sign * metric < sign * best - self.threshold
        return sign * metric < sign * (best * (1 - sign * self.threshold))
