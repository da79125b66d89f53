"""The roster, driven by events alone, without programs, threads or clocks."""

import collections
import random

import pytest

from gemjax.engines.devices.policy import Policy
from gemjax.engines.devices.roster import Commit, Dispatch, Interrupt, Pull, Record, Roster

ERROR = OSError("the device is lost")
FOREVER = float("inf")


class Run:
    """A run whose transport executes each instruction at once, and counts commits by itself."""

    def __init__(self, num_workers=4, num_commits=10**6, *, devices=None, absent=(), behind=None, commits=0, **policy):
        self.roster = Roster(
            Policy(**policy), num_commits, commits=commits, behind=behind or [0] * num_workers, steps=[0] * num_workers,
            devices=devices or range(num_workers), absent=absent,
        )  # fmt: skip
        self.now, self.applied, self.pulled = 0.0, commits, [commits - since for since in behind or [0] * num_workers]
        self.computing, self.reports, self.committed, self.staleness = {}, [], [], []
        self.unread, self.lost, self.refuses = set(), set(), False  # Workers without a batch, or without a device.
        self.undeliverable = set()

    def go(self):
        """Execute instructions until there are none, and return them abbreviated."""
        done = []
        for _ in range(1000):
            for worker in self.roster.unprepared:
                if worker not in self.unread:
                    self.roster.prepared(worker)
            instruction = self.roster.instruct(self.now)
            if instruction is None:
                return done
            done.append(self._execute(instruction))
        raise AssertionError(f"instructions without end: {done[-8:]}")

    def _execute(self, instruction):
        match instruction:
            case Record(event, worker, step):
                assert step == self.roster.steps[worker]
                return event, worker
            case Dispatch(worker, step, number):
                assert worker not in self.computing, "dispatched twice at the same time"
                assert step == self.roster.steps[worker]
                self.computing[worker] = number
                return "dispatch", worker
            case Commit(worker, gradient):
                assert worker not in self.computing, "a view is sent to a worker that computes"
                self._commit(worker, gradient)
                return "commit", worker
            case Interrupt(worker):
                assert worker in self.computing, "nothing to interrupt"
                return "call back", worker
            case Pull(worker):
                assert worker not in self.computing, "a view is sent to a worker that computes"
                if worker in self.lost:
                    self.roster.fault(worker, ERROR)
                else:
                    self.pulled[worker] = self.applied
                    self.roster.pulled(worker)
                return "pull", worker

    def _commit(self, worker, gradient):
        assert gradient not in self.committed, "committed twice"
        self.committed.append(gradient)
        self.staleness.append(self.applied - self.pulled[worker])
        self.reports.append((self.applied, self.refuses))
        self.applied += not self.refuses
        self.pulled[worker] = self.applied
        self.roster.committed(worker)
        if worker in self.undeliverable:
            self.roster.fault(worker, ERROR)

    def arrive(self, worker, error=None):
        number = self.computing.pop(worker)
        self.roster.arrived(worker, number, self.now, (worker, number), error)
        return self.go()

    def read(self):
        commits, refused = self.reports.pop(0)
        if refused:
            self.roster.refused(commits)
        return self.go()

    def wait(self, seconds, step=0.25):
        """Poll for some seconds; workers that compute beyond their deadline are silent."""
        done = []
        for _ in range(round(seconds / step)):
            self.now += step
            for worker in self.roster.overdue(self.now):
                if worker in self.computing:
                    self.roster.fell_silent(worker)
            done += self.go()
        return done

    def join(self, worker):
        self.roster.join(worker)
        return self.go()

    def leave(self, worker):
        self.roster.leave(worker)
        return self.go()


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


def test_a_called_back_gradient_is_dropped_even_if_the_commit_before_is_refused():
    """Its local steps may have ended early, so it is no gradient; the view is new enough."""
    run = Run(2, interrupt=1)
    run.go()
    run.refuses = True
    assert run.arrive(0) == [("commit", 0), ("call back", 1), ("dispatch", 0)]
    run.read()
    assert run.arrive(1) == [("interrupt", 1), ("dispatch", 1)]


