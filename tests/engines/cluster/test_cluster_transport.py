"""The exchange of views and gradients with actors, their loss and their return, on a fake Ray of threads."""

import contextlib
import gc
import sys
import threading
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines.cluster.fake_ray import FakeRay
from engines.problems import (
    Abreast,
    NotedLog,
    assert_close,
    only_silent,
    quadratic,
    quadratic_with_dropout,
)

import gemjax
from gemjax.engines.cluster import actor, cluster, programs

N = 3
ASGD = gemjax.asgd(0.05, num_workers=N)
QUADRATIC = quadratic()


def run(num_commits=30, tx=ASGD, problem=QUADRATIC, **options):
    result = gemjax.run_on_cluster(tx, *problem[:3], num_commits, model_state=problem.model_state, **options)
    assert len(result.trace) == num_commits
    shared = {"model_state": problem.model_state, "local": options.get("local")}
    replay = gemjax.simulate(tx, *problem[:3], result.trace, **shared)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-4)
    for worker in range(N):  # No step is lost and none is committed twice.
        steps = result.trace.step[result.trace.worker == worker]
        np.testing.assert_array_equal(steps, np.arange(len(steps)))
    return result


@pytest.mark.slow
def test_a_run_replays_and_its_workers_are_named(fake, tmp_path):
    with gemjax.EventLog(tmp_path / "log") as log:
        result = run(problem=quadratic_with_dropout(), log=log)
    events = list(gemjax.eventlog.read(tmp_path / "log"))
    assert len({name.partition("#")[0] for name in events[0]["devices"]}) == 1
    assert len(set(events[0]["devices"])) == N
    cycles = gemjax.timeline(events).cycles
    np.testing.assert_allclose(cycles["network"], result.history["network"], atol=1e-6)
    assert (cycles["network"] <= cycles["ready"] - cycles["dispatch"] + 2e-6).all()


class Slow(types.ModuleType):
    """A module in which one function takes some seconds of a clock."""

    def __init__(self, module, name, clock):
        super().__init__(module.__name__)
        self.module = module

        def slow(*arguments, **options):
            clock.seconds += 2.0
            return getattr(module, name)(*arguments, **options)

        setattr(self, name, slow)

    def __getattr__(self, name):
        return getattr(self.module, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "name", "function", "column"),
    [(actor, "jax", "device_put", "to_device"), (actor, "np", "asarray", "to_host"), (programs, "np", "asarray", "to_host"),
     (sys.modules, "ray", "get", "wire")],
)  # fmt: skip
def test_the_time_of_a_gradient_on_the_network_has_three_parts(fake, monkeypatch, place, name, function, column):
    """The clock moves only in one function."""
    clock = types.SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.seconds)
    replace = monkeypatch.setitem if place is sys.modules else monkeypatch.setattr
    replace(place, name, Slow(fake if place is sys.modules else getattr(place, name), function, clock))
    history = gemjax.run_on_cluster(gemjax.asgd(0.05, num_workers=1), *QUADRATIC[:3], 4).history
    assert (history[column] > 0).all()
    for other in {"to_host", "wire", "to_device"} - {column}:
        np.testing.assert_array_equal(history[other], 0.0)
    np.testing.assert_array_equal(history["network"], history[column])
    np.testing.assert_allclose(history["began"] - history["dispatched"], history["network"])
    np.testing.assert_array_equal(history["ready"], history["began"])


@pytest.mark.slow
def test_an_actor_that_is_lost_leaves_and_joins(fake, tmp_path):
    lost, actors = [], threading.Lock()

    def lose(actor, method, arguments):
        with actors:
            if method == "gradient" and arguments[-1].step == 2 and len(lost) < 4:
                lost.append(actor)
                return True
        return False

    fake.lose = lose
    with gemjax.EventLog(tmp_path / "log") as log:
        run(log=log, gate=Abreast(N))
    kinds = [event["event"] for event in gemjax.eventlog.read(tmp_path / "log")]
    assert len(lost) == kinds.count("leave") == kinds.count("join") == 4
    assert "fault" not in kinds


@pytest.mark.slow
def test_a_worker_that_is_lost_again_and_again_is_retired(fake, tmp_path):
    fake.lose = lambda actor, method, arguments: method == "gradient" and actor == 1 and arguments[-1].step == 1
    with NotedLog(tmp_path / "log") as log, pytest.MonkeyPatch.context() as patch:
        patch.setattr("gemjax.engines.cluster.cluster.PAUSE", 0.001)
        patch.setattr("gemjax.engines.devices.roster.Roster.TIMES_LOST", 3)
        gate = Abreast(N, lost=lambda worker, step: worker == 1 and ("retire", 1) in log.noted)
        result = gemjax.run_on_cluster(ASGD, *QUADRATIC[:3], 30, log=log, gate=gate)
    assert np.bincount(result.trace.worker, minlength=N)[1] == 1
    kinds = [event["event"] for event in gemjax.eventlog.read(tmp_path / "log") if event.get("worker") == 1]
    assert [kinds.count(kind) for kind in ("leave", "join", "retire")] == [3, 3, 1]


