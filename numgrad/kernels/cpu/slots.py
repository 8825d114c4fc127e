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
    """Bytes of workspace for each worker; worker w owns the w-th part, which starts with tables of
    displacements: where an element's products are in the frame, then where they are in a panel."""
    frames: int = 0
    """Bytes from there to the frame, and to what is packed a tile or a chunk at a time."""
    panels: int = 0
    packed: int = 0
    """Address of w packed by ``pack_weights_*`` or ``pack_transposed_*``, or 0: w is read where it
    is."""
    chunk_images: int = 1
    """The part of out that is done at a time: whole images, or rows of one, or columns of one."""
    chunk_rows: int = 1
    chunk_columns: int = 1
    chunks: int = 1
    """Chunks of a group."""
    large: int = 0
    """Tiles of MR rows of w, which come before those of DIRECT_ROWS, and tiles in all."""
    row_tiles: int = 1
    parts: int = 1
    """Items a chunk has, and the tiles of rows of each."""
    part_tiles: int = 1
    tiles: int = 1
    """Tiles of pixels whose products are computed before w is read again; in
    ``convolution_weight_*`` the items of a block; unused by ``transposed_*``."""
    sums: int = 0
    """Bytes from the start of a worker's workspace to its sums."""
    direct: int = 0
    """1: products read the frame; 0: what a tile of pixels reads is packed. ``convolution_*`` alone
    has the choice."""
    in_place: int = 0
    """1: x itself is the frame, whose strides are those of x."""
    frame_h: int = 1
    """Planes of a channel of the frame down and across: places of x modulo the stride."""
    frame_w: int = 1
    frame_rows: int = 1
    frame_pitch: int = 1
    """Rows of a plane, and elements from one to the next."""
    frame_c: int = 0
    frame_n: int = 0
    """Strides of the frame."""
    frame_channels: int = 0
    """Channels it holds."""


(
    IMAGES, GROUPS, ROWS, DEPTH, HEIGHT, WIDTH, OUT_HEIGHT, OUT_WIDTH, TAPS_H, TAPS_W,
    STRIDE_H, STRIDE_W, DILATION_H, DILATION_W, PADDING_H, PADDING_W,
    X, X_N, X_C, X_H, X_W, W, W_GROUP, W_ROW, W_C, W_R, W_S, OUT, OUT_N, OUT_C, OUT_H, OUT_W,
    SCALE, SHIFT, RESIDUAL, RESIDUAL_N, RESIDUAL_C, RESIDUAL_H, RESIDUAL_W, CLAMP,
    WORKSPACE, WORKSPACE_BYTES, FRAMES, PANELS, PACKED, CHUNK_IMAGES, CHUNK_ROWS, CHUNK_COLUMNS,
    CHUNKS, LARGE, ROW_TILES, PARTS, PART_TILES, TILES, SUMS, DIRECT, IN_PLACE,
    FRAME_H, FRAME_W, FRAME_ROWS, FRAME_PITCH, FRAME_C, FRAME_N, FRAME_CHANNELS,
) = range(len(Slots._fields))  # fmt: skip
