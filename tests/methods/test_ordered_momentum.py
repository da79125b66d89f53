"""Ordered momentum against synchronous momentum with the same gradients, and its limits."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods.row import Row
from methods.runs import NUM_WORKERS, ORDER, THETA_0, grad, run, schedule

import gemjax

N, BETA = NUM_WORKERS, 0.8
ROWS = (Row("ordered-momentum", gemjax.ordered_momentum, 0.005, {"momentum": 0.5}, variant=True),)


def ormo(theta_0, grad, order, eta, beta, K):
    """Shi et al.: iterations from 1, b = ceil(k / K); u is shifted once per rise of b."""
    theta, u, b = theta_0, np.zeros_like(theta_0), 1
    received, issued, steps, history = {}, {}, dict.fromkeys(order, 0), []
    for k, i in enumerate(order, start=1):
        g = grad(received.get(i, theta_0), i, steps[i])
        if -(-k // K) > b:
            b, theta, u = -(-k // K), theta - eta(k - 1) * beta * u, beta * u
        late = b - -(-issued.get(i, 1) // K)
        u = u + beta**late * g
        theta = theta - eta(k - 1) * sum(beta**j for j in range(late + 1)) * g
        received[i], issued[i] = theta, k + 1
        steps[i] += 1
        history.append(theta)
    return np.stack(history)


def test_it_equals_the_reference(x64):
    found, _ = run(gemjax.ordered_momentum(schedule, BETA, N))
    expected = ormo(THETA_0, grad, ORDER, schedule, BETA, N)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * max(1.0, np.abs(expected).max()))


def test_the_order_of_arrival_does_not_matter_to_where_constant_gradients_end(x64):
    """Each gradient has contributed a geometric sum over the rounds since its pull, whenever it arrived."""
    tx, theta, rng = gemjax.ordered_momentum(1.0, BETA, 3), jnp.zeros(1), np.random.default_rng(0)
    state, pulled, seen = tx.init(theta), [0, 0, 0], []
    for t, worker in enumerate(rng.choice(3, size=40, p=[0.6, 0.3, 0.1]).tolist()):
        g = rng.normal()
        updates, state = tx.update(jnp.full(1, g), state, theta, worker=worker)
        theta = theta + updates
        _, state = gemjax.pull(state, theta, worker)
        seen.append((g, pulled[worker] // 3))
        pulled[worker] = t + 1
        expected = -sum(g * (1 - BETA ** (t // 3 - b + 1)) / (1 - BETA) for g, b in seen)
        np.testing.assert_allclose(theta[0], expected, rtol=0, atol=1e-12)


def test_without_momentum_it_is_asgd(x64):
    found, _ = run(gemjax.ordered_momentum(0.05, 0.0, N))
    expected, _ = run(gemjax.asgd(0.05, N))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rate", [0.02, lambda t: 0.02 / (1 + t)], ids=["constant", "schedule"])
def test_with_one_worker_it_is_heavy_ball(x64, rate):
    found, _ = run(gemjax.ordered_momentum(rate, BETA), [0] * 40)
    expected, _ = run(optax.with_extra_args_support(gemjax.momentum_asgd(rate, BETA)), [0] * 40)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


def test_with_a_barrier_it_is_synchronous_sgd_with_momentum(x64):
    tx, params = gemjax.ordered_momentum(0.05, BETA, 3), jnp.asarray(THETA_0)
    state, expected, u = tx.init(params), THETA_0, np.zeros_like(THETA_0)
    for j in range(6):
        view = np.asarray(params)
        u = BETA * u + sum(grad(expected, i, j) for i in range(3))
        expected = expected - 0.05 * u
        for i in (2, 0, 1):
            updates, state = tx.update(jnp.asarray(grad(view, i, j)), state, params, worker=i)
            params = params + updates
        for i in range(3):
            _, state = gemjax.pull(state, params, i)
        np.testing.assert_allclose(params, expected, rtol=0, atol=1e-12)
