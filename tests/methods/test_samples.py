"""Weights of samples by their versions."""

import jax
import numpy as np
import pytest

import gemjax

VERSIONS = np.array([[9, 7, 3], [10, 10, 0]])


@pytest.mark.parametrize("limit", [None, 7])
def test_weights_by_staleness(x64, limit):
    tau = 10 - VERSIONS
    w = (1.0 + tau) ** -0.5 * (tau <= (np.inf if limit is None else limit))
    expected = w * VERSIONS.size / w.sum()
    weigh = jax.jit(lambda versions, clock: gemjax.rules.weigh_samples(versions, clock, max_staleness=limit))
    np.testing.assert_allclose(weigh(VERSIONS, 10), expected, rtol=1e-12)


def test_weights_of_one_version_are_one():
    np.testing.assert_allclose(gemjax.rules.weigh_samples([3, 3], 9), 1.0)
    np.testing.assert_allclose(gemjax.rules.weigh_samples(VERSIONS, 10, "constant"), 1.0)
    np.testing.assert_allclose(gemjax.rules.weigh_samples([12, 13], 10), 1.0)  # Newer than the clock: not stale.


def test_a_batch_that_is_too_stale_counts_nothing():
    np.testing.assert_array_equal(gemjax.rules.weigh_samples([0, 1], 9, "hinge", max_staleness=3), 0.0)


def test_a_weighted_batch_is_a_buffer_of_weighted_commits(x64):
    """The gradient of the weighted loss is the mean that FedBuff gathers, up to the mean weight."""
    gradients, versions, clock = np.array([1.0, -2.0, 4.0]), np.array([5, 3, 0]), 5
    weights = np.asarray(gemjax.rules.weigh_samples(versions, clock))
    raw = np.array([float(gemjax.rules.polynomial_weight()(clock - v)) for v in versions])
    np.testing.assert_allclose(np.mean(weights * gradients), np.mean(raw * gradients) / raw.mean(), rtol=1e-12)
