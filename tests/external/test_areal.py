"""Proximal policies of AReaL, and the effective sample size of VCPO.

Sources: https://github.com/inclusionAI/AReaL/tree/7ce3961, ``tests/test_prox_approx.py``, whose numbers these are; and
https://github.com/mit-han-lab/vcpo/tree/7a0d4ae, ``recipe/fully_async_policy/staleness_utils.py``.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import gemjax
from gemjax.rules import effective_sample_size, proximal_log_probs

CASES = [
    ([-1.0, -2.0, -3.0], [-1.5, -2.5, -3.5], [0, 0, 0], 2, [-1.25, -2.25, -3.25]),
    ([-1.0], [-2.0], [4], 5, [-1.0]),  # The proximal version itself.
    ([-1.0, -2.0], [-1.5, -2.2], [0, 2], 4, [-1.375, -2.1]),
    ([-1.0], [-2.0], [3], 3, [-1.0]),  # The present version.
    ([-1.0, -2.0, -3.0], [-1.5, -2.5, -3.5], [-1, 0, 1], 3, [-1.0, -2.0 - 1 / 3, -3.25]),  # A token of the prompt.
]


@pytest.mark.parametrize(("old", "new", "versions", "clock", "expected"), CASES)
def test_log_linear_interpolation(old, new, versions, clock, expected):
    found = proximal_log_probs(jnp.array(old), jnp.array(new), jnp.array(versions), clock)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_linear_interpolation():
    found = proximal_log_probs(jnp.log(jnp.array([0.5])), jnp.log(jnp.array([0.25])), jnp.array([0]), 2, "linear")
    np.testing.assert_allclose(found, np.log([0.375]), rtol=1e-6)


def test_the_ratio_of_vcpo():
    weights = np.random.default_rng(0).lognormal(size=16)
    expected = weights.sum() ** 2 / (weights**2).sum() / 16
    np.testing.assert_allclose(effective_sample_size(jnp.asarray(weights, jnp.float32)), expected, rtol=1e-5)


@pytest.mark.parametrize(("staleness", "batch"), [(0, 4), (2, 8)])
def test_the_capacity_for_rollouts(staleness, batch):
    """``areal/infra/staleness_manager.py``: (K + version + 1) B samples may have been begun; each version takes B of them."""
    policy = gemjax.Policy(max_staleness=staleness)
    for version in (0, 1, 5):
        for ready in range(2 * batch):
            for running in range(4 * batch):
                accepted = version * batch + ready
                capacity = (staleness + version + 1) * batch - (accepted + running)
                assert policy.admits(in_flight=(running + ready) // batch) == (capacity > 0)
