"""`load`: a checkpoint of any format that numgrad reads, told apart by its first bytes."""

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from ..graph.device import CPU
from ..graph.errors import expected, shown, warn_user
from ..ops.creation import check_device
from ..ops.movement import to_device
from ..tensor import Tensor
from .contents import NAMES, WIDENED, Contents, Spec, place_of
from .elements import Loader
from .errors import CheckpointError
from .mishaps import mishap
from .source import Source, opened
from .walking import rebuild


def read(source: Source) -> Contents:
    """What a file holds; see `contents`. No element of a tensor has been read.

    Raises:
        CheckpointError: the file is of no format that numgrad reads, is not whole and correct, or
            holds more than data.
    """
    reader = _reader(source)
    try:
        return reader(source)
    except MemoryError:
        raise source.error("start of file", "not enough memory to read it") from None


def _reader(source: Source) -> Callable[[Source], Contents]:
    """What reads the file. Only its module is imported."""
    start = source.read(0, min(source.size, 512), "start of file")
    reason = mishap(start, source.size)
    if reason:
        raise source.error("start of file", reason)
    if start.startswith(b"PK\x03\x04"):
        name = start[30 : 30 + int.from_bytes(start[26:28], "little")]
        if name.endswith(b".npy"):
            from .npz import read
        else:
            from .torch_zip import read
        return read
    if start[8:9] == b"{":
        from .safetensors import read

        return read
    if start.startswith(b"\x80"):  # a stream, or some other pickle; it will tell
        from .torch_stream import read

        return read
    if start[257:262] == b"ustar":
        from .torch_tar import read

        return read
    raise source.error(
        "start of file",
        "neither a file of torch.save (zip, stream, tar), nor safetensors, nor .npz",
    )


def load(
    file: "str | os.PathLike[str] | BinaryIO", map_location: Any = None, weights_only: bool = True
) -> Any:
    """Load a checkpoint: files of ``torch.save`` in its three formats, safetensors, ``.npz``, and
    what `save` wrote. The format is told by the bytes of the file, whatever its name is.

    Args:
        file: a path, or a file open for reading bytes; read from its position to its end. Pipes,
            and files of `gzip`, `bz2`, `lzma` and `zipfile`, are read into memory first.
        map_location: where the tensors shall be: None for the CPU, whatever device the file names;
            a device; or, as in PyTorch, a function ``(storage, "cpu") -> storage`` or a dict that
            has an entry for "cpu".
        weights_only: there for PyTorch's signature. Only data are ever read.

    Returns:
        The saved object: dicts, lists, tuples, numbers, texts, tensors. Tensors that shared memory
        share it again, views keep their strides, Parameters are Parameters. Of a safetensors file
        that numgrad did not write: an OrderedDict of its tensors in the order of the header.

        Tensors of dtypes that numgrad has not come in one that holds all their values, with a
        warning: float16 and bfloat16 as float32, int8, int16 and uint16 as int32, uint32 as int64.
        Such a dtype that stands as a value comes as its name in PyTorch: ``"torch.bfloat16"``, and
        a layout as ``"torch.strided"``.

    Raises:
        CheckpointError: the file is not whole and correct, or holds more than data (such as a whole
            module: save its ``state_dict()`` instead). Nothing in a file raises another error,
            runs code, or allocates more than its size justifies. Refused are also sets, and dicts
            of some 20,000 keys and more that are numbers or tuples and do not count up from 0:
            such can be chosen to take hours.
        OSError: the file cannot be opened. RuntimeError: there is no such device. ValueError:
            map_location is no device. TypeError: file is none.
    """
    place = _placement(map_location)
    with _collector_paused(), opened(file) as source:
        obj, notes = materialise(source, read(source), place)
    for note in notes:
        warn_user(f"load: {source.path}: {note}")
    return obj


@contextmanager
def _collector_paused() -> Iterator[None]:
    """No cyclic garbage collection: among many new containers it takes half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def materialise(
    source: Source, contents: Contents, place: Callable[[Any], Any] | None = None
) -> tuple[Any, list[str]]:
    """The object with Tensors in it, and what the user should know of it.

    Raises:
        CheckpointError: the elements of a tensor cannot be read, or are not what the file says.
    """
    loader = Loader(source, place)

    def leaf(item: Any, path: tuple[Any, ...]) -> Any:
        if not isinstance(item, Spec):
            return item
        with named(source, path):
            return loader.make(item)

    obj = rebuild(contents.obj, leaf, lambda path, reason: source.error("object", reason))
    return obj, [*contents.notes, *widened(loader.widened)]


@contextmanager
def named(source: Source, path: tuple[Any, ...]) -> Iterator[None]:
    """Let errors that name a storage name the tensor on it, too."""
    try:
        yield
    except CheckpointError as error:
        if not error.where.startswith("storage"):
            raise
        where = f"{place_of(path)}, {error.where}"
        raise source.error(where, error.reason) from error.__cause__


def widened(counts: "Counter[str]") -> list[str]:
    """A note on the tensors whose dtypes numgrad has not, given how many there are of each code."""
    if not counts:
        return []
    parts = [
        f"{count} tensor{'s' * (count > 1)} of {NAMES[code]} came as {WIDENED[code]}"
        for code, count in sorted(counts.items())
    ]
    one = len(parts) == 1
    return [f"{', '.join(parts)}, which hold{'s' * one} all {'its' if one else 'their'} values"]


def _placement(map_location: Any) -> Callable[[Any], Any] | None:
    """What puts a storage where ``map_location`` says; None to leave it on the CPU."""
    if isinstance(map_location, dict):
        map_location = map_location.get("cpu")
    if callable(map_location):

        def place(storage: Any) -> Any:
            placed = map_location(storage, "cpu")
            if placed is None:
                return storage
            if (
                not isinstance(placed, Tensor)
                or placed.shape != storage.shape
                or placed.dtype != storage.dtype
            ):
                raise TypeError(
                    expected(
                        "load",
                        "the storage itself or a copy on a device",
                        "the result of map_location",
                        shown(placed),
                        "return storage or storage.cuda()",
                    )
                )
            return placed

        return place
    try:
        where = check_device("load", map_location)
    except ValueError:
        what = "None, 'cpu', 'cuda[:N]', a function or a dict"
        way_out = "leave it out: the tensors come to the CPU, wherever they were"
        raise ValueError(
            expected("load", what, "map_location", shown(map_location), way_out)
        ) from None
    return None if where is CPU else lambda storage: to_device(storage, where)
