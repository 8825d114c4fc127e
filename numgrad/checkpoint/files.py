"""Saving checkpoints: as ``torch.save`` does, as safetensors, or for ``numpy.load``."""

import os
from collections.abc import Callable
from typing import Any, BinaryIO, cast

from ..tensor import Tensor
from .atomic import replacing, write_all


def save(obj: Any, file: "str | os.PathLike[str] | BinaryIO") -> None:
    """Save tensors, and the dicts and lists they are in.

    Args:
        obj: a state dict of a module or an optimizer, or any nesting of dict, list and tuple with
            tensors, NumPy arrays, numbers, strings, bytes, bools, None, sizes, dtypes and devices.
        file: a path, or a file open for writing bytes. A name that ends in ``.safetensors`` or
            ``.npz`` gets that layout, any other that of ``torch.save``.

    Raises:
        TypeError: obj holds something else; the text names the place. Nothing was written.
        ValueError: there is too much beside tensors to be read again. Nothing was written.
        OSError: the folder is missing, the disk is full …; an older file at the path is whole.

    **The layout of torch.save** (a zip archive) is read by ``torch.load(path)`` with its default
    ``weights_only=True``. Tensors that share memory share it when loaded; of a view the whole
    storage is saved; ``requires_grad`` is kept and a `Parameter` stays one. Gradients, graphs and
    hooks are left out, numbers of NumPy become Python's, and tensors on a GPU are copied to the
    CPU. What PyTorch cannot have (negative strides) is written contiguous. Equal objects give
    equal bytes. NumPy arrays are written as ``torch.save`` writes them, which `load` reads;
    ``torch.load`` needs ``weights_only=False`` for them.

    **safetensors**: any reader of safetensors can read the tensors, those of a flat state dict by
    the same names, others by their path (``optimizer.state.0.exp_avg``). What else there is (no
    bytes, dtypes or devices) stands as JSON in the metadata under ``numgrad_structure``;
    ``numgrad_format`` is the version of this layout. Values are saved, relations are not:
    ``requires_grad`` is left out, a `Parameter` comes back as a `Tensor`, tensors that share
    memory are saved one by one, and a view as a contiguous tensor of its own.

    **npz**: a dict of tensors and arrays only, for ``numpy.load``; they come back as tensors.

    A file at a path is replaced whole: whatever happens, it holds the old bytes or the new ones.
    """
    given = cast(BinaryIO, file) if hasattr(file, "write") else None
    name = getattr(file, "name", "") if given is not None else os.fspath(cast(Any, file))
    if isinstance(name, bytes):
        name = os.fsdecode(name)
    suffix = os.path.splitext(name)[1].lower() if isinstance(name, str) else ""
    if suffix == ".safetensors":
        write = _safetensors(obj)
    elif suffix == ".npz":
        from .npz import prepared  # not needed to import numgrad

        write = prepared(obj)
    else:
        from .torch_zip_writer import Prepared  # not needed to import numgrad

        write = Prepared(obj).write
    if given is not None:
        write(given)
    else:
        with replacing(cast(Any, file)) as out:
            write(out)


def _safetensors(obj: Any) -> Callable[[BinaryIO], None]:
    """What writes an object that was found fit for safetensors."""
    from .safetensors import STRUCTURE_KEY, VERSION, VERSION_KEY, data_bytes, make_header
    from .structure import Flattener

    flattener = Flattener()
    structure = flattener.flatten(obj)
    metadata = {"format": "numgrad", VERSION_KEY: str(VERSION), STRUCTURE_KEY: structure}
    # Longest items first, so that each tensor lies at a multiple of its item's size.
    tensors = sorted(flattener.tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    header = make_header([(name, t.dtype, tuple(t.shape)) for name, t in tensors], metadata)

    def write(out: BinaryIO) -> None:
        write_all(out, header)
        for _, tensor in tensors:
            array = tensor.detach().cpu().array if isinstance(tensor, Tensor) else tensor
            write_all(out, data_bytes(array))

    return write
