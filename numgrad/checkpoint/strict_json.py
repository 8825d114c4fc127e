"""JSON by the book, and with limits."""

import json
import re
import sys
from typing import Any, NoReturn

from .errors import CheckpointError
from .limits import MAX_DIGITS, MAX_NESTING


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _constant(name: str) -> NoReturn:
    raise ValueError(f"the constant {name}, which is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the name {name!r:.200} twice")
            seen.add(name)
    return result


def _check_nesting(text: str) -> None:
    """Python's parser calls itself for each level, and crashes the process where the limit of such
    calls was raised."""
    depth, in_text = 0, False
    for found in re.finditer(r'\\.|["\[\]{}]', text):
        token = found[0]
        if token == '"':
            in_text = not in_text
        elif not in_text and token in "[{":
            depth += 1
            if depth > MAX_NESTING:
                raise RecursionError
        elif not in_text and token in "]}":
            depth -= 1


def parse_json(text: str, path: str, where: str) -> Any:
    """JSON by the book: no name twice in an object, no NaN, no endless number or nesting."""
    try:
        if sys.getrecursionlimit() > 10 * MAX_NESTING:
            _check_nesting(text)
        return json.loads(
            text, parse_int=_integer, parse_constant=_constant, object_pairs_hook=_object
        )
    except json.JSONDecodeError as error:
        raise CheckpointError(
            path, where, f"not JSON: {error.msg} at character {error.pos}"
        ) from None
    except ValueError as error:
        raise CheckpointError(path, where, f"not acceptable JSON: {error}") from None
    except RecursionError:
        raise CheckpointError(path, where, "not acceptable JSON: nested too deeply") from None
    except MemoryError:
        raise CheckpointError(path, where, "not enough memory to read it") from None
