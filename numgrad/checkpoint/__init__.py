"""Checkpoints: state dicts in files, read without running code and written whole or not at all."""

from .errors import CheckpointError
from .files import save
from .loading import load

__all__ = ["CheckpointError", "load", "save"]
