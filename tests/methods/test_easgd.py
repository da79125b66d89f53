"""EASGD and EAMSGD against their reference and their limits."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from methods import reference_local as reference
from methods.runs import NUM_WORKERS, ORDER, THETA_0, grad, run, run_locally

import gemjax

TRACE = gemjax.Trace(ORDER, num_workers=NUM_WORKERS)


def easgd(strength=0.3, **keywords):
    return gemjax.easgd(num_workers=NUM_WORKERS, strength=strength, **keywords)


@pytest.mark.slow
@pytest.mark.parametrize(("tau", "delta"), [(1, 0.0), (4, 0.0), (3, 0.9)])
def test_equals_the_reference(x64, tau, delta):
    expected, positions = reference.easgd(THETA_0, grad, ORDER, eta=0.05, tau=tau, alpha=0.3, delta=delta)
    local = gemjax.LocalSteps(optax.sgd(0.05, momentum=delta or None, nesterov=bool(delta)), tau)
    found, result = run_locally(easgd(), local, TRACE)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    own = optax.tree.get(result.opt_state, "position").value.params
    for worker, position in positions.items():
        found = ravel_pytree(jax.tree.map(lambda x, w=worker: x[w], own))[0]
        np.testing.assert_allclose(found, position, rtol=0, atol=1e-12)


def test_eamsgd_equals_the_reference(x64):
    expected, _ = reference.easgd(THETA_0, grad, ORDER, eta=0.01, tau=1, alpha=0.9 / NUM_WORKERS, delta=0.9)
    found, _ = run(gemjax.eamsgd(0.01, 0.9, NUM_WORKERS))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_eamsgd_is_easgd_with_a_momentum_and_a_period_of_one(x64):
    expected, _ = run(gemjax.eamsgd(0.01, 0.9, NUM_WORKERS, strength=0.3))
    found, _ = run_locally(easgd(), gemjax.LocalSteps(optax.sgd(0.01, momentum=0.9, nesterov=True)), TRACE)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_at_strength_zero_workers_are_independent(x64):
    """Each worker is SGD by itself, and the central variable does not move."""
    found, result = run_locally(easgd(0.0), gemjax.LocalSteps(optax.sgd(0.05), 3), TRACE)
    np.testing.assert_array_equal(found, np.broadcast_to(THETA_0, found.shape))
    own = optax.tree.get(result.opt_state, "position").value.params
    for worker in range(NUM_WORKERS):
        x = THETA_0
        for j in range(3 * ORDER.count(worker)):
            x = x - 0.05 * grad(x, worker, j)
        position = ravel_pytree(jax.tree.map(lambda leaf, w=worker: leaf[w], own))[0]
        np.testing.assert_allclose(position, x, rtol=0, atol=1e-12)


def test_at_strength_one_worker_and_central_variable_exchange_positions(x64):
    params = jnp.zeros(1)
    tx = gemjax.easgd(num_workers=2, strength=1.0)
    updates, state = tx.update(jnp.array([-2.0]), tx.init(params), params, worker=0)
    central = params + updates
    view, _ = gemjax.pull(state, central, worker=0)
    assert (central.item(), view.item()) == (2.0, 0.0)


def test_an_exchange_keeps_the_sum(x64):
    """Without local steps the sum of the central variable and all positions is constant."""
    params, tx = jnp.array([5.0]), easgd()
    state = tx.init(jnp.array([1.0]))  # All workers start at 1, the central variable at 5.
    for worker in (0, 3, 3, 1):
        updates, state = tx.update(jnp.zeros(1), state, params, worker=worker)
        params = params + updates
    own = optax.tree.get(state, "position").value.params
    np.testing.assert_allclose(params.sum() + own.sum(), 5.0 + NUM_WORKERS * 1.0, rtol=1e-12)


@pytest.mark.slow
def test_the_default_strength_is_the_published_one(x64):
    found, expected = (run_locally(tx, gemjax.LocalSteps(optax.sgd(0.05), 2), TRACE.first(20))[0]
                       for tx in (gemjax.easgd(num_workers=NUM_WORKERS), easgd(0.9 / NUM_WORKERS)))  # fmt: skip
    np.testing.assert_array_equal(found, expected)


def test_a_pull_without_a_commit_moves_no_position(x64):
    """After a retry, a rejected displacement or a refused commit the worker continues from its position."""
    tx, params = gemjax.easgd(num_workers=2, strength=0.25), jnp.zeros(1)
    updates, state = tx.update(jnp.array([-1.0]), tx.init(params), params, worker=0)
    params = params + updates
    for _ in range(3):
        view, state = gemjax.pull(state, params, worker=0)
        np.testing.assert_array_equal(view, [0.75])


@pytest.mark.slow
def test_at_strength_zero_workers_are_independent_in_step_too(x64):
    """All workers commit before any of them pulls; at strength 0 each is still SGD by itself."""
    trace, periods = gemjax.arrivals.SemiSynchronous(gemjax.arrivals.RoundRobin(NUM_WORKERS), 2).trace(10)
    _, result = run_locally(easgd(0.0), gemjax.LocalSteps(optax.sgd(0.05), periods), trace)
    own = optax.tree.get(result.opt_state, "position").value.params
    for worker in range(NUM_WORKERS):
        x = THETA_0
        for j in range(20):
            x = x - 0.05 * grad(x, worker, j)
        position = ravel_pytree(jax.tree.map(lambda leaf, w=worker: leaf[w], own))[0]
        np.testing.assert_allclose(position, x, rtol=0, atol=1e-12)


def test_a_refused_commit_leaves_the_position(x64):
    chain = optax.chain(gemjax.rules.drop_stale(2), gemjax.easgd(num_workers=2, strength=0.0))
    tx, params = gemjax.asynchronous(chain, 2), jnp.zeros(1)
    state, views = tx.init(params), []
    for worker in (1, 0, 0, 1, 1):  # The fourth is two commits old.
        _, state = tx.update(jnp.array([-9.0]), state, params, worker=worker)
        view, state = gemjax.pull(state, params, worker)
        views.append(view.item())
    assert views == [9.0, 9.0, 18.0, 9.0, 18.0]
