"""Faults in the roster: errors, silent workers, and arrivals that come too late."""

import pytest
from engines.devices.roster_runs import ERROR, Run

from gemjax.engines.devices.roster import Commit, Dispatch, Roster


def test_a_worker_that_raises_pulls_and_repeats_its_step():
    run = Run(2, retries=1)
    run.go()
    assert run.arrive(0, ERROR) == [("fault", 0), ("pull", 0), ("dispatch", 0)]
    assert run.arrive(0)[0] == ("commit", 0)
    assert run.arrive(0, ERROR)[-1] == ("dispatch", 0)  # Its commit has restored the retries.
    run.leave(0)
    run.arrive(0)
    run.join(0)
    assert run.arrive(0, ERROR)[-1] == ("dispatch", 0)  # So has its return.
    assert run.arrive(0, ERROR) == [("fault", 0), ("retire", 0)]
    assert run.roster.failure() is None
    assert run.arrive(1) == [("commit", 1), ("dispatch", 1)]


def test_a_view_that_cannot_be_sent_is_a_fault_of_its_worker():
    run = Run(2, retries=2)
    run.go()
    run.lost.add(1)
    assert run.arrive(1, ERROR) == [("fault", 1), ("pull", 1), ("fault", 1), ("pull", 1), ("fault", 1), ("retire", 1)]


def test_a_commit_counts_though_its_view_cannot_be_delivered():
    run = Run(2)
    run.go()
    run.undeliverable.add(0)
    assert run.arrive(0) == [("commit", 0), ("fault", 0), ("pull", 0), ("dispatch", 0)]
    assert (run.roster.clock, run.roster.steps) == (1, [1, 0])


def test_a_gradient_that_cannot_be_sent_is_lost():
    run = Run(1)
    run.go()
    run.roster.arrived(0, run.computing.pop(0), 0.0, "gradient")
    assert isinstance(run.roster.instruct(0.0), Commit)
    run.roster.fault(0, ERROR)
    assert run.go() == [("fault", 0), ("pull", 0), ("dispatch", 0)]
    assert run.roster.clock == 0


def test_a_dispatch_that_cannot_be_made_is_a_fault():
    run = Run(1, retries=0)
    run.roster.prepared(0)
    assert isinstance(run.roster.instruct(0.0), Dispatch)
    run.roster.fault(0, ERROR)
    assert run.go() == [("fault", 0), ("retire", 0)]
    assert run.join(0) == [("join", 0), ("pull", 0), ("dispatch", 0)]


def test_a_silent_worker_is_given_up_and_returns_when_it_finishes():
    run = Run(2, deadline=2.0)
    run.go()
    run.wait(1.0)
    run.arrive(0)
    assert run.wait(1.0) == [("hang", 1)]
    assert list(run.roster.silent) == [1]
    assert run.arrive(1) == [("late", 1), ("join", 1), ("pull", 1), ("dispatch", 1)]
    assert run.staleness == [0]


def test_a_deadline_runs_only_while_the_run_is_polling():
    run = Run(1, deadline=2.0)
    run.go()
    assert run.wait(1.75) == []
    run.now += 60.0  # A callback.
    run.roster.paused(60.0, run.now)
    assert run.wait(0.25) == []  # Its worker has another beat.
    assert run.wait(0.25) == [("hang", 0)]


def test_a_suspended_machine_does_not_count_as_silence():
    run = Run(1, deadline=2.0)
    run.go()
    assert run.wait(1.75) == []
    run.now += 3600.0
    assert run.roster.begin_round(run.now) == []
    assert run.wait(0.25) == []
    assert run.wait(0.25) == [("hang", 0)]


def test_polls_are_at_most_one_beat_apart():
    run = Run(1, deadline=2.0)
    run.go()
    assert run.roster.timeout(0.0) == 0.5
    run.arrive(0, ERROR)
    assert Run(1).roster.timeout(0.0) == 1.0


def test_a_gradient_of_a_retired_worker_is_discarded():
    run = Run(2, retries=0)
    run.go()
    number = run.computing[0]
    run.arrive(0, ERROR)
    run.roster.arrived(0, number, 0.0, "gradient")
    assert run.go() == [("late", 0)]
    assert list(run.roster.retired) == [0]


def test_a_dispatch_counts_once():
    """A repeated arrival, or one of an earlier dispatch, changes nothing."""
    run = Run(1)
    run.go()
    first = run.computing[0]
    run.arrive(0)
    run.roster.arrived(0, first, 0.0, "again")
    assert run.go() == [("late", 0)]
    assert list(run.roster.computing) == [0]
    run.roster.fell_silent(0)
    run.roster.arrived(0, first, 0.0, "again")
    run.go()
    assert list(run.roster.silent) == [0]
    run.arrive(0)
    assert run.arrive(0)[0] == ("commit", 0)
    assert len(run.committed) == 2


