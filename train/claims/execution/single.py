"""One run of a claim: simulated, evaluated and summarised as a small record."""

import dataclasses
import functools
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import gemjax
from gemjax.engines.result import History
from train.claims.runs import PlannedRun, num_commits
from train.config.config import Config
from train.task.cluster import cluster
from train.task.divergence import MARGIN
from train.task.memory import check_memory
from train.task.methods import arguments
from train.task.task import DECIDING, Task, make_task

LAST = 20  # Commits per worker in the mean of the final training loss.
POINTS = 200  # Largest number of points of a curve.
MOMENTS = 40  # Moments at which diagnostics are taken, each for one commit per worker.
CHUNK = 1024  # Arrivals per compiled call.


def record(run: PlannedRun, machine: dict[str, Any], tell: Callable[[int], None] = lambda done: None) -> dict[str, Any]:
    """Make a run and return its record, ready for JSON.

    Args:
      run: the run.
      machine: the folders of data on this machine: `data_dir` and `manual_dir`.
      tell: called now and then with the number of commits so far.

    Returns:
      `train_loss` (mean of the last 20 commits per worker), `test_loss`, `test_accuracy`, `diverged`, `staleness_p50` and
      `_p95`, `commits`, `rejected`, `dropped`, virtual `time`, mean and curve of each diagnostic, curves, and the cost in
      seconds. Numbers that are not finite are `None`.
    """
    began = time.perf_counter()
    task = task_of(run.config, machine)
    config = run.config
    total = num_commits(config, len(jax.tree.leaves(task.batches.data)[0]))
    check_memory(config, task.params_of(config.seed))
    task = _begun(run, task)
    trace = cluster(config).trace(total, config.seed)
    watcher = _Watcher(run, task, total, tell)
    given, shared = arguments(config, task)
    state, failed = None, ""
    try:
        with warnings.catch_warnings():  # A run that diverges is a result of a claim.
            warnings.filterwarnings("ignore", "the run has diverged", gemjax.RunWarning)
            # The configuration names its cluster: without a barrier DiLoCo is a buffered method.
            warnings.filterwarnings("ignore", "the method is defined in rounds", gemjax.RunWarning)
            for end, diagnostics in segments(total, config.workers, run.diagnostics):
                watcher.until = end
                result = gemjax.simulate(
                    *given, trace, **shared, diagnostics=diagnostics, state=state,
                    callback=watcher, callback_every=CHUNK, stops=[*watcher.evaluations, end],
                )  # fmt: skip
                state = result.state
    except gemjax.RunFailedError as error:
        failed = str(error)
        watcher.evaluated = [row for row in watcher.evaluated if row[0] < total]  # A run that failed has no result.
    begin = task.train_loss(task.params, task.model_state)
    return watcher.conclude(begin) | {
        "failed": failed,
        "steps_per_epoch": task.batches.steps_per_epoch,
        "seconds": round(time.perf_counter() - began, 2),
    }


def segments(total: int, workers: int, diagnostics: tuple[str, ...]) -> list[tuple[int, tuple[str, ...]]]:
    """Return segments of a run as (last commit, diagnostics): diagnostics are costly, so they are taken only at some moments.

    >>> segments(10, 2, ())
    [(10, ())]
    >>> segments(100, 5, ("gap",))[:3]  # So few commits that all are recorded.
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
    """Return the task of a configuration, the same object for all runs that can share it."""
    fields = {name: getattr(config, name) for name in DECIDING}
    return _task(Config(engine="simulate", method="asgd", **fields, **machine))


@functools.lru_cache(maxsize=2)
def _task(config: Config) -> Task:
    return make_task(config)


_trained: dict[tuple[Config, float], tuple[Task, Any]] = {}  # Result of the last pre-training, with its task.


def _begun(run: PlannedRun, task: Task) -> Task:
    """Return the task with the batches of a run's seed, and with its initial parameters, after pre-training if there is any."""
    own = task.of(run.config.seed)
    if not run.pretraining:
        return own
    kept = (*DECIDING, "learning_rate", "weight_decay", "local_optimizer", "local_momentum")
    fields = {name: getattr(run.config, name) for name in kept}
    config = Config(engine="simulate", method="downpour", workers=1, epochs=run.pretraining, **fields)
    found = _trained.get((config, run.pretraining))
    if found is None or found[0] is not task:
        total = num_commits(config, len(jax.tree.leaves(task.batches.data)[0]))
        given, shared = arguments(config, task.of(0))
        result = gemjax.simulate(*given, cluster(config).trace(total, 0), **shared, callback_every=CHUNK)
        _trained.clear()
        found = _trained[config, run.pretraining] = task, (result.params, result.model_state)
    params, model_state = found[1]
    return dataclasses.replace(own, params=params, model_state=model_state)


