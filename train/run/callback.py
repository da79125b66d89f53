"""Work between and after the commits of a run: progress, evaluation, checkpoints, the response to Ctrl-C, the summary."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import gemjax
from gemjax.engines.running.checkpoints import CheckpointError, CheckpointWriteError
from gemjax.engines.running.evaluation import every_of
from gemjax.telemetry import eventlog
from train.common.console import say
from train.common.files import in_shell, in_words, write_whole
from train.common.interrupts import StopRequest, name_of
from train.config.config import Config
from train.run import figures
from train.run.folder import RunFolder
from train.run.progress import RunProgress, commits_per_second
from train.run.records import Means
from train.run.tensorboard import Scalars
from train.task.task import Task

SHARE = 0.2  # An evaluation on devices is declined if those before it took more of the time since the first one began.


def evaluations(config: Config, num_commits: int, trace: gemjax.Trace | None = None) -> np.ndarray:
    """Return the numbers of commits after which a run is evaluated, in increasing order; the last is the end of the run.

    Args:
      config: sets the commits, or the virtual seconds, between two evaluations.
      num_commits: commits of the whole run, positive.
      trace: trace of a simulated run, with virtual times.

    Returns:
      With `--eval-every`, its multiples. With `--eval-seconds`, the last commit that is not later than each of its multiples,
      once: if no worker commits between two multiples, there is nothing new to evaluate.

    >>> trace = gemjax.Trace([0, 0, 0, 0, 0], time=[0.5, 1.0, 1.5, 4.0, 4.5])
    >>> evaluations(Config(engine="simulate", eval_seconds=1.0), 5, trace).tolist()
    [2, 3, 4, 5]
    """
    if config.eval_seconds is not None and trace is not None:
        seconds = config.eval_seconds
        interval = np.ceil(trace.time / seconds)  # Number of the multiple that ends the interval.
        interval += trace.time > interval * seconds  # Corrects a quotient that was rounded to a whole number.
        interval -= trace.time <= (interval - 1) * seconds
        found = np.flatnonzero(interval[1:] > interval[:-1]) + 1
    else:
        every = every_of("eval_every", config.eval_every or None, num_commits)
        found = np.arange(every, num_commits, every)
    return np.append(found, num_commits)


class RunCallback:
    """Callback of all engines: shows progress, evaluates, saves checkpoints, ends the run after Ctrl-C, and sums it up."""

    def __init__(
        self,
        config: Config,
        task: Task,
        trace: gemjax.Trace | None,
        folder: RunFolder,
        checkpoints: gemjax.Checkpoints,
        log: gemjax.EventLog,
        interrupt: StopRequest,
        line: RunProgress,
    ):
        self.config, self.task, self.folder, self.checkpoints = config, task, folder, checkpoints
        self.log, self.interrupt, self.console = log, interrupt, line.console
        self.line, done = line, line.done
        self.scalars = Scalars(folder.tensorboard if config.tensorboard else None, done)
        self.beside = config.engine != "simulate"  # The engine evaluates, in a thread of its own.
        self.means = Means.of_records(folder.events, folder.metrics, measured=self.beside)
        # Of the newest row of metrics: its time, and the gradients that were refused up to it.
        before = folder.read_metrics()
        newest = lambda name: float(np.nan_to_num(before[name][-1])) if name in before else 0.0
        self._newest_time, self._refused = newest("time"), [int(newest(name)) for name in ("rejected", "dropped")]
        # Commits, loss and accuracy of the newest evaluation.
        self.last = (-1, np.nan, np.nan)
        if before:
            self.last = int(before["commits"][-1]), float(before["test_loss"][-1]), float(before["test_accuracy"][-1])
        # Evaluations in the engine's thread: when the first one began, seconds that they took, and number of declined ones.
        self._first_began: float | None = None
        self._spent, self._declined = 0.0, 0
        self._recorded = 0  # Evaluations of those that were due in this session.
        self.evaluations = evaluations(config, task.num_commits, trace)
        every = config.checkpoint_every
        saves = range(every, task.num_commits, every) if every else ()
        # Commits after which the engine calls.
        self.stops = sorted({*(() if self.beside else self.evaluations.tolist()), *saves})
        # Number of evaluations that were due before this session, and, of a simulation, at the newest evaluation.
        self._due_before = self._num_evaluated = self._due(done)
        self._saved, self._saved_at = done, time.perf_counter()
        # Of a central variable on several hosts, when their actors have made the first state: no process has all of it.
        self.first_is_due = config.central_hosts > 0 and checkpoints.latest is None
        if not self.first_is_due:
            interrupt.go_on = folder.go_on
        self._after_error = False

    def __call__(self, progress: gemjax.Progress) -> bool:
        try:
            if self.config.engine == "simulate":
                _log_commits(self.log, progress.history)
                if not len(progress.history["worker"]):  # Pulls alone.
                    progress = dataclasses.replace(progress, history={})
            self.poll(progress)
        except Exception:
            self.save_after_error(progress)
            raise
        return self.interrupt.is_set()

    def poll(self, progress: gemjax.Progress) -> None:
        """Evaluate, show and save whatever is due."""
        done = progress.commits
        self.means.add(progress.history)
        if self.beside:
            self.record_all(progress.evaluations)
        elif (due := self._due(done)) > self._num_evaluated:
            self._num_evaluated, self.folder.provenance.unevaluated = due, True
            self.evaluate(progress)
            self.folder.provenance.unevaluated = False
        self.line.update(done, progress.rejected, progress.history)
        if progress.history:
            self.scalars.progress(done, progress.history, self.line.rate)
        is_free = not self.beside  # A simulation waits for the checkpoint before; devices are not kept waiting.
        with self._warning_of_failure():
            is_free |= self.checkpoints.wait(timeout=0)
        if self.first_is_due:
            self.save_first(progress.state(), progress.trace())
            self.first_is_due, self.interrupt.go_on = False, self.folder.go_on
        elif is_free and done > self._saved and self._is_time_to_save(done):
            with self._warning_of_failure():
                self.save(progress.state(), progress.trace())
            self._saved, self._saved_at = done, time.perf_counter()

    def _is_time_to_save(self, done: int) -> bool:
        every, seconds = self.config.checkpoint_every, self.config.checkpoint_seconds
        return bool(
            (every and done // every > self._saved // every)
            or (seconds and time.perf_counter() - self._saved_at >= seconds)
        )

    @contextlib.contextmanager
    def _warning_of_failure(self) -> Iterator[None]:
        """Turn the failure of a checkpoint into a warning; the run continues until the next checkpoint is due."""
        try:
            yield
        except CheckpointWriteError as error:
            say(self.console, f"warning: {error}; the run goes on and tries again when the next checkpoint is due")
        except CheckpointError as error:
            say(self.console, f"warning: {error}")

    def save(self, state: gemjax.RunState, trace: gemjax.Trace) -> None:
        """Write a checkpoint, unless the newest one has the same number of commits and of evaluations.

        Raises:
          CheckpointWriteError: (an OSError) if it cannot be written; an error in the background is raised later.
        """
        metadata = None
        with self._warning_of_failure():
            self.checkpoints.wait()
            metadata = self.checkpoints.metadata if self.checkpoints.latest == len(trace) else None
        if metadata is None or metadata["metrics"] != self.folder.sizes()["metrics"]:
            if self.beside:
                self.folder.provenance.unevaluated = (
                    self._due(len(trace)) - self._due_before > self._recorded + self._declined
                )
            self.folder.save_checkpoint(self.checkpoints, state, trace, self.log)

    def save_first(self, state: gemjax.RunState, trace: gemjax.Trace) -> None:
        """Write the checkpoint before the first commit; return when it is on disk.

        Raises:
          CheckpointWriteError: (an OSError) if it cannot be written.
        """
        self.folder.save_checkpoint(self.checkpoints, state, trace, self.log, wait=True)

    def make_up(self, state: gemjax.RunState, trace: gemjax.Trace) -> None:
        """Evaluate the state of a checkpoint, if the evaluation before it had failed or was in flight."""
        if not self.folder.provenance.unevaluated or self.config.central_hosts:
            return
        if self.last[0] < len(trace):  # The row may have been written before the failure.
            self.record(len(trace), float(trace.time[-1]), *self.task.evaluate(state.params, state.model_state))
        self.folder.provenance.unevaluated = False
        self._recorded = 0  # This one was due before this session.

    def finish(self, state: gemjax.RunState, trace: gemjax.Trace) -> None:
        """Write the last checkpoint, and return when it is on disk.

        Raises:
          CheckpointWriteError: (an OSError) if it cannot be written.
        """
        self.save(state, trace)
        self.checkpoints.wait()

    def save_after_error(self, reached: gemjax.Result | gemjax.Progress | None) -> None:
        """Save what the run reached before an exception, and report it; an error here never masks the exception."""
        if reached is None or self._after_error:  # Nothing is reached, or it was called before.
            return
        self._after_error = True
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
                reason = in_words(error) if isinstance(error, OSError) else str(error)
                if not isinstance(error, CheckpointWriteError):
                    reason += f"; {self.folder.newest_checkpoint(self.checkpoints)}"
                say(self.console, f"the commits before the error could not be saved: {reason}")
        else:
            refused = len(trace) - int(state.commits)  # A simulation counts them, too.
            say(
                self.console,
                f"the {len(trace)} commits before the error{f', {refused} of them refused,' if refused else ''} are saved; go "
                f"on with: {self.folder.go_on}",
            )

    def _due(self, done: int) -> int:
        """Return the number of evaluations that are due after so many commits."""
        return int(np.searchsorted(self.evaluations, done, side="right"))

    def evaluate(self, progress: gemjax.Progress) -> None:
        """Evaluate on the test set and record the metrics."""
        found = self.task.evaluate(progress.params, progress.model_state)
        self.record(progress.commits, float(progress.history["time"][-1]), *found)

    def evaluate_beside(self, params: Any, model_state: Any) -> dict[str, float] | None:
        """Evaluate on the test set, in a thread of the engine; decline if earlier evaluations took more than their share.

        They take cores from the workers, or turns on their accelerator. With `--eval-every` none is left out.
        """
        began = time.perf_counter()
        if self._first_began is None:
            self._first_began = began
        if not self.config.eval_every and self._spent > SHARE * (began - self._first_began):
            self._declined += 1
            return None
        loss, accuracy = self.task.evaluate(params, model_state, device=jax.tree.leaves(params)[0].device)
        self._spent += time.perf_counter() - began
        return {"test_loss": loss, "test_accuracy": accuracy}

    def record_all(self, evaluations: dict[str, np.ndarray]) -> None:
        """Record the evaluations of the engine that are new, except that of a state in which the run was stopped."""
        rows = zip(
            *(evaluations.get(name, ()) for name in ("commit", "time", "test_loss", "test_accuracy")), strict=True
        )
        for commit, at, loss, accuracy in rows:
            if commit > self.last[0]:
                self.last = int(commit), float(loss), float(accuracy)
                if commit in self.evaluations:
                    self.record(int(commit), float(at), float(loss), float(accuracy))

    def record(self, commits: int, at: float, loss: float, accuracy: float) -> None:
        """Record an evaluation, with means over the commits since the one before."""
        self.last = commits, loss, accuracy
        self.line.evaluated = commits, accuracy
        self.scalars.write(commits, {"test/loss": loss, "test/accuracy": accuracy})
        taken = self.means.take(commits)
        self._newest_time = max(self._newest_time, at)
        self._refused = [count + new for count, new in zip(self._refused, (taken.rejected, taken.dropped), strict=True)]
        self.folder.add_metrics(
            commits=commits,
            time=self._newest_time,
            train_loss=finite(taken.loss),
            gap=finite(taken.gap),
            test_loss=finite(loss),
            test_accuracy=accuracy,
            rejected=self._refused[0],
            dropped=self._refused[1],
        )
        self._recorded += 1

    def conclude(self, result: gemjax.Result, device: jax.Device | None) -> None:
        """Record the last evaluations, and evaluate the state that the run has reached."""
        commits = len(result.trace)
        self.record_all(result.evaluations if self.beside else {})
        if self.last[0] < commits:
            found = self.task.evaluate(result.params, result.model_state, device=device)
            if self.beside and commits == self.task.num_commits:
                self.record(commits, float(result.trace.time[-1]), *found)
            self.last = commits, *found

    def summarise(self, result: gemjax.Result, seconds: float) -> dict[str, Any]:
        """Write picture and summary of the run, whose session took `seconds`, show its figures and return the summary."""
        folder, line, (_, loss, accuracy) = self.folder, self.line, self.last
        if result.stopped:  # Said before the picture, which takes seconds, is drawn.
            reached = f"{line.done} of {line.total} commits; go on with: {folder.go_on}"
            say(self.console, f"stopped by {name_of(self.interrupt.number)} at {reached}")
        # Over the whole run, including the parts before it was resumed.
        run = gemjax.timeline(eventlog.read(folder.events), self.config.workers)
        applied = run.only("commit")["staleness"]
        rate = gemjax.summarise(run).rate if line.done and run.measured else line.rate
        p50, p95 = np.percentile(applied if len(applied) else np.zeros(1), [50, 95])
        summary = {
            "commits": line.done,
            "total": line.total,
            "finished": not result.stopped,
            "rejected": int(result.state.rejected),
            "dropped": int(result.state.dropped),
            "test_loss": finite(loss),
            "test_accuracy": accuracy,
            "commits_per_second": finite(rate),
            "seconds": round(seconds, 1),
            "staleness_p50": float(p50),
            "staleness_p95": float(p95),
        }
        figures.draw_run(folder, self.config, run)
        # Last, because a run whose summary has all commits is not resumed, even if other files are missing.
        write_whole(folder.summary, json.dumps(summary, indent=2) + "\n")
        say(
            self.console,
            f"test accuracy {100 * accuracy:.2f} %, test loss {loss:.4f}, "
            + (f"{commits_per_second(rate)}, " if (rate := summary["commits_per_second"]) else "")
            + f"staleness p50 {p50:.0f} p95 {p95:.0f}, rejected {summary['rejected']}, dropped {summary['dropped']}",
        )
        again = f"python -m train report {in_shell(folder.path)}"
        say(self.console, f"picture: {folder.picture}; was it asynchronous? {again}")
        return summary


def _log_commits(log: gemjax.EventLog, history: dict[str, np.ndarray]) -> None:
    """Write simulated commits to the event log, as the other engines do."""
    names = [name for name in history if name not in ("time", "applied", "dropped")]
    for row in range(len(history["worker"])):
        event = "commit" if history["applied"][row] else "drop" if history["dropped"][row] else "reject"
        log.write(event, history["time"][row], **{name: history[name][row] for name in names})


def finite(value: Any) -> float | None:
    """Return the number, or ``None`` if it is not finite, because JSON has neither NaN nor infinity."""
    return float(value) if np.isfinite(value) else None
