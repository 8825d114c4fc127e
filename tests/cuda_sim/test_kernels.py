"""Every elementwise entry, the products and the reductions: on the device as on the CPU."""

import zlib

import numpy as np
import pytest
from numba import cuda

import numgrad
from numgrad.kernels import launch
from tests.ops import samples

SHAPE = (2, 3)
EPS = {np.dtype("float32"): 2.0**-23, np.dtype("float64"): 2.0**-52}
ULPS = 40
"""Functions of two libraries, each within 2 ulp, in sums that cancel."""


def rng_of(name):
    return np.random.default_rng(zlib.crc32(name.encode()))


def same(got, wanted, what):
    """Equal shape, dtype and elements; floats up to rounding, relative to the largest."""
    assert got.device == "cuda:0" and wanted.device == "cpu", what
    assert got.dtype == wanted.dtype and got.shape == wanted.shape, what
    a, b = got.detach().cpu().numpy(), wanted.detach().numpy()
    if a.dtype.kind != "f":
        np.testing.assert_array_equal(a, b, err_msg=what)
        return
    finite = np.abs(b[np.isfinite(b)]).max(initial=0)
    tolerance = ULPS * EPS[a.dtype]
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * finite, err_msg=what)


def on(device, arrays, requires_grad=False):
    return [
        numgrad.tensor(a, device=device, requires_grad=requires_grad and a.dtype.kind == "f")
        for a in arrays
    ]


def results(entry, device, arrays, attributes):
    """The result, and the gradients of the operands for one fixed gradient of it."""
    xs = on(device, arrays, requires_grad=True)
    out = entry(*xs, **attributes)
    leaves = [x for x in xs if x.requires_grad]
    if not out.requires_grad:
        return [out]
    weights = np.linspace(-1.5, 1.0, int(np.prod(out.shape))).reshape(out.shape)
    g = numgrad.tensor(weights, dtype=out.dtype, device=device)
    return [out, *numgrad.autograd.grad(out, leaves, g, allow_unused=True)]


@pytest.mark.parametrize("name", samples.ENTRIES)
def test_entry(name):
    """All dtypes it takes, its second set of numbers, its gradients, one strided operand."""
    entry = samples.ENTRIES[name]
    rng = rng_of(name)
    before = launch.launches.value
    for dtype in samples.DTYPES:
        arrays = samples.operands(entry, dtype, SHAPE, rng)
        for attributes in samples.attribute_sets(entry):
            if dtype.kind != "f" and any(isinstance(v, float) for v in attributes.values()):
                continue
            try:
                wanted = results(entry, "cpu", arrays, attributes)
            except TypeError as error:  # a dtype the entry refuses
                with pytest.raises(type(error)):
                    results(entry, "cuda", arrays, attributes)
                continue
            got = results(entry, "cuda", arrays, attributes)
            assert len(got) == len(wanted)
            for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
                assert (a is None) == (b is None)
                if a is not None:
                    same(a, b, f"{name} {dtype} {attributes} result {i}")
    assert launch.launches.value > before


@pytest.mark.parametrize("name", samples.ENTRIES)
def test_special_values(name):
    """Zeros, infinities, nan and the entry's edges, float32."""
    entry = samples.ENTRIES[name]
    arrays = [a[:40] for a in samples.special(entry, np.dtype("float32"))]
    wanted = entry(*on("cpu", arrays)).numpy()
    got = entry(*on("cuda", arrays)).cpu().numpy()
    np.testing.assert_allclose(got, wanted, rtol=ULPS * 2.0**-23, atol=1e-30, err_msg=name)


def test_layouts():
    """Broadcast, transposed, sliced, expanded and 0-dim operands; numbers; nothing at all."""
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((3, 4, 2)).astype("f") for _ in range(2))
    (x, y), (u, v) = on("cpu", (a, b)), on("cuda", (a, b))
    pairs = [
        lambda p, q: p.permute(2, 0, 1) + q.permute(2, 0, 1),
        lambda p, q: p.permute(2, 0, 1) * q[:, ::2].permute(2, 0, 1)[:, :, :1],
        lambda p, q: p[1:, ::3] - q[:1, 0].expand(2, 2, 2),
        lambda p, q: p[:, 1, :].t() / (q[0, 0, 0] + 3),
        lambda p, q: 2.5 - p[..., 0],
        lambda p, q: numgrad.where(p > 0, q, p),
        lambda p, q: p[:0] + q[:0],
        lambda p, q: (p[0, 0, 0] + 1).reshape(1, 1),
        lambda p, q: p.flip(1) + numgrad.cat([q, p], 1)[:, 2:6],
        lambda p, q: p.double() + q,
        lambda p, q: p.add(q, alpha=3),
        lambda p, q: numgrad.stack([p, q]).softmax(0) + p.log_softmax(1),
    ]
    for i, f in enumerate(pairs):
        same(f(u, v), f(x, y), f"case {i}")


