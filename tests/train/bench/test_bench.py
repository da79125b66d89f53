"""The benchmark runs and writes its figures; what they are is not a test's business."""

import json

import pytest
from rich.console import Console

from train.bench import arrivals as bench_arrivals
from train.bench import bench
from train.bench import network as bench_network
from train.bench.simulate import make_problem


@pytest.mark.slow
def test_the_benchmark_measures_both_engines(tmp_path, capsys):
    out = tmp_path / "bench.json"
    argv = ["--rounds", "1", "--steps", "3", "--workers", "1", "2", "--methods", "gem", "easgd", "--networks", "mlp"]
    argv += ["--commits", "200", "--parameters", "160000", "--out", str(out)]
    assert bench.main(argv) == 0
    figures = json.loads(out.read_text())
    ratios = figures["simulate"]["mlp, 64"]["ratio"]
    assert {method: set(of) for method, of in ratios.items()} == {"gem": {"1", "2"}, "easgd": {"1", "2"}}
    assert all(value > 0 for of in ratios.values() for value in of.values())
    assert figures["devices"]["overhead"]["160,000"]["engine with 1 worker, a commit"] > 0
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


@pytest.mark.slow
def test_a_network_is_measured_against_the_machine(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench_network, "PEAK_SIZE", 256)
    monkeypatch.setattr(bench_network, "_torch", lambda: None)
    out = tmp_path / "bench.json"
    argv = ["network", "--networks", "mlp", "cnn", "--batch-sizes", "8", "--rounds", "1", "--steps", "2"]
    assert bench.main([*argv, "--out", str(out)]) == 0
    figures = json.loads(out.read_text())["network"]
    assert figures["torch"] is None
    for name in ("mlp, 8", "cnn, 8"):
        assert figures[name]["gflops"] == pytest.approx(figures[name]["of_peak"] * figures["peak_gflops"])
    assert "nothing is compared" in capsys.readouterr().out


def test_every_arrival_model_is_timed():
    figures = bench_arrivals.rates(1, 2000, Console())
    assert len(figures) == 11
    assert all(rate > 0 for rate in figures.values())


def test_the_work_of_a_network_is_counted_as_the_mathematics_has_it():
    """Two operations a multiplication, forward and for both gradients; the first layer needs none of its input."""
    layers = [784 * 256, 256 * 128, 128 * 10]
    expected = 2 * 8 * (3 * sum(layers) - layers[0])
    assert bench_network._flops(make_problem("mlp", 8)) == pytest.approx(expected, rel=0.05)


def test_pytorch_trains_the_same_network():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed; it is compared with where it is")
    for network in ("mlp", "cnn", "cnn7", "resnet20"):
        assert bench_network._theirs(torch, network, make_problem(network, 8), 2)() > 0
