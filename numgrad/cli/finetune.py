"""``numgrad demo finetune``: a new last layer for a trained network, on a folder of pictures.

The rest of the network is frozen and its input wants no gradient, so its layers record nothing: the
tape begins at the new layer. (A volatile input would do the same for them, but it would make the
new layer's result volatile, too.) Nothing is cached: each epoch computes the whole network anew, as
a training loop with random changes to the pictures would.
"""

import gc
import math
import os
import random
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from .arguments import positive, rate, seed, share
from .memory import INPUT_COUNTS, KEPT_HEADS, kept_cells, used_categories
from .output import (
    UsageError,
    check_distinct,
    check_savable,
    check_writable,
    machine,
    printable,
    progress,
    size,
    table,
    tell,
    write_json,
)
from .trained import MOST_PIXELS, PIXELS, RESIZE, add_arguments, check, check_size, trained

DEFAULT = "resnet18"
EPOCHS, BATCH, LR, MOMENTUM, TEST_SHARE = 10, 16, 0.005, 0.9, 0.25
COMPILING = 0.5
"""Seconds of compiling that are worth a word."""
KEPT = ("nodes", "saved_tensors", "saved_bytes", "peak_bytes")


def add(kinds: Any) -> None:
    """Describe the command's arguments."""
    parser = kinds.add_parser(
        "finetune",
        help="a new last layer for a trained network, on a folder of pictures",
        description=(
            "Train a new last layer of a network, whose other layers are frozen, on pictures of "
            "your own, test it on some of them, and compare what a training step needs with "
            "training the whole network. All pictures are held in memory, at the default size "
            "0.6 MB each."
        ),
        epilog=(
            "What --save writes is read by: saved = numgrad.load(PATH); "
            'model = models.M(num_classes=len(saved["classes"])); '
            'model.load_state_dict(saved["state_dict"]).'
        ),
    )
    parser.add_argument(
        "folder", metavar="FOLDER", help="has one folder a class, named as the class, with pictures"
    )
    add_arguments(parser, DEFAULT)
    shown = "default: %(default)s"
    parser.add_argument("--epochs", type=positive, default=EPOCHS, metavar="N", help=shown)
    parser.add_argument("--batch", type=positive, default=BATCH, metavar="N", help=shown)
    parser.add_argument("--lr", type=rate, default=LR, metavar="F", help=shown)
    parser.add_argument(
        "--seed",
        type=seed,
        default=0,
        metavar="N",
        help="of the split, the new layer and the order of the pictures; " + shown,
    )
    parser.add_argument(
        "--test-share",
        type=share,
        default=TEST_SHARE,
        metavar="F",
        help="how much of each class is kept for the test; " + shown,
    )
    parser.add_argument(
        "--size",
        type=positive,
        default=PIXELS,
        metavar="N",
        help="height and width that pictures are resized and cut to; " + shown,
    )
    parser.add_argument(
        "--save", metavar="PATH", help="keep the network, its state dict with the class names"
    )
    parser.add_argument("--json", metavar="FILE", help="write accuracy and memory table")
    parser.set_defaults(run=run)


class Pictures(NamedTuple):
    """Preprocessed pictures, float32 (n, 3, size, size), and their classes, int64 (n,)."""

    inputs: Any
    labels: Any


def run(options: Any) -> int:
    """Fine-tune; 1 if the memory table is not as it must be."""
    from ..kernels import store

    check("demo finetune", options.weights)
    check_savable(options.save, "--save")
    check_writable(options.json, "--json")
    check_distinct({"--weights": options.weights, "--save": options.save, "--json": options.json})
    if options.size > MOST_PIXELS:
        raise UsageError(f"--size: expected at most {MOST_PIXELS}, got {options.size}")
    classes, training, test = read(options.folder, options.size, options.test_share, options.seed)
    model, head = network(options.model, options.weights, len(classes), options.seed)
    check_size(model, f"--size: {options.model}", training.inputs[:1])
    print(
        f"{options.model}: {_count(model)} parameters, of them "
        f"{sum(p.numel() for p in head.parameters())} in the new layer"
    )
    compiled = store.stats.seconds
    loss, seconds = train(model, head, training, options.epochs, options.batch, options.lr)
    compiled = store.stats.seconds - compiled
    right = correct(model, test, options.batch)
    accuracy = right / len(test.labels)
    print(f"test accuracy {accuracy:.2%} ({right} of {len(test.labels)} pictures)")
    first = f", of them {compiled:.1f} s for compiling kernels, the first time only"
    print(f"trained in {seconds:.1f} s" + first * (compiled > COMPILING))
    if options.save is not None:
        save(model, classes, options)
        print(f"saved to {printable(options.save)} ({size(os.path.getsize(options.save))})")
    print()
    rows = compare(model, head, training, options.batch, options.lr)
    show(rows, options.model, options.size)
    if options.json is not None:
        result = {
            "model": options.model,
            "weights": options.weights,
            "classes": classes,
            "training_pictures": len(training.labels),
            "test_pictures": len(test.labels),
            "epochs": options.epochs,
            "batch": options.batch,
            "lr": options.lr,
            "seed": options.seed,
            "size": options.size,
            "loss": loss,
            "seconds": seconds,
            "seconds_compiling": compiled,
            "test_accuracy": accuracy,
        }
        content = {"machine": machine(), "command": options.typed, "training": result, "rows": rows}
        write_json(options.json, content)
    return complain(rows)


