"""The checkpoints of a run."""

from pathlib import Path

from gemjax import CheckpointError, Checkpoints


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

    @property
    def latest(self) -> int | None:
        """Commits of the newest checkpoint; `None` if there is none."""
        return self.open(read_only=True).latest

    def newest(self, opened: Checkpoints | None = None) -> str:
        """Say of how many commits the newest checkpoint is; `opened` may still write it."""
        try:
            found = (opened or self.open(read_only=True)).latest
        except (CheckpointError, OSError) as error:
            return str(error)
        return "there is no checkpoint" if found is None else f"the newest checkpoint is of {found} commits"
