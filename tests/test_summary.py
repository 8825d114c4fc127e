"""`summary`: shapes, parameters, MACs and saved bytes worked out by hand; nothing is changed."""

import numpy as np
import pytest

import numgrad as ng
import numgrad.nn as nn
from numgrad import models


def rows(found):
    return {row.name: row for row in found.rows}


def test_mlp_by_hand():
    found = ng.summary(models.DigitsMLP((5,)), (64,))
    assert found.input == (1, 64)
    assert [tuple(row) for row in found.rows] == [
        # name, kind, calls, output, parameters, trainable, MACs, saved bytes
        ("layers.0", "Linear", 1, (1, 5), 325, 325, 320, 64 * 4),  # its input
        ("layers.1", "ReLU", 1, (1, 5), 0, 0, 0, 5 * 4),  # its result, which layers.2 shares
        ("layers.2", "Linear", 1, (1, 10), 60, 60, 50, 0),
    ]
    assert (found.parameters, found.trainable) == (385, 385)
    assert (found.macs, found.saved_bytes) == (370, 69 * 4)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.depthwise = nn.Conv2d(4, 4, 3, stride=2, groups=4)
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        x = self.relu(self.bn(self.conv(x)))
        return self.fc(self.depthwise(x).mean((2, 3)))


def test_convnet_by_hand():
    found = ng.summary(Small().eval(), (2, 8, 8))
    by_name = rows(found)
    assert [(r.kind, r.output, r.parameters, r.macs) for r in found.rows] == [
        ("Conv2d", (1, 4, 8, 8), 72, 72 * 64),
        ("BatchNorm2d", (1, 4, 8, 8), 8, 0),
        ("ReLU", (1, 4, 8, 8), 0, 0),
        ("Conv2d", (1, 4, 3, 3), 40, 36 * 9),
        ("Linear", (1, 3), 15, 12),
    ]
    assert found.macs == 72 * 64 + 36 * 9 + 12
    assert by_name["conv"].saved_bytes == 2 * 64 * 4  # the picture
    assert by_name["bn"].saved_bytes == 4 * 64 * 4  # what it normalises
    assert by_name["relu"].saved_bytes == 4 * 64 * 4  # its result, which `depthwise` shares
    assert by_name["depthwise"].saved_bytes == 0
    assert by_name["fc"].saved_bytes == 4 * 4
    assert sum(r.saved_bytes for r in found.rows) == found.saved_bytes


def test_transposed_convolution():
    found = ng.summary(nn.ConvTranspose2d(3, 5, 2, stride=2), (3, 4, 4))
    assert found.rows[0].output == (1, 5, 8, 8)
    assert found.macs == 3 * 5 * 2 * 2 * 4 * 4  # each input pixel meets each weight


def test_frozen():
    model = Small().eval()
    model.conv.requires_grad_(False)
    model.bn.requires_grad_(False)
    model.depthwise.bias.requires_grad_(False)
    found = ng.summary(model, (2, 8, 8))
    by_name = rows(found)
    assert [r.frozen for r in found.rows] == ["yes", "yes", "", "in part", "no"]
    assert (by_name["conv"].saved_bytes, by_name["bn"].saved_bytes) == (0, 0)
    assert by_name["relu"].saved_bytes == 0
    assert by_name["depthwise"].saved_bytes == 4 * 64 * 4  # now the first to keep it
    assert (found.parameters, found.trainable) == (72 + 8 + 40 + 15, 36 + 15)
    model.requires_grad_(False)
    assert ng.summary(model, (2, 8, 8)).saved_bytes == 0