def test_a_quorum_commits_together_and_then_pulls_together():
    run = Run(3, quorum=2)
    run.go()
    assert run.arrive(2) == []
    assert run.arrive(0) == [("commit", 2), ("commit", 0), ("pull", 2), ("dispatch", 2), ("dispatch", 0)]
    assert run.pulled == [2, 0, 2]


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
    assert run.roster.overdue(run.now) == []
    assert run.wait(0.25) == []
    assert run.wait(0.25) == [("hang", 0)]


def test_polls_are_at_most_one_beat_apart():
    run = Run(1, deadline=2.0)
    run.go()
    assert run.roster.timeout(0.0) == 0.5
    run.arrive(0, ERROR)
    assert Run(1).roster.timeout(0.0) == Roster.PATIENCE


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
    assert list(run.roster.in_flight) == [0]
    run.roster.fell_silent(0)
    run.roster.arrived(0, first, 0.0, "again")
    run.go()
    assert list(run.roster.silent) == [0]
    run.arrive(0)
    assert run.arrive(0)[0] == ("commit", 0)
    assert len(run.committed) == 2


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


def test_a_held_gradient_of_a_worker_that_leaves_is_discarded():
    run = Run(3, quorum=2)
    run.go()
    run.arrive(0)
    run.leave(0)
    assert run.arrive(1) == []
    assert run.arrive(2)[:2] == [("commit", 1), ("commit", 2)]


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
    left = f"workers 1 have left and none can join any more; {silence}"
    assert run.roster.failure()[0] == f"1 of 9 commits are made, but {left}"


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
    assert run.roster.timeout(run.now) == 60.0
    assert run.roster.describe_stall(59.0) is None
    words = run.roster.describe_stall(60.0)
    assert words.startswith("no worker has finished for 60 s; workers computing: 0, 2; held by the policy: 3; ")
    assert "waiting for a device or for their data: 1; have left: 4; a deadline in the policy" in words
    assert run.roster.describe_stall(600.0) is None
    assert run.roster.timeout(600.0) == FOREVER
    run.now = 700.0
    run.arrive(0)
    run.roster.paused(10.0, 710.0)
    assert run.roster.describe_stall(769.0) is None
    assert run.roster.describe_stall(770.0) is not None


def test_a_run_that_all_have_left_waits_for_one_to_join():
    run = Run(2, absent=[0, 1])
    assert run.roster.failure() is None
    assert "have left: 0, 1; the run continues when a worker joins" in run.roster.describe_stall(60.0)


POLICIES = {
    "plain": {},
    "deadline": {"deadline": 1.0},
    "paced": {"max_staleness": 2, "deadline": 1.0},
    "sequential": {"max_staleness": 0},
    "quorum": {"quorum": 3, "grace": 1.0, "deadline": 1.0},
    "barrier": {"quorum": 5},
    "interrupting": {"interrupt": 3, "deadline": 1.0},
}


