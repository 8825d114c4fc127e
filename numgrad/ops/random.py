"""Random numbers by Philox 4x32-10, and dropout.

A number depends on (seed, offset, element) alone: the same at any number of threads. A generator's
offset advances by the counters a call consumes, so that calls never share numbers.
"""

import math
import os
import secrets
import threading
from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.errors import ShapeError, expected, shown, warn_user
from ..graph.mode import composite
from ..graph.value import Value
from ..kernels import launch
from ..kernels.cpu import random as kernels
from ..kernels.cuda.array import DeviceArray
from .creation import check_device, dtype_like, full, tensor, uninitialised, with_grad
from .declare import NUMBERS
from .elementwise import mul
from .kernel_calls import contiguous_array, copy_into, to_host, upload, workspace
from .movement import copy_, to_device, to_dtype
from .primitive import primitive

_drawing = threading.Lock()
"""Held while a generator moves on; one for all, so that generators can be copied and pickled."""


def _after_fork_in_child() -> None:
    global _drawing
    _drawing = threading.Lock()  # another thread may have held it, which the child does not have


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Generator:
    """A stream of random numbers: ``seed`` and the ``offset`` reached. Safe with threads."""

    def __init__(self, seed: int = 0) -> None:
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> "Generator":
        """Begin the stream of ``seed`` (64 bits; negative ones count from 2**64) at offset 0."""
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise TypeError(
                expected("manual_seed", "an integer", "seed", repr(seed), "pass an int")
            )
        if not -(2**63) <= seed < 2**64:
            raise ValueError(
                expected("manual_seed", "a 64-bit integer", "seed", seed, "take it modulo 2**64")
            )
        with _drawing:
            self.seed, self.offset = int(seed) % 2**64, 0
        return self

    def initial_seed(self) -> int:
        """The seed of the stream."""
        return self.seed

    def get_state(self) -> Any:
        """The state as an int64 tensor (seed, offset)."""
        return tensor(np.array([_signed(self.seed), _signed(self.offset)], np.int64))

    def set_state(self, state: Any) -> "Generator":
        """Go on from a state that ``get_state`` gave."""
        if getattr(state, "shape", None) != (2,) or state.dtype != dtypes.int64:
            raise ValueError(
                expected(
                    "set_state",
                    "an int64 tensor of 2 elements",
                    "state",
                    shown(state),
                    "use get_state()",
                )
            )
        seed, offset = (int(v) % 2**64 for v in state.tolist())
        with _drawing:
            self.seed, self.offset = seed, offset
        return self

    def take(self, n: int, words: int) -> tuple[int, int]:
        """``(seed, offset)`` for n elements of ``words`` words each; the stream moves past them."""
        count = kernels.counters(n, words)
        with _drawing:  # nothing is allocated inside that could run a finaliser, which may draw
            seed, offset = self.seed, self.offset
            self.offset = (offset + count) % 2**64
        return _signed(seed), _signed(offset)


def _signed(value: int) -> int:
    """A 64-bit pattern as the int64 that has it."""
    return value - 2**64 if value >= 2**63 else value


default_generator = Generator(0)


def manual_seed(seed: int) -> Generator:
    """Seed the default generator."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Seed the default generator from the system's randomness; returns the seed."""
    value = secrets.randbits(63)
    default_generator.manual_seed(value)
    return value


def initial_seed() -> int:
    """The seed of the default generator."""
    return default_generator.seed


def get_rng_state() -> Any:
    """The state of the default generator."""
    return default_generator.get_state()


def set_rng_state(state: Any) -> None:
    """Set the state of the default generator."""
    default_generator.set_state(state)


def _draw(out: np.ndarray, kind: str, words: int, params: list[int], generator: Any) -> None:
    generator = default_generator if generator is None else generator
    seed, offset = generator.take(out.size, words)
    on_device = type(out) is DeviceArray  # drawn on the host: the same numbers on any device
    plain = not on_device and out.flags.c_contiguous
    target = out if plain else workspace(out.shape, out.dtype)
    args = [launch.address(target), 0, seed, offset, *params]
    kernel = getattr(kernels, f"{kind}_{out.dtype.name}")
    launch.ranged(kernel, args, out.size, unit=1024, parallel=out.size >= launch.PARALLEL_MIN)
    if on_device:
        upload(out, target)
    elif target is not out:
        copy_into(out, target)


def _float_words(dtype: np.dtype[Any]) -> int:
    return 1 if dtype == dtypes.float32 else 2


def _floating(op: str, dtype: Any) -> np.dtype[Any]:
    kind = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype, op)
    if kind.kind != "f":
        raise TypeError(expected(op, "a floating dtype", "dtype", kind, "use randint for integers"))
    return kind


