"""The tuning of the contestants of a race: each rate of each grid, in a simulation of the race."""

import functools
import heapq
from collections.abc import Iterator

import numpy as np

import gemjax
from train.race.contestants import CONTESTANTS, Lap
from train.task.task import Task

GRADIENT = 0.021  # Seconds of a gradient while three workers share two quiet cores.
VARIATION = 0.07  # Largest relative deviation of a duration from its mean.
EVERY = 16  # Commits between two evaluations.
LOSS = 0.12  # The rate that reaches it first is the best.


def tune(name: str, task: Task, workers: int, slow: float, gradients: int) -> Iterator[tuple[float, Lap]]:
    """Simulate a contestant at each rate of its grid; yield the rate and the run, in virtual seconds."""
    contestant = CONTESTANTS[name]
    trace = trace_of(workers, contestant.quorum(workers), slow, gradients)
    stops = np.array(sorted({*range(EVERY, gradients + 1, EVERY), gradients}))
    losses = np.full((len(contestant.tried), 1 + len(stops)), task.evaluate(task.params)[0])

    def evaluate(commits: int, run: int, state: gemjax.RunState) -> None:
        losses[run, 1 + np.searchsorted(stops, commits)] = task.evaluate(state.params)[0]

    gemjax.sweep(
        functools.partial(contestant.make, workers), task.loss_fn, task.params, task.batches, trace,
        {"learning_rate": contestant.tried}, stops=stops.tolist(), at_stop=evaluate,
    )  # fmt: skip
    commits = np.append(0, stops)
    times = np.append(0.0, trace.time)[commits]
    for rate, one in zip(contestant.tried, losses, strict=True):
        yield rate, Lap(times, one, commits, {})


def trace_of(workers: int, quorum: int, slow: float, commits: int) -> gemjax.Trace:
    """Return the order of commits in a race whose last worker takes `slow` seconds longer per gradient.

    >>> trace_of(3, 2, 0.2, 6).worker.tolist(), trace_of(3, 2, 0.2, 6).pulled_at.tolist()
    ([1, 0, 1, 0, 0, 1], [0, 0, 2, 2, 4, 4])
    """
    rng = np.random.default_rng(0)
    take = lambda worker: (GRADIENT + slow * (worker == workers - 1)) * rng.uniform(1 - VARIATION, 1 + VARIATION)
    running, waiting = [(take(worker), worker, 0) for worker in range(workers)], []
    heapq.heapify(running)
    rows: list[tuple[int, int, float]] = []
    while len(rows) < commits:
        now, worker, pulled = heapq.heappop(running)
        waiting.append((worker, pulled))
        if len(waiting) < quorum:
            continue
        rows += [(*one, now) for one in waiting]
        for worker, _ in waiting:
            heapq.heappush(running, (now + take(worker), worker, len(rows)))
        waiting = []
    order, pulled_at, time = zip(*rows[:commits], strict=True)
    return gemjax.Trace(order, pulled_at, time=time, num_workers=workers)
