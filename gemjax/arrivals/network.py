"""Latency between workers and the central variable, and the queue in front of it."""

import dataclasses
import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from gemjax.arrivals.base import Around, Arrivals, draw, durations_of, per_worker
from gemjax.protocol.checks import check_at_least, integer
from gemjax.protocol.trace import Trace


@dataclasses.dataclass(frozen=True)
class Delayed(Around):
    """Another model with latency: ``down`` for the pull, ``up`` for the commit.

    Args:
      model: how long workers compute.
      up: latency of a gradient, not negative; one for all workers or one per worker. Default 0.
      down: latency of a view, likewise.

    >>> from gemjax.arrivals import RoundRobin
    >>> Delayed(RoundRobin(2), up=0.5, down=1.5).trace(4).time
    array([3., 3., 6., 6.])
    """

    up: float | Sequence[float] = 0.0
    down: float | Sequence[float] = 0.0
    latency: tuple[float, ...] = dataclasses.field(init=False, repr=False, default=())  # Both, per worker.

    def __post_init__(self):
        super().__post_init__()
        up, down = (per_worker(name, getattr(self, name), self.num_workers) for name in ("up", "down"))
        object.__setattr__(self, "latency", tuple(there + back for there, back in zip(down, up, strict=True)))

    @property
    def way(self) -> tuple[float, ...]:
        """Former name of ``latency``."""
        return self.latency

    def durations(self, worker, rng, count):
        return self.latency[worker] + durations_of(self.model, worker, rng, count)


@dataclasses.dataclass(frozen=True)
class Queue(Around):
    """Another model in which each commit takes time, and workers are served in the order of their arrival.

    A worker pulls when its commit is served. With many workers the central variable becomes the bottleneck: it takes at most
    one commit per ``service``.

    Args:
      model: how long workers compute.
      service: time of one commit and pull, not negative.

    >>> from gemjax.arrivals import RoundRobin
    >>> Queue(RoundRobin(3), service=0.5).trace(6).time
    array([1.5, 2. , 2.5, 3. , 3.5, 4. ])
    """

    composes = False
    service: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        check_at_least("service", self.service, 0.0)

    def trace(self, num_commits, seed=0):
        integer("num_commits", num_commits, 0)
        durations = [one_by_one(self.model, worker, seed).__next__ for worker in range(self.num_workers)]
        queue = [(one(), worker) for worker, one in enumerate(durations)]
        heapq.heapify(queue)
        workers, times = [], []
        free, service, replace = 0.0, float(self.service), heapq.heapreplace
        for _ in range(num_commits):
            arrived, worker = queue[0]
            free = (arrived if arrived > free else free) + service
            workers.append(worker)
            times.append(free)
            replace(queue, (free + durations[worker](), worker))
        return Trace(np.array(workers, np.int32), time=times, num_workers=self.num_workers)


def one_by_one(model: Arrivals, worker: int, seed: int) -> Iterator[float]:
    """Yield the durations of a worker, drawn in blocks of doubling size."""
    done, count = 0, 64
    while True:
        yield from draw(model, worker, seed, count)[done:].tolist()
        done, count = count, 2 * count
