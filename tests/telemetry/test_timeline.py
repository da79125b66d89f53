"""Cycles of workers from logs and histories."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from cycles import cycle, free, start

import gemjax
from gemjax import arrivals, testing
from gemjax.telemetry import eventlog
from gemjax.telemetry.eventlog import EventLog


def test_a_log_becomes_cycles():
    events = [
        start(2),
        *cycle(1, 0, dispatch=0.0, began=0.1, ready=0.4, time=0.5, pulled_at=0, staleness=0, loss=3.0),
        *cycle(0, 0, dispatch=0.0, began=0.0, ready=0.6, time=0.6, pulled_at=0, staleness=1, kind="reject", loss=None),
        {"event": "dispatch", "time": 0.6, "worker": 0, "step": 1},
        {"event": "fault", "time": 0.9, "worker": 0, "step": 1, "error": "boom"},
        {"event": "retire", "time": 0.9, "worker": 0, "step": 1},
    ]
    run = gemjax.timeline(events)
    assert (run.num_workers, run.measured, run.central) == (2, True, "gpu:2")
    assert run.devices == ("gpu:0", "gpu:1")
    assert run.cycles["event"].tolist() == ["commit", "reject", "fault"]
    np.testing.assert_array_equal(run.cycles["dispatch"], [0.0, 0.0, 0.6])
    np.testing.assert_array_equal(run.cycles["began"], [0.1, 0.0, 0.6])
    np.testing.assert_array_equal(run.cycles["ready"], [0.4, 0.6, 0.9])
    np.testing.assert_array_equal(run.cycles["loss"], [3.0, np.nan, np.nan])
    assert [incident["event"] for incident in run.incidents] == ["fault", "retire"]
    assert run.only("commit")["worker"].tolist() == [1]


def test_without_times_of_dispatch_a_worker_begins_when_its_last_cycle_ended():
    commits = [event for event in free(2, rounds=3) if event["event"] == "commit"]
    run = gemjax.timeline(commits)
    assert not run.measured
    for worker in range(2):
        mine = run.cycles["worker"] == worker
        times = run.cycles["time"][mine]
        np.testing.assert_array_equal(run.cycles["dispatch"][mine], np.concatenate([[0.0], times[:-1]]))
        np.testing.assert_array_equal(run.cycles["ready"][mine], times)


@pytest.mark.slow
def test_a_simulated_worker_begins_when_there_was_the_view_that_it_pulled():
    """Worker 1 leaves at 2.5 and joins at 6.5; its view is that of the commit at 6."""
    incidents = [arrivals.Leaves(worker=1, at=2.5), arrivals.Joins(worker=1, at=6.5)]
    trace = arrivals.Incidents(arrivals.RoundRobin(2), incidents).trace(12)
    problem = gemjax.asgd(0.1, 2), lambda p, b: p**2, jnp.ones([]), lambda w, s: 0.0
    whole = gemjax.simulate(*problem, trace)
    begun = gemjax.simulate(*problem, trace, callback=lambda progress: progress.commits == 5, callback_every=1)
    continued = gemjax.simulate(*problem, trace, state=begun)
    bare = gemjax.simulate(*problem, trace, state=begun.state)
    assert (len(begun.trace), len(bare.history["time"])) == (5, 7)
    for history in (whole.history, continued.history, bare.history):
        cycles = gemjax.timeline(history).cycles
        own = cycles["worker"] == 1
        back = {name: column[own][-2:].tolist() for name, column in cycles.items()}
        assert (back["dispatch"], back["began"]) == ([6.0, 7.5], [6.0, 7.5])
        assert (back["ready"], back["time"]) == ([7.5, 8.5], [7.5, 8.5])
    np.testing.assert_allclose(gemjax.summarise(whole).utilisation, [8 / 8.5, 4.5 / 8.5])
    rest, first = gemjax.summarise(bare.history), bare.history["time"][0]
    span = (
        (8.5 - first) * 7 / 6
    )  # It begins one interval before its first commit, and not with the run that it continues.
    np.testing.assert_allclose((rest.span, rest.rate), (span, 7 / span))
    last = gemjax.simulate(*problem, trace, state=gemjax.simulate(*problem, trace.first(11)).state)
    assert gemjax.summarise(last.history).rate < 1  # Of one commit nothing is known.


def test_a_simulated_worker_begins_at_the_end_of_its_refused_commit():
    columns = {"worker": [0, 1, 0, 1], "step": [0, 0, 1, 1], "time": [1.0, 1.5, 2.0, 2.5], "loss": [1.0] * 4}
    columns |= {"applied": [True, False, True, True], "dropped": [False, True, False, False]}
    columns |= {"pulled_at": [0, 0, 1, 1], "staleness": [0, 1, 0, 1]}
    history = {name: np.array(column) for name, column in columns.items()}
    assert gemjax.timeline(history).cycles["dispatch"].tolist() == [0.0, 0.0, 1.0, 1.5]


def test_commits_made_again_after_a_crash_replace_the_first_ones():
    events = free(3, rounds=4)
    commits = [number for number, event in enumerate(events) if event["event"] == "commit"]
    kept = events[: commits[4] + 1]
    begin = start(3, commits=5, time=events[commits[4]]["time"])
    again = gemjax.timeline([*events[: commits[8] + 1], begin, *events[commits[4] + 1 :]])
    once = gemjax.timeline(events)
    assert len(kept) < commits[8]
    for name, column in once.cycles.items():
        np.testing.assert_array_equal(again.cycles[name], column, err_msg=name)


def test_times_after_the_last_commit_of_an_interrupted_run_end_where_it_continues():
    events = [
        start(2),
        *cycle(0, 0, dispatch=0.0, began=0.0, ready=1.0, time=1.0, pulled_at=0, staleness=0),
        *cycle(1, 0, dispatch=0.0, began=0.0, ready=1.5, time=1.75, pulled_at=0, staleness=1, kind="reject", loss=None),
        {"event": "pause", "time": 0.75, "seconds": 2.0},
        start(2, commits=1, time=1.0),
        *cycle(1, 1, dispatch=1.0, began=1.0, ready=2.0, time=2.0, pulled_at=1, staleness=0),
    ]
    run = gemjax.timeline(events)
    assert run.cycles["event"].tolist() == ["commit", "reject", "commit"]
    np.testing.assert_array_equal(run.cycles["time"], [1.0, 1.0, 2.0])
    np.testing.assert_array_equal(run.cycles["dispatch"], [0.0, 0.0, 1.0])
    assert run.incidents[0]["seconds"] == 0.25


def test_a_history_gives_the_same_timeline_as_a_log(tmp_path):
    with gemjax.EventLog(tmp_path / "log.jsonl") as log:
        result = gemjax.run_on_devices(
            gemjax.gem(0.05, num_workers=2), lambda params, batch: ((params - batch) ** 2).sum(), np.zeros(2, np.float32),
            lambda worker, step: np.ones(2, np.float32), 12, num_workers=2, log=log, diagnostics=["gap"],
        )  # fmt: skip
    of_log = gemjax.timeline(eventlog.read(tmp_path / "log.jsonl"))
    of_history = gemjax.timeline(result.history, num_workers=2)
    assert of_log.measured
    assert of_history.measured
    for name in ("worker", "step", "staleness", "pulled_at", "dispatch", "began", "ready", "time", "loss", "gap"):
        np.testing.assert_allclose(of_log.cycles[name], of_history.cycles[name], rtol=1e-6, atol=2e-6, err_msg=name)
    assert of_log.central.startswith("cpu:")


@pytest.mark.slow
@pytest.mark.parametrize("simulated_first", [True, False])
def test_of_a_run_that_was_simulated_in_part_the_measured_part_is_told(simulated_first, tmp_path):
    """Seconds and units of the simulation were added up, so workers that took turns were said to overlap."""
    problem = gemjax.asgd(0.1, 2), lambda p, b: p**2, jnp.ones([]), lambda w, s: 0.0
    path = tmp_path / "log.jsonl"
    with gemjax.EventLog(path) as log:
        if simulated_first:
            simulated = gemjax.simulate(*problem, arrivals.Gamma(2).trace(20))
            result = gemjax.run_on_devices(*problem, 50, state=simulated, log=log)
        else:
            measured = gemjax.run_on_devices(*problem, 30, log=log)
            longer = gemjax.run_on_devices(*problem, 50, state=measured)
            result = gemjax.simulate(*problem, longer.trace, state=measured)
    assert len(result.history["time"]) == 50
    found, expected = (gemjax.timeline(source) for source in (result, eventlog.read(path)))
    assert found.measured
    assert len(found.cycles["worker"]) == 30
    for name in ("worker", "step", "dispatch", "began", "ready", "time"):
        np.testing.assert_allclose(found.cycles[name], expected.cycles[name], rtol=1e-6, atol=2e-6, err_msg=name)
    assert [gemjax.summarise(run).commits for run in (result, expected)] == [30, 30]
    assert gemjax.summarise(result).span < 10
    assert result.plot().axes[-1].get_xlabel() == "time (seconds, or units of the trace)"


def test_a_log_that_begins_after_some_commits_is_cut_back_by_their_number():
    events = [
        start(2, commits=5, time=1.0),
        *cycle(0, 3, dispatch=1.0, began=1.0, ready=2.0, time=2.0, pulled_at=5, staleness=0),
        *cycle(1, 3, dispatch=1.0, began=1.0, ready=2.5, time=2.5, pulled_at=5, staleness=1),
        start(2, commits=6, time=2.0),
        *cycle(1, 3, dispatch=2.0, began=2.0, ready=4.0, time=4.0, pulled_at=5, staleness=1),
    ]
    run = gemjax.timeline(events)
    np.testing.assert_array_equal(run.cycles["time"], [2.0, 4.0])


def refusals(first, rejected, dropped):
    """Return a log that goes on twice after one commit, which comes between a rejected and a dropped one."""
    log = [start(1) | first]
    for step, kind in enumerate(["reject", "commit", "drop", "reject"]):
        pulled_at = int(kind != "commit" and step > 1)
        log += cycle(0, step, step, step, step + 0.5, step + 1, pulled_at, 0, kind)
    again = start(1, commits=1, time=2.0) | {"rejected": rejected, "dropped": dropped}
    return [*log, again, *cycle(0, 2, 2, 2, 2.5, 3.0, 1, 0, "reject")]


@pytest.mark.parametrize(
    ("first", "rejected", "dropped", "kept"),
    [
        ({"rejected": 0, "dropped": 0}, 1, 0, ["reject", "commit", "reject"]),
        ({"rejected": 0, "dropped": 0}, 1, 1, ["reject", "commit", "drop", "reject"]),
        ({"rejected": 4, "dropped": 3}, 5, 3, ["reject", "commit", "reject"]),
        ({"rejected": 4, "dropped": 3}, 0, 0, ["reject", "commit", "reject"]),
        ({}, 1, 1, ["reject", "commit", "drop", "reject"]),
    ],
    ids=["none left", "one left", "earlier ones", "of another run", "no counts at first"],
)
def test_refused_commits_that_a_continued_run_does_not_know_are_left_out(first, rejected, dropped, kept):
    assert gemjax.timeline(refusals(first, rejected, dropped)).cycles["event"].tolist() == kept


def test_a_log_counts_the_refused_commits_of_a_run_continued_from_an_earlier_state(tmp_path):
    path, problem, states = tmp_path / "log.jsonl", testing.quadratic(), []
    run = functools.partial(gemjax.run_on_devices, gemjax.asgd(0.1), *problem, num_workers=1)
    with EventLog(path) as log, testing.Faults().poison(0, 3).poison(0, 9) as faults:
        first = run(9, log=log, gate=faults, callback=lambda p: states.append((p.state(), p.trace())), callback_every=7)
        assert (first.state.rejected, states[0][0].rejected) == (2, 1)
        state, recorded = states[0]
        again = run(12, log=log, state=state, recorded=recorded)
    assert again.state.rejected == gemjax.summarise(eventlog.read(path)).rejected == 1
