"""Reports of a simulation: diagnostics, and the calls of its callback."""

import jax
import numpy as np
import optax
import pytest
from engines.problems import assert_close, assert_same_bits
from engines.simulator.simulations import LATE, QUADRATIC, gem, run

import gemjax
from gemjax import testing

# --- Diagnostics


@pytest.mark.slow
def test_diagnostics_agree_with_their_formulas():
    """The formulas are applied to one commit at a time."""
    trace = gemjax.arrivals.Gamma(3).trace(12, seed=4)
    loss_fn, params, batches = QUADRATIC[:3]
    names = [*gemjax.methods.gem.QUANTILES, "gap", "normalised_gap", "update_norm", "energy_ratio", "compensation"]
    result = run(QUADRATIC, gem, trace, diagnostics=names)
    tx, rate = gem(3), 0.05
    opt_state, m = tx.init(params), [np.zeros(4) for _ in range(3)]
    views = [params] * 3
    expected = {name: [] for name in names}
    for worker, step in zip(trace.worker.tolist(), trace.step.tolist(), strict=True):
        grads = jax.grad(loss_fn)(views[worker], batches(worker, step))
        delta, travelled = (
            -rate * np.asarray(grads["x"], float),
            np.abs(np.asarray(params["x"] - views[worker]["x"], float)),
        )
        m[worker] = 0.9 * m[worker] + delta
        pi = np.clip((np.abs(m[worker]) - travelled) / (np.abs(delta) + 1e-12), 0, 5)
        expected["gap"].append(np.sqrt(np.mean(travelled**2)))
        expected["update_norm"].append(np.sqrt(np.mean((pi * delta) ** 2)))
        expected["normalised_gap"].append(np.linalg.norm(travelled) / np.linalg.norm(delta / rate))
        expected["compensation"].append(np.linalg.norm((pi - 1) * delta) / np.linalg.norm(delta))
        for name, q in gemjax.methods.gem.QUANTILES.items():
            expected[name].append(np.quantile(pi, q))
        expected["energy_ratio"].append(np.sum((travelled + np.abs(pi * delta)) ** 2) / np.sum(m[worker] ** 2))
        updates, opt_state = tx.update(grads, opt_state, params, worker=worker)
        params = optax.apply_updates(params, updates)
        views[worker], opt_state = gemjax.pull(opt_state, params, worker=worker)
    for name, values in expected.items():
        np.testing.assert_allclose(result.history[name], values, rtol=2e-3, atol=1e-6, err_msg=name)


def test_only_requested_diagnostics_are_reported():
    history = run(QUADRATIC, gem, LATE).history
    assert set(history) == {"worker", "step", "time", "loss", "staleness", "pulled_at", "draw", "applied", "dropped"}


# --- Callback


def test_the_callback_receives_everything():
    calls = []

    def callback(progress):
        assert int(progress.state().arrivals) <= len(LATE.events().worker)
        assert_same_bits(progress.state().params, progress.params)
        calls.append((progress.commits, progress.total, progress.rejected, len(progress.history.get("loss", ()))))
        assert progress.trace() == LATE.first(progress.commits)

    result = run(QUADRATIC, gem, LATE, callback_every=5, callback=callback)
    assert not result.stopped
    assert [c[0] for c in calls] == np.cumsum([c[3] for c in calls]).tolist()
    assert calls[-1][:3] == (len(LATE), len(LATE), 0)
    assert [c[0] for c in calls] == [5, 10, 15, 20, 24]


def test_the_callback_may_end_the_run():
    trace = gemjax.arrivals.RoundRobin(2).trace(20)
    result = run(QUADRATIC, gem, trace, callback_every=4, callback=lambda progress: progress.commits >= 8)
    assert result.stopped
    assert len(result.history["loss"]) == 8
    assert_close(result.params, run(QUADRATIC, gem, trace.first(8)).params, rtol=1e-6)


def test_a_callback_that_changes_its_history_does_not_change_that_of_the_result():
    def callback(progress):
        progress.history["loss"][:] = 0
        progress.history.clear()

    trace = gemjax.arrivals.RoundRobin(2).trace(8)
    result = gemjax.simulate(gemjax.asgd(0.1, 2), *testing.quadratic(), trace, callback=callback)
    assert (result.history["loss"] > 0).all()
