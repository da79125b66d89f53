"""Workers that wait for each other."""

import dataclasses
from collections.abc import Callable

import numpy as np

from gemjax.arrivals.base import Around, Arrivals, check_inner, draw
from gemjax.protocol.checks import integer
from gemjax.protocol.trace import Trace


@dataclasses.dataclass(frozen=True)
class Barrier(Around):
    """Another model in rounds: the first m workers that finish commit together, and then all pull. Synchronous SGD.

    With m = N, the default, a round waits for the slowest worker. With m < N it does not: the other workers are called back at
    the end of the round and begin again (backup workers, m-synchronous SGD). The m gradients of a round are computed at the
    same view; with :func:`gemjax.asgd` at 1/m of a rate they are one step of that rate on their mean. In the virtual time of
    the same model it is the baseline of asynchronous runs.

    A gradient that is called back uses up its duration, but no step: the worker computes it again from the same batch and key
    at the newer view. Real workers have these rounds with ``gemjax.Policy(quorum=m, interrupt=m)``.

    Args:
      model: how long workers compute.
      quorum: m, the gradients of a round, from 1 to N; default N.

    Raises:
      ValueError: if ``quorum`` is not an int from 1 to N.

    >>> from gemjax.arrivals import ConstantSpeeds
    >>> trace = Barrier(ConstantSpeeds([4.0, 1.0])).trace(4)
    >>> trace.time, trace.pulled_at
    (array([1., 1., 2., 2.]), array([0, 0, 2, 2], dtype=int32))
    >>> trace = Barrier(ConstantSpeeds([4.0, 2.0, 1.0]), quorum=2).trace(4)  # Worker 2 never finishes in time.
    >>> trace.worker, trace.time
    (array([0, 1, 0, 1], dtype=int32), array([0.5, 0.5, 1. , 1. ]))

    References:
      Chen et al., `Revisiting Distributed Synchronous SGD <https://arxiv.org/abs/1604.00981>`_, 2016; Begunov & Tyurin, `Do We
      Need Asynchronous SGD? <https://arxiv.org/abs/2602.03802>`_, 2026
    """

    composes = False
    quorum: int | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.quorum is not None:
            integer("quorum", self.quorum, 1, self.num_workers)

    def trace(self, num_commits, seed=0):
        integer("num_commits", num_commits, 0)
        first = self.quorum or self.num_workers
        rounds = -(-num_commits // first)
        taken = np.stack([draw(self.model, w, seed, rounds) for w in range(self.num_workers)], axis=1)
        order = np.argsort(taken, axis=1, kind="stable")[:, :first]
        last = np.take_along_axis(taken, order[:, -1:], axis=1)
        return Trace(
            order.ravel()[:num_commits],
            np.repeat(np.arange(rounds) * first, first)[:num_commits],
            time=np.repeat(np.cumsum(last), first)[:num_commits],
            num_workers=self.num_workers,
        )


@dataclasses.dataclass(frozen=True)
class SemiSynchronous:
    """Workers that take local steps independently and then all meet for an exchange, as in LSGD's released code.

    Together the N workers take N τ local steps, each as many as its speed allows. When the last of these steps has been
    assigned, each worker finishes its current step and joins the exchange. All workers commit there, in the order in which they
    join, and all pull after the last commit. So no view is older than the previous meeting.

    Args:
      model: how long one local step takes each worker, any model of durations.
      period: τ ≥ 1, mean local steps per worker from one meeting to the next.

    Raises:
      ValueError: if ``period`` is not a positive int.

    >>> from gemjax.arrivals import ConstantSpeeds
    >>> trace, periods = SemiSynchronous(ConstantSpeeds([3.0, 1.0]), period=4).trace(num_meetings=2)
    >>> periods
    ((6, 6), (2, 2))
    >>> trace.worker, trace.pulled_at
    (array([0, 1, 0, 1], dtype=int32), array([0, 0, 2, 2], dtype=int32))
    """

    model: Arrivals
    period: int = 1

    def __post_init__(self):
        check_inner(self, self.model)
        integer("period", self.period, 1)

    def trace(self, num_meetings: int, seed: int = 0) -> tuple[Trace, tuple[tuple[int, ...], ...]]:
        """Return the commits of ``num_meetings`` meetings.

        Args:
          num_meetings: a positive int.
          seed: decides every duration.

        Returns:
          ``(trace, periods)``: a :class:`gemjax.Trace` of N commits per meeting, and the periods for
          :class:`gemjax.LocalSteps`: the number of local steps of each commit of each worker.
        """
        integer("num_meetings", num_meetings, 1)
        num_workers = self.model.num_workers
        taken = np.zeros((num_workers, num_meetings), int)
        order, joined, now = [], [], 0.0
        finished = _resumable(self.model, seed)
        for meeting in range(num_meetings):
            # Each worker's durations continue after those of its last meeting.
            taken[:, meeting], joins = self._meeting(finished, taken[:, :meeting].sum(1))
            order.append(np.lexsort((np.arange(num_workers), joins)))
            joined.append(np.full(num_workers, now := now + joins.max()))
        trace = Trace(
            worker=np.concatenate(order),
            pulled_at=np.repeat(np.arange(num_meetings) * num_workers, num_workers),
            time=np.concatenate(joined),
            num_workers=num_workers,
        )
        return trace, tuple(tuple(row) for row in taken.tolist())

    def _meeting(self, finished: Callable, done: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return, per worker, its local steps until the next meeting and the time at which it joins."""
        num_workers, more = len(done), self.model.num_workers * (self.period - 1)
        # Each worker gets one step at once; each further step goes to the worker that finishes first.
        counts = [min(2 * self.period, more + 1)] * num_workers
        while True:
            times = [finished(w, done[w], count) for w, count in enumerate(counts)]
            finishes = np.concatenate(times)
            owner = np.repeat(np.arange(num_workers), counts)
            again = np.lexsort((owner, finishes))[:more]
            horizon = finishes[again[-1]] if len(again) == more > 0 else -np.inf if not more else np.inf
            short = [w for w in range(num_workers) if times[w][-1] <= horizon and counts[w] <= more]
            if not short:
                break
            for worker in short:
                counts[worker] = min(2 * counts[worker], more + 1)
        taken = 1 + np.bincount(owner[again], minlength=num_workers)
        return taken, np.array([one[count - 1] for one, count in zip(times, taken, strict=True)])


def _resumable(model: Arrivals, seed: int) -> Callable[[int, int, int], np.ndarray]:
    """Return ``finishes(worker, done, count)``: the times at which ``count`` steps after the first ``done`` end."""
    known: dict[int, np.ndarray] = {}

    def finishes(worker: int, done: int, count: int) -> np.ndarray:
        if worker not in known or len(known[worker]) < done + count:
            known[worker] = draw(model, worker, seed, 2 * (done + count))
        # Summed from there: differences of times would round, and break ties differently at each meeting.
        return model.finishes(worker, known[worker][done : done + count])[0]

    return finishes
