import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods import reference, runs

import gemjax
from gemjax import arrivals
from gemjax.testing import quadratic

READINGS = ("equations", "code", "algorithm")
VARIANTS = {
    "default": {},
    "schedule": {"rate": runs.schedule},
    "no-clamp": {"clamp": None},
    "kappa": {"kappa": 2.0, "clamp": (0.1, 3.0)},
    "little-momentum": {"momentum": 0.3, "eps": 1e-6},
}


def referee(rate, momentum=0.9, watch=None, order=runs.ORDER, **keywords):
    eta = rate if callable(rate) else lambda t: rate
    return reference.gem(runs.THETA_0, runs.grad, order, eta, mu=momentum, watch=watch, **keywords)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("reading", READINGS)
def test_agrees_with_the_paper(x64, reading, variant):
    keywords = {"reading": reading} | VARIANTS[variant]
    rate = keywords.pop("rate", 0.05)
    found, _ = runs.run(gemjax.gem(rate, num_workers=runs.NUM_WORKERS, **keywords))
    expected = referee(rate, **keywords)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * max(1.0, np.abs(expected).max()))


def test_the_readings_differ(x64):
    """The test above could not distinguish equal readings."""
    final = [referee(0.05, reading=reading)[-1] for reading in READINGS]
    assert (
        min(np.abs(a - b).max() for a, b in [(final[0], final[1]), (final[0], final[2]), (final[1], final[2])]) > 1e-3
    )


@pytest.mark.parametrize("reading", READINGS)
def test_reported_quantities_agree_with_the_paper(x64, reading):
    expected = []

    def watch(worker, theta, update):
        distance = np.abs(theta - worker.s) + np.abs(update)
        energy = np.sum(distance**2) / np.sum((worker.kappa * worker.m) ** 2)
        expected.append({"pi_median": np.median(worker.pi), "energy_ratio": energy})

    order = runs.ORDER[:60]
    referee(0.05, reading=reading, kappa=1.5, watch=watch, order=order)
    tx = gemjax.gem(0.05, kappa=1.5, num_workers=runs.NUM_WORKERS, reading=reading)
    _, found = runs.run(tx, order, observe=("pi_median", "energy_ratio"))
    for name in ("pi_median", "energy_ratio"):
        np.testing.assert_allclose([f[name] for f in found], [e[name] for e in expected], rtol=1e-9)
        assert np.ptp([e[name] for e in expected]) > 0.1


@pytest.mark.parametrize("clamp", [None, (0.0, 5.0)], ids=["no-clamp", "clamp"])
def test_compliance(x64, clamp):
    """Without a clamped pi, |theta - s| + pi |delta| = kappa |m| in every coordinate."""
    rng = np.random.default_rng(3)
    kappa, momentum, rate, num_workers = 1.3, 0.6, 0.1, 3
    tx = gemjax.gem(rate, momentum, num_workers, kappa=kappa, clamp=clamp, eps=0.0)
    theta = jnp.asarray(rng.normal(size=50))
    state = tx.init(theta)
    m, s = np.zeros((num_workers, 50)), np.tile(theta, (num_workers, 1))
    update, checked = jax.jit(tx.update), 0
    for w in (0, 1, 2, 2, 0, 1, 0, 2, 1, 0):
        g = rng.normal(size=50)
        updates, state = update(jnp.asarray(g), state, theta, worker=w)
        m[w] = momentum * m[w] - rate * g
        pi = np.asarray(updates) / (-rate * g)
        free = np.full(50, True) if clamp is None else (pi > clamp[0] + 1e-9) & (pi < clamp[1] - 1e-9)
        spent = np.abs(np.asarray(theta) - s[w]) + pi * np.abs(rate * g)
        np.testing.assert_allclose(spent[free], kappa * np.abs(m[w])[free], rtol=1e-9, atol=1e-12)
        if clamp is not None:
            assert pi.min() >= clamp[0]
            assert pi.max() <= clamp[1] + 1e-9
        same_sign = free & (np.sign(np.asarray(theta) - s[w]) * np.sign(-g) >= 0)
        theta = optax.apply_updates(theta, updates)
        moved = np.abs(np.asarray(theta) - s[w])
        np.testing.assert_allclose(moved[same_sign], np.abs(kappa * np.abs(m[w]))[same_sign], rtol=1e-9, atol=1e-12)
        checked += same_sign.sum()
        view, state = gemjax.pull(state, theta, worker=w)
        s[w] = view
    assert checked > 50