class Walk:
    """A random run with a check of all invariants after each event."""

    N, COMMITS = 5, 60

    def __init__(self, seed, policy):
        self.random, self.policy = random.Random(seed), policy
        self.run = Run(self.N, self.COMMITS, devices=[0, 0, 1, 1, 2], **policy)
        self.overtaken = collections.defaultdict(collections.Counter)
        self.seen = collections.Counter()
        self.follow(self.run.go())

    def event(self):
        run, chance = self.run, self.random.random()
        run.refuses = self.random.random() < 0.15
        run.lost = {worker for worker in range(self.N) if self.random.random() < 0.1}
        run.undeliverable = {worker for worker in range(self.N) if self.random.random() < 0.1}
        run.unread = {worker for worker in range(self.N) if self.random.random() < 0.2}
        worker = self.random.randrange(self.N)
        if chance < 0.6 and run.computing:
            finished = self.random.choice(list(run.computing))
            return run.arrive(finished, ERROR if self.random.random() < 0.15 else None)
        if chance < 0.75 and run.reports:
            return run.read()
        if chance < 0.85:
            return run.wait(self.random.choice((0.25, 1.0)))
        return run.join(worker) if chance < 0.95 else run.leave(worker)

    def follow(self, done):
        """Check the executed instructions and the place of every worker after them."""
        run, roster = self.run, self.run.roster
        self.seen.update(what for what, _ in done)
        for what, worker in done:
            if what in ("dispatch", "fault"):
                self.overtaken.pop(worker, None)
            if what == "dispatch":
                for other in self.overtaken:
                    if roster.devices[other] == roster.devices[worker]:
                        self.overtaken[other][worker] += 1
                        assert self.overtaken[other][worker] == 1, f"{worker} is served twice before {other}"
        places = (
            *roster.in_flight, *roster.ready, *roster.pulling, *roster.waiting, *roster.returning, *roster.absent,
            *roster.silent, *roster.retired,
        )  # fmt: skip
        assert sorted(places) == list(range(self.N)), "each worker is in one place"
        assert set(roster.in_flight) <= set(run.computing)
        assert not set(run.computing) & {*roster.ready, *roster.pulling, *roster.waiting}
        assert run.roster.clock == run.applied + sum(refused for _, refused in run.reports)
        if not any(refused for _, refused in run.reports):
            computing = (*roster.in_flight, *roster.ready)
            assert [roster.pulled_at[w] for w in computing] == [run.pulled[w] for w in computing]
        bound = self.policy.get("max_staleness", self.policy.get("interrupt", FOREVER) - 1)
        assert max(run.staleness, default=0) <= bound
        assert max(collections.Counter(roster.devices[w] for w in roster.in_flight).values(), default=0) <= Roster.ROOM
        if roster.is_short:
            assert not roster.pulling
            assert roster.in_flight or not roster.ready or roster.waiting, "held, though no other worker computes"
            moving = roster.in_flight or roster.returning or roster.unprepared
            assert moving or not (roster.ready or roster.waiting), "nothing happens, though something could"
        for worker in set(self.overtaken) - set(roster.waiting):
            del self.overtaken[worker]
        for worker in roster.waiting:
            if worker not in roster.unprepared:
                self.overtaken.setdefault(worker, collections.Counter())


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("policy", POLICIES)
def test_the_invariants_hold(policy, seed, monkeypatch):
    monkeypatch.setattr(Roster, "ROOM", 1)
    walk = Walk(seed, POLICIES[policy])
    for _ in range(600):
        walk.follow(walk.event())
    run = walk.run
    assert len(set(run.committed)) == len(run.committed)
    assert run.applied <= walk.COMMITS


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_ends_after_its_last_fault(policy):
    """After any disturbances every worker joins and every gradient arrives."""
    walk = Walk(0, POLICIES[policy])
    for _ in range(100):
        walk.follow(walk.event())
    run = walk.run
    run.lost, run.undeliverable, run.unread, run.refuses = set(), set(), set(), False
    for _ in range(600):
        for worker in range(walk.N):
            run.join(worker)
        for worker in list(run.computing):
            run.arrive(worker)
        while run.reports:
            run.read()
        run.wait(0.25)
    assert run.applied == walk.COMMITS


def test_the_random_runs_cover_everything():
    """The random runs above have every event and instruction."""
    seen = collections.Counter()
    for policy in POLICIES.values():
        walk = Walk(3, policy)
        for _ in range(600):
            walk.follow(walk.event())
        seen += walk.seen
    interrupted = {"call back", "interrupt"}
    assert set(seen) == {"dispatch", "commit", "pull", "fault", "retire", "hang", "late", "join", "leave"} | interrupted
