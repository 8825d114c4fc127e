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
    scale: int = 0
    """The epilogue: addresses of elements a channel of out, or 0."""
    shift: int = 0
    residual: int = 0
    """Address of a tensor of out's shape, or 0; four strides."""
    residual_n: int = 0
    residual_c: int = 0
    residual_h: int = 0
    residual_w: int = 0
    clamp: int = 0
    """Address of two elements, the least and the greatest result, or 0."""
    workspace: int = 0
    workspace_bytes: int = 0
    """Bytes of workspace for each worker; worker w owns the w-th part."""
    offset_1: int = 0
    """Bytes from there to what is packed second, and third."""
    offset_2: int = 0
    channels: int = 0
    """Input channels that are packed at a time."""
    chunk: int = 0
    """Pixels whose patches are packed at a time."""
    strips: int = 0
    """Items of one group."""
    by_pixels: int = 0
    """1: a strip is NR pixels of all rows; 0: it is STRIP_ROWS rows of all pixels."""


(
    IMAGES, GROUPS, ROWS, DEPTH, HEIGHT, WIDTH, OUT_HEIGHT, OUT_WIDTH, TAPS_H, TAPS_W,
    STRIDE_H, STRIDE_W, DILATION_H, DILATION_W, PADDING_H, PADDING_W,
    X, X_N, X_C, X_H, X_W, W, W_GROUP, W_ROW, W_C, W_R, W_S, OUT, OUT_N, OUT_C, OUT_H, OUT_W,
    SCALE, SHIFT, RESIDUAL, RESIDUAL_N, RESIDUAL_C, RESIDUAL_H, RESIDUAL_W, CLAMP,
    WORKSPACE, WORKSPACE_BYTES, OFFSET_1, OFFSET_2, CHANNELS, CHUNK, STRIPS, BY_PIXELS,
) = range(len(Slots._fields))  # fmt: skip
