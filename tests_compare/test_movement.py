"""Movement and indexing: views, copies in a new order, ``x[index]`` and writes through it."""

from typing import Any

import numpy as np
import pytest
import torch

import numgrad
from tests_compare.checks import FLOATS, Case, agree, check, compare, tensor

X = [[(2, 3, 4)]]


def moved(name: str, call: Any, op: str | None = None, shapes: Any = X, **described: Any) -> Case:
    """A case of a movement; ``op`` is the entry that it must run."""
    return Case(name, call, shapes, ops=[op] if op else [], **described)


CASES = [
    moved("reshape", lambda t, x: x.reshape(6, 4), "view_as"),
    moved("reshape", lambda t, x: t.reshape(x, (-1, 2)), "view_as", label="reshape to (-1, 2)"),
    moved("reshape", lambda t, x: x.transpose(0, 2).reshape(-1), "clone", label="reshape, a copy"),
    moved("view", lambda t, x: x.view(4, -1), "view_as"),
    moved("view_as", lambda t, x: x.view_as(t.zeros(4, 6)), "view_as"),
    moved("reshape_as", lambda t, x: x.reshape_as(t.zeros(4, 6)), "view_as"),
    moved("expand_as", lambda t, x: x.expand_as(t.zeros(5, 2, 3, 4)), "expand_to"),
    moved("flatten", lambda t, x: t.flatten(x), "view_as", [*X[0:1], [()]]),
    moved("flatten", lambda t, x: x.flatten(1), "view_as", label="flatten(1)"),
    moved("flatten", lambda t, x: x.flatten(0, 1), "view_as", label="flatten(0, 1)"),
    moved("permute", lambda t, x: x.permute(2, 0, 1), "permute_axes"),
    moved(
        "permute", lambda t, x: t.permute(x, (1, -1, 0)), "permute_axes", label="permute (1, -1, 0)"
    ),
    moved("transpose", lambda t, x: t.transpose(x, 0, -1), "permute_axes"),
    moved("t", lambda t, x: t.t(x), "permute_axes", [[(3, 4)]]),
    moved("t", lambda t, x: t.t(x), None, [[(3,)], [()]], label="t of a vector"),
    moved("T", lambda t, x: x.T, "permute_axes", [[(3, 4)]]),
    moved("mT", lambda t, x: x.mT, "permute_axes"),
    moved(
        "expand", lambda t, x: x.expand(5, 3, 4), "expand_to", [[(3, 4)], [(3, 1)], [(4,)], [()]]
    ),
    moved("expand", lambda t, x: x.expand(-1, 4), "expand_to", [[(3, 1)]], label="expand(-1, 4)"),
    moved("broadcast_to", lambda t, x: t.broadcast_to(x, (2, 3, 4)), "expand_to", [[(3, 1)]]),
    moved("squeeze", lambda t, x: t.squeeze(x), "view_as", [[(1, 3, 1)], [(1,)], [(3, 4)]]),
    moved(
        "squeeze",
        lambda t, x: x.squeeze(-1),
        "view_as",
        [[(1, 3, 1)], [(3, 4)]],
        label="squeeze(-1)",
    ),
    moved(
        "squeeze", lambda t, x: x.squeeze((0, 2)), "view_as", [[(1, 3, 1)]], label="squeeze((0, 2))"
    ),
    moved("unsqueeze", lambda t, x: t.unsqueeze(x, 0), "view_as", [[(3, 4)], [()]]),
    moved(
        "unsqueeze",
        lambda t, x: x.unsqueeze(-1),
        "view_as",
        [[(3, 4)], [()]],
        label="unsqueeze(-1)",
    ),
    moved("narrow", lambda t, x: t.narrow(x, 1, 1, 2), "slice_of"),
    moved("narrow", lambda t, x: x.narrow(-1, -3, 2), "slice_of", label="narrow from -3"),
    moved("select", lambda t, x: t.select(x, 1, -1), "slice_of"),
    moved("chunk", lambda t, x: t.chunk(x, 3, 2), "slice_of"),
    moved("chunk", lambda t, x: t.chunk(x, 5), "slice_of", [[(7,)]], label="chunk(5) of 7"),
    moved("split", lambda t, x: t.split(x, 3, 2), "slice_of"),
    moved("split", lambda t, x: x.split([1, 3], -1), "slice_of", label="split([1, 3])"),
    moved("flip", lambda t, x: t.flip(x, (0, 2)), "flip_axes"),
    moved("flip", lambda t, x: x.flip(1), "flip_axes", label="flip(1)"),
    moved("clone", lambda t, x: t.clone(x), "clone", [*X, [()], [(0, 3)]]),
    moved("contiguous", lambda t, x: x.transpose(0, 1).contiguous(), "clone"),
    moved(
        "cat", lambda t, x, y: t.cat([x, y]), "concatenate", [[(2, 3), (1, 3)], [(0, 3), (2, 3)]]
    ),
    moved(
        "cat",
        lambda t, x, y, z: t.cat((x, y, z), -1),
        "concatenate",
        [[(2, 1), (2, 3), (2, 2)]],
        label="cat of three over -1",
    ),
    moved(
        "cat",
        lambda t, x, y: t.cat([x.t(), y, x.t()], 1),
        "concatenate",
        [[(3, 2), (2, 4)]],
        label="cat of a tensor twice",
    ),
    moved(
        "cat", lambda t, x, y: t.cat([x, y]), None, [[(0,), (2, 3)]], label="cat passes over (0,)"
    ),
    moved("stack", lambda t, x, y: t.stack([x, y]), "concatenate", [[(2, 3), (2, 3)], [(), ()]]),
    moved(
        "stack",
        lambda t, x, y: t.stack([x, y], -1),
        "concatenate",
        [[(2, 3), (2, 3)]],
        label="stack at -1",
    ),
    moved("double", lambda t, x: x.double() * x, None),
    moved("float", lambda t, x: x.float() * 2, None),
    moved("to", lambda t, x: x.to(t.float64) * x, None),
    moved("type_as", lambda t, x: x.type_as(t.zeros(1, dtype=t.float64)), None),
    moved("long", lambda t, x: x.long(), "cast"),
    moved(
        "copy_",
        lambda t, x, y: _copied(x, y),
        "view_scatter",
        [[(2, 3), (3,)]],
        label="write to a view",
    ),
]


