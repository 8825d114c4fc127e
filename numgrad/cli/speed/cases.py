"""The cases of ``numgrad bench speed`` and of ``benchmarks/``, and the ratios asked: one table.

A ratio is numgrad's speed over that of PyTorch, given in whichever variant it is faster.
"""

import fnmatch
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .kit import CHANNELS_LAST, FUSED, Kit
from .networks import CLASSES, PICTURE, SHAPES, Shape, forward_flops, resnet18, step_flops

Call = Callable[[], Any]
LAYOUTS = ("", CHANNELS_LAST)


@dataclass(frozen=True)
class Case:
    """Something to measure: ``build`` makes a function of no arguments, to be called many times.

    ``flops`` or ``nbytes`` (read and written, each once) are of one call. ``tolerance`` is for
    ``max|a - b| / max|b|`` of the results of the first ``calls`` calls.
    """

    group: str
    name: str
    build: Callable[[Kit], Call]
    flops: float = 0.0
    nbytes: float = 0.0
    asked: float | None = None
    variants: tuple[str, ...] = ("",)
    """The ways in which PyTorch is given it."""
    weight: int = 1
    """How often it counts in its group's sum."""
    tolerance: float = 1e-5
    calls: int = 1
    onnx_batch: int = 0
    """The batch of ResNet-18 that ONNX Runtime can run beside it; 0 for none."""

    @property
    def full_name(self) -> str:
        """What patterns are matched with."""
        return f"{self.group}/{self.name}"


@dataclass(frozen=True)
class Summary:
    """A bound on a group as a whole: the geometric mean, the least, or the sum of its times."""

    kind: str
    asked: float


SUMMARIES: dict[str, tuple[Summary, ...]] = {
    "matmul": (Summary("geometric mean", 1.0), Summary("least", 0.85)),
    "conv-b1": (Summary("sum", 1.5), Summary("least", 0.9)),
    "conv-b8": (Summary("sum", 1.35), Summary("least", 0.9)),
    "conv-dx-b1": (Summary("sum", 1.15),),
    "conv-dx-b8": (Summary("sum", 1.15),),
    "conv-dw-b1": (Summary("sum", 1.15),),
    "conv-dw-b8": (Summary("sum", 1.15),),
}
TITLES = {
    "matmul": "Matrix products, m x n x k, float32",
    "conv-b1": "ResNet-18's convolutions, batch 1 (counted as direct ones)",
    "conv-b8": "ResNet-18's convolutions, batch 8 (counted as direct ones)",
    "conv-dx-b1": "Their gradients of the input, batch 1",
    "conv-dx-b8": "Their gradients of the input, batch 8",
    "conv-dw-b1": "Their gradients of the weight, batch 1",
    "conv-dw-b8": "Their gradients of the weight, batch 8",
    "infer": "ResNet-18, inference, 224 x 224",
    "train": "ResNet-18, a training step, 224 x 224",
    "layers": "Layers at ResNet-18's sizes, batch 8",
    "optim": "Optimisers: a step on ResNet-18's parameters",
}


def asked_at(asked: float | None, threads: int) -> float | None:
    """The ratio asked on so many threads: on one, no more than not to be slower."""
    return None if asked is None else asked if threads > 1 else min(asked, 1.0)


# ----------------------------------------------------------------------------------- how they go


def _matmul(m: int, n: int, k: int, transposed: str = "NN") -> Case:
    def build(kit: Kit) -> Call:
        x = kit.tensor(k, m).t() if transposed[0] == "T" else kit.tensor(m, k)
        y = kit.tensor(n, k).t() if transposed[1] == "T" else kit.tensor(k, n)
        return lambda: x @ y

    suffix = "" if transposed == "NN" else f"-{transposed}"
    floats = m * k + k * n + m * n
    return Case("matmul", f"{m}x{n}x{k}{suffix}", build, 2.0 * m * n * k, 4.0 * floats, 0.85)


