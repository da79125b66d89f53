"""The checkpoints of a run."""

import contextlib
import os
import re
from pathlib import Path

from gemjax import CheckpointError, Checkpoints
from gemjax.checkpoints.folder import LOCK

CHECKPOINT = re.compile(r"(\.replaced-)?\d+")  # Folder of a checkpoint, also of one whose replacement is not complete.


class Saved:
    """Folder of the checkpoints, which may be missing or empty.

    Args:
      path: the folder.
    """

    def __init__(self, path: Path):
        self.path = path

    def open(self, keep: int = 2, *, read_only: bool = False) -> Checkpoints:
        """Open the checkpoints, of which the newest are kept, or all if `keep` is 0."""
        return Checkpoints(self.path.absolute(), keep or None, read_only=read_only)

    def newest(self, opened: Checkpoints | None = None) -> str:
        """Say of how many commits the newest checkpoint is; `opened` are the checkpoints if they are open already."""
        try:
            with contextlib.nullcontext(opened) if opened else self.open(read_only=True) as checkpoints:
                found = checkpoints.latest
        except (CheckpointError, OSError) as error:
            return str(error)
        return "there is no checkpoint" if found is None else f"the newest checkpoint is of {found} commits"

    def why_none(self) -> str | None:
        """Return the reason why the folder can hold no checkpoint; `None` if it seems to hold some."""
        if not self.path.is_dir():
            return f"{self.path} is {'not a folder' if os.path.lexists(self.path) else 'missing'}"
        names = sorted({*os.listdir(self.path)} - {LOCK})
        if not names:
            return f"{self.path} is empty"
        if any(CHECKPOINT.fullmatch(name) and (self.path / name).is_dir() for name in names):
            return None
        return f"{self.path} holds no checkpoint, only {ascii(names[0])[1:-1][:60]}"
