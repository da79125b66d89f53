import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods import reference_tuned, runs

import gemjax

N = runs.NUM_WORKERS


def test_agrees_with_the_paper(x64):
    found, _ = runs.run(gemjax.one_step_delay(runs.schedule, 0.5, N, strength=0.7))
    expected = reference_tuned.one_step_delay(runs.THETA_0, runs.grad, runs.ORDER, runs.schedule, gamma=0.5, c=0.7)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_at_strength_zero_it_is_momentum_asgd(x64):
    order = runs.ORDER[:60]
    found, _ = runs.run(gemjax.one_step_delay(runs.schedule, 0.5, N, strength=0.0), order)
    expected, _ = runs.run(gemjax.momentum_asgd(runs.schedule, 0.5, N), order)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


def test_updates_that_do_not_change_are_kept():
    tx = gemjax.rules.correct_one_step_delay(3.0)
    params = {"a": jnp.array([1.0, -2.0]), "b": jnp.array(3.0)}
    state = tx.init(params)
    for _ in range(3):
        found, state = tx.update(params, state)
        jax.tree.map(np.testing.assert_array_equal, found, params)


def test_two_workers_in_turn_make_the_updates_without_delay_if_those_drift_evenly():
    """The gradient depends on the clock alone; the drift can be measured from the second commit on."""
    gradient = lambda clock: jnp.array([1.0, -2.0]) + jnp.array([0.5, 0.25]) * clock
    tx = gemjax.one_step_delay(0.5, momentum=0.0, num_workers=2)
    params = jnp.zeros(2)
    state = tx.init(params)
    for clock in range(6):
        worker, pulled_at = clock % 2, max(0, clock - 1)
        assert int(state.clock - state.pulled_at[worker]) == clock - pulled_at
        updates, state = tx.update(gradient(pulled_at), state, params, worker=worker)
        params = optax.apply_updates(params, updates)
        _, state = gemjax.pull(state, params, worker=worker)
        if clock > 1:  # The first two gradients are computed at clock 0.
            np.testing.assert_array_equal(updates, -0.5 * gradient(clock))


@pytest.mark.nightly
def test_it_stabilises_a_quadratic_with_a_delay_of_one():
    """Momentum 0.8 at rate 0.3 on curvature 1: stable without delay, unstable with one step of it, stable corrected."""

    def distance(tx, num_workers):
        params = jnp.ones(1)
        state, views, update = tx.init(params), [params] * num_workers, jax.jit(tx.update)
        for clock in range(200):
            worker = clock % num_workers
            updates, state = update(views[worker], state, params, worker=worker)
            params = optax.apply_updates(params, updates)
            views[worker], state = gemjax.pull(state, params, worker=worker)
        return abs(params.item())

    assert distance(gemjax.momentum_asgd(0.3, 0.8, 1), 1) < 1e-3
    assert distance(gemjax.momentum_asgd(0.3, 0.8, 2), 2) > 1e3
    assert distance(gemjax.one_step_delay(0.3, 0.8, 2), 2) < 1e-3


def test_the_learning_rate_and_the_weight_decay_are_corrected_too():
    """At a changed rate an unchanged velocity makes a changed update."""
    tx = gemjax.one_step_delay(lambda count: 1.0 + count, momentum=0.0)
    state = tx.init(jnp.zeros(1))
    for expected in (-1.0, -2.0 - 1.0, -3.0 - 1.0):
        updates, state = tx.update(jnp.ones(1), state)
        assert updates.item() == expected
    decayed = optax.chain(optax.adamw(1.0, weight_decay=0.5), gemjax.rules.correct_one_step_delay())
    state = decayed.init(jnp.zeros(1))
    for params, expected in ((2.0, -1.0), (4.0, -2.0 - 1.0)):  # The gradient is 0, so only the decay acts.
        updates, state = decayed.update(jnp.zeros(1), state, jnp.array([params]))
        np.testing.assert_allclose(updates, [expected])
