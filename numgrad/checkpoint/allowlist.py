"""The global names that a checkpoint's pickle may use, and what each stands for here.

The list is closed: a name that is not on it is refused, whatever it is. What a name makes is a
plain Python object, or describes a tensor; PyTorch's and NumPy's functions of these names are never
called, and their modules are never imported by name.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from ..graph import dtypes
from ..graph.device import device as Device
from ..ops.creation import Size
from .contents import CODES, DTYPES, NAMES, RAW, Spec, Stored, natural, place_of, short, unreadable
from .limits import MAX_DIMENSIONS, MAX_TENSOR_NAME
from .source import Source
from .symbols import (
    FLOATS,
    Built,
    EarlyParameter,
    EarlyTensor,
    Global,
    Machine,
    NumpyArray,
    NumpyDtype,
    Text,
    array_of,
    from_bytes,
    may_require_grad,
    no_hooks,
    on_tensor,
    tensor_spec,
)
from .walking import rebuild


def _count(machine: Machine, name: str, args: tuple[Any, ...], *allowed: int) -> None:
    if len(args) not in allowed:
        raise machine.error(f"{len(args)} arguments for {name}")


def _ordered_dict(machine: Machine, args: tuple[Any, ...]) -> Any:
    _count(machine, "OrderedDict", args, 0, 1)
    made: OrderedDict[Any, Any] = OrderedDict()
    items: list[Any] = []
    for pair in args[0] if args and type(args[0]) in (list, tuple) else args:
        if type(pair) not in (list, tuple) or len(pair) != 2:
            raise machine.error("an OrderedDict of something else than pairs")
        items += pair
    machine.set_items(made, items)
    return made


def _counter(machine: Machine, args: tuple[Any, ...]) -> Any:
    _count(machine, "Counter", args, 0, 1)
    counts = args[0] if args else {}
    if type(counts) is not dict or not all(type(n) in (int, float) for n in counts.values()):
        raise machine.error("a Counter of something else than numbers")
    return Counter(counts)


def _size(machine: Machine, args: tuple[Any, ...]) -> Any:
    _count(machine, "torch.Size", args, 1)
    fits = type(args[0]) in (tuple, list) and len(args[0]) <= MAX_DIMENSIONS
    if not fits or not all(map(natural, args[0])):
        raise machine.error(f"a torch.Size of {short(args[0])}")
    return Size(args[0])


def _device(machine: Machine, args: tuple[Any, ...]) -> Any:
    _count(machine, "torch.device", args, 1, 2)
    kind, index = (*args, None)[:2]
    if not isinstance(kind, str) or not (index is None or natural(index)):
        raise machine.error(f"a torch.device of {short(kind)}")
    text = str(kind) if index is None else f"{kind}:{index}"
    try:
        return Device(text)
    except ValueError:  # mps, xla …: the text is all there is to tell
        return text


def _encode(machine: Machine, args: tuple[Any, ...]) -> Any:
    _count(machine, "_codecs.encode", args, 2)
    text, encoding = args
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise machine.error("bytes in another encoding than Latin-1")
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise machine.error("bytes above 255") from None


def _no_bytes(machine: Machine, args: tuple[Any, ...]) -> Any:
    _count(machine, "bytes", args, 0)
    return b""


def _bytearray(machine: Machine, args: tuple[Any, ...]) -> Any:
    if len(args) == 2:  # a text and its encoding, in protocol 2
        args = (_encode(machine, args),)
    _count(machine, "bytearray", args, 0, 1)
    if args and type(args[0]) is not bytes:
        raise machine.error(f"a bytearray of {short(args[0])}")
    return bytearray(*args)


def _complex(machine: Machine, args: tuple[Any, ...]) -> Any:
    _count(machine, "complex", args, 2)
    if not all(type(part) is float for part in args):
        raise machine.error("a complex number of something else than two numbers")
    return complex(*args)


def _layout(machine: Machine, args: tuple[Any, ...]) -> Any:
    _count(machine, "_get_layout", args, 1)
    if not isinstance(args[0], str) or str(args[0]) not in _LAYOUTS:
        raise machine.error(f"a torch.layout {short(args[0])}")
    return str(args[0])


def _rebuild_tensor(machine: Machine, args: tuple[Any, ...]) -> Any:
    _count(machine, "_rebuild_tensor", args, 4)
    return tensor_spec(machine, *args)


def _rebuild_tensor_v2(machine: Machine, args: tuple[Any, ...]) -> Any:
    _count(machine, "_rebuild_tensor_v2", args, 6, 7)
    if len(args) == 7 and args[6]:
        raise machine.error("a tensor with metadata (conjugate or negative)")
    no_hooks(machine, args[5])
    spec = tensor_spec(machine, *args[:4])
    spec.requires_grad = may_require_grad(machine, spec, args[4])
    return spec


def _rebuild_tensor_v3(machine: Machine, args: tuple[Any, ...]) -> Any:
    _count(machine, "_rebuild_tensor_v3", args, 7, 8)
    stored, dtype = args[0], args[6]
    if not isinstance(stored, Stored) or type(dtype) is not Global or dtype.dtype is None:
        raise machine.error("a tensor without a storage or a dtype")
    if dtype.dtype not in DTYPES:
        raise machine.error(f"unsupported kind: a tensor of {dtype.full}")
    if stored.code == RAW:
        count, left = divmod(stored.numel, DTYPES[dtype.dtype].itemsize)
        if left:
            raise machine.error(f"{stored.numel} bytes as elements of {dtype.full}")
        stored.code, stored.numel = dtype.dtype, count
    elif stored.code != dtype.dtype:
        raise machine.error(f"a storage of {NAMES[stored.code]} as {dtype.full}")
    return _rebuild_tensor_v2(machine, (*args[:6], *args[7:]))


def _rebuild_parameter(machine: Machine, args: tuple[Any, ...]) -> Any:
    _count(machine, "_rebuild_parameter", args, 3)
    data, requires_grad, hooks = args
    no_hooks(machine, hooks)
    if not isinstance(data, Spec):
        raise machine.error(f"a Parameter of {short(data)}, which is no tensor")
    requires_grad = may_require_grad(machine, data, requires_grad)
    return replace(data, kind="parameter", requires_grad=requires_grad)


def _early_parameter(
    kind: Literal["tensor", "parameter"],
) -> Callable[[Any, tuple[Any, ...]], Any]:
    def make(machine: Machine, args: tuple[Any, ...]) -> Any:
        _count(machine, "Parameter", args, 0, 1, 2)
        if not args:
            return EarlyParameter(kind)
        made = EarlyParameter(kind, on_tensor(machine, args[0]))
        if len(args) == 2:
            made.requires_grad = may_require_grad(machine, args[0], args[1])
        return made

    return make


def _early_tensor(code: str) -> Callable[[Any, tuple[Any, ...]], Any]:
    def make(machine: Machine, args: tuple[Any, ...]) -> Any:
        _count(machine, "a tensor class", args, 0)
        return EarlyTensor(code)

    return make


def _reconstruct(machine: Machine, args: tuple[Any, ...]) -> Any:
    _count(machine, "_reconstruct", args, 3)
    if args[0] is not _NDARRAY or args[1] != (0,) or args[2] not in (b"b", "b"):
        raise machine.error("a NumPy array made otherwise than NumPy does")
    return NumpyArray()


def _frombuffer(machine: Machine, args: tuple[Any, ...]) -> Any:
    """Arrays of protocol 5: bytes, dtype, shape, order; since NumPy 2.4 the order of the axes."""
    _count(machine, "_frombuffer", args, 4, 5)
    data, dtype, shape, order = args[:4]
    axes = args[4] if len(args) == 5 else None
    if order not in ("C", "F", "K") or (order == "K") != (axes is not None):
        raise machine.error(f"a NumPy array in the order {short(order)}")
    array = array_of(machine, data, dtype, shape, "F" if order == "F" else "C")
    if axes is not None:
        wanted = list(range(array.ndim))
        fits = type(axes) in (tuple, list) and all(map(natural, axes))
        if not fits or sorted(axes) != wanted:
            raise machine.error("a NumPy array whose axes have no order")
        array = array.transpose(axes)
    return NumpyArray(array)


def _dtype(machine: Machine, args: tuple[Any, ...]) -> Any:
    _count(machine, "numpy.dtype", args, 1, 2, 3)
    name = args[0]
    found = _NUMPY_DTYPES.get(name) if isinstance(name, str) else None
    if found is None or any(type(flag) not in (bool, int) for flag in args[1:]):
        raise machine.error(f"a NumPy dtype {short(name)}; only plain numbers are read")
    return NumpyDtype(found)


def _scalar(machine: Machine, args: tuple[Any, ...]) -> Any:
    _count(machine, "numpy scalar", args, 2)
    if type(args[0]) is not NumpyDtype:
        raise machine.error("a NumPy number without a plain dtype")
    return from_bytes(machine, args[1], args[0].dtype, (1,), "C")[0]


_NDARRAY = Global("numpy.ndarray")
_NUMPY_DTYPES = {d.str[1:]: d for d in CODES}

_ELEMENTS = {
    "Float": "F32",
    "Double": "F64",
    "Half": "F16",
    "BFloat16": "BF16",
    "Long": "I64",
    "Int": "I32",
    "Short": "I16",
    "Char": "I8",
    "Byte": "U8",
    "Bool": "BOOL",
}
"""PyTorch's classes of elements: ``torch.FloatStorage``, ``torch.FloatTensor``."""

