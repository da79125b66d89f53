"""Curves for TensorBoard, written without TensorFlow, if asked for."""

import importlib.util
import os
from typing import Any, Self

import numpy as np

INSTALL = "--tensorboard needs tensorboardX: pip install 'gemjax[tensorboard]'"


def available() -> bool:
    """Whether the extra is installed."""
    return importlib.util.find_spec("tensorboardX") is not None


class Scalars:
    """Appends curves to a folder that `tensorboard --logdir` shows; writes nothing if `folder` is none.

    What a resumed run had written beyond its `done` commits is hidden by what follows.
    """

    def __init__(self, folder: str | os.PathLike | None, done: int = 0):
        self._writer = None
        if folder is not None:
            from tensorboardX import SummaryWriter  # The extra; the command line has looked for it.

            # The suffix keeps apart the files of runs that begin within one second.
            self._writer = SummaryWriter(os.fspath(folder), purge_step=done or None, filename_suffix=f".{done}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def progress(self, commits: int, history: dict[str, Any], rate: float) -> None:
        """Writes the means of what was committed since the last call, and commits a second."""
        applied = history["applied"]
        names = {"train/loss": "loss", "train/gap": "gap", "train/staleness": "staleness"}
        values = {
            tag: np.mean(history[name][applied]) for tag, name in names.items() if name in history and applied.any()
        }
        self.write(commits, values | {"run/commits_per_second": rate})

    def write(self, commits: int, values: dict[str, float]) -> None:
        """Writes one point of each curve; a value that is not finite leaves a gap."""
        if self._writer is None:
            return
        for tag, value in values.items():
            if np.isfinite(value):
                self._writer.add_scalar(tag, float(value), commits)
        self._writer.flush()
