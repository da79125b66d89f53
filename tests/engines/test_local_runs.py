"""The state of local optimizers in both engines: its worker, its device, and the effect of lost commits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import (
    Abreast,
    Behind,
    Problem,
    assert_close,
    assert_same_bits,
    late,
    poisoned,
    quadratic_with_dropout,
    without,
)

import gemjax
from gemjax import LocalSteps
from gemjax.telemetry import eventlog
from gemjax.testing import Faults

WORKERS = 4
PERIODS = (2, 3, 1, 4)
LATE = late()
MOMENTUM = optax.sgd(0.05, momentum=0.9)
LOCAL = LocalSteps(MOMENTUM, PERIODS)
DOWNPOUR = gemjax.downpour(0.5, num_workers=WORKERS)
DROPPING = gemjax.asynchronous(optax.chain(gemjax.rules.drop_stale(6), gemjax.downpour(0.5, WORKERS)), WORKERS)


@functools.cache
def problem(dtype="float32"):
    return quadratic_with_dropout(dtype)


def simulated(trace=LATE, given=None, tx=DOWNPOUR, local=LOCAL, **options):
    given = problem() if given is None else given
    return gemjax.simulate(tx, *given[:3], trace, model_state=given.model_state, local=local, **options)


def locals_of(result):
    """Return the states of the local optimizers, a tree with one row per worker."""
    return result.state.view.value.local


# --- The simulator


def test_each_worker_has_a_momentum_and_a_period_of_its_own(x64):
    """The run equals a plain loop in NumPy."""
    curvature, rate, decay = np.array([1.0, 0.6, 0.3]), 0.05, 0.9
    noise = lambda worker, step: 0.1 * np.sin(np.arange(3.0) + 3 * worker + step)
    given = Problem(
        lambda x, batch: 0.5 * jnp.sum(jnp.asarray(curvature) * x**2) + jnp.sum(batch * x),
        jnp.ones(3), lambda worker, step: 0.1 * jnp.sin(jnp.arange(3.0) + 3 * worker + step),
    )  # fmt: skip
    trace = gemjax.arrivals.Gamma(WORKERS, machine_variation=0.5).trace(40)
    result = simulated(trace, given)
    central, views = np.ones(3), np.ones((WORKERS, 3))
    momenta, done, losses = np.zeros((WORKERS, 3)), [0] * WORKERS, []
    for w in trace.worker.tolist():
        x, mine = views[w].copy(), []
        for _ in range(PERIODS[w]):
            batch = noise(w, done[w])
            mine.append(0.5 * np.sum(curvature * x**2) + np.sum(batch * x))
            momenta[w] = decay * momenta[w] + curvature * x + batch
            x -= rate * momenta[w]
            done[w] += 1
        losses.append(np.mean(mine))
        central = central - 0.5 * (views[w] - x)
        views[w] = central
    np.testing.assert_allclose(result.params, central, rtol=1e-12)
    np.testing.assert_allclose(jax.tree.leaves(locals_of(result))[0], momenta, rtol=1e-12)
    np.testing.assert_allclose(result.history["loss"], losses, rtol=1e-12)


@pytest.mark.slow
def test_a_continued_run_is_the_run_that_did_not_stop():
    """The cuts include those after a rejection; the momenta are kept."""
    given = poisoned(problem(), [(1, 4), (3, 0)])
    whole = simulated(given=given, callback_every=1)
    assert_same_bits(simulated(given=given, callback_every=10).state, whole.state)
    for cut in range(1, len(LATE)):
        first = simulated(given=given, callback=lambda _: True, callback_every=len(LATE), stops=[cut])
        assert first.stopped
        assert len(first.trace) == cut
        second = simulated(given=given, callback_every=1, state=first.state)
        assert_same_bits(second.state, whole.state)
        joined = {name: np.concatenate([first.history[name], second.history[name]]) for name in whole.history}
        assert_same_bits(joined, whole.history)


@pytest.mark.slow
def test_a_pull_alone_does_not_change_the_local_optimizer():
    """Between two commits others pull late, but only the state of the worker that commits is another one."""
    states = []
    keep = lambda progress: states.append(jax.device_get(progress.state().view.value.local)) and False
    simulated(callback_every=1, callback=keep)
    assert not LATE.events().commits.all()
    assert len(states) == len(LATE)
    for row in range(1, len(LATE)):
        others = np.arange(WORKERS) != LATE.worker[row]
        before, after = (jax.tree.map(lambda leaf: leaf[others], state) for state in states[row - 1 : row + 1])  # noqa: B023
        assert_same_bits(after, before)


def rows_of(at, trace, periods=PERIODS):
    """Return the rows of the commits that contain these (worker, local step) pairs."""
    return [
        row
        for row, (w, s) in enumerate(zip(trace.worker.tolist(), trace.step.tolist(), strict=True))
        if any(w == worker and s == step // periods[w] for worker, step in at)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loss", pytest.param("gradient", marks=pytest.mark.nightly)])
def test_a_rejected_commit_never_happened(kind, x64):
    """Any local step that is not finite leaves the central variable and the local optimizer unchanged."""
    at = [(0, 1), (1, 5), (1, 6), (3, 6), (2, 2)]  # First, middle and last steps; two commits of worker 1 in a row.
    trace, given = gemjax.arrivals.Gamma(WORKERS).trace(28, seed=2), problem("float64")
    rows = rows_of(at, trace)
    result = simulated(trace, poisoned(given, at, kind))
    np.testing.assert_array_equal(np.flatnonzero(~result.history["applied"]), rows)
    assert int(result.state.rejected) == len(rows) == 5
    assert not result.history["dropped"].any()
    missing = simulated(without(trace, rows), given)
    for name in ("params", "model_state", "opt_state"):
        assert_close(getattr(result, name), getattr(missing, name), rtol=1e-10)
    assert_close(result.state.view, missing.state.view, rtol=1e-10)


@pytest.mark.slow
def test_a_dropped_commit_never_happened(x64):
    trace, given = gemjax.arrivals.ConstantSpeeds([5.0, 5.1, 4.9, 1.0]).trace(60), problem("float64")
    reports = []

    def callback(progress):
        reports.append((progress.dropped, progress.rejected, progress.history["dropped"].sum()))

    result = simulated(trace, given, DROPPING, callback_every=9, callback=callback)
    dropped, rejected, parts = np.array(reports).T
    np.testing.assert_array_equal(dropped, np.cumsum(parts))
    assert not rejected.any()
    rows = np.flatnonzero(result.history["dropped"])
    assert len(rows) == dropped[-1] > 2
    assert (trace.worker[rows] == 3).all()
    np.testing.assert_array_equal(result.history["applied"], ~result.history["dropped"])
    assert int(result.state.dropped) == len(rows)
    assert int(result.state.rejected) == 0
    assert int(result.opt_state.clock) == int(result.state.commits) == len(trace) - len(rows)
    missing = simulated(without(trace, rows), given)
    assert_close(result.params, missing.params, rtol=1e-10)
    assert_close(result.model_state, missing.model_state, rtol=1e-10)
    assert_close(locals_of(result), locals_of(missing), rtol=1e-10)


@pytest.mark.slow
def test_a_checkpoint_holds_the_local_optimizers(tmp_path):
    run = functools.partial(simulated, callback_every=12)
    whole = run()
    half = run(callback=lambda progress: True)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(half.state, half.trace)
    options = {"num_workers": WORKERS, "model_state": problem().model_state}
    like = gemjax.initial_state(DOWNPOUR, problem().params, local=LOCAL, **options)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        state, recorded, _ = checkpoints.load(like)
        others = (LocalSteps(optax.sgd(0.05), PERIODS), LocalSteps(optax.adam(0.05), PERIODS))
        for other in others:
            other = gemjax.initial_state(DOWNPOUR, problem().params, local=other, **options)
            with pytest.raises(ValueError, match="another method, schedule, model"):
                checkpoints.load(other)
    assert recorded == half.trace
    assert_same_bits(state, half.state)
    assert_same_bits(run(state=state).state, whole.state)


# --- Devices


def on_devices(num_commits, given, tx=DOWNPOUR, local=LOCAL, **options):
    placement = gemjax.place(WORKERS)
    options = {"placement": placement, "gate": Abreast(WORKERS)} | options
    return gemjax.run_on_devices(
        tx, *given[:3], num_commits, model_state=given.model_state, local=local, **options
    )  # fmt: skip


def assert_the_law(result, given, tx=DOWNPOUR, local=LOCAL, *, pulls=True):
    """Check that a replay has the same state; ``pulls=False`` excludes last views without a commit, which leave no trace."""
    again = simulated(result.trace, given, tx, local)
    found = jax.device_get(result.state)
    assert_close(found.params, again.params, rtol=1e-10)
    assert_close(found.model_state, again.model_state, rtol=1e-10)
    assert_close(found.view.value.local, locals_of(again), rtol=1e-10)
    assert found.view.num_workers == WORKERS
    if pulls:
        assert_close(found.view, again.state.view, rtol=1e-10)
        assert_close(found.opt_state, jax.device_get(again.opt_state), rtol=1e-10)
        assert_same_bits(found.step, jax.device_get(again.state.step))
    applied = result.history["applied"]
    for name in ("loss", "error"):
        rows = slice(len(result.trace) - applied.sum(), None)
        np.testing.assert_allclose(result.history[name][applied], again.history[name][rows], rtol=1e-8, err_msg=name)


@pytest.mark.slow
def test_local_optimizers_survive_faults_and_stops(x64):
    """Workers are retried, first, middle or last steps are not finite, and the run is stopped and continued."""
    given = problem("float64")
    bad = poisoned(given, [(0, 3), (1, 3), (3, 17), (1, 22)])
    with Faults().fail(0, 0).fail(2, 1, times=2).fail(3, 2).fail(1, 6) as faults:
        gate = Abreast(WORKERS, faults)
        first = on_devices(12, bad, gate=gate)
        second = on_devices(44, bad, gate=gate, state=first.state, recorded=first.trace)
    assert len(faults.injected) == 5
    assert int(second.state.rejected) == 4
    assert second.trace.first(12) == first.trace
    assert_the_law(second, given)


@pytest.mark.slow
def test_a_drop_on_devices_restores_the_local_optimizer(tmp_path, x64):
    given, reports = problem("float64"), []
    bad = poisoned(given, [(0, 3)])
    with gemjax.EventLog(tmp_path / "log") as log:
        first = on_devices(
            30, bad, DROPPING, log=log, gate=Behind(WORKERS, 3, by=4), callback_every=1,
            callback=lambda progress: reports.append((progress.dropped, progress.rejected, progress.history)),
        )  # fmt: skip
    dropped = first.history["dropped"]
    assert dropped.sum() == int(first.state.dropped) > 0
    assert int(first.state.rejected) == 1
    np.testing.assert_array_equal([t[0] for t in reports], np.cumsum([t[2]["dropped"].sum() for t in reports]))
    assert reports[-1][:2] == (dropped.sum(), 1)
    events = {name: [] for name in eventlog.EVENTS}
    for event in eventlog.read(tmp_path / "log"):
        events[event["event"]].append(event)
    assert [(e["worker"], e["step"]) for e in events["drop"]] == list(
        zip(first.history["worker"][dropped].tolist(), first.history["step"][dropped].tolist(), strict=True)
    )
    assert [e["staleness"] for e in events["drop"]] == first.history["staleness"][dropped].tolist()
    assert [(e["worker"], e["step"]) for e in events["reject"]] == [(0, 1)]
    assert "dropped" not in events["commit"][0]
    assert eventlog.trace_of(tmp_path / "log", WORKERS) == first.trace
    assert_the_law(first, given, DROPPING, pulls=False)


@pytest.mark.slow
@pytest.mark.parametrize("global_period", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_anchors_reach_workers_on_devices(global_period, x64):
    given = problem("float64")
    tx = optax.chain(optax.adam(0.02), gemjax.rules.pull_to_anchors(0.1, 0.2))
    method = gemjax.lsgd(num_workers=WORKERS, groups=2, global_period=global_period, anchors=True)
    local = LocalSteps(tx, PERIODS)
    assert_the_law(on_devices(30, given, method, local), given, method, local)


@pytest.mark.slow
def test_an_optimizer_in_half_precision_keeps_its_dtypes():
    given = problem("bfloat16")
    tx = optax.adam(0.02, mu_dtype=jnp.float32)
    local = LocalSteps(tx, PERIODS)
    kinds = lambda tree: [leaf.dtype for leaf in jax.tree.leaves(tree)]
    result = on_devices(12, given, local=local)
    again = simulated(result.trace, given, local=local)
    assert kinds(result.state) == kinds(again.state)
    assert kinds(locals_of(result)) == kinds(tx.init(given.params))
    assert_close(jax.device_get(result.params), again.params, rtol=0.1)
