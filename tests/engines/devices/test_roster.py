"""The roster, driven by events alone, without programs, threads or clocks: order, members, failures and stalls."""

import pytest
from engines.devices.roster_runs import ERROR, Run

from gemjax.engines.devices.roster import Dispatch, Roster


def test_first_finished_is_first_committed_and_first_dispatched():
    run = Run(3)
    assert run.go() == [("dispatch", 0), ("dispatch", 1), ("dispatch", 2)]
    for worker in (2, 0, 1):
        run.roster.arrived(worker, run.computing.pop(worker), 0.0, worker)
    order = [("commit", 2), ("commit", 0), ("commit", 1), ("dispatch", 2), ("dispatch", 0), ("dispatch", 1)]
    assert run.go() == order


def test_workers_with_the_oldest_views_are_dispatched_first():
    run = Run(3, commits=9, behind=[1, 5, 3])
    assert run.go() == [("dispatch", 1), ("dispatch", 2), ("dispatch", 0)]
    assert (run.roster.clock, run.roster.pulled_at) == (9, run.pulled)


def test_no_more_is_dispatched_than_the_run_needs():
    run = Run(2, num_commits=2)
    run.go()
    assert run.arrive(0) == [("commit", 0), ("dispatch", 0)]
    assert run.arrive(1) == [("commit", 1)]
    assert run.arrive(0) == []
    assert not run.roster.is_short


def test_a_refused_commit_is_taken_back_from_the_clock():
    """The run needs another commit; staleness counts applied commits only."""
    run = Run(2, num_commits=2)
    run.go()
    run.refuses = True
    run.arrive(0)
    run.refuses = False
    assert run.arrive(1) == [("commit", 1)]
    assert (run.roster.clock, run.roster.pulled_at) == (2, [1, 2])
    assert run.read() == [("dispatch", 1)]
    assert (run.roster.clock, run.roster.pulled_at) == (run.applied, run.pulled) == (1, [0, 1])
    assert run.read() == []


def test_gradients_per_device_are_limited(monkeypatch):
    monkeypatch.setattr(Roster, "ROOM", 2)
    run = Run(4, devices="aaab")
    assert run.go() == [("dispatch", 0), ("dispatch", 1), ("dispatch", 3)]
    assert run.arrive(1) == [("commit", 1), ("dispatch", 2)]
    assert run.leave(0) == [("leave", 0), ("dispatch", 1)]


def test_a_worker_without_its_batch_is_passed_over():
    run = Run(3)
    run.unread = {0, 1}
    assert run.go() == [("dispatch", 2)]
    assert run.roster.unprepared == [0, 1]
    run.unread = {0}
    assert run.go() == [("dispatch", 1)]
    assert run.roster.unprepared == [0]
    run.unread = {0, 1}
    assert run.arrive(1) == [("commit", 1)]  # Its next batch is another one.
    idle = Run(2, max_staleness=0)
    idle.go()
    assert list(idle.roster.waiting) == [1]
    assert idle.roster.unprepared == []


def test_a_worker_without_further_periods_ends():
    run = Run(2)
    run.roster.prepared(0)
    assert isinstance(run.roster.instruct(0.0), Dispatch)
    run.roster.ended(0, ERROR)
    assert run.go() == [("end", 0), ("dispatch", 1)]
    assert run.join(0)[-1] == ("dispatch", 0)
    run.roster.ended(0, ERROR)
    run.roster.leave(1)
    run.roster.closed = True
    assert "every worker has made its commits: the device is lost" in run.roster.failure()[0]


# --- Members


def test_workers_leave_and_join():
    run = Run(3, absent=[2])
    assert run.go() == [("dispatch", 0), ("dispatch", 1)]
    run.arrive(0)
    assert run.join(2) == [("join", 2), ("pull", 2), ("dispatch", 2)]
    assert run.join(2) == []
    assert run.leave(0) == [("leave", 0)]
    assert run.leave(0) == []
    assert run.arrive(0) == [("late", 0)]
    assert run.join(0) == [("join", 0), ("pull", 0), ("dispatch", 0)]


def test_a_worker_that_joins_while_it_computes_enters_afterwards():
    run = Run(2)
    run.go()
    run.leave(0)
    assert run.join(0) == []
    assert list(run.roster.returning) == [0]
    assert run.arrive(0) == [("late", 0), ("join", 0), ("pull", 0), ("dispatch", 0)]


def test_a_worker_that_returns_has_a_deadline_too():
    run = Run(2, deadline=2.0)
    run.go()
    run.leave(0)
    run.wait(1.0)
    run.join(0)
    run.arrive(1)
    assert run.wait(1.75) == []
    run.arrive(1)
    assert run.wait(0.25) == []
    assert list(run.roster.silent) == [0]