def test_shared_layers_count_once():
    """A layer called twice is one row: parameters once, the work of both calls."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4, bias=False)
            self.again = self.a
            self.tied = nn.Linear(4, 4, bias=False)
            self.tied.weight = self.a.weight

        def forward(self, x):
            return self.tied(self.again(self.a(x)))

    found = ng.summary(Twice(), (4,))
    assert [(r.name, r.calls, r.parameters, r.macs) for r in found.rows] == [
        ("a", 2, 16, 32),
        ("tied", 1, 0, 16),
    ]
    assert (found.parameters, found.macs) == (16, 48)
    assert found.saved_bytes == 3 * 4 * 4


def test_nested_modules_and_own_work():
    """What a container computes itself is its own row; what its layers do is theirs."""

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Tanh()))
            self.scale = nn.Parameter(ng.ones(3))

        def forward(self, x):
            return self.inner(x) * self.scale

    found = ng.summary(Outer(), (2, 3))
    assert [(r.name, r.kind, r.parameters, r.saved_bytes) for r in found.rows] == [
        ("", "Outer", 3, 0),  # `mul` keeps the result of tanh, which the tanh keeps already
        ("inner.0", "Linear", 12, 24),
        ("inner.1.0", "Tanh", 0, 24),
    ]


def test_batch_or_none():
    conv = nn.Conv2d(1, 2, 3)
    assert ng.summary(conv, (1, 5, 5)).input == (1, 1, 5, 5)
    assert ng.summary(conv, (7, 1, 5, 5)).input == (7, 1, 5, 5)
    assert ng.summary(nn.Linear(3, 2), [3]).input == (1, 3)
    assert ng.summary(nn.Linear(3, 2), (4, 5, 3)).rows[0].output == (4, 5, 2)
    assert ng.summary(nn.ReLU(), (3,)).input == (3,)  # any number of axes will do
    assert ng.summary(nn.Linear(3, 2), (0, 3)).macs == 0


def test_batch_of_a_subclass():
    class Own(nn.Conv2d):
        pass

    assert ng.summary(Own(3, 2, 1), (3, 4, 4)).input == (1, 3, 4, 4)
    assert ng.summary(nn.AdaptiveAvgPool2d(1), (3, 4, 4)).input == (1, 3, 4, 4)


def test_shared_buffers():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("a", ng.zeros(2))
            self.register_buffer("b", self.a)

        def forward(self, x):
            assert self.a is self.b
            self.a.add_(1)
            return x + self.b

    model = Twice()
    kept = model.a
    ng.summary(model, (2,))
    assert model.a is kept and model.b is kept
    assert kept.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("training", [False, True])
def test_leaves_the_model_as_it_was(training):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5)).train(training)
    model[0].eval()
    seen = []
    model[1].register_forward_hook(lambda module, args, out: seen.append(out.shape))
    modes = [m.training for m in model.modules()]
    hooks = [(len(m._pre_hooks), len(m._post_hooks)) for m in model.modules()]
    buffers = [(b, b.clone(), b.storage.writes) for b in model.buffers()]
    parameters = [(p, p.detach().clone(), p.storage.writes) for p in model.parameters()]
    ng.manual_seed(3)
    state = ng.get_rng_state().tolist()
    with ng.memory.track() as m:
        found = ng.summary(model, (4, 1, 6, 6))
    assert m.saved_tensors == 0  # nothing of the forward is alive
    assert seen == [(4, 2, 4, 4)]  # hooks run
    assert [m.training for m in model.modules()] == modes
    assert [(len(m._pre_hooks), len(m._post_hooks)) for m in model.modules()] == hooks
    for before, now in ((buffers, model.buffers()), (parameters, model.parameters())):
        for (same, values, writes), x in zip(before, now, strict=True):
            assert x is same and x.storage.writes == writes
            np.testing.assert_array_equal(x.detach().numpy(), values.numpy())
    assert all(p.grad is None for p in model.parameters())
    assert ng.get_rng_state().tolist() == state
    assert found.training is training


def test_after_an_error():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(4, 4))
    model.register_buffer("kept", ng.zeros(2))
    kept = model.kept
    with pytest.raises(ng.ShapeError):
        ng.summary(model, (3,))
    assert model.kept is kept
    assert not any(m._pre_hooks or m._post_hooks for m in model.modules())


def test_without_grad_mode():
    """What a training step would keep, also where the caller records nothing."""
    with ng.no_grad():
        assert ng.summary(nn.Linear(3, 2), (3,)).saved_bytes == 12
    layer = nn.Linear(3, 2)
    with ng.inference_mode():
        assert ng.summary(layer, (3,)).saved_bytes == 12
        assert ng.autograd.is_inference_mode_enabled()
    x = ng.ones(2, requires_grad=True)
    assert (x * 2).requires_grad


def test_double():
    found = ng.summary(nn.Linear(3, 2).double(), (3,))
    assert found.saved_bytes == 24


def test_total_is_what_track_counts():
    model = models.resnet18(num_classes=10)
    found = ng.summary(model, (2, 3, 32, 32))
    with ng.memory.track() as m:
        out = model(ng.zeros(2, 3, 32, 32))
    assert out.shape == (2, 10)
    assert found.saved_bytes == m.saved_bytes == sum(r.saved_bytes for r in found.rows)
    assert found.parameters == sum(r.parameters for r in found.rows)
    # By hand: the published 1.81 G at 224 × 224 without the classifier's change.
    assert ng.summary(models.resnet18().eval(), (3, 64, 64)).macs == macs_of_resnet18(64)


def macs_of_resnet18(size):
    """From the paper's table: convolutions by stage, and the classifier."""
    stem = (size // 2) ** 2 * 64 * 3 * 49
    total, side, planes = stem, size // 4, 64
    total += 4 * side**2 * 9 * 64 * 64
    for _ in range(3):
        side //= 2
        total += side**2 * (planes * 2 * planes * (9 + 1) + 3 * 9 * (2 * planes) ** 2)
        planes *= 2
    return total + 512 * 1000


def test_text():
    text = str(ng.summary(nn.Sequential(nn.Linear(300, 10), nn.ReLU(), nn.Identity()), (2, 300)))
    assert text.splitlines() == [
        "Sequential: input (2, 300), training mode",
        "layer  kind      output   parameters  frozen   MACs  saved bytes",
        "----------------------------------------------------------------",
        "0      Linear    (2, 10)       3,010  no      6,000        2,400",
        "1      ReLU      (2, 10)           0              0           80",
        "2      Identity  (2, 10)           0              0            0",
        "----------------------------------------------------------------",
        "total                          3,010          6,000        2,480",
        "3,010 of 3,010 parameters require a gradient",
    ]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            return self.fc(x).tanh()

    note = "(itself): what forward does outside of the layers below it"
    assert str(ng.summary(Net(), (3,))).splitlines()[-1] == note
    assert note not in str(ng.summary(nn.Linear(3, 2), (3,)))


def test_errors():
    with pytest.raises(TypeError, match=r"summary: expected a Module for model, got list"):
        ng.summary([], (3,))
    with pytest.raises(TypeError, match=r"summary: expected a sequence of integers for size"):
        ng.summary(nn.Linear(3, 2), 3)
    for size in ((3.7,), "3", (True,)):
        with pytest.raises(TypeError, match=r"summary: expected a sequence of integers for size"):
            ng.summary(nn.Linear(3, 2), size)
    with pytest.raises(ng.ShapeError, match=r"summary: expected lengths of 0 or more for size"):
        ng.summary(nn.Linear(3, 2), (-1, 3))
