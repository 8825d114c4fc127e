"""Batch-norm, ReLU, addition and max-pooling, without and with a backward."""

from collections.abc import Callable

from numgrad.cli.speed.cases import Case

GROUPS = ("layers",)


def test_layers(timed: Callable[[Case, str], None], case: Case, variant: str) -> None:
    timed(case, variant)
