import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods import reference, runs

import gemjax

ALIASES = {"staleness_aware": gemjax.staleness_aware, "dynsgd": gemjax.dynsgd}


@pytest.mark.parametrize("name", ALIASES)
def test_agrees_with_the_paper(x64, name):
    found, _ = runs.run(ALIASES[name](runs.schedule, num_workers=runs.NUM_WORKERS))
    expected = getattr(reference, name)(runs.THETA_0, runs.grad, runs.ORDER, runs.schedule)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_two_workers_in_turn_are_asgd(x64):
    order = [0, 1] * 20
    found, _ = runs.run(gemjax.staleness_aware(0.1, num_workers=2), order)
    expected, _ = runs.run(gemjax.asgd(0.1, num_workers=2), order)
    np.testing.assert_array_equal(found, expected)
    halved, _ = runs.run(gemjax.dynsgd(0.1, num_workers=2), order)
    assert np.abs(halved - expected).max() > 1e-3  # DynSGD halves a gradient that is one commit old.


@pytest.mark.parametrize("alias", ALIASES.values(), ids=ALIASES)
def test_one_worker_is_sgd(alias):
    ours, theirs = alias(0.1), optax.sgd(0.1)
    params = jnp.array([1.0, -3.0])
    ours_state, theirs_state = ours.init(params), theirs.init(params)
    for grads in (params, -2 * params):
        ours_updates, ours_state = ours.update(grads, ours_state, params)
        theirs_updates, theirs_state = theirs.update(grads, theirs_state, params)
        np.testing.assert_array_equal(ours_updates, theirs_updates)


def test_the_factors_by_hand():
    """Without a pull the staleness grows by one per commit: 0, 1, 2, 3."""
    for alias, factors in ((gemjax.staleness_aware, [1, 1, 1 / 2, 1 / 3]), (gemjax.dynsgd, [1, 1 / 2, 1 / 3, 1 / 4])):
        tx = alias(1.0, num_workers=2)
        state, found = tx.init(jnp.zeros(1)), []
        for _ in factors:
            updates, state = tx.update(jnp.ones(1), state, worker=1)
            found.append(-updates.item())
        np.testing.assert_allclose(found, factors, rtol=1e-6)


def test_before_a_momentum_it_damps_the_velocity():
    def make(*members):
        return gemjax.asynchronous(optax.chain(*members), num_workers=2)

    before = make(gemjax.rules.scale_by_staleness(), optax.trace(0.5))
    behind = make(optax.trace(0.5), gemjax.rules.scale_by_staleness())
    found = {}
    for name, tx in (("before", before), ("behind", behind)):
        state = tx.init(jnp.zeros(1))
        for _ in range(4):
            updates, state = tx.update(jnp.ones(1), state, worker=0)
        found[name] = updates.item()
    assert found["before"] == pytest.approx(1 / 3 + 0.5 * (1 / 2 + 0.5 * (1 + 0.5)))
    assert found["behind"] == pytest.approx((1 + 0.5 * (1 + 0.5 * (1 + 0.5))) / 3)


def test_a_custom_factor():
    tx = gemjax.asynchronous(gemjax.rules.scale_by_staleness(lambda staleness: 2.0**-staleness), num_workers=2)
    state = tx.init(jnp.zeros(1))
    _, state = tx.update(jnp.ones(1), state, worker=0)
    updates, _ = tx.update(jnp.ones(1), state, worker=1)
    assert updates.item() == 0.5


def test_a_factor_of_higher_precision_does_not_promote():
    tx = gemjax.asynchronous(gemjax.rules.scale_by_staleness(lambda staleness: jnp.float32(0.5)), num_workers=2)
    params = jnp.ones(2, jnp.bfloat16)
    updates, _ = tx.update(params, tx.init(params), params, worker=1)
    assert updates.dtype == jnp.bfloat16
