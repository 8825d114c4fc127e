"""One launch for all parameters of a group: what may go into it, the table, and what it wrote."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..graph import storage
from ..graph.apply import wrote
from ..kernels.cpu import steps
from ..kernels.launch import PARALLEL_MIN, address, bits, ranged
from ..ops.creation import zeros_like
from ..tensor import Tensor

_FLOATS = (np.dtype("float32"), np.dtype("float64"))


class Step(NamedTuple):
    """How a group is updated by a kernel."""

    kernel: str
    """The name of the kernel without its dtype."""
    numbers: tuple[float, ...]
    """The group's numbers, in the kernel's order."""
    state: tuple[str, ...]
    """Names of the state tensors in slots A, B, C; "" leaves a slot out."""
    own: Callable[[Tensor, dict[str, Any]], tuple[float, float]]
    """Makes what is missing in a parameter's state, counts its step, and gives X and Y."""


def simple(*options: Any) -> bool:
    """Whether all options are Python numbers, which a kernel may take as they are."""
    return all(isinstance(option, (int, float)) for option in options)


def zeros_of(param: Tensor, state: dict[str, Any], names: Sequence[str]) -> None:
    """Put the tensors of zeros that are missing into a parameter's state."""
    for name in names:
        if name and name not in state:
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


def apart(tensors: Sequence[Tensor]) -> bool:
    """Whether no two of these contiguous tensors share memory."""
    storages = {id(x.storage) for x in tensors}
    if len(storages) == len(tensors) and all(x.storage.owned for x in tensors):
        return True
    spans = sorted((start := address(x.array), start + x.array.nbytes) for x in tensors)
    return all(end <= start for (_, end), (start, _) in pairwise(spans))


def launch(
    kernel: str,
    dtype: np.dtype[Any],
    numbers: Sequence[float],
    operands: Sequence[tuple[Tensor | None, ...]],
    own: Sequence[tuple[float, float]],
) -> None:
    """Run a kernel on a table of rows.

    ``operands`` are those of each row, from the parameter on; ``own`` the two numbers of each.
    """
    slots: list[int] = []
    items = elements = 0
    for i, tensors in enumerate(operands):
        count = tensors[0].array.size  # type: ignore[union-attr]
        first, items = items, items + -(-count // steps.CHUNK)
        elements += count
        places = [0 if x is None else address(x.array) for x in tensors]
        places += [0] * (steps.X - steps.P - len(places))
        slots += (items, first, count, *places, *map(bits, own[i]))
    table = np.array(slots, np.int64)
    args = [address(table), *map(bits, numbers)]
    ranged(steps.KERNELS[kernel, dtype], args, items, parallel=elements >= PARALLEL_MIN)


def update(what: str, step: Step, states: Any, params: Sequence[Tensor]) -> Sequence[Tensor]:
    """Update all parameters that a kernel can, in one launch a dtype; the others are returned.

    Left over, and to be updated one by one: what is not contiguous memory of the CPU, gradients or
    state of another dtype or size than the parameter, and all if any two operands share memory.
    """
    rest: list[Tensor] = []
    batches: dict[Any, list[tuple[Tensor, Tensor, dict[str, Any]]]] = {}
    everything: list[Tensor] = []
    for param in params:
        dtype, count, state = param.dtype, param.array.size, states[param]
        held = [state[name] for name in step.state if name in state]
        if (
            dtype in _FLOATS
            and _fits(param, count, dtype, True)
            and _fits(param.grad, count, dtype, False)
            and all(_fits(x, count, dtype, True) for x in held)
        ):
            batches.setdefault(dtype, []).append((param, param.grad, state))
            everything += (param, param.grad, *held)
        else:
            rest.append(param)
    if not apart(everything):
        return params
    for dtype, batch in batches.items():
        own, operands = [], []
        for param, grad, state in batch:
            own.append(step.own(param, state))
            kept = [state[name] if name else None for name in step.state]
            operands.append((param, grad, *kept))
        launch(step.kernel, dtype, step.numbers, operands, own)
        for row in operands:
            for x in (row[0], *row[2:]):
                if x is not None:
                    wrote(x, what)
    return rest
