"""``summary(model, size)``: the layers of a network, their shapes, parameters, work and tape."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from . import nn
from .autograd import enable_grad, inference_mode
from .graph import node, storage
from .graph.errors import ShapeError, expected, shown
from .memory import track
from .ops.attributes import INTEGERS
from .ops.creation import zeros
from .ops.random import get_rng_state, set_rng_state
from .tensor import Tensor

Cells = tuple[str, str, str, int | str, str, int | str, int | str]

HEADS: Cells = ("layer", "kind", "output", "parameters", "frozen", "MACs", "saved bytes")

AXES: dict[type[nn.Module], int] = {
    nn.Linear: 2,
    nn.Conv1d: 3,
    nn.Conv2d: 4,
    nn.ConvTranspose1d: 3,
    nn.ConvTranspose2d: 4,
    nn.MaxPool1d: 3,
    nn.MaxPool2d: 4,
    nn.AvgPool1d: 3,
    nn.AvgPool2d: 4,
    nn.AdaptiveAvgPool1d: 3,
    nn.AdaptiveAvgPool2d: 4,
    nn.AdaptiveMaxPool1d: 3,
    nn.AdaptiveMaxPool2d: 4,
    nn.BatchNorm2d: 4,
    nn.InstanceNorm1d: 3,
    nn.InstanceNorm2d: 4,
}
"""Axes of the input, with the batch, of the layers whose kind tells it."""


class Row(NamedTuple):
    """A layer. Layers that are called several times have one row."""

    name: str
    """Its dotted name in the model, the first one if there are several; "" for the model itself."""
    kind: str
    """The name of its class."""
    calls: int
    output: tuple[int, ...] | None
    """Shape of what the last call returned; None if that is no tensor."""
    parameters: int
    """Elements of its own parameters, without those that an earlier row has."""
    trainable: int
    """How many of these require a gradient."""
    macs: int
    """Multiply-accumulate operations of all calls."""
    saved_bytes: int
    """What backward needs of its calls, without what an earlier layer keeps already."""

    @property
    def frozen(self) -> str:
        """``yes``, ``no``, ``in part``; "" without parameters."""
        if not self.parameters:
            return ""
        return {0: "yes", self.parameters: "no"}.get(self.trainable, "in part")


class Summary:
    """What `summary` found; its text is a table.

    Attributes:
        rows: one `Row` a layer, in the order of the first calls.
        input: shape of the input, with its batch.
        parameters, trainable: elements of all parameters, and of those that require a gradient.
        macs, saved_bytes: of the whole forward.
        training: the mode it ran in.
    """

    def __init__(
        self, rows: list[Row], input: tuple[int, ...], model: Any, saved_bytes: int
    ) -> None:
        self.rows, self.input, self.saved_bytes = rows, input, saved_bytes
        self.training: bool = model.training
        sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
        self.parameters = sum(n for n, _ in sizes)
        self.trainable = sum(n for n, wanted in sizes if wanted)
        self.macs = sum(row.macs for row in rows)
        self._model = type(model).__name__

    def __str__(self) -> str:
        total: Cells = ("total", "", "", self.parameters, "", self.macs, self.saved_bytes)
        cells: list[Cells] = [
            (r.name or "(itself)", r.kind, _shape(r), r.parameters, r.frozen, r.macs, r.saved_bytes)
            for r in self.rows
        ]
        grid = [[_text(cell) for cell in row] for row in [HEADS, *cells, total]]
        widths = [max(len(row[j]) for row in grid) for j in range(len(HEADS))]
        lines = [_line(row, widths) for row in grid]
        rule = "-" * max(len(line) for line in lines)
        mode = "training" if self.training else "eval"
        alone = len(self.rows) == 1 or all(row.name for row in self.rows)
        notes = [] if alone else ["(itself): what forward does outside of the layers below it"]
        return "\n".join(
            [
                f"{self._model}: input {self.input}, {mode} mode",
                lines[0],
                rule,
                *lines[1:-1],
                rule,
                lines[-1],
                f"{self.trainable:,} of {self.parameters:,} parameters require a gradient",
                *notes,
            ]
        )

    __repr__ = __str__


def _shape(row: Row) -> str:
    shape = "-" if row.output is None else str(row.output)
    return shape if row.calls == 1 else f"{shape} ×{row.calls}"


def _text(cell: str | int) -> str:
    return f"{cell:,}" if isinstance(cell, int) else cell


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    right = (3, 5, 6)
    aligned = (
        cell.rjust(w) if j in right else cell.ljust(w)
        for j, (cell, w) in enumerate(zip(row, widths))
    )
    return "  ".join(aligned).rstrip()


def summary(model: nn.Module, size: Sequence[int]) -> Summary:
    """Run one forward on zeros and tell what each layer is, does and keeps for backward.

    Args:
        model: a network with one input; it runs in the mode it is in, and is left as it was: its
            hooks, its buffers (running statistics too) and the random generator.
        size: shape of the input. If it has one axis fewer than the first layer whose kind tells
            (a convolution, a pooling, a linear layer) takes, a batch of 1 is put in front.

    Returns:
        A `Summary` (``from numgrad.summary import Summary, Row``); print it. Layers are modules
        that compute something themselves, not those that only call others. MACs are those of
        convolutions and linear layers; others count as 0. Saved bytes are of distinct whole
        storages, parameters and buffers excluded, as `memory.track` counts them; one that several
        layers keep counts in the first of them.

    Raises:
        TypeError: model is not a Module, or size is not a sequence of integers.
        ShapeError: a length is negative. What forward raises is passed on.

    >>> import numgrad
    >>> print(numgrad.summary(numgrad.nn.Linear(3, 2), (3,)))
    Linear: input (1, 3), training mode
    layer     kind    output  parameters  frozen  MACs  saved bytes
    ---------------------------------------------------------------
    (itself)  Linear  (1, 2)           8  no         6           12
    ---------------------------------------------------------------
    total                              8             6           12
    8 of 8 parameters require a gradient
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            expected("summary", "a Module", "model", shown(model), "pass a network of numgrad.nn")
        )
    shape = _input_shape(model, size)
    first = next((p for p in model.parameters() if p.dtype.kind == "f"), None)
    like = {} if first is None else {"dtype": first.dtype, "device": first.device}
    watch = _Watch(model)
    rng, buffers = get_rng_state(), _replace_buffers(model)
    try:
        with inference_mode(False), enable_grad(), track() as m:
            out = model(zeros(shape, **like))
            saved = watch.saved_bytes()
            total = m.saved_bytes
        del out
    finally:
        watch.remove()
        set_rng_state(rng)
        for module, name, buffer in buffers:
            setattr(module, name, buffer)
    return Summary(watch.rows(saved), shape, model, total)


