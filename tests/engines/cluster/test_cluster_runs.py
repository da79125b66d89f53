"""Runs on a Ray cluster of this host: data, model state, policies, members, failures, and what is left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.cluster import processes
from engines.problems import Abreast, NotedLog, assert_close, fading, mlp, quadratic, quadratic_with_dropout

import gemjax
from gemjax.testing import Faults

N = 4
ASGD = gemjax.asgd(0.05, num_workers=N)
ROWS = {"x": np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)}
LOCAL = gemjax.LocalSteps(optax.chain(optax.add_noise(0.01, 0.5, key=3), optax.sgd(0.02, momentum=0.5)), (2, 1, 3, 2))
slow = pytest.mark.slow


def mean_loss(params, batch):
    return 0.5 * jnp.mean((params[None] - batch["x"]) ** 2)


class Source:
    """Rows that a process reads by number; some raise in the first attempts of each process."""

    def __init__(self, fails=()):
        self.left = dict(fails)

    def __len__(self):
        return len(ROWS["x"])

    def __getitem__(self, number):
        if self.left.get(number, 0) > 0 and threading.current_thread() is not threading.main_thread():
            self.left[number] -= 1
            raise OSError(f"no row {number}")
        return {"x": ROWS["x"][number]}


BATCHES = {
    "function": lambda worker, step: {"x": jnp.sin(jnp.arange(6.0) + worker + step).reshape(2, 3)},
    "epochs": gemjax.Epochs(ROWS, 4),
    "shards": gemjax.Shards(ROWS, 4, N),
    "stream": gemjax.Stream(ROWS, 4),
    "host": gemjax.OnHost(gemjax.Epochs(ROWS, 4)),
    "source": gemjax.FromSource(Source(), batch_size=4),
    "streamed source": gemjax.FromSource(Source(), gemjax.Stream(np.arange(40), 4)),
}


@slow
@pytest.mark.parametrize("compression", [None, pytest.param("bfloat16", marks=pytest.mark.nightly), "int8"])
def test_a_poisoned_gradient_is_rejected(cluster, compression):
    faults = Faults().poison(0, 2).poison(1, 3)
    run = ASGD, mean_loss, jnp.zeros(3), BATCHES["epochs"]
    result = gemjax.run_on_cluster(*run, 30, cluster=cluster, gate=Abreast(N, faults), compression=compression)
    assert sorted(faults.injected) == [("poison", 0, 2), ("poison", 1, 3)]
    assert int(result.state.rejected) == 2
    assert np.isfinite(result.params).all()


@slow
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in ("function", "streamed source") else pytest.mark.nightly)
        for kind in BATCHES
    ],
)
def test_batches_of_all_kinds_replay(cluster, kind):
    result = gemjax.run_on_cluster(ASGD, mean_loss, jnp.zeros(3), BATCHES[kind], 40, cluster=cluster)
    replay = gemjax.simulate(ASGD, mean_loss, jnp.zeros(3), BATCHES[kind], result.trace)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-5)


@slow
@pytest.mark.parametrize(
    "kind", ["stream", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("epochs", "source"))]
)
def test_local_steps_with_keys_replay(cluster, kind):
    local = LOCAL if kind != "stream" else gemjax.LocalSteps(LOCAL.tx, 2)
    tx = gemjax.downpour(num_workers=N)
    run = tx, mean_loss, jnp.zeros(3), BATCHES[kind]
    result = gemjax.run_on_cluster(*run, 30, cluster=cluster, local=local, gate=Abreast(N))
    replay = gemjax.simulate(*run, result.trace, local=local)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-5)
    view = jax.tree.map(lambda leaf: leaf, (result.state.view, replay.state.view))
    assert jax.tree.structure(view[0]) == jax.tree.structure(view[1])


@slow
def test_a_failed_read_is_a_fault_of_its_worker(cluster, tmp_path):
    batches = gemjax.FromSource(Source({7: 1}), batch_size=4)
    with gemjax.EventLog(tmp_path / "log") as log:
        gemjax.run_on_cluster(ASGD, mean_loss, jnp.zeros(3), batches, 60, cluster=cluster, log=log)
    faults = [event for event in gemjax.eventlog.read(tmp_path / "log") if event["event"] == "fault"]
    assert {event["worker"] for event in faults} <= set(range(N))
    assert faults
    assert "row 7 of the source cannot be read: OSError: no row 7" in faults[0]["error"]


class Beyond(gemjax.batches.Rows):
    data = ROWS

    def select(self, worker, step):
        return np.where((worker == 1) & (step == 2), 40, 3)[:, None].astype(np.int32)


@slow
def test_a_row_that_the_data_lack_is_no_fault_but_the_end(cluster):
    with pytest.raises(ValueError, match=r"^the rows of worker 1 at its step 2 must be in 0 … 39, got 40; correct"):
        gemjax.run_on_cluster(ASGD, mean_loss, jnp.zeros(3), Beyond(), 10**6, cluster=cluster)


@slow
def test_a_run_fails_with_its_result_when_all_workers_are_retired(cluster):
    problem, policy = quadratic(), gemjax.Policy(retries=0)
    with Faults().fail(0, 3).fail(1, 3).fail(2, 3).fail(3, 3) as faults, pytest.raises(gemjax.RunFailedError) as caught:
        gemjax.run_on_cluster(ASGD, *problem[:3], 60, cluster=cluster, policy=policy, gate=faults)
    result = caught.value.result
    assert len(result.trace) == 3 * N
    continued = gemjax.run_on_cluster(ASGD, *problem[:3], 5 * N, cluster=cluster, state=result)
    assert len(continued.trace) == len(continued.history["network"]) == 5 * N
    replay = gemjax.simulate(ASGD, *problem[:3], continued.trace)
    assert_close(jax.device_get(continued.params), jax.device_get(replay.params), rtol=1e-5)


@slow
def test_a_run_on_devices_continues_on_the_cluster(cluster):
    problem = quadratic_with_dropout()
    options = {"model_state": problem.model_state, "seed": 3}
    first = gemjax.run_on_devices(ASGD, *problem[:3], 20, placement=gemjax.place(N), **options)
    result = gemjax.run_on_cluster(ASGD, *problem[:3], 40, cluster=cluster, state=first, **options)
    assert np.isnan(result.history["network"]).sum() == 20
    replay = gemjax.simulate(ASGD, *problem[:3], result.trace, **options)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-4)


@slow
def test_a_run_continues_although_a_worker_has_no_more_periods(cluster):
    problem, tx = quadratic(), gemjax.downpour(num_workers=N)
    local = gemjax.LocalSteps(optax.sgd(0.02), [[2]] + [[2] * 20] * (N - 1))
    first = gemjax.run_on_cluster(tx, *problem[:3], 16, cluster=cluster, local=local)
    result = gemjax.run_on_cluster(tx, *problem[:3], 24, cluster=cluster, local=local, state=first)
    assert (len(result.trace), (result.trace.worker == 0).sum()) == (24, 1)


@slow
def test_a_cluster_that_is_busy_refuses_another_run(cluster):
    """Both runs waited for each other's workers without end."""
    refused = []

    def callback(progress):
        with pytest.raises(
            RuntimeError, match="this cluster is busy with another run; let that one end first"
        ) as error:
            gemjax.run_on_cluster(ASGD, *quadratic()[:3], 4, cluster=cluster)
        refused.append(error)
        return True

    run = lambda **options: gemjax.run_on_cluster(ASGD, *quadratic()[:3], 8, cluster=cluster, **options)
    assert run(callback=callback, callback_every=4).stopped
    assert refused
    assert len(run().trace) == 8


