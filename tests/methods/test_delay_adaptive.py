import jax.numpy as jnp
import numpy as np
import pytest
from methods import reference, runs

import gemjax


@pytest.mark.parametrize("threshold", [None, pytest.param(2.5, marks=pytest.mark.slow)])
def test_agrees_with_the_paper(x64, threshold):
    found, _ = runs.run(gemjax.delay_adaptive(runs.schedule, runs.NUM_WORKERS, threshold=threshold))
    n = runs.NUM_WORKERS if threshold is None else threshold
    expected = reference.delay_adaptive(runs.THETA_0, runs.grad, runs.ORDER, runs.schedule, n)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    plain, _ = runs.run(gemjax.asgd(runs.schedule, runs.NUM_WORKERS))
    assert np.abs(found - plain).max() > 1e-3  # Some commits are damped.


def test_workers_in_turn_are_asgd(x64):
    order = [0, 1, 2] * 10
    found, _ = runs.run(gemjax.delay_adaptive(0.1, num_workers=3), order)
    expected, _ = runs.run(gemjax.asgd(0.1, num_workers=3), order)
    np.testing.assert_array_equal(found, expected)


def test_a_threshold_of_one_is_staleness_aware(x64):
    order = runs.ORDER[:50]
    found, _ = runs.run(gemjax.delay_adaptive(0.1, runs.NUM_WORKERS, threshold=1), order)
    expected, _ = runs.run(gemjax.staleness_aware(0.1, runs.NUM_WORKERS), order)
    np.testing.assert_array_equal(found, expected)


def test_the_factors_by_hand():
    """Without a pull the staleness grows by one per commit: 0, 1, 2, 3, 4."""
    tx = gemjax.delay_adaptive(1.0, num_workers=2)
    state, found = tx.init(jnp.zeros(1)), []
    for _ in range(5):
        updates, state = tx.update(jnp.ones(1), state, worker=1)
        found.append(-updates.item())
    np.testing.assert_allclose(found, [1, 1, 1, 2 / 3, 2 / 4], rtol=1e-6)
