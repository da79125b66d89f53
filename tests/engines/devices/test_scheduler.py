"""Policies and members in real runs; each is replayed."""

import itertools
import threading
import warnings

import jax
import numpy as np
import pytest
from engines.problems import Abreast, assert_close, quadratic

import gemjax
from gemjax.engines.devices import scheduler
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


@pytest.mark.parametrize("bound", [0, 1, 5])
def test_pacing_bounds_the_staleness(bound):
    result = run(policy=gemjax.Policy(max_staleness=bound))
    assert result.trace.staleness.max() <= bound
    if bound < 3:  # Less than there are others: the bound is what limits.
        assert result.trace.staleness.max() == bound
    assert set(result.trace.worker) == set(range(4))


def test_a_quorum_of_all_is_a_barrier():
    result = run(policy=gemjax.Policy(quorum=4))
    rounds = result.trace.worker.reshape(15, 4)
    assert all(set(row) == set(range(4)) for row in rounds.tolist())
    np.testing.assert_array_equal(result.trace.pulled_at, np.repeat(np.arange(15) * 4, 4))


def test_a_quorum_goes_on_without_the_slow(tmp_path):
    """Worker 3 never finishes its second step: rounds of the three others go on, and none waits for more than the quorum."""
    with Faults().hang(worker=3, step=1) as faults:
        result = run(policy=gemjax.Policy(quorum=3), gate=faults)
    assert (result.trace.worker == 3).sum() == 1
    pulled_at, sizes = np.unique(result.trace.pulled_at[9:57], return_counts=True)
    assert set(sizes[1:-1]) == {3}
    np.testing.assert_array_equal(np.diff(pulled_at), 3)


def test_a_grace_lets_more_than_the_quorum_in():
    gate = Abreast(4)
    result = run(policy=gemjax.Policy(quorum=1 + 1, grace=30.0), gate=gate)
    # All four arrive within the grace, which ends as soon as nobody is out.
    np.testing.assert_array_equal(result.trace.pulled_at, np.repeat(np.arange(15) * 4, 4))


def test_a_silent_worker_is_given_up_and_the_run_goes_on(tmp_path):
    with gemjax.EventLog(tmp_path / "log") as log, Faults().hang(worker=2, step=3) as faults:
        result = run(policy=gemjax.Policy(deadline=0.5, max_staleness=4), gate=faults, log=log)
    kinds = [event["event"] for event in gemjax.eventlog.read(tmp_path / "log")]
    assert kinds.count("hang") == 1
    assert result.trace.staleness.max() <= 4  # Pacing waited for it until then.
    assert (result.trace.worker == 2).sum() == 3


def test_a_worker_that_was_silent_comes_back(tmp_path):
    """It is let go when the others have made enough commits without it; what it brings then is thrown away."""
    back, gate_calls = threading.Event(), []

    def gate(worker, step):
        if (worker, step) == (2, 1):
            gate_calls.append(step)
            if len(gate_calls) == 1:
                back.wait(60)

    def callback(progress):
        if any(event["event"] == "hang" for event in gemjax.eventlog.read(tmp_path / "log")):
            back.set()
        return back.is_set() and 2 in progress.history["worker"]

    with gemjax.EventLog(tmp_path / "log") as log:
        result = gemjax.run_on_devices(
            ASGD, *QUADRATIC[:3], 100_000, num_workers=4, gate=gate, log=log, callback=callback, callback_every=20,
            policy=gemjax.Policy(deadline=0.5),
        )  # fmt: skip
    kinds = [event["event"] for event in gemjax.eventlog.read(tmp_path / "log")]
    assert [kinds.count(kind) for kind in ("hang", "late", "join")] == [1, 1, 1]
    steps = result.trace.step[result.trace.worker == 2]
    np.testing.assert_array_equal(steps, np.arange(len(steps)))  # The step that was thrown away was made again.
    replay = gemjax.simulate(ASGD, *QUADRATIC[:3], result.trace)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-3)


