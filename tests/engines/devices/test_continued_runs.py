"""Runs on devices that continue or stop, and arguments that they refuse."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines.devices.device_runs import ASGD, GEM, QUADRATIC, assert_consistent, replay, run
from engines.problems import Abreast, assert_close, assert_same_bits, poisoned

import gemjax
from gemjax.testing import Faults

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


@pytest.mark.slow
def test_a_run_that_is_continued_from_a_result_has_the_history_of_both_parts():
    first = run(num_commits=25)
    seen = []
    second = run(
        num_commits=60,
        state=first,
        callback=lambda progress: seen.append(len(progress.history["loss"])),
        callback_every=60,
    )
    assert seen == [35]  # A callback receives the new rows.
    assert second.trace.first(25) == first.trace
    assert list(second.history) == list(first.history)
    for name, column in first.history.items():
        np.testing.assert_array_equal(second.history[name][:25], column)
        assert second.history[name].dtype == column.dtype
    np.testing.assert_array_equal(second.history["staleness"], second.trace.staleness)
    np.testing.assert_array_equal(second.history["time"], second.trace.time)
    assert len(run(num_commits=60, state=second).history["loss"]) == 60  # The run is complete.


@pytest.mark.slow
def test_a_run_is_continued_after_faults_and_rejections():
    problem = poisoned(QUADRATIC, [(0, 1), (2, 3), (1, 9)])
    with Faults().fail(3, 2).fail(3, 8) as faults:
        first = run(problem, num_commits=25, gate=Abreast(4, faults))
        second = run(problem, num_commits=60, gate=Abreast(4, faults), state=first.state, recorded=first.trace)
    assert len(faults.injected) == 2
    assert int(second.state.rejected) == 3
    assert second.trace.first(25) == first.trace
    assert_close(second.params, replay(second).params, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", [pytest.param("asgd", marks=pytest.mark.nightly), "ringmaster"])
def test_a_simulated_run_with_rejected_or_dropped_commits_is_continued_on_devices(method):
    """Their rows are in the trace of the simulation, and not in that of the run that continues it."""
    tx = {"asgd": ASGD, "ringmaster": gemjax.ringmaster(0.02, 4, threshold=3)}[method]
    problem = poisoned(QUADRATIC, [(1, 2)])
    first = gemjax.simulate(
        tx, *problem[:3], gemjax.arrivals.Gamma(4).trace(30, seed=1), model_state=problem.model_state
    )
    refused = 30 - int(first.state.commits)
    assert (refused > 3) == (method == "ringmaster")
    second = run(problem, tx, num_commits=60, state=first)
    assert len(second.trace) == 60
    np.testing.assert_array_equal(second.history["applied"][:30], first.history["applied"])
    assert_close(second.params, replay(second, problem, tx).params, rtol=1e-5)


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


@pytest.mark.parametrize(
    "callback_every", [1, 7, pytest.param(40, marks=pytest.mark.nightly), pytest.param(1000, marks=pytest.mark.slow)]
)
def test_the_callback_receives_every_commit_once(callback_every):
    rows = []
    with Faults().fail(0, 1).fail(1, 1).fail(2, 3, times=2).fail(3, 2, times=9) as faults:
        result = run(
            callback=lambda progress: rows.append(progress.history), callback_every=callback_every, gate=faults
        )
    assert all(len(row.get("loss", ())) for row in rows)
    np.testing.assert_array_equal(np.concatenate([row["loss"] for row in rows]), result.history["loss"])


@pytest.mark.slow
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


def test_the_run_keeps_no_arrays_of_the_caller():
    """Neither its parameters nor the state that it continues."""
    arrays, alive, first = [], [], [run(num_commits=4)]

    def watched(tree):
        arrays.append(weakref.ref(jax.tree.leaves(tree)[0]))
        return tree

    def callback(progress):
        gc.collect()
        alive.append(sum(array() is not None for array in arrays))

    gemjax.run_on_devices(
        GEM, QUADRATIC.loss_fn, watched({"x": jnp.ones(4)}), QUADRATIC.batches, 20, state=watched(first.pop()),
        callback=callback,
    )  # fmt: skip
    assert set(alive) == {0}


# --- Arguments


@pytest.mark.parametrize("stops", [[99.9], [-1]])
def test_stops_are_counts(stops):
    with pytest.raises(ValueError, match="stops must be an int"):
        run(stops=stops)


def test_a_trace_without_the_clocks_of_the_blocks_is_refused():
    first = run(num_commits=4, atomic=False)
    columns = {name: getattr(first.trace, name) for name in ("worker", "step", "time", "draw", "pulled_at")}
    recorded = gemjax.Trace(**columns, num_workers=4)
    with pytest.raises(ValueError, match="has no read_at"):
        run(num_commits=8, atomic=False, state=first.state, recorded=recorded)


def test_a_state_of_another_run_is_refused():
    two, four = (gemjax.initial_state(gemjax.asgd(0.1, n), QUADRATIC.params, num_workers=n) for n in (2, 4))
    with pytest.raises(ValueError, match="state"):
        run(tx=ASGD, state=two, recorded=gemjax.Trace([], num_workers=4))
    with pytest.raises(ValueError, match="state"):
        run(tx=GEM, state=four, recorded=gemjax.Trace([], num_workers=4))
    with pytest.raises(ValueError, match="recorded"):
        run(tx=ASGD, state=four, recorded=gemjax.Trace([], num_workers=2))


def test_a_trace_of_another_run_is_refused_before_anything_runs(tmp_path):
    """It has as many commits, but others."""
    of = lambda seed: gemjax.simulate(GEM, *QUADRATIC[:3], gemjax.arrivals.Gamma(4).trace(30, seed=seed))
    first, other = of(1), of(2)
    with pytest.raises(
        ValueError, match=r"recorded= is of another run than the state: the last commit of worker \d in it is row"
    ):
        run(num_commits=60, state=first.state, recorded=other.trace)
    with pytest.raises(ValueError, match="trace is of another run than the state"):
        gemjax.Checkpoints(tmp_path).save(first.state, other.trace)
    with Faults().fail(3, 2).fail(0, 0) as faults:  # Retried, so these workers pull late.
        late = run(num_commits=30, gate=Abreast(4, faults))
    assert int(late.state.arrivals) > 30
    gemjax.Checkpoints(tmp_path).save(late.state, late.trace)


@pytest.mark.slow
def test_the_state_of_a_whole_sweep_is_refused():
    swept = gemjax.sweep(
        lambda rate: gemjax.asgd(rate, 4), *QUADRATIC[:3], gemjax.arrivals.Gamma(4).trace(8), {"rate": [0.01, 0.02]}
    )
    with pytest.raises(ValueError, match="the state to continue from is of another"):
        run(tx=ASGD, state=swept.state, recorded=gemjax.arrivals.Gamma(4).trace(8))


def test_a_trace_of_another_length_is_refused_before_anything_runs():
    state = gemjax.initial_state(ASGD, QUADRATIC.params, num_workers=4)
    with pytest.raises(ValueError, match="has made 0 commits of 4 workers, but recorded= has 3"):
        run(tx=ASGD, state=state, recorded=gemjax.Trace([0, 1, 2], num_workers=4))
