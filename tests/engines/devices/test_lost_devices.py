"""Failures of devices, sources of data, logs and callbacks in a run on devices, and the results that remain."""

import jax
import numpy as np
import optax
import pytest
from engines.problems import Abreast, NotedLog, assert_close, quadratic

import gemjax
from gemjax.engines.devices.hardware.central import Central
from gemjax.engines.devices.hardware.programs.host import Programs

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
    commit = Central.commit

    def sometimes(self, worker, packed, event):
        if event[1] >= 3:
            raise OSError("the device is lost")
        return commit(self, worker, packed, event)

    monkeypatch.setattr(Central, "commit", sometimes)
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
