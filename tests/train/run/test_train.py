"""A small run from end to end: records, evaluation, picture, and every configuration."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import small_runs
from flax import linen as nn
from matplotlib import image
from small_runs import run

import gemjax
from gemjax.telemetry import eventlog
from train.common.errors import UsageError
from train.config import presets
from train.config.config import Config
from train.run import figures
from train.run import train as training
from train.run.folder import RunFolder
from train.run.progress import commits_per_second
from train.task import models
from train.task.methods import make_method
from train.task.models.layers import BatchNorm
from train.task.models.ops.layout import ImageLayout
from train.task.task import make_task

data_dir, small, tiny = small_runs.data_dir, small_runs.small, small_runs.tiny
DRAW_RUN = figures.draw_run


@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_a_run_leaves_all_its_records(tiny, small, engine, monkeypatch):
    monkeypatch.setattr(figures, "draw_run", DRAW_RUN)
    config = dataclasses.replace(small, engine=engine)
    folder, summary, output = run(config)
    assert summary["finished"]
    assert summary["commits"] == summary["total"] == 33
    assert Config.load(folder.config) == config
    assert folder.read_summary() == summary
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
def test_the_summary_of_a_simulation_with_dropped_gradients_is_that_of_its_log(tiny, small):
    """Its trace has all arrivals, of which the dropped ones move no version."""
    config = dataclasses.replace(small, engine="simulate", method="ringmaster", workers=16, cluster="heterogeneous")
    folder, summary, output = run(config)
    logged = gemjax.summarise(eventlog.read(folder.events), 16)
    assert summary["dropped"] == logged.dropped > 0
    assert (summary["staleness_p50"], summary["staleness_p95"]) == (logged.staleness_median, logged.staleness_p95)
    assert f"staleness p50 {logged.staleness_median:.0f} p95 {logged.staleness_p95:.0f}, rejected" in output


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


@pytest.mark.slow
@pytest.mark.parametrize("x64", [False, True])
def test_a_run_computes_in_its_precision(tiny, small, x64):
    folder, _, _ = run(dataclasses.replace(small, engine="simulate", x64=x64, epochs=0.3))
    with folder.checkpoints() as checkpoints:
        arrays = checkpoints._metadata(checkpoints.latest)["arrays"]
    kinds = {kind.split("[")[0] for name, kind, *_ in arrays if name.startswith("params.")}
    assert kinds == {"float64" if x64 else "float32"}
    assert jnp.zeros(1).dtype == jnp.float32


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
    assert counts == [3 + 1 + 1, 3 * 2 + 3 + 1, 1 + 1 + 1, 3 + 1]  # One for evaluations.


@pytest.mark.slow
def test_a_run_on_devices_is_evaluated_after_exactly_so_many_commits(tiny, small):
    folder, summary, _ = run(dataclasses.replace(small, eval_every=7))
    metrics = folder.read_metrics()
    assert metrics["commits"].tolist() == [7, 14, 21, 28, 33]
    assert metrics["test_loss"][-1] == pytest.approx(summary["test_loss"])
    events = list(eventlog.read(folder.events))
    times = [event["time"] for event in events if event["event"] == "commit"]
    np.testing.assert_array_equal(metrics["time"], [times[commits - 1] for commits in metrics["commits"]])
    assert [event["commits"] for event in events if event["event"] == "evaluation"] == [7, 14, 21, 28, 33]


@pytest.mark.slow
def test_evaluation_is_compiled_before_the_workers_begin(tiny, small, monkeypatch):
    order, run_on_devices = [], gemjax.run_on_devices

    def making(config):
        task = make_task(config)
        evaluate = lambda *args, **kw: order.append("evaluate") or task.evaluate(*args, **kw)
        return dataclasses.replace(task, evaluate=evaluate)

    monkeypatch.setattr(training, "make_task", making)
    monkeypatch.setattr(
        gemjax, "run_on_devices", lambda *args, **kw: order.append("run") or run_on_devices(*args, **kw)
    )
    run(small)
    assert order[:2] == ["evaluate", "run"]


@pytest.mark.nightly
def test_training_learns(small):
    config = dataclasses.replace(small, engine="simulate", epochs=6.0, batch_size=64, learning_rate=0.05)
    _, summary, _ = run(config)
    assert summary["test_accuracy"] > 0.9


@pytest.mark.slow
def test_a_batch_size_beyond_the_data_is_reduced_and_reported(tiny, small):
    config = dataclasses.replace(small, engine="simulate", batch_size=5000)
    _, summary, output = run(config)
    assert "--batch-size 5000 is larger than the data: a batch has 1437 rows" in output
    assert summary["total"] == 3


def test_a_second_run_does_not_overwrite_the_first(small):
    small.save(RunFolder.fresh(small).config)
    with pytest.raises(FileExistsError, match="--resume"):
        RunFolder.fresh(small)


@pytest.mark.slow
@pytest.mark.parametrize("name", presets.NAMES)
def test_every_configuration_runs_at_a_small_scale(name, tmp_path, data_dir, monkeypatch):
    from train.task.data import load as data

    monkeypatch.setattr(figures, "draw_run", lambda *_: None)
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
        x = BatchNorm(ImageLayout.CHANNELS_LAST)(30.0 * images + 10.0, train)
        return nn.Dense(10)(x.reshape(len(x), -1))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["simulate", pytest.param("devices", marks=pytest.mark.nightly)])
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


def test_a_finished_run_is_not_placed(tiny, small, monkeypatch):
    folder = run(small)[0]

    def too_few(*_, **__):
        raise ValueError("too few devices")

    monkeypatch.setattr(gemjax, "place", too_few)
    assert "has made all 33 commits" in run(small, folder)[2]
    with pytest.raises(
        UsageError, match="--central auto does not fit this host: too few devices; lower --central-devices"
    ):
        run(dataclasses.replace(small, epochs=2.0), folder)


@pytest.mark.parametrize("flag", ["central_devices", "worker_devices"])
def test_a_host_is_split_into_no_more_devices_than_a_process_can_have(small, monkeypatch, flag):
    """The placement then says how many there are; JAX took further ones for those of another process."""
    split = []
    monkeypatch.setattr(gemjax, "cpu_devices", split.append)
    monkeypatch.setattr(training, "make_task", None)
    with pytest.raises(TypeError, match="not callable"):
        run(dataclasses.replace(small, engine="devices", **{flag: 4096}))
    assert split == [2048]


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [pytest.param("barrier", marks=pytest.mark.nightly), "tiered_barrier"])
def test_a_simulated_run_may_pull_between_its_evaluations(tiny, small, cluster):
    """All workers of a barrier pull after its last commit; there is nothing to show of a piece of pulls alone."""
    config = dataclasses.replace(small, engine="simulate", method="asgd", workers=16, cluster=cluster, eval_every=10)
    folder, summary, _ = run(config)
    assert summary["finished"]
    assert len(eventlog.trace_of(folder.events, 16)) == summary["commits"] == summary["total"] == 176
    assert folder.read_metrics()["commits"].tolist() == [*range(10, 176, 10), 176]
