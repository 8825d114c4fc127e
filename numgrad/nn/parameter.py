"""`Parameter`, from where PyTorch's users import it."""

from ..tensor import Parameter

__all__ = ["Parameter"]