@slow
def test_a_sharded_central_variable(x64, cluster):
    problem, devices = mlp(jnp.float64), tuple(jax.devices()[:2])
    options = {"model_state": problem.model_state, "local": gemjax.LocalSteps(fading(0.02), 2)}
    tx = gemjax.downpour(num_workers=N)
    before, cluster._central = cluster._central, devices
    try:
        result = gemjax.run_on_cluster(tx, *problem[:3], 30, cluster=cluster, gate=Abreast(N), **options)
    finally:
        cluster._central = before
    assert result.params["in"]["w"].sharding.device_set == set(devices)
    replay = gemjax.simulate(tx, *problem[:3], result.trace, **options)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-10)


@slow
@pytest.mark.parametrize("policy", [gemjax.Policy(max_staleness=2), gemjax.Policy(quorum=N)], ids=["pacing", "barrier"])
def test_policies_hold(cluster, policy):
    problem = quadratic()
    result = gemjax.run_on_cluster(ASGD, *problem[:3], 40, cluster=cluster, policy=policy)
    assert result.history["staleness"].max() <= (2 if policy.quorum == 1 else N - 1)
    if policy.quorum == N:
        np.testing.assert_array_equal(result.trace.pulled_at, np.repeat(np.arange(0, 40, N), N))


@slow
def test_workers_leave_and_join(cluster, tmp_path):
    members, moved = gemjax.Members(N, absent=[3]), []

    def callback(progress):
        if not moved:
            moved.append(progress.commits)
            members.leave(0)
            members.join(3)
        return (progress.trace().worker == 3).any()

    with gemjax.EventLog(tmp_path / "log") as log:
        result = gemjax.run_on_cluster(ASGD, *quadratic()[:3], 10**5, cluster=cluster, members=members, log=log,
                                       callback=callback, callback_every=20)  # fmt: skip
    assert 3 not in result.trace.worker[: moved[0]]
    assert 3 in result.trace.worker
    assert 0 not in result.trace.worker[moved[0] :]


