"""Statistics of a run, against the contents of its log."""

import jax.numpy as jnp
import numpy as np
import pytest
from cycles import cycle, free, lock_step, start, turns

import gemjax


def test_times_are_those_of_the_log():
    events = [
        start(2),
        *cycle(0, 0, dispatch=0.0, began=1.0, ready=4.0, time=5.0, pulled_at=0, staleness=0),
        *cycle(1, 0, dispatch=0.0, began=0.0, ready=8.0, time=8.0, pulled_at=0, staleness=1),
        *cycle(0, 1, dispatch=5.0, began=5.0, ready=9.0, time=10.0, pulled_at=1, staleness=1),
        {"event": "pause", "time": 9.5, "seconds": 0.25},
    ]
    summary = gemjax.summarise(events)
    assert (summary.commits, summary.span, summary.paused, summary.num_devices) == (3, 10.0, 0.25, 2)
    np.testing.assert_allclose(summary.utilisation, [0.7, 0.8])
    np.testing.assert_allclose(summary.view_wait, [0.1, 0.0])
    np.testing.assert_allclose(summary.commit_wait, [0.2, 0.0])
    np.testing.assert_allclose(summary.share, [2 / 3, 1 / 3])
    assert summary.at_once == pytest.approx(15 / 9)
    assert (summary.gradient_time, summary.wait_median) == (4.0, 0.75)  # Without the pause.
    assert (summary.staleness_median, summary.versions) == (1.0, pytest.approx(2 / 3))
    assert summary.staleness_mode == pytest.approx(2 / 3)


def test_utilisation_begins_with_the_first_dispatch_of_a_worker():
    events = [
        start(2),
        *cycle(0, 0, dispatch=0.0, began=0.0, ready=10.0, time=10.0, pulled_at=0, staleness=0),
        *cycle(1, 0, dispatch=8.0, began=8.0, ready=9.0, time=10.0, pulled_at=0, staleness=1),
    ]
    np.testing.assert_allclose(gemjax.summarise(events).utilisation, [1.0, 0.5])


def test_without_versions_and_staleness_they_are_not_known():
    """Workers are not said to move in lock step, or the staleness to be constant."""
    trace = gemjax.arrivals.Gamma(4).trace(100)
    history = {"worker": trace.worker, "step": trace.step, "time": trace.time, "applied": trace.worker >= 0}
    summary = gemjax.summarise(history | {"dropped": trace.worker < 0})
    np.testing.assert_array_equal(
        [summary.staleness_median, summary.staleness_p95, summary.staleness_mode, summary.versions], np.nan
    )
    assert gemjax.verdict(summary).headline.startswith("Truly asynchronous")


def test_events_are_counted():
    events = [
        *free(3, rounds=4),
        *cycle(0, 98, 90.0, 90.0, 91.0, 91.0, 12, 0, kind="drop"),
        *cycle(1, 99, 90.0, 90.0, 91.0, 91.0, 12, 0, kind="reject", loss=None),
        {"event": "dispatch", "time": 91.0, "worker": 2, "step": 9},
        {"event": "fault", "time": 92.0, "worker": 2, "step": 9, "error": "boom"},
        {"event": "retire", "time": 92.0, "worker": 2, "step": 9},
        {"event": "dispatch", "time": 92.0, "worker": 1, "step": 100},
        {"event": "interrupt", "time": 93.0, "worker": 1, "step": 100},
    ]
    summary = gemjax.summarise(events)
    found = (summary.commits, summary.dropped, summary.rejected, summary.faults, summary.interrupted, summary.retired)
    assert found == (12, 1, 1, 1, 1, 1)


def test_a_worker_computes_until_it_is_called_back():
    """All four compute all the time; three of four gradients are called back."""
    events = [start(4)]
    for step in range(10):
        events += [{"event": "dispatch", "time": float(step), "worker": worker, "step": step} for worker in range(4)]
        events += cycle(step % 4, step, float(step), float(step), step + 1.0, step + 1.0, step, 0)[1:]
        others = [worker for worker in range(4) if worker != step % 4]
        events += [{"event": "interrupt", "time": step + 1.0, "worker": worker, "step": step} for worker in others]
    summary = gemjax.summarise(events)
    assert summary.at_once == 4.0
    np.testing.assert_allclose(summary.utilisation, np.ones(4))
    assert summary.gradient_time == 1.0


def test_a_worker_that_was_silent_beyond_its_deadline_was_retired():
    hang = {"event": "hang", "worker": 2, "step": 9}
    events = [*free(3, rounds=4), {"event": "dispatch", "time": 91.0, "worker": 2, "step": 9}, hang | {"time": 95.0}]
    summary = gemjax.summarise(events)
    assert (summary.faults, summary.retired) == (0, 1)
    returned = [{"event": kind, "time": 96.0, "worker": 2, "step": 9} for kind in ("late", "join")]
    assert gemjax.summarise([*events, *returned]).retired == 0


def test_a_worker_without_commits_has_no_share_and_no_time():
    summary = gemjax.summarise([start(3), *free(2, rounds=4)[1:]], num_workers=3)
    assert summary.share[2] == summary.utilisation[2] == summary.commit_wait[2] == 0.0


@pytest.mark.parametrize(
    ("events", "versions", "repeats", "at_once"),
    [
        (free(variation=0.0), 0.97, 1.0, 4.0),
        (lock_step(), 0.25, None, 2.7),
        (turns(), 0.97, None, 1.0),
    ],
    ids=["round", "barrier", "turns"],
)
def test_the_signs_of_synchrony(events, versions, repeats, at_once):
    summary = gemjax.summarise(events)
    assert summary.versions == pytest.approx(versions, abs=0.02)
    assert summary.at_once == pytest.approx(at_once, abs=0.5)
    assert summary.repeats == repeats if repeats else summary.repeats < 0.5


def test_a_result_knows_the_workers_that_committed_nothing():
    tx, problem = gemjax.asgd(0.1, num_workers=3), gemjax.testing.quadratic()
    result = gemjax.simulate(tx, *problem, gemjax.Trace([0, 1] * 10, num_workers=3))
    assert gemjax.summarise(result.history).num_workers == 2
    summary = gemjax.summarise(result)
    assert summary.num_workers == 3
    assert "Workers with less than a tenth of an equal share of the commits: 1 (2)" in str(gemjax.verdict(summary))
    assert gemjax.timeline(result, num_workers=4).num_workers == 4


@pytest.mark.parametrize("unit", [1e-15, 1e-100, 1e9])
def test_the_unit_of_virtual_time_is_of_any_size(unit):
    problem = gemjax.asgd(0.01, 4), lambda p, b: jnp.sum(p**2), jnp.ones(2), lambda w, s: 0.0
    one, other = (
        gemjax.summarise(gemjax.simulate(*problem, gemjax.arrivals.Gamma(4, mean=mean).trace(100)))
        for mean in (1.0, unit)
    )
    np.testing.assert_allclose(other.rate * unit, one.rate, rtol=1e-6)
    np.testing.assert_allclose(other.utilisation, one.utilisation, rtol=1e-6)
