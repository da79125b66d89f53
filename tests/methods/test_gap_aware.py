import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods import reference, runs

import gemjax

N = runs.NUM_WORKERS
ALIASES = {"gap_aware": gemjax.gap_aware, "dana_ga": gemjax.dana_ga}


@pytest.mark.parametrize(
    "keywords", [{}, pytest.param({"decay": 0.9, "eps": 0.1}, marks=pytest.mark.slow)], ids=["defaults", "decay"]
)
@pytest.mark.parametrize("name", ALIASES)
def test_agrees_with_the_paper(x64, name, keywords):
    found, _ = runs.run(ALIASES[name](runs.schedule, 0.7, N, **keywords))
    renamed = {{"decay": "Gam"}.get(key, key): value for key, value in keywords.items()}
    expected = reference.gap_aware(
        runs.THETA_0, runs.grad, runs.ORDER, runs.schedule, 0.7, dana=name == "dana_ga", **renamed
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.7, 0.0])
def test_accumulated_before_it_agrees_with_the_port(x64, momentum):
    found, _ = runs.run(gemjax.gap_aware(runs.schedule, momentum, N, decay=0.9, accumulate="before"))
    expected = reference.gap_aware_port(runs.THETA_0, runs.grad, runs.ORDER, runs.schedule, momentum, big_gamma=0.9)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    after, _ = runs.run(gemjax.gap_aware(runs.schedule, momentum, N, decay=0.9))
    assert np.abs(found - after).max() > 1e-4


def test_with_momentum_the_orders_differ_in_the_bias_correction_only(x64):
    """At decay 0 there is no bias correction."""
    order = runs.ORDER[:60]
    after, before = (
        runs.run(gemjax.gap_aware(0.05, 0.7, N, decay=0.0, accumulate=accumulate), order)[0]
        for accumulate in ("after", "before")
    )
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(("accumulate", "momentum"), [("after", 0.8), ("before", 0.8), ("before", 0.0)])
def test_one_worker_is_momentum_sgd(x64, accumulate, momentum):
    """Without a gap there is no penalty, with or without the worker's pulls."""
    ours, theirs = gemjax.gap_aware(0.1, momentum, accumulate=accumulate), optax.sgd(0.1, momentum)
    params = jnp.array([1.0, -3.0])
    state, theirs_state = ours.init(params), theirs.init(params)
    update = jax.jit(ours.update)
    for step in range(6):
        updates, state = update(params, state, params)
        expected, theirs_state = theirs.update(params, theirs_state, params)
        np.testing.assert_allclose(updates, expected, rtol=1e-14)
        params = optax.apply_updates(params, updates)
        if step % 2:
            _, state = gemjax.pull(state, params)


@pytest.mark.parametrize("name", ["gap_aware", "dana_ga"])
def test_at_an_infinite_step_length_it_is_the_base_method(x64, name):
    base = {"gap_aware": gemjax.momentum_asgd, "dana_ga": gemjax.dana_zero}[name]
    order = runs.ORDER[:60]
    found, _ = runs.run(ALIASES[name](0.03, 0.7, N, eps=1e16), order)
    expected, _ = runs.run(base(0.03, 0.7, N), order)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_without_momentum_dana_ga_is_gap_aware(x64):
    order = runs.ORDER[:60]
    found, _ = runs.run(gemjax.dana_ga(0.05, 0.0, N), order)
    expected, _ = runs.run(gemjax.gap_aware(0.05, 0.0, N), order)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


def test_the_penalty_counts_steps():
    """Equal gradients of equal sign: a gap of k steps divides by 1 + k, a gap of 0 by 1."""
    tx = gemjax.gap_aware(0.5, momentum=0.0, num_workers=2, eps=0.0)
    params = jnp.zeros(2)
    state = tx.init(params)
    updates, state = tx.update(jnp.ones(2), state, params, worker=0)
    np.testing.assert_allclose(updates, [-0.5, -0.5])
    updates, _ = tx.update(jnp.ones(2), state, jnp.array([-1.5, 0.0]), worker=1)
    np.testing.assert_allclose(updates, [-0.5 / 4, -0.5], rtol=1e-5)


def test_the_penalty_is_measured_in_steps_of_the_largest_rate():
    """The penalty fades as the rate decays: one step of the new rate is half a step of the largest."""
    tx = gemjax.gap_aware(lambda count: 0.5 / 2.0**count, momentum=0.0, num_workers=2, eps=0.0)
    state = tx.init(jnp.zeros(1))
    _, state = tx.update(jnp.ones(1), state, jnp.zeros(1), worker=0)
    updates, _ = tx.update(jnp.ones(1), state, jnp.array([-0.5]), worker=1)
    np.testing.assert_allclose(updates, [-0.25 / 2], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ALIASES)
def test_dead_coordinates_and_a_rate_of_zero_are_no_division_by_zero(name, dtype):
    tx = ALIASES[name](lambda count: jnp.where(count < 2, 0.0, 0.5), 0.5, 2, eps=0.0)
    params = jnp.ones(2, dtype)
    state = tx.init(params)
    for worker in (0, 1, 0, 1, 0):
        updates, state = tx.update(jnp.array([1.0, 0.0], dtype), state, params, worker=worker)
        params = optax.apply_updates(params, updates)
    assert bool(jnp.all(jnp.isfinite(params)))
    assert params[0] < 1.0
    assert params[1] == 1.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_in_half_precision_the_running_mean_changes(dtype):
    """The default decay is 1 in bfloat16."""
    tx = gemjax.gap_aware(0.5, momentum=0.0, num_workers=2)
    _, state = tx.update(jnp.ones(1, dtype), tx.init(jnp.zeros(1, dtype)), jnp.zeros(1, dtype), worker=0)
    updates, _ = tx.update(jnp.ones(1, dtype), state, jnp.full(1, -0.5, dtype), worker=1)
    assert updates.item() == pytest.approx(-0.25, rel=1e-2)


def test_it_penalises_any_optimizer_in_front_of_the_rate():
    """Adam's first velocity is 1 or -1: a gap of one step of 0.5 halves Adam's gradient."""
    inner = optax.scale_by_adam(b1=0.0, b2=0.0)
    tx = gemjax.asynchronous(
        optax.chain(gemjax.rules.scale_by_gap(0.5, inner), optax.scale_by_learning_rate(0.5)), num_workers=2
    )
    params = jnp.zeros(1)
    _, state = tx.update(3.0 * jnp.ones(1), tx.init(params), params, worker=0)
    _, state = tx.update(3.0 * jnp.ones(1), state, params - 0.5, worker=1)
    np.testing.assert_allclose(optax.tree.get(state, "mu"), [1.5], rtol=1e-4)
