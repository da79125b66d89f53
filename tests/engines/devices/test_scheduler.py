"""Policies and members in real runs, which are all replayed."""

import itertools
import math
import threading
import types
import warnings

import jax
import numpy as np
import pytest
from engines.problems import Abreast, Clock, NotedLog, assert_close, only_silent, quadratic

import gemjax
from gemjax.engines.devices.roster import Roster
from gemjax.engines.devices.scheduler import Scheduler
from gemjax.engines.interrupts import Held
from gemjax.testing import Faults

QUADRATIC = quadratic()
GEM = gemjax.gem(0.05, num_workers=4)
ASGD = gemjax.asgd(0.05, num_workers=4)


def run(num_commits=60, tx=GEM, num_workers=4, **options):
    result = gemjax.run_on_devices(tx, *QUADRATIC[:3], num_commits, num_workers=num_workers, **options)
    replay = gemjax.simulate(tx, *QUADRATIC[:3], result.trace)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-4)
    assert len(result.trace) == num_commits
    return result


@pytest.mark.slow
@pytest.mark.parametrize("bound", [0, 1, 5])
def test_pacing_bounds_the_staleness(bound):
    result = run(policy=gemjax.Policy(max_staleness=bound))
    assert result.trace.staleness.max() <= bound
    if bound < 3:  # Fewer than the other workers, so the bound is reached.
        assert result.trace.staleness.max() == bound
    assert set(result.trace.worker) == set(range(4))


def test_a_quorum_of_all_is_a_barrier():
    result = run(policy=gemjax.Policy(quorum=4))
    rounds = result.trace.worker.reshape(15, 4)
    assert all(set(row) == set(range(4)) for row in rounds.tolist())
    np.testing.assert_array_equal(result.trace.pulled_at, np.repeat(np.arange(15) * 4, 4))


@pytest.mark.slow
def test_a_quorum_continues_without_a_slow_worker():
    """Worker 3 never finishes its second step: the rounds of the three others continue, with exactly the quorum."""
    first = run(4, policy=gemjax.Policy(quorum=4))
    with Faults().hang(worker=3, step=1) as faults:
        result = run(61, policy=gemjax.Policy(quorum=3), gate=faults, state=first)
    assert (result.trace.worker == 3).sum() == 1
    np.testing.assert_array_equal(result.trace.pulled_at[7:], np.repeat(np.arange(7, 61, 3), 3))


def test_more_than_the_quorum_may_arrive_within_the_grace():
    gate = Abreast(4)
    result = run(policy=gemjax.Policy(quorum=1 + 1, grace=30.0), gate=gate)
    # All four arrive within the grace, which ends as soon as no worker is in flight.
    np.testing.assert_array_equal(result.trace.pulled_at, np.repeat(np.arange(15) * 4, 4))


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


def test_a_long_callback_does_not_count_as_silence(tmp_path, monkeypatch):
    """It takes an hour, of a deadline of a minute, and no worker is retired."""
    clock = Clock(monkeypatch)

    def callback(progress):
        clock.ahead += 3600

    with NotedLog(tmp_path / "log") as log:
        result = run(policy=LIMIT, callback=callback, callback_every=20, log=log)
    assert clock.ahead >= 2 * 3600
    assert "hang" not in [kind for kind, _ in log.noted]
    assert len(result.trace) == 60


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


def test_workers_join_and_leave(tmp_path):
    members = gemjax.Members(4, absent=[3])
    seen, absent = [], {3}  # The others wait for a worker from its request to join to its request to leave.

    def callback(progress):
        seen.append(set(progress.history["worker"].tolist()))
        if len(seen) == 2:
            members.leave(0)
            members.join(3)
            absent.symmetric_difference_update({0, 3})
        if len(seen) == 6:
            members.join(0)
            members.join(0)  # Without an effect.
            absent.remove(0)

    with gemjax.EventLog(tmp_path / "log") as log:
        result = run(
            200,
            members=members,
            callback=callback,
            callback_every=20,
            gate=Abreast(4, lost=lambda worker, step: worker in absent),
            log=log,
        )
    assert seen[0] | seen[1] == {0, 1, 2}
    assert set().union(*seen[3:6]) == {1, 2, 3}
    kinds = [event["event"] for event in gemjax.eventlog.read(tmp_path / "log")]
    assert [kinds.count(kind) for kind in ("leave", "join")] == [1, 2]
    assert gemjax.eventlog.trace_of(tmp_path / "log", 4) == result.trace


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


