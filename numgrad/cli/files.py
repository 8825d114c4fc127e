"""``numgrad inspect`` and ``numgrad convert``: what checkpoint files hold, and other formats."""

import math
import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from .output import (
    UsageError,
    check_writable,
    cut,
    pairs,
    printable,
    reason,
    size,
    table,
    tell,
    to_json,
    width,
)

if TYPE_CHECKING:
    from ..checkpoint.listing import Listing, Row

NAME_CELLS = 60
"""A longer name gets a line of its own in the table."""
TEXT_CELLS = 72
OTHER_ROWS = 20
"""Rows for what is no tensor."""
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Last parts of names that are batch-norm's, and no parameters."""
LAYOUTS = {".safetensors": "safetensors", ".npz": "npz"}
PLAIN = {"Counter": "dict", "Size": "tuple"}
"""What safetensors files have instead of these."""


def add(commands: Any) -> None:
    """Describe the commands' arguments."""
    parser = commands.add_parser(
        "inspect",
        help="what checkpoint files hold",
        description=(
            "Show what is in checkpoint files (torch.save's zip, stream and tar, safetensors, "
            "npz): format, tensors, shapes, dtypes, bytes. Everything is checked, checksums "
            "included, and no code is run. A file that cannot be loaded is named on stderr with "
            "the reason, and the exit status is 2."
        ),
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a checkpoint file")
    parser.add_argument("--json", action="store_true", help="print JSON with exact numbers alone")
    parser.set_defaults(run=inspect, many="files")

    parser = commands.add_parser(
        "convert",
        help="write a checkpoint file in another format",
        description=(
            "Write what the checkpoint file A holds into B: as safetensors or npz if B's name ends "
            "in .safetensors or .npz, else in the zip format of torch.save. B is written whole or "
            "not at all."
        ),
    )
    parser.add_argument("source", metavar="A", help="the file to read, of any format that load has")
    parser.add_argument("target", metavar="B", help="the file to write")
    parser.add_argument("--force", action="store_true", help="replace B if it is there already")
    parser.set_defaults(run=convert)


# ----------------------------------------------------------------------------------------- inspect


def inspect(options: Any) -> int:
    """Show each file, or on stderr why it was refused; 2 if one was."""
    from ..checkpoint import CheckpointError
    from ..checkpoint.listing import listing

    found: list[dict[str, Any]] = []
    refused = shown = 0
    for name in options.files:
        try:
            listed = listing(name)
        except (CheckpointError, OSError) as error:
            refused += 1
            found.append(_refusal(name, error))
            tell(reason(error))
            continue
        if options.json:
            found.append(_content(listed))
        else:
            if shown:
                print()
            shown += 1
            show(listed)
    if options.json:
        print(to_json({"files": found}))
    return 2 if refused else 0


def _refusal(name: str, error: Exception) -> dict[str, Any]:
    where, why = getattr(error, "where", None), getattr(error, "reason", str(error))
    return {"file": name, "refused": {"where": where, "reason": why}}


def show(listed: "Listing") -> None:
    """Print a file's format, what it holds beside tensors, and a table of the tensors."""
    rows = listed.rows
    marks = Counter(row.storage for row in rows if row.storage is not None)
    heads = [("format", listed.format), ("size", f"{listed.nbytes:,} bytes{_about(listed.nbytes)}")]
    total = sum(row.numel for row in rows)
    nbytes = _tensor_bytes(listed)
    heads.append(
        ("tensors", f"{len(rows):,}, {total:,} elements in {nbytes:,} bytes{_about(nbytes)}")
    )
    parameters = _parameters(rows)
    if parameters != total:
        heads.append(("parameters", f"{parameters:,}, without batch-norm's statistics"))
    heads += [("note", printable(note)) for note in listed.notes]
    others = list(islice(_brief(listed), OTHER_ROWS))
    heads += [("besides", text) for text in others]
    more = _lines(listed) - len(others)
    if more > 0:
        heads.append(
            ("", f"and {more:,} more; --json has {'many' if _left_out(listed) else 'all'}")
        )
    pairs(heads, title=printable(listed.path))
    if not rows:
        return
    remarks = [_remark(row, listed, marks) for row in rows]
    cells: list[tuple[str, ...]] = []
    for row, remark in zip(rows, remarks):
        name = printable(row.name) or "(the object itself)"
        if width(name) > NAME_CELLS:
            cells.append((name,))
            name = ""
        cells.append((name, _shape(row.shape), _dtypes(row), f"{row.nbytes:,}", remark))
    columns: tuple[str, ...] = ("tensor", "shape", "dtype", "bytes", "")
    if not any(remarks):
        cells, columns = [line[:4] for line in cells], columns[:4]
    print()
    table(columns, cells, left=(4,))


def _about(nbytes: int) -> str:
    return f" ({size(nbytes)})" if nbytes >= 1024 else ""


def _tensor_bytes(listed: "Listing") -> int:
    inline = sum(row.nbytes for row in listed.rows if row.storage is None)
    return inline + sum(stored.nbytes for stored in listed.storages)


def _parameters(rows: "list[Row]") -> int:
    return sum(row.numel for row in rows if row.name.rpartition(".")[2] not in STATISTICS)


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) if shape else "scalar"


