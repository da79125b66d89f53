"""A small run from end to end: records, interruption, exact continuation, picture."""

import dataclasses
import functools
import io
import itertools
import json
import signal
import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from matplotlib import image
from rich.console import Console
from shrunk import Dense

import gemjax
from gemjax.telemetry import eventlog
from gemjax.testing import Faults
from train.config import presets
from train.config.config import Config
from train.run import train as training
from train.run.callback import RunCallback
from train.run.folder import RunFolder
from train.run.progress import commits_per_second
from train.task import models
from train.task.methods import make_method
from train.task.models.layers import BatchNorm
from train.task.models.ops.layout import Layout
from train.task.task import make_task

DRAW_RUN = training.plots.draw_run


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    return str(tmp_path_factory.mktemp("data"))


@pytest.fixture
def small(data_dir, tmp_path, monkeypatch):
    """Return a run of 33 commits; its callback is called after commits, at no time that depends on the machine.

    Its picture is left out: it takes longer than such a run.
    """
    monkeypatch.setattr(training, "CALLBACK_SECONDS", 1e6)
    monkeypatch.setattr(training.plots, "draw_run", lambda *_: None)
    return Config(
        workers=3,
        epochs=1.0,
        batch_size=128,
        learning_rate=0.1,
        data_dir=data_dir,
        out=str(tmp_path / "run"),
        eval_every=11,
    )


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(models, "DigitsCNN", Dense)


def run(config, folder=None):
    output = io.StringIO()
    folder = folder or RunFolder.fresh(config)
    summary = training.train(config, folder, Console(file=output, width=200))
    return folder, summary, output.getvalue()


@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_a_run_leaves_all_its_records(tiny, small, engine, monkeypatch):
    monkeypatch.setattr(training.plots, "draw_run", DRAW_RUN)
    config = dataclasses.replace(small, engine=engine)
    folder, summary, output = run(config)
    assert summary["finished"]
    assert summary["commits"] == summary["total"] == 33
    assert Config.load(folder.config) == config
    assert json.loads(folder.summary.read_text()) == summary
    trace = eventlog.trace_of(folder.events, 3)
    assert len(trace) == 33
    assert folder.read_metrics()["commits"][-1] == 33
    with folder.checkpoints() as checkpoints:
        assert checkpoints.latest == 33
    assert image.imread(folder.picture).std() > 0.05
    rate = summary["commits_per_second"]
    if engine == "devices":
        assert rate == gemjax.summarise(eventlog.read(folder.events)).rate
    for word in (commits_per_second(rate), "left", "loss", "staleness p50", "p95", "test accuracy"):
        assert word in output


@pytest.mark.slow
def test_a_simulation_is_evaluated_after_exactly_so_many_commits(tiny, small):
    folder, _, _ = run(dataclasses.replace(small, engine="simulate", eval_every=7))
    assert folder.read_metrics()["commits"].tolist() == [7, 14, 21, 28, 33]


@pytest.mark.slow
def test_a_simulation_is_evaluated_every_so_many_virtual_seconds(tiny, small):
    """Three workers with one gradient per second make about six commits in two seconds."""
    folder, _, _ = run(dataclasses.replace(small, engine="simulate", eval_every=0, eval_seconds=2.0))
    time = eventlog.trace_of(folder.events, 3).time
    metrics = folder.read_metrics()
    expected = [int((time <= multiple).sum()) for multiple in np.arange(2.0, time[-1], 2.0)] + [33]
    assert metrics["commits"].tolist() == expected
    np.testing.assert_allclose(metrics["time"], time[metrics["commits"] - 1], atol=1e-5)


def test_no_checkpoint_is_overwritten(tiny, small, monkeypatch):
    """Orbax deletes the old one first, so a run killed at that moment would lose its newest checkpoint."""
    saved = []
    save = RunFolder.save_checkpoint
    monkeypatch.setattr(
        RunFolder,
        "save_checkpoint",
        lambda folder, *args, **kw: saved.append(len(args[2])) or save(folder, *args, **kw),
    )
    config = dataclasses.replace(small, engine="simulate", checkpoint_every=11)
    folder, _, _ = run(config)
    assert saved == [0, 11, 22, 33]
    folder.summary.unlink()  # As if it had been killed before its summary.
    _, summary, output = run(config, folder)
    assert summary["finished"]
    assert "continuing from the checkpoint at 33 commits" in output
    assert saved == [0, 11, 22, 33]


