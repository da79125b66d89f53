"""The methods once more, in NumPy, float64 and the papers' own notation: one event loop each.

Written from the papers' algorithms, not from the library. Every function takes

- ``theta_0``: the initial central variable, a vector;
- ``grad(x, i, j)``: the j-th gradient that worker i computes, at the point x that it holds;
- ``order``: the workers in the order in which their gradients arrive at the server;
- ``eta(t)``: the learning rate of commit t;

and returns the central variable after each commit, ``[len(order), k]``.
"""

from collections import defaultdict

import numpy as np


def asgd(theta_0, grad, order, eta):
    """The common loop of the DANA paper: the master applies what arrives and sends theta back to that worker only."""
    theta, received = theta_0.copy(), defaultdict(lambda: theta_0)
    steps, history = defaultdict(int), []
    for t, i in enumerate(order):
        g = grad(received[i], i, steps[i])
        theta = theta - eta(t) * g
        received[i] = theta
        steps[i] += 1
        history.append(theta)
    return np.stack(history)


def multi_asgd(theta_0, grad, order, eta, gamma):
    """Multi-ASGD: the same loop with v^i <- gamma v^i + g^i ; theta <- theta - eta v^i."""
    theta, received = theta_0.copy(), defaultdict(lambda: theta_0)
    v = defaultdict(lambda: np.zeros_like(theta_0))
    steps, history = defaultdict(int), []
    for t, i in enumerate(order):
        v[i] = gamma * v[i] + grad(received[i], i, steps[i])
        theta = theta - eta(t) * v[i]
        received[i] = theta
        steps[i] += 1
        history.append(theta)
    return np.stack(history)


def staleness_aware(theta_0, grad, order, eta):
    """Zhang et al. with c = 1: weights carry a timestamp; alpha = alpha_0 / tau, and alpha_0 where tau = 0."""
    w = theta_0.copy()
    learners = {learner: {"w": theta_0, "timestamp": 0, "j": 0} for learner in set(order)}
    history = []
    for timestamp, learner in enumerate(order):
        held = learners[learner]
        gradient = grad(held["w"], learner, held["j"])
        tau, alpha_0 = timestamp - held["timestamp"], eta(timestamp)
        alpha = alpha_0 if tau == 0 else alpha_0 / tau
        w = w - alpha * gradient
        learners[learner] = {"w": w, "timestamp": timestamp + 1, "j": held["j"] + 1}
        history.append(w)
    return np.stack(history)


def dynsgd(theta_0, grad, order, eta):
    """dist-keras' server with a window of 1: du = (num_updates - u) + 1 ; x += delta / du ; num_updates += 1."""
    x, history = theta_0.copy(), []
    pulled = dict.fromkeys(set(order), (theta_0, 0))
    steps = defaultdict(int)
    for num_updates, worker in enumerate(order):
        center, u = pulled[worker]
        delta = -eta(num_updates) * grad(center, worker, steps[worker])
        du = (num_updates - u) + 1
        x = x + delta / du
        pulled[worker] = (x, num_updates + 1)
        steps[worker] += 1
        history.append(x)
    return np.stack(history)


class GemWorker:
    """A worker of the GEM paper: m starts at 0, and s and the point of the first gradient are theta_0."""

    def __init__(self, theta_0, mu, kappa, eps, clamp):
        self.m = np.zeros_like(theta_0)
        self.s = self.point = theta_0
        self.mu, self.kappa, self.eps, self.clamp = mu, kappa, eps, clamp
        self.steps = 0

    def project(self, delta, theta):
        """Psi: m <- mu m + delta ; pi <- (kappa |m| - |theta - s|) / (|delta| + eps) ; pi * delta."""
        self.m = self.mu * self.m + delta
        self.pi = (self.kappa * np.abs(self.m) - np.abs(theta - self.s)) / (np.abs(delta) + self.eps)
        if self.clamp is not None:
            self.pi = np.minimum(np.maximum(self.pi, self.clamp[0]), self.clamp[1])
        return self.pi * delta


def gem(theta_0, grad, order, eta, mu=0.9, kappa=1.0, eps=1e-12, clamp=(0.0, 5.0), reading="equations", watch=None):
    """GEM in its three readings.

    - equations: s_t = theta_{t - tau}, the point of the gradient, is the central variable after its last commit;
    - algorithm (1): delta at s ; pull theta ; commit Psi(delta) ; s <- the theta pulled *before* that commit;
    - code: the authors' worker goes on from (theta pulled + its own scaled update), but keeps s = theta pulled.

    ``watch(worker, theta, update)``, if given, sees every commit before it changes theta.
    """
    theta = theta_0.copy()
    workers = {i: GemWorker(theta_0, mu, kappa, eps, clamp) for i in set(order)}
    history = []
    for t, i in enumerate(order):
        worker = workers[i]
        delta = -eta(t) * grad(worker.point, i, worker.steps)
        pulled = theta
        update = worker.project(delta, pulled)
        if watch is not None:
            watch(worker, pulled, update)
        theta = theta + update
        if reading == "equations":
            worker.s = worker.point = theta
        elif reading == "algorithm":
            worker.s = worker.point = pulled
        elif reading == "code":
            worker.s, worker.point = pulled, pulled + update
        worker.steps += 1
        history.append(theta)
    return np.stack(history)