def test_in_place_and_overlap():
    a = np.arange(12, dtype="f").reshape(3, 4)
    steps = [
        lambda x: x.add_(x[0]),
        lambda x: x.copy_(x.flip(0)),
        lambda x: x[:, 1:].copy_(x[:, :-1]),
        lambda x: x[1].mul_(3),
        lambda x: x.t()[0].fill_(7),
        lambda x: x[:2].add_(x[1:]),
        lambda x: x[:, :3].copy_(x[:, :3].t()),  # the same place and shape, other strides
        lambda x: x[:, 1:].sub_(x[:, 1:].t()),
        lambda x: x.relu_().sqrt_(),
    ]
    for i, step in enumerate(steps):
        (x,), (u,) = on("cpu", [a]), on("cuda", [a])
        step(x), step(u)
        same(u, x, f"step {i}")


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8"])
def test_products(dtype):
    """Matrices that fill no tile, transposed, batched and broadcast; no inner length; bias."""
    rng = np.random.default_rng(5)

    def draw(*shape):
        return (rng.standard_normal(shape) * 3).astype(dtype)

    cases = [
        (draw(5, 3), draw(3, 4)),
        (draw(1, 3), draw(3, 1)),
        (draw(3, 5).T, draw(4, 3).T),
        (draw(2, 3, 2), draw(2, 2, 3)),
        (draw(2, 1, 3, 2), draw(3, 2, 2)),
        (draw(3, 0), draw(0, 2)),
        (draw(0, 3), draw(3, 2)),
        (draw(6, 4)[::2, 1:], draw(3, 4)[:, ::2]),
    ]
    for i, arrays in enumerate(cases):
        (x, y), (u, v) = on("cpu", arrays), on("cuda", arrays)
        same(u @ v, x @ y, f"case {i}")
    arrays = draw(4, 3), draw(2, 3), draw(5)
    for i in (0, 3):  # also a bias that begins in the middle of a block

        def linear(x, w, b, i=i):
            return numgrad.nn.functional.linear(x, w, b[i : i + 2])

        same(linear(*on("cuda", arrays)), linear(*on("cpu", arrays)), "linear")


def test_more_batches_than_a_grid_has_blocks(monkeypatch):
    from numgrad.kernels.cuda import runtime

    monkeypatch.setattr(runtime, "GRID_MAX", (100, 1, 2))
    a, b = np.random.default_rng(6).standard_normal((2, 5, 2, 2)).astype("f")
    (x, y), (u, v) = on("cpu", (a, b)), on("cuda", (a, b))
    same(u @ v, x @ y, "five batches, two blocks")


def test_merged_axes():
    from numgrad.kernels.cuda.elementwise import collapse

    assert collapse((2, 1, 3), [[3, 9, 1]]) == ([6], [[1]])
    assert collapse((2, 3), [[3, 1], [0, 1]]) == ([2, 3], [[3, 1], [0, 1]])
    assert collapse((1, 1), [[7, 7], [0, 0]]) == ([1], [[0], [0]])


def test_strides_of_nothing():
    for shape, strides in (((0, 3), (3, 1)), ((2, 0, 3), (3, 3, 1)), ((2, 3, 0), (3, 1, 1))):
        u = numgrad.zeros(shape, device="cuda")
        assert u.stride() == strides and u.is_contiguous()


def test_grids():
    """Within the limits of CUDA devices, which no simulator has, for every shape."""
    from numgrad.kernels.cuda import matmul, runtime

    grids = []
    long = numgrad.ones(1, 1, device="cuda").expand(1, 2**32)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            runtime, "launch", lambda kernel, index, grid, block, args: grids.append(grid)
        )
        for m, n, batch in ((1_100_000, 1, 1), (1, 1_100_000, 1), (1, 1, 70_000)):
            x = numgrad.empty(1, 1, 1, device="cuda").expand(batch, m, 1)
            y = numgrad.empty(1, 1, 1, device="cuda").expand(batch, 1, n)
            out = numgrad.empty(batch, m, n, dtype=numgrad.float32, device="cuda")
            matmul.product(out.array, x.array, y.array, tile=16)
        assert (long @ long.t()).shape == (1, 1)  # the length alone asks for int64
    assert grids == [(68750, 1, 1), (68750, 1, 1), (1, 1, 65535), (1, 1, 1)]
    assert all(n <= most for grid in grids for n, most in zip(grid, runtime.GRID_MAX, strict=True))
    with pytest.raises(ValueError, match=r"^launch: expected at most \(2147483647, 65535, 65535\)"):
        runtime.launch(None, 0, (1, 65536), 1, ())