def test_a_long_callback_is_no_silence(tmp_path):
    """All have arrived when it ends; nobody is given up for having had to wait."""
    paused = threading.Event()
    with gemjax.EventLog(tmp_path / "log") as log:
        result = run(
            policy=gemjax.Policy(deadline=0.4), callback=lambda progress: paused.wait(1.0), callback_every=30, log=log
        )
    kinds = [event["event"] for event in gemjax.eventlog.read(tmp_path / "log")]
    assert kinds.count("hang") == 0
    assert len(result.trace) == 60


def test_when_all_are_silent_the_run_fails_and_keeps_what_it_has():
    with Faults().hang(0, 5).hang(1, 5).hang(2, 5).hang(3, 5) as faults:
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
    seen = []

    def callback(progress):
        seen.append(set(progress.history["worker"].tolist()))
        if len(seen) == 2:
            members.leave(0)
            members.join(3)
        if len(seen) == 6:
            members.join(0)
            members.join(0)  # Which changes nothing.

    with gemjax.EventLog(tmp_path / "log") as log:
        result = run(
            200,
            members=members,
            callback=callback,
            callback_every=20,
            gate=Abreast(4, lost=lambda w, s: w in (0, 3)),
            log=log,
        )
    assert seen[0] | seen[1] == {0, 1, 2}
    assert set().union(*seen[3:6]) == {1, 2, 3}
    kinds = [event["event"] for event in gemjax.eventlog.read(tmp_path / "log")]
    assert [kinds.count(kind) for kind in ("leave", "join")] == [1, 2]
    assert gemjax.eventlog.trace_of(tmp_path / "log", 4) == result.trace


def test_a_gradient_that_cannot_be_sent_leaves_the_centre_untouched(monkeypatch):
    """It is its worker's fault, and its step is made again."""
    from gemjax.engines.devices.hardware.programs import Programs

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
    with pytest.raises(ValueError, match="members are of 3 workers, but the run has 4"):
        run(members=gemjax.Members(3))
    with pytest.raises(ValueError, match="quorum=5"):
        run(policy=gemjax.Policy(quorum=5))


def test_a_link_that_stays_down_ends_the_run(monkeypatch):
    """Each worker is retired after its retries, however often its gradient is finished."""
    from gemjax.engines.devices.hardware.programs import Programs

    def never(self, packed):
        raise OSError("the link is down")

    monkeypatch.setattr(Programs, "bring", never)
    with pytest.raises(gemjax.RunFailedError, match=r"0 of 60 commits are made.*the link is down"):
        run()


def test_a_barrier_waits_for_a_worker_that_tries_again():
    with Faults().slow(worker=3, seconds=0.2, first=2, last=2).fail(worker=3, step=2) as faults:  # So it comes last.
        result = run(policy=gemjax.Policy(quorum=4), gate=faults)
    assert ("fail", 3, 2) in faults.injected
    assert all(set(row) == set(range(4)) for row in result.trace.worker.reshape(15, 4).tolist())


def test_who_is_asked_to_join_before_the_run_is_there():
    members = gemjax.Members(4, absent=range(4))
    for worker in range(4):
        members.join(worker)
    run(members=members)


def test_who_waits_in_vain_is_told_what_for(monkeypatch, tmp_path):
    """Everybody has left: said once, in the log, too; the run goes on when one joins."""
    monkeypatch.setattr(scheduler, "PATIENCE", 0.05)
    members = gemjax.Members(4, absent=range(4))
    told = []

    def tell(message, category, *where):
        told.append(str(message))
        members.join(2)

    with warnings.catch_warnings(), gemjax.EventLog(tmp_path / "log") as log:
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", tell)
        result = run(members=members, log=log)
    assert set(result.trace.worker) == {2}
    assert "have left: 0, 1, 2, 3; it goes on when one joins (Members.join)" in told[0]
    idle = [event for event in gemjax.eventlog.read(tmp_path / "log") if event["event"] == "idle"]
    assert len(idle) == len(told)
    assert idle[0]["seconds"] == 0.05


