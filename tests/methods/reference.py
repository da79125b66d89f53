"""Reference implementations of the methods in NumPy, float64 and the papers' notation, one event loop each.

Written from the papers' algorithms, not from the library. Every function takes

- ``theta_0``: the initial central variable, a vector;
- ``grad(x, i, j)``: the j-th gradient that worker i computes, at the point x of its last pull;
- ``order``: the workers in the order in which their gradients arrive at the server;
- ``eta(t)``: the learning rate of commit t;

and returns the central variable after each commit, ``[len(order), k]``.
"""

from collections import defaultdict

import numpy as np


def asgd(theta_0, grad, order, eta):
    """ASGD, the common loop of the DANA paper: the master applies each gradient on arrival and sends theta to its worker."""
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
    """Worker of the GEM paper: m starts at 0, and s and the point of the first gradient are theta_0."""

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

    - equations: s_t = theta_{t - tau}, the point of the gradient, is the central variable after the worker's last commit;
    - algorithm (1): delta at s ; pull theta ; commit Psi(delta) ; s <- the theta pulled *before* that commit;
    - code: the authors' worker continues from (theta pulled + its own scaled update), but stores s = theta pulled.

    ``watch(worker, theta, update)``, if given, is called before each commit changes theta.
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


def momentum_asgd(theta_0, grad, order, eta, gamma, look_ahead=False):
    """One momentum at the master: v <- gamma v + g^i ; theta <- theta - eta v ; send theta, or theta - eta gamma v (NAG)."""
    theta, received, v = theta_0.copy(), defaultdict(lambda: theta_0), np.zeros_like(theta_0)
    steps, history = defaultdict(int), []
    for t, i in enumerate(order):
        v = gamma * v + grad(received[i], i, steps[i])
        theta = theta - eta(t) * v
        received[i] = theta - eta(t) * gamma * v if look_ahead else theta
        steps[i] += 1
        history.append(theta)
    return np.stack(history)


def lwp(theta_0, grad, order, eta, m, D):
    """Linear weight prediction, velocity form: v <- m v + g ; w <- w - eta v ; w_hat = w - eta D v."""
    w, w_hat, v = theta_0.copy(), defaultdict(lambda: theta_0), np.zeros_like(theta_0)
    steps, history = defaultdict(int), []
    for t, i in enumerate(order):
        v = m * v + grad(w_hat[i], i, steps[i])
        w = w - eta(t) * v
        w_hat[i] = w - eta(t) * D * v
        steps[i] += 1
        history.append(w)
    return np.stack(history)


def delay_adaptive(x_0, grad, order, gamma, n):
    """gamma_k = gamma n / max(n, tau_k), with tau_k the updates since that worker's snapshot."""
    x = x_0.copy()
    snapshot = {i: {"x": x_0, "k": 0, "j": 0} for i in set(order)}
    history = []
    for k, i in enumerate(order):
        held = snapshot[i]
        tau_k = k - held["k"]
        gamma_k = gamma(k) if tau_k <= n else gamma(k) * n / tau_k
        x = x - gamma_k * grad(held["x"], i, held["j"])
        snapshot[i] = {"x": x, "k": k + 1, "j": held["j"] + 1}
        history.append(x)
    return np.stack(history)


def dana(theta_0, grad, order, eta, gamma, lam=0.0):
    """DANA-Zero, and with lam > 0 DANA-DC. The sum over all momenta is computed anew at each commit.

    Returns theta and the view after each commit.
    """
    theta, x = theta_0.copy(), defaultdict(lambda: theta_0)
    v = {i: np.zeros_like(theta_0) for i in set(order)}
    steps, history, sent = defaultdict(int), [], []
    for t, i in enumerate(order):
        g = grad(x[i], i, steps[i])
        g = g + lam * g * g * (theta - x[i])
        v[i] = gamma * v[i] + g
        theta = theta - eta(t) * v[i]
        x[i] = theta - eta(t) * gamma * sum(v.values())
        steps[i] += 1
        history.append(theta)
        sent.append(x[i])
    return np.stack(history), np.stack(sent)


