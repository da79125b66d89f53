"""A run from end to end, shrunk: records, interruption, exact continuation, picture."""

import dataclasses
import functools
import io
import json
import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from flax import linen as nn
from matplotlib import image
from rich.console import Console

import gemjax
from gemjax.telemetry import eventlog
from gemjax.testing import Faults
from train.config import presets
from train.config.config import Config
from train.run import train as story
from train.run.callback import Watcher
from train.run.folder import RunFolder
from train.task import models
from train.task.methods import make_method
from train.task.models.layers import BatchNorm
from train.task.models.ops.layout import Layout
from train.task.task import make_task


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    return str(tmp_path_factory.mktemp("data"))


@pytest.fixture
def small(data_dir, tmp_path):
    return Config(
        workers=3,
        epochs=1.0,
        batch_size=128,
        learning_rate=0.1,
        data_dir=data_dir,
        out=str(tmp_path / "run"),
        eval_every=11,
    )


class Tiny(nn.Module):
    """Stands in for the convolutional networks where a test is not about learning: it compiles in no time."""

    num_classes: int = 10

    @nn.compact
    def __call__(self, images, train=False):
        del train
        return nn.Dense(10)(images.reshape(len(images), -1))


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(models, "DigitsCNN", Tiny)


def run(config, folder=None):
    output = io.StringIO()
    folder = folder or RunFolder.fresh(config)
    summary = story.train(config, folder, Console(file=output, width=200))
    return folder, summary, output.getvalue()


@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_a_run_leaves_all_its_records(tiny, small, engine):
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
    for word in ("commits", "/s", "left", "loss", "staleness p50", "p95", "test accuracy"):
        assert word in output


def test_a_simulation_is_evaluated_after_exactly_so_many_commits(tiny, small):
    folder, _, _ = run(dataclasses.replace(small, engine="simulate", eval_every=7))
    assert folder.read_metrics()["commits"].tolist() == [7, 14, 21, 28, 33]


def test_a_simulation_is_evaluated_every_so_many_virtual_seconds(tiny, small):
    """Three workers of which each makes a gradient a second: some six commits in two seconds."""
    folder, _, _ = run(dataclasses.replace(small, engine="simulate", eval_every=0, eval_seconds=2.0))
    time = eventlog.trace_of(folder.events, 3).time
    metrics = folder.read_metrics()
    expected = [int((time <= multiple).sum()) for multiple in np.arange(2.0, time[-1], 2.0)] + [33]
    assert metrics["commits"].tolist() == expected
    np.testing.assert_allclose(metrics["time"], time[metrics["commits"] - 1], atol=1e-5)


def test_no_checkpoint_is_written_over(tiny, small, monkeypatch):
    """Orbax deletes the old one first: a run killed then would have lost its newest."""
    saved = []
    save = RunFolder.save_checkpoint
    monkeypatch.setattr(
        RunFolder, "save_checkpoint", lambda folder, *args: saved.append(len(args[2])) or save(folder, *args)
    )
    config = dataclasses.replace(small, engine="simulate", checkpoint_every=11)
    folder, _, _ = run(config)
    assert saved == [11, 22, 33]
    folder.summary.unlink()  # As if it had been killed before it summed up.
    _, summary, output = run(config, folder)
    assert summary["finished"]
    assert "going on from the checkpoint at 33 commits" in output
    assert saved == [11, 22, 33]


def test_a_checkpoint_is_not_replaced_by_one_of_the_same_commits(tmp_path):
    """Also if arrivals that were refused have come since: what replaces it might not get onto a full disk."""
    written = []
    watcher = object.__new__(Watcher)
    watcher.log, watcher.checkpoints = None, SimpleNamespace(latest=2, wait=lambda: True)
    watcher.folder = SimpleNamespace(save_checkpoint=lambda *what: written.append(len(what[2])))
    for commits in (2, 3):
        watcher.save(None, gemjax.Trace(worker=[0] * commits, num_workers=1))
    assert written == [3]


def test_what_a_run_warns_of_is_a_line_on_the_terminal(tiny, small):
    output = run(dataclasses.replace(small, engine="devices", central="colocated"))[2]
    assert output.count("warning: the central variable shares its device with worker 0: ") == 1