_TORCH_DTYPES = {
    **{name: code for code, name in NAMES.items()},
    "float": "F32",
    "double": "F64",
    "half": "F16",
    "long": "I64",
    "int": "I32",
    "short": "I16",
}
_OTHER_DTYPES = (
    *(f"complex{bits}" for bits in (32, 64, 128)),
    *(f"float8_{kind}" for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")),
    "float4_e2m1fn_x2",
    *("qint8", "qint32", "quint8", "quint4x2", "quint2x4"),
    *(f"bits{bits}" for bits in ("8", "16", "1x8", "2x4", "4x2")),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)),
)
"""PyTorch's dtypes of elements that are not read."""
_LAYOUTS = {
    f"torch.{kind}"
    for kind in ("strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")
}

_UNSUPPORTED = {
    "_rebuild_qtensor": "quantized",
    "_rebuild_sparse_tensor": "sparse",
    "_rebuild_sparse_csr_tensor": "sparse",
    "_rebuild_nested_tensor": "nested",
    "_rebuild_meta_tensor_no_storage": "meta (one without elements)",
    "_rebuild_device_tensor_from_numpy": "device",
    "_rebuild_device_tensor_from_cpu_tensor": "device",
    "_rebuild_wrapper_subclass": "subclass",
    "_rebuild_from_type_v2": "subclass",
    "_rebuild_parameter_with_state": "Parameter with attributes",
    "ComplexFloatStorage": "complex",
    "ComplexDoubleStorage": "complex",
    "QInt8Storage": "quantized",
    "QUInt8Storage": "quantized",
    "QInt32Storage": "quantized",
    "QUInt4x2Storage": "quantized",
    "QUInt2x4Storage": "quantized",
}
"""Of PyTorch's names those of kinds of tensors that numgrad has not."""