def _copied(x: Any, y: Any) -> Any:
    z = x * x
    z[1].copy_(y * y)
    return z * z


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_movement(case: Case, dtype: str) -> None:
    check(case, "movement", dtype)


def test_strides_of_views() -> None:
    """Views lie where PyTorch's do: same strides, offset by what a write through them reaches."""
    views = [
        lambda x: x.permute(2, 0, 1),
        lambda x: x.transpose(0, 2),
        lambda x: x[1:, ::2],
        lambda x: x[:, 1],
        lambda x: x[None, ..., 2],
        lambda x: x.expand(5, 2, 3, 4),
        lambda x: x.view(6, 4).t(),
        lambda x: x.unsqueeze(1),
        lambda x: x[:, :1].squeeze(1),
        lambda x: x.narrow(2, 1, 2),
        lambda x: x.reshape(2, 12)[:, 3:],
    ]
    for view in views:
        ours, theirs = (tensor(t, np.arange(24.0).reshape(2, 3, 4)) for t in (numgrad, torch))
        a, b = view(ours), view(theirs)
        agree("movement", "forward", "a view", a, b)
        assert a.is_contiguous() == b.is_contiguous()
        lengths = a.shape  # the step along an axis of one element means nothing
        steps = [(s, r) for s, r, n in zip(a.stride(), b.stride(), lengths, strict=True) if n > 1]
        assert all(s == r for s, r in steps), (a.stride(), b.stride())
        if 0 not in b.stride():
            a.mul_(10)
            b.mul_(10)
            agree("movement", "forward", "the base of a view written to", ours, theirs)


# ----------------------------------------------------------------------------------------- indexing

MASK = np.array([[True, False, True], [False, True, True]])

