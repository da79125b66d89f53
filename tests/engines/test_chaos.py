"""Long runs full of faults: nothing is lost, nothing is made twice, nothing piles up."""

import collections
import random
import resource

import jax
import numpy as np
import pytest
from engines.problems import assert_close, quadratic

import gemjax
from gemjax.testing import Faults

N, COMMITS = 6, 10_000


def chaos(rng):
    """A fault of a random kind every 50 commits or so; two workers are never given up, or nobody might be left for a while."""
    faults, hanging = Faults(), []
    for index in range(COMMITS // 50):
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


def check_log(path, result):
    """The invariants of a log: every gradient was sent for, arrived, and was used once or not at all."""
    sent, used, last = collections.Counter(), collections.Counter(), dict.fromkeys(range(N), -1)
    newest, clock = dict(last), 0
    for event in gemjax.eventlog.read(path):
        at = (event.get("worker"), event.get("step"))
        if event["event"] == "dispatch":
            # The same step again, or the next one; a commit is logged when its report is read, a little later.
            assert event["step"] - newest[event["worker"]] in (0, 1)
            newest[event["worker"]] = event["step"]
            sent[at] += 1
        elif event["event"] in ("commit", "reject", "drop"):
            used[at] += 1
            assert used[at] == 1
            assert sent[at] >= 1
            assert event["step"] == last[event["worker"]] + 1
            last[event["worker"]] = event["step"]
            assert event["pulled_at"] == clock - event["staleness"] >= 0
            clock += event["event"] == "commit"
    assert clock == COMMITS
    assert gemjax.eventlog.trace_of(path, N) == result.trace


@pytest.mark.slow
@pytest.mark.parametrize("policy", [gemjax.Policy(deadline=0.5), gemjax.Policy(deadline=0.5, max_staleness=8)])
def test_ten_thousand_commits_with_a_fault_every_fifty(policy, tmp_path):
    faults, hanging = chaos(random.Random(0))
    members, held, since = gemjax.Members(N), [], {}
    loss_fn, params, batches, *_ = quadratic()
    tx = gemjax.asgd(0.01, num_workers=N)

    def callback(progress):
        now = progress.history["time"][-1]
        for at in list(hanging):
            if ("hang", *at) in faults.injected and now > since.setdefault(at, now) + 2 * policy.deadline:
                hanging.remove(at)
                faults.let_go(*at)
        for worker in range(N):  # Whoever was given up comes back.
            members.join(worker)
        held.append((len(jax.live_arrays()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))

    with faults, gemjax.EventLog(tmp_path / "log") as log:
        result = gemjax.run_on_devices(
            tx, loss_fn, params, batches, COMMITS, num_workers=N, policy=policy, members=members, gate=faults, log=log,
            callback=callback, callback_every=100,
        )  # fmt: skip
    kinds = collections.Counter(event["event"] for event in gemjax.eventlog.read(tmp_path / "log"))
    for kind in ("fault", "retire", "reject", "hang", "join"):
        assert kinds[kind] > 3, kinds
    check_log(tmp_path / "log", result)
    if policy.max_staleness is not None:
        assert result.trace.staleness.max() <= policy.max_staleness
    replay = gemjax.simulate(tx, loss_fn, params, batches, result.trace)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-3)
    arrays, kilobytes = np.array(held[20:]).T
    assert arrays.max() - arrays.min() <= 10 * N
    assert kilobytes[-1] - kilobytes[0] < 100_000  # The history of 8,000 commits, some thousand bytes each at most.
