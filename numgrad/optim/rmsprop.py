"""RMSprop."""

from collections.abc import Iterable
from typing import Any

from ..graph import storage
from ..tensor import Tensor
from .launching import Step, simple, zeros_of
from .optimizer import Optimizer, number, rate_of, refuse


class RMSprop(Optimizer):
    """RMSprop: gradients divided by the root of a running mean of their squares.

    For a parameter p with gradient g, at each step, from v = a = b = 0::

        g = g + weight_decay · p
        v = alpha · v + (1 - alpha) · g²
        a = alpha · a + (1 - alpha) · g, with centered; then u = v - a², else u = v
        b = momentum · b + g / (sqrt(u) + eps)
        p = p - lr · b

    Args:
        params: parameters or groups; see `Optimizer`.
        lr: the learning rate, ≥ 0.
        alpha: how much of a mean the next step keeps, ≥ 0.
        eps: ≥ 0; keeps the quotient finite.
        weight_decay: the factor of the L2 penalty, ≥ 0.
        momentum: ≥ 0.
        centered: divide by the deviation instead: the mean of the gradients is taken off.

    Raises:
        TypeError, ValueError: as `Optimizer`, and for options outside these bounds.

    Notes: T. Tieleman, G. Hinton, "Lecture 6.5: rmsprop" (COURSERA, 2012); centered: A. Graves,
        "Generating sequences with recurrent neural networks" (2013), eq. 38 to 45. Unlike there,
        and as in PyTorch, eps is added after the root.
    """

    kept = ("square_avg", "momentum_buffer", "grad_avg")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "alpha": alpha,
                "eps": eps,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "centered": centered,
            },
        )

    def check(self, group: dict[str, Any]) -> None:
        for name in ("lr", "alpha", "eps", "weight_decay", "momentum"):
            if not number("RMSprop", name, group[name]) >= 0:
                raise refuse("RMSprop", f"{name} >= 0", name, group[name], "pass 0 or more")

    def _plan(self, group: dict[str, Any]) -> Step | None:
        rate, alpha, eps = rate_of(group), group["alpha"], group["eps"]
        momentum, decay = group["momentum"], group["weight_decay"]
        if not simple(rate, alpha, eps, momentum, decay):
            return None
        centered = bool(group["centered"])
        names = (
            "square_avg",
            "momentum_buffer" if momentum > 0 else "",
            "grad_avg" if centered else "",
        )

        kernel = "rmsprop" + "_momentum" * (momentum > 0) + "_centered" * centered
        numbers = (-rate, decay, alpha, 1 - alpha, eps, momentum)
        return Step(kernel, numbers, names, counted=True)

    def update(
        self, param: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        alpha, momentum = group["alpha"], group["momentum"]
        names = ["square_avg"] + ["momentum_buffer"] * (momentum > 0)
        names += ["grad_avg"] * bool(group["centered"])
        zeros_of(param, state, names)
        square = state["square_avg"]
        with storage.category(storage.WORKSPACE):
            if group["weight_decay"]:
                grad = grad.add(param, alpha=group["weight_decay"])
            square.mul_(alpha).addcmul_(grad, grad, value=1 - alpha)
            if group["centered"]:
                mean = state["grad_avg"]
                mean.lerp_(grad, 1 - alpha)
                square = square.addcmul(mean, mean, value=-1)
            root = square.sqrt().add_(group["eps"])
        if momentum > 0:
            buffer = state["momentum_buffer"]
            buffer.mul_(momentum).addcdiv_(grad, root)
            param.add_(buffer, alpha=-rate_of(group))
        else:
            param.addcdiv_(grad, root, value=-rate_of(group))
        state["step"] = state.get("step", 0) + 1