def test_tile_sizes():
    """The tile is a parameter: all give the same sums in the same order."""
    from numgrad.kernels.cuda import matmul

    rng = np.random.default_rng(6)
    x, y = on("cuda", [rng.standard_normal((5, 7)), rng.standard_normal((7, 6))])
    found = []
    for tile in (1, 3, 4):
        out = numgrad.zeros(5, 6, dtype=numgrad.float64, device="cuda")
        matmul.product(out.array, x.array, y.array, tile=tile)
        found.append(out.tolist())
    assert found[0] == found[1] == found[2]


def test_reductions():
    rng = np.random.default_rng(7)
    a = rng.standard_normal((3, 4, 5)).astype("f")
    functions = {
        "sum": lambda x, **k: x.sum(**k),
        "mean": lambda x, **k: x.mean(**k),
        "prod": lambda x, **k: x.prod(**k),
        "amax": lambda x, **k: x.amax(**k),
        "amin": lambda x, **k: x.amin(**k),
        "any": lambda x, **k: (x > 1).any(**k),
        "all": lambda x, **k: (x > -1).all(**k),
        "var": lambda x, **k: x.var(**k),
        "std": lambda x, **k: x.std(**k),
        "logsumexp": lambda x, **k: x.logsumexp(**{"dim": (0, 1, 2), **k}),
        "integers": lambda x, **k: (x * 10).int().sum(**k),
    }
    for name, f in functions.items():
        for axes in ((), (0,), (1,), (2,), (0, 2)):
            k = {"dim": axes, "keepdim": len(axes) == 1} if axes else {}
            (x,), (u,) = on("cpu", [a], True), on("cuda", [a], True)
            wanted, got = f(x, **k), f(u, **k)
            same(got, wanted, f"{name} {axes}")
            if wanted.requires_grad and axes in ((1,), (0, 2)):
                (wanted * wanted).sum().backward()
                (got * got).sum().backward()
                same(u.grad, x.grad, f"gradient of {name} {axes}")
    (x,), (u,) = on("cpu", [a[:0]]), on("cuda", [a[:0]])
    same(u.sum(0), x.sum(0), "sum of nothing")


def test_long_axis(monkeypatch):
    """A long axis is cut into chunks; the sum has the same bits every time."""
    from numgrad.kernels.cuda import reduce

    monkeypatch.setattr(reduce, "CHUNK", 8)
    a = np.random.default_rng(8).standard_normal((2, 37)).astype("f")
    (x,), (u,) = on("cpu", [a]), on("cuda", [a])
    before = launch.launches.value
    first = u.mean(1)
    assert launch.launches.value - before == 2
    same(first, x.mean(1), "mean")
    assert u.mean(1).tolist() == first.tolist()
    monkeypatch.setattr(reduce, "FEW_OUTPUTS", 2)  # with enough outputs it is not cut
    before = launch.launches.value
    at_once = u.mean(1)
    assert launch.launches.value - before == 1
    same(at_once, x.mean(1), "mean in one")


def test_large_indices(monkeypatch):
    """Arrays whose elements int32 cannot count are indexed with int64, with the same results."""
    from numgrad.kernels.cuda import launch as cuda_launch
    from numgrad.kernels.cuda import matmul

    asked = []

    def index_type(extent):
        asked.append(extent)
        return np.int64

    monkeypatch.setattr(cuda_launch, "index_type", index_type)
    monkeypatch.setattr(matmul, "index_type", index_type)
    a = np.random.default_rng(9).standard_normal((3, 3)).astype("f")
    (x,), (u,) = on("cpu", [a]), on("cuda", [a])
    same(u + u.t(), x + x.t(), "sum")
    same(u @ u.t(), x @ x.t(), "product")
    whole = numgrad.zeros(40, 3, device="cuda")
    asked.clear()
    same(whole[37:] + u, x, "the end of a large block")
    same(whole[37:] @ u, x * 0, "product with the end of a large block")
    assert asked == [120, 120]  # what a place may reach, not what is computed
    monkeypatch.undo()
    assert cuda_launch.index_type(1000) is np.int32 and cuda_launch.index_type(2**31) is np.int64
    # A loop's last step may reach past the last element by as much as the grid has threads.
    most = 2**31 - 1 - cuda_launch.THREADS * cuda_launch.BLOCKS_MAX
    assert cuda_launch.index_type(most) is np.int32
    assert cuda_launch.index_type(most + 1) is np.int64


def test_a_missing_barrier_is_an_error():
    @cuda.jit
    def kernel(out):
        if cuda.threadIdx.x < 2:
            cuda.syncthreads()
        out[cuda.threadIdx.x] = 1

    with pytest.raises(RuntimeError, match="2 threads of a block wait, 2 have ended"):
        kernel[1, 4](np.zeros(4))
