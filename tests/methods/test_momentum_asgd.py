import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods import reference, runs

import gemjax

ALIASES = {"momentum_asgd": gemjax.momentum_asgd, "nag_asgd": gemjax.nag_asgd}


@pytest.mark.parametrize("name", ALIASES)
def test_agrees_with_the_paper(x64, name):
    found, _ = runs.run(ALIASES[name](runs.schedule, momentum=0.7, num_workers=runs.NUM_WORKERS))
    expected = reference.momentum_asgd(
        runs.THETA_0, runs.grad, runs.ORDER, runs.schedule, 0.7, look_ahead=name == "nag_asgd"
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("alias", [gemjax.momentum_asgd, gemjax.multi_asgd])
def test_one_worker_with_a_heavy_ball_is_momentum_sgd(alias):
    ours, theirs = alias(0.1, momentum=0.8), optax.sgd(0.1, momentum=0.8)
    params = jnp.array([1.0, -3.0])
    ours_state, theirs_state = ours.init(params), theirs.init(params)
    for grads in (params, 2 * params, -params):
        ours_updates, ours_state = ours.update(grads, ours_state, params)
        theirs_updates, theirs_state = theirs.update(grads, theirs_state, params)
        np.testing.assert_array_equal(ours_updates, theirs_updates)


@pytest.mark.slow
def test_one_worker_computes_where_nesterov_does(x64):
    """In Bengio's coordinates, those of optax, the parameters of Nesterov momentum are the look-ahead."""
    order = [0] * 40
    found, _ = runs.run(gemjax.nag_asgd(0.1, momentum=0.8), order, views_instead=True)
    expected, _ = runs.run(gemjax.asynchronous(optax.sgd(0.1, momentum=0.8, nesterov=True)), order)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("alias", [*ALIASES.values(), gemjax.multi_asgd])
def test_without_momentum_it_is_asgd(x64, alias):
    order = runs.ORDER[:50]
    found, _ = runs.run(alias(0.1, momentum=0.0, num_workers=runs.NUM_WORKERS), order)
    expected, _ = runs.run(gemjax.asgd(0.1, num_workers=runs.NUM_WORKERS), order)
    np.testing.assert_array_equal(found, expected)


def test_the_look_ahead_has_the_rate_of_the_last_commit():
    tx = gemjax.nag_asgd(lambda count: 1.0 / 2.0**count, momentum=0.5, num_workers=2)
    params = jnp.zeros(1)
    state, views = tx.init(params), []
    for _ in range(2):
        updates, state = tx.update(jnp.ones(1), state, params, worker=0)
        params = optax.apply_updates(params, updates)
        view, state = gemjax.pull(state, params, worker=1)
        views.append(view.item())
    # v = 1, theta = -1, rate 1; then v = 1.5, theta = -1.75, rate 0.5.
    np.testing.assert_allclose(views, [-1.0 - 0.5 * 1.0, -1.75 - 0.5 * 0.5 * 1.5])


def test_a_masked_method_looks_ahead_in_its_own_leaves_only():
    params = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    tx = optax.masked(gemjax.nag_asgd(1.0, momentum=0.5, num_workers=2), {"a": True, "b": False})
    _, state = tx.update({"a": jnp.ones(2), "b": jnp.ones(2)}, tx.init(params), params, worker=1)
    view, _ = gemjax.pull(state, params, worker=0)
    np.testing.assert_array_equal(view["a"], [-0.5, -0.5])
    np.testing.assert_array_equal(view["b"], params["b"])
