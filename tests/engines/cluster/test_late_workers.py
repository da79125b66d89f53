"""Clusters without room for all workers: a run begins with those that Ray has placed, and the others join later."""

import contextlib
import functools
import threading

import numpy as np
import pytest
from engines.problems import Abreast, NotedLog, assert_close, quadratic

import gemjax

N = 4
ASGD = gemjax.asgd(0.05, num_workers=N)
QUADRATIC = quadratic()
FEWER = "Ray has started 2 of 4 workers; the others join when they are placed; all 4 together need 4 CPU"


@pytest.fixture
def full(fake):
    """Ray of the caller's own with room for two workers; the others are placed when their events are set."""
    fake.running, fake.cluster_resources = True, lambda: {"CPU": 2.0}
    fake.places = {worker: threading.Event() for worker in (2, 3)}
    yield fake
    for event in fake.places.values():
        event.set()
    fake.running = False


@contextlib.contextmanager
def begun(num_workers, message=FEWER, **options):
    """Enter a cluster that warns of workers that are not there."""
    cluster = gemjax.Cluster(num_workers, **options)
    with contextlib.ExitStack() as stack:
        with pytest.warns(gemjax.RunWarning, match=message):
            stack.enter_context(cluster)
        yield cluster


def counts(trace):
    return np.bincount(trace.worker, minlength=N)


@pytest.mark.parametrize(("room", "enter"), [(2.0, begun), (4.0, functools.partial(gemjax.Cluster, min_workers=2))])
def test_a_run_begins_with_the_workers_that_are_placed_and_the_others_join(full, tmp_path, room, enter):
    """With ``min_workers`` it does not wait for those that the cluster has room for."""
    full.cluster_resources = lambda: {"CPU": room}
    early = []

    def callback(progress):
        trace = progress.trace()
        early.append(counts(trace))
        for event in full.places.values():
            event.set()
        return bool((counts(trace) > 0).all())

    with enter(N) as cluster, NotedLog(tmp_path / "log") as log:
        result = gemjax.run_on_cluster(
            ASGD, *QUADRATIC[:3], 10**6, cluster=cluster, log=log, callback=callback, callback_every=6
        )
    assert early[0][2:].tolist() == [0, 0]
    assert result.stopped
    assert {("join", 2), ("join", 3)} <= set(log.noted)
    assert_close(result.params, gemjax.simulate(ASGD, *QUADRATIC[:3], result.trace).params, rtol=1e-4)


@pytest.mark.slow
def test_a_run_may_end_without_them_and_the_next_one_has_them(full):
    with begun(N) as cluster:
        first = gemjax.run_on_cluster(ASGD, *QUADRATIC[:3], 8, cluster=cluster)
        for worker, event in full.places.items():
            event.set()
            cluster._pings[worker].result()
        second = gemjax.run_on_cluster(ASGD, *QUADRATIC[:3], 5 * N, cluster=cluster, gate=Abreast(N))
    assert counts(first.trace)[2:].tolist() == [0, 0]
    assert (counts(second.trace) > 0).all()


def test_no_run_begins_with_fewer_than_its_least_number(full, monkeypatch):
    """With a warning it waits for them."""
    monkeypatch.setattr("gemjax.engines.cluster.cluster.PATIENCE", 0.0)
    waited = []

    def wait(replies, num_returns, timeout=None, fetch_local=True):
        if timeout is None:
            waited.append(num_returns)
            full.places[2].set()
        return type(full).wait(full, replies, num_returns, timeout, fetch_local)

    monkeypatch.setattr(full, "wait", wait)
    message = "Ray has not started . of 4 workers after 0 s; all 4 together need 4 CPU"
    with begun(N, message, min_workers=3):
        assert waited == [3]


@pytest.mark.parametrize(
    ("num_workers", "options", "expected"), [(N, {"min_workers": 2}, 2), (10, {"num_cpus": 0, "num_gpus": 0.1}, 10)]
)
def test_the_least_number_of_workers_is_awaited_or_all_that_have_room(
    full, monkeypatch, num_workers, options, expected
):
    """Ten times a tenth of a GPU is one, though ``1.0 // 0.1`` is 9."""
    full.cluster_resources, wait, awaited = lambda: {"CPU": 4.0, "GPU": 1.0}, full.wait, []
    full.places = {} if num_workers == 10 else full.places

    def noted(replies, num_returns, **options):
        awaited.append(num_returns)
        return wait(replies, num_returns, **options)

    monkeypatch.setattr(full, "wait", noted)
    with gemjax.Cluster(num_workers, **options):
        assert awaited == [expected]
