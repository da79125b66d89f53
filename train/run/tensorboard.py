"""Optional curves for TensorBoard, written without TensorFlow."""

import importlib.util
import os
from typing import Any, Self

import numpy as np

INSTALL = "--tensorboard needs tensorboardX: pip install 'gemjax[tensorboard]'"


def available() -> bool:
    """Return True if the extra is installed."""
    return importlib.util.find_spec("tensorboardX") is not None


class Scalars:
    """Writer of curves for `tensorboard --logdir`; writes nothing if `folder` is `None`.

    In a resumed run, the new points hide those that were written beyond the `done` commits of its checkpoint.
    """

    def __init__(self, folder: str | os.PathLike | None, done: int = 0):
        self._writer = None
        if folder is not None:
            from tensorboardX import SummaryWriter  # The extra, which the command line has checked.

            # The suffix separates the files of runs that begin in the same second.
            self._writer = SummaryWriter(os.fspath(folder), purge_step=done + 1, filename_suffix=f".{done}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def progress(self, commits: int, history: dict[str, Any], rate: float) -> None:
        """Write means over the commits since the last call, and the commits per second."""
        applied = history["applied"]
        names = {
            "train/loss": "loss", "train/gap": "gap", "train/staleness": "staleness", "run/network_seconds": "network",
        }  # fmt: skip
        values = {
            tag: np.mean(history[name][applied]) for tag, name in names.items() if name in history and applied.any()
        }
        self.write(commits, values | {"run/commits_per_second": rate})

    def write(self, commits: int, values: dict[str, float]) -> None:
        """Write one point of each curve; a value that is not finite leaves a gap."""
        if self._writer is None:
            return
        for tag, value in values.items():
            if np.isfinite(value):
                self._writer.add_scalar(tag, float(value), commits)
        self._writer.flush()
