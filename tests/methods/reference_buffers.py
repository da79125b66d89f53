"""Reference implementations of the methods with buffers and tables in NumPy, float64 and the papers' notation.

Written from the papers' algorithms and their authors' programs, not from the library, with the arguments of ``reference.py``.
Each keeps whole tables and computes means anew, where the library keeps running means.
"""

from collections import defaultdict

import numpy as np


def ia2sgd(x_0, grad, order, gamma, n):
    """IA2SGD: a table with each worker's last gradient; x <- x - gamma mean(table) once each worker has an entry."""
    x, table = x_0.copy(), {}
    held, steps, history = defaultdict(lambda: x_0), defaultdict(int), []
    for t, i in enumerate(order):
        table[i] = grad(held[i], i, steps[i])
        if len(table) == n:
            x = x - gamma(t) * np.mean(list(table.values()), axis=0)
        held[i] = x
        steps[i] += 1
        history.append(x)
    return np.stack(history)


def malenia(x_0, grad, order, gamma, n, S):
    """Malenia: gradients at x^k in batches B_i, until (1/n sum 1/B_i)^-1 >= S/n. Returns x, and the number that counted."""
    x, k, batches, counted, history = x_0.copy(), 0, defaultdict(list), 0, []
    held, steps = defaultdict(lambda: (x_0, 0)), defaultdict(int)
    for i in order:
        point, version = held[i]
        g = grad(point, i, steps[i])
        if version == k:
            batches[i].append(g)
            counted += 1
            B = [len(batches[j]) for j in range(n)]
            if min(B) > 0 and n / sum(1 / b for b in B) * n >= S - 1e-9:
                means = [np.mean(batches[j], axis=0) for j in range(n)]
                x, k, batches = x - gamma(counted - 1) * np.mean(means, axis=0), k + 1, defaultdict(list)
        held[i] = x, k
        steps[i] += 1
        history.append(x)
    return np.stack(history), counted


class Ringleader:
    """Ringleader: phase 1 collects a gradient of each worker; phase 2 makes n updates, one per worker."""

    def __init__(self, x_0, n):
        self.x, self.n, self.k = x_0.copy(), n, 0
        self.G, self.G_next = defaultdict(list), defaultdict(list)
        self.waiting = None  # Workers without their update in phase 2; None in phase 1.
        self.delays = []

    def arrive(self, i, g, version, gamma):
        if self.waiting is not None and i not in self.waiting:
            self.G_next[i].append((g, version))
            return
        self.G[i].append((g, version))
        if self.waiting is None:
            if len(self.G) < self.n:
                return
            self.waiting = set(range(self.n))
        means = [np.mean([h for h, _ in self.G[j]], axis=0) for j in range(self.n)]
        self.delays.append(max(self.k - v for entry in self.G.values() for _, v in entry))
        self.x, self.k = self.x - gamma * np.mean(means, axis=0), self.k + 1
        self.waiting.remove(i)
        if not self.waiting:
            self.G, self.G_next, self.waiting = self.G_next, defaultdict(list), None


def ringleader(x_0, grad, order, gamma, n):
    """Return x after each arrival, and the largest delay of a gradient in each update."""
    server, history = Ringleader(x_0, n), []
    held, steps = defaultdict(lambda: (x_0, 0)), defaultdict(int)
    for t, i in enumerate(order):
        point, version = held[i]
        server.arrive(i, grad(point, i, steps[i]), version, gamma(t))
        held[i] = server.x, server.k
        steps[i] += 1
        history.append(server.x)
    return np.stack(history), server.delays


def polynomial(a):
    """s_a(tau) = (1 + tau)^-a."""
    return lambda tau: (1 + tau) ** -a


def hinge(a, b):
    """s_{a,b}(tau) = 1 for tau <= b, else 1 / (a (tau - b) + 1)."""
    return lambda tau: 1.0 if tau <= b else 1 / (a * (tau - b) + 1)


def normalised(s, mean_staleness):
    """s(tau) / s(mean staleness)."""
    return lambda tau: s(tau) / s(mean_staleness)


def fedbuff(w_0, grad, order, eta_g, K, s):
    """FedBuff: Delta_bar += s(tau) Delta, tau in server versions; at K of them w <- w - eta_g Delta_bar / K, new version."""
    w, version, buffer, history = w_0.copy(), 0, [], []
    held, steps, taus = defaultdict(lambda: (w_0, 0)), defaultdict(int), []
    for t, i in enumerate(order):
        start, pulled = held[i]
        taus.append(version - pulled)
        buffer.append(s(taus[-1]) * grad(start, i, steps[i]))
        if len(buffer) == K:
            w, version, buffer = w - eta_g(t) * sum(buffer) / K, version + 1, []
        held[i] = w, version
        steps[i] += 1
        history.append(w)
    return np.stack(history), taus


def fedasync(x_0, grad, order, alpha, s):
    """FedAsync: x <- (1 - alpha_t) x + alpha_t x_new, alpha_t = alpha s(tau), x_new the worker's point."""
    x, history = x_0.copy(), []
    held, steps = defaultdict(lambda: (x_0, 0)), defaultdict(int)
    for t, i in enumerate(order):
        start, version = held[i]
        x_new = start - grad(start, i, steps[i])
        alpha_t = alpha(t) * s(t - version)
        x = (1 - alpha_t) * x + alpha_t * x_new
        held[i] = x, t + 1
        steps[i] += 1
        history.append(x)
    return np.stack(history)