def test_one_worker_takes_steps_of_the_length_of_momentum_sgd(x64):
    tx = gemjax.gem(0.1, momentum=0.9)
    params, m = jnp.array([1.0, -2.0, 0.5]), np.zeros(3)
    state, rng = tx.init(params), np.random.default_rng(0)
    for _ in range(30):
        g = rng.normal(size=3) + 0.3
        updates, state = tx.update(jnp.asarray(g), state, params)
        delta = -0.1 * g
        m = 0.9 * m + delta
        expected = np.sign(delta) * np.minimum(np.abs(m), 5 * np.abs(delta))
        np.testing.assert_allclose(updates, expected, rtol=1e-9, atol=1e-13)
        params = optax.apply_updates(params, updates)


def test_without_momentum_and_staleness_it_is_sgd(x64):
    ours, theirs = gemjax.gem(0.1, momentum=0.0), optax.sgd(0.1)
    params = jnp.array([1.0, -2.0])
    state, theirs_state = ours.init(params), theirs.init(params)
    for _ in range(5):
        updates, state = ours.update(params, state, params)
        expected, theirs_state = theirs.update(params, theirs_state, params)
        np.testing.assert_allclose(updates, expected, rtol=1e-9)
        params = optax.apply_updates(params, updates)


def test_in_round_robin_the_distance_is_the_other_workers_updates(x64):
    n = 4
    tx = gemjax.gem(0.05, num_workers=n)
    params = jnp.asarray(runs.THETA_0)
    state, made = tx.init(params), []
    for t in range(5 * n):
        worker = t % n
        if t >= n:
            others = np.sum(made[-(n - 1) :], axis=0)
            np.testing.assert_allclose(params - state.stale_params[worker], others, rtol=0, atol=1e-14)
        grads = jnp.asarray(runs.grad(np.asarray(state.stale_params[worker]), worker, t // n))
        updates, state = tx.update(grads, state, params, worker=worker)
        params = optax.apply_updates(params, updates)
        _, state = gemjax.pull(state, params, worker=worker)
        made.append(np.asarray(updates))


@pytest.mark.nightly
def test_the_median_scaling_falls_as_workers_are_added():
    medians = []
    for n in (1, 5, 20):
        loss_fn, params, batches = quadratic(dimension=32, noise=1.0)
        tx = gemjax.gem(0.02, num_workers=n)
        trace = arrivals.RoundRobin(n).trace(200)
        history = gemjax.simulate(tx, loss_fn, params, batches, trace, diagnostics=("pi_median",)).history
        medians.append(float(np.mean(history["pi_median"][100:])))
    assert medians[0] > 1.0 > medians[1] > 2 * medians[2], medians


def test_kappa_scales_the_energy_of_a_lone_worker(x64):
    delta = {}
    for kappa in (1.0, 2.0):
        tx = gemjax.gem(0.1, momentum=0.0, kappa=kappa)
        params = jnp.array([1.0, -2.0])
        delta[kappa], _ = tx.update(params, tx.init(params), params)
    np.testing.assert_allclose(delta[2.0], 2 * delta[1.0], rtol=1e-9)


@pytest.mark.parametrize(("dtype", "eps"), [("float16", 1e-12), ("float32", 0.0), ("bfloat16", 0.0)])
@pytest.mark.parametrize("clamp", [None, (0.0, 5.0)], ids=["no-clamp", "clamp"])
def test_a_gradient_of_zero_moves_nothing(dtype, eps, clamp):
    """Dead units have gradients of exactly zero; eps = 1e-12 is zero in float16."""
    tx = gemjax.gem(0.5, num_workers=2, eps=eps, clamp=clamp)
    params = jnp.ones(3, dtype)
    state = tx.init(params)
    moved = jnp.array([1.0, 0.0, 2.0], dtype)
    updates, state = tx.update(moved, state, params, worker=0)
    params = optax.apply_updates(params, updates)
    updates, _ = tx.update(jnp.array([0.0, 0.0, 1.0], dtype), state, params, worker=1)
    assert bool(jnp.all(jnp.isfinite(updates)))
    np.testing.assert_array_equal(updates[:2].astype(jnp.float32), 0.0)


def test_only_algorithm_1_shifts_the_view():
    params = jnp.ones(2)
    for reading in READINGS:
        tx = gemjax.gem(0.1, num_workers=2, reading=reading)
        updates, state = tx.update(params, tx.init(params), params, worker=0)
        after = optax.apply_updates(params, updates)
        view, _ = gemjax.pull(state, after, worker=0)
        np.testing.assert_array_equal(view, params if reading == "algorithm" else after)
