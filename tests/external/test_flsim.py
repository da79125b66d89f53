"""Tests of FLSim's asynchronous aggregators and weights.

Source: https://github.com/facebookresearch/FLSim/tree/7311f2d, ``flsim/utils/async_trainer/async_staleness_weights.py``,
``flsim/optimizers/async_aggregators.py`` and their tests. Weights by a worker's number of examples, privacy, and a momentum
that rises with the staleness are not in gemjax (deviations 2 and 3 of FedBuff).
"""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax
from gemjax.methods.gather import weight_by_name

RNG = np.random.default_rng(0)


def flsim_weight(raw, avg_staleness):
    """Return FLSim's weight: the raw one, divided by that of the mean staleness."""
    return lambda staleness: raw(staleness) / raw(avg_staleness)


def threshold(cutoff, value):
    """Return FLSim's threshold: 1 up to the cutoff, then ``value``. In gemjax it is a function given to ``weight``."""
    raw = lambda staleness: 1.0 if staleness <= cutoff else value
    return raw, lambda staleness: jnp.where(staleness <= cutoff, 1.0, value)


@pytest.mark.parametrize("avg_staleness", [0, 1, 10_000])
def test_weights(x64, avg_staleness):
    for _ in range(4):
        staleness, cutoff = RNG.integers(1, 10_000, 2)
        value, exponent = RNG.uniform(size=2)
        cases = [
            (lambda tau: 1.0, "constant"),
            (lambda tau, a=exponent: 1 / (1 + tau) ** a, gemjax.rules.polynomial_weight(exponent)),
            (lambda tau: 1 / (1 + tau) ** 0.5, "polynomial"),
            threshold(cutoff, value),
        ]
        for raw, given in cases:
            weight = weight_by_name(given, float(avg_staleness))
            found = 1.0 if weight is None else float(weight(jnp.int32(staleness)))
            assert found == pytest.approx(flsim_weight(raw, avg_staleness)(staleness), rel=1e-12)


def _one_step(make, local, central, weight):
    """Return the central variable after two commits from 1: the first moves it to ``central``, the second goes to ``local``."""
    tx = make(lambda staleness: jnp.where(staleness == 0, 1.0, weight))
    params = jnp.ones([])
    state = tx.init(params)
    for worker, point in ((1, central), (0, local)):
        updates, state = tx.update(jnp.asarray(1.0 - point), state, params, worker=worker)
        params = optax.apply_updates(params, updates)
    return float(params)


def test_fed_buff_aggregation(x64):
    """Expect b + w (a - 1), also of a buffer of one."""
    make = lambda weight: gemjax.fedbuff(1.0, 2, buffer_size=1, weight=weight)
    for local, central, weight in RNG.uniform(size=(3, 3)):
        assert _one_step(make, local, central, weight) == pytest.approx(central + weight * (local - 1), abs=1e-12)


def test_fed_async_aggregation(x64):
    """Expect w a + (1 - w) b."""
    make = lambda weight: gemjax.fedasync(1.0, 2, weight=weight)
    for local, central, weight in RNG.uniform(size=(3, 3)):
        expected = weight * local + (1 - weight) * central
        assert _one_step(make, local, central, weight) == pytest.approx(expected, abs=1e-12)


def _committed(tx, displacements, weights):
    """Return the central variable after the displacements; the weight of a commit is looked up by its count."""
    params = jnp.zeros(3)
    state, moved = tx.init(params), []
    for displacement, weight in zip(displacements, weights, strict=True):
        updates, state = tx.update(jnp.asarray(weight * displacement), state, params, worker=0)
        params = optax.apply_updates(params, updates)
        moved.append(bool(jnp.any(updates != 0)))
        _, state = gemjax.pull(state, params, 0)
    return np.asarray(params), moved


def test_a_buffer_of_all_users_reaches_the_point_of_asynchronous_commits(x64):
    """FLSim's step takes the sum; gemjax's takes the mean, so its rate is the number of users (deviation 1)."""
    displacements, weights = RNG.normal(size=(10, 3)), RNG.uniform(size=10)
    one_by_one, _ = _committed(gemjax.fedbuff(1.0, buffer_size=1), displacements, weights)
    together, _ = _committed(gemjax.fedbuff(10.0, buffer_size=10), displacements, weights)
    np.testing.assert_allclose(together, one_by_one, rtol=1e-12)


def test_the_order_of_users_does_not_matter(x64):
    displacements, weights = RNG.normal(size=(10, 3)), RNG.uniform(size=10)
    order = RNG.permutation(10)
    first, _ = _committed(gemjax.fedbuff(1.0, buffer_size=5), displacements, weights)
    second, _ = _committed(gemjax.fedbuff(1.0, buffer_size=5), displacements[order], weights[order])
    np.testing.assert_allclose(second, first, rtol=1e-12)


