"""Evaluations during a run: exact, complete, and beside the commits."""

import functools
import threading
import time
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines.devices.device_runs import ASGD, GEM, QUADRATIC, events, replay, run
from engines.problems import poisoned

import gemjax
from gemjax.callbacks import BestCheckpoint
from gemjax.engines.running.checkpoints.saving import Saving
from gemjax.testing import Faults

simulated = functools.partial(gemjax.simulate, GEM, *QUADRATIC[:3])
ENGINES = {"devices": run, "simulator": functools.partial(simulated, gemjax.arrivals.Gamma(4).trace(40))}
PATIENCE = 60.0  # Seconds after which a test that would wait for ever fails.


def norm(params, model_state):
    return {"norm": jnp.linalg.norm(jax.flatten_util.ravel_pytree(params)[0])}


def assert_equal(found, expected, rtol=1e-5):
    assert found.keys() == expected.keys() == {"commit", "time", "norm"}
    for name in ("commit", "time"):
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    np.testing.assert_allclose(found["norm"], expected["norm"], rtol=rtol)


def reference(trace, every, problem=QUADRATIC, tx=GEM):
    """Return the evaluations as the states of a simulation after each of these commits have them."""
    rows = []

    def callback(progress):
        if progress.commits % every == 0 or progress.commits == len(trace):
            rows.append((progress.commits, trace.time[progress.commits - 1], norm(progress.params, ())["norm"]))

    gemjax.simulate(tx, *problem[:3], trace, callback=callback, callback_every=1)
    return dict(zip(("commit", "time", "norm"), map(np.array, zip(*rows, strict=True)), strict=True))


def test_they_are_those_after_each_multiple_on_devices_and_in_the_simulator():
    result = run(evaluate=norm, evaluate_every=7, num_commits=40)
    assert result.evaluations["commit"].tolist() == [7, 14, 21, 28, 35, 40]
    assert_equal(result.evaluations, replay(result, evaluate=norm, evaluate_every=7).evaluations)
    assert_equal(result.evaluations, reference(result.trace, 7))


def test_refused_commits_around_a_multiple_do_not_count():
    """Every second commit is a multiple, so that some of the rejected ones are next to one."""
    faults = Faults().poison(0, 2).poison(1, 2).poison(2, 3).poison(3, 3).poison(0, 4)
    result = run(tx=ASGD, num_commits=24, gate=faults, evaluate=norm, evaluate_every=2)
    assert int(result.state.rejected) >= 1  # A worker has made six commits, whichever it is.
    assert result.evaluations["commit"].tolist() == list(range(2, 25, 2))
    assert_equal(result.evaluations, reference(result.trace, 2, tx=ASGD))


def test_in_the_simulator_rows_of_the_trace_count():
    problem, trace = poisoned(QUADRATIC, [(w, 3) for w in range(4)]), gemjax.arrivals.Gamma(4).trace(40)
    result = gemjax.simulate(ASGD, *problem[:3], trace, evaluate=norm, evaluate_every=10)
    assert int(result.state.rejected) == 4
    assert_equal(result.evaluations, reference(trace, 10, problem, ASGD), rtol=1e-7)


def test_commits_go_on_while_an_evaluation_blocks_and_none_is_lost():
    late = threading.Event()

    def evaluate(params, model_state):
        assert late.wait(PATIENCE), "no commit was made during the first evaluation"
        return norm(params, model_state)

    def gate(worker, step):
        if step == 8:  # At least one worker has made eight commits, the evaluation after the fifth is under way.
            late.set()

    result = run(evaluate=evaluate, evaluate_every=5, num_commits=100, gate=gate)
    assert result.evaluations["commit"].tolist() == list(range(5, 101, 5))
    assert_equal(result.evaluations, reference(result.trace, 5))