@slow
def test_a_killed_actor_returns_and_no_commit_is_lost_or_made_twice(cluster, tmp_path):
    problem, killed = quadratic(), []

    def callback(progress):
        import ray

        if len(killed) < 2:
            killed.append(len(killed) + 1)
            ray.kill(cluster.actors[killed[-1]], no_restart=False)
        return all(("join", worker) in log.noted for worker in (1, 2))

    with NotedLog(tmp_path / "log") as log, Faults().slow(0, 0.01).slow(3, 0.01) as faults:
        result = gemjax.run_on_cluster(ASGD, *problem[:3], 10**6, cluster=cluster, log=log, gate=faults,
                                       callback=callback, callback_every=40)  # fmt: skip
    assert result.stopped
    for worker in range(N):
        steps = result.trace.step[result.trace.worker == worker]
        np.testing.assert_array_equal(steps, np.arange(len(steps)))
    replay = gemjax.simulate(ASGD, *problem[:3], result.trace)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-4)


@slow
def test_a_module_that_the_workers_lack_travels_by_value(cluster, tmp_path, monkeypatch):
    import importlib

    (tmp_path / "only_at_the_driver.py").write_text(
        "import jax.numpy as jnp\ndef loss(x, batch):\n    return jnp.sum(x**2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("only_at_the_driver")
    result = gemjax.run_on_cluster(ASGD, module.loss, jnp.ones(2), lambda worker, step: 0.0, 8, cluster=cluster)
    assert len(result.trace) == 8


LEFT = """
    import sys
    import jax.numpy as jnp
    import gemjax

    def loss_fn(params, batch):
        return jnp.sum((params - batch) ** 2)

    def callback(progress):
        print("running", flush=True)
        if sys.argv[1] == "raise":
            raise KeyError("of the callback")

    if __name__ == "__main__":
        tx = gemjax.asgd(0.01, num_workers=2)
        gemjax.run_on_cluster(tx, loss_fn, jnp.zeros(2), lambda worker, step: 1.0, 10**7, callback=callback, callback_every=5)
"""


@slow
@pytest.mark.parametrize("end", ["raise", "SIGINT", "SIGTERM"])
def test_nothing_is_left_behind(end, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(LEFT))
    process = subprocess.Popen(
        [sys.executable, str(script), end], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env=os.environ | {"GEMJAX_MARK": str(tmp_path)},
    )  # fmt: skip
    assert process.stdout.readline() == "running\n", process.communicate()[1]
    running = processes.marked(str(tmp_path))
    assert len(running) > 3
    addresses = [address for held in processes.listening(running).values() for address in held]
    assert addresses
    assert all(map(processes.is_loopback, addresses))
    if end != "raise":
        process.send_signal(getattr(signal, end))
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert {"raise": "of the callback", "SIGINT": "KeyboardInterrupt", "SIGTERM": ""}[end] in errors
    assert not processes.left_of(str(tmp_path))


def test_what_cannot_be_pickled_is_named():
    pytest.importorskip("ray", reason="the cluster engine needs Ray")
    lock = threading.Lock()

    def loss_fn(params, batch):
        with lock:
            return jnp.sum(params**2)

    with pytest.raises(
        TypeError, match=r"^loss_fn cannot be sent to the workers, because lock \(lock\) cannot be pickled;"
    ):
        gemjax.run_on_cluster(ASGD, loss_fn, jnp.ones(2), lambda worker, step: 0.0, 8)


@pytest.mark.slow
def test_ray_is_imported_on_demand():
    code = "import sys, gemjax; print('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
