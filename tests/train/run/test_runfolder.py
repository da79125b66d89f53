"""Records that are truncated to a checkpoint, or do not match it."""

import json
import os

import jax
import jax.numpy as jnp
import pytest

import gemjax
from train import cli
from train.common.errors import RecordError
from train.common.machine import generator
from train.config.config import Config
from train.run import train as training
from train.run.folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path)
    folder.events.write_text("one\ntwo\nthree\n")
    folder.metrics.write_text("1\n2\n")
    return folder


def test_records_beyond_the_checkpoint_are_truncated(folder):
    folder.rewind({"events": 8, "metrics": 2}, 0, 0)
    assert folder.events.read_text() == "one\ntwo\n"
    assert folder.metrics.read_text() == "1\n"
    folder.rewind({"events": 0, "metrics": 0}, 0, 0)
    assert folder.events.read_text() == folder.metrics.read_text() == ""


def test_a_run_that_another_process_writes_is_refused_and_not_changed(folder):
    folder.config.write_text("{}")
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    with RunFolder(folder.path).alone():  # A lock belongs to the open file, so the same process can hold another.
        for name in ("resumed", "begun"):
            with pytest.raises(BlockingIOError, match="is in use by another process"):
                training.train(Config(), RunFolder(folder.path), None)
            assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before, name
    with folder.alone(), folder.alone():
        pass
    with RunFolder(folder.path).alone():  # The lock ended.
        pass


def test_the_records_are_on_disk_before_the_checkpoint_that_holds_their_sizes(tmp_path, monkeypatch):
    folder, synced = RunFolder(tmp_path), []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append((os.fstat(number).st_ino, os.fstat(number).st_size)))
    saved = {}

    class Checkpoints:
        def save(self, state, trace, sizes, wait):
            assert {folder.events.stat().st_ino, folder.metrics.stat().st_ino} <= dict(synced).keys()
            saved.update(sizes)

    state = gemjax.initial_state(gemjax.asgd(0.1, num_workers=1), jnp.zeros(2), num_workers=1)
    folder.add_metrics(commits=1)
    with gemjax.EventLog(folder.events) as log:
        log.write("start", 0.0)
        folder.save_checkpoint(Checkpoints(), state, gemjax.Trace(worker=[], num_workers=1), log)
    contents = {"events": folder.events.read_bytes(), "metrics": folder.metrics.read_bytes()}
    assert saved == {name: len(content) for name, content in contents.items()} | {
        "settings": [],
        "data": None,
        "generator": generator(),
    }
    assert dict(synced)[folder.events.stat().st_ino] == saved["events"]


def test_another_generator_of_random_numbers_is_refused(folder):
    """As an environment variable chooses it: dropout and augmentation would change in the midst of a run."""
    config = Config()
    folder.provenance.note(config, 0, None)
    saved = json.loads(json.dumps(folder.provenance.metadata()))
    folder.provenance.note(config, 5, None, saved)
    said = "were drawn with JAX_DEFAULT_PRNG_IMPL=threefry2x32, and now it is rbg; set it as it was"
    with jax.default_prng_impl("rbg"), pytest.raises(RecordError, match=said):
        folder.provenance.note(config, 5, None, saved)
    with (
        jax.threefry_partitionable(False),
        pytest.raises(RecordError, match="JAX_THREEFRY_PARTITIONABLE=True, and now it"),
    ):
        folder.provenance.note(config, 5, None, saved)


@pytest.mark.parametrize("error", [RecordError, gemjax.CheckpointError])
def test_the_command_line_reports_the_error_in_one_line(tmp_path, monkeypatch, capsys, error):
    def refuse(*_):
        raise error("lines are missing")

    Config(workers=2).save(RunFolder(tmp_path / "run").config)
    monkeypatch.setattr(training, "train", refuse)
    assert cli.main(["--resume", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == "train: lines are missing\n"


@pytest.mark.parametrize("line", ["{}", '{"commits": 22, "time": "1.0"}'])
def test_a_line_without_the_numbers_of_an_evaluation_is_named(folder, line):
    folder.metrics.write_text(f'{{"commits": 11, "time": 0.5, "test_loss": null}}\n{line}\n')
    with pytest.raises(RecordError, match=r"metrics\.jsonl, line 2: not metrics of a run"):
        folder.read_metrics()


def test_a_new_run_replaces_no_checkpoints(tmp_path):
    """It ended with the words that there is no file events.jsonl."""
    folder = RunFolder(tmp_path / "run")
    state = gemjax.initial_state(gemjax.asgd(0.1, num_workers=1), jnp.zeros(2), num_workers=1)
    with folder.checkpoints() as checkpoints:
        assert RunFolder.fresh(Config(out=str(folder.path))).path == folder.path
        checkpoints.save(state, gemjax.Trace(worker=[], num_workers=1))
    with pytest.raises(FileExistsError, match="is not empty: it holds checkpoints; choose"):
        RunFolder.fresh(Config(out=str(folder.path)))
