"""The law on a Ray cluster: the simulator repeats a run of actors from its record alone."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from engines.problems import Abreast, Behind, assert_close, every_method, mlp, problem_of, samples_of_several_versions
from engines.test_law import COMMITS, SEED, WORKERS, assert_the_law, drop_in_front_of_gem
from methods.rows import KINDS

import gemjax
from gemjax.engines.memory import here

pytestmark = pytest.mark.slow


def on_the_cluster(cluster, make, problem, num_commits=COMMITS, **options):
    """Run without a barrier, also a method that is defined in rounds."""
    options = {"policy": gemjax.Policy(quorum=1)} | options
    return gemjax.run_on_cluster(
        make(WORKERS), problem.loss_fn, problem.params, problem.batches, num_commits, cluster=cluster,
        model_state=problem.model_state, local=getattr(make, "local", None), seed=SEED, **options,
    )  # fmt: skip


@every_method(each_kind=True, kinds=KINDS)
def test_the_same_trace_gives_the_same_parameters(make, cluster, x64):
    problem = problem_of(make)
    commits = COMMITS if make.converges_stale else 16
    result = on_the_cluster(cluster, make, problem, commits, gate=Abreast(WORKERS))
    assert len(result.trace) == commits
    assert result.trace.staleness.max() > 0
    assert_the_law(result, make, problem, rtol=1e-10, refused=make.refuses)
    network = result.history["network"]
    assert (network > 0).all()
    assert (network <= result.history["ready"] - result.history["dispatched"]).all()


@every_method(each_kind=True, kinds=KINDS)
def test_it_holds_with_the_central_variable_over_two_hosts(make, cluster, x64, monkeypatch):
    monkeypatch.setattr(cluster, "central_hosts", 2)
    problem = problem_of(make)
    commits = COMMITS if make.converges_stale else 16
    result = on_the_cluster(cluster, make, problem, commits, gate=Abreast(WORKERS))
    result = dataclasses.replace(result, state=here(result.state))
    assert len(result.trace) == commits
    assert result.trace.staleness.max() > 0
    assert_the_law(result, make, problem, rtol=1e-10, refused=make.refuses)


@pytest.mark.parametrize(
    "make",
    [
        drop_in_front_of_gem,
        lambda n: gemjax.ringmaster(0.05, n, threshold=8),
        lambda n: gemjax.rennala(0.2, n, batch_size=3),
    ],
    ids=["drop_stale", "ringmaster", "rennala"],
)
def test_it_holds_when_the_method_refuses_commits(make, cluster, x64):
    problem = mlp(jnp.float64)
    result = on_the_cluster(cluster, make, problem, gate=Behind(WORKERS, 3, by=4))
    dropped = result.history["dropped"]
    assert 0 < dropped.sum() == int(result.state.dropped)
    assert not (dropped & result.history["applied"]).any()
    assert_the_law(result, make, problem, rtol=1e-10, refused=True)


def test_it_holds_for_samples_of_several_versions(cluster, x64):
    problem, make = samples_of_several_versions(), lambda n: gemjax.asgd(0.05, num_workers=n)
    result = on_the_cluster(cluster, make, problem, 30, gate=Abreast(WORKERS))
    assert_the_law(result, make, problem, rtol=1e-10)


@pytest.mark.parametrize("setting", [("jax_random_seed_offset", 7), ("jax_high_dynamic_range_gumbel", True)])
def test_actors_draw_with_the_settings_of_the_driver(cluster, setting):
    name, value = setting
    if not hasattr(jax.config, name):
        pytest.skip(f"this JAX has no {name}")

    def loss_fn(params, model_state, batch, key):
        return jnp.sum((params - jax.random.gumbel(key, params.shape)) ** 2), (model_state, {})

    problem, make = (loss_fn, jnp.zeros(4), lambda worker, step: 0.0), lambda n: gemjax.asgd(0.05, num_workers=n)
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        result = gemjax.run_on_cluster(make(WORKERS), *problem, 12, cluster=cluster)
        replay = gemjax.simulate(make(WORKERS), *problem, result.trace)
    finally:
        jax.config.update(name, before)
    assert_close(result.params, jax.device_get(replay.params), rtol=1e-5)
    other = gemjax.simulate(make(WORKERS), *problem, result.trace)
    assert abs(result.params - other.params).max() > 0.01
