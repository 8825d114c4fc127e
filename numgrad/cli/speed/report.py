"""From times to rows, and from rows to the tables that are printed."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..output import size, table
from . import cases
from .cases import Case
from .kit import CHANNELS_LAST

Row = dict[str, Any]
LABELS = {"torch": "PyTorch", "onnxruntime": "ONNX Runtime", "numgrad": "numgrad"}
MARK = "~"
LEGEND = (
    "ratio: speed over that of PyTorch in the faster of its variants (named), and what is asked.",
    "~: p75/p25 was above 1.3 in every attempt. <: below what is asked.",
)


class Table(NamedTuple):
    """A table of text: first column text, the others numbers, but those in ``left``."""

    title: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left: tuple[int, ...] = ()
    key: tuple[str, int] = ("", 0)
    """The group and the count of threads that it shows, if it shows one."""


# ------------------------------------------------------------------------------------------- rows


def case_row(case: Case, threads: int, race: dict[str, Any], errors: dict[str, float]) -> Row:
    """The row of a case: its times, and how its speed compares."""
    times = race["times"]
    row: Row = {
        "kind": "case",
        "group": case.group,
        "name": case.name,
        "threads": threads,
        "flops": case.flops,
        "bytes": case.nbytes,
        "weight": case.weight,
        "asked": cases.asked_at(case.asked, threads),
        "ms": times[0]["ms"],
        "peers": {},
        **race,
        "errors": errors,
    }
    for time in times[1:]:
        best = row["peers"].get(time["library"])
        if best is None or time["ms"] < best["ms"]:
            row["peers"][time["library"]] = {"ms": time["ms"], "variant": time["variant"]}
    for peer in row["peers"].values():
        peer["ratio"] = peer["ms"] / row["ms"]
    row["ratio"] = row["peers"]["torch"]["ratio"] if "torch" in row["peers"] else None
    return row


def summary_rows(rows: Sequence[Row]) -> list[Row]:
    """The bounds on whole groups, of the cases that were measured."""
    found = []
    groups = dict.fromkeys((row["group"], row["threads"]) for row in rows if row["kind"] == "case")
    for group, threads in groups:
        members = [
            r for r in rows if (r["kind"], r["group"], r["threads"]) == ("case", group, threads)
        ]
        ratios = [r["ratio"] for r in members if r["ratio"] is not None]
        if len(ratios) < len(members):
            continue
        whole = {case.full_name for case in cases.CASES.values() if case.group == group}
        for summary in cases.SUMMARIES.get(group, ()):
            row = {
                "kind": "summary",
                "group": group,
                "name": summary.kind,
                "threads": threads,
                "asked": cases.asked_at(summary.asked, threads),
                "cases": len(members),
                "complete": len(members) == len(whole),
            }
            if summary.kind == "sum":
                row["ms"] = sum(r["weight"] * r["ms"] for r in members)
                peer = sum(r["weight"] * r["peers"]["torch"]["ms"] for r in members)
                row["peers"] = {"torch": {"ms": peer, "variant": ""}}
                row["ratio"] = peer / row["ms"]
            elif summary.kind == "least":
                row["ratio"] = min(ratios)
            else:
                row["ratio"] = cases.geometric_mean(ratios)
            found.append(row)
    return found


def falls_short(row: Row) -> bool:
    """Whether a row is below, or above, what is asked of it."""
    if row["kind"] == "memory":
        most, share = row.get("most_bytes"), row["share"]
        beyond = row["asked"] is not None and share is not None and share > row["asked"]
        return beyond or (most is not None and bool(row["bytes"] > most))
    if row.get("asked") is None:
        return False
    if row["kind"] == "cold":
        return bool(row["seconds"] > row["asked"])
    if row["kind"] == "flat":
        return bool(abs(row["ratio"] - 1) > row["asked"])
    return row["ratio"] is not None and bool(row["ratio"] < row["asked"])


# ----------------------------------------------------------------------------------------- tables


def tables(rows: Sequence[Row], peaks: dict[str, dict[str, float]]) -> list[Table]:
    """All tables: a group and count of threads each, then the scaling and the cold starts."""
    rows = [*rows, *summary_rows(rows)]
    found = []
    for group, threads in dict.fromkeys(
        (r["group"], r["threads"]) for r in rows if r["kind"] == "case"
    ):
        members = [r for r in rows if (r["group"], r["threads"]) == (group, threads)]
        found.append(group_table(group, threads, members, peaks.get(str(threads))))
    scaling = [r for r in rows if r["kind"] in ("scaling", "flat")]
    if scaling:
        found.append(scaling_table(scaling))
    cold = [r for r in rows if r["kind"] == "cold"]
    if cold:
        found.append(cold_table(cold))
    memory = [r for r in rows if r["kind"] == "memory"]
    if memory:
        found.append(memory_table(memory))
    return found


def group_table(
    group: str, threads: int, rows: Sequence[Row], peak: dict[str, float] | None
) -> Table:
    """The cases of a group, and the bounds on it."""
    peers = [p for p in ("torch", "onnxruntime") if any(p in r.get("peers", {}) for r in rows)]
    by_bytes = not any(r.get("flops") for r in rows)
    variants = {r["peers"]["torch"]["variant"] for r in rows if "torch" in r.get("peers", {})}
    named = bool(variants - {""})
    heads = ["", "numgrad\nms", *(f"{LABELS[p]}\nms" for p in peers)]
    left: tuple[int, ...] = ()
    if named:
        heads.append("\nvariant")
        left = (len(heads) - 1,)
    if peers:
        heads += ["\nratio", "\nasked"]
    if "onnxruntime" in peers:
        heads.append("ratio to\nONNX R.")
    heads += ["\nGB/s" if by_bytes else "\nGFLOP/s", "% of\ntriad" if by_bytes else "% of\npeak"]
    body = []
    for row in rows:
        found = row.get("peers", {})
        weight = f" (x{row['weight']})" if row.get("weight", 1) > 1 else ""
        line = [name_of(row) + weight, milliseconds(row.get("ms"))]
        line += [milliseconds(found[p]["ms"] if p in found else None) for p in peers]
        if named:
            line.append(variant_of(row))
        if peers:
            line += [ratio(row), bound(row.get("asked"))]
        if "onnxruntime" in peers:
            other = found.get("onnxruntime")
            line.append(f"{other['ratio']:.2f}" if other else "")
        line += rate(row, by_bytes, peak)
        body.append(tuple(line))
    title = f"{cases.TITLES.get(group, group)}; {threads_text(threads)}:"
    return Table(title, tuple(heads), body, left, (group, threads))


def threads_text(threads: int) -> str:
    """``1 thread``, ``2 threads``."""
    return f"{threads} thread{'s' if threads > 1 else ''}"


def name_of(row: Row) -> str:
    """The row's name, with a mark if its times are unsteady or its group is not whole."""
    if row["kind"] == "summary" and not row["complete"]:
        return f"{row['name']} of these {row['cases']}"
    return row["name"] + ("" if row.get("steady", True) else f" {MARK}")