def _late(run, workers, rounds):
    """Let workers miss their deadline again and again, for longer than a run waits without a word."""
    for _ in range(rounds):
        run.now += 1.1 * Roster.PATIENCE / rounds
        for worker in workers:
            run.roster.fell_silent(worker)
            run.arrive(worker)


@pytest.mark.parametrize("others", ["all", "one is dead", "one is retired", "one waits for the quorum", "all raise"])
def test_a_run_whose_workers_are_always_late_fails(others):
    """Each returned before the next one fell silent, so the run went on without a commit or a warning."""
    run = Run(3, deadline=1.0, retries=1, quorum=2 if "quorum" in others else 1)
    run.go()
    late = [0, 1, 2] if others.startswith("all") else [1, 2]
    if others == "one is dead":
        run.roster.fell_silent(0)
    elif others == "one is retired":
        run.arrive(0, ERROR)
        run.arrive(0, ERROR)
    elif others == "one waits for the quorum":
        run.arrive(0)
    for _ in range(2):
        _late(run, late, 1)
        if others == "all raise":
            for worker in late:
                run.arrive(worker, ERROR)
    message = run.roster.lateness(run.now)
    which = ", ".join(map(str, late))
    assert message.startswith("0 of 1000000 commits are made, but no gradient was in time for 1")
    assert (
        f"in which workers {which} have missed the deadline of 1 s more than 1 times each; give the policy a longer one; the "
        "last that was given up is worker 2, silent for more than 1.0 s"
    ) in message


@pytest.mark.parametrize(("deadline", "retries", "waits"), [(1.0, 1, 60.0), (120.0, 0, 120.0), (40.0, 2, 120.0)])
def test_a_slow_phase_is_waited_for(deadline, retries, waits):
    """It may last a minute, and as long as all retries take."""
    run = Run(2, deadline=deadline, retries=retries)
    run.go()
    for _ in range(retries + 1):
        assert run.roster.lateness(2 * waits) is None
        for worker in (0, 1):
            run.roster.fell_silent(worker)
            run.arrive(worker)
    assert run.roster.lateness(0.99 * waits) is None
    assert f"no gradient was in time for {waits:.0f} s" in run.roster.lateness(waits)
    run.arrive(0)
    assert run.roster.lateness(2 * waits) is None


def test_late_workers_take_part_as_long_as_one_is_in_time():
    run = Run(3, deadline=1.0, retries=0)
    run.go()
    for _ in range(9):
        _late(run, [0, 1], 1)
        assert ("dispatch", 2) in run.arrive(2)
        assert run.roster.lateness(run.now + Roster.PATIENCE) is None


def test_late_gradients_do_not_hide_a_stall():
    run = Run(2, deadline=1.0, retries=9)
    run.go()
    run.arrive(1)
    run.now = Roster.PATIENCE
    run.roster.fell_silent(0)
    run.arrive(0)
    assert "no worker has finished in time for 60 s" in run.roster.describe_stall(run.now)


def test_a_suspended_machine_does_not_make_workers_late():
    run = Run(2, deadline=1.0, retries=0)
    run.go()
    _late(run, [0, 1], 1)
    for second in range(20):
        run.roster.begin_round(run.now + second / 4)
    awake = run.now + 605.0
    run.roster.begin_round(awake)
    assert run.roster.lateness(awake) is None
    assert run.roster.describe_stall(awake) is None
    assert "no gradient was in time for 6" in run.roster.lateness(awake + 60)
    run.now = awake + 1200.0
    run.arrive(1)  # It arrived while the machine was suspended again.
    run.roster.begin_round(run.now)
    assert run.roster.describe_stall(run.now + 60) is not None


def test_a_suspended_process_is_no_stall_of_a_run_without_a_deadline():
    run = Run(1)
    run.go()
    run.roster.begin_round(61.0)
    assert run.roster.describe_stall(61.0) is None
    assert run.roster.describe_stall(120.0) is not None


def test_a_wait_without_a_gradient_in_flight_is_no_suspension():
    """The caller waits for as long as the roster says, and no worker is silent meanwhile."""
    run = Run(2, deadline=2.0)
    run.go()
    run.leave(0)
    run.leave(1)
    for worker in (0, 1):
        run.arrive(worker)
    while run.roster.describe_stall(run.now) is None:
        run.now += run.roster.timeout(run.now)
        run.roster.begin_round(run.now)
    assert run.now <= 61.0
