"""Matrix products: every shape, stride, split and instruction set against NumPy in float64."""

import itertools
import os
import platform
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit, types

from numgrad.kernels import native, store
from numgrad.kernels.cpu import matmul, tile, vector
from numgrad.kernels.reference.matmul import matmul as reference

ROOT = Path(__file__).parents[3]
FLOATS = ["float32", "float64"]
INTEGERS = ["int32", "int64", "uint8"]
SIZES = [0, 1, 2, 3, 7, 13, 14, 15, 16, 21, 31, 32, 33, 64, 100, 300]
DEPTHS = [0, 1, 2, 7, 15, 16, 17, 33, 64, 100, 255, 256, 319, 320, 321, 641]
LAYOUTS = ["rows", "columns", "strided", "reversed", "one row", "one column"]


@njit(types.void(*[types.int64] * 5), nogil=True)
def launch(address, args, lo, hi, worker):
    native.call_ranged(address, args, lo, hi, worker)


def address_of(array):
    return array.__array_interface__["data"][0]


def values(rng, shape, dtype):
    if dtype in FLOATS:
        return rng.standard_normal(shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def outside(dtype):
    """What surrounds an operand: seen in the result if a kernel reads and uses it."""
    return np.nan if dtype in FLOATS else 77


def laid_out(array, layout):
    """The values of ``array`` (b, r, c) in another layout, amid what must not be touched."""
    b, r, c = array.shape
    if layout == "one row":
        array = np.broadcast_to(array[:, :1], array.shape) if r else array
    if layout == "one column":
        array = np.broadcast_to(array[:, :, :1], array.shape) if c else array
    dtype = array.dtype
    if layout == "columns":
        space = np.full((b, c + 2, r + 3), outside(dtype.name), dtype)
        view = space[:, 1 : c + 1, 2 : r + 2].transpose(0, 2, 1)
    elif layout == "strided":
        space = np.full((b, 2 * r + 2, 3 * c + 3), outside(dtype.name), dtype)
        view = space[:, 1 : 2 * r + 1 : 2, 2 : 3 * c + 2 : 3]
    elif layout == "reversed":
        space = np.full((b, r + 2, c + 3), outside(dtype.name), dtype)
        view = space[::-1, 1 : r + 1, 2 : c + 2][:, ::-1, ::-1]
    else:
        space = np.full((b, r + 2, c + 3), outside(dtype.name), dtype)
        view = space[:, 1 : r + 1, 2 : c + 2]
    view[...] = array
    if layout == "one row" and r:
        view = np.broadcast_to(view[:, :1], view.shape)
    if layout == "one column" and c:
        view = np.broadcast_to(view[:, :, :1], view.shape)
    return space, view


def elements(array):
    return [stride // array.itemsize for stride in array.strides]


def splits(items, workers):
    edges = [items * w // workers for w in range(workers + 1)]
    return list(itertools.pairwise(edges))


def multiply(x, y, out, bias=None, beta=0, workers=1, threads=False, each=None):
    """``out[b] = x[b] @ y[b]`` of three-dimensional views by the kernel."""
    batch, m, n = out.shape
    k = x.shape[2]
    kernel = matmul.KERNELS[x.dtype.name]
    plan = matmul.plan(m, n, k, batch, x.itemsize)
    items, each = plan.items, plan.workspace_bytes if each is None else each
    workspace = np.full(each * workers + 64, 0xFF, np.uint8)  # not a number, in any float
    (xb, xr, xc), (yb, yr, yc), (ob, orow, oc) = elements(x), elements(y), elements(out)
    slots = matmul.Slots(
        m=m,
        n=n,
        k=k,
        x=address_of(x),
        x_row=xr,
        x_column=xc,
        y=address_of(y),
        y_row=yr,
        y_column=yc,
        out=address_of(out),
        out_row=orow,
        out_column=oc,
        batch=batch,
        x_batch=xb,
        y_batch=yb,
        out_batch=ob,
        bias=0 if bias is None else address_of(bias),
        beta=beta,
        workspace=address_of(workspace),
        workspace_bytes=each,
        items=items,
    )
    args = np.array(slots, np.int64)
    jobs = [
        (kernel.address, address_of(args), lo, hi, worker)
        for worker, (lo, hi) in enumerate(splits(items, workers))
    ]
    if threads:
        running = [threading.Thread(target=launch, args=job) for job in jobs]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    else:
        for job in reversed(jobs):
            launch(*job)
    assert (workspace[each * workers :] == 0xFF).all(), "written past the workspace"
    return out


def check(x, y, out, space, bias=None, beta=0, workers=1):
    """Run the kernel on the views and compare, within the error of summing in any order."""
    before, old = space.copy(), out.copy()
    multiply(x, y, out, bias, beta, workers)
    expected = reference(x, y, bias, old if beta else None)
    if x.dtype.name in FLOATS:
        magnitude = np.abs(x).astype(np.float64) @ np.abs(y).astype(np.float64)
        if bias is not None:
            magnitude = magnitude + np.abs(bias)
        if beta:
            magnitude = magnitude + np.abs(old)
        # k products, k - 1 sums, bias, out: each rounds by eps/2 at most (Higham 2002, eq. 3.5);
        # the float64 reference does so too, and rounds once more where it is cast.
        k = x.shape[2]
        allowed = (2 * k + 5) * np.finfo(x.dtype).eps / 2 * magnitude + np.finfo(x.dtype).tiny
        np.testing.assert_array_less(np.abs(out - expected), allowed + 1e-300)
    else:
        np.testing.assert_array_equal(out, expected)
    out[...] = old
    np.testing.assert_array_equal(space, before, err_msg="written outside of out")


def case(seed, m, n, k, dtype, layouts, batch=1, with_bias=False, beta=0, workers=1):
    rng = np.random.default_rng(seed)
    _, x = laid_out(values(rng, (batch, m, k), dtype), layouts[0])
    _, y = laid_out(values(rng, (batch, k, n), dtype), layouts[1])
    old = values(rng, (batch, m, n), dtype)
    if not beta and dtype in FLOATS:
        old[...] = np.nan  # overwritten whatever it holds
    space, out = laid_out(old, layouts[2])
    check(x, y, out, space, values(rng, n, dtype) if with_bias else None, beta, workers)


def sweep(dtypes):
    """Some of everything, for one instruction set in one process."""
    seed = 0
    for dtype in dtypes:
        for m, n, k in [(1, 1, 1), (1, 65, 70), (67, 1, 70), (5, 3, 0), (9, 17, 33), (32, 32, 32)]:
            for layout in ("rows", "columns", "strided"):
                for other in ("rows", "columns", "reversed"):
                    seed += 1
                    case(seed, m, n, k, dtype, (layout, other, LAYOUTS[seed % 4]), 2, True, 1)
        for m, n, k in [
            (131, 70, 300),
            (60, 230, 517),
            (400, 40, 64),
            (21, 64, 70),
            (11, 100, 50),
            (40, 9, 64),
        ]:
            for layout in ("rows", "columns"):
                for other in ("rows", "columns"):
                    seed += 1
                    case(seed, m, n, k, dtype, (layout, other, "rows"), workers=2)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("m", SIZES)
def test_shapes(dtype, m):
    for n in SIZES:
        for k in DEPTHS if m * n < 2000 else (1, 33, 300):
            case(m + n + k, m, n, k, dtype, ("rows", "rows", "rows"))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    dtype=st.sampled_from(FLOATS + INTEGERS),
    m=st.sampled_from(SIZES),
    n=st.sampled_from(SIZES),
    k=st.sampled_from(DEPTHS),
    layouts=st.tuples(
        st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS[:4])
    ),
    batch=st.sampled_from([1, 1, 2, 3]),
    with_bias=st.booleans(),
    beta=st.integers(0, 1),
    workers=st.integers(1, 3),
)
def test_strided(dtype, m, n, k, layouts, batch, with_bias, beta, workers):
    if dtype in INTEGERS:
        m, n, k = min(m, 33), min(n, 64), min(k, 100)
    case(m * n + k, m, n, k, dtype, layouts, batch, with_bias, beta, workers)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("batch", [2, 70])
def test_broadcast_batch(dtype, batch):
    rng = np.random.default_rng(batch)
    x = np.broadcast_to(values(rng, (1, 17, 9), dtype), (batch, 17, 9))
    y = values(rng, (batch, 9, 33), dtype)
    for a, b in ((x, y), (y.transpose(0, 2, 1), x.transpose(0, 2, 1))):
        space = np.zeros((batch, a.shape[1], b.shape[2]), dtype)
        check(a, b, space[:], space, workers=3)


@pytest.mark.parametrize("n", [1, 513, 1100])
@pytest.mark.parametrize("dtype", FLOATS)
def test_vector_times_matrix(dtype, n):
    for layouts in (("rows", "rows"), ("strided", "columns"), ("rows", "strided")):
        case(n, 1, n, 70, dtype, (*layouts, "strided"), 1, True, 1, 2)
        case(n, n, 1, 70, dtype, (*layouts, "columns"), 1, True, 1, 2)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("few", [2, 4, 5, 10, 12, 13])
def test_few_columns_or_rows(dtype, few):
    """Inner products along contiguous operands, for whole vectors; other depths go otherwise."""
    for k in (16, 64, 320, 336, 656, 659):
        for layout in ("rows", "columns", "strided", "one column"):
            for n in (37, 14):
                case(k, n, few, k, dtype, ("rows", layout, LAYOUTS[k % 4]), 2, True, 1, 2)
                case(k, few, n, k, dtype, ("rows", layout, "rows"), 1, True, k % 2, 3)


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_in_place(dtype):
    """Shapes on both sides of where rows of x are read in place or packed, on the stack or not."""
    width = 2 * tile.VECTORS * vector.lanes_of(np.dtype(dtype).itemsize)
    for m in (20, 150, 2 * tile.MC, 2 * tile.MC + 1):
        for n in (width, width + 1, 4 * width, 4 * width + 1):
            for layout in ("rows", "columns"):
                case(m + n, m, n, 322, dtype, (layout, "rows", "rows"), workers=2)


def test_workspace_that_layouts_need():
    """Less where rows are contiguous, and the kernel touches nothing past it."""
    rng = np.random.default_rng(3)
    shapes = [(256, 256, 256), (784, 10, 100), (10, 784, 256), (300, 40, 400), (64, 700, 320)]
    for m, n, k in shapes:
        x, y = values(rng, (1, m, k), "float32"), values(rng, (1, k, n), "float32")
        plan = matmul.plan(m, n, k, 1, 4)
        assert plan.in_place_bytes <= plan.rows_bytes <= plan.workspace_bytes
        expected = multiply(x, y, np.empty((1, m, n), "float32"))
        for view, each in ((x, plan.in_place_bytes), (laid_out(x, "columns")[1], plan.rows_bytes)):
            out = multiply(view, y, np.empty((1, m, n), "float32"), each=each)
            np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    few = matmul.DIRECT_VECTORS * vector.lanes_of(4)
    assert matmul.plan(matmul.DIRECT_MOST, few, 256, 1, 4).in_place_bytes == 0


@pytest.mark.parametrize("dtype", FLOATS)
def test_many_blocks(dtype):
    """More than one block of rows, of columns and of k."""
    m, n = 2 * tile.MC + 5, tile.NC + 70
    case(1, m, 40, 300, dtype, ("columns", "rows", "rows"))
    case(2, 40, n, 300, dtype, ("rows", "columns", "rows"))
    case(3, tile.MC + 5, n, 20, dtype, ("rows", "rows", "columns"), beta=1, with_bias=True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "shape",
    [(90, 33, 600), (33, 90, 600), (5, 200, 31), (1, 700, 300), (700, 1, 300), (16, 16, 9)]
    + [(200, 10, 336), (10, 200, 336), (200, 200, 256)],
)
def test_same_bits_for_any_split(dtype, shape):
    m, n, k = shape
    rng = np.random.default_rng(m)
    for transposed in (False, True):
        x, y = values(rng, (2, m, k), dtype), values(rng, (2, k, n), dtype)
        if transposed:
            y = np.ascontiguousarray(y.transpose(0, 2, 1)).transpose(0, 2, 1)
        once = multiply(x, y, np.empty((2, m, n), dtype))
        for workers in (2, 3, 7):
            for threads in (False, True):
                again = multiply(x, y, np.empty((2, m, n), dtype), None, 0, workers, threads)
                np.testing.assert_array_equal(again.view(np.uint8), once.view(np.uint8))


def test_plan_balances():
    """The busiest of 2 to 16 workers has at most a quarter more than its share."""
    for m, n in [(512, 512), (1000, 1000), (64, 3136), (4096, 32), (2048, 2048)]:
        items = matmul.plan(m, n, 512, 1, 4).items
        for workers in range(2, 17):
            if items >= 4 * workers:
                busiest = max(hi - lo for lo, hi in splits(items, workers))
                assert busiest * workers <= 1.25 * items
    assert matmul.plan(0, 5, 5, 1, 4)[0] == matmul.plan(5, 5, 5, 0, 4)[0] == 0
    assert matmul.plan(32, 32, 32, 1, 4)[1] == 0, "small products need no workspace"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize("dtype", [types.float32, types.float64], ids=str)
@pytest.mark.parametrize("name", ["tile_packed", "tile_direct", "tile_narrow"])
def test_sums_stay_in_registers(name, dtype):
    micro_kernel = getattr(tile, name)

    @njit(types.void(dtype, *[types.int64] * 10))
    def call(t, a, a_at, along, step, valid, b, b_at, b_row, k, c):
        micro_kernel(t, a, a_at, along, step, valid, b, b_at, b_row, k, c)

    rows = tile.MR if name == "tile_packed" else tile.DIRECT_ROWS
    _check_registers(call, rows * (1 if name == "tile_narrow" else tile.VECTORS))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize("dtype", [types.float32, types.float64], ids=str)
def test_inner_products_stay_in_registers(dtype):
    @njit(types.void(dtype, *[types.int64] * 12))
    def call(t, a, a_at, a_row, rows, b, b_at, b_row, columns, k, c, c_at, c_row):
        tile.dots(t, a, a_at, a_row, rows, b, b_at, b_row, columns, k, c, c_at, c_row)

    _check_registers(call, tile.DOT_ROWS * tile.DOT_COLUMNS)


def _check_registers(call, wanted):
    """The loop of the micro-kernel that ``call`` calls has ``wanted`` multiplications, or a
    multiple of them, and moves no vector to or from the stack."""
    (text,) = call.inspect_asm().values()
    function = re.search(r"^numgrad_(?:tile|dots)_.*?^\.Lfunc_end", text, re.M | re.S).group()
    loops = re.split(r"^\.LBB\w+:", function, flags=re.M)
    multiplies = r"vfmadd" if vector.FUSED else r"\bv?mulp"
    hot = max(loops, key=lambda body: len(re.findall(multiplies, body)))
    found = len(re.findall(multiplies, hot))
    assert found and found % wanted == 0, "the loop may be unrolled, but must be this one"
    loop = hot[: max(match.end() for match in re.finditer(multiplies, hot))]
    assert not re.findall(r"mm\d+.*\(%r[sb]p|\(%r[sb]p\).*mm\d+", loop)


def _in_new_process(instruction_set):
    environment = {**os.environ, "NUMGRAD_CPU": instruction_set, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("instruction_set", ["avx2", "plain"])
def test_other_instruction_sets(instruction_set):
    if instruction_set == "avx2" and vector.INSTRUCTION_SET == "plain":
        pytest.skip("needs AVX2")
    done = _in_new_process(instruction_set)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(instruction_set)
    again = _in_new_process(instruction_set)
    assert again.stdout == f"{instruction_set} compiled 0, loaded 2\n", again.stderr


def test_unknown_instruction_set():
    done = _in_new_process("mmx")
    assert "NUMGRAD_CPU: expected one of ['avx2', 'avx512', 'plain'], got 'mmx'" in done.stderr


if __name__ == "__main__":
    sweep(FLOATS)
    counts = store.stats
    print(f"{vector.INSTRUCTION_SET} compiled {counts.compiled}, loaded {counts.hits}")
