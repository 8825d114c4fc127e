"""Losses as layers: their arguments, buffers and state."""

import numpy as np
import pytest

import numgrad
import numgrad.nn as nn
import numgrad.nn.functional as F
from numgrad import Variable

RNG = np.random.default_rng(0)
X, P, Q = (numgrad.tensor(a) for a in (RNG.standard_normal((3, 4)), *RNG.random((2, 3, 4))))
W = numgrad.tensor([0.5, 1.0, 2.0, 3.0], dtype="float64")
LABELS = numgrad.tensor([0, 3, 1])

LOSSES = {  # name: (layer(**named), the same by a function, its input and target)
    "SmoothL1Loss": (
        lambda **n: nn.SmoothL1Loss(beta=0.3, **n),
        lambda x, y, **n: F.smooth_l1_loss(x, y, beta=0.3, **n),
        (X, P),
    ),
    "BCELoss": (
        lambda **n: nn.BCELoss(W, **n),
        lambda x, y, **n: F.binary_cross_entropy(x, y, W, **n),
        (P, Q),
    ),
    "BCEWithLogitsLoss": (
        lambda **n: nn.BCEWithLogitsLoss(W, pos_weight=W, **n),
        lambda x, y, **n: F.binary_cross_entropy_with_logits(x, y, W, pos_weight=W, **n),
        (X, Q),
    ),
    "KLDivLoss": (
        lambda **n: nn.KLDivLoss(log_target=True, **n),
        lambda x, y, **n: F.kl_div(x, y, log_target=True, **n),
        (X, P),
    ),
    "CrossEntropyLoss": (
        lambda **n: nn.CrossEntropyLoss(W, ignore_index=1, label_smoothing=0.1, **n),
        lambda x, y, **n: F.cross_entropy(x, y, W, ignore_index=1, label_smoothing=0.1, **n),
        (X, LABELS),
    ),
}
each_loss = pytest.mark.parametrize("name", LOSSES)


@each_loss
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
def test_layer_is_the_function(name):
    layer, function, (x, y) = LOSSES[name]
    for reduction in ("mean", "sum", "none"):
        got, expected = layer(reduction=reduction)(x, y), function(x, y, reduction=reduction)
        np.testing.assert_array_equal(got.numpy(), expected.numpy())
    with pytest.warns(UserWarning, match="reduction='sum'"):
        old = layer(size_average=False)
    assert old.reduction == "sum"
    with pytest.warns(UserWarning, match="reduction='none'"):
        assert function(x, y, reduce=False).shape in ((3, 4), (3,))
    for called, call in (
        (name, lambda: layer(reduction="max")),
        (r"[a-z]+(_[a-z0-9]+)+", lambda: function(x, y, reduction="max")),
    ):
        with pytest.raises(ValueError, match=f"^{called}: .* for reduction, got 'max'"):
            call()


def test_huber():
    got = nn.HuberLoss(reduction="sum", delta=0.3)(X, P)
    assert got.item() == F.huber_loss(X, P, "sum", 0.3).item()
    assert nn.HuberLoss().reduction == "mean" and nn.HuberLoss().delta == 1.0


def test_batchmean():
    loss = nn.KLDivLoss(reduction="batchmean")
    assert loss(X, P).item() == F.kl_div(X, P, reduction="sum").item() / 3
    with pytest.raises(ValueError, match="for reduction"):
        nn.MSELoss(reduction="batchmean")


def test_weights_are_buffers():
    """As in PyTorch: they are saved, and follow a change of dtype."""
    for layer, names in (
        (nn.BCELoss(W), ["weight"]),
        (nn.BCEWithLogitsLoss(W, pos_weight=W), ["weight", "pos_weight"]),
        (nn.CrossEntropyLoss(W), ["weight"]),
        (nn.BCEWithLogitsLoss(), []),
    ):
        assert list(layer.state_dict()) == names and not list(layer.parameters())
        layer.float()
        assert all(b.dtype == "float32" for b in layer.buffers())


@each_loss
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
def test_variables(name):
    """Of a Variable the loss has one element; of a volatile one it is volatile."""
    layer, _, (x, y) = LOSSES[name]
    out = layer()(Variable(x), y)
    assert type(out) is Variable and out.shape == (1,)
    out = layer()(Variable(x, volatile=True), y)
    assert out.volatile and out.creator is None
