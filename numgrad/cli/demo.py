"""``numgrad demo digits``: train on handwritten digits, save, reload, infer without a tape."""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from . import finetune, memory
from .arguments import positive, rate, seed
from .networks import maker
from .output import (
    check_distinct,
    check_savable,
    check_writable,
    machine,
    printable,
    progress,
    size,
    write_json,
)

DROPOUT = 0.2
MODELS = {"mlp": "digits-mlp", "conv": "digits-conv"}
"""The choices of --model, and the names that `networks` has for them."""
EPOCHS = {"mlp": 30, "conv": 10}
"""If --epochs is not given."""


def add(commands: Any) -> None:
    """Describe the command's arguments."""
    demo = commands.add_parser("demo", help="small programs to watch", description="Demos.")
    kinds = demo.add_subparsers(metavar="DEMO", required=True, dest="demo")
    parser = kinds.add_parser(
        "digits",
        help="train on handwritten digits, save, reload, infer",
        description=(
            "Train a small network on 1437 handwritten digits, test it on 360 others, "
            "save and reload it, infer with volatile inputs, and show what a forward keeps."
        ),
    )
    parser.add_argument(
        "--model", choices=MODELS, default="mlp", help="mlp (default) or a convolutional network"
    )
    parser.add_argument(
        "--epochs", type=positive, metavar="N", help="default: 30, of the conv network 10"
    )
    parser.add_argument("--batch", type=positive, default=64, metavar="N", help="default: 64")
    parser.add_argument("--lr", type=rate, default=2e-3, metavar="F", help="default: 0.002")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="default: 0")
    parser.add_argument("--save", metavar="PATH", help="keep the trained model (safetensors)")
    parser.add_argument("--json", metavar="FILE", help="write accuracy and memory table")
    parser.set_defaults(run=run)
    finetune.add(kinds)


def run(options: Any) -> int:
    """Run the demo; 1 if the reloaded model differs or the memory table is not as it must be."""
    check_savable(options.save, "--save")
    check_writable(options.json, "--json")
    check_distinct({"--save": options.save, "--json": options.json})
    name = MODELS[options.model]
    epochs = options.epochs or EPOCHS[options.model]
    model, accuracy, seconds, test = train(name, epochs, options.batch, options.lr, options.seed)
    print(f"test accuracy {accuracy:.2%} on {len(test)} digits, {seconds:.1f} s")
    with _file(options.save) as path:
        same = reload_equal(name, model, test, path)
        nbytes = os.path.getsize(path)
    where = f" to {printable(path)}" if options.save else ""
    print(
        f"saved{where} ({size(nbytes)}), reloaded into a new model: outputs "
        + ("identical" if same else "DIFFER; this is a bug, please report it")
    )
    infer(model, test)
    print()
    rows = memory.measure_all(name, 64)
    memory.show(rows, name, 64)
    if options.json is not None:
        training = {
            "model": options.model,
            "epochs": epochs,
            "batch": options.batch,
            "lr": options.lr,
            "seed": options.seed,
            "seconds": seconds,
            "test_accuracy": accuracy,
            "reloaded_identical": same,
        }
        write_json(
            options.json,
            {"machine": machine(), "command": options.typed, "training": training, "rows": rows},
        )
    return memory.complain(rows) or int(not same)


def train(
    name: str, epochs: int, batch: int, lr: float, seed: int
) -> tuple[Any, float, float, Any]:
    """Train with Adam; the model, its accuracy on the test digits, the seconds, the test digits."""
    from .. import manual_seed, no_grad, randperm, tensor
    from ..data import split_digits
    from ..nn import CrossEntropyLoss
    from ..optim import Adam

    manual_seed(seed)
    images, labels, test_images, test_labels = (tensor(array) for array in split_digits())
    model = maker(name)(dropout=DROPOUT)
    optimizer = Adam(model.parameters(), lr=lr)
    criterion = CrossEntropyLoss()
    count = sum(p.numel() for p in model.parameters())
    print(f"digits: {len(images)} to train on, {len(test_images)} to test on; {count} parameters")
    started = time.perf_counter()
    for _, say in progress("epoch", epochs):
        order = randperm(len(images))
        total = 0.0
        for at in range(0, len(images), batch):
            chosen = order[at : at + batch]
            optimizer.zero_grad()
            loss = criterion(model(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(chosen)
        say(f"loss {total / len(images):.4f}  {time.perf_counter() - started:.1f} s")
    seconds = time.perf_counter() - started
    model.eval()
    with no_grad():
        right = (model(test_images).argmax(1) == test_labels).sum().item()
    return model, right / len(test_labels), seconds, test_images


@contextlib.contextmanager
def _file(path: str | None) -> Iterator[str]:
    """The path to save to; without one, a file that is gone afterwards."""
    if path is not None:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        yield os.path.join(folder, "digits.safetensors")


def reload_equal(name: str, model: Any, x: Any, path: str) -> bool:
    """Save a model and load it into a new one: whether both give the same bits for ``x``."""
    from .. import no_grad
    from ..checkpoint import load, save

    save(model.state_dict(), path)
    other = maker(name)(dropout=DROPOUT)
    other.load_state_dict(load(path))
    other.eval()
    with no_grad():
        return bool((model(x) == other(x)).all().item())


def infer(model: Any, x: Any) -> None:
    """Classify ten digits with a volatile input, and tell what the graph kept of it: nothing."""
    from .. import memory as ledger
    from ..variable import Variable

    with ledger.track() as m:
        out = model(Variable(x[:10], volatile=True))
    digits = " ".join(str(digit) for digit in out.argmax(1).tolist())
    print(
        f"ten of them, volatile: {digits}  (volatile={out.volatile}, grad_fn={out.grad_fn}, "
        f"{m.nodes} nodes, {size(m.saved_bytes)} saved)"
    )
