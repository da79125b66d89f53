"""A constant delay by a queue of gradients, with delay compensation and weight prediction.

Source: https://github.com/marin-community/marin/tree/034eecc, ``experiments/grug/moe_delay/delay_optim.py``. Its delay of all
leaves is that of ``delay + 1`` workers in turn, shifted by ``delay`` steps: a queue returns zeros until it is full, and workers
return gradients at the initial parameters. Its delay per leaf is :func:`gemjax.rules.delay_stages`.

The momentum by stage at the end is that of https://github.com/PluralisResearch/AsyncPP/tree/a691803, ``main_with_runtime.py``.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax

CURVATURE = np.array([1.0, 0.3, 2.0])
START = np.array([1.0, -2.0, 0.5])


def gradient(w):
    """Return the gradient of a function that is not quadratic."""
    return CURVATURE * w + 0.1 * w**3


def queue(delay, steps, rate, strength=0.0, horizon=0.0):
    """Step along g + lambda g^2 (w_t - w_{t-tau}), g of ``delay`` steps ago and taken at w + horizon dW."""
    w, last_update = START.copy(), np.zeros_like(START)
    grads, weights, history = [np.zeros_like(w)] * delay, [w] * delay, []
    for _ in range(delay + steps):
        grads, weights = [*grads, gradient(w + horizon * last_update)], [*weights, w]
        g, w_stale = grads.pop(0), weights.pop(0)
        last_update = -rate * (g + strength * g * g * (w - w_stale))
        w = w + last_update
        history.append(w)
    assert all((w == START).all() for w in history[:delay])
    return np.stack(history[delay:])


def in_turn(tx, workers, steps):
    params = jnp.asarray(START)
    state, views, history = tx.init(params), [START] * workers, []
    for t in range(steps):
        updates, state = tx.update(
            jnp.asarray(gradient(np.asarray(views[t % workers]))), state, params, worker=t % workers
        )
        params = optax.apply_updates(params, updates)
        views[t % workers], state = gemjax.pull(state, params, t % workers)
        history.append(np.asarray(params))
    return np.stack(history)


@pytest.mark.parametrize("delay", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_queue_is_asgd_with_workers_in_turn(x64, delay):
    found = in_turn(gemjax.asgd(0.05, delay + 1), delay + 1, 20)
    np.testing.assert_allclose(found, queue(delay, 20, 0.05), rtol=0, atol=1e-13)


@pytest.mark.parametrize("delay", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow), 4])
def test_its_delay_compensation_is_dc_asgd(x64, delay):
    found = in_turn(gemjax.dc_asgd(0.05, delay + 1, strength=0.3), delay + 1, 20)
    expected = queue(delay, 20, 0.05, strength=0.3)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
    assert delay == 0 or np.abs(expected - queue(delay, 20, 0.05)).max() > 1e-3


@pytest.mark.parametrize("delay", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow), 4])
def test_its_weight_prediction_is_lwp_without_momentum(x64, delay):
    """Predict w - tau rate g: the last update, as often as the delay."""
    found = in_turn(gemjax.lwp(0.03, 0.0, delay + 1), delay + 1, 20)
    np.testing.assert_allclose(found, queue(delay, 20, 0.03, horizon=delay), rtol=0, atol=1e-13)


# --- A delay per leaf -------------------------------------------------------------------------------------------------

STAGES = ["first", "second", "third"]  # One number each: delays 2, 1 and 0.
DELAYS = [2, 1, 0]


def queue_per_leaf(step, steps, strength=0.0, horizon=0.0):
    """Do the same with a delay per leaf; ``step`` maps corrected gradients to an update."""
    w, last_update, grads, weights, history = START.copy(), np.zeros(3), [], [], []
    for _ in range(steps):
        grads.insert(0, gradient(w + horizon * np.array(DELAYS) * last_update))
        weights.insert(0, w)
        pick = lambda past, missing: np.array(
            [past[tau][leaf] if tau < len(past) else missing[leaf] for leaf, tau in enumerate(DELAYS)]
        )
        g, w_stale = pick(grads, np.zeros(3)), pick(weights, START)
        last_update = step(g + strength * g * g * (w - w_stale))
        w = w + last_update
        history.append(w)
    return np.stack(history)


def per_leaf(tx, steps):
    """Return the parameters after each step of one worker that pulls after each commit."""
    params = {name: jnp.asarray(START[leaf]) for leaf, name in enumerate(STAGES)}
    state, view, history = tx.init(params), params, []

    @jax.jit
    def commit_and_pull(params, state, view):
        grads = {name: CURVATURE[leaf] * view[name] + 0.1 * view[name] ** 3 for leaf, name in enumerate(STAGES)}
        updates, state = tx.update(grads, state, params, worker=0)
        params = optax.apply_updates(params, updates)
        view, state = gemjax.pull(state, params, 0)
        return params, state, view

    for _ in range(steps):
        params, state, view = commit_and_pull(params, state, view)
        history.append([float(params[name]) for name in STAGES])
    return np.array(history)


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"strength": 0.3}, marks=pytest.mark.slow),
        pytest.param({"horizon": 1.0}, marks=pytest.mark.slow),
        {"strength": 0.3, "horizon": 0.5},
    ],
    ids=str,
)
def test_a_queue_per_leaf(x64, options):
    """Correction and prediction together differ from the program: there the stale weights are those without prediction."""
    expected = queue_per_leaf(lambda g: -0.05 * g, 30, **options)
    tx = gemjax.async_pipeline(0.05, 0.0, num_stages=3, stages=STAGES, highest=0.0, **options)
    found = per_leaf(tx, 30)
    if len(options) == 2:
        assert 1e-6 < np.abs(found - expected).max() < 1e-2
    else:
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
    assert np.abs(expected - queue_per_leaf(lambda g: -0.05 * g, 30)).max() > (1e-3 if options else -1)


def test_any_optimizer_may_be_delayed(x64):
    inner = optax.adam(0.05)
    state = inner.init(jnp.zeros(3))

    def step(g):
        nonlocal state
        updates, state = inner.update(jnp.asarray(g), state)
        return np.asarray(updates)

    expected = queue_per_leaf(step, 20)
    tx = gemjax.asynchronous(gemjax.rules.delay_stages(optax.adam(0.05), 3, STAGES))
    np.testing.assert_allclose(per_leaf(tx, 20), expected, rtol=0, atol=1e-13)


def test_momentum_rises_with_the_number_of_versions(x64):
    """args.momentum + (num_versions - 1) * (0.99 - args.momentum) / args.num_stages, with 3, 2 and 1 versions."""
    beta = np.array([0.8 + (versions - 1) * (0.99 - 0.8) / 3 for versions in (3, 2, 1)])
    m = np.zeros(3)

    def step(g):
        nonlocal m
        m = beta * m + (1 - beta) * g
        return -0.05 * (beta * m + (1 - beta) * g)

    expected = queue_per_leaf(step, 30)
    found = per_leaf(gemjax.async_pipeline(0.05, 0.8, num_stages=3, stages=STAGES), 30)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


def test_the_first_state_can_be_donated():
    tx, params = gemjax.async_pipeline(0.1, num_workers=2, strength=0.5), {"a": jnp.ones(2), "b": jnp.ones(2)}
    update = jax.jit(lambda grads, state, params: tx.update(grads, state, params, worker=0), donate_argnums=1)
    updates, _ = update(params, tx.init(params), params)
    assert jnp.isfinite(updates["a"]).all()
