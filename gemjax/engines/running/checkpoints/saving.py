"""Checkpoints that an engine writes by itself, and the one from which it continues."""

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterator

import jax

from gemjax.engines.checks import RunWarning
from gemjax.engines.result import Result
from gemjax.engines.running.checkpoints.checkpoints import Checkpoints
from gemjax.engines.running.checkpoints.errors import CheckpointError, CheckpointWriteError
from gemjax.engines.transition import RunState
from gemjax.protocol.checks import check_bool, check_positive


class Saving:
    """Checkpoints of a run by time and at its end; none without a folder.

    Args:
      checkpoints: argument of the engine: a folder, a :class:`gemjax.Checkpoints` or ``None``.
      resume: True to continue from the newest checkpoint.
      seconds: least time between two checkpoints during the run.

    Raises:
      ValueError: if ``resume`` is set without a folder, or not set for one with checkpoints, or the folder is ``read_only``.
    """

    def __init__(self, checkpoints: str | os.PathLike | Checkpoints | None, resume: bool, seconds: float):
        check_bool("resume", resume)
        check_positive("checkpoint_seconds", seconds)
        if checkpoints is not None and not isinstance(checkpoints, Checkpoints):
            checkpoints = Checkpoints(checkpoints)
        if checkpoints is not None:
            checkpoints._check_writable()
        self.checkpoints, self._resume, self._seconds = checkpoints, resume, seconds
        self._at, self._commits = time.perf_counter(), 0
        if resume and checkpoints is None:
            raise ValueError("resume=True needs checkpoints=, the folder of the run's checkpoints")
        if checkpoints is not None and not resume and (found := checkpoints.latest) is not None:
            raise ValueError(
                f"{checkpoints.folder} has a checkpoint of {found} commits; give resume=True to continue from it, or another "
                "folder"
            )

    def begin(
        self,
        state: RunState | Result | None,
        shapes: Callable[[], RunState],
        device: jax.Device,
        *,
        in_files: bool = False,
    ) -> RunState | Result | None:
        """Return the newest checkpoint, if the run continues from one, and else ``state``.

        Args:
          state: argument of the engine.
          shapes: returns the shapes of the run's state. An array is loaded to its sharding, if it has one there.
          device: device of the other arrays.
          in_files: as for :meth:`gemjax.Checkpoints.load`.
        """
        if not self._resume or self.checkpoints is None or self.checkpoints.latest is None:
            return state
        default = jax.sharding.SingleDeviceSharding(device)
        like = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding or default), shapes()
        )
        return self.checkpoints.load_result(like, in_files=in_files)

    def start(self, commits: int) -> None:
        """Start the clock of a run that has made so many commits."""
        self._at, self._commits = time.perf_counter(), commits

    def is_due(self, commits: int) -> bool:
        """Return True if the state after so many commits is to be saved now; False while an earlier one is being written."""
        if self.checkpoints is None or commits <= self._commits or time.perf_counter() < self._at + self._seconds:
            return False
        with self._warning():
            return self.checkpoints.wait(timeout=0)
        return False

    def save(self, reached: Result) -> None:
        """Save in the background. A failure is a warning, and the run goes on."""
        with self._warning():
            self._save(reached, wait=False)
        self.start(len(reached.trace))

    def end(self, reached: Result) -> None:
        """Save the end of a run, on disk when this returns.

        Raises:
          CheckpointWriteError: (an OSError) if it cannot be written.
        """
        if self.checkpoints is not None:
            with self._warning("the end of the run is saved now"):  # Of the checkpoint before.
                self.checkpoints.wait()
            self._save(reached, wait=True)

    def after(self, error: BaseException) -> None:
        """Save what a run had reached before ``error``, which a failure to save never masks."""
        if isinstance(reached := getattr(error, "result", None), Result):
            try:
                self.end(reached)
            except Exception as unsaved:
                error.add_note(f"What the run had reached could not be saved: {unsaved}")

    def _save(self, reached: Result, *, wait: bool) -> None:
        assert self.checkpoints is not None
        self.checkpoints.save(
            reached.state, reached.trace, history=reached.history, evaluations=reached.evaluations, wait=wait
        )

    @contextlib.contextmanager
    def _warning(self, then: str = "the run goes on and tries again when the next checkpoint is due") -> Iterator[None]:
        try:
            yield
        except (CheckpointError, CheckpointWriteError) as error:
            warnings.warn(f"{error}; {then}", RunWarning, stacklevel=4)