_WAYS_OUT = {
    **{
        (module, name): f"make it a {kind}"
        for module in ("__builtin__", "builtins")
        for name, kind in (
            ("set", "list"),
            ("frozenset", "tuple"),
            ("range", "tuple"),
            ("xrange", "tuple"),
            ("slice", "tuple"),
        )
    },
    ("collections", "defaultdict"): "make it a dict",
    ("collections", "deque"): "make it a list",
    ("argparse", "Namespace"): "make it a dict, vars(…)",
    ("types", "SimpleNamespace"): "make it a dict, vars(…)",
    **{
        (module, f"{pure}{kind}"): "make it a text, str(…)"
        for module in ("pathlib", "pathlib._local")
        for pure in ("", "Pure")
        for kind in ("Path", "PosixPath", "WindowsPath")
    },
    **{
        ("datetime", name): "make it a text, str(…)"
        for name in ("datetime", "date", "time", "timedelta", "timezone")
    },
}
"""What to save instead of things that are not read and that people save all the same."""


def _table() -> dict[tuple[str, str], Global]:
    table: dict[tuple[str, str], Global] = {}

    def add(module: str, name: str, *args: Any, **named: Any) -> None:
        table[module, name] = Global(f"{module}.{name}", *args, **named)

    add("collections", "OrderedDict", _ordered_dict)
    add("collections", "Counter", _counter)
    add("_codecs", "encode", _encode)
    for module in ("__builtin__", "builtins"):
        add(module, "bytes", _no_bytes)  # how protocol 2 writes b"" beside _codecs.encode
        add(module, "bytearray", _bytearray)
        add(module, "complex", _complex)
    add("torch", "Size", _size)
    add("torch", "device", _device)
    add("torch._utils", "_rebuild_tensor", _rebuild_tensor)
    add("torch._utils", "_rebuild_tensor_v2", _rebuild_tensor_v2)
    add("torch._utils", "_rebuild_tensor_v3", _rebuild_tensor_v3)
    add("torch._utils", "_rebuild_parameter", _rebuild_parameter)
    add("torch.nn.parameter", "Parameter", _early_parameter("parameter"), new=True)
    add("torch.autograd.variable", "Variable", _early_parameter("tensor"), new=True)
    for cls, code in _ELEMENTS.items():
        for module in ("torch", "torch.cuda"):
            add(module, f"{cls}Storage", storage=code)
            add(module, f"{cls}Tensor", _early_tensor(code), tensor=code)
    add("torch.storage", "UntypedStorage", storage=RAW)
    for name, code in _TORCH_DTYPES.items():
        add("torch", name, dtype=code)
    for name in _OTHER_DTYPES:
        add("torch", name, dtype=name)
    add("torch.serialization", "_get_layout", _layout)
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        add(module, "_reconstruct", _reconstruct)
        add(module, "scalar", _scalar)
    for module in ("numpy.core.numeric", "numpy._core.numeric"):
        add(module, "_frombuffer", _frombuffer)
    add("numpy", "dtype", _dtype)
    table["numpy", "ndarray"] = _NDARRAY
    return table


