"""Runs that differ only in numbers and seed, in one program: small networks compile longer than they run."""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax

import gemjax
from gemjax.engines.result import check_end
from train.claims.execution.single import judged, number, record_of, task_of
from train.claims.runs import PlannedRun, RunRecord, num_commits
from train.config.config import Config
from train.config.methods import METHODS
from train.run.groups.batch import FinishedRun, run_batch

NUMBERS = ("learning_rate", "momentum", "kappa", "strength", "outer_learning_rate")
ROWS = 2000  # Rows of the evaluations along a run.


def record_together(
    runs: Sequence[PlannedRun], machine: dict[str, Any], tell: Callable[[str, int], None] = lambda name, done: None
) -> list[RunRecord]:
    """Make runs at every one of some points with every one of some seeds, and return their records.

    Points differ in any of `NUMBERS`. These are arguments of the program: other points, lengths and seeds need no compilation.
    Records are those of `single.record`, with the cost in seconds divided evenly, and with `final_loss`, the loss of the last
    parameters on training rows. Evaluations but for the last of several take `ROWS` rows. A run that fails continues beside the
    others to its end, and its record covers all of its commits; made alone, it ends at the failure.

    Args:
      runs: the runs.
      machine: the folders of data on this machine: `data_dir` and `manual_dir`.
      tell: called now and then with the name of each run and its commits so far.
    """
    began = time.perf_counter()
    config, task = runs[0].config, task_of(runs[0].config, machine)
    total = num_commits(config, len(jax.tree.leaves(task.batches.data)[0]))
    names = numbers(config)
    by_point = {(*(getattr(run.config, name) for name in names), run.config.seed): run for run in runs}
    points, seeds = (
        list(dict.fromkeys(values)) for values in zip(*((key[:-1], key[-1]) for key in by_point), strict=True)
    )
    several = runs[0].evaluations
    stops = [total * (k + 1) // several for k in range(several)] if several > 1 else []

    def evaluate(state: Any) -> tuple[float, float]:
        return task.evaluate(judged(runs[0], state.params, lambda: state), state.model_state, ROWS)

    def summarise(finished: FinishedRun) -> tuple[PlannedRun, RunRecord]:
        run = by_point[*(finished.point[name] for name in names), finished.point["seed"]]
        return run, _record(run, task, total, finished)

    def progress(done: int) -> None:
        for run in runs:
            tell(run.name, done // len(runs))

    over = [dict(zip(names, point, strict=True)) for point in points]
    with warnings.catch_warnings():  # `single.record` ignores it, too.
        warnings.filterwarnings("ignore", "the method is defined in rounds", gemjax.RunWarning)
        records = dict(
            run_batch(config, task, total, over, seeds, summarise, progress=progress, stops=stops, evaluate=evaluate)
        )
    seconds = round((time.perf_counter() - began) / len(runs), 2)
    return [records[run] | {"seconds": seconds, "commits_per_second": None} for run in runs]


def numbers(config: Config) -> tuple[str, ...]:
    """Return the given fields of a configuration that can be arguments of its program.

    >>> numbers(Config(engine="simulate", method="gem", learning_rate=0.1))
    ('learning_rate', 'momentum', 'kappa')
    >>> numbers(Config(engine="simulate", method="easgd", strength=0.1))
    ('strength',)
    """
    acting = ("learning_rate", *METHODS[config.method].flags)
    return tuple(name for name in NUMBERS if name in acting and getattr(config, name) is not None)


def _record(run: PlannedRun, task: Any, total: int, finished: FinishedRun) -> RunRecord:
    state, history, failed, last = finished.state, finished.history, "", {}
    params = judged(run, state.params, lambda: state)
    looked = [(done, *found) for done, found in finished.evaluated if done < total]
    try:
        check_end(state, run.config.workers, lambda: history)
        rows = ROWS if run.evaluations == 1 else None
        looked.append((total, *task.evaluate(params, state.model_state, rows)))
        last["final_loss"] = number(task.train_loss(params, state.model_state, ROWS))
    except gemjax.RunFailedError as error:
        failed = str(error)
    return (
        record_of(run, total, history, looked, finished.initial_loss)
        | last
        | {
            "rejected": int(state.rejected),
            "dropped": int(state.dropped),
            "diagnostics": {},
            "failed": failed,
            "steps_per_epoch": task.batches.steps_per_epoch,
        }
    )
