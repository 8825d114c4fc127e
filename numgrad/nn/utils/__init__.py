"""Helpers for training: gradient clipping, and parameters as one vector."""

from .clip import clip_grad_norm, clip_grad_norm_, clip_grad_value_
from .vector import parameters_to_vector, vector_to_parameters

__all__ = [
    "clip_grad_norm",
    "clip_grad_norm_",
    "clip_grad_value_",
    "parameters_to_vector",
    "vector_to_parameters",
]
