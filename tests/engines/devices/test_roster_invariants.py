"""Random runs of the roster, with a check of all invariants after each event."""

import collections
import random

import pytest
from engines.devices.roster_runs import ERROR, FOREVER, Run

from gemjax.engines.devices.roster import Roster

POLICIES = {
    "plain": {},
    "deadline": {"deadline": 1.0},
    "paced": {"max_staleness": 2, "deadline": 1.0},
    "sequential": {"max_staleness": 0},
    "quorum": {"quorum": 3, "grace": 1.0, "deadline": 1.0},
    "barrier": {"quorum": 5},
    "interrupting": {"interrupt": 3, "deadline": 1.0},
    "m-synchronous": {"quorum": 3, "interrupt": 3, "deadline": 1.0},
    "in blocks": {"num_blocks": 3, "deadline": 1.0},
    "in blocks, paced": {"num_blocks": 3, "max_staleness": 2},
    "in blocks, with a quorum": {"num_blocks": 3, "quorum": 3, "interrupt": 3},
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
            *roster.computing, *roster.ready, *roster.pulling, *roster.filling, *roster.waiting, *roster.returning,
            *roster.absent, *roster.silent, *roster.retired,
        )  # fmt: skip
        assert sorted(places) == list(range(self.N)), "each worker is in one place"
        assert set(roster.computing) <= set(run.computing)
        assert not set(run.computing) & {*roster.ready, *roster.pulling, *roster.filling, *roster.waiting}
        assert run.roster.clock == run.applied + sum(refused for _, refused in run.reports)
        if not any(refused for _, refused in run.reports):
            computing = (*roster.computing, *roster.ready)
            assert [roster.pulled_at[w] for w in computing] == [run.pulled[w] for w in computing]
        bound = self.policy.get("max_staleness", self.policy.get("interrupt", FOREVER) - 1)
        assert max(run.staleness, default=0) <= bound
        assert max(collections.Counter(roster.devices[w] for w in roster.computing).values(), default=0) <= Roster.ROOM
        if roster.is_short:
            assert not roster.pulling
            others = roster.computing or roster.waiting or roster.filling
            assert others or not roster.ready, "held, though no other worker computes"
            moving = roster.computing or roster.returning or roster.unprepared or roster.filling
            assert moving or not (roster.ready or roster.waiting), "nothing happens, though something could"
        for worker in set(self.overtaken) - {*roster.waiting, *roster.filling}:
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
    interrupted, blocks = {"call back", "interrupt"}, {"read 1", "read 2"}
    usual = {"dispatch", "commit", "pull", "fault", "retire", "hang", "late", "join", "leave"}
    assert set(seen) == usual | interrupted | blocks