def _dtypes(row: "Row") -> str:
    if row.dtype == row.dtype_in_file:
        return row.dtype
    return f"{row.dtype_in_file} → {row.dtype}"


def _remark(row: "Row", listed: "Listing", marks: "Counter[Any]") -> str:
    parts = []
    if row.kind == "array":
        parts.append("NumPy array")
    if row.kind == "parameter":
        parts.append("Parameter" if row.requires_grad else "frozen Parameter")
    elif row.requires_grad:
        parts.append("requires grad")
    if not row.contiguous:
        parts.append(f"strides {_tuple(row.strides)}")
    if row.shares is not None:
        parts.append(f"shares memory with {printable(row.shares)}")
    elif row.storage is not None and marks[row.storage] == 1:
        stored = listed.storages[row.storage]
        if stored.numel > row.numel:
            parts.append(f"of a storage of {stored.nbytes:,} bytes")
    return ", ".join(parts)


def _tuple(values: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, values)) + ("," if len(values) == 1 else "") + ")"


# ----------------------------------------------------------------- what there is beside tensors


def _brief(listed: "Listing") -> Iterator[str]:
    """Lines on what is no tensor: values near the top as they are, the rest counted."""
    for path, value in listed.others:
        if not _is_counted(path[:-1][:2], listed):
            name = ".".join(map(str, path))
            value = f"{value!r:.200}"
            yield cut(printable(f"{name[:200]} = {value}" if path else value), TEXT_CELLS)
    for inside, count in listed.counts.items():
        if _is_counted(inside, listed):
            name = ".".join(map(str, inside))[:200]
            what = f"{count:,} values that are no tensors"
            what = what if count > 1 else "a value that is no tensor"
            yield cut(f"{printable(name)}: {what}", TEXT_CELLS)


def _is_counted(inside: tuple[Any, ...], listed: "Listing") -> bool:
    """Whether the values of a list or dict have one line together."""
    return len(inside) == 2 or (len(inside) == 1 and listed.counts[inside] > OTHER_ROWS)


def _lines(listed: "Listing") -> int:
    """How many lines `_brief` would give of all there is."""
    counts = listed.counts.items()
    return sum(1 if _is_counted(inside, listed) else count for inside, count in counts)


def _left_out(listed: "Listing") -> int:
    """How many values that are no tensors are not in the listing."""
    return sum(listed.counts.values()) - len(listed.others)


# -------------------------------------------------------------------------------------------- JSON