def test_a_cpu_is_split_no_further_than_its_cores_can_compute(small, monkeypatch):
    monkeypatch.setattr(story, "cores", lambda: 2)
    asked = []

    def stop(count):
        asked.append(count)
        raise InterruptedError

    monkeypatch.setattr(gemjax, "cpu_devices", stop)
    for workers, of_each, central, home in (
        (8, 1, 1, "auto"),
        (8, 2, 3, "dedicated"),
        (1, 1, 1, "auto"),
        (8, 1, 1, "host"),
    ):
        config = dataclasses.replace(
            small, workers=workers, worker_devices=of_each, central_devices=central, central=home
        )
        with pytest.raises(InterruptedError):
            run(config)
    assert asked == [3 + 1, 3 * 2 + 3, 1 + 1, 3]


@pytest.mark.slow
def test_a_run_on_devices_is_evaluated_as_soon_as_it_is_looked_at(tiny, small):
    folder, _, _ = run(dataclasses.replace(small, eval_every=7))
    commits = folder.read_metrics()["commits"].tolist()
    assert len(commits) == 5
    assert all(commits[k] >= 7 * (k + 1) for k in range(4))
    assert commits[-1] == 33


def test_evaluation_is_compiled_before_the_workers_begin(tiny, small, monkeypatch):
    order, run_on_devices = [], gemjax.run_on_devices

    def making(config):
        task = make_task(config)
        evaluate = lambda *args: order.append("evaluate") or task.evaluate(*args)
        return dataclasses.replace(task, evaluate=evaluate)

    monkeypatch.setattr(story, "make_task", making)
    monkeypatch.setattr(
        gemjax, "run_on_devices", lambda *args, **kw: order.append("run") or run_on_devices(*args, **kw)
    )
    run(small)
    assert order[:2] == ["evaluate", "run"]


def test_training_learns(small):
    config = dataclasses.replace(small, engine="simulate", epochs=6.0, batch_size=64, learning_rate=0.05)
    _, summary, _ = run(config)
    assert summary["test_accuracy"] > 0.9


def test_an_interrupted_simulation_goes_on_bit_for_bit(tiny, small, monkeypatch, tmp_path):
    monkeypatch.setattr(story, "CALLBACK_EVERY", 5)
    config = dataclasses.replace(small, engine="simulate")
    whole, summary, _ = run(config)
    cut = dataclasses.replace(config, out=str(tmp_path / "cut"))
    folder = RunFolder.fresh(cut)
    with monkeypatch.context() as patched:
        patched.setattr(story.Interrupt, "is_set", lambda self: True)
        _, stopped, output = run(cut, folder)
    assert not stopped["finished"]
    assert stopped["commits"] == 3  # A third of the way to the first evaluation.
    assert f"--resume {folder.path}" in output
    _, resumed, _ = run(cut, folder)
    assert resumed["commits"] == 33
    assert resumed["test_loss"] == summary["test_loss"]
    assert list(eventlog.read(folder.events)) == list(eventlog.read(whole.events))


def test_the_policy_and_the_places_of_a_run_come_from_flags(tiny, small):
    flags = {"max_staleness": 1, "deadline": 60.0, "central_devices": 2, "worker_devices": 2}
    folder, summary, _ = run(dataclasses.replace(small, **flags))
    assert summary["finished"]
    assert eventlog.trace_of(folder.events, 3).staleness.max() == 1
    begun = next(iter(eventlog.read(folder.events)))
    assert [len(names.split("+")) for names in (*begun["devices"], begun["central"])] == [2, 2, 2, 2]


@pytest.mark.slow
def test_grace_and_retries_of_a_run_come_from_flags(tiny, small, monkeypatch):
    """All three arrive within the grace after two; one that fails four times goes on if it is tried again as often."""
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


def test_a_run_that_fails_keeps_what_it_reached(tiny, small, monkeypatch):
    """All workers fall silent; what was committed until then is in a checkpoint, and the run goes on from it."""
    run_on_devices = gemjax.run_on_devices
    with monkeypatch.context() as patched, Faults().hang(0, 4).hang(1, 4).hang(2, 4) as faults:
        patched.setattr(gemjax, "run_on_devices", functools.partial(run_on_devices, gate=faults))
        config = dataclasses.replace(small, deadline=0.5)
        folder = RunFolder.fresh(config)
        with pytest.raises(gemjax.RunFailedError, match="12 of 33 commits are made"):
            run(config, folder)
    with folder.checkpoints() as checkpoints:
        assert checkpoints.latest == 12
    _, summary, _ = run(config, folder)
    assert summary["finished"]
    assert len(eventlog.trace_of(folder.events, 3)) == 33


def hanging(monkeypatch, gate):
    """Has the runs to come meet `gate`."""
    monkeypatch.setattr(gemjax, "run_on_devices", functools.partial(gemjax.run_on_devices, gate=gate))


