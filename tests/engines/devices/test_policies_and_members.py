"""Policies and members in real runs, which are all replayed."""

import threading

import numpy as np
import pytest
from engines.devices.replayed_runs import ASGD, QUADRATIC, run
from engines.problems import Abreast

import gemjax
from gemjax.testing import Faults

# --- Policies


@pytest.mark.slow
@pytest.mark.parametrize("bound", [0, 1, 5])
def test_pacing_bounds_the_staleness(bound):
    result = run(policy=gemjax.Policy(max_staleness=bound))
    assert result.trace.staleness.max() <= bound
    if bound < 3:  # Fewer than the other workers, so the bound is reached.
        assert result.trace.staleness.max() == bound
    assert set(result.trace.worker) == set(range(4))


@pytest.mark.slow
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


@pytest.mark.slow
def test_rounds_of_the_first_workers_are_those_of_a_barrier_with_this_quorum(tmp_path):
    """No gradient of an earlier round is ever committed, and the slow worker is called back until it is in time."""
    passed, returned, calls = threading.Event(), threading.Event(), []

    def gate(worker, step):
        if worker == 3:
            calls.append(step)
            if len(calls) == 2:  # Its first gradient has arrived too late.
                returned.set()
            assert passed.wait(60)
        elif step == 3:  # After three rounds without worker 3.
            passed.set()
        elif step == 6:  # So that the run does not end before it returns.
            assert returned.wait(60)

    with gemjax.EventLog(tmp_path / "log") as log:
        result = run(60, policy=gemjax.Policy(quorum=3, interrupt=3), gate=gate, log=log)
    barrier = gemjax.arrivals.Barrier(gemjax.arrivals.RoundRobin(4), quorum=3).trace(60)
    np.testing.assert_array_equal(result.trace.pulled_at, barrier.pulled_at)
    assert all(len(set(row)) == 3 for row in result.trace.worker.reshape(20, 3).tolist())
    events = list(gemjax.eventlog.read(tmp_path / "log"))
    assert any(event["event"] == "interrupt" and event["worker"] == 3 for event in events)


# --- Members


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


@pytest.mark.slow
def test_one_run_at_a_time_has_members():
    """Of two runs each took requests from the other, and one could wait for ever."""
    members, refused = gemjax.Members(4), []

    def callback(progress):
        if not refused:
            with pytest.raises(
                RuntimeError, match="these members are in use by another run; give each run members of its own"
            ):
                run(members=members)
            refused.append(progress.commits)
            members.leave(0)

    result = run(members=members, callback=callback, callback_every=10)
    assert refused
    assert 0 not in result.trace.worker[-10:]
    members.join(0)
    run(members=members)


def test_workers_may_join_before_the_run():
    members = gemjax.Members(4, absent=range(4))
    for worker in range(4):
        members.join(worker)
    run(members=members)


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


@pytest.mark.slow
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
