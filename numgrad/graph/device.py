"""Devices: where a value's buffer lies."""


class device:
    """``device("cpu")``, ``device("cuda:1")``; equal to the text it is made of."""

    __slots__ = ("index", "type")

    type: str
    index: int | None

    def __init__(self, spec: "str | device") -> None:
        if isinstance(spec, device):
            self.type, self.index = spec.type, spec.index
            return
        kind, _, index = str(spec).partition(":")
        if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
            raise ValueError(
                f"device: expected 'cpu' or 'cuda[:N]' for spec, got {spec!r}; use 'cpu'"
            )
        self.type, self.index = kind, int(index) if index else None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"device({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other) if isinstance(other, (str, device)) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[object, ...]:
        return device, (str(self),)


CPU = device("cpu")

used = False
"""Whether a tensor on another device than the CPU was ever made. Until then nothing looks for one:
what the CPU costs is not changed by there being GPUs."""

_cuda: dict[int, device] = {}


def canonical(spec: "str | device | int | None") -> device:
    """The one object that stands for a device: ``cuda`` is ``cuda:0``, ``cpu:0`` is ``cpu``, a
    number is that of a GPU."""
    if spec is None:
        return CPU
    found = device(f"cuda:{spec}" if isinstance(spec, int) else spec)
    if found.type == "cpu":
        return CPU
    index = found.index or 0
    return _cuda.setdefault(index, device(f"cuda:{index}"))
