"""Curves for TensorBoard, read back without TensorFlow."""

import dataclasses
import io
import struct

import numpy as np
import pytest
import shrunk
from rich.console import Console

from train import cli
from train.config.config import Config
from train.run import tensorboard as scalars
from train.run import train as training
from train.run.folder import RunFolder
from train.run.tensorboard import Scalars
from train.task import models

pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")
from tensorboardX.proto import event_pb2


def curves(folder):
    """Return the steps and values of each tag; a record is its length, a checksum, the event, a checksum."""
    found = {}
    for path in sorted(folder.iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
            if event.session_log.status == event_pb2.SessionLog.START:
                found.setdefault("begins", []).append(event.step)
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
            at += 12 + length + 4
    return found


HISTORY = {
    "loss": np.array([1.0, 2.0, np.nan]),
    "staleness": np.array([0, 3, 9]),
    "gap": np.array([0.5, 1.5, 9.0]),
    "applied": np.array([True, True, False]),
}


def test_written_curves_are_read_back(tmp_path):
    with Scalars(tmp_path / "board") as board:
        board.progress(10, HISTORY, rate=20.0)
        board.write(10, {"test/accuracy": 0.75, "test/loss": float("inf")})
        board.progress(20, HISTORY, rate=float("nan"))
    found = curves(tmp_path / "board")
    assert found.pop("begins") == [1]
    assert found == {
        "train/loss": [(10, 1.5), (20, 1.5)], "train/gap": [(10, 1.0), (20, 1.0)], "train/staleness": [(10, 1.5), (20, 1.5)],
        "run/commits_per_second": [(10, 20.0)], "test/accuracy": [(10, 0.75)],
    }  # fmt: skip


def test_a_run_on_a_cluster_has_a_curve_of_its_network_time(tmp_path):
    with Scalars(tmp_path / "board") as board:
        board.progress(10, HISTORY | {"network": np.array([0.25, 0.75, 9.0])}, rate=20.0)
    assert curves(tmp_path / "board")["run/network_seconds"] == [(10, 0.5)]


def test_without_the_flag_nothing_is_written(tmp_path):
    with Scalars(None) as board:
        board.progress(10, HISTORY, rate=20.0)
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_hides_points_beyond_its_checkpoint(tmp_path):
    """TensorBoard removes the points from a step on; the one at the checkpoint stays."""
    for done in (0, 10):
        with Scalars(tmp_path / "board", done) as board:
            board.write(done + 10, {"x": 1.0})
    assert curves(tmp_path / "board") == {"x": [(10, 1.0), (20, 1.0)], "begins": [1, 11]}


def test_a_missing_extra_is_reported_before_any_work(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scalars, "available", lambda: False)
    assert cli.main(["--tensorboard", "--engine", "simulate"]) == 2
    assert "pip install 'gemjax[tensorboard]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_training_run_writes_all_curves(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "DigitsCNN", shrunk.Dense)
    config = Config(
        workers=2, epochs=1.0, batch_size=128, engine="simulate", out=str(tmp_path / "run"), tensorboard=True
    )
    folder = RunFolder.fresh(dataclasses.replace(config, data_dir=str(tmp_path / "data")))
    training.train(dataclasses.replace(config, data_dir=str(tmp_path / "data")), folder, Console(file=io.StringIO()))
    found = curves(folder.tensorboard)
    assert set(found) >= {"train/loss", "train/staleness", "train/gap", "test/loss", "test/accuracy"}
    np.testing.assert_allclose(found["test/accuracy"][-1][1], folder.read_metrics()["test_accuracy"][-1], rtol=1e-6)
