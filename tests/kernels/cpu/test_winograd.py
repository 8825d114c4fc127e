"""Winograd's convolution and its weight gradient against sums in float64."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from numgrad.kernels import convolution, counters, launch, store, winograd, winograd_plan
from numgrad.kernels.cpu import vector

ROOT = pathlib.Path(__file__).resolve().parents[3]

# n, c, k, h, w, padding
SHAPES = [
    (1, 16, 16, 4, 4, (1, 1)),  # one tile
    (2, 20, 40, 9, 13, (1, 1)),  # channels that fill no vector, edges in both directions
    (3, 17, 33, 14, 14, (0, 0)),
    (2, 32, 64, 7, 7, (2, 2)),
    (1, 16, 16, 5, 130, (1, 0)),  # more tiles in a row than one unit has
    (1, 64, 64, 28, 28, (1, 1)),  # by blocks
    (5, 16, 48, 12, 8, (0, 2)),
]
LARGE = (2, 400, 400, 7, 7, (1, 1))  # weights that are transformed in parts


def workspace(shape, dtype):
    """Memory full of nans, none of which may come through."""
    return np.full(int(np.prod(shape)) * dtype.itemsize, 0xFF, np.uint8).view(dtype).reshape(shape)


def sums(x, w, padding):
    """The convolution in float64."""
    wide = ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2)
    windows = sliding_window_view(np.pad(x.astype(np.float64), wide), (3, 3), axis=(2, 3))
    return np.einsum("nchwrs,kcrs->nkhw", windows, w.astype(np.float64), optimize=True)


def weight_sums(x, g, padding):
    """The gradient of the weight in float64."""
    wide = ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2)
    windows = sliding_window_view(np.pad(x.astype(np.float64), wide), (3, 3), axis=(2, 3))
    return np.einsum("nchwrs,nkhw->kcrs", windows, g.astype(np.float64), optimize=True)


def operands(n, c, k, h, w, padding, seed=0):
    """x, weight and an empty result."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, c, h, w), np.float32)
    weight = rng.standard_normal((k, c, 3, 3), np.float32) / np.float32(3 * c**0.5)
    out = np.full((n, k, h + 2 * padding[0] - 2, w + 2 * padding[1] - 2), np.nan, np.float32)
    return x, weight, out


def error(a, b):
    """The greatest difference, relative to the greatest value."""
    return np.abs(a - b).max() / np.abs(b).max()


def check(n, c, k, h, w, padding):
    """All that is computed this way, for one shape."""
    x, weight, out = operands(n, c, k, h, w, padding)
    assert winograd.applies(out, x, weight[None], (1, 1), (1, 1))
    winograd.convolve(out, x, weight, padding, workspace)
    assert error(out, sums(x, weight, padding)) < 4e-6
    turned = weight.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1]
    back = np.full((n, c, *out.shape[2:]), np.nan, np.float32)
    g = np.random.default_rng(1).standard_normal((n, k, h, w), np.float32)
    winograd.convolve(back, g, turned, padding, workspace)
    assert error(back, sums(g, turned, padding)) < 4e-6
    g = np.random.default_rng(2).standard_normal(out.shape, np.float32)
    dw = np.full(weight.shape, np.nan, np.float32)
    assert winograd.weight_gradient_applies(dw, x, g, (1, 1), (1, 1), 1)
    winograd.weight_gradient(dw, x, g, padding, workspace)
    assert error(dw, weight_sums(x, g, padding)) < 4e-6


@pytest.mark.parametrize("shape", [*SHAPES, LARGE])
def test_values(shape):
    check(*shape)


def test_epilogue():
    x, weight, out = operands(2, 16, 20, 9, 6, (1, 1))
    rng = np.random.default_rng(3)
    scale, shift = (rng.standard_normal(20, np.float32) for _ in range(2))
    residual = rng.standard_normal((2, 20, 9, 8), np.float32)[..., 1:7]  # of other strides
    clamp = np.array([-0.5, 0.75], np.float32)
    winograd.convolve(
        out, x, weight, (1, 1), workspace, scale=scale, shift=shift, residual=residual, clamp=clamp
    )
    wanted = sums(x, weight, (1, 1)) * scale[:, None, None] + shift[:, None, None] + residual
    assert error(out, np.clip(wanted, -0.5, 0.75)) < 4e-6


