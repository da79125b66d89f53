"""Workers that read shared memory without a lock, and an adversary that decides who is late."""

import dataclasses
import heapq

import numpy as np

from gemjax.arrivals.base import Around, Arrivals, stream
from gemjax.arrivals.network import one_by_one
from gemjax.protocol.checks import check_at_least, check_between, check_positive_int, integer
from gemjax.protocol.trace import Trace


@dataclasses.dataclass(frozen=True)
class _Reads(Around):
    """Base of models in which a worker reads its view in blocks during the first part of its gradient's time."""

    composes = False
    num_blocks: int = 1
    span: float = 1.0

    def __post_init__(self):
        if not isinstance(self.model, Arrivals):
            raise TypeError(f"{type(self).__name__} wraps an arrival model, got {type(self.model).__name__}")
        object.__setattr__(self, "num_workers", self.model.num_workers)
        check_positive_int("num_blocks", self.num_blocks)
        check_between("span", self.span, 0.0, 1.0)

    def shares(self, trace: Trace, seed: int) -> np.ndarray:
        """Return the share of ``span`` after which each block is read, float64 [T, B]; 0 for one that the pull reads."""
        raise NotImplementedError

    def trace(self, num_commits, seed=0):
        trace = self.model.trace(num_commits, seed)
        begin = np.concatenate([[0.0], trace.time])[trace.pulled_at][:, None]  # At least the commit that it saw last.
        after = self.shares(trace, seed) * self.span * (trace.time[:, None] - begin)
        clock = np.searchsorted(trace.time, begin + after, side="right")
        clock = np.where(after > 0, clock, 0)
        read_at = np.clip(clock, trace.pulled_at[:, None], np.arange(len(trace))[:, None])
        # Were all blocks read later, their worker would have pulled later.
        columns = {name: getattr(trace, name) for name in ("worker", "step", "time", "num_workers", "draw")}
        return Trace(**columns, pulled_at=read_at.min(axis=1), read_at=read_at)


@dataclasses.dataclass(frozen=True)
class Sweep(_Reads):
    """Another model in which a worker reads the parameters block after block while others commit.

    A view is then inconsistent: its later blocks have commits that its first blocks lack, so that it may equal no version of
    the central variable. This is the loop of shared-memory SGD, which reads entry after entry without a lock.

    Block b of B is read after the share s b / (B - 1) of the time from pull to commit. A commit is seen whole by a block or not
    at all.

    Reductions: with one block or no span every run is that of ``model``, bit for bit.

    Args:
      model: any model but :class:`Assigned`, :class:`SemiSynchronous` and those of this module, also one that must be
        outermost.
      num_blocks: B, a positive int; :func:`gemjax.rules.spread_blocks` says which numbers a block has.
      span: s, from 0 to 1, default 1: the last block is read right before the commit.

    Raises:
      ValueError: if ``num_blocks`` is not positive or ``span`` not from 0 to 1.

    >>> from gemjax.arrivals import Gamma
    >>> trace = Sweep(Gamma(4), num_blocks=3).trace(8)
    >>> trace.read_at[5:]                                # Commit 7: its last block has what commits 4, 5 and 6 have changed.
    array([[2, 4, 5],
           [3, 4, 6],
           [4, 4, 7]], dtype=int32)
    >>> trace.staleness[5:]                              # That of the oldest block.
    array([3, 3, 3], dtype=int32)

    References:
      Alistarh, De Sa & Konstantinov, `The Convergence of Stochastic Gradient Descent in Asynchronous Shared Memory
      <https://arxiv.org/abs/1803.08841>`_, 2018
    """

    def shares(self, trace, seed):
        del seed
        share = np.arange(self.num_blocks) / max(1, self.num_blocks - 1)
        return np.broadcast_to(share, (len(trace), self.num_blocks))


@dataclasses.dataclass(frozen=True)
class Scattered(_Reads):
    """Another model in which a worker reads each block of the parameters at a random time of its own.

    As :class:`Sweep`, but in any order: each block is read after an independent, uniform share of ``span`` of the time from
    pull to commit. That is Hogwild with dense gradients.

    Args:
      model, num_blocks, span: as for :class:`Sweep`.

    Raises:
      ValueError: as for :class:`Sweep`.

    >>> from gemjax.arrivals import Gamma
    >>> Scattered(Gamma(4), num_blocks=3).trace(8, seed=1).read_at[-1]
    array([4, 6, 4], dtype=int32)

    References:
      Niu et al., `Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent
      <https://arxiv.org/abs/1106.5730>`_, 2011
    """

    def shares(self, trace, seed):
        if self.num_blocks == 1:
            return np.zeros((len(trace), 1))
        rng = stream(seed, self.num_workers)  # That of no worker.
        return rng.random((len(trace), self.num_blocks))


@dataclasses.dataclass(frozen=True)
class Adversary(Around):
    """Another model in which worker 0 holds its gradient back until others have made τ commits.

    This schedule proves the lower bound of Alistarh et al. On x²/2, with :func:`gemjax.asgd` at rate α, τ fresh commits of
    another worker and then the old one take x_0 to ((1 - α)^τ - α) x_0. For large τ that is -α x_0, so the number of commits
    to a given accuracy is proportional to τ.

    Args:
      model: how long workers compute, at least two of them.
      hold: τ ≥ 0, commits of others between the pull and the commit of a held gradient, at least.
      every: which gradients of worker 0 are held: every k-th, a positive int; default 1, all of them.

    Raises:
      ValueError: if the model has one worker, ``hold`` is negative or ``every`` not positive.

    >>> from gemjax.arrivals import RoundRobin
    >>> Adversary(RoundRobin(2), hold=3).trace(8).worker
    array([1, 1, 1, 0, 1, 1, 1, 0], dtype=int32)

    References:
      Alistarh, De Sa & Konstantinov, `The Convergence of Stochastic Gradient Descent in Asynchronous Shared Memory
      <https://arxiv.org/abs/1803.08841>`_, 2018
    """

    composes = False
    hold: int = 0
    every: int = 1

    def __post_init__(self):
        super().__post_init__()
        check_at_least("num_workers", self.num_workers, 2)
        integer("hold", self.hold, 0)
        check_positive_int("every", self.every)

    def trace(self, num_commits, seed=0):
        integer("num_commits", num_commits, 0)
        durations = [one_by_one(self.model, worker, seed).__next__ for worker in range(self.num_workers)]
        queue = [(one(), worker) for worker, one in enumerate(durations)]
        heapq.heapify(queue)
        workers: list[int] = []
        times: list[float] = []
        pulled, finished, is_held = 0, 0, False  # Of worker 0.

        def commit(worker: int, now: float) -> None:
            workers.append(worker)
            times.append(now)
            heapq.heappush(queue, (now + durations[worker](), worker))

        while len(workers) < num_commits:
            now, worker = heapq.heappop(queue)
            if worker == 0:
                finished += 1
                is_held = finished % self.every == 0 and len(workers) - pulled < self.hold
            if not (worker == 0 and is_held):
                commit(worker, now)
            if is_held and len(workers) - pulled >= self.hold:
                commit(0, now)
                is_held, worker = False, 0
            if worker == 0 and not is_held:
                pulled = len(workers)
        return Trace(np.array(workers[:num_commits], np.int32), time=times[:num_commits], num_workers=self.num_workers)
