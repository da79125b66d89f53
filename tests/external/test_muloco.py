"""The outer step of MuLoCo-1, written anew from the authors' program.

Source: https://github.com/bentherien/muloco-1/tree/33cc333, ``muloco/jax/muloco.py`` (arXiv 2505.23725, algorithm 1 with one
worker) and ``tests/test_jax.py``. Its momentum carries the rate; at a constant rate that is :func:`gemjax.diloco`. Its local
optimizer is ``optax.contrib.muon``, as here.
"""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax

TARGET = np.array([1.0, -2.0, 0.5])


def muloco_1(theta, inner_step, rounds, H, eta_out=0.7, mu=0.6, gradient_at=lambda theta: theta - TARGET):
    """Every H steps: u <- mu u + eta delta ; theta <- ref - mu u - eta delta. ``inner_step`` keeps its state."""
    theta_ref, u, history = theta, np.zeros_like(theta), []
    for _ in range(rounds):
        for _ in range(H):
            theta = theta + inner_step(gradient_at(theta))
        delta = theta_ref - theta
        u = mu * u + eta_out * delta
        theta = theta_ref - mu * u - eta_out * delta
        theta_ref = theta
        history.append(theta)
    return np.stack(history)


class HeavyBall:
    """Local SGD with momentum, whose velocity survives the outer step."""

    def __init__(self):
        self.velocity = 0.0

    def __call__(self, g):
        self.velocity = 0.5 * self.velocity + g
        return -0.02 * self.velocity


@pytest.mark.slow
@pytest.mark.parametrize("H", [pytest.param(1, marks=pytest.mark.slow), 30])
def test_diloco_is_its_outer_step(x64, H):
    expected = muloco_1(np.zeros(3), HeavyBall(), 6, H)
    found = []
    gemjax.simulate(
        gemjax.diloco(0.7, 0.6, 1), lambda params, batch: 0.5 * jnp.sum((params - TARGET) ** 2), jnp.zeros(3),
        lambda worker, step: 0.0, gemjax.arrivals.RoundRobin(1).trace(6),
        local=gemjax.LocalSteps(optax.sgd(0.02, 0.5), H),
        callback=lambda progress: found.append(np.asarray(progress.params)), callback_every=1,
    )  # fmt: skip
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


# Their tests 3 and 7: a network of matrices alone, fitted to a sine, with the local rate 0.01 and H = 10.
RNG = np.random.default_rng(42)
SHAPES = {"w1": (4, 8), "w2": (8, 8), "w3": (8, 4)}
NETWORK = {name: 0.3 * RNG.normal(size=shape) for name, shape in SHAPES.items()}
X = RNG.normal(size=(32, 4))


def regression(w, batch):
    hidden = jnp.tanh(jnp.tanh(X @ w["w1"]) @ w["w2"])
    return jnp.mean((hidden @ w["w3"] - jnp.sin(X)) ** 2)


class Optax:
    """Local steps of an optax optimizer on the network, flattened."""

    def __init__(self, tx):
        self.tx, self.state = tx, tx.init(NETWORK)
        _, self.unravel = jax.flatten_util.ravel_pytree(NETWORK)
        self.update = jax.jit(lambda w, state: tx.update(jax.grad(regression)(w, None), state, w))

    def __call__(self, theta):
        updates, self.state = self.update(self.unravel(theta), self.state)
        return np.asarray(jax.flatten_util.ravel_pytree(updates)[0])


@pytest.mark.slow
def test_local_steps_of_muon(x64):
    """The points after each outer step are the same, and the loss falls by more than half, as there."""
    start = np.asarray(jax.flatten_util.ravel_pytree(NETWORK)[0])
    expected = muloco_1(start, Optax(optax.contrib.muon(0.01)), 8, 10, gradient_at=lambda theta: theta)
    found = []
    result = gemjax.simulate(
        gemjax.diloco(0.7, 0.6, 1), regression, jax.tree.map(jnp.asarray, NETWORK), lambda worker, step: 0.0,
        gemjax.arrivals.RoundRobin(1).trace(8), local=gemjax.LocalSteps(optax.contrib.muon(0.01), 10),
        callback=lambda progress: found.append(jax.flatten_util.ravel_pytree(progress.params)[0]), callback_every=1,
    )  # fmt: skip
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)  # Newton-Schulz amplifies rounding.
    assert regression(result.params, None) < 0.5 * regression(NETWORK, None)


def test_an_outer_step_follows_every_fifth_local_step(x64):
    """Their test 5: local SGD with rate 0.01, outer rate and momentum 0.5; the state in between is that of SGD."""
    theta = start = np.array([1.0, -2.0, 0.5]) * 0.1
    u, history = np.zeros(3), []
    reference = theta
    for step in range(1, 21):
        theta = theta - 0.01 * (theta - TARGET)
        if step % 5 == 0:
            delta = reference - theta
            u = 0.5 * u + 0.5 * delta
            theta = reference = reference - 0.5 * u - 0.5 * delta
            history.append(theta)
    found = []
    gemjax.simulate(
        gemjax.diloco(0.5, 0.5, 1), lambda params, batch: 0.5 * jnp.sum((params - TARGET) ** 2), jnp.asarray(start),
        lambda worker, step: 0.0, gemjax.arrivals.RoundRobin(1).trace(4),
        local=gemjax.LocalSteps(optax.sgd(0.01), 5),
        callback=lambda progress: found.append(np.asarray(progress.params)), callback_every=1,
    )  # fmt: skip
    np.testing.assert_allclose(found, history, rtol=0, atol=1e-13)
