"""Matrix products: the primitive, and the public functions over its shapes."""

import math
from typing import Any

import numpy as np

from ..graph import device as devices
from ..graph import dtypes
from ..graph.apply import above, apply, check_same_device
from ..graph.errors import DtypeError, ShapeError, expected, shown
from ..graph.mode import composite
from ..graph.value import Value
from ..kernels import matmul as launchers
from ..kernels.cuda import matmul as cuda_kernels
from ..kernels.cuda.array import DeviceArray
from .declare import NO_ATTRS
from .kernel_calls import copy_into, workspace
from .movement import expand, matrix_transpose, reshape, unsqueeze
from .primitive import primitive, tensor_operand


def _infer(x: Any, y: Any) -> Any:
    a, b = x.shape, y.shape
    if len(a) == len(b) == 2:
        return (a[0], b[1]), x.dtype
    batch = a[:-2] if a[:-2] == b[:-2] else _batch_shape(a[:-2], b[:-2], x, y)
    return (*batch, a[-2], b[-1]), x.dtype


def _batch_shape(a: tuple[int, ...], b: tuple[int, ...], x: Any, y: Any) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(a, b)
    except ValueError:
        raise ShapeError(
            expected(
                "matmul", f"batch axes that broadcast with {a}", "y", shown(y), f"x is {shown(x)}"
            )
        ) from None


def _product_dx(g: Any, y: Any) -> Any:
    return product(g, matrix_transpose(y))


def _product_dy(g: Any, x: Any) -> Any:
    return product(matrix_transpose(x), g)


def _one_batch(out: Any, x: Any, y: Any) -> bool:
    """Whether the operands have three axes each and the batch axis of ``out``."""
    return x.ndim == y.ndim == 3 and x.shape[0] == y.shape[0] == out.shape[0]


@primitive(
    infer=_infer,
    dx=_product_dx,
    dy=_product_dy,
    deferrable=True,
    cuda=True,
    reference="numgrad.kernels.reference.matmul:matmul",
)
def product(out, x, y):
    """``(…, m, k) @ (…, k, n) -> (…, m, n)``, batch axes broadcast; operands of any strides,
    without copies."""
    on_device = type(out) is DeviceArray
    if not on_device and (out.ndim == 2 or (out.ndim == 3 and _one_batch(out, x, y))):
        launchers.product(out, x, y, None, workspace)  # most calls; any strides, of out too
        return
    if out.size == 0:
        return
    if out.ndim == 2 and out.flags.c_contiguous:
        _gemm(out, x, y, None)
        return
    m, n, k = out.shape[-2], out.shape[-1], x.shape[-1]
    if out.flags.c_contiguous:
        target = out
    else:
        target = workspace(out.shape, out.dtype, out)
    batch = out.shape[:-2]
    x = np.broadcast_to(x, (*batch, m, k)) if x.shape[:-2] != batch else x
    y = np.broadcast_to(y, (*batch, k, n)) if y.shape[:-2] != batch else y
    for index in np.ndindex(batch[:-1]):
        _gemm(target[index], x[index], y[index], None)
    if target is not out:
        copy_into(out, target)


@primitive(
    infer=lambda x, weight, bias=None: ((x.shape[0], weight.shape[0]), x.dtype),
    dx=lambda g, weight: product(g, weight),
    dweight=lambda g, x: product(matrix_transpose(g), x),
    dbias=lambda g, bias_shape: above.sum_to(g, bias_shape),
    deferrable=True,
    cuda=True,
    reference="numgrad.kernels.reference.matmul:linear",
)
def affine(out, x, weight, bias=None):
    """``x (m, k) @ weight (n, k).T (+ bias (n,)) -> (m, n)``: one node, so that with a volatile x
    not even the transpose of the weight is recorded."""
    if out.size:
        target = out if out.flags.c_contiguous else workspace(out.shape, out.dtype, out)
        _gemm(target, x, weight.T, bias)
        if target is not out:
            copy_into(out, target)


def _gemm(out: np.ndarray, x: np.ndarray, y: np.ndarray, bias: np.ndarray | None) -> None:
    """One GEMM launch over at most one batch axis."""
    if type(out) is DeviceArray:
        cuda_kernels.product(out, x, y, bias)
        return
    launchers.product(out, x, y, bias, workspace)


def _operands(op: str, x: Any, y: Any, names: tuple[str, str] = ("x", "y")) -> tuple[Any, Any]:
    tensor_operand(op, x)
    tensor_operand(op, y, "y")
    if devices.used:
        check_same_device(op, (x, y), names)
    if x.dtype is not y.dtype and x.dtype != y.dtype:
        raise DtypeError(
            expected(
                op,
                f"dtype {x.dtype} as x has",
                "y",
                shown(y),
                f"convert one of them; x is {shown(x)}",
            )
        )
    if x.dtype == dtypes.bool_:
        raise DtypeError(expected(op, "numbers", "x", shown(x), "convert it with .float()"))
    return x, y


def _inner(op: str, x: Any, y: Any) -> None:
    rows = y.shape[-2] if y.dim() > 1 else y.shape[0]
    if x.shape[-1] != rows:
        what = f"{x.shape[-1]} rows" if y.dim() > 1 else f"{x.shape[-1]} elements"
        raise ShapeError(
            f"{op}: expected y with {what} to match x {x.shape}, got y {y.shape} "
            f"(dtypes {x.dtype}, {y.dtype}); transpose or reshape one of them"
        )


