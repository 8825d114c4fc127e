"""Gathering, scattering, extremes with their places, and the places of true elements.

Indices are int64, already checked and non-negative. Kernels that only move items are compiled for
each width in bytes (``take_rows_4``), kernels that calculate for each dtype (``add_rows_float32``).
Where several items may meet in one cell, a worker owns whole cells and visits their items in the
order of the rows, so the result is the same bits however the items are split.

A kernel's card is the docstring of the function inside its factory; the factory is called once a
dtype. A factory may close over dtypes alone: Numba's cache keys a function by its name, its code
and its pickled cells, and a jitted function or an intrinsic pickles differently in every process.

*Contiguous inner* means that the last axis has no gaps. Strides are in bytes, except where a card
says items; all arrays are aligned to their items.
"""

from typing import Any

import numpy as np

from ..native import (
    as_int64,
    as_uint8,
    inline,
    item_size,
    items_at,
    load_i64,
    stack,
    store_i64,
)
from ..store import Handwritten, kernel, named

TILE = 256
"""Lanes searched together where lanes lie side by side: values and places take 4 KiB of stack."""
TILE_BYTES = 8 * TILE
SCAN = 64
"""Elements tested together for "none is better" where one lane is contiguous."""


@inline
def _lane(item, inner):
    """The (outer, inner) indices of a lane; (0, 0) where inner is 0 and there are no lanes."""
    return (item // inner, item % inner) if inner > 0 else (0, 0)


# ------------------------------------------------------------------------------------------- rows


def _take_rows(name: str, word: Any) -> Handwritten:
    def take_rows(args, lo, hi, worker):
        """out[i, :] = x[index[i], :] for the rows lo <= i < hi.

        Slots: 0 out (rows, inner) contiguous; 1 x, contiguous inner; 2 index (rows,); 3 inner;
        4 stride of x's rows in bytes (may be 0 or negative). Items are rows of out. Reads 8 bytes
        a row and an item an item, writes an item an item. Not checked: index, overlap.
        """
        x, index, inner = load_i64(args, 1), as_int64(load_i64(args, 2)), load_i64(args, 3)
        out, stride = load_i64(args, 0), load_i64(args, 4)
        if inner == 1:
            target = items_at(out, 0, word)
            for i in range(lo, hi):
                target[i] = items_at(x, index[i] * stride, word)[0]
            return
        for i in range(lo, hi):
            row = items_at(x, index[i] * stride, word)
            target = items_at(out, i * inner * item_size(word), word)
            for j in range(inner):
                target[j] = row[j]

    return named(name, take_rows)


def _put_rows(name: str, word: Any) -> Handwritten:
    def put_rows(args, lo, hi, worker):
        """out[index[i], j] = v[i, j] for all rows i in order, the last wins; columns lo <= j < hi.

        Slots: 0 out, contiguous inner; 1 v, contiguous inner; 2 index (rows,); 3 rows; 4 stride
        of out's rows, 5 of v's rows in bytes (0: the same row every time). Items are columns.
        Reads 8 bytes a row and an item an item, writes an item an item. Not checked: index,
        overlap.
        """
        index, rows, columns = as_int64(load_i64(args, 2)), load_i64(args, 3), hi - lo
        out, v, start = load_i64(args, 0), load_i64(args, 1), lo * item_size(word)
        out_stride, v_stride = load_i64(args, 4), load_i64(args, 5)
        if columns == 1:
            for i in range(rows):
                value = items_at(v, i * v_stride + start, word)[0]
                items_at(out, index[i] * out_stride + start, word)[0] = value
            return
        for i in range(rows):
            target = items_at(out, index[i] * out_stride + start, word)
            row = items_at(v, i * v_stride + start, word)
            for j in range(columns):
                target[j] = row[j]

    return named(name, put_rows)


def _add_rows(name: str, dtype: Any) -> Handwritten:
    def add_rows(args, lo, hi, worker):
        """out[index[i], j] += v[i, j] for all rows i in order; columns lo <= j < hi.

        Slots: 0 out, contiguous inner; 1 v, contiguous inner; 2 index (rows,); 3 rows; 4 stride
        of out's rows, 5 of v's rows in bytes (0: the same row every time). Items are columns.
        Integers wrap. Reads 8 bytes a row and two items an item, writes an item an item. Not
        checked: index, overlap.
        """
        index, rows, columns = as_int64(load_i64(args, 2)), load_i64(args, 3), hi - lo
        out, v, start = load_i64(args, 0), load_i64(args, 1), lo * item_size(dtype)
        out_stride, v_stride = load_i64(args, 4), load_i64(args, 5)
        if columns == 1:
            for i in range(rows):
                value = items_at(v, i * v_stride + start, dtype)[0]
                target = items_at(out, index[i] * out_stride + start, dtype)
                target[0] = dtype(target[0] + value)
            return
        for i in range(rows):
            target = items_at(out, index[i] * out_stride + start, dtype)
            row = items_at(v, i * v_stride + start, dtype)
            for j in range(columns):
                target[j] = dtype(target[j] + row[j])

    return named(name, add_rows)


take_rows_1 = _take_rows("take_rows_1", np.uint8)
take_rows_4 = _take_rows("take_rows_4", np.int32)
take_rows_8 = _take_rows("take_rows_8", np.int64)
put_rows_1 = _put_rows("put_rows_1", np.uint8)
put_rows_4 = _put_rows("put_rows_4", np.int32)
put_rows_8 = _put_rows("put_rows_8", np.int64)
add_rows_float32 = _add_rows("add_rows_float32", np.float32)
add_rows_float64 = _add_rows("add_rows_float64", np.float64)
add_rows_int32 = _add_rows("add_rows_int32", np.int32)
add_rows_int64 = _add_rows("add_rows_int64", np.int64)


# -------------------------------------------------------------------------------------- along axis


def _take_along(name: str, word: Any) -> Handwritten:
    def take_along(args, lo, hi, worker):
        """out[o, j, i] = x[o, index[o, j, i], i] for the lanes lo <= o * inner + i < hi.

        Slots: 0 out (outer, count, inner); 1 x (outer, axis, inner); 2 index as out; 3 axis;
        4 count; 5 inner. All contiguous. Items are lanes o * inner + i. Reads 8 bytes and an item,
        writes an item an item of out. Not checked: index, overlap.
        """
        out, x = items_at(load_i64(args, 0), 0, word), items_at(load_i64(args, 1), 0, word)
        index, axis = as_int64(load_i64(args, 2)), load_i64(args, 3)
        count, inner = load_i64(args, 4), load_i64(args, 5)
        o, first = _lane(lo, inner)
        while lo < hi:
            last = min(inner, first + hi - lo)
            for j in range(count):
                to = (o * count + j) * inner
                for i in range(first, last):
                    out[to + i] = x[(o * axis + index[to + i]) * inner + i]
            lo += last - first
            o, first = o + 1, 0

    return named(name, take_along)


def _add_along(name: str, dtype: Any) -> Handwritten:
    def add_along(args, lo, hi, worker):
        """out[o, index[o, j, i], i] += v[o, j, i] for all j in order, for lanes.

        Slots: 0 out (outer, axis, inner); 1 v (outer, count, inner); 2 index as v; 3 axis;
        4 count; 5 inner. All contiguous. Items are lanes o * inner + i. Integers wrap. Reads
        8 bytes and two items, writes an item an item of v. Not checked: index, overlap.
        """
        out, v = items_at(load_i64(args, 0), 0, dtype), items_at(load_i64(args, 1), 0, dtype)
        index, axis = as_int64(load_i64(args, 2)), load_i64(args, 3)
        count, inner = load_i64(args, 4), load_i64(args, 5)
        o, first = _lane(lo, inner)
        while lo < hi:
            last = min(inner, first + hi - lo)
            for j in range(count):
                start = (o * count + j) * inner
                for i in range(first, last):
                    to = (o * axis + index[start + i]) * inner + i
                    out[to] = dtype(out[to] + v[start + i])
            lo += last - first
            o, first = o + 1, 0

    return named(name, add_along)


take_along_1 = _take_along("take_along_1", np.uint8)
take_along_4 = _take_along("take_along_4", np.int32)
take_along_8 = _take_along("take_along_8", np.int64)
add_along_float32 = _add_along("add_along_float32", np.float32)
add_along_float64 = _add_along("add_along_float64", np.float64)
add_along_int32 = _add_along("add_along_int32", np.int32)
add_along_int64 = _add_along("add_along_int64", np.int64)


# --------------------------------------------------------------------------------------- extremes


@inline
def _above(v, best):
    """Whether v replaces the maximum so far: it is greater, or the first nan."""
    return (not (v <= best)) & (best == best)


@inline
def _below(v, best):
    """Whether v replaces the minimum so far: it is less, or the first nan."""
    return (not (v >= best)) & (best == best)


@inline
def _search_contiguous(x, count, better):
    """(value, place) of the extreme of ``count`` contiguous items."""
    best, place = x[0], 0
    k = 1
    while k < count:
        if k + SCAN <= count:  # most blocks of a long lane hold nothing better: a vector test
            found = 0
            for i in range(SCAN):
                found |= np.int64(better(x[k + i], best))
            if found == 0:
                k += SCAN
                continue
        for i in range(k, min(count, k + SCAN)):
            if better(x[i], best):
                best, place = x[i], i
        k += SCAN
    return best, place


@inline
def _search_strided(address, count, stride, dtype, better):
    """(value, place) of the extreme of ``count`` items ``stride`` bytes apart."""
    best, place = items_at(address, 0, dtype)[0], 0
    for k in range(1, count):
        v = items_at(address, k * stride, dtype)[0]
        if better(v, best):
            best, place = v, k
    return best, place


@inline
def _search_tile(address, count, stride, lanes, values, places, dtype, better):
    """Extremes of ``lanes`` lanes side by side into the buffers ``values`` and ``places``."""
    best, place = items_at(values, 0, dtype), as_int64(places)
    row = items_at(address, 0, dtype)
    for i in range(lanes):
        best[i] = row[i]
        place[i] = 0
    for k in range(1, count):
        row = items_at(address, k * stride, dtype)
        for i in range(lanes):
            v = row[i]
            replace = better(v, best[i])
            best[i] = v if replace else best[i]
            place[i] = k if replace else place[i]


@inline
def _extremes(args, lo, hi, dtype, better):
    """The body of argmax and argmin; ``argmax``'s card has the slots."""
    values, places, x = load_i64(args, 0), load_i64(args, 1), load_i64(args, 2)
    count, inner = load_i64(args, 3), load_i64(args, 4)
    outer_stride, stride, inner_stride = load_i64(args, 5), load_i64(args, 6), load_i64(args, 7)
    tile_values, tile_places = stack(TILE_BYTES), stack(TILE_BYTES)
    value_out, place_out = items_at(values, 0, dtype), as_int64(places)
    tile_value, tile_place = items_at(tile_values, 0, dtype), as_int64(tile_places)
    side_by_side = inner_stride == item_size(dtype) and stride != item_size(dtype)
    o, first = _lane(lo, inner)
    while lo < hi:
        address = x + o * outer_stride + first * inner_stride
        lanes = 1
        if side_by_side:
            lanes = min(min(TILE, inner - first), hi - lo)
            _search_tile(address, count, stride, lanes, tile_values, tile_places, dtype, better)
        else:
            if stride == item_size(dtype):
                value, place = _search_contiguous(items_at(address, 0, dtype), count, better)
            else:
                value, place = _search_strided(address, count, stride, dtype, better)
            tile_value[0], tile_place[0] = value, place
        if values != 0:
            for i in range(lanes):
                value_out[lo + i] = tile_value[i]
        if places != 0:
            for i in range(lanes):
                place_out[lo + i] = tile_place[i]
        lo, first = lo + lanes, first + lanes
        if first == inner:
            o, first = o + 1, 0


def _argmax(name: str, dtype: Any) -> Handwritten:
    def argmax(args, lo, hi, worker):
        """values[o, i] = max over k of x[o, k, i], places[o, i] = the first such k, for lanes.

        A nan is greater than everything, the first one wins. Slots: 0 values (outer, inner)
        contiguous, or 0; 1 places (outer, inner) int64 contiguous, or 0; 2 x (outer, axis, inner);
        3 axis, at least 1; 4 inner; 5 outer stride, 6 axis stride, 7 inner stride in bytes. Items
        are lanes o * inner + i. Reads an item an item, writes an item and 8 bytes a lane. Fast
        where the axis or the inner stride is the size of an item. Not checked: axis >= 1, overlap.
        """
        _extremes(args, lo, hi, dtype, _above)

    return named(name, argmax)


def _argmin(name: str, dtype: Any) -> Handwritten:
    def argmin(args, lo, hi, worker):
        """values[o, i] = min over k of x[o, k, i], places[o, i] = the first such k, for lanes.

        A nan is less than everything, the first one wins. Slots and all else as ``argmax``.
        """
        _extremes(args, lo, hi, dtype, _below)

    return named(name, argmin)


argmax_float32 = _argmax("argmax_float32", np.float32)
argmax_float64 = _argmax("argmax_float64", np.float64)
argmax_int32 = _argmax("argmax_int32", np.int32)
argmax_int64 = _argmax("argmax_int64", np.int64)
argmax_uint8 = _argmax("argmax_uint8", np.uint8)
argmax_bool = argmax_uint8
argmin_float32 = _argmin("argmin_float32", np.float32)
argmin_float64 = _argmin("argmin_float64", np.float64)
argmin_int32 = _argmin("argmin_int32", np.int32)
argmin_int64 = _argmin("argmin_int64", np.int64)
argmin_uint8 = _argmin("argmin_uint8", np.uint8)
argmin_bool = argmin_uint8


# -------------------------------------------------------------------------------------- true items


@kernel()
def count_true(args, lo, hi, worker):
    """count[0] = how many of mask[lo:hi] are not 0.

    Slots: 0 count, one int64; 1 mask, contiguous bytes. Items are elements; one worker. Reads
    1 byte an element. Not checked: anything.
    """
    mask, count = as_uint8(load_i64(args, 1)), 0
    for i in range(lo, hi):
        count += np.int64(mask[i] != 0)
    store_i64(load_i64(args, 0), 0, count)


@kernel()
def write_true_indices(args, lo, hi, worker):
    """out[k] = the k-th i with mask[i] != 0, lo <= i < hi, for k < count.

    Slots: 0 out, ``count`` int64; 1 mask, contiguous bytes; 2 count, from ``count_true`` over the
    same range. Items are elements; one worker. Reads 1 byte an element, writes 8 bytes a true
    element. Not checked: that mask[lo:hi] has count true elements (with fewer it reads on).
    """
    out, mask, count = as_int64(load_i64(args, 0)), as_uint8(load_i64(args, 1)), load_i64(args, 2)
    k, i = 0, lo
    while k < count:  # no branch on the mask: out[k] is written again until its i is found
        out[k] = i
        k += np.int64(mask[i] != 0)
        i += 1
