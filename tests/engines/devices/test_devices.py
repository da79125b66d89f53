"""The device engine: runs are recorded and replayed, in every place and precision, and workers differ in speed."""

import queue
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.devices.device_runs import ASGD, QUADRATIC, assert_consistent, events, replay, run
from engines.problems import Abreast, Behind, Problem, assert_close, assert_same_bits

import gemjax
from gemjax.engines import loss
from gemjax.engines.devices.scheduler import Scheduler
from gemjax.telemetry import eventlog


def test_a_run_is_recorded_and_can_be_replayed():
    result = run(diagnostics=["gap"], gate=Abreast())
    assert_consistent(result, 40)
    assert not result.stopped
    again = replay(result, diagnostics=["gap"])
    assert_close(result.params, again.params, rtol=1e-5)
    assert_close(result.opt_state.clock, again.opt_state.clock, rtol=0)
    for name in ("loss", "gap"):
        np.testing.assert_allclose(result.history[name], again.history[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert float(result.history["loss"][-4:].mean()) < float(result.history["loss"][:4].mean())


def test_no_metric_can_replace_a_column_of_the_history_or_of_the_log(tmp_path):
    with gemjax.EventLog(tmp_path / "log") as log:
        result = run(num_commits=3, policy=gemjax.Policy(interrupt=8), atomic=False, log=log)
    commits = [event for event in eventlog.read(tmp_path / "log") if event["event"] == "commit"]
    assert result.history.keys() | commits[0].keys() <= loss.RESERVED


@pytest.mark.parametrize("num_commits", [0, 3, 17])
def test_the_number_of_commits_is_exact(num_commits):
    result = run(num_commits=num_commits)
    assert len(result.trace) == num_commits
    assert int(result.opt_state.clock) == num_commits
    if num_commits == 0:
        assert_same_bits(jax.device_get(result.params), jax.device_get(QUADRATIC.params))
        assert result.history == {}


@pytest.mark.parametrize(
    ("central", "vector"),
    [
        ("dedicated", False),
        ("host", False),
        ("colocated", False),
        ("colocated", True),
        pytest.param("dedicated", True, marks=pytest.mark.nightly),
        pytest.param("host", True, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.filterwarnings("ignore::gemjax.RunWarning")
def test_every_place_of_the_central_variable(central, vector):
    """Packing one vector copies nothing; a view that aliased the central variable would be deleted when a commit donates it."""
    problem = QUADRATIC
    if vector:
        problem = Problem(lambda params, batch: QUADRATIC.loss_fn({"x": params}, batch), jnp.ones(4), QUADRATIC.batches)
    placement = gemjax.place(4, central)
    result = run(problem, ASGD, placement=placement)
    assert_consistent(result, 40)
    assert all(leaf.devices() == {placement.central} for leaf in jax.tree.leaves(result.state))
    assert_close(jax.device_get(result.params), jax.device_get(replay(result, problem, ASGD).params), rtol=1e-5)


@pytest.mark.parametrize("central", ["colocated", "host"])
def test_a_central_variable_on_a_workers_device_is_warned_of(central):
    message = r"shares its device with worker 0: .* hidden barrier .*gemjax.place\(n, 'dedicated'\); on the command"
    with pytest.warns(gemjax.RunWarning, match=message):
        run(placement=gemjax.place(4, central))


def test_workers_that_take_turns_on_one_device_lose_nothing_by_a_central_variable_there():
    run(placement=gemjax.place(4, "colocated", jax.devices()[:1]))


@pytest.mark.slow
@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.nightly), 3])
@pytest.mark.filterwarnings("ignore::gemjax.RunWarning")
def test_more_workers_than_devices(devices):
    placement = gemjax.place(7, "colocated", jax.devices()[:devices])
    tx = gemjax.gem(0.05, num_workers=7)
    result = run(tx=tx, placement=placement, num_commits=60, gate=Abreast(7))
    assert_consistent(result, 60, num_workers=7)
    assert set(result.trace.worker) == set(range(7))
    assert_close(jax.device_get(result.params), jax.device_get(replay(result, tx=tx).params), rtol=1e-5)


@pytest.mark.slow
def test_plain_optax_optimizers_are_wrapped():
    tx = optax.adam(0.05)
    result = run(tx=tx)
    assert_consistent(result, 40)
    assert_close(result.params, replay(result, tx=tx).params, rtol=1e-4)


# --- Speed


def test_fast_workers_commit_more_and_slow_ones_still_commit():
    """Worker 3 takes as long as ten steps of each other one; none of these waits for it before."""
    result = run(tx=ASGD, num_commits=150, gate=Behind(4, 3, by=10))
    counts = np.bincount(result.trace.worker, minlength=4)
    assert_consistent(result, 150)
    assert 0 < 10 * counts[3] <= counts[:3].min()
    # A commit of it is staler than all steps that the others have made meanwhile.
    assert result.trace.staleness[result.trace.worker == 3].min() >= 30


@pytest.mark.slow
def test_workers_that_have_finished_commit_in_turn(monkeypatch):
    """None starves: when all 8 workers have finished, each makes one of the next eight commits."""
    loop, changed, all_finished = Scheduler._loop, threading.Condition(), []

    class Queue(queue.SimpleQueue):
        def put(self, item):
            super().put(item)
            with changed:
                changed.notify_all()

    finished = Queue()

    def with_queue(self, *arguments):
        self.waiters._ready = finished
        return loop(self, *arguments)

    def callback(progress):
        if progress.commits <= 72:
            all_finished.append(progress.commits)
            with changed:
                assert changed.wait_for(lambda: finished.qsize() == 8, timeout=60)

    monkeypatch.setattr(Scheduler, "_loop", with_queue)
    tx = gemjax.asgd(0.02, num_workers=8)
    result = run(tx=tx, num_commits=82, num_workers=8, callback=callback, callback_every=8)
    assert len(all_finished) > 3
    for commits in all_finished:
        assert set(result.trace.worker[commits : commits + 8]) == set(range(8))


# --- Records


def test_the_log_has_devices_views_and_pauses(tmp_path):
    """The device of each worker, the arrival of each view, and the duration of each callback."""
    path = tmp_path / "log"
    with gemjax.EventLog(path) as log:
        result = run(log=log, callback=lambda progress: False, callback_every=20)
    (start,) = events(path, "start")
    assert start["devices"] == [f"cpu:{worker}" for worker in range(4)]
    assert start["central"] == "cpu:8"
    pauses = events(path, "pause")
    assert len(pauses) == 2
    assert all(pause["seconds"] >= 0 for pause in pauses)
    began = [event["began"] for event in events(path, "ready")]
    np.testing.assert_allclose(began, result.history["began"], atol=1e-6)


def test_the_event_log_records_the_run(tmp_path):
    with gemjax.EventLog(tmp_path / "log") as log:
        first = run(num_commits=20, log=log)
    assert eventlog.trace_of(tmp_path / "log", num_workers=4) == first.trace
    commits = events(tmp_path / "log", "commit")
    np.testing.assert_array_equal([event["worker"] for event in commits], first.history["worker"])
    np.testing.assert_array_equal([event["staleness"] for event in commits], first.history["staleness"])
    np.testing.assert_allclose([event["loss"] for event in commits], first.history["loss"], rtol=1e-6)
    assert len(events(tmp_path / "log", "ready")) == 20
    assert 20 <= len(events(tmp_path / "log", "dispatch")) <= 24
    assert [event["event"] for event in events(tmp_path / "log", "start", "end")] in (["start"], ["start", "end"])
    with gemjax.EventLog(tmp_path / "log") as log:
        second = run(num_commits=35, log=log, state=first.state, recorded=first.trace)
    assert eventlog.trace_of(tmp_path / "log", num_workers=4) == second.trace


# --- Kinds of numbers


def bfloat16():
    batches = lambda w, s: QUADRATIC.batches(w, s).astype(jnp.bfloat16)
    return Problem(QUADRATIC.loss_fn, {"x": jnp.ones(4, jnp.bfloat16)}, batches)


@pytest.mark.slow
def test_bfloat16_stays_bfloat16():
    problem = bfloat16()
    result = run(problem)
    assert result.params["x"].dtype == jnp.bfloat16
    assert_consistent(result, 40)
    assert_close(result.params, replay(result, problem).params, rtol=0.05)


@pytest.mark.slow
def test_trees_of_several_dtypes_cross_devices(x64):
    params = {"a": jnp.ones(3, jnp.float64), "b": jnp.ones((2, 2), jnp.float32), "c": jnp.float32(2.0)}

    def loss_fn(params, model_state, batch, key):
        loss = sum(jnp.sum(leaf.astype(jnp.float64) ** 2) for leaf in jax.tree.leaves(params))
        return loss, ({"n": model_state["n"] + 1, "flag": ~model_state["flag"]}, {})

    problem = Problem(loss_fn, params, lambda w, s: s, {"n": jnp.int32(0), "flag": jnp.array(False)})
    result = run(problem, num_commits=20)
    assert jax.tree.map(lambda x: x.dtype, result.params) == jax.tree.map(lambda x: x.dtype, params)
    again = replay(result, problem)
    assert_same_bits(jax.device_get(result.model_state), jax.device_get(again.model_state))
    # The float32 leaves were of order 1 and end at 0.03, of which the last place of 1 is 4e-6.
    assert_close(result.params, again.params, rtol=1e-5)
