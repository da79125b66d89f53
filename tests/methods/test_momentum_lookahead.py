import jax.numpy as jnp
import numpy as np
import optax
from methods import reference_outer, runs

import gemjax

N = runs.NUM_WORKERS


def test_agrees_with_the_paper(x64):
    found, _ = runs.run(gemjax.momentum_lookahead(runs.schedule, 0.7, N))
    expected = reference_outer.mla(runs.THETA_0, runs.grad, runs.ORDER, runs.schedule, 0.7)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_the_central_variable_is_the_look_ahead(x64):
    found, _ = runs.run(gemjax.momentum_lookahead(0.1, 0.7, N), views_instead=True)
    expected = reference_outer.mla_looking_ahead(runs.THETA_0, runs.grad, runs.ORDER, 0.1, 0.7)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_its_velocity_is_a_part_of_nesterovs():
    ours, theirs = gemjax.momentum_lookahead(1.0, 0.75), optax.trace(0.75, nesterov=True)
    params = jnp.zeros(2)
    state, theirs_state = ours.init(params), theirs.init(params)
    for t in range(5):
        displacement = jnp.asarray(np.random.default_rng(t).normal(size=2), jnp.float32)
        updates, state = ours.update(displacement, state, params)
        whole, theirs_state = theirs.update(displacement, theirs_state)
        np.testing.assert_allclose(-updates, displacement + 0.25 * (whole - displacement), rtol=1e-5)


def test_without_momentum_it_is_asgd(x64):
    order = runs.ORDER[:50]
    found, _ = runs.run(gemjax.momentum_lookahead(0.1, 0.0, N), order)
    expected, _ = runs.run(gemjax.asgd(0.1, N), order)
    np.testing.assert_array_equal(found, expected)
