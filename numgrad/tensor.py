"""Tensor, Variable and Parameter: values whose methods are the ops."""

import copy
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .graph import dtypes, mode
from .graph.apply import above, make
from .graph.device import device as device_type
from .graph.errors import GradError, expected, shown
from .graph.storage import PARAMETER, Group, allocate, category
from .graph.value import HookHandle, Value
from .ops import arithmetic as ar
from .ops import creation, movement
from .ops import elementwise as e
from .ops.kernel_calls import copy_into
from .ops.matmul import matmul
from .ops.methods import Methods
from .ops.printing import TYPE_NAMES, show


def _operator(function: Callable[..., Any], reflected: bool = False) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, _OPERANDS):
            return NotImplemented
        return function(other, self) if reflected else function(self, other)

    return method


_OPERANDS = (Value, int, float, bool, np.number, np.bool_)


class Tensor(Methods, Value):
    """An n-dimensional array that may take part in a graph.

    ``Tensor(data)`` is ``numgrad.tensor(data)`` in the default float dtype; ``Tensor(2, 3)`` an
    uninitialised tensor of that shape. Results are 0-dim where PyTorch's are, comparisons are bool.
    """

    __array_ufunc__ = None  # arrays leave arithmetic with tensors to the tensor
    __array_priority__ = 1000

    def __new__(cls, *args: Any, **named: Any) -> Any:
        if cls is Tensor:
            kind = dtypes.get_default_dtype()
            if len(args) == 1 and not isinstance(args[0], int):
                return creation.tensor(args[0], dtype=named.pop("dtype", kind), **named)
            return creation.empty(*args, **{"dtype": kind, **named}) if args else creation.empty(0)
        return super().__new__(cls)

    def __numgrad_scalar__(self, name: str, args: Any) -> Any:
        """What ``numgrad.kernels.scalar`` calls a function of Tensors with."""
        return getattr(e, name)(*args)

    # --------------------------------------------------------------------------- flags and history

    def _set_requires_grad(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"requires_grad must be a bool, got {value!r}; pass True or False")
        if not self.is_leaf:
            if value:
                return
            raise GradError(
                "you can only change requires_grad flags of leaf variables. If you want to use a computed "
                "variable in a subgraph that doesn't require differentiation use "
                "var_no_grad = var.detach()."
            )
        if value and self.dtype.kind != "f":
            raise GradError(
                f"requires_grad_: expected a floating dtype for x, got {self.dtype}; only Tensors of "
                "floating point dtype can require gradients: use .float()"
            )
        if value and self._inference and not mode.state.inference:
            raise GradError(
                "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed; "
                "clone it first"
            )
        self._requires_grad = value

    requires_grad = Value.requires_grad.setter(_set_requires_grad)  # type: ignore[attr-defined]

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Set ``requires_grad`` of a leaf; returns the tensor."""
        self.requires_grad = requires_grad
        return self

    @property
    def volatile(self) -> bool:
        """Whether nothing that uses this value is recorded. Contagious; may be set on leaves."""
        return self._volatile

    @volatile.setter
    def volatile(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise RuntimeError("volatile must be a bool")
        if not self.is_leaf:
            raise RuntimeError("volatile can only be set on leaf variables")
        self._volatile = value

    def become_volatile(self) -> None:
        """Cut history, hooks and gradient and become volatile (a Variable written to by a volatile)."""
        self.set_history(None)
        self.grad_value = self._slot = None
        self._volatile = True

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
            raise RuntimeError(f"assigned grad has data of a different type (got {shown(value)})")
        if value.device != self.device:
            raise RuntimeError("assigned grad has data located on a different device")
        if value.shape != self.shape and not (value.numel() == 1 and self.numel() == 1):
            raise RuntimeError(f"assigned grad has data of a different size (got {shown(value)})")
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
        """Keep ``.grad`` of this non-leaf in backward passes."""
        if self.is_leaf or self.__dict__.get("_retains"):
            return
        me = weakref.ref(self)

        def keep(g: Any) -> None:
            value = me()
            if value is not None:
                before = value.grad_value
                value.grad_value = g if before is None else e.add(before, g)

        self.add_hook(keep)
        self.__dict__["_retains"] = True

    def detach(self) -> Any:
        """The same memory and version counter without history; volatile is unchanged."""
        out = self._alias(self.group)
        out._volatile = self._volatile
        return out

    def detach_(self) -> Any:
        """Cut the history of this value; graphs made earlier keep theirs."""
        if self._base is not None:
            raise GradError(
                "detach_: expected a tensor that is no view, got a view; Can't detach views in-place. "
                "Use detach() instead"
            )
        self.set_history(None)
        return self

    @property
    def data(self) -> Any:
        """The same memory as a tensor without flags; writing to it is not seen by the graph."""
        return self._alias(Group())

    @data.setter
    def data(self, value: Any) -> None:
        if not isinstance(value, Value):
            raise TypeError(expected("data", "a Tensor", "value", shown(value), "use tensor(…)"))
        kind = self.storage.category
        self._array, self.storage = value.array, value.storage
        self.shape, self.dtype = value.shape, value.dtype
        self.group = Group()
        if kind == PARAMETER and self.storage.owned:
            self.storage.move_to(PARAMETER)

    def _alias(self, group: Group) -> Any:
        return make(self.array, self.storage, self.contagious, group)

    # -------------------------------------------------------------------------------- shape and size

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
        """Address of the first element."""
        return int(self.array.ctypes.data)

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

    # ------------------------------------------------------------------------------------ conversion

    def numpy(self) -> np.ndarray:
        """An array that shares memory. Raises RuntimeError if the tensor requires grad."""
        if self.requires_grad:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
            )
        return self.array.view()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
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
            return f"numgrad.{TYPE_NAMES[self.dtype]}"
        own = getattr(kind, "dtype", None)  # of FloatTensor and the like
        return self.to(own if isinstance(own, np.dtype) else kind)

    def type_as(self, other: Any) -> Any:
        """The tensor converted to the dtype of another."""
        return self.to(other.dtype)

    def to(self, *args: Any, dtype: Any = None, device: Any = None, copy: bool = False) -> Any:
        """The tensor in a dtype and on a device: ``to(dtype)``, ``to("cpu")``, ``to(other)``."""
        for arg in args:
            if isinstance(arg, Value):
                dtype, device = arg.dtype, arg.device
            elif isinstance(arg, bool) or arg is None:
                continue
            elif _is_device(arg):
                device = arg
            else:
                dtype = arg
        creation.check_device("to", device)
        out = self if dtype is None else movement.to_dtype(self, dtypes.as_dtype(dtype, "to"))
        return movement.clone(out) if copy and out is self else out

    def cpu(self) -> Any:
        """The tensor on the CPU."""
        return self

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Any:
        """The tensor on a GPU. Raises RuntimeError: there are no CUDA kernels yet."""
        creation.check_device("cuda", f"cuda:{device}" if isinstance(device, int) else "cuda")

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
            raise RuntimeError(
                "Boolean value of Tensor with more than one value is ambiguous: use .any() or .all(), "
                f"got shape {self.shape}"
            )
        return bool(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec and self.numel() == 1 else format(str(self), spec)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return show(self)

    def __hash__(self) -> int:
        return id(self)

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any().item())

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self)})

    # ------------------------------------------------------------------------------ copies and pickle

    def __copy__(self) -> Any:
        out = self._alias(self.group)
        out._requires_grad, out._volatile = self.requires_grad and self.is_leaf, self._volatile
        return out

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Variables created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment"
            )
        with category(self.storage.category):
            array, storage = allocate(self.shape, self.dtype)
        copy_into(array, self.array)
        out = object.__new__(type(self))
        out._init(array, storage)
        out._requires_grad, out._volatile = self.requires_grad, self._volatile
        out.__dict__.update(copy.deepcopy(self.__dict__, memo))
        memo[id(self)] = out
        if self.grad_value is not None:
            out.grad_value = copy.deepcopy(self.grad_value, memo)
        return out

    def __reduce__(self) -> Any:
        if not self.is_leaf:
            raise RuntimeError(
                "pickle: expected a leaf, got a computed value; detach() it before pickling"
            )
        array = np.ascontiguousarray(self.array)
        return _rebuild, (type(self), array, self._requires_grad, self._volatile)

    # --------------------------------------------------------------------------------------- operators

    __add__, __radd__ = _operator(ar.add), _operator(ar.add, True)
    __sub__, __rsub__ = _operator(ar.sub), _operator(ar.sub, True)
    __mul__, __rmul__ = _operator(e.mul), _operator(e.mul, True)
    __truediv__, __rtruediv__ = _operator(e.div), _operator(e.div, True)
    __floordiv__, __rfloordiv__ = _operator(e.floor_divide), _operator(e.floor_divide, True)
    __mod__, __rmod__ = _operator(e.remainder), _operator(e.remainder, True)
    __pow__, __rpow__ = _operator(ar.pow), _operator(ar.pow, True)
    __matmul__, __rmatmul__ = _operator(matmul), _operator(matmul, True)
    __iadd__, __isub__ = _operator(ar.add_), _operator(ar.sub_)
    __imul__, __itruediv__ = _operator(e.mul.in_place), _operator(e.div.in_place)
    __eq__, __ne__ = _operator(e.eq), _operator(e.ne)  # type: ignore[assignment]
    __lt__, __le__ = _operator(e.lt), _operator(e.le)
    __gt__, __ge__ = _operator(e.gt), _operator(e.ge)
    __neg__, __abs__ = e.neg, e.abs

    def __pos__(self) -> Any:
        return self


class Size(tuple):  # type: ignore[type-arg]
    """A shape, as ``x.size()`` gives it: a tuple that prints as PyTorch's does."""

    def numel(self) -> int:
        """Number of elements."""
        return int(np.prod(self, dtype=np.int64))

    def __repr__(self) -> str:
        return f"numgrad.Size({list(self)})"