@pytest.mark.slow
def test_a_simulation_is_saved_at_multiples_of_the_interval(tiny, small):
    """The simulator divides a run evenly: its pieces of 8 commits were saved in pairs, every 16 or 17 commits."""
    folder, _, _ = run(
        dataclasses.replace(small, engine="simulate", checkpoint_every=10, keep_checkpoints=0, eval_every=33)
    )
    with folder.checkpoints(read_only=True) as checkpoints:
        assert checkpoints.commits == [0, 10, 20, 30, 33]


@pytest.mark.slow
def test_a_run_continues_although_an_earlier_checkpoint_is_damaged(tiny, small):
    config = dataclasses.replace(small, engine="simulate", checkpoint_every=11, epochs=0.5)
    folder, _, _ = run(config)
    path = folder.checkpoints_path / "11" / "_CHECKPOINT_METADATA"
    path.write_text(path.read_text().replace('"init_timestamp_nsecs"', '"xnit_timestamp_nsecs"'))
    _, summary, output = run(dataclasses.replace(config, epochs=1.0), folder)
    assert summary["finished"]
    assert "continuing from the checkpoint at 17 commits" in output
    assert "warning: " not in output


@pytest.mark.slow
def test_a_resumed_run_notes_its_changed_settings(tiny, small):
    config = dataclasses.replace(small, engine="simulate", epochs=0.5)
    folder, _, _ = run(config)
    again = RunFolder(folder.path)
    run(dataclasses.replace(config, epochs=1.0, learning_rate=0.05), again)
    with again.checkpoints() as checkpoints:
        assert checkpoints.metadata["settings"] == [
            [0, {"epochs": 0.5, "learning_rate": 0.1}],
            [17, {"epochs": 1.0, "learning_rate": 0.05}],
        ]


@pytest.mark.slow
@pytest.mark.parametrize("x64", [False, True])
def test_a_run_computes_in_its_precision(tiny, small, x64):
    folder, _, _ = run(dataclasses.replace(small, engine="simulate", x64=x64, epochs=0.3))
    with folder.checkpoints() as checkpoints:
        (_, arrays) = checkpoints._read_metadata(checkpoints.latest)
    kinds = {str(leaf.dtype) for leaf in jax.tree.leaves(arrays["state"]["params"])}
    assert kinds == {"float64" if x64 else "float32"}
    assert jnp.zeros(1).dtype == jnp.float32


@pytest.mark.slow
def test_a_simulation_continues_after_commits_that_were_dropped(tiny, small):
    config = dataclasses.replace(small, engine="simulate", method="ringmaster", epochs=0.5)
    folder, first, _ = run(config)
    assert first["dropped"] > 0
    _, summary, _ = run(dataclasses.replace(config, epochs=1.0), folder)
    whole, expected, _ = run(dataclasses.replace(config, epochs=1.0, out=f"{folder.path}-whole"))
    assert (summary["finished"], summary["test_loss"]) == (True, expected["test_loss"])
    assert folder.events.read_bytes() == whole.events.read_bytes()


def test_a_checkpoint_is_not_replaced_by_one_of_the_same_commits(tmp_path):
    """Refused arrivals do not change that: the replacement might not fit on a full disk."""
    written = []
    callback = object.__new__(RunCallback)
    callback.log, callback.checkpoints = None, SimpleNamespace(latest=2, wait=lambda: True)
    callback.folder = SimpleNamespace(save_checkpoint=lambda *what: written.append(len(what[2])))
    for commits in (2, 3):
        callback.save(None, gemjax.Trace(worker=[0] * commits, num_workers=1))
    assert written == [3]


@pytest.mark.slow
def test_a_warning_of_a_run_is_a_line_on_the_terminal(tiny, small):
    output = run(dataclasses.replace(small, engine="devices", central="colocated"))[2]
    assert output.count("warning: the central variable shares its device with worker 0: ") == 1


def test_a_cpu_is_not_split_into_more_devices_than_its_cores_can_use(small, monkeypatch):
    monkeypatch.setattr(training, "cores", lambda: 2)
    counts = []

    def stop(count):
        counts.append(count)
        raise InterruptedError

    monkeypatch.setattr(gemjax, "cpu_devices", stop)
    for workers, worker_devices, central_devices, central in (
        (8, 1, 1, "auto"),
        (8, 2, 3, "dedicated"),
        (1, 1, 1, "auto"),
        (8, 1, 1, "host"),
    ):
        config = dataclasses.replace(
            small, workers=workers, worker_devices=worker_devices, central_devices=central_devices, central=central
        )
        with pytest.raises(InterruptedError):
            run(config)
    assert counts == [3 + 1, 3 * 2 + 3, 1 + 1, 3]


