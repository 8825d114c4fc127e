"""Networks that come with the package."""

from .digits import DigitsMLP

__all__ = ["DigitsMLP"]
