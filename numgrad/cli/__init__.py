"""The command line: ``numgrad classify``, ``inspect``, ``convert``, ``demo``, ``bench``, ``env``.

Each command is a module with ``add(commands)``, which describes its arguments, and a function that
gets them parsed and returns the exit code. Nothing heavy is imported before a command runs.
"""

import argparse
import contextlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from ..checkpoint import CheckpointError
from ..version import __version__
from . import bench as bench
from . import classify as classify
from . import demo as demo
from . import env as env
from . import files as files
from . import memory as memory
from .output import UsageError, command, prepare_streams, reason, tell

__all__ = ["main", "parser"]


class Parser(argparse.ArgumentParser):
    """Errors are raised, for `main` to print as one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")

    def print_help(self, file: Any = None) -> None:
        """As argparse does, which says nothing if that fails."""
        print(self.format_help(), end="", file=file)


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
    bench.add(commands)
    files.add(commands)
    env.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code.

    0 if all went well; 2, with one line on stderr, for arguments or files that cannot be used; 1 if
    a check that the command makes fails; 130 after Ctrl-C.
    """
    prepare_streams()
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of our output (`| head`) has gone
        _give_up_stdout()
        return 1
    except (UsageError, CheckpointError, OSError) as error:
        tell(reason(error))
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            return 2
        _give_up_stdout()
        return 2
    except MemoryError:
        tell("not enough memory; take a smaller --batch or --size, or a smaller network")
        return 2
    except KeyboardInterrupt:
        tell("interrupted")
        return 130


def _run(words: list[str]) -> int:
    top = parser()
    try:
        options, more = top.parse_known_args(words)
        _take(top, options, more)
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    options.typed = command(words)
    _check_environment()
    with warnings.catch_warnings():
        # Without the line of numgrad that it came from.
        warnings.showwarning = lambda message, *where: tell(f"note: {message}")
        return int(options.run(options))


def _take(top: Parser, options: Any, more: list[str]) -> None:
    """Names of files that stand behind an option, where argparse no longer expects them."""
    if hasattr(options, "many") and not any(word.startswith("-") for word in more):
        getattr(options, options.many).extend(more)
    elif more:
        top.error(f"unrecognized arguments: {' '.join(more)}")


def _give_up_stdout() -> None:
    """Let what is still buffered go nowhere, or Python would complain at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _check_environment() -> None:
    """Say at once that ``NUMGRAD_NUM_THREADS`` makes no sense."""
    from ..kernels.launch import get_num_threads

    try:
        get_num_threads()
    except ValueError as error:
        raise UsageError(str(error)) from None
