"""Rows as a page of HTML, and as a part of a Markdown file with its plots beside it."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from ..output import UsageError
from .plots import charts, draw, overview
from .report import LEGEND, Table, peaks_text

BEGIN = "<!-- numgrad bench speed: from here on made by the command -->"
END = "<!-- numgrad bench speed: to here -->"
STYLE = """
body { font: 15px/1.4 sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 0.5rem 0 1rem; font-variant-numeric: tabular-nums }
th, td { padding: 0.1rem 0.7rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child, .text { text-align: left }
h2 { font-size: 1.05rem; margin-top: 2rem }
svg { max-width: 100%; height: auto }
""".strip()


def facts(content: dict[str, Any]) -> list[tuple[str, str]]:
    """The machine, the command, and what else a measurement depends on."""
    machine = content["machine"]
    libraries = {name: machine[name] for name in ("python", "numgrad", "numba", "numpy")}
    libraries |= content["compared"]
    found = [
        ("machine", f"{machine['cpu']}, {machine['cpus']} CPUs, {machine['system']}"),
        ("peaks", peaks_text(content["peaks"])),
        ("versions", ", ".join(f"{name} {version}" for name, version in libraries.items())),
        ("command", content["command"]),
        ("took", f"{content['seconds']:.0f} s"),
    ]
    if content["busy"]:
        found.append(("warning", content["busy"]))
    return found


def write_html(path: str, content: dict[str, Any], found: Sequence[Table]) -> None:
    """Write one page that needs no network, no script and no other file."""
    drawn = charts(content["rows"], content["peaks"])
    parts = [f"<dl>{''.join(f'<dt>{a}</dt><dd>{escape(b)}</dd>' for a, b in facts(content))}</dl>"]
    parts += [f"<p>{escape(line)}</p>" for line in LEGEND]
    first = overview(content["rows"])
    if first:
        parts.append(draw(first))
    for one in found:
        parts.append(f"<h2>{escape(one.title)}</h2>{_html_table(one)}")
        if drawn.get(one.key):
            parts.append(draw(drawn[one.key]))
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f"<title>numgrad bench speed</title><style>{STYLE}</style></head>\n"
        f"<body><h1>numgrad bench speed</h1>\n{chr(10).join(parts)}\n</body></html>\n"
    )
    Path(path).write_text(page, encoding="utf-8")


def _heads(one: Table) -> list[str]:
    return [" ".join(head.split()) for head in one.heads]


def _html_table(one: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        made = [
            f"<{tag}{' class=' + chr(34) + 'text' + chr(34) if j in one.left else ''}>"
            f"{escape(cell)}</{tag}>"
            for j, cell in enumerate(cells)
        ]
        return f"<tr>{''.join(made)}</tr>"

    return f"<table>{row(_heads(one), 'th')}{''.join(row(r, 'td') for r in one.rows)}</table>"


# --------------------------------------------------------------------------------------- Markdown


def plots_of(path: str) -> Path:
    """Where the plots of a Markdown file go: beside it."""
    return Path(path).with_suffix(".svg")


def check_markdown(path: str) -> None:
    """Refuse a file that has no place for the tables, or whose plots would replace another's.

    Raises:
        UsageError: an existing file without the two markers; an existing file of the name of the
            plots, which the Markdown file does not show.
    """
    file, plots = Path(path), plots_of(path)
    if file.exists():
        _around(path)
    shown = file.exists() and _shows(plots) in file.read_text(encoding="utf-8")
    if plots.exists() and not shown:
        raise UsageError(
            f"--markdown: expected no {plots} but what {path} shows, for the plots go there; move "
            "it, or choose another name"
        )


def _shows(plots: Path) -> str:
    return f"![Ratios and GFLOP/s as bars]({plots.name})"


def _around(path: str) -> tuple[str, str]:
    """What stands before and after the tables, markers included."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        text = ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(
            f"--markdown: expected a file with the lines {BEGIN!r} and {END!r}, got {path}; "
            "add them, or name a new file"
        )
    return before + BEGIN, END + after


def write_markdown(path: str, content: dict[str, Any], found: Sequence[Table]) -> None:
    """Put tables between the markers of a Markdown file, made if need be, and plots beside it."""
    file = Path(path)
    before, after = _around(path) if file.exists() else (BEGIN, END + "\n")
    parts = ["| | |\n|---|---|\n" + "\n".join(f"| {a} | {_cell(b)} |" for a, b in facts(content))]
    drawn = overview(content["rows"])
    made = charts(content["rows"], content["peaks"])
    drawn += [c for (group, _), some in made.items() if group == "matmul" for c in some[-1:]]
    if drawn:
        plots = plots_of(path)
        plots.write_text(draw(drawn) + "\n", encoding="utf-8")
        parts.append(_shows(plots))
    parts.append("  \n".join(LEGEND))
    parts += [f"**{one.title.rstrip(':')}**\n\n{_markdown_table(one)}" for one in found]
    file.write_text(before + "\n\n" + "\n\n".join(parts) + "\n\n" + after, encoding="utf-8")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("~", "\\~")


def _markdown_table(one: Table) -> str:
    heads = _heads(one)
    rules = ["---" if j == 0 or j in one.left else "---:" for j in range(len(heads))]
    rows = [heads, rules, *([_cell(cell) for cell in row] for row in one.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