def test_who_waits_for_a_silent_worker_is_told(monkeypatch):
    """Pacing holds all others back for the one that hangs, and there is no deadline."""
    monkeypatch.setattr(scheduler, "PATIENCE", 0.2)
    told, waits_for_one = [], "computing: 1; held by the policy: 0, 2, 3; a worker that is silent"
    with Faults().hang(1, 2) as faults, warnings.catch_warnings():

        def tell(message, category, *where):
            told.append(str(message))
            if waits_for_one in told[-1]:  # On a busy machine the others may be slow, too, before.
                faults.let_go(1, 2)

        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", tell)
        run(policy=gemjax.Policy(max_staleness=3), gate=faults)
    assert ("hang", 1, 2) in faults.injected


def test_a_run_that_all_have_left_for_good_ends():
    members = gemjax.Members(4, absent=[3])

    def callback(progress):
        if progress.commits >= 20:
            for worker in range(3):
                members.leave(worker)
            members.close()

    with pytest.raises(gemjax.RunFailedError, match=r"of 60 .*workers 0, 1, 2, 3 have left and none joins") as failure:
        run(members=members, callback=callback, callback_every=20)
    assert len(failure.value.result.trace) >= 20
    with pytest.raises(RuntimeError, match="worker 3 cannot join: these members are closed"):
        members.join(3)


def test_who_joins_before_the_members_close_takes_part():
    members = gemjax.Members(4, absent=range(4))
    members.join(1)
    members.close()
    assert set(run(members=members).trace.worker) == {1}


def all_hang(at):
    """Faults that have all four workers hang in that step; a run that nothing else mends fails in the end."""
    return Faults().hang(0, at).hang(1, at).hang(2, at).hang(3, at)


LIMIT = gemjax.Policy(deadline=60.0)


def test_a_callback_is_called_though_nothing_arrives():
    """Three times in a run that stands still, which does not begin its seconds anew; the fourth has it go on."""
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
def test_what_is_said_of_a_silence_is_put_off_by_nothing(monkeypatch, options):
    """Neither by a callback that is called all the time, nor by a deadline a minute away."""
    monkeypatch.setattr(scheduler, "PATIENCE", 0.3)
    told = []
    with all_hang(5) as faults, warnings.catch_warnings():

        def tell(message, category, *where):
            told.append(str(message))
            for worker in range(4):
                faults.let_go(worker, 5)

        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", tell)
        run(**options, gate=faults, policy=LIMIT)
    assert "computing: 0, 1, 2, 3" in told[-1]


@pytest.mark.parametrize("callback_seconds", [None, 60.0])
def test_a_run_that_stands_still_can_be_looked_at_and_ended(callback_seconds):
    """When the last worker falls silent, its gate asks for a look, as a signal handler does."""
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


def test_a_hang_is_noticed_though_somebody_always_waits_in_the_queue(monkeypatch, tmp_path):
    """A queue that is never empty, as of a scheduler that has all it can do, hides nobody's silence."""
    from gemjax.engines.devices.hardware.waiters import Waiters

    take = Waiters.next

    def never_empty(self, timeout=None):
        while self._ready.qsize() < 2:
            self.wake()
        return take(self, timeout)

    monkeypatch.setattr(Waiters, "next", never_empty)
    with gemjax.EventLog(tmp_path / "log") as log, Faults().hang(2, 3) as faults:

        def callback(progress):
            return progress.commits > 50_000 or "hang" in (tmp_path / "log").read_text()

        result = gemjax.run_on_devices(
            ASGD, *QUADRATIC[:3], 10**6, num_workers=4, policy=gemjax.Policy(deadline=0.3), gate=faults, log=log,
            callback=callback, callback_every=100,
        )  # fmt: skip
    assert len(result.trace) < 50_000


