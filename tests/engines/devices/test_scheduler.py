"""The scheduler in real runs, which are all replayed: transfers, its clock, gates and room per device."""

import math
import types

import jax
import numpy as np
import pytest
from engines.devices.replayed_runs import ASGD, QUADRATIC, run
from engines.problems import Abreast

import gemjax
from gemjax.engines.devices.hardware.programs.host import Programs
from gemjax.engines.devices.hardware.waiters import Waiters
from gemjax.engines.devices.history import RunHistory
from gemjax.engines.devices.roster import Roster
from gemjax.engines.devices.scheduler import Scheduler
from gemjax.engines.running.interrupts import Held
from gemjax.testing import Faults


def test_a_gradient_that_cannot_be_sent_leaves_the_central_variable_untouched(monkeypatch):
    """It counts as a fault of its worker, which repeats the step."""
    from gemjax.engines.devices.hardware.programs.host import Programs

    bring, failures = Programs.bring, []

    def sometimes(self, packed):
        if len(failures) < 2:
            failures.append(self)
            raise OSError("the link is down")
        return bring(self, packed)

    monkeypatch.setattr(Programs, "bring", sometimes)
    run()
    assert len(failures) == 2


def test_a_commit_has_the_time_at_which_it_is_made(monkeypatch):
    """A divided central variable waits for its actors in between: this is a wait for the commit, and shown as such."""
    calls = []

    def noting(kind, name):
        function = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *args: (function(*args), calls.append(name))[0])

    noting(Programs, "bring")
    noting(Programs, "commit")
    noting(RunHistory, "now")
    run(num_commits=8)
    assert calls.count("commit") == 8
    ends = [calls[index : index + 3] for index, name in enumerate(calls) if name == "bring"]
    assert ends == [["bring", "commit", "now"]] * 8


def test_a_permanently_broken_transfer_ends_the_run(monkeypatch):
    """Each worker is retired after its retries, although its gradients are finished."""
    from gemjax.engines.devices.hardware.programs.host import Programs

    def never(self, packed):
        raise OSError("the link is down")

    monkeypatch.setattr(Programs, "bring", never)
    with pytest.raises(gemjax.RunFailedError, match=r"0 of 60 commits are made.*the link is down"):
        run()


@pytest.mark.slow
def test_the_clock_of_the_roster_is_that_of_the_central_variable(monkeypatch):
    """Between callbacks commits count before their reports are read; rejected ones are taken back."""
    rosters, differences, call = [], [], Scheduler.call

    def called(self, callback):
        rosters.append(self.roster)
        return call(self, callback)

    def callback(progress):
        state = progress.state()
        clocks = [int(state.commits), *state.pulled_at.value.tolist()]
        differences.append(np.subtract([rosters[-1].clock, *rosters[-1].pulled_at], clocks).tolist())

    monkeypatch.setattr(Scheduler, "call", called)
    with Faults().poison(0, 2).poison(1, 3).poison(2, 3) as faults:
        result = run(tx=ASGD, gate=Abreast(4, faults), callback=callback, callback_every=1)
    assert (~result.history["applied"]).sum() == 3
    assert len(differences) > 3
    assert not np.any(differences)


def test_a_gate_that_wants_to_exit_is_a_fault_of_its_worker():
    def gate(worker, step):
        if (worker, step) == (1, 2) and not left:
            left.append(worker)
            raise SystemExit

    left = []
    result = run(gate=Abreast(4, gate))
    assert left == [1]
    assert (result.trace.worker == 1).sum() > 2


@pytest.mark.slow
def test_a_gate_computes_as_precisely_as_the_run(x64):
    """Double precision is set per thread."""
    seen = []

    def gate(worker, step):
        return lambda gradient: seen.append(jax.numpy.zeros(()).dtype) or gradient

    gemjax.run_on_devices(ASGD, *QUADRATIC[:3], 8, num_workers=4, gate=gate)
    assert set(seen) == {np.dtype("float64")}


def test_a_loop_without_anything_to_wait_for_is_an_error():
    class Idle:
        history = types.SimpleNamespace(commits=0, pending=[])
        roster = types.SimpleNamespace(is_short=False)
        held = Held()
        options = types.SimpleNamespace(num_commits=1, callback_every=1, callback_seconds=math.inf, stops=[])
        drains = iter(range(3))

        def drain(self, *, wait):
            next(self.drains)  # Ends a loop that would not end.

    with pytest.raises(AssertionError, match="none is due and none is pending"):
        Scheduler._loop(Idle())


def test_a_run_is_not_late_while_a_gradient_is_in_the_queue(monkeypatch):
    """Before each gradient the scheduler is woken, as by a request that a worker join."""
    woken, next_of = [], Waiters.next

    def next_after_a_wake(self, timeout=None):
        arrival = next_of(self)
        if len(woken) % 2 == 0:
            self._ready.put(arrival)
        woken.append(arrival)
        return arrival if len(woken) % 2 == 0 else None

    monkeypatch.setattr(Waiters, "next", next_after_a_wake)
    monkeypatch.setattr(Roster, "lateness", lambda self, now: "no gradient was in time")
    run(8)


def test_the_callback_is_called_after_each_multiple_though_commits_come_together():
    """With a quorum four commits come at once: counted from the call before, the calls would be late by 2, 4, 6 … commits."""
    called = []
    run(
        60,
        ASGD,
        policy=gemjax.Policy(quorum=4),
        callback=lambda progress: called.append(progress.commits),
        callback_every=10,
    )
    assert [commits // 10 for commits in called] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_the_callback_is_called_at_stops_in_any_order():
    called = []
    run(60, ASGD, callback=lambda progress: called.append(progress.commits), callback_every=40, stops=[33, 7, 7, 90])
    assert len(called) == 4
    for commits, due in zip(called, [7, 33, 40, 60], strict=True):
        assert due <= commits < due + 7
