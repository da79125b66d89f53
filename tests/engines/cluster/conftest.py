"""Ray clusters: one of four workers on this host, which tests share, one of two nodes, and a fake one."""

import contextlib
import sys

import jax
import pytest

import gemjax
from gemjax.engines.cluster.cluster import settings

_open = contextlib.ExitStack()
_clusters: list[gemjax.Cluster] = []


@pytest.fixture
def cluster():
    """Return a cluster of four workers, which lives while the next test asks for it, also in another file."""
    pytest.importorskip("ray", reason="the cluster engine needs Ray")
    if not _clusters:
        _open.callback(_clusters.clear)
        _clusters.append(_open.enter_context(gemjax.Cluster(4)))
    return _clusters[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """End the shared cluster before a test without it, because a process has one Ray."""
    try:
        return (yield)
    finally:
        if "cluster" not in getattr(nextitem, "fixturenames", ()):  # Also those that `two` asks for.
            _open.close()


@pytest.fixture
def two(cluster, monkeypatch):
    """Let the shared cluster have its central variable over two actors; a test may then set another number."""
    monkeypatch.setattr(cluster, "central_hosts", 2)
    yield cluster
    if cluster.central_hosts != 2:
        cluster.end_central()


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
