"""Clipping of gradients. It changes them in place and takes no part in a graph."""

import math
from collections.abc import Iterable

from ...graph.apply import make
from ...graph.errors import warn_user
from ...graph.mode import no_grad
from ...ops.creation import tensor
from ...ops.elementwise import hardtanh
from ...ops.reduction import length_of, norm
from ...tensor import Tensor
from .vector import tensors_of


def _gradients(op: str, parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """The gradients there are, their memory as plain tensors."""
    if isinstance(parameters, Tensor):
        parameters = [parameters]
    found = [p.grad for p in tensors_of(op, parameters)]
    grads = [grad for grad in found if grad is not None]
    return [make(g.array, g.storage, group=g.group) for g in grads]


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients by ``max_norm / (norm + 1e-6)`` if that is below 1.

    Args:
        parameters: one or several; those without gradient do not count.
        max_norm: the largest norm allowed.
        norm_type: p of the norm ``(Σ |g|^p)^(1/p)`` of all gradients as one vector; ``inf`` for the
            largest.
        error_if_nonfinite: raise if the norm is infinite or nan, instead of scaling by 0 or nan.
        foreach: taken for PyTorch's sake, and not used.

    Returns:
        The norm before, 0-dim: float64 if a gradient is.

    Raises:
        TypeError: parameters are no tensors.
        RuntimeError: the norm is not finite and error_if_nonfinite; nothing is changed.
    """
    grads = _gradients("clip_grad_norm_", parameters)
    max_norm, norm_type = float(max_norm), float(norm_type)
    dtype = "float64" if any(g.dtype == "float64" for g in grads) else "float32"
    with no_grad():
        if norm_type == 2:
            total = length_of(grads)
        else:
            norms = [float(norm(g, norm_type)) for g in grads if g.numel()] or [0.0]
            total = float(norm(tensor(norms, dtype="float64"), norm_type))
        if error_if_nonfinite and not math.isfinite(total):
            raise RuntimeError(
                f"The total norm of order {norm_type} for gradients from `parameters` is "
                "non-finite, so it cannot be clipped. To disable this error and scale the "
                "gradients by the non-finite norm anyway, set `error_if_nonfinite=False`"
            )
        factor = max_norm / (total + 1e-6)
        if not factor >= 1:  # nan too
            for g in grads:
                g.mul_(factor)
        return tensor(total, dtype=dtype, device=grads[0].device if grads else None)


def clip_grad_norm(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """`clip_grad_norm_` by its name before PyTorch 0.4; warns."""
    warn_user("nn.utils.clip_grad_norm is now deprecated in favor of nn.utils.clip_grad_norm_.")
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


def clip_grad_value_(
    parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None
) -> None:
    """Cut all elements of all gradients to ``[-clip_value, clip_value]``; nan stays.

    Args:
        parameters: one or several; those without gradient do not count.
        clip_value: the bound.
        foreach: taken for PyTorch's sake, and not used.

    Raises:
        TypeError: parameters are no tensors.
    """
    bound = float(clip_value)
    with no_grad():
        for g in _gradients("clip_grad_value_", parameters):
            hardtanh.in_place(g, -bound, bound)
