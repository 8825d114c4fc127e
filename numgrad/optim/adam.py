"""Adam and AdamW."""

from collections.abc import Iterable
from typing import Any

from ..graph import storage
from ..ops.elementwise import maximum
from ..tensor import Tensor
from .launching import Step, simple, zeros_of
from .optimizer import Optimizer, number, rate_of, refuse


class Adam(Optimizer):
    """Adam: steps of about lr, whatever the scale of the gradients.

    For a parameter p with gradient g, at step t = 1, 2, …, from m = v = 0::

        g = g + weight_decay · p
        m = β1 · m + (1 - β1) · g
        v = β2 · v + (1 - β2) · g²
        u = v, or with amsgrad the largest v so far
        p = p - lr / (1 - β1^t) · m / (sqrt(u) / sqrt(1 - β2^t) + eps)

    Args:
        params: parameters or groups; see `Optimizer`.
        lr: the learning rate, ≥ 0.
        betas: β1 and β2, each in [0, 1).
        eps: ≥ 0; keeps the quotient finite.
        weight_decay: the factor of the L2 penalty, ≥ 0.
        amsgrad: never divide by less than before.

    Raises:
        TypeError, ValueError: as `Optimizer`, and for options outside these bounds.

    Notes: D. P. Kingma, J. Ba, "Adam: a method for stochastic optimization" (ICLR 2015),
        algorithm 1; amsgrad: S. J. Reddi, S. Kale, S. Kumar, "On the convergence of Adam and
        beyond" (ICLR 2018), algorithm 2, with the bias corrected, as in PyTorch.
    """

    kept = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "amsgrad": amsgrad,
            },
        )

    def check(self, group: dict[str, Any]) -> None:
        what = type(self).__name__
        for name in ("lr", "eps", "weight_decay"):
            if not number(what, name, group[name]) >= 0:
                raise refuse(what, f"{name} >= 0", name, group[name], "pass 0 or more")
        betas = group["betas"]
        pair = isinstance(betas, (tuple, list)) and len(betas) == 2
        if not pair or not all(0 <= number(what, "betas", beta) < 1 for beta in betas):
            raise refuse(
                what, "two numbers in [0, 1)", "betas", betas, "pass for instance (0.9, 0.999)"
            )

    def _plan(self, group: dict[str, Any]) -> Step | None:
        return self._planned(group, group["weight_decay"], 0)

    def _planned(self, group: dict[str, Any], penalty: Any, decay: Any) -> Step | None:
        """The step, with ``penalty`` times the parameter as a part of its gradient, after ``lr``
        times ``decay`` of it was taken away."""
        (beta1, beta2), rate, eps = group["betas"], rate_of(group), group["eps"]
        if not simple(beta1, beta2, rate, eps, penalty, decay):
            return None
        names = ("exp_avg", "exp_avg_sq") + ("max_exp_avg_sq",) * bool(group["amsgrad"])

        def own(state: dict[str, Any]) -> tuple[float, float]:
            step = state.get("step", 0) + 1
            return -rate / (1 - beta1**step), (1 - beta2**step) ** 0.5

        shrink = 1 - rate * decay if decay else 1
        numbers = (penalty, shrink, 1 - beta1, beta2, 1 - beta2, eps)
        kernel = "adam_amsgrad" if len(names) == 3 else "adam"
        return Step(kernel, numbers, names, counted=True, own=own)

    def update(
        self, param: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        self.advance(param, grad, state, group, group["weight_decay"])

    def advance(
        self,
        param: Tensor,
        grad: Tensor,
        state: dict[str, Any],
        group: dict[str, Any],
        penalty: float,
    ) -> None:
        """The step, with ``penalty`` times the parameter as a part of its gradient."""
        beta1, beta2 = group["betas"]
        names = ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * bool(group["amsgrad"])
        zeros_of(param, state, names)
        step = state.get("step", 0) + 1
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        with storage.category(storage.WORKSPACE):
            if penalty:
                grad = grad.add(param, alpha=penalty)
            mean.lerp_(grad, 1 - beta1)
            square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            del grad  # with a penalty a temporary, whose memory the next one can have
            if group["amsgrad"]:
                largest = state["max_exp_avg_sq"]
                square = maximum.in_place(largest, square)
            denominator = square.sqrt().div_((1 - beta2**step) ** 0.5).add_(group["eps"])
            param.addcdiv_(mean, denominator, value=-rate_of(group) / (1 - beta1**step))
        state["step"] = step


class AdamW(Adam):
    """Adam with weight decay apart from the gradient.

    At each step ``p = p - lr · weight_decay · p``, then the step of `Adam` with ``weight_decay=0``.

    Args:
        params: parameters or groups; see `Optimizer`.
        lr: the learning rate, ≥ 0.
        betas: β1 and β2, each in [0, 1).
        eps: ≥ 0; keeps the quotient finite.
        weight_decay: how much of a parameter each step takes away, times lr; ≥ 0.
        amsgrad: never divide by less than before.

    Raises:
        TypeError, ValueError: as `Optimizer`, and for options outside these bounds.

    Notes: I. Loshchilov, F. Hutter, "Decoupled weight decay regularization" (ICLR 2019),
        algorithm 2, with the decay scaled by lr, as in PyTorch.
    """

    kept = Adam.kept

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad)

    def _plan(self, group: dict[str, Any]) -> Step | None:
        return self._planned(group, 0, group["weight_decay"])

    def update(
        self, param: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        if group["weight_decay"]:
            param.mul_(1 - rate_of(group) * group["weight_decay"])
        self.advance(param, grad, state, group, 0)
