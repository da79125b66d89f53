"""The benchmark of second calls runs; its program by hand computes what the simulated DiLoCo does."""

import json

import pytest

from train.bench import bench, second


@pytest.mark.nightly
def test_the_program_by_hand_is_diloco(tmp_path, monkeypatch):
    for name, value in {"WORKERS": 2, "PERIOD": 3, "ROUNDS": 3, "LENGTH": 8, "WIDTH": 0.25, "ROWS": 64}.items():
        monkeypatch.setattr(second, name, value)
    out = tmp_path / "bench.json"
    assert bench.main(["second", "--rounds", "1", "--out", str(out)]) == 0
    figures = json.loads(out.read_text())["second"]
    assert set(figures["calls"]) == {"simulate", "sweep", "run_on_devices"}
    assert all(seconds > 0 for calls in figures["calls"].values() for seconds in calls.values())
    assert figures["diloco"]["ratio"] > 0
    losses = figures["diloco"]["loss"]
    assert losses["simulated"] == pytest.approx(losses["by hand"], rel=1e-5)
