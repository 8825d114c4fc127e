"""The strided driver and the launchers of contiguous operands, against NumPy, on any layout."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numgrad.kernels import emit, launch, native, store
from numgrad.kernels import scalar as s
from numgrad.kernels.cpu import elementwise as driver
from numgrad.kernels.scalar import Sym

BLOCK, LARGE = driver.BLOCK, launch.PARALLEL_MIN
X, Y, Z = (Sym("input", (name,)) for name in "xyz")
CONDITION = Sym("input", ("c",), True)
FLOAT, DOUBLE, BYTE, BOOL = (np.dtype(t) for t in ("float32", "float64", "uint8", "bool"))


def kernel(title, compute, inputs, outputs):
    return store.generated(emit.block(title, compute, inputs, outputs), native.BLOCK_SIGNATURE)


# Every case: outputs' dtypes, inputs' dtypes, expressions, the same in NumPy. Item sizes 1, 4, 8.
CASES = {
    "float32": ([FLOAT], [FLOAT, FLOAT], [X - Y * 2], lambda x, y: [x - y * 2]),
    "float64": ([DOUBLE], [DOUBLE, DOUBLE], [X - Y * 2], lambda x, y: [x - y * 2]),
    "uint8": ([BYTE], [BYTE, BYTE], [X - Y * 2], lambda x, y: [x - y * 2]),
    "mixed": (
        [FLOAT, BOOL, DOUBLE],
        [BOOL, FLOAT, FLOAT],
        [s.where(CONDITION, X, Y), X > Y, X + Y],
        lambda c, x, y: [np.where(c, x, y), x > y, (x + y).astype(np.float64)],
    ),
}
KERNELS = {}


def compiled(name):
    if name not in KERNELS:
        outputs, inputs, expressions, _ = CASES[name]
        names = ["c", "x", "y"][-len(inputs) :]
        compute = FLOAT if name == "mixed" else inputs[0]
        KERNELS[name] = kernel(
            f"test {name}", compute, list(zip(names, inputs)), list(zip(expressions, outputs))
        )
    return KERNELS[name]


@st.composite
def layouts(draw, shape, broadcast):
    """``(base shape, view)``: ``view(base)`` has ``shape`` and lies in the base anyhow.

    Axes are permuted, stepped over, reversed, and cut out of longer ones; with ``broadcast``
    leading axes may be missing, and others have length 1 or stride 0.
    """
    skipped = draw(st.integers(0, len(shape))) if broadcast and draw(st.booleans()) else 0
    own = list(shape[skipped:])
    kinds = [draw(st.sampled_from(["whole", "whole", "one", "zero"])) for _ in own]
    if not broadcast or draw(st.booleans()):
        kinds = ["whole"] * len(own)
    plain = draw(st.booleans())
    steps = [1 if plain else draw(st.sampled_from([1, 1, 2, 3, -1, -2])) for _ in own]
    order = list(range(len(own))) if plain else draw(st.permutations(range(len(own))))
    kept = [n if kind == "whole" else 1 for n, kind in zip(own, kinds)]
    base = [n * abs(step) + (not plain and n % 3) for n, step in zip(kept, steps)]

    def view(array):
        array = array.transpose(np.argsort(order))
        cuts = [slice(0, n * abs(step)) for n, step in zip(kept, steps)]
        array = array[(*cuts, ...)][(*(slice(None, None, step) for step in steps), ...)]
        spread = [1 if kind == "one" else n for n, kind in zip(own, kinds)]
        return np.broadcast_to(array, spread) if "zero" in kinds else array

    return [base[axis] for axis in order], view


# Shapes of up to five axes; shapes around one and two blocks, also where runs of the innermost axis
# and blocks do not fit together; shapes around the size from which threads are used.
few = st.lists(st.sampled_from([0, 1, 1, 2, 3, 5, 7]), max_size=5).map(tuple)
some = st.sampled_from(
    [(n,) for n in (BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1)]
    + [(7, 73), (73, 7), (2, BLOCK), (BLOCK, 2), (3, BLOCK + 1), (1, BLOCK + 1), (BLOCK - 1, 1)]
    + [(2, 3, 171), (171, 3, 2), (9, 1, 57)]
)
many = st.sampled_from(
    [(n,) for n in (LARGE - 1, LARGE, LARGE + 1)]
    + [(2, LARGE // 2), (LARGE // 4, 4), (41, 1600), (1600, 41), (40, 41, 40)]
)


@st.composite
def calls(draw, shapes):
    """A case, the layouts of its outputs and inputs, and which input is the output itself."""
    name, shape = draw(st.sampled_from(sorted(CASES))), draw(shapes)
    outputs, inputs, _, _ = CASES[name]
    outs = [draw(layouts(shape, False)) for _ in outputs]
    ins = [draw(layouts(shape, True)) for _ in inputs]
    in_place = draw(st.sampled_from([None, None, 0, 1])) if len(outputs) == 1 else None
    return name, outs, ins, in_place


def check(call):
    """The call writes what NumPy does into its outputs, and nothing beside them."""
    name, outs, ins, in_place = call
    outputs, inputs, _, reference = CASES[name]
    rng = np.random.default_rng(3)
    bases = [rng.integers(0, 9, base).astype(t) for (base, _), t in zip(outs, outputs)]
    targets = [view(base) for (_, view), base in zip(outs, bases)]
    arrays = [view(rng.integers(0, 9, base).astype(t)) for (base, view), t in zip(ins, inputs)]
    if in_place is not None:
        arrays[in_place] = targets[0]
    expected = [base.copy() for base in bases]
    for (_, view), base, value in zip(outs, expected, reference(*arrays)):
        view(base)[...] = value
    launch.elementwise(compiled(name), [*targets, *arrays], len(targets))
    for base, whole in zip(bases, expected):
        np.testing.assert_array_equal(base, whole)


@settings(max_examples=400, deadline=None)
@given(calls(few))
def test_few_elements(call):
    check(call)


@settings(max_examples=200, deadline=None)
@given(calls(some))
def test_around_a_block(call):
    check(call)


@settings(max_examples=60, deadline=None)
@given(calls(many))
def test_around_the_parallel_minimum(call):
    check(call)


def test_layouts_reach_what_they_should():
    # The strategies are worth nothing if they only draw arrays that are contiguous.
    found = set()

    @settings(max_examples=300, deadline=None, database=None)
    @given(st.sampled_from([(3, 2), (5,), (2, 3, 7)]).flatmap(lambda n: layouts(n, True)))
    def draw(layout):
        array = layout[1](np.zeros(layout[0]))
        found.add("contiguous" if array.flags.c_contiguous else "strided")
        found.update("negative" for stride in array.strides if stride < 0)
        found.update("zero" for stride in array.strides if stride == 0)
        found.add("transposed" if list(array.strides) != sorted(array.strides)[::-1] else "")
        found.add(array.ndim)

    draw()
    assert {"contiguous", "strided", "negative", "zero", "transposed", 0, 1, 2, 3} <= found


@pytest.mark.parametrize("n", [1, 10, BLOCK, BLOCK + 1, 3 * BLOCK, LARGE - 1, LARGE, 3 * LARGE])
def test_one_element_and_in_place(n):
    # What x * 2, 2 * x, x.mul_(y) and x.mul_(2) launch; elements that differ, so none is misplaced.
    x, y = np.arange(n, dtype=np.float32), np.arange(n, 2 * n, dtype=np.float32)
    two = np.array(2, np.float32)
    for a, b in ((x, y), (x, two), (two, x), (x, two.reshape(1)), (two, two), (x, x)):
        out = np.full(n, -1, np.float32)
        launch.elementwise(compiled("float32"), (out, a, b))
        np.testing.assert_array_equal(out, np.broadcast_to(a - b * 2, n))
        for place in (0, 1):
            out = np.arange(3, 3 + n, dtype=np.float32)
            pair = (out, b) if place == 0 else (a, out)
            expected = pair[0] - pair[1] * 2
            launch.elementwise(compiled("float32"), (out, *pair))
            np.testing.assert_array_equal(out, np.broadcast_to(expected, n))


@pytest.mark.parametrize("count", [1, 2, 16, driver.BLOCKS_MAX, driver.MAX_OPERANDS])
def test_number_of_operands(count):
    names = [f"x{j}" for j in range(count - 1)]
    total = 1.0
    for j, name in enumerate(names):
        total = total + Sym("input", (name,)) * (j + 1)
    inputs = [(name, DOUBLE) for name in names]
    adding = kernel(f"sum of {count - 1}", DOUBLE, inputs, [(total, DOUBLE)])
    for n in (3, BLOCK + 1):
        arrays = [np.arange(n, dtype=np.float64) + j for j in range(count - 1)]
        arrays = [a[:1] if j % 3 == 2 else a for j, a in enumerate(arrays)]
        out = np.empty(n)
        launch.elementwise(adding, (out, *arrays))
        np.testing.assert_array_equal(out, 1.0 + sum((j + 1) * a for j, a in enumerate(arrays)))
        strided = np.empty(2 * n)[::2]
        launch.elementwise(adding, (strided, *arrays))
        np.testing.assert_array_equal(strided, out)


def test_too_many_operands_or_axes():
    deep = np.broadcast_to(np.float64(1), (1,) * 32 + (2,))
    with pytest.raises(ValueError, match=r"^elementwise: expected at most 32 operands of 32 axes"):
        launch.elementwise(compiled("float64"), (deep.copy()[..., ::-1], deep, deep))


def test_same_bits_at_any_number_of_threads():
    before = launch.get_num_threads()
    rng = np.random.default_rng(5)
    x = rng.standard_normal((300, 401)).astype(np.float32)
    y = rng.standard_normal((401, 300)).astype(np.float32).T
    answers = []
    try:
        for threads in (1, 2):
            launch.set_num_threads(threads)
            out = np.empty_like(x)
            launch.elementwise(compiled("float32"), (out, x, y))
            answers.append(out.tobytes())
    finally:
        launch.set_num_threads(before)
    assert answers[0] == answers[1]


def test_each_call_counts_as_one_launch():
    x = np.ones((2, 3), np.float32)
    calls_of = [(x, x, x), (x.copy(), x, x[:1, :1]), (x.copy(), x, x[::-1])]
    for arrays in calls_of:
        before = launch.launches.value
        launch.elementwise(compiled("float32"), arrays)
        assert launch.launches.value == before + 1
