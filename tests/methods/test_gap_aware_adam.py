import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods import reference_tuned, runs

import gemjax

N = runs.NUM_WORKERS


def test_agrees_with_the_paper(x64):
    keywords = {"b1": 0.8, "b2": 0.98, "eps": 1e-6}
    found, _ = runs.run(gemjax.gap_aware_adam(runs.schedule, N, **keywords))
    expected = reference_tuned.gap_aware_adam(runs.THETA_0, runs.grad, runs.ORDER, runs.schedule, **keywords)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    adam, _ = runs.run(gemjax.asynchronous(optax.adam(runs.schedule, **keywords), N))
    assert np.abs(found - adam).max() > 1e-2  # Some gradients are penalised.


def test_one_worker_is_adam():
    ours, theirs = gemjax.gap_aware_adam(0.1, b1=0.8, b2=0.9), optax.adam(0.1, b1=0.8, b2=0.9)
    params = jnp.array([1.0, -3.0])
    state, theirs_state = ours.init(params), theirs.init(params)
    update = jax.jit(ours.update)
    for step in range(4):
        updates, state = update(params, state, params)
        expected, theirs_state = theirs.update(params, theirs_state, params)
        np.testing.assert_allclose(updates, expected, rtol=1e-6)
        params = optax.apply_updates(params, updates)
        if step % 2:
            _, state = gemjax.pull(state, params)


@pytest.mark.slow
def test_at_an_infinite_step_length_it_is_adam(x64):
    order = runs.ORDER[:60]
    penalised = gemjax.rules.scale_by_gap(0.03, optax.scale_by_adam(), decay=0.999, eps=1e16)
    chain = optax.chain(penalised, optax.scale_by_learning_rate(0.03))
    found, _ = runs.run(gemjax.asynchronous(chain, N), order)
    expected, _ = runs.run(gemjax.asynchronous(optax.adam(0.03), N), order)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_the_gradient_is_divided_and_not_the_step():
    """At b1 = b2 = 0 Adam's step is the sign of its gradient, whatever its divisor; the moments show it."""
    tx = gemjax.gap_aware_adam(0.5, num_workers=2, b1=0.0, b2=0.0)
    params = jnp.zeros(2)
    _, state = tx.update(jnp.array([3.0, 3.0]), tx.init(params), params, worker=0)
    updates, state = tx.update(jnp.array([3.0, 3.0]), state, jnp.array([-1.5, 0.0]), worker=1)
    np.testing.assert_allclose(updates, [-0.5, -0.5], rtol=1e-5)
    np.testing.assert_allclose(optax.tree.get(state, "mu"), [3.0 / 4, 3.0], rtol=1e-5)


def test_the_penalty_is_measured_in_steps_of_the_largest_rate():
    tx = gemjax.gap_aware_adam(lambda count: 0.5 / 2.0**count, num_workers=2, b1=0.0, b2=0.0)
    _, state = tx.update(jnp.ones(1), tx.init(jnp.zeros(1)), jnp.zeros(1), worker=0)
    _, state = tx.update(jnp.ones(1), state, jnp.array([-0.5]), worker=1)
    np.testing.assert_allclose(optax.tree.get(state, "mu"), [0.5], rtol=1e-5)
