import jax.numpy as jnp
import numpy as np
import pytest
from methods import reference, runs
from methods.row import Row

import gemjax

N = runs.NUM_WORKERS
ROWS = (
    Row(
        "lwp-own-horizon",
        gemjax.lwp,
        0.005,
        {"momentum": 0.5, "horizon": gemjax.rules.momentum_horizon(0.5)},
        variant=True,
    ),
)


@pytest.mark.parametrize(
    ("rate", "horizon"),
    [(0.01, None), (lambda t: 0.1 * runs.schedule(t), None), (0.02, 2.5)],
    ids=["constant", "schedule", "horizon"],
)
def test_agrees_with_the_paper(x64, rate, horizon):
    found, _ = runs.run(gemjax.lwp(rate, 0.7, N, horizon=horizon))
    eta, D = rate if callable(rate) else lambda t: rate, N - 1 if horizon is None else horizon
    expected = reference.lwp(runs.THETA_0, runs.grad, runs.ORDER, eta, 0.7, D)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * max(1.0, np.abs(expected).max()))


def test_a_horizon_of_zero_is_a_shared_heavy_ball(x64):
    order = runs.ORDER[:60]
    found, _ = runs.run(gemjax.lwp(0.02, 0.7, N, horizon=0), order)
    expected, _ = runs.run(gemjax.momentum_asgd(0.02, 0.7, N), order)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


def test_a_horizon_of_the_momentum_is_nag_asgd(x64):
    order = runs.ORDER[:60]
    found, _ = runs.run(gemjax.lwp(0.02, 0.7, N, horizon=0.7), order)
    expected, _ = runs.run(gemjax.nag_asgd(0.02, 0.7, N), order)
    np.testing.assert_array_equal(found, expected)


def test_one_worker_predicts_nothing():
    params = jnp.ones(2)
    tx = gemjax.lwp(0.1)
    _, state = tx.update(params, tx.init(params), params)
    view, _ = gemjax.pull(state, params)
    np.testing.assert_array_equal(view, params)


def fang(theta_0, grad, order, eta, mu):
    """Let the velocity run on, without gradients, for the delay that the worker's last gradient had."""
    theta, v, history = theta_0, np.zeros_like(theta_0), []
    received, pulled, steps = {}, {}, dict.fromkeys(order, 0)
    for t, i in enumerate(order):
        v = mu * v + grad(received.get(i, theta_0), i, steps[i])
        theta = theta - eta(t) * v
        ahead, carried = theta, v
        for _ in range(t - pulled.get(i, 0)):
            carried = mu * carried
            ahead = ahead - eta(t) * carried
        received[i], pulled[i] = ahead, t + 1
        steps[i] += 1
        history.append(theta)
    return np.stack(history)


def test_the_own_horizon_is_the_momentum_compensation_of_varying_delays(x64):
    found, _ = runs.run(gemjax.lwp(runs.schedule, 0.7, N, horizon=gemjax.rules.momentum_horizon(0.7)))
    expected = fang(runs.THETA_0, runs.grad, runs.ORDER, runs.schedule, 0.7)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


def test_an_own_horizon_that_is_constant_is_that_constant_from_the_first_commit_of_a_worker_on(x64):
    order = [0] * 30
    found, _ = runs.run(gemjax.lwp(0.02, 0.7, horizon=lambda staleness: 2.5 + 0.0 * staleness), order)
    expected, _ = runs.run(gemjax.lwp(0.02, 0.7, horizon=2.5), order)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)