def test_members_must_be_of_the_run():
    with pytest.raises(ValueError, match="members are for 3 workers, but the run has 4"):
        run(members=gemjax.Members(3))
    with pytest.raises(ValueError, match="quorum=5"):
        run(policy=gemjax.Policy(quorum=5))


def test_a_permanently_broken_transfer_ends_the_run(monkeypatch):
    """Each worker is retired after its retries, although its gradients are finished."""
    from gemjax.engines.devices.hardware.programs.host import Programs

    def never(self, packed):
        raise OSError("the link is down")

    monkeypatch.setattr(Programs, "bring", never)
    with pytest.raises(gemjax.RunFailedError, match=r"0 of 60 commits are made.*the link is down"):
        run()


def test_a_barrier_waits_for_a_worker_that_repeats_its_step():
    with Faults().slow(worker=3, seconds=0.2, first=2, last=2).fail(worker=3, step=2) as faults:  # So it comes last.
        result = run(policy=gemjax.Policy(quorum=4), gate=faults)
    assert ("fail", 3, 2) in faults.injected
    assert all(set(row) == set(range(4)) for row in result.trace.worker.reshape(15, 4).tolist())


def test_workers_may_join_before_the_run():
    members = gemjax.Members(4, absent=range(4))
    for worker in range(4):
        members.join(worker)
    run(members=members)


def test_a_run_without_workers_warns(monkeypatch, tmp_path):
    """All workers have left: one warning is given and logged; the run continues when one joins."""
    monkeypatch.setattr(Roster, "PATIENCE", 0.05)
    members = gemjax.Members(4, absent=range(4))
    warned = []

    def warn(message, category, *where):
        warned.append(str(message))
        members.join(2)

    with warnings.catch_warnings(), gemjax.EventLog(tmp_path / "log") as log:
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", warn)
        result = run(members=members, log=log)
    assert set(result.trace.worker) == {2}
    assert "have left: 0, 1, 2, 3; the run continues when a worker joins (Members.join)" in warned[0]
    idle = [event for event in gemjax.eventlog.read(tmp_path / "log") if event["event"] == "idle"]
    assert len(idle) == len(warned)
    assert idle[0]["seconds"] == 0.05


def test_a_run_that_waits_for_a_silent_worker_warns(monkeypatch):
    """Pacing holds all other gradients for the worker that hangs, and there is no deadline."""
    monkeypatch.setattr(Roster, "PATIENCE", 0.2)
    warned, waits_for_one = [], "computing: 1; held by the policy: 0, 2, 3; a deadline in the policy"
    with Faults().hang(1, 2) as faults, warnings.catch_warnings():

        def warn(message, category, *where):
            warned.append(str(message))
            if waits_for_one in warned[-1]:  # On a busy machine the others may be slow, too, before.
                faults.let_go(1, 2)

        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", warn)
        run(policy=gemjax.Policy(max_staleness=3), gate=faults)
    assert ("hang", 1, 2) in faults.injected


def test_a_run_that_all_workers_have_left_for_good_ends():
    members = gemjax.Members(4, absent=[3])

    def callback(progress):
        if progress.commits >= 20:
            for worker in range(3):
                members.leave(worker)
            members.close()

    with pytest.raises(
        gemjax.RunFailedError, match=r"of 60 .*workers 0, 1, 2, 3 have left and none can join"
    ) as failure:
        run(members=members, callback=callback, callback_every=20)
    assert len(failure.value.result.trace) >= 20
    with pytest.raises(RuntimeError, match="worker 3 cannot join: these members are closed"):
        members.join(3)


@pytest.mark.slow
def test_a_worker_that_joins_before_the_members_close_takes_part():
    members = gemjax.Members(4, absent=range(4))
    members.join(1)
    members.close()
    assert set(run(members=members).trace.worker) == {1}


