"""Faults in the device engine: no worker waits for one that is hung or broken."""

import collections
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines.devices.device_runs import ASGD, QUADRATIC, assert_consistent, events, replay, run
from engines.problems import (
    Abreast,
    NotedLog,
    assert_close,
    poisoned,
)

import gemjax
from gemjax.testing import Faults, InjectedFaultError


@pytest.mark.slow
def test_a_hung_worker_stops_no_other():
    with Faults().hang(worker=2, step=1) as faults:
        result = run(gate=Abreast(4, faults, lost=lambda worker, step: worker == 2 and bool(faults.injected)))
    assert faults.injected == [("hang", 2, 1)]
    counts = collections.Counter(result.trace.worker.tolist())
    assert counts[2] == 1
    assert min(counts[w] for w in (0, 1, 3)) > 1
    assert_consistent(result, 40)
    assert_close(result.params, replay(result).params, rtol=1e-5)


def test_a_worker_that_raises_repeats_its_step(tmp_path):
    with (
        Faults().fail(0, 0).fail(1, 2, times=2).fail(1, 3, times=2) as faults,
        gemjax.EventLog(tmp_path / "log") as log,
    ):
        result = run(gate=Abreast(4, faults), num_commits=60, log=log)
    assert len(faults.injected) == 5
    found = [(event["worker"], event["step"]) for event in events(tmp_path / "log", "fault")]
    assert sorted(found) == [(0, 0), (1, 2), (1, 2), (1, 3), (1, 3)]
    assert "InjectedFaultError" in events(tmp_path / "log", "fault")[0]["error"]
    assert events(tmp_path / "log", "retire") == []
    for worker in range(4):  # No step is lost: the worker recomputes the batch at a fresh view.
        steps = result.trace.step[result.trace.worker == worker]
        np.testing.assert_array_equal(steps, np.arange(len(steps)))
    assert_consistent(result, 60)
    assert_close(result.params, replay(result).params, rtol=1e-5)


@pytest.mark.slow
def test_a_worker_that_raises_pulls_again(x64):
    """It fails after 20 commits, so that the view of its next commit is newer than these; the others wait for that one."""
    others_committed, repeated, failed = threading.Event(), threading.Event(), []

    def gate(worker, step):
        if (worker, step) == (1, 2) and not failed:
            assert others_committed.wait(60)
            failed.append(True)
            raise InjectedFaultError("late")
        if worker != 1 and step >= 10:
            assert repeated.wait(60)

    def callback(progress):
        if progress.commits >= 20:
            others_committed.set()
        if ((progress.history["worker"] == 1) & (progress.history["step"] == 2)).any():
            repeated.set()

    result = run(tx=ASGD, gate=gate, num_commits=60, callback=callback, callback_every=1)
    row = np.flatnonzero((result.trace.worker == 1) & (result.trace.step == 2))
    assert failed
    assert result.trace.pulled_at[row].tolist() >= [20]
    assert_close(result.params, replay(result, tx=ASGD).params, rtol=1e-4)


@pytest.mark.slow
def test_a_worker_that_keeps_raising_is_retired(tmp_path):
    with Faults().fail(1, 2, times=99) as faults, NotedLog(tmp_path / "log") as log:
        retired = lambda worker, step: worker == 1 and ("retire", 1) in log.noted
        with pytest.warns(
            gemjax.RunWarning, match="worker 1 was given up at its step 2, because it raised InjectedFault"
        ):
            result = run(gate=Abreast(4, faults, retired), num_commits=60, log=log)
    assert len(faults.injected) == 3
    assert [event["worker"] for event in events(tmp_path / "log", "retire")] == [1]
    assert (result.trace.worker == 1).sum() == 2
    assert_consistent(result, 60)
    assert_close(result.params, replay(result).params, rtol=1e-5)


@pytest.mark.slow
def test_when_all_workers_keep_raising_the_run_fails():
    def broken(worker, step):
        raise InjectedFaultError(f"no power at {worker}")

    with pytest.raises(
        gemjax.RunFailedError,
        match=r"0 of \d+ commits are made, but all 4 workers were given up; the last was worker \d at its step 0: .*no power",
    ):
        run(gate=broken)


def test_a_computation_that_raises_is_a_fault_of_its_worker(tmp_path):
    """Here the gradient on the device raises, not the gate of the test."""
    left = [2]

    def host(worker, step, x):
        if worker == 1 and step == 2 and left[0]:
            left[0] -= 1
            raise InjectedFaultError("cosmic ray")
        return np.asarray(x)

    def loss_fn(params, batch):
        worker, step, noise = batch
        same = jax.pure_callback(host, jax.ShapeDtypeStruct((4,), jnp.float32), worker, step, noise)
        return QUADRATIC.loss_fn(params, same)

    problem = QUADRATIC._replace(loss_fn=loss_fn, batches=lambda w, s: (w, s, QUADRATIC.batches(w, s)))
    with gemjax.EventLog(tmp_path / "log") as log:
        result = run(problem, ASGD, log=log, gate=Abreast())
    assert left == [0]
    assert [(event["worker"], event["step"]) for event in events(tmp_path / "log", "fault")] == [(1, 2)] * 2
    assert_consistent(result, 40)


@pytest.mark.parametrize("kind", [pytest.param("loss", marks=pytest.mark.slow), "gradient"])
def test_a_commit_that_is_not_finite_does_not_happen(kind, tmp_path):
    at = [(0, 0), (1, 2), (3, 1), (3, 2)]
    problem = poisoned(QUADRATIC, at, kind)
    with gemjax.EventLog(tmp_path / "log") as log:
        result = run(problem, num_commits=60, log=log, gate=Abreast())
    rejected = ~result.history["applied"]
    found = set(
        zip(result.history["worker"][rejected].tolist(), result.history["step"][rejected].tolist(), strict=True)
    )
    assert found == set(at)
    assert_consistent(result, 60)
    assert len(events(tmp_path / "log", "reject")) == 4
    assert not found & set(zip(result.trace.worker.tolist(), result.trace.step.tolist(), strict=True))
    assert np.isfinite(result.params["x"]).all()
    assert_close(result.params, replay(result, QUADRATIC).params, rtol=1e-5)


def test_when_all_commits_are_rejected_the_run_fails_with_the_last_ones():
    problem = QUADRATIC._replace(batches=lambda worker, step: jnp.full(4, jnp.nan))
    with pytest.raises(
        gemjax.RunFailedError, match=r"all rejected .*worker \d step \d+: loss nan.*no commit was ever applied"
    ):
        run(problem)


def test_an_error_in_the_data_reaches_the_caller():
    class Broken:
        data = ()

        def select(self, worker, step):
            if step[0] == 3:
                raise OSError("the disk is gone")
            return worker, step

        def batch(self, data, selection):
            return QUADRATIC.batches(*selection)

    with pytest.raises(OSError, match="the disk is gone"):
        run(QUADRATIC._replace(batches=Broken()))
