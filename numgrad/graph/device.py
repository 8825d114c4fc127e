"""Devices: where a value's buffer lies."""


class device:
    """``device("cpu")``, ``device("cuda:1")``, ``device("cuda", 1)``, ``device(1)``; equal to the
    text it is made of.

    Raises:
        ValueError: another text. TypeError: a text with a number, and another number.
    """

    __slots__ = ("index", "type")

    type: str
    index: int | None

    def __init__(self, spec: "str | device | int", index: int | None = None) -> None:
        text = f"cuda:{spec}" if type(spec) is int else str(spec)
        kind, colon, number = text.partition(":")
        if kind not in ("cpu", "cuda") or (colon and not (number.isascii() and number.isdigit())):
            raise ValueError(
                f"device: expected 'cpu' or 'cuda[:N]' for spec, got {spec!r}; use 'cpu'"
            )
        if index is not None and (colon or type(index) is not int or index < 0):
            raise TypeError(
                f"device: expected one non-negative number for index, got {spec!r} and {index!r}; "
                "write 'cuda:N', or 'cuda' and N"
            )
        object.__setattr__(self, "type", kind)
        object.__setattr__(self, "index", int(number) if colon else index)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"device: expected nobody to write to {name}, got {value!r}; devices are shared: make "
            "another"
        )

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
    found = device(spec)
    if found.type == "cpu":
        return CPU
    index = found.index or 0
    return _cuda.setdefault(index, device(f"cuda:{index}"))