INDICES: list[tuple[str, Any]] = [
    ("[0]", lambda t: 0),
    ("[-1]", lambda t: -1),
    ("[1, 2]", lambda t: (1, 2)),
    ("[1, 2, 3]", lambda t: (1, 2, 3)),
    ("[:]", lambda t: slice(None)),
    ("[1:]", lambda t: slice(1, None)),
    ("[:, 1:3]", lambda t: (slice(None), slice(1, 3))),
    ("[..., ::2]", lambda t: (..., slice(None, None, 2))),
    ("[..., -3:-1]", lambda t: (..., slice(-3, -1))),
    ("[:, 5:]", lambda t: (slice(None), slice(5, None))),
    ("[None]", lambda t: None),
    ("[:, None, 1]", lambda t: (slice(None), None, 1)),
    ("[..., None]", lambda t: (..., None)),
    ("[...]", lambda t: ...),
    ("[0, ..., 1]", lambda t: (0, ..., 1)),
    ("[()]", lambda t: ()),
    ("[[1, 0, 1]]", lambda t: [1, 0, 1]),
    ("[i]", lambda t: tensor(t, np.array([1, 0, 1]))),
    ("[i] with i of -1", lambda t: tensor(t, np.array([-1, 0]))),
    ("[i] 2-D", lambda t: tensor(t, np.array([[1, 0], [0, 0]]))),
    ("[i] 0-dim", lambda t: tensor(t, np.array(1))),
    ("[i] of none", lambda t: tensor(t, np.zeros(0, np.int64))),
    ("[i] of int32", lambda t: tensor(t, np.array([1, 0], np.int32))),
    ("[:, i]", lambda t: (slice(None), tensor(t, np.array([2, 0, 2, 1])))),
    ("[..., i]", lambda t: (..., tensor(t, np.array([3, 3, 0])))),
    ("[i, j]", lambda t: (tensor(t, np.array([1, 0, 1])), tensor(t, np.array([2, 1, 2])))),
    (
        "[i, j] broadcast",
        lambda t: (tensor(t, np.array([[1], [0]])), tensor(t, np.array([2, 1, 0]))),
    ),
    (
        "[i, :, j]",
        lambda t: (tensor(t, np.array([1, 0])), slice(None), tensor(t, np.array([3, 1]))),
    ),
    (
        "[:, i, j]",
        lambda t: (slice(None), tensor(t, np.array([2, 0])), tensor(t, np.array([3, 1]))),
    ),
    ("[i, j, k]", lambda t: tuple(tensor(t, np.array([1, 0, n])) for n in (1, 2, 3))),
    ("[1:, i]", lambda t: (slice(1, None), tensor(t, np.array([2, 0])))),
    ("[0, i]", lambda t: (0, tensor(t, np.array([2, 0])))),
    ("[0, :, i]", lambda t: (0, slice(None), tensor(t, np.array([2, 0])))),
    ("[i, :, 0]", lambda t: (tensor(t, np.array([1, 0])), slice(None), 0)),
    ("[i, None]", lambda t: (tensor(t, np.array([1, 0])), None)),
    ("[None, :, i]", lambda t: (None, slice(None), tensor(t, np.array([1, 0])))),
    ("[mask]", lambda t: tensor(t, MASK)),
    ("[mask of uint8]", lambda t: tensor(t, MASK.astype(np.uint8))),
    ("[mask, 1:]", lambda t: (tensor(t, MASK), slice(1, None))),
    ("[mask, i]", lambda t: (tensor(t, MASK), tensor(t, np.array([0, 1, 2, 3])))),
    ("[:, mask]", lambda t: (slice(None), tensor(t, MASK[0]))),
    ("[mask of all]", lambda t: tensor(t, np.arange(24).reshape(2, 3, 4) % 5 < 2)),
    ("[no mask]", lambda t: tensor(t, np.zeros((2, 3), np.bool_))),
    ("[True]", lambda t: True),
    ("[False]", lambda t: False),
]


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("dtype", FLOATS)
def test_getitem(dtype: str) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 4)).astype(dtype)
    for label, index in INDICES:

        def call(t: Any, x: Any) -> Any:
            return x[index(t)]

        compare("indexing", f"x{label}", call, [x])

        def strided(t: Any, x: Any) -> Any:
            return x.permute(1, 2, 0)[index(t)]

        compare("indexing", f"x.permute(1, 2, 0){label}", strided, [x.transpose(2, 0, 1)])


# PyTorch writes repeated places in any order, and its gradient counts each: test_differences.py.
REPEATED = ("[[1, 0, 1]]", "[i]", "[i] 2-D", "[:, i]", "[..., i]", "[i, j]", "[i, j, k]")
# PyTorch still reads through masks of uint8, but no longer writes through them; numgrad does both.
ONCE = [(label, i) for label, i in INDICES if label not in REPEATED and "uint8" not in label]


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("dtype", FLOATS)
def test_setitem(dtype: str) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 3, 4)).astype(dtype)
    for label, index in ONCE:
        shape = tuple(torch.zeros(2, 3, 4)[index(torch)].shape)

        def number(t: Any, x: Any) -> Any:
            z = x * 2
            z[index(t)] = 0.5
            return z * z

        def whole(t: Any, x: Any, v: Any) -> Any:
            z = x * 2
            z[index(t)] = v * v
            return z * z

        compare("indexing", f"x{label} = 0.5", number, [x])
        for of in {shape, shape[-1:], ()}:
            v = np.asarray(rng.standard_normal(of)).astype(dtype)
            compare("indexing", f"x{label} = v", whole, [x, v])


