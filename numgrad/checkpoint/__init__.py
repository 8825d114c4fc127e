"""Checkpoints: state dicts in files, read without running code and written whole or not at all."""

from .errors import CheckpointError
from .loading import load
from .saving import save

__all__ = ["CheckpointError", "load", "save"]
