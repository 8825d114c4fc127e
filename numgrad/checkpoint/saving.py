"""Saving checkpoints: as ``torch.save`` does, as safetensors, or for ``numpy.load``."""

import os
from typing import Any, BinaryIO, cast

from ..graph.errors import expected, shown
from .atomic import replacing


def save(obj: Any, file: "str | os.PathLike[str] | BinaryIO") -> None:
    """Save tensors, and the dicts and lists they are in.

    Args:
        obj: a state dict of a module or an optimizer, or any nesting of dict, list and tuple with
            tensors, NumPy arrays, numbers, strings, bytes, bools, None, sizes, dtypes and devices.
        file: a path, or a file open for writing bytes. A name that ends in ``.safetensors`` or
            ``.npz`` gets that layout, any other that of ``torch.save``.

    Raises:
        TypeError: obj holds something else; the text names the place. Nothing was written. Or file
            is none.
        ValueError: there is too much beside tensors to be read again. Nothing was written.
        OSError: the folder is missing, the disk is full …; an older file at the path is whole.

    **The layout of torch.save** (a zip archive) is read by ``torch.load(path)`` with its default
    ``weights_only=True``. Tensors that share memory share it when loaded; of a view the whole
    storage is saved; ``requires_grad`` is kept and a `Parameter` stays one. Gradients, graphs and
    hooks are left out, numbers of NumPy become Python's, and tensors on a GPU are copied to the
    CPU. What PyTorch cannot have (negative strides) is written contiguous, and so is a tensor that
    was expanded to more than a megabyte and than its storage. Equal objects give equal bytes.
    NumPy arrays are written as ``torch.save`` writes them, which `load` reads; ``torch.load``
    needs ``weights_only=False`` for them.

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
    if given is None and not isinstance(file, (str, bytes, os.PathLike)):
        way_out = 'pass a path, or what open(path, "wb") returns'
        raise TypeError(expected("save", "a path or a file of bytes", "file", shown(file), way_out))
    name = getattr(file, "name", "") if given is not None else os.fspath(cast(Any, file))
    if isinstance(name, bytes):
        name = os.fsdecode(name)
    suffix = os.path.splitext(name)[1].lower() if isinstance(name, str) else ""
    # What is not needed to import numgrad is imported here.
    if suffix == ".safetensors":
        from .safetensors import prepared
    elif suffix == ".npz":
        from .npz import prepared
    else:
        from .torch_zip_writer import prepared
    write = prepared(obj)
    if given is not None:
        write(given)
    else:
        with replacing(cast(Any, file)) as out:
            write(out)