# ------------------------------------------------------------------------------------ the pictures


def read(
    folder: str, pixels: int, test_share: float, seed: int
) -> tuple[list[str], Pictures, Pictures]:
    """The classes' names and all pictures, split into those to train on and those to test on.

    Raises:
        UsageError: no such folder, fewer than two classes, a class with fewer than two pictures, or
            a file that is no picture.
    """
    from ..data.pictures import PictureError

    try:
        found = split(find_classes(folder), test_share, seed)
        parts = [
            load([(path, i) for i, paths in enumerate(chosen.values()) for path in paths], pixels)
            for chosen in found
        ]
    except PictureError as error:
        raise UsageError(f"{error.path} {error.reason}") from None
    except MemoryError:
        raise UsageError(
            f"demo finetune: the pictures of {folder} need more memory than there is; take a "
            "smaller --size, or fewer pictures"
        ) from None
    training, test = found
    for name in training:
        print(f"{printable(name)}: {len(training[name])} to train on, {len(test[name])} to test on")
    return list(training), parts[0], parts[1]


def find_classes(folder: str) -> dict[str, list[str]]:
    """Paths of pictures by class: those of each folder in a folder, by their names, sorted.

    Raises:
        UsageError: no such folder, or fewer than two classes, or a class with fewer than two.
        PictureError: a class without pictures.
    """
    from ..data.pictures import find

    if not os.path.isdir(folder):
        what = "a file" if os.path.exists(folder) else "not there"
        raise UsageError(
            f"demo finetune: expected a folder for FOLDER, got {folder}, which is {what}; name one "
            "that has a folder of pictures for each class"
        )
    with os.scandir(folder) as entries:
        names = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    if len(names) < 2:
        raise UsageError(
            f"demo finetune: expected two or more folders in {folder}, one a class, got "
            f"{len(names)}; put the pictures of each class into a folder of its own"
        )
    classes = {name: find([os.path.join(folder, name)]) for name in names}
    for name, paths in classes.items():
        if len(paths) < 2:
            raise UsageError(
                f"demo finetune: expected two or more pictures in {os.path.join(folder, name)}, "
                f"got {len(paths)}; one is to train on and one to test on"
            )
    return classes


