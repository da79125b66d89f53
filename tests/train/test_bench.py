"""The benchmark runs and writes its figures; what they are is not a test's business."""

import json

import pytest

from train import bench


@pytest.mark.slow
def test_the_benchmark_measures_both_engines(tmp_path, capsys):
    out = tmp_path / "bench.json"
    argv = ["--rounds", "1", "--steps", "3", "--workers", "1", "2", "--commits", "400", "--out", str(out)]
    assert bench.main(argv) == 0
    figures = json.loads(out.read_text())
    assert figures["simulate"]["ratio"].keys() == {"1", "2"}
    assert all(value > 0 for value in figures["simulate"]["ratio"].values())
    assert figures["devices"]["engine with 1 worker, a commit"] > 0
    assert "ratio" in capsys.readouterr().out
