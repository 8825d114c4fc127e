"""`Optimizer`: parameter groups, state a parameter, and their state dict."""

import numbers
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar

import numpy as np

from ..graph import storage
from ..graph.apply import make
from ..graph.errors import expected, shown, warn_user
from ..graph.mode import enable_grad, no_grad
from ..ops.creation import tensor
from ..tensor import Tensor
from . import launching


class Optimizer:
    """Base of all optimizers.

    A subclass defines ``update(parameter, grad, state, group)``, which changes one parameter in
    place and runs under ``no_grad``. Those of numgrad also ``_plan`` one launch for all parameters
    of a group whose memory is contiguous and apart; the others go through ``update``, to the same
    bits.

    Args:
        params: tensors, or dicts with a list of tensors under ``params`` and options of their own.
        defaults: the options of groups that do not give them.

    ``param_groups`` is a list of dicts; changing an option there, such as ``lr``, takes effect at
    the next step. ``state`` maps parameters to dicts. A parameter whose ``requires_grad`` is False
    at a step is skipped whole, weight decay included, and so is one without gradient.

    A step that raises before parameters are changed leaves ``state`` as it was. One that a signal
    interrupts (Ctrl-C) may have changed some parameters and not others, each with its state or, if
    it went through ``update``, perhaps a part of it: load a checkpoint if the run is to go on to
    the same bits.

    Raises:
        TypeError: params is one tensor, has no order, or holds something else than tensors.
        ValueError: params is empty; a parameter requires no gradient, is no leaf, or is in two
            groups; an option is missing.
    """

    state: "defaultdict[Any, dict[str, Any]]"
    param_groups: list[dict[str, Any]]
    stepped = False
    """Whether ``step`` was called: learning-rate schedules ask."""
    kept: ClassVar[tuple[str, ...]] = ()
    """Names of the tensors that ``update`` keeps in the state, if the class itself tells them, that
    which is always there first: by these the state of another kind of optimizer is refused."""

    _planned_update: ClassVar[bool] = False
    """Whether ``_plan`` says what ``update`` does: no class before it in the order of inheritance
    has an ``update`` or ``advance`` of its own."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        order = cls.__mro__

        def first(name: str) -> int:
            return next((i for i, c in enumerate(order) if name in vars(c)), len(order))

        cls._planned_update = first("_plan") <= min(first("update"), first("advance"))

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.state = defaultdict(dict)
        self.param_groups = []
        if isinstance(params, Tensor) or not isinstance(params, Iterable):
            raise TypeError(
                f"{type(self).__name__}: expected an iterable of tensors or dicts for params, got "
                f"{shown(params)}; pass {_way_out(params)}"
            )
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        if not isinstance(groups[0], dict):
            if isinstance(params, (set, frozenset)):
                raise TypeError(_unordered(type(self).__name__))
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own, for instance when layers are unfrozen.

        Args:
            param_group: tensors, or one tensor, under ``params``; options under their names.

        Raises:
            TypeError, ValueError: as the constructor.
        """
        what = type(self).__name__
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        if "params" not in param_group:
            raise ValueError(
                f"{what}: expected the key 'params' for a group, got {list(param_group)}; "
                "put the list of tensors there"
            )
        group = dict(param_group)
        params = group["params"]
        if isinstance(params, (set, frozenset)):
            raise TypeError(_unordered(what))
        if not isinstance(params, Iterable):
            raise TypeError(
                f"{what}: expected tensors for params, got {shown(params)}; pass {_way_out(params)}"
            )
        group["params"] = params = [params] if isinstance(params, Tensor) else list(params)
        for i, param in enumerate(params):
            if not isinstance(param, Tensor):
                raise TypeError(
                    f"{what}: expected tensors for params, got {shown(param)} at {i}; "
                    "pass module.parameters()"
                )
            if not param.is_leaf:
                raise ValueError(
                    f"can't optimize a non-leaf Variable; {what} got one of shape "
                    f"{tuple(param.shape)} at {i}: pass the tensor it was computed from"
                )
            if not param.requires_grad:
                raise ValueError(
                    f"optimizing a parameter that doesn't require gradients; {what} got one of "
                    f"shape {tuple(param.shape)} at {i}: pass "
                    "filter(lambda p: p.requires_grad, module.parameters())"
                )
        for name, default in self.defaults.items():
            group.setdefault(name, default)
        self.check(group)
        ids = [id(param) for param in params]
        if len(set(ids)) != len(ids):
            warn_user(
                f"{what}: expected each parameter once for params, got one twice; it is updated "
                "twice a step",
            )
        if {id(p) for other in self.param_groups for p in other["params"]} & set(ids):
            raise ValueError("some parameters appear in more than one parameter group")
        self.param_groups.append(group)

    def check(self, group: dict[str, Any]) -> None:
        """Raise ValueError if an option of a group has no meaning. For subclasses to define."""

    # ---------------------------------------------------------------------------------------- step

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all parameters, or with ``set_to_none=False`` fill them with 0."""
        for group in self.param_groups:
            for param in group["params"]:
                grad = param.grad
                if grad is not None:
                    if set_to_none:
                        param.grad = None
                    else:
                        if grad.grad_fn is not None:
                            grad.detach_()
                        grad.zero_()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change the parameters once.

        Args:
            closure: a function that computes the loss anew, with its gradients; called once.

        Returns:
            What closure returned, else None.
        """
        self.stepped = True
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        with no_grad():
            for group in self.param_groups:
                self._step_group(group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        params: Sequence[Any] = [
            p for p in group["params"] if p.requires_grad and p.grad is not None
        ]
        own = {"update", "advance"} & vars(self).keys()  # of this object alone
        planned = self._plan(group) if self._planned_update and not own else None
        if planned is not None:
            params = launching.update(f"{type(self).__name__}.step", planned, self.state, params)
        for param in params:
            self.update(param, plain(param.grad, param.shape), self.state[param], group)

    def _plan(self, group: dict[str, Any]) -> "launching.Step | None":
        """How a kernel does what ``update`` does, to all parameters of a group at once; None if it
        cannot. Only asked of the class that defines ``update``: a subclass with an ``update`` of
        its own is not bypassed."""
        return None

    def update(
        self, param: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        """Change one parameter in place. For subclasses to define."""
        raise NotImplementedError

    # --------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """The state by number: parameters count from 0 through all groups.

        ``{"state": {0: {…}, …}, "param_groups": [{"lr": …, "params": [0, 1]}, …]}``. The tensors
        share the optimizer's memory.
        """
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for param in group["params"]:
                numbers.setdefault(id(param), len(numbers))
            packed = {name: value for name, value in group.items() if name != "params"}
            packed["params"] = [numbers[id(param)] for param in group["params"]]
            groups.append(packed)
        state = {}
        for key, value in self.state.items():
            # A default dict, and step() looks parameters up: those that keep nothing are left out.
            if value:
                state[numbers[id(key)] if isinstance(key, Tensor) else key] = dict(value)
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the state and the options of a state dict, by the numbers of parameters.

        Tensors and arrays are copied; those of floating-point parameters are converted to their
        dtype. All is checked first: a load that raises changes nothing.

        Raises:
            TypeError: state_dict is no dict of ``state`` and ``param_groups``, or these hold
                something else than an optimizer puts there.
            ValueError: the groups or their sizes are not those of this optimizer, an option is out
                of bounds, a tensor has not the shape of its parameter, or it is another kind of
                optimizer's.
        """
        what = f"{type(self).__name__}.load_state_dict"
        _check_layout(what, state_dict)
        saved = state_dict["param_groups"]
        if len(saved) != len(self.param_groups):
            raise ValueError(
                "loaded state dict has a different number of parameter groups: "
                f"{len(saved)}, the optimizer has {len(self.param_groups)}"
            )
        owners: dict[Any, Tensor] = {}
        groups = []
        for i, (old, new) in enumerate(zip(self.param_groups, saved, strict=True)):
            if len(old["params"]) != len(new["params"]):
                raise ValueError(
                    "loaded state dict contains a parameter group that doesn't match the size of "
                    f"optimizer's group: group {i} has {len(new['params'])} parameters, the "
                    f"optimizer's has {len(old['params'])}"
                )
            owners.update(zip(new["params"], old["params"], strict=True))
            # Options that the file does not know keep their value here.
            group = {**old, **deepcopy({k: v for k, v in new.items() if k != "params"})}
            self.check(group)
            groups.append(group)
        state: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        with no_grad(), storage.category(storage.OPTIMIZER):
            for key, values in state_dict["state"].items():
                if key in owners:
                    state[owners[key]] = self.adopt(owners[key], values)
                else:
                    state[key] = deepcopy(values)
        self.state, self.param_groups = state, groups

    def adopt(self, param: Tensor, values: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of a parameter's loaded state: its tensors in the parameter's dtype and place.

        Raises:
            TypeError: values is no dict.
            ValueError: a tensor has not the shape of the parameter, or a name that no tensor of
                this kind of optimizer has.
        """
        what = f"{type(self).__name__}.load_state_dict"
        if not isinstance(values, Mapping):
            way = "pass what state_dict() returned"
            raise TypeError(expected(what, "a dict a parameter", "state", shown(values), way))
        kept = vars(type(self)).get("kept", ())  # not inherited: users' own may keep more
        state: dict[str, Any] = {}
        for name, value in values.items():
            if isinstance(value, (np.ndarray, np.generic)):
                value = tensor(value)
            if name == "step" and isinstance(value, Tensor):  # as PyTorch keeps it
                value = int(value.item())
            if isinstance(value, Tensor):
                if kept and (name not in kept or kept[0] not in values):
                    way = f"load the state of an optimizer of the kind {type(self).__name__}"
                    raise ValueError(expected(what, ", ".join(kept), "state", repr(name), way))
                shapes = {tuple(value.shape), tuple(param.shape)}
                if len(shapes) > 1 and shapes != {(), (1,)}:
                    raise ValueError(
                        f"{what}: expected shape {tuple(param.shape)} for {name}, got "
                        f"{tuple(value.shape)}; load the state of an optimizer of the same "
                        "parameters in the same order"
                    )
                dtype = param.dtype if param.dtype.kind == "f" else value.dtype
                value = plain(value.to(param.device).to(dtype), param.shape).clone()
            else:
                value = deepcopy(value)
            state[name] = value
        return state

    def __getstate__(self) -> dict[str, Any]:
        return {
            "defaults": self.defaults,
            "state": self.state,
            "param_groups": self.param_groups,
        }

    def __repr__(self) -> str:
        text = f"{type(self).__name__} ("
        for i, group in enumerate(self.param_groups):
            text += f"\nParameter Group {i}"
            for name, value in sorted(OrderedDict(group).items()):
                if name != "params":
                    text += f"\n    {name}: {value}"
        return text + "\n)"


def _check_layout(what: str, state_dict: Any) -> None:
    """Raise TypeError unless ``state_dict`` is built as ``state_dict()`` builds it."""
    way = "pass what state_dict() returned"
    if not _is_state_dict(state_dict):
        got = shown(state_dict)
        if isinstance(state_dict, Mapping):
            got = f"one of {', '.join(map(repr, list(state_dict)[:5])) or 'nothing'}"
            # A training script's whole checkpoint?
            keys = [f"state_dict[{k!r}]" for k, v in state_dict.items() if _is_state_dict(v)]
            way = f"pass {' or '.join(keys)}" if keys else way
        kind = "a dict of 'state' and 'param_groups'"
        raise TypeError(expected(what, kind, "state_dict", got, way))
    state, groups = state_dict["state"], state_dict["param_groups"]
    if not isinstance(state, Mapping):
        raise TypeError(expected(what, "a dict", "state", shown(state), way))
    if not isinstance(groups, (list, tuple)):
        raise TypeError(expected(what, "a list", "param_groups", shown(groups), way))
    for group in groups:
        params = group.get("params") if isinstance(group, Mapping) else None
        if not isinstance(params, (list, tuple)):
            kind = "a list of numbers under 'params'"
            raise TypeError(expected(what, kind, "param_groups", shown(group), way))


def _is_state_dict(value: Any) -> bool:
    return isinstance(value, Mapping) and {"state", "param_groups"} <= value.keys()


def plain(value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The memory of a gradient or a state as a Tensor without history, volatile or Variable."""
    result: Tensor = make(value.array.reshape(shape), value.storage, group=value.group)
    return result


def _way_out(params: Any) -> str:
    return "module.parameters()" if hasattr(params, "parameters") else "a list of tensors"


def _unordered(what: str) -> str:
    return (
        f"{what}: expected an ordered collection for params, got a set, whose order changes from "
        "run to run; pass a list"
    )


def rate_of(group: dict[str, Any]) -> Any:
    """The learning rate as a number: a tensor's may be on another device than the parameters."""
    lr = group["lr"]
    return lr.item() if isinstance(lr, Tensor) else lr


def number(what: str, name: str, value: Any) -> Any:
    """``value`` if it is a number or a tensor. Raises TypeError otherwise."""
    if not isinstance(value, (numbers.Real, Tensor)):
        raise TypeError(f"{what}: expected a number for {name}, got {shown(value)}; pass a float")
    return value


def refuse(what: str, expected: str, name: str, value: Any, way_out: str) -> ValueError:
    """The error for an option without meaning."""
    return ValueError(f"{what}: expected {expected} for {name}, got {value!r}; {way_out}")
