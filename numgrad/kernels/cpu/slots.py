"""The slots of the convolution kernels, and the place of each."""

from typing import NamedTuple


class Slots(NamedTuple):
    """The int64 slots of all kernels here, in order. Strides count elements, and may be anything.

    ``x`` is (images, groups · depth, height, width), ``out`` (images, groups · rows, out_height,
    out_width), ``w`` (groups, rows, depth, taps_h, taps_w). Output pixel (i, j) reads, at tap
    (r, s), input pixel ``(i · stride_h + r · dilation_h - padding_h, …)``, and 0 outside of x.
    """

    images: int
    groups: int
    rows: int
    """Output channels of a group."""
    depth: int
    """Input channels of a group."""
    height: int
    width: int
    out_height: int
    out_width: int
    taps_h: int
    taps_w: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    padding_h: int
    padding_w: int
    x: int
    x_n: int
    x_c: int
    x_h: int
    x_w: int
    w: int
    w_group: int
    w_row: int
    w_c: int
    w_r: int
    w_s: int
    out: int
    out_n: int
    out_c: int
    out_h: int
    out_w: int
    scale: int
    """The epilogue: addresses of elements a channel of out, or 0."""
    shift: int
    residual: int
    """Address of a tensor of out's shape, or 0; four strides."""
    residual_n: int
    residual_c: int
    residual_h: int
    residual_w: int
    clamp: int
    """Address of two elements, the least and the greatest result, or 0."""
    workspace: int
    workspace_bytes: int
    """Bytes of workspace for each worker; worker w owns the w-th part."""
    strips: int
    """Items of one group."""
    by_pixels: int
    """1: a strip is NR pixels of all rows; 0: it is ROWS rows of all pixels."""


(
    IMAGES, GROUPS, ROWS, DEPTH, HEIGHT, WIDTH, OUT_HEIGHT, OUT_WIDTH, TAPS_H, TAPS_W,
    STRIDE_H, STRIDE_W, DILATION_H, DILATION_W, PADDING_H, PADDING_W,
    X, X_N, X_C, X_H, X_W, W, W_GROUP, W_ROW, W_C, W_R, W_S, OUT, OUT_N, OUT_C, OUT_H, OUT_W,
    SCALE, SHIFT, RESIDUAL, RESIDUAL_N, RESIDUAL_C, RESIDUAL_H, RESIDUAL_W, CLAMP,
    WORKSPACE, WORKSPACE_BYTES, STRIPS, BY_PIXELS,
) = range(len(Slots._fields))  # fmt: skip