def test_strides():
    """Views with contiguous columns; nothing outside of the result is written."""
    x, weight, out = operands(2, 20, 18, 10, 11, (1, 1))
    wanted = sums(x, weight, (1, 1))
    wide = np.full((20, 2, 12, 15), np.nan, np.float32)
    wide.transpose(1, 0, 2, 3)[:, :, 1:11, 2:13] = x
    target = np.full((2, 10, 18, 13), 7, np.float32)
    view = target.transpose(0, 2, 1, 3)[..., 1:12]
    winograd.convolve(view, wide.transpose(1, 0, 2, 3)[:, :, 1:11, 2:13], weight, (1, 1), workspace)
    assert error(view, wanted) < 4e-6
    assert (target[..., 0] == 7).all() and (target[..., 12] == 7).all()
    winograd.convolve(out, x[::-1], weight, (1, 1), workspace)
    assert error(out, wanted[::-1]) < 4e-6


@pytest.mark.parametrize("shape", [(4, 64, 64, 28, 28, (1, 1)), LARGE])
def test_same_bits(shape):
    """At any number of threads, and in both orders."""
    x, weight, out = operands(*shape)
    g = np.random.default_rng(2).standard_normal(out.shape, np.float32)
    found = []
    before = launch.get_num_threads()
    try:
        for threads in (1, 2):
            launch.set_num_threads(threads)
            dw = np.empty_like(weight)
            winograd.convolve(out, x, weight, shape[-1], workspace)
            winograd.weight_gradient(dw, x, g, shape[-1], workspace)
            found.append((out.copy(), dw))
    finally:
        launch.set_num_threads(before)
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
    halves = np.empty_like(out)
    for i in range(len(x)):
        winograd.convolve(halves[i : i + 1], x[i : i + 1], weight, shape[-1], workspace)
    np.testing.assert_array_equal(out, halves)


@pytest.fixture
def forgotten():
    """No layout from before, nor one left behind."""
    layouts = winograd_plan.layout, winograd_plan.weight_layout
    for layout in layouts:
        layout.cache_clear()
    yield
    for layout in layouts:
        layout.cache_clear()


@pytest.mark.parametrize("own", [True, False])
def test_parts_of_the_inputs(monkeypatch, forgotten, own):
    """Panels after a part of the units give the same bits; workspace does not grow with images.
    Whether each worker transforms the inputs or all of them do together makes no difference."""
    shape = (5, 16, 40, 12, 12, (1, 1))
    x, weight, out = operands(*shape)
    asked = []

    def noted(shape, dtype):
        asked.append(shape[0] * dtype.itemsize)
        return workspace(shape, dtype)

    monkeypatch.setattr(winograd_plan, "KEPT_BYTES", 0)  # so that panels follow
    monkeypatch.setattr(winograd_plan, "STREAMED_BYTES", 0)
    winograd.convolve(out, x, weight, (1, 1), noted)
    whole = out.copy()
    monkeypatch.setattr(winograd_plan, "OWN_INPUTS", 8 if own else 0)
    assert error(out, sums(x, weight, (1, 1))) < 4e-6
    winograd_plan.layout.cache_clear()
    monkeypatch.setattr(winograd_plan, "PANELS_BYTES", 3 * 4 * 36 * 16 * 3)
    before = counters.launches.value
    winograd.convolve(out, x, weight, (1, 1), noted)
    assert counters.launches.value - before == (2 - own) * 5  # 15 rows of tiles, three at a time
    np.testing.assert_array_equal(out, whole)
    assert asked[1] < asked[0]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 20, 40, 7, 7, (1, 1)), (2, 16, 33, 8, 8, (1, 1)), (1, 37, 16, 4, 11, (1, 1))]
)
def test_weights_that_are_never_written(monkeypatch, forgotten, shape, lasting, turned):
    """Few tiles, with weights transformed in registers, give the bits of kept ones."""
    x, weight, out = operands(*shape)
    if turned:
        weight = np.ascontiguousarray(weight.transpose(1, 0, 2, 3)).transpose(1, 0, 2, 3)
        weight = weight[:, :, ::-1, ::-1]
    winograd.convolve(out, x, weight, (1, 1), workspace)
    assert error(out, sums(x, weight, (1, 1))) < 4e-6
    wanted = out.copy()
    winograd_plan.layout.cache_clear()
    monkeypatch.setattr(winograd_plan, "KEPT_BYTES", 0)
    monkeypatch.setattr(winograd_plan, "STREAMED_BYTES", 0)
    kept, before = Memo() if lasting else None, counters.launches.value
    winograd.convolve(out, x, weight, (1, 1), workspace, kept)
    assert counters.launches.value - before == 1 + lasting
    np.testing.assert_array_equal(out, wanted)


