"""Checkpoints of a run, written by Orbax: the central variable *and* the asynchrony around it."""

from gemjax.checkpoints.checkpoints import Checkpoints
from gemjax.checkpoints.contents import FORMAT as FORMAT
from gemjax.checkpoints.contents import KINDS as KINDS
from gemjax.checkpoints.errors import CheckpointError, CheckpointWriteError

__all__ = ["CheckpointError", "CheckpointWriteError", "Checkpoints"]