def rand(
    *size: Any,
    generator: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """Uniform numbers in [0, 1): multiples of 2**-24 (float32) or 2**-53 (float64)."""
    where = check_device("rand", device)
    out = uninitialised("rand", size, _floating("rand", dtype), where)
    _draw(out.array, "uniform", _float_words(out.dtype), [0, 0], generator)
    return with_grad(out, requires_grad)


def randn(
    *size: Any,
    generator: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """Standard normal numbers (Box and Muller 1958)."""
    where = check_device("randn", device)
    out = uninitialised("randn", size, _floating("randn", dtype), where)
    _draw(out.array, "normal", _float_words(out.dtype), [0, 0], generator)
    return with_grad(out, requires_grad)


def rand_like(x: Any, *, dtype: Any = None) -> Any:
    """``rand`` in the shape and dtype of x."""
    kind = dtype_like("rand_like", x, dtype)
    return rand(x.shape, dtype=kind, device=x.device)


def randn_like(x: Any, *, dtype: Any = None) -> Any:
    """``randn`` in the shape and dtype of x."""
    kind = dtype_like("randn_like", x, dtype)
    return randn(x.shape, dtype=kind, device=x.device)


def randint(
    low: int,
    high: Any = None,
    size: Any = None,
    *,
    generator: Any = None,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """Integers in ``[low, high)``, or ``[0, low)`` as ``randint(low, size)``."""
    where = check_device("randint", device)
    if size is None or not isinstance(high, (int, np.integer)):
        low, high, size = 0, low, high if size is None else size
    for name, bound in (("low", low), ("high", high)):
        if isinstance(bound, bool) or not isinstance(bound, (int, np.integer)):
            raise TypeError(expected("randint", "an integer", name, shown(bound), "use int()"))
        if not -(2**63) <= bound < 2**63:
            raise ValueError(expected("randint", "a 64-bit integer", name, bound, "lower it"))
    if size is None:
        raise TypeError("randint: expected a size, got none; write randint(low, high, (2, 3))")
    if not low < high:
        raise ValueError(expected("randint", "low < high", "low, high", (low, high), "swap them"))
    out = uninitialised("randint", (size,), dtypes.int64, where)
    _draw(out.array, "integers", 2, [int(low), int(high)], generator)
    return out if dtype is None else out.to(dtypes.as_dtype(dtype, "randint"))


def randperm(n: int, *, generator: Any = None, device: Any = None) -> Any:
    """The integers 0 to n-1 in random order, int64: the order of n random 63-bit keys."""
    where = check_device("randperm", device)
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 0:
        raise ValueError(expected("randperm", "a non-negative integer", "n", repr(n), "check it"))
    keys = workspace((int(n),), dtypes.int64)
    _draw(keys, "integers", 2, [-(2**62), 2**62], generator)
    return tensor(np.argsort(keys, kind="stable"), device=where)


def uniform_(x: Any, a: float = 0.0, b: float = 1.0, *, generator: Any = None) -> Any:
    """Write uniform numbers in [a, b]: from [0, 1), scaled, which may round up to b."""
    if not a <= b:
        raise ValueError(expected("uniform_", "a <= b", "a, b", (a, b), "swap them"))
    u = rand(x.shape, dtype=_floating("uniform_", x.dtype), generator=generator)
    return copy_(x, u * (b - a) + a)


def normal_(x: Any, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Any:
    """Write normal numbers of the given mean and standard deviation."""
    if not std >= 0:
        raise ValueError(expected("normal_", "a non-negative std", "std", std, "take abs(std)"))
    z = randn(x.shape, dtype=_floating("normal_", x.dtype), generator=generator)
    return copy_(x, z * std + mean)


def _probability(op: str, p: Any) -> float:
    if not isinstance(p, NUMBERS) or not 0 <= p <= 1:
        raise ValueError(
            f"{op}: expected a probability in [0, 1] for p, got {p!r}; {op} probability has to be "
            "between 0 and 1"
        )
    return float(p)


def _probabilities(op: str, p: Any) -> Any:
    """A tensor of probabilities."""
    if not isinstance(p, Value):
        raise TypeError(expected(op, "a Tensor", "p", shown(p), "use numgrad.tensor(…)"))
    values = to_host(p.array)
    if values.size and not (values.min() >= 0 and values.max() <= 1):
        raise ValueError(expected(op, "probabilities in [0, 1]", "p", shown(p), "clamp it"))
    return p


def bernoulli_(x: Any, p: Any = 0.5, *, generator: Any = None) -> Any:
    """Write 1 with probability ``p`` (a number or a tensor), else 0."""
    p = _probabilities("bernoulli_", p) if isinstance(p, Value) else _probability("bernoulli_", p)
    kind = dtypes.float64 if x.dtype == dtypes.float64 else dtypes.float32
    where = p.device if isinstance(p, Value) else x.device
    return copy_(x, rand(x.shape, dtype=kind, generator=generator, device=where) < p)


def bernoulli(p: Any, *, generator: Any = None) -> Any:
    """1 with probability ``p`` elementwise, else 0, in the dtype of p."""
    p = _probabilities("bernoulli", p)
    kind = _floating("bernoulli", p.dtype)
    u = rand(p.shape, dtype=kind, generator=generator, device=p.device)
    return to_dtype(u < p, p.dtype)


def random_(x: Any, low: int = 0, high: Any = None, *, generator: Any = None) -> Any:
    """Write integers in ``[low, high)``; ``random_(n)`` in ``[0, n)``."""
    if high is None:
        limits = {"f": 2**24, "i": 2**31 - 1, "u": 256, "b": 2}
        low, high = (0, low) if low else (0, limits[x.dtype.kind])
    return copy_(x, randint(low, high, x.shape, generator=generator))


def normal(mean: Any, std: Any = 1.0, size: Any = None, *, generator: Any = None) -> Any:
    """Normal numbers; ``mean`` and ``std`` may be tensors."""
    lowest = to_host(std.array).min(initial=0) if isinstance(std, Value) else std
    if not lowest >= 0:
        raise ValueError(expected("normal", "a non-negative std", "std", lowest, "take abs(std)"))
    if size is None:
        size = np.broadcast_shapes(getattr(mean, "shape", ()), getattr(std, "shape", ()))
    like = mean if isinstance(mean, Value) else std
    where = like.device if isinstance(like, Value) else None
    return randn(size, generator=generator, device=where) * std + mean


# ------------------------------------------------------------------------------------------ dropout


def _dropout_gradient(g: Any, p: Any, seed: Any, offset: Any) -> Any:
    return dropout_at(g, p=p, seed=seed, offset=offset)


@primitive(
    infer=lambda x, p, seed, offset: (x.shape, x.dtype),
    dx=_dropout_gradient,
    reference="numgrad.kernels.reference.random:dropout_float64",
)
def dropout_at(out, x, *, p, seed, offset):
    """``x / (1 - p)`` where the number at (seed, offset, element) is >= p, else 0. Its own
    gradient: nothing but the three numbers is kept."""
    x = contiguous_array(x)
    scale = 0.0 if p == 1 else 1.0 / (1.0 - p)
    target = out if out.flags.c_contiguous else workspace(out.shape, out.dtype)
    args = [launch.address(target), launch.address(x), seed, offset]
    args += [launch.bits(p), launch.bits(scale)]
    kernel = getattr(kernels, f"dropout_{x.dtype.name}")
    launch.ranged(kernel, args, x.size, unit=1024, parallel=x.size >= launch.PARALLEL_MIN)
    if target is not out:
        copy_into(out, target)


def dropout(
    x: Any, p: float = 0.5, training: bool = True, inplace: bool = False, *, generator: Any = None
) -> Any:
    """Zero each element with probability ``p`` and scale the rest by ``1 / (1 - p)``
    (Srivastava et al. 2014); the identity unless ``training``.

    Raises:
        ValueError: p outside [0, 1].
    """
    p = _probability("dropout", p)
    if not isinstance(x, Value) or x.dtype.kind != "f":
        raise TypeError(expected("dropout", "a floating Tensor", "x", shown(x), "use .float()"))
    if not training or p == 0:
        return x
    seed, offset = (default_generator if generator is None else generator).take(
        math.prod(x.shape), 1
    )
    if inplace:
        return dropout_at.in_place(x, p=p, seed=seed, offset=offset)
    return dropout_at(x, p=p, seed=seed, offset=offset)


@composite
def dropout_channels(x: Any, p: float, inplace: bool = False, *, generator: Any = None) -> Any:
    """Zero each channel (n, c) of x with probability ``p`` and scale the rest by ``1 / (1 - p)``
    (Tompson et al. 2015). Keeps one factor a channel, drawn on the CPU as all random numbers are.

    Raises:
        ShapeError: x has fewer than two axes.
    """
    if not isinstance(x, Value) or x.dtype.kind != "f":
        raise TypeError(expected("dropout2d", "a floating Tensor", "x", shown(x), "use .float()"))
    axes = len(x.shape)
    if axes < 2:
        raise ShapeError(
            expected("dropout2d", "(n, c, h, w)", "x", shown(x), "use dropout without channels")
        )
    if axes == 2:
        warn_user(
            "dropout2d: Received a 2-D input to dropout2d, which is deprecated; please use dropout "
            "instead"
        )
    ones = full((*x.shape[:2], *[1] * (axes - 2)), 1, dtype=x.dtype)
    factors = to_device(dropout(ones, p, generator=generator), x.device)
    return mul.in_place(x, factors) if inplace else mul(x, factors)
