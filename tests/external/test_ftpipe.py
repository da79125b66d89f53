"""Gap-Aware and weight prediction of FTPipe.

Source: https://github.com/saareliad/FTPipe/tree/986014d, ``pipe/pipeline/gap_aware/sgd_gap_aware.py``, ``adam_gap_aware.py``,
``pipe/optimizers/adam_record.py`` and ``pipe/pipeline/weight_prediction/sgd.py``. Gap-Aware with SGD, whose rule is
``methods.reference.gap_aware_port``, is compared in ``tests/methods/test_gap_aware.py``.
"""

from collections import defaultdict

import numpy as np
import optax
import pytest
from methods.runs import NUM_WORKERS, ORDER, THETA_0, grad, run

import gemjax


@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_weight_prediction_of_sgd_is_lwp_at_a_shorter_horizon(x64, steps):
    """The port predicts that the momentum decays and no gradient comes: rate (gamma - gamma^(d+1)) / (1 - gamma) buf."""
    gamma, rate = 0.9, 0.01
    fix = rate * gamma if steps == 1 else rate * (gamma - gamma ** (steps + 1)) / (1 - gamma)
    theta, buf, predicted = THETA_0.copy(), np.zeros_like(THETA_0), defaultdict(lambda: THETA_0)
    count, views = defaultdict(int), []
    for i in ORDER:
        buf = gamma * buf + grad(predicted[i], i, count[i])
        theta = theta - rate * buf
        predicted[i] = theta - fix * buf
        count[i] += 1
        views.append(predicted[i])
    horizon = (gamma - gamma ** (steps + 1)) / (1 - gamma)
    found, _ = run(gemjax.lwp(rate, gamma, NUM_WORKERS, horizon=horizon), views_instead=True)
    np.testing.assert_allclose(found, np.stack(views), rtol=0, atol=1e-11)


def adam_port(theta_0, order, lr, b1, b2, eps, corrected, first):
    """AdamGapAware on stashed parameters in front of the recording Adam.

    With ``corrected`` the mean square of steps is corrected for its start at zero (deviation 1), and the commits before
    ``first`` are not penalised.
    """
    p, stashed = theta_0.copy(), defaultdict(lambda: theta_0)
    m = v = step_sq = np.zeros_like(theta_0)
    count, history = defaultdict(int), []
    for t, i in enumerate(order):
        g = grad(stashed[i], i, count[i])
        if t >= first:
            mean = step_sq / (1 - b2**t) if corrected else step_sq
            g = g / (1 + np.abs(p - stashed[i]) / (np.sqrt(mean) + eps))
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        direction = m / (np.sqrt(v) / np.sqrt(1 - b2 ** (t + 1)) + eps)
        step_size = lr / (1 - b1 ** (t + 1))
        p = p - step_size * direction
        step_sq = b2 * step_sq + (1 - b2) * step_size**2 * direction**2
        stashed[i] = p
        count[i] += 1
        history.append(p)
    return np.stack(history)


def test_gap_aware_adam_is_the_port_but_for_the_correction_of_the_mean(x64):
    """At a constant rate. Epsilon is 0 in the gap, where the two scale it differently."""
    keywords = {"b1": 0.9, "b2": 0.99}
    tx = optax.chain(
        gemjax.rules.scale_by_gap(0.05, optax.scale_by_adam(**keywords, eps=1e-12), decay=0.99, eps=1e-12),
        optax.scale(-0.05),
    )
    found, _ = run(gemjax.asynchronous(tx, NUM_WORKERS))
    corrected = adam_port(THETA_0, ORDER, 0.05, 0.9, 0.99, 1e-12, corrected=True, first=1)
    np.testing.assert_allclose(found, corrected, rtol=0, atol=1e-9)
    plain = adam_port(THETA_0, ORDER, 0.05, 0.9, 0.99, 1e-12, corrected=False, first=1)
    assert np.abs(plain - corrected).max() > 1e-3


def test_without_a_gap_both_are_adam(x64):
    expected = adam_port(THETA_0, [0] * 30, 0.05, 0.9, 0.999, 1e-8, corrected=False, first=1)
    found, _ = run(gemjax.gap_aware_adam(0.05), [0] * 30)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)
