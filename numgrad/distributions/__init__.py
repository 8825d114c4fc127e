"""Probability distributions whose samples and densities take part in graphs."""

from .normal import Normal

__all__ = ["Normal"]
