"""Checkpoints of a run: when they are written, and exact continuation from them."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
import small_runs
from shrunk import dense
from small_runs import run

import gemjax
from gemjax.telemetry import eventlog
from train.common.errors import UsageError
from train.run import engine, figures
from train.run import train as training
from train.run.callback import RunCallback
from train.run.folder import RunFolder

data_dir, small, tiny = small_runs.data_dir, small_runs.small, small_runs.tiny


@pytest.mark.slow
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


BARRIERS = [
    pytest.param({"cluster": "barrier", "workers": 4}, marks=pytest.mark.nightly),
    {"cluster": "tiered_barrier", "workers": 5, "method": "easgd", "period": 3, "dynamic_periods": True},
]


@pytest.mark.slow
@pytest.mark.parametrize("fields", BARRIERS, ids=lambda fields: fields["cluster"])
def test_a_simulation_that_ended_inside_of_a_round_continues(tiny, small, fields):
    """Workers pull late at a barrier, which the trace of the shorter run does not show."""
    config = dataclasses.replace(small, engine="simulate", epochs=0.5, **fields)
    folder, first, _ = run(config)
    assert first["finished"]
    assert first["commits"] % config.workers
    _, summary, _ = run(dataclasses.replace(config, epochs=1.0), folder)
    whole, expected, _ = run(dataclasses.replace(config, epochs=1.0, out=f"{folder.path}-whole"))
    assert (summary["finished"], summary["test_loss"]) == (True, expected["test_loss"])
    assert folder.events.read_bytes() == whole.events.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("fields", BARRIERS, ids=lambda fields: fields["cluster"])
def test_a_whole_simulation_without_its_summary_gets_no_more_commits(tiny, small, fields):
    """As if it had been killed in its last evaluation; the simulator went on with the rest of the round."""
    config = dataclasses.replace(small, engine="simulate", epochs=0.5, **fields)
    folder, first, _ = run(config)
    events = folder.events.read_bytes()
    folder.summary.unlink()
    _, summary, _ = run(config, folder)
    assert [summary[name] for name in ("finished", "commits", "test_loss")] == [
        True,
        first["commits"],
        first["test_loss"],
    ]
    assert folder.events.read_bytes() == events
    _, summary, _ = run(dataclasses.replace(config, epochs=1.0), folder)
    _, expected, _ = run(dataclasses.replace(config, epochs=1.0, out=f"{folder.path}-whole"))
    assert summary["test_loss"] == expected["test_loss"]


@pytest.mark.slow
def test_a_whole_run_on_devices_without_its_summary_is_not_evaluated_again(tiny, small):
    """As if it had been killed after its last checkpoint: the engine evaluates the state that it is given."""
    config = dataclasses.replace(small, engine="devices", epochs=0.5)
    folder, first, _ = run(config)
    metrics = folder.metrics.read_bytes()
    folder.summary.unlink()
    _, summary, _ = run(config, folder)
    assert (summary["finished"], summary["test_loss"]) == (True, first["test_loss"])
    assert folder.metrics.read_bytes() == metrics


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["barrier", "homogeneous"])
def test_a_simulation_that_ends_without_an_applied_commit_fails(tiny, small, cluster):
    """With a barrier it counted as finished, because its trace goes on; and so did each that was resumed at its end."""
    config = dataclasses.replace(
        small, engine="simulate", method="asgd", learning_rate=3e38, workers=4, epochs=0.25, cluster=cluster
    )
    folder = RunFolder.fresh(config)
    with pytest.raises(gemjax.RunFailedError, match="no commit was ever applied") as failure:
        run(config, folder)
    made = len(failure.value.result.trace)
    assert made < 3 * 4 + 7, "it would have failed in any case"
    with folder.checkpoints(read_only=True) as checkpoints:
        assert checkpoints.commits[-1] == made
    with pytest.raises(gemjax.RunFailedError, match="no commit was ever applied"):
        run(config, folder)


@pytest.mark.nightly
def test_a_simulation_continues_after_commits_that_were_dropped(tiny, small):
    config = dataclasses.replace(small, engine="simulate", method="ringmaster", epochs=0.5)
    folder, first, _ = run(config)
    assert first["dropped"] > 0
    _, summary, _ = run(dataclasses.replace(config, epochs=1.0), folder)
    whole, expected, _ = run(dataclasses.replace(config, epochs=1.0, out=f"{folder.path}-whole"))
    assert (summary["finished"], summary["test_loss"]) == (True, expected["test_loss"])
    assert folder.events.read_bytes() == whole.events.read_bytes()


@pytest.mark.slow
def test_fewer_commits_than_an_unfinished_simulation_has_made_are_refused(tiny, small):
    """Also if it has applied fewer; the configuration stays as it was."""
    config = dataclasses.replace(small, engine="simulate", method="ringmaster", epochs=1.0)
    folder, summary, _ = run(config)
    folder.summary.unlink()
    before = folder.config.read_bytes()
    made, left = summary["commits"], summary["dropped"] // 2
    assert left
    fewer = dataclasses.replace(config, epochs=(made - left) / made)
    with pytest.raises(UsageError, match=rf"has made {made} commits, and \d+ are asked for; raise --epochs"):
        run(fewer, folder)
    assert folder.config.read_bytes() == before


def test_a_checkpoint_is_not_replaced_by_one_of_the_same_commits(tmp_path):
    """Refused arrivals do not change that: the replacement might not fit on a full disk."""
    written = []
    callback = object.__new__(RunCallback)
    callback.beside = False
    callback.log, size = None, 7
    callback.checkpoints = SimpleNamespace(latest=2, wait=lambda: True, metadata={"metrics": 7})
    callback.folder = SimpleNamespace(
        save_checkpoint=lambda *what: written.append(len(what[2])), sizes=lambda: {"metrics": size}
    )
    for commits in (2, 3):
        callback.save(None, gemjax.Trace(worker=[0] * commits, num_workers=1))
    assert written == [3]
    size = 14  # A row of metrics that the checkpoint does not have would be lost when the run is resumed.
    callback.save(None, gemjax.Trace(worker=[0] * 2, num_workers=1))
    assert written == [3, 2]


@pytest.mark.slow
def test_an_interrupted_simulation_continues_bit_for_bit(tiny, small, monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "CALLBACK_EVERY", 5)
    config = dataclasses.replace(small, engine="simulate")
    whole, summary, _ = run(config)
    cut = dataclasses.replace(config, out=str(tmp_path / "cut"))
    folder = RunFolder.fresh(cut)
    with monkeypatch.context() as patched:
        patched.setattr(training.StopRequest, "is_set", lambda self: True)
        _, stopped, output = run(cut, folder)
    assert not stopped["finished"]
    assert stopped["commits"] == 5
    assert f"--resume {folder.path}" in output
    _, resumed, _ = run(cut, folder)
    assert resumed["commits"] == 33
    assert resumed["test_loss"] == summary["test_loss"]
    assert list(eventlog.read(folder.events)) == list(eventlog.read(whole.events))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["simulate", pytest.param("devices", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(1e-9, [0, 11, 22, 33]), pytest.param(0.0, [0, 33], marks=pytest.mark.nightly), (1e6, [0, 33])],
)
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
    if engine == "devices":  # The callback is called when an evaluation is known, and none waits for a write.
        assert (saved[0], saved[-1]) == (0, 33)
        assert saved == sorted(set(saved))
        assert len(saved) == 2 or seconds == 1e-9
    else:
        assert saved == expected


@pytest.mark.slow
def test_an_interrupted_run_on_devices_continues_without_gap_or_repetition(tiny, small, monkeypatch):
    monkeypatch.setattr(engine, "CALLBACK_EVERY", 5)
    folder = RunFolder.fresh(small)
    with monkeypatch.context() as patched:
        patched.setattr(training.StopRequest, "is_set", lambda self: True)
        _, stopped, _ = run(small, folder)
    assert stopped["commits"] < 33
    _, resumed, _ = run(small, folder)
    assert resumed["finished"]
    trace = eventlog.trace_of(folder.events, 3)  # Raises if a commit is missing or repeated.
    assert len(trace) == 33
    for worker in range(3):
        steps = trace.step[trace.worker == worker]
        np.testing.assert_array_equal(steps, np.arange(len(steps)))


@pytest.mark.nightly
def test_local_steps_continue_from_a_checkpoint(tiny, small, monkeypatch, tmp_path):
    """Two local steps per commit make half as many commits; the local momentum is in the checkpoint."""
    config = dataclasses.replace(small, engine="simulate", method="lsgd", period=2, local_momentum=0.5)
    whole, summary, _ = run(config)
    assert summary["commits"] == summary["total"] == 17
    monkeypatch.setattr(engine, "CALLBACK_EVERY", 5)
    monkeypatch.setattr(training.StopRequest, "is_set", lambda self: True)
    cut = dataclasses.replace(config, out=str(tmp_path / "cut"))
    folder, summary, _ = run(cut)
    assert summary["commits"] == 5
    monkeypatch.undo()
    dense(monkeypatch)
    _, summary, _ = run(cut, folder)
    assert summary["commits"] == 17
    assert summary["test_loss"] == json.loads(whole.summary.read_text())["test_loss"]


@pytest.mark.slow
def test_no_other_process_writes_a_run_before_its_summary_is_written(tiny, small, monkeypatch):
    def draw(folder, *_):
        # A lock belongs to the open file, so the same process can hold another.
        with pytest.raises(BlockingIOError, match="is in use by another process"):
            RunFolder(folder.path).alone().__enter__()
        drawn.append(folder.path)

    drawn = []
    monkeypatch.setattr(figures, "draw_run", draw)
    folder, summary, _ = run(dataclasses.replace(small, engine="simulate"))
    assert (drawn, summary["finished"]) == ([folder.path], True)
    with RunFolder(folder.path).alone():
        pass


@pytest.mark.slow
def test_a_wrong_checkpoint_is_refused_before_work_starts(tiny, small):
    config = dataclasses.replace(small, engine="simulate")
    folder, _, _ = run(config)
    folder.summary.unlink()
    with pytest.raises(ValueError, match="checkpoint 33 is of another method"):
        run(dataclasses.replace(config, method="asgd"), folder)
