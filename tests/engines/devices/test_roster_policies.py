"""Policies in the roster: pacing, interruption, quorum and grace."""

from engines.devices.roster_runs import ERROR, Run

# --- Pacing


def test_pacing_limits_the_number_in_flight():
    assert Run(4, max_staleness=1).go() == [("dispatch", 0), ("dispatch", 1)]


def test_pacing_holds_a_gradient_that_overtakes():
    run = Run(3, max_staleness=2)
    run.go()
    assert run.arrive(1) == [("commit", 1), ("dispatch", 1)]
    assert run.arrive(1) == []  # A second commit would leave worker 2 behind worker 0 with a staleness of 3.
    assert run.arrive(0) == [("commit", 0), ("dispatch", 0)]
    assert run.arrive(2) == [("commit", 2), ("commit", 1), ("dispatch", 2), ("dispatch", 1)]
    assert max(run.staleness) == 2


def test_pacing_renews_a_view_that_could_never_commit():
    run = Run(3, max_staleness=1)
    run.go()
    assert run.arrive(0) == [("commit", 0), ("pull", 2), ("dispatch", 2)]


# --- Interruption


def test_a_worker_is_called_back_once_and_its_gradient_is_dropped():
    run = Run(2, interrupt=2)
    run.go()
    assert run.arrive(0) == [("commit", 0), ("dispatch", 0)]
    assert run.arrive(0) == [("commit", 0), ("call back", 1), ("dispatch", 0)]
    assert run.arrive(0) == [("commit", 0), ("dispatch", 0)]  # It has not come back yet.
    assert run.arrive(1) == [("interrupt", 1), ("pull", 1), ("dispatch", 1)]
    assert (run.roster.steps, run.roster.interruptions) == ([3, 0], [0, 1])
    assert run.arrive(1) == [("commit", 1), ("dispatch", 1)]
    assert (run.staleness, run.roster.interruptions) == ([0, 0, 0, 0], [0, 0])


def test_gradients_that_arrive_together_are_dropped_when_they_are_too_old():
    run = Run(3, interrupt=1)
    run.go()
    for worker in (2, 0, 1):
        run.roster.arrived(worker, run.computing.pop(worker), 0.0, worker)
    assert run.go()[:3] == [("commit", 2), ("interrupt", 0), ("interrupt", 1)]


def test_a_worker_that_is_too_old_before_it_begins_pulls():
    run = Run(2, interrupt=1)
    run.unread = {1}
    run.go()
    run.arrive(0)
    run.unread = set()
    assert run.go() == [("pull", 1), ("dispatch", 1)]


def test_a_called_back_worker_may_fail_or_leave_instead():
    run = Run(3, interrupt=1)
    run.go()
    assert run.arrive(0) == [("commit", 0), ("call back", 1), ("call back", 2), ("dispatch", 0)]
    assert run.arrive(1, ERROR)[:2] == [("fault", 1), ("pull", 1)]
    assert run.leave(2) == [("leave", 2)]
    assert run.arrive(2) == [("late", 2)]
    assert run.roster.interruptions == [0, 0, 0]


def test_a_refused_commit_calls_no_worker_back():
    """A worker whose gradients are all refused would keep the others from ever finishing theirs."""
    run = Run(3, interrupt=1)
    run.go()
    run.refuses = True
    for _ in range(5):
        assert run.arrive(0) == [("commit", 0), ("dispatch", 0)]
    run.refuses = False
    assert run.arrive(1) == [("commit", 1), ("call back", 2), ("call back", 0), ("dispatch", 1)]
    assert run.arrive(2) == [("interrupt", 2), ("pull", 2), ("dispatch", 2)]


# --- Quorum and grace


def test_a_quorum_commits_together_and_then_pulls_together():
    run = Run(3, quorum=2)
    run.go()
    assert run.arrive(2) == []
    assert run.arrive(0) == [("commit", 2), ("commit", 0), ("pull", 2), ("dispatch", 2), ("dispatch", 0)]
    assert run.pulled == [2, 0, 2]


def test_a_quorum_that_interrupts_calls_the_others_back_when_its_round_ends():
    run = Run(4, quorum=2, interrupt=2)
    run.go()
    assert run.arrive(2) == []
    for worker in (0, 3):  # The third of the round comes too late.
        run.roster.arrived(worker, run.computing.pop(worker), 0.0, (worker, "together"))
    assert run.go()[:4] == [("commit", 2), ("commit", 0), ("interrupt", 3), ("call back", 1)]
    assert run.arrive(1)[0] == ("interrupt", 1)
    assert run.pulled == [2, 2, 2, 2]
    assert run.arrive(3) == []
    assert run.arrive(1)[:2] == [("commit", 3), ("commit", 1)]


def test_more_than_the_quorum_may_arrive_within_the_grace():
    run = Run(4, quorum=2, grace=1.0)
    run.go()
    assert run.arrive(0) + run.arrive(1) == []
    assert run.roster.timeout(run.now) == 1.0
    assert run.wait(0.75) + run.arrive(2) == []
    assert run.wait(0.25)[:3] == [("commit", 0), ("commit", 1), ("commit", 2)]


def test_each_quorum_has_a_grace_of_its_own():
    run = Run(3, quorum=2, grace=1.0)
    run.go()
    run.arrive(0)
    run.arrive(1)
    run.wait(1.0)
    for worker in (0, 1):
        run.roster.arrived(worker, run.computing.pop(worker), run.now, (worker, "second"))
    assert run.go() == []
    assert run.wait(1.0)[0] == ("commit", 0)


def test_a_grace_ends_when_no_other_worker_computes():
    run = Run(3, quorum=2, grace=60.0)
    run.go()
    assert run.arrive(0) + run.arrive(1) == []
    assert run.arrive(2)[:3] == [("commit", 0), ("commit", 1), ("commit", 2)]


def test_a_quorum_that_cannot_be_reached_is_not_waited_for():
    run = Run(3, quorum=3)
    run.go()
    run.arrive(0)
    assert run.leave(1) == [("leave", 1)]
    assert run.leave(2) == [("leave", 2), ("commit", 0), ("dispatch", 0)]


def test_a_quorum_loses_a_worker_during_its_grace():
    run = Run(4, quorum=2, grace=1.0)
    run.go()
    run.arrive(0)
    run.arrive(1)
    run.leave(1)
    assert run.wait(2.0) == []
    run.arrive(2)
    assert run.wait(0.75) == []
    assert ("commit", 0) in run.wait(0.25)


def test_gradients_beyond_the_last_commit_are_used_if_one_is_refused():
    run = Run(3, num_commits=1, quorum=2)
    run.go()
    run.refuses = True
    run.arrive(0)
    assert run.arrive(1)[0] == ("commit", 0)
    assert list(run.roster.ready) == [1]
    run.read()
    assert run.arrive(2) == [("commit", 1)]
