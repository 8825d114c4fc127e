"""Padding and interpolation: axes made longer or shorter."""

from typing import Any

from ...ops import interpolation, padding
from ...tensor import Tensor


def pad(input: Tensor, pad: tuple[int, ...], mode: str = "constant", value: Any = None) -> Tensor:
    """Elements put around the last axes; negative numbers take elements away.

    Args:
        input: any dtype.
        pad: ``(before, after)`` of the last axis, then of the one before it, and so on.
        mode: ``constant`` puts ``value`` (0 if left out) around any number of axes; ``reflect`` the
            elements mirrored at the edge, which is not repeated; ``replicate`` the edge;
            ``circular`` the other end. These three pad the last axis of 2 or 3 axes, the last two
            of 3 or 4, the last three of 4 or 5.

    Raises:
        ShapeError: pad is no list of pairs, does not fit the input, or reaches farther than the
            mode can.
        RangeError: pad is beyond 2**31; value is out of the range of the dtype, or the mode takes
            none.
        TypeError: pad is not of integers, or value is no number.
        NotImplementedError: there is no such mode.
    """
    return padding.pad(input, pad, mode, value)


def interpolate(
    input: Tensor,
    size: int | tuple[int, ...] | None = None,
    scale_factor: float | tuple[float, ...] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """The last axes of (n, c, l) or (n, c, h, w) made longer or shorter.

    Args:
        input: float32, float64 or uint8.
        size: the new lengths, one for each axis or one for all.
        scale_factor: instead of it, lengths ``floor(n · scale_factor)``.
        mode: ``nearest``: out[i] = x[floor(i / scale_factor)], or x[floor(i · n / size)].
        recompute_scale_factor: whether scale_factor only tells the new lengths, from which the
            places follow.
        align_corners, antialias: for modes that there are not.

    Raises:
        ShapeError: the input has no elements.
        RangeError: not exactly one of size and scale_factor, not one for each axis, a length that
            is not positive, or an argument that the mode does not take.
        DtypeError: another dtype.
        TypeError: size is not of integers, or scale_factor not of numbers.
        NotImplementedError: another mode, or more or fewer axes.
    """
    return interpolation.interpolate(
        input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias
    )
