"""Runs whose central variable is one array over two actors of Ray."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.cluster.central.divided import GEM, LOST, MATRICES, N, assert_replays, run
from engines.cluster.faults import WorkerFaults
from engines.problems import Abreast, Problem, assert_close, fading, mlp, quadratic_with_dropout

import gemjax
from gemjax.engines.memory import Elsewhere, here
from gemjax.testing import Faults

pytestmark = pytest.mark.slow


def test_a_run_replays_and_its_callback_sees_its_state(two, x64, tmp_path):
    problem, seen = mlp(jnp.float64), []

    def callback(progress):
        seen.append((progress.params, progress.model_state, here(progress.state())))

    with gemjax.EventLog(tmp_path / "log") as log:
        first = run(GEM, problem, 12, cluster=two, gate=Abreast(N), callback=callback, callback_every=6, log=log)
    assert next(iter(gemjax.eventlog.read(tmp_path / "log")))["central"].startswith("2 actors and ")
    assert first.trace.staleness.max() > 0
    for params, model_state, state in seen:
        assert_close(jax.device_get((params, model_state)), jax.device_get((state.params, state.model_state)), rtol=0)
    assert_replays(first, GEM, problem)


def test_the_method_s_state_stays_in_the_actors(two, x64, monkeypatch):
    """It is read on request, and from one run to the next it does not pass through the driver."""
    kept, central = [], jax.devices()[1]
    monkeypatch.setattr(two, "_central", central)
    keep = lambda progress: kept.append(progress.state())
    first = gemjax.run_on_cluster(GEM, *MATRICES[:3], 6, cluster=two, callback=keep, callback_every=3)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(first.params))
    assert {leaf.device for leaf in jax.tree.leaves(first.opt_state) if isinstance(leaf, jax.Array)} == {central}
    views = first.opt_state.stale_params.value
    assert all(isinstance(leaf, Elsewhere) for leaf in jax.tree.leaves(views))
    replay = gemjax.simulate(GEM, *MATRICES[:3], first.trace)
    assert_close(jax.device_get(here(views)), jax.device_get(replay.opt_state.stale_params.value), rtol=1e-10)
    with pytest.raises(RuntimeError, match=r"at version \d+, not at \d"):
        kept[0].params["a"].read()
    second = run(GEM, MATRICES, 12, cluster=two, state=first)
    with pytest.raises(RuntimeError, match="no longer in the actors of the central variable"):
        np.asarray(views["a"])
    assert_replays(second, GEM, MATRICES)


def test_states_of_local_optimizers_travel(two, x64):
    """So does the progress of the run, on which their rate depends; a continued run begins with that of its workers."""
    problem = mlp(jnp.float64)
    local, tx = gemjax.LocalSteps(fading(0.02), 2), gemjax.downpour(num_workers=N)
    with Faults().fail(1, 2) as faults:
        result = run(tx, problem, cluster=two, local=local, gate=faults)
    assert len(faults.injected) == 1
    assert_replays(result, tx, problem, local=local)
    again = run(tx, problem, 30, cluster=two, state=result, local=local, gate=Abreast(N))
    assert_replays(again, tx, problem, local=local)


def test_keys_in_both_states(two, x64):
    """Typed keys travel as integers."""
    problem = quadratic_with_dropout("float64")
    tx = gemjax.asynchronous(optax.chain(optax.add_noise(0.01, 0.5, key=3), optax.sgd(0.05)), N)
    keyed = {"key": jax.random.key(3), "inner": problem.model_state}

    def loss_fn(params, model_state, batch, key):
        loss, (inner, metrics) = problem.loss_fn(params, model_state["inner"], batch, model_state["key"])
        after = {"key": jax.random.fold_in(model_state["key"], 1), "inner": inner}
        return loss + jnp.sum(params["y"] ** 2), (after, metrics)

    params = problem.params | {"y": jnp.ones(6), "z": jnp.ones((2, 3))}
    keyed_problem = Problem(loss_fn, params, problem.batches, keyed)
    result = run(tx, keyed_problem, cluster=two)
    replay = gemjax.simulate(tx, *keyed_problem[:3], result.trace, model_state=keyed)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-10)
    assert (jax.random.key_data(result.model_state["key"]) == jax.random.key_data(replay.model_state["key"])).all()


@pytest.mark.parametrize(
    "tx",
    [
        optax.chain(optax.clip_by_global_norm(0.01), optax.sgd(0.1, momentum=0.5)),
        *(
            pytest.param(tx, marks=pytest.mark.nightly)
            for tx in (
                optax.MultiSteps(optax.sgd(0.1, momentum=0.5), every_k_schedule=3),
                optax.chain(optax.add_noise(0.01, 0.5, key=3), optax.lamb(0.01)),
                optax.contrib.muon(0.01),
            )
        ),
    ],
    ids=["clipped by the global norm", "steps every third time", "noise and layerwise norms", "whole matrices"],
)
def test_transformations_of_optax_are_divided(tx, two, x64):
    tx = gemjax.asynchronous(optax.GradientTransformation(tx.init, tx.update), N)
    result = run(tx, MATRICES, 12, cluster=two)
    replay = gemjax.simulate(tx, *MATRICES[:3], result.trace)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-8)


def test_a_rule_on_one_vector_of_all_parameters_is_divided(two, x64):
    def update(updates, state, params=None, **extra_args):
        flat, unravel = jax.flatten_util.ravel_pytree(updates)
        return unravel(-0.1 * jnp.sort(flat)), state

    tx = gemjax.asynchronous(optax.GradientTransformation(lambda params: optax.EmptyState(), update), N)
    assert_replays(run(tx, MATRICES, 12, cluster=two), tx, MATRICES)


def test_a_lost_worker_returns(two, x64, tmp_path):
    faults, problem = WorkerFaults(tmp_path).kill(1, 2), mlp(jnp.float64)
    watched = problem._replace(batches=faults.around(problem.batches))
    assert_replays(run(GEM, watched, 40, cluster=two), GEM, problem, pulled_twice=True)
    assert faults.happened() == [("kill", 1, 2)]


def test_an_error_of_the_method_in_all_processes_ends_the_run_alone(two):
    def broken(updates, state, params=None, **extra_args):
        if jax.process_count() > 1:
            raise ZeroDivisionError("of the method")
        return updates, state

    tx = gemjax.asynchronous(optax.GradientTransformation(lambda params: (), broken), N)
    with pytest.raises(ZeroDivisionError, match="of the method"):
        run(tx, MATRICES, cluster=two)
    run(GEM, MATRICES, 6, cluster=two)


def test_no_hosts_for_the_central_variable_are_refused(two):
    with pytest.raises(ValueError, match="central_hosts must be"):
        gemjax.Cluster(N, central_hosts=0)


def test_an_actor_of_the_central_variable_is_killed(two, x64):
    """The caller continues from the state that it has, in the same cluster, over another number of hosts."""
    import ray

    problem, saved = mlp(jnp.float64), []

    def callback(progress):
        saved.append((here(progress.state()), progress.trace()))
        if progress.commits >= 20:
            ray.kill(two._central_actors[1])

    with pytest.raises(gemjax.RunFailedError, match=LOST) as failure:
        run(GEM, problem, 100, cluster=two, callback=callback, callback_every=10)
    assert any("the state of the run is lost" in note.lower() for note in failure.value.__notes__)
    state, trace = saved[-1]
    two.central_hosts = 3
    assert_replays(run(GEM, problem, 40, state=state, recorded=trace, cluster=two), GEM, problem)
    assert len(two._central_actors) == 3
