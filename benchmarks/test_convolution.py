"""ResNet-18's convolutions: forward, and the gradients of input and weight."""

from collections.abc import Callable

from numgrad.cli.speed.cases import Case

GROUPS = ("conv-b1", "conv-b8", "conv-dx-b1", "conv-dx-b8", "conv-dw-b1", "conv-dw-b8")


def test_convolution(timed: Callable[[Case, str], None], case: Case, variant: str) -> None:
    timed(case, variant)
