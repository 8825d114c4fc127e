"""``numgrad bench speed``: numgrad beside PyTorch and ONNX Runtime, each in its own process.

The cases and what is asked of them are in ``cases``; a process runs them as ``server`` says;
``measuring`` lets processes take turns; ``report`` makes rows and tables of their times, ``page``
writes files.
"""

import argparse
import importlib.util
import os
import time
from collections.abc import Sequence
from typing import Any

from ..arguments import positive
from ..output import UsageError, check_distinct, check_writable, machine, tell, write_json

PEERS = {"torch": ("torch",), "onnxruntime": ("onnxruntime", "onnx")}
"""Libraries to compare with, and the modules that they need."""


def add(kinds: Any) -> None:
    """Describe the command's arguments."""
    parser = kinds.add_parser(
        "speed",
        help="how fast kernels and networks are, beside PyTorch and ONNX Runtime",
        description=(
            "Matrix products, convolutions, layers, optimisers and ResNet-18, next to this CPU's "
            "measured peaks and to other libraries. Libraries run in processes of their own, in "
            "turns, after their results have been compared. Times are medians: use an idle machine."
        ),
    )
    parser.add_argument(
        "--compare", type=peers, default=(), metavar="NAMES", help=f"any of {','.join(PEERS)}"
    )
    parser.add_argument(
        "--threads", type=counts, metavar="N[,N]", help="default: 1 and, with several CPUs, 2"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="cases whose group or group/name fits, such as 'conv*'; may be given several times",
    )
    parser.add_argument("--list", action="store_true", help="print the names of all cases")
    parser.add_argument("--json", metavar="FILE", help="write all samples")
    parser.add_argument("--html", metavar="FILE", help="write one page with tables and plots")
    parser.add_argument(
        "--markdown", metavar="FILE", help="put tables, and plots beside it, into a Markdown file"
    )
    parser.set_defaults(run=run)


def peers(text: str) -> tuple[str, ...]:
    """Names of libraries to compare with, separated by commas."""
    found = tuple(dict.fromkeys(text.split(",")))
    for name in found:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"expected any of {','.join(PEERS)}, got {name!r}")
    return found


def counts(text: str) -> tuple[int, ...]:
    """Counts of threads, separated by commas."""
    return tuple(dict.fromkeys(positive(part) for part in text.split(",")))


def run(options: Any) -> int:
    """Measure what is asked for and print the tables; 1 if results differ."""
    from . import cases

    chosen = cases.select(options.only)
    if options.list:
        print("\n".join(chosen))
        return 0
    if not chosen:
        raise UsageError(
            f"--only: expected a pattern that fits a case, got {options.only[0]!r}; see --list"
        )
    cpus = available_cpus()
    threads = options.threads or ((1, 2) if cpus > 1 else (1,))
    if max(threads) > cpus:
        raise UsageError(
            f"--threads: expected at most the {cpus} CPUs there are, got {max(threads)}"
        )
    for name in options.compare:
        for module in PEERS[name]:
            if importlib.util.find_spec(module) is None:
                raise UsageError(
                    f"--compare: expected an installed {module}, got none; "
                    "pip install 'numgrad-jit[compare]'"
                )
    files = {"--json": options.json, "--html": options.html, "--markdown": options.markdown}
    from . import page, report

    if options.markdown is not None:
        files["the plots of --markdown"] = str(page.plots_of(options.markdown))
    for option, path in files.items():
        check_writable(path, option)
    check_distinct(files)
    if options.markdown is not None:
        page.check_markdown(options.markdown)
    content, differs = measure(chosen, threads, options.compare)
    content = {"machine": machine(), "command": options.typed, **content}
    print(f"{content['machine']['cpu']}, {content['machine']['cpus']} CPUs")
    print(f"{report.peaks_text(content['peaks'])}\n")
    found = report.tables(content["rows"], content["peaks"])
    report.show(found)
    if content["busy"]:
        print(f"\nwarning: {content['busy']}")
    if options.json is not None:
        write_json(options.json, content)
    if options.html is not None:
        page.write_html(options.html, content, found)
    if options.markdown is not None:
        page.write_markdown(options.markdown, content, found)
    return 1 if differs else 0


