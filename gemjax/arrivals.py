"""Models of how long workers compute: where the traces of simulated runs come from.

In all of them a worker starts its next gradient the moment it has committed, commits take no time, and workers do not
wait for each other. So every worker's finishing times are a running sum of its own durations, and a trace is their merge:
no parameter enters, which is why the trace can be made before the run.

Every worker draws from a random stream of its own, keyed by (seed, worker): a longer trace begins with the shorter one,
and adding workers changes nobody's speed.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from gemjax.staleness import check_num_workers
from gemjax.trace import Trace


@dataclasses.dataclass(frozen=True)
class Arrivals:
    """Base of the arrival models: members say how long one worker's gradients take."""

    num_workers: int

    def __post_init__(self):
        check_num_workers(self.num_workers)

    def durations(self, worker: int, rng: np.random.Generator, count: int) -> np.ndarray:
        """float64 [count]; the next ``count`` durations of ``worker``, all positive."""
        raise TypeError(
            f"{type(self).__name__} does not say how long gradients take; use RoundRobin, ConstantSpeeds, Gamma, …"
        )

    def finishes(self, worker: int, durations: np.ndarray) -> np.ndarray:
        """float64 [count]; when ``worker`` finishes gradients that take so long, one after the other from time 0."""
        del worker
        return np.cumsum(durations)

    def trace(self, num_commits: int, seed: int = 0) -> Trace:
        """The first ``num_commits`` commits.

        Args:
          num_commits: length T of the trace, a non-negative int.
          seed: decides every duration.

        Returns:
          A :class:`gemjax.Trace` whose ``time`` is virtual: the units of the model.
        """
        if num_commits < 0:
            raise ValueError(f"num_commits must not be negative, got {num_commits}")
        worker, time = _merge(self, num_commits, seed)
        return Trace(worker=worker, time=time, num_workers=self.num_workers)


@dataclasses.dataclass(frozen=True)
class RoundRobin(Arrivals):
    """Workers commit in turn, 0, 1, …, N - 1, 0, …; every gradient takes one unit of time.

    The staleness is exactly N - 1 after the first round.

    Args:
      num_workers: number of workers N, positive.

    >>> RoundRobin(3).trace(5).worker
    array([0, 1, 2, 0, 1], dtype=int32)
    """

    def durations(self, worker, rng, count):
        del worker, rng
        return np.ones(count)


@dataclasses.dataclass(frozen=True)
class ConstantSpeeds(Arrivals):
    """Each worker has a speed of its own, and keeps it.

    Args:
      speeds: gradients a unit of time for each worker, all positive. Commits at the same moment go by worker number.

    >>> ConstantSpeeds([2.0, 1.0]).trace(6).worker
    array([0, 0, 1, 0, 0, 1], dtype=int32)
    """

    num_workers: int = dataclasses.field(init=False, default=0)  # As many as there are speeds.
    speeds: Sequence[float] = ()

    def __post_init__(self):
        object.__setattr__(self, "speeds", tuple(float(speed) for speed in self.speeds))
        object.__setattr__(self, "num_workers", len(self.speeds))
        super().__post_init__()
        if not all(np.isfinite(speed) and speed > 0 for speed in self.speeds):
            raise ValueError(f"speeds must be positive and finite, got {self.speeds}")

    def durations(self, worker, rng, count):
        del rng
        return np.full(count, 1.0 / self.speeds[worker])

    def finishes(self, worker, durations):
        # Exact where a running sum would drift off a tie.
        return np.arange(1, len(durations) + 1) / self.speeds[worker]


@dataclasses.dataclass(frozen=True)
class Gamma(Arrivals):
    r"""Gamma-distributed durations, as DANA simulates clusters.

    A gradient of worker w takes :math:`T \sim \Gamma(1/V_b^2,\; \mu_w V_b^2)`: mean :math:`\mu_w`, coefficient of variation
    :math:`V_b`. On a homogeneous cluster every :math:`\mu_w` is ``mean``; on a heterogeneous one it is drawn once a worker from
    :math:`\Gamma(1/V_m^2,\; \mathrm{mean} \cdot V_m^2)`.

    Args:
      num_workers: number of workers N, positive.
      batch_variation: :math:`V_b > 0`, default 0.1.
      machine_variation: :math:`V_m \ge 0`; 0 (default) is homogeneous, DANA's heterogeneous cluster has 0.6.
      mean: mean duration, positive, in any unit of time; default 1.

    >>> trace = Gamma(8).trace(10_000)
    >>> float(trace.staleness[8:].mean().round(1))  # N - 1 on any cluster in a steady state.
    7.0

    References:
      Hakimi et al., `Taming Momentum in a Distributed Asynchronous Environment
      <https://arxiv.org/abs/1907.11612>`_, 2019; Ali et al., Representing Task and Machine Heterogeneities for
      Heterogeneous Computing Systems, 2000
    """

    batch_variation: float = 0.1
    machine_variation: float = 0.0
    mean: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        if not (self.batch_variation > 0 and self.machine_variation >= 0 and self.mean > 0):
            raise ValueError(f"batch_variation and mean must be positive, machine_variation not negative: got {self}")

    def durations(self, worker, rng, count):
        del worker
        mean = self.mean
        if self.machine_variation:
            mean = rng.gamma(self.machine_variation**-2, mean * self.machine_variation**2)
        return rng.gamma(self.batch_variation**-2, mean * self.batch_variation**2, count)


