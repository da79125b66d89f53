"""A local Ray cluster of four workers, shared by the tests of a module, and one of two nodes."""

import pytest

import gemjax


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray", reason="the cluster engine needs Ray")
    with gemjax.Cluster(4) as cluster:
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
