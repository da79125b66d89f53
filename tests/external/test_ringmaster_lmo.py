"""Methods of Ringmaster's authors in their event loop: a heap of finishing times, workers of fixed speeds.

Sources: https://github.com/vectozavr/ringmaster-lmo/tree/c2ebc8a, ``src/asynchronous/algorithm.py`` (Rennala, Malenia,
Ringleader, IAASGD, delay-adaptive ASGD), and https://github.com/k3nfalt/optimal-decentralized-optimization/tree/253d2d4,
``code/distributed_optimization_library/asynchronous/algorithm.py`` (Rennala and ASGD that ignore late gradients), with the
cluster of its ``tests/test_algorithm.py``: ten workers with delays 1, …, 10. The rules are written anew. The first program
interrupts workers at a step of Rennala and Malenia and at the threshold of Ringmaster, the second one nowhere.
"""

import heapq
from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax

WORKERS = 10
DELAYS = np.arange(1.0, WORKERS + 1)
RNG = np.random.default_rng(42)
CURVATURE = np.diag(np.linspace(0.1, 1.0, 6))
TARGETS = RNG.normal(size=(WORKERS, 6))  # Each worker's own minimum.
START = RNG.normal(size=6)
EVENTS = 400


def gradient(i, x):
    """Return the gradient of worker i, which has data of its own."""
    return CURVATURE @ (x - TARGETS[i])


class Loop:
    """Events of the programs: a worker finishes, its gradient at the point that it was sent is handled, it is sent another."""

    def __init__(self):
        self.x, self.k, self.heap, self.time = START.copy(), 0, [], 0.0
        self.sent = {}
        for i in range(WORKERS):
            self.send(i)

    def send(self, i):
        self.sent[i] = self.x, self.k
        heapq.heappush(self.heap, (self.time + DELAYS[i], i))

    def pop(self):
        self.time, i = heapq.heappop(self.heap)
        point, k = self.sent[i]
        return i, gradient(i, point), k

    def step(self, gamma, direction):
        self.x, self.k = self.x - gamma * direction, self.k + 1


def run_rule(rule, gamma):
    """Return the point after each event, and the workers of the events."""
    loop, memory, history, order = Loop(), {}, [], []
    for _ in range(EVENTS):
        i, g, k = loop.pop()
        rule(loop, memory, i, g, k, gamma)
        loop.send(i)
        history.append(loop.x)
        order.append(i)
    return np.stack(history), order


def late_ignored(loop, memory, i, g, k, gamma):
    """ASGD of k3nfalt: apply if iter >= self._iter - n. ``self._iter`` counts all arrivals there."""
    delay = loop.k - k
    loop.step(gamma, g if delay <= WORKERS else 0.0)


def delay_adaptive(loop, memory, i, g, k, gamma):
    """Step by gamma n / max(n, delay)."""
    loop.step(gamma * WORKERS / max(WORKERS, loop.k - k), g)


def rennala(loop, memory, i, g, k, gamma, batch_size=7):
    """Add up gradients of this iteration; at a full batch step by their mean."""
    if k == loop.k:
        memory.setdefault("batch", []).append(g)
    if len(memory.get("batch", ())) >= batch_size:
        loop.step(gamma, np.mean(memory.pop("batch"), axis=0))


def malenia(loop, memory, i, g, k, gamma):
    """Step by the mean of the workers' means when all have arrived; gradients of another iteration are ignored."""
    if k == loop.k:
        memory.setdefault(i, []).append(g)
    if len(memory) == WORKERS:
        loop.step(gamma, np.mean([np.mean(gs, axis=0) for gs in memory.values()], axis=0))
        memory.clear()


def iaasgd(loop, memory, i, g, k, gamma):
    """Fill the table without a step; then, at each arrival, replace an entry and step along the mean."""
    table = memory.setdefault("table", {})
    full = len(table) == WORKERS
    table[i] = g
    if full:
        loop.step(gamma, np.mean(list(table.values()), axis=0))


