"""Runs whose central variable is divided over actors, on a fake Ray of threads."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines.cluster.fake_ray import FakeRay
from engines.problems import assert_close, mlp, quadratic_with_dropout

import gemjax
from gemjax.engines.cluster.central import division

N = 3


@pytest.fixture
def fake(monkeypatch):
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(division, "SMALL", 4)
    yield fake
    assert not fake.running


def run(tx, problem, num_commits=20, central_hosts=2, **options):
    with gemjax.Cluster(N, central_hosts=central_hosts) as cluster:
        result = gemjax.run_on_cluster(
            tx, *problem[:3], num_commits, model_state=problem.model_state, cluster=cluster, **options
        )
    shared = {"model_state": problem.model_state, "local": options.get("local")}
    replay = gemjax.simulate(tx, *problem[:3], result.trace, **shared)
    assert len(result.trace) == num_commits
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-10)
    assert_close(jax.device_get(result.opt_state), jax.device_get(replay.opt_state), rtol=1e-10)
    return result


def test_a_run_replays(fake, x64):
    run(gemjax.gem(0.05, num_workers=N), mlp(jnp.float64))