def _convolution(group: str, what: str, batch: int, shape: Shape, asked: float | None) -> Case:
    s = shape

    def build(kit: Kit) -> Call:
        conv2d = kit.functional.conv2d
        x, w = kit.tensor(batch, s.c, s.h, s.h), kit.tensor(s.k, s.c, s.r, s.r)
        if what == "forward":

            def forward() -> Any:
                with kit.t.no_grad():
                    return conv2d(x, w, None, s.stride, s.padding)

            return forward
        wanted = (x if what == "dx" else w).requires_grad_()
        out = conv2d(x, w, None, s.stride, s.padding)
        g = kit.tensor(*out.shape)

        def backward() -> Any:
            kit.touch(w)
            return kit.t.autograd.grad(out, wanted, g, retain_graph=True)[0]

        return backward

    return Case(
        group, s.name, build, s.flops(batch), asked=asked, variants=LAYOUTS, weight=s.count,
        tolerance=2e-5 if what == "forward" else 1e-4,
    )  # fmt: skip


def _inference(batch: int) -> Case:
    def build(kit: Kit) -> Call:
        x = kit.tensor(batch, 3, PICTURE, PICTURE)
        model = resnet18(kit).eval()

        def call() -> Any:
            with kit.t.inference_mode():
                return model(x)

        return call

    return Case(
        "infer", f"resnet18-b{batch}", build, forward_flops(batch), asked=1.25, variants=LAYOUTS,
        tolerance=1e-4, onnx_batch=batch,
    )  # fmt: skip


def _step(batch: int, frozen: bool) -> Case:
    def build(kit: Kit) -> Call:
        x, y = kit.tensor(batch, 3, PICTURE, PICTURE), kit.labels(batch, CLASSES)
        model = resnet18(kit).train()
        if frozen:
            model.requires_grad_(False)
            model.fc.requires_grad_(True)
        trained = [p for p in model.parameters() if p.requires_grad]
        rule = kit.t.optim.SGD(trained, lr=1e-3, momentum=0.9)

        def call() -> Any:
            rule.zero_grad()
            loss = kit.functional.cross_entropy(model(x), y)
            loss.backward()
            rule.step()
            return loss

        return call

    flops = forward_flops(batch) + 4.0 * batch * 512 * CLASSES if frozen else step_flops(batch)
    return Case(
        "train", f"{'frozen' if frozen else 'step'}-b{batch}", build, flops, asked=1.15,
        variants=LAYOUTS, tolerance=1e-3, calls=2,
    )  # fmt: skip


BATCH = 8
Layer = Callable[[Kit, int, int], tuple[Callable[[Any], Any], list[Any]]]
"""Makes a layer for so many channels and rows; its parameters, whose gradients are wanted too."""


def _batch_norm(training: bool) -> Layer:
    def make(kit: Kit, c: int, h: int) -> tuple[Callable[[Any], Any], list[Any]]:
        model = kit.loaded(kit.t.nn.BatchNorm2d(c)).train(training)
        return model, [model.weight, model.bias]

    return make


def _relu(kit: Kit, c: int, h: int) -> tuple[Callable[[Any], Any], list[Any]]:
    return kit.functional.relu, []


def _add(kit: Kit, c: int, h: int) -> tuple[Callable[[Any], Any], list[Any]]:
    y = kit.tensor(BATCH, c, h, h)
    return lambda x: x + y, []


def _max_pool(kit: Kit, c: int, h: int) -> tuple[Callable[[Any], Any], list[Any]]:
    return lambda x: kit.functional.max_pool2d(x, 3, 2, 1), []


def _layer(name: str, layer: Layer, c: int, h: int, passes: float, backward: bool) -> Case:
    """``passes``: how often as many bytes as x has are read or written, at the least."""

    def build(kit: Kit) -> Call:
        x = kit.tensor(BATCH, c, h, h)
        function, parameters = layer(kit, c, h)
        if not backward:

            def forward() -> Any:
                with kit.t.no_grad():
                    return function(x)

            return forward
        x.requires_grad_()
        g = kit.tensor(*function(x).shape)

        def both() -> Any:
            return kit.t.autograd.grad(function(x), [x, *parameters], g)

        return both

    way = "-backward" if backward else ""
    return Case(
        "layers", f"{name}{way}-{c}x{h}", build, nbytes=passes * 4 * BATCH * c * h * h,
        variants=LAYOUTS, tolerance=1e-4,
    )  # fmt: skip


