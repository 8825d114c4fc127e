"""The normal distribution."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph.errors import DtypeError, ShapeError, expected, shown
from ..graph.mode import composite, no_grad
from ..ops.creation import empty, tensor
from ..ops.elementwise import erf, log
from ..tensor import Tensor

_LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)


class Normal:
    """The normal distribution of mean μ = ``loc`` and standard deviation σ = ``scale``.

    Density ``exp(-(x - μ)² / (2 σ²)) / (σ · sqrt(2 π))``.

    Args:
        loc: float tensor or number.
        scale: float tensor or number, > 0; broadcasts with loc.
        validate_args: whether to check scale, and the values given to `log_prob` and `cdf`.

    ``mean`` and ``std`` (``stddev``) are other names of ``loc`` and ``scale``; ``batch_shape`` is
    the shape that both broadcast to.

    Raises:
        ValueError: a scale is not positive, a number is nan, or the shapes do not broadcast.
        TypeError: loc or scale is neither a number nor a floating-point tensor.

    >>> from numgrad.ops.creation import zeros, ones
    >>> Normal(zeros(3), ones(3)).sample((2,)).shape
    (2, 3)
    """

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        like = loc if isinstance(loc, Tensor) else scale if isinstance(scale, Tensor) else None
        loc = _parameter("loc", loc, like)
        scale = _parameter("scale", scale, like)
        try:
            shape = np.broadcast_shapes(tuple(loc.shape), tuple(scale.shape))
        except ValueError:
            raise ShapeError(
                expected(
                    "Normal",
                    f"a shape that broadcasts with loc {tuple(loc.shape)}",
                    "scale",
                    shown(scale),
                    "reshape one of them",
                )
            ) from None
        self.loc = loc if tuple(loc.shape) == shape else loc.expand(shape)
        self.scale = scale if tuple(scale.shape) == shape else scale.expand(shape)
        self.batch_shape: tuple[int, ...] = shape
        self.event_shape: tuple[int, ...] = ()
        self._validate = validate_args is None or bool(validate_args)
        if self._validate:
            self._check("loc", loc, "no nan", lambda x: ~np.isnan(x))
            self._check("scale", scale, "numbers > 0", lambda x: x > 0)

    @staticmethod
    def _check(name: str, value: Tensor, what: str, condition: Any) -> None:
        array = value.detach().cpu().array
        bad = ~condition(array)
        if bad.any():
            raise ValueError(
                expected(
                    "Normal",
                    what,
                    name,
                    f"{array[bad].flat[0]} in {shown(value)}",
                    "correct it, or pass validate_args=False",
                )
            )

    @property
    def mean(self) -> Tensor:
        """μ."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The most probable value, μ."""
        return self.loc

    @property
    def std(self) -> Tensor:
        """σ."""
        return self.scale

    @property
    def stddev(self) -> Tensor:
        """σ."""
        return self.scale

    @property
    def variance(self) -> Tensor:
        """σ²."""
        return self.scale * self.scale

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw values of shape ``sample_shape + batch_shape``, without history."""
        with no_grad():
            return self.rsample(sample_shape).detach()

    def sample_n(self, n: int) -> Tensor:
        """Draw n values: ``sample((n,))``."""
        return self.sample((n,))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw ``μ + σ · ε``, ε standard normal, of shape ``sample_shape + batch_shape``.

        Gradients flow to ``loc`` and ``scale``.

        Notes: D. P. Kingma, M. Welling, "Auto-encoding variational Bayes" (ICLR 2014), sec. 2.4.
        """
        if isinstance(sample_shape, int):
            raise TypeError(
                f"Normal: expected a tuple of lengths for sample_shape, got {sample_shape!r}; "
                f"pass ({sample_shape},)"
            )
        shape = (*sample_shape, *self.batch_shape)
        noise = empty(shape, dtype=self.loc.dtype, device=self.loc.device).normal_()
        return self.loc + noise * self.scale

    @composite
    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density, ``-(x - μ)² / (2 σ²) - log σ - log sqrt(2 π)``.

        Args:
            value: number or tensor that broadcasts with batch_shape.

        Raises:
            ValueError: value has a nan or does not broadcast.
        """
        value = self._value(value)
        distance = (value - self.loc) / self.scale
        return distance * distance * -0.5 - log(self.scale) - _LOG_ROOT_TWO_PI

    def cdf(self, value: Any) -> Tensor:
        """The probability of values up to x, ``(1 + erf((x - μ) / (σ · sqrt 2))) / 2``.

        Args and errors are those of `log_prob`.
        """
        value = self._value(value)
        return (erf((value - self.loc) / (self.scale * math.sqrt(2))) + 1) * 0.5

    def entropy(self) -> Tensor:
        """The expected ``-log_prob``: ``1/2 + log sqrt(2 π) + log σ``, of shape batch_shape."""
        return log(self.scale) + (0.5 + _LOG_ROOT_TWO_PI)

    def _value(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            value = tensor(value, dtype=self.loc.dtype)
        if self._validate:
            self._check("value", value, "no nan", lambda x: ~np.isnan(x))
        return value

    def __repr__(self) -> str:
        if self.batch_shape:
            return f"Normal(loc: {self.batch_shape}, scale: {self.batch_shape})"
        return f"Normal(loc: {self.loc.item()}, scale: {self.scale.item()})"


def _parameter(name: str, value: Any, like: Tensor | None) -> Tensor:
    if isinstance(value, Tensor):
        if value.dtype.kind != "f":
            raise DtypeError(
                expected("Normal", "a floating-point dtype", name, shown(value), "use .float()")
            )
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise TypeError(
            expected("Normal", "a tensor or a number", name, shown(value), "convert it to a tensor")
        )
    if like is None:
        return tensor(float(value), dtype=np.dtype(np.float32))
    return tensor(float(value), dtype=like.dtype, device=like.device)