def iaasgd_with_the_first_step(loop, memory, i, g, k, gamma):
    """Do the same, but with a step at the arrival that fills the table (deviation 1)."""
    memory[i] = g
    if len(memory) == WORKERS:
        loop.step(gamma, np.mean(list(memory.values()), axis=0))


def ringleader(loop, memory, i, g, k, gamma):
    """Phases, tables of means and counts, and the swap, with the incremental means of the program."""
    if not memory:
        memory.update(current=defaultdict(lambda: (np.zeros(6), 0)), next=defaultdict(lambda: (np.zeros(6), 0)))
        memory["needs_update"] = None
    needs_update = memory["needs_update"]
    name = "next" if needs_update is not None and i not in needs_update else "current"
    mean, count = memory[name][i]
    memory[name][i] = mean + (g - mean) / (count + 1), count + 1
    if name == "next" or len(memory["current"]) < WORKERS:
        return
    loop.step(gamma, np.mean([mean for mean, _ in memory["current"].values()], axis=0))
    memory["needs_update"] = (set(range(WORKERS)) if needs_update is None else needs_update) - {i}
    if not memory["needs_update"]:
        memory["current"], memory["needs_update"] = memory["next"], None
        memory["next"] = defaultdict(lambda: (np.zeros(6), 0))


def in_gemjax(tx, order):
    """Return the central variable after each arrival of the same workers; the simulator skips refused ones."""
    found = []
    loss_fn = lambda x, target: 0.5 * (x - target) @ jnp.asarray(CURVATURE) @ (x - target)
    gemjax.simulate(
        tx, loss_fn, jnp.asarray(START), gemjax.Computed(lambda worker, step: jnp.asarray(TARGETS)[worker]),
        gemjax.Trace(order, num_workers=WORKERS),
        callback=lambda progress: found.append(np.asarray(progress.params)), callback_every=1,
    )  # fmt: skip
    return np.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "method"),
    [
        pytest.param(delay_adaptive, lambda: gemjax.delay_adaptive(0.1, WORKERS), marks=pytest.mark.slow),
        pytest.param(rennala, lambda: gemjax.rennala(0.1, WORKERS, batch_size=7), marks=pytest.mark.slow),
        pytest.param(malenia, lambda: gemjax.malenia(0.1, WORKERS), marks=pytest.mark.slow),
        pytest.param(iaasgd_with_the_first_step, lambda: gemjax.incremental(0.1, WORKERS), marks=pytest.mark.slow),
        pytest.param(ringleader, lambda: gemjax.ringleader(0.1, WORKERS)),
    ],
    ids=["delay-adaptive", "rennala", "malenia", "incremental", "ringleader"],
)
def test_rule(x64, rule, method):
    expected, order = run_rule(rule, 0.1)
    assert np.diff(expected, axis=0).any(axis=1).sum() >= 8
    np.testing.assert_allclose(in_gemjax(method(), order), expected, rtol=0, atol=1e-12)


def test_incremental_differs_from_the_program_by_the_first_step_only(x64):
    """Until then both are at the start. After that the program is one step behind."""
    theirs, order = run_rule(iaasgd, 0.1)
    ours, _ = run_rule(iaasgd_with_the_first_step, 0.1)
    filled = next(k for k in range(EVENTS) if len(set(order[: k + 1])) == WORKERS)
    for steps, first in ((theirs, filled + 1), (ours, filled)):
        assert not np.diff(steps[:first], axis=0).any()
        assert (steps[first] != START).all()


@pytest.mark.slow
def test_ringmaster_ignores_later_gradients_and_counts_applied_ones(x64):
    """ASGD of the second program counts ignored gradients as iterations, too; until the first of them both agree."""
    ignored, order = run_rule(late_ignored, 0.1)
    plain = in_gemjax(gemjax.asgd(0.1, WORKERS), order)
    first = int(np.argmin(np.diff(ignored, axis=0).any(axis=1))) + 1
    assert 10 < first < EVENTS // 2
    np.testing.assert_allclose(ignored[:first], plain[:first], rtol=0, atol=1e-12)
    ringmaster = in_gemjax(gemjax.ringmaster(0.1, WORKERS, threshold=WORKERS + 1), order)
    np.testing.assert_allclose(ignored[: first + 1], ringmaster[: first + 1], rtol=0, atol=1e-12)


