"""``numgrad bench memory``: what a forward pass keeps, in seven ways of calling it.

Each row is measured in a process of its own, so that none inherits the pages of another.
"""

import argparse
import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .arguments import positive
from .networks import NETWORKS, make, settle
from .output import UsageError, check_writable, machine, progress, size, table, tell, write_json

MODES = (
    "taped",
    "input requires_grad=False",
    "detached input",
    "parameters frozen",
    "no_grad",
    "inference_mode",
    "volatile",
)
UNRECORDED = MODES[3:]
DEFAULT = "resnet18"
REPEATS, SECONDS = 5, 0.3
"""At least so many forwards, and for so long: what their median is taken of."""
RATIO, SLACK_BYTES = 1.05, 8 << 20
"""How far the system's count may be from the pool's, and the pool's from that of live tensors."""

INPUT_COUNTS = "An input that is saved counts in saved bytes; it was there before the start."
EXPLANATION = (
    "Rows 2 and 3: not asking for the input's gradient saves nothing while parameters want theirs.",
    "Rows 4 to 7 make no node and keep nothing: only the layer at hand and its input are alive.",
    INPUT_COUNTS,
)


def add(kinds: Any) -> None:
    """Describe the command's arguments."""
    parser = kinds.add_parser(
        "memory",
        help="what a forward pass keeps: taped, frozen, no_grad, volatile …",
        description=(
            "One forward in eval mode, no backward, with its result held, in seven ways of calling "
            "the model. Bytes are above the start of that forward."
        ),
    )
    parser.add_argument("--model", choices=NETWORKS, default=DEFAULT, help="default: %(default)s")
    parser.add_argument(
        "--batch", type=positive, metavar="N", help="default: 8, of small pictures 64"
    )
    parser.add_argument(
        "--size",
        type=positive,
        metavar="N",
        help="height and width of the pictures; default: what the model was made for, such as 224",
    )
    parser.add_argument("--json", metavar="FILE", help="write the rows with exact bytes")
    # The rows' own processes are started with this.
    parser.add_argument("--row", choices=MODES, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Measure all rows and print the table; 1 if they are not what they must be."""
    batch, pixels = settle(options.model, options.batch, options.size)
    if options.row is not None:
        print(json.dumps(measure(options.row, options.model, batch, pixels)))
        return 0
    check_writable(options.json, "--json")
    busy = load_warning()
    rows = measure_all(options.model, batch, pixels)
    show(rows, options.model, batch, pixels)
    if busy:
        print(busy)
    if options.json is not None:
        write_json(options.json, {"machine": machine(), "command": options.typed, "rows": rows})
    return complain(rows)


def load_warning() -> str:
    """What to say if other work runs on this machine, else nothing. Call it before measuring."""
    if not hasattr(os, "getloadavg") or (load := os.getloadavg()[0]) <= (os.cpu_count() or 1) / 2:
        return ""
    return f"The load average was {load:.1f} before: other work ran here, and times mean little."


def measure_all(model: str, batch: int, pixels: int | None = None) -> list[dict[str, Any]]:
    """All rows, each from a fresh process."""
    # The child must find the same numgrad, also where it is not installed.
    path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    rows = []
    for (_, say), mode in zip(progress("row", len(MODES)), MODES, strict=True):
        call = [sys.executable, "-m", "numgrad", "bench", "memory"]
        call += ["--model", model, "--batch", str(batch), "--row", mode]
        call += ["--size", str(pixels)] if pixels is not None else []
        done = subprocess.run(
            call, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise UsageError(f"bench memory: the process of row {mode!r} failed: {last[0]}")
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        say(mode)
    return rows


# --------------------------------------------------------------------------------- in the child


def measure(mode: str, model: str, batch: int, pixels: int | None = None) -> dict[str, Any]:
    """One row, measured in this process."""
    from .. import memory

    forward = prepare(mode, model, batch, pixels)
    for _ in range(3):  # kernels are compiled or loaded, threads started
        forward()
    gc.collect()
    gc.disable()
    try:
        memory.empty_cache()
        memory.reset_peak()
        reserved = memory.stats()["reserved_bytes"]
        with memory.track() as m:
            base = lower_high_water()
            out = forward()
            highest = status_bytes("VmHWM")
        row = {
            "mode": mode,
            "requires_grad": out.requires_grad,
            "volatile": out.volatile,
            "grad_fn": None if out.grad_fn is None else out.grad_fn.name,
            "nodes": m.nodes,
            "saved_tensors": m.saved_tensors,
            "saved_bytes": m.saved_bytes,
            "peak_bytes": m.peak_bytes,
            "by_category": m.by_category,
            "reserved_bytes": memory.stats()["peak_reserved_bytes"] - reserved,
            "total_peak_bytes": memory.stats()["peak_bytes"],
            "total_reserved_bytes": memory.stats()["peak_reserved_bytes"],
            "rss_bytes": None if base is None or highest is None else max(0, highest - base),
        }
        del out
        row["ms"] = median_ms(forward)
    finally:
        gc.enable()
    return row


def prepare(mode: str, model: str, batch: int, pixels: int | None) -> Callable[[], Any]:
    """A function that runs one forward in the given mode."""
    from .. import inference_mode, no_grad
    from ..variable import Variable

    network, x = make(model, batch, pixels)
    context: Callable[[], Any] = contextlib.nullcontext
    if mode == "taped":
        x.requires_grad_()
    elif mode == "detached input":
        x = x.requires_grad_().detach()
    elif mode == "parameters frozen":
        network.requires_grad_(False)
    elif mode == "no_grad":
        context = no_grad
    elif mode == "inference_mode":
        context = inference_mode
    elif mode == "volatile":
        x = Variable(x, volatile=True)

    def forward() -> Any:
        with context():
            return network(x)

    return forward


def median_ms(forward: Callable[[], Any]) -> float:
    """Median time of a forward, result dropped outside the time."""
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < REPEATS or time.perf_counter() < end:
        start = time.perf_counter()
        out = forward()
        times.append((time.perf_counter() - start) * 1e3)
        del out
    return statistics.median(times)


def lower_high_water() -> int | None:
    """Let this process's high-water mark begin again; its resident bytes, None where it cannot.

    ``ru_maxrss`` will not do: it never forgets what compiling took.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return None
    return status_bytes("VmRSS")


def status_bytes(field: str) -> int | None:
    """A size in ``/proc/self/status``; None where there is none."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None


# ------------------------------------------------------------------------------------ the tables


KEPT_HEADS = ("nodes", "saved\ntensors", "saved\nbytes")


def kept_cells(row: dict[str, Any]) -> tuple[str, str, str]:
    """What a row keeps, under `KEPT_HEADS`."""
    return str(row["nodes"]), str(row["saved_tensors"]), size(row["saved_bytes"])


def used_categories(rows: list[dict[str, Any]]) -> list[str]:
    """The categories of memory that some row uses: only they get a column."""
    return [c for c in rows[0]["by_category"] if any(r["by_category"][c] for r in rows)]


def show(rows: list[dict[str, Any]], model: str, batch: int, pixels: int | None = None) -> None:
    """Print two tables, what is kept and what it costs, and what they show."""

    def yes(flag: bool) -> str:
        return "yes" if flag else "no"

    table(
        ("", "requires\ngrad", "volatile", "grad_fn", *KEPT_HEADS),
        [
            (
                r["mode"],
                yes(r["requires_grad"]),
                yes(r["volatile"]),
                r["grad_fn"] or "None",
                *kept_cells(r),
            )
            for r in rows
        ],
        title=(
            f"{model}: one forward of batch {batch}"
            + (f", {pixels} × {pixels}" if pixels is not None else "")
            + ", eval mode, no backward, result held. What it keeps:"
        ),
    )
    print()
    used = used_categories(rows)
    taped = rows[0]["ms"]
    table(
        (
            "",
            "peak\nbytes",
            *(f"of it\n{c}" for c in used),
            "reserved\ngrowth",
            "RSS\ngrowth",
            "median\nms",
            "ratio\nto\ntaped",
        ),
        [
            (
                r["mode"],
                size(r["peak_bytes"]),
                *(size(r["by_category"][c]) for c in used),
                size(r["reserved_bytes"]),
                size(r["rss_bytes"]),
                f"{r['ms']:.3f}",
                f"{r['ms'] / taped:.2f}",
            )
            for r in rows
        ],
        title="What it needs (bytes above the start; by category at the instant of the peak):",
    )
    print()
    for line in (*agreement(rows), *EXPLANATION):
        print(line)


def agreement(rows: list[dict[str, Any]]) -> list[str]:
    """How well the system's count, the pool's and that of live tensors agree, in words."""
    apart = [abs(r["rss_bytes"] - r["reserved_bytes"]) for r in rows if r["rss_bytes"] is not None]
    lines = []
    if apart:
        lines.append(
            f"RSS growth and reserved growth are at most {size(max(apart))} apart "
            f"(allowed: 5 % + {size(SLACK_BYTES)})."
        )
    most = max(r["total_reserved_bytes"] - r["total_peak_bytes"] for r in rows)
    lines.append(
        f"Peak reserved is at most {size(max(most, 0))} above peak live "
        f"(allowed: 5 % + {size(SLACK_BYTES)})."
    )
    return lines


def complain(rows: list[dict[str, Any]]) -> int:
    """1, with a line on stderr each, where rows are not what they must be; else 0."""
    by_mode = {row["mode"]: row for row in rows}
    kept = ("saved_tensors", "saved_bytes")
    wrong = [
        f"{mode} keeps {by_mode[mode][what]} {what}"
        for mode in UNRECORDED
        for what in ("nodes", *kept)
        if by_mode[mode][what]
    ]
    taped, partly = (by_mode[mode] for mode in MODES[:2])
    wrong += [
        f"{MODES[1]} keeps {partly[what]} {what}, taped {taped[what]}"
        for what in kept
        if partly[what] != taped[what]
    ]
    if partly["nodes"] > taped["nodes"]:  # views of the input alone make none where it wants none
        wrong.append(f"{MODES[1]} makes {partly['nodes']} nodes, taped {taped['nodes']}")
    for row in rows:
        rss, reserved = row["rss_bytes"], row["reserved_bytes"]
        allowed = (RATIO - 1) * reserved + SLACK_BYTES
        if rss is not None and abs(rss - reserved) > allowed:
            wrong.append(f"{row['mode']}: RSS grew by {size(rss)}, the pool by {size(reserved)}")
        reserved, live = row["total_reserved_bytes"], row["total_peak_bytes"]
        if reserved > RATIO * live + SLACK_BYTES:
            wrong.append(f"{row['mode']}: {size(reserved)} reserved for {size(live)} live")
    for text in wrong:
        tell(f"bench memory: {text}; this is a bug, please report it")
    return 1 if wrong else 0
