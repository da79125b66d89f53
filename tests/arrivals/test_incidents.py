"""Workers that slow down, leave and join, against a simulation event by event."""

import numpy as np
import pytest

from gemjax import arrivals
from gemjax.arrivals import Incidents, Joins, Leaves, Slows
from gemjax.arrivals.base import stream


def expected(model, incidents, num_commits, seed):
    """Return (time, worker, pulled at this time or NaN) of each commit."""
    commits = []
    for worker in range(model.num_workers):
        coming = sorted((one for one in incidents if one.worker == worker), key=lambda one: one.at)
        durations = iter(model.durations(worker, stream(seed, worker), 4 * num_commits + 100))
        moves = [one for one in coming if not isinstance(one, Slows)]
        here, now, factor, pulled, made = not moves or isinstance(moves[0], Leaves), 0.0, 1.0, np.nan, 0
        left = next(durations) if here else np.inf
        while made < num_commits and (here or coming):
            until = coming[0].at if coming else np.inf
            if here and now + left * factor <= until:
                now += left * factor
                commits.append((now, worker, pulled))
                made, pulled, left = made + 1, np.nan, next(durations)
                continue
            left, now = left - (until - now) / factor, until
            match coming.pop(0):
                case Slows(factor=slower):
                    factor = slower
                case Leaves():
                    here = False
                case Joins(at=at):
                    here, pulled, left = True, at, next(durations)
    return sorted(commits)[:num_commits]


def draw(rng):
    """Return a model of workers of unequal speed, their incidents, a number of commits and a seed."""
    workers = int(rng.integers(1, 5))
    speeds = rng.uniform(0.2, 8.0, workers).tolist()
    model = [arrivals.ConstantSpeeds(speeds), arrivals.Scaled(arrivals.Gamma(workers), speeds=speeds)][rng.integers(2)]
    incidents = []
    for worker in range(workers):
        times, leaves = np.sort(rng.uniform(0, 30, rng.integers(0, 4))).tolist(), rng.random() < 0.7
        incidents += [(Leaves if leaves != odd % 2 else Joins)(worker, at) for odd, at in enumerate(times)]
        incidents += [Slows(worker, *rng.uniform([0, 0.2], [30, 4]).tolist()) for _ in range(rng.integers(0, 3))]
    return model, incidents, int(rng.integers(1, 200)), int(rng.integers(100))


@pytest.mark.parametrize("number", range(40))
def test_a_trace_is_that_of_a_simulation_event_by_event(number):
    model, incidents, num_commits, seed = draw(np.random.default_rng(number))
    commits = expected(model, incidents, num_commits, seed)
    if len(commits) < num_commits:
        with pytest.raises(ValueError, match=f"only {len(commits)} of {num_commits} commits happen"):
            Incidents(model, incidents).trace(num_commits, seed)
        return
    trace = Incidents(model, incidents).trace(num_commits, seed)
    time, worker, pulled = (np.array(column) for column in zip(*commits, strict=True))
    np.testing.assert_array_equal(trace.worker, worker)
    np.testing.assert_allclose(trace.time, time, rtol=1e-9)
    late = np.flatnonzero(~np.isnan(pulled))
    np.testing.assert_array_equal(trace.pulled_at[late], np.searchsorted(time, pulled[late], side="right"))


def test_incidents_may_come_from_a_generator():
    model = Incidents(arrivals.RoundRobin(2), (Leaves(worker, at=2.5) for worker in [1]))
    assert model.trace(8).worker.tolist() == [0, 1, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("num_commits", [40, 100, 200, 240])
def test_a_fast_worker_commits_until_it_leaves(num_commits):
    """Its first durations end before it leaves; these were taken for all, so it left earlier, the shorter the trace was."""
    model = Incidents(arrivals.ConstantSpeeds([10.0, 1.0, 1.0, 1.0]), [Leaves(worker=0, at=20.05)])
    trace = model.trace(num_commits)
    own = trace.time[trace.worker == 0]
    np.testing.assert_allclose(np.diff(own), 0.1)
    assert own[-1] == pytest.approx(min(20.0, np.floor(trace.time[-1] * 10) / 10), abs=0.1001)