@pytest.mark.parametrize("dtype", FLOATS)
def test_setitem_through_views_and_in_arithmetic(dtype: str) -> None:
    rng = np.random.default_rng(3)
    x, v = rng.standard_normal((3, 4)).astype(dtype), rng.standard_normal(3).astype(dtype)

    def of_view(t: Any, x: Any, v: Any) -> Any:
        z = x * 2
        z.t()[1] = v
        z[1:][:, 2:] *= 3
        return z * z

    def of_rows(t: Any, x: Any, v: Any) -> Any:
        z = x * 2
        z[tensor(t, np.array([2, 0]))] += v[:1]
        z[z > 1] = 0.25
        return z * z

    compare("indexing", "z.t()[1] = v", of_view, [x, v])
    compare("indexing", "z[i] += v", of_rows, [x, v])


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_indices_of_integers(dtype: str) -> None:
    x = np.arange(24).reshape(2, 3, 4).astype(dtype)
    for label, index in INDICES:
        if "uint8" in label:
            continue
        ours, theirs = (tensor(t, x)[index(t)] for t in (numgrad, torch))
        agree("indexing", "forward", f"x{label} of {dtype}", ours, theirs)
        ours, theirs = (tensor(t, x) for t in (numgrad, torch))
        ours[index(numgrad)] = 1
        theirs[index(torch)] = 1
        agree("indexing", "forward", f"x{label} = 1 of {dtype}", ours, theirs)


GATHER = np.array([[0, 2, 1, 0], [2, 2, 0, 1]])

INDEXED = [
    Case(
        "gather", lambda t, x: t.gather(x, 0, tensor(t, GATHER)), [[(3, 4)]], ops=["gather_along"]
    ),
    Case(
        "gather",
        lambda t, x: t.gather(x, 1, tensor(t, GATHER % 2)),
        [[(2, 3)], [(5, 2)]],
        ops=["gather_along"],
        label="gather over 1",
    ),
    Case(
        "gather",
        lambda t, x: x.t().gather(-1, tensor(t, GATHER.T % 2)),
        [[(3, 5)]],
        ops=["gather_along"],
        label="gather of x.t()",
    ),
    Case(
        "index_select",
        lambda t, x: t.index_select(x, 1, tensor(t, np.array([2, 0, 2]))),
        [[(2, 3, 4)]],
        ops=["take_rows"],
    ),
    Case(
        "index_select",
        lambda t, x: x.index_select(0, tensor(t, np.array([0, 0]))),
        [[(1,)]],
        ops=["take_rows", "add_rows"],
        label="index_select of one twice",
    ),
    Case("masked_select", lambda t, x: t.masked_select(x, x > 0), [[(3, 4)]], ops=["take_rows"]),
    Case(
        "masked_select",
        lambda t, x: t.masked_select(x, tensor(t, MASK)),
        [[(2, 3)], [(3,)]],
        ops=["take_rows"],
        label="masked_select, broadcast",
    ),
    Case("nonzero", lambda t, x: t.nonzero(x > 0), [[(3, 4)], [()], [(5,)]], ops=[], gradients=0),
    Case(
        "setitem",
        lambda t, x, v: _put(t, x, v),
        [[(5, 3), (2, 3)]],
        ops=["put_elements"],
        label="z[i] = v",
    ),
    Case("slice", lambda t, x: x[1:, ::2], [[(3, 4)]], ops=["slice_of", "scatter_slice"]),
    Case(
        "gather",
        lambda t, x: t.gather(x, 0, tensor(t, GATHER)),
        [[(3, 4)]],
        ops=["scatter_along"],
        label="gather, its adjoint",
    ),
    Case(
        "take",
        lambda t, x: x[tensor(t, np.random.default_rng(0).integers(0, 300, 2000))],
        [[(300, 65)]],
        ops=["take_rows", "add_rows"],
        label="2000 rows of (300, 65)",
    ),
]


def _put(t: Any, x: Any, v: Any) -> Any:
    z = x * 1
    z[tensor(t, np.array([3, 1]))] = v
    return z * z


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", INDEXED, ids=str)
def test_indexing(case: Case, dtype: str) -> None:
    check(case, "indexing", dtype)
