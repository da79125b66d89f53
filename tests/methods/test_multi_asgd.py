import jax.numpy as jnp
import numpy as np
import optax
from methods import reference, runs

import gemjax


def test_agrees_with_the_paper(x64):
    found, _ = runs.run(gemjax.multi_asgd(runs.schedule, momentum=0.7, num_workers=runs.NUM_WORKERS))
    expected = reference.multi_asgd(runs.THETA_0, runs.grad, runs.ORDER, runs.schedule, gamma=0.7)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_one_worker_is_momentum_sgd():
    ours, theirs = gemjax.multi_asgd(0.1, momentum=0.8), optax.sgd(0.1, momentum=0.8)
    params = jnp.array([1.0, -3.0])
    ours_state, theirs_state = ours.init(params), theirs.init(params)
    for grads in (params, 2 * params, -params):
        ours_updates, ours_state = ours.update(grads, ours_state, params)
        theirs_updates, theirs_state = theirs.update(grads, theirs_state, params)
        np.testing.assert_array_equal(ours_updates, theirs_updates)


def test_without_momentum_it_is_asgd(x64):
    found, _ = runs.run(gemjax.multi_asgd(0.1, momentum=0.0, num_workers=runs.NUM_WORKERS))
    expected, _ = runs.run(gemjax.asgd(0.1, num_workers=runs.NUM_WORKERS))
    np.testing.assert_array_equal(found, expected)