@pytest.mark.slow
def test_a_run_on_devices_is_evaluated_at_the_next_call_of_the_callback(tiny, small, monkeypatch):
    """Commits that arrive during a call, or are read together, come before the next one: one call may be of two multiples."""
    calls, poll = [], RunCallback.poll
    monkeypatch.setattr(
        RunCallback, "poll", lambda self, progress: calls.append(progress.commits) or poll(self, progress)
    )
    folder, _, _ = run(dataclasses.replace(small, eval_every=7))
    due = np.searchsorted([7, 14, 21, 28, 33], calls, side="right")
    assert folder.read_metrics()["commits"].tolist() == [calls[k] for k in np.flatnonzero(np.diff(due, prepend=0))]
    assert len(calls) >= 4
    assert calls[-1] == 33


def test_evaluation_is_compiled_before_the_workers_begin(tiny, small, monkeypatch):
    order, run_on_devices = [], gemjax.run_on_devices

    def making(config):
        task = make_task(config)
        evaluate = lambda *args: order.append("evaluate") or task.evaluate(*args)
        return dataclasses.replace(task, evaluate=evaluate)

    monkeypatch.setattr(training, "make_task", making)
    monkeypatch.setattr(
        gemjax, "run_on_devices", lambda *args, **kw: order.append("run") or run_on_devices(*args, **kw)
    )
    run(small)
    assert order[:2] == ["evaluate", "run"]


def test_training_learns(small):
    config = dataclasses.replace(small, engine="simulate", epochs=6.0, batch_size=64, learning_rate=0.05)
    _, summary, _ = run(config)
    assert summary["test_accuracy"] > 0.9


def test_an_interrupted_simulation_continues_bit_for_bit(tiny, small, monkeypatch, tmp_path):
    monkeypatch.setattr(training, "CALLBACK_EVERY", 5)
    config = dataclasses.replace(small, engine="simulate")
    whole, summary, _ = run(config)
    cut = dataclasses.replace(config, out=str(tmp_path / "cut"))
    folder = RunFolder.fresh(cut)
    with monkeypatch.context() as patched:
        patched.setattr(training.Interrupt, "is_set", lambda self: True)
        _, stopped, output = run(cut, folder)
    assert not stopped["finished"]
    assert stopped["commits"] == 3  # A third of the way to the first evaluation.
    assert f"--resume {folder.path}" in output
    _, resumed, _ = run(cut, folder)
    assert resumed["commits"] == 33
    assert resumed["test_loss"] == summary["test_loss"]
    assert list(eventlog.read(folder.events)) == list(eventlog.read(whole.events))


@pytest.mark.slow
def test_policy_and_placement_of_a_run_come_from_flags(tiny, small):
    flags = {"max_staleness": 1, "deadline": 60.0, "central_devices": 2, "worker_devices": 2}
    folder, summary, _ = run(dataclasses.replace(small, **flags))
    assert summary["finished"]
    assert eventlog.trace_of(folder.events, 3).staleness.max() == 1
    begun = next(iter(eventlog.read(folder.events)))
    assert [len(names.split("+")) for names in (*begun["devices"], begun["central"])] == [2, 2, 2, 2]


def test_workers_are_called_back_by_a_flag(tiny, small):
    folder, summary, _ = run(dataclasses.replace(small, interrupt=1))
    assert summary["finished"]
    assert eventlog.trace_of(folder.events, 3).staleness.max() == 0
    assert any(event["event"] == "interrupt" for event in eventlog.read(folder.events))


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


@pytest.mark.slow
def test_a_quorum_of_all_workers_is_a_barrier(tiny, small):
    folder, _, _ = run(dataclasses.replace(small, quorum=3))
    np.testing.assert_array_equal(eventlog.trace_of(folder.events, 3).pulled_at, np.repeat(np.arange(11) * 3, 3))


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


def hanging(monkeypatch, gate):
    """Pass `gate` to all later runs."""
    monkeypatch.setattr(gemjax, "run_on_devices", functools.partial(gemjax.run_on_devices, gate=gate))


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
def test_the_callback_is_called_although_all_workers_hang(tiny, small, monkeypatch):
    """So progress is shown, and the run can be ended; here, the fifth call without commits releases the workers."""
    histories = []
    poll = training.RunCallback.poll

    def observe(self, progress):
        histories.append(progress.history)
        if [not history for history in histories[-5:]] == [True] * 5:
            for worker in range(3):
                faults.let_go(worker, 4)
        return poll(self, progress)

    monkeypatch.setattr(training, "CALLBACK_SECONDS", 0.02)
    monkeypatch.setattr(training.RunCallback, "poll", observe)
    with Faults().hang(0, 4).hang(1, 4).hang(2, 4) as faults:
        hanging(monkeypatch, faults)
        summary = run(dataclasses.replace(small, deadline=60.0))[1]
    assert summary["finished"]


