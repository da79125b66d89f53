"""Checkpoints of a run, written by Orbax: the central variable *and* the asynchrony around it."""

from gemjax.engines.running.checkpoints.checkpoints import Checkpoints
from gemjax.engines.running.checkpoints.errors import CheckpointError, CheckpointWriteError

__all__ = ["CheckpointError", "CheckpointWriteError", "Checkpoints"]
