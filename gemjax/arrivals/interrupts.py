"""Workers that are called back when their gradient has become too old."""

import dataclasses
import heapq

import numpy as np

from gemjax.arrivals.base import Around
from gemjax.arrivals.network import one_by_one
from gemjax.protocol.checks import integer
from gemjax.protocol.trace import Trace


@dataclasses.dataclass(frozen=True)
class Interrupted(Around):
    """Another model in which a worker whose staleness reaches a limit stops, pulls and begins again.

    Algorithm 2 of Ringmaster ASGD: with :func:`gemjax.asgd`, or with :func:`gemjax.ringmaster`, which then refuses nothing. No
    gradient of a staleness of ``threshold`` or more is ever finished, so slow workers spend their time on gradients that count,
    at the present parameters, instead of on such that are refused.

    An interrupted gradient uses up its duration, but no step: the worker computes it again from the same batch and key at the
    newer view. In the trace that is a late pull, so every engine and every method can replay it. Real workers are
    interrupted by ``gemjax.Policy(interrupt=R)``.

    Args:
      model: how long workers compute.
      threshold: R ≥ 1 in commits, a positive int. With 1 every commit calls back all other workers.

    Raises:
      ValueError: if ``threshold`` is not a positive int.

    >>> from gemjax.arrivals import ConstantSpeeds
    >>> model = Interrupted(ConstantSpeeds([1.0, 0.4]), threshold=2)
    >>> trace = model.trace(8)
    >>> trace.worker, int(trace.staleness.max())  # Worker 1 needs 2.5 and is called back after 2 commits by the other.
    (array([0, 0, 0, 0, 0, 0, 0, 0], dtype=int32), 0)
    >>> model.interruptions(8)
    array([0, 4])

    References:
      Maranjyan et al., `Ringmaster ASGD: The First Asynchronous SGD with Optimal Time Complexity
      <https://arxiv.org/abs/2501.16168>`_, 2025
    """

    composes = False
    threshold: int = 1

    def __post_init__(self):
        super().__post_init__()
        integer("threshold", self.threshold, 1)

    def trace(self, num_commits, seed=0):
        return self._run(num_commits, seed)[0]

    def interruptions(self, num_commits: int, seed: int = 0) -> np.ndarray:
        """Return how often each worker is interrupted in the first ``num_commits`` commits, int [N]."""
        return self._run(num_commits, seed)[1]

    def _run(self, num_commits: int, seed: int) -> tuple[Trace, np.ndarray]:
        integer("num_commits", num_commits, 0)
        workers = range(self.num_workers)
        durations = [one_by_one(self.model, worker, seed).__next__ for worker in workers]
        begun, pulled, interrupted = [0] * self.num_workers, [0] * self.num_workers, np.zeros(self.num_workers, int)
        heap: list[tuple[float, int, int]] = []  # Time, worker, and which of the gradients that the worker has begun.

        def begin(worker: int, now: float, clock: int) -> None:
            begun[worker] += 1
            pulled[worker] = clock
            heapq.heappush(heap, (now + durations[worker](), worker, begun[worker]))

        for worker in workers:
            begin(worker, 0.0, 0)
        rows: list[tuple[int, int, float]] = []
        while len(rows) < num_commits:
            now, worker, number = heapq.heappop(heap)
            if number != begun[worker]:  # It was interrupted.
                continue
            rows.append((worker, pulled[worker], now))
            begin(worker, now, len(rows))
            for other in workers:
                if len(rows) - pulled[other] >= self.threshold:
                    interrupted[other] += 1
                    begin(other, now, len(rows))
        order, pulls, time = (np.array(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
        return Trace(order, pulls, time=time, num_workers=self.num_workers), interrupted