def test_a_run_whose_own_ray_has_ended_on_this_host_ends(fake, monkeypatch):
    """It waited for workers that could not return."""
    monkeypatch.setattr("gemjax.engines.cluster.cluster.PAUSE", 0.001)

    def lose(actor, method, arguments):
        fake.alive = fake.alive and not (method == "gradient" and arguments[-1].step == 3)
        return not fake.alive

    fake.lose = lose
    with pytest.raises(
        RuntimeError, match="the Ray of this cluster has ended on its host, so no worker can return"
    ) as ended:
        run()
    assert 0 < len(ended.value.result.trace) < 30


@pytest.mark.slow
def test_a_run_that_cannot_begin_says_why(fake, monkeypatch):
    monkeypatch.setattr("gemjax.engines.cluster.cluster.PAUSE", 0.001)
    lost = []

    def lose(actor, method, arguments):
        if method == "begin" and actor == 0:
            lost.append(actor)
            if len(lost) > 3:
                monkeypatch.setattr("gemjax.engines.cluster.cluster.PATIENCE", 60.0)
        return 0 < len(lost) <= 3

    with gemjax.Cluster(N) as cluster:
        fake.lose = lose
        monkeypatch.setattr("gemjax.engines.cluster.cluster.PATIENCE", 0.0)
        with pytest.warns(gemjax.RunWarning) as caught:
            run(cluster=cluster)
    assert any("worker 0 has not begun the run yet: " in str(warning.message) for warning in caught)


def test_an_actor_that_takes_long_to_begin_is_called_once(fake, monkeypatch):
    """Each further call was queued behind the first one, and none was awaited long enough."""
    called, get = threading.Event(), fake.get

    def patient(reply, timeout=None):
        try:
            return get(reply, timeout)
        finally:
            monkeypatch.setattr(cluster, "PATIENCE", 60.0)
            called.set()

    monkeypatch.setattr(cluster, "PAUSE", 0.001)
    monkeypatch.setattr(actor.Actor, "begin", lambda *arguments: ("device" if called.wait(60) else "missing", "cpu:0"))
    with gemjax.Cluster(1) as one:
        monkeypatch.setattr(fake, "get", patient)
        monkeypatch.setattr(cluster, "PATIENCE", 0.0)
        with pytest.warns(gemjax.RunWarning, match="worker 0 has not begun the run yet: GetTimeoutError"):
            assert one.begin(bytes, lambda name: False)[1] == {0: "cpu:0"}
    assert [method for method, _ in fake.calls].count("begin") == 1


def test_a_lost_worker_that_has_left_does_not_return(fake):
    members = gemjax.Members(N)

    def lose(actor, method, arguments):
        if method == "gradient" and arguments[-1][:2] == (1, 2):
            members.leave(1)
            return True
        return False

    fake.lose = lose
    gate = Abreast(N, lost=lambda worker, step: worker in members.absent)
    result = gemjax.run_on_cluster(ASGD, *QUADRATIC[:3], 80, members=members, gate=gate)
    assert np.bincount(result.trace.worker, minlength=N)[1] == 2
    assert members.absent == {1}


@pytest.mark.slow
def test_a_silent_actor_is_killed_and_returns(fake, tmp_path, monkeypatch):
    faults = gemjax.testing.Faults().hang(1, 2)
    only_silent(monkeypatch, lambda worker, step: ("hang", worker, step) in faults.injected)
    calls = []

    def lose(actor, method, arguments):
        if method == "gradient" and arguments[-1][:2] == (1, 2) and not calls:
            calls.append(actor)
            faults(1, 2)
        return False

    fake.lose = lose
    fake.kill = lambda handle, no_restart=True: (faults.let_go(1, 2), handle.restart())
    policy = gemjax.Policy(deadline=1.0)
    returned = lambda progress: bool(((progress.history["worker"] == 1) & (progress.history["step"] == 2)).any())
    with gemjax.EventLog(tmp_path / "log") as log, gemjax.testing.Faults().slow(0, 0.02).slow(2, 0.02) as slow:
        result = gemjax.run_on_cluster(ASGD, *QUADRATIC[:3], 10**6, policy=policy, log=log, gate=slow, callback=returned,
                                       callback_every=20)  # fmt: skip
    assert result.stopped
    assert faults.injected
    kinds = [event["event"] for event in gemjax.eventlog.read(tmp_path / "log") if event.get("worker") == 1]
    assert kinds.index("hang") < kinds.index("join")


class Numbers:
    """A source of rows."""

    def __len__(self):
        return 12

    def __getitem__(self, row):
        return np.float32(row)