def dana_slim(Theta_0, grad, order, eta, gamma):
    """DANA-Slim. Worker: v^i <- gamma v^i + g ; send u = gamma v^i + g. Master: Theta <- Theta - eta u ; send Theta."""
    Theta, received = Theta_0.copy(), defaultdict(lambda: Theta_0)
    v = defaultdict(lambda: np.zeros_like(Theta_0))
    steps, history = defaultdict(int), []
    for t, i in enumerate(order):
        g = grad(received[i], i, steps[i])
        v[i] = gamma * v[i] + g
        u = gamma * v[i] + g
        Theta = Theta - eta(t) * u
        received[i] = Theta
        steps[i] += 1
        history.append(Theta)
    return np.stack(history)


def dc_asgd(w_0, grad, order, eta, lam, m=None, eps=1e-7):
    """DC-ASGD-c, and with m DC-ASGD-a: MS <- m MS + (1 - m) g g ; lambda_t = lambda_0 / sqrt(MS + eps)."""
    w, w_bak = w_0.copy(), defaultdict(lambda: w_0)
    MS = defaultdict(lambda: np.zeros_like(w_0))
    steps, history = defaultdict(int), []
    for t, k in enumerate(order):
        g = grad(w_bak[k], k, steps[k])
        lam_t = lam
        if m is not None:
            MS[k] = m * MS[k] + (1 - m) * g * g
            lam_t = lam / np.sqrt(MS[k] + eps)
        w = w - eta(t) * (g + lam_t * g * g * (w - w_bak[k]))
        w_bak[k] = w
        steps[k] += 1
        history.append(w)
    return np.stack(history)


def gap_aware(theta_0, grad, order, eta, gamma, Gam=0.999, eps=1e-8, dana=False):
    """GA, parameter-wise, and with ``dana`` DANA-GA; the average takes in the applied velocity after the step."""
    theta, x = theta_0.copy(), defaultdict(lambda: theta_0)
    v = {i: np.zeros_like(theta_0) for i in set(order)}
    a, n, eta_max = np.zeros_like(theta_0), 0, 0.0
    steps, history = defaultdict(int), []
    for t, i in enumerate(order):
        owner = i if dana else order[0]
        eta_max = max(eta_max, eta(t))
        P = np.ones_like(theta)
        if n > 0:
            C = eta_max * (np.sqrt(a / (1 - Gam**n)) + eps)
            P = 1 + np.abs(theta - x[i]) / C
        v[owner] = gamma * v[owner] + grad(x[i], i, steps[i]) / P
        a, n = Gam * a + (1 - Gam) * v[owner] ** 2, n + 1
        theta = theta - eta(t) * v[owner]
        x[i] = theta - eta(t) * gamma * sum(v.values()) if dana else theta
        steps[i] += 1
        history.append(theta)
    return np.stack(history)


def gap_aware_port(theta_0, grad, order, lr, momentum, big_gamma=0.999, eps=1e-8):
    """FTPipe's GapAware around torch's SGD: ra <- G ra + (1 - G) buf^2 *before* the step, with g^2 without momentum."""
    p, stashed, buf, ra = theta_0.copy(), defaultdict(lambda: theta_0), np.zeros_like(theta_0), np.zeros_like(theta_0)
    max_lr, steps, history = 0.0, defaultdict(int), []
    for t, i in enumerate(order):
        g = grad(stashed[i], i, steps[i])
        max_lr = max(max_lr, lr(t))
        ra = big_gamma * ra + (1 - big_gamma) * (buf**2 if momentum else g**2)
        avg_steps_needed = max_lr * (np.sqrt(ra / (1 - big_gamma ** (t + 1))) + eps)
        penalty = 1 + np.abs(p - stashed[i]) / avg_steps_needed
        buf = momentum * buf + g / penalty
        p = p - lr(t) * buf
        stashed[i] = p
        steps[i] += 1
        history.append(p)
    return np.stack(history)
