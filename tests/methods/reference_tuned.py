"""Reference implementations of Gap-Aware Adam, the one-step-delay correction and YellowFin; see :mod:`methods.reference`."""

from collections import defaultdict

import numpy as np


def gap_aware_adam(theta_0, grad, order, eta, b1=0.9, b2=0.999, eps=1e-8, eps_gap=1e-8):
    """Gap-Aware Adam: g / (1 + |theta - x_i| / C) goes into Adam; then a takes in Adam's step without its rate."""
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


class Ema:
    """Running mean, corrected for its start at zero."""

    def __init__(self, beta):
        self.beta, self.value, self.n = beta, 0.0, 0

    def __call__(self, x):
        self.value, self.n = self.beta * self.value + (1 - self.beta) * x, self.n + 1
        return self.value / (1 - self.beta**self.n)


class Tuner:
    """Open loop from a gradient to (lr, mu). The cubic is solved by a search for its root."""

    def __init__(self, beta, w=20, eps=1e-6):
        self.means = {name: Ema(beta) for name in ("hmax", "hmin", "g", "h", "norm", "D")}
        self.w, self.eps, self.h = w, eps, []

    def __call__(self, g):
        mean, eps = self.means, self.eps
        self.h.append(np.sum(g**2))
        recent = np.log(np.array(self.h[-self.w :]) + eps)
        hmax, hmin = np.exp(mean["hmax"](recent.max())) + eps, np.exp(mean["hmin"](recent.min())) + eps
        h = mean["h"](self.h[-1])
        C = max(h - np.sum(mean["g"](g) ** 2), eps) + eps
        D = mean["D"](mean["norm"](np.sqrt(self.h[-1])) / (h + eps)) + eps
        p = D**2 * hmin**2 / (2 * C)
        low, high = 0.0, 1.0
        for _ in range(200):
            x = (low + high) / 2
            low, high = (low, x) if x * p > (1 - x) ** 3 else (x, high)
        mu = max(x**2, ((np.sqrt(hmax / hmin) - 1) / (np.sqrt(hmax / hmin) + 1)) ** 2)
        lr = (1 - np.sqrt(mu)) ** 2 / hmin
        return lr * min(1.0, len(self.h) / (10 * self.w)), mu


def yellowfin(x_0, grad, order, eta, *, beta=0.999, kappa=0.01, closed_loop=True):
    """YellowFin. Returns x after each commit, and (mu, mu_target, mu_T) of each, NaN where not measured."""
    num_workers, tuner, mu = len(set(order)), Tuner(beta), 0.0
    x, pulled, v, seen, history = x_0.copy(), defaultdict(lambda: (x_0, 0, 0)), [], [], []
    for t, i in enumerate(order):
        view, s, j = pulled[i]
        g = grad(view, i, j)
        lr, mu_target = tuner(g)
        if not closed_loop:
            mu = mu_target
        v.append(mu * (v[-1] if v else 0.0) + g)
        x = x - eta(t) * lr * v[-1]
        mu_total = np.median((v[s] - g) / v[s - 1]) if s > 0 and t - s <= 2 * num_workers else np.nan
        seen.append((mu, mu_target, mu_total))
        if not np.isnan(mu_total):
            mu = mu + kappa * (mu_target - mu_total)
        pulled[i] = (x, t + 1, j + 1)
        history.append(x)
    return np.stack(history), np.array(seen)
