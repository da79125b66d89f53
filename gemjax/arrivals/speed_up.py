"""How much sooner asynchronous workers are done, in virtual time."""

from typing import NamedTuple

import numpy as np

from gemjax.arrivals.barriers import Barrier
from gemjax.arrivals.base import Arrivals, check_num_commits, stream


class SpeedUp(NamedTuple):
    """How many times sooner N asynchronous workers have made as many commits as others in the same virtual time.

    It counts commits and not what they are worth: whether stale ones teach as much as fresh ones is what runs tell.
    """

    over_one_worker: float
    over_synchronous: float


def speed_up(model: Arrivals, num_commits: int, seed: int = 0) -> SpeedUp:
    """Virtual time that others need for what ``model.trace(num_commits, seed)`` commits, over the time that it needs.

    The others are one of its workers alone, on average over who that is, and all of them behind a :class:`Barrier`:
    synchronous SGD on the same cluster. The same seed gives the same durations to all three.

    Args:
      model: how long workers compute; durations and whatever stands around them, a model that composes.
      num_commits: length T of the trace, positive. Short traces are coarse: a barrier waits for the last round, and the
        first commit of all takes as long as any other.
      seed: decides every duration.

    Returns:
      ``(over_one_worker, over_synchronous)``, two positive floats. The first is about N where commits take no time.

    Raises:
      TypeError: if ``model`` is more than durations (a queue, incidents, a barrier), so that a barrier cannot be put around it.
      ValueError: if ``num_commits`` is not positive.

    >>> from gemjax.arrivals import ConstantSpeeds, Gamma
    >>> speed_up(ConstantSpeeds([1.0, 1.0, 0.5]), 500).over_synchronous  # Behind the barrier all go as slowly as the third.
    1.67
    >>> [round(value, 2) for value in speed_up(Gamma(64), 64 * 400)]
    [63.98, 1.25]

    References:
      Hakimi et al., `Taming Momentum in a Distributed Asynchronous Environment
      <https://arxiv.org/abs/1907.11612>`_, 2019, simulate clusters this way.
    """
    check_num_commits(num_commits)
    if not num_commits:
        raise ValueError("num_commits must be positive: no commits take no time")
    behind = Barrier(model).trace(num_commits, seed).time[-1]
    spent = model.trace(num_commits, seed).time[-1]
    alone = np.mean([_alone(model, worker, num_commits, seed) for worker in range(model.num_workers)])
    return SpeedUp(float(alone / spent), float(behind / spent))


def _alone(model: Arrivals, worker: int, num_commits: int, seed: int) -> float:
    """When ``worker`` has made all commits by itself."""
    finished, _ = model.finishes(worker, model.durations(worker, stream(seed, worker), num_commits))
    return float(finished[-1])
