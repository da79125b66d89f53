"""Speed-up of asynchronous workers in virtual time."""

from typing import NamedTuple

import numpy as np

from gemjax.arrivals.barriers import Barrier
from gemjax.arrivals.base import Arrivals, draw
from gemjax.protocol.checks import check_positive_int


class SpeedUp(NamedTuple):
    """Ratios of the virtual times that other clusters and N asynchronous workers need for the same number of commits.

    They count commits, not their effect: only a run shows whether stale commits reduce the loss as much as fresh ones.
    """

    over_one_worker: float
    over_synchronous: float


def speed_up(model: Arrivals, num_commits: int, seed: int = 0) -> SpeedUp:
    """Return the virtual time of other clusters for T commits, divided by that of ``model.trace(num_commits, seed)``.

    The others are a single worker of the model (the mean over its workers), and all workers behind a :class:`Barrier`:
    synchronous SGD on the same cluster. All three have the same durations, by the same seed.

    Args:
      model: how long workers compute: a model of durations, alone or wrapped (``Scaled``, ``Delayed``), or a
        :class:`Barrier` around it. The speed-up of ``Barrier(model, quorum=m)`` over synchronous SGD is what waiting for the
        first m workers gains; with the default quorum it is 1.
      num_commits: length T of the trace, positive. Short traces are coarse: a barrier waits for the last round, and the
        first commit takes as long as any other.
      seed: decides every duration.

    Returns:
      ``(over_one_worker, over_synchronous)``, two positive floats. The first is about N where N equal workers commit and
      commits take no time.

    Raises:
      TypeError: if ``model`` is one that a barrier cannot wrap, such as a queue or incidents.
      ValueError: if ``num_commits`` is not positive.

    >>> from gemjax.arrivals import ConstantSpeeds, Gamma
    >>> speed_up(ConstantSpeeds([1.0, 1.0, 0.5]), 500).over_synchronous  # The barrier makes all as slow as the third worker.
    1.67
    >>> [round(value, 2) for value in speed_up(Gamma(64), 64 * 400)]
    [63.98, 1.25]

    References:
      Hakimi et al., `Taming Momentum in a Distributed Asynchronous Environment
      <https://arxiv.org/abs/1907.11612>`_, 2019, simulate clusters this way.
    """
    check_positive_int("num_commits", num_commits)
    durations = model.model if isinstance(model, Barrier) else model
    behind = Barrier(durations).trace(num_commits, seed).time[-1]
    spent = model.trace(num_commits, seed).time[-1]
    alone = np.mean([_alone(durations, worker, num_commits, seed) for worker in range(model.num_workers)])
    return SpeedUp(float(alone / spent), float(behind / spent))


def _alone(model: Arrivals, worker: int, num_commits: int, seed: int) -> float:
    """Return the time at which ``worker`` has made all commits by itself."""
    finished, _ = model.finishes(worker, draw(model, worker, seed, num_commits))
    return float(finished[-1])
