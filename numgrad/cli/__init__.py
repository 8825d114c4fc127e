"""The command line: ``numgrad classify``, ``inspect``, ``convert``, ``demo``, ``bench``, ``env``.

Each command is a module with ``add(commands)``, which describes its arguments, and a function that
gets them parsed and returns the exit code. Nothing heavy is imported before a command runs.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ..version import __version__
from . import classify as classify
from . import demo as demo
from . import env as env
from . import files as files
from . import memory as memory
from .output import UsageError, command

__all__ = ["main", "parser"]


class Parser(argparse.ArgumentParser):
    """Errors are raised, for `main` to print as one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def parser() -> Parser:
    """The parser of all commands."""
    top = Parser(
        prog="numgrad",
        description="Automatic differentiation with PyTorch's API on Numba kernels.",
    )
    top.add_argument("--version", action="version", version=f"numgrad {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True, dest="command")
    classify.add(commands)
    demo.add(commands)
    memory.add(commands)
    files.add(commands)
    env.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code.

    0 if all went well; 2, with one line on stderr, for arguments or files that cannot be used; 1 if
    a check that the command makes fails; 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        options: Any = parser().parse_args(words)
        options.typed = command(words)
        _check_environment()
        return int(options.run(options))
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    except BrokenPipeError:  # the reader of our output (`| head`) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except (UsageError, OSError) as error:
        print(f"numgrad: {_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("numgrad: interrupted", file=sys.stderr)
        return 130


def _check_environment() -> None:
    """Say at once that ``NUMGRAD_NUM_THREADS`` makes no sense."""
    from ..kernels.launch import get_num_threads

    try:
        get_num_threads()
    except ValueError as error:
        raise UsageError(str(error)) from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