# --- Ringmaster that interrupts workers, with SGD and with Muon -------------------------------------------------------

SHAPE = (2, 2)  # Of the first four numbers, a matrix; the other two are a vector.


class Sgd:
    """The plain step of Ringmaster."""

    def __call__(self, g):
        return g


class Muon:
    """The step of RingmasterMuon: Newton-Schulz for the matrix, momentum for the vector."""

    def __init__(self, beta=0.95, steps=5):
        self.m, self.beta, self.steps = np.zeros(6), beta, steps

    def __call__(self, g):
        self.m = self.beta * self.m + (1 - self.beta) * g
        u = self.beta * self.m + (1 - self.beta) * g
        x = u[:4].reshape(SHAPE)
        x = x / (np.linalg.norm(x) + 1e-7)
        for _ in range(self.steps):
            gram = x @ x.T
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        return np.concatenate([(x * np.sqrt(max(1, SHAPE[0] / SHAPE[1]))).ravel(), u[4:]])


def ringmaster_with_stops(rule, gamma, max_delay):
    """Return the points, the workers and the number of interruptions; a worker of delay R is sent the present point."""
    x, k, heap, delays = START.copy(), 0, [], np.zeros(WORKERS, int)
    send = lambda i, now: heapq.heappush(heap, (now + DELAYS[i], i, x))
    for i in range(WORKERS):
        send(i, 0.0)
    history, order, stops = [], [], 0
    while k < EVENTS:
        now, i, point = heapq.heappop(heap)
        x = x - gamma * rule(gradient(i, point))
        k += 1
        send(i, now)
        delays += 1
        delays[i] = 0
        if delays.max() == max_delay:
            late = np.where(delays == max_delay)[0]
            delays[late] = 0
            heap = [item for item in heap if item[1] not in late]
            heapq.heapify(heap)
            for j in late.tolist():
                send(j, now)
                stops += 1
        history.append(x)
        order.append(i)
    return np.stack(history), order, stops


def muon(rate):
    """Return Muon for matrices and momentum for vectors, in the convention of the program (rows are outputs)."""
    momentum = optax.trace(0.95, nesterov=True)  # 20 times theirs; Newton-Schulz divides by the norm plus 1e-7.
    dimensions = lambda tree: jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(), tree)
    orthogonal = optax.contrib.scale_by_muon(beta=0.0, nesterov=False, eps=20e-7, weight_dimension_numbers=dimensions)
    by_kind = {
        "matrix": optax.chain(momentum, orthogonal),
        "vector": optax.chain(momentum, optax.scale(0.05)),
    }
    return optax.chain(optax.partition(by_kind, {"w": "matrix", "b": "vector"}), optax.scale(-rate))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "muon"])
