"""Local Ray clusters, shared by the tests of a module: of four workers, of two central actors, of two nodes, and a fake one."""

import sys

import jax
import pytest
from engines.cluster.central.divided import N

import gemjax
from gemjax.engines.cluster.cluster import settings


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray", reason="the cluster engine needs Ray")
    with gemjax.Cluster(4) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def two():
    """Start a cluster whose central variable is over two actors."""
    pytest.importorskip("ray", reason="the cluster engine needs Ray")
    with gemjax.Cluster(N, central_hosts=2) as cluster:
        yield cluster


HEALTH = {  # The controller declares a node dead after some 3 s.
    "health_check_initial_delay_ms": 1000, "health_check_period_ms": 500, "health_check_failure_threshold": 4,
    "health_check_timeout_ms": 1000,
}  # fmt: skip


@pytest.fixture
def two_nodes(monkeypatch):
    """Two nodes of Ray on this host, with room for two workers on each; the first one belongs to no driver."""
    from ray._private import ray_constants
    from ray.cluster_utils import Cluster

    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)  # Nodes on the loopback interface.
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "_system_config": HEALTH})
    try:
        yield nodes
    finally:
        nodes.shutdown()


@pytest.fixture
def fake(monkeypatch):
    """Stand-in for Ray whose actors are threads."""
    from engines.cluster.fake_ray import FakeRay  # It skips without Ray.

    fake, before = FakeRay(), settings()
    monkeypatch.setitem(sys.modules, "ray", fake)
    yield fake
    assert not fake.running
    for name, value in before.items():  # Its actors are threads, whose settings are those of this process.
        jax.config.update(name, value)