def all_hang(at):
    """Faults that let all four workers hang in one step; the run fails unless they are released."""
    return Faults().hang(0, at).hang(1, at).hang(2, at).hang(3, at)


LIMIT = gemjax.Policy(deadline=60.0)


def test_a_callback_is_called_though_no_worker_arrives():
    """Three calls in a run that is stalled; the fourth releases the workers."""
    called = []

    def callback(progress):
        assert len(progress.history.get("loss", ())) == progress.commits - sum(called)
        called.append(progress.commits - sum(called))
        if called[-4:] == [0, 0, 0, 0]:
            for worker in range(4):
                faults.let_go(worker, 5)

    with all_hang(5) as faults:
        run(callback=callback, callback_every=1000, callback_seconds=0.05, gate=faults, policy=LIMIT)
    assert sum(called) == 60


@pytest.mark.parametrize(
    "options", [{"callback": lambda progress: None, "callback_seconds": 0.01}, {}], ids=["callback by time", "deadline"]
)
def test_nothing_postpones_the_warning_of_a_stall(monkeypatch, options):
    """Neither frequent callbacks nor a deadline of a minute delay it."""
    monkeypatch.setattr(Roster, "PATIENCE", 0.3)
    warned = []
    with all_hang(5) as faults, warnings.catch_warnings():

        def warn(message, category, *where):
            warned.append(str(message))
            if len(faults.injected) == 4:  # On a busy machine there may be stalls before.
                for worker in range(4):
                    faults.let_go(worker, 5)

        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", warn)
        run(**options, gate=faults, policy=LIMIT)
    assert any("computing: 0, 1, 2, 3" in message for message in warned)


@pytest.mark.parametrize("callback_seconds", [None, 60.0])
def test_a_look_ends_a_stalled_run(callback_seconds):
    """The gate of the last worker that hangs requests a look, as a signal handler does."""
    members, silent = gemjax.Members(4), []

    def gate(worker, step):
        if step == 5:
            silent.append(worker)
            if len(silent) == 4:
                members.look()
        faults(worker, step)

    with all_hang(5) as faults:
        result = gemjax.run_on_devices(
            ASGD, *QUADRATIC[:3], 60, num_workers=4, members=members, gate=gate, policy=LIMIT,
            callback=lambda progress: len(silent) == 4, callback_seconds=callback_seconds,
        )  # fmt: skip
    assert result.stopped
    assert len(result.trace) == 20


def test_a_look_without_a_callback_changes_nothing():
    members = gemjax.Members(4)
    members.look()
    run(members=members)


def test_seconds_between_callbacks_must_be_positive():
    with pytest.raises(ValueError, match="callback_seconds must be positive or None, got 0"):
        run(callback_seconds=0)


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
    clock, running, overdue, silent = Clock(monkeypatch), threading.Event(), Roster.overdue, []
    running.set()

    def gate(worker, step):
        if worker == 1:
            assert running.wait(60)

    def look(self, now):
        silent.extend(found := overdue(self, now))
        running.set()
        return found

    def callback(progress):
        running.clear()
        clock.ahead += 3600

    monkeypatch.setattr(Roster, "overdue", look)
    with NotedLog(tmp_path / "log") as log:
        run(policy=LIMIT, gate=gate, callback=callback, callback_every=20, log=log)
    assert clock.ahead >= 2 * 3600
    assert not silent
    assert "hang" not in [kind for kind, _ in log.noted]


def test_a_worker_that_joins_while_it_hangs_is_dispatched_afterwards(tmp_path, monkeypatch):
    """It joins many times; no gradients queue up behind the unfinished one."""
    members, calls = gemjax.Members(4), []

    def callback(progress):
        if ("hang", 2) in log.noted:
            calls.append(progress.commits)
        if len(calls) == 20:
            faults.let_go(2, 1)
        members.join(2)
        return len(calls) > 20 and 2 in progress.history["worker"]

    with NotedLog(tmp_path / "log") as log, Faults().hang(2, 1) as faults:
        only_silent(monkeypatch, lambda worker, step: ("hang", worker, step) in faults.injected and len(calls) < 20)
        faults.slow(0, 0.005).slow(1, 0.005).slow(3, 0.005)
        result = gemjax.run_on_devices(
            ASGD, *QUADRATIC[:3], 10**6, num_workers=4, policy=gemjax.Policy(deadline=0.1), gate=faults, log=log,
            callback=callback, callback_every=30, members=members,
        )  # fmt: skip
    events = [event for event in gemjax.eventlog.read(tmp_path / "log") if event.get("worker") == 2]
    sent = [event["step"] for event in events if event["event"] == "dispatch"]
    assert sent[:3] == [0, 1, 1]
    assert sent.count(1) == 2
    assert (result.trace.step[result.trace.worker == 2][:2] == [0, 1]).all()


