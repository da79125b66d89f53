"""Records that are cut back to a checkpoint, or are not those that it was written with."""

import os

import jax.numpy as jnp
import pytest

import gemjax
from train import cli
from train.common.errors import RecordError
from train.config.config import Config
from train.run import train as story
from train.run.folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path)
    folder.events.write_text("one\ntwo\nthree\n")
    folder.metrics.write_text("1\n2\n")
    return folder


def test_what_came_after_the_checkpoint_is_cut_off(folder):
    folder.rewind({"events": 8, "metrics": 2})
    assert folder.events.read_text() == "one\ntwo\n"
    assert folder.metrics.read_text() == "1\n"
    folder.rewind({"events": 0, "metrics": 0})
    assert folder.events.read_text() == folder.metrics.read_text() == ""


@pytest.mark.parametrize(
    ("sizes", "wrong"),
    [
        ({}, r"checkpoints does not say how long events\.jsonl was"),
        ({"events": 0}, r"does not say how long metrics\.jsonl was"),
        ({"events": -1, "metrics": 0}, "events is -1"),
        ({"events": "0\x1b", "metrics": 0}, r"events is '0\\x1b'"),
        ({"events": True, "metrics": 0}, "events is True"),
        ({"events": 8, "metrics": 10**30}, r"metrics\.jsonl has 4 bytes, but 1000"),
        ({"events": 15, "metrics": 0}, r"events\.jsonl has 14 bytes, but 15 when .* lines are missing at its end"),
        ({"events": 5, "metrics": 0}, r"events\.jsonl was changed: no line ends"),
    ],
)
def test_records_that_a_checkpoint_was_not_written_with_are_refused_and_left_alone(folder, sizes, wrong):
    with pytest.raises(RecordError, match=wrong) as refused:
        folder.rewind(sizes)
    assert str(refused.value).isprintable()
    assert folder.events.read_text() == "one\ntwo\nthree\n"
    assert folder.metrics.read_text() == "1\n2\n"


def test_a_file_that_was_deleted_is_missed(folder):
    folder.metrics.unlink()
    with pytest.raises(RecordError, match=r"metrics\.jsonl has 0 bytes, but 2 when"):
        folder.rewind({"events": 8, "metrics": 2})


def test_the_records_are_on_disk_before_the_checkpoint_that_names_their_size(tmp_path, monkeypatch):
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
    assert saved == {"events": folder.events.stat().st_size, "metrics": folder.metrics.stat().st_size}
    assert dict(synced)[folder.events.stat().st_ino] == saved["events"]


@pytest.mark.parametrize("error", [RecordError, gemjax.CheckpointError])
def test_the_command_line_tells_it_in_one_line(tmp_path, monkeypatch, capsys, error):
    def refuse(*_):
        raise error("lines are missing")

    RunFolder(tmp_path / "run").begin(Config(workers=2))
    monkeypatch.setattr(story, "train", refuse)
    assert cli.main(["--resume", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == "train: lines are missing\n"
