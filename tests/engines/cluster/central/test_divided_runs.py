"""Runs whose central variable is divided over actors, on a fake Ray of threads, and on Ray."""

import dataclasses
import gc
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.cluster.central.divided import GEM, LOST, MATRICES, N, assert_replays, run, size
from engines.problems import Abreast, Problem, assert_close, fading, mlp, quadratic_with_dropout

import gemjax
from gemjax.engines.cluster.central import division
from gemjax.engines.memory import Elsewhere, here
from gemjax.testing import Faults


@pytest.mark.slow
def test_a_run_replays_and_is_continued(fake, x64, tmp_path):
    problem = mlp(jnp.float64)
    seen = []

    def callback(progress):
        seen.append((progress.params, progress.model_state, here(progress.state())))

    with gemjax.EventLog(tmp_path / "log") as log:
        first = run(GEM, problem, 12, gate=Abreast(N), callback=callback, callback_every=6, log=log)
    assert next(iter(gemjax.eventlog.read(tmp_path / "log")))["central"].startswith("2 actors and ")
    assert first.trace.staleness.max() > 0
    for params, model_state, state in seen:
        assert_close(jax.device_get((params, model_state)), jax.device_get((state.params, state.model_state)), rtol=0)
    checkpoints = gemjax.Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(first.state, first.trace)
    state, trace, _ = checkpoints.load(first.state)
    cluster = gemjax.Cluster(N, central_hosts=4)  # Another number of hosts.
    assert_replays(run(GEM, problem, 20, state=state, recorded=trace, cluster=cluster), GEM, problem)


@pytest.mark.slow
def test_no_large_array_passes_through_the_driver(fake, x64):
    problem = mlp(jnp.float64)
    run(GEM, problem)
    begun = next(index for index, (method, _) in enumerate(fake.calls) if method == "gradient_in_parts")
    for method, arguments in fake.calls[begun:]:
        sent = [part for part in jax.tree.leaves(arguments) if isinstance(part, np.ndarray)]
        assert all(array.size <= division.SMALL for array in sent), method


@pytest.mark.slow
def test_the_first_state_is_made_by_the_actors(fake, x64):
    """The driver holds parameters, and sends each of them once; before it held the views of all workers, too."""
    workers, held = 16, []
    gc.collect()
    before = size(jax.live_arrays())
    fake.lose = lambda actor, method, arguments: (
        held.append(size(jax.live_arrays()) - before) if method == "begin" else None
    )
    tx = gemjax.gem(0.05, num_workers=workers)
    run(tx, MATRICES, 5, cluster=gemjax.Cluster(workers, central_hosts=2))
    begun = next(index for index, (method, _) in enumerate(fake.calls) if method == "read")
    sent = sum(size(arguments) for _, arguments in fake.calls[:begun])
    assert size(MATRICES.params) <= sent < 1.1 * size(MATRICES.params)
    assert min(held) < 2 * size(MATRICES.params)


@pytest.mark.slow
def test_the_method_s_state_stays_in_the_actors(fake, x64):
    """It is read on request, and from one run to the next it does not pass through the driver."""
    kept = []
    with gemjax.Cluster(N, central_hosts=2) as cluster:
        keep = lambda progress: kept.append(progress.state())
        first = gemjax.run_on_cluster(GEM, *MATRICES[:3], 6, cluster=cluster, callback=keep, callback_every=3)
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(first.params))
        views = first.opt_state.stale_params.value
        assert all(isinstance(leaf, Elsewhere) for leaf in jax.tree.leaves(views))
        replay = gemjax.simulate(GEM, *MATRICES[:3], first.trace)
        assert_close(jax.device_get(views), jax.device_get(replay.opt_state.stale_params.value), rtol=1e-10)
        with pytest.raises(RuntimeError, match="at version 6, not at 3"):
            kept[0].params["a"].read()
        begun = len(fake.calls)
        second = gemjax.run_on_cluster(GEM, *MATRICES[:3], 12, cluster=cluster, state=first)
        sent = {method: 0 for method, _ in fake.calls}
        for method, arguments in fake.calls[begun:]:
            sent[method] += size(arguments)
        assert sent["load"] == size(MATRICES.params)  # The caller has these.
        with pytest.raises(RuntimeError, match="in an actor of the central variable that has ended"):
            np.asarray(views["a"])
        second = dataclasses.replace(second, state=here(second.state))
    assert_replays(second, GEM, MATRICES)


@pytest.mark.slow
def test_states_of_local_optimizers_travel(fake, x64):
    """So does the progress of the run, on which their rate depends; a continued run begins with that of its workers."""
    problem = mlp(jnp.float64)
    local, tx = gemjax.LocalSteps(fading(0.02), 2), gemjax.downpour(num_workers=N)
    with Faults().fail(1, 2) as faults:
        result = run(tx, problem, local=local, gate=faults)
    assert len(faults.injected) == 1
    assert_replays(result, tx, problem, local=local)
    assert_replays(run(tx, problem, 30, state=result, local=local, gate=Abreast(N)), tx, problem, local=local)


