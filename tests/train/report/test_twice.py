"""Runs that are made twice: the exit status, the files, and a real run that is killed."""

import json

import pytest

from train import cli
from train.report import twice

FOUND = {
    "whole": [2.0, 1.0, 0.5] * 20, "resumed": [2.0, 1.0, 0.5] * 20, "killed_at": 30, "differing": 0,
    "recorded": [2.0, 1.5] * 30, "replayed": [2.0, 1.5] * 30,
}  # fmt: skip


@pytest.mark.parametrize("differing", [0, 3])
def test_the_status_tells_whether_the_resumed_run_is_the_same(differing, tmp_path, monkeypatch):
    monkeypatch.setattr(twice, "twice", lambda *_: FOUND | {"differing": differing})
    assert cli.main(["twice", "--out", str(tmp_path)]) == (differing > 0)
    assert json.loads((tmp_path / "twice.json").read_text())["differing"] == differing
    assert (tmp_path / "twice.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_fails_is_reported(tmp_path):
    with pytest.raises(twice.UsageError, match=r"a run failed: .*--epochs"):
        twice.train("--epochs", "-1", "--out", tmp_path / "run")


@pytest.mark.nightly
def test_a_killed_run_goes_on_bit_for_bit_and_a_recorded_run_replays(tmp_path):
    assert cli.main(["twice", "--epochs", "10", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "twice.json").read_text())
    assert found["resumed"] == found["whole"]
    assert 0 < found["killed_at"] < len(found["whole"])
    assert found["replayed"] == pytest.approx(found["recorded"], rel=0.2)
