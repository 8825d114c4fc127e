"""The high-water mark of ResNet-18, in processes of its own."""

import sys

import pytest

from numgrad.cli.output import UsageError
from numgrad.cli.speed.high_water import measure

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system counts it nowhere else")
MIB = 1 << 20


def test_volatile_forward_of_resnet18():
    """What the first convolution writes and its normalised copy, for two pictures, and no more."""
    found = measure("numgrad", "inference", batch=2)
    assert 0 <= found["ledger"] - 2 * (2 * 64 * 112 * 112 * 4) < 4096
    assert abs(found["peak"] - found["ledger"]) < 8 * MIB  # pages, not bytes, and Python's own
    assert 44 * MIB < found["model"] < 45 * MIB
    assert found["derived"] <= 1.7 * found["model"]
    assert found["base"] > found["model"] + found["derived"]
    assert sum(found["categories"].values()) == found["ledger"] and found["op"]


def test_taped_forward_and_backward_free_as_they_go():
    """Gradients take the place of what was kept for them: backward adds little to the forward."""
    forward, backward = (measure("numgrad", mode, batch=2) for mode in ("forward", "backward"))
    kept = forward["categories"]["saved"]
    assert kept > 30 * MIB
    # The gradients of all weights, and of the activation that is differentiated now.
    assert backward["ledger"] < forward["ledger"] + backward["model"] + 16 * MIB


def test_what_fails_is_told():
    with pytest.raises(UsageError, match="expected one of inference, forward, backward for mode"):
        measure("numgrad", "sideways")
    with pytest.raises(UsageError, match="a high-water mark failed: ModuleNotFoundError"):
        measure("no_such_library", "inference")