def matmul(x: Any, y: Any) -> Any:
    """``x @ y``: matrices, vectors, and batches of matrices with broadcast batch axes.

    A vector is a row on the left and a column on the right, and its axis vanishes from the result.

    Raises:
        ShapeError: the inner lengths differ, or the batch axes do not broadcast.
        TypeError: dtypes differ or are bool.
    """
    if isinstance(x, Value) and isinstance(y, Value):
        a, b, dtype = x.shape, y.shape, x.dtype
        plain = len(a) == len(b) and (len(a) == 2 or (len(a) == 3 and a[0] == b[0]))
        if plain and a[-1] == b[-2] and dtype is y.dtype and dtype.kind != "b":
            if devices.used:
                check_same_device("matmul", (x, y), ("x", "y"))
            return apply(product, (x, y), NO_ATTRS)  # one op: nothing that is composite
    _operands("matmul", x, y)
    return _matmul(x, y)


@composite
def _matmul(x: Any, y: Any) -> Any:
    if x.dim() == 0 or y.dim() == 0:
        raise ShapeError(
            expected(
                "matmul", "tensors with axes", "x and y", f"{shown(x)}, {shown(y)}", "use x * y"
            )
        )
    _inner("matmul", x, y)
    row, column = x.dim() == 1, y.dim() == 1
    a = unsqueeze(x, 0) if row else x
    b = unsqueeze(y, 1) if column else y
    if a.dim() > 2 and b.dim() == 2 and not row:
        # One large product instead of a batch of small ones.
        rows = reshape(a, math.prod(a.shape[:-1]), a.shape[-1])
        out = reshape(product(rows, b), *a.shape[:-1], b.shape[-1])
    else:
        out = product(a, b)
    if row and column:
        return reshape(out)
    if row:
        return reshape(out, *out.shape[:-2], out.shape[-1])
    return reshape(out, *out.shape[:-1]) if column else out


def _fixed(op: str, x: Any, y: Any, dims: tuple[int, int]) -> None:
    _operands(op, x, y)
    for name, value, ndim in (("x", x, dims[0]), ("y", y, dims[1])):
        if value.dim() != ndim:
            raise ShapeError(expected(op, f"{ndim} axes", name, shown(value), "use matmul"))


def mm(x: Any, y: Any) -> Any:
    """Product of two matrices."""
    _fixed("mm", x, y, (2, 2))
    return matmul(x, y)


def bmm(x: Any, y: Any) -> Any:
    """Products of two batches of matrices, ``(b, m, k) @ (b, k, n)``."""
    _fixed("bmm", x, y, (3, 3))
    if x.shape[0] != y.shape[0]:
        raise ShapeError(expected("bmm", f"a batch of {x.shape[0]}", "y", shown(y), "use matmul"))
    return matmul(x, y)


def mv(x: Any, y: Any) -> Any:
    """Product of a matrix and a vector."""
    _fixed("mv", x, y, (2, 1))
    return matmul(x, y)


def dot(x: Any, y: Any) -> Any:
    """Inner product of two vectors."""
    _fixed("dot", x, y, (1, 1))
    return matmul(x, y)


@composite
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """``x @ weight.T + bias``: x (…, k), weight (n, k), bias (n,) gives (…, n).

    Raises:
        ShapeError: x and weight differ in k, or bias and weight in n.
    """
    x, weight = _operands("linear", x, weight, ("x", "weight"))
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[-1]:
        raise ShapeError(
            f"linear: expected weight (n, {x.shape[-1] if x.dim() else 'k'}) to match x {x.shape}, "
            f"got weight {weight.shape} (dtypes {x.dtype}, {weight.dtype}); mat1 and mat2 shapes "
            "cannot be multiplied: check in_features"
        )
    if bias is not None:
        _operands("linear", x, bias, ("x", "bias"))
        if bias.shape not in ((weight.shape[0],), (1,), ()):
            raise ShapeError(
                expected("linear", f"shape ({weight.shape[0]},)", "bias", shown(bias), "reshape it")
            )
        if bias.shape != (weight.shape[0],):
            bias = expand(reshape(bias, -1), weight.shape[0])
        if not bias.array.flags.c_contiguous:
            bias = bias.contiguous()
    flat = x if x.dim() == 2 else reshape(x, math.prod(x.shape[:-1]), x.shape[-1])
    out = affine(flat, weight, bias)
    return out if x.dim() == 2 else reshape(out, *x.shape[:-1], weight.shape[0])


@composite
def addmm(*args: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    """``beta * m + alpha * (a @ b)``, m broadcast; with ``beta=0`` without m, even where it is nan.
    Also in the old order ``(beta, m, alpha, a, b)``."""
    if len(args) == 5:
        beta, m, alpha, a, b = args
    elif len(args) == 4:
        beta, m, a, b = args
    elif len(args) == 3:
        m, a, b = args
    else:
        raise TypeError(
            f"addmm: expected addmm(m, a, b, beta=1, alpha=1), got {len(args)} arguments; pass "
            "three"
        )
    out = mm(a, b)
    tensor_operand("addmm", m, "m")
    if len(m.shape) > 2 or any(
        n not in (1, k) for n, k in zip(m.shape[::-1], out.shape[::-1], strict=False)
    ):
        raise ShapeError(
            expected("addmm", f"a shape that expands to {out.shape}", "m", shown(m), "reshape it")
        )
    out = out if alpha == 1 else out * alpha
    if beta == 0:
        return out
    return m * beta + out if beta != 1 else m + out
