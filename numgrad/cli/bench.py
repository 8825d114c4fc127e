"""``numgrad bench``: measurements, each a command of its own."""

from typing import Any

from . import memory as memory
from . import speed as speed


def add(commands: Any) -> None:
    """Describe the commands."""
    bench = commands.add_parser("bench", help="measurements", description="Measurements.")
    kinds = bench.add_subparsers(metavar="KIND", required=True, dest="kind")
    memory.add(kinds)
    speed.add(kinds)
