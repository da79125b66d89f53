"""Reference implementations of the methods with local steps or refusals, in NumPy, float64 and the papers' notation.

The arguments are those of ``reference.py``. With local steps ``j`` counts them, ``loss(x, i, j)`` is the loss of that
mini-batch, and ``eta`` is the (constant) rate of a local step. ``order`` is then the order of the exchanges.
"""

from collections import defaultdict, deque

import numpy as np


def downpour(x_0, grad, order, eta, tau, window=1):
    """DOWNPOUR: v_i accumulates -eta g; push v_i, pull. With ``window`` AGN, which divides the push by it."""
    central, history = x_0.copy(), []
    x, steps = defaultdict(lambda: x_0), defaultdict(int)
    for i in order:
        v = np.zeros_like(x_0)
        for _ in range(tau):
            g = grad(x[i], i, steps[i])
            x[i], v = x[i] - eta * g, v - eta * g
            steps[i] += 1
        central = central + v / window
        x[i] = central
        history.append(central)
    return np.stack(history)


def easgd(x_0, grad, order, eta, tau, alpha, delta=0.0):
    """EASGD: E = alpha (x_i - x~) ; x_i -= E ; x~ += E, after tau steps of SGD, or of Nesterov's momentum delta.

    The momentum is written as v_{t+1} = delta v_t - eta g(y_t), y_{t+1} = y_t + v_{t+1} + delta (v_{t+1} - v_t), where y is
    the look-ahead point x + delta v of the gradients.
    """
    central, history = x_0.copy(), []
    y, v, steps = defaultdict(lambda: x_0), defaultdict(lambda: np.zeros_like(x_0)), defaultdict(int)
    for i in order:
        for _ in range(tau):
            new = delta * v[i] - eta * grad(y[i], i, steps[i])
            y[i] = y[i] + new + delta * (new - v[i])
            v[i] = new
            steps[i] += 1
        elastic = alpha * (y[i] - central)
        y[i], central = y[i] - elastic, central + elastic
        history.append(central)
    return np.stack(history), dict(y)


class LsgdWorker:
    """Process of LSGD's released code: torch's SGD with momentum m, and the mean of its last losses."""

    def __init__(self, x_0, m, nesterov, avg_size):
        self.x, self.buffer, self.m, self.nesterov = x_0.copy(), np.zeros_like(x_0), m, nesterov
        self.losses, self.step, self.exchanges = deque(maxlen=avg_size), 0, 0
        self.last = x_0.copy()  # The position that the other workers can read.
        self.leaders = {"global": x_0, "local": x_0}  # As stored at this worker's last exchange of each kind.

    def train(self, grad, loss, i, eta, tau, prox=()):
        """Take tau steps; after each one w <- (1 - p2/tau_G) w + (p2/tau_G) x~, then the same with p1/tau and x~^j."""
        for _ in range(tau):
            self.losses.append(loss(self.x, i, self.step))
            g = grad(self.x, i, self.step)
            self.buffer = self.m * self.buffer + g
            self.x = self.x - eta * (g + self.m * self.buffer if self.nesterov else self.buffer)
            for strength, leader in zip(prox, self.leaders.values(), strict=False):
                self.x = (1 - strength) * self.x + strength * leader
            self.step += 1
        self.last, self.exchanges = self.x.copy(), self.exchanges + 1


def _lead(workers, ranks):
    """Return the worker with the lowest running loss, the first of equals."""
    return min(ranks, key=lambda r: np.mean(workers[r].losses) if workers[r].losses else np.inf)


def _draw(worker, j, workers, size, c1, c2, period):
    """Exchange: w <- (1 - c1) w + c1 x~^j ; at every ``period``-th exchange w <- (1 - c2) w + c2 x~. Leaders are stored."""
    group = range(j // size * size, j // size * size + size)
    worker.leaders["local"] = workers[_lead(workers, group)].last
    worker.x = (1 - c1) * worker.last + c1 * worker.leaders["local"]
    if worker.exchanges % period == 0:
        worker.leaders["global"] = workers[_lead(workers, range(len(workers)))].last
        worker.x = (1 - c2) * worker.x + c2 * worker.leaders["global"]


def lsgd(x_0, grad, loss, order, eta, tau, p, c1, c2=0.0, n=1, period=1, avg_size=10, m=0.0, nesterov=False, prox=()):
    """LSGD, asynchronous: a worker that arrives exchanges at once. Returns leaders, their positions, and workers."""
    workers = [LsgdWorker(x_0, m, nesterov, avg_size) for _ in range(p)]
    led, history = [], []
    for j in order:
        workers[j].train(grad, loss, j, eta, tau, prox)
        _draw(workers[j], j, workers, p // n, c1, c2, period)
        led.append(_lead(workers, range(p)))
        history.append(workers[led[-1]].last)
    return np.array(led), np.stack(history), workers


def lsgd_in_step(x_0, grad, loss, taken, eta, c1, c2=0.0, n=1, period=1, avg_size=10, prox=()):
    """LSGD, collective: ``taken[j][k]`` steps of worker j, then all exchange at once. Returns all positions after it."""
    p = len(taken)
    workers = [LsgdWorker(x_0, 0.0, False, avg_size) for _ in range(p)]
    for k in range(len(taken[0])):
        for j, worker in enumerate(workers):
            worker.train(grad, loss, j, eta, taken[j][k], prox)
        for j, worker in enumerate(workers):
            _draw(worker, j, workers, p // n, c1, c2, period)
    return np.stack([worker.x for worker in workers]), _lead(workers, range(p))


def ringmaster(x_0, grad, order, gamma, R):
    """Ringmaster. delta < R: x <- x - gamma g, k <- k + 1 ; else ignore. Send x^k to i. Each worker has its counter delta."""
    x, k, history = x_0.copy(), 0, []
    held, delta, steps = defaultdict(lambda: x_0), defaultdict(int), defaultdict(int)
    for i in order:
        g = grad(held[i], i, steps[i])
        if delta[i] < R:
            x, k = x - gamma(k) * g, k + 1
            for j in set(order):
                delta[j] += 1
        held[i], delta[i] = x, 0
        steps[i] += 1
        history.append(x)
    return np.stack(history), k


def rennala(x_0, grad, order, gamma, S, mu=0.0):
    """Rennala: the first S gradients at x^k make x^{k+1}; others are ignored. ``gamma(t)`` is the rate at the t-th of them."""
    x, v, k, batch, counted, history = x_0.copy(), np.zeros_like(x_0), 0, [], 0, []
    held, steps = defaultdict(lambda: (x_0, 0)), defaultdict(int)
    for i in order:
        point, version = held[i]
        g = grad(point, i, steps[i])
        if version == k:
            batch.append(g)
            counted += 1
            if len(batch) == S:
                mean = np.mean(batch, axis=0)
                v = mu * v + mean
                x, k, batch = x - gamma(counted - 1) * (mean + mu * v), k + 1, []
        held[i] = x, k
        steps[i] += 1
        history.append(x)
    return np.stack(history), counted
