"""Workers of unequal speed with local steps: numbers and times of commits and gradients."""

import dataclasses

import numpy as np
import pytest

from train.claims.runs import num_commits
from train.config.config import Config
from train.task import cluster as pace
from train.task.cluster import cluster
from train.task.methods import local_steps

BASE = {"engine": "simulate", "method": "delayed_nesterov", "workers": 4, "period": 20, "epochs": 5.0, "batch_size": 32}


def shares(config, commits=400):
    """Return the share of each worker in all commits."""
    trace = cluster(config).trace(commits, 0)
    return np.bincount(trace.worker, minlength=config.workers) / commits, trace


def test_tiered_workers_commit_by_their_speed_and_with_dynamic_periods_alike():
    plain, trace = shares(Config(**BASE, cluster="tiered"))
    np.testing.assert_allclose(plain, np.array(pace.TIERS) / sum(pace.TIERS), atol=0.02)
    dynamic, other = shares(Config(**BASE, cluster="tiered", dynamic_periods=True))
    np.testing.assert_allclose(dynamic, 0.25, atol=0.02)
    # A commit of fewer steps takes less time: gradients per unit of time are the same.
    mean = pace.mean_period(Config(**BASE, cluster="tiered", dynamic_periods=True))
    assert mean == 12.5
    assert 400 * mean / other.time[-1] == pytest.approx(400 * 20 / trace.time[-1], rel=0.05)


def test_commits_of_fewer_local_steps_vary_more():
    """The coefficient of variation is that of a step over the root of the number of steps; at scale 1 a step has 0.1."""
    config = Config(**BASE | {"workers": 3}, cluster="tiered", dynamic_periods=True)
    model = cluster(config)
    found = [model.durations(worker, np.random.default_rng(worker), 20_000) for worker in range(3)]
    np.testing.assert_allclose([np.std(one) / np.mean(one) for one in found], 0.1 / np.sqrt([20, 15, 10]), rtol=0.03)


def test_dynamic_periods_reach_local_steps_and_keep_the_number_of_gradients():
    config = Config(**BASE, cluster="tiered", dynamic_periods=True)
    assert local_steps(config).period == (20, 15, 10, 5)
    assert num_commits(config, 1437) == 71  # 4 * 5 * 44 gradients, 12.5 per commit.
    assert num_commits(Config(**BASE, cluster="tiered"), 1437) == 44


def test_workers_in_turn_take_the_time_of_their_local_steps():
    """A commit of 20 steps took one second."""
    _, trace = shares(Config(**BASE, cluster="round_robin"), 40)
    assert (trace.worker == np.arange(40) % 4).all()
    assert trace.time[-1] == pytest.approx(10 * 20)


@pytest.mark.parametrize(("cluster", "slowest"), [("barrier", 1.0), ("tiered_barrier", 0.25)])
def test_a_barrier_waits_for_the_slowest(cluster, slowest):
    _, trace = shares(Config(**BASE, cluster=cluster), 40)
    assert (trace.pulled_at == np.repeat(np.arange(0, 40, 4), 4)).all()
    assert trace.time[-1] == pytest.approx(10 * 20 / slowest, rel=0.05)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"dynamic_periods": True},
            "--dynamic-periods acts only with --cluster tiered or tiered_barrier; --cluster is homogeneous",
        ),
        (
            {"dynamic_periods": True, "cluster": "tiered", "method": "gem", "period": 1},
            "--dynamic-periods acts only with --method downpour",
        ),
    ],
)
def test_dynamic_periods_need_local_steps_and_speeds(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**BASE | fields)


@pytest.mark.parametrize("cluster", ["homogeneous", "barrier"])
def test_a_transfer_takes_its_time_once_per_commit(cluster):
    """Ten rounds of four workers: with a barrier exactly ten transfers, without one as many of each worker."""
    config = Config(**BASE, cluster=cluster, variation=1e-6)
    _, free = shares(config, 40)
    _, slow = shares(dataclasses.replace(config, transfer=7.0), 40)
    assert slow.time[-1] - free.time[-1] == pytest.approx(10 * 7.0, abs=0.01)
