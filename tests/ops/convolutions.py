"""Answers of the reference for convolutions of one or two axes."""

import numpy as np

import numgrad


def pairs(axes, attrs):
    """Attributes as the twins take them, and a function that gives arrays two spatial axes."""
    if axes == 2:
        return attrs, lambda a: a
    widened = {
        "stride": (1, *attrs["stride"]),
        "padding": (0, *attrs["padding"]),
        "dilation": (1, *attrs["dilation"]),
        "groups": attrs["groups"],
    }
    return widened, lambda a: a[:, :, None]


def twin(function, shape, *arrays, axes, shift=None, **attrs):
    """The answer of a reference function in float64."""
    attrs, wide = pairs(axes, attrs)
    out = np.full(shape, np.nan)
    if shift is not None:
        attrs["shift"] = shift
    function(wide(out), *(wide(a) for a in arrays), **attrs)
    return out


def bias_of(function, weight, named):
    transposed = function in (numgrad.conv_transpose1d, numgrad.conv_transpose2d)
    return (weight[1] * named.get("groups", 1) if transposed else weight[0],)
