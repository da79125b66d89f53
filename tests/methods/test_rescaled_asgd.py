"""Rescaled ASGD against a plain loop, its limits, and workers with data of their own."""

import jax.numpy as jnp
import numpy as np
import pytest
from methods.row import Row
from methods.runs import NUM_WORKERS, ORDER, THETA_0, grad, run, schedule

import gemjax

N, ESTIMATORS = NUM_WORKERS, ("count", "interval")
ROWS = (
    Row("rescaled-asgd", gemjax.rescaled_asgd, 0.01, variant=True),
    Row(
        "rescaled-asgd-interval",
        gemjax.rescaled_asgd,
        0.01,
        {"estimator": "interval"},
        variant=True,
        factor=lambda staleness, n: min((staleness + 1) / n, 4.0),
    ),
)


def rescaled(theta_0, grad, order, eta, n, estimator, cap=4.0):
    """Divide the rate by n p, where p is the worker's share of the commits, or the inverse of its last interval."""
    theta, received, last, steps, history = theta_0, {}, {}, dict.fromkeys(order, 0), []
    for t, i in enumerate(order):
        g = grad(received.get(i, theta_0), i, steps[i])
        steps[i] += 1
        p = steps[i] / (t + 1) if estimator == "count" else 1 / (t - last.get(i, -1))
        factor = 1.0 if estimator == "count" and steps[i] < 3 else 1 / (n * p)
        theta = theta - eta(t) * min(factor, cap) * g
        received[i], last[i] = theta, t
        history.append(theta)
    return np.stack(history)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_it_equals_the_reference(x64, estimator):
    found, _ = run(gemjax.rescaled_asgd(schedule, N, estimator=estimator))
    expected = rescaled(THETA_0, grad, ORDER, schedule, N, estimator)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_with_one_worker_it_is_asgd(x64, estimator):
    found, _ = run(gemjax.rescaled_asgd(0.05, estimator=estimator), [0] * 40)
    expected, _ = run(gemjax.asgd(0.05), [0] * 40)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_equal_workers_in_turn_have_the_factor_one_from_the_second_round_on(estimator):
    tx = gemjax.rescaled_asgd(1.0, 4, estimator=estimator)
    params = jnp.zeros(1)
    state, steps = tx.init(params), []
    for t in range(24):
        updates, state = tx.update(jnp.ones(1), state, params, worker=t % 4)
        _, state = gemjax.pull(state, params, t % 4)
        steps.append(-updates.item())
    # The share of a worker is exact at the end of a round.
    exact = steps[4:] if estimator == "interval" else steps[3::4]
    np.testing.assert_allclose(exact, 1.0, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_fast_worker_does_not_draw_the_others_to_its_own_minimum(x64, estimator):
    """Losses (x - 1)² and (x + 1)² at speeds 4 : 1; the minimum of their sum is 0, and plain ASGD ends near 0.6."""
    targets, trace = jnp.array([1.0, -1.0]), gemjax.Trace([0, 0, 0, 0, 1] * 400)

    def end(tx):
        batches = gemjax.Computed(lambda worker, step: targets[worker])
        problem = lambda x, batch: (x - batch) ** 2, jnp.zeros([]), batches
        return float(gemjax.simulate(tx, *problem, trace).params)

    assert end(gemjax.asgd(0.001, 2)) == pytest.approx(0.6, abs=0.02)
    assert end(gemjax.rescaled_asgd(0.001, 2, estimator=estimator)) == pytest.approx(0.0, abs=0.02)


def test_the_factor_has_a_cap():
    tx = gemjax.rescaled_asgd(1.0, 2, estimator="interval", cap=1.5)
    state = tx.init(jnp.zeros(1))
    for worker in (0, 0, 0, 1):
        updates, state = tx.update(jnp.ones(1), state, worker=worker)
    assert updates.item() == -1.5
