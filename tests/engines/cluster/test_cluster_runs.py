"""Runs on a Ray cluster of this host: data, model state, policies, members, failures, and what is left behind."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import Abreast, assert_close, fading, mlp, quadratic, quadratic_with_dropout

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
def test_messages_of_local_steps_replay(cluster, x64):
    """The rest that int8 leaves of a displacement stays on the worker's host, and is added to its next displacement."""
    problem = mlp(jnp.float64)
    tx = gemjax.asynchronous(optax.chain(gemjax.rules.round_to("int8"), gemjax.downpour(num_workers=N)), N)
    options = {"model_state": problem.model_state, "local": gemjax.LocalSteps(fading(0.02), 2)}
    result = gemjax.run_on_cluster(tx, *problem[:3], 30, cluster=cluster, gate=Abreast(N), **options)
    replay = gemjax.simulate(tx, *problem[:3], result.trace, **options)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-10)
    assert_close(jax.device_get(result.opt_state), jax.device_get(replay.opt_state), rtol=1e-10)


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
def test_a_module_that_the_workers_lack_travels_by_value(cluster, tmp_path, monkeypatch):
    import importlib

    (tmp_path / "only_at_the_driver.py").write_text(
        "import jax.numpy as jnp\ndef loss(x, batch):\n    return jnp.sum(x**2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("only_at_the_driver")
    result = gemjax.run_on_cluster(ASGD, module.loss, jnp.ones(2), lambda worker, step: 0.0, 8, cluster=cluster)
    assert len(result.trace) == 8


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
