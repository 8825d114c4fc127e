"""Matrix products on the GPU: ``out[b] = x[b] @ y[b] (+ bias)``, any strides.

A block of TILE × TILE threads makes a tile of ``out``; it walks along k with a tile of ``x`` and
one of ``y`` in shared memory (Kirk and Hwu, "Programming Massively Parallel Processors", ch. 4).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..counters import launches
from . import runtime
from .array import DeviceArray
from .launch import index_type

cuda: Any = None  # numba.cuda, from when a kernel is compiled

TILE, SIMULATED_TILE = 16, 2


def _body(element: Any, total: Any, tile: int, I: Any) -> Callable[..., None]:
    """The kernel for elements of type ``element`` and sums of type ``total``, indices of ``I``."""

    def gemm(
        m, n, k, x, x_at, x_row, x_column, y, y_at, y_row, y_column,
        out, out_at, out_row, out_column, batch, x_batch, y_batch, out_batch,
        bias, bias_at, biased,
    ):  # fmt: skip
        """``out[b, i, j] = sum_p x[b, i, p] * y[b, p, j] (+ bias[j])``.

        Operands: flat device arrays, the place of the first element, strides in elements: any.
        ``biased`` is 0 or 1; bias has n elements one after another. Not checked:
        shapes, places, that out overlaps neither x, y nor bias. k may be 0.

        Reads x n/TILE times and y m/TILE times; writes out once. Products are added in order of p,
        in the element type for floats and in int64 for integers.
        """
        x_tile = cuda.shared.array((tile, tile), element)
        y_tile = cuda.shared.array((tile, tile), element)
        tx = I(cuda.threadIdx.x)
        ty = I(cuda.threadIdx.y)
        tiles = I((n + tile - 1) // tile)  # of a row; a grid's second axis would be too short
        j = I(I(I(cuda.blockIdx.x) % tiles * tile) + tx)
        i = I(I(I(cuda.blockIdx.x) // tiles * tile) + ty)
        for b in range(cuda.blockIdx.z, batch, cuda.gridDim.z):
            x0 = I(x_at + I(b * x_batch))
            y0 = I(y_at + I(b * y_batch))
            s = total(0)
            for p0 in range(0, k, tile):
                p = I(p0 + tx)
                value = element(0)
                if i < m and p < k:
                    value = x[I(x0 + I(I(i * x_row) + I(p * x_column)))]
                x_tile[ty, tx] = value
                p = I(p0 + ty)
                value = element(0)
                if j < n and p < k:
                    value = y[I(y0 + I(I(p * y_row) + I(j * y_column)))]
                y_tile[ty, tx] = value
                cuda.syncthreads()
                for q in range(tile):
                    s += total(x_tile[ty, q]) * total(y_tile[q, tx])
                cuda.syncthreads()
            if i < m and j < n:
                place = I(I(out_at + I(b * out_batch)) + I(I(i * out_row) + I(j * out_column)))
                if biased:
                    s += total(bias[I(bias_at + j)])
                out[place] = element(s)

    return gemm


class Product:
    """The kernel of one element type, in the variants of tile size and index type it is used in."""

    def __init__(self, name: str, element: Any, total: Any) -> None:
        self.name, self.element, self.total = name, element, total
        self._compiled: dict[Any, Any] = {}

    def variant(self, tile: int, index: Any) -> Any:
        """The compiled kernel."""
        found = self._compiled.get((tile, index))
        if found is None:
            function = _body(self.element, self.total, tile, index)
            function.__name__ = function.__qualname__ = self.name
            found = self._compiled[tile, index] = runtime.compile(function)
        return found


gemm_float32 = Product("gemm_float32", np.float32, np.float32)
gemm_float64 = Product("gemm_float64", np.float64, np.float64)
matmul_int32 = Product("matmul_int32", np.int32, np.int64)
matmul_int64 = Product("matmul_int64", np.int64, np.int64)
matmul_uint8 = Product("matmul_uint8", np.uint8, np.int64)

KERNELS = {
    "float32": gemm_float32,
    "float64": gemm_float64,
    "int32": matmul_int32,
    "int64": matmul_int64,
    "uint8": matmul_uint8,
}
"""The kernel of each element type."""


def product(
    out: DeviceArray,
    x: DeviceArray,
    y: DeviceArray,
    bias: DeviceArray | None = None,
    tile: int | None = None,
) -> None:
    """``out (b?, m, n) = x (b?, m, k) @ y (b?, k, n) (+ bias (n,))``: one launch
    over at most one batch axis, any strides, bias contiguous."""
    m, n, k = out.shape[-2], out.shape[-1], x.shape[-1]
    size = out.itemsize
    batch = out.shape[0] if out.ndim == 3 else 1
    if not m * n * batch:
        return
    given = [a for a in (x, y, out, bias) if a is not None]
    I = index_type(max(m, n, k, batch, *(a.block.nbytes // size for a in given)))
    if tile is None:
        tile = SIMULATED_TILE if runtime.simulated() else TILE

    def operand(array: DeviceArray) -> list[Any]:
        place, steps = array.offset // size, array.strides[-2:]
        return [array.block.typed(array.dtype), I(place), *(I(s // size) for s in steps)]

    def step(array: DeviceArray) -> Any:
        return I(array.strides[0] // size if array.ndim == 3 else 0)

    args = [I(m), I(n), I(k), *operand(x), *operand(y), *operand(out)]
    args += [I(batch), step(x), step(y), step(out)]
    held = out if bias is None else bias
    args += [held.block.typed(held.dtype), I(held.offset // size), I(bias is not None)]
    grid = -(-n // tile) * -(-m // tile), 1, min(batch, runtime.GRID_MAX[2])
    launches.add()
    compiled = KERNELS[out.dtype.name].variant(tile, I)
    runtime.launch(compiled, out.index, grid, (tile, tile), args)
