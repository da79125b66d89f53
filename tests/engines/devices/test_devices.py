"""The device engine: runs are recorded, and no worker waits for one that is slow, hung or broken."""

import collections
import queue
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import (
    Abreast,
    Behind,
    NotedLog,
    Problem,
    assert_close,
    assert_same_bits,
    mlp,
    poisoned,
    quadratic,
)

import gemjax
from gemjax.engines.devices.scheduler import Scheduler
from gemjax.telemetry import eventlog
from gemjax.testing import Faults, InjectedFaultError

QUADRATIC = quadratic()
GEM = gemjax.gem(0.05, num_workers=4)
ASGD = gemjax.asgd(0.05, num_workers=4)


def run(problem=QUADRATIC, tx=GEM, num_commits=40, **options):
    options = {"num_workers": None if "placement" in options else 4, "model_state": problem.model_state} | options
    return gemjax.run_on_devices(tx, problem.loss_fn, problem.params, problem.batches, num_commits, **options)


def replay(result, problem=QUADRATIC, tx=GEM, **options):
    options = {"model_state": problem.model_state} | options
    return gemjax.simulate(tx, problem.loss_fn, problem.params, problem.batches, result.trace, **options)


def assert_consistent(result, num_commits, num_workers=4):
    """Check that the history and the trace agree (a Trace checks itself)."""
    history, applied = result.history, result.history["applied"]
    assert len(result.trace) == num_commits == applied.sum()
    assert result.trace.num_workers == num_workers
    for name in ("worker", "pulled_at", "step", "time", "staleness"):
        np.testing.assert_array_equal(history[name][applied], getattr(result.trace, name), err_msg=name)
    assert (history["dispatched"] <= history["began"]).all()
    assert (history["began"] <= history["ready"]).all()
    assert (history["ready"] <= history["time"] + 1e-6).all()
    assert history["dispatched"].min() >= 0
    assert int(result.state.arrivals) >= len(applied)
    assert int(result.state.rejected) == (~applied).sum()


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


@pytest.mark.parametrize("num_commits", [0, 3, 17])
def test_the_number_of_commits_is_exact(num_commits):
    result = run(num_commits=num_commits)
    assert len(result.trace) == num_commits
    assert int(result.opt_state.clock) == num_commits
    if num_commits == 0:
        assert_same_bits(jax.device_get(result.params), jax.device_get(QUADRATIC.params))
        assert result.history == {}


def test_one_worker_is_never_stale():
    result = run(tx=gemjax.asgd(0.1), num_commits=12, num_workers=1)
    np.testing.assert_array_equal(result.trace.staleness, np.zeros(12))
    np.testing.assert_array_equal(result.trace.step, np.arange(12))
    sequential = gemjax.simulate(gemjax.asgd(0.1), *QUADRATIC[:3], gemjax.arrivals.RoundRobin(1).trace(12))
    assert_close(result.params, sequential.params, rtol=1e-5)


