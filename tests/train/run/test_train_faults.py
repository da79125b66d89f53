"""Policies of a run, and its end by faults, hung workers, Ctrl-C and errors."""

import dataclasses
import io
import itertools
import signal
import threading

import numpy as np
import pytest
import small_runs
from rich.console import Console
from small_runs import hanging, run

import gemjax
from gemjax.telemetry import eventlog
from gemjax.testing import Faults
from train import cli
from train.run import engine
from train.run import train as training
from train.run.folder import RunFolder

data_dir, small, tiny = small_runs.data_dir, small_runs.small, small_runs.tiny


# --- Policies


@pytest.mark.slow
def test_policy_and_placement_of_a_run_come_from_flags(tiny, small):
    flags = {"max_staleness": 1, "deadline": 60.0, "central_devices": 2, "worker_devices": 2}
    folder, summary, _ = run(dataclasses.replace(small, **flags))
    assert summary["finished"]
    assert eventlog.trace_of(folder.events, 3).staleness.max() == 1
    begun = next(iter(eventlog.read(folder.events)))
    assert [len(names.split("+")) for names in (*begun["devices"], begun["central"])] == [2, 2, 2, 2]


@pytest.mark.slow
def test_grace_and_retries_of_a_run_come_from_flags(tiny, small, monkeypatch):
    """All three workers commit within the grace period; a worker that fails four times continues after four retries."""
    with Faults().fail(1, 3, times=4) as faults:
        hanging(monkeypatch, faults)
        folder, summary, _ = run(dataclasses.replace(small, quorum=2, grace=60.0, retries=4))
    assert summary["finished"]
    kinds = [event["event"] for event in eventlog.read(folder.events)]
    assert (kinds.count("fault"), kinds.count("retire")) == (4, 0)
    np.testing.assert_array_equal(eventlog.trace_of(folder.events, 3).pulled_at, np.repeat(np.arange(11) * 3, 3))


# --- Faults and hung workers


@pytest.mark.slow
def test_a_run_that_fails_saves_its_commits(tiny, small, monkeypatch):
    """All workers fail in their fifth step; the earlier commits are in a checkpoint, from which the run continues."""
    with monkeypatch.context() as patched, Faults().fail(0, 4).fail(1, 4).fail(2, 4) as faults:
        hanging(patched, faults)
        config = dataclasses.replace(small, retries=0)
        folder = RunFolder.fresh(config)
        with pytest.raises(gemjax.RunFailedError, match="12 of 33 commits are made"):
            run(config, folder)
    with folder.checkpoints() as checkpoints:
        assert checkpoints.latest == 12
    _, summary, _ = run(config, folder)
    assert summary["finished"]
    assert len(eventlog.trace_of(folder.events, 3)) == 33


@pytest.mark.slow
def test_the_first_ctrl_c_ends_a_run_of_hung_workers_with_a_checkpoint(tiny, small, monkeypatch, capfd):
    """The signal alone must wake the run, long before the next call of the callback."""
    silent = itertools.count(1)

    def gate(worker, step):
        if step == 4 and next(silent) == 3:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        faults(worker, step)

    with monkeypatch.context() as patched, Faults().hang(0, 4).hang(1, 4).hang(2, 4) as faults:
        hanging(patched, gate)
        folder, summary, _ = run(dataclasses.replace(small, deadline=60.0))  # Ends the run if the signal does not.
    assert not summary["finished"]
    assert summary["commits"] == 12
    assert "stopping after the commits in flight" in capfd.readouterr().err
    with folder.checkpoints() as checkpoints:
        assert checkpoints.latest == 12
    assert run(small, folder)[1]["finished"]