def test_a_callback_that_keeps_workers_from_finishing_is_no_silence(tmp_path):
    """It holds what their gradients need, for longer than the deadline."""
    needed, paused = threading.Lock(), threading.Event()

    def gate(worker, step):
        with needed:
            pass

    def callback(progress):
        with needed:
            paused.wait(0.8)

    with gemjax.EventLog(tmp_path / "log") as log:
        run(policy=gemjax.Policy(deadline=0.5), gate=gate, callback=callback, callback_every=30, log=log)
    assert "hang" not in [event["event"] for event in gemjax.eventlog.read(tmp_path / "log")]


def test_who_joins_while_it_hangs_is_sent_off_when_it_is_back(tmp_path):
    """However often it is asked to join: nothing piles up behind what it does not finish."""
    members, calls = gemjax.Members(4), []

    def callback(progress):
        calls.append(progress.commits)
        if len(calls) == 20:
            faults.let_go(2, 1)
        members.join(2)
        return len(calls) > 20 and 2 in progress.history["worker"]

    with gemjax.EventLog(tmp_path / "log") as log, Faults().hang(2, 1) as faults:
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
    """It is the only one, and its thread is busy still with what it began before."""
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


def test_members_remember_who_has_left():
    """A run that goes on with them begins without those; and they hold on to nothing of the run before."""
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


def test_a_quorum_left_over_when_commits_are_refused_goes_on():
    """More are held than the run needs; then one of those that it took is not finite, and it needs them after all."""
    with Faults().hang(3, 0).poison(0, 1).poison(1, 1).poison(2, 1) as faults:
        looks = itertools.count()
        result = run(
            4, ASGD, policy=gemjax.Policy(quorum=2, grace=0.2), gate=faults,
            callback=lambda progress: next(looks) > 100, callback_seconds=0.1,
        )  # fmt: skip
    assert (~result.history["applied"]).sum() >= 1


def test_what_arrived_during_a_callback_is_no_silence(monkeypatch, tmp_path):
    """It was ready long ago when the callback is over."""
    monkeypatch.setattr(scheduler, "PATIENCE", 0.2)
    slept = threading.Event()  # Never set: waiting for it is the callback's work.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Faults().slow(0, 0.02).slow(1, 0.02) as faults:
            run(
                24, gemjax.asgd(0.05, num_workers=2), 2, gate=faults, callback_every=8,
                callback=lambda progress: slept.wait(0.5),
            )  # fmt: skip


def test_no_more_gradients_queue_at_a_device_than_it_has_room_for(monkeypatch):
    monkeypatch.setattr(scheduler, "ROOM", 2)
    devices, most = jax.devices()[:3], [0]
    dispatch = scheduler.Scheduler.dispatch

    def counting(self, worker):
        dispatch(self, worker)
        places = self.programs.placement.workers
        most.append(sum(places[other] == places[worker] for other in self.workers.out))

    monkeypatch.setattr(scheduler.Scheduler, "dispatch", counting)
    result = run(90, gemjax.asgd(0.01, num_workers=9), 9, placement=gemjax.place(9, devices=devices))
    assert max(most) == 2
    assert set(result.trace.worker) == set(range(9))


def test_a_gate_that_wants_to_exit_is_a_fault_of_its_worker():
    def gate(worker, step):
        if (worker, step) == (1, 2) and not left:
            left.append(worker)
            raise SystemExit

    left = []
    result = run(gate=gate)
    assert left == [1]
    assert (result.trace.worker == 1).sum() > 2


def test_a_gate_computes_as_precisely_as_the_run(x64):
    """Double precision is a setting of a thread."""
    seen = []

    def gate(worker, step):
        return lambda gradient: seen.append(jax.numpy.zeros(()).dtype) or gradient

    gemjax.run_on_devices(ASGD, *QUADRATIC[:3], 8, num_workers=4, gate=gate)
    assert set(seen) == {np.dtype("float64")}
