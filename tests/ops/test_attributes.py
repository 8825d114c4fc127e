"""Attributes that are an integer or one for each axis."""

import numpy as np
import pytest

import numgrad
from numgrad.graph.errors import RangeError
from numgrad.ops.attributes import LARGEST, for_axes, length, lengths


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (3, (3, 3)),
        ((3,), (3, 3)),
        ([1, 2], (1, 2)),
        (numgrad.Size((1, 2)), (1, 2)),
        (np.int32(4), (4, 4)),
        (LARGEST, (LARGEST, LARGEST)),
    ],
)
def test_lengths(value, wanted):
    found = lengths("op", "stride", value, 2, 1)
    assert found == wanted and all(type(n) is int for n in found)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "expected positive integers below 2**31 for stride, got 0; use 1 or more"),
        ((1, LARGEST + 1), "for stride, got (1, 2147483648)"),
        ((), "expected one integer or 2 for stride, got (); pass one for each axis"),
        ((1, 2, 3), "expected one integer or 2 for stride"),
    ],
)
def test_out_of_range(value, text):
    with pytest.raises(RangeError) as error:
        lengths("op", "stride", value, 2, 1)
    assert text in str(error.value)
    assert isinstance(error.value, ValueError) and isinstance(error.value, RuntimeError)


def test_one_is_not_always_for_all():
    assert for_axes("op", "size", 3, 2, one=False) == (3, 3)
    with pytest.raises(RangeError, match="one integer or 2 for size"):
        for_axes("op", "size", (3,), 2, one=False)
    with pytest.raises(RangeError, match="one integer for size"):
        lengths("op", "size", (3, 4), 1, 0)


@pytest.mark.parametrize("value", [1.0, True, "1", None, (1, 2.0), np.ones(2, int)])
def test_no_integers(value):
    with pytest.raises(TypeError, match="op: expected integers for size"):
        lengths("op", "size", value, 2, 0)
    with pytest.raises(TypeError, match="op: expected an integer for groups"):
        length("op", "groups", value, 1)


def test_length():
    assert length("op", "groups", np.int64(2), 1) == 2
    with pytest.raises(RangeError, match=r"a positive integer below 2\*\*31 for groups, got 0"):
        length("op", "groups", 0, 1)
    with pytest.raises(RangeError, match="a non-negative integer below"):
        length("op", "in_channels", -1, 0)