class _Watcher:
    """The callback of a run, which collects its history and evaluations."""

    def __init__(self, run: PlannedRun, task: Task, total: int, tell: Callable[[int], None]):
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
        if self._began is None:  # The time before was compilation.
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
        """Return the record of the run, given its training loss before the first commit."""
        shared = {name: np.concatenate([part[name] for part in self.parts]) for name in _columns(self.parts)}
        return record_of(self.run, self.total, shared, self.evaluated, begin) | {
            "rejected": getattr(self, "rejected", 0),
            "dropped": getattr(self, "dropped", 0),
            "diagnostics": {name: self._diagnostic(name) for name in self.run.diagnostics},
            "commits_per_second": number(self._speed),
        }

    def _diagnostic(self, name: str) -> dict[str, Any]:
        """Return median and mean over the run, and both at each moment."""
        taken = [part for part in self.parts if name in part and len(part[name])]
        values = [part[name][part["applied"] & np.isfinite(part[name])] for part in taken]
        every = np.concatenate([*values, np.zeros(0)])
        return {
            "median": number(np.median(every)) if len(every) else None,
            "mean": number(np.mean(every)) if len(every) else None,
            "time": [number(part["time"][-1]) for part in taken],
            "curve": [number(np.median(part)) if len(part) else None for part in values],
            "mean_curve": [number(np.mean(part)) if len(part) else None for part in values],
        }


def judged(run: PlannedRun, params: Any, state: Callable[[], Any]) -> Any:
    """Return the parameters to evaluate: the central variable, or for LSGD the average of its workers, as its authors do.

    Args:
      run: the run.
      params: the central variable.
      state: returns the whole state of the run.
    """
    return gemjax.rules.average_position(state().opt_state) if run.config.method == "lsgd" else params


def record_of(
    run: PlannedRun, total: int, history: History, evaluated: list[tuple[int, float, float]], begin: float
) -> dict[str, Any]:
    """Return the record of a run without diagnostics, counters and cost.

    Args:
      run: the run.
      total: its planned number of commits.
      history: the commits that it made.
      evaluated: commits, test loss and accuracy of each evaluation. The last one counts if it is at the end.
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
        "train_loss": number(train_loss),
        "test_loss": number(test_loss),
        "test_accuracy": number(accuracy),
        "diverged": not train_loss <= (1 + MARGIN) * begin,
        "initial_train_loss": number(begin),
        "commits": total,
        "time": number(history["time"][-1]) if len(applied) else None,
        "staleness_p50": number(p50),
        "staleness_p95": number(p95),
        "curve": _curve(history, total, workers),
        "evaluations": {
            "commits": [row[0] for row in evaluated],
            "test_loss": [number(row[1]) for row in evaluated],
            "test_accuracy": [number(row[2]) for row in evaluated],
        },
    }


def _columns(parts: list[History]) -> list[str]:
    """Return the columns that all parts of a history have."""
    return [name for name in parts[0] if all(name in part for part in parts)] if parts else []


def _curve(history: History, total: int, workers: int) -> dict[str, list]:
    """Return the training loss, averaged over blocks of at least one commit per worker."""
    size = max(workers, -(-total // POINTS))
    blocks = range(0, len(history.get("loss", ())), size)
    kept = [(slice(begin, begin + size), history["applied"][begin : begin + size]) for begin in blocks]
    return {
        "commits": [min(block.stop, len(history["loss"])) for block, _ in kept],
        "time": [number(history["time"][block][-1]) for block, _ in kept],
        "train_loss": [number(history["loss"][block][ok].mean()) if ok.any() else None for block, ok in kept],
    }


def number(value: Any) -> float | None:
    """Return a float with six digits, for JSON; `None` if it is not finite."""
    return float(f"{float(value):.6g}") if np.isfinite(value) else None
