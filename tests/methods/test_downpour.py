"""DOWNPOUR and AGN against their reference and their limits."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods import reference_local as reference
from methods.runs import NUM_WORKERS, ORDER, THETA_0, grad, run, run_locally

import gemjax

TRACE = gemjax.Trace(ORDER, num_workers=NUM_WORKERS)


@pytest.mark.slow
@pytest.mark.parametrize(("alias", "window"), [(gemjax.downpour, 1), (gemjax.agn, 4)], ids=["downpour", "agn"])
def test_equals_the_reference(x64, alias, window):
    expected = reference.downpour(THETA_0, grad, ORDER, eta=0.05, tau=4, window=window)
    found, _ = run_locally(alias(num_workers=NUM_WORKERS), gemjax.LocalSteps(optax.sgd(0.05), 4), TRACE)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("alias", [gemjax.downpour, gemjax.agn])
def test_with_a_period_of_one_it_is_asgd(x64, alias):
    expected, _ = run(gemjax.asgd(0.05, NUM_WORKERS))
    found, _ = run_locally(alias(num_workers=NUM_WORKERS), gemjax.LocalSteps(optax.sgd(0.05)), TRACE)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_with_one_worker_it_is_its_local_optimizer(x64):
    tx = optax.sgd(0.05, momentum=0.9)
    x, state, expected = jnp.asarray(THETA_0), tx.init(jnp.asarray(THETA_0)), []
    for j in range(60):
        updates, state = tx.update(jnp.asarray(grad(np.asarray(x), 0, j)), state)
        x = x + updates
        expected.append(x)
    found, _ = run_locally(gemjax.downpour(), gemjax.LocalSteps(tx, 3), gemjax.Trace([0] * 20))
    np.testing.assert_allclose(found, np.stack(expected)[2::3], rtol=0, atol=1e-12)


@pytest.mark.slow
def test_agn_divides_by_each_workers_own_period(x64):
    """In dynamic local updates worker i has a period of i + 1."""
    local = gemjax.LocalSteps(optax.sgd(0.05), (1, 2, 3, 4, 5))
    pushed, _ = run_locally(gemjax.downpour(num_workers=NUM_WORKERS), local, gemjax.Trace([3], num_workers=NUM_WORKERS))
    mean, _ = run_locally(gemjax.agn(num_workers=NUM_WORKERS), local, gemjax.Trace([3], num_workers=NUM_WORKERS))
    np.testing.assert_allclose(4 * (mean - THETA_0), pushed - THETA_0, rtol=1e-12)
