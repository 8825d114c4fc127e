"""Layers that normalise by the mean and the deviation of channels or of rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph.errors import expected, shown, warn_user
from ..ops.creation import empty, ones, tensor, zeros
from ..ops.row_normalization import lengths_of
from ..tensor import Tensor
from ..variable import Parameter
from . import functional as F
from . import init
from .module import Module


class _Affine(Module):
    """A weight that starts at 1 and a bias that starts at 0, each of which may be missing."""

    weight: Parameter | None
    bias: Parameter | None

    def _add_affine(
        self, shape: tuple[int, ...], weight: bool, bias: bool, device: Any, dtype: Any
    ) -> None:
        for name, there in (("weight", weight), ("bias", weight and bias)):
            value = Parameter(empty(shape, dtype=dtype, device=device)) if there else None
            self.register_parameter(name, value)

    def reset_parameters(self) -> None:
        """Set weight to 1 and bias to 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)


class _Channels(_Affine):
    """What batch-norm and instance-norm share: parameters and running statistics of channels."""

    axes: tuple[int, ...]
    """How many axes the input may have."""
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        device: Any,
        dtype: Any,
        bias: bool,
    ) -> None:
        super().__init__()
        num_features = _count(type(self).__name__, "num_features", num_features)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        shape = (num_features,)
        self._add_affine(shape, affine, bias, device, dtype)
        kept = track_running_stats
        mean = zeros(shape, dtype=dtype, device=device) if kept else None
        self.register_buffer("running_mean", mean)
        self.register_buffer(
            "running_var", ones(shape, dtype=dtype, device=device) if kept else None
        )
        self.register_buffer("num_batches_tracked", tensor(0, device=device) if kept else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Set the running mean to 0, the running variance to 1 and the count of batches to 0."""
        for buffer, value in (
            (self.running_mean, 0),
            (self.running_var, 1),
            (self.num_batches_tracked, 0),
        ):
            if buffer is not None:
                buffer.fill_(value)

    def reset_parameters(self) -> None:
        """Set weight to 1, bias to 0, and the running statistics to their first values."""
        self.reset_running_stats()
        super().reset_parameters()

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() not in self.axes:
            what = " or ".join(f"{n}D" for n in self.axes)
            raise ValueError(f"expected {what} input (got {input.dim()}D input)")

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_Channels):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias
        )

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype."""
        self._check_input_dim(input)
        momentum = 0.0 if self.momentum is None else self.momentum
        moves = self.training and self.track_running_stats
        count = self.num_batches_tracked if moves else None
        if count is not None and self.momentum is None:
            momentum = 1.0 / (float(count) + 1)
        used = moves or not self.training
        mean, var = (self.running_mean, self.running_var) if used else (None, None)
        training = self.training or (mean is None and var is None)
        out = F.batch_norm(input, mean, var, self.weight, self.bias, training, momentum, self.eps)
        if count is not None:
            count.add_(1)
        return out


class BatchNorm1d(_BatchNorm):
    """``y = (x - mean) / sqrt(var + eps) · weight + bias`` for each channel of x (n, c) or
    (n, c, l).

    In training mode mean and variance are those of the batch, and the running ones move:
    ``running = (1 - momentum) · running + momentum · batch's`` (the unbiased variance). They do so
    also where weight and bias require no gradient and where x is volatile: `Module.freeze` stops
    them. In evaluation mode the running ones are used.

    Args:
        num_features: c.
        eps: added to the variance.
        momentum: of the running statistics; None for the average of all batches.
        affine: whether there are weight and bias.
        track_running_stats: whether there are running statistics; without them evaluation uses
            the batch's.
        device, dtype: of parameters and running statistics.
        bias: whether there is a bias beside the weight.

    Attributes:
        weight, bias: (c,), 1 and 0 at first; or None.
        running_mean, running_var: buffers (c,), 0 and 1 at first; or None.
        num_batches_tracked: buffer (), int64; or None.

    Raises:
        ValueError: x has other axes; in training mode, there is one value a channel.
        ShapeError: x has another number of channels. DtypeError: x has another dtype.

    Notes: S. Ioffe, C. Szegedy, "Batch normalization" (ICML 2015).
    """

    axes = (2, 3)


class BatchNorm2d(_BatchNorm):
    """`BatchNorm1d` for images: x is (n, c, h, w)."""

    axes = (4,)


class _InstanceNorm(_Channels):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias
        )

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype."""
        self._check_input_dim(input)
        single = input.dim() == min(self.axes)
        axis = 0 if single else 1
        if input.shape[axis] != self.num_features:
            if self.affine:
                raise ValueError(
                    f"expected input's size at dim={axis} to match num_features "
                    f"({self.num_features}), but got: {input.shape[axis]}."
                )
            warn_user(f"input's size at dim={axis} does not match num_features.")
        out = F.instance_norm(
            input.unsqueeze(0) if single else input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
        )
        return out.squeeze(0) if single else out


class InstanceNorm1d(_InstanceNorm):
    """``y = (x - mean) / sqrt(var + eps) · weight + bias`` for each channel of each sample of x
    (n, c, l); a single sample may be (c, l).

    Mean and variance are x's own, in evaluation mode, too, unless ``track_running_stats``: then
    running ones are kept as by `BatchNorm1d`, averaged over the batch. Arguments, attributes and
    errors are those of `BatchNorm1d`; weight and bias are off by default, and a single value a
    channel and sample is a ValueError.

    Notes: D. Ulyanov, A. Vedaldi, V. Lempitsky, "Instance normalization" (2016).
    """

    axes = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """`InstanceNorm1d` for images: x is (n, c, h, w) or (c, h, w)."""

    axes = (3, 4)


class LayerNorm(_Affine):
    """``y = (x - mean) / sqrt(var + eps) · weight + bias`` over the last axes of x together.

    Args:
        normalized_shape: the lengths of these axes, or the length of the last.
        eps: added to the variance.
        elementwise_affine: whether there are weight and bias.
        bias: whether there is a bias beside the weight.
        device, dtype: of the parameters.

    Attributes:
        weight, bias: of the shape normalized_shape, 1 and 0 at first; or None.

    Raises:
        ShapeError: the last axes of x have other lengths. DtypeError: x has another dtype.

    Notes: J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer normalization" (2016).
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = lengths_of("LayerNorm", normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self._add_affine(self.normalized_shape, elementwise_affine, bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype."""
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, "
            f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        )


class GroupNorm(_Affine):
    """``y = (x - mean) / sqrt(var + eps) · weight + bias`` over each group of channels of each
    sample of x (n, c, …).

    Args:
        num_groups: how many groups; it divides num_channels.
        num_channels: c.
        eps: added to the variance.
        affine: whether there are weight and bias.
        device, dtype: of the parameters.
        bias: whether there is a bias beside the weight.

    Attributes:
        weight, bias: (c,), 1 and 0 at first; or None.

    Raises:
        ValueError: num_groups does not divide num_channels; a group is a single value.
        ShapeError: x has another number of channels. DtypeError: x has another dtype.

    Notes: Y. Wu, K. He, "Group normalization" (ECCV 2018).
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        num_groups = _count("GroupNorm", "num_groups", num_groups)
        num_channels = _count("GroupNorm", "num_channels", num_channels)
        if num_channels % num_groups:
            raise ValueError(
                f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})"
            )
        self.num_groups, self.num_channels = num_groups, num_channels
        self.eps, self.affine = eps, affine
        self._add_affine((num_channels,), affine, bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype."""
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


def _count(layer: str, name: str, n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise TypeError(expected(layer, "an integer", name, shown(n), "pass a number of channels"))
    if n < (1 if name == "num_groups" else 0):
        what = "a positive integer" if name == "num_groups" else "an integer from 0 on"
        raise ValueError(expected(layer, what, name, n, "pass a number of channels"))
    return int(n)
