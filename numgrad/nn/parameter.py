"""`Parameter`, from where PyTorch's users import it."""

from ..variable import Parameter

__all__ = ["Parameter"]