@dataclasses.dataclass(frozen=True)
class SemiSynchronous:
    r"""Workers that train freely for a while and then all meet, as in LSGD's released code.

    Together the N workers take :math:`N \tau` local steps, each as many as its speed allows; when the last of them has been
    given out, workers finish the step at hand and join the exchange. All commit there, in the order in which they join,
    and only then do all of them pull: nobody's view is older than the meeting before.

    Args:
      model: how long one local step takes each worker, any other model of this module.
      period: :math:`\tau \ge 1`, mean local steps a worker from one meeting to the next.

    Raises:
      ValueError: if ``period`` is not a positive int.

    >>> trace, periods = SemiSynchronous(ConstantSpeeds([3.0, 1.0]), period=4).trace(num_meetings=2)
    >>> periods
    ((6, 6), (2, 2))
    >>> trace.worker, trace.pulled_at
    (array([0, 1, 0, 1], dtype=int32), array([0, 0, 2, 2], dtype=int32))
    """

    model: Arrivals
    period: int = 1

    def __post_init__(self):
        if isinstance(self.period, bool) or not isinstance(self.period, int) or self.period < 1:
            raise ValueError(f"period must be a positive int, got {self.period!r}")

    def trace(self, num_meetings: int, seed: int = 0) -> tuple[Trace, tuple[tuple[int, ...], ...]]:
        """The commits of ``num_meetings`` meetings.

        Args:
          num_meetings: a positive int.
          seed: decides every duration.

        Returns:
          ``(trace, periods)``: a :class:`gemjax.Trace` of N commits a meeting, and the periods to give
          :class:`gemjax.LocalSteps` with it: how many local steps each commit of each worker takes.
        """
        if num_meetings < 1:
            raise ValueError(f"num_meetings must be positive, got {num_meetings}")
        num_workers = self.model.num_workers
        taken = np.zeros((num_workers, num_meetings), int)
        order, joined, now = [], [], 0.0
        finished = _finishes(self.model, seed)
        for meeting in range(num_meetings):
            # Each worker's durations go on where its last meeting broke off.
            done = taken[:, :meeting].sum(1)
            most = num_workers * (self.period - 1) + 1
            times = np.stack([finished(w, done[w], most) for w in range(num_workers)])
            # Everyone is given a step at once; of the rest, one to whoever finishes first.
            finishes, owner = times.ravel(), np.repeat(np.arange(num_workers), most)
            again = np.lexsort((owner, finishes))[: num_workers * (self.period - 1)]
            taken[:, meeting] = 1 + np.bincount(owner[again], minlength=num_workers)
            joins = times[np.arange(num_workers), taken[:, meeting] - 1]
            order.append(np.lexsort((np.arange(num_workers), joins)))
            joined.append(np.full(num_workers, now := now + joins.max()))
        trace = Trace(
            worker=np.concatenate(order),
            pulled_at=np.repeat(np.arange(num_meetings) * num_workers, num_workers),
            time=np.concatenate(joined),
            num_workers=num_workers,
        )
        return trace, tuple(tuple(row) for row in taken.tolist())


def _stream(seed: int, worker: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, worker]))


def _finishes(model: Arrivals, seed: int) -> Callable[[int, int, int], np.ndarray]:
    """``finishes(worker, done, count)``: when the next steps are finished, from a moment at which ``done`` are."""
    known: dict[int, np.ndarray] = {}

    def finishes(worker: int, done: int, count: int) -> np.ndarray:
        if worker not in known or len(known[worker]) < done + count:
            known[worker] = model.durations(worker, _stream(seed, worker), 2 * (done + count))
        # Summed from that moment on: a difference of two times would round what is a tie in another way each time.
        return model.finishes(worker, known[worker][done : done + count])

    return finishes


def _merge(arrivals: Arrivals, num_commits: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Workers and times of the first ``num_commits`` finishes, ties by worker number."""
    num_workers = arrivals.num_workers

    def finishes(worker: int, count: int) -> np.ndarray:
        # Drawn anew from the start when more are needed: the stream, and so the beginning, is the same.
        return arrivals.finishes(worker, arrivals.durations(worker, _stream(seed, worker), count))

    counts = [int(1.1 * num_commits / num_workers) + 8] * num_workers
    times = [finishes(worker, count) for worker, count in enumerate(counts)]
    while True:
        merged = np.concatenate(times)
        horizon = np.partition(merged, num_commits - 1)[num_commits - 1] if 0 < num_commits <= len(merged) else np.inf
        short = [w for w in range(num_workers) if times[w][-1] < horizon and counts[w] < num_commits]
        if not short:
            break
        for worker in short:
            counts[worker] = min(num_commits, 2 * counts[worker])
            times[worker] = finishes(worker, counts[worker])
    owner = np.repeat(np.arange(num_workers, dtype=np.int32), [len(t) for t in times])
    order = np.lexsort((owner, merged))[:num_commits]
    return owner[order], merged[order]
