"""What the commands print: tables, sizes, progress, JSON files.

`rich` is used on a terminal that is wide enough, where it is installed; everything else is plain
text, so that what is piped into a file is neither wrapped nor coloured.
"""

import json
import os
import platform
import re
import shlex
import shutil
import stat
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

GAP = "  "
SURROGATES = re.compile("[\ud800-\udfff]")


class UsageError(Exception):
    """What the user asked for cannot be done: printed as one line, exit code 2."""


def prepare_streams() -> None:
    """Let stdout and stderr take whatever is printed: nothing is lost to an encoding but characters
    that it has not, and a closed stream swallows all."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # print would write what is meant for stderr to stdout
            setattr(sys, name, _nowhere())
        elif name == "stdout" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def tell(text: str) -> None:
    """Print a line on stderr; a stderr that takes none does not change the exit status."""
    try:
        print(f"numgrad: {printable(text)}", file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = _nowhere()


def _nowhere() -> Any:
    return open(os.devnull, "w", encoding="utf-8")


def printable(text: str) -> str:
    """The text with escapes for what would not stand in a line of a terminal as it is."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def cut(text: str, cells: int) -> str:
    """The text, or as much of its beginning as leaves room for "…"."""
    if width(text) <= cells:
        return text
    while width(text) > cells - 1:
        text = text[:-1]
    return text + "…"


def reason(error: Exception) -> str:
    """An error as one sentence: of the system's errors the file's name and the system's words."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def size(nbytes: int | None) -> str:
    """Bytes for people, in three figures or so; "-" for None."""
    if nbytes is None:
        return "-"
    number, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(number) < 1024 or unit == "TiB":
            break
        number /= 1024
    digits = 0 if number == int(number) or abs(number) >= 100 else 1
    return f"{number:.{digits}f} {unit}"


def _rich() -> bool:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return False
    try:
        import rich  # noqa: F401
    except ImportError:
        return False
    return True


def width(text: str) -> int:
    """The cells that a text takes in a terminal: Chinese characters two, accents on others none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str = "",
    left: Sequence[int] = (),
) -> None:
    """Print a table: heads of one line or several, the first column text, the others numbers.

    ``left``: other columns of text. A row of one cell is a line of its own, as long as it likes.
    """
    split = [head.split("\n") for head in heads]
    height = max(len(lines) for lines in split)
    grid = [
        [lines[i - height] if i - height >= -len(lines) else "" for lines in split]
        for i in range(height)
    ]
    whole = [*grid, *(row for row in rows if len(row) > 1)]
    widths = [max(width(row[j]) for row in whole) for j in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        if len(cells) == 1 < len(heads):
            return cells[0]
        aligned = []
        for j, cell in enumerate(cells):
            gap = " " * (widths[j] - width(cell))
            aligned.append(cell + gap if j == 0 or j in left else gap + cell)
        return GAP.join(aligned).rstrip()

    total = sum(widths) + len(GAP) * (len(widths) - 1)
    if _rich() and total <= shutil.get_terminal_size().columns:
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False)
        if title:
            console.print(Text(title, style="bold"))
        for head in grid:
            console.print(Text(line(head), style="cyan"))
        console.print(Text("─" * total, style="dim"))
        for row in rows:
            console.print(Text(line(row)))
        return
    if title:
        print(title)
    for printed in [*grid, ["-" * cells for cells in widths], *rows]:
        print(line(printed))


def pairs(items: Iterable[tuple[str, str]], title: str = "") -> None:
    """Print names and values in two aligned columns."""
    items = list(items)
    widest = max(width(name) for name, _ in items)
    if title:
        print(title)
    for name, value in items:
        print(f"{name}{' ' * (widest - width(name))}{GAP}{value}".rstrip())


def progress(what: str, steps: int) -> Iterator[Any]:
    """Yield ``(i, say)`` for each of ``steps``; ``say(text)`` tells how far things are.

    On a terminal with rich: one bar. Elsewhere about ten lines in all.
    """
    if _rich():
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} {task.fields[text]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns) as bar:
            task = bar.add_task(what, total=steps, text="")
            for i in range(steps):
                yield i, lambda text: bar.update(task, text=text)
                bar.advance(task)
        return
    every = max(1, -(-steps // 10))
    for i in range(steps):

        def say(text: str, i: int = i) -> None:
            if (i + 1) % every == 0 or i + 1 == steps:
                print(f"{what} {i + 1}/{steps}  {text}", flush=True)

        yield i, say


def machine() -> dict[str, Any]:
    """The machine and the versions that a measurement depends on."""
    import llvmlite
    import numba
    import numpy

    from ..kernels.launch import get_num_threads
    from ..version import __version__

    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "threads": get_num_threads(),
        "python": platform.python_version(),
        "numgrad": __version__,
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
        "numpy": numpy.__version__,
    }


def cpu_name() -> str:
    """The CPU's name as the system gives it, else the architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "Processor", "cpu model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def command(argv: Sequence[str]) -> str:
    """The command as somebody would type it."""
    return "numgrad " + " ".join(shlex.quote(word) for word in argv)


def check_writable(path: str | None, option: str) -> None:
    """Refuse a file that cannot be written before minutes of work go into its content."""
    if path is None:
        return
    target = Path(path)
    if target.is_dir():
        raise UsageError(f"{option}: expected a file, got the folder {path}; add a file name")
    folder = target.parent
    if not folder.is_dir():
        raise UsageError(
            f"{option}: expected a file in an existing folder, got {path}; make {folder}"
        )
    if not os.access(target if target.exists() else folder, os.W_OK):
        raise UsageError(f"{option}: expected a file you may write, got {path}; choose another")


def check_savable(path: str | None, option: str) -> None:
    """`check_writable` for a checkpoint, which replaces a file whole, by one beside it."""
    check_writable(path, option)
    if path is None:
        return
    target = Path(os.path.realpath(path))
    if target.suffix.lower() == ".npz":
        raise UsageError(f"{option}: expected .pth or .safetensors, got {path}; .npz has no names")
    if target.exists() and not target.is_file():
        raise UsageError(f"{option}: expected a file, got the pipe or device {path}; name a file")
    if not os.access(target.parent, os.W_OK):
        raise UsageError(f"{option}: expected a folder you may write, got {path}; choose another")


def check_distinct(paths: dict[str, str | None]) -> None:
    """Refuse two options that name one file."""
    seen: dict[str, str] = {}
    for option, path in paths.items():
        if path is not None:
            other = seen.setdefault(os.path.realpath(path), option)
            if other != option:
                raise UsageError(f"{option}: expected another file than {other}, got {path}")


def check_readable(path: str | None, option: str) -> None:
    """Refuse what is no file before minutes of work are done without it."""
    if path is None:
        return
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise UsageError(
            f"{option}: expected a file, got {path}: {error.strerror}; check the path"
        ) from None
    if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
        what = "folder" if stat.S_ISDIR(mode) else "device"
        raise UsageError(f"{option}: expected a file, got the {what} {path}; name a file")


def to_json(content: Any) -> str:
    """JSON that every reader takes: U+FFFD stands for what is no text in the names of files."""
    text = json.dumps(content, ensure_ascii=False)
    return json.dumps(json.loads(SURROGATES.sub("\ufffd", text)), indent=2)


def write_json(path: str, content: Any) -> None:
    """Write a JSON file."""
    Path(path).write_text(to_json(content) + "\n", encoding="utf-8")
