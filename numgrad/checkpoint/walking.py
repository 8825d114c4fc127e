"""Walking through the object of a file: lists, tuples and dicts, whatever they hold."""

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from ..ops.creation import Size
from .limits import MAX_DEPTH, MAX_ITEMS


def rebuild(obj: Any, leaf: Callable[[Any, tuple[Any, ...]], Any], fail: Any) -> Any:
    """A copy of nested lists, tuples and dicts with ``leaf(item, path)`` in place of other items.

    What stands at several places is one object in the copy, too. Parts of plain data alone are not
    copied: they are the same objects in both.

    Raises:
        ``fail(path, reason)``: it is nested too deeply, contains itself, or has too many items.
    """
    done: dict[int, tuple[Any, int, int]] = {}  # by id: all items live as long as obj
    open_: set[int] = set()

    def walk(item: Any, path: tuple[Any, ...]) -> tuple[Any, int, int]:
        """The copy, how many items it has, and how many levels."""
        kind = type(item)
        known = done.get(id(item))
        if known is not None:
            if len(path) + known[2] > MAX_DEPTH:
                raise fail(path[:3], f"more than {MAX_DEPTH} levels")
            return known
        if kind not in CONTAINERS:
            known = done[id(item)] = leaf(item, path), 1, 0
            return known
        if id(item) in open_:
            raise fail(path, "it contains itself")
        if len(path) >= MAX_DEPTH:
            raise fail(path[:3], f"more than {MAX_DEPTH} levels")
        values = item.values() if isinstance(item, dict) else item
        if PLAIN.issuperset(map(type, values)):  # nothing to put in the place of anything
            known = done[id(item)] = item, len(item) + 1, 1
            return known
        open_.add(id(item))
        count, height, copies = 1, 1, []
        pairs = item.items() if isinstance(item, dict) else enumerate(item)
        for key, value in pairs:
            if type(value) in PLAIN:
                copies.append((key, value))
                count += 1
                continue
            known = done.get(id(value))
            if known is None or len(path) + 1 + known[2] > MAX_DEPTH:
                known = walk(value, (*path, key))
            copy, n, levels = known
            copies.append((key, copy))
            count += n
            height = max(height, levels + 1)
        if count > MAX_ITEMS:
            raise fail(path, f"more than {MAX_ITEMS} items, counting repeated ones")
        open_.discard(id(item))
        made = kind(copies) if kind in (dict, OrderedDict) else _other(kind, copies)
        known = done[id(item)] = made, count, height
        return known

    if type(obj) in PLAIN:
        return obj
    return walk(obj, ())[0]


CONTAINERS = (list, tuple, dict, OrderedDict, Counter, Size)
PLAIN = frozenset((type(None), bool, int, float, str, bytes))


def _other(kind: Any, copies: list[tuple[Any, Any]]) -> Any:
    if kind is Counter:
        return Counter(dict(copies))
    return kind(copy for _, copy in copies)