def test_parts_of_the_weight_gradient(monkeypatch, forgotten):
    """A part of few tiles gives the same up to rounding."""
    x, weight, out = operands(3, 16, 16, 12, 12, (1, 1))
    g = np.random.default_rng(2).standard_normal(out.shape, np.float32)
    dw = np.full_like(weight, np.nan)
    monkeypatch.setattr(winograd_plan, "PART_BYTES", 1)
    monkeypatch.setattr(winograd_plan, "PART_TILES", 1)
    before = counters.launches.value
    winograd.weight_gradient(dw, x, g, (1, 1), workspace)
    assert counters.launches.value - before == 2 * 9  # two steps for each row of tiles
    assert error(dw, weight_sums(x, g, (1, 1))) < 4e-6


class Memo:
    """Keeps what is made, of one weight."""

    def __init__(self):
        self.made = {}

    def __call__(self, kind, elements, fill):
        if kind not in self.made:
            self.made[kind] = np.full(elements, np.nan, np.float32)
            fill(self.made[kind])
        return self.made[kind]

    if_lasting = __call__


@pytest.mark.parametrize(
    ("shape", "kind"), [((1, 16, 16, 8, 8, (1, 1)), "Winograd"), (LARGE, "taps")]
)
@pytest.mark.parametrize("turned", [False, True])
def test_kept_weights_are_used(shape, kind, turned):
    x, weight, out = operands(*shape)
    if turned:
        weight = weight.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1]
    kept = Memo()
    for _ in range(2):
        before = counters.launches.value
        winograd.convolve(out, x, weight, (1, 1), workspace, kept)
        launches = counters.launches.value - before
        assert error(out, sums(x, weight, (1, 1))) < 4e-6
    (made,) = kept.made.items()
    assert made[0][0] == kind
    made[1][:] = 0
    winograd.convolve(out, x, weight, (1, 1), workspace, kept)
    assert not out.any()
    before = counters.launches.value
    winograd.convolve(out, x, weight, (1, 1), workspace)
    assert counters.launches.value - before == launches + (kind == "Winograd")


@pytest.mark.parametrize(
    "change",
    ["dtype", "few channels", "few outputs", "small", "stride", "dilation", "taps", "columns",
     "switched off", "groups"],
)  # fmt: skip
def test_what_goes_another_way(change, monkeypatch):
    x, weight, out = operands(2, 16, 16, 8, 8, (1, 1))
    stride = dilation = (1, 1)
    if change == "dtype":
        x, weight, out = (a.astype(np.float64) for a in (x, weight, out))
    elif change == "few channels":
        x, weight = x[:, :15], weight[:, :15]
    elif change == "few outputs":
        weight, out = weight[:15], out[:, :15]
    elif change == "small":
        x, out = x[:, :, :3], out[:, :, :3]
    elif change == "stride":
        stride = (2, 2)
    elif change == "dilation":
        dilation = (1, 2)
    elif change == "taps":
        weight = weight[:, :, :, ::2]
    elif change == "columns":
        x = x.transpose(0, 1, 3, 2)
    elif change == "groups":
        weight = np.stack([weight, weight])
    else:
        monkeypatch.setattr(winograd, "enabled", False)
    weight = weight if weight.ndim == 5 else weight[None]
    assert not winograd.applies(out, x, weight, stride, dilation)


def test_switched_off_it_is_the_direct_sum(monkeypatch):
    x, weight, out = operands(1, 64, 32, 12, 12, (1, 1))
    arguments = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    wanted = sums(x, weight, (1, 1))
    errors = []
    for enabled in (True, False):
        monkeypatch.setattr(winograd, "enabled", enabled)
        convolution.convolve(out, x, weight, **arguments, workspace=workspace)
        errors.append(error(out, wanted))
    assert 0 < errors[1] < errors[0] < 4e-6


@pytest.mark.parametrize("instruction_set", ["avx2", "plain"])
def test_other_instruction_sets(instruction_set):
    if instruction_set == "avx2" and vector.INSTRUCTION_SET == "plain":
        pytest.skip("needs AVX2")
    environment = {**os.environ, "NUMGRAD_CPU": instruction_set, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{instruction_set} ran {len(SHAPES)}, ")


if __name__ == "__main__":
    for shape in SHAPES:
        check(*shape)
    counts = store.stats
    print(f"{vector.INSTRUCTION_SET} ran {len(SHAPES)}, kernels {counts.compiled + counts.hits}")