@pytest.mark.slow
def test_a_run_interrupted_before_the_first_commit_can_be_resumed(tiny, small, monkeypatch):
    monkeypatch.setattr(training, "CALLBACK_SECONDS", 1e-6)
    folder = RunFolder.fresh(small)
    with monkeypatch.context() as patched, Faults().hang(0, 0).hang(1, 0).hang(2, 0) as faults:
        hanging(patched, faults)
        patched.setattr(training.Interrupt, "is_set", lambda self: True)
        summary = run(dataclasses.replace(small, deadline=60.0), folder)[1]
    assert (summary["commits"], summary["finished"]) == (0, False)
    assert run(small, folder)[1]["finished"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["simulate", pytest.param("devices", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("seconds", "expected"), [(1e-9, [0, 11, 22, 33]), (0.0, [0, 33]), (1e6, [0, 33])])
def test_checkpoints_are_written_by_time(tiny, small, monkeypatch, engine, seconds, expected):
    """A checkpoint is written if the last one is older, at the next call; none of the same commits again."""
    saved = []
    save = RunFolder.save_checkpoint
    monkeypatch.setattr(
        RunFolder,
        "save_checkpoint",
        lambda folder, *args, **kw: saved.append(len(args[2])) or save(folder, *args, **kw),
    )
    run(dataclasses.replace(small, engine=engine, checkpoint_seconds=seconds))
    if engine == "devices":  # The callback is called after so many commits, or a few more.
        assert len(saved) == len(expected)
        assert saved[-1] == 33
    else:
        assert saved == expected


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["simulate", pytest.param("devices", marks=pytest.mark.slow)])
def test_the_commits_before_an_error_are_saved(tiny, small, monkeypatch, engine):
    """The second evaluation fails: its own error is raised, and the run continues from the last commit."""

    def fail(self, progress):
        if progress.commits >= 22:
            raise ZeroDivisionError("the second evaluation")
        return evaluate(self, progress)

    evaluate = training.RunCallback.evaluate
    config = dataclasses.replace(small, engine=engine)
    folder = RunFolder.fresh(config)
    output = Console(file=io.StringIO(), width=200)
    with monkeypatch.context() as patched:
        patched.setattr(training.RunCallback, "evaluate", fail)
        with pytest.raises(ZeroDivisionError, match="the second evaluation"):
            training.train(config, folder, output)
    with folder.checkpoints() as checkpoints:
        reached = checkpoints.latest
    assert 22 <= reached < 33
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


@pytest.mark.slow
def test_an_interrupted_run_on_devices_continues_without_gap_or_repetition(tiny, small, monkeypatch):
    monkeypatch.setattr(training, "CALLBACK_EVERY", 5)
    folder = RunFolder.fresh(small)
    with monkeypatch.context() as patched:
        patched.setattr(training.Interrupt, "is_set", lambda self: True)
        _, stopped, _ = run(small, folder)
    assert stopped["commits"] < 33
    _, resumed, _ = run(small, folder)
    assert resumed["finished"]
    trace = eventlog.trace_of(folder.events, 3)  # Raises if a commit is missing or repeated.
    assert len(trace) == 33
    for worker in range(3):
        steps = trace.step[trace.worker == worker]
        np.testing.assert_array_equal(steps, np.arange(len(steps)))


@pytest.mark.slow
def test_local_steps_continue_from_a_checkpoint(tiny, small, monkeypatch, tmp_path):
    """Two local steps per commit make half as many commits; the local momentum is in the checkpoint."""
    config = dataclasses.replace(small, engine="simulate", method="lsgd", period=2, local_momentum=0.5)
    whole, summary, _ = run(config)
    assert summary["commits"] == summary["total"] == 17
    monkeypatch.setattr(training, "CALLBACK_EVERY", 5)
    monkeypatch.setattr(training.Interrupt, "is_set", lambda self: True)
    cut = dataclasses.replace(config, out=str(tmp_path / "cut"))
    folder, summary, _ = run(cut)
    assert summary["commits"] == 3  # A third of the way to the first evaluation.
    monkeypatch.undo()
    monkeypatch.setattr(models, "DigitsCNN", Dense)
    _, summary, _ = run(cut, folder)
    assert summary["commits"] == 17
    assert summary["test_loss"] == json.loads(whole.summary.read_text())["test_loss"]


@pytest.mark.slow
def test_records_beyond_the_checkpoint_are_removed(tiny, small, monkeypatch):
    monkeypatch.setattr(training, "CALLBACK_EVERY", 5)
    config = dataclasses.replace(small, engine="simulate")
    folder, _, _ = run(config)
    before = folder.events.read_text()
    folder.summary.unlink()  # As if it had been killed before its summary.
    with open(folder.events, "a") as file:
        file.write('{"event":"commit","time":99.0,"worker":0,"step":99,"pulled_at":33,"staleness":0,"loss":1.0}\n{"ev')
    run(config, folder)
    assert folder.events.read_text() == before


def test_resuming_a_finished_run_changes_nothing(tiny, small):
    folder, summary, _ = run(dataclasses.replace(small, engine="simulate"))
    before = {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}
    again = training.train(dataclasses.replace(small, engine="simulate"), folder, Console(file=io.StringIO()))
    assert again == summary
    assert {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()} == before


@pytest.mark.slow
def test_a_batch_size_beyond_the_data_is_reduced_and_reported(tiny, small):
    config = dataclasses.replace(small, engine="simulate", batch_size=5000)
    _, summary, output = run(config)
    assert "--batch-size 5000 is larger than the data: a batch has 1437 rows" in output
    assert summary["total"] == 3


def test_a_second_run_does_not_overwrite_the_first(small):
    RunFolder.fresh(small).begin(small)
    with pytest.raises(FileExistsError, match="--resume"):
        RunFolder.fresh(small)


@pytest.mark.slow
def test_a_wrong_checkpoint_is_refused_before_work_starts(tiny, small):
    config = dataclasses.replace(small, engine="simulate")
    folder, _, _ = run(config)
    folder.summary.unlink()
    with pytest.raises(ValueError, match="another method, model or number of workers"):
        run(dataclasses.replace(config, method="asgd"), folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", presets.NAMES)
def test_every_configuration_runs_at_a_small_scale(name, tmp_path, data_dir, monkeypatch):
    from train.task.data import load as data

    monkeypatch.setattr(training.plots, "draw_run", lambda *_: None)
    config = presets.load(name)
    if config.dataset != "digits":  # Digits in the same shapes, as its files are not available.
        digits = data.load("digits", data_dir=data_dir)
        grown = {
            split: {
                "image": np.kron(part["image"], np.ones((1, 4, 4, 1), np.uint8))[:, 2:-2, 2:-2],
                "label": part["label"],
            }
            for split, part in (("train", digits.train), ("test", digits.test))
        }
        monkeypatch.setattr(data, "load", lambda *_, **__: dataclasses.replace(digits, **grown))
    small = dataclasses.replace(
        config, engine="simulate", workers=2, epochs=0.05, data_dir=data_dir, out=str(tmp_path / name)
    )
    folder, summary, _ = run(small)
    assert summary["finished"]
    with folder.checkpoints() as checkpoints:
        assert checkpoints.latest == summary["total"]
    assert np.isfinite(summary["test_loss"])


class Normalised(nn.Module):
    """A network whose statistics move far from their initial ones."""

    num_classes: int = 10

    @nn.compact
    def __call__(self, images, train=False):
        x = BatchNorm(Layout.CHANNELS_LAST)(30.0 * images + 10.0, train)
        return nn.Dense(10)(x.reshape(len(x), -1))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["simulate", pytest.param("devices", marks=pytest.mark.slow)])
def test_a_run_trains_saves_and_evaluates_with_batch_statistics(monkeypatch, small, engine):
    """They change, are in the checkpoint, and are used by the evaluation."""
    monkeypatch.setattr(models, "DigitsCNN", Normalised)
    config = dataclasses.replace(small, engine=engine, weight_decay=1e-4, warmup_epochs=0.5, decay_epochs=(2.0,))
    folder, summary, _ = run(config)
    task = make_task(config)
    tx = make_method(config, task.batches.steps_per_epoch)
    like = gemjax.initial_state(tx, task.params, num_workers=3, model_state=task.model_state)
    with folder.checkpoints() as checkpoints:
        state, _, _ = checkpoints.load(like)
    moved = state.model_state["batch_stats"]["BatchNorm_0"]
    assert abs(float(moved["var"][0]) - 1) > 0.01
    loss, accuracy = task.evaluate(state.params, state.model_state)
    assert (loss, accuracy) == pytest.approx((summary["test_loss"], summary["test_accuracy"]), rel=1e-5)
    assert loss != pytest.approx(task.evaluate(state.params, task.model_state)[0], rel=1e-3)
    assert folder.read_metrics()["test_loss"][-1] == pytest.approx(summary["test_loss"], rel=1e-5)
    longer = dataclasses.replace(config, epochs=1.5)
    assert run(longer, folder)[1]["finished"]