def test_the_log_has_them_and_no_pause(tmp_path):
    path = tmp_path / "run.jsonl"
    with gemjax.EventLog(path) as log:
        run(evaluate=norm, evaluate_every=20, log=log)
    assert [event["commits"] for event in events(path, "evaluation")] == [20, 40]
    assert all(event["seconds"] >= 0 for event in events(path, "evaluation"))
    assert not events(path, "pause")
    shown = gemjax.chrome_trace(gemjax.telemetry.eventlog.read(path))["traceEvents"]
    tracks = {event["args"]["name"]: event["tid"] for event in shown if event["name"] == "thread_name"}
    assert {event["tid"] for event in shown if event["name"] == "evaluation"} == {tracks["evaluation"]} == {5}


@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_ends_the_run_with_its_result(engine):
    calls = []

    def evaluate(params, model_state):
        calls.append(1)
        if len(calls) == 2:
            raise ZeroDivisionError("no rows")
        return norm(params, model_state)

    with pytest.raises(ZeroDivisionError, match="no rows") as caught:
        ENGINES[engine](evaluate=evaluate, evaluate_every=5)
    result = caught.value.result
    assert result.evaluations["commit"].tolist() == [5]
    assert int(result.state.commits) >= 10


class StoppedError(Exception):
    """Raised by a callback."""


def blocked():
    """Return an evaluation that waits, and the event for which it waits."""
    late = threading.Event()

    def evaluate(params, model_state):
        assert late.wait(PATIENCE)
        return norm(params, model_state)

    return evaluate, late


def test_those_under_way_when_a_run_fails_are_in_its_result():
    evaluate, late = blocked()

    def callback(progress):
        if progress.commits >= 20:
            late.set()
            raise StoppedError

    with pytest.raises(StoppedError) as caught:
        run(evaluate=evaluate, evaluate_every=5, callback=callback, callback_every=1)
    failed = caught.value.result
    assert failed.evaluations["commit"].tolist() == list(range(5, int(failed.state.commits) + 1, 5))
    whole = run(evaluate=norm, evaluate_every=5, state=failed)
    assert_equal(whole.evaluations, reference(whole.trace, 5))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_callback_that_ends_a_run_gets_the_last_ones(engine):
    """One more call has those under way and that of the end; its return value does not count."""
    evaluate, late = blocked() if engine == "devices" else (norm, threading.Event())
    seen, ended = [], []

    def callback(progress):
        seen.extend(one.commit for one in progress.evaluated)
        if progress.commits >= 22:
            late.set()
            ended.append(progress.commits)
        return bool(ended)

    result = ENGINES[engine](evaluate=evaluate, evaluate_every=5, callback=callback, callback_every=1)
    assert result.stopped
    assert ended == [int(result.state.commits)] * 2
    assert seen == result.evaluations["commit"].tolist()


@pytest.mark.parametrize("engine", ENGINES)
def test_without_a_callback_no_copy_of_the_parameters_is_kept(engine):
    copies, alive = [], []

    def evaluate(params, model_state):
        end = time.monotonic() + PATIENCE / 4
        while sum(copy() is not None for copy in copies) > 2 and time.monotonic() < end and engine == "devices":
            threading.Event().wait(0.01)  # On devices the scheduler takes the last value meanwhile.
        alive.append(sum(copy() is not None for copy in copies))
        copies.append(weakref.ref(params["x"]))
        return {"norm": 0.0}

    ENGINES[engine](evaluate=evaluate, evaluate_every=5)
    assert len(alive) == 8
    assert max(alive) <= 2


def test_a_function_may_decline():
    made = iter([{"loss": 1.0}, None, {"loss": 3.0, "accuracy": 0.5}, None])
    result = run(evaluate=lambda params, model_state: next(made), evaluate_every=10)
    assert result.evaluations["commit"].tolist() == [10, 30]
    np.testing.assert_array_equal(result.evaluations["accuracy"], [np.nan, 0.5])


