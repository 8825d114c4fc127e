"""One launch for all parameters of a group: what may go into it, the table, and what it wrote."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..graph import storage
from ..graph.apply import writing
from ..kernels.cpu import steps
from ..kernels.launch import PARALLEL_MIN, address, bits, ranged
from ..ops.creation import zeros_like
from ..tensor import Tensor

_FLOATS = (np.dtype("float32"), np.dtype("float64"))
_TINY, _LARGE = float(np.finfo("float32").tiny), float(np.finfo("float32").max)


class Step(NamedTuple):
    """How a group is updated by a kernel."""

    kernel: str
    """The name of the kernel without its dtype."""
    numbers: tuple[float, ...]
    """The group's numbers, in the kernel's order."""
    state: tuple[str, ...] = ()
    """Names of the state tensors in slots A, B, C; "" leaves a slot out."""
    make: Callable[[Tensor], Tensor] = zeros_like
    """Makes a state tensor that is missing."""
    counted: bool = False
    """Whether the state counts steps, under ``step``."""
    own: Callable[[dict[str, Any]], tuple[float, float]] = lambda state: (0, 0)
    """X and Y of a parameter, by its state before the step. Changes nothing."""


class Row(NamedTuple):
    """One parameter of a launch."""

    tensors: list[Any]
    """Parameter, gradient, and what is kept, in the kernel's order."""
    own: tuple[float, float]
    """X and Y."""
    state: dict[str, Any]
    """What is kept of the parameter."""
    new: dict[str, Any]
    """What the state gets by the step: the tensors that were missing, the count."""


def simple(*options: Any) -> bool:
    """Whether all options are Python numbers, which a kernel may take as they are: none that
    float32 makes 0 or infinite, for a kernel leaves out what is 0 after rounding."""
    return all(
        isinstance(option, (int, float)) and (option == 0 or _TINY <= abs(option) <= _LARGE)
        for option in options
    )


def zeros_of(param: Tensor, state: dict[str, Any], names: Sequence[str]) -> None:
    """Put the tensors of zeros that are missing into a parameter's state."""
    for name in names:
        if state.get(name) is None:
            state[name] = zeros_like(param)
            state[name].storage.move_to(storage.OPTIMIZER)


def _fits(x: Any, count: int, dtype: np.dtype[Any], written: bool) -> bool:
    """Whether a kernel may walk over ``x``: memory of the CPU, contiguous, of this dtype."""
    if not isinstance(x, Tensor) or x._inference:
        return False
    array = x.array
    if type(array) is not np.ndarray or array.dtype != dtype or array.size != count:
        return False
    flags = array.flags
    return flags.c_contiguous and (not written or flags.writeable)


def apart(tensors: Sequence[Tensor], others: Sequence[Tensor] = ()) -> bool:
    """Whether no two of these contiguous tensors share memory, and none with one of the ``others``,
    which may share theirs with each other."""
    storages = {id(x.storage) for x in tensors}
    if (
        len(storages) == len(tensors)
        and all(x.storage.owned for x in tensors)
        and all(x.storage.owned and id(x.storage) not in storages for x in others)
    ):
        return True
    if len({id(x) for x in tensors}) < len(tensors):  # one twice, perhaps without elements
        return False
    hosted = [(x, True) for x in tensors]
    hosted += [(x, False) for x in others if type(x.array) is np.ndarray]
    end = end_of_others = 0
    for low, high, one in sorted((*storage.bounds(x.array), one) for x, one in hosted):
        if low == high:
            continue
        if low < end or (one and low < end_of_others):
            return False
        if one:
            end = high
        else:
            end_of_others = max(end_of_others, high)
    return True


def _table(rows: Sequence[Row]) -> tuple[np.ndarray, int, int]:
    """The kernel's rows, and how many items and elements there are."""
    slots: list[int] = []
    items = elements = 0
    for row in rows:
        count = row.tensors[0].array.size
        first, items = items, items + -(-count // steps.CHUNK)
        elements += count
        places = [0 if x is None else address(x.array) for x in row.tensors]
        places += [0] * (steps.X - steps.P - len(places))
        slots += (items, first, count, *places, *map(bits, row.own), 0)
    return np.array(slots, np.int64).reshape(-1, steps.SLOTS), items, elements


def _row(step: Step, param: Tensor, state: dict[str, Any]) -> Row:
    new: dict[str, Any] = {}
    tensors = [param, param.grad]
    for name in step.state:
        kept = state.get(name) if name else None
        if name and kept is None:
            new[name] = kept = step.make(param)
            kept.storage.move_to(storage.OPTIMIZER)
        tensors.append(kept)
    if step.counted:
        new["step"] = state.get("step", 0) + 1
    return Row(tensors, step.own(state), state, new)


def _launch(what: str, step: Step, dtype: np.dtype[Any], rows: Sequence[Row]) -> None:
    """Run the kernel on the rows. What an exception finds not begun keeps the state it had: a
    signal that comes while the kernel runs is raised behind it."""
    table, items, elements = _table(rows)
    args = [address(table), *map(bits, step.numbers)]
    written = [x for row in rows for x in (row.tensors[0], *row.tensors[2:]) if x is not None]
    before = [dict(row.state) if row.new else row.state for row in rows]
    try:
        for row in rows:
            row.state.update(row.new)
        with writing(what, written):
            parallel = elements >= PARALLEL_MIN
            ranged(steps.KERNELS[step.kernel, dtype], args, items, parallel=parallel)
    except BaseException:
        for row, state, begun in zip(rows, before, table[:, steps.BEGUN], strict=True):
            if row.new and not begun:
                row.state.clear()
                row.state.update(state)
        raise


def update(what: str, step: Step, states: Any, params: Sequence[Tensor]) -> Sequence[Tensor]:
    """Update all parameters that a kernel can, in one launch a dtype; the others are returned.

    Left over, and to be updated one by one: what is not contiguous memory of the CPU, gradients or
    state of another dtype or size than the parameter, and all if any two operands share memory.
    """
    rest: list[Tensor] = []
    batches: dict[Any, list[tuple[Tensor, dict[str, Any]]]] = {}
    together: list[Tensor] = []
    others: list[Tensor] = []
    for param in params:
        dtype, count, state = param.dtype, param.array.size, states[param]
        held = [state[name] for name in step.state if state.get(name) is not None]
        if (
            dtype in _FLOATS
            and _fits(param, count, dtype, True)
            and _fits(param.grad, count, dtype, False)
            and all(_fits(x, count, dtype, True) for x in held)
        ):
            batches.setdefault(dtype, []).append((param, state))
            together += (param, param.grad, *held)
        else:
            rest.append(param)
            others += (param, param.grad, *(x for x in held if isinstance(x, Tensor)))
    if not apart(together, others):
        return params
    for dtype, batch in batches.items():
        _launch(what, step, dtype, [_row(step, *one) for one in batch])
    return rest
