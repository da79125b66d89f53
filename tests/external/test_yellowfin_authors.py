"""The open loop of YellowFin as its authors' program computes it, and their own test.

Source: https://github.com/JianGoForIt/YellowFin_Pytorch/tree/b87aed1, ``tuner_utils/yellowfin.py`` and ``yellowfin_test.py``.
No branch of the program has the closed loop.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gemjax
from gemjax.protocol.diagnostics import Observer

EPS = 1e-6
DIMENSION = 1000
STEPS = 50


class Program:
    """The authors' measurements and their solution; without clipping."""

    def __init__(self, beta=0.999, width=20):
        self.beta, self.width, self.t, self.window = beta, width, 0, []
        self.mean = dict.fromkeys(("h_min", "h_max", "h", "norm", "distance", "g"), 0.0)

    def average(self, name, value):
        self.mean[name] = self.beta * self.mean[name] + (1 - self.beta) * value
        return self.mean[name]

    def __call__(self, g):
        """Return the largest and smallest curvature, variance, distance, rate and momentum."""
        h = np.sum(g**2)
        b = 1 - self.beta ** (self.t + 1)
        self.window = [*self.window, h][-self.width :]
        logs = np.log(np.array(self.window) + EPS)
        h_min, h_max = (np.exp(self.average(n, v) / b) for n, v in (("h_min", logs.min()), ("h_max", logs.max())))
        mean_h, mean_g = self.average("h", h), self.average("g", g)
        variance = max(mean_h / b - np.sum(mean_g**2) / b**2, EPS)
        distance = self.average("distance", self.average("norm", math.sqrt(h)) / (mean_h + EPS)) / b
        p = (distance + EPS) ** 2 * (h_min + EPS) ** 2 / 2 / (variance + EPS)
        w3 = (-math.sqrt(p**2 + 4.0 / 27.0 * p**3) - p) / 2.0
        w = math.copysign(1.0, w3) * math.fabs(w3) ** (1.0 / 3.0)
        x = w - p / 3.0 / (w + EPS) + 1
        dr = max((h_max + EPS) / (h_min + EPS), 1.0 + EPS)
        mu = max(x**2, ((math.sqrt(dr) - 1) / (math.sqrt(dr) + 1)) ** 2)
        rate = (1.0 - math.sqrt(mu)) ** 2 / (h_min + EPS)
        self.t += 1
        return h_max, h_min, variance, distance, min(rate, rate * self.t / (10.0 * self.width)), mu


def found_and_expected(gradients):
    """Return rate and momentum of gemjax and of the program, per commit; and the program's other measurements."""
    tx, program = gemjax.yellowfin(closed_loop=False), Program()
    params = jnp.zeros(gradients.shape[1])
    state, rows = tx.init(params), []

    @jax.jit
    def commit(state, g):
        observer = Observer(["learning_rate", "target_momentum"])
        _, state = tx.update(g, state, params, worker=0, observe=observer)
        return gemjax.pull(state, params, 0)[1], observer.collected()

    for g in gradients:
        state, seen = commit(state, jnp.asarray(g))
        rows.append((float(seen["learning_rate"]), float(seen["target_momentum"]), *program(g)))
    rows = np.array(rows)
    return rows[:, :2], rows[:, 6:], rows[:, 2:6]


def test_the_gradients_of_their_test(x64):
    """g_t = (t + 1) 1. The first commit is tuned here and not there (deviation 3)."""
    gradients = (np.arange(STEPS) + 1.0)[:, None] * np.ones((1, DIMENSION))
    found, expected, measured = found_and_expected(gradients)
    np.testing.assert_allclose(found[1:], expected[1:], rtol=1e-3)
    for t in range(1, STEPS):  # The closed forms of their test, for what it does not smooth in logarithms.
        weights = 0.999 ** np.arange(t, -1, -1) / np.sum(0.999 ** np.arange(t + 1))
        seen = np.arange(t + 1) + 1.0
        variance = DIMENSION * (weights @ seen**2 - (weights @ seen) ** 2)
        assert measured[t, 2] == pytest.approx(variance, rel=1e-3)


def test_noisy_gradients(x64):
    """Rates and momenta agree up to the program's epsilon, which it adds in other places."""
    gradients = np.random.default_rng(0).normal(0.5, 1.0, (STEPS, 40))
    found, expected, _ = found_and_expected(gradients)
    np.testing.assert_allclose(found[1:], expected[1:], rtol=1e-4)
    assert np.ptp(found[:, 1]) > 0.05
