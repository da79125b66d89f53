"""The benchmark on Ray writes its figures, and compares programs that compute the same; the figures' values are not tested."""

import json
import sys

import jax
import numpy as np
import pytest
from engines.cluster import hosts
from rich.console import Console

import gemjax
from train.bench import bench
from train.bench import cluster as bench_cluster
from train.bench.cluster import on_ray
from train.common.errors import UsageError


@pytest.mark.parametrize("size", [160_000, 10_000_000])
def test_the_network_has_the_size_that_is_asked_for(size):
    _, params, _ = bench_cluster.make_network(size)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == pytest.approx(size, rel=0.005)


@pytest.mark.slow
def test_the_parameter_server_takes_the_steps_of_gemjax():
    """One worker after the other, both are plain SGD."""
    loss_fn, params, batch = bench_cluster.make_network(8_000)
    server, worker = on_ray.ParameterServer(params, 1e-3), on_ray.Worker(loss_fn, batch)
    latest = server.get_params()
    for _ in range(5):
        latest = server.apply_gradients(worker.compute_gradients(latest))
    batches = gemjax.Computed(lambda worker, step: batch)
    trace = gemjax.arrivals.RoundRobin(1).trace(5)
    result = gemjax.simulate(gemjax.asgd(1e-3, num_workers=1), loss_fn, params, batches, trace)
    for ours, theirs in zip(jax.tree.leaves(result.params), jax.tree.leaves(latest), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
    changed = max(np.abs(new["w"] - old["w"]).max() for new, old in zip(latest, params, strict=True))
    assert changed > 1e-5


def test_without_ray_the_benchmark_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"gemjax\[cluster\]"):
        bench_cluster.measure((1000,), 1, 10, Console())


@pytest.mark.nightly
def test_commits_are_measured_against_the_wire_to_another_host(tmp_path):
    pytest.importorskip("ray", reason="the cluster engine needs Ray")
    if (why := hosts.missing()) is not None:
        pytest.skip(why)
    out = tmp_path / "bench.json"
    argv = ["cluster", "--address", hosts.Network.address, "--parameters", "1000000", "--rounds", "1", "--commits", "8"]
    assert hosts.main("100mbit", sys.executable, "-m", "train", "bench", *argv, "--out", str(out)) == 0
    figures = json.loads(out.read_text())["cluster"]
    assert max(figures["MB/s out"], figures["MB/s in"]) < 13
    assert len(figures["1,000,000"]) == 6
    for name, of in figures["1,000,000"].items():
        message, workers = name.split(", ")
        assert 0 < of["least"] <= of["share"] <= of["most"] < 1.1
        assert of["s on the wire"] > 4e6 / 13e6
        assert of["s at its speed"] >= (2 if (message, workers) == ("float32", "1") else 1) * 4e6 / 13e6


@pytest.mark.nightly
def test_the_benchmark_on_ray_writes_its_figures(tmp_path):
    pytest.importorskip("ray", reason="the cluster engine needs Ray")
    out = tmp_path / "bench.json"
    argv = ["cluster", "--parameters", "160000", "--rounds", "1", "--commits", "40", "--out", str(out)]
    assert bench.main(argv) == 0
    figures = json.loads(out.read_text())["cluster"]["160,000"]
    times = figures["times"]
    for workers in ("1 worker", "4 workers"):
        ours, bare = (times[f"{what}, {workers}"]["median"] for what in ("commit", "Ray's bare round trip"))
        assert figures["ratio"][workers] == pytest.approx(ours / bare)
    parts = [times[name]["median"] for name in times if "worker" not in name]
    assert len(parts) >= 8
    assert min(parts) > 0
    rates = figures["per second"]
    assert figures["server ratio"] == pytest.approx(rates["gemjax"] / rates["parameter server"])
