"""`Module`: parameters, buffers and child modules under names, and a ``forward``."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from ..graph.errors import DeviceError
from ..graph.value import HookHandle
from ..tensor import Tensor
from ..variable import Parameter
from . import hooks as _hooks
from . import state as _state
from .casting import Casting
from .registry import as_buffer, name_strays, typename, warn_unregistered
from .state import IncompatibleKeys

M = TypeVar("M", bound="Module")

NO_INIT = "call super().__init__() at the start of {}.__init__"


class Frozen:
    """What ``unfreeze`` puts back: the parameters turned off, and the mode asked for since."""

    def __init__(self, training: bool) -> None:
        self.names: set[str] = set()
        self.training = training


class Module(Casting):
    """Base of all layers and networks.

    A subclass calls ``super().__init__()``, assigns layers and parameters to attributes, and
    defines ``forward``. Assigning a `Parameter` or a `Module` registers it under the attribute's
    name, so that `parameters`, `state_dict`, `to` and `train` reach it.

    Raises:
        TypeError: something else is assigned to the name of a parameter, a module or a buffer.
        AttributeError: a parameter or module is assigned before ``super().__init__()``, or
            ``module.requires_grad`` is assigned (use ``module.requires_grad_(False)``).

    A plain list, tuple or dict of modules or parameters is not registered; assigning one warns.
    """

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, "Module | None"]
    _unsaved: set[str]
    _pre_hooks: "OrderedDict[int, Any]"
    _post_hooks: "OrderedDict[int, Any]"
    _frozen: Frozen | None

    def __init__(self) -> None:
        put = super().__setattr__
        put("training", True)
        put("_parameters", {})
        put("_buffers", {})
        put("_modules", {})
        put("_unsaved", set())  # names of buffers that are not in the state dict
        put("_pre_hooks", OrderedDict())
        put("_post_hooks", OrderedDict())
        put("_frozen", None)

    # ------------------------------------------------------------------------------------- calling

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The computation. A subclass defines it; users call the module itself."""
        raise NotImplementedError(
            f'Module [{type(self).__name__}] is missing the required "forward" function'
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._pre_hooks:
            args, kwargs = _hooks.run_pre(self._pre_hooks, self, args, kwargs)
        try:
            out = self.forward(*args, **kwargs)
        except DeviceError as error:
            name_strays(self, error, Module)
            raise
        if self._post_hooks:
            out = _hooks.run_post(self._post_hooks, self, args, kwargs, out)
        return out

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> HookHandle:
        """Call ``hook(module, args)`` before each ``forward``; what it returns replaces args.

        With ``with_kwargs`` it is ``hook(module, args, kwargs)``, which returns None or both. The
        handle's ``remove()`` takes the hook away.
        """
        name = "register_forward_pre_hook"
        return _hooks.register(self._pre_hooks, name, hook, prepend, with_kwargs)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> HookHandle:
        """Call ``hook(module, args, out)`` after each ``forward``; what it returns replaces out.

        With ``with_kwargs`` it is ``hook(module, args, kwargs, out)``. The handle's ``remove()``
        takes the hook away.
        """
        name = "register_forward_hook"
        return _hooks.register(self._post_hooks, name, hook, prepend, with_kwargs)

    # ---------------------------------------------------------------------------------- attributes

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        if "_parameters" not in own:
            message = f"'{type(self).__name__}' object has no attribute '{name}'"
            if not name.startswith("__"):
                message += "; " + NO_INIT.format(type(self).__name__)
            raise AttributeError(message, name=name)
        found = own["_parameters"]  # written out: every layer of every pass comes through here
        if name in found:
            return found[name]
        found = own["_buffers"]
        if name in found:
            return found[name]
        found = own["_modules"]
        if name in found:
            return found[name]
        raise AttributeError(
            f"'{type(self).__name__}' object has no attribute '{name}'", name=name, obj=self
        )

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        if isinstance(value, (Parameter, Module)):
            kind = "_parameters" if isinstance(value, Parameter) else "_modules"
            if "_parameters" not in own:
                what = "parameters" if kind == "_parameters" else "module"
                raise AttributeError(
                    f"cannot assign {what} before Module.__init__() call; "
                    + NO_INIT.format(type(self).__name__)
                )
            self._forget(name, keep=kind)
            own[kind][name] = value
            return
        if "_parameters" in own:
            for kind, wanted, base in (
                ("_parameters", "parameter '{}' (torch.nn.Parameter or None expected)", None),
                ("_modules", "child module '{}' (torch.nn.Module or None expected)", None),
                ("_buffers", "buffer '{}' (torch.Tensor or None expected)", Tensor),
            ):
                if name in own[kind]:
                    if value is not None and (base is None or not isinstance(value, base)):
                        raise TypeError(
                            f"cannot assign '{typename(value)}' as " + wanted.format(name)
                        )
                    own[kind][name] = as_buffer(value) if base is Tensor else value
                    return
            if type(value) in (list, tuple, dict):
                warn_unregistered(self, name, value, Module)
        if name == "requires_grad":
            raise AttributeError(
                f"{type(self).__name__}: expected a call for requires_grad, got an assignment, "
                f"which would change no parameter; use module.requires_grad_({value!r})"
            )
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        own = self.__dict__
        for kind in ("_parameters", "_buffers", "_modules"):
            if name in own.get(kind, ()):
                del own[kind][name]
                own["_unsaved"].discard(name)
                return
        super().__delattr__(name)

    def _forget(self, name: str, keep: str) -> None:
        """Remove what bears the name, except in the registry ``keep``, whose order stays."""
        own = self.__dict__
        own.pop(name, None)
        for kind in ("_parameters", "_buffers", "_modules"):
            if kind != keep:
                own[kind].pop(name, None)
        own["_unsaved"].discard(name)

    def __dir__(self) -> list[str]:
        own = self.__dict__
        names = set(super().__dir__())
        for kind in ("_parameters", "_buffers", "_modules"):
            names.update(own.get(kind, ()))
        return sorted(name for name in names if not name[:1].isdigit())

    def _check_name(self, what: str, name: Any, registry: Mapping[str, Any]) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{what} name should be a string. Got {typename(name)}")
        if "." in name:
            raise KeyError(f'{what} name can\'t contain "."; got {name!r}')
        if not name:
            raise KeyError(f'{what} name can\'t be empty string ""')
        if hasattr(self, name) and name not in registry:
            raise KeyError(f"attribute {name!r} already exists")

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter under a name; None reserves the name for one.

        Raises:
            TypeError: param is neither a `Parameter` nor None.
            KeyError: the name is empty, has a dot or is taken.
        """
        self._check_registry("register_parameter")
        self._check_name("parameter", name, self._parameters)
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign '{typename(param)}' object to parameter '{name}' "
                "(torch.nn.Parameter or None required)"
            )
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that belongs to the module's state and is not trained.

        It moves with the module and is saved with it, unless ``persistent`` is False. A `Variable`
        or a volatile tensor is kept as a plain `Tensor` of the same memory.

        Raises:
            TypeError: tensor is neither a `Tensor` nor None.
            KeyError: the name is empty, has a dot or is taken.
        """
        self._check_registry("register_buffer")
        self._check_name("buffer", name, self._buffers)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign '{typename(tensor)}' object to buffer '{name}' "
                "(torch Tensor or None required)"
            )
        self._buffers[name] = as_buffer(tensor)
        (self._unsaved.discard if persistent else self._unsaved.add)(name)

    def add_module(self, name: str, module: "Module | None") -> None:
        """Add a child module under a name; None reserves the name for one.

        Raises:
            TypeError: module is neither a `Module` nor None.
            KeyError: the name is empty, has a dot or is taken.
        """
        self._check_registry("add_module")
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{typename(module)} is not a Module subclass")
        self._check_name("module", name, self._modules)
        self._modules[name] = module

    register_module = add_module

    def _check_registry(self, call: str) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(
                f"{call}: expected a call after Module.__init__() for self, got one before it; "
                + NO_INIT.format(type(self).__name__)
            )

    # ------------------------------------------------------------------------------------ walking

    def named_modules(
        self, memo: "set[Module] | None" = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, "Module"]]:
        """``(name, module)`` of this module (by the name ``prefix``) and all below it."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                below = f"{prefix}.{name}" if prefix else name
                yield from module.named_modules(memo, below, remove_duplicate)

    def modules(self) -> Iterator["Module"]:
        """This module and all below it, each once."""
        for _, module in self.named_modules():
            yield module

    def named_children(self) -> Iterator[tuple[str, "Module"]]:
        """``(name, module)`` of the modules directly below, each once."""
        memo: set[Module] = set()
        for name, module in self._modules.items():
            if module is not None and module not in memo:
                memo.add(module)
                yield name, module

    def children(self) -> Iterator["Module"]:
        """The modules directly below, each once."""
        for _, module in self.named_children():
            yield module

    def _members(
        self, kind: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        memo: set[int] = set()
        owners: Iterator[tuple[str, Module]] = (
            self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
            if recurse
            else iter([(prefix, self)])
        )
        for owner, module in owners:
            for name, value in getattr(module, kind).items():
                if value is None or id(value) in memo:
                    continue
                if remove_duplicate:
                    memo.add(id(value))
                yield (f"{owner}.{name}" if owner else name), value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """``(name, parameter)`` of this module and, with ``recurse``, of all below it."""
        return self._members("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters of this module and, with ``recurse``, of all below it, each once."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """``(name, buffer)`` of this module and, with ``recurse``, of all below it."""
        return self._members("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers of this module and, with ``recurse``, of all below it, each once."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def get_submodule(self, target: str) -> "Module":
        """The module of a dotted name; the module itself for the empty name.

        Raises:
            AttributeError: there is no such module.
        """
        module: Module = self
        for name in target.split(".") if target else ():
            child = module._modules.get(name)
            if child is None:
                raise AttributeError(f"{type(module).__name__} has no module {name!r}")
            module = child
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The parameter of a dotted name. Raises AttributeError if there is none."""
        return self._get("_parameters", target)

    def get_buffer(self, target: str) -> Tensor:
        """The buffer of a dotted name. Raises AttributeError if there is none."""
        return self._get("_buffers", target)

    def _get(self, kind: str, target: str) -> Any:
        owner, _, name = target.rpartition(".")
        module = self.get_submodule(owner)
        value = getattr(module, kind).get(name)
        if value is None:
            raise AttributeError(f"{type(module).__name__} has no {kind[1:-1]} {name!r}")
        return value

    def apply(self: M, fn: Callable[["Module"], Any]) -> M:
        """Call ``fn(module)`` for all modules below and for this one, which is returned."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    # --------------------------------------------------------------------------------------- modes

    def train(self: M, mode: bool = True) -> M:
        """Put this module and all below it in training mode; frozen ones stay in eval mode.

        Raises:
            ValueError: mode is not a bool.
        """
        if not isinstance(mode, bool):
            raise ValueError(f"training mode is expected to be boolean, got {mode!r}")
        if self._frozen is not None:
            self._frozen.training = mode
        self.training = mode and self._frozen is None
        for module in self.children():
            module.train(mode)
        return self

    def eval(self: M) -> M:
        """Put this module and all below it in evaluation mode."""
        return self.train(False)

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        """Set ``requires_grad`` of all parameters."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def freeze(self: M) -> M:
        """Stop training: no parameter requires a gradient, and eval mode stays through `train`.

        So running statistics and dropout stand still, too, whatever is called on a module above.
        """
        for module in self.modules():
            if module._frozen is None:
                module._frozen = Frozen(module.training)
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.requires_grad:
                    parameter.requires_grad_(False)
                    module._frozen.names.add(name)
            module.training = False
        return self

    def unfreeze(self: M) -> M:
        """Undo `freeze`: parameters that it turned off require gradients again.

        The mode becomes the one that was last asked for with `train` or `eval`.
        """
        for module in self.modules():
            frozen = module._frozen
            if frozen is not None:
                module._frozen = None
                module.training = frozen.training
                for name in frozen.names:
                    parameter = module._parameters.get(name)
                    if parameter is not None:
                        parameter.requires_grad_(True)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all parameters, or with ``set_to_none=False`` fill them with 0."""
        for parameter in self.parameters():
            grad = parameter.grad
            if grad is not None:
                if set_to_none:
                    parameter.grad = None
                else:
                    if grad.grad_fn is not None:
                        grad.detach_()
                    grad.zero_()

    # --------------------------------------------------------------------------------------- state

    def state_dict(
        self,
        destination: "OrderedDict[str, Any] | None" = None,
        prefix: str = "",
        keep_vars: bool = False,
    ) -> "OrderedDict[str, Any]":
        """Parameters and buffers by dotted names, in the order of registration.

        The values share the module's memory and have no history; with ``keep_vars`` they are the
        parameters and buffers themselves.
        """
        state: OrderedDict[str, Any] = OrderedDict() if destination is None else destination
        for name, parameter in self._parameters.items():
            if parameter is not None:
                state[prefix + name] = parameter if keep_vars else parameter.detach()
        for name, buffer in self._buffers.items():
            if buffer is not None and name not in self._unsaved:
                state[prefix + name] = buffer if keep_vars else buffer.detach()
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(state, f"{prefix}{name}.", keep_vars)
        return state

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> IncompatibleKeys:
        """Copy parameters and buffers from a state dict, by name.

        Everything is checked before anything is copied: a load that raises changes nothing. Values
        may be tensors or NumPy arrays of any numeric dtype, also of the module's own memory: all
        are taken as they were before. ``num_batches_tracked`` may be missing or too many. What a
        wrapper has put before all names, such as ``module.``, is taken off, with a warning.

        Args:
            state_dict: names to values.
            strict: whether missing and unexpected names are an error. Wrong shapes always are.

        Returns:
            The missing and the unexpected names.

        Raises:
            StateDictError: the names or shapes do not fit; it lists all that do not. Or state_dict
                is a checkpoint with the state dict in it; it says where. It is both a KeyError and
                a RuntimeError.
        """
        return _state.load(self, state_dict, strict)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Modules pickled by an earlier version may lack what this one has.
        Module.__init__(self)
        self.__dict__.update(state)

    # ---------------------------------------------------------------------------------------- repr

    def extra_repr(self) -> str:
        """What stands between the brackets of the repr, for subclasses to define."""
        return ""

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        if len(lines) == 1 and not self._modules:
            return f"{self._get_name()}({extra})"
        for name, module in self._modules.items():
            lines.append(f"({name}): " + repr(module).replace("\n", "\n  "))
        body = "".join(f"\n  {line}" for line in lines)
        return f"{self._get_name()}({body}\n)" if lines else f"{self._get_name()}()"
