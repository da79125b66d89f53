"""Gap-Aware Adam, the one-step-delay correction and YellowFin once more, as :mod:`methods.reference` has the others."""

from collections import defaultdict

import numpy as np


def gap_aware_adam(theta_0, grad, order, eta, b1=0.9, b2=0.999, eps=1e-8, eps_gap=1e-8):
    """g / (1 + |theta - x_i| / C) goes into Adam; a takes in Adam's step without its rate, after the step."""
    theta, x = theta_0.copy(), defaultdict(lambda: theta_0)
    m = v = a = np.zeros_like(theta_0)
    eta_max, steps, history = 0.0, defaultdict(int), []
    for t, i in enumerate(order):
        eta_max = max(eta_max, eta(t))
        g = grad(x[i], i, steps[i])
        if t > 0:
            C = eta_max * (np.sqrt(a / (1 - b2**t)) + eps_gap)
            g = g / (1 + np.abs(theta - x[i]) / C)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        step = (m / (1 - b1 ** (t + 1))) / (np.sqrt(v / (1 - b2 ** (t + 1))) + eps)
        a = b2 * a + (1 - b2) * step**2
        theta = theta - eta(t) * step
        x[i] = theta
        steps[i] += 1
        history.append(theta)
    return np.stack(history)


def one_step_delay(w_0, grad, order, eta, gamma, c=1.0):
    """u_t = eta v, the step of SGD with momentum; w <- w - u_t - c (u_t - u_{t-1}), the first step plain."""
    w, held, v, u_before = w_0.copy(), defaultdict(lambda: w_0), np.zeros_like(w_0), None
    steps, history = defaultdict(int), []
    for t, i in enumerate(order):
        v = gamma * v + grad(held[i], i, steps[i])
        u = eta(t) * v
        w = w - u if u_before is None else w - u - c * (u - u_before)
        u_before = u
        held[i] = w
        steps[i] += 1
        history.append(w)
    return np.stack(history)