@pytest.mark.slow
def test_a_run_interrupted_before_the_first_commit_can_be_resumed(tiny, small, monkeypatch):
    monkeypatch.setattr(engine, "CALLBACK_SECONDS", 1e-6)
    folder = RunFolder.fresh(small)
    with monkeypatch.context() as patched, Faults().hang(0, 0).hang(1, 0).hang(2, 0) as faults:
        hanging(patched, faults)
        patched.setattr(training.StopRequest, "is_set", lambda self: True)
        summary = run(dataclasses.replace(small, deadline=60.0), folder)[1]
    assert (summary["commits"], summary["finished"]) == (0, False)
    assert run(small, folder)[1]["finished"]


# --- Errors


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["simulate", pytest.param("devices", marks=pytest.mark.slow)])
def test_the_commits_before_an_error_are_saved(tiny, small, monkeypatch, engine):
    """The second evaluation fails: its own error is raised, and the run continues from the last commit."""
    calls = itertools.count(1)

    def fail(self, *args):
        if next(calls) == 2:
            raise ZeroDivisionError("the second evaluation")
        return evaluate(self, *args)

    name = "evaluate" if engine == "simulate" else "evaluate_beside"
    evaluate = getattr(training.RunCallback, name)
    config = dataclasses.replace(small, engine=engine)
    folder = RunFolder.fresh(config)
    output = Console(file=io.StringIO(), width=200)
    with monkeypatch.context() as patched:
        patched.setattr(training.RunCallback, name, fail)
        with pytest.raises(ZeroDivisionError, match="the second evaluation"):
            training.train(config, folder, output)
    with folder.checkpoints() as checkpoints:
        reached = checkpoints.latest
    assert 22 <= reached <= 33
    saved = f"the {reached} commits before the error are saved; go on with: python -m train --resume {folder.path}"
    assert output.file.getvalue().count(saved) == 1
    _, summary, _ = run(config, folder)
    assert summary["finished"]
    assert len(eventlog.trace_of(folder.events, 3)) == 33


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_result_of_an_error_s_cause_is_saved(tiny, small, monkeypatch, lost):
    """It is not saved if the log has lost commits, as on a full disk."""
    run_on_devices, write, losses = gemjax.run_on_devices, gemjax.EventLog.write, ["commit"] * lost

    def failing(*args, **options):
        result = run_on_devices(*args, **options | {"callback": lambda progress: True, "callback_every": 9})
        failure = gemjax.RunFailedError("inside")
        failure.result = result
        raise OSError("the source cannot be read") from failure

    def lossy(self, event, time, **fields):
        if event in losses:
            losses.remove(event)
        else:
            write(self, event, time, **fields)

    folder, output = RunFolder.fresh(small), Console(file=io.StringIO(), width=200)
    with monkeypatch.context() as patched:
        patched.setattr(gemjax, "run_on_devices", failing)
        patched.setattr(gemjax.EventLog, "write", lossy)
        with pytest.raises(OSError, match="the source cannot be read"):
            training.train(small, folder, output)
    with folder.checkpoints() as checkpoints:
        assert checkpoints.latest == 0 if lost else checkpoints.latest >= 9
    assert ("could not be saved: " in output.file.getvalue()) == bool(lost)
    assert run(small, folder)[1]["finished"]


@pytest.mark.parametrize("made", [0, 2])
def test_a_run_that_failed_names_the_command_unless_its_commits_were_saved(monkeypatch, tmp_path, capsys, made):
    """The report on saved commits names it."""
    state = gemjax.initial_state(gemjax.asgd(0.1, num_workers=1), np.zeros(2, np.float32), num_workers=1)

    def fail(config, folder, *_):
        config.save(folder.config)
        with folder.checkpoints() as checkpoints:
            checkpoints.save(state, gemjax.Trace(worker=[], num_workers=1))
        failure = gemjax.RunFailedError("inside")
        failure.result = gemjax.Result(state, {}, gemjax.Trace(worker=[0] * made, num_workers=1))
        raise failure

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "train", fail)
    assert cli.main(["--out", "run"]) == 2
    assert ("inside; go on with: python -m train --resume run\n" in capsys.readouterr().err) == (made > 0)
