"""The law on a Ray cluster: the simulator repeats a run of actors from its record alone."""

import jax.numpy as jnp
import pytest
from engines.problems import Abreast, Behind, every_method, mlp, problem_of, samples_of_several_versions
from engines.test_law import COMMITS, SEED, WORKERS, assert_the_law, drop_in_front_of_gem

import gemjax

pytestmark = pytest.mark.slow


def on_the_cluster(cluster, make, problem, num_commits=COMMITS, **options):
    return gemjax.run_on_cluster(
        make(WORKERS), problem.loss_fn, problem.params, problem.batches, num_commits, cluster=cluster,
        model_state=problem.model_state, local=getattr(make, "local", None), seed=SEED, **options,
    )  # fmt: skip


@every_method()
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
