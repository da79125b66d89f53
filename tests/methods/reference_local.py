"""The methods with local steps or refusals, once more in NumPy, float64 and the papers' notation.

As in ``reference.py``; where a worker takes local steps, ``j`` counts them, ``loss(x, i, j)`` is the loss of that mini-batch,
and ``eta`` is the (constant) rate of a local step. ``order`` is then the order in which workers come to exchange.
"""

from collections import defaultdict, deque

import numpy as np


def downpour(x_0, grad, order, eta, tau, window=1):
    """v_i accumulates -eta g; push v_i, pull. With ``window`` AGN: what is pushed is divided by it."""
    centre, history = x_0.copy(), []
    x, steps = defaultdict(lambda: x_0), defaultdict(int)
    for i in order:
        v = np.zeros_like(x_0)
        for _ in range(tau):
            g = grad(x[i], i, steps[i])
            x[i], v = x[i] - eta * g, v - eta * g
            steps[i] += 1
        centre = centre + v / window
        x[i] = centre
        history.append(centre)
    return np.stack(history)


def easgd(x_0, grad, order, eta, tau, alpha, delta=0.0):
    """E = alpha (x_i - x~) ; x_i -= E ; x~ += E, after tau steps of SGD, or of Nesterov's momentum delta.

    The momentum is written as v_{t+1} = delta v_t - eta g(y_t), y_{t+1} = y_t + v_{t+1} + delta (v_{t+1} - v_t), where y is
    the look-ahead point x + delta v at which gradients are taken.
    """
    centre, history = x_0.copy(), []
    y, v, steps = defaultdict(lambda: x_0), defaultdict(lambda: np.zeros_like(x_0)), defaultdict(int)
    for i in order:
        for _ in range(tau):
            new = delta * v[i] - eta * grad(y[i], i, steps[i])
            y[i] = y[i] + new + delta * (new - v[i])
            v[i] = new
            steps[i] += 1
        elastic = alpha * (y[i] - centre)
        y[i], centre = y[i] - elastic, centre + elastic
        history.append(centre)
    return np.stack(history), dict(y)


class LsgdWorker:
    """A process of LSGD's released code: torch's SGD with momentum m, and the mean of its last losses."""

    def __init__(self, x_0, m, nesterov, avg_size):
        self.x, self.buffer, self.m, self.nesterov = x_0.copy(), np.zeros_like(x_0), m, nesterov
        self.losses, self.step, self.exchanges = deque(maxlen=avg_size), 0, 0
        self.last = x_0.copy()  # Where the others know it to be.

    def train(self, grad, loss, i, eta, tau, prox=()):
        for _ in range(tau):
            self.losses.append(loss(self.x, i, self.step))
            g = grad(self.x, i, self.step)
            self.buffer = self.m * self.buffer + g
            self.x = self.x - eta * (g + self.m * self.buffer if self.nesterov else self.buffer)
            for strength, leader in prox:
                self.x = (1 - strength) * self.x + strength * leader
            self.step += 1
        self.last, self.exchanges = self.x.copy(), self.exchanges + 1


def _lead(workers, ranks):
    """The lowest running loss among those that have one, the first of equals."""
    return min(ranks, key=lambda r: np.mean(workers[r].losses) if workers[r].losses else np.inf)


def _draw(worker, j, workers, size, c1, c2, period):
    """w <- (1 - c1) w + c1 w_localleader ; every ``period``-th time w <- (1 - c2) w + c2 w_globalleader."""
    group = range(j // size * size, j // size * size + size)
    local, overall = workers[_lead(workers, group)].last, workers[_lead(workers, range(len(workers)))].last
    worker.x = (1 - c1) * worker.last + c1 * local
    if worker.exchanges % period == 0:
        worker.x = (1 - c2) * worker.x + c2 * overall


def lsgd(x_0, grad, loss, order, eta, tau, p, c1, c2=0.0, n=1, period=1, avg_size=10, m=0.0, nesterov=False, prox=()):
    """The fully asynchronous form: a worker that arrives is drawn at once. Returns leaders, their positions, and workers."""
    workers = [LsgdWorker(x_0, m, nesterov, avg_size) for _ in range(p)]
    anchors = {j: [x_0] * len(prox) for j in range(p)}
    led, history = [], []
    for j in order:
        workers[j].train(grad, loss, j, eta, tau, list(zip(prox, anchors[j], strict=True)))
        _draw(workers[j], j, workers, p // n, c1, c2, period)
        led.append(_lead(workers, range(p)))
        history.append(workers[led[-1]].last)
        group = range(j // (p // n) * (p // n), (j // (p // n) + 1) * (p // n))
        anchors[j] = [history[-1], workers[_lead(workers, group)].last][: len(prox)]
    return np.array(led), np.stack(history), workers


def lsgd_in_step(x_0, grad, loss, taken, eta, c1, c2=0.0, n=1, period=1, avg_size=10):
    """The collective form: ``taken[j][k]`` steps of worker j, then all exchange at once. Returns all positions after it."""
    p = len(taken)
    workers = [LsgdWorker(x_0, 0.0, False, avg_size) for _ in range(p)]
    for k in range(len(taken[0])):
        for j, worker in enumerate(workers):
            worker.train(grad, loss, j, eta, taken[j][k])
        for j, worker in enumerate(workers):
            _draw(worker, j, workers, p // n, c1, c2, period)
    return np.stack([worker.x for worker in workers]), _lead(workers, range(p))


def ringmaster(x_0, grad, order, gamma, R):
    """delta < R: x <- x - gamma g, k <- k + 1 ; else ignore. Send x^k to i. Each worker's delta is counted up by itself."""
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


def rennala(x_0, grad, order, gamma, S):
    """Gradients at x^k only: the first S of them make x^{k+1}. ``gamma(t)`` is the rate at the t-th gradient that counts."""
    x, k, batch, counted, history = x_0.copy(), 0, [], 0, []
    held, steps = defaultdict(lambda: (x_0, 0)), defaultdict(int)
    for i in order:
        point, version = held[i]
        g = grad(point, i, steps[i])
        if version == k:
            batch.append(g)
            counted += 1
            if len(batch) == S:
                x, k, batch = x - gamma(counted - 1) * np.mean(batch, axis=0), k + 1, []
        held[i] = x, k
        steps[i] += 1
        history.append(x)
    return np.stack(history), counted
