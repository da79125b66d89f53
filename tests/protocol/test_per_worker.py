import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax

ORDER = (0, 2, 2, 1, 0, 2)


def gradients(t):
    return {"a": jnp.array([1.0, -2.0]) * (t + 1), "b": jnp.array([[0.5 - t]])}


PARAMS = {"a": jnp.zeros(2), "b": jnp.ones((1, 1))}


@pytest.mark.parametrize(
    "inner", [optax.trace(0.9), optax.scale_by_adam(), optax.adagrad(0.1)], ids=["trace", "adam", "adagrad"]
)
def test_it_is_one_optimizer_per_worker(inner):
    """It equals a separate instance per worker, with its own moments and bias corrections."""
    tx = gemjax.per_worker(inner, num_workers=3)
    state, separate = tx.init(PARAMS), [inner.init(PARAMS)] * 3
    update, update_alone = jax.jit(tx.update), jax.jit(inner.update)
    for t, worker in enumerate(ORDER):
        found, state = update(gradients(t), state, PARAMS, worker=worker)
        expected, separate[worker] = update_alone(gradients(t), separate[worker], PARAMS)
        jax.tree.map(lambda f, e: np.testing.assert_allclose(f, e, rtol=1e-6), found, expected)
    for worker in range(3):
        jax.tree.map(
            lambda f, e: np.testing.assert_allclose(f, e, rtol=1e-6), state.inner_state[worker], separate[worker]
        )


def test_asynchronous_supplies_the_number_of_workers():
    members = gemjax.per_worker(optax.trace(0.9)), optax.scale_by_learning_rate(0.1)
    inside = gemjax.asynchronous(optax.chain(*members), num_workers=3)
    by_itself = optax.chain(gemjax.per_worker(optax.trace(0.9), num_workers=3), members[1])
    found, expected = inside.init(PARAMS), by_itself.init(PARAMS)
    for t, worker in enumerate(ORDER):
        updates, found = inside.update(gradients(t), found, PARAMS, worker=worker)
        others, expected = by_itself.update(gradients(t), expected, PARAMS, worker=worker)
        jax.tree.map(np.testing.assert_array_equal, updates, others)


def test_extra_args_reach_the_inner_transformation():
    seen = {}

    def update_fn(updates, state, params=None, **extra_args):
        seen.update(extra_args)
        return updates, state

    inner = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)
    tx = gemjax.per_worker(inner, num_workers=2)
    tx.update(PARAMS, tx.init(PARAMS), PARAMS, worker=1, value=3.0)
    assert seen["value"] == 3.0
    assert int(seen["worker"]) == 1
    assert int(seen["staleness"]) == 0


def test_without_asynchronous_its_state_is_not_stacked():
    """By itself and without a number of workers it is its inner transformation."""
    tx, inner = gemjax.per_worker(optax.trace(0.5)), optax.trace(0.5)
    state, expected = tx.init(PARAMS), inner.init(PARAMS)
    for t in range(3):
        updates, state = tx.update(gradients(t), state)
        others, expected = inner.update(gradients(t), expected)
        jax.tree.map(np.testing.assert_array_equal, updates, others)


@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    [gemjax.rules.tune_momentum(4), optax.chain(gemjax.rules.drop_stale(2), optax.sgd(0.1))],
    ids=["rows", "refusals"],
)
def test_parts_with_rows_or_refusals_of_each_worker_are_the_same_in_every_loop(part):
    tx = gemjax.asynchronous(optax.chain(gemjax.per_worker(part), optax.scale(-0.3)), 3)
    problem = (lambda params, batch: ((params - batch) ** 2).sum(), jnp.zeros(2), lambda worker, step: 1.0 + worker)
    trace = gemjax.arrivals.Gamma(3, 0.8).trace(20)
    found = gemjax.simulate(tx, *problem, trace)
    np.testing.assert_allclose(found.params, gemjax.testing.run_in_python(tx, *problem, trace), rtol=1e-5)


@pytest.mark.parametrize("impl", ["threefry2x32", pytest.param("rbg", marks=pytest.mark.nightly)])
def test_workers_draw_numbers_of_their_own(impl):
    """The variance of a sum of eight independent numbers is 8; if they were equal it would be 64."""
    noise, zeros = optax.add_noise(1.0, 0.0, jax.random.key(5, impl=impl)), jnp.zeros(100_000)
    tx = gemjax.per_worker(noise, num_workers=8)

    def commit(worker, carry):
        state, total = carry
        updates, state = tx.update(zeros, state, zeros, worker=worker)
        return state, total + updates

    _, total = jax.lax.fori_loop(0, 8, commit, (tx.init(zeros), zeros))
    np.testing.assert_allclose(jnp.var(total), 8.0, rtol=0.03)


def test_one_worker_draws_the_numbers_of_optax():
    inner = optax.chain(optax.add_noise(1.0, 0.0, jax.random.key(5)), optax.trace(0.9))
    tx = gemjax.per_worker(inner, num_workers=1)
    state, alone = tx.init(PARAMS), inner.init(PARAMS)
    for t in range(2):
        found, state = tx.update(gradients(t), state, PARAMS)
        expected, alone = inner.update(gradients(t), alone, PARAMS)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
