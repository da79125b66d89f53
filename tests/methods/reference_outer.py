"""Reference implementations of outer optimizers in NumPy, float64 and the papers' notation, one event loop each.

Written from the papers' algorithms, not from the library, with the arguments of ``reference.py``. Here ``grad(x, i, j)`` is
the pseudo-gradient of a worker that pulled x: x less the point after its local steps.
"""

from collections import Counter, defaultdict

import numpy as np


def delayed_nesterov(theta_0, grad, order, epsilon, beta, N, c=0.0):
    """Server of asynchronous local SGD: a buffer Delta that is merged into a momentum at every N-th step."""
    theta, m, Delta = theta_0.copy(), np.zeros_like(theta_0), np.zeros_like(theta_0)
    start, steps, history = defaultdict(lambda: theta_0), defaultdict(int), []
    for t, i in enumerate(order):
        g = grad(start[i], i, steps[i])
        Delta = Delta + g
        if (t + 1) % N == 0:
            m = beta * m + Delta / N
            theta = theta - epsilon(t) * ((1 - c * N + c) * beta * m + g / N)
            Delta = np.zeros_like(theta_0)
        else:
            theta = theta - epsilon(t) * (c * beta * m + g / N)
        start[i] = theta
        steps[i] += 1
        history.append(theta)
    return np.stack(history)


def delayed_sgd(theta_0, grad, order, eta, beta, K, nesterov=True):
    """Server that stores K displacements, whose mean then makes a step: b <- beta b + Delta."""
    theta, b, arrived = theta_0.copy(), np.zeros_like(theta_0), []
    start, steps, history = defaultdict(lambda: theta_0), defaultdict(int), []
    for t, i in enumerate(order):
        arrived.append(grad(start[i], i, steps[i]))
        if len(arrived) == K:
            Delta = np.mean(arrived, axis=0)
            b = beta * b + Delta
            theta = theta - eta(t) * (Delta + beta * b if nesterov else b)
            arrived = []
        start[i] = theta
        steps[i] += 1
        history.append(theta)
    return np.stack(history)


def diloco(theta_0, grad, k, rounds, eta, beta):
    """DiLoCo: all k workers start a round at the same theta; theta after each round."""
    theta, b, history = theta_0.copy(), np.zeros_like(theta_0), []
    for t in range(rounds):
        Delta = sum(grad(theta, i, t) for i in range(k)) / k
        b = beta * b + Delta
        theta = theta - eta * (Delta + beta * b)
        history.append(theta)
    return np.stack(history)


def slowmo(x_0, grad, m, rounds, alpha, beta, gamma):
    """SlowMo over local SGD of rate gamma: u <- beta u + (x - mean x_tau) / gamma ; x <- x - alpha gamma u."""
    x, u, history = x_0.copy(), np.zeros_like(x_0), []
    for t in range(rounds):
        x_tau = np.mean([x - grad(x, i, t) for i in range(m)], axis=0)
        u = beta * u + (x - x_tau) / gamma
        x = x - alpha * gamma * u
        history.append(x)
    return np.stack(history)


def mla(theta_0, grad, order, eta, gamma):
    """Momentum look-ahead as its server runs it: m <- gamma m + (1 - gamma) Delta ; theta <- theta - eta (gamma m + Delta)."""
    theta, m = theta_0.copy(), np.zeros_like(theta_0)
    start, steps, history = defaultdict(lambda: theta_0), defaultdict(int), []
    for t, i in enumerate(order):
        Delta = grad(start[i], i, steps[i])
        m = gamma * m + (1 - gamma) * Delta
        theta = theta - eta(t) * (gamma * m + Delta)
        start[i] = theta
        steps[i] += 1
        history.append(theta)
    return np.stack(history)


def mla_looking_ahead(theta_0, grad, order, eta, gamma):
    """Return the views before the change of variables: d = -eta gamma m ; theta <- theta + d - eta Delta(theta + d)."""
    theta, m, d = theta_0.copy(), np.zeros_like(theta_0), np.zeros_like(theta_0)
    start, steps, sent = defaultdict(lambda: theta_0), defaultdict(int), []
    for i in order:
        Delta = grad(start[i], i, steps[i])
        theta = theta + d - eta * Delta
        m = gamma * m + (1 - gamma) * Delta
        d = -eta * gamma * m
        start[i] = theta + d
        steps[i] += 1
        sent.append(start[i])
    return np.stack(sent)


def heloco_block(Delta, m, c_ok, k_s, beta_max, k_d, kappa, eps):
    """Correct one tensor block; returns the block and the number of the case."""
    length, momentum = np.linalg.norm(Delta), np.linalg.norm(m)
    if length < eps or momentum < eps:
        return Delta, "nothing"
    u, v = Delta / length, m / momentum
    c = u.ravel() @ v.ravel()
    conf = length / (length + kappa * momentum + eps)
    if c >= c_ok:
        return Delta, "keep"
    if c < 0:
        beta = min(k_s * (-c) * conf, beta_max)
        return Delta - beta * c * length * v, "shrink"
    lam = min(k_d * (1 - c) * conf, 1)
    mix = (1 - lam) * u + lam * v
    return length * mix / max(np.linalg.norm(mix), eps), "rotate"


def heloco(theta_0, grad, order, eta, mu, blocks, rho, c_ok=0.2, k_s=0.5, beta_max=0.5, k_d=1.0, kappa=3.0, eps=1e-8):
    """HeLoCo over ``blocks`` (slices of the vector): theta after each arrival, the points sent, and a count of the cases."""
    theta, m = theta_0.copy(), np.zeros_like(theta_0)
    start, steps, history, sent, cases = defaultdict(lambda: theta_0), defaultdict(int), [], [], Counter()
    for t, i in enumerate(order):
        Delta, G = grad(start[i], i, steps[i]), np.zeros_like(theta_0)
        for b in blocks:
            corrected, case = heloco_block(Delta[b], m[b], c_ok, k_s, beta_max, k_d, kappa, eps)
            G[b] = rho * corrected
            cases[case] += 1
        m = mu * m + (1 - mu) * G
        theta = theta - eta(t) * (G + mu * m)
        start[i] = theta - eta(t) * mu * m
        steps[i] += 1
        history.append(theta)
        sent.append(start[i])
    return np.stack(history), np.stack(sent), cases
