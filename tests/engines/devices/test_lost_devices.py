"""Failures of devices, sources of data, logs and callbacks in a run on devices, and the results that remain."""

import jax
import numpy as np
import optax
import pytest
from engines.problems import Abreast, NotedLog, assert_close, quadratic

import gemjax
from gemjax.engines.devices.hardware.programs.host import Programs
from gemjax.engines.devices.roster import Roster

QUADRATIC = quadratic()
N = 4
ASGD = gemjax.asgd(0.05, num_workers=N)
DOWNPOUR = gemjax.downpour(num_workers=N)
LOCAL = gemjax.LocalSteps(optax.sgd(0.02, momentum=0.5), period=2)


def check_replay(result, tx=ASGD, local=None):
    """Check that state, trace and history have the same commits."""
    assert int(result.state.commits) == len(result.trace)
    replay = gemjax.simulate(tx, *QUADRATIC[:3], result.trace, local=local)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-4)


def run(num_commits=60, tx=ASGD, **options):
    result = gemjax.run_on_devices(tx, *QUADRATIC[:3], num_commits, num_workers=N, **options)
    assert len(result.trace) == num_commits
    check_replay(result, tx, options.get("local"))
    return result


def breaking(monkeypatch, name, breaks):
    """Let the program ``name`` raise where ``breaks(programs, worker, call)`` is true; return the list of such calls."""
    works, raised = getattr(Programs, name), []

    def sometimes(self, worker, *args, **options):
        if hasattr(self, "_views") and self.steps[worker] > 0 and breaks(self, worker, len(raised)):
            raised.append((worker, self.steps[worker]))
            raise OSError("the device is lost")
        return works(self, worker, *args, **options)

    monkeypatch.setattr(Programs, name, sometimes)
    return raised


def kinds(path):
    return [event["event"] for event in gemjax.eventlog.read(path)]


@pytest.mark.slow
@pytest.mark.parametrize(("tx", "local"), [(ASGD, None), (DOWNPOUR, LOCAL)], ids=["gradients", "local steps"])
@pytest.mark.parametrize("name", ["send", "_settled"])
def test_a_view_that_cannot_be_sent_once_is_sent_again(name, tx, local, monkeypatch, tmp_path):
    """Its commit is made and recorded; its local optimizer receives the outcome with the next attempt."""
    raised = breaking(monkeypatch, name, lambda programs, worker, call: worker == 1 and call < 2)
    with gemjax.EventLog(tmp_path / "log") as log:
        result = run(tx=tx, local=local, log=log, gate=Abreast(N))
    assert raised == [(1, 1), (1, 1)]
    assert kinds(tmp_path / "log").count("fault") == 2
    assert (result.trace.worker == 1).sum() > 1


@pytest.mark.parametrize(
    "policy",
    [
        gemjax.Policy(),
        *(
            pytest.param(policy, marks=pytest.mark.slow)
            for policy in (gemjax.Policy(max_staleness=2), gemjax.Policy(quorum=3))
        ),
    ],
)
def test_a_worker_whose_device_is_lost_is_retired(policy, monkeypatch, tmp_path):
    """After its third commit its device computes and receives nothing any more; the other workers continue."""
    first = run(3 * N, policy=gemjax.Policy(quorum=N))
    broken = lambda programs, worker, call: worker == 1 and ("start", None) in log.noted
    breaking(monkeypatch, "compute", broken)
    breaking(monkeypatch, "send", broken)
    with NotedLog(tmp_path / "log") as log:
        result = run(policy=policy, log=log, state=first)
    assert (result.trace.worker == 1).sum() == 3
    assert kinds(tmp_path / "log").count("retire") == 1


def test_a_lost_device_is_found_when_its_worker_joins(monkeypatch):
    members = gemjax.Members(N, absent=[1])
    pull_again = Programs.pull_again

    def sometimes(self, worker):
        if worker == 1:
            raise OSError("the device is lost")
        pull_again(self, worker)

    monkeypatch.setattr(Programs, "pull_again", sometimes)
    gate = Abreast(N, lost=lambda worker, step: worker == 1)
    result = run(members=members, callback=lambda progress: members.join(1), callback_every=20, gate=gate)
    assert set(result.trace.worker) == {0, 2, 3}


def test_a_central_variable_that_fails_ends_the_run(monkeypatch):
    """The result up to the failure remains."""
    breaking(monkeypatch, "run_commit", lambda programs, worker, call: programs.steps[worker] >= 3)
    with pytest.raises(gemjax.RunFailedError, match="failed at a commit of worker") as failure:
        run()
    assert len(failure.value.result.trace) >= 3
    check_replay(failure.value.result)


