"""Normalisation: functions, layers over several steps, running statistics, errors."""

from typing import Any

import numpy as np
import pytest
import torch

import numgrad
import numgrad.nn
from tests_compare.checks import FLOATS, Case, agree, check, dtype_of, tensor

C = 3
SHAPES = [(5, C), (4, C, 6), (2, C, 5, 4), (3, C, 17, 9), (1, C, 4)]
EMPTY = [(0, C), (0, C, 4, 4)]
RNG = np.random.default_rng(17)
MEAN, VAR = RNG.standard_normal(C), RNG.uniform(0.5, 2, C)


def statistics(t: Any, x: Any) -> list[Any]:
    """Running statistics of x's dtype."""
    return [tensor(t, a.astype(dtype_of(x))) for a in (MEAN, VAR)]


def trained(momentum: float) -> Any:
    def call(t: Any, x: Any, w: Any = None, b: Any = None) -> Any:
        mean, var = statistics(t, x)
        y = t.nn.functional.batch_norm(x, mean, var, w, b, training=True, momentum=momentum)
        return y, mean, var

    return call


def evaluated(t: Any, x: Any, w: Any = None, b: Any = None) -> Any:
    return t.nn.functional.batch_norm(x, *statistics(t, x), w, b, eps=1e-3)


def own(t: Any, x: Any, w: Any = None, b: Any = None) -> Any:
    return t.nn.functional.batch_norm(x, None, None, w, b, training=True)


def layer(last: int) -> Any:
    def call(t: Any, x: Any, *affine: Any) -> Any:
        return t.nn.functional.layer_norm(x, tuple(x.shape[-last:]), *affine)

    return call


def group(n: int) -> Any:
    return lambda t, x, *affine: t.nn.functional.group_norm(x, n, *affine)


def instance(t: Any, x: Any, w: Any = None, b: Any = None) -> Any:
    return t.nn.functional.instance_norm(x, weight=w, bias=b)


def instance_moved(t: Any, x: Any) -> Any:
    mean, var = statistics(t, x)
    return t.nn.functional.instance_norm(x, mean, var, momentum=0.4), mean, var


def transposed(call: Any) -> Any:
    """The same of an x that is not contiguous."""
    return lambda t, x, *rest: call(t, x.transpose(-1, 0).contiguous().transpose(-1, 0), *rest)


AFFINE = [[s, (C,), (C,)] for s in SHAPES]
ALONE = [[s] for s in SHAPES]
ROWS = [[(4, 6), (6,), (6,)], [(2, 3, 5), (5,), (5,)], [(33, 65), (65,), (65,)]]
GROUPS = [[(2, 6, 5), (6,), (6,)], [(3, 6, 4, 3), (6,), (6,)], [(5, 6), (6,), (6,)]]

