"""What the kernels of pooling and interpolation share: planes, and where windows lie in them.

Operands are (n, c, h, w), taken apart into ``n * c`` planes.
"""

from typing import NamedTuple

from ..native import inline, item_size, items_at, load_i64


class Slots(NamedTuple):
    """The slots of pooling, int64: a kernel loads them by number. Interpolation has the first 13 of
    them, with tables of rows and columns for ``places`` and ``wide``."""

    out: int  # 0
    """Address of the result, contiguous."""
    x: int  # 1
    """Address of the operand, of any strides."""
    places: int  # 2
    """Address of the places or indices, contiguous; 0 for none."""
    wide: int  # 3
    """Whether places are int32, not uint8."""
    c: int  # 4
    x_n: int  # 5
    """The strides of the operand, in bytes."""
    x_c: int  # 6
    x_h: int  # 7
    x_w: int  # 8
    h: int  # 9
    """The size of the planes with the windows."""
    w: int  # 10
    oh: int  # 11
    """How many windows there are."""
    ow: int  # 12
    kh: int  # 13
    """The kernel_size, stride, padding and dilation of the windows."""
    kw: int  # 14
    stride_h: int  # 15
    stride_w: int  # 16
    padding_h: int  # 17
    padding_w: int  # 18
    dilation_h: int  # 19
    dilation_w: int  # 20
    adaptive: int  # 21
    """Whether windows are adaptive."""
    buffers: int  # 22
    """Address of ``buffer_bytes`` bytes for each worker."""
    buffer_bytes: int  # 23
    tile: int  # 24
    """How many windows of a row are done at a time."""
    columns: int  # 25
    """The length of a line of a buffer."""
    divisor: int  # 26
    """0: the cells inside of the plane, -1: those of the padding, too."""
    own_divisor: int  # 27
    """Whether ``divisor`` is the divisor itself."""


@inline
def first_cell(i, stride, padding, adaptive, size, count):
    """The first cell of window i along an axis; negative in the padding."""
    return i * size // count if adaptive != 0 else i * stride - padding


@inline
def cell_count(i, kernel_size, adaptive, size, count):
    """How many cells window i has along an axis, with those in the padding."""
    if adaptive != 0:
        return ((i + 1) * size + count - 1) // count - i * size // count
    return kernel_size


@inline
def cells_inside(first, cells, dilation, size):
    """(lo, hi): the cells lo <= r < hi of a window that are inside of the axis."""
    lo = max(0, -(first // dilation))
    return lo, min(cells, (size - first + dilation - 1) // dilation)


@inline
def plane_offset(args, item):
    """The offset in bytes of plane ``item`` of the operand."""
    c = load_i64(args, 4)
    return item // c * load_i64(args, 5) + item % c * load_i64(args, 6)


@inline
def columns_of(args, j0, j1):
    """(left, right): the columns that the windows j0 <= j < j1 cover, padding included."""
    w, ow, kw = load_i64(args, 10), load_i64(args, 12), load_i64(args, 14)
    stride, padding, dilation = load_i64(args, 16), load_i64(args, 18), load_i64(args, 20)
    adaptive = load_i64(args, 21)
    left = first_cell(j0, stride, padding, adaptive, w, ow)
    last = first_cell(j1 - 1, stride, padding, adaptive, w, ow)
    return left, last + (cell_count(j1 - 1, kw, adaptive, w, ow) - 1) * dilation + 1


@inline
def contiguous_row(address, offset, stride, count, spare, dtype):
    """A row of ``count`` items as contiguous ones: itself, or copied to ``spare``."""
    if stride == item_size(dtype):
        return items_at(address, offset, dtype)
    for k in range(count):
        spare[k] = items_at(address, offset + k * stride, dtype)[0]
    return spare
