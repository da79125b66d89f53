"""Chains without a paper, of independent rules and transformations of optax."""

from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines import problems
from methods import runs
from methods.rows import KINDS, METHODS

import gemjax
from gemjax import arrivals
from gemjax.testing import quadratic

N = runs.NUM_WORKERS
CLIP = 0.5
FAST = ("gem", "dana-slim")
late = lambda row: pytest.mark.slow if row.name in KINDS else pytest.mark.nightly
clipped = pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.name, marks=() if row.name in FAST else late(row))
        for row in METHODS
        if not row.takes_displacements
    ],
)


def _by_hand(tx, problem, trace):
    """Run a loop that clips the gradients in NumPy before ``tx``."""
    params, state = problem.params, tx.init(problem.params)
    views, history, grad = [params] * trace.num_workers, [], jax.jit(jax.grad(problem.loss_fn))
    commit = jax.jit(lambda params, state, grads, worker: tx.update(grads, state, params, worker=worker))
    for worker, step in zip(trace.worker.tolist(), trace.step.tolist(), strict=True):
        g = np.asarray(grad(views[worker], problem.batches(worker, step))["x"])
        g = g * min(1.0, CLIP / np.linalg.norm(g))
        updates, state = commit(params, state, {"x": jnp.asarray(g)}, worker)
        params = optax.apply_updates(params, updates)
        views[worker], state = gemjax.pull(state, params, worker=worker)
        history.append(np.linalg.norm(g))
    return params["x"], np.array(history)


@pytest.mark.slow
@clipped
def test_clipping_in_front_of_a_method_is_clipping_what_it_sees(x64, row):
    problem, trace = problems.quadratic(), arrivals.Gamma(4).trace(30)
    tx = optax.chain(optax.clip_by_global_norm(CLIP), row(4))
    result = gemjax.simulate(tx, problem.loss_fn, problem.params, problem.batches, trace)
    expected, norms = _by_hand(row(4), problem, trace)
    np.testing.assert_allclose(result.params["x"], expected, rtol=0, atol=1e-12)
    assert np.isclose(norms, CLIP).sum() > 5


@pytest.mark.slow
@clipped
def test_a_clipped_method_keeps_the_law(x64, row):
    problem = problems.quadratic()
    tx = optax.chain(optax.clip_by_global_norm(CLIP), row(2))
    arguments = (tx, problem.loss_fn, problem.params, problem.batches)
    result = gemjax.run_on_devices(*arguments, 16, placement=gemjax.place(2), gate=problems.Abreast(2))
    simulated = gemjax.simulate(*arguments, result.trace)
    problems.assert_close(result.params, simulated.params, rtol=1e-10)
    if not row.refuses:  # Refusals are counted, and a replay has none.
        problems.assert_close(result.opt_state, simulated.opt_state, rtol=1e-10)


class Loop:
    """The master's loop in NumPy; ``step(i, theta, x, g)`` returns the update of theta."""

    def __init__(self, step, send=lambda theta: theta):
        self.step, self.send = step, send

    def run(self):
        theta, x, j, history = runs.THETA_0.copy(), defaultdict(lambda: runs.THETA_0), defaultdict(int), []
        for i in runs.ORDER:
            theta = theta + self.step(i, theta, x[i], runs.grad(x[i], i, j[i]))
            x[i] = self.send(theta)
            j[i] += 1
            history.append(theta)
        return np.stack(history)


def _adam(b1=0.9, b2=0.999, eps=1e-8):
    """Return Adam's direction as a function of one sequence of gradients."""
    m = v = t = 0

    def direction(g):
        nonlocal m, v, t
        m, v, t = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2, t + 1
        return m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)

    return direction


def _energy(mu=0.9):
    """Return GEM's scaling of a worker's update delta from the view s."""
    m = defaultdict(float)

    def scaled(i, theta, s, delta):
        m[i] = mu * m[i] + delta
        return np.clip((np.abs(m[i]) - np.abs(theta - s)) / (np.abs(delta) + 1e-12), 0.0, 5.0) * delta

    return scaled


def test_gem_behind_adam(x64):
    rate, direction, scaled = 0.02, _adam(), _energy()
    found, _ = runs.run(gemjax.asynchronous(optax.chain(optax.adam(rate), gemjax.rules.match_energy()), N))
    expected = Loop(lambda i, theta, x, g: scaled(i, theta, x, -rate * direction(g))).run()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)  # |delta| + 1e-12 divides.
    alone, _ = runs.run(gemjax.asynchronous(optax.adam(rate), N))
    assert np.abs(found - alone).max() > 1e-2


def test_gem_behind_danas_direction(x64):
    """GEM subtracts the distance to the look-ahead that the worker pulled."""
    rate, gamma, scaled, v = 0.03, 0.7, _energy(0.8), defaultdict(lambda: np.zeros(9))
    chain = optax.chain(
        gemjax.rules.dana_momentum(rate, gamma),
        optax.scale_by_learning_rate(rate),
        gemjax.rules.match_energy(momentum=0.8),
    )

    def step(i, theta, x, g):
        v[i] = gamma * v[i] + g
        return scaled(i, theta, x, -rate * v[i])

    found, _ = runs.run(gemjax.asynchronous(chain, N))
    expected = Loop(step, send=lambda theta: theta - rate * gamma * sum(v.values())).run()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_compensated_gradients_divided_by_their_gap(x64):
    rate, lam, gamma, decay = 0.05, 0.5, 0.7, 0.99
    v, a, n = np.zeros(9), np.zeros(9), 0
    chain = optax.chain(
        gemjax.rules.compensate_delay(lam),
        gemjax.rules.scale_by_gap(rate, optax.trace(gamma), decay),
        optax.scale_by_learning_rate(rate),
    )

    def step(i, theta, x, g):
        nonlocal v, a, n
        g = g + lam * g * g * (theta - x)
        if n:
            g = g / (1 + np.abs(theta - x) / (rate * (np.sqrt(a / (1 - decay**n)) + 1e-8)))
        v = gamma * v + g
        a, n = decay * a + (1 - decay) * v**2, n + 1
        return -rate * v

    found, _ = runs.run(gemjax.asynchronous(chain, N))
    np.testing.assert_allclose(found, Loop(step).run(), rtol=0, atol=1e-12)