def test_the_first_ctrl_c_ends_a_run_that_stands_still_with_a_checkpoint(tiny, small, monkeypatch, capfd):
    """All workers hang; the signal alone must wake the run, long before it would look by itself."""
    silent = []

    def gate(worker, step):
        if step == 4:
            silent.append(worker)
            if len(silent) == 3:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        faults(worker, step)

    monkeypatch.setattr(story, "LOOK_SECONDS", 1e6)
    with monkeypatch.context() as patched, Faults().hang(0, 4).hang(1, 4).hang(2, 4) as faults:
        hanging(patched, gate)
        folder, summary, _ = run(dataclasses.replace(small, deadline=60.0))  # Ends it where nothing else does.
    assert not summary["finished"]
    assert summary["commits"] == 12
    assert "stopping after the commits in flight" in capfd.readouterr().err
    with folder.checkpoints() as checkpoints:
        assert checkpoints.latest == 12
    assert run(small, folder)[1]["finished"]


@pytest.mark.slow
def test_a_run_that_stands_still_is_looked_at(tiny, small, monkeypatch):
    """So its progress goes on, and it could be ended; here, what is looked for at the fifth look lets it go on."""
    looks = []
    update = story.Watcher.look

    def look(self, progress):
        looks.append(progress.history)
        if [not history for history in looks[-5:]] == [True] * 5:
            for worker in range(3):
                faults.let_go(worker, 4)
        return update(self, progress)

    monkeypatch.setattr(story, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(story.Watcher, "look", look)
    with Faults().hang(0, 4).hang(1, 4).hang(2, 4) as faults:
        hanging(monkeypatch, faults)
        summary = run(dataclasses.replace(small, deadline=60.0))[1]
    assert summary["finished"]


@pytest.mark.slow
def test_ctrl_c_before_the_first_commit_leaves_a_run_to_go_on_with(tiny, small, monkeypatch):
    monkeypatch.setattr(story, "LOOK_SECONDS", 1e-6)
    folder = RunFolder.fresh(small)
    with monkeypatch.context() as patched, Faults().hang(0, 0).hang(1, 0).hang(2, 0) as faults:
        hanging(patched, faults)
        patched.setattr(story.Interrupt, "is_set", lambda self: True)
        summary = run(dataclasses.replace(small, deadline=60.0), folder)[1]
    assert (summary["commits"], summary["finished"]) == (0, False)
    assert run(small, folder)[1]["finished"]


@pytest.mark.parametrize("engine", ["simulate", pytest.param("devices", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("seconds", "expected"), [(1e-9, [11, 22, 33]), (0.0, [33]), (1e6, [33])])
def test_checkpoints_are_written_by_time(tiny, small, monkeypatch, engine, seconds, expected):
    """Whenever the run is looked at, if that is longer ago; not of what is written already."""
    saved = []
    save = RunFolder.save_checkpoint
    monkeypatch.setattr(
        RunFolder, "save_checkpoint", lambda folder, *args: saved.append(len(args[2])) or save(folder, *args)
    )
    monkeypatch.setattr(story, "LOOK_SECONDS", 1e6)
    run(dataclasses.replace(small, engine=engine, checkpoint_seconds=seconds))
    if engine == "devices":  # It is looked at when so many commits are read, or a few more.
        assert len(saved) == len(expected)
        assert saved[-1] == 33
    else:
        assert saved == expected


@pytest.mark.parametrize("engine", ["simulate", pytest.param("devices", marks=pytest.mark.slow)])
def test_what_was_reached_is_kept_whatever_ends_a_run(tiny, small, monkeypatch, engine):
    """Here an evaluation fails, the second: its own error comes out, and the run goes on from where it was."""

    def fail(self, progress):
        if progress.commits >= 22:
            raise ZeroDivisionError("the second evaluation")
        return evaluate(self, progress)

    evaluate = story.Watcher.evaluate
    config = dataclasses.replace(small, engine=engine)
    folder = RunFolder.fresh(config)
    output = Console(file=io.StringIO(), width=200)
    with monkeypatch.context() as patched:
        patched.setattr(story.Watcher, "evaluate", fail)
        with pytest.raises(ZeroDivisionError, match="the second evaluation"):
            story.train(config, folder, output)
    with folder.checkpoints() as checkpoints:
        reached = checkpoints.latest
    assert 22 <= reached < 33
    kept = f"what was reached, {reached} commits, is kept; go on with: python -m train --resume {folder.path}"
    assert output.file.getvalue().count(kept) == 1
    _, summary, _ = run(config, folder)
    assert summary["finished"]
    assert len(eventlog.trace_of(folder.events, 3)) == 33


@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_an_error_of_the_engine_s_keeps_what_it_tells(tiny, small, monkeypatch, lost):
    """Also where it was raised from another, which has the result; not if the log, on a full disk, has lost commits."""
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
            story.train(small, folder, output)
    with folder.checkpoints() as checkpoints:
        assert checkpoints.latest is None if lost else checkpoints.latest >= 9
    assert ("could not be kept: " in output.file.getvalue()) == bool(lost)
    assert run(small, folder)[1]["finished"]


@pytest.mark.slow
def test_an_interrupted_run_on_devices_goes_on_without_gap_or_repeat(tiny, small, monkeypatch):
    monkeypatch.setattr(story, "CALLBACK_EVERY", 5)
    folder = RunFolder.fresh(small)
    with monkeypatch.context() as patched:
        patched.setattr(story.Interrupt, "is_set", lambda self: True)
        _, stopped, _ = run(small, folder)
    assert stopped["commits"] < 33
    _, resumed, _ = run(small, folder)
    assert resumed["finished"]
    trace = eventlog.trace_of(folder.events, 3)  # Raises if a commit were missing or made twice.
    assert len(trace) == 33
    for worker in range(3):
        steps = trace.step[trace.worker == worker]
        np.testing.assert_array_equal(steps, np.arange(len(steps)))


@pytest.mark.slow
def test_local_steps_run_and_go_on_from_a_checkpoint(tiny, small, monkeypatch, tmp_path):
    """Two local steps a commit make half as many commits; the local momentum is in the checkpoint."""
    config = dataclasses.replace(small, engine="simulate", method="lsgd", period=2, local_momentum=0.5)
    whole, summary, _ = run(config)
    assert summary["commits"] == summary["total"] == 17
    monkeypatch.setattr(story, "CALLBACK_EVERY", 5)
    monkeypatch.setattr(story.Interrupt, "is_set", lambda self: True)
    cut = dataclasses.replace(config, out=str(tmp_path / "cut"))
    folder, summary, _ = run(cut)
    assert summary["commits"] == 3  # A third of the way to the first evaluation.
    monkeypatch.undo()
    monkeypatch.setattr(models, "DigitsCNN", Tiny)
    _, summary, _ = run(cut, folder)
    assert summary["commits"] == 17
    assert summary["test_loss"] == json.loads(whole.summary.read_text())["test_loss"]


@pytest.mark.slow
def test_records_beyond_the_checkpoint_are_cut_off(tiny, small, monkeypatch):
    monkeypatch.setattr(story, "CALLBACK_EVERY", 5)
    config = dataclasses.replace(small, engine="simulate")
    folder, _, _ = run(config)
    before = folder.events.read_text()
    folder.summary.unlink()  # As if it had been killed before it summed up.
    with open(folder.events, "a") as file:
        file.write('{"event":"commit","time":99.0,"worker":0,"step":99,"pulled_at":33,"staleness":0,"loss":1.0}\n{"ev')
    run(config, folder)
    assert folder.events.read_text() == before


def test_resuming_a_finished_run_touches_nothing(tiny, small):
    folder, summary, _ = run(dataclasses.replace(small, engine="simulate"))
    before = {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}
    again, told = (
        story.train(dataclasses.replace(small, engine="simulate"), folder, Console(file=io.StringIO())),
        summary,
    )
    assert again == told
    assert {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()} == before


@pytest.mark.slow
def test_a_batch_size_beyond_the_data_is_cut_and_said(tiny, small):
    config = dataclasses.replace(small, engine="simulate", batch_size=5000)
    _, summary, output = run(config)
    assert "--batch-size 5000 is more than all rows: a batch has 1437" in output
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
def test_every_configuration_runs_shrunk(name, tmp_path, data_dir, monkeypatch):
    from train.task.data import load as data

    config = presets.load(name)
    if config.dataset != "digits":  # Its files are not here: the same shapes, from the digits.
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
    """A network with statistics."""

    num_classes: int = 10

    @nn.compact
    def __call__(self, images, train=False):
        x = BatchNorm(Layout.CHANNELS_LAST)(3.0 * images + 1.0, train)
        return nn.Dense(10)(x.reshape(len(x), -1))


@pytest.mark.parametrize("engine", ["simulate", pytest.param("devices", marks=pytest.mark.slow)])
def test_batch_statistics_travel_with_a_run(monkeypatch, small, engine):
    """They move, are kept in the checkpoint, and are what the evaluation uses."""
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