def test_a_continued_run_without_evaluate_has_those_before_it_throughout(monkeypatch):
    """Its callback and its checkpoints get them, not its result alone."""
    first, seen, saved = run(num_commits=20, evaluate=norm, evaluate_every=10), [], []
    monkeypatch.setattr(Saving, "is_due", lambda self, commits: True)
    monkeypatch.setattr(Saving, "save", lambda self, reached: saved.append(reached.evaluations))
    run(num_commits=40, state=first, callback=lambda progress: seen.append(progress.evaluations))
    assert seen
    assert saved
    for evaluations in (*seen, *saved):
        assert evaluations["commit"].tolist() == [10, 20]


def test_a_continued_run_has_those_of_both_parts():
    first = run(num_commits=25, evaluate=norm, evaluate_every=10)
    assert first.evaluations["commit"].tolist() == [10, 20, 25]
    second = run(num_commits=50, evaluate=norm, evaluate_every=10, state=first)
    assert second.evaluations["commit"].tolist() == [10, 20, 25, 30, 40, 50]
    assert run(num_commits=50, evaluate=norm, state=second).evaluations["commit"].tolist()[-2:] == [40, 50]

    trace = gemjax.arrivals.Gamma(4).trace(50)
    along = functools.partial(simulated, trace, evaluate=norm, evaluate_every=10)
    half = along(stops=[25], callback=lambda progress: progress.commits == 25)
    assert half.evaluations["commit"].tolist() == [10, 20, 25]
    assert along(state=half).evaluations["commit"].tolist() == [10, 20, 25, 30, 40, 50]


@pytest.mark.slow
def test_there_are_about_twenty_of_them_and_of_the_calls_of_a_callback():
    calls = []
    count = lambda progress: calls.append(progress.commits)
    result = run(tx=ASGD, num_commits=600, evaluate=norm)
    assert len(result.evaluations["commit"]) == 20
    replay(result, tx=ASGD, callback=count)
    assert calls == list(range(30, 601, 30))
    calls.clear()
    run(tx=ASGD, num_commits=600, callback=count)
    assert 10 <= len(calls) <= 21


def test_a_callback_knows_them_with_the_parameters():
    """The last call knows all; each row comes with its parameters once."""
    seen = []

    def callback(progress):
        known = dict(zip(*(progress.evaluations.get(name, np.zeros(0)) for name in ("commit", "norm")), strict=True))
        for one in progress.evaluated:
            assert float(norm(one.params, ())["norm"]) == known[one.commit]
            seen.append(one.commit)

    result = run(evaluate=norm, evaluate_every=10, callback=callback, callback_every=1000)
    assert seen == [10, 20, 30, 40]
    seen.clear()
    replay(result, evaluate=norm, evaluate_every=10, callback=callback, callback_every=1000)
    assert seen == [10, 20, 30, 40]


def test_the_best_checkpoint_has_the_parameters_that_were_evaluated(tmp_path):
    """The second evaluation is the best one, and the run goes on meanwhile."""
    copies = []

    def evaluate(params, model_state):
        copies.append(jax.device_get(params))
        return {"loss": abs(2 - len(copies))}

    best = BestCheckpoint(tmp_path, "loss")
    result = run(evaluate=evaluate, evaluate_every=10, callback=best)
    state, trace, metadata = best.load(result.state)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.params), copies[1])
    assert metadata["metric"] == 0
    assert metadata["commit"] == 20 <= len(trace)


@pytest.mark.slow
def test_they_are_made_on_the_evaluator():
    devices, used = jax.devices(), []
    placement = gemjax.Placement((devices[0],) * 4, devices[1], evaluator=devices[3])
    note = lambda params, model_state: used.append(jax.tree.leaves(params)[0].device) or {"loss": 0.0}
    run(placement=placement, evaluate=note, evaluate_every=20)
    assert used == [devices[3]] * 2
    used.clear()
    run(placement=gemjax.Placement((devices[0],) * 4, devices[1]), evaluate=note, evaluate_every=20)
    assert used == [devices[2]] * 2


@pytest.mark.parametrize("engine", ENGINES)
def test_progress_prints_one_line(engine, capsys):
    ENGINES[engine](progress=True)
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert printed.startswith("40/40 commits  ")
    assert "commits/s" in printed
    assert "loss " in printed