def test_ringmaster_interrupts_late_workers(x64, name):
    """The trace has the interruptions; the rule is then plain ASGD, and a threshold of its own refuses nothing."""
    rule, tx = (Sgd(), optax.scale(-0.1)) if name == "sgd" else (Muon(), muon(0.1))
    expected, order, stops = ringmaster_with_stops(rule, 0.1, 9)
    model = gemjax.arrivals.Interrupted(gemjax.arrivals.ConstantSpeeds(1 / DELAYS), threshold=9)
    trace = model.trace(EVENTS)
    assert trace.worker.tolist() == order
    assert model.interruptions(EVENTS).sum() == stops > 50
    assert trace.staleness.max() < 9
    found = []
    tree = lambda x: {"w": x[:4].reshape(SHAPE), "b": x[4:]}

    def loss_fn(params, target):
        x = jnp.concatenate([params["w"].ravel(), params["b"]])
        return 0.5 * (x - target) @ jnp.asarray(CURVATURE) @ (x - target)

    result = gemjax.simulate(
        gemjax.asynchronous(optax.chain(gemjax.rules.drop_stale(9), tx), WORKERS), loss_fn, tree(jnp.asarray(START)),
        gemjax.Computed(lambda worker, step: jnp.asarray(TARGETS)[worker]), trace,
        callback=lambda p: found.append(np.concatenate([p.params["w"].ravel(), p.params["b"]])), callback_every=1,
    )  # fmt: skip
    # A late pull is an arrival of its own, after which the point is the same.
    after_commits = np.stack(found)[np.flatnonzero(trace.events().commits)]
    # Newton-Schulz triples small numbers five times per commit, and with them their rounding errors.
    first = EVENTS if name == "sgd" else 150
    np.testing.assert_allclose(after_commits[:first], expected[:first], rtol=0, atol=1e-9)
    assert int(result.state.dropped) == 0


# --- Threshold, rate and momentum without parameters of the problem, and a normalised step ------------------------------


def parameter_agnostic(gamma):
    """Return points, workers and pulls of normalised Ringmaster: R = sqrt(k), alpha = 1 / sqrt(k), gamma / (k + 1)^(3/4)."""
    x, m, k, heap, delays = START.copy(), np.zeros(6), 0, [], np.zeros(WORKERS, int)
    alpha, threshold = 1.0, 1.0
    send = lambda i, now: heapq.heappush(heap, (now + DELAYS[i], i, k, x))
    for i in range(WORKERS):
        send(i, 0.0)
    history, order, pulls = [], [], []
    while k < EVENTS:
        now, i, pulled, point = heapq.heappop(heap)
        m = alpha * gradient(i, point) + (1 - alpha) * m
        x, k = x - gamma / (k + 1) ** 0.75 * m / (np.linalg.norm(m) + 1e-10), k + 1
        send(i, now)
        delays += 1
        delays[i] = 0
        late = np.flatnonzero(delays >= threshold)
        delays[late] = 0
        heap = [item for item in heap if item[1] not in late]
        heapq.heapify(heap)
        for j in late.tolist():
            send(j, now)
        alpha, threshold = 1 / np.sqrt(k), np.floor(np.sqrt(k))
        history.append(x)
        order.append(i)
        pulls.append(pulled)
    return np.stack(history), order, pulls


def test_parameter_agnostic_ringmaster_is_a_chain_of_schedules(x64):
    """The trace has the interruptions; the threshold by schedule refuses nothing then."""
    expected, order, pulls = parameter_agnostic(0.3)
    trace = gemjax.Trace(order, pulls, num_workers=WORKERS)
    assert trace.staleness.max() >= WORKERS - 1
    last = lambda count: jnp.maximum(1.0, 1.0 * count)
    rate = lambda count: 0.3 / (count + 1.0) ** 0.75
    momentum = optax.inject_hyperparams(optax.ema, static_args=("debias",))(
        lambda count: 1 - last(count) ** -0.5, debias=False
    )
    chain = optax.chain(
        gemjax.rules.drop_stale(lambda count: jnp.floor(jnp.sqrt(last(count)))), momentum,
        optax.normalize_by_update_norm(eps=1e-10), optax.scale_by_learning_rate(rate),
    )  # fmt: skip
    found = []
    result = gemjax.simulate(
        gemjax.asynchronous(chain, WORKERS), lambda x, target: 0.5 * (x - target) @ jnp.asarray(CURVATURE) @ (x - target),
        jnp.asarray(START), gemjax.Computed(lambda worker, step: jnp.asarray(TARGETS)[worker]), trace,
        callback=lambda progress: found.append(np.asarray(progress.params)), callback_every=1,
    )  # fmt: skip
    np.testing.assert_allclose(np.stack(found)[-EVENTS:], expected, rtol=0, atol=1e-9)
    assert int(result.state.dropped) == 0
