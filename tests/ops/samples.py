"""Operands for elementwise entries, made from what an entry says of itself: domain and edges."""

import importlib
import itertools

import numpy as np

import numgrad
from numgrad.graph.op import OPS
from numgrad.ops.declare import Elementwise

ENTRIES = {name: op for name, op in OPS.items() if isinstance(op, Elementwise)}
FLOATS = (np.float32, np.float64)
DTYPES = tuple(np.dtype(d) for d in ("float32", "float64", "int32", "int64", "uint8", "bool"))
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan)
CLEARANCE = 0.02
"""Distance of sampled points from the places where an entry may have a kink."""

ATTRIBUTES = {  # a second set of values of the number parameters
    "leaky_relu": {"negative_slope": 0.3},
    "elu": {"alpha": 1.7},
    "softplus": {"beta": 1.5, "threshold": 3.0},
    "hardtanh": {"min_val": -0.4, "max_val": 1.3},
    "add_scaled": {"alpha": 2},
    "add_product": {"value": 3},
    "add_quotient": {"value": 2},
    "smooth_distance": {"beta": 0.3},
    "huber_distance": {"delta": 0.3},
}


def tensor_operands(entry):
    """Names of the operands that are tensors, conditions included."""
    return [name for name in entry.operands if name not in entry.defaults]


def differentiable(entry):
    """Names of the operands that have a derivative."""
    return [
        name for name, rule in zip(entry.operands, entry.rules, strict=True) if rule is not None
    ]


def attribute_sets(entry):
    """The default numbers, and another set if there are any."""
    return [{}, ATTRIBUTES[entry.name]] if entry.defaults else [{}]


def reference(entry):
    """The independent function an entry names."""
    assert entry.reference_name, f"{entry.name}: expected reference='module:function', got none"
    module, function = entry.reference_name.split(":")
    return getattr(importlib.import_module(module), function)


def smooth(entry, shape, rng):
    """float64 operands in the domain, away from kinks: multiples of 1/2, ties, whole quotients.

    Conditions come as bool.
    """
    low, high = entry.domain
    names = tensor_operands(entry)
    count = int(np.prod(shape))
    chosen = np.empty((len(names), 0))
    while chosen.shape[1] < count:
        points = rng.uniform(low, high, (len(names), 4 * count + 16))
        doubled = 2 * points
        good = (np.abs(doubled - np.rint(doubled)) > 2 * CLEARANCE).all(0)
        for i, j in itertools.combinations(range(len(names)), 2):
            quotient = points[i] / points[j]
            good &= np.abs(points[i] - points[j]) > CLEARANCE
            good &= np.abs(quotient - np.rint(quotient)) > CLEARANCE
        chosen = np.concatenate([chosen, points[:, good]], axis=1)
    return [
        rng.integers(0, 2, shape).astype(bool)
        if name in entry.conditions
        else chosen[i, :count].reshape(shape)
        for i, name in enumerate(names)
    ]


def operands(entry, dtype, shape, rng):
    """Operands of any dtype: floats from the domain, integers around it."""
    if dtype.kind == "f":
        return [a if a.dtype == bool else a.astype(dtype) for a in smooth(entry, shape, rng)]
    found = []
    for name in tensor_operands(entry):
        if name in entry.conditions or dtype.kind == "b":
            values = rng.integers(0, 2, shape).astype(bool)
            needs_one = entry.check is not None and name == "y"
            found.append(values | needs_one if name not in entry.conditions else values)
            continue
        low, high = (0, 12) if dtype.kind == "u" else (-12, 12)
        values = rng.integers(low, high, shape).astype(dtype)
        if entry.check is not None and name == "y":
            values[values == 0] = 5
        if entry.name == "pow" and name == "y":
            values = np.abs(values) % 5
        found.append(values.astype(dtype))
    return found


def special(entry, dtype):
    """All combinations of special values (zeros, infinities, nan, ties) and the entry's edges."""
    values = list(dict.fromkeys(map(str, (*SPECIAL, *entry.edges, *entry.domain))))
    values = np.array([float(v) for v in values], dtype)
    names = [n for n in tensor_operands(entry) if n not in entry.conditions]
    if len(names) > 2:
        values = values[:8]
    grid = np.meshgrid(*[values] * len(names), indexing="ij")
    arrays = iter([a.reshape(-1).copy() for a in grid])
    count = grid[0].size
    return [
        (np.arange(count) % 2).astype(bool) if n in entry.conditions else next(arrays)
        for n in tensor_operands(entry)
    ]


def tensors(arrays, requires_grad=False):
    """Tensors with copies of the arrays; the floating ones may require grad."""
    return [numgrad.tensor(a, requires_grad=requires_grad and a.dtype.kind == "f") for a in arrays]
