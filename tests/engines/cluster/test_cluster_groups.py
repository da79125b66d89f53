"""Groups of workers, such as those of LSGD, each on a host of its own."""

import sys
import time
import types

import jax
import optax
import pytest
from engines.cluster.fake_ray import FakeRay
from engines.problems import assert_close, quadratic

import gemjax

N, LIMIT = 4, 300.0


def nodes_of(actors):
    """Return the node of each actor."""
    import ray

    node = lambda actor: ray.get_runtime_context().get_node_id()
    return ray.get([actor.__ray_call__.remote(node) for actor in actors])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_a_group_is_on_one_node_and_moves_as_a_whole(two_nodes, tmp_path):
    """Both nodes are large enough for all workers of the other group; the node of one group ends, and another one begins."""
    second = two_nodes.add_node(num_cpus=4)
    problem, local = quadratic(), gemjax.LocalSteps(optax.sgd(0.02), 2)
    tx = gemjax.lsgd(num_workers=N, groups=2)
    placed, path, began = [], tmp_path / "log", time.monotonic()
    moving = set()

    def callback(progress):
        assert time.monotonic() < began + LIMIT, f"not after {progress.commits} commits"
        kinds = [(event["event"], event["worker"]) for event in gemjax.eventlog.read(path) if "worker" in event]
        if not placed:
            placed.append(nodes_of(cluster.actors))
            moving.update(worker for worker in range(N) if placed[0][worker] == second.node_id)
            two_nodes.remove_node(second, allow_graceful=False)
        elif len(placed) == 1 and {worker for kind, worker in kinds if kind == "leave"} == moving:
            placed.append(two_nodes.add_node(num_cpus=4).node_id)
        elif len(placed) == 2 and {worker for kind, worker in kinds if kind == "join"} == moving:
            placed.append(nodes_of(cluster.actors))
        return len(placed) == 3

    with gemjax.Cluster(N, address=two_nodes.address, groups=2) as cluster, gemjax.EventLog(path) as log:
        result = gemjax.run_on_cluster(
            tx, *problem[:3], 10**6, cluster=cluster, local=local, log=log, callback=callback, callback_every=10
        )
    before, new, after = placed
    assert before[0] == before[1] != before[2] == before[3]
    assert moving in ({0, 1}, {2, 3})
    assert after == [new if worker in moving else before[worker] for worker in range(N)]
    replay = gemjax.simulate(tx, *problem[:3], result.trace, local=local)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_each_part_of_the_central_variable_is_on_a_node_of_its_own(two_nodes):
    class Part:  # Stand-in for an actor of the central variable, which starts without JAX.
        def __init__(self, paths):
            pass

        def written(self):
            pass

    two_nodes.add_node(num_cpus=2)
    form = lambda actors: types.SimpleNamespace(
        actors=actors, is_broken=lambda: True
    )  # So that each call makes new ones.
    with gemjax.Cluster(1, address=two_nodes.address) as cluster:
        for _ in range(5):
            assert len(set(nodes_of(cluster.world(Part, form, 2).actors))) == 2


@pytest.mark.parametrize(
    ("options", "why"), [({"num_cpus": 3}, "no host has {'CPU': 6}"), ({"num_cpus": 0}, "they reserve no resources")]
)
def test_a_group_that_no_host_has_room_for_may_be_spread(options, why, monkeypatch):
    fake = FakeRay()
    fake.nodes = lambda: [{"NodeManagerAddress": "127.0.0.1", "Alive": True, "Resources": {"CPU": 4.0}}]
    monkeypatch.setitem(sys.modules, "ray", fake)
    warns = pytest.warns(gemjax.RunWarning, match=f"workers of a group may be on several hosts, because {why}")
    with warns, gemjax.Cluster(N, groups=2, **options) as cluster:
        assert len(cluster.actors) == N
