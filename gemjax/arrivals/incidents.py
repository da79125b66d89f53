"""Workers that become slower, leave and come back."""

import collections
import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from gemjax.arrivals.base import Around, durations_of
from gemjax.protocol.checks import check_at_least, check_positive, integer
from gemjax.protocol.trace import Draws, Trace


@dataclasses.dataclass(frozen=True)
class Slows:
    """A slowdown: from ``at`` on, a worker takes ``factor`` times as long as in the model, also for its current gradient."""

    worker: int
    at: float
    factor: float


@dataclasses.dataclass(frozen=True)
class Leaves:
    """A departure: at ``at`` a worker leaves, and its current gradient is lost."""

    worker: int
    at: float


@dataclasses.dataclass(frozen=True)
class Joins:
    """A join: at ``at`` a worker pulls and starts; if this is its first incident, it was absent until then."""

    worker: int
    at: float


@dataclasses.dataclass(frozen=True)
class Incidents(Around):
    """Another model in which workers slow down, leave and join at given times.

    Args:
      model: how long gradients take otherwise.
      incidents: :class:`Slows`, :class:`Leaves` and :class:`Joins`, in any order; times in the units of the model. A later
        ``Slows`` replaces the factor of an earlier one; a factor of 1 ends the slowdown.

    Raises:
      ValueError: if the worker of an incident is out of range, a time is negative, a factor is not positive, or a worker
        leaves or joins twice in a row.

    >>> from gemjax.arrivals import RoundRobin
    >>> trace = Incidents(RoundRobin(2), [Leaves(worker=1, at=2.5), Joins(worker=1, at=6.5)]).trace(12)
    >>> trace.worker
    array([0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 1], dtype=int32)
    >>> int(trace.pulled_at[9])  # The view of its first commit after its return is not older than the return.
    8
    """

    composes = False
    incidents: Sequence[Slows | Leaves | Joins] = ()

    def __post_init__(self):
        super().__post_init__()
        incidents = tuple(self.incidents)
        for incident in incidents:
            integer(f"the worker of {incident}", incident.worker, 0, self.num_workers - 1)
            check_at_least(f"the time of {incident}", incident.at, 0.0)
            if isinstance(incident, Slows):
                check_positive(f"the factor of {incident}", incident.factor)
        object.__setattr__(self, "incidents", tuple(sorted(incidents, key=lambda incident: incident.at)))
        for worker in range(self.num_workers):
            kinds = [type(incident) for incident in self._of(worker) if not isinstance(incident, Slows)]
            if any(one is other for one, other in itertools.pairwise(kinds)):
                raise ValueError(f"worker {worker} leaves or joins twice in a row: {self._of(worker)}")

    def _of(self, worker: int) -> list[Slows | Leaves | Joins]:
        return [incident for incident in self.incidents if incident.worker == worker]

    @property
    def losses(self):
        return sum(isinstance(incident, Leaves) for incident in self.incidents)

    def trace(self, num_commits, seed=0):
        """Return the trace; a draw of a worker that is absent or leaves goes to the worker that draws next."""
        trace = super().trace(num_commits, seed)
        moves = collections.deque(incident for incident in self.incidents if not isinstance(incident, Slows))
        draws, first = Draws(range(self.num_workers)), {move.worker: move for move in reversed(moves)}
        for worker in (worker for worker, move in first.items() if isinstance(move, Joins)):
            draws.give_back(worker)
        drawn = np.empty_like(trace.draw)
        for row, (worker, time) in enumerate(zip(trace.worker.tolist(), trace.time.tolist(), strict=True)):
            while moves and moves[0].at < time:
                move = moves.popleft()
                (draws.of if isinstance(move, Joins) else draws.give_back)(move.worker)
            drawn[row] = draws.of(worker)
            draws.use(worker)
            draws.of(worker)
        return Trace(trace.worker, trace.pulled_at, trace.step, trace.time, self.num_workers, drawn)

    def durations(self, worker, rng, count):
        return durations_of(self.model, worker, rng, count)

    def finishes(self, worker, durations):
        incidents, left = self._of(worker), durations
        moves = [incident for incident in incidents if not isinstance(incident, Slows)]
        here, factor, now = not moves or isinstance(moves[0], Leaves), 1.0, 0.0
        finished, pulled = [], []
        joined = np.nan  # The time of its pull, if that is not right after its last commit.
        for incident in (*incidents, None):
            until = np.inf if incident is None else incident.at
            if here:
                times = now + factor * np.cumsum(left)
                done = int(np.searchsorted(times, until, side="right"))
                finished.append(times[:done])
                pulled.append(np.full(done, np.nan))
                if done:
                    pulled[-1][0], joined = joined, np.nan
                left = left[done:]
                if len(left) and incident is not None:
                    began = times[done - 1] if done else now
                    left = np.concatenate([[left[0] - (until - began) / factor], left[1:]])
            if isinstance(incident, Slows):
                factor = incident.factor
            elif isinstance(incident, Leaves):
                if not len(left):  # It makes further commits before, whose durations are not drawn yet.
                    break
                here, left, joined = False, left[1:], np.nan
            elif isinstance(incident, Joins):
                here, joined = True, incident.at
            now = until
        if not here:
            finished.append(np.array([np.inf]))
            pulled.append(np.array([np.nan]))
        return np.concatenate(finished), np.concatenate(pulled)
