"""What the commands' arguments may be: functions for ``type=`` of argparse."""

import argparse
import math


def positive(text: str) -> int:
    """An integer above 0."""
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return int(text)


def rate(text: str) -> float:
    """A number above 0, such as a learning rate."""
    found = _number(text)
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return found


def share(text: str) -> float:
    """A number between 0 and 1, neither included."""
    found = _number(text)
    if not 0 < found < 1:
        raise argparse.ArgumentTypeError(f"expected a number between 0 and 1, got {text!r}")
    return found


def seed(text: str) -> int:
    """An integer of 32 bits."""
    if not (text.isascii() and text.isdecimal()) or int(text) >= 1 << 32:
        raise argparse.ArgumentTypeError(f"expected an integer from 0 to 2**32 - 1, got {text!r}")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
