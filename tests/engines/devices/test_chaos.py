"""Long runs with many faults: no commit is lost or made twice, and no memory accumulates."""

import collections
import random
import resource
from collections.abc import Sequence

import jax
import numpy as np
import optax
import pytest
from engines.problems import assert_close, quadratic

import gemjax
from gemjax.testing import Faults

N, COMMITS = 6, 5_000


def chaos(rng, commits):
    """Make a fault of a random kind about every 50 commits; two workers are never retired, so that some worker remains."""
    faults, hanging = Faults(), []
    for index in range(commits // 50):
        worker, step = rng.randrange(N), index * 50 // N + rng.randrange(8)
        kind = rng.choice(("raise", "raise too often", "poison", "slow", "vanish"))
        if kind == "raise":
            faults.fail(worker, step, times=rng.choice((1, 2)))
        elif kind == "raise too often":
            faults.fail(2 + worker % 2, step, times=3)
        elif kind == "poison":
            faults.poison(worker, step)
        elif kind == "slow":
            faults.slow(worker, 0.01, first=step, last=step + 2)
        else:
            faults.hang(worker % 2, step)
            hanging.append((worker % 2, step))
    return faults, hanging


class Ledger:
    """The outcome of every dispatched gradient: committed, failed, given up or in flight."""

    def __init__(self):
        self.open = [[] for _ in range(N)]  # Steps in order; all but the last are committed, but not reported yet.
        self.given_up = collections.Counter()  # Gradients that may arrive late, once each.
        self.last, self.clock = [-1] * N, 0

    def take(self, event):
        kind, worker, step = event["event"], event.get("worker"), event.get("step")
        mine = [] if worker is None else self.open[worker]
        if kind == "dispatch":
            assert step not in mine, "dispatched again without an outcome of the first time"
            assert step == self.last[worker] + 1 + len(mine)
            mine.append(step)
        elif kind in ("commit", "reject", "drop"):
            assert mine.pop(0) == step
            self.last[worker] = step
            assert event["pulled_at"] == self.clock - event["staleness"] >= 0
            self.clock += kind == "commit"
        elif kind == "fault":
            assert mine.pop() == step
        elif kind == "hang" or (kind == "leave" and mine[-1:] == [step]):
            assert mine.pop() == step
            self.given_up[worker, step] += 1
        elif kind == "late":
            assert self.given_up[worker, step] > 0
            self.given_up[worker, step] -= 1


def check_log(path, result, commits=COMMITS):
    """Check that every gradient of a log was dispatched, and used once or lost for a logged reason."""
    ledger = Ledger()
    for event in gemjax.eventlog.read(path):
        ledger.take(event)
    assert max(map(len, ledger.open)) <= 1  # At the end a worker computes or not; everything else is logged.
    assert ledger.clock == commits
    assert gemjax.eventlog.trace_of(path, N) == result.trace


class Rows(Sequence):
    """A source whose rows are read one by one."""

    def __len__(self):
        return 64

    def __getitem__(self, row):
        return 0.1 * np.sin(np.arange(4, dtype=np.float32) + row)


def plain():
    loss_fn, params, batches, *_ = quadratic()
    return gemjax.asgd(0.01, num_workers=N), (loss_fn, params, batches), None


def dropping():
    """Return a problem with two local steps per commit, a method that drops, and one stream of batches from a source."""
    loss_fn, params, *_ = quadratic()
    mean_loss = lambda params, batch: loss_fn(params, batch.mean(0))
    batches = gemjax.FromSource(Rows(), gemjax.Stream(np.arange(64), 4, seed=1))
    local = gemjax.LocalSteps(optax.sgd(0.05), 2)
    return gemjax.ringmaster(0.2, N, threshold=N), (mean_loss, params, batches), local


CASES = {
    "bounded": (plain, gemjax.Policy(deadline=0.5, max_staleness=8), COMMITS),
    "dropping": (dropping, gemjax.Policy(deadline=0.5), COMMITS // 2),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the method multiplies the displacements")
@pytest.mark.parametrize("case", CASES)
def test_thousands_of_commits_with_a_fault_every_fifty(case, tmp_path):
    make, policy, commits = CASES[case]
    tx, problem, local = make()
    faults, hanging = chaos(random.Random(0), commits)
    members, held, since = gemjax.Members(N), [], {}
    others = jax.live_arrays()  # Those of earlier tests are kept until the end, so that their number is constant.

    def callback(progress):
        now = progress.history["time"][-1]
        for at in list(hanging):
            if ("hang", *at) in faults.injected and now > since.setdefault(at, now) + 2 * policy.deadline:
                hanging.remove(at)
                faults.let_go(*at)
        for worker in range(N):  # Retired and absent workers return.
            members.join(worker)
        if progress.commits % 500 < 100:
            members.leave(2 + progress.commits // 100 % 4)
        held.append((len(jax.live_arrays()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))

    with faults, gemjax.EventLog(tmp_path / "log") as log:
        result = gemjax.run_on_devices(
            tx, *problem, commits, num_workers=N, local=local, policy=policy, members=members, gate=faults, log=log,
            callback=callback, callback_every=100,
        )  # fmt: skip
    kinds = collections.Counter(event["event"] for event in gemjax.eventlog.read(tmp_path / "log"))
    for kind in ("fault", "retire", "reject", "hang", "join", "leave", *(["drop"] if case == "dropping" else [])):
        assert kinds[kind] > commits // 5000, kinds
    check_log(tmp_path / "log", result, commits)
    if policy.max_staleness is not None:
        assert result.trace.staleness.max() <= policy.max_staleness
    replay = gemjax.simulate(tx, *problem, result.trace, local=local)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-3)
    del others
    arrays, kilobytes = np.array(held[len(held) // 5 :]).T
    assert arrays.max() - arrays.min() <= 10 * N
    assert kilobytes[-1] - kilobytes[0] < 4_000 + commits  # The history: some hundred bytes per commit.


@pytest.mark.parametrize("lost", ["commit", "fault", "hang"])
def test_the_ledger_finds_a_lost_gradient(lost):
    """Check that a gradient without an outcome is noticed at the next dispatch of its worker."""
    ledger = Ledger()
    cycle = {"worker": 0, "step": 0}
    ledger.take({"event": "dispatch"} | cycle)
    ledger.take({"event": lost, "pulled_at": 0, "staleness": 0} | cycle)
    ledger.take({"event": "dispatch", "worker": 0, "step": int(lost == "commit")})
    vanished = Ledger()
    vanished.take({"event": "dispatch"} | cycle)
    with pytest.raises(AssertionError):
        vanished.take({"event": "dispatch"} | cycle)
