"""Normalisation: values and edges, gradients of both orders, what is kept, running statistics."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numgrad
from numgrad import Variable, memory
from numgrad.autograd import grad
from numgrad.graph.op import OPS
from numgrad.kernels import launch
from numgrad.kernels.cpu import vector
from numgrad.kernels.reference import normalization as reference
from numgrad.nn import functional as F
from tests.checks import assert_close, check_gradients, gradients, layouts

F32, F64 = np.dtype("float32"), np.dtype("float64")
FLOATS = (F32, F64)
TOLERANCE = {F32: 3e-7, F64: 1e-12}
"""Of values: an element is rounded to float32 once."""
RNG = np.random.default_rng(5)
normal = RNG.standard_normal


def statistics(c, dtype=F64):
    """Running statistics that look like some."""
    return [numgrad.tensor(a.astype(dtype)) for a in (normal(c), RNG.uniform(0.5, 2, c))]


def tensors(*arrays, dtype=None):
    return [None if a is None else numgrad.tensor(a, dtype=dtype) for a in arrays]


# ------------------------------------------------------------------------------------------- values

LAYOUTS = ("contiguous", "transposed", "fortran", "stepped", "sliced", "flipped")


@st.composite
def problems(draw, least=1):
    """(x, weight, bias), x (n, c, …) in any layout, weight and bias or not."""
    shape = draw(st.tuples(st.integers(2, 7), st.integers(least, 70 if draw(st.booleans()) else 5)))
    shape += tuple(draw(st.lists(st.integers(1, 9), max_size=2)))
    dtype = draw(st.sampled_from(FLOATS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = (rng.standard_normal(shape) * 2 + 3).astype(dtype)
    x = layouts(x, rng)[draw(st.sampled_from(LAYOUTS))]
    c = shape[1]
    weight, bias = (
        rng.standard_normal(2 * c).astype(dtype)[::2] if draw(st.booleans()) else None
        for _ in range(2)
    )
    return x, weight, bias


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from([0.0, 0.1, 1.0]))
def test_batch_norm(problem, momentum):
    """In training: values and running statistics, for any layout; and without training."""
    x, weight, bias = problem
    c, tolerance = x.shape[1], TOLERANCE[x.dtype]
    # Two values a channel that happen to be close make any answer inexact.
    spread = np.sqrt(x.astype(F64).var((0, *range(2, x.ndim)))).min() + 1e-3
    running = [a.astype(x.dtype) for a in (normal(c), RNG.uniform(0.5, 2, c))]
    moved = [numgrad.tensor(np.repeat(a, 2))[::2] for a in running]
    got = F.batch_norm(numgrad.from_numpy(x), *moved, *map(tensor_of, (weight, bias)),
                       training=True, momentum=momentum, eps=1e-4)  # fmt: skip
    expected = reference.normalize_batch(x, weight, bias, *running, momentum=momentum, eps=1e-4)
    assert got.dtype == x.dtype and got.is_contiguous()
    assert_close(got.numpy(), expected, tolerance * max(1, 0.1 / spread), "batch_norm")
    for a, b in zip(moved, running, strict=True):
        assert_close(a.numpy(), b, 1e-6, "running statistics")

    mean, var = running
    var = np.abs(var) + x.dtype.type(0.1)
    got = F.batch_norm(*map(tensor_of, (x, mean, var, weight, bias)), eps=1e-4)
    expected = reference.normalize_channels(x, mean, var, weight, bias, eps=1e-4)
    assert_close(got.numpy(), expected, 5 * tolerance, "batch_norm without training", 20)


def tensor_of(array):
    return None if array is None else numgrad.from_numpy(array)


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(1, 3), st.booleans())
def test_rows(problem, last, affine):
    """layer_norm over 1 to 3 axes and group_norm by every divisor of the channels."""
    x, weight, bias = problem
    tolerance, c = 4 * TOLERANCE[x.dtype], x.shape[1]
    shape = x.shape[-min(last, x.ndim - 1) :]
    own = [normal(shape).astype(x.dtype) if affine else None for _ in range(2)]
    axis, size = x.ndim - len(shape), int(np.prod(shape))
    got = F.layer_norm(tensor_of(x), shape, *map(tensor_of, own), eps=1e-2)
    expected = reference.normalize_rows(x, *own, axis=axis, channels=size, eps=1e-2)
    assert_close(got.numpy(), expected, tolerance, "layer_norm")
    for groups in [d for d in range(1, c + 1) if c % d == 0]:
        got = F.group_norm(tensor_of(x), groups, *map(tensor_of, (weight, bias)), eps=1e-2)
        expected = reference.normalize_rows(
            x, weight, bias, axis=1, groups=groups, channels=c // groups, eps=1e-2
        )
        assert_close(got.numpy(), expected, tolerance, f"group_norm {groups}")
    if x[0, 0].size > 1:
        got = F.instance_norm(tensor_of(x), None, None, *map(tensor_of, (weight, bias)), eps=1e-2)
        assert_close(got.numpy(), expected, tolerance, "instance_norm")


# Above the blocks of the two passes, above the parallel threshold, and with one plane too many.
LARGE = [(3, 2, 150, 151), (33, 5, 40, 41), (700, 130), (70_001, 2), (9, 3, 3001)]


@pytest.mark.parametrize("shape", LARGE)
def test_large(shape):
    """The same bits at any number of threads, forward and backward."""
    x = (normal(shape) * 3 + 100).astype(F32)
    c, threads = shape[1], launch.get_num_threads()
    weight, bias, g = (normal(s).astype(F32) for s in (c, c, shape))
    mean, var = statistics(c, F32)
    calls = {
        "train": lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        "eval": lambda x, w, b: F.batch_norm(x, mean, var, w, b),
        "group": lambda x, w, b: F.group_norm(x, 1, w, b),
    }
    if len(shape) == 2:
        calls["layer"] = lambda x, w, b: F.layer_norm(x, (c,), w, b)
    for name, call in calls.items():
        found = []
        for n in (1, max(threads, 2)):
            numgrad.set_num_threads(n)
            try:
                leaves = [numgrad.tensor(a, requires_grad=True) for a in (x, weight, bias)]
                out = call(*leaves)
                out.backward(numgrad.tensor(g))
                found.append([out.detach().numpy(), *(v.grad.numpy() for v in leaves)])
            finally:
                numgrad.set_num_threads(threads)
        for a, b in zip(*found, strict=True):
            np.testing.assert_array_equal(a, b, name)
        if name == "eval":
            continue
        axis = {"axis": 1, "channels": c} if name != "train" else {}
        of = reference.normalize_rows if axis else reference.normalize_batch
        expected = of(x.astype(F64), weight.astype(F64), bias.astype(F64), **axis)
        assert_close(found[0][0], expected, 2e-7, name)
        wide = gradients(call, [a.astype(F64) for a in (x, weight, bias)], [g.astype(F64)])
        for a, b in zip(found[0][1:], wide, strict=True):
            assert_close(a, b, 3e-6, f"{name}: float32 gradient of {shape}")


# ------------------------------------------------------------------------------------------- edges


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_edges(dtype):
    """Constants give 0 however large, and nothing overflows: statistics are float64, the variance
    is that of deviations from the mean."""
    flat = np.full((3, 1, 3, 3), 100.0, dtype)
    huge = np.array([1e30, -1e30, 1e30, -1e30], dtype).reshape(4, 1)
    near = np.full((9, 2), 1e10, dtype) * np.array([1, 1 / 3], dtype)
    far = (1e4 + normal((64, 1)) * np.sqrt(0.331)).astype(dtype)
    wide = far.astype(F64)
    z = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-5)
    for x, expected in ((flat, 0 * flat), (near, 0 * near), (huge, np.sign(huge)), (far, z)):
        planes = x.reshape(len(x), x.shape[1], -1)
        rows = np.ascontiguousarray(x.reshape(len(x), x.shape[1], -1).transpose(1, 0, 2))
        want = expected.reshape(planes.shape).transpose(1, 0, 2)
        for got, answer in (
            (F.batch_norm(tensor_of(x), None, None, training=True), expected),
            (F.group_norm(tensor_of(rows), 1), want),
            (F.layer_norm(tensor_of(rows), rows.shape[1:]), want),
        ):
            assert_close(got.numpy(), answer, 1e-6, "edge")
            if not answer.any():
                assert not got.numpy().any()  # exactly 0
    var = numgrad.zeros(1, dtype=dtype)
    F.batch_norm(tensor_of(far), numgrad.zeros(1, dtype=dtype), var, training=True, momentum=1.0)
    assert_close(var.numpy(), np.array([wide.var(ddof=1)]), 1e-6, "variance about a large mean")


def test_not_finite_stays_in_its_channel():
    x = normal((4, 3, 5))
    x[1, 1, 2], x[2, 2, 2] = np.nan, np.inf
    for got in (
        F.batch_norm(tensor_of(x), None, None, training=True).numpy(),
        F.group_norm(tensor_of(np.ascontiguousarray(x.transpose(1, 0, 2))), 1)
        .numpy()
        .transpose(1, 0, 2),
    ):
        assert np.isfinite(got[:, 0]).all() and np.isnan(got[:, 1:]).all()
    mean, var = statistics(3)
    got = F.batch_norm(tensor_of(x), mean, var).numpy()
    assert np.isnan(got[1, 1, 2]) and np.isposinf(got[2, 2, 2]) and (~np.isfinite(got)).sum() == 2


@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 4, 4), (2, 3, 0), (2, 0, 4)])
def test_empty(shape):
    """An empty batch works, leaves the statistics alone and gives gradients of 0."""
    c = shape[1]
    mean, var = statistics(c)
    before = mean.clone(), var.clone()
    size = (c, *shape[2:])
    for call in (
        lambda x, w, b: F.batch_norm(x, mean, var, w, b, training=True),
        lambda x, w, b: F.batch_norm(x, mean, var, w, b),
        lambda x, w, b: F.group_norm(x, 1, w, b),
        lambda x, w, b: F.instance_norm(x, None, None, w, b),
        lambda x, w, b: F.layer_norm(x, size, (w, b)[0].reshape(c, *[1] * (len(size) - 1)) +
                                     numgrad.zeros(size, dtype=F64)),
    ):  # fmt: skip
        if call.__code__.co_names[1:2] == ("instance_norm",) and len(shape) == 2:
            continue
        leaves = [numgrad.ones(s, dtype=F64, requires_grad=True) for s in (shape, c, c)]
        out = call(*leaves)
        assert out.shape == shape
        out.sum().backward()
        for leaf in leaves:
            assert leaf.grad is None or not leaf.grad.numpy().any()
        assert leaves[0].grad.shape == shape
    for a, b in zip((mean, var), before, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


# ---------------------------------------------------------------------------------------- gradients


def in_training(x, w=None, b=None):
    return F.batch_norm(x, None, None, w, b, training=True)


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 2), (2, 3, 4, 5)])
def test_gradient_of_channels(shape):
    x, w, b = normal(shape), normal(3), normal(3)
    mean, var = statistics(3)

    def evaluated(x, w=None, b=None):
        return F.batch_norm(x, mean.to(x.dtype), var.to(x.dtype), w, b)

    for call, name in ((in_training, "normalize_batch"), (evaluated, "normalize_channels")):
        check_gradients(call, [x, w, b], name)
        check_gradients(call, [x], name)
        check_gradients(lambda x, w, call=call: call(x, w), [x, w], name)
        check_gradients(lambda x, b, call=call: call(x, None, b), [x, b], name)
        check_gradients(lambda x, call=call: call(x.transpose(0, -1) if x.shape[0] == x.shape[-1]
                                                  else x.flip(0)), [x], name)  # fmt: skip


def test_gradient_of_rows():
    for shape in ((5, 4), (2, 3, 4)):
        x, w, b = normal(shape), normal(shape[1:]), normal(shape[1:])
        check_gradients(lambda x, w, b: F.layer_norm(x, w.shape, w, b), [x, w, b], "normalize_rows")
        check_gradients(lambda x: F.layer_norm(x, x.shape[-1]), [x], "normalize_rows")
        check_gradients(lambda x, w: F.layer_norm(x, w.shape, w), [x, w], "normalize_rows")
    for shape, groups in itertools.product(((2, 4, 3), (2, 4, 3, 2)), (1, 2, 4)):
        x, w, b = normal(shape), normal(4), normal(4)
        check_gradients(
            lambda x, w, b, n=groups: F.group_norm(x, n, w, b), [x, w, b], "normalize_rows"
        )
    check_gradients(lambda x, w: F.instance_norm(x, weight=w), [x, w], "normalize_rows")
    check_gradients(lambda x: F.group_norm(x, 2), [normal((6, 8))], "normalize_rows")


def test_third_order():
    """The recorded gradient is a composite of entries, so orders go on."""
    x = numgrad.tensor(normal((6, 2)), requires_grad=True)
    u = [numgrad.tensor(normal((6, 2))) for _ in range(4)]

    def second(x):
        (a,) = grad((in_training(x) * u[0]).sum(), x, create_graph=True)
        (b,) = grad((a * u[1]).sum(), x, create_graph=True)
        return (b * u[2]).sum()

    (third,) = grad(second(x), x)
    h = 1e-4
    step = [second((x + s * h * u[3]).detach().requires_grad_()).item() for s in (1, -1)]
    got = float((third * u[3]).sum())
    assert abs(got - (step[0] - step[1]) / (2 * h)) < 1e-5 * max(abs(got), 1)


def test_gradients_of_strided_and_expanded():
    """x and the incoming gradient in every layout give the gradients of contiguous ones."""
    for shape in ((6, 5), (4, 5, 6), (2, 5, 3, 4)):
        x, g, w = normal(shape), normal(shape), normal(5)
        mean, var = statistics(5)
        calls = {
            "train": in_training,
            "eval": lambda x, w, m=mean, v=var: F.batch_norm(x, m, v, w),
            "group": lambda x, w: F.group_norm(x, 5 if x.dim() > 2 else 1, w),
        }
        for name, call in calls.items():
            expected = gradients(call, [x, w], [g])
            for a, b in itertools.product(layouts(x, None).values(), layouts(g, None).values()):
                leaf, weight = numgrad.from_numpy(a), numgrad.tensor(w)
                leaf.requires_grad_(), weight.requires_grad_()
                found = grad(call(leaf, weight), [leaf, weight], numgrad.from_numpy(b))
                for p, q in zip(found, expected, strict=True):
                    assert_close(p.numpy(), q, 1e-12, name)
            ones = gradients(call, [x, w], [np.ones(shape)])
            leaves = [numgrad.tensor(v, requires_grad=True) for v in (x, w)]
            call(*leaves).sum().backward()  # an expanded scalar arrives
            for p, q in zip(leaves, ones, strict=True):
                assert_close(p.grad.numpy(), q, 1e-12, name)


# ------------------------------------------------------------------------------------ what is kept

STATISTICS_BYTES = 2 * 3 * 8  # mean and inverse of 3 channels, float64
X_BYTES, W_BYTES = 4 * 3 * 5 * 8, 3 * 8
SAVED = [
    # (x, weight, bias) that require a gradient; names and bytes kept in training, without it, and
    # by group_norm with one group
    ((1, 1, 1), {"x", "weight", "mean", "inverse"}, {"x", "weight", "running_mean", "running_var"}),
    ((1, 0, 0), {"x", "weight", "mean", "inverse"}, {"weight", "running_var"}),
    ((0, 1, 0), {"x", "mean", "inverse"}, {"x", "running_mean", "running_var"}),
    ((0, 0, 1), set(), set()),
    ((1, 0, 1), {"x", "weight", "mean", "inverse"}, {"weight", "running_var"}),
    ((0, 1, 1), {"x", "mean", "inverse"}, {"x", "running_mean", "running_var"}),
]
BYTES = {
    "x": X_BYTES, "weight": W_BYTES, "mean": W_BYTES, "inverse": W_BYTES, "running_mean": W_BYTES,
    "running_var": W_BYTES,
}  # fmt: skip


def test_numbers_of_numpy():
    """As eps, momentum and counts, like those of Python."""
    x, one, eps = numgrad.tensor(normal((4, 6, 3))), np.int64(1), np.float64(1e-3)
    moved = [statistics(6) for _ in range(2)]
    moved[1] = [a.clone() for a in moved[0]]
    for kind, (e, m) in enumerate(((1e-3, 0.25), (eps, np.float32(0.25)))):
        F.batch_norm(x, *moved[kind], training=True, momentum=m, eps=e)
        F.instance_norm(x, *moved[kind], momentum=m, eps=e)
    for a, b in zip(*moved, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    for got, expected in (
        (F.layer_norm(x, np.int64(3), eps=eps), F.layer_norm(x, 3, eps=1e-3)),
        (F.group_norm(x, np.int64(2), eps=eps), F.group_norm(x, 2, eps=1e-3)),
        (F.batch_norm(x, *moved[0], training=True, momentum=one), in_training(x, None, None)),
    ):
        np.testing.assert_array_equal(got.numpy(), expected.numpy())


@pytest.mark.parametrize("name", ["running_mean", "running_var"])
@pytest.mark.parametrize("function", ["batch_norm", "instance_norm"])
def test_volatile_statistics_do_not_spread(function, name):
    """Running statistics are buffers: what they are marked with reaches no result."""
    for own in (True, False):
        named = dict(zip(("running_mean", "running_var"), statistics(3), strict=True))
        named[name] = Variable(named[name], volatile=True)
        x = Variable(numgrad.tensor(normal((4, 3, 5))), requires_grad=True)
        key = "training" if function == "batch_norm" else "use_input_stats"
        out = getattr(F, function)(x, **named, **{key: own})
        assert out.requires_grad and not out.volatile
        out.sum().backward()
        assert x.grad is not None


@pytest.mark.parametrize("shape", [(4, 3, 5), (4, 3)])
def test_frozen_layer_takes_the_forward_kernel(monkeypatch, shape):
    """Where dx alone is wanted it is one pass over g, without a sum over it."""
    x, (mean, var) = numgrad.tensor(normal(shape), requires_grad=True), statistics(3)
    weight = numgrad.tensor(normal(3))
    out = F.batch_norm(x, mean, var, weight, numgrad.tensor(normal(3)))
    ran, ranged = [], launch.ranged

    def record(kernel, *args, **named):
        ran.append(kernel.name)
        ranged(kernel, *args, **named)

    monkeypatch.setattr(launch, "ranged", record)
    g = numgrad.tensor(normal(shape))
    out.backward(g)
    assert ran == [f"affine_channels_{x.dtype.name}_{vector.INSTRUCTION_SET}"]
    monkeypatch.undo()
    expected = F.batch_norm(g, mean * 0, var, weight)
    np.testing.assert_array_equal(x.grad.numpy(), expected.numpy())


@pytest.mark.parametrize(("needs", "training", "evaluating"), SAVED)
def test_saves_only(needs, training, evaluating):
    """What wanted gradients need is kept, and these are the same whichever others are wanted."""
    arrays = normal((4, 3, 5)), normal(3), normal(3)
    mean, var = statistics(3)

    def evaluated(x, w, b):
        return F.batch_norm(x, mean, var, w, b)

    cases = [(in_training, training), (evaluated, evaluating)]
    cases += [(lambda x, w, b: F.group_norm(x, 3, w, b), training)]
    for call, names in cases:
        full = gradients(call, arrays, [np.ones((4, 3, 5))])
        leaves = [
            numgrad.tensor(a, requires_grad=bool(need))
            for a, need in zip(arrays, needs, strict=True)
        ]
        with memory.track() as m:
            out = call(*leaves)
        node = out.grad_fn
        assert {s.name for s in node.saved_values()} == names
        sizes = dict(BYTES)
        if call is cases[2][0]:
            sizes["mean"] = sizes["inverse"] = 4 * 3 * 8  # 4 samples of 3 groups
        total = sum(sizes[n] for n in names)
        assert (m.nodes, m.saved_tensors, m.saved_bytes) == (1, len(names), total)
        with memory.track() as m:
            out.backward(numgrad.ones(4, 3, 5, dtype=F64))
        for leaf, need, expected in zip(leaves, needs, full, strict=True):
            assert (leaf.grad is not None) == bool(need)
            if need:
                assert_close(leaf.grad.numpy(), expected, 1e-13, "gradient")


@pytest.mark.parametrize("name", ["normalize_batch", "normalize_rows"])
def test_no_aux_unless_recording(name):
    """Mean and deviation are results only while recording; otherwise they are workspace."""
    op = OPS[name]
    x = normal((4, 3, 5))
    attrs = {"momentum": 0.1}
    if name == "normalize_rows":
        attrs = {"axis": 1, "groups": 1, "channels": 3}
    attrs["eps"] = 1e-5
    operands = [x, *[None] * (len(op.operands) - 1)]
    out = np.empty_like(x)
    assert op.run((out,), operands, attrs, False) is None
    aux = op.run((out,), operands, attrs, True)
    assert aux.keys() == {"mean", "inverse"}
    assert all(array.dtype == F64 for array, _ in aux.values())


def test_unrecorded():
    """Nothing is made for backward: neither a node nor anything saved."""
    x, w = (numgrad.tensor(normal(s), requires_grad=True) for s in ((4, 3, 5), 3))
    mean, var = statistics(3)
    volatile = Variable(x.data, volatile=True)
    for call in (
        in_training,
        lambda x, w: F.batch_norm(x, mean, var, w),
        lambda x, w: F.group_norm(x, 3, w),
        lambda x, w: F.layer_norm(x, (3, 5), w.reshape(3, 1).expand(3, 5)),
        lambda x, w: F.instance_norm(x, mean, var, w),
    ):
        expected = call(x, w).detach().numpy()
        with memory.track() as m, numgrad.no_grad():
            call(x, w)
        assert (m.nodes, m.saved_tensors, m.saved_bytes) == (0, 0, 0)
        with memory.track() as m:
            out = call(volatile, w)
        assert out.volatile and not out.requires_grad and type(out) is Variable
        assert m.saved_tensors == 0 and out.grad_fn is None
        np.testing.assert_array_equal(out.numpy(), expected)


def test_no_copies_of_contiguous():
    """A contiguous image is read where it lies: what is allocated is the result and few numbers."""
    n, c, h = 2, 8, 32
    x, g = (numgrad.tensor(normal((n, c, h, h)).astype(F32)) for _ in range(2))
    x.requires_grad_()
    w = numgrad.ones(c, requires_grad=True)
    mean, var = statistics(c, F32)
    room = 64 * c * 8  # statistics, scales and sums a channel
    for call in (
        lambda: F.batch_norm(x, mean, var, w, None, training=True),
        lambda: F.batch_norm(x, mean, var, w),
        lambda: F.group_norm(x, 4, w),
    ):
        with memory.track() as m:
            out = call()
        assert m.peak_bytes <= x.array.nbytes + room
        with memory.track() as m:
            found = grad(out, [x, w], g)
        assert m.peak_bytes <= x.array.nbytes + room
        del found
    with numgrad.no_grad(), memory.track() as m:
        F.batch_norm(x, None, None, w, w, training=True)
    assert m.launches == 1


# ------------------------------------------------------------------------------ running statistics


def test_statistics_move():
    """By the rule, whether or not anything is recorded; versions and writes are bumped."""
    x = normal((4, 3, 5)) + 2
    values = x.mean((0, 2)), x.var((0, 2)) * 20 / 19
    volatile = Variable(numgrad.tensor(x), volatile=True)
    recording = numgrad.tensor(x, requires_grad=True)
    for given_x in (numgrad.tensor(x), volatile, recording):
        mean, var = statistics(3)
        before = mean.numpy().copy(), var.numpy().copy()
        writes = mean.storage.writes, var.storage.writes
        versions = mean.group.version, var.group.version
        out = F.batch_norm(given_x, mean, var, training=True, momentum=0.3)
        written = mean.storage.writes, var.storage.writes
        assert out.volatile == given_x.volatile
        for running, old, new in zip((mean, var), before, values, strict=True):
            assert_close(running.numpy(), 0.7 * old + 0.3 * new, 1e-13, "moved")
            assert not running.volatile and not running.requires_grad
        assert (mean.group.version, var.group.version) == tuple(v + 1 for v in versions)
        assert written == tuple(w + 2 for w in writes)
        held = mean.numpy().copy(), versions
        F.batch_norm(given_x, mean, var)
        np.testing.assert_array_equal(mean.numpy(), held[0])
        assert mean.group.version == held[1][0] + 1
    only = numgrad.zeros(3, dtype=F64)
    F.batch_norm(numgrad.tensor(x), only, None, training=True, momentum=1.0)
    assert_close(only.numpy(), values[0], 1e-13, "mean alone")
    mean, var = statistics(3)
    F.instance_norm(numgrad.tensor(x), mean, var, momentum=1.0)
    assert_close(mean.numpy(), values[0], 1e-13, "instance mean")
    assert_close(var.numpy(), x.var(2, ddof=1).mean(0), 1e-13, "instance variance")


def test_statistics_are_constants():
    """Flags of the statistics reach no result, and a change under a node is noticed."""
    x = numgrad.tensor(normal((4, 3)))
    mean, var = (Variable(v, volatile=True) for v in statistics(3))
    out = F.batch_norm(x, mean, var)
    assert type(out) is numgrad.Tensor and not out.volatile
    mean, var = (v.requires_grad_() for v in statistics(3))
    assert not F.batch_norm(x, mean, var).requires_grad
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad has been used"):
        F.batch_norm(x, mean, var, training=True)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        F.batch_norm(x, numgrad.zeros(1, dtype=F64).expand(3), None, training=True)
    mean, var = statistics(3)
    out = F.batch_norm(x.requires_grad_(), mean, var)
    F.batch_norm(x, mean, var, training=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


# ------------------------------------------------------------------------------------------- errors


def test_errors():
    f = numgrad.ones
    whole = numgrad.ones(4, 3, dtype="int64")
    mean, var = numgrad.zeros(3), numgrad.ones(3)

    def train(x, **named):
        return F.batch_norm(x, named.pop("mean", None), None, training=True, **named)

    cases = [
        (lambda: F.batch_norm(f(4, 5), mean, var), ValueError,
         r"batch_norm: expected 3 channels for x, got .* \(4, 5\) .*; running_mean, r"),
        (lambda: train(f(4, 3), weight=f(4)), ValueError, r"expected shape \(3,\) for weight"),
        (lambda: train(f(4, 3), bias=f(3, 1)), ValueError, r"expected shape \(3,\) for bias"),
        (lambda: train(f(4, 3), bias=f(3, dtype=F64)), TypeError, "dtype float32 for bias"),
        (lambda: train(whole), TypeError, "batch_norm: expected a floating dtype for x"),
        (lambda: F.batch_norm(whole, mean, var), TypeError, "expected a floating dtype for x"),
        (lambda: train(f(3)), ValueError, r"batch_norm: expected a tensor \(n, c, …\) for x"),
        (lambda: train(f(1, 3)), ValueError,
         r"Expected more than 1 value per channel when training, got input size \(1, 3\)"),
        (lambda: train(f(1, 3, 1, 1)), ValueError, "Expected more than 1 value per channel"),
        (lambda: F.batch_norm(f(4, 3), mean, None), RuntimeError,
         "Expected running_mean and running_var to be defined when training=False"),
        (lambda: train(f(4, 3), eps=0.0), ValueError, "a positive number for eps, got 0.0"),
        (lambda: F.batch_norm(f(4, 3), mean, var, eps=-1.0), ValueError, "for eps, got -1.0"),
        (lambda: train(f(4, 3), mean=f(3), momentum=None), TypeError, "a number for momentum"),
        (lambda: train([1.0]), TypeError, "batch_norm: expected a Tensor for x"),
        (lambda: train(f(4, 3), weight=[1.0]), TypeError, "expected a Tensor for weight"),
        (lambda: train(f(4, 3), mean=[1.0]), TypeError, "expected a Tensor for running_mean"),
        (lambda: F.instance_norm(f(4, 3, 2), mean, momentum=None), TypeError,
         "instance_norm: expected a number for momentum"),
        (lambda: train(f(4, 5), weight=f(3), bias=f(3)), ValueError,
         r"batch_norm: expected 3 channels for x, got .* \(4, 5\) .*; weight, bias have 3"),
        (lambda: F.batch_norm(f(4, 3), mean, var, f(2)), ValueError,
         r"expected shape \(3,\) for weight"),
        (lambda: F.layer_norm(f(4, 3), (4,)), ValueError, r"expected last axes \(4,\)"),
        (lambda: F.layer_norm(f(4, 3), (2, 4, 3)), ValueError, "layer_norm: expected last axes"),
        (lambda: F.layer_norm(f(4, 3), ()), ValueError, "one or more, for normalized_shape"),
        (lambda: F.layer_norm(f(4, 3), -3), ValueError, "lengths from 0 on"),
        *[
            (lambda layer=layer, bad=bad: layer(bad), TypeError,
             "an integer or a sequence of integers for normalized_shape")
            for bad in (None, 3.0, True, "ab", (3, 2.5), f(2))
            for layer in (numgrad.nn.LayerNorm, lambda shape: F.layer_norm(f(4, 3), shape))
        ],
        (lambda: F.layer_norm(f(4, 3), 3, f(4)), ValueError, r"expected shape \(3,\) for weight"),
        (lambda: F.layer_norm(whole, 3), TypeError, "layer_norm: expected a floating dtype"),
        (lambda: F.group_norm(f(4, 3), 2), ValueError, "expected channels that 2 groups divide"),
        (lambda: F.group_norm(f(4, 3), 0), ValueError, "a positive integer for num_groups"),
        (lambda: F.group_norm(f(1, 3), 3), ValueError, "Expected more than 1 value per channel"),
        (lambda: F.group_norm(f(4, 4), 2, f(2)), ValueError, r"expected shape \(4,\) for weight"),
        (lambda: F.instance_norm(f(4, 3, 1)), ValueError, "Expected more than 1 spatial element"),
        (lambda: F.instance_norm(f(4, 3, 2), mean, f(4)), ValueError, "for running_var, got"),
    ]  # fmt: skip
    before = mean.numpy().copy()
    for call, error, text in cases:
        with pytest.raises(error, match=text):
            call()
    np.testing.assert_array_equal(mean.numpy(), before)