def _is_device(arg: Any) -> bool:
    return isinstance(arg, device_type) or (
        isinstance(arg, str) and arg.partition(":")[0] in ("cpu", "cuda")
    )


def _rebuild(cls: type, array: np.ndarray, requires_grad: bool, volatile: bool) -> Any:
    value = creation.tensor(array)
    out = value
    if cls is not Tensor:
        out = object.__new__(cls)
        out._init(value.array, value.storage)
        if issubclass(cls, Parameter):
            value.storage.move_to(PARAMETER)
    out._requires_grad, out._volatile = requires_grad, volatile
    return out


class _VariableType(type):
    """``isinstance(parameter, Variable)`` holds, as it always did in PyTorch."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return type.__instancecheck__(cls, instance) or (
            cls is Variable and isinstance(instance, Parameter)
        )


class Variable(Tensor, metaclass=_VariableType):
    """A value with the rules of PyTorch up to 0.3: ``Variable(data, requires_grad, volatile)``.

    Results of operations on a Variable are Variables, and what would be 0-dim has shape ``(1,)``.
    ``volatile=True`` declares that nothing computed from it will be asked for gradients: no node is
    made and nothing is saved, whatever the parameters. Shares memory with ``data``.

    Raises:
        RuntimeError: both flags are True, or ``data`` is not a tensor or an array.
    """

    contagious = True

    def __new__(
        cls,
        data: Any = None,
        requires_grad: bool = False,
        volatile: bool = False,
        *args: Any,
        **named: Any,
    ) -> Any:
        self = Value.__new__(cls)
        if data is None:
            return self
        if requires_grad and volatile:
            raise RuntimeError("Variable can't be volatile and require_grad at the same time!")
        if isinstance(data, np.ndarray):
            data = creation.as_tensor(data)
        if not isinstance(data, Value):
            raise RuntimeError(f"Variable data has to be a tensor, but got {type(data).__name__}")
        for name, flag in (("requires_grad", requires_grad), ("volatile", volatile)):
            if not isinstance(flag, (bool, np.bool_)):
                raise RuntimeError(f"{name} must be a bool")
        array = data.array if data.shape else data.array.reshape(1)
        self._init(array, data.storage)
        self._volatile = bool(volatile)
        if requires_grad:
            self.requires_grad = True
        return self

    def __init__(self, *args: Any, **named: Any) -> None:
        """Everything is done in ``__new__``; subclasses may pass on extra arguments."""

    @property
    def volatile(self) -> bool:
        """Whether nothing that uses this value is recorded. True of gradients, which it does not
        affect."""
        return self._volatile or bool(self.__dict__.get("_is_gradient", False))

    @volatile.setter
    def volatile(self, value: bool) -> None:
        Tensor.volatile.fset(self, value)  # type: ignore[attr-defined]


class Parameter(Tensor):
    """A tensor that a Module registers and optimizers train: ``Parameter(data, requires_grad=True)``.

    Shares memory with ``data`` and counts in the ledger as ``parameter``.
    """

    def __new__(cls, data: Any = None, requires_grad: bool = True) -> Any:
        self = Value.__new__(cls)
        if data is None:
            return self
        if isinstance(data, np.ndarray):
            data = creation.as_tensor(data)
        if not isinstance(data, Value):
            raise TypeError(
                expected("Parameter", "a Tensor", "data", shown(data), "use numgrad.tensor(…)")
            )
        self._init(data.array, data.storage)
        if data.storage.owned:
            data.storage.move_to(PARAMETER)
        if requires_grad:
            self.requires_grad = True
        return self

    def __init__(self, *args: Any, **named: Any) -> None:
        """Everything is done in ``__new__``."""

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Parameter containing:\n{show(self)}"


def _variable_gradient(value: Any, shape: tuple[int, ...]) -> Variable:
    """A gradient as the ``.grad`` of a Variable: a Variable that reads as volatile."""
    out = Value.__new__(Variable)
    out._init(value.array.reshape(shape), value.storage, value.group)
    out.__dict__["_is_gradient"] = True
    return out  # type: ignore[return-value]


above.Tensor, above.Variable = Tensor, Variable
above.variable_gradient = _variable_gradient
