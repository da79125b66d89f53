"""Runs of one configuration that differ only in seed and hyper-parameters, in one compiled program."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax

import gemjax
from gemjax.engines.memory import check_fits
from gemjax.engines.result import History
from train.config.config import Config
from train.config.methods import METHODS
from train.task.cluster import cluster
from train.task.methods import local_steps, make_method
from train.task.task import PyTree, Task

CHUNK = 100  # Arrivals between two reports of progress.

Summary = TypeVar("Summary")


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """A run of a batch.

    Attributes:
      point: its hyper-parameters and `seed`.
      history: the columns of its commits.
      state: its final state.
      initial_loss: training loss of its initial parameters.
      evaluated: commits and value of each evaluation.
    """

    point: dict[str, Any]
    history: History
    state: gemjax.RunState
    initial_loss: float
    evaluated: Sequence[tuple[int, Any]]


def run_batch(
    config: Config,
    task: Task,
    commits: int,
    over: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
    summarise: Callable[[FinishedRun], Summary],
    *,
    diagnostics: Sequence[str] = (),
    progress: Callable[[int], None] = lambda done: None,
    stops: Sequence[int] = (),
    evaluate: Callable[[gemjax.RunState], Any] = lambda state: None,
) -> list[Summary]:
    """Simulate `config` at every point of a grid, or of a list, and return a summary per run.

    Runs are divided among several programs if the device cannot hold all of them at once, or if workers pull late at places
    that differ between seeds. A run that fails continues beside the others to its end.

    Args:
      config: what all runs share.
      task: the data and network of `config`.
      commits: length of each run.
      over: values of each hyper-parameter to try, or a list of points.
      seeds: every point is run for each.
      summarise: called with each finished run.
      diagnostics: columns of the history beyond the default ones.
      progress: called with the commits of all runs so far.
      stops: numbers of commits after which each run is evaluated.
      evaluate: called with the state of a run at each of them.

    Returns:
      The summaries in the order of the points, with the seeds of each one after the other.
    """
    if isinstance(over, Mapping):
        over = [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())]
    steps, lists = task.batches.steps_per_epoch, {"point": range(len(over)), "seed": seeds}
    needed, found, before = memory_of_run(config, task.params), {}, 0
    local: Any = functools.partial(local_steps, config, steps) if METHODS[config.method].local else None
    initial_loss = functools.cache(lambda seed: task.train_loss(task.params_of(seed), task.model_state))
    trace = functools.cache(functools.partial(cluster(config).trace, commits))
    together = alike({seed: trace(seed) for seed in seeds})
    fits = functools.partial(fit, needed)
    for part in [part for own in together for part in programs(lists | {"seed": own}, fits)]:
        runs = [(number, seed) for number in part["point"] for seed in part["seed"]]
        looked: list[list[tuple[int, Any]]] = [[] for _ in runs]
        result = gemjax.sweep(
            functools.partial(make_method, config, steps),
            task.loss_fn,
            gemjax.PerSeed(task.params_of),
            gemjax.PerSeed(task.batches_of),
            gemjax.PerSeed(trace),
            [over[number] for number in part["point"]],
            seeds=part["seed"],
            model_state=task.model_state,
            local=local,
            diagnostics=diagnostics,
            callback_every=min(CHUNK, commits),
            callback=lambda done, total: progress(before + len(runs) * done * commits // total),  # noqa: B023 (called at once)
            stops=stops,
            at_stop=lambda done, run, state: looked[run].append((done, evaluate(state))),  # noqa: B023
        )
        for index, (number, seed) in enumerate(runs):
            history = {name: column[index] for name, column in result.history.items()}
            state = jax.tree.map(lambda leaf: leaf[index], result.state)  # noqa: B023
            point = dict(over[number]) | {"seed": seed}
            found[number, seed] = summarise(FinishedRun(point, history, state, initial_loss(seed), looked[index]))
        before += len(runs) * commits
    return [found[run] for run in itertools.product(*lists.values())]


def alike(traces: Mapping[int, gemjax.Trace]) -> list[list[int]]:
    """Return seeds in groups whose traces one program can run side by side: their workers pull late at the same places.

    >>> late = gemjax.Trace(worker=[0, 1, 0], pulled_at=[0, 0, 2])
    >>> alike({0: gemjax.Trace(worker=[0, 1, 0]), 1: late, 2: gemjax.Trace(worker=[1, 0, 1])})
    [[0, 2], [1]]
    """
    found: dict[bytes, list[int]] = {}
    for seed, trace in traces.items():
        found.setdefault(trace.events().commits.tobytes(), []).append(seed)
    return list(found.values())


def programs(lists: Mapping[str, Sequence], fits: Callable[[int], bool]) -> list[dict[str, Sequence]]:
    """Return grids whose union is the product of `lists`, each of so few runs that `fits(runs)`, or of one run.

    >>> programs({"learning_rate": (0.1, 0.2), "seed": (0, 1, 2)}, lambda runs: runs <= 3)
    [{'learning_rate': (0.1, 0.2), 'seed': (0,)}, {'learning_rate': (0.1,), 'seed': (1, 2)},
     {'learning_rate': (0.2,), 'seed': (1, 2)}]
    """
    runs = math.prod(map(len, lists.values()))
    if runs == 1 or fits(runs):
        return [dict(lists)]
    longest = max(lists, key=lambda name: len(lists[name]))
    half = len(lists[longest]) // 2
    parts = (lists[longest][:half], lists[longest][half:])
    return [program for part in parts for program in programs({**lists, longest: part}, fits)]


def memory_of_run(config: Config, params: PyTree) -> dict[str, int]:
    """Return the bytes that one run keeps, by purpose."""
    return gemjax.memory_of(make_method(config), params, num_workers=config.workers, local=local_steps(config))


def fit(needed: dict[str, int], runs: int) -> bool:
    """Return True if that many runs fit the device, with the same amount again for gradients, activations and copies."""
    try:
        check_fits({name: 2 * runs * size for name, size in needed.items()}, jax.devices()[0])
    except MemoryError:
        return False
    return True
