"""Normalisation by statistics of channels or of rows."""

from collections.abc import Sequence

from ...ops import normalization as ops
from ...ops import row_normalization as row_ops
from ...tensor import Tensor


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """``(x - mean) / sqrt(var + eps) · weight + bias`` for each channel of x (n, c, …).

    With ``training`` mean and variance are those of x, and ``running = (1 - momentum) · running +
    momentum · new`` (of the unbiased variance), whether or not x is volatile. Without it they are
    the running ones.

    Args:
        input: floats (n, c), (n, c, l) or (n, c, h, w), of any strides.
        running_mean, running_var: (c,), of x's dtype; None in training to keep none.
        weight, bias: (c,), of x's dtype, or None for 1 and 0.

    Raises:
        ShapeError: the shapes do not fit. DtypeError: x is not floating or the dtypes differ.
        ValueError: in training, there is one value a channel; eps is not positive.
        RuntimeError: not in training, and running statistics are missing.

    Notes: S. Ioffe, C. Szegedy, "Batch normalization" (ICML 2015).
    """
    return ops.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """``(x - mean) / sqrt(var + eps) · weight + bias`` over the last axes of x together, which have
    the shape ``normalized_shape``, as weight and bias have.

    Raises:
        ShapeError: the shapes do not fit. DtypeError: x is not floating or the dtypes differ.
        ValueError: normalized_shape is empty, or eps is negative.

    Notes: J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer normalization" (2016).
    """
    return row_ops.layer_norm(input, normalized_shape, weight, bias, eps)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """``(x - mean) / sqrt(var + eps) · weight + bias`` over each of ``num_groups`` groups of
    channels of each sample of x (n, c, …); weight and bias are (c,).

    Raises:
        ShapeError: the shapes do not fit, or num_groups does not divide c.
        DtypeError: x is not floating or the dtypes differ.
        ValueError: a group is a single value, num_groups is not positive, or eps is negative.

    Notes: Y. Wu, K. He, "Group normalization" (ECCV 2018).
    """
    return row_ops.group_norm(input, num_groups, weight, bias, eps)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """``(x - mean) / sqrt(var + eps) · weight + bias`` over each channel of each sample of x
    (n, c, …); by the running statistics without ``use_input_stats``.

    Raises:
        ShapeError, DtypeError, RuntimeError: as by `batch_norm`.
        ValueError: a channel of a sample is a single value, or eps is negative.

    Notes: D. Ulyanov, A. Vedaldi, V. Lempitsky, "Instance normalization" (2016).
    """
    return row_ops.instance_norm(
        input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
    )