def test_a_worker_that_leaves_and_joins_at_once_is_waited_for():
    """It is the only worker, and its thread is still busy with the earlier gradient."""
    members, joined = gemjax.Members(1), threading.Event()

    def gate(worker, step):
        if step == 5 and not joined.is_set():
            members.leave(0)
            members.join(0)
            members.close()
            joined.set()
            held.wait(0.5)

    held = threading.Event()
    result = gemjax.run_on_devices(
        gemjax.asgd(0.05, num_workers=1), *QUADRATIC[:3], 20, num_workers=1, members=members, gate=gate
    )
    assert len(result.trace) == 20


def test_members_remember_absent_workers():
    """A run that continues with them begins without those workers; the members keep no reference to the earlier run."""
    members = gemjax.Members(4, absent=[0])
    members.leave(1)
    members.join(0)
    woken = members._wake
    first = gemjax.run_on_devices(ASGD, *QUADRATIC[:3], 30, num_workers=4, members=members)
    assert members.absent == {1}
    assert members._wake is woken
    second = gemjax.run_on_devices(
        ASGD, *QUADRATIC[:3], 60, num_workers=4, members=members, state=first.state, recorded=first.trace
    )
    assert 1 not in second.trace.worker


def test_gradients_beyond_the_last_commit_are_used_when_one_is_refused():
    """More gradients are held than the run needs, until one of those that it committed is not finite."""
    with Faults().hang(3, 0).poison(0, 1).poison(1, 1).poison(2, 1) as faults:
        looks = itertools.count()
        result = run(
            4, ASGD, policy=gemjax.Policy(quorum=2, grace=0.2), gate=faults,
            callback=lambda progress: next(looks) > 100, callback_seconds=0.1,
        )  # fmt: skip
    assert (~result.history["applied"]).sum() >= 1


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


def test_an_arrival_during_a_callback_does_not_count_as_a_stall(monkeypatch):
    """The gradient is ready an hour before the end of the callback."""
    clock = Clock(monkeypatch)

    def callback(progress):
        clock.ahead += 3600

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(24, gemjax.asgd(0.05, num_workers=2), 2, callback_every=8, callback=callback)
    assert clock.ahead >= 2 * 3600


def test_gradients_in_flight_per_device_are_limited(monkeypatch):
    monkeypatch.setattr(Roster, "ROOM", 2)
    devices, most = jax.devices()[:3], [0]
    dispatch = Scheduler.dispatch

    def counting(self, instruction):
        dispatch(self, instruction)
        places = self.programs.placement.workers
        most.append(sum(places[other] == places[instruction.worker] for other in self.roster.in_flight))

    monkeypatch.setattr(Scheduler, "dispatch", counting)
    placement = gemjax.place(9, devices=devices)
    result = run(90, gemjax.asgd(0.01, num_workers=9), 9, placement=placement, gate=Abreast(9))
    assert max(most) == 2
    assert set(result.trace.worker) == set(range(9))


def test_a_gate_that_wants_to_exit_is_a_fault_of_its_worker():
    def gate(worker, step):
        if (worker, step) == (1, 2) and not left:
            left.append(worker)
            raise SystemExit

    left = []
    result = run(gate=Abreast(4, gate))
    assert left == [1]
    assert (result.trace.worker == 1).sum() > 2


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
        num_commits = 1
        drains = iter(range(3))

        def drain(self, *, wait):
            next(self.drains)  # Ends a loop that would not end.

    with pytest.raises(RuntimeError, match="none is due and none is pending"):
        Scheduler._loop(Idle(), None, 1, math.inf)