_TABLE = _table()


def lookup(machine: Machine, module: str, name: str) -> Global:
    """What a global name stands for.

    Raises:
        CheckpointError: the name is not on the list.
    """
    found = _TABLE.get((module, name))
    if found is not None:
        return found
    full = repr(f"{module}.{name}"[:200])[1:-1]
    kind = "sparse" if module.endswith(".sparse") else _UNSUPPORTED.get(name)
    if module.partition(".")[0] == "torch" and kind is not None:
        raise machine.error(f"unsupported kind: a tensor that is {kind} ({full})")
    way_out = _WAYS_OUT.get((module, name))
    if way_out is not None:
        raise machine.error(f"it has {full}, which numgrad does not read; {way_out}, and save")
    raise machine.error(
        f"it refers to {full}, a class or a function and not data; where the program that wrote "
        "the file runs, load it and save only data: its state_dict(), texts, numbers, lists, dicts"
    )


# ------------------------------------------------------------------------------------ the last step


def _dtype_as_data(named: Global) -> Any:
    """The dtype; of one that numgrad has not the name, as PyTorch shows it: "torch.bfloat16"."""
    code = named.dtype or ""
    if code in DTYPES and code != "BF16" and DTYPES[code] in dtypes.ALL:
        return DTYPES[code]
    return f"torch.{NAMES[code]}" if code in NAMES else named.full


def finish(source: Source, obj: Any) -> Any:
    """The object of a pickle with nothing in it but data and Specs.

    Raises:
        CheckpointError: a name or a storage stands where data should, a tensor got no state or
            requires a gradient it cannot have, the object is nested too deeply, contains itself,
            or a tensor's name cannot be shown.
    """

    shown: set[str] = set()

    def leaf(item: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(item, Built):
            made = item.finish()
            if made is None:
                raise source.error(place_of(path), "a tensor that never got its elements")
            item = made
        if type(item) is Global:
            if item.dtype is None:
                raise source.error(place_of(path), f"{item.full} where data should be")
            return _dtype_as_data(item)
        if isinstance(item, Stored):
            raise source.error(place_of(path), "a storage that belongs to no tensor")
        if isinstance(item, Spec) and item.requires_grad and item.stored.code not in FLOATS:
            what = f"a tensor of {NAMES[item.stored.code]} that requires a gradient"
            raise source.error(place_of(path), what)
        for key in path if isinstance(item, Spec) else ():
            if isinstance(key, str) and key not in shown:
                if len(key) > MAX_TENSOR_NAME:
                    raise source.error(place_of(path), f"{len(key)} characters in a tensor's name")
                if any(map(unreadable, key)):
                    raise source.error(
                        place_of(path), "a control character or half a surrogate in a tensor's name"
                    )
                shown.add(key)
        return item.plain if type(item) is Text else item

    return rebuild(obj, leaf, lambda path, reason: source.error(place_of(path), reason))
