"""Switches of how results are computed: ``numgrad.backends.cpu``."""

import contextlib
from collections.abc import Iterator

from .graph.errors import expected, shown
from .kernels import winograd


class Cpu:
    """What the CPU's kernels may do.

    ``allow_winograd`` (True): whether 3×3 convolutions of stride 1 in float32, with 16 channels or
    more on both sides, without groups, with a result of 4×4 or more and contiguous rows, are
    computed by Winograd's minimal filtering F(4×4, 3×3), forward and backward. It takes a quarter
    of the multiplications; float64 never goes this way. What it costs:

    * rounding: the worst error, relative to the largest result, is about 2e-6 with 64 channels and
      5e-6 with 512, of random numbers, where the direct sum has 3e-7 to 5e-7;
    * an input that is infinite, nan or above about 1e37 makes all results of its tile of 4×4 nan,
      where the direct sum has them only where the input is read.

    Raises:
        TypeError: set to something that is no bool.
    """

    @property
    def allow_winograd(self) -> bool:
        """Whether Winograd's minimal filtering may be used."""
        return winograd.enabled

    @allow_winograd.setter
    def allow_winograd(self, value: bool) -> None:
        if not isinstance(value, bool):
            what = expected("backends.cpu", "a bool", "allow_winograd", shown(value), "pass False")
            raise TypeError(what)
        winograd.enabled = value

    @contextlib.contextmanager
    def flags(self, *, allow_winograd: bool) -> Iterator[None]:
        """Set a switch inside a ``with`` block, for all threads, and set it back at its end."""
        before = self.allow_winograd
        self.allow_winograd = allow_winograd
        try:
            yield
        finally:
            self.allow_winograd = before


cpu = Cpu()