@pytest.mark.parametrize(
    "buffer_size", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(7, marks=pytest.mark.slow)]
)
def test_the_global_model_is_updated_only_at_the_threshold(buffer_size):
    _, moved = _committed(gemjax.fedbuff(1.0, buffer_size=buffer_size), np.ones((19, 3)), np.ones(19))
    assert moved == [(k + 1) % buffer_size == 0 for k in range(19)]


def test_a_threshold_of_zero_ignores_stale_users(x64):
    """Three users start at once; only the first has a staleness of 0, so the others need not exist."""
    _, given = threshold(0, 0.0)
    displacements = RNG.normal(size=(3, 3))
    for tx in (gemjax.fedbuff(1.0, 3, buffer_size=1, weight=given), gemjax.fedasync(1.0, 3, weight=given)):
        params = jnp.zeros(3)
        state = tx.init(params)
        for user in range(3):
            updates, state = tx.update(jnp.asarray(displacements[user]), state, params, worker=user)
            params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(params, -displacements[0], rtol=1e-12)


def test_a_polynomial_weight_cancels_the_weight_of_examples(x64):
    """User 2 returns first (weight 1), user 1 has a staleness of 1 (1/2) and twice the examples (2): both count alike."""
    weight = gemjax.rules.polynomial_weight(1.0)
    tx, plain = gemjax.fedbuff(1.0, 2, buffer_size=1, weight=weight), gemjax.downpour(1.0, 2)
    displacements, found = RNG.normal(size=(2, 3)), []
    for method, examples in ((tx, {1: 1.0, 0: 2.0}), (plain, {1: 1.0, 0: 1.0})):
        params = jnp.zeros(3)
        state = method.init(params)
        for user in (1, 0):
            weighted = jnp.asarray(examples[user] * displacements[user])
            updates, state = method.update(weighted, state, params, worker=user)
            params = optax.apply_updates(params, updates)
        found.append(params)
    np.testing.assert_allclose(*found, rtol=1e-12)


def _momentum(lr, m=0.9):
    """Return the step of SGD with momentum, as PyTorch has it."""
    buf = 0.0

    def step(g):
        nonlocal buf
        buf = m * buf + g
        return lr * buf

    return step


def _adam(lr, b1=0.9, b2=0.999, eps=1e-3):
    """Return the step of Adam, as PyTorch has it."""
    m = v = t = 0

    def step(g):
        nonlocal m, v, t
        m, v, t = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g, t + 1
        return lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)

    return step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "inner"),
    [(_momentum, lambda: optax.trace(0.9)), (_adam, lambda: optax.scale_by_adam(eps=1e-3))],
    ids=["FedAvgWithLRHybridAggregator with momentum", "FedAdamHybridAggregator"],
)
def test_an_optimizer_at_the_server(x64, server, inner):
    """HybridAggregator: total += delta * weight; at a full buffer the optimizer takes one step along the total."""
    K, lr, workers = 3, 0.1, 4
    displacements, order = RNG.normal(size=(20, 3)), RNG.integers(0, workers, 20)
    theta, total, pulled, version, reported, step, expected = np.zeros(3), 0.0, [0] * workers, 0, 0, server(lr), []
    for delta, user in zip(displacements, order, strict=True):
        total, reported = total + delta / np.sqrt(1 + version - pulled[user]), reported + 1
        if reported == K:
            theta, total, reported, version = theta - step(total), 0.0, 0, version + 1
        pulled[user] = version
        expected.append(theta)
    # The program's total is K times the mean (deviation 1).
    tx = gemjax.fedbuff(lr, workers, buffer_size=K, inner=optax.chain(optax.scale(float(K)), inner()))
    params, found = jnp.zeros(3), []
    state = tx.init(params)
    for delta, user in zip(displacements, order, strict=True):
        updates, state = tx.update(jnp.asarray(delta), state, params, worker=int(user))
        params = optax.apply_updates(params, updates)
        _, state = gemjax.pull(state, params, int(user))
        found.append(np.asarray(params))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_buffer_of_all_workers_with_momentum_is_diloco(x64):
    displacements, found = RNG.normal(size=(12, 3)), []
    inner = optax.trace(0.9, nesterov=True)
    for tx in (gemjax.fedbuff(0.7, 3, buffer_size=3, weight="constant", inner=inner), gemjax.diloco(0.7, 0.9, 3)):
        found.append(_committed(tx, displacements, np.ones(12))[0])
    np.testing.assert_allclose(*found, rtol=1e-12)