def test_a_report_that_cannot_be_read_names_the_central_devices():
    programs = Programs.__new__(Programs)
    programs.placement, programs.reported = gemjax.place(2), {"loss": np.dtype(np.float32)}

    class Lost:
        def __array__(self, *args, **options):
            raise RuntimeError("INTERNAL")

    with pytest.raises(gemjax.RunFailedError, match=r"central variable's devices \(cpu:8\) failed.*INTERNAL"):
        programs.read({"": Lost()})


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_callback_leaves_a_result(error):
    def callback(progress):
        if progress.commits >= 20:
            raise error("enough")

    with pytest.raises(error, match="enough") as failure:
        run(callback=callback, callback_every=10)
    assert len(failure.value.result.trace) >= 20
    check_replay(failure.value.result)


def test_a_full_disk_leaves_a_result(tmp_path):
    class Full:
        """Log on a disk that is full after some events."""

        events = 0

        def write(self, /, event, time, **fields):
            self.events += 1
            if self.events > 50:
                raise OSError("no space left on device")

        def flush(self):
            pass

    with pytest.raises(OSError, match="no space left") as failure:
        run(log=Full())
    assert len(failure.value.result.trace) >= 8
    check_replay(failure.value.result)


@pytest.mark.slow
def test_commits_behind_the_one_that_fails_the_run_are_recorded(monkeypatch):
    """The second rejection in a round of a barrier fails the run; two more and an applied commit follow in that round."""
    num_workers, rounds, healthy = 5, 4, 4
    assert 3 * num_workers + 7 == rounds * num_workers + 2
    instruct = Roster.instruct

    def in_order(self, now):
        for worker in sorted(self.ready):
            self.ready[worker] = self.ready.pop(worker)
        return instruct(self, now)

    def gate(worker, step):
        return None if worker == healthy and step == rounds else poison

    def poison(gradient):
        return jax.tree.map(lambda x: x * np.nan if np.issubdtype(x.dtype, np.inexact) else x, gradient)

    monkeypatch.setattr(Roster, "instruct", in_order)
    with pytest.raises(gemjax.RunFailedError, match="all rejected") as failure:
        gemjax.run_on_devices(
            gemjax.asgd(0.05, num_workers), *QUADRATIC[:3], 60, num_workers=num_workers, gate=gate,
            policy=gemjax.Policy(quorum=num_workers),
        )  # fmt: skip
    result = failure.value.result
    assert result.history["worker"].tolist() == list(range(num_workers)) * (rounds + 1)
    assert result.trace.worker.tolist() == [healthy]
    check_replay(result, gemjax.asgd(0.05, num_workers))


class Source:
    """Source some of whose reads fail."""

    def __init__(self, fails):
        self.fails, self.reads, self.failed = fails, 0, 0

    def __len__(self):
        return 64

    def __getitem__(self, number):
        self.reads += 1
        if self.reads > 40 and self.failed < self.fails:
            self.failed += 1
            raise OSError("stale file handle")
        return {"x": np.float32(number)}


def read_run(source, **options):
    batches = gemjax.FromSource(source, gemjax.Epochs(np.arange(64), batch_size=4), threads=1)
    loss_fn = lambda params, batch: ((params - batch["x"]) ** 2).mean()
    return gemjax.run_on_devices(ASGD, loss_fn, np.float32(0), batches, 60, num_workers=N, **options)


@pytest.mark.slow
def test_a_read_that_fails_is_repeated(tmp_path):
    with gemjax.EventLog(tmp_path / "log") as log:
        result = read_run(Source(fails=2), log=log, gate=Abreast(N))
    assert len(result.trace) == 60
    assert kinds(tmp_path / "log").count("fault") == 2


def test_when_nothing_can_be_read_the_run_fails_with_its_result():
    with pytest.raises(gemjax.RunFailedError, match=r"4 workers were given up.*stale file handle") as failure:
        read_run(Source(fails=10**6))
    assert 0 < len(failure.value.result.trace) < 60


@pytest.mark.slow
def test_a_run_continues_without_a_worker_that_has_no_more_periods(tmp_path):
    """Worker 0 has a device of its own, so that its program is compiled with its batch."""
    local = gemjax.LocalSteps(optax.sgd(0.02), period=[[2] * 3, [2] * 40, [2] * 40, [2] * 40])
    with NotedLog(tmp_path / "log") as log:
        gate = Abreast(N, lost=lambda worker, step: ("end", worker) in log.noted)
        first = run(40, DOWNPOUR, local=local, gate=gate, log=log)
    assert (first.trace.worker == 0).sum() == 3
    second = gemjax.run_on_devices(
        DOWNPOUR, *QUADRATIC[:3], 60, num_workers=N, local=local, state=first.state, recorded=first.trace
    )
    assert len(second.trace) == 60
    check_replay(second, DOWNPOUR, local)
