import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods import reference, runs

import gemjax


@pytest.mark.parametrize("rate", [0.1, runs.schedule], ids=["constant", "schedule"])
def test_agrees_with_the_paper(x64, rate):
    found, _ = runs.run(gemjax.asgd(rate, num_workers=runs.NUM_WORKERS))
    eta = rate if callable(rate) else lambda t: rate
    np.testing.assert_allclose(found, reference.asgd(runs.THETA_0, runs.grad, runs.ORDER, eta), rtol=0, atol=1e-12)


def test_one_worker_is_sgd():
    ours, theirs = gemjax.asgd(0.1), optax.sgd(0.1)
    grads, params = jnp.array([1.0, -3.0]), jnp.zeros(2)
    ours_updates, _ = ours.update(grads, ours.init(params), params)
    theirs_updates, _ = theirs.update(grads, theirs.init(params), params)
    np.testing.assert_array_equal(ours_updates, theirs_updates)