CASES = [
    Case("batch_norm", trained(0.1), AFFINE, ops=["normalize_batch"], label="batch_norm, trained"),
    Case("batch_norm", trained(0.7), ALONE, ops=["normalize_batch"], label="without affine"),
    Case("batch_norm", own, AFFINE, ops=["normalize_batch"], label="without statistics"),
    Case("batch_norm", transposed(own), AFFINE, ops=["normalize_batch"], label="transposed"),
    Case("batch_norm", evaluated, AFFINE, ops=["normalize_channels"], label="evaluated"),
    Case("batch_norm", evaluated, ALONE, ops=["normalize_channels"], label="evaluated, no affine"),
    Case("batch_norm", evaluated, [[s, (C,)] for s in SHAPES], ops=["normalize_channels"],
         label="evaluated, no bias"),
    Case("layer_norm", layer(1), ROWS, ops=["normalize_rows"], label="layer_norm"),
    Case("layer_norm", layer(2), [[(4, 3, 5), (3, 5), (3, 5)], [(4, 3, 5)]],
         ops=["normalize_rows"], label="layer_norm over two axes"),
    Case("layer_norm", layer(1), [[(4, 6)], [(4, 6), (6,)], [(0, 6), (6,), (6,)]],
         ops=["normalize_rows"], label="layer_norm, fewer operands"),
    Case("group_norm", group(1), GROUPS, ops=["normalize_rows"], label="one group"),
    Case("group_norm", group(2), GROUPS, ops=["normalize_rows"], label="two groups"),
    Case("group_norm", group(6), GROUPS[:2], ops=["normalize_rows"], label="six groups"),
    Case("group_norm", group(3), [[(2, 6, 5)]], ops=["normalize_rows"], label="group, no affine"),
    Case("instance_norm", instance, AFFINE[1:], ops=["normalize_rows"], label="instance_norm"),
    Case("instance_norm", instance_moved, ALONE[1:], ops=["normalize_rows"],
         label="instance_norm with statistics"),
]  # fmt: skip
EMPTY_CASES = [
    Case("batch_norm", trained(0.1), [[s, (C,), (C,)] for s in EMPTY], ops=["normalize_batch"],
         gradients=0, label="batch_norm of nothing"),
    Case("batch_norm", evaluated, [[s, (C,), (C,)] for s in EMPTY], ops=["normalize_channels"],
         gradients=0, label="batch_norm of nothing, evaluated"),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", [*CASES, *EMPTY_CASES], ids=str)
def test_function(case: Case, dtype: str) -> None:
    """Values, running statistics, gradients of both orders."""
    check(case, "normalisation", dtype)


def test_float32_error() -> None:
    """Of float32 values about a large mean: no farther from float64 than PyTorch's."""
    x = (RNG.standard_normal((16, C, 9, 9)) * 0.6 + 1e4).astype(np.float32)
    exact = own(torch, torch.tensor(x, dtype=torch.float64)).numpy()
    ours, theirs = (
        np.abs(np.asarray(own(t, tensor(t, x)).numpy(), np.float64) - exact).max()
        for t in (numgrad, torch)
    )
    assert ours <= theirs and ours < 1e-6


LAYERS = {
    "BatchNorm1d": (lambda nn: nn.BatchNorm1d(C), (6, C)),
    "BatchNorm1d of three axes": (lambda nn: nn.BatchNorm1d(C, momentum=0.3), (6, C, 4)),
    "BatchNorm2d": (lambda nn: nn.BatchNorm2d(C), (4, C, 5, 5)),
    "BatchNorm2d, cumulative": (lambda nn: nn.BatchNorm2d(C, momentum=None), (4, C, 5, 5)),
    "BatchNorm2d, bare": (
        lambda nn: nn.BatchNorm2d(C, affine=False, track_running_stats=False),
        (4, C, 5, 5),
    ),
    "BatchNorm2d, no bias": (lambda nn: nn.BatchNorm2d(C, eps=1e-3, bias=False), (4, C, 5, 5)),
    "LayerNorm": (lambda nn: nn.LayerNorm((C, 5)), (4, C, 5)),
    "LayerNorm, bare": (lambda nn: nn.LayerNorm(5, elementwise_affine=False), (4, C, 5)),
    "LayerNorm, no bias": (lambda nn: nn.LayerNorm(5, bias=False), (4, C, 5)),
    "GroupNorm": (lambda nn: nn.GroupNorm(3, C), (4, C, 5)),
    "GroupNorm, bare": (lambda nn: nn.GroupNorm(1, C, affine=False), (4, C, 5)),
    "InstanceNorm1d": (lambda nn: nn.InstanceNorm1d(C, affine=True), (4, C, 5)),
    "InstanceNorm1d of one sample": (lambda nn: nn.InstanceNorm1d(C), (C, 5)),
    "InstanceNorm2d": (
        lambda nn: nn.InstanceNorm2d(C, affine=True, track_running_stats=True),
        (4, C, 5, 5),
    ),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str, dtype: str) -> None:
    """Five steps of training and two evaluations: values, gradients, parameters, every buffer."""
    make, shape = LAYERS[name]
    rng = np.random.default_rng(3)
    batches = [(rng.standard_normal(shape) + i).astype(dtype) for i in range(5)]
    targets = [rng.standard_normal(shape).astype(dtype) for _ in range(5)]
    found = []
    for t in (numgrad, torch):
        net = make(t.nn).to(getattr(t, dtype))
        values = []
        for step, (batch, target) in enumerate(zip(batches, targets, strict=True)):
            x = tensor(t, batch, True)
            net.train(step != 2)
            y = net(x)
            (y * tensor(t, target)).sum().backward()
            values += [y, x.grad]
            with t.no_grad():
                for p in net.parameters():
                    values.append(p.grad)
                    p -= 0.1 * p.grad
                    p.grad = None
        net.eval()
        values.append(net(tensor(t, batches[0])))
        found.append((net, values, repr(net)))
    (ours, a, shown), (theirs, b, wanted) = found
    assert shown == wanted
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for i, (p, q) in enumerate(zip(a, b, strict=True)):
        # Sums over the batch are near 0, so what matters of a gradient is its absolute error.
        agree("normalisation", "gradient", f"{name}, value {i}", p, q)
    for key, value in ours.state_dict().items():
        agree("normalisation", "gradient", f"{name}.{key}", value, theirs.state_dict()[key])


BAD: dict[str, Any] = {
    "one value a channel": lambda t: own(t, t.ones(1, C)),
    "one value a channel of an image": lambda t: own(t, t.ones(1, C, 1, 1)),
    "another count of channels": lambda t: evaluated(t, t.ones(4, C + 1)),
    "statistics missing": lambda t: t.nn.functional.batch_norm(t.ones(4, C), None, None),
    "a weight of another length": lambda t: own(t, t.ones(4, C), t.ones(C + 1)),
    "integers": lambda t: own(t, t.ones(4, C, dtype=t.int64)),
    "a wrong count of axes": lambda t: t.nn.BatchNorm2d(C)(t.ones(4, C)),
    "eps of 0 in training": lambda t: t.nn.functional.batch_norm(
        t.ones(4, C), None, None, training=True, eps=0.0
    ),
    "statistics that require grad": lambda t: t.nn.functional.batch_norm(
        t.ones(4, C), t.zeros(C).requires_grad_(), t.ones(C), training=True
    ),
    "another normalized shape": lambda t: layer(1)(t, t.ones(4, 5), t.ones(4)),
    "groups that do not divide": lambda t: group(2)(t, t.ones(4, C)),
    "one value a group": lambda t: group(3)(t, t.ones(1, C)),
    "a GroupNorm that cannot be": lambda t: t.nn.GroupNorm(2, C),
    "one value an instance": lambda t: instance(t, t.ones(4, C, 1)),
}


@pytest.mark.parametrize("name", BAD)
def test_error(name: str) -> None:
    """What PyTorch refuses numgrad refuses, with an error that is caught where PyTorch's is."""
    with pytest.raises(Exception) as theirs:
        BAD[name](torch)
    kind = type(theirs.value)
    with pytest.raises(RuntimeError if kind is NotImplementedError else kind):
        BAD[name](numgrad)


def test_training_moves_statistics_alike_under_no_grad() -> None:
    found = []
    for t in (numgrad, torch):
        net = t.nn.BatchNorm1d(C)
        net.requires_grad_(False)
        with t.no_grad():
            net(tensor(t, np.array([[2.0] * C, [4.0] * C], np.float32)))
        found.append(net)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        ours, theirs = (getattr(net, name) for net in found)
        agree("normalisation", "forward", name, ours, theirs)
    assert found[0].running_mean[0].item() == pytest.approx(0.3)
    assert found[0].running_var[0].item() == pytest.approx(1.1)
