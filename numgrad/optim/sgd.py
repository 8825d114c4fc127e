"""Stochastic gradient descent."""

from collections.abc import Iterable
from typing import Any

from ..graph import storage
from ..ops.creation import empty_like
from ..tensor import Tensor
from .launching import Step, simple
from .optimizer import Optimizer, number, rate_of, refuse


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum.

    For a parameter p with gradient g, at each step::

        g = g + weight_decay · p
        b = g at the first step, else momentum · b + (1 - dampening) · g
        g = g + momentum · b if nesterov, else b
        p = p - lr · g

    without the lines for b if momentum is 0.

    Args:
        params: parameters or groups; see `Optimizer`.
        lr: the learning rate, ≥ 0.
        momentum: ≥ 0.
        dampening: how much less than whole a gradient enters b.
        weight_decay: the factor of the L2 penalty, ≥ 0.
        nesterov: look ahead along b; needs a momentum and no dampening.

    Raises:
        TypeError, ValueError: as `Optimizer`, and for options outside these bounds.

    Notes: I. Sutskever, J. Martens, G. Dahl, G. Hinton, "On the importance of initialization and
        momentum in deep learning" (ICML 2013). Unlike theirs, and as in PyTorch, the learning rate
        is applied to b and is no part of it.
    """

    kept = ("momentum_buffer",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
            },
        )

    def check(self, group: dict[str, Any]) -> None:
        for name in ("lr", "momentum", "weight_decay"):
            if not number("SGD", name, group[name]) >= 0:
                raise refuse("SGD", f"{name} >= 0", name, group[name], "pass 0 or more")
        number("SGD", "dampening", group["dampening"])
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError(
                "Nesterov momentum requires a momentum and zero dampening; SGD got "
                f"momentum={group['momentum']}, dampening={group['dampening']}"
            )

    def _plan(self, group: dict[str, Any]) -> Step | None:
        rate, momentum, decay = rate_of(group), group["momentum"], group["weight_decay"]
        if not simple(rate, momentum, decay, group["dampening"]):
            return None
        numbers = (-rate, decay, momentum, 1 - group["dampening"])
        if not momentum:
            return Step("sgd", numbers)
        kernel = "sgd_nesterov" if group["nesterov"] else "sgd_momentum"
        return Step(kernel, numbers, self.kept, empty_like, own=_first)

    def update(
        self, param: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        momentum = group["momentum"]
        with storage.category(storage.WORKSPACE):
            if group["weight_decay"]:
                grad = grad.add(param, alpha=group["weight_decay"])
            if momentum:
                buffer = state.get("momentum_buffer")
                if buffer is None:
                    buffer = empty_like(param).copy_(grad)
                    buffer.storage.move_to(storage.OPTIMIZER)
                else:
                    buffer.mul_(momentum).add_(grad, alpha=1 - group["dampening"])
                if not group["nesterov"]:
                    grad = buffer
                elif group["weight_decay"]:  # grad is a temporary already
                    grad.add_(buffer, alpha=momentum)
                else:
                    grad = grad.add(buffer, alpha=momentum)
        param.add_(grad, alpha=-rate_of(group))
        if momentum:
            state["momentum_buffer"] = buffer


def _first(state: dict[str, Any]) -> tuple[float, float]:
    """Whether this is the first step of a parameter, which writes the buffer."""
    return float(state.get("momentum_buffer") is None), 0
