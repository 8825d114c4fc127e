"""Convolution over one or two spatial axes: a closed family of three entries, and the public
functions.

All three are bilinear and share their attributes, so each is the gradient of the others:

==========================  =========  ==========================================================
entry                       operands   result
==========================  =========  ==========================================================
``convolution``             x, weight  the cross-correlation of x and weight
``convolution_transposed``  x, weight  its adjoint in x: x is shaped like a result of convolution
``convolution_weight``      x, y       its adjoint in weight: y is shaped like such a result
==========================  =========  ==========================================================

(y is called g in kernels; here g is what arrives at the result of an entry.)

``size`` is always the spatial size of the result: a stride leaves that of x open, and beyond the
last place that is read there may be more of x.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph.apply import apply
from ..graph.errors import DtypeError, RangeError, ShapeError, expected, shown
from ..graph.mode import composite
from ..graph.value import Value
from ..kernels import convolution as kernels
from .attributes import FORMS, length, lengths
from .derived import Derived
from .kernel_calls import contiguous_array, workspace
from .movement import reshape, unsqueeze
from .primitive import primitive, tensor_operand
from .reduction import sum_over

# ------------------------------------------------------------------------------------------ entries


def _planes(array: np.ndarray) -> np.ndarray:
    """With two spatial axes where there is one: the first of length 1; no copy."""
    return array[:, :, None]


def _pairs(
    stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """The attributes for planes, where there is one spatial axis."""
    return (1, *stride), (0, *padding), (1, *dilation)


def _shift(bias: np.ndarray | None) -> np.ndarray | None:
    return None if bias is None else contiguous_array(bias)


def _of_channels(g: Any) -> Any:
    """The sum over all axes but the channels'."""
    return sum_over(g, axes=(0, *range(2, g.dim())), keepdim=False)


def _infer(x: Any, weight: Any, bias: Any = None, *, size: Any, groups: int, **attrs: Any) -> Any:
    return (x.shape[0], weight.shape[0], *size), x.dtype


def _infer_transposed(
    x: Any, weight: Any, bias: Any = None, *, size: Any, groups: int, **attrs: Any
) -> Any:
    return (x.shape[0], weight.shape[1] * groups, *size), x.dtype


