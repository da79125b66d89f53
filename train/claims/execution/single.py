"""One run of a claim: simulated, evaluated, and boiled down to a small record."""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import gemjax
from gemjax.engines.result import History
from train.claims.runs import FREE, Run, num_commits
from train.config.config import Config
from train.task.cluster import cluster
from train.task.divergence import MARGIN
from train.task.memory import check_memory
from train.task.methods import local_steps, make_method
from train.task.task import Task, make_task

LAST = 20  # Commits a worker that the final training loss is the mean of.
POINTS = 200  # Of a curve, at most.
MOMENTS = 40  # At which diagnostics are taken, each for one commit a worker.
CHUNK = 1024  # Arrivals a compiled call.
# What a task does not depend on: the same data and network serve runs that differ in these only.
METHODICAL = (
    "method", "workers", "epochs", "learning_rate", "momentum", "kappa", "strength", "reading", "variant", "period",
    "dynamic_periods", "local_momentum", "outer_learning_rate", "cluster", "seed", "weight_decay", "schedule",
    "warmup_epochs", "decay_epochs", "decay_factor",
)  # fmt: skip


def record(run: Run, machine: dict[str, Any], tell: Callable[[int], None] = lambda done: None) -> dict[str, Any]:
    """Makes a run; returns what is kept of it, ready for JSON.

    Args:
      run: what to run.
      machine: where this machine has its data: `data_dir` and `manual_dir`.
      tell: called with the number of commits made, now and then.

    Returns:
      `train_loss` (mean of the last 20 commits a worker), `test_loss`, `test_accuracy`, `diverged`, `staleness_p50` and
      `_p95`, `commits`, `rejected`, `dropped`, virtual `time`, mean and curve of each diagnostic, curves, and the cost in
      seconds. Numbers that are not finite are `None`.
    """
    began = time.perf_counter()
    task = task_of(run.config, machine)
    config, batches = run.config, task.batches_of(run.config.seed)
    total = num_commits(config, len(jax.tree.leaves(batches.data)[0]))
    check_memory(config, task.params_of(config.seed), total)
    trace = cluster(config).trace(total, config.seed)
    watcher = _Watcher(run, task, total, tell)
    steps = batches.steps_per_epoch
    arguments = (make_method(config, steps), task.loss_fn, task.params_of(config.seed), batches, trace)
    state, failed = None, ""
    try:
        for end, diagnostics in segments(total, config.workers, run.diagnostics):
            watcher.until = end
            result = gemjax.simulate(
                *arguments, model_state=task.model_state, local=local_steps(config, steps), seed=config.seed,
                diagnostics=diagnostics, state=state,
                callback=watcher, chunk_size=CHUNK, stops=[*watcher.evaluations, end],
            )  # fmt: skip
            state = result.state
    except gemjax.RunFailedError as error:
        failed = str(error)
    begin = task.train_loss(task.params_of(config.seed), task.model_state)
    return watcher.conclude(begin) | {
        "failed": failed,
        "steps_per_epoch": batches.steps_per_epoch,
        "seconds": round(time.perf_counter() - began, 2),
    }


