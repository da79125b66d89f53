"""The law on a Ray cluster: the simulator repeats a run of actors from its record alone."""

import pytest
from engines.problems import Abreast, every_method, problem_of
from engines.test_law import COMMITS, SEED, WORKERS, assert_the_law

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