def _input_shape(model: nn.Module, size: Sequence[int]) -> tuple[int, ...]:
    shape = tuple(size) if isinstance(size, Iterable) else (None,)
    if any(isinstance(n, bool) or not isinstance(n, INTEGERS) for n in shape):
        raise TypeError(
            expected(
                "summary", "a sequence of integers", "size", shown(size), "write (3, 224, 224)"
            )
        )
    shape = tuple(int(n) for n in shape)
    if any(n < 0 for n in shape):
        raise ShapeError(
            expected("summary", "lengths of 0 or more", "size", shape, "write (3, 224, 224)")
        )
    for module in model.modules():
        axes = next((n for kind, n in AXES.items() if isinstance(module, kind)), None)
        if axes is not None:
            return (1, *shape) if len(shape) == axes - 1 else shape
    return shape


def _replace_buffers(model: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    """Give the model copies of its buffers; where its own ones were."""
    own = [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False)
    ]
    copies = {id(buffer): buffer.detach().clone() for _, _, buffer in own}
    for module, name, buffer in own:
        setattr(module, name, copies[id(buffer)])
    return own


class _Watch:
    """Hooks that put the nodes of a forward down to the innermost module that made them."""

    def __init__(self, model: nn.Module) -> None:
        self.names: dict[nn.Module, str] = {m: name for name, m in model.named_modules()}
        self.calls: dict[nn.Module, int] = {}
        self.outputs: dict[nn.Module, tuple[int, ...] | None] = {}
        self.macs: dict[nn.Module, int] = {}
        self._running: list[nn.Module] = []
        self._made: list[tuple[nn.Module, node.Recorder]] = []
        self._recorder: node.Recorder | None = None
        self._handles = []
        for module in self.names:
            self._handles.append(module.register_forward_pre_hook(self._enter, prepend=True))
            self._handles.append(module.register_forward_hook(self._leave))

    def _switch(self) -> None:
        """From now on nodes belong to the module that runs now."""
        if self._recorder is not None:
            node.close_recorder(self._recorder)
            self._recorder = None
        if self._running:
            self._recorder = node.open_recorder()
            self._made.append((self._running[-1], self._recorder))

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._running.append(module)
        self.calls[module] = self.calls.get(module, 0) + 1
        self._switch()

    def _leave(self, module: nn.Module, args: Any, out: Any) -> None:
        self._running.pop()
        self._switch()
        self.outputs[module] = tuple(out.shape) if isinstance(out, Tensor) else None
        self.macs[module] = self.macs.get(module, 0) + _macs(module, args, out)

    def remove(self) -> None:
        """Take the hooks away."""
        self._running.clear()
        self._switch()
        for handle in self._handles:
            handle.remove()

    def saved_bytes(self) -> dict[nn.Module, int]:
        """Bytes that the nodes of each module hold now, each storage once."""
        found: dict[nn.Module, int] = {}
        seen: set[int] = set()
        for module, recorder in self._made:
            for value in recorder.saved_values():
                held = value.storage
                if held is None or held.category in (storage.PARAMETER, storage.BUFFER):
                    continue
                if id(held) not in seen:
                    seen.add(id(held))
                    found[module] = found.get(module, 0) + held.nbytes
        return found

    def rows(self, saved: dict[nn.Module, int]) -> list[Row]:
        """A row for each module called that has parameters or a tape of its own, or no child."""
        counted: set[int] = set()
        rows = []
        for module, calls in self.calls.items():
            own = _new(module.parameters(recurse=False), counted)
            kept = saved.get(module, 0)
            if not (own or kept) and any(child in self.calls for child in module.children()):
                continue
            rows.append(
                Row(
                    self.names[module],
                    type(module).__name__,
                    calls,
                    self.outputs.get(module),
                    sum(p.numel() for p in own),
                    sum(p.numel() for p in own if p.requires_grad),
                    self.macs.get(module, 0),
                    kept,
                )
            )
        return rows


def _new(parameters: Iterable[Any], counted: set[int]) -> list[Any]:
    """Those that were not counted yet."""
    own = [p for p in parameters if id(p) not in counted]
    counted.update(id(p) for p in own)
    return own


def _macs(module: Any, args: Any, out: Any) -> int:
    """Multiply-accumulate operations of one call: each weight times the places it is used at."""
    if not (args and isinstance(args[0], Tensor) and isinstance(out, Tensor)):
        return 0
    if isinstance(module, nn.Linear):
        return out.numel() * module.in_features
    # A weight of a convolution, (out, in / groups, …), meets every pixel of every output channel;
    # one of a transposed convolution, (in, out / groups, …), every pixel of every input channel.
    if isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d)):
        return args[0].numel() * math.prod(module.weight.shape[1:])
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        return out.numel() * math.prod(module.weight.shape[1:])
    return 0
