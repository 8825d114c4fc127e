"""A row vector times a matrix: bound by reading the matrix, which is read once."""

from ..native import stack
from . import vector as v
from .subroutine import subroutine
from .tile import finish

# Columns that are summed in L1 at a time.
CHUNK = 1024
CHUNK_BYTES = 8 * CHUNK


@subroutine
def _row_times_rows(t, k, j0, count, x, x0, x_step, y, y0, y_row, sums):
    """``sums[j] = sum(x[p] * y[p, j0 + j])``, rows of y contiguous: add rows, four a pass."""
    size = v.lanes(t)
    zero = v.splat(t)
    for c in range(0, count, size):
        v.store(sums, c, zero)
    whole = count & -size
    four = k & -4
    for p in range(0, four, 4):
        xp = x0 + p * x_step
        f0 = v.splat(v.get(t, x, xp))
        f1 = v.splat(v.get(t, x, xp + x_step))
        f2 = v.splat(v.get(t, x, xp + 2 * x_step))
        f3 = v.splat(v.get(t, x, xp + 3 * x_step))
        r0 = y0 + p * y_row + j0
        r1, r2, r3 = r0 + y_row, r0 + 2 * y_row, r0 + 3 * y_row
        for c in range(0, whole, size):
            s = v.load(t, sums, c)
            s = v.multiply_add(f0, v.load(t, y, r0 + c), s)
            s = v.multiply_add(f1, v.load(t, y, r1 + c), s)
            s = v.multiply_add(f2, v.load(t, y, r2 + c), s)
            s = v.multiply_add(f3, v.load(t, y, r3 + c), s)
            v.store(sums, c, s)
    # What is left, in the same order of p: the last rows of the whole vectors, then all rows of the
    # columns that fill no vector.
    for c in range(0, count, size):
        s = v.load(t, sums, c)
        for p in range(four if c < whole else 0, k):
            value = v.load_some(t, y, y0 + p * y_row + j0 + c, count - c)
            s = v.multiply_add(v.splat(v.get(t, x, x0 + p * x_step)), value, s)
        v.store(sums, c, s)


@subroutine
def _row_times_columns(t, k, j0, count, x, x0, y, y0, y_column, sums):
    """The same where columns of y, and x, are contiguous: dot products, four columns at a time."""
    whole = k & -v.lanes(t)
    size = v.lanes(t)
    last = count - 1
    for j in range(0, count, 4):
        c0 = y0 + (j0 + j) * y_column
        c1 = y0 + (j0 + v.least(j + 1, last)) * y_column
        c2 = y0 + (j0 + v.least(j + 2, last)) * y_column
        c3 = y0 + (j0 + v.least(j + 3, last)) * y_column
        a0 = v.splat(t)
        a1, a2, a3 = a0, a0, a0
        for p in range(0, whole, size):
            f = v.load(t, x, x0 + p)
            a0 = v.multiply_add(f, v.load(t, y, c0 + p), a0)
            a1 = v.multiply_add(f, v.load(t, y, c1 + p), a1)
            a2 = v.multiply_add(f, v.load(t, y, c2 + p), a2)
            a3 = v.multiply_add(f, v.load(t, y, c3 + p), a3)
        if whole < k:
            rest = k - whole
            f = v.load_some(t, x, x0 + whole, rest)
            a0 = v.multiply_add(f, v.load_some(t, y, c0 + whole, rest), a0)
            a1 = v.multiply_add(f, v.load_some(t, y, c1 + whole, rest), a1)
            a2 = v.multiply_add(f, v.load_some(t, y, c2 + whole, rest), a2)
            a3 = v.multiply_add(f, v.load_some(t, y, c3 + whole, rest), a3)
        # Beyond ``count`` these write into the slack at the end of the chunk.
        v.put(sums, j, v.total(a0))
        v.put(sums, j + 1, v.total(a1))
        v.put(sums, j + 2, v.total(a2))
        v.put(sums, j + 3, v.total(a3))


@subroutine
def row_product(
    t, k, i0, i1, j0, j1, x, x0, x_row, x_step, y, y0, y_row, y_column,
    out, o0, out_row, out_column, epilogue, bias_row, bias_column, beta, workspace,
):  # fmt: skip
    """Columns [j0, j1) of a row vector times a matrix: bound by reading ``y``, done once."""
    sums = stack(CHUNK_BYTES)
    columns = y_row == 1 and y_column != 1
    if columns and x_step != 1:
        for p in range(k):
            v.put(workspace, p, v.get(t, x, x0 + p * x_step))
        x, x0 = workspace, 0
    for c in range(j0, j1, CHUNK):
        count = v.least(CHUNK, j1 - c)
        if columns:
            _row_times_columns(t, k, c, count, x, x0, y, y0, y_column, sums)
        elif y_column == 1:
            _row_times_rows(t, k, c, count, x, x0, x_step, y, y0, y_row, sums)
        else:
            for j in range(count):
                s = t
                for p in range(k):
                    at = y0 + p * y_row + (c + j) * y_column
                    s += v.get(t, x, x0 + p * x_step) * v.get(t, y, at)
                v.put(sums, j, s)
        finish(
            t, sums, CHUNK, 1, count, out, o0 + c * out_column, 0, out_column,
            beta, epilogue, c * bias_column, 0,
        )  # fmt: skip