@pytest.mark.slow
def test_constants_and_wide_metrics_are_exact(fake):
    """A constant is in the program as a number of Python, whose type is another one."""
    problem = mlp(jnp.float32)

    def loss_fn(params, model_state, batch, key):
        loss, (model_state, metrics) = problem.loss_fn(params, model_state, batch, key)
        return loss, (model_state, metrics | {"tokens": jnp.int32(20_000_001)})

    def update_fn(updates, state, params=None, *, observe=None, **extra_args):
        observe("half", lambda: jnp.asarray(0.5))
        observe("three", lambda: jnp.asarray(3))
        return updates, state

    rule = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)
    tx = gemjax.asynchronous(optax.chain(rule, optax.sgd(0.05)), N)
    result = run(tx, problem._replace(loss_fn=loss_fn), 8, diagnostics=["half", "three"])
    for name, value in {"tokens": 20_000_001, "half": 0.5, "three": 3}.items():
        assert set(result.history[name].tolist()) == {value}


@pytest.mark.slow
def test_keys_in_both_states(fake, x64):
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
    result = run(tx, keyed_problem)
    replay = gemjax.simulate(tx, *keyed_problem[:3], result.trace, model_state=keyed)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-10)
    assert (jax.random.key_data(result.model_state["key"]) == jax.random.key_data(replay.model_state["key"])).all()


@pytest.mark.slow
def test_a_lost_worker_returns(fake, x64):
    lost, one_by_one = [], threading.Lock()

    def lose(actor, method, arguments):
        with one_by_one:
            if method == "gradient_in_parts" and arguments[-3].step == 2 and not lost:
                lost.append(actor)
                return True
            return False

    fake.lose = lose
    problem = mlp(jnp.float64)
    assert_replays(run(GEM, problem, 30), GEM, problem, pulled_twice=True)
    assert len(lost) == 1


@pytest.mark.slow
def test_an_actor_of_the_central_variable_that_ends_ends_the_run(fake, x64):
    """The caller continues from the state that it has."""
    problem, saved, rounds = mlp(jnp.float64), [], []

    def lose(actor, method, arguments):
        rounds.extend([actor] if method == "round" else [])
        return method == "round" and actor == max(rounds) and len(rounds) > 60

    fake.lose = lose
    keep = lambda progress: saved.append((here(progress.state()), progress.trace()))
    with pytest.raises(gemjax.RunFailedError, match=LOST) as failure:
        run(GEM, problem, 60, callback=keep, callback_every=4)
    assert any("the state of the run is lost" in note.lower() for note in failure.value.__notes__)
    fake.lose = lambda actor, method, arguments: False
    state, trace = saved[-1]
    assert_replays(run(GEM, problem, len(trace) + 8, state=state, recorded=trace), GEM, problem)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["leaf", "receive"])
def test_the_loss_of_a_part_is_one_of_the_central_variable_wherever_it_is_seen(fake, x64, call):
    """Not a fault of the worker whose gradient arrives, and no error of the callback that reads parameters."""
    problem, calls = mlp(jnp.float64), []

    def lose(actor, method, arguments):
        calls.extend([actor] if method == call else [])
        return method == call and actor == max(calls) and len(calls) > 60

    fake.lose = lose
    with pytest.raises(gemjax.RunFailedError, match=LOST):
        run(GEM, problem, 60, callback=lambda progress: progress.params and None, callback_every=1)


def test_a_method_that_cannot_be_sent_or_prints_is_refused_by_name(fake):
    problem, door = mlp(), threading.Lock()

    def printing(updates, state, params=None):
        jax.debug.print("a commit")
        return updates, state

    def locked(updates, state, params=None):
        with door:
            return updates, state

    rule = lambda update: gemjax.asynchronous(optax.GradientTransformation(lambda params: (), update), N)
    with pytest.raises(
        ValueError, match="which has an effect besides its result, so that its commits cannot be divided"
    ):
        run(rule(printing), problem)
    with pytest.raises(TypeError, match=r"tx cannot be sent to the workers, because .* cannot be pickled"):
        run(rule(locked), problem)


def test_what_does_not_go_together_is_refused(fake):
    problem = mlp()
    with pytest.raises(ValueError, match="central_hosts must be"):
        gemjax.Cluster(N, central_hosts=0)
    with pytest.raises(ValueError, match="compression= does not go with a central variable on several hosts"):
        run(GEM, problem, compression="int8")
    with pytest.raises(ValueError, match="cannot be divided over 9 hosts"):
        run(GEM, problem, cluster=gemjax.Cluster(N, central_hosts=9))


@pytest.mark.slow
def test_on_ray_an_actor_of_the_central_variable_is_killed(small, x64):
    ray = pytest.importorskip("ray")
    problem, saved = mlp(jnp.float64), []
    with gemjax.Cluster(N, central_hosts=2) as cluster:
        arguments = (GEM, *problem[:3])
        options = {"model_state": problem.model_state, "cluster": cluster}

        def callback(progress):
            saved.append((here(progress.state()), progress.trace()))
            if progress.commits >= 20:
                ray.kill(cluster._central_actors[-1][1])

        with pytest.raises(gemjax.RunFailedError, match=LOST):
            gemjax.run_on_cluster(*arguments, 100, callback=callback, callback_every=10, **options)
        state, trace = saved[-1]
        result = gemjax.run_on_cluster(*arguments, 40, state=state, recorded=trace, **options)
        result = dataclasses.replace(result, state=here(result.state))
    assert_replays(result, GEM, problem)
