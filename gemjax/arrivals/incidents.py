"""Workers that become slower, leave and come back."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from gemjax.arrivals.base import Arrivals, check_inner


@dataclasses.dataclass(frozen=True)
class Slows:
    """From ``at`` on a worker's gradients take ``factor`` times as long (1: as the model says), the one at hand included."""

    worker: int
    at: float
    factor: float


@dataclasses.dataclass(frozen=True)
class Leaves:
    """At ``at`` a worker is gone, and the gradient that it was computing is lost."""

    worker: int
    at: float


@dataclasses.dataclass(frozen=True)
class Joins:
    """At ``at`` a worker pulls and starts; one whose first incident this is was not there before."""

    worker: int
    at: float


@dataclasses.dataclass(frozen=True)
class Incidents(Arrivals):
    """Another model in which workers slow down, leave and join at given times.

    Args:
      model: how long gradients take otherwise.
      incidents: :class:`Slows`, :class:`Leaves` and :class:`Joins`, in any order; times in the units of the model.

    Raises:
      ValueError: if an incident is of a worker that is not there, at a negative time, with a factor that is not positive,
        or a worker leaves or joins twice in a row.

    >>> from gemjax.arrivals import RoundRobin
    >>> trace = Incidents(RoundRobin(2), [Leaves(worker=1, at=2.5), Joins(worker=1, at=6.5)]).trace(12)
    >>> trace.worker
    array([0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 1], dtype=int32)
    >>> int(trace.pulled_at[9])  # What it committed on when it was back is not older than its return.
    8
    """

    composes = False
    num_workers: int = dataclasses.field(init=False, default=0)
    model: Arrivals = dataclasses.field(default_factory=lambda: Arrivals(1))
    incidents: Sequence[Slows | Leaves | Joins] = ()

    def __post_init__(self):
        check_inner(self, self.model)
        object.__setattr__(self, "num_workers", self.model.num_workers)
        object.__setattr__(self, "incidents", tuple(sorted(self.incidents, key=lambda incident: incident.at)))
        super().__post_init__()
        for incident in self.incidents:
            if not 0 <= incident.worker < self.num_workers:
                raise ValueError(f"{incident} is of a worker that is not in range({self.num_workers})")
            if not (np.isfinite(incident.at) and incident.at >= 0):
                raise ValueError(f"{incident}: the time must be finite and not negative")
            if isinstance(incident, Slows) and not (np.isfinite(incident.factor) and incident.factor > 0):
                raise ValueError(
                    f"{incident}: the factor must be positive; a worker that stands still is one that Leaves"
                )
        for worker in range(self.num_workers):
            kinds = [type(incident) for incident in self._of(worker) if not isinstance(incident, Slows)]
            if any(one is other for one, other in itertools.pairwise(kinds)):
                raise ValueError(f"worker {worker} leaves or joins twice in a row: {self._of(worker)}")

    def _of(self, worker: int) -> list[Slows | Leaves | Joins]:
        return [incident for incident in self.incidents if incident.worker == worker]

    @property
    def losses(self):
        return sum(isinstance(incident, Leaves) for incident in self.incidents)

    def durations(self, worker, rng, count):
        return self.model.durations(worker, rng, count)

    def finishes(self, worker, durations):
        incidents, left = self._of(worker), durations
        moves = [incident for incident in incidents if not isinstance(incident, Slows)]
        here, factor, now = not moves or isinstance(moves[0], Leaves), 1.0, 0.0
        finished, pulled = [], []
        joined = np.nan  # When it pulled, if not right after its last commit.
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
                here, left, joined = False, left[1:], np.nan
            elif isinstance(incident, Joins):
                here, joined = True, incident.at
            now = until
        if not here:
            finished.append(np.array([np.inf]))
            pulled.append(np.array([np.nan]))
        return np.concatenate(finished), np.concatenate(pulled)