def test_an_adam_for_each_worker(x64):
    directions = defaultdict(_adam)
    found, _ = runs.run(gemjax.per_worker(optax.adam(0.02), N))
    expected = Loop(lambda i, theta, x, g: -0.02 * directions[i](g)).run()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rate", [0.3, runs.schedule], ids=["constant", "schedule"])
def test_a_rate_that_depends_on_staleness_is_the_staleness_aware_method(x64, rate):
    sgd = optax.inject_hyperparams(optax.sgd)(learning_rate=gemjax.rules.StalenessSchedule(rate))
    found, _ = runs.run(gemjax.asynchronous(sgd, N))
    expected, _ = runs.run(gemjax.staleness_aware(rate, N))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


def test_a_momentum_that_depends_on_staleness(x64):
    """The momentum is 0.8 without staleness and 0.8 / 2 after one commit of others."""
    factor = lambda staleness: 1.0 / (staleness + 1)
    momentum = gemjax.rules.StalenessSchedule(0.8, factor)
    tx = gemjax.asynchronous(optax.inject_hyperparams(optax.trace)(decay=momentum), 2)
    params = jnp.zeros(1)
    state, found = tx.init(params), []
    for worker in (0, 0, 1):
        updates, state = tx.update(jnp.ones(1), state, params, worker=worker)
        _, state = gemjax.pull(state, params, worker=worker)
        found.append(updates.item())
    np.testing.assert_allclose(found, [1.0, 1.8, 1.0 + 0.8 / 3 * 1.8], rtol=1e-12)


@pytest.mark.nightly
def test_damped_gradients_stabilise_dana_at_a_rate_at_which_it_diverges_alone():
    rate, workers = 0.1, 16

    def distance(*front):
        loss_fn, params, batches = quadratic(dimension=10, condition=100.0, noise=0.1)
        chain = optax.chain(*front, gemjax.rules.dana_momentum(rate, 0.9), optax.scale_by_learning_rate(rate))
        tx = gemjax.asynchronous(chain, workers)
        result = gemjax.simulate(tx, loss_fn, params, batches, arrivals.Gamma(workers).trace(3000))
        return float(jnp.abs(result.params["x"]).max())

    with pytest.warns(gemjax.RunWarning, match="the run has diverged"):
        assert distance() > 1e6  # Commits that would overflow are rejected; the others lead away.
    assert distance(gemjax.rules.scale_by_staleness()) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [lambda steps: steps, lambda steps: steps.gradient_transformation()], ids=["own", "plain"]
)
@pytest.mark.parametrize("place", ["inside", "per worker", "outside"])
def test_multi_steps_pass_on_what_a_rule_is_told(kind, place):
    """Their type accepts no extra arguments, so optax drops them: rules were told of no worker, staleness or loss."""

    def update_fn(updates, state, params=None, *, worker=None, staleness=None, value=None, **extra_args):
        return jax.tree.map(lambda g: -0.1 * (1 + worker + staleness + value) * g, updates), state

    rule = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)
    wrapped = {
        "inside": lambda: gemjax.asynchronous(kind(optax.MultiSteps(rule, 1)), 2),
        "per worker": lambda: gemjax.asynchronous(gemjax.per_worker(kind(optax.MultiSteps(rule, 1))), 2),
        "outside": lambda: kind(optax.MultiSteps(gemjax.asynchronous(rule, 2), 1)),
    }
    arguments = lambda params, batch: jnp.sum((params - batch) ** 2), jnp.zeros(2), lambda worker, step: 0.1 * step
    trace = arrivals.Gamma(2).trace(6)
    found, expected = (
        gemjax.simulate(tx, *arguments, trace).params for tx in (wrapped[place](), gemjax.asynchronous(rule, 2))
    )
    np.testing.assert_array_equal(found, expected)


TWO_LEAVES = {"a": jnp.zeros(2), "b": jnp.zeros(2)}


def test_a_pipeline_per_worker_is_a_pipeline_each():
    """Worker 1 commits after every commit of worker 0; its delayed gradients are its own."""
    part = optax.chain(gemjax.rules.compensate_delay(0.1, "adaptive"), optax.scale(-1.0))
    tx = gemjax.asynchronous(gemjax.per_worker(gemjax.rules.delay_stages(part, 2, lambda path, leaf: 0)), 2)
    state, found = tx.init(TWO_LEAVES), []
    for gradient, worker in ((1.0, 0), (10.0, 1), (2.0, 0), (20.0, 1)):
        gradients = jax.tree.map(lambda p, g=gradient: p + g, TWO_LEAVES)
        updates, state = tx.update(gradients, state, TWO_LEAVES, worker=worker)
        found.append(float(updates["a"][0]))
    assert found == [0.0, 0.0, -1.0, -10.0]
