"""The benchmark runs and writes its figures; what they are is not a test's business."""

import json

import pytest

from train import bench


@pytest.mark.slow
def test_the_benchmark_measures_both_engines(tmp_path, capsys):
    out = tmp_path / "bench.json"
    argv = ["--rounds", "1", "--steps", "3", "--workers", "1", "2", "--methods", "gem", "easgd", "--networks", "mlp"]
    argv += ["--commits", "400", "--out", str(out)]
    assert bench.main(argv) == 0
    figures = json.loads(out.read_text())
    ratios = figures["simulate"]["mlp"]["ratio"]
    assert {method: set(of) for method, of in ratios.items()} == {"gem": {"1", "2"}, "easgd": {"1", "2"}}
    assert all(value > 0 for of in ratios.values() for value in of.values())
    assert figures["devices"]["engine with 1 worker, a commit"] > 0
    assert "ratio" in capsys.readouterr().out


@pytest.mark.slow
def test_the_cost_of_methods_is_a_ratio_to_asgd(monkeypatch, tmp_path):
    names = ("asgd", "gem", "lsgd", "ringmaster")
    monkeypatch.setattr(bench, "METHODS", {name: bench.METHODS[name] for name in names})
    out = tmp_path / "bench.json"
    assert bench.main(["methods", "--rounds", "1", "--steps", "16", "--out", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert figures.keys() == {"methods"}
    methods = figures["methods"]["methods"]
    assert tuple(methods) == names
    # One central variable and a view a worker; GEM adds a momentum a worker; LSGD a position, and counts no other rows.
    assert methods["asgd"]["state in copies"] == pytest.approx(17, abs=0.01)
    assert methods["gem"]["state in copies"] == pytest.approx(33, abs=0.01)
    assert methods["lsgd"]["state in copies"] == pytest.approx(33, abs=0.01)
    assert methods["asgd"]["traffic ratio"] == 1.0
    assert 1.0 < methods["lsgd"]["traffic ratio"] < 2.5
