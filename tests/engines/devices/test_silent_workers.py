"""Silent workers in real runs: detected, given up, and taken back."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines.devices.replayed_runs import ASGD, GEM, LIMIT, QUADRATIC, run
from engines.problems import Clock, NotedLog, assert_close, only_silent

import gemjax
from gemjax.engines.devices.roster import Roster
from gemjax.testing import Faults


def test_a_silent_worker_is_retired_and_the_run_continues(tmp_path, monkeypatch):
    with gemjax.EventLog(tmp_path / "log") as log, Faults().hang(worker=2, step=3) as faults:
        only_silent(monkeypatch, lambda worker, step: ("hang", worker, step) in faults.injected)
        result = run(policy=gemjax.Policy(deadline=0.5, max_staleness=4), gate=faults, log=log)
    kinds = [event["event"] for event in gemjax.eventlog.read(tmp_path / "log")]
    assert kinds.count("hang") == 1
    assert result.trace.staleness.max() <= 4  # Pacing waited for it until then.
    assert (result.trace.worker == 2).sum() == 3


@pytest.mark.slow
def test_a_worker_that_was_silent_returns(tmp_path, monkeypatch):
    """It is released once its hang is logged; the gradient that it then finishes is discarded."""
    back, gate_calls = threading.Event(), []

    def gate(worker, step):
        if (worker, step) == (2, 1):
            gate_calls.append(step)
            if len(gate_calls) == 1:
                back.wait(60)

    def callback(progress):
        if ("hang", 2) in log.noted:
            back.set()
        return back.is_set() and 2 in progress.history["worker"]

    only_silent(monkeypatch, lambda worker, step: (worker, step) == (2, 1) and len(gate_calls) == 1)
    with NotedLog(tmp_path / "log") as log:
        result = gemjax.run_on_devices(
            ASGD, *QUADRATIC[:3], 100_000, num_workers=4, gate=gate, log=log, callback=callback, callback_every=20,
            policy=gemjax.Policy(deadline=0.5),
        )  # fmt: skip
    kinds = [event["event"] for event in gemjax.eventlog.read(tmp_path / "log")]
    assert [kinds.count(kind) for kind in ("hang", "late", "join")] == [1, 1, 1]
    steps = result.trace.step[result.trace.worker == 2]
    np.testing.assert_array_equal(steps, np.arange(len(steps)))  # The discarded step was repeated.
    replay = gemjax.simulate(ASGD, *QUADRATIC[:3], result.trace)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-3)


@pytest.mark.slow
def test_when_all_are_silent_the_run_fails_with_its_result(monkeypatch):
    with Faults().hang(0, 5).hang(1, 5).hang(2, 5).hang(3, 5) as faults:
        only_silent(monkeypatch, lambda worker, step: ("hang", worker, step) in faults.injected)
        with pytest.raises(
            gemjax.RunFailedError, match=r"20 of 60 commits are made.*silent for more than 0.5 s"
        ) as failure:
            run(policy=gemjax.Policy(deadline=0.5), gate=faults)
        result = failure.value.result
    assert len(result.trace) == 20
    replay = gemjax.simulate(GEM, *QUADRATIC[:3], result.trace)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-4)


def test_a_hang_is_detected_though_the_queue_is_never_empty(monkeypatch, tmp_path):
    """A scheduler that is always busy still detects a silent worker."""
    from gemjax.engines.devices.hardware.waiters import Waiters

    take = Waiters.next

    def never_empty(self, timeout=None):
        while self._ready.qsize() < 2:
            self.wake()
        return take(self, timeout)

    monkeypatch.setattr(Waiters, "next", never_empty)
    with NotedLog(tmp_path / "log") as log, Faults().hang(2, 3) as faults:
        only_silent(monkeypatch, lambda worker, step: ("hang", worker, step) in faults.injected)

        def callback(progress):
            return progress.commits > 50_000 or ("hang", 2) in log.noted

        result = gemjax.run_on_devices(
            ASGD, *QUADRATIC[:3], 10**6, num_workers=4, policy=gemjax.Policy(deadline=0.3), gate=faults, log=log,
            callback=callback, callback_every=100,
        )  # fmt: skip
    assert len(result.trace) < 50_000


def test_a_callback_that_blocks_workers_does_not_count_as_silence(tmp_path, monkeypatch):
    """For longer than the deadline worker 1 is blocked, and it goes on after the next look at the clock only."""
    clock, running, begin_round, silent = Clock(monkeypatch), threading.Event(), Roster.begin_round, []
    running.set()

    def gate(worker, step):
        if worker == 1:
            assert running.wait(60)

    def look(self, now):
        silent.extend(found := begin_round(self, now))
        running.set()
        return found

    def callback(progress):
        running.clear()
        clock.ahead += 3600

    monkeypatch.setattr(Roster, "begin_round", look)
    with NotedLog(tmp_path / "log") as log:
        run(policy=LIMIT, gate=gate, callback=callback, callback_every=20, log=log)
    assert clock.ahead >= 2 * 3600
    assert not silent
    assert "hang" not in [kind for kind, _ in log.noted]


class Rows:
    """Rows of two workers; from the third time on the first one is read only when ``answers`` is set."""

    def __init__(self):
        self.answers, self.asked = threading.Event(), 0

    def __len__(self):
        return 16

    def __getitem__(self, row):
        if row == 0:
            self.asked += 1
            if self.asked > 2:
                self.answers.wait(60)
        return {"x": np.float32(row)}


def read_run(rows, num_commits, workers=2, **options):
    own = [np.arange(8), np.arange(8, 16)][:workers]
    batches = gemjax.FromSource(rows, gemjax.Shards(np.arange(16), 8, num_workers=workers, rows=own))
    loss_fn = lambda params, batch: jnp.mean((params - batch["x"]) ** 2)
    return gemjax.run_on_devices(
        gemjax.asgd(0.01, workers), loss_fn, jnp.float32(0.0), batches, num_commits, num_workers=workers,
        policy=gemjax.Policy(deadline=0.5), **options,
    )  # fmt: skip


@pytest.mark.slow
def test_a_batch_that_is_not_read_is_silence(tmp_path, monkeypatch):
    """The worker takes part again once it is read, and its step is repeated."""
    rows = Rows()
    only_silent(monkeypatch, lambda worker, step: worker == 0)

    def callback(progress):
        if ("hang", 0) in log.noted:
            rows.answers.set()
        return (progress.history["worker"] == 0).sum() > 2

    with NotedLog(tmp_path / "log") as log:
        result = read_run(rows, 1_000_000, log=log, callback=callback, callback_every=10)
    kinds = [event["event"] for event in gemjax.eventlog.read(tmp_path / "log") if event.get("worker") == 0]
    assert [kinds.count(kind) for kind in ("hang", "join", "fault")] == [1, 1, 0]
    steps = result.trace.step[result.trace.worker == 0]
    np.testing.assert_array_equal(steps, np.arange(len(steps)))