def _optimiser(name: str, **options: float) -> Case:
    def build(kit: Kit) -> Call:
        model = resnet18(kit)
        fused = {"fused": True} if kit.variant == FUSED else {}
        rule = getattr(kit.t.optim, name)(model.parameters(), **options, **fused)
        for p in model.parameters():
            p.grad = kit.tensor(*p.shape)
        shown = [model.conv1.weight, model.layer4[1].conv2.weight, model.fc.weight]

        def call() -> Any:
            rule.step()
            return shown

        return call

    parameters = 11_689_512
    passes = 5 if name == "SGD" else 7  # p, grad and the state are read, all but grad written
    return Case(
        "optim",
        name.lower(),
        build,
        nbytes=4.0 * passes * parameters,
        variants=("", FUSED),
        calls=2,
    )


# -------------------------------------------------------------------------------------- the table


def _cases() -> Iterator[Case]:
    for n in (128, 256, 512, 1000, 2048):
        yield _matmul(n, n, n)
    yield _matmul(64, 3136, 576)
    yield _matmul(512, 49, 4608)
    yield _matmul(1, 1000, 512)
    yield _matmul(32, 4096, 1024)
    yield _matmul(4096, 32, 1024)
    yield _matmul(784, 10, 256)
    for transposed in ("TN", "NT", "TT"):
        yield _matmul(512, 512, 512, transposed)
    for what, prefix in (("forward", "conv"), ("dx", "conv-dx"), ("dw", "conv-dw")):
        for batch in (1, 8):
            for shape in SHAPES:
                asked = 0.9 if what == "forward" else None
                yield _convolution(f"{prefix}-b{batch}", what, batch, shape, asked)
    for batch in (1, 8, 32):
        yield _inference(batch)
    yield _step(16, frozen=False)
    yield _step(16, frozen=True)
    for c, h in ((64, 112), (64, 56), (256, 14)):
        yield _layer("batch-norm-train", _batch_norm(True), c, h, 3, False)
        yield _layer("batch-norm-train", _batch_norm(True), c, h, 8, True)
    yield _layer("batch-norm-eval", _batch_norm(False), 64, 56, 2, False)
    for backward in (False, True):
        yield _layer("relu", _relu, 64, 56, 5 if backward else 2, backward)
        yield _layer("add", _add, 64, 56, 3, backward)
        yield _layer("max-pool", _max_pool, 64, 112, 2.75 if backward else 1.25, backward)
    yield _optimiser("SGD", lr=1e-3, momentum=0.9)
    yield _optimiser("Adam", lr=1e-3)


CASES: dict[str, Case] = {case.full_name: case for case in _cases()}

# Measured on numgrad alone: one thread beside two, and small batches beside large ones.
OTHERS: dict[str, Case] = {
    case.full_name: case
    for case in (_matmul(1024, 1024, 1024), *(_inference(batch) for batch in (8, 32, 64)))
}
SCALING = {
    "scaling/matmul-1024": ("matmul/1024x1024x1024", 1.8),
    "scaling/resnet18-b8": ("infer/resnet18-b8", 1.7),
}
FLAT = {f"scaling/resnet18-b{batch}-per-image": batch for batch in (32, 64)}
FLAT_BASE, FLAT_ASKED = 8, 0.10
COLD = {"cold/inference": 15.0, "cold/training": 30.0}
"""Seconds from the start of a process with an empty kernel folder to the first result."""
MEMORY: dict[str, tuple[str, float | None]] = {
    "memory/volatile-forward": ("inference", 212.0),
    "memory/taped-forward": ("forward", None),
    "memory/taped-forward-backward": ("backward", None),
}
"""The mode of ``high_water``, and the most MiB; None: MEMORY_SHARE of PyTorch's."""
MEMORY_SHARE, DERIVED_SHARE = 0.95, 1.7
"""Of what PyTorch needs in its better layout; derived weights, of the size of the model."""


def find(name: str) -> Case:
    """A case by its full name."""
    return CASES[name] if name in CASES else OTHERS[name]


def names() -> list[str]:
    """All that can be asked for."""
    return [*CASES, *SCALING, *FLAT, *COLD, *MEMORY]


def select(patterns: Sequence[str]) -> list[str]:
    """Those that a pattern fits: of a full name, or of a group."""
    chosen = [
        name
        for name in names()
        if not patterns
        or any(
            fnmatch.fnmatchcase(name, p) or fnmatch.fnmatchcase(name.partition("/")[0], p)
            for p in patterns
        )
    ]
    return chosen


def geometric_mean(values: Sequence[float]) -> float:
    """The mean for ratios."""
    return math.exp(sum(map(math.log, values)) / len(values))
