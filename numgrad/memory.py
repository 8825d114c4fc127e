"""The public face of the ledger: what memory numgrad holds and what a region needed."""

import gc
from typing import Any

from .graph import node, storage
from .graph.storage import CATEGORIES
from .kernels import counters
from .ops.creation import check_device

__all__ = ["empty_cache", "graphs", "reset_peak", "stats", "track"]


def stats(device: Any = "cpu") -> dict[str, Any]:
    """Bytes of a device's memory, of all threads together.

    Returns:
        ``live_bytes`` (tensors alive), ``reserved_bytes`` (of the pool, from the system),
        ``peak_bytes`` and ``peak_by_category`` (at the instant of the peak) with ``peak_op``,
        ``peak_reserved_bytes``, and ``by_category``: ``{name: {"live_bytes", "count"}}``.

    Of a GPU the reserved bytes are the live ones: blocks are not kept for later.

    Raises:
        RuntimeError: a GPU that is not there; says what is missing.
    """
    where = check_device("memory.stats", device)
    if where.type != "cpu":
        found = storage.ledger(where)
        return {
            "live_bytes": found.total,
            "reserved_bytes": found.total,
            "peak_bytes": found.peak,
            "peak_op": found.peak_op,
            "peak_by_category": dict(zip(CATEGORIES, found.peak_by_category, strict=True)),
            "peak_reserved_bytes": found.peak,
            "by_category": {
                name: {"live_bytes": found.bytes[i], "count": found.counts[i]}
                for i, name in enumerate(CATEGORIES)
            },
        }
    live, counts = storage.bytes_by_category(), storage.counts_by_category()
    peak = storage.overall_peak()
    return {
        "live_bytes": storage.total_bytes(),
        "reserved_bytes": storage.pool.reserved_bytes,
        "peak_bytes": peak.total,
        "peak_op": peak.op,
        "peak_by_category": dict(zip(CATEGORIES, peak.by_category, strict=True)),
        "peak_reserved_bytes": storage.pool.peak_reserved_bytes,
        "by_category": {
            name: {"live_bytes": live[i], "count": counts[i]} for i, name in enumerate(CATEGORIES)
        },
    }


def graphs() -> int:
    """How many graphs somebody keeps: nodes alive that no other node leads to.

    A number that grows from step to step tells that something holds results with their history, as
    ``total += loss`` does; keep ``float(loss)`` instead. Slow: looks at every object.
    """
    nodes = [obj for obj in gc.get_objects() if type(obj) is node.Node]
    inner = {id(edge[0]) for n in nodes for edge in n.edges if edge is not None}
    return sum(id(n) not in inner for n in nodes)


def reset_peak() -> None:
    """Let the peaks begin again at what is live now."""
    storage.reset_peak()


def empty_cache() -> None:
    """Give memory that no tensor uses back to the system."""
    storage.pool.empty_cache()


class track:
    """``with track() as m:`` what a region needed. Bytes are above the region's start.

    While the region is open the attributes tell the state so far; afterwards they keep the end's.

    All threads count. Regions may be nested and overlap.

    Attributes:
        nodes: op nodes made. launches: kernel launches.
        saved_tensors: values that nodes made in the region hold, parameters and buffers excluded.
        saved_bytes: bytes of the distinct whole storages they hold, also where the user holds them.
        peak_bytes, peak_op, by_category: the highest total, the op that reached it, and the
            categories at that instant (above the start of the region).
        live_bytes: bytes live at the end.
    """

    def __enter__(self) -> "track":
        self._closed: dict[str, Any] | None = None
        self._start_nodes = node.counters.total("nodes")
        self._start_launches = counters.launches.value
        self._recorder = node.open_recorder()
        self._peak = storage.open_peak()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closed = self._now()
        storage.close_peak(self._peak)
        node.close_recorder(self._recorder)

    def _now(self) -> dict[str, Any]:
        saved: dict[int, int] = {}
        count = 0
        for value in self._recorder.saved_values():
            held = value.storage
            if held is None or held.category in (storage.PARAMETER, storage.BUFFER):
                continue
            count += 1
            saved[id(held)] = held.nbytes
        peak = self._peak
        return {
            "nodes": node.counters.total("nodes") - self._start_nodes,
            "launches": counters.launches.value - self._start_launches,
            "saved_tensors": count,
            "saved_bytes": sum(saved.values()),
            "peak_bytes": peak.total - peak.start,
            "peak_op": peak.op,
            "live_bytes": storage.total_bytes() - peak.start,
            "by_category": {
                name: now - before
                for name, now, before in zip(
                    CATEGORIES, peak.by_category, peak.start_by_category, strict=True
                )
            },
        }

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self._values()})

    def __repr__(self) -> str:
        values = self._values()
        found = ", ".join(f"{k}={values[k]}" for k in values if k != "by_category")
        return f"track({found})"

    def _values(self) -> dict[str, Any]:
        return self._closed if self._closed is not None else self._now()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        values = self._values()
        try:
            return values[name]
        except KeyError:
            raise AttributeError(
                f"track: expected one of {', '.join(values)}, got {name!r}; check the spelling"
            ) from None
