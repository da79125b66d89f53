"""NoLoCo of the authors.

Source: https://github.com/gensyn-ai/noloco/tree/a1b4a42, ``src/noloco/sparse_optimizer_c.py``: after H steps of a local
optimizer the workers of a group take an outer step together. The program pairs the ranks by NumPy's permutations; here they are
those of gemjax (deviation 1).
"""

import jax.numpy as jnp
import numpy as np
import optax

import gemjax
from gemjax.methods.no_loco import partner

WORKERS, ROUNDS, STEPS = 6, 8, 3
RNG = np.random.default_rng(3)
TARGETS = RNG.normal(size=(WORKERS, 4))  # Each worker's own minimum.


def outer_step(params, slow, momentum, outer_lr, outer_momentum):
    """Change the parameters, the slow weights and the momenta of the workers of one group, [group, D] each."""
    mean, mean_g = slow.mean(axis=0), (params - slow).mean(axis=0)
    momentum = momentum + (outer_momentum - 1) * momentum + outer_lr * mean_g + outer_lr * (mean - slow)
    return slow + momentum, momentum


def test_two_workers():
    slow, momentum = outer_step(np.array([[1.0], [3.0]]), np.array([[0.0], [2.0]]), np.zeros((2, 1)), 0.7, 0.5)
    np.testing.assert_allclose(momentum, [[1.4], [0.0]])
    np.testing.assert_allclose(slow, [[1.4], [2.0]])


def test_rounds(x64):
    slow, momentum = np.zeros((WORKERS, 4)), np.zeros((WORKERS, 4))
    for exchange in range(1, ROUNDS + 1):
        params = slow
        for _ in range(STEPS):
            params = params - 0.1 * (params - TARGETS)
        for i in range(WORKERS):
            if i < (j := int(partner(i, exchange, WORKERS))):
                group = [i, j]
                slow[group], momentum[group] = outer_step(params[group], slow[group], momentum[group], 0.7, 0.5)
    targets = jnp.asarray(TARGETS)
    result = gemjax.simulate(
        gemjax.no_loco(0.7, 0.5, WORKERS), lambda x, target: 0.5 * jnp.sum((x - target) ** 2), jnp.zeros(4),
        gemjax.Computed(lambda worker, step: targets[worker]),
        gemjax.arrivals.Barrier(gemjax.arrivals.Gamma(WORKERS)).trace(WORKERS * ROUNDS),
        local=gemjax.LocalSteps(optax.sgd(0.1), STEPS),
    )  # fmt: skip
    views = [gemjax.pull(result.opt_state, result.params, worker)[0] for worker in range(WORKERS)]
    assert np.ptp(slow, axis=0).min() > 0.05
    np.testing.assert_allclose(views, slow, rtol=0, atol=1e-12)
    np.testing.assert_allclose(result.params, slow.mean(axis=0), rtol=0, atol=1e-12)
