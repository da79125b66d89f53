"""The benchmark runs and writes its figures; their values are not tested."""

import json
import sys

import pytest
from rich.console import Console

from train import cli
from train.bench import arrivals as bench_arrivals
from train.bench import bench
from train.bench import devices as bench_devices

MARK = {"command": "python -m train bench"}


@pytest.mark.slow
def test_the_benchmark_measures_both_engines(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench_devices, "LEAVES", (3, 6))
    monkeypatch.setattr(bench_devices, "GRADIENT", 0.001)  # Seconds; 600 of them, and of its multiples, are waited for.
    monkeypatch.setattr(bench_devices, "MATRIX", 10)
    out = tmp_path / "bench.json"
    argv = ["--rounds", "1", "--steps", "3", "--workers", "1", "2", "--methods", "gem", "--networks", "mlp"]
    argv += ["--commits", "200", "--parameters", "160000", "--out", str(out)]
    assert bench.main(argv) == 0
    figures = json.loads(out.read_text())
    ratios = figures["simulate"]["mlp, 64"]["ratio"]
    assert {method: set(of) for method, of in ratios.items()} == {"gem": {"1", "2"}}
    assert all(value > 0 for of in ratios.values() for value in of.values())
    engine = figures["devices"]["overhead"]["160,000"]["engine with 1 worker, per commit"]
    assert engine["mean"] == pytest.approx(1e6 / engine["per second"])
    assert engine["median"] > 0
    assert set(figures["devices"]["leaves"]) == {"3 leaves", "6 leaves"}
    assert "ratio" in capsys.readouterr().out


def test_the_folder_of_the_figures_is_made_before_anything_is_measured(tmp_path, monkeypatch):
    out = tmp_path / "new" / "figures.json"
    monkeypatch.setattr(bench.bench_arrivals, "rates", lambda *_: {"made": out.parent.is_dir()})
    assert cli.main(["bench", "arrivals", "--out", str(out)]) == 0
    assert json.loads(out.read_text()) == MARK | {"arrivals": {"made": True}}


@pytest.mark.parametrize("without", ["--measured", "Ray"])
def test_what_a_later_part_needs_is_asked_for_first(without, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench.bench_arrivals, "rates", None)
    monkeypatch.setitem(sys.modules, "ray", None)  # As if it were not installed.
    later = ["scale", "--measured", str(tmp_path / "nowhere.json")] if without == "--measured" else ["cluster"]
    assert cli.main(["bench", "arrivals", *later]) == 2
    assert (
        "nowhere.json: No such file" if without == "--measured" else "bench cluster needs Ray"
    ) in capsys.readouterr().err


def test_figures_are_kept_if_a_later_part_fails(tmp_path, monkeypatch):
    out = tmp_path / "figures.json"

    def fail(*_):
        raise RuntimeError("no memory")

    monkeypatch.setattr(bench.bench_arrivals, "rates", lambda *_: {"Gamma": 1.0})
    monkeypatch.setattr(bench.bench_methods, "compare", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        bench.main(["arrivals", "methods", "--out", str(out)])
    assert json.loads(out.read_text()) == MARK | {"arrivals": {"Gamma": 1.0}}


@pytest.mark.nightly
def test_the_check_is_measured_against_the_same_programs_without_it(tmp_path):
    out = tmp_path / "bench.json"
    argv = ["check", "--rounds", "2", "--steps", "4", "--networks", "mlp", "--parameters", "160000", "--out", str(out)]
    assert bench.main(argv) == 0
    figures = json.loads(out.read_text())["check"]
    assert list(figures) == ["devices, 160,000", "simulator, mlp"]
    assert all(value > 0 for of in figures.values() for value in of.values())


@pytest.mark.nightly
def test_the_cost_of_methods_is_a_ratio_to_asgd(monkeypatch, tmp_path):
    names = ("asgd", "gem", "lsgd")
    monkeypatch.setattr(bench, "METHODS", {name: bench.METHODS[name] for name in names})
    out = tmp_path / "bench.json"
    assert bench.main(["methods", "--rounds", "1", "--steps", "16", "--out", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert figures.keys() == {"command", "methods"}
    methods = figures["methods"]["methods"]
    assert tuple(methods) == names
    # One central variable and one view per worker. GEM adds one momentum per worker, LSGD one position per worker.
    assert methods["asgd"]["state in copies"] == pytest.approx(17, abs=0.01)
    assert methods["gem"]["state in copies"] == pytest.approx(33, abs=0.01)
    assert methods["lsgd"]["state in copies"] == pytest.approx(33, abs=0.01)
    assert methods["asgd"]["traffic ratio"] == 1.0
    assert 1.0 < methods["lsgd"]["traffic ratio"] < 2.5


def test_large_sizes_have_fewer_commits_but_never_more_than_asked(monkeypatch):
    for name in ("many_leaves", "utilisation", "evaluation"):
        monkeypatch.setattr(bench_devices, name, lambda *_: {})
    monkeypatch.setattr(bench_devices, "overhead", lambda size, rounds, commits, console: commits)
    timed = lambda commits: [*bench_devices.measure((1000, 10**8), 1, commits, Console())["overhead"].values()]
    assert (timed(2000), timed(50)) == ([2000, 200], [50, 50])


@pytest.mark.slow
def test_commits_of_few_and_of_many_leaves_are_compared_after_the_same_gradient(monkeypatch):
    """Record the gradients since the last commit, by their leaves."""
    monkeypatch.setattr(bench_devices, "LEAVES", (3, 6))
    before, measured = [], []
    make = bench_devices.programs_of

    def recorded(params):
        programs, leaves = make(params), len(params)
        compute, commit = programs.compute, programs.commit
        monkeypatch.setattr(programs, "compute", lambda *args: before.append(leaves) or compute(*args))

        def commit_after(*args):
            measured.append((leaves, tuple(before)))
            before.clear()
            return commit(*args)

        monkeypatch.setattr(programs, "commit", commit_after)
        return programs

    monkeypatch.setattr(bench_devices, "programs_of", recorded)
    bench_devices.many_leaves(1, 1, Console(quiet=True))
    assert measured == [(3, (3,)), (3, (3, 6)), (6, (6,)), (6, (6, 6))]


def test_every_arrival_model_is_timed():
    figures = bench_arrivals.rates(1, 2000, Console())
    assert len(figures) == 11
    assert all(rate > 0 for rate in figures.values())