@pytest.mark.slow
@pytest.mark.parametrize("failing", [False, True])
def test_the_readers_of_the_actors_end_with_the_run(fake, failing):
    """A cluster may outlive its runs."""
    before, readers, begun = set(threading.enumerate()), set(), threading.Barrier(N)
    batches = gemjax.FromSource(Numbers(), batch_size=2)
    loss_fn = lambda params, batch: jnp.sum((params - batch.mean()) ** 2)

    def callback(progress):
        now = set(threading.enumerate()) - before
        readers.update(thread for thread in now if thread.name.startswith("gemjax-reader"))
        if failing:
            raise KeyError("enough")

    def gate(worker, step):
        if step == 0:
            begun.wait(60)

    with gemjax.Cluster(N) as cluster:
        with contextlib.suppress(KeyError):
            gemjax.run_on_cluster(
                ASGD,
                loss_fn,
                jnp.zeros(2),
                batches,
                12,
                cluster=cluster,
                gate=gate,
                callback=callback,
                callback_every=6,
            )
        assert len(readers) == N
        for thread in readers:
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.slow
def test_the_actors_free_their_data_when_the_run_ends(fake):
    """The data of the next run on the same cluster had to fit in beside them."""
    rows = np.ones((11, 13, 2), np.float32)
    held = lambda: [array for array in jax.live_arrays() if array.shape == rows.shape]
    during = []
    with gemjax.Cluster(N) as cluster:
        gemjax.run_on_cluster(
            ASGD, lambda x, batch: jnp.sum((x - batch.mean()) ** 2), jnp.zeros(2), gemjax.Epochs(rows, 4), 12,
            cluster=cluster, callback=lambda progress: during.append(len(held())), callback_every=6,
        )  # fmt: skip
        fake.get([actor.ping.remote() for actor in cluster.actors])  # When they have heard of the end.
        gc.collect()
        assert not held()
    assert max(during) >= N


class OnTheDriver:
    """A source that only the driver can read."""

    def __len__(self):
        return 8

    def __getitem__(self, number):
        if threading.current_thread() is not threading.main_thread():
            raise OSError("no such file")
        return np.zeros(4, np.float32)


def test_an_error_of_an_actor_keeps_its_type_and_traceback(fake):
    batches = gemjax.FromSource(OnTheDriver(), batch_size=1)
    with pytest.raises(RuntimeError, match=r"row \d of the source cannot be read: OSError: no such file") as caught:
        gemjax.run_on_cluster(ASGD, lambda x, batch: jnp.sum(x["x"] * batch[0]), QUADRATIC.params, batches, 5)
    assert any("the traceback of the actor" in note for note in caught.value.__notes__)


def address(array):
    return np.asarray(array).ctypes.data


@pytest.mark.slow
def test_a_second_cluster_that_would_wait_for_the_first_is_refused(fake, monkeypatch):
    monkeypatch.setattr(cluster, "FREED", 0.0)
    with gemjax.Cluster(N) as first:
        with pytest.raises(ValueError, match=r"need 3 CPU \(there are 0\): another cluster .* give it as cluster="):
            run()
        run(cluster=first)
    run()


def test_a_cluster_waits_for_the_resources_of_one_that_was_closed(fake, monkeypatch):
    monkeypatch.setattr(cluster, "PAUSE", 0.001)
    available = iter([{}, {}, {"CPU": 1.0}])
    monkeypatch.setattr(fake, "available_resources", lambda: next(available))
    with gemjax.Cluster(1), gemjax.Cluster(1):
        assert next(available, None) is None


def test_only_the_modules_that_cannot_be_sent_are_named():
    answers = [("missing", "sent"), ("missing", "lacking"), ("device", "cpu:0")]
    with pytest.raises(ValueError, match="the workers cannot import lacking;"):
        cluster.send_missing(answers, lambda name: name == "sent")


def test_only_the_user_can_read_the_token(fake, monkeypatch, tmp_path):
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.touch(mode=0o644)
    monkeypatch.setenv("HOME", str(tmp_path))
    with gemjax.Cluster(N, address=None):
        assert token.stat().st_mode & 0o777 == 0o600


def test_a_ray_that_listens_on_the_network_is_ended(fake):
    fake.node_address = "10.0.0.1"
    with pytest.raises(RuntimeError, match="would listen on the network"), gemjax.Cluster(N):
        pass
    assert not fake.handles


def test_a_cluster_is_started_once(fake):
    with gemjax.Cluster(N) as cluster, pytest.raises(RuntimeError, match="started before; make another one"):
        cluster.__enter__()
    with pytest.raises(RuntimeError, match="started before; make another one"):
        cluster.__enter__()


class Deaf(FakeRay):
    """A Ray that accepts no connection."""

    def init(self, address, **options):
        raise ConnectionError(f"Failed to connect to {address}") from RuntimeError("UNAUTHENTICATED")


@pytest.mark.parametrize(("address", "mode"), [(None, None), ("10.0.0.1:6379", "token"), ("10.0.0.1:6379", None)])
def test_a_ray_that_accepts_no_connection_is_named_and_tokens_are_unless_given(monkeypatch, address, mode):
    monkeypatch.setitem(sys.modules, "ray", Deaf())
    monkeypatch.setattr(cluster, "check_reachable", lambda address: None)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with pytest.raises(ConnectionError) as raised, gemjax.Cluster(N, address=address):
        pass
    error = raised.value
    assert error.__cause__ is not error
    is_explained = address is not None and mode is None
    assert ("(UNAUTHENTICATED); if it checks a token, set RAY_AUTH_MODE=token" in str(error)) == is_explained
