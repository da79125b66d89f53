import jax.numpy as jnp
import numpy as np
import pytest
from methods import reference, runs

import gemjax

N = runs.NUM_WORKERS


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
