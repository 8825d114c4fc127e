"""The table of errors, printed after the run."""

from typing import Any

import pytest
import torch

from tests_compare import checks


def pytest_configure(config: pytest.Config) -> None:
    checks.note_ops()
    torch.set_num_threads(2)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Comparisons by kind: how many, the worst error, and where it was."""
    if not checks.tally:
        return
    write = terminalreporter.write_line
    write("")
    write(f"comparisons with PyTorch {torch.__version__}: error = max|a-b| / max(max|b|, 1e-3)")
    write(f"{'kind':<16}{'what':<17}{'dtype':<9}{'count':>7}  {'worst':>8}  where")
    for (kind, what, dtype), row in sorted(checks.tally.items()):
        write(f"{kind:<16}{what:<17}{dtype:<9}{row.count:>7}  {row.worst:>8.1e}  {row.name}")
    for (what, dtype), limit in checks.LIMITS.items():
        rows = [r for (_, w, d), r in checks.tally.items() if (w, d) == (what, dtype)]
        if rows:
            worst = max(rows, key=lambda r: r.worst)
            total = sum(r.count for r in rows)
            write(
                f"{'all':<16}{what:<17}{dtype:<9}{total:>7}  {worst.worst:>8.1e}"
                f"  {worst.name} (limit {limit:.0e})"
            )
    write(f"{sum(row.count for row in checks.tally.values())} comparisons")
