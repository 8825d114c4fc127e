"""Convolution kernels: every geometry, layout, split and instruction set against float64 sums."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit, types

from numgrad.kernels import convolution, convolution_layout, launch, native, store, winograd
from numgrad.kernels.cpu import slots, vector
from numgrad.kernels.cpu.slots import Slots
from numgrad.kernels.reference import convolution as reference

ROOT = Path(__file__).parents[3]
FLOATS = ["float32", "float64"]
LAYOUTS = [
    "planes",
    "channels last",
    "padded",
    "every second",
    "reversed",
    "one image",
    "one pixel",
]
GUARD = 4096


@pytest.fixture(scope="module", autouse=True)
def _direct_sums():
    """Winograd's way has tests of its own."""
    winograd.enabled = False
    yield
    winograd.enabled = True


@njit(types.void(*[types.int64] * 5), nogil=True)
def call(address, args, lo, hi, worker):
    native.call_ranged(address, args, lo, hi, worker)


class Split:
    """Stands for the launcher: hands the items out in ``workers`` ranges, the last one first."""

    def __init__(self, workers):
        self.workers, self.launches = workers, 0
        self.memory = []

    def workspace(self, shape, dtype):
        whole = np.full(shape[0] + GUARD, 0xFF, np.uint8)  # not a number, in any float
        self.memory.append(whole)
        return whole[:-GUARD]

    def check_guards(self):
        assert all((whole[-GUARD:] == 0xFF).all() for whole in self.memory), "past the workspace"

    def ranged(self, kernel, args, items, *, parallel=True, workers=None):
        self.launches += not kernel.name.startswith("pack_")
        array = np.array(args, np.int64)
        assert len(args) == len(Slots._fields) or kernel.name.count("transposed")
        count = self.workers if workers is None else workers
        edges = [items * w // count for w in range(count + 1)]
        for worker, (lo, hi) in reversed(list(enumerate(itertools.pairwise(edges)))):
            if lo < hi:
                call(kernel.address, array.ctypes.data, lo, hi, worker)

    def get_num_threads(self):
        return self.workers

    address = staticmethod(launch.address)
    put_addresses = staticmethod(launch.put_addresses)


@pytest.fixture
def split(monkeypatch):
    """``split(workers)``: kernels are called in so many ranges, whatever their size."""

    def use(workers):
        stand_in = Split(workers)
        monkeypatch.setattr(convolution, "launch", stand_in)
        monkeypatch.setattr(convolution_layout, "PARALLEL_MIN", 0)
        forget_layouts()
        return stand_in

    yield use
    forget_layouts()


def forget_layouts():
    """Those kept were made with other constants."""
    for kept in (
        convolution_layout.of_convolution,
        convolution_layout.of_phases,
        convolution_layout.of_weight,
    ):
        kept.cache_clear()


def laid_out(array, layout):
    """The values of ``array`` (n, c, h, w) in another layout, amid nan; and the space around."""
    n, c, h, w = array.shape
    if layout == "channels last":
        space = np.full((n, h, w + 1, c + 1), np.nan, array.dtype)
        view = space[:, :, :w, :c].transpose(0, 3, 1, 2)
    elif layout == "padded":
        space = np.full((n, c + 1, h + 2, w + 3), np.nan, array.dtype)
        view = space[:, 1:, 1 : h + 1, 2 : w + 2]
    elif layout == "every second":
        space = np.full((n, c, 2 * h + 1, 2 * w + 2), np.nan, array.dtype)
        view = space[:, :, 1 : 2 * h + 1 : 2, 1 : 2 * w + 1 : 2]
    elif layout == "reversed":
        space = np.full((n, c, h + 1, w + 1), np.nan, array.dtype)
        view = space[::-1, ::-1, h:0:-1, w:0:-1] if h and w else space[:, :, :h, :w]
    else:
        space = np.full((n + 1, c, h, w), np.nan, array.dtype)
        view = space[:n]
    view[...] = array
    if layout == "one image" and n:
        view = np.broadcast_to(view[:1], view.shape)
    if layout == "one pixel" and h * w:
        view = np.broadcast_to(view[:, :, :1, :1], view.shape)
    return space, view


def out_size(size, taps, stride, padding, dilation):
    return tuple(
        max(0, (n + 2 * p - d * (t - 1) - 1) // s + 1)
        for n, t, s, p, d in zip(size, taps, stride, padding, dilation, strict=True)
    )


def close(found, exact, magnitude, count):
    """Within the error of ``count`` products added in any order (Higham 2002, eq. 3.5)."""
    eps = np.finfo(found.dtype).eps / 2
    allowed = (2 * count + 5) * eps * magnitude + 1e-300
    np.testing.assert_array_less(np.abs(found - exact), allowed)


def case(seed, images, groups, rows, depth, size, taps, stride, padding, dilation, dtype, layouts):
    """All three functions on one geometry, each in the given layouts of its operands and result."""
    rng = np.random.default_rng(seed)
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    shape_x = (images, groups * depth, *size)
    shape_w = (groups * rows, depth, *taps)
    shape_y = (images, groups * rows, *out_size(size, taps, stride, padding, dilation))
    values = [rng.standard_normal(shape).astype(dtype) for shape in (shape_x, shape_w, shape_y)]
    x, w, g = (laid_out(v, layout)[1] for v, layout in zip(values, layouts, strict=True))
    shift = rng.standard_normal(groups * rows).astype(dtype)
    stand_in = convolution.launch
    workspace = stand_in.workspace if isinstance(stand_in, Split) else np.empty
    for function, operands, shape, more, count in (
        ("convolve", (x, w), shape_y, {"shift": shift}, depth * taps[0] * taps[1]),
        ("convolve_transposed", (g, w), shape_x, {}, rows * taps[0] * taps[1]),
        ("weight_gradient", (x, g), shape_w, {}, images * shape_y[2] * shape_y[3]),
    ):
        exact, magnitude = np.empty(shape), np.empty(shape)
        getattr(reference, function)(exact, *operands, **attrs, **more)
        getattr(reference, function)(
            magnitude, *map(np.abs, operands), **attrs, **{k: np.abs(a) for k, a in more.items()}
        )
        layout = layouts[2] if layouts[2] in LAYOUTS[:5] else "planes"
        if function == "weight_gradient":
            layout = "planes"
        space, out = laid_out(np.full(shape, np.inf, dtype), layout)
        getattr(convolution, function)(out, *operands, **attrs, **more, workspace=workspace)
        close(out, exact, magnitude, count)
        out[...] = np.nan
        assert np.isnan(space).all(), "written outside of out"
    if isinstance(stand_in, Split):
        stand_in.check_guards()


def test_places_of_slots():
    for place, name in enumerate(Slots._fields):
        assert getattr(slots, name.upper()) == place


GEOMETRIES = [
    # images, groups, rows, depth, (h, w), taps, stride, padding, dilation
    (2, 1, 5, 3, (9, 11), (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, 1, 70, 64, (7, 7), (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 1, 20, 3, (33, 35), (7, 7), (2, 2), (3, 3), (1, 1)),
    (2, 1, 17, 8, (16, 15), (1, 1), (2, 2), (0, 0), (1, 1)),
    (3, 1, 24, 8, (10, 13), (1, 1), (1, 1), (0, 0), (1, 1)),
    (2, 8, 1, 1, (10, 40), (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 8, 1, 1, (9, 70), (3, 5), (2, 2), (1, 2), (1, 1)),
    (1, 3, 2, 1, (9, 12), (2, 3), (3, 3), (1, 0), (2, 2)),
    (2, 2, 4, 6, (12, 9), (3, 2), (3, 1), (2, 0), (2, 3)),
    (2, 4, 2, 2, (16, 15), (3, 2), (2, 3), (2, 0), (4, 2)),
    (2, 2, 6, 6, (16, 15), (5, 4), (2, 4), (2, 3), (2, 2)),
    (1, 1, 3, 2, (5, 6), (5, 6), (1, 1), (0, 0), (1, 1)),
    (1, 1, 2, 3, (4, 4), (3, 3), (1, 1), (5, 4), (1, 1)),
    (2, 2, 5, 33, (9, 11), (3, 3), (2, 2), (1, 1), (1, 1)),
    (1, 1, 150, 40, (15, 38), (7, 5), (2, 2), (3, 2), (1, 1)),
    (3, 1, 70, 20, (7, 6), (1, 1), (2, 2), (0, 0), (1, 1)),
    (1, 1, 3, 17, (1, 150), (1, 3), (1, 2), (0, 1), (1, 1)),
    (2, 1, 3, 2, (1, 50), (1, 4), (1, 3), (0, 2), (1, 2)),
    (3, 1, 9, 1, (6, 6), (5, 5), (1, 1), (2, 2), (1, 1)),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_geometries(split, geometry, dtype):
    for workers, layout in ((1, "planes"), (3, "channels last"), (2, "every second")):
        split(workers)
        case(7, *geometry, dtype, (layout, "planes", layout))


@pytest.mark.parametrize("dtype", FLOATS)
def test_many_blocks(split, dtype):
    """More than one block of the depth, of the rows and of the pixels."""
    split(2)
    planes = ("planes",) * 3
    case(1, 2, 1, 250, 130, (6, 7), (3, 3), (1, 1), (1, 1), (1, 1), dtype, planes)
    case(2, 3, 1, 5, 50, (20, 23), (3, 3), (1, 1), (1, 1), (1, 1), dtype, planes)
    case(3, 1, 1, 3, 2, (30, 30), (21, 20), (1, 1), (0, 0), (1, 1), dtype, planes)
    case(4, 2, 2, 260, 5, (5, 5), (1, 1), (1, 1), (0, 0), (1, 1), dtype, planes)
    case(5, 1, 2, 1, 1, (4, 600), (2, 3), (1, 1), (1, 1), (1, 1), dtype, planes)


axis = st.tuples(
    st.integers(1, 12), st.integers(1, 4), st.integers(1, 4), st.integers(0, 4), st.integers(1, 3)
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    dtype=st.sampled_from(FLOATS),
    images=st.integers(1, 3),
    groups=st.sampled_from([1, 1, 2, 3]),
    rows=st.sampled_from([1, 2, 5, 15, 33]),
    depth=st.sampled_from([1, 2, 3, 9, 17]),
    vertical=axis,
    horizontal=axis,
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 3),
)
def test_any(dtype, images, groups, rows, depth, vertical, horizontal, layouts):
    (h, r, sh, ph, dh), (w, s, sw, pw, dw) = vertical, horizontal
    case(
        h * w + r, images, groups, rows, depth, (h, w), (r, s), (sh, sw), (ph, pw), (dh, dw),
        dtype, layouts,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("geometry", [GEOMETRIES[i] for i in (1, 2, 5, 8, 13, 14)], ids=str)
def test_same_bits_for_any_split(split, geometry, dtype):
    images, groups, rows, depth, size, taps, stride, padding, dilation = geometry
    rng = np.random.default_rng(0)
    x = rng.standard_normal((images, groups * depth, *size)).astype(dtype)
    w = rng.standard_normal((groups * rows, depth, *taps)).astype(dtype)
    shape = (images, groups * rows, *out_size(size, taps, stride, padding, dilation))
    g = rng.standard_normal(shape).astype(dtype)
    found = []
    for workers in (1, 2, 3, 7):
        stand_in = split(workers)
        attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        attrs["workspace"] = stand_in.workspace
        outs = [np.empty_like(a) for a in (g, x, w)]
        convolution.convolve(outs[0], x, w, **attrs)
        convolution.convolve_transposed(outs[1], g, w, **attrs)
        convolution.weight_gradient(outs[2], x, g, **attrs)
        found.append([out.tobytes() for out in outs])
    assert all(bits == found[0] for bits in found)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("geometry", [GEOMETRIES[i] for i in (0, 4, 5, 8)], ids=str)
@pytest.mark.parametrize("layout", ["planes", "channels last"])
def test_epilogue(split, geometry, dtype, layout):
    """scale, shift, residual and clamp, each alone and all together, on the way to memory."""
    images, groups, rows, depth, size, taps, stride, padding, dilation = geometry
    rng = np.random.default_rng(3)
    x = rng.standard_normal((images, groups * depth, *size)).astype(dtype)
    w = rng.standard_normal((groups * rows, depth, *taps)).astype(dtype)
    shape = (images, groups * rows, *out_size(size, taps, stride, padding, dilation))
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    exact = np.empty(shape)
    reference.convolve(exact, x, w, **attrs)
    scale, shift = rng.standard_normal((2, groups * rows)).astype(dtype)
    _, residual = laid_out(rng.standard_normal(shape).astype(dtype), layout)
    clamp = np.array([-0.5, 1.25], dtype)
    given_ = {"scale": scale, "shift": shift, "residual": residual, "clamp": clamp}
    stand_in = split(2)
    for names in (["scale"], ["shift"], ["residual"], ["clamp"], list(given_)):
        _, out = laid_out(np.full(shape, np.nan, dtype), layout)
        chosen = {name: given_[name] for name in names}
        convolution.convolve(out, x, w, **attrs, **chosen, workspace=stand_in.workspace)
        wanted = exact.copy()
        wanted *= scale[:, None, None] if "scale" in names else 1
        wanted += shift[:, None, None] if "shift" in names else 0
        wanted += residual if "residual" in names else 0
        wanted = np.clip(wanted, *clamp) if "clamp" in names else wanted
        np.testing.assert_allclose(out, wanted, rtol=0, atol=300 * np.finfo(dtype).eps)


def test_a_clamp_keeps_nan(split):
    stand_in = split(1)
    x = np.full((1, 2, 3, 3), np.nan, np.float32)
    w = np.ones((1, 2, 1, 1), np.float32)
    for columns in (slice(None), slice(None, None, 2)):
        out = np.zeros((1, 1, 3, 6), np.float32)[..., :3] if columns.step is None else None
        out = np.zeros((1, 1, 3, 6), np.float32)[..., columns] if out is None else out
        convolution.convolve(
            out, x, w, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1,
            workspace=stand_in.workspace, clamp=np.array([0, 6], np.float32),
        )  # fmt: skip
        assert np.isnan(out).all()


def test_without_images_or_taps(split):
    """An empty batch has an empty result and a gradient of zeros; places no tap reaches are 0."""
    stand_in = split(2)
    attrs = {"stride": (3, 3), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    attrs["workspace"] = stand_in.workspace
    w = np.ones((8, 6, 2, 2), np.float32)
    x, g = np.empty((0, 6, 8, 8), np.float32), np.empty((0, 8, 3, 3), np.float32)
    convolution.convolve(g, x, w, **attrs)
    convolution.convolve_transposed(x, g, w, **attrs)
    assert stand_in.launches == 0
    dw = np.full(w.shape, np.nan, np.float32)
    convolution.weight_gradient(dw, x, g, **attrs)
    assert (dw == 0).all()
    g = np.ones((1, 8, 2, 2), np.float32)
    out = np.full((1, 6, 6, 6), np.nan, np.float32)
    shift = np.arange(6, dtype=np.float32)
    convolution.convolve_transposed(out, g, w, **attrs, shift=shift)
    assert (out[:, :, 2::3] == shift[:, None, None]).all()
    assert (out[:, :, ::3, ::3] == 8 + shift[:, None, None]).all()


def test_launches_of_the_transposed_form(split):
    """One a phase that a tap reaches, and one for all that none does."""
    x, w = np.ones((1, 6, 8, 8), np.float32), np.ones((8, 6, 3, 3), np.float32)
    for stride, launches in (((1, 1), 1), ((2, 1), 2), ((2, 3), 6), ((5, 7), 10)):
        stand_in = split(1)
        g = np.ones((1, 8, *out_size((8, 8), (3, 3), stride, (1, 1), (1, 1))), np.float32)
        convolution.convolve_transposed(
            x.copy(), g, w, stride=stride, padding=(1, 1), dilation=(1, 1), groups=1,
            workspace=stand_in.workspace,
        )  # fmt: skip
        assert stand_in.launches == launches


@pytest.mark.parametrize("dtype", FLOATS)
def test_phases_in_one_launch(split, dtype):
    """From 16 channels on, with stride 2: any number of phases, also those without taps, a shift,
    and results that end amid a pair of columns or rows."""
    rng = np.random.default_rng(5)
    for size, taps, padding in (
        ((9, 35), (3, 3), (1, 1)), ((8, 8), (1, 1), (0, 0)), ((6, 90), (2, 5), (0, 4)),
    ):  # fmt: skip
        stand_in = split(2)
        attrs = {"stride": (2, 2), "padding": padding, "dilation": (1, 1), "groups": 1}
        w, shift = rng.standard_normal((5, 18, *taps)).astype(dtype), np.arange(18).astype(dtype)
        places = out_size(size, taps, (2, 2), padding, (1, 1))
        g = rng.standard_normal((2, 5, *places)).astype(dtype)
        exact = np.empty((2, 18, *size))
        reference.convolve_transposed(exact, g, w, **attrs)
        space, out = laid_out(np.full(exact.shape, np.inf, dtype), "padded")
        convolution.convolve_transposed(
            out, g, w, **attrs, shift=shift, workspace=stand_in.workspace
        )
        exact += shift[:, None, None]
        np.testing.assert_allclose(out, exact, rtol=0, atol=300 * np.finfo(dtype).eps)
        out[...] = np.nan
        assert np.isnan(space).all(), "written outside of out"
        assert stand_in.launches == 1
        stand_in.check_guards()


@pytest.mark.parametrize("instruction_set", ["avx2", "plain"])
def test_other_instruction_sets(instruction_set):
    if instruction_set == "avx2" and vector.INSTRUCTION_SET == "plain":
        pytest.skip("needs AVX2")
    environment = {**os.environ, "NUMGRAD_CPU": instruction_set, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{instruction_set} ran {len(GEOMETRIES)}, ")


if __name__ == "__main__":
    winograd.enabled = False
    for geometry in GEOMETRIES:
        case(1, *geometry, "float32", ("planes", "planes", "planes"))
    counts = store.stats
    print(
        f"{vector.INSTRUCTION_SET} ran {len(GEOMETRIES)}, kernels {counts.compiled + counts.hits}"
    )