def split(
    classes: dict[str, list[str]], test_share: float, seed: int
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The pictures of each class to train on and to test on, by chance, at least one of each."""
    chance = random.Random(seed)
    training, test = {}, {}
    for name, paths in classes.items():
        chosen = chance.sample(paths, len(paths))
        count = min(max(1, round(test_share * len(paths))), len(paths) - 1)
        training[name], test[name] = chosen[count:], chosen[:count]
    return training, test


def load(items: Sequence[tuple[str, int]], pixels: int) -> Pictures:
    """Open and preprocess pictures, given as paths and classes."""
    import numpy as np

    from .. import tensor
    from ..data.pictures import imagenet_input, open_picture
    from ..ops.creation import from_numpy

    inputs = np.empty((len(items), 3, pixels, pixels), np.float32)
    for row, (path, _) in zip(inputs, items, strict=True):
        row[...] = imagenet_input(open_picture(path), round(RESIZE * pixels), pixels)
    return Pictures(from_numpy(inputs), tensor([label for _, label in items]))


# ------------------------------------------------------------------------------------ the training


def network(name: str, weights: str | None, classes: int, seed: int) -> tuple[Any, Any]:
    """A trained network, frozen, with a new last layer for so many classes; and that layer.

    Raises:
        CheckpointError: a file that is damaged, or of another network. OSError: as `trained`.
    """
    from .. import manual_seed, models

    model = trained(name, weights).model
    model.freeze()
    manual_seed(seed)
    head = models.replace_head(model, classes)
    return model.train(), head


def train(
    model: Any, head: Any, training: Pictures, epochs: int, batch: int, lr: float
) -> tuple[float, float]:
    """Train the new layer; the mean loss of the last epoch, and the seconds.

    Raises:
        UsageError: the loss is not finite.
    """
    from .. import randperm
    from ..nn import CrossEntropyLoss
    from ..optim import SGD

    optimizer = SGD(head.parameters(), lr=lr, momentum=MOMENTUM)
    criterion = CrossEntropyLoss()
    started = time.perf_counter()
    mean = math.nan
    for epoch, say in progress("epoch", epochs):
        order = randperm(len(training.labels))
        total, right = 0.0, 0
        for at in range(0, len(order), batch):
            chosen = order[at : at + batch]
            labels = training.labels[chosen]
            optimizer.zero_grad()
            out = model(training.inputs[chosen])
            loss = criterion(out, labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(chosen)
            right += int((out.argmax(1) == labels).sum().item())
        mean = total / len(order)
        if not math.isfinite(mean):
            raise UsageError(
                f"demo finetune: expected a finite loss, got {mean} in epoch {epoch + 1}; take a "
                "smaller --lr"
            )
        seconds = time.perf_counter() - started
        say(f"loss {mean:.4f}  right {right / len(order):.1%}  {seconds:.1f} s")
    return mean, time.perf_counter() - started


def correct(model: Any, test: Pictures, batch: int) -> int:
    """How many test pictures the network gets right; computed volatile, so nothing is kept."""
    from ..variable import Variable

    model.eval()
    right = 0
    for at in range(0, len(test.labels), batch):
        out = model(Variable(test.inputs[at : at + batch], volatile=True))
        right += int((out.argmax(1) == test.labels[at : at + batch]).sum().item())
    return right


def save(model: Any, classes: list[str], options: Any) -> None:
    """Write the state dict, with what is needed to use it."""
    from .. import checkpoint

    state = {"state_dict": model.state_dict(), "classes": classes}
    checkpoint.save({**state, "model": options.model, "size": options.size}, options.save)


# ------------------------------------------------------------------------------ the memory it takes


def compare(
    model: Any, head: Any, training: Pictures, batch: int, lr: float
) -> list[dict[str, Any]]:
    """What a training step needs with the network frozen but for its last layer, then with all
    layers trained; the network is another one afterwards."""
    from .. import tensor

    rows = []
    for name in ("frozen", "full"):
        if name == "full":
            model.unfreeze()
        model.train()
        trained = list(head.parameters() if name == "frozen" else model.parameters())
        # Batch-norm wants more than one value a channel, and two pictures always have that. Copies,
        # since what is saved counts with its whole storage.
        x, labels = (tensor(part[: max(2, batch)]) for part in training)
        row = step(model, trained, x, labels, lr)
        rows.append({"trained": name, "parameters": sum(p.numel() for p in trained), **row})
    return rows


def step(model: Any, trained: list[Any], x: Any, labels: Any, lr: float) -> dict[str, Any]:
    """The first step of a new optimizer: forward, backward and update, bytes above its start."""
    from .. import memory as ledger
    from ..nn.functional import cross_entropy
    from ..ops import derived
    from ..optim import SGD

    def clear() -> None:
        for parameter in trained:
            parameter.grad = None
        gc.collect()

    derived.forget()  # or what earlier steps left would go while this one is measured
    for _ in range(2):  # the first time, kernels are compiled or loaded
        clear()
        start = time.perf_counter()
        with ledger.track() as m:
            optimizer = SGD(trained, lr=lr, momentum=MOMENTUM)
            loss = cross_entropy(model(x), labels)
            kept = {name: getattr(m, name) for name in KEPT[:3]}
            loss.backward()
            optimizer.step()
        ms = (time.perf_counter() - start) * 1e3
        del loss, optimizer
    clear()
    return {
        "batch": len(labels),
        **kept,
        "peak_bytes": m.peak_bytes,
        "by_category": m.by_category,
        "ms": ms,
    }


def show(rows: list[dict[str, Any]], model: str, pixels: int) -> None:
    """Print the table of what a step needs."""
    used = used_categories(rows)
    heads = ("", "trained\nparameters", *KEPT_HEADS, "peak\nbytes")
    table(
        (*heads, *(f"of it\n{c}" for c in used), "ms"),
        [
            (
                row["trained"],
                str(row["parameters"]),
                *kept_cells(row),
                size(row["peak_bytes"]),
                *(size(row["by_category"][c]) for c in used),
                f"{row['ms']:.0f}",
            )
            for row in rows
        ],
        title=(
            f"{model}: a training step of {rows[0]['batch']} pictures, {pixels} × {pixels}. What "
            "its forward keeps, and what the step needs (bytes above its start):"
        ),
    )
    frozen, full = rows
    print()
    for what, text in (("saved_bytes", "keeps"), ("peak_bytes", "needs at its peak")):
        part = frozen[what] / full[what] if full[what] else math.nan
        print(f"With all but the last layer frozen, a step {text} {part:.2%} of full training.")
    print(INPUT_COUNTS)


def complain(rows: list[dict[str, Any]]) -> int:
    """1, with a line on stderr each, where the frozen network needs more than the full one."""
    frozen, full = rows
    wrong = [what for what in KEPT if frozen[what] > full[what]]
    for what in wrong:
        tell(
            f"demo finetune: frozen has {frozen[what]} {what}, full training {full[what]}; this is "
            "a bug, please report it"
        )
    return 1 if wrong else 0


def _count(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())
