"""The statistics of ``bench speed`` on made-up samples, and its table of cases."""

import math

import numpy as np
import pytest

from numgrad.cli.speed import cases, measuring, networks, report
from numgrad.cli.speed.kit import Kit, weights
from numgrad.cli.speed.peaks import quartiles

CALM = [[1.0, 1.1, 1.2], [2.0, 2.0, 2.0]]
WILD = [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0]]
WILDER = [[1.0, 2.0, 9.0], [2.0, 2.0, 2.0]]


def test_quartiles():
    assert quartiles([3.0, 1.0, 2.0, 5.0, 4.0]) == (2.0, 3.0, 4.0)
    assert quartiles([7.0]) == (7.0, 7.0, 7.0)
    assert measuring.spread([1.0, 1.0, 2.0, 3.0, 3.0]) == 3.0
    assert measuring.spread([0.0, 0.0, 1.0]) == math.inf


@pytest.mark.parametrize(
    ("attempts", "kept", "made", "steady"),
    [
        ([CALM], CALM, 1, True),
        ([WILD, CALM], CALM, 2, True),
        ([WILD, WILDER, CALM], CALM, 3, True),
        ([WILDER, WILD, WILDER], WILD, 3, False),
        ([WILDER, WILD], WILD, 2, False),
    ],
)
def test_steadiest(attempts, kept, made, steady):
    assert measuring.steadiest(iter(attempts)) == (kept, made, steady)


def test_rounds():
    assert [measuring.rounds_for(s) for s in (1e-6, 0.7, 1.0, 5.0)] == [7, 7, 5, 3]


def test_errors():
    a = np.array([1.0, 2.0, 4.0], np.float32)
    assert measuring.error_of(a, a) == 0.0
    assert measuring.error_of(a + np.float32(0.5), a) == 0.125
    assert measuring.error_of(a, a[:2]) == math.inf
    assert measuring.error_of(np.array([math.nan]), np.array([1.0])) == math.inf
    assert measuring.error_of(np.array([0.0]), np.array([0.0])) == 0.0


def row(name, ours, theirs, group="matmul", threads=2, weight=1, asked=0.85):
    case = cases.Case(group, name, lambda kit: None, flops=1e6, asked=asked, weight=weight)
    times = [
        {"library": "numgrad", "variant": "", "ms": ours},
        *({"library": "torch", "variant": v, "ms": ms} for v, ms in theirs.items()),
    ]
    return report.case_row(case, threads, {"times": times, "attempts": 1, "steady": True}, {})


def test_the_faster_variant_counts():
    found = row("a", 2.0, {"": 5.0, "channels last": 3.0})
    assert found["peers"] == {"torch": {"ms": 3.0, "variant": "channels last", "ratio": 1.5}}
    assert found["ratio"] == 1.5 and not report.falls_short(found)
    assert report.falls_short(row("a", 4.0, {"": 3.0}))
    assert row("a", 1.0, {})["ratio"] is None


def test_summaries():
    found = report.summary_rows([row("a", 1.0, {"": 2.0}), row("b", 1.0, {"": 0.5})])
    assert [(r["name"], r["ratio"], r["asked"]) for r in found] == [
        ("geometric mean", pytest.approx(1.0), 1.0),
        ("least", 0.5, 0.85),
    ]
    assert [report.falls_short(r) for r in found] == [False, True]
    assert not found[0]["complete"]  # two cases are not all
    (total, _) = report.summary_rows(
        [row("a", 1.0, {"": 2.0}, "conv-b1", weight=3), row("b", 2.0, {"": 1.0}, "conv-b1")]
    )
    assert (total["ms"], total["peers"]["torch"]["ms"], total["ratio"]) == (5.0, 7.0, 1.4)
    assert report.summary_rows([row("a", 1.0, {})]) == []


@pytest.mark.parametrize(
    ("asked", "threads", "found"), [(1.5, 2, 1.5), (1.5, 1, 1.0), (0.9, 1, 0.9), (None, 1, None)]
)
def test_asked_of_one_thread(asked, threads, found):
    assert cases.asked_at(asked, threads) == found


def test_marks():
    (one,) = report.tables([{**row("a", 1.0, {"": 0.5}), "steady": False}], {})[:1]
    assert one.rows[0] == ("a ~", "1.000", "0.500", "< 0.50", "0.85", "1.0", "")


def test_flat():
    flat = {"kind": "flat", "asked": 0.1, "ratio": 1.05}
    assert not report.falls_short(flat)
    assert report.falls_short({**flat, "ratio": 0.85}) and report.falls_short(
        {**flat, "ratio": 1.2}
    )


def test_cases():
    groups = {case.group for case in cases.CASES.values()}
    assert groups == set(cases.TITLES) and set(cases.SUMMARIES) <= groups
    for case in cases.CASES.values():
        assert (case.flops > 0) != (case.nbytes > 0) or case.group == "matmul"
        assert max(len(case.name), len(case.group)) <= 34
    # 1.8 GMAC an image is what is said of ResNet-18; every image as much as the last.
    assert networks.forward_flops(1) == pytest.approx(2 * 1.814e9, rel=1e-2)
    assert networks.forward_flops(8) == 8 * networks.forward_flops(1)


def test_numbers_are_the_same_in_each_process():
    a, b = (Kit("numgrad", "matmul/128x128x128") for _ in range(2))
    np.testing.assert_array_equal(a.array(3, 4), b.array(3, 4))
    assert not np.array_equal(a.array(3), Kit("numgrad", "another").array(3))


def test_onnx_has_the_state_of_the_network():
    from numgrad.models import resnet18

    state = {
        name: tuple(x.shape)
        for name, x in resnet18().state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    assert networks.state_shapes() == state
    made = weights([("bn1.running_var", (64,)), ("conv1.weight", (64, 3, 7, 7))])
    assert made["bn1.running_var"].min() > 0 and made["conv1.weight"].dtype == np.float32


@pytest.mark.parametrize(
    "name",
    ["matmul/1x1000x512", "layers/batch-norm-train-backward-256x14", "conv-dw-b1/512x7-512x3x3"],
)
def test_builders(name):
    """A case computes the same twice."""
    case = cases.find(name)
    call = case.build(Kit("numgrad", name))
    first, second = call(), call()
    for a, b in zip(*([r] if not isinstance(r, (list, tuple)) else r for r in (first, second))):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())
