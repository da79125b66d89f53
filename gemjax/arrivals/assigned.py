"""A server that decides which worker computes the next gradient."""

import collections
import dataclasses
import heapq
from collections.abc import Iterator

import numpy as np

from gemjax.arrivals.base import Arrivals, check_inner, stream
from gemjax.arrivals.network import one_by_one
from gemjax.protocol.checks import check_choice, integer
from gemjax.protocol.trace import Trace

ORDERS = ("pure", "random", "shuffled")


@dataclasses.dataclass(frozen=True)
class Assigned:
    """Another model in which a server assigns each new view to a worker, which need not be the one that has just committed.

    N gradients are in flight at any time. After a commit the server sends the new parameters to one worker; a worker with
    several of them computes their gradients one after another. If each worker has data of its own, then fast workers no longer
    count more than others. The price is time: all wait in the end for the slowest worker.

    In the trace a "worker" is one of these N jobs, because a worker may hold several views. So what a method keeps per worker,
    it keeps per job, and ``served_by`` tells whose data a job computes on.

    Args:
      model: how long the gradients of each of the N workers take, any model of durations.
      order: ``"pure"`` assigns to the worker that has just committed, which is ``model`` without a server; ``"random"`` to any
        worker; ``"shuffled"`` (default) to all workers once in every N commits, in a new random order.

    Raises:
      ValueError: if ``order`` is unknown.

    >>> import gemjax, jax.numpy as jnp
    >>> from gemjax.arrivals import ConstantSpeeds
    >>> minima = jnp.array([1.0, -1.0])                    # Of the two workers, the first of which is four times as fast.
    >>> def end(order):
    ...     trace, served_by = Assigned(ConstantSpeeds([4.0, 1.0]), order).trace(2000)
    ...     batches = gemjax.Computed(lambda job, step: minima[jnp.asarray(served_by)[job, step]])
    ...     loss_fn = lambda x, minimum: (x - minimum) ** 2
    ...     return gemjax.simulate(gemjax.asgd(0.002, num_workers=2), loss_fn, 0.0, batches, trace).params
    >>> print(end("pure").round(1), abs(end("shuffled")).round(1))
    0.6 0.0

    References:
      Islamov, Safaryan & Alistarh, `AsGrad: A Sharp Unified Analysis of Asynchronous-SGD Algorithms
      <https://arxiv.org/abs/2310.20452>`_, 2024

    Deviations from `the authors' program <https://github.com/Rustem-Islamov/AsGrad-public>`_:
      1. There a worker with several views begins the next one only when it is assigned yet another.
      2. There the gradient of a job that moves to another worker is still on the data of the one that has just committed.
    """

    model: Arrivals
    order: str = "shuffled"

    def __post_init__(self):
        check_inner(self, self.model)
        check_choice("order", self.order, ORDERS)

    def trace(self, num_commits: int, seed: int = 0) -> tuple[Trace, np.ndarray]:
        """Return the first ``num_commits`` commits.

        Args:
          num_commits: length T of the trace, a non-negative int.
          seed: decides every duration and the order.

        Returns:
          ``(trace, served_by)``: a :class:`gemjax.Trace` of N jobs, and an int32 array [N, steps] with the worker that computes
          the gradient of each job at each of its steps.
        """
        integer("num_commits", num_commits, 0)
        workers = range(self.model.num_workers)
        durations = [one_by_one(self.model, worker, seed).__next__ for worker in workers]
        jobs = [collections.deque([worker]) for worker in workers]
        busy = [(durations[worker](), worker) for worker in workers]
        heapq.heapify(busy)
        assigned = self._assigned(stream(seed, len(workers)))  # The random stream of no worker.
        served_by: list[list[int]] = [[] for _ in workers]
        committed, times = [], []
        for _ in range(num_commits):
            now, worker = heapq.heappop(busy)
            job = jobs[worker].popleft()
            committed.append(job)
            times.append(now)
            served_by[job].append(worker)
            following = worker if self.order == "pure" else next(assigned)
            jobs[following].append(job)
            begins = {worker} if jobs[worker] else set()
            begins |= {following} if len(jobs[following]) == 1 else set()
            for one in begins:
                heapq.heappush(busy, (now + durations[one](), one))
        table = np.zeros((len(workers), max(map(len, served_by))), np.int32)
        for job, its in enumerate(served_by):
            table[job, : len(its)] = its
        return Trace(np.array(committed, np.int32), time=times, num_workers=len(workers)), table

    def _assigned(self, rng: np.random.Generator) -> Iterator[int]:
        """Yield the workers to which a server assigns views."""
        count = self.model.num_workers
        while True:
            drawn = rng.permutation(count) if self.order == "shuffled" else rng.integers(count, size=count)
            yield from drawn.tolist()
