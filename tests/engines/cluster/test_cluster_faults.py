"""Faults of a run on a cluster: workers, nodes and drivers that end, hang or raise, and the processes that they leave."""

import collections
import os
import signal
import time

import numpy as np
import pytest
from engines.cluster import driver, processes
from engines.cluster.driver import LIMIT, LOOPBACK, all_commit, assert_replays, first, running, until
from engines.cluster.faults import WorkerFaults
from engines.problems import Abreast, quadratic_with_dropout

import gemjax

ray = pytest.importorskip("ray", reason="the cluster engine needs Ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")]  # Ray starts programs.
N, LONG = 4, 10**6


@pytest.fixture
def faults(tmp_path):
    return WorkerFaults(tmp_path)


def train(cluster, faults, commits, tmp_path, **options):
    """Run GEM in double precision, and return its result and its log."""
    problem, tx = quadratic_with_dropout("float64"), gemjax.gem(0.02, 0.9, num_workers=N)
    with gemjax.EventLog(tmp_path / "log") as log:
        result = gemjax.run_on_cluster(
            tx, problem.loss_fn, problem.params, faults.around(problem.batches), commits, cluster=cluster,
            model_state=problem.model_state, seed=driver.SEED, log=log, **options,
        )  # fmt: skip
    assert_replays(tx, problem, result.trace, result.params)
    return result, list(gemjax.eventlog.read(tmp_path / "log"))


def kinds_of(events, worker):
    """Return the kinds of a worker's events other than those of gradients that are committed, in order."""
    quiet = ("start", "dispatch", "ready", "commit", "pause")
    return [event["event"] for event in events if event.get("worker") == worker and event["event"] not in quiet]


class Until:
    """Callback that ends a run when ``happened(progress)`` is true; it raises if that takes too long."""

    def __init__(self, happened):
        self.happened, self.began = happened, time.monotonic()

    def __call__(self, progress):
        assert time.monotonic() < self.began + LIMIT, f"not after {progress.commits} commits"
        return self.happened(progress)


def has_committed(worker, step):
    """Make the condition that ``worker`` has committed its ``step``."""
    return lambda progress: bool(
        ((progress.history.get("worker") == worker) & (progress.history.get("step") >= step)).any()
        if progress.history
        else False
    )


def test_a_worker_that_raises_is_retried_and_then_retired(cluster, faults, tmp_path, x64):
    faults.fail(0, 3, times=2).fail(1, 5, times=9)
    gate = Abreast(N, lost=lambda worker, step: worker == 1 and step >= 3)
    planned = [("fail", 0, 3)] * 2 + [("fail", 1, 5)] * 3

    def are_over(progress):
        events = list(gemjax.eventlog.read(tmp_path / "log"))
        return len(kinds_of(events, 0)) == 2 and "retire" in kinds_of(events, 1)

    result, events = train(cluster, faults, LONG, tmp_path, gate=gate, callback=Until(are_over), callback_every=20)
    assert kinds_of(events, 0) == ["fault"] * 2
    assert kinds_of(events, 1) == ["fault"] * 3 + ["retire"]
    assert not kinds_of(events, 2)
    assert (result.trace.worker == 1).sum() == 5
    assert faults.happened() == planned


def test_a_worker_that_hangs_is_restarted_after_the_deadline(cluster, faults, tmp_path, x64):
    faults.hang(1, 4)
    policy = gemjax.Policy(deadline=8.0)
    _, events = train(
        cluster, faults, LONG, tmp_path, policy=policy, callback=Until(has_committed(1, 6)), callback_every=20
    )
    assert kinds_of(events, 1)[:1] == ["hang"]
    assert "join" in kinds_of(events, 1)
    at = [event["time"] for event in events if event["event"] in ("hang", "join") and event["worker"] == 1]
    assert any(event["event"] == "commit" and at[0] < event["time"] < at[1] for event in events)


def test_a_run_goes_on_while_a_worker_cannot_be_reached(cluster, faults, tmp_path, x64):
    """Its process is killed, and the next one does not begin until the others have made 200 commits."""
    faults.kill(1, 4).starts_late(1, 4)
    released = []

    def condition(progress):
        if not released and faults.happened() and progress.commits > 200 and faults.let_go(1, 4):
            released.append(progress.commits)
        return bool(released) and has_committed(1, 6)(progress)

    result, events = train(cluster, faults, LONG, tmp_path, callback=Until(condition), callback_every=20)
    assert kinds_of(events, 1) == ["leave", "join"]
    absent = result.trace.worker[: released[0]]
    assert (absent == 1).sum() == 4
    assert not kinds_of(events, 0)
    assert not kinds_of(events, 2)


