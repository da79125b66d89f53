"""What happens between the commits of a run: progress, evaluation, checkpoints, and the answer to Ctrl-C."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import gemjax
from gemjax.checkpoints import CheckpointWriteError
from gemjax.telemetry import eventlog
from train.common.console import say
from train.common.files import in_words
from train.run.evaluations import evaluations
from train.run.progress import ProgressLine, mean_loss
from train.run.tensorboard import Scalars

TRIES = 6  # To write the last checkpoint, on a terminal, so many seconds apart.
TRY_SECONDS = 30.0


class Watcher:
    """What happens between commits: progress, evaluation, checkpoints, and the answer to Ctrl-C."""

    def __init__(self, config, task, folder, checkpoints, log, interrupt, console, trace, done: int):
        self.config, self.task, self.folder, self.checkpoints = config, task, folder, checkpoints
        self.log, self.interrupt, self.console = log, interrupt, console
        self.line = ProgressLine(console, task.num_commits, done, config.workers)
        self.scalars = Scalars(folder.tensorboard if config.tensorboard else None, done)
        self.evaluations = evaluations(config, task.num_commits, trace)
        self._evaluated = self._due(done)
        self._saved, self._saved_at = done, time.perf_counter()
        self._kept = False

    def __call__(self, progress: gemjax.Progress) -> bool:
        try:
            if self.config.engine == "simulate":
                _log_commits(self.log, progress.history)
            self.look(progress)
        except Exception:
            self.keep(progress)
            raise
        return self.interrupt.is_set()

    def look(self, progress: gemjax.Progress) -> None:
        """Evaluates, shows and saves what is due."""
        done = progress.commits
        if (due := self._due(done)) > self._evaluated:
            self._evaluated = due
            self.evaluate(progress)
        self.line.update(done, progress.rejected, progress.history)
        if progress.history:
            self.scalars.progress(done, progress.history, self.line.rate)
        with self._going_on():
            self.checkpoints.wait(timeout=0)
        if done > self._saved and self._is_time_to_save(done):
            with self._going_on():
                self.save(progress.state(), progress.trace())
            self._saved, self._saved_at = done, time.perf_counter()

    def _is_time_to_save(self, done: int) -> bool:
        every, seconds = self.config.checkpoint_every, self.config.checkpoint_seconds
        return bool(
            (every and done - self._saved >= every) or (seconds and time.perf_counter() - self._saved_at >= seconds)
        )

    @contextlib.contextmanager
    def _going_on(self) -> Iterator[None]:
        """Says that a checkpoint could not be written; the run goes on, and the next checkpoint comes when it is due."""
        try:
            yield
        except CheckpointWriteError as error:
            say(self.console, f"warning: {error}; the run goes on and tries again when the next checkpoint is due")

    def save(self, state: gemjax.RunState, trace: gemjax.Trace) -> None:
        """Writes a checkpoint, but none of the same commits again.

        Raises:
          CheckpointWriteError: (an OSError) if it cannot be written; in the background, that is told later.
        """
        with self._going_on():
            self.checkpoints.wait()
        if len(trace) != self.checkpoints.latest:
            self.folder.save_checkpoint(self.checkpoints, state, trace, self.log)

    def finish(self, state: gemjax.RunState, trace: gemjax.Trace) -> None:
        """Writes the last checkpoint. On a terminal it is tried again a few times, while somebody may make room for it.

        Raises:
          CheckpointWriteError: (an OSError) if it cannot be written.
        """
        for left in reversed(range(TRIES if self.console.is_terminal else 1)):
            try:
                self.save(state, trace)
                self.checkpoints.wait()
                return
            except CheckpointWriteError as error:
                if not left or self.interrupt.is_set():
                    raise
                say(
                    self.console,
                    f"warning: {error}; trying again {left} times, every {TRY_SECONDS:.0f} s, or until Ctrl-C",
                )
            again = time.perf_counter() + TRY_SECONDS
            # Not by `interrupt.wait`: a signal in it could find the lock taken that its handler needs.
            while time.perf_counter() < again and not self.interrupt.is_set():
                time.sleep(0.1)

    def keep(self, reached: gemjax.Result | gemjax.Progress | None) -> None:
        """Writes a checkpoint of what a run reached before an exception, and says so. An error here never masks that one."""
        if reached is None or self._kept:  # When the callback raised.
            return
        try:
            state, trace = (
                (reached.state, reached.trace)
                if isinstance(reached, gemjax.Result)
                else (reached.state(), reached.trace())
            )
            self.log.flush()
            if (logged := len(eventlog.trace_of(self.folder.events, trace.num_workers))) != int(state.commits):
                raise OSError(f"the event log has lost {int(state.commits) - logged} of {int(state.commits)} commits")
            self.save(state, trace)
            self.checkpoints.wait()
        except Exception as error:
            with contextlib.suppress(Exception):
                why = in_words(error) if isinstance(error, OSError) else str(error)
                if not isinstance(error, CheckpointWriteError):
                    newest = self.checkpoints.latest
                    why += (
                        "; there is no checkpoint"
                        if newest is None
                        else f"; the newest checkpoint is of {newest} commits"
                    )
                say(self.console, f"what was reached could not be kept: {why}")
        else:
            self._kept = True
            say(
                self.console,
                f"what was reached, {len(trace)} commits, is kept; go on with: python -m train --resume {self.folder.path}",
            )

    def _due(self, done: int) -> int:
        """How many evaluations there should have been after so many commits."""
        return int(np.searchsorted(self.evaluations, done, side="right"))

    def evaluate(self, progress: gemjax.Progress) -> None:
        """Looks at the test set, and notes what it tells."""
        loss, accuracy = self.task.evaluate(progress.params, progress.model_state)
        self.line.accuracy = accuracy
        self.scalars.write(progress.commits, {"test/loss": loss, "test/accuracy": accuracy})
        recent = progress.history
        self.folder.add_metrics(
            commits=progress.commits,
            time=float(recent["time"][-1]),
            train_loss=finite(mean_loss(recent)),
            gap=finite(np.mean(recent["gap"])),
            test_loss=finite(loss),
            test_accuracy=accuracy,
            rejected=progress.rejected,
            dropped=progress.dropped,
        )


def _log_commits(log: gemjax.EventLog, history: dict[str, np.ndarray]) -> None:
    """Writes simulated commits to the event log, as a run on devices does."""
    names = [name for name in history if name not in ("time", "applied", "dropped")]
    for row in range(len(history["worker"])):
        event = "commit" if history["applied"][row] else "drop" if history["dropped"][row] else "reject"
        log.write(event, history["time"][row], **{name: history[name][row] for name in names})


def finite(value: Any) -> float | None:
    """The number, or nothing if it is none: JSON has no other word for that."""
    return float(value) if np.isfinite(value) else None