@pytest.mark.parametrize(
    ("central", "vector"),
    [
        ("dedicated", False),
        ("host", False),
        ("colocated", False),
        ("colocated", True),
        pytest.param("dedicated", True, marks=pytest.mark.slow),
        pytest.param("host", True, marks=pytest.mark.slow),
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


def test_a_central_variable_on_a_workers_device_is_warned_of():
    with pytest.warns(gemjax.RunWarning, match=r"shares its device with worker 0: .* hidden barrier"):
        run(placement=gemjax.place(4, "colocated"))


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.filterwarnings("ignore::gemjax.RunWarning")
def test_more_workers_than_devices(devices):
    placement = gemjax.place(7, "colocated", jax.devices()[:devices])
    tx = gemjax.gem(0.05, num_workers=7)
    result = run(tx=tx, placement=placement, num_commits=60, gate=Abreast(7))
    assert_consistent(result, 60, num_workers=7)
    assert set(result.trace.worker) == set(range(7))
    assert_close(jax.device_get(result.params), jax.device_get(replay(result, tx=tx).params), rtol=1e-5)


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


# --- Faults


def test_a_hung_worker_stops_no_other():
    with Faults().hang(worker=2, step=1) as faults:
        result = run(gate=Abreast(4, faults, lost=lambda worker, step: worker == 2 and bool(faults.injected)))
    assert faults.injected == [("hang", 2, 1)]
    counts = collections.Counter(result.trace.worker.tolist())
    assert counts[2] == 1
    assert min(counts[w] for w in (0, 1, 3)) > 1
    assert_consistent(result, 40)
    assert_close(result.params, replay(result).params, rtol=1e-5)


def events(path, *names):
    return [event for event in eventlog.read(path) if event["event"] in names]


def test_a_worker_that_raises_repeats_its_step(tmp_path):
    with (
        Faults().fail(0, 0).fail(1, 2, times=2).fail(1, 3, times=2) as faults,
        gemjax.EventLog(tmp_path / "log") as log,
    ):
        result = run(gate=Abreast(4, faults), num_commits=60, log=log)
    assert len(faults.injected) == 5
    found = [(event["worker"], event["step"]) for event in events(tmp_path / "log", "fault")]
    assert sorted(found) == [(0, 0), (1, 2), (1, 2), (1, 3), (1, 3)]
    assert "InjectedFaultError" in events(tmp_path / "log", "fault")[0]["error"]
    assert events(tmp_path / "log", "retire") == []
    for worker in range(4):  # No step is lost: the worker recomputes the batch at a fresh view.
        steps = result.trace.step[result.trace.worker == worker]
        np.testing.assert_array_equal(steps, np.arange(len(steps)))
    assert_consistent(result, 60)
    assert_close(result.params, replay(result).params, rtol=1e-5)


@pytest.mark.slow
def test_a_worker_that_raises_pulls_again(x64):
    """It fails after 20 commits, so that the view of its next commit is newer than these; the others wait for that one."""
    others_committed, repeated, failed = threading.Event(), threading.Event(), []

    def gate(worker, step):
        if (worker, step) == (1, 2) and not failed:
            assert others_committed.wait(60)
            failed.append(True)
            raise InjectedFaultError("late")
        if worker != 1 and step >= 10:
            assert repeated.wait(60)

    def callback(progress):
        if progress.commits >= 20:
            others_committed.set()
        if ((progress.history["worker"] == 1) & (progress.history["step"] == 2)).any():
            repeated.set()

    result = run(tx=ASGD, gate=gate, num_commits=60, callback=callback, callback_every=1)
    row = np.flatnonzero((result.trace.worker == 1) & (result.trace.step == 2))
    assert failed
    assert result.trace.pulled_at[row].tolist() >= [20]
    assert_close(result.params, replay(result, tx=ASGD).params, rtol=1e-4)


@pytest.mark.slow
def test_a_worker_that_keeps_raising_is_retired(tmp_path):
    with Faults().fail(1, 2, times=99) as faults, NotedLog(tmp_path / "log") as log:
        retired = lambda worker, step: worker == 1 and ("retire", 1) in log.noted
        result = run(gate=Abreast(4, faults, retired), num_commits=60, log=log)
    assert len(faults.injected) == 3
    assert [event["worker"] for event in events(tmp_path / "log", "retire")] == [1]
    assert (result.trace.worker == 1).sum() == 2
    assert_consistent(result, 60)
    assert_close(result.params, replay(result).params, rtol=1e-5)


def test_when_all_workers_keep_raising_the_run_fails():
    def broken(worker, step):
        raise InjectedFaultError(f"no power at {worker}")

    with pytest.raises(
        gemjax.RunFailedError,
        match=r"0 of \d+ commits are made, but all 4 workers were given up; the last was worker \d at its step 0: .*no power",
    ):
        run(gate=broken)


def test_a_computation_that_raises_is_a_fault_of_its_worker(tmp_path):
    """Here the gradient on the device raises, not the gate of the test."""
    left = [2]

    def host(worker, step, x):
        if worker == 1 and step == 2 and left[0]:
            left[0] -= 1
            raise InjectedFaultError("cosmic ray")
        return np.asarray(x)

    def loss_fn(params, batch):
        worker, step, noise = batch
        same = jax.pure_callback(host, jax.ShapeDtypeStruct((4,), jnp.float32), worker, step, noise)
        return QUADRATIC.loss_fn(params, same)

    problem = QUADRATIC._replace(loss_fn=loss_fn, batches=lambda w, s: (w, s, QUADRATIC.batches(w, s)))
    with gemjax.EventLog(tmp_path / "log") as log:
        result = run(problem, ASGD, log=log, gate=Abreast())
    assert left == [0]
    assert [(event["worker"], event["step"]) for event in events(tmp_path / "log", "fault")] == [(1, 2)] * 2
    assert_consistent(result, 40)


@pytest.mark.parametrize("kind", [pytest.param("loss", marks=pytest.mark.slow), "gradient"])
def test_a_commit_that_is_not_finite_does_not_happen(kind, tmp_path):
    at = [(0, 0), (1, 2), (3, 1), (3, 2)]
    problem = poisoned(QUADRATIC, at, kind)
    with gemjax.EventLog(tmp_path / "log") as log:
        result = run(problem, num_commits=60, log=log, gate=Abreast())
    rejected = ~result.history["applied"]
    found = set(
        zip(result.history["worker"][rejected].tolist(), result.history["step"][rejected].tolist(), strict=True)
    )
    assert found == set(at)
    assert_consistent(result, 60)
    assert len(events(tmp_path / "log", "reject")) == 4
    assert not found & set(zip(result.trace.worker.tolist(), result.trace.step.tolist(), strict=True))
    assert np.isfinite(result.params["x"]).all()
    assert_close(result.params, replay(result, QUADRATIC).params, rtol=1e-5)


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


def test_when_all_commits_are_rejected_the_run_fails_with_the_last_ones():
    problem = QUADRATIC._replace(batches=lambda worker, step: jnp.full(4, jnp.nan))
    with pytest.raises(gemjax.RunFailedError, match=r"all rejected .*worker \d step \d+: loss nan.*learning rate"):
        run(problem)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_callback_reaches_the_caller(error):
    def callback(progress):
        raise error("enough")

    with pytest.raises(error, match="enough"):
        run(callback=callback, callback_every=5)


def test_an_error_in_the_data_reaches_the_caller():
    class Broken:
        data = ()

        def select(self, worker, step):
            if step[0] == 3:
                raise OSError("the disk is gone")
            return worker, step

        def batch(self, data, selection):
            return QUADRATIC.batches(*selection)

    with pytest.raises(OSError, match="the disk is gone"):
        run(QUADRATIC._replace(batches=Broken()))


# --- Continuing and stopping


def test_a_run_is_continued_with_its_state_and_trace():
    first = run(num_commits=25)
    second = run(num_commits=60, state=first.state, recorded=first.trace)
    assert len(second.trace) == 60
    assert second.trace.first(25) == first.trace
    assert len(second.history["loss"]) == 35
    assert int(second.opt_state.clock) == 60
    np.testing.assert_array_equal(second.history["pulled_at"], second.trace.pulled_at[25:])
    np.testing.assert_array_equal(second.history["staleness"], second.trace.staleness[25:])
    for worker in range(4):  # Each continues with its step.
        steps = second.trace.step[second.trace.worker == worker]
        np.testing.assert_array_equal(steps, np.arange(len(steps)))
    assert_close(second.params, replay(second).params, rtol=1e-5)


def test_a_run_that_is_continued_from_a_result_has_the_history_of_both_parts():
    first = run(num_commits=25)
    seen = []
    second = run(num_commits=60, state=first, callback=lambda progress: seen.append(len(progress.history["loss"])))
    assert seen == [35]  # A callback receives the new rows.
    assert second.trace.first(25) == first.trace
    assert list(second.history) == list(first.history)
    for name, column in first.history.items():
        np.testing.assert_array_equal(second.history[name][:25], column)
        assert second.history[name].dtype == column.dtype
    np.testing.assert_array_equal(second.history["staleness"], second.trace.staleness)
    np.testing.assert_array_equal(second.history["time"], second.trace.time)
    assert len(run(num_commits=60, state=second).history["loss"]) == 60  # The run is complete.


def test_the_result_of_a_failed_continued_run_has_the_history_of_both_parts():
    def fail(progress):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        run(num_commits=60, state=run(num_commits=25), callback=fail, callback_every=10)
    reached = raised.value.result
    np.testing.assert_array_equal(reached.history["staleness"], reached.trace.staleness)


def test_a_run_is_continued_after_faults_and_rejections():
    problem = poisoned(QUADRATIC, [(0, 1), (2, 3), (1, 9)])
    with Faults().fail(3, 2).fail(3, 8) as faults:
        first = run(problem, num_commits=25, gate=Abreast(4, faults))
        second = run(problem, num_commits=60, gate=Abreast(4, faults), state=first.state, recorded=first.trace)
    assert len(faults.injected) == 2
    assert int(second.state.rejected) == 3
    assert second.trace.first(25) == first.trace
    assert_close(second.params, replay(second).params, rtol=1e-5)


def test_a_simulated_run_is_continued_on_devices():
    trace = gemjax.arrivals.Gamma(4).trace(20)
    first = gemjax.simulate(GEM, *QUADRATIC[:3], trace)
    second = run(num_commits=45, state=first.state, recorded=trace)
    assert second.trace.first(20) == trace
    assert_close(second.params, replay(second).params, rtol=1e-5)


def test_the_simulator_knows_the_step_of_a_worker_that_pulled_late():
    """The last state of a replay is that of the run, including the next step of each worker."""
    with Faults().fail(3, 2).fail(0, 0) as faults:
        result = run(num_commits=30, gate=Abreast(4, faults))
    assert len(faults.injected) == 2
    assert_same_bits(jax.device_get(replay(result).state.step), jax.device_get(result.state.step))


def test_the_callback_may_end_the_run():
    calls = []

    def callback(progress):
        state = progress.state()
        assert int(state.opt_state.clock) == progress.commits == len(progress.trace())
        assert_same_bits(state.params, progress.params)
        calls.append((progress.commits, len(progress.history["loss"])))
        return progress.commits >= 20

    result = run(num_commits=1000, callback=callback, callback_every=6)
    assert result.stopped
    assert [commits for commits, _ in calls] == np.cumsum([rows for _, rows in calls]).tolist()
    assert 20 <= calls[-1][0] < 20 + 6 + 4
    assert_consistent(result, calls[-1][0])
    assert_close(result.params, replay(result).params, rtol=1e-5)


@pytest.mark.parametrize("callback_every", [1, 7, 40, 1000])
def test_the_callback_receives_every_commit_once(callback_every):
    rows = []
    with Faults().fail(0, 1).fail(1, 1).fail(2, 3, times=2).fail(3, 2, times=9) as faults:
        result = run(
            callback=lambda progress: rows.append(progress.history), callback_every=callback_every, gate=faults
        )
    assert all(len(row.get("loss", ())) for row in rows)
    np.testing.assert_array_equal(np.concatenate([row["loss"] for row in rows]), result.history["loss"])


@pytest.mark.filterwarnings("ignore::gemjax.RunWarning")
def test_arrays_of_the_caller_are_not_donated():
    """Commits donate their input; the caller's arrays may be on the central device."""
    placement = gemjax.place(4, "colocated")
    params = jax.device_put({"x": jnp.ones(4)}, placement.central)
    problem = QUADRATIC._replace(params=params)
    first = run(problem, placement=placement)
    second = run(problem, num_commits=60, placement=placement, state=first.state, recorded=first.trace)
    np.testing.assert_array_equal(params["x"], np.ones(4))
    assert_close(first.params, replay(first, problem).params, rtol=1e-5)
    assert np.isfinite(second.params["x"]).all()


# --- Records


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


@pytest.mark.slow
def test_a_rejected_bfloat16_loss_can_be_logged(tmp_path):
    problem = bfloat16()
    problem = poisoned(problem, [(1, 1)])
    with gemjax.EventLog(tmp_path / "log") as log:
        run(problem, log=log, gate=Abreast())
    assert [event["loss"] for event in events(tmp_path / "log", "reject")] == [None]


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
def test_float64_stays_float64(x64):
    problem = mlp(jnp.float64)
    result = run(problem, num_commits=20)
    assert {leaf.dtype for leaf in jax.tree.leaves(result.params)} == {np.dtype("float64")}
    assert result.history["loss"].dtype == np.float64
    assert_close(result.params, replay(result, problem).params, rtol=1e-12)


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
    assert_close(result.params, again.params, rtol=1e-6)


# --- Arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 0}, "num_workers must be a positive int, got 0"),
        ({"num_workers": 3}, "made with num_workers=4, but the run has 3 workers"),
        ({"num_workers": 3, "placement": gemjax.place(4)}, "num_workers=3, but the placement has 4 workers"),
        ({"recorded": gemjax.Trace([0], num_workers=4)}, "give both state= and recorded="),
        (
            {
                "recorded": gemjax.Trace([], num_workers=4),
                "state": gemjax.Result((), {}, gemjax.Trace([], num_workers=4)),
            },
            "leave recorded= out",
        ),
        ({"callback_every": 0}, "callback_every must be positive, got 0"),
        ({"diagnostics": ["temperature"]}, "no member of this method reports temperature"),
        ({"num_commits": -1}, "num_commits must not be negative, got -1"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        run(**options)


def test_a_state_without_its_trace_is_refused():
    state = gemjax.initial_state(GEM, QUADRATIC.params, num_workers=4)
    with pytest.raises(ValueError, match="give both state= and recorded="):
        run(state=state)


def test_a_state_of_another_run_is_refused():
    two, four = (gemjax.initial_state(gemjax.asgd(0.1, n), QUADRATIC.params, num_workers=n) for n in (2, 4))
    with pytest.raises(ValueError, match="state"):
        run(tx=ASGD, state=two, recorded=gemjax.Trace([], num_workers=4))
    with pytest.raises(ValueError, match="state"):
        run(tx=GEM, state=four, recorded=gemjax.Trace([], num_workers=4))
    with pytest.raises(ValueError, match="recorded"):
        run(tx=ASGD, state=four, recorded=gemjax.Trace([], num_workers=2))


def test_a_trace_of_another_length_is_refused_before_anything_runs():
    state = gemjax.initial_state(ASGD, QUADRATIC.params, num_workers=4)
    with pytest.raises(ValueError, match=r"has made 0 commits, but recorded= has 3"):
        run(tx=ASGD, state=state, recorded=gemjax.Trace([0, 1, 2], num_workers=4))


def test_batches_of_the_wrong_kind_are_refused():
    with pytest.raises(TypeError, match="batches must be a function"):
        run(QUADRATIC._replace(batches=[1, 2, 3]))