def _infer_weight(x: Any, y: Any, *, size: Any, groups: int, **attrs: Any) -> Any:
    return (y.shape[1], x.shape[1] // groups, *size), x.dtype


def _convolved(g: Any, weight: Any, size: Any, *attrs: Any) -> Any:
    return convolution(g, weight, size=size[2:], **_named(*attrs))


def _transposed(g: Any, weight: Any, size: Any, *attrs: Any) -> Any:
    return convolution_transposed(g, weight, size=size[2:], **_named(*attrs))


def _weight(x: Any, y: Any, size: Any, *attrs: Any) -> Any:
    return convolution_weight(x, y, size=size[2:], **_named(*attrs))


def _named(stride: Any, padding: Any, dilation: Any, groups: int) -> dict[str, Any]:
    return {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}


@primitive(
    infer=_infer,
    dx=lambda g, weight, x_shape, stride, padding, dilation, groups: _transposed(
        g, weight, x_shape, stride, padding, dilation, groups
    ),
    dweight=lambda g, x, weight_shape, stride, padding, dilation, groups: _weight(
        x, g, weight_shape, stride, padding, dilation, groups
    ),
    dbias=lambda g: _of_channels(g),
    deferrable=True,
    reference="numgrad.kernels.reference.convolution:convolve",
)
def convolution(out, x, weight, bias=None, *, size, stride, padding, dilation, groups, record):
    """``out[n, k, i, j] = Σ x[n, c, i·sh + r·dh - ph, j·sw + s·dw - pw] · weight[k, c, r, s]``
    over the c of k's group, r and s, with zeros outside x, ``+ bias[k]``; operands of any strides,
    without copies. ``size`` may be less or more than what fits: beyond the end x is 0, too."""
    kept, shift = Derived(weight, lasting=not record), _shift(bias)
    if len(stride) == 1:
        stride, padding, dilation = _pairs(stride, padding, dilation)
        out, x, weight = _planes(out), _planes(x), _planes(weight)
    kernels.convolve(
        out, x, weight, stride=stride, padding=padding, dilation=dilation, groups=groups,
        workspace=workspace, kept=kept, shift=shift,
    )  # fmt: skip


@primitive(
    infer=_infer_transposed,
    dx=lambda g, weight, x_shape, stride, padding, dilation, groups: _convolved(
        g, weight, x_shape, stride, padding, dilation, groups
    ),
    dweight=lambda g, x, weight_shape, stride, padding, dilation, groups: _weight(
        g, x, weight_shape, stride, padding, dilation, groups
    ),
    dbias=lambda g: _of_channels(g),
    reference="numgrad.kernels.reference.convolution:convolve_transposed",
)
def convolution_transposed(out, x, weight, bias=None, *, size, stride, padding, dilation, groups):
    """The adjoint of `convolution` in its x: each ``x[n, k, i, j] · weight[k, c, r, s]`` is added
    to ``out[n, c, i·sh + r·dh - ph, j·sw + s·dw - pw]`` if that is inside, and ``bias[c]`` to all.
    """
    kept = Derived(weight, lasting=False)  # mostly this is a gradient, and the weight in training
    if len(stride) == 1:
        stride, padding, dilation = _pairs(stride, padding, dilation)
        out, x, weight = _planes(out), _planes(x), _planes(weight)
    kernels.convolve_transposed(
        out, x, weight, stride=stride, padding=padding, dilation=dilation, groups=groups,
        workspace=workspace, kept=kept, shift=_shift(bias),
    )  # fmt: skip


@primitive(
    infer=_infer_weight,
    dx=lambda g, y, x_shape, stride, padding, dilation, groups: _transposed(
        y, g, x_shape, stride, padding, dilation, groups
    ),
    dy=lambda g, x, y_shape, stride, padding, dilation, groups: _convolved(
        x, g, y_shape, stride, padding, dilation, groups
    ),
    reference="numgrad.kernels.reference.convolution:weight_gradient",
)
def convolution_weight(out, x, y, *, size, stride, padding, dilation, groups):
    """The adjoint of `convolution` in its weight: ``out[k, c, r, s]`` is the sum over n, i, j of
    ``y[n, k, i, j] · x[n, c, i·sh + r·dh - ph, j·sw + s·dw - pw]``."""
    if len(stride) == 1:
        stride, padding, dilation = _pairs(stride, padding, dilation)
        out, x, y = _planes(out), _planes(x), _planes(y)
    kernels.weight_gradient(
        out, x, y, stride=stride, padding=padding, dilation=dilation, groups=groups,
        workspace=workspace,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------- checks


def _groups(op: str, groups: Any, weight: Any) -> int:
    found = length(op, "groups", groups, 1)
    if weight.shape[0] % found:
        raise ShapeError(
            expected(
                op,
                f"a first axis that {found} groups divide",
                "weight",
                shown(weight),
                "change groups",
            )
        )
    return found


def _operands(op: str, n: int, x: Any, weight: Any, bias: Any) -> None:
    """Raise unless the operands are tensors of one floating dtype with the axes they need."""
    if not isinstance(x, Value) or not isinstance(weight, Value):
        tensor_operand(op, x)
        tensor_operand(op, weight, "weight")
    axes = len(x.shape)
    if axes != n + 2 and axes != n + 1:
        raise ShapeError(expected(op, FORMS[n], "x", shown(x), "unsqueeze or reshape it"))
    if len(weight.shape) != n + 2 or 0 in weight.shape[2:] or weight.shape[0] == 0:
        raise ShapeError(
            expected(op, f"{n + 2} axes that are not empty", "weight", shown(weight), "reshape it")
        )
    if 0 in x.shape[-n:]:
        raise ShapeError(expected(op, "spatial axes of length 1 or more", "x", shown(x), "pad it"))
    if bias is None:
        if x.dtype is weight.dtype and x.dtype.kind == "f":
            return
    else:
        tensor_operand(op, bias, "bias")
    for name, operand in ("x", x), ("weight", weight), ("bias", bias):
        if operand is None:
            continue
        if operand.dtype.kind != "f":
            raise DtypeError(
                expected(op, "a floating dtype", name, shown(operand), "convert it with .float()")
            )
        if operand.dtype != x.dtype:
            raise DtypeError(
                expected(
                    op,
                    f"dtype {x.dtype}, that of x,",
                    name,
                    shown(operand),
                    f"convert one of them; x is {shown(x)}",
                )
            )


def _check_channels(op: str, x: Any, n: int, channels: int, weight: Any, groups: int) -> None:
    if x.shape[-n - 1] != channels:
        raise ShapeError(
            expected(
                op,
                f"{channels} channels",
                "x",
                shown(x),
                f"its axis {x.dim() - n - 1} must fit weight {weight.shape} with {groups} "
                f"group{'s' * (groups > 1)}" + _last(x, n, channels),
            )
        )


def _last(x: Any, n: int, channels: int) -> str:
    """The way out for channels that stand last."""
    if x.shape[-1] != channels:
        return ""
    axes = list(range(x.dim()))
    axes.insert(-n - 1 + x.dim(), axes.pop())
    return f": bring the channels, which seem to stand last, there by permute({str(axes)[1:-1]})"


def _check_bias(op: str, bias: Any, channels: int) -> None:
    if bias is not None and bias.shape != (channels,):
        raise ShapeError(
            expected(op, f"shape ({channels},)", "bias", shown(bias), "one for each output channel")
        )


def same_padding(
    op: str, stride: Sequence[int], dilation: Sequence[int], kernel: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding before and after each axis with which the result is as long as the input; the odd
    one comes after.

    Raises:
        RangeError: with a stride that is not possible.
    """
    if any(s != 1 for s in stride):
        raise RangeError(
            expected(op, "stride 1 with padding='same'", "stride", tuple(stride), "give integers")
        )
    total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    return tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)


# ------------------------------------------------------------------------------------------- public


def _batched(entry: Any, n: int, x: Any, weight: Any, bias: Any, attrs: Any) -> Any:
    """Run an entry, also without a batch axis."""
    if len(x.shape) == n + 2:
        return apply(entry, (x, weight, bias), attrs)  # operands are checked, attributes complete
    out = entry(unsqueeze(x, 0), weight, bias, **attrs)
    return reshape(out, *out.shape[1:])


def _conv(
    op: str,
    n: int,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
) -> Any:
    _operands(op, n, x, weight, bias)
    if type(groups) is not int or groups != 1:
        groups = _groups(op, groups, weight)
    _check_channels(op, x, n, weight.shape[1] * groups, weight, groups)
    if bias is not None:
        _check_bias(op, bias, weight.shape[0])
    stride = lengths(op, "stride", stride, n, 1)
    dilation = lengths(op, "dilation", dilation, n, 1)
    if not isinstance(padding, str):
        before = after = lengths(op, "padding", padding, n, 0)
    elif padding == "same":
        before, after = same_padding(op, stride, dilation, weight.shape[2:])
    elif padding == "valid":
        before = after = (0,) * n
    else:
        raise RangeError(
            expected(op, "integers, 'valid' or 'same'", "padding", repr(padding), "use one of them")
        )
    attrs = {
        "size": _size(op, n, x.shape, weight.shape, stride, before, after, dilation),
        "stride": stride,
        "padding": before,
        "dilation": dilation,
        "groups": groups,
    }
    return _batched(convolution, n, x, weight, bias, attrs)


@functools.lru_cache(4096)
def _size(
    op: str,
    n: int,
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    stride: tuple[int, ...],
    before: tuple[int, ...],
    after: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[int, ...]:
    """The spatial size of a convolution's result, with this padding before and after each axis.

    Raises:
        ShapeError: the kernel does not fit into the padded x.
    """
    padded = [h + p + q for h, p, q in zip(x_shape[-n:], before, after, strict=True)]
    extent = [d * (k - 1) + 1 for k, d in zip(w_shape[2:], dilation, strict=True)]
    if any(e > h for e, h in zip(extent, padded, strict=True)):
        raise ShapeError(
            expected(
                op,
                f"a kernel that fits into the padded x {tuple(padded)}",
                "weight",
                f"one that reaches over {tuple(extent)} (weight {w_shape}, x "
                f"{x_shape}, padding {before}, dilation {dilation})",
                "pad more",
            )
        )
    return tuple((h - e) // s + 1 for h, e, s in zip(padded, extent, stride, strict=True))


@composite
def conv1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Any = 1,
) -> Any:
    """Cross-correlation of sequences, (n, c, l) or (c, l), with weight (k, c / groups, r).

    See `conv2d`, which has one more axis of each.
    """
    return _conv("conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


@composite
def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Any = 1,
) -> Any:
    """Cross-correlation of images, ``out[n, k, i, j] = bias[k] +
    Σ input[n, c, i·stride + r·dilation - padding, …] · weight[k, c, r, s]`` over c, r and s.

    Args:
        input: (n, c, h, w) or (c, h, w), of any strides.
        weight: (k, c / groups, r, s). With 0 channels the result is the bias.
        bias: (k,) or None.
        stride, dilation: an integer or one for each of h and w.
        padding: zeros before and after each axis, the same way; ``'valid'`` for none; ``'same'``
            for as many as keep the size (stride 1 only; an odd one comes after).
        groups: into how many groups channels are split: output channels see those of their own.

    Returns:
        (n, k, oh, ow), ``oh = (h + 2·padding - dilation·(r - 1) - 1) // stride + 1``.

    Raises:
        ShapeError: axes, channels, groups or bias do not fit; the kernel is larger than the padded
            input.
        DtypeError: dtypes differ or are not floating.
        RangeError: stride, dilation or groups below 1, padding below 0, or not one for each axis.
        TypeError: one is no integer.
    """
    return _conv("conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


def _conv_transpose(
    op: str,
    n: int,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: Any,
    dilation: Any,
) -> Any:
    _operands(op, n, x, weight, bias)
    groups = _groups(op, groups, weight)
    _check_channels(op, x, n, weight.shape[0], weight, groups)
    if weight.shape[1] == 0:
        way_out = "reshape it"
        raise ShapeError(expected(op, "output channels", "weight", shown(weight), way_out))
    _check_bias(op, bias, weight.shape[1] * groups)
    stride = lengths(op, "stride", stride, n, 1)
    padding = lengths(op, "padding", padding, n, 0)
    dilation = lengths(op, "dilation", dilation, n, 1)
    extra = lengths(op, "output_padding", output_padding, n, 0)
    if any(e >= max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True)):
        raise RangeError(
            expected(
                op,
                "less than stride or dilation",
                "output_padding",
                f"{extra} (stride {stride}, dilation {dilation})",
                "pad the result instead",
            )
        )
    size = transposed_size(x.shape[-n:], weight.shape[2:], stride, padding, dilation, extra)
    if any(h < 1 for h in size):
        raise ShapeError(
            expected(
                op,
                "a result with spatial axes of length 1 or more",
                "x",
                f"{size} (x {x.shape}, weight {weight.shape}, padding {padding})",
                "pad less",
            )
        )
    attrs = {"size": size, **_named(stride, padding, dilation, groups)}
    return _batched(convolution_transposed, n, x, weight, bias, attrs)


def transposed_size(
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    extra: Sequence[int],
) -> tuple[int, ...]:
    """The spatial size of a transposed convolution, ``extra`` included."""
    return tuple(
        (h - 1) * s - 2 * p + d * (k - 1) + 1 + e
        for h, k, s, p, d, e in zip(size, kernel, stride, padding, dilation, extra, strict=True)
    )


@composite
def conv_transpose1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: Any = 1,
    dilation: Any = 1,
) -> Any:
    """The adjoint of `conv1d`: (n, k, l) or (k, l) with weight (k, c / groups, r).

    See `conv_transpose2d`, which has one more axis of each.
    """
    return _conv_transpose(
        "conv_transpose1d",
        1,
        input,
        weight,
        bias,
        stride,
        padding,
        output_padding,
        groups,
        dilation,
    )


@composite
def conv_transpose2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: Any = 1,
    dilation: Any = 1,
) -> Any:
    """The adjoint of `conv2d`, which is its gradient for the input: each ``input[n, k, i, j] ·
    weight[k, c, r, s]`` is added to ``out[n, c, i·stride + r·dilation - padding, …]``.

    Args:
        input: (n, k, h, w) or (k, h, w), of any strides.
        weight: (k, c / groups, r, s).
        bias: (c,) or None.
        stride, padding, dilation, groups: those of the `conv2d` it is the adjoint of.
        output_padding: how much longer the result is at its end: with a stride, inputs of several
            sizes give the same output of `conv2d`.

    Returns:
        (n, c, oh, ow), ``oh = (h - 1)·stride - 2·padding + dilation·(r - 1) + 1 + output_padding``.

    Raises:
        ShapeError: axes, channels, groups or bias do not fit; the result would be empty.
        DtypeError: dtypes differ or are not floating.
        RangeError: stride, dilation or groups below 1, padding below 0, or not one for each axis;
            output_padding not less than stride or dilation.
        TypeError: one is no integer.
    """
    return _conv_transpose(
        "conv_transpose2d",
        2,
        input,
        weight,
        bias,
        stride,
        padding,
        output_padding,
        groups,
        dilation,
    )
