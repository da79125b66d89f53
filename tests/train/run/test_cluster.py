"""Runs on Ray: the main job in small, its report and replay, resumed and killed runs, and processes that they leave."""

import dataclasses
import os
import signal
import types
import uuid
from pathlib import Path

import jax
import numpy as np
import pytest
from engines.cluster import processes
from engines.problems import assert_close
from kills import finish, load, size_of, start, wait_until

import gemjax
from gemjax.telemetry import eventlog
from train import cli
from train.config.config import Config
from train.report import report
from train.run import train as story
from train.run.folder import RunFolder
from train.task.data import on_each_host
from train.task.methods import make_method
from train.task.task import make_task

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")]

# The rate is that of the tests of killed runs on devices, for the same reason.
FLAGS = [
    "--engine", "cluster", "--model", "mlp", "--method", "asgd", "--learning-rate", "0.001", "--workers", "2",
    "--batch-size", "32", "--checkpoint-every", "20",
]  # fmt: skip


def assert_recorded(folder, commits):
    """Assert that log and checkpoint hold the same commits, each once, and that the simulator repeats them."""
    config = Config.load(folder.config)
    task, tx = make_task(config), make_method(config)
    state, trace = load(folder)
    assert len(trace) == commits == task.num_commits
    assert eventlog.trace_of(folder.events, config.workers) == trace
    replay = gemjax.simulate(tx, task.loss_fn, task.params, task.batches, trace, seed=config.seed)
    assert_close(jax.device_get(state.params), jax.device_get(replay.params), rtol=3e-4)


@pytest.fixture
def environment(tmp_path):
    return {
        "GEMJAX_MARK": f"mark-{uuid.uuid4().hex}",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
        "RAY_gcs_rpc_server_reconnect_timeout_s": "10",  # Its agents try for so long, not 60 s, to reach a killed driver.
    }


def test_a_run_its_report_its_replay_and_its_continuation(tmp_path, capsys, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    data = ["--data-dir", str(tmp_path / "data")]
    assert cli.main([*FLAGS, *data, "--epochs", "1", "--out", str(folder.path)]) == 0
    printed = capsys.readouterr()
    assert "starting Ray on this host" in printed.out
    assert printed.err == ""
    assert_recorded(folder, 88)
    report.write_report(folder)
    text = folder.report.read_text(encoding="utf-8")
    assert "<h2>Hosts</h2>" in text
    assert "All workers share one device" not in text
    run = gemjax.timeline(eventlog.read(folder.events), 2)
    network = run.only("commit")["network"]
    assert (network >= 0).all()
    assert np.median(network) > 0
    assert (network <= run.only("commit")["began"] - run.only("commit")["dispatch"] + 2e-6).all()
    monkeypatch.setattr(on_each_host, "LARGEST_SENT", 0)  # The new workers read the data themselves.
    assert cli.main(["--resume", str(folder.path), "--epochs", "2"]) == 0
    assert "continuing from the checkpoint at 88 commits" in capsys.readouterr().out
    assert_recorded(folder, 176)


@pytest.mark.nightly
def test_a_central_variable_on_several_hosts_is_saved_and_continued_on_others(tmp_path, capsys):
    folder = RunFolder(tmp_path / "run")
    flags = [*FLAGS, "--central-hosts", "2", "--data-dir", str(tmp_path / "data"), "--keep-checkpoints", "0"]
    assert cli.main([*flags, "--epochs", "1", "--out", str(folder.path)]) == 0
    assert capsys.readouterr().err == ""
    assert_recorded(folder, 88)
    commits = sorted(int(path.name) for path in folder.saved.glob("[0-9]*"))
    assert commits[0] < 20  # The first one is not due before 20 commits.
    assert cli.main(["--resume", str(folder.path), "--epochs", "2", "--central-hosts", "3"]) == 0
    assert "continuing from the checkpoint at 88 commits" in capsys.readouterr().out
    assert_recorded(folder, 176)


def test_a_driver_that_is_killed_or_stopped_leaves_no_process_and_continues_with_new_workers(tmp_path, environment):
    folder, mark = RunFolder(tmp_path / "run"), environment["GEMJAX_MARK"]
    # So long that it cannot end before the signal, on any host.
    flags = [*FLAGS, "--epochs", "500", "--data-dir", str(tmp_path / "data"), "--out", str(folder.path)]
    for arguments, number, status in (
        (flags, signal.SIGKILL, -9),
        (["--resume", str(folder.path)], signal.SIGTERM, 143),
    ):
        before = size_of(folder)
        process = start(environment, *arguments)
        grown = lambda: size_of(folder) > before + 20_000 and folder.can_be_resumed()  # noqa: B023
        assert wait_until(process, grown), process.communicate()[0]
        assert len(processes.marked(mark)) > 3  # The driver, Ray's own processes and the workers.
        process.send_signal(number)
        output = process.communicate()[0]
        assert process.returncode == status, output
        assert not processes.left_of(mark)
    assert "stopped by SIGTERM at" in output
    summary = folder.read_summary()
    assert summary["finished"] is False
    assert summary["commits"] == len(load(folder).trace)
    epochs = summary["commits"] // 88 + 1
    finish(environment, "--resume", str(folder.path), "--epochs", str(epochs))
    assert not processes.left_of(mark)
    assert_recorded(folder, 88 * epochs)
    kinds = [event["event"] for event in eventlog.read(folder.events)]
    assert kinds.count("commit") == 88 * epochs


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # Ray forks only to start other programs.
def test_a_run_joins_a_cluster_and_leaves_it_running(tmp_path, capsys):
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    address = cluster.address
    try:
        flags = [*FLAGS, "--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "run"), "--epochs", "1"]
        assert cli.main([*flags, "--address", address]) == 0
        assert f"joining the Ray cluster at {address}" in capsys.readouterr().out
        assert not ray.is_initialized()
        assert all(node.any_processes_alive() for node in cluster.list_all_nodes())
    finally:
        cluster.shutdown()
    assert cli.main([*flags[:-4], "--out", str(tmp_path / "other"), "--address", address]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"train: no Ray cluster answers at {address}")
    assert error.count("\n") == 1
    assert not (tmp_path / "other").exists()


@pytest.mark.nightly
def test_a_host_without_the_data_ends_the_run_with_one_line(tmp_path, monkeypatch, capsys):
    """As on another host, the worker finds no prepared data in the folder of the driver."""

    def elsewhere(config):
        task = make_task(config)
        mnist = types.SimpleNamespace(name="mnist", train=task.batches.data)
        batches = on_each_host.epochs(mnist, 32, 0, str(tmp_path / "missing"))
        return dataclasses.replace(task, batches=batches)

    monkeypatch.setattr(on_each_host, "LARGEST_SENT", 0)
    monkeypatch.setattr(story, "make_task", elsewhere)
    flags = [*FLAGS, "--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "run"), "--epochs", "1"]
    assert cli.main(flags) == 2
    error = capsys.readouterr().err
    assert "cannot read mnist: MNIST is not prepared yet" in error
    assert "on every host of the cluster" in error
    assert error.count("\n") == 1


@pytest.mark.nightly
def test_the_workers_resources_are_checked_before_a_folder_is_made(tmp_path, capsys):
    flags = [*FLAGS, "--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "run"), "--worker-gpus", "8"]
    assert cli.main(flags) == 2
    error = capsys.readouterr().err
    assert error.startswith("train: Ray cannot be used: the workers need 16 GPU (there are")
    assert error.count("\n") == 1
    assert np.array_equal(os.listdir(tmp_path), ["data"])
