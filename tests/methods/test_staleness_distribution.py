"""Rules that fit the staleness of a run, against plain histograms and their limits."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods.row import Row
from methods.runs import NUM_WORKERS, ORDER, THETA_0, grad, run

import gemjax
from gemjax.methods.rates import scale_by_learning_rate

N = NUM_WORKERS


def scaled(learning_rate, num_workers=1, *, rule="tail", momentum=0.9, warmup=0):
    """Return ASGD scaled by the distribution of staleness."""
    part = gemjax.rules.scale_by_staleness_distribution(rule, momentum=momentum, warmup=warmup)
    return gemjax.asynchronous(optax.chain(part, scale_by_learning_rate(learning_rate)), num_workers)


def first_of_each(staleness, num_workers):
    """Return the factor where each staleness has come once, in order."""
    del num_workers
    return 1 / (staleness + 1)


ROWS = (Row("staleness-distribution", scaled, 0.01, variant=True, factor=first_of_each),)


def by_histogram(theta_0, grad, order, eta, factor, warmup):
    """Count each staleness, and multiply the rate by ``factor(tau, counts)`` after the first ``warmup`` commits."""
    theta, received, pulled, steps, counts, history = theta_0, {}, {}, dict.fromkeys(order, 0), {}, []
    for t, i in enumerate(order):
        tau = t - pulled.get(i, 0)
        counts[tau] = counts.get(tau, 0) + 1
        g = grad(received.get(i, theta_0), i, steps[i])
        theta = theta - eta * (factor(tau, counts) if t >= warmup else 1.0) * g
        steps[i] += 1
        received[i], pulled[i] = theta, t + 1
        history.append(theta)
    return np.stack(history)


def tail(tau, counts):
    """ASAP.SGD with the middle rank: 2 for what is fresher than all others, 0 for what is older than all others."""
    below, here = sum(c for i, c in counts.items() if i < tau), counts[tau]
    return 2 - (2 * below + here) / sum(counts.values())


def geometric(tau, counts):
    return min(0.7**tau * sum(counts.values()) / counts[tau], N)


@pytest.mark.parametrize("warmup", [0, None])
@pytest.mark.parametrize("factor", [tail, geometric])
def test_they_equal_the_reference(x64, factor, warmup):
    found, _ = run(scaled(0.05, N, rule=factor.__name__, momentum=0.7, warmup=warmup))
    expected = by_histogram(THETA_0, grad, ORDER, 0.05, factor, 10 * N if warmup is None else warmup)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


def factors(delays, **options):
    """Return the factors of commits with these delays, of eight workers."""
    tx = gemjax.rules.scale_by_staleness_distribution(warmup=0, **options)

    def step(state, staleness):
        updates, state = tx.update(jnp.ones([]), state, staleness=staleness, num_workers=8)
        return state, updates

    return np.asarray(jax.lax.scan(step, tx.init(None), jnp.asarray(delays, jnp.int32))[1])


def test_the_tail_rule_leaves_equal_delays_alone_and_has_the_mean_one():
    np.testing.assert_allclose(factors([7] * 50), 1.0, rtol=1e-5)
    delays = np.random.default_rng(0).poisson(7, size=4000)
    found = factors(delays)[1000:]
    assert found.mean() == pytest.approx(1.0, abs=0.01)
    assert found[delays[1000:] <= 3].min() > 1.7
    assert found[delays[1000:] >= 13].max() < 0.1


def test_the_geometric_rule_makes_asynchrony_heavy_ball():
    """The expected weight of the gradient of i commits ago is r^i, whatever the distribution of delays."""
    delays = np.random.default_rng(0).choice(6, size=6000, p=[0.1, 0.1, 0.1, 0.2, 0.2, 0.3])
    found = factors(delays, rule="geometric", momentum=0.6, cap=100.0)[2000:]
    weights = [found[delays[2000:] == i].sum() / len(found) for i in range(6)]
    np.testing.assert_allclose(weights, 0.6 ** np.arange(6), rtol=0.06)
    assert factors([3, 0, 2, 0], rule="geometric", momentum=0.0).tolist() == [0, 2, 0, 2]


@pytest.mark.parametrize("most", [4, 16])
def test_the_exponential_weight_meets_that_of_dynsgd_at_half_of_the_usual_delay(most):
    weight = gemjax.rules.exponential_weight(most)
    np.testing.assert_allclose(weight(jnp.array([0, most // 2])), [1.0, 1 / (most // 2 + 1)], rtol=1e-6)
