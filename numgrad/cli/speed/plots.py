"""Bar charts as SVG, which need nothing else to be shown."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from . import cases
from .report import Row, falls_short, summary_rows, threads_text

WIDTH, LABEL, RIGHT = 760, 250, 60
BAR, GAP, HEAD, FOOT = 14, 6, 30, 10
GOOD, SHORT, LINE, TEXT = "#3b6ea5", "#c05b4d", "#444444", "#222222"
FONT = 'font-family="sans-serif" font-size="11"'


class Bar(NamedTuple):
    """One bar: its length, the tick that it is to reach, and its colour."""

    label: str
    value: float
    asked: float | None = None
    colour: str = GOOD


class Chart(NamedTuple):
    """Bars below each other, with a line across them, such as a peak."""

    title: str
    bars: list[Bar]
    line: float | None = None


def charts(
    rows: Sequence[Row], peaks: dict[str, dict[str, float]]
) -> dict[tuple[str, int], list[Chart]]:
    """The charts of each group and count of threads: ratios, and shares of this CPU's peaks."""
    found: dict[tuple[str, int], list[Chart]] = {}
    rows = [*rows, *summary_rows(rows)]
    for group, n in dict.fromkeys((r["group"], r["threads"]) for r in rows if r["kind"] == "case"):
        members = [r for r in rows if (r["group"], r["threads"]) == (group, n)]
        made = found.setdefault((group, n), [])
        ratios = [
            Bar(r["name"], r["ratio"], r["asked"], SHORT if falls_short(r) else GOOD)
            for r in members
            if r.get("ratio") is not None
        ]
        if ratios:
            made.append(Chart(f"{group}, {threads_text(n)}: speed over PyTorch's", ratios, 1.0))
        for amount, unit, most in (("flops", "GFLOP/s", "gflops"), ("bytes", "GB/s", "gbps")):
            rates = [
                Bar(r["name"], r[amount] / r["ms"] / 1e6)
                for r in members
                if r["kind"] == "case" and r[amount] and (amount == "flops" or not r["flops"])
            ]
            if rates:
                peak = peaks.get(str(n), {}).get(most)
                word = "multiply-add peak" if amount == "flops" else "triad"
                title = f"{group}, {threads_text(n)}: {unit}; the line is this CPU's {word}"
                made.append(Chart(title, rates, peak))
    return found


def overview(rows: Sequence[Row]) -> list[Chart]:
    """A bar for each bound on a group or a network, a chart for each count of threads."""
    found = []
    everything = [*rows, *summary_rows(rows)]
    for n in dict.fromkeys(r["threads"] for r in everything if r.get("ratio") is not None):
        bars = [
            Bar(f"{r['group']}, {r['name']}", r["ratio"], r["asked"],
                SHORT if falls_short(r) else GOOD)
            for r in everything
            if r["threads"] == n and r.get("ratio") is not None and r.get("asked") is not None
            and (r["kind"] == "summary" or r["group"] not in (*cases.SUMMARIES, "scaling"))
        ]  # fmt: skip
        if bars:
            title = f"Speed over PyTorch's, {threads_text(n)}; ticks: what is asked"
            found.append(Chart(title, bars, 1.0))
    return found


def draw(found: Sequence[Chart]) -> str:
    """Charts below each other, as one SVG element."""
    parts, top = [], 0
    for chart in found:
        parts.append(f'<g transform="translate(0 {top})">{_chart(chart)}</g>')
        top += _height(chart)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" '
        f'viewBox="0 0 {WIDTH} {top}" role="img">'
        f'<rect width="{WIDTH}" height="{top}" fill="white"/>{"".join(parts)}</svg>'
    )


def _height(chart: Chart) -> int:
    return HEAD + len(chart.bars) * (BAR + GAP) + FOOT


def _chart(chart: Chart) -> str:
    most = max([*(max(b.value, b.asked or 0.0) for b in chart.bars), chart.line or 0.0, 1e-9])
    scale = (WIDTH - LABEL - RIGHT) / most
    parts = [_text(4, 18, chart.title, "start", ' font-weight="bold"')]
    for i, bar in enumerate(chart.bars):
        y = HEAD + i * (BAR + GAP)
        length = bar.value * scale
        parts.append(_text(LABEL - 6, y + BAR - 3, bar.label, "end"))
        parts.append(
            f'<rect x="{LABEL}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{bar.colour}"/>'
        )
        shown = f"{bar.value:.2f}" if bar.value < 10 else f"{bar.value:.0f}"
        parts.append(_text(WIDTH - 8, y + BAR - 3, shown, "end"))
        if bar.asked is not None:
            x = LABEL + bar.asked * scale
            parts.append(_line(x, y - 2, y + BAR + 2, 3))
    if chart.line is not None:
        parts.append(_line(LABEL + chart.line * scale, HEAD - 4, _height(chart) - FOOT, 1))
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" fill="{TEXT}" {FONT}{more}>'
        f"{escape(text)}</text>"
    )


def _line(x: float, top: float, bottom: float, width: int) -> str:
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}" stroke="{LINE}" '
        f'stroke-width="{width}"/>'
    )