def variant_of(row: Row) -> str:
    """The variant in which PyTorch is faster, in words."""
    tried = {time["variant"] for time in row.get("times", ())}
    if "torch" not in row.get("peers", {}) or len(tried) < 2:
        return ""
    plain = "contiguous" if CHANNELS_LAST in tried else "not fused"
    return row["peers"]["torch"]["variant"] or plain


def milliseconds(ms: float | None) -> str:
    """Four figures or so."""
    if ms is None:
        return ""
    return f"{ms:.1f}" if ms >= 100 else f"{ms:.2f}" if ms >= 10 else f"{ms:.3f}"


def ratio(row: Row) -> str:
    """The ratio reached, with a mark if more is asked."""
    if row.get("ratio") is None:
        return "-"
    return ("< " if falls_short(row) else "") + f"{row['ratio']:.2f}"


def bound(asked: float | None) -> str:
    """The ratio asked."""
    return "" if asked is None else f"{asked:.2f}"


def rate(row: Row, by_bytes: bool, peak: dict[str, float] | None) -> tuple[str, str]:
    """GFLOP/s or GB/s, and their share of this CPU's."""
    amount = row.get("bytes" if by_bytes else "flops")
    if not amount:
        return "", ""
    found = amount / row["ms"] / 1e6
    most = peak["gbps" if by_bytes else "gflops"] if peak else None
    return f"{found:.1f}" if found < 100 else f"{found:.0f}", f"{found / most:.0%}" if most else ""


def scaling_table(rows: Sequence[Row]) -> Table:
    """Two threads beside one, and time an image of large batches beside a small one."""
    body = []
    for row in rows:
        asked = f">= {row['asked']:.2f}" if row["kind"] == "scaling" else f"1 +- {row['asked']:.2f}"
        parts = [f"{milliseconds(t['ms'])}" for t in row["times"]]
        body.append((name_of(row), parts[0], parts[1], ratio(row), asked))
    heads = ("", "1 thread, or\nbatch 8, ms", "2 threads, or\nthis batch, ms", "\nratio", "\nasked")
    return Table("How numgrad scales (per image: time an image over that of batch 8):", heads, body)


def cold_table(rows: Sequence[Row]) -> Table:
    """First results with an empty kernel folder."""
    body = [
        (
            row["name"],
            ("> " if falls_short(row) else "") + f"{row['seconds']:.1f}",
            f"<= {row['asked']:.0f}",
            str(row["kernels"]),
            f"{row['compiling_seconds']:.1f}",
        )
        for row in rows
    ]
    heads = ("", "\nseconds", "\nasked", "kernels\ncompiled", "compiling\nseconds")
    return Table(
        "ResNet-18's first result with an empty kernel folder, the whole process:", heads, body
    )


def memory_table(rows: Sequence[Row]) -> Table:
    """What ResNet-18 needs above the warm model."""
    body = []
    for row in rows:
        most = row.get("most_bytes")
        of = "of the model" if row["name"] == "derived-weights" else "of PyTorch's"
        asked = f"<= {size(most)}" if most else f"<= {row['asked']:.2f} {of}"
        share = "-" if row["share"] is None else f"{row['share']:.2f}"
        mark = "> " if falls_short(row) else ""
        body.append(
            (row["name"], mark + size(row["bytes"]), size(row.get("peer_bytes")), share, asked)
        )
    title = "ResNet-18's memory, batch 32, above the warm model, by the system's count:"
    return Table(title, ("", "numgrad", "PyTorch", "ratio", "asked"), body, (4,))


def show(found: Sequence[Table]) -> None:
    """Print the tables."""
    for one in found:
        table(one.heads, one.rows, title=one.title, left=one.left)
        print()
    for line in LEGEND:
        print(line)


def peaks_text(peaks: dict[str, dict[str, float]]) -> str:
    """The measured peaks in one sentence."""
    return "; ".join(
        f"{threads_text(int(n))}: {p['gflops']:.0f} GFLOP/s of multiply-adds, "
        f"{p['gbps']:.1f} GB/s of a triad"
        for n, p in peaks.items()
    )
