"""Runs that differ in learning rate and seed alone, as one program: small networks compile longer than they run."""

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

import gemjax
from gemjax.engines.result import check_rejections
from train.claims.execution.single import judged, kept, record, task_of
from train.claims.runs import Run, num_commits
from train.config.validation import LOCAL
from train.task.cluster import cluster
from train.task.methods import at, local_steps, make_method


def record_together(
    runs: Sequence[Run], machine: dict[str, Any], tell: Callable[[str, int], None] = lambda name, done: None
) -> list[dict[str, Any]]:
    """Makes the runs of one group of `train.claims.runs.groups`; returns what is kept of each, as `single.record` does.

    The cost in seconds is shared evenly. A run that fails goes on beside the others to its end, and what its commits were is
    kept; made alone it ends there, and nothing is kept of the last of its compiled calls.

    Args:
      runs: the group.
      machine: where this machine has its data: `data_dir` and `manual_dir`.
      tell: called with each run's name and its commits so far, now and then.
    """
    if len(runs) == 1:
        return [record(runs[0], machine, lambda done: tell(runs[0].name, done))]
    began = time.perf_counter()
    config, task = runs[0].config, task_of(runs[0].config, machine)
    steps = task.batches.steps_per_epoch
    total = num_commits(config, len(jax.tree.leaves(task.batches.data)[0]))
    rates, seeds = (
        list(dict.fromkeys(getattr(run.config, name) for run in runs)) for name in ("learning_rate", "seed")
    )
    traces = {seed: cluster(config).trace(total, seed) for seed in seeds}
    local: Any = lambda **point: local_steps(at(config, point), steps)

    def callback(done: int, arrivals: int) -> None:
        for run in runs:
            tell(run.name, done * total // arrivals)

    result = gemjax.sweep(
        lambda **point: make_method(at(config, point), steps),
        task.loss_fn,
        gemjax.PerSeed(task.params_of),
        gemjax.PerSeed(task.batches_of),
        gemjax.PerSeed(traces.__getitem__),
        {"learning_rate": rates},
        seeds=seeds,
        model_state=task.model_state,
        local=local if config.method in LOCAL else None,
        callback=callback,
    )
    places = {place: index for index, place in enumerate(itertools.product(rates, seeds))}
    records = [_record(run, task, total, result, places[run.config.learning_rate, run.config.seed]) for run in runs]
    seconds = round((time.perf_counter() - began) / len(runs), 2)
    return [one | {"seconds": seconds, "commits_per_second": None} for one in records]


def _record(run: Run, task: Any, total: int, result: gemjax.SweepResult, index: int) -> dict[str, Any]:
    state = jax.tree.map(lambda leaf: leaf[index], result.state)
    history = {name: column[index] for name, column in result.history.items()}
    failed = ""
    try:
        check_rejections(int(state.rejected_in_a_row), run.config.workers, lambda: history)
        looked = [(total, *task.evaluate(judged(run, state.params, lambda: state), state.model_state))]
    except gemjax.RunFailedError as error:
        failed, looked = str(error), []
    begin = task.train_loss(task.params_of(run.config.seed), task.model_state)
    return kept(run, total, history, looked, begin) | {
        "rejected": int(state.rejected),
        "dropped": int(state.dropped),
        "diagnostics": {},
        "failed": failed,
        "steps_per_epoch": task.batches.steps_per_epoch,
    }
