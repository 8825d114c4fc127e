"""Tensor: a value whose methods are the ops."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .graph import dtypes, mode
from .graph.above import above
from .graph.apply import apply
from .graph.device import CPU
from .graph.device import device as device_type
from .graph.errors import GradError, expected, shown
from .graph.storage import PARAMETER, allocate_on, category
from .graph.value import HookHandle, Value, alias
from .ops import arithmetic as ar
from .ops import creation, movement
from .ops import elementwise as e
from .ops.creation import Size
from .ops.declare import NO_ATTRS, Elementwise
from .ops.kernel_calls import copy_into, to_host
from .ops.matmul import matmul
from .ops.methods import Methods
from .ops.printing import show, type_name, type_target


def _operator(function: Any, reflected: bool = False) -> Callable[..., Any]:
    name = getattr(function, "name", None) or function.__name__

    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, _OPERANDS):
            if isinstance(other, np.ndarray):
                what, way_out = "a Tensor or a number", "use numgrad.from_numpy(…)"
                raise TypeError(expected(name, what, "an operand", shown(other), way_out))
            return NotImplemented
        return function(other, self) if reflected else function(self, other)

    if reflected or not isinstance(function, Elementwise):
        return method

    def quick(self: Any, other: Any) -> Any:
        if isinstance(other, Value):  # what ``function(self, other)`` does, without its keywords
            return apply(function, function.convert((self, other)), NO_ATTRS)
        return method(self, other)

    return quick


_OPERANDS = (Value, int, float, bool, np.number, np.bool_)


class Tensor(Methods, Value):
    """An n-dimensional array that may take part in a graph.

    ``Tensor(data)`` is ``numgrad.tensor(data)`` in the default float dtype; ``Tensor(2, 3)`` an
    uninitialised tensor of that shape. Results are 0-dim where PyTorch's are, comparisons are bool.
    """

    __array_ufunc__ = None  # arrays leave arithmetic with tensors to the tensor
    __array_priority__ = 1000

    def __new__(cls, *args: Any, **named: Any) -> Any:
        made = creation.legacy(args, **{"dtype": dtypes.get_default_dtype(), **named})
        if cls is Tensor:
            return made
        self = Value.__new__(cls)
        self._init(made.array, made.storage)
        self._requires_grad = made._requires_grad
        return self

    def __numgrad_scalar__(self, name: str, args: Any) -> Any:
        """What ``numgrad.kernels.scalar`` calls a function of Tensors with."""
        return getattr(e, name)(*args)

    # --------------------------------------------------------------------------- flags and history

    def _set_requires_grad(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise RuntimeError(
                f"requires_grad must be a bool, got {shown(value)}; pass True or False"
            )
        if not self.is_leaf:
            way_out = (
                ""
                if value
                else " If you want to use a computed variable in a subgraph that doesn't require "
                "differentiation use var_no_grad = var.detach()."
            )
            raise GradError(f"you can only change requires_grad flags of leaf variables.{way_out}")
        if value and self.dtype.kind != "f":
            raise GradError(
                f"requires_grad_: expected a floating dtype for x, got {self.dtype}; only Tensors "
                "of floating point dtype can require gradients: use .float()"
            )
        if value and self._inference and not mode.state.inference:
            raise GradError(
                "Setting requires_grad=True on inference tensor outside InferenceMode is not "
                "allowed; clone it first"
            )
        self._requires_grad = value

    requires_grad: Any = property(
        Value.requires_grad.fget,  # type: ignore[attr-defined]
        _set_requires_grad,
        doc="Whether gradients are wanted for this value; may be set on leaves.",
    )

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Set ``requires_grad`` of a leaf; of a non-leaf True changes nothing. Returns itself."""
        if requires_grad is not True or self.is_leaf:
            self.requires_grad = requires_grad
        return self

    def _set_volatile(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise RuntimeError(f"volatile must be a bool, got {shown(value)}; pass True or False")
        if not self.is_leaf:
            raise GradError(
                "volatile can only be set on leaf variables: make the input volatile, or detach() "
                "it"
            )
        self._volatile, self._origin = value, None

    volatile: Any = property(
        Value.volatile.fget,  # type: ignore[attr-defined]
        _set_volatile,
        doc="Whether nothing that uses this value is recorded. Contagious; may be set on leaves.",
    )

    @property
    def grad_fn(self) -> Any:
        """The node that made the value; None for leaves and unrecorded results."""
        edge = self.edge
        return None if edge is None else edge[0]

    creator = grad_fn

    @property
    def output_nr(self) -> int:
        """Which output of its node the value is."""
        edge = self.edge
        return 0 if edge is None else edge[1]

    @property
    def grad(self) -> Any:
        """The gradient that backward passes have added up, or None."""
        return self.grad_value

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is None:
            self.grad_value = None
            return
        if value is self:
            raise RuntimeError("can't assign Variable as its own grad")
        if not isinstance(value, Tensor) or value.dtype != self.dtype:
            raise RuntimeError(
                f"assigned grad has data of a different type: expected {self.dtype}, got "
                f"{shown(value)}"
            )
        if value.device != self.device:
            raise RuntimeError(
                f"assigned grad has data located on a different device: expected {self.device}, "
                f"got {value.device}"
            )
        if value.shape != self.shape and {value.shape, self.shape} != {(), (1,)}:
            raise RuntimeError(
                f"assigned grad has data of a different size: expected {self.shape}, got "
                f"{shown(value)}"
            )
        self.grad_value = value

    @grad.deleter
    def grad(self) -> None:
        self.grad_value = None

    def backward(
        self,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        retain_variables: bool | None = None,
    ) -> None:
        """Add gradients of this value to the leaves it was computed from."""
        from .autograd import backward

        backward([self], [gradient], retain_graph, create_graph, retain_variables)

    def register_hook(self, hook: Callable[[Any], Any]) -> HookHandle:
        """Call ``hook(gradient)`` once a pass; it may return another gradient of the same shape."""
        return self.add_hook(hook)

    def retain_grad(self) -> None:
        """Keep ``.grad`` of this non-leaf in backward passes; leaves do so anyway."""
        if not self.requires_grad or self.volatile:
            raise GradError(
                "can't retain_grad on Tensor that has requires_grad=False: nothing flows to it"
            )
        self.retain_gradient()

    def detach(self) -> Any:
        """The same memory and version counter without history; volatile is unchanged."""
        out = alias(self, self.contagious, self.group)
        out._volatile = self.volatile
        out._origin = self._origin if out._volatile else "detach() cut it off"
        return out

    def detach_(self) -> Any:
        """Cut the history of this value; graphs made earlier keep theirs."""
        if self._base is not None:
            raise GradError("Can't detach views in-place. Use detach() instead")
        if not self.is_leaf:
            self._origin = "detach_() cut it off"
        self._edge, self._requires_grad = None, False
        return self

    @property
    def data(self) -> Any:
        """The same memory as a plain Tensor without flags; the graph does not see writes to it."""
        return alias(self, False)

    @data.setter
    def data(self, value: Any) -> None:
        if not isinstance(value, Value):
            raise TypeError(expected("data", "a Tensor", "value", shown(value), "use tensor(…)"))
        if self.requires_grad and value.dtype.kind != "f":
            raise RuntimeError(
                expected(
                    "data",
                    "a floating dtype, which can require gradients,",
                    "value",
                    shown(value),
                    "use .float()",
                )
            )
        kind = self.storage.category
        self.take_memory(alias(value, self.contagious))
        if kind == PARAMETER:
            self.storage.move_to(PARAMETER)

    # ------------------------------------------------------------------------------- shape and size

    def dim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    ndimension = dim
    ndim = property(dim)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the length of one axis."""
        if dim is None:
            return Size(self.shape)
        return self.shape[movement.axis_of("size", dim, len(self.shape))]

    def numel(self) -> int:
        """Number of elements."""
        return int(self.array.size)

    nelement = numel

    def stride(self, dim: int | None = None) -> Any:
        """Steps between neighbours along each axis, in elements."""
        strides = tuple(s // self.dtype.itemsize for s in self.array.strides)
        return strides if dim is None else strides[dim]

    def element_size(self) -> int:
        """Bytes an element."""
        return self.dtype.itemsize

    def is_contiguous(self) -> bool:
        """Whether the elements lie in row-major order without gaps."""
        return bool(self.array.flags.c_contiguous)

    def data_ptr(self) -> int:
        """Address of the first element.

        What is written there is not seen, and nobody says when an address is no longer used: from
        now on nothing is kept that is derived from this memory, such as a weight transformed for a
        convolution, which is then transformed anew at each call. The version for saved values does
        not move. An address may be used as long as a tensor or an array on the memory is alive.
        """
        address = int(self.array.ctypes.data)
        self.storage.tell_address()
        return address

    def is_floating_point(self) -> bool:
        """Whether the dtype is a floating one."""
        return self.dtype.kind == "f"

    @property
    def is_cuda(self) -> bool:
        """Whether the buffer lies on a GPU."""
        return self.device.type == "cuda"

    @property
    def _version(self) -> int:
        return self.group.version

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len: expected a tensor with axes, got a 0-d tensor; use numel()")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d tensor: expected axes to go over; use item()")
        return iter([self[i] for i in range(self.shape[0])])

    # ----------------------------------------------------------------------------------- conversion

    def numpy(self) -> np.ndarray:
        """An array that shares memory. Raises RuntimeError if the tensor requires grad."""
        if self.device.type != "cpu":
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to "
                "copy the tensor to host memory first: .cpu().numpy()"
            )
        if self.requires_grad:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() "
                "instead."
            )
        return self.storage.export(self.array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(
                    expected("asarray", f"dtype {array.dtype}", "dtype", dtype, "allow a copy")
                )
            return array.astype(dtype)
        return array.copy() if copy else array

    def item(self) -> Any:
        """The only element as a Python number. Raises ValueError if there is not exactly one."""
        if self.numel() != 1:
            raise ValueError(
                expected("item", "one element", "x", shown(self), "use tolist(), or index it first")
            )
        return self.array.item()

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers."""
        return self.array.tolist()

    def type(self, kind: Any = None) -> Any:
        """The name of the tensor's type, or the tensor converted to a type or dtype."""
        if kind is None:
            return type_name(self)
        dtype, where = type_target(kind, self.device)
        return self.to(dtype=dtype, device=where)

    def type_as(self, other: Any) -> Any:
        """The tensor converted to the dtype of another, and on its device."""
        return self.to(other)

    def to(
        self,
        *args: Any,
        dtype: Any = None,
        device: Any = None,
        non_blocking: bool = False,
        copy: bool = False,
    ) -> Any:
        """The tensor in a dtype and on a device: ``to(dtype)``, ``to("cpu")``, ``to(other)``.
        ``non_blocking`` is taken for PyTorch's sake: every copy between devices waits."""
        for arg in args:
            if isinstance(arg, Value):
                dtype, device = arg.dtype, arg.device
            elif isinstance(arg, bool) or arg is None:
                continue
            elif _is_device(arg):
                device = arg
            elif isinstance(arg, str) and arg.rpartition(".")[2] not in dtypes.BY_NAME:
                names = ", ".join(dtypes.BY_NAME)
                way_out = "convert it first, or use 'cpu'"
                raise TypeError(
                    expected("to", f"one of {names}, cpu, cuda[:N]", "args", repr(arg), way_out)
                )
            else:
                dtype = arg
        out = self if dtype is None else movement.to_dtype(self, dtypes.as_dtype(dtype, "to"))
        if device is not None:
            out = movement.to_device(out, creation.check_device("to", device))
        return movement.clone(out) if copy and out is self else out

    def cpu(self) -> Any:
        """The tensor on the CPU: itself if it is there already."""
        return movement.to_device(self, CPU)

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Any:
        """The tensor on a GPU: itself if it is there already. ``device`` is the GPU's number or
        name, 0 by default.

        Raises:
            RuntimeError: there is no such GPU; says what is missing.
        """
        if device is None and self.device.type == "cuda":
            return self
        where = creation.check_device("cuda", "cuda" if device is None else device)
        if where is CPU:
            raise ValueError(
                expected("cuda", "a CUDA device", "device", repr(device), "use .cpu() or .to()")
            )
        return movement.to_device(self, where)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.kind == "f" or self.numel() != 1:
            raise TypeError(expected("index", "one integer", "x", shown(self), "use int(x.item())"))
        return int(self.item())

    def __bool__(self) -> bool:
        if self.numel() != 1:
            held = "more than one value" if self.numel() else "no values"
            raise RuntimeError(
                f"Boolean value of Tensor with {held} is ambiguous: use .any() or .all(), got "
                f"shape {self.shape}"
            )
        return bool(self.item())

    def __format__(self, spec: str) -> str:
        one = not self.shape or (spec and self.numel() == 1)
        return format(self.item(), spec) if one else format(str(self), spec)

    def __repr__(self) -> str:
        return show(self)

    def __hash__(self) -> int:
        return id(self)

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any().item())

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self)})

    # ---------------------------------------------------------------------------- copies and pickle

    def __copy__(self) -> Any:
        out = object.__new__(type(self))
        out._init(self.array, self.storage, self.group)
        out._edge = self.edge
        out._requires_grad, out._volatile = self._requires_grad, self._volatile
        out._base, out._chain = self._base, self._chain
        out._stamp, out._edge_stamp = self._stamp, self._edge_stamp
        out._inference, out._origin = self._inference, self._origin
        out.__dict__.update(self.__dict__)
        return out

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if not self.is_leaf:
            raise RuntimeError(
                "Only Variables created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment: detach() it first"
            )
        out: Any = object.__new__(type(self))
        memo[id(self)] = out
        if self._base is not None and self._base.is_leaf:  # the copies share memory as these do
            self.check_chain()
            base = copy.deepcopy(self._base, memo)
            array = base.array
            for op, attrs, _ in self._chain:
                array = op.see(array, attrs)
            out._init(array, base.storage, base.group)
            out._base, out._chain = base, self._chain
        else:
            with category(self.storage.category):
                array, storage = allocate_on(self.device, self.shape, self.dtype)
            copy_into(array, self.array)
            out._init(array, storage)
        out._requires_grad, out._volatile = self._requires_grad, self._volatile
        out.grad_value = copy.deepcopy(self.grad_value, memo)
        out.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return out

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not self.is_leaf:
            raise RuntimeError(
                "pickle: expected a leaf for x, got a computed value; detach() it before pickling"
            )
        flags = self._requires_grad, self._volatile
        is_parameter = self.storage.category == PARAMETER
        array = to_host(self.array).copy()  # of a GPU, too: it may be loaded where there is none
        return _rebuild, (type(self), array, flags, is_parameter), self.__dict__ or None

    # ------------------------------------------------------------------------------------ operators

    __add__, __radd__ = _operator(e.add), _operator(e.add, True)
    __sub__, __rsub__ = _operator(e.sub), _operator(e.sub, True)
    __mul__, __rmul__ = _operator(e.mul), _operator(e.mul, True)
    __truediv__, __rtruediv__ = _operator(e.div), _operator(e.div, True)
    __floordiv__, __rfloordiv__ = _operator(e.floor_divide), _operator(e.floor_divide, True)
    __mod__, __rmod__ = _operator(e.remainder), _operator(e.remainder, True)
    __pow__, __rpow__ = _operator(ar.pow), _operator(ar.pow, True)
    __matmul__, __rmatmul__ = _operator(matmul), _operator(matmul, True)
    __iadd__, __isub__ = _operator(e.add.in_place), _operator(e.sub.in_place)
    __imul__, __itruediv__ = _operator(e.mul.in_place), _operator(e.div.in_place)
    __eq__, __ne__ = _operator(e.eq), _operator(e.ne)
    __lt__, __le__ = _operator(e.lt), _operator(e.le)
    __gt__, __ge__ = _operator(e.gt), _operator(e.ge)
    __neg__, __abs__ = e.neg, e.abs

    def __pos__(self) -> Any:
        return self


def _is_device(arg: Any) -> bool:
    return isinstance(arg, (device_type, int)) or (
        isinstance(arg, str) and arg.partition(":")[0] in ("cpu", "cuda")
    )


def _rebuild(cls: type, array: np.ndarray, flags: tuple[bool, bool], is_parameter: bool) -> Any:
    """The tensor that was pickled."""
    value = creation.tensor(array)
    out: Any = object.__new__(cls)
    out._init(value.array, value.storage)
    out._requires_grad, out._volatile = flags
    if is_parameter:
        out.storage.move_to(PARAMETER)
    return out


above.Tensor = Tensor


def realize(*tensors: Tensor) -> None:
    """Wait until the tensors' values exist. Operations run at once: there is none to wait for."""
    for i, x in enumerate(tensors):
        if not isinstance(x, Tensor):
            raise TypeError(
                expected("realize", "a Tensor", f"tensors[{i}]", shown(x), "pass tensors")
            )
