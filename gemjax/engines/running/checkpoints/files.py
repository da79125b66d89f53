"""Arrays that stay in the files of a checkpoint until they are needed."""

from pathlib import Path
from typing import Any

import numpy as np
from orbax.checkpoint import v1 as ocp

from gemjax.engines.checks import is_key
from gemjax.engines.memory import STATE, Elsewhere
from gemjax.engines.running.checkpoints.errors import CheckpointError, reading
from gemjax.engines.running.checkpoints.folder import identity
from gemjax.engines.running.checkpoints.writing import ORBAX

NOT_READ = ...  # In place of an array that Orbax is not to read.
LARGE = 2**16  # Bytes of the smallest array that can be left in its file.


class InFile(Elsewhere):
    """An array in a checkpoint.

    Args:
      checkpoint: folder of the checkpoint.
      together: names of all arrays there.
      name: name of this array.
      like: shape and dtype of the array.
    """

    def __init__(self, checkpoint: Path, together: tuple[str, ...], name: str, like: Any):
        super().__init__(like.shape, like.dtype)
        self._checkpoint, self._identity = checkpoint, identity(checkpoint)
        self.at, self.name = (str(checkpoint), together), name

    def check(self) -> None:
        """Check that the checkpoint is the one from which the state was loaded.

        Raises:
          CheckpointError: if it was replaced, moved or removed meanwhile.
        """
        if identity(self._checkpoint) != self._identity:
            raise CheckpointError(
                f"{self._checkpoint} was replaced, moved or removed since the state was loaded from it, and some arrays of the "
                "state are still in its files; load it again, and keep it while a run reads from it"
            )

    def read(self) -> np.ndarray:
        """Return the array.

        Raises:
          CheckpointError: if it is damaged, or as by :meth:`check`.
        """
        assert self.at is not None
        checkpoint, together = self.at
        wanted = {STATE: dict.fromkeys(together, NOT_READ) | {self.name: np.empty(self.shape, self.dtype)}}
        try:
            with reading(checkpoint), ORBAX:
                found = np.asarray(ocp.load_checkpointables(checkpoint, wanted)[STATE][self.name])
        except Exception:
            self.check()
            raise
        self.check()
        return found


def can_stay(name: str, leaf: Any) -> bool:
    """Return True for an array of the state that a run with ``central_hosts`` has in its actors."""
    of_method = name.split(".")[0] in ("params", "opt_state", "model_state", "view")
    return of_method and not is_key(leaf) and leaf.size * leaf.dtype.itemsize >= LARGE