def available_cpus() -> int:
    """The CPUs of this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def measure(
    chosen: Sequence[str], threads: Sequence[int], compare: Sequence[str]
) -> tuple[dict[str, Any], bool]:
    """All rows, with what the machine can do; and whether results differ."""
    from . import cases, peaks
    from .measuring import Clients, Differs
    from .report import threads_text

    load = peaks.load_average()
    found = peaks.measure(threads)
    busy = peaks.busy(found, load)
    if busy:
        tell(f"warning: {busy}")
    started = time.perf_counter()
    rows: list[dict[str, Any]] = []
    differs = False
    told: tuple[str, int] | None = None
    work = [(name, n) for n in threads for name in chosen if name in cases.CASES]
    work += [(name, max(threads)) for name in chosen if name not in cases.CASES]
    with Clients() as clients:
        for i, (name, n) in enumerate(work):
            group = (name.partition("/")[0], n)
            if group != told:
                told = group
                seconds = time.perf_counter() - started
                tell(f"{i + 1} of {len(work)}, {seconds:.0f} s: {group[0]}, {threads_text(n)}")
            try:
                found_rows = measure_one(clients, name, n, compare)
            except Differs as error:
                tell(str(error))
                differs = True
            else:
                rows += found_rows
    content = {
        "peaks": found,
        "load_average": load,
        "busy": busy,
        "seconds": time.perf_counter() - started,
        "compared": versions(compare),
        "rows": rows,
    }
    return content, differs


def measure_one(clients: Any, name: str, n: int, compare: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of a name; none where the threads asked for, or the system, have no such rows."""
    from . import cases, fresh, report
    from .measuring import Contestant, check, contestants, race

    if name in cases.COLD:
        training = name == "cold/training"
        row = {"kind": "cold", "asked": cases.COLD[name], **fresh.cold(training, n)}
        return [{**row, **named(name, n)}]
    if name in cases.MEMORY:
        return measure_memory(name, compare)
    try:
        if name in cases.SCALING:
            if n < 2:
                return []
            source, asked = cases.SCALING[name]
            case = cases.find(source)
            runners = [Contestant(clients.get("numgrad", k), case) for k in (1, 2)]
        elif name in cases.FLAT:
            asked, batch = cases.FLAT_ASKED, cases.FLAT[name]
            sizes = (cases.FLAT_BASE, batch)
            runners = [
                Contestant(clients.get("numgrad", n), cases.find(f"infer/resnet18-b{b}"))
                for b in sizes
            ]
        else:
            case = cases.find(name)
            runners = contestants(clients, case, n, compare)
            errors = check(case, runners)
            return [report.case_row(case, n, race(runners), errors)]
        found = race(runners)
    finally:
        clients.drop()
    a, b = (time["ms"] for time in found["times"])
    if name in cases.SCALING:
        return [{"kind": "scaling", **named(name, 2), "asked": asked, "ratio": a / b, **found}]
    each = b / batch / (a / cases.FLAT_BASE)
    return [{"kind": "flat", **named(name, n), "asked": asked, "ratio": each, **found}]


def measure_memory(name: str, compare: Sequence[str]) -> list[dict[str, Any]]:
    """What ResNet-18 needs in one mode, and with the first mode what it keeps of its weights."""
    from . import cases, high_water

    mode, most_mib = cases.MEMORY[name]
    try:
        ours = high_water.measure("numgrad", mode)
        theirs = {
            variant: high_water.measure("torch", mode, variant=variant)["peak"]
            for variant in cases.LAYOUTS
            if "torch" in compare
        }
    except UsageError as error:  # a system that does not count this: the other rows are worth it
        tell(str(error))
        return []
    best = min(theirs, key=lambda variant: theirs[variant]) if theirs else ""
    row = {
        "kind": "memory", **named(name, 1), "bytes": ours["peak"], "measured": ours,
        "peers": {v: {"bytes": peak} for v, peak in theirs.items()}, "variant": best,
        "peer_bytes": theirs.get(best), "most_bytes": most_mib and most_mib * (1 << 20),
        "share": ours["peak"] / theirs[best] if theirs else None,
        "asked": None if most_mib else cases.MEMORY_SHARE,
    }  # fmt: skip
    if mode != "inference":
        return [row]
    derived = {
        "kind": "memory", **named("memory/derived-weights", 1), "bytes": ours["derived"],
        "share": ours["derived"] / ours["model"], "asked": cases.DERIVED_SHARE,
    }  # fmt: skip
    return [row, derived]


def named(name: str, threads: int) -> dict[str, Any]:
    """A row's group, name and count of threads."""
    group, _, own = name.partition("/")
    return {"group": group, "name": own, "threads": threads}


def versions(compare: Sequence[str]) -> dict[str, str]:
    """The versions of the libraries compared with."""
    import importlib.metadata

    found = {}
    for name in compare:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found