def _content(listed: "Listing") -> dict[str, Any]:
    from ..checkpoint.contents import NAMES

    return {
        "file": listed.path,
        "bytes": listed.nbytes,
        "format": listed.format,
        "notes": listed.notes,
        "elements": sum(row.numel for row in listed.rows),
        "parameters": _parameters(listed.rows),
        "tensor_bytes": _tensor_bytes(listed),
        "tensors": [
            {
                "name": row.name,
                "path": [_value(key) for key in row.path],
                "kind": row.kind,
                "shape": list(row.shape),
                "dtype": row.dtype,
                "dtype_in_file": row.dtype_in_file,
                "bytes": row.nbytes,
                "strides": list(row.strides),
                "offset": row.offset,
                "contiguous": row.contiguous,
                "requires_grad": row.requires_grad,
                "storage": row.storage,
                "shares_with": row.shares,
            }
            for row in listed.rows
        ],
        "storages": [
            {"dtype": NAMES[stored.code], "elements": stored.numel, "bytes": stored.nbytes}
            for stored in listed.storages
        ],
        "others": [
            {"path": [_value(key) for key in path], "value": _value(value)}
            for path, value in listed.others
        ],
        "others_left_out": _left_out(listed),
    }


def _value(value: Any) -> Any:
    """A value as JSON has it; what JSON has not as Python writes it."""
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if type(value) in (dict, list) and not value:
        return value
    return repr(value)


# ----------------------------------------------------------------------------------------- convert


def convert(options: Any) -> int:
    """Write B from A, and say what is different in it."""
    from ..checkpoint import save
    from ..checkpoint.listing import list_contents
    from ..checkpoint.loading import materialise, read
    from ..checkpoint.source import opened

    source, target = options.source, options.target
    if target.endswith(os.sep):
        raise UsageError(f"convert: expected a file for B, got the folder {target}; add a name")
    check_writable(target, "convert: B")
    if os.path.exists(target):
        if os.path.exists(source) and os.path.samefile(source, target):
            raise UsageError(f"convert: A and B are the same file, {target}; choose another B")
        if not options.force:
            raise UsageError(f"convert: {target} is there already; --force replaces it")
    with opened(source) as file:
        contents = read(file)
        listed = list_contents(file, contents)
        obj, notes = materialise(file, contents)
    try:
        save(obj, target)
    except (OSError, TypeError, ValueError) as error:
        text = str(getattr(error, "strerror", None) or error).removeprefix("save: ")
        raise UsageError(f"convert: {target} was not written: {text}") from None
    layout = LAYOUTS.get(os.path.splitext(target)[1].lower(), "zip")
    if layout != "zip":
        notes += _lost(listed)
    print(
        f"{printable(source)}: {listed.format}, {listed.nbytes:,} bytes, "
        f"{len(listed.rows):,} tensors"
    )
    print(f"{printable(target)}: {layout}, {os.path.getsize(target):,} bytes")
    for note in notes:
        print(f"note: {printable(note)}")
    return 0


def _lost(listed: "Listing") -> list[str]:
    """What safetensors and npz have no place for, of what is in a file."""
    rows = listed.rows
    shared = sum(row.shares is not None for row in rows)
    views = sum(row.kind != "array" and not row.contiguous for row in rows)
    marked = sum(row.kind == "parameter" or row.requires_grad for row in rows)
    notes = []
    if shared:
        notes.append(f"{_count(shared)} shared memory with another and became a copy")
    if views:
        notes.append(f"{_count(views)} had other strides and became contiguous")
    if marked:
        notes.append(f"{_count(marked)} required a gradient or was a Parameter, and is plain now")
    for kind, count in listed.containers.items():
        if kind.__name__ in PLAIN:
            notes.append(f"{count} {kind.__name__} became {PLAIN[kind.__name__]}")
    return notes


def _count(number: int) -> str:
    return f"{number} tensor{'s' * (number > 1)}"
