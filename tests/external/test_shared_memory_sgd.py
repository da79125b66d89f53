"""Step factors of the authors of ASAP.SGD.

Source: https://github.com/dcs-chalmers/shared-memory-sgd/tree/ddf760e, ``include/minidnn/NetworkExecutor.h``: the strategies
INVERSE, TAIL and FLEET. The tail rule leaves a staleness of its own out of F, and counts once (deviations 1 and 2).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gemjax

MOST = 200  # tau_threshold


def compute_tail_dist(tau_dist_sample):
    """Return, per staleness, the share of the samples that are fresher."""
    return (np.cumsum(tau_dist_sample) - tau_dist_sample) / sum(tau_dist_sample)


def fleet(staleness, num_threads):
    tau_thresh = num_threads + 1
    beta = 2 / tau_thresh * math.log(1 + tau_thresh // 2)
    return math.exp(-beta * staleness)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [4, 16])
def test_tail(threads):
    """Samples of iterations 10 n to 15 n of n threads; each factor is theirs less the share of the same staleness."""
    samples = np.random.default_rng(threads).poisson(threads - 1, size=5 * threads)
    counts = np.bincount(samples, minlength=MOST)
    tail_dist, share = compute_tail_dist(counts), counts / counts.sum()
    part = gemjax.rules.scale_by_staleness_distribution("tail", bins=MOST, warmup=0)

    def factor(staleness):
        others = list(samples)
        others.remove(staleness)  # The commit itself is the last one of the samples.
        commit = lambda state, tau: part.update(jnp.ones([]), state, staleness=tau, num_workers=threads)[::-1]
        return jax.lax.scan(commit, part.init(None), jnp.asarray([*others, staleness]))[1][-1]

    for staleness in sorted({*samples.tolist()}):
        expected = 1 + (1 - 2 * tail_dist[staleness]) - share[staleness]
        np.testing.assert_allclose(factor(staleness), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("threads", [15, 31])
def test_fleet(threads):
    weight = gemjax.rules.exponential_weight(threads + 1)
    expected = [fleet(tau, threads) for tau in range(40)]
    np.testing.assert_allclose(weight(jnp.arange(40)), expected, rtol=1e-5)
    if threads == 15:
        np.testing.assert_allclose(expected[:3], [1.0, 0.760, 0.577], atol=5e-4)


@pytest.mark.parametrize("threads", [4, 16])
def test_fleet_with_a_threshold_that_is_odd_rounds_its_half_down(threads):
    """The program divides two integers, a deviation of :func:`gemjax.rules.exponential_weight`."""
    weight = gemjax.rules.exponential_weight(threads + 1)
    half = (threads + 1) / 2
    exact = lambda tau: (1 + half) ** (-tau / half)
    theirs = lambda tau: (1 + threads // 2) ** (-tau / half)
    for tau in (1, 5, 20):
        assert float(weight(jnp.int32(tau))) == pytest.approx(exact(tau), rel=1e-5)
        assert fleet(tau, threads) == pytest.approx(theirs(tau), rel=1e-9)


def test_inverse():
    tx, delays = gemjax.dynsgd(1.0, 8), [0, 1, 5, 30]
    state = tx.init(jnp.zeros([]))
    for delay in delays:
        clock = int(state.clock)
        for other in range(delay):
            _, state = tx.update(jnp.ones([]), state, worker=1 + other % 7)
        updates, state = tx.update(jnp.ones([]), state, worker=0)
        assert -updates.item() == pytest.approx(1 / (delay + 1))
        _, state = gemjax.pull(state, jnp.zeros([]), 0)
        assert int(state.clock) == clock + delay + 1