@pytest.mark.parametrize("hosts", [None, 2])
def test_a_run_without_an_address_listens_on_the_loopback_interface_only(
    hosts, cluster, faults, tmp_path, x64, monkeypatch
):
    monkeypatch.setattr(cluster, "central_hosts", hosts)
    found = {}

    def callback(progress):
        found.update(processes.listening(processes.tree(os.getpid())))

    train(cluster, faults, 20, tmp_path, callback=callback, callback_every=10)
    addresses = [address for held in found.values() for address in held]
    assert len(addresses) > N  # Each worker, and the processes of Ray.
    outside = {processes.name(pid): held for pid, held in found.items() if not all(map(processes.is_loopback, held))}
    assert not outside


@pytest.mark.parametrize(
    "ending", [signal.SIGINT, *(pytest.param(other, marks=pytest.mark.nightly) for other in (None, signal.SIGTERM))]
)
def test_a_driver_leaves_no_process_behind(ending, tmp_path, x64):
    options = {"folder": str(tmp_path), "commits": 40}
    if ending is not None:
        options |= {"commits": LONG, "signal_at": 20, "signal": ending}
    with running(options, **LOOPBACK) as process:
        started = until(process, "processes")
        if ending != signal.SIGTERM:
            [commits] = until(process, "interrupted" if ending else "done")
            trace, params = driver.read(tmp_path)
            assert len(trace) == commits
            assert commits == 40 if ending is None else 20 <= commits < 40  # A callback may come some commits later.
            assert_replays(*driver.setting(), trace, params)
        process.wait(LIMIT)
    assert not processes.left(started, seconds=30)


@pytest.mark.parametrize(("commits", "kills"), [(400, 5), pytest.param(2000, 20, marks=pytest.mark.nightly)])
def test_a_run_goes_on_while_workers_a_node_and_the_driver_end(commits, kills, two_nodes, tmp_path, x64):
    killed = lambda: (tmp_path / "killed").read_text().splitlines()
    second = two_nodes.add_node(num_cpus=2)
    kill_at = np.sort(np.random.default_rng(1).integers(20, commits, kills)).tolist()
    options = {"folder": str(tmp_path), "commits": LONG, "address": two_nodes.address, "kills": kill_at}
    with running(options | {"signal_at": commits // 2}, **LOOPBACK) as process:
        started = until(process, "processes")
        until(process, "commits", commits // 8)
        two_nodes.remove_node(second, allow_graceful=False)
        until(process, "commits", commits // 4)
        two_nodes.add_node(num_cpus=2)
        with pytest.raises(AssertionError, match="the driver has ended"):
            until(process, "done")
        assert process.wait() == -signal.SIGKILL
    with running(options, **LOOPBACK) as process:
        before = len(killed())
        [resumed] = until(process, "resumed")
        assert commits // 2 - 100 <= resumed < commits // 2 + 40  # A callback may come some commits later.
        first(process, "commits", lambda now: now[0] >= commits and len(killed()) == kills)
        all_commit(process, until(process, "commits"))
        process.send_signal(signal.SIGINT)
        until(process, "interrupted")
        assert process.wait() == -signal.SIGINT
    assert 0 < before < kills - 1
    trace, params = driver.read(tmp_path)
    assert gemjax.eventlog.trace_of(tmp_path / "log", driver.WORKERS) == trace
    assert_replays(*driver.setting(), trace, params)
    check_log(tmp_path / "log", trace, kills - before)
    assert not processes.left(started, seconds=30)


def check_log(path, trace, losses):
    """Check that each gradient of each session was dispatched once at a time, and committed once or lost for a reason.

    At least ``losses`` workers were lost, and as many returned.
    """
    open_steps, next_step = [], []
    kinds = collections.Counter()
    for event in gemjax.eventlog.read(path):
        kind, worker = event["event"], event.get("worker")
        kinds[kind] += 1
        if kind == "start":
            before = trace.worker[: event["commits"]]
            open_steps = [set() for _ in range(driver.WORKERS)]
            next_step = np.bincount(before, minlength=driver.WORKERS).tolist()
        elif kind == "dispatch":
            assert event["step"] not in open_steps[worker], "dispatched again without an outcome of the first time"
            open_steps[worker].add(event["step"])
        elif kind == "commit":
            assert event["step"] == next_step[worker]
            next_step[worker] += 1
            open_steps[worker].remove(event["step"])
        elif kind in ("fault", "leave", "hang"):
            open_steps[worker].discard(event["step"])
    assert max(map(len, open_steps)) <= 1  # In flight at the end.
    assert kinds["start"] == 2
    assert kinds["leave"] >= losses
    assert kinds["join"] >= losses
    assert not kinds["retire"]