def segments(total: int, workers: int, diagnostics: tuple[str, ...]) -> list[tuple[int, tuple[str, ...]]]:
    """Up to which commit the run goes with which diagnostics: they are dear, so they are taken at some moments only.

    >>> segments(10, 2, ())
    [(10, ())]
    >>> segments(100, 5, ("gap",))[:3]  # So few that all are taken.
    [(2, ('gap',)), (5, ('gap',)), (7, ('gap',))]
    >>> segments(1000, 5, ("gap",))[:3]
    [(20, ()), (25, ('gap',)), (45, ())]
    """
    if not diagnostics:
        return [(total, ())]
    ends = sorted({(k + 1) * total // MOMENTS for k in range(MOMENTS)} - {0})
    if total <= 2 * MOMENTS * workers:
        return [(end, diagnostics) for end in ends]
    return [part for end in ends for part in ((end - workers, ()), (end, diagnostics))]


def task_of(config: Config, machine: dict[str, Any]) -> Task:
    """The task of a configuration, the same object for all runs that can share it."""
    left_out = {*METHODICAL, *FREE}
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    fields = {name: value for name, value in fields.items() if name not in left_out}
    return _task(Config(**fields | {"method": "asgd"} | machine))


@functools.lru_cache(maxsize=2)
def _task(config: Config) -> Task:
    return make_task(config)


class _Watcher:
    """What is noted while a run goes on."""

    def __init__(self, run: Run, task: Task, total: int, tell: Callable[[int], None]):
        self.run, self.task, self.total, self.tell = run, task, total, tell
        self.evaluations = [total * (k + 1) // run.evaluations for k in range(run.evaluations)]
        self.until = total
        self.parts: list[History] = []
        self.evaluated: list[tuple[int, float, float]] = []
        self.params: Any = None
        self._began: tuple[int, float] | None = None
        self._speed = float("nan")

    def __call__(self, progress: gemjax.Progress) -> bool:
        self.parts.append(progress.history)
        self.rejected, self.dropped = progress.rejected, progress.dropped
        self.tell(progress.commits)
        now = time.perf_counter()
        if self._began is None:  # What came before was compilation.
            self._began = progress.commits, now
        elif now > self._began[1]:
            self._speed = (progress.commits - self._began[0]) / (now - self._began[1])
        evaluated = self.evaluated[-1][0] if self.evaluated else 0
        if progress.commits in self.evaluations and progress.commits > evaluated:
            self.evaluated.append(
                (
                    progress.commits,
                    *self.task.evaluate(judged(self.run, progress.params, progress.state), progress.model_state),
                )
            )
        return progress.commits >= self.until

    def conclude(self, begin: float) -> dict[str, Any]:
        """What is kept of the run, given its training loss before the first commit."""
        shared = {name: np.concatenate([part[name] for part in self.parts]) for name in _columns(self.parts)}
        return kept(self.run, self.total, shared, self.evaluated, begin) | {
            "rejected": getattr(self, "rejected", 0),
            "dropped": getattr(self, "dropped", 0),
            "diagnostics": {name: self._diagnostic(name) for name in self.run.diagnostics},
            "commits_per_second": _number(self._speed),
        }

    def _diagnostic(self, name: str) -> dict[str, Any]:
        """Median and mean over the run, and the median of each moment."""
        taken = [part for part in self.parts if name in part]
        values = [part[name][part["applied"] & np.isfinite(part[name])] for part in taken]
        every = np.concatenate([*values, np.zeros(0)])
        return {
            "median": _number(np.median(every)) if len(every) else None,
            "mean": _number(np.mean(every)) if len(every) else None,
            "time": [_number(part["time"][-1]) for part in taken],
            "curve": [_number(np.median(part)) if len(part) else None for part in values],
        }


def judged(run: Run, params: Any, state: Callable[[], Any]) -> Any:
    """The parameters that are evaluated: the central ones, or as LSGD's authors do the average of its workers'.

    Args:
      run: whose they are.
      params: the central variable.
      state: gives the whole state of the run.
    """
    return gemjax.average_position(state().opt_state) if run.config.method == "lsgd" else params


def kept(
    run: Run, total: int, history: History, evaluated: list[tuple[int, float, float]], begin: float
) -> dict[str, Any]:
    """What is kept of a run of `total` commits apart from diagnostics, counters and cost.

    Args:
      run: which it was.
      total: commits that it should have made.
      history: those that it made.
      evaluated: commits, test loss and accuracy of each evaluation; the last one counts if it is of the end.
      begin: the training loss before the first commit.
    """
    workers, applied = run.config.workers, history.get("applied", np.zeros(0, bool))
    losses = history["loss"][applied][-LAST * workers :] if applied.any() else np.array([np.nan])
    done = evaluated and evaluated[-1][0] == total
    _, test_loss, accuracy = evaluated[-1] if done else (0, np.nan, np.nan)
    train_loss = float(np.mean(losses)) if done else np.nan
    staleness = history["staleness"][applied] if applied.any() else np.full(1, np.nan)
    p50, p95 = np.percentile(staleness, [50, 95])
    return {
        "train_loss": _number(train_loss),
        "test_loss": _number(test_loss),
        "test_accuracy": _number(accuracy),
        "diverged": not train_loss <= (1 + MARGIN) * begin,
        "initial_train_loss": _number(begin),
        "commits": total,
        "time": _number(history["time"][-1]) if len(applied) else None,
        "staleness_p50": _number(p50),
        "staleness_p95": _number(p95),
        "curve": _curve(history, total, workers),
        "evaluations": {
            "commits": [row[0] for row in evaluated],
            "test_loss": [_number(row[1]) for row in evaluated],
            "test_accuracy": [_number(row[2]) for row in evaluated],
        },
    }


def _columns(parts: list[History]) -> list[str]:
    """The columns that every part of a history has."""
    return [name for name in parts[0] if all(name in part for part in parts)] if parts else []


def _curve(history: History, total: int, workers: int) -> dict[str, list]:
    """Training loss, averaged over blocks of at least one commit a worker."""
    size = max(workers, -(-total // POINTS))
    blocks = range(0, len(history.get("loss", ())), size)
    kept = [(slice(begin, begin + size), history["applied"][begin : begin + size]) for begin in blocks]
    return {
        "commits": [min(block.stop, len(history["loss"])) for block, _ in kept],
        "time": [_number(history["time"][block][-1]) for block, _ in kept],
        "train_loss": [_number(history["loss"][block][ok].mean()) if ok.any() else None for block, ok in kept],
    }


def _number(value: Any) -> float | None:
    """A float of six digits, for JSON."""
    return float(f"{float(value):.6g}") if np.isfinite(value) else None