def test_a_lost_worker_that_joins_enters_when_it_has_returned():
    run = Run(2)
    run.go()
    run.roster.disappeared(0, run.computing.pop(0), 0.0, ERROR)
    assert run.go() == [("leave", 0)]
    assert run.join(0) == []
    run.roster.returned(0)
    assert run.go() == [("join", 0), ("pull", 0), ("dispatch", 0)]


def test_a_held_gradient_of_a_worker_that_leaves_is_discarded():
    run = Run(3, quorum=2)
    run.go()
    run.arrive(0)
    run.leave(0)
    assert run.arrive(1) == []
    assert run.arrive(2)[:2] == [("commit", 1), ("commit", 2)]


# --- Failures and stalls


def test_the_failure_names_the_last_lost_worker():
    run = Run(2, num_commits=9, deadline=1.0, retries=0)
    run.go()
    assert run.roster.failure() is None
    run.arrive(0)
    run.arrive(0, ERROR)
    assert run.roster.failure() is None
    run.wait(1.5)
    silence = "all 2 workers were given up; the last was worker 1, silent for more than 1.0 s at its step 0"
    assert run.roster.failure() == (f"1 of 9 commits are made, but {silence}", None)
    run.leave(1)
    assert run.roster.failure() is None  # It may join again.
    run.roster.closed = True
    left = "workers 1 have left and none can join any more; all others were given up; the last was worker 0 at its step 1: "
    assert run.roster.failure() == (f"1 of 9 commits are made, but {left}{ERROR!r}", ERROR)
    run.join(0)
    run.leave(0)
    left = "workers 0, 1 have left and none can join any more"
    assert run.roster.failure() == (f"1 of 9 commits are made, but {left}", None)


@pytest.mark.parametrize("first", ["ends", "fails"])
def test_the_failure_tells_workers_without_further_periods_from_those_given_up(first):
    run = Run(2, num_commits=9, retries=0)
    run.go()
    for step in ("ends", "fails") if first == "ends" else ("fails", "ends"):
        assert run.roster.failure() is None
        if step == "fails":
            run.arrive(1, ERROR)
        else:
            run.roster.ended(0, ValueError("no more periods"))
    message, cause = run.roster.failure()
    assert message == (
        "0 of 9 commits are made, but workers 0 have made all their commits, and the others were given up; the last was worker "
        "1 at its step 0: OSError('the device is lost')"
    )
    assert cause is ERROR


def test_a_worker_that_was_given_up_and_has_ended_since_is_not_called_given_up():
    run = Run(2, num_commits=9, retries=0)
    run.go()
    run.arrive(1, ERROR)
    run.join(1)
    for worker in (0, 1):
        run.roster.ended(worker, ValueError("no more periods"))
    assert run.roster.failure()[0] == "0 of 9 commits are made, but every worker has made its commits: no more periods"
    del run.computing[1]  # The roster alone was told of its end.
    run.join(1)
    run.arrive(1, ERROR)
    message, cause = run.roster.failure()
    assert "workers 0 have made all their commits, and the others were given up; the last was worker 1 " in message
    assert cause is ERROR


def test_the_last_error_is_the_cause_of_the_failure():
    run = Run(1, num_commits=9, retries=0)
    run.go()
    run.arrive(0, ERROR)
    message, cause = run.roster.failure()
    assert "the last was worker 0 at its step 0: OSError('the device is lost')" in message
    assert cause is ERROR


def test_a_stall_is_described_once():
    run = Run(5, max_staleness=2, absent=[4])
    run.go()
    run.arrive(1)
    run.arrive(3)
    assert run.roster.timeout(run.now) == 1.0
    assert run.roster.describe_stall(59.0) is None
    words = run.roster.describe_stall(60.0)
    assert words.startswith("no worker has finished for 60 s; workers computing: 0, 2; held by the policy: 3; ")
    assert "waiting for a device or for their data: 1; have left: 4; a deadline in the policy" in words
    assert run.roster.describe_stall(600.0) is None
    assert run.roster.timeout(600.0) == 1.0
    run.now = 700.0
    run.arrive(0)
    run.roster.paused(10.0, 710.0)
    assert run.roster.describe_stall(769.0) is None
    assert run.roster.describe_stall(770.0) is not None


def test_a_run_that_all_have_left_waits_for_one_to_join():
    run = Run(2, absent=[0, 1])
    assert run.roster.failure() is None
    assert "have left: 0, 1; the run continues when a worker joins" in run.roster.describe_stall(60.0)
