"""Runs on hosts with addresses of their own, whose links are cut and which are killed: no step is lost or made twice."""

import random
import signal
import time

import numpy as np
import pytest
from engines.cluster import driver, hosts
from engines.cluster.conftest import HEALTH
from engines.cluster.driver import WORKERS, all_commit, assert_replays, first, until

import gemjax

pytest.importorskip("ray", reason="the cluster engine needs Ray")
pytestmark = pytest.mark.slow
LONG = 10**6


@pytest.fixture
def network(request):
    if (why := hosts.missing()) is not None:
        pytest.skip(why)
    network = hosts.Network(getattr(request, "param", None))
    try:
        network.start(0)
        network.await_ray(0)
        yield network
    finally:
        network.close()


def running(network, folder, commits=LONG, **options):
    options |= {"folder": str(folder), "commits": commits, "address": network.address}
    return driver.running(options, network.command(0), **hosts.ENVIRONMENT)


def check(process, folder, least=2000, **setting):
    """End the run after the ``least`` commits, check that its trace has each step once, and that it replays; return its log."""
    until(process, "commits", least)
    (folder / "enough").touch()
    until(process, "done")
    assert process.wait() == 0
    trace, params = driver.read(folder)
    assert gemjax.eventlog.trace_of(folder / "log", WORKERS) == trace
    assert_replays(*driver.setting(**setting), trace, params)
    print(f"{len(trace)} commits, {np.bincount(trace.worker)}")
    return list(gemjax.eventlog.read(folder / "log"))


def losses(events):
    """Return the workers that were lost, with the seconds between the dispatch of their gradient and the loss."""
    dispatched, lost = {}, {}
    for event in events:
        if event["event"] == "dispatch":
            dispatched[event["worker"]] = event["time"]
        elif event["event"] == "leave":
            lost[event["worker"]] = event["time"] - dispatched[event["worker"]]
    print(f"lost: {lost}")
    return lost


@pytest.mark.parametrize("network", [HEALTH], indirect=True)
def test_a_host_joins_is_cut_off_and_returns(network, tmp_path, x64):
    """The run begins with two of four workers. Ray declares the cut host dead, whose Ray ends and is started again."""
    with running(network, tmp_path) as process:
        until(process, "commits", 50)
        network.start(1)
        all_commit(process)
        network.cut(1)
        log = tmp_path / "log"
        before = first(process, "commits", lambda _: log.read_text().count('"leave"') >= 2)
        network.mend(1)
        all_commit(process, before)
        events = check(process, tmp_path, least=0)
    assert sorted(name.partition(":")[0] for name in events[0]["devices"]) == ["host0", "host0", "later", "later"]
    assert all(seconds < 60 for seconds in losses(events).values())


@pytest.mark.nightly
@pytest.mark.parametrize("seconds", [5, 20, 60])
def test_a_link_is_cut(network, tmp_path, x64, seconds):
    network.start(1)
    with running(network, tmp_path) as process:
        commits, *_ = all_commit(process)
        until(process, "commits", commits + random.Random(seconds).randrange(500))
        network.cut(1)
        end = time.monotonic() + seconds
        before = first(process, "commits", lambda _: time.monotonic() > end)
        network.mend(1)
        all_commit(process, before)
        losses(check(process, tmp_path))


@pytest.mark.nightly
def test_a_host_is_killed_and_started_again(network, tmp_path, x64):
    network.start(1)
    with running(network, tmp_path) as process:
        before = all_commit(process)
        network.kill(1)
        before = until(process, "commits", before[0] + 500)
        network.start(1)
        all_commit(process, before)
        losses(check(process, tmp_path))


@pytest.mark.nightly
@pytest.mark.parametrize("network", [HEALTH], indirect=True)
def test_one_of_three_hosts_is_cut_off_while_another_is_killed(network, tmp_path, x64):
    network.start(1)
    network.start(2)
    with running(network, tmp_path) as process:
        before = all_commit(process)
        network.cut(1)
        network.kill(2)
        before = until(process, "commits", before[0] + 500)
        network.start(2)
        network.mend(1)
        all_commit(process, before)
        losses(check(process, tmp_path))


@pytest.mark.nightly
def test_hosts_on_a_slow_network(network, tmp_path, x64):
    """A view and a gradient of 0.8 MB each travel at the speed of the network, and not faster."""
    further, rate = 100_000, 100e6
    network.start(1)
    for host in (0, 1):
        network.limit(host, "100mbit")
    with running(network, tmp_path, further=further) as process:
        all_commit(process, all_commit(process))
        check(process, tmp_path, further=further)
    cycles = gemjax.timeline(list(gemjax.eventlog.read(tmp_path / "log"))).cycles
    away = cycles["network"][cycles["network"] > 0.1]
    print(f"seconds on the network: {np.percentile(away, [10, 50, 90])}, {len(away)} commits")
    assert len(away) > 20
    assert np.median(away) > 2 * 8 * 8 * further / rate


@pytest.mark.nightly
def test_a_driver_is_killed_and_resumed(network, tmp_path, x64):
    network.start(1)
    with running(network, tmp_path, signal_at=1000) as process, pytest.raises(AssertionError, match="has ended"):
        until(process, "done")
    assert process.wait() == -signal.SIGKILL
    with running(network, tmp_path) as process:
        until(process, "resumed", 900)
        all_commit(process, until(process, "commits"))
        check(process, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "network", [HEALTH], indirect=True
)  # Until Ray knows that a host is dead, it places actors there.
def test_a_host_with_a_part_of_the_central_variable_is_killed(network, tmp_path, x64):
    """The run ends, and is continued from its checkpoint when the host is back."""
    network.start(1)
    network.await_ray(1)
    with running(network, tmp_path, central_hosts=2) as process:
        until(process, "commits", 1000)
        network.kill(1)
        with pytest.raises(AssertionError, match="has ended"):
            until(process, "done")
    assert process.wait() == 1
    network.start(1)
    network.await_ray(1)
    with running(network, tmp_path, central_hosts=2) as process:
        until(process, "resumed", 900)
        all_commit(process, until(process, "commits"))
        check(process, tmp_path)
