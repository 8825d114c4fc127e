"""Convolutions, with the signatures of ``torch.nn.functional``."""

from ... import ops
from ...ops.attributes import Lengths
from ...tensor import Tensor


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Lengths = 1,
    padding: str | Lengths = 0,
    dilation: Lengths = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of sequences (n, c, l) or (c, l) with weight (k, c / groups, r).

    Arguments and errors are those of `numgrad.conv2d`, with one spatial axis.
    """
    return ops.conv1d(input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Lengths = 1,
    padding: str | Lengths = 0,
    dilation: Lengths = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of images (n, c, h, w) or (c, h, w) with weight (k, c / groups, r, s).

    Arguments and errors are those of `numgrad.conv2d`.
    """
    return ops.conv2d(input, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Lengths = 1,
    padding: Lengths = 0,
    output_padding: Lengths = 0,
    groups: int = 1,
    dilation: Lengths = 1,
) -> Tensor:
    """The adjoint of `conv1d`: (n, k, l) or (k, l) with weight (k, c / groups, r).

    Arguments and errors are those of `numgrad.conv_transpose2d`, with one spatial axis.
    """
    return ops.conv_transpose1d(
        input, weight, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Lengths = 1,
    padding: Lengths = 0,
    output_padding: Lengths = 0,
    groups: int = 1,
    dilation: Lengths = 1,
) -> Tensor:
    """The adjoint of `conv2d`: (n, k, h, w) or (k, h, w) with weight (k, c / groups, r, s).

    Arguments and errors are those of `numgrad.conv_transpose2d`.
    """
    return ops.conv_transpose2d(
        input, weight, bias, stride, padding, output_padding, groups, dilation
    )
