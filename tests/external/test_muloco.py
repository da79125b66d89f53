"""The outer step of MuLoCo-1, written anew from the authors' program.

Source: https://github.com/bentherien/muloco-1/tree/33cc333, ``muloco/jax/muloco.py`` (arXiv 2505.23725, algorithm 1 with one
worker). Its momentum carries the rate; at a constant rate that is :func:`gemjax.diloco`.
"""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax

TARGET = np.array([1.0, -2.0, 0.5])


def muloco_1(theta, inner_step, rounds, H, eta_out=0.7, mu=0.6):
    """Every H steps: u <- mu u + eta delta ; theta <- ref - mu u - eta delta. ``inner_step`` keeps its state."""
    theta_ref, u, history = theta, np.zeros_like(theta), []
    for _ in range(rounds):
        for _ in range(H):
            theta = theta + inner_step(theta - TARGET)
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


@pytest.mark.parametrize("H", [pytest.param(1, marks=pytest.mark.slow), 30])
def test_diloco_is_its_outer_step(x64, H):
    expected = muloco_1(np.zeros(3), HeavyBall(), 6, H)
    found = []
    gemjax.simulate(
        gemjax.diloco(0.7, 0.6, 1), lambda params, batch: 0.5 * jnp.sum((params - TARGET) ** 2), jnp.zeros(3),
        lambda worker, step: 0.0, gemjax.arrivals.RoundRobin(1).trace(6),
        local=gemjax.LocalSteps(optax.sgd(0.02, 0.5), H),
        callback=lambda progress: found.append(np.asarray(progress.params)), chunk_size=1,
    )  # fmt: skip
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
